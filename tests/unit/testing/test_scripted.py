"""The scripted log: each thing a script can do to a call, which calls it takes, and what is written down."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import anyio
import anyio.lowlevel
import pytest

from tarry.abc import Broker, ConsumerIdentity, FetchTarget, Leader, PollReply, Ready, Resolved, Session, TargetReply
from tarry.errors import CapacityExceeded, MessageTooLarge, OutcomeUnknown, TopicNotFound
from tarry.testing import (
    Action,
    Call,
    CarryOut,
    Rule,
    Script,
    ScriptedBroker,
    ScriptedSession,
    answer_empty,
    delay,
    hold,
    hook,
    lose_reply,
    lose_request,
    refuse,
)
from tarry.testing.scripted import OPERATIONS
from tarry.types import HistoryId, Offset, Ownership, Position, Receipt, RecordBatch, Start, TopicPartition
from tests.virtual import virtual

LINES = TopicPartition("lines", 0)
BATCH = RecordBatch(array("Q", [1]), b"x", 0, 0)
LEADER = Leader("here")
NOT_SYNC = {"assignment", "session_timeout", "touch"}


class FakeBroker:
    """Takes a second per append, and counts them."""

    def __init__(self) -> None:
        self.appended = 0
        self.withdrawn = 0
        self.error: Exception | None = None

    async def append(self, partition: TopicPartition, batch: RecordBatch, *, producer: object = None) -> Receipt:
        try:
            await anyio.sleep(1)
        except BaseException:
            self.withdrawn += 1
            raise
        if self.error is not None:
            raise self.error
        self.appended += 1
        return Receipt(partition.topic, partition.partition, Offset(self.appended - 1))


class FakeSession:
    """A log of ten messages whose reads, if any arrived, would be noticed."""

    def __init__(self) -> None:
        self.reads = 0

    async def resolve(self, partition: TopicPartition, start: Position | Start) -> Resolved:
        return Resolved(Position(7), log_start=Position(3), log_end=Position(10), history=HistoryId(5))

    async def wait_ready(self, *_: Any, **__: Any) -> Sequence[Ready]:
        self.reads += 1
        return [Ready(LINES, 1, 1)]

    async def poll(self, *_: Any, **__: Any) -> PollReply:
        self.reads += 1
        return PollReply(())


def scripted(script: Script | None = None) -> tuple[ScriptedBroker, FakeBroker]:
    fake = FakeBroker()
    return ScriptedBroker(cast("Broker", fake), script), fake


async def append(broker: Broker) -> Offset:
    return (await broker.append(LINES, BATCH)).offset


# ------------------------------------------------------------------------------------------------ passing through


def _methods(port: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in vars(port).items() if inspect.iscoroutinefunction(method)}


def test_every_waiting_method_of_both_ports_can_be_scripted() -> None:
    assert _methods(Broker).keys() | _methods(Session).keys() == OPERATIONS
    public = {name for name in vars(Session) if not name.startswith("_")}
    assert public - OPERATIONS == NOT_SYNC


@virtual()
async def test_without_a_rule_every_call_passes_unchanged() -> None:
    script = Script()
    broker: Mock = create_autospec(Broker, instance=True)
    session: Mock = create_autospec(Session, instance=True)
    pairs: list[tuple[type, Mock, object]] = [
        (Broker, broker, ScriptedBroker(broker, script)),
        (Session, session, ScriptedSession(session, script)),
    ]
    for port, wrapped, wrapper in pairs:
        for name, method in _methods(port).items():
            arguments = {name: object() for name in inspect.signature(method).parameters if name != "self"}
            expected = None if inspect.signature(method).return_annotation == "None" else object()
            inner = getattr(wrapped, name)
            inner.return_value = expected
            result = await getattr(wrapper, name)(**arguments)
            inner.assert_awaited_once_with(**arguments)
            assert getattr(result, "wrapped", result) is expected  # An opened session comes wrapped.
            call = script.calls[-1]
            assert (call.operation, call.arguments, call.outcome) == (name, arguments, "answered")


def test_what_needs_no_waiting_passes_unscripted() -> None:
    broker: Mock = create_autospec(Broker, instance=True)
    session: Mock = create_autospec(Session, instance=True)
    wrapper = ScriptedSession(session, Script())
    wrapper.touch()
    session.touch.assert_called_once_with()
    assert wrapper.assignment is session.assignment
    assert ScriptedBroker(broker).capabilities is broker.capabilities


@virtual()
async def test_sessions_follow_the_script_of_their_broker_and_say_whose_they_are() -> None:
    inner: Mock = create_autospec(Broker, instance=True)
    broker = ScriptedBroker(inner)
    identity = ConsumerIdentity("billing")
    session = await broker.open_session(identity, ["lines"], [])
    broker.script.every("stored_offset", do=refuse(CapacityExceeded))
    with pytest.raises(CapacityExceeded):
        await session.stored_offset(LINES)
    assert broker.calls[-1].identity == identity
    assert broker.calls[-1].session is session.wrapped
    assert broker.count("open_session") == broker.count("stored_offset") == 1


# --------------------------------------------------------------------------------------------------------- actions


@virtual()
async def test_delay_comes_before_the_call_or_after_it() -> None:
    broker, fake = scripted()
    broker.script.on("append", do=delay(5))
    broker.script.on("append", nth=2, do=delay(5, reply=True))
    done: list[float] = []

    async def send() -> None:
        await append(broker)
        done.append(anyio.current_time())

    for applied_after in (5.5, 1.5):
        began, had = anyio.current_time(), fake.appended
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.sleep(applied_after - 1)
            assert fake.appended == had
            await anyio.sleep(1)
            assert fake.appended == had + (applied_after < 5)
        assert done[-1] - began == 6
        assert fake.appended == had + 1


@virtual()
async def test_a_delayed_reply_may_be_an_error() -> None:
    broker, fake = scripted()
    fake.error = CapacityExceeded("full")
    broker.script.every("append", do=delay(5, reply=True))
    with pytest.raises(CapacityExceeded, match="full"):
        await append(broker)
    assert anyio.current_time() == 6


@virtual()
async def test_hold_waits_for_an_event_before_the_call_or_after_it() -> None:
    broker, fake = scripted()
    for reply in (False, True):
        release = anyio.Event()
        rule = broker.script.every("append", do=hold(release, reply=reply))
        had = fake.appended
        async with anyio.create_task_group() as group:
            group.start_soon(append, broker)
            await anyio.sleep(100)
            assert fake.appended == had + reply
            assert broker.calls[-1].outcome == "open"
            release.set()
        assert fake.appended == had + 1
        broker.script.remove(rule)


@virtual()
@pytest.mark.parametrize("error", [CapacityExceeded("busy"), CapacityExceeded, lambda: CapacityExceeded("made")])
async def test_refuse_raises_and_carries_out_nothing(error: Any) -> None:
    broker, fake = scripted()
    broker.script.every("append", do=refuse(error))
    for _ in range(2):
        with pytest.raises(CapacityExceeded):
            await append(broker)
    assert fake.appended == 0
    assert [(call.reached, call.outcome) for call in broker.calls] == [(False, "failed")] * 2


@virtual()
@pytest.mark.parametrize(
    ("lose", "applied"), [pytest.param(lose_request, 0, id="request"), pytest.param(lose_reply, 1, id="reply")]
)
async def test_a_lost_request_or_reply_leaves_the_caller_in_doubt(lose: Callable[..., Action], applied: int) -> None:
    broker, fake = scripted()
    broker.script.on("append", do=lose())
    broker.script.on("append", nth=2, do=lose(ConnectionResetError("gone"), after=10))
    with pytest.raises(OutcomeUnknown, match="append"):
        await append(broker)
    assert (fake.appended, anyio.current_time()) == (applied, applied)
    with pytest.raises(ConnectionResetError, match="gone"):
        await append(broker)
    assert (fake.appended, anyio.current_time()) == (2 * applied, 2 * applied + 10)
    assert [call.reached for call in broker.calls] == [bool(applied)] * 2
    assert await append(broker) == 2 * applied


@virtual()
async def test_a_lost_reply_hides_a_refusal_but_not_a_mistake_of_the_caller() -> None:
    broker, fake = scripted(script := Script())
    script.every("append", do=lose_reply())
    fake.error = TopicNotFound("lines")
    with pytest.raises(OutcomeUnknown) as caught:
        await append(broker)
    assert caught.value.__cause__ is fake.error
    fake.error = MessageTooLarge("2 of 1 bytes", size=2, limit=1)
    with pytest.raises(MessageTooLarge):
        await append(broker)


@virtual()
async def test_empty_answers_read_nothing_and_still_say_where() -> None:
    fake = FakeSession()
    session = ScriptedSession(cast("Session", fake), script := Script())
    script.every("poll", do=answer_empty())
    script.every("wait_ready", do=answer_empty())
    targets = [
        FetchTarget(LINES, Position(2), Ownership(4), HistoryId(5)),
        FetchTarget(TopicPartition("lines", 1), Start.first()),
    ]
    assert await session.wait_ready(LEADER, targets, max_wait=60) == []
    reply = await session.poll(LEADER, targets[:1], count=5, max_bytes=100, max_wait=60, commit=True)
    reply = await session.poll(LEADER, targets, count=5, max_bytes=100)
    common: dict[str, Any] = {
        "position": Position(7),
        "runs": (),
        "head": Offset(9),
        "log_start": Position(3),
        "history": HistoryId(5),
    }
    assert reply.targets == (
        TargetReply(partition=LINES, asked=Position(2), ownership=Ownership(4), **common),
        TargetReply(partition=TopicPartition("lines", 1), asked=Position(7), ownership=Ownership(0), **common),
    )
    assert (fake.reads, anyio.current_time()) == (0, 0)


@virtual()
async def test_only_reads_can_be_answered_empty() -> None:
    broker, fake = scripted()
    broker.script.every("append", do=answer_empty())
    with pytest.raises(ValueError, match="not for append"):
        await append(broker)
    assert fake.appended == 0


@virtual()
async def test_a_hook_sees_the_call_first() -> None:
    broker, fake = scripted()
    seen: list[tuple[object, int]] = []

    def note(call: Call) -> None:
        seen.append((call.arguments["partition"], fake.appended))

    async def wait(_: Call) -> None:
        await anyio.sleep(3)

    broker.script.every("append", do=hook(note))
    broker.script.on("append", nth=2, do=hook(wait))
    await append(broker)
    await append(broker)
    assert seen == [(LINES, 0), (LINES, 1)]
    assert anyio.current_time() == 1 + 3 + 1


@virtual()
async def test_any_async_function_is_an_action() -> None:
    async def twice(_: Call, carry_out: CarryOut) -> object:
        await carry_out()
        return await carry_out()

    broker, fake = scripted()
    broker.script.every("append", do=twice)
    assert await append(broker) == 1
    assert fake.appended == 2


# --------------------------------------------------------------------------------------------------- which calls


async def _refused(broker: Broker, calls: int) -> list[int]:
    """Numbers, from 1 on, of the calls that are refused."""
    refused: list[int] = []
    for number in range(1, calls + 1):
        try:
            await append(broker)
        except CapacityExceeded:
            refused.append(number)
    return refused


def _late(call: Call) -> bool:
    return call.at >= 2


NO = refuse(CapacityExceeded)
RULES: list[tuple[Callable[[Script], Rule], list[int]]] = [
    (lambda script: script.on("append", do=NO), [1]),
    (lambda script: script.on("append", nth=3, do=NO), [3]),
    (lambda script: script.on("append", nth=range(2, 5), do=NO), [2, 3, 4]),
    (lambda script: script.on("append", nth={1, 5}, do=NO), [1, 5]),
    (lambda script: script.every("append", do=NO), [1, 2, 3, 4, 5]),
    (lambda script: script.every("append", do=NO, where=_late), [3, 4, 5]),
    (lambda script: script.on("append", nth=2, do=NO, where=_late), [4]),
    (lambda script: script.on("poll", do=NO), []),
]


@virtual()
@pytest.mark.parametrize(("add", "taken"), RULES)
async def test_a_rule_takes_the_nth_call_or_several_or_every_one(
    add: Callable[[Script], Rule], taken: list[int]
) -> None:
    broker, _ = scripted()
    rule = add(broker.script)
    assert (await _refused(broker, 5), rule.hits) == (taken, len(taken))


@virtual()
async def test_a_rate_takes_the_same_calls_for_the_same_seed() -> None:
    async def taken(seed: int) -> list[int]:
        broker, _ = scripted()
        broker.script.rate("append", 0.1, do=refuse(CapacityExceeded), seed=seed)
        return await _refused(broker, 1000)

    first = await taken(1)
    assert 70 < len(first) < 130
    assert first == await taken(1)
    assert first != await taken(2)


@virtual()
async def test_the_bounds_of_a_rate_are_never_and_always() -> None:
    broker, _ = scripted()
    never = broker.script.rate("append", 0, do=refuse(CapacityExceeded))
    always = broker.script.rate("append", 1, do=refuse(CapacityExceeded))
    assert len(await _refused(broker, 20)) == 20
    assert (never.hits, always.hits) == (0, 20)


@virtual()
async def test_several_rules_for_one_call_act_in_their_order_the_first_outermost() -> None:
    broker, fake = scripted()
    order: list[str] = []

    def note(text: str) -> Action:
        async def act(_: Call, carry_out: CarryOut) -> object:
            order.append(f"{text} begins")
            try:
                return await carry_out()
            finally:
                order.append(f"{text} ends")

        return act

    broker.script.every("append", do=note("outer"))
    broker.script.every("append", do=note("inner"))
    broker.script.every("append", do=lose_reply())
    with pytest.raises(OutcomeUnknown):
        await append(broker)
    assert order == ["outer begins", "inner begins", "inner ends", "outer ends"]
    assert fake.appended == 1


@virtual()
async def test_rules_come_and_go_while_calls_go_on() -> None:
    broker, fake = scripted()
    await append(broker)
    rule = broker.script.on("append", do=refuse(CapacityExceeded))  # The first one from now on.
    assert await _refused(broker, 2) == [1]
    rule = broker.script.every("append", do=refuse(CapacityExceeded))
    assert await _refused(broker, 1) == [1]
    broker.script.remove(rule)
    assert await _refused(broker, 1) == []
    assert fake.appended == 3


def test_mistakes_in_a_script_are_errors_at_once() -> None:
    script = Script()
    with pytest.raises(ValueError, match=r"'apend' is no operation .*'append'"):
        script.every(cast("Any", "apend"), do=lose_reply())
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            script.rate("append", share, do=lose_reply())


# -------------------------------------------------------------------------------------------- cancels and records


@virtual()
async def test_a_cancel_passes_through_to_the_wrapped_call() -> None:
    broker, fake = scripted()
    broker.script.every("append", do=delay(1, reply=True))
    with anyio.move_on_after(0.5):
        await append(broker)
    assert (fake.withdrawn, fake.appended) == (1, 0)
    assert anyio.current_time() == 0.5  # Nobody waits for the delay of a reply that nobody gets.
    assert broker.calls[-1].outcome == "cancelled"


@virtual()
@pytest.mark.parametrize("action", [delay(9), lose_request(after=9)], ids=["delay", "lose_request"])
async def test_a_call_cancelled_on_its_way_never_arrives(action: Action) -> None:
    broker, fake = scripted()
    broker.script.every("append", do=action)
    with anyio.move_on_after(5):
        await append(broker)
    await anyio.sleep(100)
    assert (fake.withdrawn, fake.appended) == (0, 0)
    assert [(call.reached, call.outcome) for call in broker.calls] == [(False, "cancelled")]


@virtual()
async def test_calls_are_written_down_when_they_begin_and_completed_when_they_end() -> None:
    broker, fake = scripted()
    await anyio.sleep(2)
    async with anyio.create_task_group() as group:
        group.start_soon(append, broker)
        await anyio.wait_all_tasks_blocked()
        arguments = {"partition": LINES, "batch": BATCH, "producer": None}
        assert broker.calls == [Call("append", arguments, None, None, 2.0, reached=True)]
    call = broker.calls[0]
    assert (call.outcome, call.result, call.error) == ("answered", Receipt("lines", 0, Offset(0)), None)
    fake.error = TopicNotFound("lines")
    with pytest.raises(TopicNotFound):
        await append(broker)
    assert (broker.calls[-1].outcome, broker.calls[-1].error) == ("failed", fake.error)
    assert broker.count("append") == 2


@virtual()
async def test_refusals_and_empty_answers_let_others_run() -> None:
    """A caller that asks in circles must not starve the loop, where nothing would ever end it."""
    session = ScriptedSession(cast("Session", FakeSession()), script := Script())
    script.every("wait_ready", do=answer_empty())
    script.every("resolve", do=refuse(CapacityExceeded))
    turns = 0

    async def circle(ask: Callable[[], Awaitable[object]]) -> None:
        nonlocal turns
        while True:
            with suppress(CapacityExceeded):
                await ask()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(circle, lambda: session.wait_ready(LEADER, [], max_wait=60))
        group.start_soon(circle, lambda: session.resolve(LINES, Start.end()))
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert 4 < turns < 50
