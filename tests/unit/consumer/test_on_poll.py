"""Commit-on-poll: the log commits what it serves, and a clean end brings back what was not finished."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.consumer.consumer import State
from tarry.errors import CapacityExceeded, DataError, FeatureUnavailable, LogUnavailable, NotAccepted
from tarry.testing import Action, Call, CarryOut, delay, hold, lose_reply, lose_request, refuse
from tarry.types import Start
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, Rig, offsets, opened, places, start, take, take_all
from tests.virtual import virtual

ON_POLL = AutoCommit.on_poll()
TEN = PollOptions(count=10)


def committing(rig: Rig) -> list[Call]:
    return [call for call in rig.calls("poll") if call.arguments["commit"]]


async def rest(rig: Rig) -> list[tuple[int, int]]:
    """What the next run of the same name gets."""
    async with rig.consumer() as consumer:
        return places(await take_all(consumer))


class TestDemand:
    @rule("C42", "C59", "K01")
    @virtual(seeds=3)
    async def test_nothing_is_fetched_before_somebody_asks_and_nothing_ahead(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 25)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                await consumer.ready()
                await anyio.sleep(3)
                assert rig.calls("poll") == []
                assert rig.stored(P0) is None
                assert (await anext(consumer)).offset == 0
                assert rig.stored(P0) == 9
                await anyio.sleep(3)
                assert offsets(await take(consumer, 9)) == list(range(1, 10))
                assert len(committing(rig)) == 1
                assert (await anext(consumer)).offset == 10
                assert [len(call.arguments["targets"]) for call in committing(rig)] == [1, 1]
                assert rig.stored(P0) == 19

    @rule("C59")
    @virtual(seeds=3)
    async def test_a_read_that_was_cancelled_while_its_fetch_was_out_loses_nothing_and_asks_for_nothing_more(
        self,
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 25)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                rig.script.every("poll", do=delay(1.0, reply=True))
                with anyio.move_on_after(0.5):
                    await anext(consumer)
                await anyio.sleep(5)
                assert len(committing(rig)) == 1
                assert offsets(await take(consumer, 10)) == list(range(10))
                assert len(committing(rig)) == 1
            assert rig.stored(P0) == 8

    @rule("C76")
    @virtual(seeds=3)
    async def test_a_readiness_wait_runs_while_a_fetch_is_out_and_while_the_application_works(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                rig.script.on("poll", do=delay(1.0))
                async with anyio.create_task_group() as tasks:
                    reading = start(tasks, lambda: anext(consumer))
                    await anyio.sleep(0.5)
                    assert {call.outcome for call in committing(rig)} == {"open"}
                    assert rig.pump.parked == 1
                    await rig.fill(P1, 1)
                    await reading.done.wait()
                await anyio.sleep(2)
                assert rig.stored(P1) is None  # known to be there, and not fetched: nobody asks
                found = places(await take(consumer, 10))
                assert found == [
                    *[(0, offset) for offset in range(1, 10)],
                    (1, 0),
                ]  # ahead of the backlog of partition 0

    @rule("C82")
    @virtual(seeds=3)
    async def test_a_busy_partition_does_not_starve_another(self) -> None:
        async with opened(3) as rig:
            await rig.fill(P0, 100)
            await rig.fill(P1, 5)
            await rig.fill(P2, 5)
            async with rig.consumer(commit=ON_POLL, poll=PollOptions(count=5)) as consumer:
                found = places(await take(consumer, 20))
                assert {at for at, _ in found[:15]} == {0, 1, 2}

    @virtual(seeds=2)
    async def test_a_poll_gathers_over_all_partitions_with_one_committing_fetch_each(self) -> None:
        async with opened(3) as rig:
            for partition in (P0, P1, P2):
                await rig.fill(partition, 4)
            async with rig.consumer(commit=ON_POLL) as consumer:
                batch = await consumer.poll(count=10, min_count=10, max_wait=2.0)
                assert (len(batch), batch.reason) == (10, "count")
                assert len(committing(rig)) == 3
                assert {at: rig.stored(at) for at in (P0, P1, P2)} == {P0: 3, P1: 3, P2: 1}  # no more than it returns
                await anyio.sleep(3)
                assert len(committing(rig)) == 3
            assert [rig.stored(at) for at in (P0, P1, P2)] == [None, None, None]

    @virtual()
    async def test_a_poll_returns_what_was_committed_for_it_also_where_the_last_message_exceeds_its_bytes(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 1, size=500)
            await rig.fill(P1, 1, size=5000)
            async with rig.consumer(commit=ON_POLL) as consumer:
                await consumer.ready()
                await anyio.sleep(1)
                batch = await consumer.poll(min_count=2, max_bytes=1000, max_wait=1.0)
                assert sorted(places(batch)) == [(0, 0), (1, 0)]
                assert await consumer.poll(max_wait=0.0) == []

    @virtual()
    async def test_an_empty_poll_ends_with_its_wait_and_commits_nothing(self) -> None:
        async with opened(2) as rig, rig.consumer(commit=ON_POLL) as consumer:
            before = anyio.current_time()
            batch = await consumer.poll(max_wait=3.0)
            assert (len(batch), batch.reason) == (0, "wait")
            assert anyio.current_time() - before == pytest.approx(3.0, abs=0.01)
            assert committing(rig) == []


class TestGuard:
    @rule("C28", "C61", "C93")
    @pytest.mark.parametrize("lost", [lose_reply(), lose_reply(after=2.0), lose_request(after=2.0)])
    @virtual(seeds=2)
    async def test_after_a_lost_reply_it_reads_again_at_the_explicit_position(self, lost: Action) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                await consumer.store_offset((await take(consumer, 10))[-1])
                rig.script.on("poll", do=lost)
                assert offsets(await take(consumer, 4)) == [10, 11, 12, 13]
                asked = [call.arguments["targets"][0].at for call in committing(rig)]
                assert asked == [0, 10, 10]
            assert rig.stored(P0) == 12

    @rule("K01", "C93")
    @virtual(seeds=3)
    async def test_no_other_partition_is_committed_before_one_of_unknown_fate_is_settled(self) -> None:
        """A hard kill finds at most one batch that is committed and not served."""
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 10)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                rig.script.on("poll", nth=(1, 2), do=lose_reply())
                found = places(await take(consumer, 10))
                (partition,) = {at for at, _ in found}
                assert [rig.stored(at) for at in (P0, P1) if at.partition != partition] == [None]
                assert len(committing(rig)) == 3

    @virtual(seeds=3)
    async def test_a_poll_whose_wait_is_over_ends_while_the_fate_of_its_fetch_is_still_unknown(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                await consumer.ready()
                rig.script.on("poll", do=lose_reply())
                rig.script.every("poll", do=refuse(LogUnavailable("away")))
                await rig.fill(P1, 10)  # one in doubt, one ready
                with anyio.fail_after(3):
                    assert await consumer.poll(max_wait=0.5) == []
                await anyio.sleep(1.0)
                assert len(committing(rig)) < 15

    @rule("C61", "C65", "I1")
    @pytest.mark.parametrize("lost", [lose_reply(), lose_request()])
    @pytest.mark.parametrize("before", [None, 4])
    @virtual(seeds=2)
    async def test_a_shutdown_after_a_lost_reply_goes_back_to_the_floor(self, lost: Action, before: int | None) -> None:
        """Q4: nothing of the partition was ever delivered, so only the floor is known."""
        async with opened() as rig:
            await rig.fill(P0, 20)
            if before is not None:
                async with rig.consumer() as consumer:
                    await consumer.store_offset(0, before, force=True)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                rig.script.every("poll", do=lost)
                with anyio.move_on_after(1.0):
                    await anext(consumer)
                await consumer.shutdown()
            assert rig.stored(P0) == before

    @rule("C60", "C93")
    @pytest.mark.parametrize("refusal", [NotAccepted, CapacityExceeded])
    @virtual(seeds=2)
    async def test_a_refused_fetch_has_changed_nothing(self, refusal: type[NotAccepted | CapacityExceeded]) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                rig.script.on("poll", nth=range(1, 4), do=refuse(refusal))
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
                await consumer.shutdown()
            assert rig.stored(P0) == 1
            assert [call.arguments["lower"] for call in rig.calls("store_offset")] == [True]

    @rule("C91", "C92")
    @virtual(seeds=2)
    async def test_refusals_are_backed_off_and_then_the_readers_error(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=ON_POLL) as consumer:
                rig.script.every("poll", do=refuse(CapacityExceeded("busy")))
                with pytest.raises(CapacityExceeded):
                    await anext(consumer)
                assert len(committing(rig)) <= 25
                times = [call.at for call in committing(rig)]
                assert all(later - earlier <= 2.0 for earlier, later in pairwise(times))


class TestTheEnd:
    @rule("K01", "I1", "C62")
    @virtual(seeds=3)
    async def test_the_case_word_for_word(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)

            async def work() -> None:
                async with rig.consumer(commit=ON_POLL) as consumer:
                    async for message in consumer:
                        assert rig.stored(P0) == 9
                        if message.offset == 3:
                            raise ValueError(message.offset)

            with pytest.raises(ValueError, match="3"):
                await work()
            assert rig.stored(P0) == 2
            assert await rest(rig) == [(0, offset) for offset in range(3, 10)]

    @rule("C62", "C58")
    @virtual(seeds=2)
    async def test_a_batch_of_poll_that_is_not_finished_is_brought_back_whole(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 10)
            async with rig.consumer(commit=ON_POLL) as consumer:
                await consumer.poll(count=6, min_count=6)
                batch = await consumer.poll(count=9, min_count=9)
                report = await consumer.shutdown()
                assert sum(report.unfinished.values()) == 9
            finished = 6
            assert sum((rig.stored(at) or -1) + 1 for at in (P0, P1)) == finished
            assert set(await rest(rig)) >= set(places(batch))

    @rule("C63")
    @virtual(seeds=3)
    async def test_a_fetch_that_comes_back_in_time_is_taken_into_the_rewind(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer, anyio.create_task_group() as tasks:
                await consumer.store_offset((await take(consumer, 10))[-1])
                rig.script.on("poll", do=delay(1.0, reply=True))
                reading = start(tasks, lambda: anext(consumer))
                await anyio.sleep(0.1)
                assert rig.stored(P0) == 19
                before = anyio.current_time()
                report = await consumer.shutdown()
                assert anyio.current_time() - before == pytest.approx(0.9, abs=0.05)
                await reading.done.wait()
                assert isinstance(reading.error, StopAsyncIteration)
                assert report.rewound == {P0: 10}
            assert rig.stored(P0) == 9
            assert [call.outcome for call in committing(rig)] == ["answered", "answered"]

    @rule("C64")
    @virtual(seeds=3)
    async def test_a_fetch_that_does_not_come_back_is_withdrawn_and_counts_for_nothing(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            options = {"commit": ON_POLL, "poll": TEN, "drain_timeout": 2.0}
            async with rig.consumer(**options) as consumer, anyio.create_task_group() as tasks:
                await consumer.store_offset((await take(consumer, 10))[-1])
                rig.script.on("poll", do=hold(anyio.Event(), reply=True))
                start(tasks, lambda: anext(consumer))
                await anyio.sleep(0.1)
                assert rig.stored(P0) == 19
                before = anyio.current_time()
                await consumer.shutdown()
                assert anyio.current_time() - before == pytest.approx(2.0, abs=0.05)
            assert rig.stored(P0) == 9
            assert [call.outcome for call in committing(rig)] == ["answered", "cancelled"]

    @rule("C63")
    @virtual(seeds=2)
    async def test_a_stop_ends_a_pause_at_once_and_begins_no_request(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=ON_POLL) as consumer, anyio.create_task_group() as tasks:
                rig.script.every("poll", do=refuse(CapacityExceeded))
                start(tasks, lambda: anext(consumer))
                await anyio.sleep(1.0)
                polls = len(rig.calls("poll"))
                before = anyio.current_time()
                await consumer.shutdown()
                assert anyio.current_time() == before
                assert len(rig.calls("poll")) == polls

    @rule("C66")
    @virtual(seeds=2)
    async def test_the_rewind_comes_before_leaving_and_after_the_last_fetch(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                await take(consumer, 3)
            order = [call.operation for call in rig.script.calls if call.operation in ("poll", "store_offset", "leave")]
            assert order == ["poll", "store_offset", "leave"]

    @rule("C67")
    @virtual()
    async def test_a_second_shutdown_returns_the_same_report(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=ON_POLL) as consumer:
                await take(consumer, 3)
                rig.script.every("leave", do=refuse(LogUnavailable("gone")))
                report = await consumer.shutdown()
                assert await consumer.shutdown() is report
            assert report.rewound == {P0: 8}
            assert report.committed == {P0: 1}

    @rule("C68")
    @virtual()
    async def test_a_consumer_that_nobody_left_is_brought_back_when_the_client_closes(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=ON_POLL).__aenter__()
            await take(consumer, 3)
            del consumer
            assert rig.stored(P0) == 9
        assert rig.stored(P0) == 1

    @rule("C68")
    @virtual()
    async def test_a_consumer_that_is_collected_while_it_is_open_warns(self) -> None:
        async with opened() as rig:
            consumer = rig.consumer(commit=ON_POLL)
            consumer._state = State.OPEN
            del consumer
            with pytest.warns(ResourceWarning, match="was never shut down; use `async with`"):
                gc.collect()

    @rule("K49")
    @virtual(seeds=4)
    async def test_the_last_store_is_made_inside_a_cancelled_scope(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)

            async def work() -> None:
                async with rig.consumer(commit=ON_POLL) as consumer:
                    async for message in consumer:
                        if message.offset == 5:
                            await anyio.sleep_forever()

            async with anyio.create_task_group() as tasks:
                working = start(tasks, work)
                await anyio.sleep(1)
                before = anyio.current_time()
                tasks.start_soon(working.cancel)
                await anyio.sleep(0.01)
                await working.cancel()
                assert anyio.current_time() - before < 1
                assert working.outcome == "cancelled"
            assert rig.stored(P0) == 4
            assert rig.calls("leave")[-1].outcome == "answered"

    @rule("K52")
    @virtual(seeds=2)
    async def test_after_the_end_nothing_comes_out(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            async with rig.consumer(commit=ON_POLL) as consumer:
                reading = start(tasks, lambda: anext(consumer))
                await anyio.sleep(1)
                before = anyio.current_time()
                await consumer.shutdown()
                await reading.done.wait()
                assert anyio.current_time() - before < 0.1
                assert isinstance(reading.error, StopAsyncIteration)
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL) as consumer:
                with anyio.move_on_after(0):
                    await anext(consumer)  # its fetch is under way and its batch will be buffered
                await anyio.sleep(1)
                await consumer.shutdown()
                with pytest.raises(StopAsyncIteration):
                    await anext(consumer)
            assert rig.stored(P0) is None

    @rule("K52")
    @pytest.mark.parametrize("commit", [ON_POLL, AutoCommit.finished(), AutoCommit.disabled()])
    @virtual(seeds=2)
    async def test_a_failure_for_good_is_raised_at_every_call(self, commit: AutoCommit) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            revoked = anyio.Event()
            for operation in ("wait_ready", "poll"):
                rig.script.every(operation, do=hold(revoked))
                rig.script.every(operation, do=refuse(DataError("the file is damaged")))
            async with rig.consumer(commit=commit) as consumer:
                reading = start(tasks, lambda: anext(consumer))
                await anyio.sleep(1)
                before = anyio.current_time()
                revoked.set()
                await reading.done.wait()
                assert isinstance(reading.error, DataError)
                for _ in range(3):
                    with pytest.raises(DataError, match="damaged"):
                        await anext(consumer)
                assert anyio.current_time() - before < 0.1

    @rule("C57")
    @virtual(seeds=3)
    async def test_no_fetch_raises_the_offset_again_after_the_rewind(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer, anyio.create_task_group() as tasks:
                await consumer.store_offset((await take(consumer, 10))[-1])
                rig.script.on("poll", do=delay(1.0))  # it reaches the log a second late
                start(tasks, lambda: anext(consumer))
                await anyio.sleep(0.5)
                await consumer.shutdown()
            assert rig.stored(P0) == 9
            await anyio.sleep(5)
            assert rig.stored(P0) == 9


class TestDropped:
    @rule("K01", "C110")
    @virtual(seeds=3)
    async def test_what_lands_while_its_partition_rests_is_brought_back_before_anything_is_committed(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                rig.script.on("poll", do=delay(1.0, reply=True))
                reading = start(tasks, lambda: anext(consumer))
                await anyio.sleep(0.999)
                assert rig.stored(P0) == 9
                consumer._worker._unknown(P0, FeatureUnavailable("who leads it cannot be found out"))
                await rig.fill(P1, 10)
                held: list[int | None] = []
                rig.script.every("poll", do=hears(lambda: held.append(rig.stored(P0))))
                await reading.done.wait()
                assert isinstance(reading.error, FeatureUnavailable)
                found = await take(consumer, 20)
                assert sorted(places(found)) == [(at, offset) for at in (0, 1) for offset in range(10)]
                assert held[0] is None
            assert (rig.stored(P0), rig.stored(P1)) in [(9, 8), (8, 9)]


def hears(tell: Callable[[], object]) -> Action:
    """Tell, then carry the call out."""

    async def act(_: Call, carry_out: CarryOut) -> object:
        tell()
        return await carry_out()

    return act


class TestTheFirstStart:
    @rule("I1")
    @pytest.mark.parametrize("commit", [ON_POLL, AutoCommit.finished(100.0), AutoCommit.interval(0.1)])
    @virtual(seeds=2)
    async def test_what_comes_after_a_start_at_the_end_is_not_skipped_by_the_next_run(self, commit: AutoCommit) -> None:
        start_rule = Start.next(otherwise=Start.end())
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=commit, start=start_rule) as consumer:
                await consumer.ready()
                await rig.fill(P0, 5)
                assert (await anext(consumer)).offset == 10
                await anyio.sleep(1)
            assert rig.stored(P0) == 9
            async with rig.consumer(commit=commit, start=start_rule) as consumer:
                assert (await anext(consumer)).offset == 10


class TestSeekAndStore:
    @rule("C33", "C56")
    @virtual(seeds=3)
    async def test_a_seek_while_a_fetch_is_out_voids_its_batch(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer, anyio.create_task_group() as tasks:
                await take(consumer, 11)
                rig.script.on("poll", do=delay(1.0, reply=True))
                await consumer.seek(0, 20)
                reading = start(tasks, lambda: anext(consumer))
                await anyio.sleep(0.5)
                await consumer.seek(0, 5)
                await reading.done.wait()
                assert reading.result.offset == 5
            assert rig.stored(P0) == 9  # nothing was finished since the first seek: where it belonged before

    @rule("I1")
    @virtual(seeds=2)
    async def test_after_a_mere_seek_the_next_run_begins_where_it_would_have(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL, poll=TEN) as consumer:
                await take(consumer, 4)
                await consumer.seek(0, 20)
            assert rig.stored(P0) == 2

    @rule("I7", "C53")
    @virtual(seeds=3)
    async def test_what_is_stored_by_hand_while_the_last_word_is_on_its_way_is_not_lost_to_it(self) -> None:
        """The log holds more at that moment, but not for long."""
        async with opened(1) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=ON_POLL, drain_timeout=0.1) as consumer:
                message = (await take(consumer, 2))[-1]
                rig.script.on("store_offset", do=delay(0.5))
                stopping = start(tasks, consumer.shutdown)
                await anyio.sleep(0.3)
                assert rig.stored(P0) == 4
                await consumer.store_offset(message)
                assert rig.stored(P0) == 1
                await stopping.done.wait()
                assert stopping.result.committed[P0] == rig.stored(P0) == 1

    @rule("K85")
    @virtual(seeds=2)
    async def test_storing_by_hand_only_ever_raises_what_is_finished(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 30)
            async with rig.consumer(commit=ON_POLL) as consumer:
                messages = await take(consumer, 12)
                for offset in (9, 4, 7):
                    await consumer.store_offset(messages[offset])
                    assert rig.stored(P0) == 29
                with pytest.raises(StopAsyncIteration):
                    await consumer.shutdown()
                    await anext(consumer)
            assert rig.stored(P0) == 10
            async with rig.consumer(commit=ON_POLL) as consumer:
                await consumer.seek(0, 2)
                await consumer.store_offset(await anext(consumer))
                assert rig.stored(P0) == 2

    @rule("K79")
    @virtual(seeds=2)
    async def test_partitions_are_committed_and_brought_back_each_for_itself(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 100)
            await rig.fill(P1, 10)
            async with rig.consumer(commit=ON_POLL, start=Start.first()) as consumer:
                found = await take_all(consumer)
                assert sorted(places(found)) == [
                    *((0, offset) for offset in range(100)),
                    *((1, offset) for offset in range(10)),
                ]
            assert (rig.stored(P0), rig.stored(P1)) == (99, 9)


@rule("C94")
@virtual(seeds=2)
async def test_a_plain_read_whose_reply_is_lost_is_simply_made_again() -> None:
    async with opened() as rig:
        await rig.fill(P0, 10)
        async with rig.consumer() as consumer:
            rig.script.on("poll", do=lose_reply())
            assert offsets(await take(consumer, 10)) == list(range(10))
        assert rig.calls("store_offset") == []


@rule("K91")
@virtual()
async def test_a_large_poll_is_decoded_in_parts() -> None:
    async with opened() as rig:
        await rig.fill(P0, 3000, size=200)
        async with rig.consumer(commit=ON_POLL) as consumer:
            batch = await consumer.poll(count=3000, min_count=3000, max_bytes=10_000_000)
            assert len(batch.segments) > 1
            assert offsets(batch) == list(range(3000))


@rule("C76", "I5")
@virtual(seeds=3)
async def test_an_idle_reader_asks_about_once_per_wait_and_parks_one_request() -> None:
    async with opened(4) as rig, rig.consumer(commit=ON_POLL) as consumer, anyio.create_task_group() as tasks:
        reading = start(tasks, lambda: anext(consumer))
        await anyio.sleep(60)
        assert len(rig.calls("wait_ready", "poll")) <= 13
        assert rig.pump.parked == 1
        await reading.cancel()
