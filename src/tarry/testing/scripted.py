"""A log that misbehaves on purpose: a real broker, wrapped, whose calls follow a script and are written down.

Here: `ScriptedBroker` and `ScriptedSession`, the `Script` they follow, and what a script can do to a call (`delay`,
`hold`, `refuse`, `lose_request`, `lose_reply`, `answer_empty`, `hook`). Not here: any behaviour of a log, which is all
the wrapped broker's; virtual time (`virtual_time`).

    script = Script()
    script.on("append", nth=3, do=lose_reply())
    script.every("poll", do=delay(0.2))
    script.rate("store_offset", 0.1, do=refuse(CapacityExceeded), seed=7)
    broker = ScriptedBroker(broker, script)
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args

import anyio
import anyio.lowlevel

from tarry.abc import (
    Assignment,
    Broker,
    Capabilities,
    ConsumerIdentity,
    FetchTarget,
    Leader,
    PollReply,
    Ready,
    Resolved,
    Session,
    TargetReply,
    WatchChange,
)
from tarry.config import TopicOptions, check_seconds
from tarry.errors import ConfigError, ConfigTypeError, OutcomeUnknown, TarryError, UsageError
from tarry.testing.arguments import check_function, check_int, check_is, check_share
from tarry.types import (
    GroupInfo,
    HistoryId,
    Offset,
    Ownership,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Start,
    TopicInfo,
    TopicPartition,
    offset_before,
)

T = TypeVar("T")
P = ParamSpec("P")

BrokerOperation = Literal[
    "create_topic",
    "grow_topic",
    "delete_topic",
    "describe_topic",
    "list_topics",
    "append",
    "open_session",
    "describe_group",
    "list_groups",
    "reset_group",
    "aclose",
]
SessionOperation = Literal[
    "changed", "route", "resolve", "wait_ready", "poll", "stored_offset", "store_offset", "release", "leave"
]
Operation = BrokerOperation | SessionOperation
"""Methods of `tarry.abc.Broker` and `tarry.abc.Session` that a script can reach: all that are async."""
OPERATIONS: frozenset[str] = frozenset((*get_args(BrokerOperation), *get_args(SessionOperation)))


@dataclass(slots=True)
class Call:
    """One call, written down when it begins and completed when it ends.

    Args:
        arguments: by the names of the port's parameters, defaults included.
        session: the wrapped one, and whose it is (`identity`); None for calls of the broker.
        at, ended_at: the loop's time at which it began, and ended.
        reached: the wrapped broker was called; False for a call that was refused, got lost, or still waits.
        outcome: `open` until it ends; then `answered`, `failed` (see `error`) or `cancelled`.
        result: what the caller got.
        error: what was raised to the caller.
    """

    operation: Operation
    arguments: dict[str, Any] = field(repr=False)
    session: Session | None = field(repr=False)
    identity: ConsumerIdentity | None
    at: float
    reached: bool = False
    outcome: Literal["open", "answered", "failed", "cancelled"] = "open"
    result: object = field(default=None, repr=False)
    error: Exception | None = None
    ended_at: float | None = None


CarryOut = Callable[[], Awaitable[Any]]
"""Calls the wrapped broker, or the next action that applies to the call."""
Action = Callable[[Call, CarryOut], Awaitable[Any]]
"""What a script does to a call: awaits `carry_out()` or not, and returns or raises what the caller gets.

Any async function of that shape is one.
"""
Error = Exception | Callable[[], Exception]
"""An error, its class, or a function that makes one."""


# ------------------------------------------------------------------------------------------------------- actions


def delay(seconds: float | timedelta, *, reply: bool = False) -> Action:
    """Wait before the call is carried out; with `reply` carry it out and let the caller wait for its end."""
    return _wait(partial(anyio.sleep, check_seconds("seconds", seconds)), reply=reply)


def hold(until: anyio.Event, *, reply: bool = False) -> Action:
    """Hold the call back until the event is set; with `reply` carry it out and hold its end back."""
    wait = getattr(until, "wait", None)
    if wait is None:
        raise ConfigTypeError(f"hold({until!r}) needs an event, not {type(until).__name__}")
    return _wait(wait, reply=reply)


def _wait(wait: Callable[[], Awaitable[object]], *, reply: bool) -> Action:
    async def before(_: Call, carry_out: CarryOut) -> object:
        await wait()
        return await carry_out()

    async def after(_: Call, carry_out: CarryOut) -> object:
        try:
            return await carry_out()
        finally:
            await wait()

    return after if reply else before


def refuse(error: Error) -> Action:
    """Raise `error`; nothing is carried out."""
    _check_error(error, needed=True)

    async def act(_: Call, __: CarryOut) -> object:
        await anyio.lowlevel.checkpoint()
        raise _made(error)

    return act


def lose_request(error: Error | None = None, *, after: float | timedelta = 0.0) -> Action:
    """Carry out nothing; after some seconds raise `OutcomeUnknown`, or another error: the caller cannot know."""
    _check_error(error)
    after_s = check_seconds("after", after)

    async def act(call: Call, _: CarryOut) -> object:
        await anyio.sleep(after_s)
        raise _lost(call, error)

    return act


def lose_reply(error: Error | None = None, *, after: float | timedelta = 0.0) -> Action:
    """Carry the call out; after some more seconds raise `OutcomeUnknown`, or another error, whatever its answer was.

    A `UsageError` passes: such a call never leaves the caller.
    """
    _check_error(error)
    after_s = check_seconds("after", after)

    async def act(call: Call, carry_out: CarryOut) -> object:
        answer: TarryError | None = None
        try:
            await carry_out()
        except UsageError:
            raise
        except TarryError as refused:
            answer = refused
        await anyio.sleep(after_s)
        raise _lost(call, error) from answer

    return act


def answer_empty() -> Action:
    """Answer a `poll` or `wait_ready` at once with nothing. Nothing is read and nothing committed."""

    async def act(call: Call, _: CarryOut) -> object:
        await anyio.lowlevel.checkpoint()
        if call.operation == "wait_ready":
            return []
        if call.operation == "poll":
            return PollReply(tuple([await _empty(call, target) for target in call.arguments["targets"]]))
        raise ValueError(f"answer_empty() is for poll and wait_ready, not for {call.operation}")

    return act


def hook(function: Callable[[Call], object]) -> Action:
    """Call `function`, async or not, and then carry the call out."""
    check_function("function", function)

    async def act(call: Call, carry_out: CarryOut) -> object:
        found = function(call)
        if isawaitable(found):
            await found
        return await carry_out()

    return act


def _check_error(error: object, *, needed: bool = False) -> None:
    if (needed or error is not None) and not isinstance(error, Exception) and not callable(error):
        raise ConfigTypeError(f"error={error!r}: it takes an exception, its class, or a function that makes one")


def _made(error: Error) -> Exception:
    return error.with_traceback(None) if isinstance(error, Exception) else error()


def _lost(call: Call, error: Error | None) -> Exception:
    return OutcomeUnknown(f"{call.operation}: no answer, as the script wants it") if error is None else _made(error)


async def _empty(call: Call, target: FetchTarget) -> TargetReply:
    """What a poll that found nothing says about a target."""
    assert call.session is not None  # Polls belong to sessions.
    now = await call.session.resolve(target.partition, target.at)
    return TargetReply(
        partition=target.partition,
        asked=now.position if isinstance(target.at, Start) else target.at,
        position=now.position,
        runs=(),
        head=offset_before(now.log_end),
        log_start=now.log_start,
        history=now.history,
        ownership=target.ownership,
    )


# -------------------------------------------------------------------------------------------------------- script


@dataclass(slots=True)
class Rule:
    """One entry of a script: which calls it takes, and what it does to them. `hits` counts those it took."""

    operation: Operation
    do: Action
    chosen: Callable[[], bool]
    where: Callable[[Call], bool]
    hits: int = 0

    def takes(self, call: Call) -> bool:
        """Whether this rule applies to a call; asked once per call."""
        if call.operation != self.operation or not self.where(call) or not self.chosen():
            return False
        self.hits += 1
        return True


def _all(_: Call) -> bool:
    return True


_MAKERS: tuple[object, ...] = (delay, hold, refuse, lose_request, lose_reply, answer_empty, hook)
"""These make an action, and are none."""


def _wanted(nth: object) -> Container[int]:
    """Which calls are meant, counted from 1 on."""
    if isinstance(nth, Container) and not isinstance(nth, (str, bytes)):
        return cast("Container[int]", nth)
    check_int("nth", nth, 1)
    return (cast("int", nth),)


def _check_operation(operation: object) -> None:
    if operation not in OPERATIONS:
        raise ConfigError(f"{operation!r} is no operation of a broker or session; there are {sorted(OPERATIONS)}")


class Script:
    """What happens to which calls, and the list of all calls so far. Empty, it changes nothing.

    Rules may be added and removed while the calls go on. Where several take one call, they act in the order in which
    they were added, the first one outermost. `where` narrows a rule to some calls of its operation, for example
    `lambda call: call.at < 5`; only these count for `nth`.

    Bounds: `calls` grows with every call; clear it when a long run does not need it.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._rules: list[Rule] = []

    def on(
        self,
        operation: Operation,
        *,
        do: Action,
        nth: int | Container[int] = 1,
        where: Callable[[Call], bool] = _all,
    ) -> Rule:
        """Act on the nth call, counted from 1 on and from now on; or on several: `nth=range(3, 6)`."""
        wanted = _wanted(nth)
        seen = 0

        def chosen() -> bool:
            nonlocal seen
            seen += 1
            return seen in wanted

        return self._add(operation, do, chosen, where)

    def every(self, operation: Operation, *, do: Action, where: Callable[[Call], bool] = _all) -> Rule:
        """Act on every call."""
        return self._add(operation, do, lambda: True, where)

    def rate(
        self, operation: Operation, share: float, *, do: Action, seed: int = 0, where: Callable[[Call], bool] = _all
    ) -> Rule:
        """Act on a random `share` (0 to 1) of the calls, the same ones for the same `seed`."""
        check_share("share", share)
        check_int("seed", seed)
        dice = random.Random(seed)
        return self._add(operation, do, lambda: dice.random() < share, where)

    def remove(self, rule: Rule) -> None:
        """Take a rule out again; calls that it holds stay held."""
        self._rules.remove(rule)

    def count(self, operation: Operation) -> int:
        """How many calls of an operation have begun."""
        _check_operation(operation)
        return sum(call.operation == operation for call in self.calls)

    def _add(self, operation: Operation, do: Action, chosen: Callable[[], bool], where: Callable[[Call], bool]) -> Rule:
        _check_operation(operation)
        check_function("do", do)
        check_function("where", where)
        if do in _MAKERS:
            raise ConfigTypeError(f"do={do!r}: call it, for example do=delay(0.5)")
        rule = Rule(operation, do, chosen, where)
        self._rules.append(rule)
        return rule

    async def run(self, call: Call, carry_out: CarryOut) -> Any:
        """Take a call through the rules that apply to it, and write it down."""
        self.calls.append(call)
        through = carry_out
        for rule in reversed([rule for rule in self._rules if rule.takes(call)]):
            through = partial(rule.do, call, through)
        try:
            result = await through()
        except Exception as error:
            call.outcome, call.error = "failed", error
            raise
        except BaseException:
            call.outcome = "cancelled"
            raise
        else:
            call.outcome, call.result = "answered", result
            return result
        finally:
            call.ended_at = anyio.current_time()


async def _reach(wrapped: object, call: Call) -> Any:
    """Bring a call to what is wrapped. Asked for only now: it may have been replaced while the call was on its way."""
    call.reached = True
    return await getattr(wrapped, call.operation)(**call.arguments)


# ------------------------------------------------------------------------------------------------ the two wrappers


class ScriptedBroker(Broker):
    """A broker whose calls, and those of the sessions it opens, go through a script.

    A cancel passes through to the wrapped broker, like everything that the script leaves alone.
    """

    def __init__(self, broker: Broker, script: Script | None = None) -> None:
        if script is not None:
            check_is("script", script, Script)
        self.wrapped = broker
        self.script = Script() if script is None else script

    @property
    def calls(self) -> list[Call]:
        """All calls so far, in the order in which they began."""
        return self.script.calls

    def count(self, operation: Operation) -> int:
        """How many calls of an operation have begun."""
        return self.script.count(operation)

    async def _run(
        self, operation: BrokerOperation, method: Callable[P, Awaitable[T]], *_: P.args, **arguments: P.kwargs
    ) -> T:
        call = Call(operation, arguments, None, None, anyio.current_time())
        return cast(T, await self.script.run(call, partial(self._carry_out, call)))

    async def _carry_out(self, call: Call) -> Any:
        return await _reach(self.wrapped, call)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped broker."""
        return self.wrapped.capabilities

    async def create_topic(self, name: str, options: TopicOptions, *, exist_ok: bool) -> TopicInfo:
        """See the port."""
        return await self._run("create_topic", self.wrapped.create_topic, name=name, options=options, exist_ok=exist_ok)

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """See the port."""
        return await self._run("grow_topic", self.wrapped.grow_topic, name=name, partitions=partitions)

    async def delete_topic(self, name: str) -> None:
        """See the port."""
        await self._run("delete_topic", self.wrapped.delete_topic, name=name)

    async def describe_topic(self, name: str) -> TopicInfo:
        """See the port."""
        return await self._run("describe_topic", self.wrapped.describe_topic, name=name)

    async def list_topics(self) -> Sequence[TopicInfo]:
        """See the port."""
        return await self._run("list_topics", self.wrapped.list_topics)

    async def append(
        self, partition: TopicPartition, batch: RecordBatch, *, producer: ProducerStamp | None = None
    ) -> Receipt:
        """See the port."""
        return await self._run("append", self.wrapped.append, partition=partition, batch=batch, producer=producer)

    async def open_session(
        self, identity: ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> ScriptedSession:
        """See the port; the session follows the same script."""
        session = await self._run(
            "open_session", self.wrapped.open_session, identity=identity, topics=topics, partitions=partitions
        )
        return ScriptedSession(session, self.script, identity)

    async def describe_group(self, name: str) -> GroupInfo:
        """See the port."""
        return await self._run("describe_group", self.wrapped.describe_group, name=name)

    async def list_groups(self) -> Sequence[GroupInfo]:
        """See the port."""
        return await self._run("list_groups", self.wrapped.list_groups)

    async def reset_group(self, name: str, offsets: Mapping[TopicPartition, Offset | None]) -> None:
        """See the port."""
        await self._run("reset_group", self.wrapped.reset_group, name=name, offsets=offsets)

    async def aclose(self) -> None:
        """See the port."""
        await self._run("aclose", self.wrapped.aclose)


class ScriptedSession(Session):
    """A session whose calls go through a script; made by `ScriptedBroker.open_session`."""

    def __init__(self, session: Session, script: Script, identity: ConsumerIdentity | None = None) -> None:
        self.wrapped = session
        self.script = script
        self.identity = identity

    async def _run(
        self, operation: SessionOperation, method: Callable[P, Awaitable[T]], *_: P.args, **arguments: P.kwargs
    ) -> T:
        call = Call(operation, arguments, self.wrapped, self.identity, anyio.current_time())
        return cast(T, await self.script.run(call, partial(self._carry_out, call)))

    async def _carry_out(self, call: Call) -> Any:
        return await _reach(self.wrapped, call)

    @property
    def assignment(self) -> Assignment:
        """That of the wrapped session."""
        return self.wrapped.assignment

    @property
    def session_timeout(self) -> float | None:
        """That of the wrapped session."""
        return self.wrapped.session_timeout

    async def changed(self, version: int) -> Assignment:
        """See the port."""
        return await self._run("changed", self.wrapped.changed, version=version)

    async def route(self, partition: TopicPartition) -> Leader:
        """See the port."""
        return await self._run("route", self.wrapped.route, partition=partition)

    async def resolve(self, partition: TopicPartition, start: Position | Start) -> Resolved:
        """See the port."""
        return await self._run("resolve", self.wrapped.resolve, partition=partition, start=start)

    async def wait_ready(
        self,
        leader: Leader,
        targets: Sequence[FetchTarget],
        *,
        min_count: int = 1,
        min_bytes: int | None = None,
        max_wait: float,
        change: WatchChange | None = None,
    ) -> Sequence[Ready]:
        """See the port."""
        return await self._run(
            "wait_ready",
            self.wrapped.wait_ready,
            leader=leader,
            targets=targets,
            min_count=min_count,
            min_bytes=min_bytes,
            max_wait=max_wait,
            change=change,
        )

    async def poll(
        self,
        leader: Leader,
        targets: Sequence[FetchTarget],
        *,
        count: int,
        max_bytes: int,
        min_count: int = 1,
        max_wait: float = 0.0,
        commit: bool = False,
    ) -> PollReply:
        """See the port."""
        return await self._run(
            "poll",
            self.wrapped.poll,
            leader=leader,
            targets=targets,
            count=count,
            max_bytes=max_bytes,
            min_count=min_count,
            max_wait=max_wait,
            commit=commit,
        )

    async def stored_offset(self, partition: TopicPartition) -> Offset | None:
        """See the port."""
        return await self._run("stored_offset", self.wrapped.stored_offset, partition=partition)

    async def store_offset(
        self,
        partition: TopicPartition,
        offset: Offset | None,
        *,
        ownership: Ownership,
        history: HistoryId | None = None,
        lower: bool = False,
    ) -> Offset | None:
        """See the port."""
        return await self._run(
            "store_offset",
            self.wrapped.store_offset,
            partition=partition,
            offset=offset,
            ownership=ownership,
            history=history,
            lower=lower,
        )

    async def release(self, partitions: Sequence[TopicPartition]) -> None:
        """See the port."""
        await self._run("release", self.wrapped.release, partitions=partitions)

    def touch(self) -> None:
        """See the port; not scripted, as it waits for nothing."""
        self.wrapped.touch()

    async def leave(self) -> None:
        """See the port."""
        await self._run("leave", self.wrapped.leave)
