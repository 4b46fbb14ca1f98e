"""Groups behind the port: sessions on both loops, the coordinator in memory and in a file."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tarry import abc
from tarry.brokers.local.broker import LEADER, GroupSession, LocalBroker
from tarry.brokers.local.host import open_file, open_memory, open_store
from tarry.brokers.local.store_memory import MemoryStore
from tarry.config import LogOptions, TopicOptions
from tarry.errors import GroupNotFound, NotAccepted, NotAMember, StaleAssignment, TopicNotFound
from tarry.testing import VirtualClock
from tarry.types import Offset, Position, Start, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.test_broker import P0, P1, batch, beside
from tests.virtual import virtual

BILLING = abc.ConsumerIdentity("billing", "group")


@asynccontextmanager
async def memory_log(partitions: int = 2, **options: Any) -> AsyncGenerator[LocalBroker]:
    """A log in memory with one topic."""
    async with anyio.create_task_group() as tasks:
        broker = await open_memory(beside(tasks), LogOptions(**options))
        await broker.create_topic("orders", TopicOptions(partitions=partitions), exist_ok=False)
        yield broker
        await broker.aclose()
        tasks.cancel_scope.cancel()


async def join(broker: LocalBroker, identity: abc.ConsumerIdentity = BILLING) -> abc.Session:
    return await broker.open_session(identity, ["orders"], [])


def at(session: abc.Session, partition: TopicPartition, place: int | Start = 0) -> abc.FetchTarget:
    where = place if isinstance(place, Start) else Position(place)
    return abc.FetchTarget(partition, where, session.assignment.owned[partition])


async def wait(session: abc.Session, target: abc.FetchTarget, max_wait: float = 30.0) -> abc.PollReply:
    return await session.poll(LEADER, [target], count=10, max_bytes=1000, max_wait=max_wait)


async def settle(*sessions: abc.Session) -> None:
    """Everybody gives up what is asked back."""
    for session in sessions:
        await session.release(list(session.assignment.revoking))


@virtual(seeds=3)
@rule("S66")
async def test_a_member_that_joins_gets_its_share_as_it_is_released():
    async with memory_log() as broker, anyio.create_task_group() as tasks:
        first = await join(broker)
        assert (set(first.assignment.owned), first.assignment.topics) == ({P0, P1}, {"orders": 2})
        seen: list[tuple[float, abc.Assignment]] = []

        async def follow(session: abc.Session) -> None:
            assignment = await session.changed(session.assignment.version)
            seen.append((anyio.current_time() - start, assignment))
            await anyio.sleep(2)
            await session.release(list(assignment.revoking))

        start = anyio.current_time()
        tasks.start_soon(follow, first)
        await anyio.sleep(1)
        second = await join(broker)
        assert second.assignment.owned == {}
        given = await second.changed(second.assignment.version)
        assert ([when for when, _ in seen], seen[0][1].revoking) == ([1.0], frozenset({P1}))
        assert (anyio.current_time() - start, given.owned) == (3.0, {P1: 3})
        assert second.assignment is given
        assert set(first.assignment.owned) == {P0}


@virtual(seeds=3)
@rule("C21", "S69")
async def test_a_session_that_is_not_touched_lapses_and_one_that_is_lives():
    async with memory_log(session_timeout=2) as broker, anyio.create_task_group() as tasks:
        first, second = await join(broker), await join(broker)
        await settle(first)

        async def live() -> None:
            while True:
                second.touch()
                await anyio.sleep(0.5)

        tasks.start_soon(live)
        start = anyio.current_time()
        with pytest.raises(NotAMember, match="not heard of for 2 s"):
            await wait(first, at(first, P0))
        assert anyio.current_time() - start == 2
        for ask in (
            lambda: first.changed(first.assignment.version),
            lambda: first.release([P0]),
            lambda: first.stored_offset(P0),
        ):
            with pytest.raises(NotAMember):
                await ask()
        await first.leave()
        first.touch()
        await anyio.sleep(10)
        assert set(second.assignment.owned) == {P0, P1}
        tasks.cancel_scope.cancel()


@virtual()
@rule("C21", "C30")
async def test_a_session_that_lapsed_is_not_kept_once_its_member_knows():
    """Who is evicted again and again joins anew each time, and leaves none of them."""
    async with memory_log(session_timeout=1.0) as broker:
        for _ in range(3):
            lapsed = await join(broker)
            with pytest.raises(NotAMember, match="not heard of for 1 s"):
                while True:
                    await lapsed.changed(lapsed.assignment.version)
        await join(broker)
        assert len(broker._sessions) == 1


@virtual(seeds=3)
@rule("S68")
async def test_a_partition_that_is_not_given_up_is_taken():
    async with memory_log(rebalance_timeout=3) as broker:
        first, second = await join(broker), await join(broker)
        start = anyio.current_time()
        given = await second.changed(second.assignment.version)
        assert (anyio.current_time() - start, set(given.owned)) == (3, {P1})
        assert set(first.assignment.owned) == {P0}


@virtual(seeds=3)
@rule("S15")
async def test_a_leave_and_a_close_hand_over_at_once():
    async with memory_log() as broker:
        first, second = await join(broker), await join(broker)
        await settle(first)
        gone: list[type[Exception]] = []
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                try:
                    await wait(first, at(first, P0))
                except NotAMember as error:
                    gone.append(type(error))

            tasks.start_soon(read)
            await anyio.sleep(0.5)
            await first.leave()
        await first.leave()
        assert (gone, set(second.assignment.owned)) == ([NotAMember], {P0, P1})
        assert anyio.current_time() - start == 0.5
        await broker.aclose()
        with pytest.raises(NotAMember):
            await second.changed(second.assignment.version)


@virtual(seeds=3)
async def test_a_cancelled_join_leaves_nobody_behind():
    async with memory_log() as broker:
        await join(broker)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await join(broker)
        assert scope.cancelled_caught
        assert len((await broker.describe_group("billing")).members) == 1


@virtual(seeds=3)
async def test_a_cancelled_wait_for_a_change_is_withdrawn():
    async with memory_log() as broker:
        first = await join(broker)
        with anyio.move_on_after(5) as scope:
            await first.changed(first.assignment.version)
        assert scope.cancelled_caught
        assert broker.pump.groups._waiting == {}


@virtual()
async def test_the_port_fences_by_ownership():
    async with memory_log() as broker:
        first = await join(broker)
        await broker.append(P0, batch(b"a", b"b"))
        reply = await wait(first, at(first, P0, Start.next()))
        assert reply.targets[0].next == 2
        owned = first.assignment.owned[P0]
        assert await first.store_offset(P0, Offset(0), ownership=owned) == 0
        await first.release([P0])
        assert first.assignment.owned[P0] != owned
        with pytest.raises(StaleAssignment, match="under ownership 1"):
            await first.store_offset(P0, Offset(1), ownership=owned)
        assert await first.stored_offset(P0) == 0


@virtual()
async def test_refusals_of_a_join():
    async with memory_log() as broker:
        await broker.create_topic("users", TopicOptions(), exist_ok=False)
        await join(broker, abc.ConsumerIdentity("billing", "group", "east"))
        with pytest.raises(NotAccepted, match="reads orders"):
            await broker.open_session(BILLING, ["users"], [])
        with pytest.raises(NotAccepted, match="'east'"):
            await join(broker, abc.ConsumerIdentity("billing", "group", "east"))
        with pytest.raises(TopicNotFound, match="'nowhere'"):
            await broker.open_session(BILLING, ["neither", "nowhere"], [])
        assert broker.capabilities.groups


@virtual()
async def test_groups_are_described_listed_and_reset():
    async with memory_log() as broker:
        with pytest.raises(GroupNotFound):
            await broker.describe_group("billing")
        first = await join(broker, abc.ConsumerIdentity("billing", "group", "east"))
        await broker.append(P0, batch(b"a", b"b", b"c"))
        await first.store_offset(P0, Offset(1), ownership=first.assignment.owned[P0])
        await anyio.sleep(3)
        (info,) = await broker.list_groups()
        assert info == await broker.describe_group("billing")
        (member,) = info.members
        assert (member.member, member.owned, member.revoking, member.idle) == ("east", (P0, P1), (), 3)
        assert (info.offsets[P0].stored, info.offsets[P0].owner, info.lag) == (1, member.id, 1)
        with pytest.raises(NotAccepted, match="east"):
            await broker.reset_group("billing", {P0: Offset(0)})
        await first.leave()
        await broker.reset_group("billing", {P0: Offset(0), P1: None})
        assert (await broker.describe_group("billing")).lag == 2


@virtual(seeds=3)
async def test_a_log_over_the_same_store_knows_its_members_and_gives_them_grace():
    """As after a crash of the process: nobody left."""
    async with anyio.create_task_group() as tasks:
        clock = VirtualClock()
        store = MemoryStore(clock)
        options = LogOptions(session_timeout=5)
        broker = await open_store(beside(tasks), store, options, clock)
        await broker.create_topic("orders", TopicOptions(partitions=2), exist_ok=False)
        first = await join(broker)
        await anyio.sleep(3)
        again = await open_store(beside(tasks), store, options, clock)
        assert [member.owned for member in (await again.describe_group("billing")).members] == [(P0, P1)]
        second = await join(again)
        start = anyio.current_time()
        while len(second.assignment.owned) < 2:
            with anyio.move_on_after(1):
                await second.changed(second.assignment.version)
            second.touch()
        assert anyio.current_time() - start == 5
        assert min(second.assignment.owned.values()) > max(first.assignment.owned.values())
        tasks.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------------------ in a file


@asynccontextmanager
async def file_log(path: Path, **options: Any) -> AsyncGenerator[LocalBroker]:
    broker = await open_file(str(path), LogOptions(**options))
    try:
        await broker.create_topic("orders", TopicOptions(partitions=4), exist_ok=True)
        yield broker
    finally:
        await broker.aclose()


@pytest.mark.anyio
async def test_generations_and_ownerships_outlive_a_file_s_process(tmp_path: Path):
    path = tmp_path / "log.db"
    async with file_log(path) as broker:
        first, second = await join(broker), await join(broker)
        await settle(first)
        while len(second.assignment.owned) < 2:
            await second.changed(second.assignment.version)
        await broker.append(P0, batch(b"a"))
        await first.store_offset(P0, Offset(0), ownership=first.assignment.owned[P0])
        before = max(second.assignment.owned.values())
    async with file_log(path) as broker:
        info = await broker.describe_group("billing")
        assert (info.generation, info.members, info.offsets[P0].stored) == (4, (), 0)
        again = await join(broker)
        assert again.assignment.generation == 5
        assert len(again.assignment.owned) == 4
        assert min(again.assignment.owned.values()) > before


@pytest.mark.anyio
async def test_members_of_a_process_that_is_gone_leave_when_the_file_is_opened(tmp_path: Path):
    """A program that was killed does not wait for its own ghost; its ownerships are fenced all the same."""
    path = tmp_path / "log.db"
    async with file_log(path) as broker:
        session = await join(broker, abc.ConsumerIdentity("billing", "group", "east"))
        before = max(session.assignment.owned.values())
        broker._sessions.clear()  # so that nobody tells the log
    async with file_log(path) as broker:
        heir = await join(broker, abc.ConsumerIdentity("billing", "group", "east"))
        assert len(heir.assignment.owned) == 4
        assert min(heir.assignment.owned.values()) > before
        assert len((await broker.describe_group("billing")).members) == 1


@pytest.mark.anyio
async def test_a_touch_asks_nobody_and_is_seen_by_the_host_s_clock(tmp_path: Path):
    """It is no request, and any thread may make it, whatever loop it has."""
    async with file_log(tmp_path / "log.db") as broker:
        session = await join(broker)
        assert isinstance(session, GroupSession)
        before, requests = session._seat.touched, broker.pump.requests
        thread = threading.Thread(target=session.touch)
        thread.start()
        thread.join()
        assert broker.pump._clock.now() >= session._seat.touched > before
        assert broker.pump.requests == requests
        (member,) = (await broker.describe_group("billing")).members
        assert member.idle < 30
