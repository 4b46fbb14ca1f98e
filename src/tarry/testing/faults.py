"""A log behind a bad network, on a machine that may crash; everything that goes wrong is drawn from one seed.

Here: `FaultyLog`, the machine: a real pump over a store in memory, whose writes become durable late and which may
crash. `FaultLayer`, the connection of one client to it: an `abc.Broker` whose requests and replies may be late, lost,
refused, or cut off for a while. `Faults`, what goes wrong by chance, and `Damage`, what cannot be read for now. Neither
has semantics of its own: what is answered is answered by the pump, and what a sender is told who gets no answer is what
the port says (C4).

Not here: single calls that fail by plan (`scripted`; a `FaultLayer` follows a script as well); virtual time, which
these are meant for (`virtual_time`) but do not need.

    async with FaultyLog(seed=7, faults=Faults(lose_reply=0.05, delay=0.5)) as log, FaultLayer(log).client() as client:
        ...
        log.crash()
        log.restart()
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Self, get_args

import anyio
import anyio.abc
import anyio.lowlevel

from tarry import abc
from tarry._runtime.bridge import Call as PumpCall
from tarry._runtime.bridge import Port, inline
from tarry._runtime.driver import Driver
from tarry.brokers.local.broker import GroupSession, LocalBroker, LocalSession
from tarry.brokers.local.host import make_pump
from tarry.brokers.local.probes import Member
from tarry.brokers.local.pump import Pump
from tarry.brokers.local.store_memory import MemoryStore
from tarry.brokers.local.view import own
from tarry.client import Client
from tarry.config import LogOptions, check_seconds
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    ConfigTypeError,
    DataError,
    LogUnavailable,
    NotAccepted,
    NotStarted,
    TarryError,
    UsageError,
)
from tarry.testing.arguments import SECONDS_MAX, check_function, check_int, check_is, check_share
from tarry.testing.leaders import OF_A_PARTITION, Leaders, named
from tarry.testing.scripted import Call, CarryOut, Operation, Script, ScriptedBroker, ScriptedSession, SessionOperation
from tarry.testing.unanswered import given_up, is_change
from tarry.testing.virtual_time import VirtualClock
from tarry.types import TopicPartition, named_partition

ByChance = Literal["lose_request", "lose_reply", "not_accepted", "capacity"]
FaultKind = Literal[ByChance, "damage", "delay", "slow_sync", "split", "kill", "crash"]
"""Everything that can go wrong here, by chance or because somebody asks for it."""

LOCAL: frozenset[Operation] = frozenset(("changed", "route", "aclose"))
"""Answered from what the client knows already: no request is sent."""

ABOUT_PARTITIONS: frozenset[SessionOperation] = frozenset(("route", "wait_ready", "poll", *OF_A_PARTITION))
"""Requests that name partitions: those that damage can hit."""

_REFUSALS: dict[FaultKind | None, type[TarryError]] = {
    "not_accepted": NotAccepted,
    "capacity": CapacityExceeded,
    "damage": DataError,
}


@dataclass(frozen=True, slots=True)
class Damage:
    """What the log cannot read for now. Who asks about it is refused with a `DataError`, and nothing is applied.

    Such a refusal is lasting: asking again is not expected to help, and readers stop after several of them. A request
    that names several partitions is refused for the sake of a single one.

    Args:
        share: of requests that are refused, from 0 to 1.
        partitions: those that are damaged; None: all.
        operations: those that the damage keeps from their work.
    """

    share: float = 1.0
    partitions: frozenset[TopicPartition] | None = None
    operations: frozenset[SessionOperation] = ABOUT_PARTITIONS

    def __post_init__(self) -> None:
        check_share("share", self.share)
        object.__setattr__(self, "operations", _frozen("operations", self.operations))
        if self.partitions is not None:
            partitions = frozenset(named_partition(given, ()) for given in _frozen("partitions", self.partitions))
            object.__setattr__(self, "partitions", partitions)
        if wrong := self.operations - ABOUT_PARTITIONS:
            raise ConfigError(f"operations {sorted(wrong)} name no partitions; {sorted(ABOUT_PARTITIONS)} do")

    def concerns(self, call: Call) -> bool:
        """A request may be refused for it."""
        if call.operation not in self.operations:
            return False
        return self.partitions is None or not self.partitions.isdisjoint(named(call))


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong by chance; as it is, nothing.

    Args:
        delay: share (0 to 1) of requests, and of replies, that are late; each for itself, so they overtake each other.
        latency: longest delay in seconds.
        sync_latency: longest time in seconds from a write to its being durable; until then a crash drops it.
        lose_request: share of requests that never arrive.
        lose_reply: share of requests that are carried out and never answered.
        not_accepted, capacity: shares that are refused with 58 or 90; nothing is applied.
        grace: seconds after the end of a wait at which a sender gives up (C4); shorter ones make short simulations.
        damage: what cannot be read; a share of its own, of what nothing else has hit. None: all can.
    """

    delay: float = 0.0
    latency: float = 0.05
    sync_latency: float = 0.0
    lose_request: float = 0.0
    lose_reply: float = 0.0
    not_accepted: float = 0.0
    capacity: float = 0.0
    grace: float = abc.REQUEST_GRACE
    damage: Damage | None = None

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("delay", *get_args(ByChance))}
        for name, share in shares.items():
            check_share(name, share)
        if sum(shares.values()) - self.delay > 1:
            raise ConfigError(f"shares of lost and refused requests lie between 0 and 1 together: {shares}")
        for name in ("latency", "sync_latency", "grace"):
            object.__setattr__(self, name, check_seconds(name, getattr(self, name), SECONDS_MAX))
        if self.damage is not None:
            check_is("damage", self.damage, Damage)


def _frozen(name: str, given: Any) -> frozenset[Any]:
    if isinstance(given, (str, TopicPartition)) or not hasattr(given, "__iter__"):
        raise ConfigTypeError(f"{name}={given!r}: it takes a set, not {type(given).__name__}")
    return frozenset[Any](given)


class Fate(NamedTuple):
    """What chance does to one request: a fault, and how many seconds the request and its reply are late."""

    kind: ByChance | Literal["damage"] | None
    there: float
    back: float


NO_FATE = Fate(None, 0.0, 0.0)
Observer = Callable[[FaultKind, "Call | None"], None]
"""Is told of every fault when it happens, with the call that it hits."""


class FaultyLog:
    """A log on a machine of its own, reached through any number of `FaultLayer`s; an async context manager.

    Args:
        seed: of everything that happens by chance, here and in the layers. Under virtual time equal seeds give equal
            runs.
        faults: may be replaced at any time by `log.faults = ...`; `Faults()` ends all that is random.
        leaders: so many lead its partitions (at most 12); with several, `log.leaders` moves partitions between them
            and sends them away. One leads everything, as in the embedded log, and `log.leaders` is None.
        observe: see `Observer`.

    `pump` runs now, or ran until the crash; it may be looked at. `is_up` is False between a crash and the restart.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        options: LogOptions | None = None,
        clock: abc.Clock | None = None,
        observe: Observer = lambda _, __: None,
        leaders: int = 1,
    ) -> None:
        check_int("seed", seed)
        check_function("observe", observe)
        if options is not None:
            check_is("options", options, LogOptions)
        self.faults = Faults() if faults is None else faults
        self.counts: Counter[FaultKind] = Counter()
        self.chance = random.Random(seed)
        several = Leaders(leaders)
        self.leaders = None if leaders == 1 else several
        self.store = _SlowStore(clock or VirtualClock(), self._submitted)
        self._options = options or LogOptions()
        self._clock = clock or VirtualClock()
        self._observe = observe
        self._driver = Driver(self)
        self._sync_at: float | None = None
        self._layers: dict[FaultLayer, None] = {}
        self.is_up = False
        self.pump: Pump
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def faults(self) -> Faults:
        """What goes wrong by chance from now on."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        check_is("faults", faults, Faults)
        self._faults = faults

    # -------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        """Start the machine; once.

        Raises:
            UsageError: it was started before.
        """
        if self._tasks is not None:
            raise UsageError("a FaultyLog cannot be entered again; make a new one")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self.restart()
        self._tasks.start_soon(self._driver.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it; what is not durable yet becomes so."""
        assert self._tasks is not None
        if self.is_up:
            self.pump.close()
            await self.store.aclose()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def syncs_at_once(self) -> bool:
        """A write that comes now is durable at once."""
        return not self.faults.sync_latency and self._sync_at is None

    def crash(self) -> None:
        """End the pump as a power cut does: what is not durable is gone, and no request that is out gets its answer.

        Until `restart` nothing can be reached. Nothing happens when the log is down already.
        """
        if not self.is_up:
            return
        self.noted("crash")
        self.is_up = False
        self._sync_at = None
        self.store.crash()
        self.pump.failed(LogUnavailable("the log crashed while this request waited"))
        for layer in self._layers:
            layer.crashed()

    def restart(self) -> None:
        """Open a new pump over what is durable. Sessions go on there, but of members that the log knows no more."""
        if self.is_up:
            return
        pump = make_pump(self.store, self._options, self._clock)
        pump.alarm = self._driver.alarm
        pump.open()
        self.pump, self.is_up = pump, True
        for layer in self._layers:
            layer.attach(pump)
        self._driver.alarm(anyio.current_time())

    # -------------------------------------------------------------------------------------------- for the layers

    def connected(self, layer: FaultLayer) -> None:
        """One more client."""
        self._layers[layer] = None

    def gone(self, layer: FaultLayer) -> None:
        """A client's process has ended."""
        del self._layers[layer]

    def noted(self, kind: FaultKind, call: Call | None = None) -> None:
        """Count a fault."""
        self.counts[kind] += 1
        self._observe(kind, call)

    def fate(self, call: Call) -> Fate:
        """What chance does to a request."""
        return Fate(self._kind() or self.harm(call), self._lateness(call), self._lateness(call))

    def harm(self, call: Call) -> Literal["damage"] | None:
        """Whether damage keeps a request from its work."""
        damage = self.faults.damage
        is_hit = damage is not None and damage.concerns(call) and self.chance.random() < damage.share
        return "damage" if is_hit else None

    def _kind(self) -> ByChance | None:
        roll, faults = self.chance.random(), self.faults
        shares: tuple[tuple[ByChance, float], ...] = (
            ("lose_request", faults.lose_request),
            ("lose_reply", faults.lose_reply),
            ("not_accepted", faults.not_accepted),
            ("capacity", faults.capacity),
        )
        for kind, share in shares:
            if roll < share:
                return kind
            roll -= share
        return None

    def _lateness(self, call: Call) -> float:
        if not self.faults.delay or self.chance.random() >= self.faults.delay:
            return 0.0
        self.noted("delay", call)
        return self.chance.uniform(0, self.faults.latency)

    # -------------------------------------------------------------------------------------------- deadlines

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called (see `Driver`)."""
        pump = self.pump.next_deadline() if self.is_up else None
        return min((at for at in (pump, self._sync_at) if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Make writes durable, and let the pump do what is due."""
        if self._sync_at is not None and now >= self._sync_at:
            self._sync_at = None
            self.store.sync()
        if self.is_up:
            self.pump.tick(now)

    def _submitted(self) -> None:
        """A write waits to become durable; it does so together with all that come until then (group commit)."""
        if self._sync_at is not None:
            return
        if not self.faults.sync_latency:
            self.store.sync()
            return
        self.noted("slow_sync")
        self._sync_at = self._clock.now() + self.chance.uniform(0, self.faults.sync_latency)
        self._driver.alarm(self._sync_at)


class _SlowStore(MemoryStore):
    """Holds each write until its machine syncs, and tells it of each."""

    def __init__(self, clock: abc.Clock, submitted: Callable[[], None]) -> None:
        super().__init__(clock, hold=True)
        self._submitted = submitted

    def submit(self, job: abc.Job, done: abc.JobDone) -> object:
        ticket = super().submit(job, done)
        self._submitted()
        return ticket


class FaultLayer(ScriptedBroker):
    """One client's connection to a `FaultyLog`, as a broker. A script acts before the network does.

    A cancel reaches the log at once, unless the connection is cut: then the log keeps the request, and may carry it
    out, until it notices at the end of the cut.

    There is one machine; where it has several leaders (see `FaultyLog`), they are told apart by name, and `route`
    answers who leads at present.
    """

    def __init__(self, log: FaultyLog, script: Script | None = None) -> None:
        check_is("log", log, FaultyLog)
        if not hasattr(log, "pump"):
            raise NotStarted("the log was not started; use `async with FaultyLog() as log:`")
        self.log = log
        self._state: Literal["open", "cut", "dead"] = "open"
        self._opened = anyio.Event()
        self._opened.set()
        self._out: dict[anyio.CancelScope, None] = {}
        self._orphans: list[PumpCall[Any]] = []
        self._sessions: dict[FaultSession, None] = {}
        self._port = Port(inline, inline, self._withdraw)
        super().__init__(self._broker(log.pump), script)
        log.connected(self)

    def client(self, *, instruments: Sequence[abc.Instrument] = ()) -> Client:
        """A client over this connection; enter it with `async with`, once."""

        async def connect(_: Callable[[Callable[[], Awaitable[None]]], None]) -> abc.Broker:
            await anyio.lowlevel.checkpoint()
            return self

        return Client(connect, name="a faulty log", instruments=instruments)

    @property
    def sessions(self) -> list[FaultSession]:
        """Those that were opened over this connection and not left."""
        return list(self._sessions)

    # -------------------------------------------------------------------------------------------- cutting

    @property
    def is_open(self) -> bool:
        """Neither cut nor killed."""
        return self._state == "open"

    def split(self) -> None:
        """Cut the connection: whatever is out or will be sent gets no answer, until `heal`; the log goes on alone."""
        if self._state == "open":
            self.log.noted("split")
            self._state = "cut"
            self._opened = anyio.Event()

    def heal(self) -> None:
        """End a `split`. The log ends what it still keeps for the old connection; who waits is told that it is lost."""
        if self._state == "cut":
            self._state = "open"
            self._opened.set()
            self.reset()

    def kill(self) -> None:
        """The process of this client is gone: for ever, everything it asks for fails at once and reaches nobody."""
        if self._state != "dead":
            self.log.noted("kill")
            self._state = "dead"
            self._opened = anyio.Event()
            self.reset()
            self.log.gone(self)

    def crashed(self) -> None:
        """The log is gone; behind a cut nobody notices, and there is nothing left to be ended at its end."""
        self._orphans.clear()
        if self.is_open:
            self.reset()

    def reset(self) -> None:
        """Both ends notice that the connection is not what it was: the log ends what is out, nobody gets an answer."""
        for scope in self._out:
            scope.cancel()
        orphans, self._orphans = self._orphans, []
        for call in orphans:
            self.log.pump.cancel(call)

    # -------------------------------------------------------------------------------------------- the machine

    def attach(self, pump: Pump) -> None:
        """The log runs in another pump from now on, and so do the sessions."""
        self.wrapped = self._broker(pump)
        for session in self._sessions:
            session.resume(pump, self._port)

    def _broker(self, pump: Pump) -> LocalBroker:
        return LocalBroker(pump, self._port, anyio.lowlevel.checkpoint)

    def _withdraw(self, call: PumpCall[Any]) -> None:
        if self._state == "cut":
            self._orphans.append(call)
        else:
            self.log.pump.cancel(call)

    # -------------------------------------------------------------------------------------------- calls

    async def open_session(
        self, identity: abc.ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> FaultSession:
        """See the port."""
        pump = self.log.pump
        session = await self._run(
            "open_session", self.wrapped.open_session, identity=identity, topics=topics, partitions=partitions
        )
        faulty = FaultSession(session, self, identity, topics, partitions)
        self._sessions[faulty] = None
        if self.log.pump is not pump:  # the log crashed behind its answer
            faulty.resume(self.log.pump, self._port)
        return faulty

    def forget(self, session: FaultSession) -> None:
        """A session was left; it is not resumed."""
        self._sessions.pop(session, None)

    async def _carry_out(self, call: Call) -> Any:
        return await self.transmit(call, partial(super()._carry_out, call))

    async def transmit(self, call: Call, carry_out: CarryOut) -> Any:
        """Take a call to the log and its answer back, as far as they get; the sender gives up at its deadline (C4)."""
        if call.operation in LOCAL:
            return await self._alone(call, carry_out)
        fate = self.log.fate(call)
        wait: float = call.arguments.get("max_wait") or 0.0
        if not wait and self._is_prompt(call, fate):
            return await carry_out()
        with anyio.CancelScope(deadline=call.at + wait + self.log.faults.grace) as scope:
            self._out[scope] = None
            try:
                return await self._there_and_back(call, carry_out, fate)
            finally:
                del self._out[scope]
        raise given_up(call)

    async def _alone(self, call: Call, carry_out: CarryOut) -> Any:
        """What needs no request; but news do not get through a cut, and nobody closes a connection that is gone.

        Of what is damaged the client does not know either who leads it.
        """
        if call.operation == "aclose" and not (self.is_open and self.log.is_up):
            await anyio.lowlevel.checkpoint()
            return None
        answer = self._refused(call, self.log.harm(call)) or await _outcome(carry_out)
        await self._opened.wait()
        if isinstance(answer, TarryError):
            raise answer
        return answer

    def _is_prompt(self, call: Call, fate: Fate) -> bool:
        """Nothing happens to it, and the log answers at once: it needs no deadline, which costs more than all else."""
        if self.log.leaders is not None:  # one that falls silent while it answers
            return False
        is_slow = is_change(call) and not self.log.syncs_at_once
        return fate == NO_FATE and self.is_open and self.log.is_up and not is_slow

    async def _there_and_back(self, call: Call, carry_out: CarryOut, fate: Fate) -> Any:
        was_open = self.is_open
        if fate.there:
            await anyio.sleep(fate.there)
        if fate.kind == "lose_request" or not (was_open and self.is_open):
            await self._lost(call, fate)
        refusal = self._refusal(call, fate.kind)
        if refusal is not None:
            await anyio.lowlevel.checkpoint()
            raise refusal
        answer = await _outcome(carry_out)
        if fate.back:
            await anyio.sleep(fate.back)
        if fate.kind == "lose_reply" or not self.is_open:
            await self._lost(call, fate)
        if isinstance(answer, TarryError):
            raise answer
        return answer

    def _refusal(self, call: Call, kind: FaultKind | None) -> TarryError | None:
        if not self.log.is_up:
            return LogUnavailable(f"{call.operation}: nobody listens; nothing was applied")
        return self._refused(call, kind)

    def _refused(self, call: Call, kind: FaultKind | None) -> TarryError | None:
        if kind is None or kind not in _REFUSALS:
            return None
        self.log.noted(kind, call)
        return _REFUSALS[kind](f"{call.operation}: refused by chance; nothing was applied")

    async def _lost(self, call: Call, fate: Fate) -> NoReturn:
        """Nothing comes any more; who belongs to a process that is gone notices at once."""
        if fate.kind is not None and self.is_open:
            self.log.noted(fate.kind, call)
        await (anyio.lowlevel.checkpoint() if self._state == "dead" else anyio.sleep_forever())
        raise given_up(call)


class FaultSession(ScriptedSession):
    """A session whose calls go over the connection of its client; made by `FaultLayer.open_session`."""

    def __init__(
        self,
        session: abc.Session,
        layer: FaultLayer,
        identity: abc.ConsumerIdentity,
        topics: Sequence[str],
        partitions: Sequence[TopicPartition],
    ) -> None:
        super().__init__(session, layer.script, identity)
        self._layer = layer
        self._identity = identity
        self._reads = (tuple(topics), tuple(partitions))
        self._seen = session.assignment
        self._lost: TarryError | None = None

    async def _carry_out(self, call: Call) -> Any:
        carry_out: CarryOut = partial(self._served, call)
        if (leaders := self._layer.log.leaders) is not None:
            carry_out = partial(leaders.serve, call, carry_out)
        return await self._layer.transmit(call, carry_out)

    async def _served(self, call: Call) -> Any:
        if self._lost is not None:
            await anyio.lowlevel.checkpoint()
            raise own(self._lost)
        return await super()._carry_out(call)

    @property
    def assignment(self) -> abc.Assignment:
        """See the port; behind a cut nothing new is known."""
        if self._layer.is_open:
            self._seen = self.wrapped.assignment
        return self._seen

    async def leave(self) -> None:
        """See the port."""
        self._layer.forget(self)
        await super().leave()

    def touch(self) -> None:
        """See the port; says nothing over a connection that is cut."""
        if self._layer.is_open:
            super().touch()

    def resume(self, pump: Pump, port: Port) -> None:
        """The log was started again: go on there."""
        if isinstance(self.wrapped, GroupSession):
            self._lost = LogUnavailable("the log was started again and does not answer yet")
            make = partial(_session, GroupSession, pump, port)
            pump.groups.resume(_Reply(partial(self._resumed, make)), self._identity, self.wrapped.id)
        else:
            make = partial(_session, LocalSession, pump, port)
            seen = self.wrapped.assignment.version  # what there is may be other than that, and has to look so
            pump.open_session(_Reply(partial(self._resumed, make)), self._identity, *self._reads, seen=seen)

    def _resumed(self, make: Callable[..., LocalSession], answer: Any) -> None:
        if isinstance(answer, TarryError):
            self._lost = answer
        else:
            self._lost = None
            self.wrapped = make(*answer)


@dataclass(frozen=True, slots=True)
class _Reply:
    """Where a pump's answer goes."""

    take: Callable[[Any], None]

    def reply(self, answer: Any) -> None:
        """Take it."""
        self.take(answer)

    @property
    def is_wanted(self) -> bool:
        """Always."""
        return True


def _session(kind: Callable[..., LocalSession], pump: Pump, port: Port, member: Member, _: object) -> LocalSession:
    return kind(pump, port, member, _nothing)


def _nothing(_: object) -> None:
    """Nobody has to know that a session was left."""


async def _outcome(carry_out: CarryOut) -> Any:
    """The answer, or the error that is one. A `UsageError` is none: such a call never leaves the caller."""
    try:
        return await carry_out()
    except UsageError:
        raise
    except TarryError as refusal:
        return refusal
