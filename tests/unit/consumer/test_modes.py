"""The modes that store at an event: the exact moment of each, in a plain loop and in `poll`, and what they survive."""

from __future__ import annotations

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.errors import CapacityExceeded, ConfigError, LogBusy, StaleAssignment
from tarry.testing import delay, hold, lose_reply, refuse
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Rig, offsets, opened, settled, start, take
from tests.unit.consumer.test_reading import recreate
from tests.virtual import virtual

AT_HAND_OVER = pytest.mark.parametrize(
    "commit", [AutoCommit.each_message(), AutoCommit.each_batch(), AutoCommit.every_nth(1)], ids=str
)
AFTER = pytest.mark.parametrize(
    "commit", [AutoCommit.after_each(), AutoCommit.after_nth(1), AutoCommit.after_head()], ids=str
)
FIVE = PollOptions(count=5)
"""Lists of five messages."""


def sent(rig: Rig) -> list[int | None]:
    """The offsets that went to the log."""
    return [call.arguments["offset"] for call in rig.calls("store_offset")]


async def stored_at_each(rig: Rig, commit: AutoCommit, count: int) -> list[int | None]:
    """What is stored while each message is in hand."""
    found: list[int | None] = []
    async with rig.consumer(commit=commit, poll=FIVE) as consumer:
        for _ in range(count):
            await anext(consumer)
            await settled()
            found.append(rig.stored(P0))
    return found


class TestMoments:
    @rule("C43")
    @virtual(seeds=2)
    async def test_each_message_is_stored_before_any_work_on_it_ends(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            assert await stored_at_each(rig, AutoCommit.each_message(), 7) == [0, 1, 2, 3, 4, 5, 6]

    @rule("C44")
    @virtual(seeds=2)
    async def test_each_batch_is_stored_with_its_last_message(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            found = await stored_at_each(rig, AutoCommit.each_batch(), 12)
            assert found == [None] * 4 + [4] * 5 + [9] * 2 + [11]

    @rule("C45")
    @virtual(seeds=2)
    async def test_every_nth_is_stored_where_the_offset_is_divisible(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            found = await stored_at_each(rig, AutoCommit.every_nth(4), 10)
            assert found == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8]

    @rule("C45")
    @virtual()
    async def test_every_nth_does_not_count_from_where_reading_began(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            async with rig.consumer(commit=AutoCommit.every_nth(4)) as consumer:
                await consumer.seek(0, 5)
                await take(consumer, 3)
                await settled()
                assert sent(rig) == []
                await anext(consumer)
                await settled()
                assert sent(rig) == [8]

    @rule("C43", "C44", "C45")
    @AT_HAND_OVER
    @virtual(seeds=2)
    async def test_a_poll_hands_its_batch_over_as_a_whole(self, commit: AutoCommit) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 6)
            await rig.fill(P1, 3)
            async with rig.consumer(commit=commit) as consumer:
                assert len(await consumer.poll(min_count=9)) == 9
                await settled()
                assert (rig.stored(P0), rig.stored(P1)) == (5, 2)
                assert len(rig.calls("store_offset")) == 2
                assert (await consumer.shutdown()).rewound == {P0: 6, P1: 3}
            assert (rig.stored(P0), rig.stored(P1)) == (None, None)

    @rule("C50")
    @virtual(seeds=2)
    async def test_an_interval_beside_it_stores_what_was_delivered(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            async with rig.consumer(commit=AutoCommit.interval(2.0) | AutoCommit.every_nth(5)) as consumer:
                await take(consumer, 4)
                await anyio.sleep(1.9)
                assert rig.stored(P0) == 0  # by its offset
                await anyio.sleep(0.2)
                assert rig.stored(P0) == 3  # by the timer
                await take(consumer, 2)
                await settled()
                assert rig.stored(P0) == 5  # by its offset
                await take(consumer, 1)
                await anyio.sleep(2)
                assert rig.stored(P0) == 6  # by the timer

    @rule("C49")
    @AFTER
    @virtual()
    async def test_the_modes_of_the_handler_do_nothing_in_a_plain_loop(
        self, commit: AutoCommit, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            caplog.clear()
            async with rig.consumer(commit=commit) as consumer:
                await take(consumer, 6)
                await consumer.poll(count=2)
                await take(consumer, 4)
                await anyio.sleep(100)
                assert sent(rig) == []
                assert len(rig.reported("no_handler")) == 1
                assert f"{commit} stores when the handler of consume() returns" in caplog.text
            assert sent(rig) == [10]  # the end, as in every automatic mode

    @rule("C49", "C50")
    @virtual()
    async def test_of_an_interval_beside_them_it_is_said_that_it_stores_ahead_of_the_work(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.after_each() | AutoCommit.interval(2.0)) as consumer:
                await take(consumer, 1)
                await anyio.sleep(2.1)
                assert rig.stored(P0) == 0  # which is in work
            assert "what was delivered is stored every 2 s, ahead of the work on it" in caplog.text
            assert "use AutoCommit.finished(2)" in caplog.text
            assert "at shutdown only" not in caplog.text

    @rule("C49", "C50")
    @virtual()
    async def test_with_an_interval_they_are_that_interval(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            async with rig.consumer(commit=AutoCommit.after_each() | AutoCommit.interval(2.0)) as consumer:
                await take(consumer, 6)
                await anyio.sleep(1.9)
                assert sent(rig) == []
                await anyio.sleep(0.2)
                assert sent(rig) == [5]


class TestTheEnd:
    @rule("C34", "K03")
    @AT_HAND_OVER
    @virtual(seeds=3)
    async def test_what_was_stored_ahead_of_the_work_is_brought_back(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            with pytest.raises(ValueError, match="work"):
                async with rig.consumer(commit=commit) as consumer:
                    async for message in consumer:
                        if message.offset == 4:
                            await settled()
                            assert rig.stored(P0) == 4
                            raise ValueError("work")
            assert rig.stored(P0) == 3

    @rule("C34")
    @virtual(seeds=5)
    async def test_a_store_that_is_out_when_it_ends_does_not_undo_the_last_word(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            rig.script.every("store_offset", do=delay(0.3))
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 3)
                await settled()
                assert sent(rig) == [2]
            await anyio.sleep(1)
            assert rig.stored(P0) == 1

    @rule("C34", "K32")
    @AT_HAND_OVER
    @virtual(seeds=3)
    async def test_a_partition_that_is_given_up_unfinished_is_brought_back_too(self, commit: AutoCommit) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 6)
            await rig.fill(P1, 6)
            async with rig.member(commit=commit, drain_timeout=0.2) as a:
                await a.poll(min_count=12)
                await settled()
                assert (rig.group_stored(P0), rig.group_stored(P1)) == (5, 5)
                rig.script.every("store_offset", do=delay(0.1))

                async def join() -> None:
                    async with rig.member():
                        await anyio.sleep(20)

                other = start(tasks, join)
                await anyio.sleep(5)
                (kept,) = a.assignment
                assert {at: rig.group_stored(at) for at in (P0, P1)} == {P0: None, P1: None} | {kept: 5}
                await other.cancel()

    @rule("C57", "K57")
    @virtual(seeds=3)
    async def test_nothing_of_a_deleted_topic_is_stored_for_the_new_one(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer(commit=AutoCommit.each_message(), poll=FIVE) as consumer:
                await take(consumer, 2)
                await settled()
                rig.script.on("store_offset", do=refuse(LogBusy("locked")))
                await take(consumer, 12)  # the last one is not the last one of its list
                await settled()
                recreate(rig, 1)
                await rig.fill(P0, 30)
                await anyio.sleep(5)
                assert rig.stored(P0) is None
                await take(consumer, 3)
                await settled()
                assert rig.stored(P0) == 2


class TestOffTheDeliveryPath:
    @rule("C51")
    @virtual(seeds=2)
    async def test_a_slow_log_holds_no_reader_up_and_gets_the_newest_offset_alone(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 40)
            rig.script.every("store_offset", do=delay(0.97))
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                for _ in range(40):
                    await anext(consumer)
                    await anyio.sleep(0.1)
                assert anyio.current_time() == pytest.approx(4.0)
                assert sent(rig) == [0, 9, 19, 29, 38]

    @rule("C51")
    @virtual(seeds=2)
    async def test_each_partition_is_stored_on_its_own_and_with_its_newest_offset(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            gate = anyio.Event()
            rig.script.on("store_offset", do=hold(gate))
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 6)
                await settled()
                first, second = [call.arguments["partition"] for call in rig.calls("store_offset")]
                assert {first, second} == {P0, P1}
                assert (rig.stored(first), rig.stored(second)) == (None, 2)
                gate.set()
                await anyio.sleep(0.1)
                assert (rig.stored(first), sent(rig)) == (2, [2, 2])

    @rule("C54")
    @virtual(seeds=2)
    async def test_one_that_fails_is_counted_shown_and_made_again(self, caplog: pytest.LogCaptureFixture) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            full = CapacityExceeded("too many consumer offsets")
            rig.script.on("store_offset", nth=range(1, 4), do=refuse(full))
            caplog.clear()
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 4)
                await anyio.sleep(5)
                assert rig.stored(P0) == 3
                counts = consumer.statistics()
                assert (counts.stored, counts.stores_failed, counts.store_error) == (1, 3, full)
                assert len(rig.reported("store_failed")) == 3
                assert "t[0]: the offset could not be stored (too many consumer offsets)" in caplog.text

    @rule("C54")
    @virtual()
    async def test_one_that_fails_for_good_is_not_made_again(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("store_offset", do=refuse(StaleAssignment("gone")))
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 4)
                await anyio.sleep(50)
                assert len(rig.calls("store_offset")) == 1
                await take(consumer, 1)
                await settled()
                assert rig.stored(P0) == 4  # the next message makes up for it
                assert consumer.statistics().stores_failed == 1

    @rule("C54")
    @virtual()
    async def test_failures_of_the_timer_and_of_the_end_count_too(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("store_offset", do=refuse(LogBusy("locked")))
            async with rig.consumer(commit=AutoCommit.finished(1.0)) as consumer:
                await take(consumer, 4)
                await anyio.sleep(1.5)
                assert consumer.statistics().stores_failed == 1
                rig.script.every("store_offset", do=refuse(StaleAssignment("gone")))
            assert consumer.statistics().stores_failed == 2
            assert isinstance(consumer.statistics().store_error, StaleAssignment)

    @rule("C53")
    @virtual(seeds=2)
    async def test_a_lost_answer_is_made_sure_by_the_next_store(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            rig.script.on("store_offset", do=lose_reply())
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 3)
                await anyio.sleep(5)
                assert (rig.stored(P0), consumer.last_stored(0)) == (2, 2)

    @rule("C24")
    @AT_HAND_OVER
    @virtual(seeds=2)
    async def test_a_cancelled_read_stores_nothing_of_what_it_did_not_hand_over(self, commit: AutoCommit) -> None:
        async with opened() as rig, rig.consumer(commit=commit) as consumer:
            with anyio.move_on_after(1.0):
                await anext(consumer)
            await rig.fill(P0, 3)
            await anyio.sleep(1)
            assert sent(rig) == []
            assert offsets(await take(consumer, 3)) == [0, 1, 2]

    @virtual()
    async def test_without_a_name_there_is_nothing_to_store_under(self) -> None:
        async with opened() as rig:
            commit = AutoCommit.interval(1.0) | AutoCommit.after_nth(3)
            with pytest.raises(
                ConfigError, match=r"AutoCommit\.interval\(1\) \| AutoCommit\.after_nth\(3\) stores offs"
            ):
                rig.consumer(name=None, commit=commit)
