"""Progress lanes: offsets of a partition are stored, deleted and committed in order, and no other partition waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio
import pytest

from tarry import AutoCommit, PollOptions, Start
from tarry.abc import REQUEST_GRACE
from tarry.consumer.lanes import OUT_MAX, ProgressLanes
from tarry.errors import LogBusy, LogUnavailable
from tarry.testing import Call, delay, hold, lose_reply, refuse
from tarry.types import TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, Background, Rig, count_tasks, opened, owns, places, settled, start, take
from tests.virtual import virtual

ON_POLL = AutoCommit.on_poll()


def of(partition: TopicPartition) -> Callable[[Call], bool]:
    """Calls about one partition."""

    def is_about(call: Call) -> bool:
        if call.operation == "poll":
            return [target.partition for target in call.arguments["targets"]] == [partition]
        return bool(call.arguments["partition"] == partition)

    return is_about


def stores(rig: Rig, partition: TopicPartition) -> list[int | None]:
    """The offsets that were asked to be stored for a partition."""
    return [call.arguments["offset"] for call in rig.calls("store_offset") if of(partition)(call)]


class TestPartitionsAreOnTheirOwn:
    @rule("C101")
    @virtual(seeds=3)
    async def test_a_store_without_an_answer_holds_up_no_store_of_another_partition(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            async with rig.consumer() as consumer:
                await take(consumer, 6)
                rig.script.every("store_offset", do=hold(anyio.Event()), where=of(P0))
                silent = start(tasks, partial(consumer.store_offset, P0, 2))
                await settled()
                with anyio.fail_after(1.0):
                    await consumer.store_offset(P1, 1)
                    assert rig.stored(P1) == 1
                    await consumer.delete_offset(P1)
                    await consumer.seek(P1, 0)
                assert anyio.current_time() == 0.0
                assert rig.stored(P1) is None
                assert silent.outcome == "running"
                await silent.cancel()

    @rule("C101")
    @virtual(seeds=3)
    async def test_the_timer_goes_on_for_the_others(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            rig.script.every("store_offset", do=hold(anyio.Event()), where=of(P0))
            async with rig.consumer(commit=AutoCommit.interval(1.0), drain_timeout=1.0) as consumer:
                await take(consumer, 10)
                await anyio.sleep(1.5)
                assert (rig.stored(P0), rig.stored(P1)) == (None, 4)
                await rig.fill(P1, 5)
                await take(consumer, 5)
                await anyio.sleep(1)
                assert rig.stored(P1) == 9
                tasks = count_tasks()
                await anyio.sleep(10)
                assert stores(rig, P0) == [4]
                assert count_tasks() == tasks  # no crowd behind the one that is out

    @rule("C101", "C51")
    @pytest.mark.parametrize("is_silent", [True, False])
    @virtual(seeds=3)
    async def test_what_a_mode_has_queued_goes_on_for_the_others(self, is_silent: bool) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 5)
            trouble = hold(anyio.Event()) if is_silent else refuse(LogBusy("locked"))
            rig.script.every("store_offset", do=trouble, where=of(P0))
            async with rig.consumer(commit=AutoCommit.each_message(), drain_timeout=1.0) as consumer:
                await take(consumer, 5)
                await anyio.sleep(20)  # until the pauses between two attempts are long
                for offset in range(5):
                    await rig.fill(P1, 1)
                    await take(consumer, 1)
                    await settled()
                    assert rig.stored(P1) == offset

    @rule("C101")
    @virtual(seeds=3)
    async def test_what_is_queued_again_while_it_is_refused_is_stored_by_one_task_alone(self) -> None:
        async with opened(1) as rig:
            await rig.fill(P0, 100)
            rig.script.on("store_offset", nth=range(1, 4), do=refuse(LogBusy("locked")))
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                for _ in range(100):
                    await take(consumer, 1)
                    await settled()
                assert stores(rig, P0) == [0]  # the others wait for the end of the pause
                await anyio.sleep(10)
                assert stores(rig, P0) == [0, 99, 99, 99]
                assert rig.stored(P0) == 99

    @rule("C101", "C66")
    @virtual(seeds=3)
    async def test_the_last_words_go_side_by_side(self) -> None:
        """One gets no answer, one is refused for a while: neither costs the third one its last store."""
        async with opened(3) as rig:
            for partition in (P0, P1, P2):
                await rig.fill(partition, 4)
            async with rig.consumer(commit=AutoCommit.interval(1.0), drain_timeout=2.0) as consumer:
                batch = await consumer.poll(min_count=12)
                assert len(batch) == 12
                await anyio.sleep(1.5)
                assert (rig.stored(P0), rig.stored(P1), rig.stored(P2)) == (3, 3, 3)
                rig.script.every("store_offset", do=hold(anyio.Event()), where=of(P0))
                rig.script.on("store_offset", nth=(1, 2), do=refuse(LogBusy("locked")), where=of(P1))
                rig.script.on("store_offset", nth=(1, 2), do=lose_reply(), where=of(P2))
                before = anyio.current_time()
                report = await consumer.shutdown()
                assert anyio.current_time() - before == pytest.approx(2.0)
            assert (rig.stored(P0), rig.stored(P1), rig.stored(P2)) == (3, None, None)
            assert report.rewound == {P1: 4, P2: 4}
            assert report.committed == {P1: None, P2: None}  # nobody knows of the other one
            assert [event["partitions"] for event in rig.reported("drain_timeout")] == [(P0,)]

    @rule("C101")
    @virtual(seeds=3)
    async def test_the_last_words_go_past_more_silent_partitions_than_have_room(self) -> None:
        """As many as fit are refused all the time: between two attempts they take nobody's room."""
        async with opened(OUT_MAX + 1) as rig:
            every = [TopicPartition("t", number) for number in range(OUT_MAX + 1)]
            for partition in every:
                await rig.fill(partition, 1)
            last = every[-1]
            rig.script.every("store_offset", do=refuse(LogBusy("locked")), where=lambda call: not of(last)(call))
            async with rig.consumer(commit=AutoCommit.finished(100.0), drain_timeout=2.0) as consumer:
                await consumer.poll(min_count=len(every))
                await consumer.poll(max_wait=0.0)
            assert rig.stored(last) == 0
            assert [event["partitions"] for event in rig.reported("drain_timeout")] == [tuple(every[:-1])]

    @rule("C101")
    @virtual(seeds=3)
    async def test_so_many_are_out_at_a_time_and_who_waits_for_a_lane_takes_no_room(self) -> None:
        async with opened(OUT_MAX + 4) as rig, anyio.create_task_group() as tasks:
            every = [TopicPartition("t", number) for number in range(OUT_MAX + 4)]
            for partition in every:
                await rig.fill(partition, 30)
            async with rig.consumer() as consumer:
                await take(consumer, 30 * len(every))
                gate = anyio.Event()
                rig.script.every("store_offset", do=hold(gate))
                for offset in range(30):
                    start(tasks, partial(consumer.store_offset, P0, offset))
                await settled()
                for partition in every[1:]:
                    start(tasks, partial(consumer.store_offset, partition, 0))
                await settled()
                assert len(rig.calls("store_offset")) == OUT_MAX
                assert len({call.arguments["partition"] for call in rig.calls("store_offset")}) == OUT_MAX
                gate.set()
                await settled()
                await anyio.sleep(1)
                assert [rig.stored(partition) for partition in every] == [29] + [0] * (len(every) - 1)

    @rule("C101")
    @virtual(seeds=2)
    async def test_producers_wait_for_no_lane(self) -> None:
        async with opened(1) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            async with rig.consumer(start=Start.end()) as consumer:
                await consumer.ready()
                reading = start(tasks, partial(consumer.poll, max_wait=5.0))
                rig.script.every("store_offset", do=hold(anyio.Event()))
                silent = start(tasks, partial(consumer.store_offset, P0, 1, force=True))
                await settled()
                assert rig.pump.parked == 1
                async with rig.client.producer("t") as producer:
                    with anyio.fail_after(0.1):
                        await producer.send(b"new")
                assert silent.outcome == "running"
                await settled()
                assert places(reading.result) == [(0, 3)]
                await silent.cancel()


class TestOneAfterAnother:
    @rule("C101")
    @virtual(seeds=5)
    async def test_stores_and_deletes_of_a_partition_go_in_the_order_of_their_calls(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                await take(consumer, 10)
                rig.script.every("store_offset", do=delay(1.0))
                for offset in (5, None, 3, None, 7):
                    if offset is None:
                        start(tasks, partial(consumer.delete_offset, P0))
                    else:
                        start(tasks, partial(consumer.store_offset, P0, offset))
                    await settled()
                await anyio.sleep(10)
                assert [(call.at, call.arguments["offset"]) for call in rig.calls("store_offset")] == [
                    (0, 5),
                    (1, None),
                    (2, 3),
                    (3, None),
                    (4, 7),
                ]
                assert rig.stored(P0) == consumer.last_stored(P0) == 7

    @rule("C101")
    @virtual(seeds=5)
    async def test_a_delete_waits_for_the_committing_fetch_that_is_out(self) -> None:
        """Both were applied in this order; had the answers come in the other one, it would believe the wrong thing."""
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL) as consumer:
                await consumer.ready()
                rig.script.on("poll", do=delay(1.0, reply=True))
                reading = start(tasks, lambda: anext(consumer))
                await settled()
                assert rig.stored(P0) == 4
                await consumer.delete_offset(P0)
                assert anyio.current_time() == pytest.approx(1.0)
                assert reading.done.is_set()
                assert rig.stored(P0) is consumer.last_stored(P0) is None

    @rule("C101", "C52")
    @virtual(seeds=3)
    async def test_what_changes_nothing_is_found_out_behind_the_committing_fetch(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL) as consumer:
                await consumer.ready()
                rig.script.on("poll", do=delay(1.0, reply=True))
                start(tasks, lambda: anext(consumer))
                await settled()
                await consumer.store_offset(P0, 2, force=True)
                assert anyio.current_time() == pytest.approx(1.0)
                assert stores(rig, P0) == []  # the log has 4

    @rule("C101")
    @virtual(seeds=5)
    async def test_a_committing_fetch_waits_for_a_store_and_others_go_on(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            async with rig.consumer(commit=ON_POLL, poll=PollOptions(count=1)) as consumer:
                await take(consumer, 2)
                rig.script.on("store_offset", do=delay(1.0, reply=True))
                start(tasks, partial(consumer.delete_offset, P0))
                await settled()
                assert places(await take(consumer, 4)) == [(1, 1), (1, 2), (1, 3), (1, 4)]
                assert anyio.current_time() < 1.0
                assert rig.stored(P0) is None
                assert places(await take(consumer, 1)) == [(0, 1)]
                assert anyio.current_time() == pytest.approx(1.0)
                assert rig.stored(P0) == consumer.last_stored(P0) == 1

    @rule("C101", "C4")
    @virtual(seeds=3)
    async def test_a_poll_waits_for_a_store_as_it_waits_for_a_fetch(self) -> None:
        """Its own wait and `REQUEST_GRACE`, and no longer."""
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL, poll=PollOptions(count=1)) as consumer:
                await take(consumer, 1)
                rig.script.on("store_offset", do=delay(1.0))
                start(tasks, partial(consumer.delete_offset, P0))
                await settled()
                assert places(await consumer.poll(max_wait=0.0)) == [(0, 1)]
                assert anyio.current_time() == pytest.approx(1.0)
                rig.script.on("store_offset", do=hold(anyio.Event()))
                silent = start(tasks, partial(consumer.delete_offset, P0))
                await settled()
                assert len(await consumer.poll(max_wait=0.5)) == 0
                assert anyio.current_time() == pytest.approx(1.5 + REQUEST_GRACE)
                await silent.cancel()
                assert places(await consumer.poll(max_wait=0.5)) == [(0, 2)]


class TestParked:
    @rule("C102", "K84")
    @pytest.mark.parametrize("count", [1, 2])
    @virtual(seeds=2)
    async def test_the_case_of_a_poll_that_is_parked(self, count: int) -> None:
        """On the same partition (the only one, where the poll itself is parked) and on another one."""
        async with opened(count) as rig, anyio.create_task_group() as tasks:
            read = TopicPartition("t", count - 1)
            await rig.fill(read, 100)
            async with rig.consumer(poll=PollOptions(max_wait=5.0)) as consumer:
                messages = await take(consumer, 100)
                seen: list[tuple[int, float, int | None]] = []

                async def store() -> None:
                    for message in messages:
                        await settled()
                        before = anyio.current_time()
                        await consumer.store_offset(message)
                        seen.append((rig.pump.parked, anyio.current_time() - before, rig.stored(read)))

                start(tasks, store)
                with anyio.move_on_after(4.0):
                    await anext(consumer)
                assert seen == [(rig.leaders(count), 0.0, offset) for offset in range(100)]

    @rule("C102", "K84")
    @virtual(seeds=2)
    async def test_a_wait_for_something_to_commit_holds_none_either(self) -> None:
        async with opened(1) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL) as consumer:
                messages = await take(consumer, 5)
                seen: list[tuple[int, float]] = []

                async def store() -> None:
                    await settled()
                    await consumer.delete_offset(P0)
                    await consumer.store_offset(messages[2])
                    seen.append((rig.pump.parked, anyio.current_time()))

                start(tasks, store)
                with anyio.move_on_after(1.0):
                    await anext(consumer)
                assert seen == [(1, 0.0)]
                assert rig.stored(P0) == 2


class TestAccepted:
    @rule("C103")
    @pytest.mark.parametrize("is_cancelled", [True, False])
    @virtual(seeds=3)
    async def test_what_waits_behind_a_committing_fetch_is_stored_whatever_becomes_of_that(
        self, is_cancelled: bool
    ) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL) as consumer:
                await consumer.ready()
                rig.script.on("poll", do=delay(1.0))
                if not is_cancelled:
                    rig.script.on("poll", do=refuse(LogUnavailable("gone")))
                reading = start(tasks, lambda: anext(consumer))
                await settled()
                by_hand = start(tasks, partial(consumer.store_offset, P0, 2, force=True))
                await settled()
                assert stores(rig, P0) == []
                if is_cancelled:
                    await reading.cancel()
                await anyio.sleep(1.5)
                assert by_hand.outcome == "returned"
                assert stores(rig, P0) == ([] if is_cancelled else [2])  # the read was given up, its fetch was not
                assert (rig.stored(P0) or 0) >= 2
                await reading.cancel()

    @rule("C103")
    @virtual(seeds=3)
    async def test_the_same_where_the_fetch_is_withdrawn_by_the_end(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL, drain_timeout=1.0) as consumer:
                await consumer.ready()
                rig.script.on("poll", do=hold(anyio.Event()))
                start(tasks, lambda: anext(consumer))
                await settled()
                by_hand = start(tasks, partial(consumer.store_offset, P0, 2, force=True))
                await settled()
                report = await consumer.shutdown()
                assert by_hand.outcome == "returned"
            assert report.committed == {P0: 2}
            assert rig.stored(P0) == 2

    @rule("C103")
    @virtual(seeds=3)
    async def test_what_a_mode_has_queued_outlives_the_read_behind_it(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            rig.script.on("store_offset", do=delay(1.0))
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 1)
                await settled()  # a first one is out
                await take(consumer, 4)
                rig.script.every("poll", do=refuse(LogUnavailable("gone")))
                with anyio.move_on_after(0.5):
                    await anext(consumer)
                assert rig.stored(P0) is None
                await anyio.sleep(1)
                assert rig.stored(P0) == 4

    @rule("C103")
    @virtual(seeds=3)
    async def test_who_gives_up_waiting_sends_nothing_and_those_behind_move_on(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                await take(consumer, 10)
                rig.script.on("store_offset", do=delay(1.0))
                waiting: list[Background] = []
                for offset in (1, 4, 8):
                    waiting.append(start(tasks, partial(consumer.store_offset, P0, offset)))
                    await settled()
                await waiting[1].cancel()
                await waiting[2].done.wait()
                assert [background.outcome for background in waiting] == ["returned", "cancelled", "returned"]
                assert stores(rig, P0) == [1, 8]
                assert rig.stored(P0) == consumer.last_stored(P0) == 8


def first_asked() -> Callable[[Call], bool]:
    """Calls about the partition that the first one is about."""
    chosen: list[TopicPartition] = []

    def is_chosen(call: Call) -> bool:
        chosen.append(call.arguments["partition"])
        return bool(chosen[0] == chosen[-1])

    return is_chosen


class TestHandOver:
    @rule("C101")
    @virtual(seeds=3)
    async def test_a_store_without_an_answer_costs_no_other_partition_its_last_one(self) -> None:
        """One lock for all of them: the partition was released without it, and its messages came again."""
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            async with rig.member(commit=AutoCommit.finished(100.0), drain_timeout=1.0) as first:
                await first.poll(min_count=10)
                await first.poll(max_wait=0.0)
                rig.script.every("store_offset", do=hold(anyio.Event()), where=of(P0))
                silent = start(tasks, partial(first.store_offset, P0, 4))
                await settled()
                before = anyio.current_time()
                second = await rig.member().__aenter__()
                assert await owns(second, 1) == {P1}
                assert anyio.current_time() - before < 0.5
                assert rig.group_stored(P1) == 4
                assert rig.reported("released_unstored") == []
                await second.shutdown()
                await silent.cancel()

    @rule("C101")
    @virtual(seeds=3)
    async def test_a_partition_that_is_released_without_its_last_store_is_named(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(4) as rig:
            every = [TopicPartition("t", number) for number in range(4)]
            for partition in every:
                await rig.fill(partition, 5)
            async with rig.member(commit=AutoCommit.finished(100.0), drain_timeout=1.5) as first:
                await first.poll(min_count=20)
                await first.poll(max_wait=0.0)
                rig.script.every("store_offset", do=hold(anyio.Event()), where=first_asked())
                caplog.clear()
                second = await rig.member().__aenter__()
                moved = await owns(second, 2)
                silent = rig.calls("store_offset")[0].arguments["partition"]
                (other,) = moved - {silent}
                assert (rig.group_stored(silent), rig.group_stored(other)) == (None, 4)
                assert [event["partitions"] for event in rig.reported("released_unstored")] == [(silent,)]
                assert f"the last store of {silent} did not come through within 1.5 s" in caplog.text
                assert rig.reported("possibly_lost") == []
                assert places(await take(second, 5)) == [(silent.partition, offset) for offset in range(5)]
                await second.shutdown()

    @rule("C101")
    @virtual(seeds=3)
    async def test_what_is_skipped_since_the_offset_was_not_brought_back_is_named(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            async with rig.member(commit=AutoCommit.interval(1.0), drain_timeout=1.0) as first:
                assert len(await first.poll(min_count=10)) == 10
                await anyio.sleep(1.5)
                assert (rig.group_stored(P0), rig.group_stored(P1)) == (4, 4)
                rig.script.every("store_offset", do=refuse(LogBusy("locked")))
                second = await rig.member().__aenter__()
                assert await owns(second, 1) == {P1}
                assert [event["partitions"] for event in rig.reported("released_unstored")] == [(P1,)]
                named = [(event["partition"], event["first"], event["last"]) for event in rig.reported("possibly_lost")]
                assert named == [(P1, 0, 4)]
                await second.shutdown()

    @rule("C36")
    @virtual(seeds=3)
    async def test_what_is_skipped_since_the_partition_was_taken_before_it_was_brought_back_is_named_once(self) -> None:
        """Its last store is refused for good, then: the log has given the partition to somebody else."""
        async with opened(2, rebalance_timeout=2.0) as rig:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            async with rig.member(commit=AutoCommit.on_poll(), drain_timeout=10.0) as first:
                assert places(await take(first, 7))[-1] == (1, 1)
                rig.script.every("store_offset", do=refuse(LogBusy("locked")), where=lambda call: call.at < 4.0)
                async with rig.member() as second:
                    assert await owns(second, 1) == {P1}
                    assert await owns(first, 1, within=15.0) == {P0}
                    assert rig.group_stored(P1) == 4
                    lost = [
                        (event["partition"], event["first"], event["last"]) for event in rig.reported("possibly_lost")
                    ]
                    assert lost == [(P1, 1, 4)]

    @rule("C101")
    @virtual(seeds=3)
    async def test_one_that_has_nothing_to_store_is_not_named(self) -> None:
        """What is stored for it is still being read, and nobody answers: it was never read."""
        async with opened(2) as rig:
            rig.script.on("stored_offset", do=hold(anyio.Event()), where=of(P1))
            async with rig.member(commit=AutoCommit.finished(100.0), drain_timeout=1.0):
                await settled()
                assert any(map(of(P1), rig.calls("stored_offset")))
                second = await rig.member().__aenter__()
                assert await owns(second, 1) == {P1}
                assert rig.reported("released_unstored") == []
                await second.shutdown()

    @rule("C66")
    @virtual(seeds=3)
    async def test_a_store_by_hand_that_comes_while_others_are_finished_is_let_through(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                await consumer.poll(min_count=10)
                rig.script.on("store_offset", do=delay(1.0), where=of(P0))
                rig.script.on("store_offset", nth=2, do=delay(2.0), where=of(P1))
                await consumer.store_offset(P1, 0)
                start(tasks, partial(consumer.store_offset, P0, 1))

                async def store_late() -> None:
                    await anyio.sleep(0.5)
                    await consumer.store_offset(P1, 3)

                by_hand = start(tasks, store_late)
                await settled()
                report = await consumer.shutdown()
                assert by_hand.outcome == "returned"
                assert report.committed == {P0: 1, P1: 3}
                assert anyio.current_time() == pytest.approx(2.5)


class TestTheLanes:
    @rule("C101")
    @virtual(seeds=3)
    async def test_who_gives_up_waiting_for_room_holds_no_lane(self) -> None:
        lanes = ProgressLanes(out_max=1)

        async def use(partition: TopicPartition) -> float:
            async with lanes.turn(partition):
                await anyio.sleep(1.0)
            return anyio.current_time()

        async with anyio.create_task_group() as tasks:
            first = start(tasks, partial(use, P0))
            await settled()
            second = start(tasks, partial(use, P1))
            third = start(tasks, partial(use, P2))
            await settled()
            assert not lanes.is_free(P1)
            await second.cancel()
            assert lanes.is_free(P1)
            await third.done.wait()
            assert (first.result, second.outcome, third.result) == (1.0, "cancelled", 2.0)
            assert await use(P1) == 3.0

    @rule("C101")
    @virtual(seeds=3)
    async def test_a_lane_is_kept_only_as_long_as_somebody_uses_it(self) -> None:
        lanes, freed, turns = ProgressLanes(), list[float](), list[str]()
        lanes.freed = lambda: freed.append(anyio.current_time())

        async def use(name: str) -> None:
            async with lanes.turn(P0):
                turns.append(name)
                await anyio.sleep(1.0)
                if name == "b":
                    raise LogBusy("locked")

        async with anyio.create_task_group() as tasks:
            users = []
            for name in ("a", "b", "c", "d"):
                users.append(start(tasks, partial(use, name)))
                await settled()
            assert not lanes.is_free(P0)
            assert lanes.is_free(P1)
            await users[2].cancel()
            await lanes.passed(P0)
            assert anyio.current_time() == 3.0
            assert turns == ["a", "b", "d"]
            assert lanes.is_free(P0)
            assert freed == [3.0]
            await lanes.passed(P0)
            with lanes.at_once(P0):
                assert not lanes.is_free(P0)
                late = start(tasks, partial(use, "e"))
                await settled()
                assert turns == ["a", "b", "d"]
            await late.done.wait()
            assert turns == ["a", "b", "d", "e"]
            assert lanes.is_free(P0)
            assert freed == [3.0, 4.0]
