"""What a reader gets: every message once, in order, whatever happens at the log; errors as items between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, Message, PollOptions, Start
from tarry.abc import PollReply, TargetReply
from tarry.config import TopicOptions
from tarry.errors import (
    CapacityExceeded,
    ConcurrentRead,
    ConsumerFailed,
    DataError,
    LogUnavailable,
    NotAccepted,
    OffsetOutOfRange,
    StaleAssignment,
    TopicNotFound,
)
from tarry.testing import Call, CarryOut, answer_empty, delay, hold, hook, lose_reply, lose_request, refuse
from tarry.types import Offset, Position, RecordBatch, Run, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import (
    P0,
    P1,
    P2,
    Rig,
    answer,
    items,
    offsets,
    opened,
    places,
    settled,
    start,
    take,
    take_all,
)
from tests.virtual import virtual


class TestPositions:
    @rule("K79", "C27")
    @virtual(seeds=3)
    async def test_each_partition_is_read_from_its_own_beginning_to_its_own_end(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 100)
            await rig.fill(P1, 10)
            async with rig.consumer(start=Start.first(), commit=AutoCommit.finished()) as consumer:
                messages = await take_all(consumer)
            assert len(messages) == 110
            for partition, count in ((0, 100), (1, 10)):
                assert [m.offset for m in messages if m.partition == partition] == list(range(count))
            assert (rig.stored(P0), rig.stored(P1)) == (99, 9)

    @rule("C27", "C28")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual(seeds=2)
    async def test_after_a_lost_reply_the_same_position_is_asked_for_again(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 10)
            rig.script.on("poll", nth=[2, 3, 5], do=lose_reply())
            async with rig.consumer(poll=PollOptions(count=4), commit=AutoCommit.interval(0.1)) as consumer:
                assert offsets(await take(consumer, 10)) == list(range(10))
                asked = [
                    target.at
                    for call in rig.calls("poll", "wait_ready")
                    for target in call.arguments["targets"]
                    if target.partition == P0
                ]
            assert asked == sorted(asked)  # explicit, never the start rule, never back
            assert asked.count(Position(4)) > 1
            assert len(rig.calls("resolve")) == partitions

    @rule("C38", "C39")
    @virtual()
    async def test_a_reply_that_overlaps_what_was_fetched_doubles_nothing(self) -> None:
        async def from_the_very_beginning(call: Call, carry_out: CarryOut) -> Any:
            await carry_out()
            assert call.session is not None
            targets = [replace(target, at=Position(0)) for target in call.arguments["targets"]]
            return await call.session.poll(call.arguments["leader"], targets, count=1000, max_bytes=1_000_000)

        async with opened() as rig:
            await rig.fill(P0, 5)
            rig.script.every("poll", do=from_the_very_beginning)
            async with rig.consumer() as consumer:
                first = await anext(consumer)  # 1 to 4 are buffered, not delivered
                await rig.fill(P0, 5)
                assert offsets([first, *await take(consumer, 9)]) == list(range(10))

    @rule("C34")
    @virtual()
    async def test_delivered_moves_at_hand_over_and_position_with_it(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            async with rig.consumer() as consumer:
                await settled()
                assert consumer._fetches.messages == 5  # fetched, not delivered
                assert (consumer.last_delivered(0), consumer.position(0)) == (None, 0)
                for offset in range(5):
                    await anext(consumer)
                    assert (consumer.last_delivered(0), consumer.position(0)) == (offset, offset + 1)

    @rule("C34")
    @virtual()
    async def test_the_head_is_the_same_for_a_whole_batch(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            async with rig.consumer() as consumer:
                (first, *_) = messages = await take(consumer, 3)
                await rig.fill(P0, 7)
                messages += await take(consumer, 2)
                assert {message.head for message in messages} == {4}
                assert (await anext(consumer)).head == 11
                assert first.ownership == 0

    @rule("C25")
    @virtual()
    async def test_getters_answer_while_a_read_waits(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            async with rig.consumer() as consumer:
                await rig.append(P0, b"a")
                reader = start(tasks, lambda: take(consumer, 2))
                await anyio.sleep(1)
                assert consumer.last_delivered(0) == 0
                assert consumer.position(0) == 1
                assert consumer.last_stored(0) is None
                assert consumer.assignment == {P0}
                assert consumer.generation == 1
                assert reader.outcome == "running"
            await reader.done.wait()

    @virtual(seeds=3)
    async def test_several_topics_in_one_consumer(self) -> None:
        async with opened({"a": 2, "b": 1, "c": 1}) as rig:
            for name, number, count in (("a", 0, 3), ("a", 1, 4), ("b", 0, 5), ("c", 0, 6)):
                await rig.fill(TopicPartition(name, number), count)
            async with rig.consumer("a", "b", commit=AutoCommit.finished()) as consumer:
                messages = await take(consumer, 12)
                assert {message.topic for message in messages} == {"a", "b"}
                await rig.fill(TopicPartition("b", 0), 1)
                assert places([await anext(consumer)]) == [(0, 5)]
            assert rig.stored(TopicPartition("b", 0)) == 4

    @virtual()
    async def test_lag_counts_from_what_was_delivered_and_what_is_stored(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                await consumer.store_offset((await take(consumer, 4))[1])
                lag = await consumer.lag()
            assert (lag[P0].log_end, lag[P0].position, lag[P0].delivered, lag[P0].stored) == (10, 4, 6, 8)
            assert (lag[P1].log_end, lag[P1].position, lag[P1].delivered, lag[P1].stored) == (0, 0, 0, 0)

    @rule("K19")
    @virtual()
    async def test_lag_says_how_old_the_oldest_message_is_that_is_left(self) -> None:
        async with opened(2) as rig:
            for value in b"a", b"b", b"c":
                await rig.append(P0, value)
                await anyio.sleep(10.0)
            async with rig.consumer() as consumer:
                await consumer.ready()
                first = await anext(consumer)
                assert [(at.delivered_s, at.stored_s) for at in (await consumer.lag()).values()] == [(20, 30), (0, 0)]
                await consumer.store_offset(first)
                asked = len(rig.script.calls)
                lag = (await consumer.lag())[P0]
                assert (lag.delivered, lag.stored, lag.delivered_s, lag.stored_s) == (2, 2, 20.0, 20.0)
                assert [call.operation for call in rig.script.calls[asked:]] == ["resolve", "resolve"], "one each"
                await take(consumer, 2)
                await anyio.sleep(5.0)
                lag = (await consumer.lag())[P0]
                assert (lag.delivered, lag.stored, lag.delivered_s, lag.stored_s) == (0, 2, 0.0, 25.0)

    @rule("K19")
    @virtual()
    async def test_lag_counts_all_that_is_retained_where_no_position_is_known(self) -> None:
        async with opened(1) as rig:
            await rig.append(P0, b"a", b"b")
            await anyio.sleep(3.0)

            async def hold_starts(call: Call, carry_out: CarryOut) -> object:
                if isinstance(call.arguments["start"], Start):
                    await anyio.sleep_forever()
                return await carry_out()

            rig.script.every("resolve", do=hold_starts)
            async with rig.consumer() as consumer:
                lag = (await consumer.lag())[P0]
                assert (lag.position, lag.delivered, lag.stored, lag.delivered_s, lag.stored_s) == (None, 2, 2, 3, 3)

    @rule("K19", "K57")
    @virtual()
    async def test_lag_behind_a_topic_of_the_same_name_counts_nothing_of_the_one_before(self) -> None:
        async with opened({"a": 1, "b": 1}) as rig:
            at, other = TopicPartition("a", 0), TopicPartition("b", 0)
            await rig.fill(at, 5)
            async with rig.consumer("a", "b") as consumer:
                await consumer.store_offset((await take(consumer, 5))[-1])
                consumer.pause(at, cause="full")  # so that nobody finds out
                await rig.log.delete_topic("a")
                await rig.log.create_topic("a", TopicOptions(partitions=1), exist_ok=False)
                await rig.append(at, b"a", b"b")
                lag = await consumer.lag()
                assert (lag[at].log_end, lag[at].position, lag[at].delivered, lag[at].stored) == (2, None, 2, 2)
                await rig.log.delete_topic("a")
                assert list(await consumer.lag()) == [other], "it has no end any more"


class TestErrorsAreItems:
    @rule("C23")
    @virtual(seeds=3)
    async def test_a_deleted_topic_is_one_error_and_the_other_topic_goes_on(self) -> None:
        async with opened({"a": 1, "b": 1}) as rig, rig.consumer("a", "b") as consumer:
            await rig.fill(TopicPartition("b", 0), 1)
            assert (await anext(consumer)).topic == "b"
            await rig.log.delete_topic("a")
            (error,) = await items(consumer, 1)
            assert isinstance(error, TopicNotFound)
            assert "'a'" in str(error)
            for _ in range(3):
                await rig.fill(TopicPartition("b", 0), 1)
                assert (await anext(consumer)).topic == "b"
            assert len(rig.reported("partition_stopped")) == 1

    @rule("C23")
    @virtual()
    async def test_where_nothing_is_left_to_read_every_read_says_why(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await anyio.sleep(1)
            await rig.log.delete_topic("t")
            for _ in range(3):
                with anyio.fail_after(1), pytest.raises(TopicNotFound):
                    await anext(consumer)
                with anyio.fail_after(1), pytest.raises(TopicNotFound):
                    await consumer.poll()

    @rule("C23")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual()
    async def test_refusals_that_do_not_end_reach_the_reader_and_it_goes_on_afterwards(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            polls = rig.script.every("poll", do=refuse(NotAccepted("not the leader")))
            await rig.fill(P0, 3)
            async with rig.consumer() as consumer:
                for _ in range(2):
                    with anyio.fail_after(13), pytest.raises(NotAccepted):
                        await anext(consumer)
                assert 1 < polls.hits < 50  # it backed off
                rig.script.remove(polls)
                with anyio.fail_after(5):
                    assert offsets(await take(consumer, 3)) == [0, 1, 2]
                assert rig.reported("refused")

    @virtual()
    async def test_a_few_refusals_are_nobodys_business(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            rig.script.on("resolve", nth=[1, 2], do=refuse(CapacityExceeded("busy")))
            rig.script.on("wait_ready", nth=[1, 2], do=refuse(CapacityExceeded("busy")))
            rig.script.on("poll", nth=[1, 2], do=refuse(NotAccepted("not here")))
            async with rig.consumer() as consumer:
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
            assert anyio.current_time() < 3

    @virtual()
    async def test_a_refused_start_does_not_hold_up_the_other_partitions(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P1, 3)
            rig.script.every(
                "resolve", do=refuse(NotAccepted("no")), where=lambda call: call.arguments["partition"] == P0
            )
            async with rig.consumer() as consumer:
                with anyio.fail_after(1):
                    assert places(await take(consumer, 3)) == [(1, 0), (1, 1), (1, 2)]

    @virtual()
    async def test_errors_that_nobody_reads_do_not_pile_up(self) -> None:
        async with opened() as rig:
            rig.script.every("poll", do=refuse(NotAccepted("no")))
            async with rig.consumer() as consumer:
                await anyio.sleep(600)
                assert len(consumer._worker._errors) == 1

    @virtual()
    async def test_a_start_that_does_not_exist_is_an_error_of_its_partition(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P1, 8)
            async with rig.consumer(start=Start.offset(5)) as consumer:
                with pytest.raises(OffsetOutOfRange, match=r"offset 5 of t\[0\]"):
                    await anext(consumer)
                assert places(await take(consumer, 3)) == [(1, 5), (1, 6), (1, 7)]
                assert await consumer.seek(0, 0) == 0
                await rig.append(P0, b"a")
                assert places([await anext(consumer)]) == [(0, 0)]

    @virtual(seeds=2)
    async def test_one_position_beyond_the_end_stops_its_partition_alone(self) -> None:
        """As after a crash that lost the newest messages: the fetch of three is refused for the sake of one."""

        def is_beyond(call: Call) -> bool:
            return P1 in [target.partition for target in call.arguments["targets"]]

        error = OffsetOutOfRange("position 9 of t[1] lies behind the end", asked=9, log_start=0, log_end=3)
        async with opened(3) as rig:
            for partition in (P0, P1, P2):
                await rig.fill(partition, 3)
            rig.script.every("poll", do=refuse(error), where=is_beyond)
            async with rig.consumer(commit=AutoCommit.finished()) as consumer:
                found = await items(consumer, 7)
            messages = [item for item in found if isinstance(item, Message)]
            assert [item for item in found if not isinstance(item, Message)] == [error]
            assert sorted(places(messages)) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]

    @virtual()
    async def test_a_wait_that_is_refused_for_one_partition_stops_that_one(self) -> None:
        error = OffsetOutOfRange("position 9 of t[1] lies behind the end", asked=9, log_start=0, log_end=3)

        def names_p1(call: Call) -> bool:
            return P1 in [target.partition for target in call.arguments["targets"]]

        async with opened(2) as rig:
            rig.script.every("poll", do=refuse(error), where=names_p1)
            rig.script.every("wait_ready", do=refuse(error), where=names_p1)
            async with rig.consumer() as consumer:
                with anyio.fail_after(1), pytest.raises(OffsetOutOfRange):
                    await anext(consumer)
                await rig.append(P0, b"a")
                with anyio.fail_after(1):
                    assert places([await anext(consumer)]) == [(0, 0)]
                assert len(rig.script.calls) < 20

    @virtual()
    async def test_a_refusal_that_no_single_partition_repeats_does_not_spin(self) -> None:
        error = DataError("a row of one of them is damaged")
        async with opened(2) as rig:
            rig.script.every("wait_ready", do=refuse(error))
            async with rig.consumer() as consumer:
                await anyio.sleep(60)
                waits, polls = len(rig.calls("wait_ready")), len(rig.calls("poll"))
                assert polls <= waits < 40, "one fetch for each refusal, so that the partitions that can be read go on"
                with pytest.raises(DataError, match="a row of one of them"):
                    await anext(consumer)
                await rig.append(P0, b"a")

    @virtual()
    async def test_records_that_do_not_decode_stop_their_partition_until_it_is_sought(self) -> None:
        async with opened(2) as rig:
            await rig.append(P0, b"fine")
            await rig.log.append(P0, _garbage())
            await rig.append(P0, b"fine again")
            await rig.append(P1, b"fine too")
            async with rig.consumer(poll=PollOptions(count=1)) as consumer:
                found = await items(consumer, 3)
                assert sorted(places([item for item in found if isinstance(item, Message)])) == [(0, 0), (1, 0)]
                (error,) = [item for item in found if isinstance(item, DataError)]
                assert "t[0] offsets 1 to 1: not valid records" in str(error)
                await anyio.sleep(60)
                await consumer.seek(0, 2)
                assert (await anext(consumer)).value == b"fine again"

    @rule("C24")
    @virtual()
    async def test_a_broken_internal_task_is_the_readers_error_within_a_second(self) -> None:
        def explode(_: Call) -> None:
            raise ZeroDivisionError("inside")

        async with opened() as rig, rig.consumer(commit=AutoCommit.finished()) as consumer:
            await rig.fill(P0, 2)
            await take(consumer, 2)
            rig.script.every("poll", do=hook(explode))
            await rig.fill(P0, 1)  # answers the poll that is out; the next one breaks
            await anyio.sleep(0.1)
            for _ in range(2):
                with (
                    anyio.fail_after(1),
                    pytest.raises(ConsumerFailed, match=r"ZeroDivisionError\('inside'\)") as caught,
                ):
                    await anext(consumer)
                assert isinstance(caught.value.__cause__, ZeroDivisionError)
            with anyio.fail_after(1), pytest.raises(ConsumerFailed):
                await consumer.poll()
            with anyio.fail_after(1), pytest.raises(ConsumerFailed):
                await consumer.ready()
            report = await consumer.shutdown()
            assert report.committed == {P0: 1}

    @pytest.mark.parametrize("operation", ["resolve", "stored_offset", "wait_ready", "store_offset"])
    @virtual()
    async def test_whichever_internal_task_breaks(self, operation: Any) -> None:
        def explode(_: Call) -> None:
            raise ZeroDivisionError("inside")

        async with opened(2) as rig:
            rig.script.every(operation, do=hook(explode))
            async with rig.consumer(commit=AutoCommit.finished(0.5)) as consumer, anyio.create_task_group() as tasks:
                await rig.fill(P0, 3)
                with pytest.raises(ConsumerFailed):
                    with anyio.fail_after(1):
                        await consumer.poll(min_count=3)
                        async for _ in consumer:
                            pass
                rig.script._rules.clear()
                tasks.cancel_scope.cancel()
            assert repr(consumer).endswith("shut down>")


class Nobody:
    """Who asks and wants no answer."""

    is_wanted = False

    def reply(self, answer: object) -> None:
        assert not isinstance(answer, Exception)


def recreate(rig: Rig, partitions: int) -> None:
    """Delete topic `t` and create it again, in one moment."""
    rig.pump.delete_topic(Nobody(), "t")
    rig.pump.create_topic(Nobody(), "t", TopicOptions(partitions=partitions), exist_ok=False)


def _garbage() -> RecordBatch:
    from array import array

    return RecordBatch(array("I", [3]), b"\x93\xc1\xc1", 0, 0)


class TestHistories:
    @virtual(seeds=3)
    async def test_a_recreated_topic_is_read_from_its_start_and_old_messages_are_stale(self) -> None:
        async with opened(2) as rig, rig.consumer(commit=AutoCommit.finished(0.5)) as consumer:
            await rig.fill(P0, 50)
            old = await take(consumer, 40)
            recreate(rig, 2)
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            await anyio.sleep(2)
            messages = await take(consumer, 10)
            assert sorted(places(messages)) == [(number, offset) for number in (0, 1) for offset in range(5)]
            assert {message.origin.history for message in messages}.isdisjoint(
                {message.origin.history for message in old}
            )
            with pytest.raises(StaleAssignment, match="not held any more"):
                await consumer.store_offset(old[-1])
            assert len(rig.reported("topic_recreated")) == 2
            await consumer.shutdown()
            assert {rig.stored(P0), rig.stored(P1)} == {3, 4}

    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual(seeds=3)
    async def test_a_message_in_hand_of_the_old_topic_does_not_move_the_new_one(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer(commit=AutoCommit.interval(0.5)) as consumer:
            await rig.fill(P0, 50)
            await take(consumer, 40)
            recreate(rig, partitions)
            await rig.fill(P0, 60)
            await anyio.sleep(2)
            assert consumer.last_delivered(0) is None
            assert rig.stored(P0) is None
            assert offsets(await take(consumer, 60)) == list(range(60))

    @virtual()
    async def test_a_seek_over_a_recreation_starts_with_clean_marks(self) -> None:
        async with opened() as rig, rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
            await rig.fill(P0, 50)
            await take(consumer, 40)
            rig.script.every("poll", do=hold(anyio.Event()))
            recreate(rig, 1)
            await rig.fill(P0, 3)
            await consumer.seek(0, 1)
            report = await consumer.shutdown()
            assert report.committed == {P0: None}
            assert rig.stored(P0) is None

    @virtual()
    async def test_a_deleted_topic_under_a_parked_wait(self) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            reader = start(tasks, lambda: anext(consumer))
            await anyio.sleep(1)
            await rig.log.delete_topic("t")
            with anyio.fail_after(0.5):
                await reader.done.wait()
            assert isinstance(reader.error, TopicNotFound)
            assert rig.pump.parked == 0


class TestRetention:
    @virtual(seeds=2)
    async def test_a_gap_is_reported_once_with_its_bounds_and_reading_goes_on_behind_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.clear()
        async with opened({}) as rig:
            await rig.client.create_topic("t", 1, retention_bytes=2000)
            async with rig.consumer() as consumer:
                await consumer.store_offset(await _first_of(rig, 3, consumer))
            await rig.fill(P0, 400, size=100)
            begin = rig.pump.view.find(P0).log_start
            assert begin > 3
            rig.script.on("poll", do=lose_reply())  # the second answer must not report again
            async with rig.consumer() as consumer:
                messages = await take(consumer, rig.end(P0) - begin)
                assert offsets(messages) == list(range(begin, rig.end(P0)))
                await anyio.sleep(20)
            assert rig.reported("gap") == [{"partition": P0, "first": 1, "last": begin - 1}]
            (text,) = [record.message for record in caplog.records if "retention" in record.message]
            assert f"t[0]: messages 1 to {begin - 1} were removed" in text

    @virtual()
    async def test_a_later_gap_is_another_one(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic("t", 2, retention_bytes=20_000)
            async with rig.consumer() as consumer:
                await consumer.ready()
                for _ in range(2):
                    slow = rig.script.every("poll", do=delay(1.0))
                    await rig.fill(P0, 300, size=100)
                    await take_all(consumer)
                    rig.script.remove(slow)
            assert [(gap["first"], gap["last"]) for gap in rig.reported("gap")] == [(0, 199), (300, 499)]


async def _first_of(rig: Rig, count: int, consumer: Any) -> Message:
    await rig.fill(P0, count)
    message: Message = await anext(consumer)
    return message


class TestOneReader:
    @rule("K97")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual(seeds=3)
    async def test_of_two_loops_one_is_refused_and_the_other_gets_everything(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 200)
            found: list[list[int]] = [[], []]

            async with anyio.create_task_group() as tasks:
                async with rig.consumer(commit=AutoCommit.finished()) as consumer:

                    async def read(number: int) -> None:
                        async for message in consumer:
                            found[number].append(message.offset)
                            await anyio.sleep(0.001)

                    readers = [start(tasks, lambda: read(0)), start(tasks, lambda: read(1))]
                    await anyio.sleep(0.1)
                    (refused,) = [reader for reader in readers if reader.outcome == "raised"]
                    assert isinstance(refused.error, ConcurrentRead)
                    assert "is read by another task, which" in str(refused.error)
                    await anyio.sleep(1)
                began = anyio.current_time()
                for reader in readers:
                    await reader.done.wait()
                assert anyio.current_time() - began < 0.1
            assert sorted(found) == [[], list(range(200))]

    @rule("K97")
    @virtual(seeds=3)
    async def test_a_poll_against_a_loop_is_refused_too(self) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            reader = start(tasks, lambda: take(consumer, 5))
            await anyio.sleep(1)
            with pytest.raises(ConcurrentRead, match="waits for a message"):
                await consumer.poll(max_wait=1.0)
            await rig.fill(P0, 5)
            await reader.done.wait()
            assert offsets(reader.result) == [0, 1, 2, 3, 4]

    @rule("K97")
    @virtual()
    async def test_while_a_running_task_holds_a_message_no_other_may_read(self) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            go_on = anyio.Event()

            async def work() -> int:
                message = await anext(consumer)
                await go_on.wait()
                await consumer.store_offset(message)
                await anyio.sleep(5)
                return message.offset

            worker = start(tasks, work)
            await anyio.sleep(1)
            with pytest.raises(ConcurrentRead, match="still holds one"):
                await anext(consumer)
            with pytest.raises(ConcurrentRead, match="still holds one"):
                await consumer.poll()
            go_on.set()
            await anyio.sleep(1)
            assert worker.outcome == "running"  # but what it held is stored: it holds nothing
            assert (await anext(consumer)).offset == 1

    @virtual()
    async def test_a_batch_is_held_until_all_of_it_is_stored(self) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            steps = [anyio.Event(), anyio.Event()]

            async def work() -> None:
                batch = await consumer.poll()
                await steps[0].wait()
                await consumer.store_offset(batch[2])
                await steps[1].wait()
                await consumer.store_offset(batch)
                await anyio.sleep(5)

            start(tasks, work)
            await anyio.sleep(1)
            with pytest.raises(ConcurrentRead):
                await consumer.poll()
            steps[0].set()
            await anyio.sleep(1)
            with pytest.raises(ConcurrentRead):
                await consumer.poll()
            steps[1].set()
            await anyio.sleep(1)
            assert len(await consumer.poll(max_wait=0.0)) == 0

    @pytest.mark.parametrize("way", ["returned", "raised", "cancelled"])
    @virtual(seeds=2)
    async def test_when_the_reader_has_ended_another_task_may_read_on(self, way: str) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)

            async def work() -> None:
                await anext(consumer)
                if way == "raised":
                    raise ValueError("in the body")
                if way == "cancelled":
                    await anyio.sleep_forever()

            worker = start(tasks, work)
            await anyio.sleep(1)
            await worker.cancel()
            await settled()
            assert worker.outcome == way
            assert (await anext(consumer)).offset == 1
            assert (await anext(consumer)).offset == 2

    @virtual()
    async def test_a_reader_that_waits_in_vain_may_be_relieved_once_it_is_cancelled(self) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            reader = start(tasks, lambda: anext(consumer))
            await anyio.sleep(1)
            with pytest.raises(ConcurrentRead):
                await anext(consumer)
            await reader.cancel()
            await rig.append(P0, b"a")
            assert (await anext(consumer)).offset == 0


class TestOrder:
    @virtual(seeds=5)
    async def test_order_within_a_partition_and_turns_between_them(self) -> None:
        """One partition with a backlog, two with a trickle: these wait for a fetch or two, not for the backlog."""
        async with opened(3) as rig:
            await rig.fill(P0, 5000)
            options = PollOptions(count=100)
            async with rig.consumer(poll=options) as consumer:
                found = await take(consumer, 300)
                for partition in (P1, P2):
                    await rig.fill(partition, 2)
                found += await take(consumer, 600)
            by_partition = {number: [m.offset for m in found if m.partition == number] for number in range(3)}
            assert by_partition[1] == by_partition[2] == [0, 1]
            assert by_partition[0] == list(range(896))

    @virtual()
    async def test_a_slow_answer_about_one_partition_does_not_hide_new_messages_of_another(self) -> None:
        async with opened(2) as rig:
            rig.script.on("poll", do=delay(3.0))
            await rig.append(P0, b"slow")
            async with rig.consumer() as consumer:
                await anyio.sleep(1)
                await rig.append(P1, b"meanwhile")
                assert sorted(places(await take(consumer, 2))) == [(0, 0), (1, 0)]
                assert anyio.current_time() == 3

    @virtual()
    async def test_an_answer_that_never_comes_is_given_up_and_asked_for_again(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a")
            rig.script.on("poll", do=lose_request(LogUnavailable("no answer"), after=15.0))
            async with rig.consumer() as consumer:
                assert (await anext(consumer)).value == b"a"
                assert 15 <= anyio.current_time() < 16

    @virtual()
    async def test_replies_of_any_split_arrive_whole(self) -> None:
        """A log may answer with many small runs; none of it shows."""

        def split(_: Call, reply: PollReply) -> PollReply:
            return PollReply(tuple(replace(target, runs=_split(target)) for target in reply.targets))

        async with opened(2) as rig:
            await rig.fill(P0, 50)
            await rig.fill(P1, 50)
            rig.script.every("poll", do=answer(split))
            async with rig.consumer() as consumer:
                messages = await take(consumer, 100)
            for number in (0, 1):
                assert [m.offset for m in messages if m.partition == number] == list(range(50))
                assert [int(m.value or b"") for m in messages if m.partition == number] == list(range(50))

    @virtual()
    async def test_a_log_that_answers_empty_though_it_has_something_is_asked_again(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            rig.script.on("poll", nth=[1, 2], do=answer_empty())
            async with rig.consumer() as consumer:
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
            assert anyio.current_time() < 1


def _split(target: TargetReply) -> tuple[Run, ...]:
    return tuple(
        Run(Offset(run.base + index), run.batch, run.lo + index, run.lo + index + 1)
        for run in target.runs
        for index in range(run.count)
    )
