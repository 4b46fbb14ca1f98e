"""Where partitions begin is looked up side by side, and a log that is away is not asked for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from tarry import abc
from tarry.config import AutoCommit, PollOptions
from tarry.errors import LogUnavailable
from tarry.testing import Call, CarryOut, delay, hold, refuse
from tarry.types import UNFENCED, Offset, Start, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import NAME, P0, P1, Rig, T, offsets, opened, owns, take
from tests.virtual import virtual

QUICK = PollOptions(max_wait=0.5)


def most_out(rig: Rig, operation: Any) -> int:
    """The most calls of an operation that were out at one moment."""
    calls = rig.calls(operation)
    return max(sum(each.at <= call.at < (each.ended_at or call.at + 1) for each in calls) for call in calls)


class TestSideBySide:
    @rule("C86")
    @virtual(seeds=2)
    async def test_sixteen_starts_are_looked_up_at_a_time(self) -> None:
        async with opened(40) as rig:
            rig.script.every("resolve", do=delay(1.0))
            rig.script.every("stored_offset", do=delay(1.0))
            async with rig.consumer() as consumer:
                await consumer.ready(timeout=60)
                assert anyio.current_time() <= 6.5, "three rounds of sixteen with two questions each"
            assert most_out(rig, "resolve") <= 16
            assert most_out(rig, "stored_offset") == 16
            assert (rig.script.count("resolve"), rig.script.count("stored_offset")) == (40, 40)

    @virtual(seeds=2)
    async def test_one_that_hangs_keeps_nobody_else_waiting(self) -> None:
        async with opened(30) as rig:
            for number in range(30):
                await rig.fill(TopicPartition(T, number), 1)
            rig.script.every("resolve", do=hold(anyio.Event()), where=lambda call: call.arguments["partition"] == P0)
            async with rig.consumer(poll=QUICK) as consumer:
                with anyio.fail_after(2):
                    found = await take(consumer, 29)
                assert {message.partition for message in found} == set(range(1, 30))

    @rule("C91")
    @virtual(seeds=3)
    async def test_a_log_that_is_away_is_asked_little_however_many_partitions_there_are(self) -> None:
        async with opened(100) as rig:
            away = rig.script.every("resolve", do=refuse(LogUnavailable("away")))
            async with rig.consumer() as consumer:
                await anyio.sleep(30)
                assert rig.script.count("resolve") <= 16 + 60, "one round, then a question at a time, two seconds apart"
                assert len(rig.reported("refused")) <= 4
                rig.script.remove(away)
                await consumer.ready(timeout=5)
                assert rig.script.count("resolve") <= 16 + 60 + 100

    @rule("C91")
    @virtual(seeds=3)
    async def test_those_that_are_refused_starve_nobody(self) -> None:
        async with opened(40) as rig:
            for number in range(40):
                await rig.fill(TopicPartition(T, number), 1)
            rig.script.every(
                "resolve",
                do=refuse(LogUnavailable("away")),
                where=lambda call: call.arguments["partition"].partition % 2 == 0,
            )
            async with rig.consumer(poll=QUICK) as consumer:
                with anyio.fail_after(8):
                    found = await take(consumer, 20)
                assert {message.partition for message in found} == set(range(1, 40, 2))

    @virtual(seeds=3)
    async def test_a_store_on_its_way_is_never_older_than_what_was_found(self) -> None:
        """What is found beside a store would be believed, and the store after it not be sent."""
        async with opened(2) as rig:
            await rig.fill(P0, 5)
            slow = rig.script.on("stored_offset", do=delay(1.0, reply=True), where=_of(P0))
            async with rig.consumer(partitions=[0]) as consumer:
                await anyio.sleep(0.5)
                await consumer.store_offset(P0, 3, force=True)  # behind the log's answer, in front of the consumer's
                await consumer.ready()
                assert slow.hits == 1
                assert consumer.last_stored(0) == 3
                await consumer.store_offset(P0, 3, force=True)
                assert rig.stored(P0) == 3
                assert len(rig.calls("store_offset")) == 1


def _of(partition: TopicPartition) -> Callable[[Call], bool]:
    return lambda call: call.arguments["partition"] == partition


class TestWhatIsStored:
    @rule("C62", "K48")
    @virtual(seeds=2)
    async def test_where_a_partition_was_found_to_begin_beside_a_round_that_round_does_not_look_again(self) -> None:
        """By then a fetch has committed more: taken for what was stored before, it would never be brought back."""
        last = TopicPartition(T, 17)
        async with opened(18) as rig:
            await rig.fill(last, 5)
            answers = anyio.Event()
            rig.script.every("resolve", do=hold(answers), where=lambda call: call.arguments["partition"].partition < 16)
            async with rig.member(commit=AutoCommit.on_poll()) as first:
                await anyio.sleep(1.0)
                async with rig.member() as second:
                    assert last in await owns(second, 9)
                await owns(first, 18)
                assert offsets(await take(first, 3)) == [0, 1, 2]
                assert rig.group_stored(last) == 4
                answers.set()
                await anyio.sleep(1.0)
            assert rig.group_stored(last) == 1

    @rule("C62", "K48")
    @virtual(seeds=2)
    async def test_of_two_that_look_a_start_up_at_once_the_later_one_does_not_ask_what_is_stored(self) -> None:
        """One beside the round, and the round itself, which was about to; by then a fetch has committed more."""
        last = TopicPartition(T, 17)
        async with opened(18) as rig:
            await rig.fill(last, 5)
            answers = anyio.Event()

            async def look(_: Call, carry_out: CarryOut) -> object:
                seconds = 2.0 if answers.is_set() else 0.5
                found = await carry_out()
                await anyio.sleep(seconds)
                return found

            rig.script.every("resolve", do=hold(answers), where=lambda call: call.arguments["partition"].partition < 16)
            rig.script.every("resolve", do=look, where=_of(last))
            async with rig.member(commit=AutoCommit.on_poll()) as first:
                await anyio.sleep(1.0)
                async with rig.member() as second:
                    assert last in await owns(second, 9)
                await owns(first, 18)
                await anyio.sleep(0.1)
                answers.set()
                assert offsets(await take(first, 3)) == [0, 1, 2]
                assert rig.group_stored(last) == 4
                await anyio.sleep(3.0)
            assert rig.group_stored(last) == 1

    @rule("C95")
    @virtual(seeds=2)
    async def test_a_running_consumer_goes_on_at_its_own_positions_when_the_log_loses_them(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=AutoCommit.on_poll(), poll=QUICK) as consumer:
                assert len(await consumer.poll(count=10)) == 10
                assert rig.stored(P0) == 9
                await _lose(rig, 3)
                assert offsets(await consumer.poll(count=10)) == list(range(10, 20))
                await _lose(rig, None)
                assert offsets(await consumer.poll(count=10)) == list(range(20, 30))
                assert all(not isinstance(call.arguments["targets"][0].at, Start) for call in rig.calls("poll"))

    @rule("C95")
    @virtual()
    async def test_an_application_with_checkpoints_of_its_own_loses_and_repeats_nothing(self) -> None:
        async with opened(2) as rig:
            for partition in (P0, P1):
                await rig.fill(partition, 20)
            done: dict[TopicPartition, list[int]] = {P0: [], P1: []}
            for _ in range(4):
                async with rig.consumer(commit=AutoCommit.on_poll(), poll=QUICK) as consumer:
                    await consumer.ready()
                    for partition, seen in done.items():
                        await consumer.seek(partition, len(seen))
                    for message in await consumer.poll(count=10):
                        done[message.topic_partition].append(message.offset)
                await _lose(rig, 2)
            assert done == {P0: list(range(20)), P1: list(range(20))}

    @rule("C81")
    @virtual()
    async def test_a_lowered_offset_moves_nobody_who_reads_and_the_next_run_begins_there(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(poll=QUICK) as consumer:
                await consumer.store_offset((await take(consumer, 10))[-1])
                await anyio.sleep(1)
                await _lose(rig, 4)
                assert len(await consumer.poll(max_wait=2.0)) == 0
                await rig.fill(P0, 1)
                assert offsets(await take(consumer, 1)) == [10]
            async with rig.consumer(poll=QUICK) as consumer:
                assert (await anext(consumer)).offset == 5


async def _lose(rig: Rig, offset: int | None) -> None:
    """The log holds an older offset than it has said."""
    session = await rig.log.open_session(abc.ConsumerIdentity(NAME), [T], [])
    for partition in session.assignment.owned:
        lost = None if offset is None else Offset(offset)
        await session.store_offset(partition, lost, ownership=UNFENCED, lower=True)
    await session.leave()


@virtual(seeds=20)
async def test_a_partition_that_comes_just_when_there_is_nothing_to_look_up_is_looked_up() -> None:
    async with opened() as rig, rig.member(poll=QUICK) as consumer:
        await consumer.ready()
        await rig.log.delete_topic(T)
        await rig.client.create_topic(T)
        with anyio.fail_after(1):
            while not consumer.assignment or consumer.position(0) is None:  # noqa: ASYNC110  # what a user can see
                await anyio.sleep(0.01)
        assert not consumer.health().stopped
