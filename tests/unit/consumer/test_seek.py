"""Where reading begins, and how it is moved: every form of `Start`, before the first message and by `seek`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, Offset, PollOptions, Position, Start
from tarry._wire.batch import encode_record, seal
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    ConfigError,
    ConfigTypeError,
    LogUnavailable,
    NotAMember,
    NotStarted,
    OffsetOutOfRange,
    StaleAssignment,
)
from tarry.testing import delay, hold, refuse
from tarry.types import EPOCH
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Rig, offsets, opened, owns, places, settled, start, take, take_all
from tests.unit.consumer.test_reading import recreate
from tests.virtual import virtual

BASE = datetime(2015, 6, 1, tzinfo=UTC)
PARTITIONS = pytest.mark.parametrize("partitions", [1, 2])


def _seeks(consumer: Consumer) -> Awaitable[object]:
    return consumer.seek(0, 0)


ASKS = pytest.mark.parametrize("asks", [_seeks, Consumer.lag], ids=["seek", "lag"])


async def fill_minutes(rig: Rig, count: int) -> None:
    """One message per minute from `BASE` on, three in a batch."""
    for first in range(0, count, 3):
        times = [
            (BASE + timedelta(minutes=number) - EPOCH) // timedelta(milliseconds=1)
            for number in range(first, min(first + 3, count))
        ]
        await rig.log.append(P0, seal([encode_record(b"x", None, (), time) for time in times], times))


class TestStarts:
    @rule("C26")
    @pytest.mark.parametrize(
        ("rule_", "expected"),
        [
            (Start.next(), 5),
            (Start.next(otherwise="fail"), 5),
            (Start.first(), 0),
            (Start.last(), 6),
            (Start.offset(3), 3),
            (Start.offset(0), 0),
            (Start.timestamp(BASE), 0),
            (Start.timestamp(BASE + timedelta(minutes=4)), 4),
            (Start.timestamp(BASE + timedelta(minutes=4, milliseconds=1)), 5),
            (Start.timestamp(BASE - timedelta(days=400)), 0),
            (Start.end(), 10),
            (Start.timestamp(BASE + timedelta(days=1)), 10),
            (Start.offset(10), 10),
        ],
        ids=str,
    )
    @virtual()
    async def test_each_form_begins_where_it_says(self, rule_: Start, expected: int) -> None:
        async with opened() as rig:
            await fill_minutes(rig, 10)
            async with rig.consumer() as consumer:
                await consumer.store_offset(0, 4, force=True)
            async with rig.consumer(poll=PollOptions(count=4)) as consumer:  # by a seek, from wherever it stands
                await take(consumer, 3)
                assert await consumer.seek(0, rule_) == expected
            async with rig.consumer(start=rule_, poll=PollOptions(count=4)) as consumer:
                await consumer.ready()
                assert consumer.position(0) == expected
                await rig.fill(P0, 1)
                assert (await anext(consumer)).offset == expected

    @rule("C26")
    @pytest.mark.parametrize(
        ("rule_", "expected"),
        [
            (Start.next(), 0),
            (Start.next(otherwise=Start.first()), 0),
            (Start.next(otherwise=Start.end()), 6),
            (Start.last(), 0),
        ],
        ids=str,
    )
    @virtual()
    async def test_without_a_stored_offset_and_with_fewer_messages_than_asked_for(
        self, rule_: Start, expected: int
    ) -> None:
        async with opened() as rig:
            await fill_minutes(rig, 6)
            async with rig.consumer(start=rule_) as consumer:
                await consumer.ready()
                assert consumer.position(0) == expected

    @rule("C26")
    @virtual()
    async def test_last_counts_for_each_partition(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 2)
            async with rig.consumer(start=Start.last(), poll=PollOptions(count=3)) as consumer:
                assert sorted(places(await take(consumer, 5))) == [(0, 7), (0, 8), (0, 9), (1, 0), (1, 1)]

    @rule("C26")
    @virtual()
    async def test_first_and_last_mean_retained_messages(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic("t", 1, retention_bytes=3000)
            await rig.fill(P0, 1000)
            begin = rig.pump.view.find(P0).log_start
            assert begin > 0
            for rule_ in (Start.first(), Start.last(), Start.next()):
                async with rig.consumer(start=rule_, poll=PollOptions(count=10_000)) as consumer:
                    assert offsets(await take(consumer, 1)) == [begin]
            assert rig.reported("gap") == []

    @rule("C27")
    @virtual()
    async def test_a_start_is_resolved_once_per_partition_and_run(self) -> None:
        async with opened(2) as rig:
            async with rig.consumer(start=Start.end()) as consumer:
                await consumer.ready()
                for _ in range(3):
                    await rig.fill(P0, 2)
                    await take(consumer, 2)
                    await consumer.poll(max_wait=1.0)
            assert len(rig.calls("resolve")) == 2

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (lambda: Start.offset(-1), ConfigError),
            (lambda: Start.offset(True), ConfigTypeError),
            (lambda: Start.offset("3"), ConfigTypeError),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            (lambda: Start.timestamp(datetime(2015, 1, 1)), ConfigError),  # noqa: DTZ001
            (lambda: Start.timestamp(1_420_000_000), ConfigTypeError),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            (lambda: Start.next(otherwise=Start.last()), ConfigError),
        ],
    )
    def test_starts_that_make_no_sense_are_refused(self, make: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            make()


class TestSeek:
    @rule("C33")
    @PARTITIONS
    @virtual(seeds=3)
    async def test_back_and_forth_with_a_buffer_and_a_message_in_hand(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 100)
            async with rig.consumer(poll=PollOptions(count=10)) as consumer:
                await take(consumer, 15)
                assert await consumer.seek(0, 5) == 5
                assert (consumer.position(0), consumer.last_delivered(0)) == (5, None)
                assert offsets(await take(consumer, 3)) == [5, 6, 7]
                await consumer.seek(P0, Position(90))
                assert offsets(await take(consumer, 3)) == [90, 91, 92]
                await consumer.seek(0, Offset(91))
                assert offsets(await take(consumer, 9)) == list(range(91, 100))
                await consumer.seek(0, Start.first())
                assert (await anext(consumer)).offset == 0
                await consumer.seek(0, Start.last())
                assert offsets(await take(consumer, 10)) == list(range(90, 100))
                await consumer.seek(0, Start.end())
                await rig.fill(P0, 2)
                assert offsets(await take(consumer, 2)) == [100, 101]

    @rule("C33")
    @virtual(seeds=3)
    async def test_only_that_partition_moves(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 50)
            await rig.fill(P1, 50)
            async with rig.consumer(poll=PollOptions(count=10)) as consumer:
                before = await take(consumer, 30)
                await consumer.seek(0, 0)
                after = await take(consumer, 70)
            p1 = [offset for partition, offset in places([*before, *after]) if partition == 1]
            assert p1 == list(range(len(p1)))
            p0 = [offset for partition, offset in places(after) if partition == 0]
            assert p0 == list(range(len(p0)))

    @rule("C33")
    @PARTITIONS
    @virtual(seeds=3)
    async def test_a_fetch_that_is_out_is_void(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 10)
            rig.script.on("poll", do=delay(2.0, reply=True))
            async with rig.consumer() as consumer:
                await anyio.sleep(1)  # the answer with 0 to 9 is on its way
                await consumer.seek(0, 7)
                assert offsets(await take(consumer, 3)) == [7, 8, 9]
                await anyio.sleep(5)
                with anyio.move_on_after(1) as limit:
                    await anext(consumer)
                assert limit.cancelled_caught

    @rule("C33")
    @PARTITIONS
    @pytest.mark.parametrize("reads", ["loop", "poll"])
    @virtual(seeds=3)
    async def test_while_a_read_is_parked(self, partitions: int, reads: str) -> None:
        async with opened(partitions) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                reader = start(
                    tasks,
                    lambda: take(consumer, 13) if reads == "loop" else consumer.poll(min_count=13, max_wait=60.0),
                )
                await anyio.sleep(1)
                assert reader.outcome == "running"
                await consumer.seek(0, 0)
                await rig.fill(P0, 3)
                await reader.done.wait()
                assert anyio.current_time() < 1.1
                if reads == "loop":
                    assert offsets(reader.result) == [*range(10), 0, 1, 2]
                else:
                    assert offsets(reader.result) == list(range(13))

    @rule("C33")
    @virtual()
    async def test_a_batch_in_hand_counts_neither_way(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                await consumer.poll(count=4)
                await consumer.poll(count=2)  # 0 to 3 are finished
                await consumer.seek(0, 8)
                report = await consumer.shutdown()
            assert report.unfinished == {}
            assert report.committed == {P0: 3}  # what was finished before the seek, whenever the timer would have come
            assert rig.stored(P0) == 3

    @rule("C33", "I1")
    @pytest.mark.parametrize("commit", [AutoCommit.interval(0.5), AutoCommit.each_message(), AutoCommit.on_poll()])
    @pytest.mark.parametrize("to", [0, 8])
    @virtual()
    async def test_what_was_in_hand_and_stored_comes_again_in_the_next_run(self, to: int, commit: AutoCommit) -> None:
        """It is not finished: a seek alone, before a shutdown, must not skip it."""
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=commit) as consumer:
                await take(consumer, 5)
                await anyio.sleep(1.0)
                assert (rig.stored(P0) or 0) >= 4
                await consumer.seek(0, to)
            async with rig.consumer() as consumer:
                assert (await anext(consumer)).offset == 4

    @rule("C33", "I1")
    @pytest.mark.parametrize("to", [0, 8])
    @virtual()
    async def test_what_is_brought_back_meanwhile_is_no_store_that_followed_the_seek(self, to: int) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
                await take(consumer, 5)
                await consumer.seek(0, to)
                await anext(consumer)
                consumer.pause(0, cause="a break")
                await anyio.sleep(1)
                assert rig.stored(P0) == 3
            assert rig.stored(P0) == 3

    @rule("C33", "I7")
    @virtual()
    async def test_the_first_store_after_it_may_go_down_also_behind_a_pause(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
                await take(consumer, 5)
                await consumer.seek(0, 0)
                message = await anext(consumer)
                consumer.pause(0, cause="a break")
                await anyio.sleep(1)
                await consumer.store_offset(message)
                assert rig.stored(P0) == 0

    @rule("K01", "C33")
    @virtual()
    async def test_what_was_committed_and_is_void_is_brought_back_before_anything_else_is_committed(self) -> None:
        """A kill behind a seek back loses one batch at most."""
        async with opened() as rig:
            await rig.fill(P0, 100)
            async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
                await anext(consumer)
                assert rig.stored(P0) == 99
                await consumer.seek(0, 0)
                await consumer.poll(count=5)
                batch = await consumer.poll(count=5)
                await anyio.sleep(1)
                assert rig.stored(P0) == batch[-1].offset == 9

    @rule("C33", "K57")
    @pytest.mark.parametrize("commit", [AutoCommit.finished(100.0), AutoCommit.each_message(), AutoCommit.on_poll()])
    @virtual()
    async def test_the_first_to_meet_a_new_topic_takes_nothing_over_from_the_old_one(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.fill(P0, 50)
            async with rig.consumer(commit=commit) as consumer:
                await take(consumer, 40)
                consumer.pause(0, cause="so that nothing is fetched")
                recreate(rig, 1)
                await rig.fill(P0, 60)
                await anyio.sleep(1)
                await consumer.seek(0, 1)
                assert len(rig.reported("topic_recreated")) == 1
            assert rig.stored(P0) is None
            async with rig.consumer() as consumer:
                assert (await anext(consumer)).offset == 0

    @rule("C21", "C33")
    @virtual()
    async def test_what_is_stored_is_asked_again_where_the_session_was_lost_meanwhile(self) -> None:
        async with opened(1, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            go = anyio.Event()
            rig.script.every("resolve", do=delay(0.2), where=lambda call: call.at < 0.1)
            rig.script.on("stored_offset", do=hold(go, reply=True))
            async with rig.member(commit=AutoCommit.on_poll(), heartbeat_interval=1e3) as consumer:
                seeking = start(tasks, partial(consumer.seek, 0, 5))
                await anyio.sleep(3)
                assert rig.reported("evicted")
                go.set()
                await seeking.done.wait()
                assert (await anext(consumer)).offset == 5
            assert rig.group_stored(P0) is None

    @virtual()
    async def test_seeking_back_under_an_automatic_mode(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer(commit=AutoCommit.finished(1.0)) as consumer:
                await take(consumer, 20)
                await anyio.sleep(1.5)
                assert rig.stored(P0) == 18
                await consumer.seek(0, 5)
                await anyio.sleep(1.5)
                assert rig.stored(P0) == 18  # nothing has been read there yet
                await take(consumer, 3)
                await anyio.sleep(1.2)
                assert rig.stored(P0) == 6
                await take(consumer, 2)
                report = await consumer.shutdown()
            assert report.committed == {P0: 8}
            async with rig.consumer() as consumer:
                assert (await anext(consumer)).offset == 9

    @pytest.mark.parametrize("commit", [AutoCommit.finished(100.0), AutoCommit.interval(100.0)])
    @virtual()
    async def test_seeking_right_after_the_start(self, commit: AutoCommit) -> None:
        """Before anybody knows what is stored; the report and the first store need it."""
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer() as consumer:
                await consumer.store_offset(0, 15, force=True)
            async with rig.consumer(commit=commit) as consumer:
                await consumer.seek(0, 3)
                assert consumer.last_stored(0) == 15
                report = await consumer.shutdown()
            assert report.committed == {P0: 15}
            async with rig.consumer(commit=commit) as consumer:
                await consumer.seek(0, 3)
                await take(consumer, 3)
                report = await consumer.shutdown()
            assert (report.committed, report.rewound) == ({P0: 4}, {P0: 11})
            assert rig.stored(P0) == 4

    @rule("C33")
    @virtual()
    async def test_where_it_cannot_go_nothing_moves(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                await take(consumer, 3)
                for to, error in ((11, OffsetOutOfRange), (-1, ConfigError), (True, ConfigTypeError)):
                    with pytest.raises(error):
                        await consumer.seek(0, to)
                with pytest.raises(StaleAssignment):
                    await consumer.seek(1, 0)
                rig.script.on("resolve", do=refuse(LogUnavailable("away")))
                with pytest.raises(LogUnavailable):
                    await consumer.seek(0, 0)
                assert consumer.position(0) == 3
                assert offsets(await take(consumer, 7)) == list(range(3, 10))

    @pytest.mark.parametrize("to", ["first", None, True, 1.0, Start.first])
    @virtual()
    async def test_what_is_neither_an_offset_nor_a_start_is_told_what_seek_takes(self, to: Any) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            with pytest.raises(ConfigTypeError) as refused:
                await consumer.seek(0, to)
            says = f"seek takes an offset or a Start, for example Start.first(), not {type(to).__name__} ({to!r})"
            assert str(refused.value) == says

    @virtual()
    async def test_below_what_is_retained_it_begins_at_the_oldest_and_says_so(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic("t", 1, retention_bytes=3000)
            await rig.fill(P0, 1000)
            begin = rig.pump.view.find(P0).log_start
            async with rig.consumer() as consumer:
                await anext(consumer)
                for _ in range(2):
                    await consumer.seek(0, 1)
                    assert offsets(await take(consumer, 1)) == [begin]
                assert rig.reported("gap") == [{"partition": P0, "first": 1, "last": begin - 1}] * 2

    @virtual(seeds=5)
    async def test_many_seeks_in_a_row_and_from_another_task(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 100)
            async with rig.consumer(poll=PollOptions(count=7)) as consumer:
                found: list[int] = []

                async def loop() -> None:
                    async for message in consumer:
                        found.append(message.offset)
                        await anyio.lowlevel.checkpoint()

                start(tasks, loop)
                for target in (90, 10, 50, 30, 95, 20):
                    await consumer.seek(0, target)
                    for _ in range(target % 7):
                        await anyio.lowlevel.checkpoint()
                await consumer.seek(0, 40)
                found.clear()
                await anyio.sleep(1)
                assert found == list(range(found[0], 100))
                assert found[0] in {40, 41}
                await settled()

    @rule("C33", "C109")
    @virtual()
    async def test_what_went_wrong_before_a_seek_is_not_told_behind_it(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(start=Start.offset(50)) as consumer:
                await settled()
                assert consumer.health().stopped.keys() == {P0}
                await consumer.seek(P0, 1)
                assert offsets(await take(consumer, 2)) == [1, 2]

    @virtual()
    async def test_a_seek_resumes_a_partition_whose_topic_came_back(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.fill(P0, 3)
            await take(consumer, 3)
            await rig.log.delete_topic("t")
            with pytest.raises(Exception, match="was deleted"):
                await anext(consumer)
            await rig.client.create_topic("t", 1)
            await rig.fill(P0, 2)
            await consumer.seek(0, Start.first())
            assert offsets(await take_all(consumer)) == [0, 1]


@rule("C16", "C33")
@ASKS
@virtual(seeds=2)
async def test_who_asks_while_the_consumer_leaves_is_told_that_it_ends(
    asks: Callable[[Consumer], Awaitable[object]],
) -> None:
    async with opened() as rig, anyio.create_task_group() as tasks, rig.consumer() as consumer:
        rig.script.every("leave", do=delay(1.0, reply=True))
        stopping = start(tasks, consumer.shutdown)
        await anyio.sleep(0.5)
        with pytest.raises(NotStarted, match="is shutting down"):
            await asks(consumer)
        await stopping.done.wait()


@rule("C21", "C33")
@ASKS
@virtual()
async def test_who_asks_in_a_session_that_the_log_has_ended_is_told_so(
    asks: Callable[[Consumer], Awaitable[object]],
) -> None:
    async with opened() as rig, rig.member() as consumer:
        await consumer.ready()
        rig.script.on("resolve", do=refuse(NotAMember("you are none")))
        with pytest.raises(StaleAssignment, match="the log has ended the session of"):
            await asks(consumer)
        assert await asks(consumer) is not None


@rule("C22", "C33")
@virtual(seeds=2)
async def test_a_seek_whose_partition_is_lost_meanwhile_says_so() -> None:
    async with opened(2) as rig, anyio.create_task_group() as tasks, rig.member() as first:
        await first.ready()
        rig.script.every("resolve", do=delay(3.0))
        seeks = {at: start(tasks, partial(first.seek, at, 0)) for at in (P0, P1)}
        async with rig.member() as second:
            (moved,) = await owns(second, 1)
            await anyio.sleep(5.0)
            assert isinstance(seeks[moved].error, StaleAssignment)
