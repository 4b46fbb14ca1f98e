"""The handler loop: what is finished and stored when, how it stops, what an error or a cancel of the handler leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import anyio
import pytest

from tarry import AutoCommit, Message, PollOptions, Start
from tarry.consumer.consumer import Consumer
from tarry.errors import ConcurrentRead, ConfigError, ConfigTypeError, DataError, NotStarted
from tarry.testing import delay, refuse
from tarry.types import TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Background, Rig, offsets, opened, settled, start, take
from tests.virtual import virtual

AFTER = pytest.mark.parametrize("commit", [AutoCommit.after_each(), AutoCommit.after_nth(1)], ids=str)
EVERY = pytest.mark.parametrize(
    "commit",
    [
        AutoCommit.finished(0.5),
        AutoCommit.interval(0.5),
        AutoCommit.on_poll(),
        AutoCommit.each_message(),
        AutoCommit.each_batch(),
        AutoCommit.every_nth(1),
        AutoCommit.after_each(),
        AutoCommit.after_nth(1),
        AutoCommit.after_head(),
        AutoCommit.interval(0.5) | AutoCommit.after_each(),
    ],
    ids=str,
)
"""All automatic modes."""
FIVE = PollOptions(count=5)
"""Lists of five messages."""


def sent(rig: Rig) -> list[int | None]:
    """The offsets that went to the log."""
    return [call.arguments["offset"] for call in rig.calls("store_offset")]


@dataclass
class Work:
    """A handler: notes what it gets and what was stored by then, takes `seconds`, and fails on `bad` offsets."""

    rig: Rig
    seconds: float = 1.0
    bad: frozenset[int] = frozenset()
    begun: list[int] = field(default_factory=list[int])
    done: list[int] = field(default_factory=list[int])
    stored: list[int | None] = field(default_factory=list["int | None"])

    async def __call__(self, message: Message) -> None:
        self.begun.append(message.offset)
        await settled()
        self.stored.append(self.rig.stored(P0))
        await anyio.sleep(self.seconds)
        if message.offset in self.bad:
            raise ValueError(f"cannot do {message.offset}")
        self.done.append(message.offset)


async def next_run(rig: Rig) -> int:
    """Where the next run would begin."""
    async with rig.consumer(start=Start.next()) as consumer:
        return (await anext(consumer)).offset


async def shut_down_after(consumer: Consumer, seconds: float) -> None:
    await anyio.sleep(seconds)
    await consumer.shutdown()


def yields(message: Message) -> Generator[Message]:
    yield message


async def yields_later(message: Message) -> AsyncGenerator[Message]:
    yield message


class Yields:
    """A handler that is an object."""

    def __call__(self, message: Message) -> Generator[Message]:
        yield message

    async def work(self, message: Message) -> AsyncGenerator[Message]:
        yield message


class TestMoments:
    """What is stored while the handler has message 0, 1, 2 ... in work."""

    @rule("C46")
    @virtual(seeds=2)
    async def test_after_each_stores_what_the_handler_returned_from(self) -> None:
        assert await self.stored(AutoCommit.after_each(), 7) == [None, 0, 1, 2, 3, 4, 5]

    @rule("C47")
    @virtual(seeds=2)
    async def test_after_nth_goes_by_the_offset(self) -> None:
        assert await self.stored(AutoCommit.after_nth(3), 8) == [None, 0, 0, 0, 3, 3, 3, 6]

    @rule("C48")
    @virtual(seeds=2)
    async def test_after_head_stores_when_caught_up_and_not_at_the_end_of_a_list(self) -> None:
        assert await self.stored(AutoCommit.after_head(), 12) == [None] * 12
        assert await self.stored(AutoCommit.after_head(), 15, appends=True) == [None] * 12 + [11]

    @rule("C43")
    @virtual(seeds=2)
    async def test_a_mode_of_the_hand_over_stores_before_the_handler_has_begun(self) -> None:
        assert await self.stored(AutoCommit.each_message(), 4) == [0, 1, 2, 3]

    @rule("C50")
    @virtual(seeds=2)
    async def test_an_interval_beside_it_stores_what_is_in_work(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 12)
            async with rig.consumer(commit=AutoCommit.interval(1.5) | AutoCommit.after_nth(5)) as consumer:
                work = Work(rig, seconds=1.0)
                tasks.start_soon(consumer.consume, work)
                await anyio.sleep(0.9)
                assert rig.stored(P0) is None
                await anyio.sleep(0.2)
                assert rig.stored(P0) == 0  # 0 was done
                await anyio.sleep(0.5)
                assert rig.stored(P0) == 1  # 1 is in work, and the timer has struck
                await consumer.shutdown()
                assert rig.stored(P0) == work.done[-1] == 1

    @AFTER
    @rule("C33", "C46")
    @virtual()
    async def test_what_its_handler_sought_back_to_is_not_stored_when_it_returns(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            begun: list[int] = []
            stored: list[int | None] = []
            stop = anyio.Event()

            async def once_more(message: Message) -> None:
                begun.append(message.offset)
                await anyio.sleep(1.0)
                stored.append(rig.stored(P0))
                if begun == [0, 1]:
                    await consumer.seek(P0, message.offset)
                elif message.offset == 1:
                    stop.set()

            async with rig.consumer(commit=commit) as consumer:
                await consumer.consume(once_more, stop=stop)
            assert begun == [0, 1, 1]
            assert stored == [None, 0, 0]
            assert rig.stored(P0) == 1

    async def stored(self, commit: AutoCommit, count: int, *, appends: bool = False) -> list[int | None]:
        """Twelve messages are there; with `appends` a thirteenth comes when the handler has been idle for a while."""
        found: list[int | None] = []
        async with opened() as rig, anyio.create_task_group() as tasks:
            work = Work(rig, seconds=1.0, stored=found)
            await rig.fill(P0, 12)
            async with rig.consumer(commit=commit, poll=FIVE) as consumer:
                tasks.start_soon(consumer.consume, work)
                await anyio.sleep(count - 0.5)
                if appends:
                    await rig.fill(P0, 1)
                    await anyio.sleep(0.5)
                await consumer.shutdown()
        return found


class TestFinished:
    @EVERY
    @virtual(seeds=3)
    async def test_whatever_the_mode_a_shutdown_lets_the_message_in_work_end(self, commit: AutoCommit) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 12)
            work = Work(rig)
            async with rig.consumer(commit=commit, poll=FIVE) as consumer:
                tasks.start_soon(shut_down_after, consumer, 3.5)
                await consumer.consume(work)
                assert work.begun == work.done == [0, 1, 2, 3]
                assert (await consumer.shutdown()).unfinished == {}
            assert rig.stored(P0) == 3
            assert await next_run(rig) == 4

    @rule("C40")
    @virtual(seeds=2)
    async def test_disabled_stores_what_the_handler_stores(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 12)
            async with rig.consumer() as consumer:

                async def work(message: Message) -> None:
                    await anyio.sleep(1)
                    if message.offset % 2:
                        await consumer.store_offset(message)

                tasks.start_soon(shut_down_after, consumer, 4.5)
                await consumer.consume(work)
            assert sent(rig) == [1, 3]

    @virtual()
    async def test_a_handler_need_not_be_async(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 12)
            got: list[Message] = []
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                tasks.start_soon(shut_down_after, consumer, 1)
                await consumer.consume(got.append)
            assert offsets(got) == list(range(12))
            assert rig.stored(P0) == 11

    @rule("C51")
    @virtual()
    async def test_a_slow_log_does_not_hold_the_handler_up(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 100)
            work = Work(rig, seconds=0.1)
            rig.script.every("store_offset", do=delay(1.0))
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                tasks.start_soon(consumer.consume, work)
                await anyio.sleep(5.05)
                assert len(work.done) == 50
                assert len(sent(rig)) <= 6
                await consumer.shutdown()

    @rule("C98")
    @virtual()
    async def test_one_warning_at_its_start_where_nothing_is_stored_by_itself(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            stopped = anyio.Event()
            stopped.set()
            for options, warns in (
                ({}, True),
                ({"name": None}, True),
                ({"start": Start.first()}, False),
                ({"commit": AutoCommit.after_each()}, False),
            ):
                caplog.clear()
                async with rig.consumer(**cast("dict[str, Any]", options)) as consumer:
                    await consumer.consume(print, stop=stopped)
                found = [record for record in caplog.records if "each start begins at the first" in record.message]
                assert len(found) == warns
            assert len(rig.reported("never_stored")) == 2

    @rule("C98")
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({}, "begins at the first message again unless the handler calls store_offset; pass commit="),
            ({"name": None}, "begins at the first message again; pass name= and commit="),
            (
                {"start": Start.next(otherwise=Start.end())},
                "begins at the end and skips what is there unless the handler calls store_offset; pass commit=",
            ),
            (
                {"start": Start.next(otherwise="fail")},
                "is refused with OffsetOutOfRange unless the handler calls store_offset; pass commit=",
            ),
        ],
    )
    @virtual()
    async def test_it_says_where_a_start_leads_and_names_only_what_this_consumer_can_do(
        self, options: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            stopped = anyio.Event()
            stopped.set()
            async with rig.consumer(**options) as consumer:
                await consumer.consume(print, stop=stopped)
            assert f"each start {says}AutoCommit.after_each()" in caplog.text


class TestStop:
    @AFTER
    @virtual(seeds=3)
    async def test_the_message_in_work_ends_and_no_other_is_begun(self, commit: AutoCommit) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 12)
            stop, work = anyio.Event(), Work(rig)
            async with rig.consumer(commit=commit) as consumer:
                loop = start(tasks, lambda: consumer.consume(work, stop=stop))
                await anyio.sleep(2.5)
                stop.set()
                await loop.done.wait()
                assert anyio.current_time() == pytest.approx(3.0, abs=0.01)
                assert work.begun == work.done == [0, 1, 2]
                await settled()
                assert rig.stored(P0) == 2
                assert (await anext(consumer)).offset == 3  # the consumer is open, and nothing was skipped
            assert rig.stored(P0) == 2

    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual(seeds=3)
    async def test_a_loop_that_waits_ends_at_once(self, partitions: int) -> None:
        async with opened(partitions) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 2)
            stop = anyio.Event()
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                loop = start(tasks, lambda: consumer.consume(Work(rig), stop=stop))
                await anyio.sleep(10)
                stop.set()
                await loop.done.wait()
                assert loop.outcome == "returned"
                assert anyio.current_time() == pytest.approx(10.0, abs=0.01)
                await rig.fill(P0, 1)
                assert (await anext(consumer)).offset == 2

    @virtual()
    async def test_set_beforehand_nothing_is_begun(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            stop, work = anyio.Event(), Work(rig)
            stop.set()
            async with rig.consumer(commit=AutoCommit.finished()) as consumer:
                await take(consumer, 3)
                await consumer.consume(work, stop=stop)
                assert work.begun == []
                assert consumer.last_delivered(0) == 2
            assert rig.stored(P0) == 2  # a read call finishes what was handed out before

    @virtual(seeds=2)
    async def test_a_later_loop_has_a_stop_of_its_own(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            first, second = anyio.Event(), anyio.Event()
            first.set()
            work = Work(rig)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                await consumer.consume(work, stop=first)
                loop = start(tasks, lambda: consumer.consume(work, stop=second))
                await anyio.sleep(10)
                assert work.done == [0, 1, 2]
                second.set()
                await loop.done.wait()

    @virtual(seeds=2)
    async def test_the_handler_may_shut_the_consumer_down_itself_and_its_message_is_unfinished(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:

                async def work(message: Message) -> None:
                    if message.offset == 3:
                        report = await consumer.shutdown()
                        assert report.unfinished == {P0: 1}

                await consumer.consume(work)
            assert anyio.current_time() < 0.1
            assert rig.stored(P0) == 2
            with pytest.raises(NotStarted):
                await consumer.poll()


class TestFailures:
    @rule("K10", "C97")
    @EVERY
    @virtual(seeds=2)
    async def test_an_error_ends_the_loop_and_nothing_passes_its_message(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            work = Work(rig, bad=frozenset({3}))
            consumer = rig.consumer(commit=commit, poll=FIVE)
            with pytest.raises(ValueError, match="cannot do 3"):
                async with consumer:
                    await consumer.consume(work)
            report = await consumer.shutdown()
            assert (report.committed, report.unfinished) == ({P0: 2}, {P0: 1})
            assert rig.stored(P0) == 2
            assert await next_run(rig) == 3

    @rule("K10", "C97")
    @pytest.mark.parametrize("again", ["consume", "loop", "poll"])
    @virtual(seeds=2)
    async def test_whoever_goes_on_with_the_same_consumer_gets_it_again(self, again: str) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            work = Work(rig, bad=frozenset({3}))
            async with rig.consumer(commit=AutoCommit.after_each(), poll=FIVE) as consumer:
                for _ in range(3):
                    with pytest.raises(ValueError, match="cannot do 3"):
                        await consumer.consume(work)
                    await anyio.sleep(5)
                    assert rig.stored(P0) == 2
                assert work.begun == [0, 1, 2, 3, 3, 3]
                if again == "poll":
                    assert offsets(await consumer.poll(count=7, min_count=7)) == [3, 4, 5, 6, 7, 8, 9]
                elif again == "loop":
                    assert offsets(await take(consumer, 7)) == [3, 4, 5, 6, 7, 8, 9]
                else:
                    work.bad = frozenset({9})
                    with pytest.raises(ValueError, match="cannot do 9"):
                        await consumer.consume(work)
                    assert work.done == list(range(9))

    @rule("K10")
    @virtual()
    async def test_unless_it_was_stored_all_the_same(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:

                async def work(message: Message) -> None:
                    if message.offset == 3:
                        await consumer.store_offset(message)
                        raise ValueError("late")

                with pytest.raises(ValueError, match="late"):
                    await consumer.consume(work)
                assert (await anext(consumer)).offset == 4

    @virtual()
    async def test_or_was_sought_past(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            work = Work(rig, bad=frozenset({3}))
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                with pytest.raises(ValueError, match="cannot do 3"):
                    await consumer.consume(work)
                await consumer.seek(0, 4)
                assert offsets(await take(consumer, 3)) == [4, 5, 6]
            assert rig.stored(P0) == 5

    @rule("C97")
    @virtual(seeds=2)
    async def test_skip_logs_it_and_calls_it_finished(self, caplog: pytest.LogCaptureFixture) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            work = Work(rig, bad=frozenset({3, 9}))
            caplog.clear()
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                tasks.start_soon(shut_down_after, consumer, 20)
                await consumer.consume(work, on_error="skip")
                assert work.done == [0, 1, 2, 4, 5, 6, 7, 8]
                assert (await consumer.shutdown()).unfinished == {}
            assert rig.stored(P0) == 9
            assert [fields["offset"] for fields in rig.reported("handler_failed")] == [3, 9]
            record = next(
                record for record in caplog.records if "handler failed on message 3 of t[0]" in record.message
            )
            assert record.exc_info is not None
            assert str(record.exc_info[1]) == "cannot do 3"

    @rule("C97")
    @virtual()
    async def test_many_failures_have_a_line_now_and_then_with_their_number(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 120)
            caplog.clear()

            async def fail(message: Message) -> None:
                await anyio.sleep(0.1)
                raise ValueError(f"cannot do {message.offset}")

            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                tasks.start_soon(shut_down_after, consumer, 15)
                await consumer.consume(fail, on_error="skip")
            assert [fields["offset"] for fields in rig.reported("handler_failed")] == list(range(120))
            first, second = [record for record in caplog.records if "handler failed" in record.message]
            assert "message 0 of t[0]" in first.message
            assert "(the last of" not in first.message
            number = int(second.message.split("message ")[1].split(" of ")[0])
            assert 99 <= number <= 101
            assert second.message.endswith(f"(the last of {number} since the line before)")
            assert second.exc_info is not None
            assert str(second.exc_info[1]) == f"cannot do {number}"

    @rule("C97", "K16")
    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    @virtual(seeds=2)
    async def test_a_cancel_is_never_swallowed_and_its_message_comes_again(self, on_error: Any) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            work = Work(rig)
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                with anyio.move_on_after(3.5) as limit:
                    await consumer.consume(work, on_error=on_error)
                assert limit.cancelled_caught
                assert rig.stored(P0) == 3
                with anyio.move_on_after(1.5):
                    await consumer.consume(work, on_error=on_error)
                assert work.begun == [0, 1, 2, 3, 3, 4]
            assert rig.stored(P0) == 3

    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
    @virtual()
    async def test_what_is_no_ordinary_error_passes(self, on_error: Any, kind: type[BaseException]) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)

            def work(message: Message) -> None:
                if message.offset == 3:
                    raise kind

            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                with pytest.raises(kind):
                    await consumer.consume(work, on_error=on_error)
            assert rig.stored(P0) == 2

    @virtual()
    async def test_while_it_waits_a_cancel_loses_nothing(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 2)
            work = Work(rig, seconds=0.0)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                with anyio.move_on_after(3):
                    await consumer.consume(work)
                await rig.fill(P0, 2)
                with anyio.move_on_after(3):
                    await consumer.consume(work)
                assert work.done == [0, 1, 2, 3]

    @virtual(seeds=2)
    async def test_nobody_waits_for_a_handler_that_has_failed(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.after_each()).__aenter__()

            async def read() -> None:
                with pytest.raises(ValueError, match="cannot do 3"):
                    await consumer.consume(Work(rig, seconds=0.0, bad=frozenset({3})))
                await anyio.sleep(100)

            reader: Background = start(tasks, read)
            await anyio.sleep(1)
            report = await consumer.shutdown()
            assert anyio.current_time() < 1.1
            assert (report.committed, report.unfinished) == ({P0: 2}, {P0: 1})
            await reader.cancel()

    @virtual()
    async def test_an_error_of_a_partition_is_raised_whatever_on_error_says(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            work = Work(rig, seconds=0.0)
            rig.script.on("poll", nth=range(1, 3), do=refuse(DataError("cannot be read")))
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                for _ in range(2):  # every partition is stopped: said each time
                    with pytest.raises(DataError, match="cannot be read"):
                        await consumer.consume(work, on_error="skip")
                await consumer.seek(0, 1)
                tasks.start_soon(shut_down_after, consumer, 2)
                await consumer.consume(work, on_error="skip")
                assert work.done == [1, 2]


class TestWhoReads:
    @rule("K97")
    @virtual(seeds=2)
    async def test_another_task_may_not_read_meanwhile(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 2)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                work = Work(rig)
                tasks.start_soon(consumer.consume, work)
                for _ in range(4):  # at work twice, then waiting
                    await anyio.sleep(0.9)
                    with pytest.raises(ConcurrentRead):
                        await anext(consumer)
                    with pytest.raises(ConcurrentRead):
                        await consumer.consume(work)
                await consumer.shutdown()
                assert work.done == [0, 1]

    @rule("K97", "C24")
    @virtual()
    async def test_nor_behind_a_handler_that_has_stored_its_message_and_goes_on(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)

            async def work(message: Message) -> None:
                await consumer.store_offset(message)
                await anyio.sleep(2.0)
                raise ValueError("behind the store")

            async with rig.consumer() as consumer:
                handling = start(tasks, lambda: consumer.consume(work))
                await anyio.sleep(1.0)
                with pytest.raises(ConcurrentRead, match="another task, which runs a handler; let one task read"):
                    await anext(consumer)
                await handling.done.wait()
                assert offsets(await take(consumer, 2)) == [1, 2]

    @rule("K97")
    @virtual()
    async def test_two_loops_are_refused_even_from_within_the_handler(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 2)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:

                async def work(_: Message) -> None:
                    await consumer.consume(print)

                with pytest.raises(ConcurrentRead, match="already runs a handler"):
                    await consumer.consume(work)

    @virtual()
    async def test_it_needs_a_started_consumer_and_ends_at_once_on_a_closed_one(self) -> None:
        async with opened() as rig:
            consumer = rig.consumer()
            with pytest.raises(NotStarted):
                await consumer.consume(print)
            async with consumer:
                pass
            await consumer.consume(print)

    @virtual()
    async def test_wrong_arguments_are_named(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            consume: Callable[..., Any] = consumer.consume
            with pytest.raises(ConfigTypeError, match=r"consume\(5\) needs a function"):
                await consume(5)
            with pytest.raises(ConfigTypeError, match=r"stop=True is a bool; it takes an anyio\.Event"):
                await consume(print, stop=True)
            with pytest.raises(ConfigError, match="on_error='ignore': use 'raise' or 'skip'"):
                await consume(print, on_error="ignore")

    @rule("C46")
    @pytest.mark.parametrize(
        "handler",
        [yields, yields_later, partial(partial(yields)), Yields(), Yields().work, partial(Yields())],
        ids=["generator", "async", "partial", "object", "method", "partial-object"],
    )
    @virtual()
    async def test_a_handler_whose_body_would_never_run_is_refused_and_finishes_nothing(self, handler: Any) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.after_each()) as consumer:
                with pytest.raises(ConfigTypeError, match=r"contains `yield`.*pass a function without `yield`"):
                    await consumer.consume(handler)
            assert rig.stored(P0) is None

    @rule("C46", "K32")
    @virtual(seeds=3)
    async def test_a_partition_that_moves_is_handed_over_when_the_handler_returned(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            await rig.fill(P1, 20)
            done: list[tuple[TopicPartition, int, str]] = []

            async def run(name: str) -> None:
                async def work(message: Message) -> None:
                    await anyio.sleep(0.3)
                    done.append((message.topic_partition, message.offset, name))

                async with rig.member(commit=AutoCommit.after_each()) as consumer:
                    tasks.start_soon(shut_down_after, consumer, 30)
                    await consumer.consume(work)

            tasks.start_soon(run, "a")
            await anyio.sleep(2)
            await run("b")
            assert sorted((at, offset) for at, offset, _ in done) == [(at, n) for at in (P0, P1) for n in range(20)]
            assert {name for _, _, name in done} == {"a", "b"}
            assert (rig.group_stored(P0), rig.group_stored(P1)) == (19, 19)
