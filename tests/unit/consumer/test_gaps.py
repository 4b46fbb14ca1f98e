"""Retention removed what was to be read next: nothing is passed in silence (K09)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from tarry import abc
from tarry.config import AutoCommit, PollOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import ConfigError, OffsetOutOfRange, TarryError
from tarry.testing import Call, CarryOut, delay
from tarry.types import Batch, Offset, Position, Start
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Rig, T, answer, items, offsets, opened, start, take, take_all
from tests.virtual import virtual

FAIL = Start.next(on_gap="fail")
ROOM = 70_000
"""Six batches of a hundred messages of 100 bytes; a seventh is too much."""


@asynccontextmanager
async def behind(partitions: int = 1) -> AsyncGenerator[Rig]:
    """Everything in front of message 100 is stored as read; then retention left 400 to 999."""
    async with opened({}) as rig:
        await rig.client.create_topic(T, partitions, retention_bytes=ROOM)
        await rig.fill(P0, 100, size=100)
        async with rig.consumer() as consumer:
            await consumer.store_offset(P0, 99, force=True)
        await rig.fill(P0, 900, size=100)
        assert rig.pump.view.find(P0).log_start == 400
        yield rig


def bounds(rig: Rig) -> list[tuple[object, object]]:
    return [(gap["first"], gap["last"]) for gap in rig.reported("gap")]


class TestGoingOn:
    @rule("K09")
    @pytest.mark.parametrize("otherwise", [Start.first(), Start.end()])
    @virtual(seeds=2)
    async def test_it_begins_with_the_oldest_that_is_left_and_says_once_what_is_missing(self, otherwise: Start) -> None:
        async with behind() as rig:
            async with rig.consumer(start=Start.next(otherwise), commit=AutoCommit.finished(0.1)) as consumer:
                await consumer.ready()
                assert consumer.position(0) == 400
                assert offsets(await take(consumer, 2)) == [400, 401]
                await anyio.sleep(0.5)
                assert rig.stored(P0) == 400
                assert consumer.statistics().gaps == 1
                messages = await take_all(consumer)
                assert offsets(messages) == list(range(402, 1000))
            assert rig.stored(P0) == 999
            assert rig.reported("gap") == [{"partition": P0, "first": 100, "last": 399}]

    @rule("K09")
    @virtual()
    async def test_what_is_stored_never_goes_below_it_again(self) -> None:
        async with behind() as rig:
            seen: list[int | None] = []
            for _ in range(3):
                async with rig.consumer(commit=AutoCommit.finished(0.1)) as consumer:
                    await take(consumer, 3)
                    seen.append(rig.stored(P0))
                seen.append(rig.stored(P0))
            assert seen == [99, 401, 401, 403, 403, 405]
            assert bounds(rig) == [(100, 399)]

    @rule("K09")
    @virtual()
    async def test_a_gap_is_known_at_the_start_though_nothing_is_left(self) -> None:
        async with behind() as rig:
            rig.pump.view.find(P0).log_start = Position(1000)
            async with rig.consumer() as consumer:
                await consumer.ready()
                assert bounds(rig) == [(100, 999)]
                await anyio.sleep(60)
            assert bounds(rig) == [(100, 999)]


class TestFailing:
    @rule("K09")
    @virtual(seeds=2)
    async def test_the_reader_is_told_the_bounds_and_the_next_step(self) -> None:
        async with behind() as rig:
            for _ in range(2):
                async with rig.consumer(start=FAIL, commit=AutoCommit.finished(0.1)) as consumer:
                    with anyio.fail_after(1), pytest.raises(OffsetOutOfRange, match="seek to 400") as caught:
                        await anext(consumer)
                    assert "messages 100 to 399 were removed" in str(caught.value)
                    assert (caught.value.asked, caught.value.log_start, caught.value.log_end) == (100, 400, 1000)
                    assert "t[0]" in str(caught.value)
                    assert consumer.position(0) == 100
                    assert list(consumer.health().stopped) == [P0]
                    with anyio.fail_after(1), pytest.raises(OffsetOutOfRange):
                        await consumer.poll()
                assert rig.stored(P0) == 99
            assert bounds(rig) == [(100, 399)] * 2

    @rule("K09")
    @virtual(seeds=2)
    async def test_after_a_seek_it_goes_on_and_the_others_never_stopped(self) -> None:
        async with behind(2) as rig, rig.consumer(start=FAIL) as consumer:
            await rig.fill(P1, 3)
            found = await items(consumer, 4)
            assert sum(isinstance(item, OffsetOutOfRange) for item in found) == 1
            (error,) = [item for item in found if isinstance(item, OffsetOutOfRange)]
            await consumer.seek(P0, error.log_start)
            assert offsets(await take(consumer, 600)) == list(range(400, 1000))
            assert consumer.health().ok
            assert bounds(rig) == [(100, 399)]

    @rule("K09")
    @pytest.mark.parametrize("read", ["anext", "poll"])
    @virtual(seeds=3)
    async def test_what_was_fetched_in_front_of_the_gap_comes_before_the_error(self, read: str) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic(T, 2, retention_bytes=ROOM)
            await rig.fill(P0, 200, size=100)
            options = PollOptions(count=100, max_wait=0.2)
            async with rig.consumer(start=FAIL, poll=options, buffer_messages=200) as consumer:
                assert offsets(await take(consumer, 1)) == [0]
                await anyio.sleep(1)
                await rig.fill(P0, 1000, size=100)  # 600 to 1199 are left, and what was fetched waits
                found = [0]
                with pytest.raises(OffsetOutOfRange) as caught, anyio.fail_after(10):
                    while True:
                        await _read(consumer, read, found)
                asked = caught.value.asked
                assert asked is not None
                assert asked >= 200
                assert found == list(range(asked))
                assert caught.value.log_start == 600
                await consumer.seek(0, caught.value.log_start)
                assert (await anext(consumer)).offset == 600
            assert bounds(rig) == [(asked, 599)]

    @rule("C73")
    @virtual(seeds=2)
    async def test_what_came_beside_it_in_one_fetch_is_waited_for_behind_that(self) -> None:
        """The gap had everything looked at while half of the reply was taken in."""
        async with opened({}) as rig:
            await rig.client.create_topic(T, 3, retention_bytes=ROOM)
            async with rig.consumer(start=FAIL) as consumer:
                await consumer.ready()
                await anyio.sleep(1)
                consumer.pause([0, 1], cause="test")
                await rig.fill(P0, 1000, size=100)
                await rig.fill(P1, 5)
                rig.script.calls.clear()
                consumer.resume([0, 1])
                await anyio.sleep(1)
                assert len(bounds(rig)) == len(rig.calls("poll")) == 1
                named = [target for call in rig.calls("wait_ready") for target in call.arguments["targets"]]
                assert {target.at for target in named if target.partition == P1} == {5}

    @rule("K09")
    @virtual(seeds=2)
    async def test_a_paused_partition_says_so_when_it_goes_on(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic(T, 2, retention_bytes=ROOM)
            await rig.fill(P0, 100, size=100)
            async with rig.consumer(start=FAIL, poll=PollOptions(count=100, max_wait=0.2)) as consumer:
                await take(consumer, 1)
                rig.script.every("poll", do=delay(0.2), where=lambda call: call.at < 1)
                await anyio.sleep(0.1)
                consumer.pause(P0, cause="test")
                await rig.fill(P0, 1000, size=100)
                assert len(await consumer.poll(max_wait=2.0)) == 0
                consumer.resume(P0)
                assert offsets(await take(consumer, 99)) == list(range(1, 100))
                with anyio.fail_after(2), pytest.raises(OffsetOutOfRange, match="100 to 499"):
                    await anext(consumer)
            assert bounds(rig) == [(100, 499)]

    @rule("K09")
    @virtual(seeds=2)
    async def test_commit_on_poll_has_nothing_behind_the_gap_stored(self) -> None:
        async with behind() as rig, rig.consumer(start=FAIL, commit=AutoCommit.on_poll()) as consumer:
            with anyio.fail_after(1), pytest.raises(OffsetOutOfRange):
                await anext(consumer)
            assert rig.stored(P0) == 99
            await consumer.shutdown()
            assert rig.stored(P0) == 99

    @rule("K09")
    @virtual(seeds=2)
    async def test_what_a_committing_fetch_brought_from_behind_a_gap_is_brought_back(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic(T, 1, retention_bytes=ROOM)
            await rig.fill(P0, 100, size=100)
            async with rig.consumer(
                start=FAIL, commit=AutoCommit.on_poll(), poll=PollOptions(count=100, max_wait=0.5)
            ) as consumer:
                assert len(await consumer.poll()) == 100
                await rig.fill(P0, 1000, size=100)
                with anyio.fail_after(2), pytest.raises(OffsetOutOfRange, match="100 to 499"):
                    await consumer.poll()
                await anyio.sleep(1.0)
                assert rig.stored(P0) == 99, "nor lost with a hard kill"
                report = await consumer.shutdown()
                assert report.committed == {P0: 99}
            assert rig.stored(P0) == 99

    @rule("K09", "K01")
    @virtual(seeds=2)
    async def test_nor_is_another_partition_committed_before_that(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic(T, 2, retention_bytes=ROOM)
            await rig.fill(P0, 50, size=100)
            poll = PollOptions(count=8)
            async with rig.consumer(start=FAIL, commit=AutoCommit.on_poll(), poll=poll) as consumer:
                assert offsets(await take(consumer, 1)) == [0]
                await rig.fill(P0, 1000, size=100)
                await rig.fill(P1, 50, size=100)
                held: list[int | None] = []

                async def note(call: Call, carry_out: CarryOut) -> object:
                    held.append(rig.stored(P0))
                    return await carry_out()

                rig.script.every("poll", do=note)
                with anyio.move_on_after(0.5):
                    await consumer.poll(count=500, min_count=500, max_wait=1.0)
                assert bounds(rig) == [(8, 449)]
                assert held
                assert max(offset or 0 for offset in held) <= 7, "which is buffered for the reader"

    @rule("K09", "K48")
    @virtual(seeds=2)
    async def test_a_pause_in_front_of_it_leaves_nothing_out_of_its_bounds(self) -> None:
        """What was in front of the gap was brought back and dropped for the pause; by now it is gone as well."""
        async with opened({}) as rig, anyio.create_task_group() as tasks:
            await rig.client.create_topic(T, 2, retention_bytes=ROOM)
            await rig.fill(P0, 50, size=100)
            told: list[TarryError] = []

            async def read(consumer: Consumer) -> None:
                assert offsets(await take(consumer, 1)) == [0]
                await rig.fill(P0, 1000, size=100)
                try:
                    await consumer.poll(count=500, min_count=500, max_wait=5.0)
                except OffsetOutOfRange as error:
                    told.append(error)
                await consumer.poll(max_wait=5.0)

            poll = PollOptions(count=8)
            async with rig.consumer(start=FAIL, commit=AutoCommit.on_poll(), poll=poll) as consumer:
                reading = start(tasks, partial(read, consumer))
                await anyio.sleep(0.5)
                assert bounds(rig) == [(8, 449)]
                consumer.pause(0, cause="full")
                await anyio.sleep(6.0)
                assert told == []
                consumer.resume(0)
                await anyio.sleep(1.0)
                assert isinstance(reading.error, OffsetOutOfRange)
                assert reading.error.asked == 1
                assert bounds(rig) == [(8, 449), (1, 449)]

    @rule("K09")
    @virtual()
    async def test_a_seek_below_what_is_retained_is_refused_and_moves_nothing(self) -> None:
        async with behind() as rig:
            async with rig.consumer(start=Start.first(on_gap="fail")) as consumer:
                assert offsets(await take(consumer, 3)) == [400, 401, 402]
                with pytest.raises(OffsetOutOfRange, match=r"10 to 399 .* nothing has moved: seek to 400"):
                    await consumer.seek(0, 10)
                assert offsets(await take(consumer, 1)) == [403]
            async with rig.consumer(start=Start.first()) as consumer:
                with pytest.raises(OffsetOutOfRange, match="10 to 399"):
                    await consumer.seek(0, Start.offset(10, on_gap="fail"))
            assert bounds(rig) == []

    @rule("K09")
    @virtual()
    async def test_a_new_topic_of_the_name_ends_the_stop(self) -> None:
        async with behind() as rig, rig.consumer(start=FAIL) as consumer:
            await consumer.ready()
            await rig.log.delete_topic(T)
            await rig.client.create_topic(T, 1)
            await rig.fill(P0, 2)
            await anyio.sleep(0.1)  # the news has come
            with anyio.fail_after(1):
                assert offsets(await take(consumer, 2)) == [0, 1]


class TestBeyond:
    @rule("K09")
    @pytest.mark.parametrize("start", [Start.next(), Start.next(Start.end()), FAIL, Start.next("fail")])
    @virtual()
    async def test_a_position_behind_the_end_is_an_error_under_every_setting(self, start: Start) -> None:
        async with opened() as rig:
            await rig.fill(P0, 100)
            async with rig.consumer() as consumer:
                await consumer.store_offset(P0, 99, force=True)
            rig.pump.view.find(P0).log_end = Position(50)  # as a log that was restored from a backup
            async with rig.consumer(start=start) as consumer:
                with anyio.fail_after(1), pytest.raises(OffsetOutOfRange, match="100 of t\\[0\\] lies behind the end"):
                    await anext(consumer)
            rig.pump.view.find(P0).log_end = Position(100)


class TestOption:
    @rule("K09")
    def test_every_start_takes_it_and_what_it_cannot_be_is_refused(self) -> None:
        starts = [
            Start.next(on_gap="fail"),
            Start.next(Start.end(), on_gap="fail"),
            Start.next("fail", on_gap="fail"),
            Start.first(on_gap="fail"),
            Start.last(on_gap="fail"),
            Start.end(on_gap="fail"),
            Start.offset(3, on_gap="fail"),
        ]
        assert [start.on_gap for start in starts] == ["fail"] * len(starts)
        assert Start.next().on_gap == "resume"
        wrong: Any = "ignore"
        with pytest.raises(ConfigError, match=r"on_gap='ignore'.*'resume' or 'fail'"):
            Start.first(on_gap=wrong)

    @rule("K09")
    @virtual()
    async def test_the_newest_messages_keep_it(self) -> None:
        def gone(_: Call, found: abc.Resolved) -> abc.Resolved:
            return replace(found, position=Position(2), log_start=Position(5))

        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("resolve", do=answer(gone))
            async with rig.consumer(start=Start.last(on_gap="fail")) as consumer:
                with anyio.fail_after(1), pytest.raises(OffsetOutOfRange, match="2 to 4"):
                    await anext(consumer)


async def _read(consumer: Consumer, how: str, found: list[int]) -> None:
    batch: Batch | list[Any] = [await anext(consumer)] if how == "anext" else await consumer.poll()
    found.extend(int(Offset(message.offset)) for message in batch)
