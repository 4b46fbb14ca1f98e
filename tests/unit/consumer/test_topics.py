"""Topics that are missing, come later, are deleted, and come again (K57, K72)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from tarry.config import AutoCommit, PollOptions, TopicOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import ConfigError, DataError, LogUnavailable, NotReady, OffsetOutOfRange, TarryError, TopicNotFound
from tarry.testing import delay, hold, lose_reply, refuse
from tarry.types import Message, RecordBatch, Start, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, Rig, T, items, offsets, opened, start, take, take_all
from tests.virtual import virtual

A0, B0, B1 = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)
QUICK = PollOptions(max_wait=0.5)

Make = Callable[..., Consumer]


def make(rig: Rig, kind: str) -> Make:
    return rig.consumer if kind == "standalone" else rig.member


async def create(rig: Rig, name: str, partitions: int = 1) -> None:
    await rig.log.create_topic(name, TopicOptions(partitions=partitions), exist_ok=False)


@pytest.mark.parametrize("kind", ["standalone", "group"])
class TestMissing:
    @rule("K72")
    @virtual(seeds=2)
    async def test_the_others_are_read_and_it_is_picked_up_when_it_is_created(self, kind: str) -> None:
        async with opened({"a": 1}) as rig:
            await rig.fill(A0, 10)
            async with make(rig, kind)("a", "b", poll=QUICK) as consumer:
                with anyio.fail_after(1):
                    assert offsets(await take(consumer, 10)) == list(range(10))
                begun = anyio.current_time()
                with pytest.raises(NotReady, match="topic 'b' does not exist after 2 s"):
                    await consumer.ready(timeout=2)
                assert anyio.current_time() - begun == pytest.approx(2)
                assert consumer.health().missing_topics == ("b",)
                assert consumer.health().ok
                await anyio.sleep(3)
                await create(rig, "b", 2)
                await rig.fill(B0, 2)
                await rig.fill(B1, 1)
                with anyio.fail_after(3):
                    found = await take(consumer, 3)
                assert sorted((message.partition, message.offset) for message in found) == [(0, 0), (0, 1), (1, 0)]
                await consumer.ready(timeout=1)
                assert consumer.health().missing_topics == ()
            assert rig.reported("topic_missing") == [{"topic": "b"}]
            assert rig.reported("topic_found") == [{"topic": "b"}]

    @rule("K72")
    @virtual()
    async def test_a_running_ready_can_be_cancelled_and_ends_when_the_topic_comes(self, kind: str) -> None:
        async with (
            opened({"a": 1}) as rig,
            make(rig, kind)("a", "b") as consumer,
            anyio.create_task_group() as tasks,
        ):
            given_up, waits = start(tasks, consumer.ready), start(tasks, consumer.ready)
            await anyio.sleep(60)
            assert (given_up.outcome, waits.outcome) == ("running", "running")
            begun = anyio.current_time()
            await given_up.cancel()
            assert anyio.current_time() - begun < 0.1
            await create(rig, "b")
            with anyio.fail_after(1):
                await waits.done.wait()
            assert waits.outcome == "returned"

    @rule("K72", "K56")
    @virtual(seeds=2)
    async def test_a_topic_that_comes_is_read_from_its_first_message_under_every_start(self, kind: str) -> None:
        for number, begin in enumerate([Start.end(), Start.next(Start.end()), Start.next("fail"), Start.last()]):
            async with opened({"a": 1}) as rig:
                name = {"name" if kind == "standalone" else "group": f"n{number}"}
                async with make(rig, kind)("a", "b", start=begin, poll=QUICK, **name) as consumer:
                    await anyio.sleep(1)
                    await create(rig, "b")
                    await rig.fill(B0, 10)
                    found = [each for each in await items(consumer, 10) if isinstance(each, Message)]
                    found += await take(consumer, 10 - len(found))
                    assert offsets(found) == list(range(10))

    @rule("K72")
    @virtual()
    async def test_a_reader_that_waits_wakes_for_it(self, kind: str) -> None:
        async with (
            opened({"a": 1}) as rig,
            make(rig, kind)("a", "b") as consumer,
            anyio.create_task_group() as tasks,
        ):
            reader = start(tasks, lambda: anext(consumer))
            await anyio.sleep(20)
            await create(rig, "b")
            await rig.fill(B0, 1)
            with anyio.fail_after(1):
                await reader.done.wait()
            assert reader.result.topic == "b"

    @rule("K72", "C15")
    @virtual()
    async def test_only_when_none_exists_entering_fails(self, kind: str) -> None:
        async with opened({"a": 1}) as rig:
            with pytest.raises(TopicNotFound, match="'b', 'c'"):
                await make(rig, kind)("b", "c").__aenter__()
            async with make(rig, kind)("b", "a", "c") as consumer:
                assert set(rig_missing(rig)) == {"b", "c"}
                if kind == "standalone":
                    with pytest.raises(ConfigError, match="of which topic"):
                        consumer.position(0)


def rig_missing(rig: Rig) -> list[Any]:
    return [event["topic"] for event in rig.reported("topic_missing")]


@rule("C15")
@virtual()
async def test_a_chosen_partition_has_to_be_there() -> None:
    async with opened({"a": 1}) as rig:
        with pytest.raises(TopicNotFound, match="'b'"):
            await rig.consumer("a", "b", partitions=[A0, B0]).__aenter__()


@rule("K72")
@virtual()
async def test_nothing_turns_while_a_topic_is_missing() -> None:
    async with opened({"a": 1}) as rig, rig.consumer("a", "b") as consumer, anyio.create_task_group() as tasks:
        start(tasks, lambda: anext(consumer))
        await anyio.sleep(1)
        before = len(rig.script.calls)
        await anyio.sleep(600)
        assert len(rig.script.calls) - before <= 600 / 5 + 1, "the waits of one partition, and nothing else"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["standalone", "group"])
class TestDeletedAndCreatedAgain:
    @rule("K57")
    @pytest.mark.parametrize("pause", [0.0, 0.5, 20.0])
    @virtual(seeds=3)
    async def test_the_new_one_is_read_by_the_start_rule(self, kind: str, pause: float) -> None:
        async with opened() as rig:
            await rig.fill(P0, 600)
            async with make(rig, kind)(commit=AutoCommit.finished(0.1), poll=QUICK) as consumer:
                await take(consumer, 500)
                await rig.log.delete_topic("t")
                await anyio.sleep(pause)
                await create(rig, "t")
                await rig.fill(P0, 20)
                begun = anyio.current_time()
                found: list[Message | TarryError] = []
                while sum(isinstance(each, Message) and each.offset < 20 for each in found) < 20:
                    found += await items(consumer, 1)
                    assert anyio.current_time() - begun < 3
                new = [each.offset for each in found if isinstance(each, Message)]
                assert new[-20:] == list(range(20))
                errors = [each for each in found if not isinstance(each, Message)]
                assert len(errors) <= 1
                assert all(isinstance(error, TopicNotFound) for error in errors)
                assert len(rig.reported("topic_recreated")) == 1
                assert consumer.health().ok
            stored = rig.stored(P0) if kind == "standalone" else rig.group_stored(P0)
            assert stored == 18

    @rule("K57")
    @virtual(seeds=2)
    async def test_what_is_not_read_any_more_is_begun_anew_also_when_nobody_saw_it_gone(self, kind: str) -> None:
        """It is damaged; it goes and comes again between two looks of the consumer."""
        async with opened() as rig:
            await rig.log.append(P0, RecordBatch(array("I", [3]), b"\x93\xc1\xc1", 0, 0))
            async with make(rig, kind)(poll=QUICK) as consumer:
                with pytest.raises(DataError):
                    await anext(consumer)
                rig.script.every("changed", do=delay(1.0))
                await rig.log.grow_topic("t", 2)  # the next look at what there is takes its time
                await anyio.sleep(0.1)
                await rig.log.delete_topic("t")
                await create(rig, "t", 2)
                await rig.fill(P0, 20)
                await anyio.sleep(3)
                found = await items(consumer, 20)
                assert [each.offset for each in found if isinstance(each, Message)] == list(range(20))
                assert consumer.health().ok

    @rule("K57")
    @virtual()
    async def test_that_a_topic_has_gone_is_said_once(self, kind: str) -> None:
        async with opened({"a": 1, "b": 1}) as rig, make(rig, kind)("a", "b", poll=QUICK) as consumer:
            await consumer.ready()
            await rig.log.delete_topic("a")
            await anyio.sleep(2)
            for partitions in 2, 3:
                await rig.log.grow_topic("b", partitions)
                await anyio.sleep(2)
            assert len([each for each in rig.reported("partition_stopped") if each["partition"] == A0]) <= 1

    @rule("K57")
    @virtual(seeds=2)
    async def test_what_was_stored_for_the_old_one_is_never_stored_for_the_new_one(self, kind: str) -> None:
        async with opened() as rig:
            await rig.fill(P0, 600)
            async with make(rig, kind)(commit=AutoCommit.finished(0.1), poll=QUICK) as consumer:
                await take(consumer, 500)
                await rig.log.delete_topic("t")
                await create(rig, "t")
                await rig.fill(P0, 600)
                await anyio.sleep(2)
            assert (rig.stored(P0), rig.group_stored(P0)) == (None, None)

    @rule("K57")
    @virtual(seeds=2)
    async def test_where_the_start_rule_says_fail_it_does(self, kind: str) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with make(rig, kind)(commit=AutoCommit.finished(0.1)) as consumer:
                await take(consumer, 3)
            async with make(rig, kind)(start=Start.next("fail"), poll=QUICK) as consumer:
                await consumer.ready()
                await rig.log.delete_topic("t")
                await create(rig, "t")
                await rig.fill(P0, 3)
                errors = await items(consumer, 1)
                errors += await items(consumer, 1) if isinstance(errors[0], TopicNotFound) else []
                assert isinstance(errors[-1], OffsetOutOfRange)
                assert "nothing is stored" in str(errors[-1])

    @rule("K57")
    @virtual(seeds=2)
    async def test_the_other_topics_go_on(self, kind: str) -> None:
        async with opened({"a": 1, "b": 1}) as rig:
            async with make(rig, kind)("a", "b", poll=QUICK) as consumer:
                await consumer.ready()
                await rig.log.delete_topic("a")
                await rig.fill(B0, 3)
                found = [each for each in await items(consumer, 3) if isinstance(each, Message)]
                found += await take(consumer, 3 - len(found))
                assert offsets(found) == [0, 1, 2]
                assert consumer.health().missing_topics == ("a",)
                await create(rig, "a")
                await rig.fill(A0, 2)
                assert offsets(await take(consumer, 2)) == [0, 1]
            assert rig_missing(rig) == ["a"]

    @rule("K57")
    @virtual()
    async def test_nobody_turns_in_a_circle_over_a_deleted_topic(self, kind: str) -> None:
        async with opened({"a": 1, "b": 1}) as rig, make(rig, kind)("a", "b") as consumer:
            await consumer.ready()
            await rig.log.delete_topic("a")
            await take_all(consumer) if kind == "group" else await items(consumer, 1)
            before = len(rig.script.calls)
            await anyio.sleep(600)
            assert len(rig.script.calls) - before <= 600 / 5 + 1


@rule("K57")
@virtual(seeds=2)
async def test_a_refusal_that_comes_behind_the_news_does_not_stop_the_topic_for_ever() -> None:
    async with opened(2) as rig, rig.consumer(poll=QUICK) as consumer:
        await rig.fill(P0, 3)
        assert offsets(await take(consumer, 3)) == [0, 1, 2]
        rig.script.on("poll", do=refuse(TopicNotFound("as it was a moment ago")))
        rig.script.on("resolve", do=refuse(LogUnavailable("away")), nth=range(1, 4))
        await rig.fill(P0, 3)
        found = [each for each in await items(consumer, 3) if isinstance(each, Message)]
        found += await take(consumer, 3 - len(found))
        assert offsets(found) == [3, 4, 5], "it is the same topic: it goes on where it was"
        assert rig.reported("topic_recreated") == []
        assert consumer.health().ok


@rule("C111", "K57")
@virtual(seeds=2)
async def test_that_a_topic_has_gone_is_said_once_also_when_a_refusal_says_it_before_the_news() -> None:
    async with opened({"a": 1, "b": 1}) as rig, rig.consumer("a", "b") as consumer:
        await consumer.ready()
        await anyio.sleep(1)
        rig.script.every("changed", do=delay(0.5))
        await rig.log.grow_topic("b", 2)  # the next look at what there is takes its time
        await anyio.sleep(0.1)
        await rig.log.delete_topic("a")
        await anyio.sleep(2)
        assert [each["partition"] for each in rig.reported("partition_stopped")] == [A0]


@rule("K57")
@virtual(seeds=2)
async def test_a_topic_with_fewer_partitions_than_before_leaves_those_stopped() -> None:
    async with opened(2) as rig, rig.consumer(poll=QUICK) as consumer:
        await consumer.ready()
        await rig.log.delete_topic("t")
        await create(rig, "t", 1)
        await rig.fill(P0, 2)
        found: list[Message] = []
        with anyio.fail_after(3):
            while len(found) < 2:
                found += [each for each in await items(consumer, 1) if isinstance(each, Message)]
        assert offsets(found) == [0, 1]
        await anyio.sleep(2)
        assert [partition.partition for partition in consumer.health().stopped] == [1]


@rule("K57", "C110")
@virtual(seeds=2)
async def test_a_deleted_topic_whose_committing_fetch_got_lost_holds_up_no_other() -> None:
    async with opened({"a": 1, "b": 1}) as rig, anyio.create_task_group() as tasks:
        await rig.fill(A0, 10)
        async with rig.consumer("a", "b", commit=AutoCommit.on_poll()) as consumer:
            rig.script.on("poll", nth=1, do=lose_reply(after=2.0))
            reading = start(tasks, partial(items, consumer, 4, patience=30.0))
            await anyio.sleep(0.5)
            await rig.log.delete_topic("a")
            await anyio.sleep(5.0)
            await rig.fill(B0, 3)
            await anyio.sleep(30.0)
            assert reading.outcome == "returned"
            told = [item for item in reading.result if isinstance(item, TarryError)]
            assert [type(error) for error in told] == [TopicNotFound]


@rule("K57", "C84")
@virtual(seeds=2)
async def test_a_topic_that_is_deleted_while_a_fetch_names_it_holds_up_no_other() -> None:
    async with opened({"a": 1, "b": 1}) as rig:
        await rig.fill(A0, 1)
        await rig.fill(B0, 1)
        answer = anyio.Event()
        rig.script.on("poll", do=hold(answer))
        async with rig.consumer("a", "b") as consumer:
            await anyio.sleep(1.0)
            await rig.log.delete_topic("a")
            await anyio.sleep(1.0)
            answer.set()  # refused as a whole, behind the news
            found = await items(consumer, 2)
            assert [type(each) for each in found if not isinstance(each, Message)] == [TopicNotFound]
            assert offsets([each for each in found if isinstance(each, Message)]) == [0]
            await rig.fill(B0, 1)
            with anyio.fail_after(1):
                assert offsets(await take(consumer, 1)) == [1]
            begun = anyio.current_time()
            assert list(await consumer.poll(max_wait=0.5)) == []
            assert anyio.current_time() - begun == pytest.approx(0.5)
            asked = [[target.partition for target in call.arguments["targets"]] for call in rig.calls("poll")]
            assert A0 in asked[0]
            assert not any(A0 in named for named in asked[1:])


@rule("K56", "K57")
@virtual(seeds=2)
async def test_topics_are_followed_while_the_leader_of_a_stopped_partition_is_away() -> None:
    async with opened({"a": 1, "b": 1}) as rig:
        await rig.append(A0, b"x")
        async with rig.client.consumer("a", "b", value_type=int) as consumer:
            with pytest.raises(DataError):
                await anext(consumer)
            rig.script.every(
                "resolve", do=refuse(LogUnavailable("away")), where=lambda call: call.arguments["partition"] == A0
            )
            await rig.client.grow_topic("b", 2)
            await anyio.sleep(1.0)
            await rig.client.grow_topic("b", 3)
            await rig.fill(TopicPartition("b", 2), 1)
            with anyio.fail_after(3):
                assert (await anext(consumer)).partition == 2


@rule("C6", "C91", "K57")
@pytest.mark.parametrize("commit", [AutoCommit.on_poll(), AutoCommit.disabled()])
@virtual(seeds=2)
async def test_a_poll_at_a_dead_end_gives_out_the_few_that_there_are(commit: AutoCommit) -> None:
    async with opened({"a": 1}) as rig:
        await rig.fill(A0, 4)
        async with rig.consumer("a", commit=commit) as consumer:
            await take(consumer, 1)
            await rig.log.delete_topic("a")
            await anyio.sleep(1.0)
            with pytest.raises(TopicNotFound):
                await consumer.poll(min_count=10, max_wait=5.0)
            batch = await consumer.poll(min_count=10, max_wait=5.0)
            assert (offsets(batch), batch.reason) == ([1, 2, 3], "error")
            with pytest.raises(TopicNotFound):
                await consumer.poll(min_count=10, max_wait=5.0)


@rule("K57", "K01")
@virtual(seeds=2)
async def test_what_was_stored_for_the_topic_before_is_not_taken_for_that_of_a_new_one() -> None:
    """It is created anew between the two look-ups of a start; the end brought back to an offset of the old one."""
    async with opened() as rig:
        await rig.fill(P0, 5)
        async with rig.consumer() as consumer:
            *_, last = await take(consumer, 5)
            await consumer.store_offset(last)
        gate = anyio.Event()
        rig.script.on("resolve", do=hold(gate))
        async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
            await anyio.sleep(0.1)
            await rig.log.delete_topic(T)
            await create(rig, T)
            await rig.fill(P0, 9)
            gate.set()
            given: list[int] = []
            while not given:
                with suppress(TopicNotFound):
                    given = offsets(await consumer.poll(count=3))
            assert given == [0, 1, 2]
        assert rig.stored(P0) is None


@rule("K57", "K89")
@virtual(seeds=3)
async def test_a_poll_that_begins_as_a_dead_end_ends_does_not_outlast_its_wait() -> None:
    """It began with nobody to ask, and asked nobody later either: it lasted 10 s longer."""
    async with opened(3) as rig, rig.consumer() as consumer:
        await consumer.ready()
        for lead in range(12):
            await rig.log.delete_topic(T)
            with pytest.raises(TopicNotFound):
                await consumer.poll(max_wait=1.0)
            await create(rig, T, 3)
            for _ in range(lead):
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(1.0), suppress(TopicNotFound):
                assert offsets(await consumer.poll(max_wait=0.5)) == []
