"""The end: what is withdrawn, who waits for whom, what is stored last, what the report says."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, Batch, Message, PollOptions, Start
from tarry._runtime.bridge import backend
from tarry._runtime.tasks import returned
from tarry.consumer.consumer import Consumer
from tarry.errors import CapacityExceeded, FeatureUnavailable, LogUnavailable, NotAccepted, NotStarted, OffsetOutOfRange
from tarry.testing import Action, delay, hold, hook, lose_reply, refuse, run_virtual
from tarry.types import Offset, ShutdownReport, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import (
    P0,
    P1,
    Background,
    Rig,
    offsets,
    opened,
    owns,
    places,
    settled,
    start,
    take,
    take_all,
)
from tests.virtual import virtual

AUTOMATIC = pytest.mark.parametrize(
    "commit", [AutoCommit.finished(0.2), AutoCommit.interval(0.2), AutoCommit.finished(1000.0)]
)
MODES = pytest.mark.parametrize("commit", [AutoCommit.finished(0.2), AutoCommit.interval(0.2), AutoCommit.disabled()])


class NoException(BaseException):
    """An application's own way to end."""


def says(
    committed: Mapping[TopicPartition, int | None],
    rewound: Mapping[TopicPartition, int],
    unfinished: Mapping[TopicPartition, int],
) -> ShutdownReport:
    stored = {partition: None if offset is None else Offset(offset) for partition, offset in committed.items()}
    return ShutdownReport(stored, dict(rewound), dict(unfinished))


async def rest(rig: Rig, **options: Any) -> list[tuple[int, int]]:
    """What a second consumer of the same name gets."""
    async with rig.consumer(**options) as consumer:
        return places(await take_all(consumer))


class TestWithdrawn:
    @rule("K04")
    @pytest.mark.parametrize("partitions", [1, 3])
    @pytest.mark.parametrize("reads", ["loop", "poll"])
    @virtual(seeds=3)
    async def test_a_parked_request_does_not_outlive_the_consumer(self, partitions: int, reads: str) -> None:
        async with opened(partitions) as rig, anyio.create_task_group() as tasks:
            a = await rig.consumer(poll=PollOptions(max_wait=30.0)).__aenter__()
            start(tasks, lambda: anext(a) if reads == "loop" else a.poll(min_count=1))
            await anyio.sleep(1)
            assert rig.pump.parked == rig.leaders(partitions)
            await a.shutdown()
            assert anyio.current_time() < 1.01
            assert rig.pump.parked == 0
            await anyio.sleep(0.01)
            await rig.append(P0, *[b"x"] * 5)
            await anyio.sleep(0.49)
            async with rig.consumer() as b:
                assert offsets(await take(b, 5)) == [0, 1, 2, 3, 4]
                assert anyio.current_time() < 1.6
            assert rig.stored(P0) is None

    @rule("K29")
    @MODES
    @virtual(seeds=5)
    async def test_an_answer_in_the_step_of_the_shutdown_is_neither_committed_nor_held_back(
        self, commit: AutoCommit
    ) -> None:
        """The log answers 0 to 9 in the very step in which `shutdown` is called; nobody reads them any more."""
        async with opened() as rig, anyio.create_task_group() as tasks:
            bodies: list[int] = []

            async def loop(consumer: Consumer) -> None:
                async for message in consumer:
                    bodies.append(message.offset)  # noqa: PERF401  # the moment matters

            answered = anyio.Event()
            consumer = await rig.consumer(commit=commit).__aenter__()
            reader = start(tasks, lambda: loop(consumer))
            await anyio.sleep(1)
            rig.script.every("poll", do=hold(answered, reply=True))
            await consumer.seek(0, 0)  # a new request, whose answer waits for the event
            await rig.append(P0, *[b"x"] * 10)
            answered.set()
            report = await consumer.shutdown()
            await reader.done.wait()
            rig.script._rules.clear()
            seen = len(bodies)
            await anyio.sleep(1)
            assert len(bodies) == seen  # no body ran after shutdown had returned
            began = anyio.current_time()
            async with rig.consumer() as other:
                assert offsets(await take(other, 10 - seen if commit.mode != "disabled" else 10))[-1] == 9
            assert anyio.current_time() - began < 0.5
            assert report.committed == {P0: None if commit.mode == "disabled" or not seen else seen - 1}

    @virtual(seeds=3)
    async def test_a_fetch_that_is_out_is_not_waited_for(self) -> None:
        async with opened(2) as rig:
            rig.script.every("poll", do=hold(anyio.Event()))
            await rig.fill(P0, 3)
            async with rig.consumer() as consumer:
                await anyio.sleep(1)
                await consumer.shutdown()
                assert anyio.current_time() < 1.01
            assert [call.outcome for call in rig.calls("poll")] == ["cancelled"]


class TestTheLastWord:
    @rule("K03")
    @AUTOMATIC
    @virtual(seeds=3)
    async def test_every_partition_is_left_at_its_first_unfinished_message(self, commit: AutoCommit) -> None:
        """50 + 50 messages buffered; 7 and 3 bodies finished, one running when its task is cancelled."""
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 50)
            await rig.fill(P1, 50)
            finished: list[tuple[int, int]] = []
            consumer = await rig.consumer(commit=commit, poll=PollOptions(count=1)).__aenter__()

            async def loop() -> None:
                async for message in consumer:
                    if len(finished) == 10:
                        await anyio.sleep_forever()
                    await anyio.sleep(0.05)
                    finished.append((message.partition, message.offset))

            reader = start(tasks, loop)
            await anyio.sleep(3)
            shutdown = start(tasks, consumer.shutdown)
            await anyio.sleep(0.1)
            assert shutdown.outcome == "running"
            await reader.cancel()
            await shutdown.done.wait()
            report: ShutdownReport = shutdown.result
            counts = [sum(partition == number for partition, _ in finished) for number in (0, 1)]
            assert sum(counts) == 10
            assert (rig.stored(P0), rig.stored(P1)) == (counts[0] - 1, counts[1] - 1)
            assert report.committed == {P0: counts[0] - 1, P1: counts[1] - 1}
            assert sum(report.unfinished.values()) == 1
            second = await rest(rig)
            assert len(second) == 90
            assert sorted([*finished, *second]) == [(number, offset) for number in (0, 1) for offset in range(50)]

    @rule("K03")
    @virtual()
    async def test_the_case_word_for_word(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 50)
            await rig.fill(P1, 50)
            async with rig.consumer(commit=AutoCommit.finished(1000.0), partitions=[0]) as consumer:
                await take(consumer, 7)
                await consumer.store_offset(0, 6)
            consumer = await rig.consumer(commit=AutoCommit.finished(1000.0), partitions=[1]).__aenter__()

            async def loop() -> None:
                async for message in consumer:
                    if message.offset == 3:
                        await anyio.sleep_forever()

            reader = start(tasks, loop)
            await anyio.sleep(1)
            shutdown = start(tasks, consumer.shutdown)
            await anyio.sleep(1)
            await reader.cancel()
            await shutdown.done.wait()
            assert (rig.stored(P0), rig.stored(P1)) == (6, 2)
            second = await rest(rig)
            assert len(second) == 43 + 47
            assert set(second) == {(0, offset) for offset in range(7, 50)} | {(1, offset) for offset in range(3, 50)}

    @rule("K77")
    @pytest.mark.parametrize("start_rule", [Start.next(), Start.next(otherwise=Start.first())])
    @AUTOMATIC
    @virtual()
    async def test_restarts_at_any_moment_skip_nothing(self, commit: AutoCommit, start_rule: Start) -> None:
        options: dict[str, Any] = {"commit": commit, "start": start_rule}
        async with opened() as rig:
            await rig.fill(P0, 5)
            for _ in range(3):
                async with rig.consumer(**options):
                    pass
                async with rig.consumer(**options) as consumer:
                    await anyio.sleep(1)  # fetched, not read
            async with rig.consumer(**options) as consumer:
                message = await anext(consumer)
                assert message.offset == 0
                await consumer.store_offset(message)
            async with rig.consumer(**options) as consumer:
                assert (await anext(consumer)).offset == 1
                await consumer.store_offset(0, 4, force=True)
            await rig.fill(P0, 1)
            options["start"] = Start.next(otherwise="fail")  # something is stored by now
            async with rig.consumer(**options) as consumer:
                assert (await anext(consumer)).offset == 5
            async with rig.consumer(**options) as consumer:
                assert (await anext(consumer)).offset == 5

    @rule("K77")
    @virtual()
    async def test_where_nothing_is_stored_and_that_is_a_failure(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            async with rig.consumer(start=Start.next(otherwise="fail")) as consumer:
                with pytest.raises(OffsetOutOfRange, match="nothing is stored for"):
                    await anext(consumer)
            assert rig.stored(P0) is None

    @pytest.mark.parametrize("way", ["error", "break", "return", "cancel"])
    @AUTOMATIC
    @virtual()
    async def test_a_message_in_hand_when_the_loop_is_left_comes_again(self, commit: AutoCommit, way: str) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)

            async def work() -> None:
                async with rig.consumer(commit=commit) as consumer:
                    async for message in consumer:
                        await anyio.sleep(0.1)
                        if message.offset == 6:
                            match way:
                                case "error":
                                    raise ValueError(way)
                                case "break":
                                    break
                                case "return":
                                    return
                                case _:
                                    await anyio.sleep_forever()

            with anyio.move_on_after(5):
                if way == "error":
                    with pytest.raises(ValueError, match=way):
                        await work()
                else:
                    await work()
            assert rig.stored(P0) == 5
            assert await rest(rig) == [(0, offset) for offset in range(6, 10)]

    @MODES
    @virtual()
    async def test_but_not_when_it_was_stored(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=commit) as consumer:
                async for message in consumer:
                    if message.offset == 6:
                        await consumer.store_offset(message)
                        await anyio.sleep(1)
                        break
            report = await consumer.shutdown()
            assert report == says({P0: 6}, {}, {})
            assert await rest(rig) == [(0, offset) for offset in range(7, 10)]

    @AUTOMATIC
    @virtual()
    async def test_a_batch_in_hand_is_unfinished_as_a_whole(self, commit: AutoCommit) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 5)
            async with rig.consumer(commit=commit) as consumer:
                assert len(await consumer.poll(count=4)) == 4
                batch = await consumer.poll(min_count=11)
                assert len(batch) == 11
                await anyio.sleep(1)
                stored = {partition: first - 1 if first else None for partition, (first, _) in batch.offsets.items()}
                report = await consumer.shutdown()
            assert {partition: rig.stored(partition) for partition in batch.offsets} == stored
            assert report.unfinished == {p: last - first + 1 for p, (first, last) in batch.offsets.items()}

    @virtual()
    async def test_the_report_counts_a_batch_out_of_several_fetches_of_one_partition(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.finished(), poll=PollOptions(count=3)) as consumer:
                await settled()
                await rig.fill(P0, 3)
                batch = await consumer.poll(count=6, min_count=6)
                assert len({segment.origin for segment in batch.segments}) == 2
                report = await consumer.shutdown()
            assert report.unfinished == {P0: 6}

    @AUTOMATIC
    @virtual()
    async def test_any_read_call_finishes_what_was_handed_out_even_a_cancelled_one(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.fill(P0, 4)
            async with rig.consumer(commit=commit) as consumer:
                await consumer.poll()
                with anyio.move_on_after(1):
                    await consumer.poll(max_wait=60.0)
            assert rig.stored(P0) == 3
            await rig.fill(P0, 1)
            async with rig.consumer(commit=commit) as consumer:
                assert (await anext(consumer)).offset == 4
                with anyio.move_on_after(1):
                    await anext(consumer)
            assert rig.stored(P0) == 4

    @virtual()
    async def test_the_interval_may_store_early_and_is_brought_back(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.interval(0.5)) as consumer:
                await take(consumer, 3)
                await consumer.poll(count=5)
                await anyio.sleep(1)
                assert rig.stored(P0) == 7
                report = await consumer.shutdown()
            assert report.rewound == {P0: 5}
            assert report.unfinished == {P0: 5}
            assert rig.stored(P0) == 2

    @rule("C40", "K43")
    @virtual()
    async def test_disabled_is_never_touched(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer() as consumer:
                await consumer.store_offset((await take(consumer, 20))[4])
                report = await consumer.shutdown()
            assert len(rig.calls("store_offset")) == 1
            assert report == says({P0: 4}, {}, {P0: 1})
            async with rig.consumer() as consumer:
                await take(consumer, 10)
                report = await consumer.shutdown()
            assert report == says({P0: 4}, {}, {P0: 1})
            assert len(rig.calls("store_offset")) == 1

    @virtual()
    async def test_a_final_store_that_fails_is_reported_and_the_others_go_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.clear()
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                await take(consumer, 6)
                rig.script.on("store_offset", do=refuse(FeatureUnavailable("gone")))
                rig.script.on("leave", do=refuse(LogUnavailable("gone")))
                report = await consumer.shutdown()
            assert sorted([report.committed[P0] is None, report.committed[P1] is None]) == [False, True]
            assert "could not be stored (gone)" in caplog.text
            assert rig.reported("leave_failed")

    @rule("C67", "C91")
    @pytest.mark.parametrize(
        "trouble", [refuse(NotAccepted), refuse(CapacityExceeded), refuse(LogUnavailable("away")), lose_reply()]
    )
    @virtual(seeds=2)
    async def test_a_final_store_that_may_work_later_is_made_again(self, trouble: Action) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                await take(consumer, 3)
                for nth in (1, 2, 3):
                    rig.script.on("store_offset", nth=nth, do=trouble)
                report = await consumer.shutdown()
            assert (rig.stored(P0), report.committed) == (1, {P0: 1})
            assert not rig.reported("store_failed")

    @virtual()
    async def test_a_final_store_that_is_refused_all_the_time_is_given_up_at_the_limit(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.finished(100.0), drain_timeout=2.0) as consumer:
                await take(consumer, 3)
                rig.script.every("store_offset", do=refuse(NotAccepted))
                before = anyio.current_time()
                await consumer.shutdown()
                assert anyio.current_time() - before == pytest.approx(2.0, abs=0.1)
            assert len(rig.reported("drain_timeout")) == 1

    @rule("C67", "C62")
    @pytest.mark.parametrize("commit", [AutoCommit.on_poll(), AutoCommit.each_message()])
    @pytest.mark.parametrize("trouble", [refuse(FeatureUnavailable("gone")), refuse(NotAccepted), delay(3600.0)])
    @virtual()
    async def test_what_was_stored_ahead_and_is_not_brought_back_is_named(
        self, trouble: Action, commit: AutoCommit, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=commit, drain_timeout=2.0) as consumer:
                await take(consumer, 2)
                await settled()
                stored = rig.stored(P0)
                rig.script.every("store_offset", do=trouble)
                caplog.clear()
                await consumer.shutdown()
            assert rig.stored(P0) == stored
            named = [(event["partition"], event["first"], event["last"]) for event in rig.reported("possibly_lost")]
            assert named == [(P0, 1, stored)]
            assert f"{P0}: messages 1 to {stored} were committed for this consumer" in caplog.text

    @rule("C67", "C34")
    @pytest.mark.parametrize("commit", [AutoCommit.finished(100.0), AutoCommit.each_message(), AutoCommit.on_poll()])
    @pytest.mark.parametrize("ends", [SystemExit(4), KeyboardInterrupt(), NoException()], ids=repr)
    @virtual()
    async def test_a_last_hook_that_ends_the_program_costs_no_last_store(
        self, ends: BaseException, commit: AutoCommit
    ) -> None:
        def on_revoked(_: object) -> None:
            raise ends

        async with opened() as rig:
            await rig.fill(P0, 10)
            consumer = await rig.member(commit=commit, on_revoked=on_revoked).__aenter__()
            await take(consumer, 3)
            await settled()
            with pytest.raises(type(ends)) as raised:
                await consumer.shutdown()
            assert raised.value is ends
            assert rig.group_stored(P0) == 1
            assert len(rig.calls("leave")) == 1
            assert (await consumer.shutdown()).committed == {P0: 1}

    @rule("C67", "K10")
    @virtual()
    async def test_a_message_whose_handler_fails_meanwhile_is_unfinished(self) -> None:
        async def handler(message: Message) -> None:
            await anyio.sleep(2)
            raise ValueError(message)

        async def work(consumer: Consumer) -> None:
            with suppress(ValueError):
                await consumer.consume(handler)
            await consumer.consume(handler)

        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            consumer = await rig.consumer(commit=AutoCommit.after_each()).__aenter__()
            working = start(tasks, partial(work, consumer))
            await anyio.sleep(1)
            report = await consumer.shutdown()
            await working.done.wait()
            assert anyio.current_time() == 2.0
            assert report == says({P0: None}, {}, {P0: 1})

    @rule("C23", "C67")
    @virtual()
    async def test_behind_a_batch_that_says_drain_a_poll_is_told_at_once_that_it_ends(self) -> None:
        async def on_revoked(_: object) -> None:
            await anyio.sleep(3.0)

        async with opened() as rig, anyio.create_task_group() as tasks:
            consumer = await rig.member(on_revoked=on_revoked).__aenter__()
            polling = start(tasks, consumer.poll)
            await anyio.sleep(1.0)
            stopping = start(tasks, consumer.shutdown)
            await polling.done.wait()
            assert polling.result.reason == "drain"
            with pytest.raises(NotStarted, match="is shutting down"):
                await consumer.poll()
            assert anyio.current_time() == 1.0
            await stopping.done.wait()

    @rule("C67")
    @virtual()
    async def test_what_comes_again_since_its_store_failed_is_not_named_as_lost(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                await take(consumer, 3)
                rig.script.every("store_offset", do=refuse(FeatureUnavailable("gone")))
            assert rig.reported("store_failed")
            assert rig.reported("possibly_lost") == []

    @rule("K79")
    @virtual()
    async def test_the_report_reads_well(self) -> None:
        async with opened(3) as rig:
            await rig.fill(P0, 100)
            await rig.fill(P1, 10)
            async with rig.consumer(commit=AutoCommit.finished(), start=Start.first()) as consumer:
                assert len(await take_all(consumer)) == 110
            assert str(await consumer.shutdown()) == (
                "t[0]: committed 99, rewound 0, unfinished 0\n"
                "t[1]: committed 9, rewound 0, unfinished 0\n"
                "t[2]: committed nothing, rewound 0, unfinished 0"
            )


class TestWhoWaits:
    @virtual(seeds=3)
    async def test_from_another_task_it_waits_until_the_reader_asks_again(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            options = PollOptions(count=1)  # the next messages wait in the read-ahead, not in the list in hand
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0), poll=options).__aenter__()
            finished: list[int] = []

            async def loop() -> str:
                async for message in consumer:
                    await anyio.sleep(2.0)
                    finished.append(message.offset)
                return "ended by itself"

            reader = start(tasks, loop)
            await anyio.sleep(3)
            report = await consumer.shutdown()
            assert anyio.current_time() == pytest.approx(4.0, abs=0.03)
            await reader.done.wait()
            assert reader.result == "ended by itself"
            assert finished == [0, 1]
            assert report == says({P0: 1}, {}, {})

    @virtual(seeds=3)
    async def test_a_batch_in_work_is_waited_for_too(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0)).__aenter__()
            reasons: list[str] = []

            async def loop() -> None:
                while True:
                    batch: Batch = await consumer.poll(count=4)
                    reasons.append(batch.reason)
                    if batch.reason == "drain":
                        return
                    await anyio.sleep(2.0)

            start(tasks, loop)
            await anyio.sleep(1)
            report = await consumer.shutdown()
            assert anyio.current_time() == pytest.approx(2.0, abs=0.03)
            assert reasons == ["count", "drain"]
            assert report == says({P0: 3}, {}, {})

    @virtual(seeds=3)
    async def test_storing_the_message_in_hand_is_enough(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer().__aenter__()

            async def work() -> None:
                message = await anext(consumer)
                await anyio.sleep(2)
                await consumer.store_offset(message)
                await anyio.sleep(60)

            start(tasks, work)
            await anyio.sleep(1)
            report = await consumer.shutdown()
            assert anyio.current_time() == pytest.approx(2.0, abs=0.03)
            assert report == says({P0: 0}, {}, {})
            tasks.cancel_scope.cancel()

    @virtual()
    async def test_from_the_readers_own_task_it_does_not_wait(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                async for message in consumer:
                    if message.offset == 3:
                        report = await consumer.shutdown()
                        assert report == says({P0: 2}, {}, {P0: 1})
                assert anyio.current_time() < 0.001

    @pytest.mark.parametrize("way", ["returned", "raised", "cancelled"])
    @virtual(seeds=2)
    async def test_for_a_reader_that_has_ended_it_does_not_wait(self, way: str) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0)).__aenter__()

            async def work() -> None:
                await take(consumer, 4)
                if way == "raised":
                    raise ValueError(way)
                if way == "cancelled":
                    await anyio.sleep_forever()

            reader = start(tasks, work)
            await anyio.sleep(1)
            await reader.cancel()
            assert reader.outcome == way
            await settled()
            report = await consumer.shutdown()
            assert anyio.current_time() < 1.001
            assert report == says({P0: 2}, {}, {P0: 1})

    @virtual(seeds=3)
    async def test_a_reader_cancelled_meanwhile_is_not_waited_for_any_longer(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0)).__aenter__()

            async def work() -> None:
                await take(consumer, 4)
                await anyio.sleep_forever()

            reader = start(tasks, work)
            await anyio.sleep(1)
            shutdown = start(tasks, consumer.shutdown)
            await anyio.sleep(1)
            await reader.cancel()
            await shutdown.done.wait()
            assert anyio.current_time() == pytest.approx(2.0, abs=0.03)
            assert shutdown.result == says({P0: 2}, {}, {P0: 1})

    @virtual(seeds=3)
    async def test_a_reader_that_shuts_down_too_is_not_waited_for(self) -> None:
        """Another task has begun the shutdown; then the loop is left by an error, and `__aexit__` joins it."""
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumers: list[Consumer] = []

            async def work() -> None:
                async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                    consumers.append(consumer)
                    await take(consumer, 4)
                    await anyio.sleep(2)
                    raise ValueError

            reader = start(tasks, work)
            await anyio.sleep(1)
            report = await consumers[0].shutdown()
            assert anyio.current_time() == pytest.approx(2.0, abs=0.03)
            assert report == says({P0: 2}, {}, {P0: 1})
            await reader.done.wait()
            assert isinstance(reader.error, ValueError)

    @virtual(seeds=2)
    async def test_a_poll_after_work_that_outlasted_the_shutdown_says_drain_once(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0), drain_timeout=1.0).__aenter__()

            async def work() -> None:
                assert len(await consumer.poll()) == 10
                await anyio.sleep(10)
                batch = await consumer.poll()
                assert (batch.reason, len(batch)) == ("drain", 0)
                with pytest.raises(NotStarted, match="is shut down"):
                    await consumer.poll()

            reader = start(tasks, work)
            await anyio.sleep(1)
            await consumer.shutdown()
            with pytest.raises(NotStarted, match="is shut down"):
                await consumer.poll()  # this task has read nothing
            await reader.done.wait()
            assert reader.error is None

    @virtual()
    async def test_a_reader_that_shut_down_itself_or_was_told_polls_no_more(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            async with rig.consumer() as consumer:
                await consumer.poll(max_wait=0)
            with pytest.raises(NotStarted, match="is shut down"):
                await consumer.poll()
            told = await rig.consumer().__aenter__()
            reader = start(tasks, lambda: told.poll(max_wait=100.0))
            await anyio.sleep(1)
            await told.shutdown()
            assert reader.result.reason == "drain"

    @virtual(seeds=2)
    async def test_a_reader_that_never_asks_again_is_waited_for_as_long_as_drain_timeout(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            commit = AutoCommit.finished(100.0)
            consumer = await rig.consumer(commit=commit, drain_timeout=2.5).__aenter__()

            async def work() -> None:
                message = (await take(consumer, 4))[-1]
                await anyio.sleep(10)
                with pytest.raises(NotStarted, match="is shut down"):
                    await consumer.store_offset(message)
                with pytest.raises(StopAsyncIteration):
                    await anext(consumer)

            reader = start(tasks, work)
            await anyio.sleep(1)
            report = await consumer.shutdown()
            assert anyio.current_time() == pytest.approx(3.5, abs=0.03)
            assert report == says({P0: 2}, {}, {P0: 1})
            await reader.done.wait()
            assert reader.outcome == "returned"

    @virtual()
    async def test_without_a_drain_timeout_nobody_is_waited_for_and_all_is_stored(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0), drain_timeout=0.0).__aenter__()

            async def work() -> None:
                await take(consumer, 4)
                await anyio.sleep_forever()

            start(tasks, work)
            await anyio.sleep(1)
            rig.script.every("store_offset", do=delay(0.5))
            report = await consumer.shutdown()
            assert anyio.current_time() < 1.6
            assert report == says({P0: 2}, {}, {P0: 1})
            tasks.cancel_scope.cancel()

    @virtual(seeds=3)
    async def test_every_call_returns_the_same_report(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0)).__aenter__()

            async def work() -> None:
                async for _ in consumer:
                    await anyio.sleep(2)

            start(tasks, work)
            await anyio.sleep(1)
            calls = [start(tasks, consumer.shutdown) for _ in range(3)]
            for call in calls:
                await call.done.wait()
            later = await consumer.shutdown()
            assert all(call.result is later for call in calls)
            assert len(rig.calls("leave")) == 1

    @virtual()
    async def test_before_the_start_there_is_nothing_to_report(self) -> None:
        async with opened() as rig:
            consumer = rig.consumer()
            assert await consumer.shutdown() == ShutdownReport({}, {}, {})
            async with consumer:  # and that was no shutdown
                await rig.append(P0, b"a")
                assert (await anext(consumer)).offset == 0


class TestReadsInTasksOfTheirOwn:
    """As those of `asyncio.wait_for` on Python 3.11: each has ended when its message is handed on."""

    @rule("C66", "C91")
    def test_a_shutdown_by_another_task_waits_for_the_message(self) -> None:
        async def main() -> None:
            async with opened() as rig, anyio.create_task_group() as tasks:
                await rig.fill(P0, 3)
                async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                    assert (await asyncio.create_task(consumer.__anext__())).offset == 0
                    stopping = start(tasks, consumer.shutdown)
                    await anyio.sleep(1.0)
                    assert stopping.outcome == "running"
                    with pytest.raises(StopAsyncIteration):
                        await consumer.__anext__()
                    await stopping.done.wait()
                    assert stopping.result == says({P0: 0}, {}, {})

        run_virtual(main, backend="asyncio")

    @rule("C66", "C91")
    def test_who_entered_the_consumer_and_shuts_it_down_waits_for_nobody(self) -> None:
        async def main() -> None:
            async with opened() as rig:
                await rig.fill(P0, 3)
                async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                    assert (await asyncio.create_task(consumer.__anext__())).offset == 0
                    assert await consumer.shutdown() == says({P0: None}, {}, {P0: 1})
                assert anyio.current_time() == 0.0

        run_virtual(main, backend="asyncio")

    @rule("C32", "C91")
    def test_a_hand_over_waits_for_the_message(self) -> None:
        async def main() -> None:
            async with opened(2) as rig:
                for at in (P0, P1):
                    await rig.fill(at, 2)
                async with rig.member() as first:
                    assert len(await asyncio.create_task(first.poll(min_count=4))) == 4
                    async with rig.member() as second:
                        await anyio.sleep(1.0)
                        assert second.assignment == frozenset()
                        await first.poll(max_wait=0.0)
                        assert len(await owns(second, 1, within=1.0)) == 1

        run_virtual(main, backend="asyncio")

    @rule("C67")
    def test_a_read_that_failed_hands_nothing_on_and_asyncio_still_tells_of_it(self) -> None:
        async def main() -> None:
            async def fail() -> None:
                raise ValueError("nobody looks at it")

            told: list[str] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
            failed = asyncio.create_task(fail())
            await settled()
            assert returned(failed) is None
            del failed
            gc.collect()
            assert told == ["Task exception was never retrieved"]

        run_virtual(main, backend="asyncio")


class TestCancelledShutdown:
    @virtual(seeds=5)
    async def test_it_stops_waiting_for_the_reader_but_stores_and_leaves(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0)).__aenter__()

            async def work() -> None:
                await take(consumer, 4)
                await anyio.sleep_forever()

            start(tasks, work)
            await anyio.sleep(1)
            rig.script.every("store_offset", do=delay(0.1))
            with anyio.move_on_after(1.0) as limit:
                await consumer.shutdown()
            assert limit.cancelled_caught
            assert anyio.current_time() == pytest.approx(2.1, abs=0.03)
            assert rig.stored(P0) == 2
            assert len(rig.calls("leave")) == 1
            assert (await consumer.shutdown()).committed == {P0: 2}
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("turns", range(12))
    @virtual(seeds=2)
    async def test_at_whatever_turn_it_is_cancelled(self, turns: int) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            consumer = await rig.consumer(commit=AutoCommit.finished(100.0)).__aenter__()

            async def work() -> None:
                await take(consumer, 4)

            reader = start(tasks, work)
            await reader.done.wait()
            await cancel_after(consumer.shutdown, turns)
            report = await consumer.shutdown()
            assert report.committed == {P0: 2}
            assert rig.stored(P0) == 2
            assert len(rig.calls("leave")) == 1
            assert repr(consumer).endswith("shut down>")

    @virtual(seeds=2)
    async def test_inside_a_cancelled_block(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            with anyio.move_on_after(1.0) as limit:
                async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                    await take(consumer, 4)
                    rig.script.every("store_offset", do=delay(0.1))
                    await anyio.sleep_forever()
            assert limit.cancelled_caught
            assert rig.stored(P0) == 2
            assert len(rig.calls("leave")) == 1
            assert rig.pump.parked == 0

    @virtual()
    async def test_a_log_that_does_not_answer_holds_it_up_for_a_bounded_time(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:
                await take(consumer, 4)
                rig.script.every("store_offset", do=hold(anyio.Event()))
                rig.script.every("leave", do=hold(anyio.Event()))
                await consumer.shutdown()
                assert anyio.current_time() == pytest.approx(10.0, abs=0.1)
            assert rig.reported("drain_timeout")
            assert rig.stored(P0) is None
            assert await rest(rig) == [(0, offset) for offset in range(10)]

    @virtual()
    async def test_an_error_inside_leaves_no_half_open_consumer(self) -> None:
        def explode(_: object) -> None:
            raise ZeroDivisionError("inside")

        with pytest.raises(ExceptionGroup) as caught:
            async with opened() as rig:
                consumer = await rig.consumer().__aenter__()
                rig.script.every("leave", do=hook(explode))
                await consumer.shutdown()
                assert repr(consumer).endswith("shut down>")
        assert caught.group_contains(ZeroDivisionError)


async def cancel_after(work: Callable[[], Any], turns: int) -> None:
    """Cancel a task after some turns of the loop: natively on asyncio, by its scope on trio."""
    if backend() == "asyncio":
        task = asyncio.ensure_future(work())
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        task.cancel()
        await asyncio.wait([task])
        return
    background = Background()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(background.run, work)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        background.scope.cancel()


class TestWarnings:
    """The mode is disabled, the start is Next, something was delivered, and nothing was ever stored."""

    @rule("C98")
    @virtual()
    async def test_one_warning_where_each_start_begins_at_the_first_message(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            for name in ("billing", None):
                caplog.clear()
                async with rig.consumer(name=name) as consumer:
                    await anext(consumer)
                await consumer.shutdown()
                (record,) = [record for record in caplog.records if "no offset was ever stored" in record.message]
                assert record.levelname == "WARNING"
                assert ("'billing'" in record.message) == (name is not None)
            async with rig.consumer() as consumer:
                await consumer.poll()
            assert len(rig.reported("nothing_stored")) == 3

    @rule("C98")
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({}, "begins at the first message again; call store_offset, or pass commit="),
            ({"name": None}, "begins at the first message again; pass name= and commit="),
            (
                {"start": Start.next(otherwise=Start.end())},
                "begins at the end and skips what is there; call store_offset, or pass commit=",
            ),
            (
                {"start": Start.next(otherwise="fail")},
                "is refused with OffsetOutOfRange; call store_offset, or pass commit=",
            ),
        ],
    )
    @virtual()
    async def test_it_says_where_the_next_start_leads_and_names_only_what_this_consumer_can_do(
        self, options: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(**options) as consumer:
                await consumer.seek(0, 0)
                await anext(consumer)
            assert f"the next start {says}AutoCommit.finished()" in caplog.text

    @rule("C98")
    @virtual()
    async def test_none_otherwise(self) -> None:
        async with opened() as rig:
            async with rig.consumer():
                pass  # nothing delivered
            await rig.fill(P0, 3)
            async with rig.consumer():
                await settled()  # fetched, not delivered
            async with rig.consumer(start=Start.first()) as consumer:
                await anext(consumer)
            async with rig.consumer(commit=AutoCommit.interval(1000.0)) as consumer:
                await anext(consumer)
            async with rig.consumer() as consumer:
                await consumer.store_offset(await anext(consumer))
            async with rig.consumer() as consumer:
                assert isinstance(await anext(consumer), Message)  # stored by an earlier run
            assert rig.reported("nothing_stored") == []
