"""A topic gains partitions: who reads it gets them without a restart, and skips nothing (K56)."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio
import pytest

from tarry.client import Client
from tarry.config import AutoCommit, PollOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import ConfigError, TarryError, TopicNotFound
from tarry.testing import Call, CarryOut, FaultLayer, Faults, FaultyLog, delay
from tarry.types import Message, Start, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, P3, T, offsets, opened, owns, settled, start, take
from tests.unit.consumer.test_topics import make
from tests.virtual import virtual

QUICK = PollOptions(max_wait=0.5)
STARTS = [Start.end(), Start.next(Start.end()), Start.next("fail"), Start.last(), Start.first(), Start.next()]


@pytest.mark.parametrize("kind", ["standalone", "group"])
class TestRunning:
    @rule("K56")
    @pytest.mark.parametrize("begin", STARTS, ids=str)
    @virtual(seeds=2)
    async def test_nothing_that_was_written_before_it_was_found_is_skipped(self, kind: str, begin: Start) -> None:
        async with opened(2) as rig:
            async with make(rig, kind)() as consumer:  # so that there is something stored, for "fail"
                await rig.fill(P0, 5)
                await rig.fill(P1, 5)
                for message in await take(consumer, 10):
                    await consumer.store_offset(message)
            rig.script.every("changed", do=delay(2.0, reply=True))  # so late does it learn of them
            async with make(rig, kind)(start=begin, commit=AutoCommit.finished(0.1), poll=QUICK) as consumer:
                await consumer.ready()
                await anyio.sleep(2.0)
                await rig.client.grow_topic(T, 3)
                await rig.fill(P2, 10)
                found: list[Message] = []
                with anyio.fail_after(3):
                    while len(found) < 10:
                        message = await anext(consumer)
                        found += [message] if message.partition == 2 else []
                assert offsets(found) == list(range(10))
                assert P2 in consumer.assignment
            assert (rig.stored(P2) if kind == "standalone" else rig.group_stored(P2)) == 8

    @rule("C73", "C84")
    @virtual(seeds=2)
    async def test_the_only_one_is_watched_though_its_poll_takes_long_to_end(self, kind: str) -> None:
        async def slow(_: Call, carry_out: CarryOut) -> object:
            try:
                return await carry_out()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.01)

        async with opened() as rig, make(rig, kind)() as consumer:
            rig.script.every("poll", do=slow)
            await consumer.ready()
            await anyio.sleep(1)
            await rig.client.grow_topic(T, 2)
            await anyio.sleep(0.5)
            await rig.append(P0, b"")
            with anyio.fail_after(0.2):
                assert (await anext(consumer)).partition == 0

    @rule("K56")
    @virtual(seeds=2)
    async def test_a_reader_that_waits_wakes_and_the_others_go_on(self, kind: str) -> None:
        async with (
            opened() as rig,
            make(rig, kind)(start=Start.end()) as consumer,
            anyio.create_task_group() as tasks,
        ):
            await consumer.ready()
            found: list[tuple[int, int]] = []

            async def read() -> None:
                while True:
                    message = await anext(consumer)
                    found.append((message.partition, message.offset))

            reader = start(tasks, read)
            await anyio.sleep(10)
            await rig.client.grow_topic(T, 4)
            for partition in (P3, P0, P1, P2):
                await rig.fill(partition, 2)
            await anyio.sleep(1)
            assert sorted(found) == [(number, offset) for number in range(4) for offset in (0, 1)]
            await reader.cancel()

    @rule("K56")
    @virtual(seeds=2)
    async def test_a_pause_and_a_position_outlast_it(self, kind: str) -> None:
        async with opened(2) as rig, make(rig, kind)(poll=QUICK) as consumer:
            await rig.fill(P0, 10)
            await rig.fill(P1, 10)
            await consumer.ready()
            consumer.pause(P1, cause="test")
            assert offsets(await take(consumer, 5)) == list(range(5))
            await rig.client.grow_topic(T, 3)
            await rig.fill(P2, 3)
            await anyio.sleep(1)
            assert consumer.paused == {P1: "test"}
            found = [(message.partition, message.offset) for message in await take(consumer, 8)]
            assert sorted(found) == [(0, offset) for offset in range(5, 10)] + [(2, offset) for offset in range(3)]

    @rule("K56")
    @virtual()
    async def test_commit_on_poll_reads_them_from_the_first_message(self, kind: str) -> None:
        async with opened() as rig:
            begin = Start.next(Start.end())
            async with make(rig, kind)(start=begin, commit=AutoCommit.on_poll(), poll=QUICK) as consumer:
                await consumer.ready()
                await rig.client.grow_topic(T, 2)
                await rig.fill(P1, 3)
                await anyio.sleep(0.1)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]


class TestGroups:
    @rule("K56")
    @virtual(seeds=3)
    async def test_they_are_shared_and_a_member_that_comes_behind_them_skips_nothing(self) -> None:
        async with opened(2) as rig:
            begin = Start.next(Start.end())
            async with rig.member(start=begin, poll=QUICK) as first:
                await first.ready()
                await rig.client.grow_topic(T, 4)
                for partition in (P2, P3):
                    await rig.fill(partition, 5)
                async with rig.member(start=begin, poll=QUICK) as second, anyio.create_task_group() as tasks:
                    found: list[Message] = []

                    async def read(consumer: Consumer) -> None:
                        while True:
                            found.append(await anext(consumer))

                    reader = start(tasks, partial(read, second))
                    await owns(second, 2)
                    mine = second.assignment
                    await anyio.sleep(1)
                    late = sorted(partition for partition in mine if partition in (P2, P3))
                    got = sorted((message.partition, message.offset) for message in found)
                    assert got == [(at.partition, offset) for at in late for offset in range(5)]
                    await reader.cancel()

    @rule("K56")
    @virtual()
    async def test_a_group_that_is_empty_while_it_happens_skips_nothing_either(self) -> None:
        async with opened() as rig:
            begin = Start.next(Start.end())
            async with rig.member(start=begin) as member:
                await member.ready()
            await rig.client.grow_topic(T, 2)
            await rig.fill(P1, 3)
            async with rig.member(start=begin, poll=QUICK) as member:
                with anyio.fail_after(2):
                    assert offsets(await take(member, 3)) == [0, 1, 2]

    @rule("K56")
    @virtual()
    async def test_what_was_stored_for_a_late_partition_counts(self) -> None:
        async with opened() as rig:
            for begin in (Start.end(), Start.next(Start.end())):
                async with rig.member(start=begin, poll=QUICK) as member:
                    await member.ready()
                    count = len((await rig.client.topic(T)).partitions)
                    new = TopicPartition(T, count)
                    await rig.client.grow_topic(T, count + 1)
                    await rig.fill(new, 10)
                    found = [message for message in await take(member, 4) if message.topic_partition == new]
                    await member.store_offset(found[-1])
                async with rig.member(start=begin, poll=QUICK) as member:
                    assert (await anext(member)).offset == 4
                    await member.store_offset(new, 9, force=True)


class TestOthers:
    @rule("K56")
    @virtual()
    async def test_chosen_partitions_stay_the_chosen_ones(self) -> None:
        async with opened(2) as rig, rig.consumer(partitions=[0]) as consumer:
            await consumer.ready()
            await rig.client.grow_topic(T, 4)
            await anyio.sleep(5)
            assert consumer.assignment == {P0}

    @rule("K56")
    @virtual()
    async def test_what_cannot_be_is_refused(self) -> None:
        async with opened(3) as rig:
            with pytest.raises(ConfigError, match="has 3 partitions and cannot be cut down to 2"):
                await rig.client.grow_topic(T, 2)
            with pytest.raises(ConfigError, match="partitions"):
                await rig.client.grow_topic(T, 10_001)
            with pytest.raises(ConfigError, match="partitions"):
                await rig.client.grow_topic(T, 0)
            with pytest.raises(TopicNotFound, match="'nowhere'"):
                await rig.client.grow_topic("nowhere", 2)
            assert len((await rig.client.grow_topic(T, 3)).partitions) == 3

    @rule("K56")
    @virtual()
    async def test_a_growth_costs_a_few_requests(self) -> None:
        async with opened(2) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            start(tasks, lambda: anext(consumer))
            await anyio.sleep(1)
            rig.script.calls.clear()
            await rig.client.grow_topic(T, 3)
            await settled()
            assert len(rig.script.calls) < 10
            tasks.cancel_scope.cancel()


@rule("K56")
@pytest.mark.parametrize("crash_after", [0.02 * step for step in range(30)])
@virtual()
async def test_a_group_skips_nothing_wherever_the_log_crashes(crash_after: float) -> None:
    async with FaultyLog(faults=Faults(sync_latency=0.2)) as log, FaultLayer(log).client() as client:
        member = partial(client.consumer, T, group="g", start=Start.next(Start.end()))
        await client.create_topic(T)
        async with member() as consumer, client.producer(T) as producer:
            await consumer.ready()
            await producer.send(b"so that the group is remembered")
            await consumer.store_offset(await anext(consumer))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grow, client)
            await anyio.sleep(crash_after)
            log.crash()
            log.restart()
        await client.grow_topic(T, 2)
        async with client.producer(T) as producer:
            for value in b"a", b"b":
                await producer.send(value, partition=1)
        async with member() as consumer:
            with anyio.fail_after(5):
                assert offsets(await take(consumer, 2)) == [0, 1]


async def grow(client: Client) -> None:
    with suppress(TarryError):
        await client.grow_topic(T, 2)
