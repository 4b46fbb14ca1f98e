"""What is stored, when, by whom; the rules of `store_offset` and of the modes while the consumer runs."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import pairwise

import anyio
import pytest

from tarry import AutoCommit, Message, PollOptions, Start
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    ConfigTypeError,
    LogBusy,
    OffsetOutOfRange,
    OutcomeUnknown,
    StaleAssignment,
    TopicNotFound,
)
from tarry.testing import delay, hold, lose_reply, lose_request, refuse
from tarry.types import TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import NAME, P0, P1, P2, Rig, offsets, opened, places, settled, start, take
from tests.unit.consumer.test_reading import recreate
from tests.virtual import virtual


class TestStoreOffset:
    @rule("K85", "C52")
    @virtual()
    async def test_it_never_lowers_but_right_after_a_seek(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 10)
                for offset in (9, 4, 7):
                    await consumer.store_offset(messages[offset])
                    assert consumer.last_stored(0) == rig.stored(P0) == 9
                await consumer.seek(0, 2)
                message = await anext(consumer)
                await consumer.store_offset(message)
                assert consumer.last_stored(0) == rig.stored(P0) == 2
                await consumer.store_offset(messages[1])
                assert rig.stored(P0) == 2  # only the first one after a seek

    @rule("C33", "C53")
    @virtual()
    async def test_what_was_delivered_before_a_seek_back_lies_ahead_behind_it(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer, rig.consumer(name="other") as other:
                batch = await consumer.poll(count=8, min_count=8)
                await consumer.seek(0, 2)
                for what in (batch, batch[7], batch[2]):
                    with pytest.raises(ConfigError, match="lies ahead of what was delivered"):
                        await consumer.store_offset(what)
                    with pytest.raises(ConfigError, match="lies ahead of what was delivered"):
                        await other.store_offset(what)
                assert rig.stored(P0) is None
                await consumer.store_offset(batch[1])
                assert rig.stored(P0) == 1
                await consumer.store_offset(batch[7], force=True)
                assert rig.stored(P0) == 7

    @virtual()
    async def test_an_offset_beside_a_message_is_refused(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer() as consumer:
                batch = await consumer.poll(min_count=3)
                with pytest.raises(ConfigTypeError, match=r", 1\): a message has its own offset; pass its"):
                    await consumer.store_offset(batch[2], 1)
                with pytest.raises(ConfigTypeError, match=r", 1\): a batch has its own offset; pass its"):
                    await consumer.store_offset(batch, 1)
                assert rig.stored(P0) is None

    @rule("C52")
    @virtual()
    async def test_what_changes_nothing_is_not_even_sent(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 10)
                for offset in (0, 0, 5, 3, 5, 6):
                    await consumer.store_offset(messages[offset])
                assert [call.arguments["offset"] for call in rig.calls("store_offset")] == [0, 5, 6]
            async with rig.consumer() as consumer:
                await rig.fill(P0, 1)
                message = await anext(consumer)
                await consumer.store_offset(messages[4])
                await consumer.store_offset(message)
            assert [call.arguments["offset"] for call in rig.calls("store_offset")] == [0, 5, 6, 7]

    @rule("C53")
    @pytest.mark.parametrize("error", [CapacityExceeded("full"), LogBusy("locked"), OutcomeUnknown("who knows")])
    @virtual()
    async def test_its_error_is_raised_and_the_record_stays(self, error: Exception) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 10)
                await consumer.store_offset(messages[2])
                rig.script.on("store_offset", do=refuse(error))
                with pytest.raises(type(error)):
                    await consumer.store_offset(messages[5])
                assert consumer.last_stored(0) == rig.stored(P0) == 2
                await consumer.store_offset(messages[5])
                assert consumer.last_stored(0) == rig.stored(P0) == 5

    @rule("C53")
    @virtual()
    async def test_an_offset_that_does_not_exist_is_refused(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.fill(P0, 10)
            with pytest.raises(OffsetOutOfRange, match="offset 10 of"):
                await consumer.store_offset(0, 10, force=True)
            assert consumer.last_stored(0) is None
            await consumer.store_offset(0, 9, force=True)
            assert rig.stored(P0) == 9

    @virtual()
    async def test_an_offset_ahead_of_what_was_delivered_is_refused_unless_forced(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                with pytest.raises(ConfigError, match=r"position is not known yet.*force=True"):
                    await consumer.store_offset(0, 0)
                await take(consumer, 3)
                with pytest.raises(ConfigError, match=r"offset 3 is delivered next.*force=True"):
                    await consumer.store_offset(0, 3)
                assert rig.calls("store_offset") == []
                await consumer.store_offset(0, 2)
                await consumer.store_offset(0, 7, force=True)
                assert rig.stored(P0) == 7

    @virtual(seeds=2)
    async def test_it_takes_messages_batches_and_partitions_with_offsets(self) -> None:
        async with opened({"a": 2, "b": 1}) as rig:
            a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
            for partition in (a0, a1, b0):
                await rig.fill(partition, 5)
            async with rig.consumer("a", "b") as consumer:
                batch = await consumer.poll(min_count=15)
                await consumer.store_offset(batch[0])
                assert consumer.last_stored(batch[0].topic_partition) == 0
                await consumer.store_offset(batch)
                assert (rig.stored(a0), rig.stored(a1), rig.stored(b0)) == (4, 4, 4)
                await rig.fill(b0, 5)
                await consumer.store_offset(b0, 7, force=True)
                assert rig.stored(b0) == 7
                await consumer.store_offset(await consumer.poll(max_wait=0.0, count=1))
                await consumer.store_offset(await consumer.poll(max_wait=0.0, count=1000))
                assert rig.stored(b0) == 9

    @virtual()
    async def test_a_message_of_somebody_else_is_stale(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 1)
            async with rig.consumer(partitions=[0]) as other:
                message = await anext(other)
            async with rig.consumer(partitions=[1]) as consumer:
                with pytest.raises(StaleAssignment):
                    await consumer.store_offset(message)
                with pytest.raises(StaleAssignment):
                    await consumer.store_offset(0, 0)
            assert rig.stored(P0) is None

    @rule("K97")
    @virtual(seeds=5)
    async def test_ten_tasks_may_store_at_once_and_the_highest_wins(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 10)
                rig.script.every("store_offset", do=delay(0.01))
                async with anyio.create_task_group() as tasks:
                    for message in messages:
                        tasks.start_soon(consumer.store_offset, message)
                assert consumer.last_stored(0) == rig.stored(P0) == 9

    @rule("C51")
    @virtual(seeds=5)
    async def test_stores_go_one_after_another_and_only_those_that_still_matter(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer, anyio.create_task_group() as tasks:
                messages = await take(consumer, 10)
                rig.script.every("store_offset", do=delay(1.0))
                for offset in (3, 9, 5, 7):
                    start(tasks, lambda message=messages[offset]: consumer.store_offset(message))  # type: ignore[misc]
                    await settled()
                await anyio.sleep(10)
                assert [(call.at, call.arguments["offset"]) for call in rig.calls("store_offset")] == [(0, 3), (1, 9)]
                assert rig.stored(P0) == 9

    @rule("K44")
    @virtual(seeds=2)
    async def test_a_store_keeps_to_its_time_limit_while_the_log_is_silent(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 100)
            seen: list[float] = []

            async def read() -> None:
                async with rig.consumer(name="other", commit=AutoCommit.disabled()) as other:
                    async for _ in other:
                        seen.append(anyio.current_time())
                        await anyio.sleep(0.5)

            reader = start(tasks, read)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 5)
                back = anyio.Event()
                await anyio.sleep(1)
                rig.script.on("store_offset", do=hold(back))
                with pytest.raises(TimeoutError), anyio.fail_after(2):
                    await consumer.store_offset(messages[3])
                assert anyio.current_time() == pytest.approx(3.0, abs=0.01)
                await anyio.sleep(28)
                back.set()
                assert max(later - earlier for earlier, later in pairwise(seen)) < 0.6
                await anyio.sleep(2)
                await consumer.store_offset(messages[4])
                assert anyio.current_time() < 33.5
                assert rig.stored(P0) == consumer.last_stored(0) == 4
            await reader.cancel()

    @rule("C55")
    @virtual()
    async def test_delete_makes_the_next_start_begin_anew(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer() as consumer:
                await consumer.store_offset((await take(consumer, 10))[6])
            async with rig.consumer() as consumer:
                assert (await anext(consumer)).offset == 7
                await consumer.delete_offset(P0)
                assert (consumer.last_stored(0), rig.stored(P0)) == (None, None)
                assert (await anext(consumer)).offset == 8  # the reader goes on
            async with rig.consumer() as consumer:
                assert (await anext(consumer)).offset == 0
                await consumer.store_offset(0, 1, force=True)
                assert rig.stored(P0) == 1

    @virtual()
    async def test_storing_right_after_the_start_is_not_forgotten_when_the_start_is_known(self) -> None:
        """The answer about what was stored comes late: after the application has stored something higher."""
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("stored_offset", do=delay(1.0, reply=True))
            async with rig.consumer() as consumer:
                await settled()
                await consumer.store_offset(0, 5, force=True)
                await consumer.ready()
                assert consumer.last_stored(0) == rig.stored(P0) == 5
                await consumer.store_offset(0, 3, force=True)
                assert rig.stored(P0) == 5
            assert rig.stored(P0) == 5

    @virtual()
    async def test_names_and_the_unnamed_do_not_meddle(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            for name in ("a", "b"):
                async with rig.consumer(name=name) as consumer:
                    await consumer.store_offset(0, ord(name) - ord("a") + 3, force=True)
            async with rig.consumer(name=None) as consumer:
                assert (await anext(consumer)).offset == 0
            assert (rig.stored(P0, "a"), rig.stored(P0, "b"), rig.stored(P0, NAME)) == (3, 4, None)

    @rule("K57", "C53")
    @pytest.mark.parametrize("way", ["late", "cancelled", "lost"])
    @virtual()
    async def test_one_that_outlasts_its_topic_counts_for_nothing_in_the_next(self, way: str) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 51)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                last = (await take(consumer, 51))[-1]
                go = anyio.Event()
                rig.script.on("store_offset", do=lose_reply(after=5.0) if way == "lost" else hold(go, reply=True))
                storing = start(tasks, partial(consumer.store_offset, last))
                await anyio.sleep(0.5)
                await self.recreate(rig, consumer)
                if way == "cancelled":
                    await storing.cancel()
                go.set()
                await storing.done.wait()
                assert offsets(await take(consumer, 4)) == [0, 1, 2, 3]
            assert rig.stored(P0) == 2

    @rule("K57", "C53")
    @virtual()
    async def test_one_that_waits_for_its_turn_while_its_topic_is_created_again_is_refused(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 51)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 51)
                go = anyio.Event()
                rig.script.on("store_offset", do=hold(go, reply=True))
                start(tasks, partial(consumer.store_offset, messages[0]))
                await anyio.sleep(0.1)
                second = start(tasks, partial(consumer.store_offset, P0, 50))
                await self.recreate(rig, consumer)
                go.set()
                await second.done.wait()
                assert rig.stored(P0) is None
                assert isinstance(second.error, StaleAssignment)

    async def recreate(self, rig: Rig, consumer: Consumer) -> None:
        """Delete the topic and create it again, and let the consumer see it."""
        recreate(rig, 1)
        await rig.fill(P0, 100)
        with anyio.move_on_after(1.0), suppress(TopicNotFound):
            await anext(consumer)
        await anyio.sleep(1)
        assert rig.reported("topic_recreated")


class TestModes:
    @rule("C40", "K43")
    @virtual()
    async def test_disabled_stores_what_it_is_told_and_nothing_else(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer() as consumer:
                messages = await take(consumer, 20)
                await consumer.store_offset(messages[4])
                await anyio.sleep(3)
                await consumer.poll(max_wait=1.0)
            assert rig.stored(P0) == 4
            assert len(rig.calls("store_offset")) == 1
            assert (await consumer.shutdown()).committed == {P0: 4}

    @rule("C41")
    @virtual()
    async def test_interval_stores_what_was_delivered_every_so_often(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.interval(2.0)) as consumer:
                await take(consumer, 4)
                await anyio.sleep(1.9)
                assert rig.calls("store_offset") == []
                await anyio.sleep(0.2)
                assert rig.stored(P0) == 3  # the one in hand too
                await anyio.sleep(10)
                assert len(rig.calls("store_offset")) == 1  # nothing new, nothing stored
                await take(consumer, 2)
                await anyio.sleep(2)
                assert rig.stored(P0) == 5
                assert rig.stored(P1) is None

    @virtual()
    async def test_finished_stores_what_is_finished_every_so_often(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.finished(2.0)) as consumer:
                await take(consumer, 4)
                await anyio.sleep(2.1)
                assert rig.stored(P0) == 2  # the one in hand is not
                await consumer.poll(count=3, max_wait=0.0)
                await anyio.sleep(2)
                assert rig.stored(P0) == 3
                await consumer.poll(count=1, max_wait=0.0)
                await anyio.sleep(2)
                assert rig.stored(P0) == 6

    @rule("C51")
    @virtual()
    async def test_automatic_stores_are_off_the_delivery_path(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 100)
            rig.script.every("store_offset", do=delay(3.0))
            async with rig.consumer(poll=PollOptions(count=10), commit=AutoCommit.finished(0.5)) as consumer:
                for _ in range(90):
                    await anyio.sleep(0.1)
                    await anext(consumer)
                assert anyio.current_time() == pytest.approx(9.0)
                stores = rig.calls("store_offset")
                assert len(stores) <= 4
                asked = [call.arguments["offset"] for call in stores]
                assert asked == sorted(asked)
                assert asked[1] - asked[0] > 20  # the newest, not one after another

    @virtual()
    async def test_an_automatic_store_that_fails_is_reported_and_made_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.clear()
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 10)
            rig.script.on("store_offset", nth=range(1, 4), do=refuse(LogBusy("locked")))
            async with rig.consumer(commit=AutoCommit.finished(1.0)) as consumer:
                await take(consumer, 15)
                await anyio.sleep(1.5)
                assert len(rig.reported("store_failed")) == 2
                assert "]: the offset could not be stored (locked); trying again in 1 s" in caplog.text
                await anyio.sleep(1)
                assert len(rig.reported("store_failed")) == 3
                await anyio.sleep(1)
                assert {rig.stored(P0), rig.stored(P1)} == {9, 3}

    @rule("C54")
    @virtual()
    async def test_stores_that_keep_failing_have_a_line_now_and_then_with_their_number(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.clear()
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("store_offset", nth=range(1, 26), do=refuse(LogBusy("locked")))
            async with rig.consumer(commit=AutoCommit.finished(1.0)) as consumer:
                await take(consumer, 5)
                await anyio.sleep(30.5)
                assert rig.stored(P0) == 3
                assert consumer.statistics().stores_failed == 25
            assert len(rig.reported("store_failed")) == 25
            lines = [record.message for record in caplog.records if "could not be stored" in record.message]
            assert len(lines) == 3
            assert "(the last of" not in lines[0]
            assert all(line.endswith("(the last of 10 since the line before)") for line in lines[1:])

    @rule("C41")
    @virtual()
    async def test_reading_old_messages_again_stores_nothing(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer() as consumer:
                await consumer.store_offset(0, 15, force=True)
            for commit in (AutoCommit.interval(0.5), AutoCommit.finished(0.5)):
                async with rig.consumer(commit=commit, start=Start.first()) as consumer:
                    assert offsets(await take(consumer, 8)) == list(range(8))
                    await anyio.sleep(2)
                assert rig.stored(P0) == 15
            assert len(rig.calls("store_offset")) == 1

    @virtual(seeds=3)
    async def test_what_the_application_stores_itself_is_finished(self) -> None:
        """Also where the mode had stored more already, so that there was nothing to send."""
        async with opened(3) as rig:
            for partition in (P0, P1, P2):
                await rig.fill(partition, 6)
            async with rig.consumer(commit=AutoCommit.interval(0.5)) as consumer:
                batch = await consumer.poll(min_count=18)
                await anyio.sleep(1)
                assert (rig.stored(P0), rig.stored(P1), rig.stored(P2)) == (5, 5, 5)
                by_place = dict(zip(places(batch), batch, strict=True))
                await consumer.store_offset(by_place[0, 3])
                await consumer.store_offset(by_place[1, 5])
                report = await consumer.shutdown()
            assert report.committed == {P0: 3, P1: 5, P2: None}
            assert report.rewound == {P0: 2, P2: 6}
            assert report.unfinished == {P0: 2, P2: 6}

    @virtual(seeds=3)
    async def test_a_store_in_doubt_is_made_sure_by_the_next_one(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("store_offset", do=lose_request())
            rig.script.on("store_offset", nth=3, do=lose_reply())
            async with rig.consumer(commit=AutoCommit.finished(1.0)) as consumer:
                await take(consumer, 6)
                await anyio.sleep(1.5)
                assert (rig.stored(P0), consumer.last_stored(0)) == (None, None)
                await anyio.sleep(1)
                assert (rig.stored(P0), consumer.last_stored(0)) == (4, 4)
                await take(consumer, 2)
                await anyio.sleep(1)
                assert (rig.stored(P0), consumer.last_stored(0)) == (6, 4)
                await anyio.sleep(1)
                assert (rig.stored(P0), consumer.last_stored(0)) == (6, 6)

    @virtual(seeds=3)
    async def test_the_last_word_waits_for_a_store_that_is_out_and_does_not_undo_it(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer, anyio.create_task_group() as tasks:
                messages = await take(consumer, 10)
                rig.script.on("store_offset", do=delay(1.0))
                store = start(tasks, lambda: consumer.store_offset(messages[9]))
                await anyio.sleep(0.5)
                report = await consumer.shutdown()
                assert store.outcome == "returned"
                assert report.committed == {P0: 9}
            assert rig.stored(P0) == 9

    @virtual(seeds=3)
    async def test_a_store_the_shutdown_cut_off_is_put_right(self) -> None:
        """The interval has sent what was delivered; the answer is on its way when the consumer is shut down."""
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("store_offset", do=delay(30.0, reply=True))
            async with rig.consumer(commit=AutoCommit.interval(1.0)) as consumer:
                batch = await consumer.poll(count=5)
                await anyio.sleep(1.5)
                assert rig.stored(P0) == 4
                assert isinstance(batch[0], Message)
                report = await consumer.shutdown()
            assert report.committed == {P0: None}
            assert rig.stored(P0) is None

    @virtual()
    async def test_a_log_that_answers_no_store_does_not_hold_up_the_end(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            rig.script.every("store_offset", do=hold(anyio.Event()))
            async with rig.consumer(commit=AutoCommit.finished(1.0), drain_timeout=2.0) as consumer:
                await take(consumer, 3)
                await anyio.sleep(5)
                began = anyio.current_time()
                await consumer.shutdown()
                assert anyio.current_time() - began <= 2.1
            assert rig.reported("drain_timeout")
