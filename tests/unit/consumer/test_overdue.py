"""Work that takes longer than `max_processing_time`: the partition goes, the membership stays."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.errors import StaleAssignment
from tarry.types import Message, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Rig, offsets, opened, owns, places, start, take, take_all
from tests.virtual import virtual

ON_POLL = AutoCommit.on_poll()
MODES = pytest.mark.parametrize("commit", [AutoCommit.disabled(), AutoCommit.finished(0.2), ON_POLL], ids=str)
CASE: dict[str, Any] = {"heartbeat_interval": 0.5, "max_processing_time": 5.0}


async def fill(rig: Rig, count: int) -> None:
    for at in P0, P1:
        await rig.fill(at, count)


class TestTheCase:
    """K12 with its own figures: a lease of 2 s, 5 s for a message."""

    @rule("K12")
    @pytest.mark.parametrize("way", ["async for", "consume", "poll"])
    @virtual(seeds=2)
    async def test_four_seconds_cost_nothing(self, way: str) -> None:
        async with opened(2, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            seen: list[tuple[int, int]] = []

            async def work(message: Message) -> None:
                seen.append((message.partition, message.offset))
                await anyio.sleep(4.0)

            async with rig.member(commit=AutoCommit.finished(0.2), **CASE) as first, rig.member(**CASE) as second:
                (mine,) = await owns(first, 1)
                await owns(second, 1)
                generation = first.generation
                await rig.fill(mine, 3)

                async def read() -> None:
                    if way == "consume":
                        await first.consume(work)
                    elif way == "poll":
                        while True:
                            for message in await first.poll(count=1):
                                await work(message)
                    async for message in first:
                        await work(message)

                reading = start(tasks, read)
                await anyio.sleep(15.0)
                assert first.generation == generation
                assert first.assignment == {mine}
                assert seen == [(mine.partition, offset) for offset in range(3)]
                assert rig.reported("processing_too_slow") == []
                await reading.cancel()

    @rule("K12")
    @pytest.mark.parametrize("way", ["async for", "consume", "poll"])
    @MODES
    @virtual(seeds=2)
    async def test_eight_seconds_cost_the_partition(self, commit: AutoCommit, way: str) -> None:
        async with opened(2, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            refused: list[float] = []
            after: list[tuple[float, Message]] = []
            theirs: list[tuple[float, Message]] = []
            options: dict[str, Any] = {"commit": commit, "poll": PollOptions(count=5), **CASE}
            async with rig.member(**options) as first, rig.member(**options) as second:
                (mine,) = await owns(first, 1)
                (other,) = await owns(second, 1)
                began = anyio.current_time()
                generation = first.generation
                await fill(rig, 20)

                async def work(message: Message) -> None:
                    if refused:
                        after.append((anyio.current_time() - began, message))
                    if (message.topic_partition, message.offset) != (mine, 1):
                        return
                    await anyio.sleep(8.0)
                    with pytest.raises(StaleAssignment):
                        await first.store_offset(message)
                    refused.append(anyio.current_time() - began)

                async def read() -> None:
                    if way == "consume":
                        await first.consume(work)
                    elif way == "poll":
                        while True:
                            for message in await first.poll(count=1):
                                await work(message)
                    async for message in first:
                        await work(message)

                async def read_theirs() -> None:
                    async for message in second:
                        theirs.append((anyio.current_time() - began, message))  # noqa: PERF401  # looked at meanwhile

                reading, reading_theirs = start(tasks, read), start(tasks, read_theirs)
                await anyio.sleep(6.5)
                assert mine in second.assignment
                await anyio.sleep(2.0)
                assert refused == [pytest.approx(8.0, abs=0.01)]
                assert first.assignment == {other}  # came in return
                await rig.fill(other, 1)
                await anyio.sleep(0.5)
                assert after
                assert max(at for at, _ in after) <= 9.0
                assert {message.topic_partition for _, message in after} == {other}
                await anyio.sleep(6.0)
                moved = [(at, message) for at, message in theirs if message.topic_partition == mine]
                assert moved[0][0] <= 6.5
                assert offsets([message for _, message in moved]) == list(range(commit.mode != "disabled", 20))
                assert first.generation == generation
                (warning,) = rig.reported("processing_too_slow")
                assert (warning["partition"], warning["offset"]) == (mine, 1)
                assert warning["seconds"] == pytest.approx(5.0, abs=1.0)
                await reading.cancel()
                await reading_theirs.cancel()


class TestGivingUpUnasked:
    @rule("K12", "C32")
    @virtual(seeds=2)
    async def test_what_was_committed_and_is_in_hand_is_brought_back(self) -> None:
        async with opened(session_timeout=2.0) as rig:
            await rig.fill(P0, 20)
            options: dict[str, Any] = {"commit": ON_POLL, "poll": PollOptions(count=10), **CASE}
            async with rig.member(**options) as first, rig.member(**options) as second:
                await take(first, 4)
                await first.poll(count=3)
                assert rig.group_stored(P0) == 9
                assert await owns(second, 1, within=6.5) == {P0}
                assert rig.group_stored(P0) == 3
                assert offsets(await take(second, 16)) == list(range(4, 20))
                assert await take_all(first, quiet=2.0) == []

    @rule("K12")
    @MODES
    @virtual(seeds=2)
    async def test_alone_the_partition_comes_back_and_so_does_the_message(self, commit: AutoCommit) -> None:
        """Under a new ownership, so that the late store counts for nothing; once, however long the work goes on."""
        async with opened(session_timeout=2.0) as rig:
            await rig.fill(P0, 5)
            async with rig.member(commit=commit, **CASE) as consumer:
                _, late = await take(consumer, 2)
                await anyio.sleep(30.0)
                assert consumer.assignment == {P0}
                assert len(rig.reported("processing_too_slow")) == 1
                with pytest.raises(StaleAssignment):
                    await consumer.store_offset(late)
                assert offsets(await take_all(consumer)) == list(range(commit.mode != "disabled", 5))

    @rule("K12")
    @virtual(seeds=2)
    async def test_a_second_message_that_takes_too_long_is_named_too(self) -> None:
        async with opened(session_timeout=2.0) as rig:
            await rig.fill(P0, 5)
            async with rig.member(commit=AutoCommit.finished(0.2), **CASE) as consumer:
                for _ in range(2):
                    assert (await anext(consumer)).offset == 0
                    await anyio.sleep(8.0)
                named = [event["offset"] for event in rig.reported("processing_too_slow")]
                assert named == [0, 0]

    @rule("K12")
    @pytest.mark.parametrize("how", ["stored", "asked for the next", "failed", "sought past", "standalone"])
    @virtual(seeds=2)
    async def test_what_nobody_works_on_costs_nothing(self, how: str) -> None:
        async with opened(session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 1)
            made = rig.consumer if how == "standalone" else rig.member

            async def fail(message: Message) -> None:
                raise ValueError(message.offset)

            async with made(commit=AutoCommit.finished(0.2), **CASE) as consumer:
                reading = None
                if how == "failed":
                    with pytest.raises(ValueError, match="0"):
                        await consumer.consume(fail)
                elif how == "asked for the next":
                    reading = start(tasks, partial(take, consumer, 2))
                else:
                    message = await anext(consumer)
                    if how == "stored":
                        await consumer.store_offset(message)
                    elif how == "sought past":
                        await consumer.seek(0, 1)
                await anyio.sleep(20.0)
                assert consumer.assignment == {P0}
                assert rig.reported("processing_too_slow") == []
                if reading is not None:
                    await reading.cancel()

    @rule("K12", "C32")
    @virtual(seeds=2)
    async def test_the_hook_is_told_before_the_last_store_and_partitions_in_nobodys_hand_stay(self) -> None:
        async with opened(2, session_timeout=2.0) as rig:
            await fill(rig, 20)
            told: list[tuple[float, frozenset[TopicPartition]]] = []

            def revoked(gone: frozenset[TopicPartition]) -> None:
                told.append((anyio.current_time(), gone))

            async with rig.member(commit=AutoCommit.after_each(), on_revoked=revoked, **CASE) as consumer:
                message = (await take(consumer, 3))[-1]
                await anyio.sleep(7.0)
                assert [gone for _, gone in told] == [{message.topic_partition}]
                assert 5.0 <= told[0][0] <= 6.5
                assert rig.group_stored(message.topic_partition) == 1
                rest = places(await take_all(consumer))
                assert rest.count((message.partition, 2)) == 1
                assert len(rest) == 38

    @rule("K12")
    @virtual(seeds=2)
    async def test_a_hand_over_that_is_under_way_is_not_begun_again(self) -> None:
        async with opened(2, session_timeout=2.0, rebalance_timeout=60.0) as rig:
            await fill(rig, 20)
            async with rig.member(drain_timeout=10.0, **CASE) as first:
                await first.poll(count=40, min_count=40)
                await anyio.sleep(2.0)
                async with rig.member(heartbeat_interval=0.5) as second:
                    await anyio.sleep(6.0)
                    (named,) = rig.reported("processing_too_slow")
                    assert second.assignment == {named["partition"]}  # the other one waits for its drain_timeout
                    await anyio.sleep(6.0)
                    assert len(first.assignment) == len(second.assignment) == 1
                    assert len(rig.reported("processing_too_slow")) == 1
