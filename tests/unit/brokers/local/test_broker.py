"""The embedded log behind the port, on both loops: what is asked gets through, and what is cancelled is gone."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from tarry import abc
from tarry._runtime.bridge import Port, inline
from tarry._wire.batch import decode, encode_record, seal
from tarry.brokers.local.broker import LEADER, LocalBroker, LocalSession
from tarry.brokers.local.host import StartSoon, open_file, open_memory, open_store
from tarry.brokers.local.store_memory import MemoryStore
from tarry.config import LogOptions, TopicOptions
from tarry.errors import (
    ConfigError,
    DataError,
    LogUnavailable,
    NotAccepted,
    NotAMember,
    OffsetOutOfRange,
    OutcomeUnknown,
    TopicNotFound,
)
from tarry.testing import VirtualClock
from tarry.types import UNFENCED, Offset, Origin, Position, RecordBatch, Segment, Start, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.store_rig import nothing_left
from tests.virtual import virtual

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ME = abc.ConsumerIdentity("billing")


def beside(tasks: TaskGroup) -> StartSoon:
    """Where a log's timer runs."""

    def start_soon(serve: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await serve()

        tasks.start_soon(run)

    return start_soon


@asynccontextmanager
async def memory_log(**options: Any) -> AsyncGenerator[tuple[LocalBroker, abc.Session]]:
    """A log in memory with one topic of two partitions, and a session on both."""
    async with anyio.create_task_group() as tasks:
        broker = await open_memory(beside(tasks), LogOptions(**options))
        await broker.create_topic("orders", TopicOptions(partitions=2), exist_ok=False)
        yield broker, await broker.open_session(ME, ["orders"], [])
        await broker.aclose()
        tasks.cancel_scope.cancel()


def batch(*values: bytes) -> RecordBatch:
    return seal([encode_record(value, None, (), 0) for value in values], [0] * len(values))


def at(partition: TopicPartition, place: int | Start) -> abc.FetchTarget:
    return abc.FetchTarget(partition, place if isinstance(place, Start) else Position(place))


async def poll(session: abc.Session, place: int | Start = 0, **more: Any) -> list[bytes | None]:
    """Values that one poll of partition 0 brings."""
    limits: dict[str, Any] = {"count": 1000, "max_bytes": 1_000_000, **more}
    reply = await session.poll(LEADER, [at(P0, place)], **limits)
    return [message.value for target in reply.targets if target.runs for message in decode(segment(target))]


def segment(target: abc.TargetReply) -> Segment:
    return Segment(Origin(target.partition, target.head or Offset(0)), target.runs)


@virtual(seeds=3)
async def test_what_is_appended_wakes_who_waits_for_it():
    async with memory_log() as (broker, session), anyio.create_task_group() as tasks:
        found: list[list[bytes | None]] = []

        async def read() -> None:
            found.append(await poll(session, min_count=2, max_wait=30))

        tasks.start_soon(read)
        await anyio.sleep(1)
        receipt = await broker.append(P0, batch(b"a"))
        assert (receipt.topic_partition, receipt.offset) == (P0, 0)
        await anyio.sleep(1)
        assert found == []
        await broker.append(P0, batch(b"b"))
        await anyio.sleep(0.001)
        assert found == [[b"a", b"b"]]


@virtual(seeds=3)
async def test_readiness_names_what_is_there():
    async with memory_log() as (broker, session), anyio.create_task_group() as tasks:
        found: list[abc.Ready] = []

        async def wait() -> None:
            found.extend(await session.wait_ready(LEADER, [at(P0, 0), at(P1, 0)], min_count=2, max_wait=30))

        tasks.start_soon(wait)
        await anyio.sleep(1)
        await broker.append(P1, batch(b"a"))
        await broker.append(P0, batch(b"b"))
        await anyio.sleep(0.001)
        assert {ready.partition: ready.messages for ready in found} == {P0: 1, P1: 1}


@virtual(seeds=3)
@rule("C6", "S28")
async def test_a_wait_ends_on_time():
    async with memory_log() as (broker, session):
        await broker.append(P0, batch(b"a"))
        start = anyio.current_time()
        assert await poll(session, min_count=5, max_wait=2.5) == [b"a"]
        assert anyio.current_time() - start == pytest.approx(2.5)
        assert await session.wait_ready(LEADER, [at(P1, 0)], max_wait=2.5) == ()
        assert anyio.current_time() - start == pytest.approx(5)


@virtual()
@rule("S3", "C5")
async def test_the_log_s_cap_answers_early_and_empty():
    async with memory_log(max_wait=3) as (_, session):
        start = anyio.current_time()
        assert await poll(session, max_wait=600) == []
        assert anyio.current_time() - start == pytest.approx(3)


@virtual(seeds=5)
@rule("K20")
async def test_a_cancel_withdraws_at_once():
    async with memory_log() as (broker, session):
        requests: list[Callable[[], Coroutine[Any, Any, object]]] = [
            partial(poll, session, max_wait=30),
            partial(session.wait_ready, LEADER, [at(P0, 0), at(P1, 0)], max_wait=30),
            partial(session.wait_ready, LEADER, [at(P0, 0)], min_count=9, max_wait=30),
        ]
        for request in requests:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(request)
                tasks.start_soon(request)
                await anyio.sleep(1)
                assert broker.pump.parked == 2
                tasks.cancel_scope.cancel()
            assert broker.pump.parked == 0
            with anyio.move_on_after(0.5) as scope:
                try:
                    await request()
                finally:
                    assert broker.pump.parked == 0, "before anything else happens"
            assert scope.cancelled_caught
        await broker.append(P0, batch(b"a"))
        assert await poll(session) == [b"a"]


@virtual(seeds=3)
async def test_a_cancel_that_meets_the_answer_loses_no_message():
    async with memory_log() as (broker, session):
        for number in range(20):
            with anyio.move_on_after(1):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(partial(poll, session, number, max_wait=30))
                    await anyio.sleep(1)
                    await broker.append(P0, batch(b"%d" % number))
            if number == len(await poll(session)):
                await broker.append(P0, batch(b"%d" % number))
            assert broker.pump.parked == 0
        assert await poll(session) == [b"%d" % number for number in range(20)]


@virtual(seeds=3)
@rule("C4")
async def test_the_sender_gives_up_10_s_after_the_wait_and_never_earlier():
    async with memory_log() as (broker, session):
        assert isinstance(session, LocalSession)

        def lost(function: Callable[..., object], *args: Any) -> None:
            """A log that never answers."""

        deaf = LocalSession(broker.pump, Port(lost, inline, broker.pump.cancel), session._member)
        for max_wait in (0.0, 2.0, 30.0, 600.0):
            requests: list[Callable[[], Coroutine[Any, Any, object]]] = [
                partial(poll, deaf, max_wait=max_wait),
                partial(deaf.wait_ready, LEADER, [at(P0, 0)], max_wait=max_wait),
            ]
            for request in requests:
                with anyio.move_on_after(max_wait + 9.999) as early:
                    await request()
                assert early.cancelled_caught, "not one moment before"
                start = anyio.current_time()
                with pytest.raises(LogUnavailable, match=f"did not answer within {max_wait + 10:g} s"):
                    await request()
                assert anyio.current_time() - start == pytest.approx(max_wait + 10)
            with anyio.move_on_after(max_wait + 9.999) as early:
                await poll(deaf, max_wait=max_wait, commit=True)
            assert early.cancelled_caught
            with pytest.raises(OutcomeUnknown, match="may or may not have been stored"):
                await poll(deaf, max_wait=max_wait, commit=True)


@virtual(seeds=3)
@rule("S50")
async def test_a_poll_that_commits_has_stored_what_it_brings():
    async with memory_log() as (broker, session), anyio.create_task_group() as tasks:
        found: list[list[bytes | None]] = []

        async def read() -> None:
            found.append(await poll(session, Start.next(), min_count=2, max_wait=30, commit=True))
            assert await session.stored_offset(P0) == 1

        tasks.start_soon(read)
        await anyio.sleep(0.1)
        await broker.append(P0, batch(b"a"))
        await anyio.sleep(1)
        assert (found, await session.stored_offset(P0)) == ([], None)
        await broker.append(P0, batch(b"b"))
        await anyio.sleep(1)
        assert found == [[b"a", b"b"]]
        with pytest.raises(ConfigError, match="one target"):
            await session.poll(LEADER, [at(P0, 0), at(P1, 0)], count=1, max_bytes=1000, commit=True)
        assert await poll(session, Start.next(), commit=True) == []


@virtual(seeds=3)
@rule("S47", "W17")
async def test_a_parked_poll_that_commits_is_refused_or_cancelled_and_stores_nothing():
    async with memory_log() as (broker, session), anyio.create_task_group() as tasks:
        refused: list[NotAccepted] = []

        async def read() -> None:
            with pytest.raises(NotAccepted) as caught:
                await poll(session, Start.next(), min_count=3, max_wait=30, commit=True)
            refused.append(caught.value)

        await broker.append(P0, batch(b"a", b"b"))
        tasks.start_soon(read)
        await anyio.sleep(0.1)
        with anyio.move_on_after(1):
            await poll(session, 2, max_wait=30, commit=True)
        assert await session.store_offset(P0, Offset(0), ownership=UNFENCED) == 0
        await broker.append(P0, batch(b"c"))
        await anyio.sleep(0.1)
        assert (len(refused), broker.pump.parked, await session.stored_offset(P0)) == (1, 0, 0)


@pytest.mark.anyio
@rule("S50", "S47")
async def test_a_file_holds_what_a_poll_committed_and_its_one_next_is_served_once(tmp_path: Path) -> None:
    path = str(tmp_path / "orders.db")
    broker = await open_file(path, LogOptions())
    await broker.create_topic("orders", TopicOptions(partitions=2), exist_ok=False)
    sessions = [await broker.open_session(ME, ["orders"], []) for _ in range(8)]
    found: list[list[bytes | None]] = []
    refused: list[NotAccepted] = []

    async def read(session: abc.Session) -> None:
        try:
            found.append(await poll(session, Start.next(), max_wait=30, commit=True))
        except NotAccepted as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for session in sessions:
            tasks.start_soon(read, session)
        while broker.pump.parked < len(sessions):  # noqa: ASYNC110  # the pump runs in another loop and tells nobody
            await anyio.sleep(0.001)
        await broker.append(P0, batch(b"a", b"b"))
    assert (found, len(refused)) == ([[b"a", b"b"]], 7)
    await broker.aclose()
    broker = await open_file(path, LogOptions())
    session = await broker.open_session(ME, ["orders"], [])
    assert await session.stored_offset(P0) == 1
    assert await poll(session, Start.next(), commit=True) == []
    await broker.aclose()


@pytest.mark.anyio
@rule("K07")
@pytest.mark.parametrize("broken", [("tick",), ("tick", "close")])
async def test_a_host_that_dies_tells_whoever_waits_and_another_one_takes_the_file(
    broken: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: float) -> None:
        raise ZeroDivisionError("a mistake of ours")

    path = str(tmp_path / "orders.db")
    broker = await open_file(path, LogOptions())
    await broker.create_topic("orders", TopicOptions(partitions=1), exist_ok=False)
    session = await broker.open_session(ME, ["orders"], [])
    for name in broken:
        monkeypatch.setattr(broker.pump, name, fail)
    for _ in ("it waits", "it comes later"):
        with anyio.fail_after(5), pytest.raises(LogUnavailable, match="closed"):
            await poll(session, max_wait=0.1)
    another = await open_file(path, LogOptions())
    assert "its thread died" in caplog.text
    assert [topic.name for topic in await another.list_topics()] == ["orders"]
    await broker.aclose()
    await another.append(P0, batch(b"a"))
    await another.aclose()


@pytest.mark.anyio
@rule("K07", "W15")
async def test_who_connects_again_gets_a_log_that_works_though_others_still_hold_the_failed_one(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with nothing_left():
        broker = await open_file(str(path), LogOptions())
        await broker.create_topic("orders", TopicOptions(partitions=1), exist_ok=False)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(LogUnavailable, match="is gone"):
            await broker.append(P0, batch(b"a"))
        (tmp_path / "moved.db").rename(path)
        again = await open_file(str(path), LogOptions())
        assert (await again.append(P0, batch(b"b"))).offset == 0
        with pytest.raises(LogUnavailable):
            await broker.append(P0, batch(b"a"))
        await broker.aclose()
        assert (await again.append(P0, batch(b"c"))).offset == 1
        await again.aclose()


@pytest.mark.anyio
async def test_a_file_that_is_of_no_use_is_given_back(tmp_path: Path) -> None:
    """Else its lock stays held, and whoever has restored the file cannot open it before this process ends."""
    path = tmp_path / "orders.db"
    await (await open_file(str(path), LogOptions())).aclose()
    change(path, "INSERT INTO consumer_group VALUES ('billing', x'00')")
    with nothing_left():
        for _ in range(2):
            with pytest.raises(DataError, match="'billing'"):
                await open_file(str(path), LogOptions())
    change(path, "DELETE FROM consumer_group")
    await (await open_file(str(path), LogOptions())).aclose()


@pytest.mark.parametrize("turns", range(4))
def test_asyncio_s_own_cancel_leaves_no_log_open(tmp_path: Path, turns: int) -> None:
    """It is heeded in shielded scopes too, and once before a call in a worker thread has begun."""
    path = str(tmp_path / "orders.db")

    async def cancelled_after(turns: int, what: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(what)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def main() -> None:
        await cancelled_after(turns, open_file(path, LogOptions()))
        broker = await open_file(path, LogOptions())
        await cancelled_after(turns, broker.aclose())
        await broker.aclose()

    before = set(threading.enumerate())
    with nothing_left():
        asyncio.run(main())
        for thread in set(threading.enumerate()) - before:
            thread.join(5)


@rule("K16")
def test_a_cancel_goes_before_the_reason_why_a_log_could_not_be_opened(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.create_task(open_file(str(tmp_path), LogOptions()))  # a directory is no log
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())


def change(path: Path, statement: str) -> None:
    """Change a file that nobody has open."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


@virtual()
async def test_a_cancel_from_outside_is_no_silence_of_the_log():
    async with memory_log() as (_, session):
        with anyio.move_on_after(1) as scope:
            await poll(session, max_wait=30)
        assert scope.cancelled_caught


@virtual(seeds=3)
async def test_leaving_ends_what_the_session_has_parked():
    async with memory_log() as (broker, session), anyio.create_task_group() as tasks:
        other = await broker.open_session(abc.ConsumerIdentity(None), [], [P0])
        assert list(other.assignment.owned) == [P0]
        ended: list[type[Exception]] = []

        async def read() -> None:
            with pytest.raises(NotAMember):
                await poll(session, max_wait=30)
            ended.append(NotAMember)

        tasks.start_soon(read)
        tasks.start_soon(partial(poll, other, max_wait=1.5))
        await anyio.sleep(1)
        await session.leave()
        assert broker.pump.parked == 1
        await session.leave()
        await anyio.sleep(0.001)
        assert ended == [NotAMember]
        with pytest.raises(NotAMember):
            await poll(session)


@virtual()
async def test_a_session_that_left_is_forgotten():
    async with memory_log() as (broker, session):
        for _ in range(10):
            await (await broker.open_session(ME, ["orders"], [])).leave()
        assert list(broker._sessions) == [session]


@virtual(seeds=3)
async def test_closing_ends_everything_and_says_so_from_then_on():
    async with memory_log() as (broker, session), anyio.create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(NotAMember):
                await poll(session, max_wait=30)

        tasks.start_soon(read)
        await anyio.sleep(1)
        await broker.aclose()
        await broker.aclose()
        assert broker.pump.parked == 0
        requests: list[Callable[[], Coroutine[Any, Any, object]]] = [
            partial(broker.append, P0, batch(b"a")),
            broker.list_topics,
            partial(broker.open_session, ME, ["orders"], []),
        ]
        for request in requests:
            with pytest.raises(LogUnavailable, match="closed; connect again"):
                await request()
        with pytest.raises(NotAMember):
            await poll(session)


@virtual()
async def test_offsets_go_through_the_port():
    async with memory_log() as (broker, session):
        await broker.append(P0, batch(b"a", b"b", b"c"))
        assert await session.stored_offset(P0) is None
        assert await session.store_offset(P0, Offset(1), ownership=UNFENCED) == 1
        assert await session.store_offset(P0, Offset(0), ownership=UNFENCED) == 1
        assert await session.store_offset(P0, Offset(0), ownership=UNFENCED, lower=True) == 0
        assert await poll(session, Start.next()) == [b"b", b"c"]
        resolved = await session.resolve(P0, Start.next())
        assert (resolved.position, resolved.log_start, resolved.log_end) == (1, 0, 3)
        assert await session.store_offset(P0, None, ownership=UNFENCED) is None
        assert await session.stored_offset(P0) is None
        with pytest.raises(OffsetOutOfRange):
            await session.store_offset(P0, Offset(3), ownership=UNFENCED)


@virtual()
@rule("C15")
async def test_what_does_not_exist_is_named():
    async with memory_log() as (broker, session):
        with pytest.raises(TopicNotFound, match="'nowhere'"):
            await broker.open_session(ME, ["neither", "nowhere"], [])
        with pytest.raises(TopicNotFound, match="no partition 2"):
            await broker.open_session(ME, [], [TopicPartition("orders", 2)])
        with pytest.raises(TopicNotFound, match="'nowhere'"):
            await broker.append(TopicPartition("nowhere", 0), batch(b"a"))
        with pytest.raises(TopicNotFound):
            await broker.describe_topic("nowhere")
        await broker.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await poll(session)
        assert await broker.list_topics() == ()


@virtual()
async def test_a_standalone_assignment_that_does_not_change():
    async with memory_log() as (_, session):
        assignment = session.assignment
        assert (list(assignment.owned), assignment.topics, assignment.revoking) == (
            [P0, P1],
            {"orders": 2},
            frozenset(),
        )
        assert await session.changed(assignment.version - 1) is assignment
        with anyio.move_on_after(1000) as scope:
            await session.changed(assignment.version)
        assert scope.cancelled_caught
        assert await session.route(P1) == LEADER
        await session.release([P0])
        session.touch()
        assert list(session.assignment.owned) == [P0, P1]


@virtual()
async def test_an_idle_poll_costs_a_look_a_second():
    """One timer: a minute of an idle, parked consumer is one request per wait and one sweep per second."""
    async with memory_log() as (broker, session):
        ticks: list[float] = []
        tick = broker.pump.tick

        def counted(now: float) -> None:
            ticks.append(now)
            tick(now)

        broker.pump.tick = counted  # type: ignore[method-assign]
        before = broker.pump.requests
        with anyio.move_on_after(60):
            while True:
                await session.wait_ready(LEADER, [at(P0, 0), at(P1, 0)], max_wait=5)
        assert broker.pump.requests - before <= 13
        assert len(ticks) <= 75
        await anyio.sleep(3600)
        assert len(ticks) <= 76, "nobody waits, nothing ticks"


@virtual()
async def test_several_logs_may_stand_on_stores_of_their_own():
    async with anyio.create_task_group() as tasks:
        clock = VirtualClock()
        stores = [MemoryStore(clock), MemoryStore(clock)]
        brokers = [await open_store(beside(tasks), store, LogOptions(), clock) for store in stores]
        await brokers[0].create_topic("orders", TopicOptions(), exist_ok=False)
        assert [len(await broker.list_topics()) for broker in brokers] == [1, 0]
        await brokers[0].append(P0, batch(b"kept"))
        await brokers[0].aclose()
        again = await open_store(beside(tasks), stores[0], LogOptions(), clock)
        session = await again.open_session(ME, ["orders"], [])
        assert await poll(session) == [b"kept"]
        tasks.cancel_scope.cancel()


@virtual()
async def test_age_is_applied_without_any_append() -> None:
    """A pass every `retention_interval`, in memory as on a file; and no timer runs while no topic asks for one."""
    async with anyio.create_task_group() as tasks:
        clock = VirtualClock()
        broker = await open_store(beside(tasks), MemoryStore(clock), LogOptions(retention_interval=1), clock)
        await broker.create_topic("plain", TopicOptions(), exist_ok=False)
        assert broker.pump.next_deadline() is None
        await broker.create_topic("old", TopicOptions(retention_age=2), exist_ok=False)
        await broker.append(TopicPartition("old", 0), seal([encode_record(b"x", None, (), 0)], [0]))
        await anyio.sleep(1.5)
        assert (await broker.describe_topic("old")).partitions[0].log_start == 0
        await anyio.sleep(2)
        assert (await broker.describe_topic("old")).partitions[0].log_start == 1
        await broker.aclose()
        tasks.cancel_scope.cancel()
