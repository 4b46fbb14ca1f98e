"""A member whose event loop was blocked for longer than its session lasts: it asks before it delivers or stores."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import LogUnavailable, StaleAssignment
from tarry.testing import block, delay, hold, refuse
from tarry.types import Message
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, Rig, offsets, opened, owns, start, take, take_all
from tests.virtual import virtual

CASE: dict[str, Any] = {"heartbeat_interval": 0.25, "poll": PollOptions(count=5)}
EVERY_MODE = pytest.mark.parametrize(
    "commit", [AutoCommit.disabled(), AutoCommit.finished(0.2), AutoCommit.each_message()], ids=str
)


def session_of(consumer: Consumer) -> Any:
    """The scripted session of a member."""
    return cast(Any, consumer._standing.session)._session


def block_and_stand(consumer: Consumer, seconds: float) -> None:
    """The log stood still as well, as in a process that was stopped: it hears of the member before it looks."""
    block(seconds)
    consumer._standing.session.touch()


def block_and_lapse(rig: Rig, seconds: float) -> None:
    """The log went on, in its own thread, and has ended the session."""
    block(seconds)
    rig.pump.groups.tick(anyio.current_time())


class TestBeforeTheLogHasSaid:
    """The log keeps its answer back: nothing of what is buffered comes out, and no offset is stored."""

    @rule("K18")
    @pytest.mark.parametrize("way", ["anext", "poll", "consume"])
    @EVERY_MODE
    @virtual(seeds=3)
    async def test_nothing_is_delivered(self, commit: AutoCommit, way: str) -> None:
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            seen: list[int] = []
            answered = anyio.Event()
            rig.script.on("release", do=hold(answered))
            last = 5 if way == "poll" else 4  # the end of a batch; in the middle of a list
            async with rig.member(commit=commit, heartbeat_interval=0.25) as consumer:
                await consumer.ready()

                async def work(message: Message) -> None:
                    seen.append(message.offset)
                    if message.offset == last:
                        block_and_stand(consumer, 3.0)

                async def read() -> None:
                    if way == "consume":
                        await consumer.consume(work)
                    while way == "poll":
                        for message in await consumer.poll(count=3, max_wait=1.0):
                            await work(message)
                    while True:
                        await work(await anext(consumer))
                        await anyio.sleep(0.001)

                reading = start(tasks, read)
                await anyio.sleep(0.1)
                assert seen == list(range(last + 1))
                await anyio.sleep(10.0)
                assert seen == list(range(last + 1))
                (gap,) = rig.reported("clock_gap")
                assert 2.9 <= float(str(gap["seconds"])) <= 3.3
                answered.set()
                await anyio.sleep(0.1)
                assert seen == list(range(20))
                assert rig.reported("evicted") == []
                assert len(rig.calls("open_session")) == 1
                await reading.cancel()

    @rule("K18")
    @virtual(seeds=3)
    async def test_nothing_is_stored(self) -> None:
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            answered = anyio.Event()
            rig.script.on("release", do=hold(answered))
            async with rig.member(commit=AutoCommit.finished(0.2), **CASE) as consumer:
                *_, last = await take(consumer, 4)
                block_and_stand(consumer, 3.0)
                storing = start(tasks, partial(consumer.store_offset, last))
                await anyio.sleep(5.0)
                assert rig.calls("store_offset") == []
                assert not storing.done.is_set()
                answered.set()
                await anyio.sleep(0.01)
                assert storing.outcome == "returned"
                assert rig.group_stored(P0) == 3

    @rule("K18", "K89")
    @virtual(seeds=3)
    async def test_a_poll_that_could_have_enough_ends_with_its_wait(self) -> None:
        """It asked nobody, since enough was fetched already: it lasted 10 s longer."""
        async with opened(1, session_timeout=1.0) as rig:
            await rig.fill(P0, 20)
            answered = anyio.Event()
            rig.script.on("release", do=hold(answered))
            async with rig.member(**CASE) as consumer:
                assert offsets(await consumer.poll(count=3)) == [0, 1, 2]
                await anyio.sleep(0.1)
                block_and_stand(consumer, 3.0)
                await anyio.sleep(0.1)
                with anyio.fail_after(2.0):
                    batch = await consumer.poll(max_wait=1.0)
                assert (offsets(batch), batch.reason) == ([], "rebalance")
                answered.set()
                await anyio.sleep(0.1)
                assert offsets(await consumer.poll(count=3)) == [3, 4, 5]

    @rule("K18", "C91")
    @virtual(seeds=2)
    async def test_who_waits_hears_of_it_when_it_says_nothing_for_long(self) -> None:
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            away = rig.script.every("release", do=refuse(LogUnavailable("away")))
            async with rig.member(**CASE) as consumer:
                (message,) = await take(consumer, 1)
                block_and_stand(consumer, 3.0)
                storing = start(tasks, partial(consumer.store_offset, message))
                await anyio.sleep(15.0)
                assert isinstance(storing.error, LogUnavailable)
                assert rig.calls("store_offset") == []
                with anyio.fail_after(5), pytest.raises(LogUnavailable, match="away"):
                    await anext(consumer)
                rig.script.remove(away)
                await anyio.sleep(5.0)
                await consumer.store_offset(message)

    @rule("K18", "C24")
    @virtual(seeds=2)
    async def test_a_poll_keeps_its_time_and_a_cancelled_read_loses_nothing(self) -> None:
        async with opened(1, session_timeout=1.0) as rig:
            await rig.fill(P0, 10)
            answered = anyio.Event()
            rig.script.on("release", do=hold(answered))
            async with rig.member(**CASE) as consumer:
                await take(consumer, 2)
                block_and_stand(consumer, 3.0)
                with anyio.fail_after(30.0):
                    batch = await consumer.poll(max_wait=1.0)
                assert (offsets(batch), batch.reason) == ([], "rebalance")
                with anyio.move_on_after(1.0) as limit:
                    await anext(consumer)
                assert limit.cancelled_caught
                answered.set()
                assert offsets(await take(consumer, 8)) == list(range(2, 10))

    @rule("K18", "C23")
    @virtual(seeds=2)
    async def test_a_shutdown_does_not_wait_for_the_answer(self) -> None:
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            rig.script.on("release", do=hold(anyio.Event()))
            async with rig.member(commit=AutoCommit.finished(60.0), **CASE) as consumer:

                async def read() -> None:
                    await take(consumer, 3)
                    block_and_stand(consumer, 3.0)
                    await anyio.sleep(0.001)
                    await anext(consumer)

                reading = start(tasks, read)
                await anyio.sleep(4.0)
                began = anyio.current_time()
                await consumer.shutdown()
                assert anyio.current_time() - began < 1.0
                assert reading.outcome == "raised"
                assert isinstance(reading.error, StopAsyncIteration)
                assert rig.group_stored(P0) == 2


class TestEvicted:
    """The log ended the session meanwhile."""

    @rule("K18", "K06")
    @pytest.mark.parametrize("way", ["anext", "consume"])
    @EVERY_MODE
    @virtual(seeds=3)
    async def test_the_case(self, commit: AutoCommit, way: str) -> None:
        """A store is refused, nothing more of the old ownership comes, and the member goes on by itself."""
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            seen: list[Message] = []
            refused: list[Message] = []
            async with rig.member(commit=commit, **CASE) as consumer:

                async def work(message: Message) -> None:
                    seen.append(message)
                    if message.offset == 2 and not refused:
                        block_and_lapse(rig, 3.0)
                        with pytest.raises(StaleAssignment):
                            await consumer.store_offset(message)
                        refused.append(message)

                async def read() -> None:
                    if way == "consume":
                        await consumer.consume(work)
                    async for message in consumer:
                        await work(message)

                reading = start(tasks, read)
                await anyio.sleep(4.5)
                old, again = seen[:3], seen[3:]
                assert offsets(old) == [0, 1, 2]
                assert {message.origin.ownership for message in again}.isdisjoint(
                    {message.origin.ownership for message in old}
                )
                assert offsets(again)[-1] == 19
                assert offsets(again) == list(range(again[0].offset, 20))
                assert again[0].offset <= 2
                (gap,) = rig.reported("clock_gap")
                assert 2.9 <= float(str(gap["seconds"])) <= 3.3
                assert len(rig.reported("evicted")) == 1
                assert consumer.health().is_member
                await reading.cancel()

    @rule("K18", "C36")
    @virtual(seeds=2)
    async def test_a_committed_batch_comes_all_the_same_once_the_log_has_said(self) -> None:
        async with opened(1, session_timeout=1.0) as rig:
            await rig.fill(P0, 5)
            async with rig.member(commit=AutoCommit.on_poll(), **CASE) as consumer:
                await take(consumer, 2)
                block_and_lapse(rig, 3.0)
                await anyio.sleep(0.001)
                assert offsets(await take(consumer, 3)) == [2, 3, 4]
                assert len(rig.reported("clock_gap")) == 1

    @rule("K18", "K06")
    @virtual(seeds=2)
    async def test_a_store_that_the_log_refuses_as_of_no_member_is_a_stale_one(self) -> None:
        """The log has ended the session for another reason: its signs of life did not arrive."""
        async with opened(1, session_timeout=1.0) as rig:
            await rig.fill(P0, 5)
            rig.script.every("changed", do=delay(5.0, reply=True))
            async with rig.member(**CASE) as consumer:
                *_, last = await take(consumer, 2)
                vars(session_of(consumer))["touch"] = lambda: None
                await anyio.sleep(1.5)
                with pytest.raises(StaleAssignment):
                    await consumer.store_offset(last)

    @rule("K18")
    @virtual()
    async def test_a_gap_is_also_told_of_where_signs_of_life_are_too_rare(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(1, session_timeout=1.0) as rig, rig.member(heartbeat_interval=5.0) as consumer:
            await anyio.sleep(1.5)
            await owns(consumer, 1)
            assert "heartbeat_interval=5 s has to lie well below that" in caplog.text


class TestAgainAndAgain:
    @rule("K18", "C21")
    @EVERY_MODE
    @virtual(seeds=2)
    async def test_ten_times_evicted_it_is_a_member_each_time_again(
        self, commit: AutoCommit, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.clear()
        async with opened(2, session_timeout=1.0) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 10)
            async with rig.member(commit=commit, **CASE) as consumer:
                for round_ in range(1, 11):
                    await owns(consumer, 2)
                    await consumer.ready(5.0)
                    await anext(consumer)
                    before = len(rig.script.calls)
                    block_and_lapse(rig, 2.0)
                    await anyio.sleep(0.01)
                    assert len(rig.reported("evicted")) == round_
                    await owns(consumer, 2, within=2.1)
                    assert len(rig.calls("open_session")) == 1 + round_
                    await anyio.sleep(1.0)
                    assert len(rig.script.calls) - before < 40
                assert len(await take_all(consumer)) >= 18
            assert len(rig.reported("clock_gap")) == 10
            lines = [record.getMessage() for record in caplog.records if "joining again" in record.getMessage()]
            assert 1 < len(lines) <= 6
            assert "(the last of" in lines[1]

    @rule("K18", "C22")
    @virtual()
    async def test_what_dead_sessions_were_refused_is_nobody_s_business(self) -> None:
        async with opened(2, session_timeout=1.0) as rig, rig.member(**CASE) as consumer:
            for round_ in range(1, 10):
                await owns(consumer, 2)
                await anyio.sleep(1.0)
                block_and_lapse(rig, 2.0)
                await anyio.sleep(0.01)
                assert len(rig.reported("evicted")) == round_
                assert offsets(await consumer.poll(max_wait=0.01)) == []

    @rule("K18", "C92", "K41")
    @virtual(seeds=2)
    async def test_a_log_that_takes_nobody_for_long_is_not_asked_in_circles(self) -> None:
        async with opened(1, session_timeout=1.0) as rig, rig.member(**CASE) as consumer:
            await owns(consumer, 1)
            began = anyio.current_time()
            while anyio.current_time() - began < 60.0:
                rig.pump.groups.leave(None, session_of(consumer).wrapped._seat)
                await anyio.sleep(0.01)
            assert 30 < len(rig.calls("open_session")) < 150
            assert len(rig.script.calls) < 1000


class TestABodyThatNeverAwaits:
    """Number crunching: each message takes its time, and all together take longer than the session lasts."""

    @rule("K18")
    @pytest.mark.parametrize("way", ["async for", "consume", "poll"])
    @pytest.mark.parametrize("seconds", [0.004, 0.1, 0.8])
    @EVERY_MODE
    @virtual(seeds=2)
    async def test_it_stays_a_member_and_its_offsets_are_stored(
        self, commit: AutoCommit, seconds: float, way: str
    ) -> None:
        count = max(int(4.0 / seconds), 15)
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, count)
            seen: list[int] = []
            stored: set[int | None] = set()
            async with rig.member(commit=commit, heartbeat_interval=0.25) as consumer:
                await consumer.ready()

                def work(message: Message) -> None:
                    seen.append(message.offset)
                    stored.add(rig.group_stored(P0))
                    block(seconds)

                async def read() -> None:
                    if way == "consume":
                        await consumer.consume(work)
                    while way == "poll":
                        for message in await consumer.poll(count=1):
                            work(message)
                    async for message in consumer:
                        work(message)

                reading = start(tasks, read)
                await anyio.sleep(count * seconds + 2.0)
                assert seen == list(range(count))
                assert rig.reported("clock_gap") == []
                assert rig.reported("evicted") == []
                assert commit.mode == "disabled" or len(stored) >= 3
                await reading.cancel()

    @rule("K18", "C44")
    @virtual(seeds=2)
    async def test_others_have_their_turns_before_a_batch_is_stored_at_its_end(self) -> None:
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 40)
            turns: list[float] = []

            async def tick() -> None:
                while True:
                    await anyio.sleep(0.1)
                    turns.append(anyio.current_time())

            async with rig.member(commit=AutoCommit.each_batch(), heartbeat_interval=0.25) as consumer:
                tasks.start_soon(tick)
                for at in range(40):
                    assert (await anext(consumer)).offset == at
                    block(0.1)
                assert len(turns) > 10
                await anyio.sleep(0.1)
                assert rig.group_stored(P0) == 39
                tasks.cancel_scope.cancel()

    @rule("K18", "K06")
    @virtual(seeds=2)
    async def test_after_a_block_a_slow_one_gets_nothing_of_the_old_ownership(self) -> None:
        async with opened(1, session_timeout=1.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 30)
            seen: list[Message] = []
            async with rig.member(heartbeat_interval=0.25) as consumer:

                async def read() -> None:
                    async for message in consumer:
                        seen.append(message)
                        if len(seen) == 10:
                            block_and_lapse(rig, 3.0)
                        else:
                            block(0.06)

                reading = start(tasks, read)
                await anyio.sleep(12.0)
                assert offsets(seen) == [*range(10), *range(30)]
                assert {message.origin.ownership for message in seen[10:]}.isdisjoint(
                    {message.origin.ownership for message in seen[:10]}
                )
                assert len(rig.reported("evicted")) == 1
                await reading.cancel()

    @rule("C44", "K18")
    @virtual()
    async def test_a_mode_that_stores_at_the_end_of_a_batch_waits_for_all_of_it(self) -> None:
        async with opened(1) as rig:
            await rig.fill(P0, 20)
            async with rig.member(commit=AutoCommit.each_batch(), poll=PollOptions(count=20)) as consumer:
                for _ in range(19):
                    await anext(consumer)
                    await anyio.sleep(0.1)
                assert rig.group_stored(P0) is None
                await anext(consumer)
                await anyio.sleep(0.1)
                assert rig.group_stored(P0) == 19

    @rule("K18", "K16")
    @virtual(seeds=2)
    async def test_what_is_left_of_a_list_is_neither_lost_nor_doubled(self) -> None:
        async with opened(3) as rig:
            for at in P0, P1, P2:
                await rig.fill(at, 40)
            async with rig.member(poll=PollOptions(count=40)) as consumer:
                seen: list[tuple[int, int]] = []
                while len(seen) < 120:
                    with anyio.move_on_after(0.013):
                        message = await anext(consumer)
                        seen.append((message.partition, message.offset))
                    block(0.004)
                    await anyio.sleep(0.01)
            assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(40)]
            for partition in range(3):
                assert [offset for each, offset in seen if each == partition] == list(range(40))


@rule("K18")
@virtual()
async def test_a_gap_shorter_than_the_session_lasts_costs_nothing() -> None:
    async with opened(1, session_timeout=1.0) as rig:
        await rig.fill(P0, 10)
        async with rig.member(**CASE) as consumer:
            await take(consumer, 2)
            for _ in range(10):
                block(0.7)
                await anyio.sleep(0.01)
            assert offsets(await take(consumer, 8)) == list(range(2, 10))
            assert rig.reported("clock_gap") == []
            assert rig.calls("release") == []


@rule("K18")
@virtual()
async def test_a_consumer_without_a_group_has_no_session_that_lapses() -> None:
    async with opened(1, session_timeout=1.0) as rig:
        await rig.fill(P0, 4)
        async with rig.consumer(poll=PollOptions(count=1)) as consumer:
            first, _ = await take(consumer, 2)
            block(100.0)
            await consumer.store_offset(first)
            assert offsets(await take(consumer, 2)) == [2, 3]
            assert rig.reported("clock_gap") == []
