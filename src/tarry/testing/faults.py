"""A log behind a bad network, on a machine that may crash; everything that goes wrong is drawn from one seed.

Here: `FaultyLog`, the machine: a real pump over a store in memory, whose writes become durable late and which may
crash. `FaultLayer`, the connection of one client to it: an `abc.Broker` whose requests and replies may be late, lost,
refused, or cut off for a while. `Faults`, what goes wrong by chance. Neither has semantics of its own: what is answered
is answered by the pump, and what a sender is told who gets no answer is what the port says (C4).

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
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, get_args

import anyio
import anyio.lowlevel

from tarry import abc
from tarry._runtime.bridge import Call as PumpCall
from tarry._runtime.bridge import Port, inline
from tarry._runtime.driver import Driver
from tarry.brokers.local.broker import LocalBroker, LocalSession
from tarry.brokers.local.pump import Pump
from tarry.brokers.local.store_memory import MemoryStore
from tarry.client import Client
from tarry.config import LogOptions
from tarry.errors import CapacityExceeded, LogUnavailable, NotAccepted, OutcomeUnknown, TarryError, UsageError
from tarry.testing.scripted import Call, CarryOut, Operation, Script, ScriptedBroker, ScriptedSession
from tarry.testing.virtual_time import VirtualClock
from tarry.types import TopicPartition

ByChance = Literal["lose_request", "lose_reply", "not_accepted", "capacity"]
FaultKind = Literal[ByChance, "delay", "slow_sync", "split", "kill", "crash"]
"""Everything that can go wrong here, by chance or because somebody asks for it."""

LOCAL: frozenset[Operation] = frozenset(("changed", "route", "aclose"))
"""Answered from what the client knows already: no request is sent."""
CHANGING: frozenset[Operation] = frozenset(
    ("create_topic", "delete_topic", "append", "open_session", "reset_group", "store_offset", "release", "leave")
)
"""Requests that may have been applied when no answer comes; a poll that commits is one, too."""


_REFUSALS: dict[FaultKind | None, type[TarryError]] = {"not_accepted": NotAccepted, "capacity": CapacityExceeded}


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
    """

    delay: float = 0.0
    latency: float = 0.05
    sync_latency: float = 0.0
    lose_request: float = 0.0
    lose_reply: float = 0.0
    not_accepted: float = 0.0
    capacity: float = 0.0
    grace: float = abc.REQUEST_GRACE

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("delay", *get_args(ByChance))}
        if any(not 0 <= share <= 1 for share in shares.values()) or sum(shares.values()) - self.delay > 1:
            raise ValueError(f"shares lie between 0 and 1, those of lost and refused requests together: {shares}")
        if min(self.latency, self.sync_latency, self.grace) < 0:
            raise ValueError(f"times are not negative: {self}")


Observer = Callable[[FaultKind, "Call | None"], None]
"""Is told of every fault when it happens, with the call that it hits."""


class FaultyLog:
    """A log on a machine of its own, reached through any number of `FaultLayer`s; an async context manager.

    Args:
        seed: of everything that happens by chance, here and in the layers. Under virtual time equal seeds give equal
            runs.
        faults: may be replaced at any time by `log.faults = ...`; `Faults()` ends all that is random.
        observe: see `Observer`.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        options: LogOptions | None = None,
        clock: abc.Clock | None = None,
        observe: Observer = lambda _, __: None,
    ) -> None:
        self.faults = faults or Faults()
        self.counts: Counter[FaultKind] = Counter()
        self.chance = random.Random(seed)
        self.store = _SlowStore(clock or VirtualClock(), self._submitted)
        self._options = options or LogOptions()
        self._clock = clock or VirtualClock()
        self._observe = observe
        self._driver = Driver(self)
        self._sync_at: float | None = None
        self._layers: list[FaultLayer] = []
        self._pump: Pump | None = None
        self._tasks = anyio.create_task_group()

    # -------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        """Start the machine."""
        await self._tasks.__aenter__()
        self.restart()
        self._tasks.start_soon(self._driver.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it; what is not durable yet becomes so."""
        if self._pump is not None:
            self._pump.close()
            await self.store.aclose()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def is_up(self) -> bool:
        """Not crashed, or started again since."""
        return self._pump is not None

    @property
    def pump(self) -> Pump:
        """The pump that runs now, for counters and for looking at what is stored.

        Raises:
            LogUnavailable: the log has crashed.
        """
        if self._pump is None:
            raise LogUnavailable("the log has crashed and was not started again")
        return self._pump

    def crash(self) -> None:
        """End the pump as a power cut does: what is not durable is gone, and no request that is out gets its answer.

        Until `restart` nothing can be reached. Nothing happens when the log is down already.
        """
        if self._pump is None:
            return
        self.noted("crash")
        pump, self._pump = self._pump, None
        self._sync_at = None
        self.store.crash()
        pump.failed(LogUnavailable("the log crashed while this request waited"))
        for layer in self._layers:
            layer.reset()

    def restart(self) -> None:
        """Open a new pump over what is durable. Standalone sessions go on under their identity, as if resumed."""
        if self._pump is not None:
            return
        options = self._options
        pump = Pump(self.store, self._clock, max_wait=options.max_wait, retention_interval=options.retention_interval)
        pump.alarm = self._driver.alarm
        pump.open()
        self._pump = pump
        for layer in self._layers:
            layer.attach(pump)
        self._driver.alarm(anyio.current_time())

    # -------------------------------------------------------------------------------------------- for the layers

    def joined(self, layer: FaultLayer) -> None:
        """One more client is connected."""
        self._layers.append(layer)

    def noted(self, kind: FaultKind, call: Call | None = None) -> None:
        """Count a fault."""
        self.counts[kind] += 1
        self._observe(kind, call)

    def fate(self, call: Call) -> ByChance | None:
        """What chance does to a request."""
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

    def lateness(self, call: Call) -> float:
        """How late a request or a reply arrives, in seconds."""
        if not self.faults.delay or self.chance.random() >= self.faults.delay:
            return 0.0
        self.noted("delay", call)
        return self.chance.uniform(0, self.faults.latency)

    # -------------------------------------------------------------------------------------------- deadlines

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called (see `Driver`)."""
        pump = None if self._pump is None else self._pump.next_deadline()
        return min((at for at in (pump, self._sync_at) if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Make writes durable, and let the pump do what is due."""
        if self._sync_at is not None and now >= self._sync_at:
            self._sync_at = None
            self.store.sync()
        if self._pump is not None:
            self._pump.tick(now)

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

    Leaders that move will belong here: one connection to each of several machines, and `route` says which. Now there is
    one machine, and `route` answers whatever its pump does.
    """

    def __init__(self, log: FaultyLog, script: Script | None = None) -> None:
        self.log = log
        self._state: Literal["open", "cut", "dead"] = "open"
        self._out: dict[anyio.CancelScope, None] = {}
        self._orphans: list[PumpCall[Any]] = []
        self._sessions: dict[FaultSession, None] = {}
        self._port = Port(inline, inline, self._withdraw)
        super().__init__(self._broker(log.pump), script)
        log.joined(self)

    def client(self, *, instruments: Sequence[abc.Instrument] = ()) -> Client:
        """A client over this connection; enter it with `async with`, once."""

        async def connect(_: Callable[[Callable[[], Awaitable[None]]], None]) -> abc.Broker:
            await anyio.lowlevel.checkpoint()
            return self

        return Client(connect, name="a faulty log", instruments=instruments)

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

    def heal(self) -> None:
        """End a `split`. The log ends what it still keeps for the old connection; who waits is told that it is lost."""
        if self._state == "cut":
            self._state = "open"
            self.reset()

    def kill(self) -> None:
        """The process of this client is gone: for ever, everything it asks for fails at once and reaches nobody."""
        if self._state != "dead":
            self.log.noted("kill")
            self._state = "dead"
            self.reset()

    def reset(self) -> None:
        """Both ends notice that the connection is not what it was: the log ends what is out, nobody gets an answer."""
        for scope in self._out:
            scope.cancel()
        for call in self._orphans:
            self._withdraw(call)
        self._orphans.clear()

    # -------------------------------------------------------------------------------------------- the machine

    def attach(self, pump: Pump) -> None:
        """The log runs in another pump from now on; sessions are resumed there."""
        self.wrapped = self._broker(pump)
        for session in self._sessions:
            session.resume(pump, self._port)

    def _broker(self, pump: Pump) -> LocalBroker:
        return LocalBroker(pump, self._port, anyio.lowlevel.checkpoint)

    def _withdraw(self, call: PumpCall[Any]) -> None:
        if self._state == "cut":
            self._orphans.append(call)
        elif self.log.is_up:
            self.log.pump.cancel(call)

    # -------------------------------------------------------------------------------------------- calls

    async def open_session(
        self, identity: abc.ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> FaultSession:
        """See the port."""
        session = await self._run(
            "open_session", self.wrapped.open_session, identity=identity, topics=topics, partitions=partitions
        )
        faulty = FaultSession(session, self, identity, topics, partitions)
        self._sessions[faulty] = None
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
        wait: float = call.arguments.get("max_wait") or 0.0
        with anyio.CancelScope(deadline=call.at + wait + self.log.faults.grace) as scope:
            self._out[scope] = None
            try:
                return await self._there_and_back(call, carry_out)
            finally:
                del self._out[scope]
        raise _given_up(call)

    async def _alone(self, call: Call, carry_out: CarryOut) -> Any:
        """What needs no request; but nobody closes a connection that is gone."""
        if call.operation == "aclose" and not (self.is_open and self.log.is_up):
            await anyio.lowlevel.checkpoint()
            return None
        return await carry_out()

    async def _there_and_back(self, call: Call, carry_out: CarryOut) -> Any:
        fate, is_open = self.log.fate(call), self.is_open
        await self._travel(call)
        if fate == "lose_request" or not (is_open and self.is_open):
            await self._lost(call, fate)
        refusal = self._refusal(call, fate)
        if refusal is not None:
            await anyio.lowlevel.checkpoint()
            raise refusal
        answer = await _outcome(carry_out)
        await self._travel(call)
        if fate == "lose_reply" or not self.is_open:
            await self._lost(call, fate)
        if isinstance(answer, TarryError):
            raise answer
        return answer

    async def _travel(self, call: Call) -> None:
        late = self.log.lateness(call)
        if late:
            await anyio.sleep(late)

    def _refusal(self, call: Call, fate: ByChance | None) -> TarryError | None:
        if not self.log.is_up:
            return LogUnavailable(f"{call.operation}: nobody listens; nothing was applied")
        if fate is None or fate not in _REFUSALS:
            return None
        self.log.noted(fate, call)
        return _REFUSALS[fate](f"{call.operation}: refused by chance; nothing was applied")

    async def _lost(self, call: Call, fate: ByChance | None) -> NoReturn:
        """Nothing comes any more; who belongs to a process that is gone notices at once."""
        if fate is not None and self.is_open:
            self.log.noted(fate, call)
        await (anyio.lowlevel.checkpoint() if self._state == "dead" else anyio.sleep_forever())
        raise _given_up(call)


@dataclass(slots=True)
class _Answer:
    """Takes the answer of a pump that answers at once."""

    value: Any = field(default=None)

    def reply(self, answer: Any) -> None:
        self.value = answer


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

    async def _carry_out(self, call: Call) -> Any:
        return await self._layer.transmit(call, partial(super()._carry_out, call))

    async def leave(self) -> None:
        """See the port."""
        self._layer.forget(self)
        await super().leave()

    def touch(self) -> None:
        """See the port; says nothing over a connection that is cut."""
        if self._layer.is_open:
            super().touch()

    def resume(self, pump: Pump, port: Port) -> None:
        """The log was started again: go on with this session there."""
        answer = _Answer()
        pump.open_session(answer, self._identity, *self._reads)
        if not isinstance(answer.value, TarryError):
            self.wrapped = LocalSession(pump, port, *answer.value)


async def _outcome(carry_out: CarryOut) -> Any:
    """The answer, or the error that is one. A `UsageError` is none: such a call never leaves the caller."""
    try:
        return await carry_out()
    except UsageError:
        raise
    except TarryError as refusal:
        return refusal


def _given_up(call: Call) -> TarryError:
    """What a sender knows that got no answer (C4)."""
    if call.operation in CHANGING or call.arguments.get("commit"):
        return OutcomeUnknown(f"{call.operation}: no answer came; it may or may not have been applied")
    return LogUnavailable(f"{call.operation}: no answer came; nothing was applied")
