"""What a consumer asks the log: how many requests, naming whom, replaced when; and that it never asks for nothing."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.abc import Ready
from tarry.errors import LogUnavailable, NotAMember, TopicNotFound
from tarry.testing import Call, CarryOut, answer_empty, delay, hold, hook, refuse
from tarry.types import TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, P3, Rig, offsets, opened, places, settled, start, take, take_all
from tests.virtual import virtual

PARTITIONS = pytest.mark.parametrize("partitions", [1, 4])


def named(call: Call) -> set[int]:
    """Numbers of the partitions that a request names."""
    return {target.partition.partition for target in call.arguments["targets"]}


def watch_waits(rig: Rig) -> list[int]:
    """Note, at the moment each readiness wait begins, how many others are still at the log."""
    parked: list[int] = []
    rig.script.every("wait_ready", do=hook(lambda _: parked.append(rig.pump.parked)))
    return parked


class TestOneWaitForAll:
    @rule("C72", "C75", "C79")
    @virtual(seeds=5)
    async def test_there_is_one_wait_and_it_is_withdrawn_before_its_replacement(self) -> None:
        async with opened(4) as rig:
            parked = watch_waits(rig)
            async with rig.consumer() as consumer:
                await consumer.ready()
                for number in range(12):
                    await rig.fill(TopicPartition("t", number % 4), 3)
                    assert len(await take(consumer, 3)) == 3
                    await settled()
                    assert rig.pump.parked == 1
            assert parked == [0] * len(parked)
            assert rig.pump.parked == 0

    @rule("C72")
    @virtual(seeds=3)
    async def test_the_first_wait_names_all_partitions_at_once(self) -> None:
        async with opened(4) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            (wait,) = rig.calls("wait_ready")
            assert named(wait) == {0, 1, 2, 3}
            assert wait.outcome == "open"

    @rule("C73", "C74")
    @virtual(seeds=3)
    async def test_a_drained_partition_restarts_the_wait_and_is_named_in_it(self) -> None:
        async with opened(3) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await rig.append(P1, b"a")
            assert places([await anext(consumer)]) == [(1, 0)]
            await settled()
            last = rig.calls("wait_ready")[-1]
            assert (named(last), last.outcome) == ({0, 1, 2}, "open")
            began = anyio.current_time()
            await rig.append(P1, b"b")  # long before the wait of the others would have ended
            assert places([await anext(consumer)]) == [(1, 1)]
            assert anyio.current_time() == began

    @rule("C73", "C74")
    @virtual(seeds=3)
    async def test_while_a_fetch_is_out_the_others_are_watched_and_it_joins_them_afterwards(self) -> None:
        async with opened(3) as rig, rig.consumer() as consumer:
            await consumer.ready()
            slow = rig.script.every("poll", do=delay(2.0, reply=True))
            await rig.append(P0, b"a")
            await anyio.sleep(1)
            during = rig.calls("wait_ready")[-1]
            assert (named(during), during.outcome) == ({1, 2}, "open")
            await anyio.sleep(1.5)
            after = rig.calls("wait_ready")[-1]
            assert (named(after), after.outcome, during.outcome) == ({0, 1, 2}, "open", "cancelled")
            rig.script.remove(slow)

    @rule("C78")
    @virtual(seeds=3)
    async def test_the_answer_of_a_replaced_wait_does_not_count(self) -> None:
        """The wait is withdrawn, and answers all the same, that partition 1 has something. It has not."""

        async def stubborn(_: Call, carry_out: CarryOut) -> Any:
            try:
                return await carry_out()
            except anyio.get_cancelled_exc_class():
                return [Ready(P1, 5, 500)]

        async with opened(2) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.on("wait_ready", do=stubborn)
            await consumer.seek(0, 0)  # replaces the wait that is out by one that follows the script
            await settled()
            (_, *before) = rig.calls("wait_ready")
            await consumer.seek(0, 0)
            await settled()
            assert len(rig.calls("wait_ready")) == len(before) + 2
            assert rig.calls("poll") == []
            await rig.append(P1, b"a")
            assert places([await anext(consumer)]) == [(1, 0)]

    @rule("C78")
    @virtual(seeds=3)
    async def test_nor_does_its_refusal(self) -> None:
        async def stubborn(_: Call, carry_out: CarryOut) -> Any:
            try:
                return await carry_out()
            except anyio.get_cancelled_exc_class():
                raise NotAMember("too late") from None

        async with opened(2) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.on("wait_ready", do=stubborn)
            for _ in range(2):
                await consumer.seek(0, 0)
                await settled()
            await rig.append(P1, b"a")
            assert places([await anext(consumer)]) == [(1, 0)]

    @virtual(seeds=3)
    async def test_a_wait_serves_the_poll_that_is_waiting(self) -> None:
        async with opened(3) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            start(tasks, lambda: consumer.poll(min_count=50, max_wait=20.0, max_bytes=5000))
            await settled()
            wait = rig.calls("wait_ready")[-1].arguments
            assert (wait["min_count"], wait["min_bytes"], wait["max_wait"]) == (50, 5000 - 64, 20.0)
            await rig.fill(P0, 50)


class TestOnePartition:
    @rule("C84", "C2")
    @virtual(seeds=2)
    async def test_it_is_polled_directly(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            for _ in range(5):
                await rig.fill(P0, 3)
                assert len(await take(consumer, 3)) == 3
            await anyio.sleep(7)
            await consumer.poll(max_wait=3.0)
            await settled()
            assert rig.calls("wait_ready") == []
            assert rig.pump.parked == 1

    @rule("C84")
    @virtual(seeds=2)
    async def test_one_that_is_left_over_too(self) -> None:
        async with opened({"a": 1, "b": 1}) as rig, rig.consumer("a", "b") as consumer:
            await consumer.ready()
            await rig.log.delete_topic("a")
            with pytest.raises(TopicNotFound):
                await anext(consumer)
            await settled()
            rig.script.calls.clear()
            await rig.fill(TopicPartition("b", 0), 3)
            assert offsets(await take(consumer, 3)) == [0, 1, 2]
            await anyio.sleep(0.1)  # behind the pause that the refusal of "a" gave their leader
            assert rig.calls("wait_ready") == []
            assert rig.pump.parked == 1


class TestIdle:
    @rule("K41")
    @PARTITIONS
    @virtual(seeds=3)
    async def test_an_idle_loop_asks_once_per_wait(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer(commit=AutoCommit.finished()) as consumer:
            async with anyio.create_task_group() as tasks:
                start(tasks, lambda: anext(consumer))
                await anyio.sleep(60)
                tasks.cancel_scope.cancel()
            assert len(rig.calls("poll", "wait_ready")) <= 13 * rig.leaders(partitions)
            assert rig.calls("store_offset") == []

    @rule("K41")
    @PARTITIONS
    @virtual(seeds=3)
    async def test_so_do_polls_one_after_another(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            while anyio.current_time() < 60:
                assert await consumer.poll(max_wait=5.0) == []
            assert len(rig.calls("poll", "wait_ready")) <= 13 * rig.leaders(partitions)

    @rule("K41")
    @PARTITIONS
    @pytest.mark.parametrize("reads", ["loop", "polls"])
    @virtual(seeds=2)
    async def test_a_log_that_always_answers_empty_at_once_is_not_asked_in_circles(
        self, partitions: int, reads: str
    ) -> None:
        async with opened(partitions) as rig:
            rig.script.every("poll", do=answer_empty())
            rig.script.every("wait_ready", do=answer_empty())
            async with rig.consumer() as consumer:
                with anyio.move_on_after(10):
                    while True:
                        await (anext(consumer) if reads == "loop" else consumer.poll(max_wait=5.0))
                assert len(rig.calls("poll", "wait_ready")) <= 200
                rig.script._rules.clear()
                await rig.append(P0, b"a")
                with anyio.fail_after(2.5):
                    await anext(consumer)

    @virtual()
    async def test_ready_answers_without_messages_do_not_spin(self) -> None:
        """A log that says "there is something" and then gives nothing."""

        async def lie(call: Call, _: CarryOut) -> Sequence[Ready]:
            await anyio.lowlevel.checkpoint()
            return [Ready(target.partition, 1, 10) for target in call.arguments["targets"]]

        async with opened(2) as rig:
            rig.script.every("wait_ready", do=lie)
            async with rig.consumer():
                await anyio.sleep(10)
                assert len(rig.calls("poll")) <= 200

    @rule("K41", "C92")
    @PARTITIONS
    @virtual()
    async def test_polls_without_a_wait_do_not_make_a_refused_log_be_asked_in_circles(self, partitions: int) -> None:
        """Each ends a pause early, but not before 50 ms."""
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            for operation in "poll", "wait_ready":
                rig.script.every(operation, do=refuse(LogUnavailable("nobody listens")))
            rig.script.calls.clear()
            with anyio.move_on_after(5):
                while True:
                    with suppress(LogUnavailable):
                        await consumer.poll(max_wait=0)
                    await anyio.sleep(0.01)
            asked = Counter(call.arguments["leader"] for call in rig.calls("poll", "wait_ready"))
            assert max(asked.values()) <= 5 * 20 + 5

    @rule("C9")
    @PARTITIONS
    @virtual()
    async def test_a_consumer_without_a_wait_does_not_spin_either(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer(poll=PollOptions(max_wait=0.0)) as consumer:
            with anyio.move_on_after(60):
                await anext(consumer)
            assert len(rig.calls("poll", "wait_ready")) <= 3


class TestNothingPilesUp:
    @rule("K20")
    @PARTITIONS
    @virtual()
    async def test_timed_out_and_cancelled_polls_leave_nothing(self, partitions: int) -> None:
        """A twentieth of the case; in full below."""
        await _many_polls(partitions, 1000, _count_live_objects, every=200, growth_max=100)

    @rule("K20")
    @pytest.mark.soak
    @PARTITIONS
    @virtual()
    async def test_timed_out_and_cancelled_polls_leave_nothing_in_the_long_run(self, partitions: int) -> None:
        tracemalloc.start()
        try:
            await _many_polls(
                partitions, 20_000, lambda: tracemalloc.get_traced_memory()[0], every=97, growth_max=50_000
            )
        finally:
            tracemalloc.stop()

    @virtual()
    async def test_seeks_leave_nothing(self) -> None:
        async with opened(3) as rig, rig.consumer() as consumer:
            await rig.fill(P0, 100)
            for _ in range(200):
                await consumer.seek(0, 0)
                assert (await anext(consumer)).offset == 0
            await settled()
            assert rig.pump.parked == 1
            assert consumer._fetches.messages <= 100


def _count_live_objects() -> int:
    """Ours, and what we take from anyio. (Loops keep dead timers for a while: bytes say little after few calls.)"""
    gc.collect()
    return sum(type(thing).__module__.startswith(("tarry.", "anyio.")) for thing in gc.get_objects())


async def _many_polls(partitions: int, calls: int, measure: Callable[[], int], *, every: int, growth_max: int) -> None:
    """Compare the lowest figures of the first and the last third: trio clears dead timers away by the thousand."""
    used: list[int] = []
    async with opened(partitions) as rig:
        async with rig.consumer() as consumer:
            for number in range(calls):
                if number % 2:
                    with anyio.move_on_after(0.0005):
                        await consumer.poll(max_wait=0.001)
                else:
                    assert await consumer.poll(max_wait=0.001) == []
                rig.script.calls.clear()
                assert rig.pump.parked <= rig.leaders(partitions)
                if number >= calls // 20 and number % every == 0:
                    used.append(measure())
            third = len(used) // 3
            assert min(used[-third:]) - min(used[:third]) < growth_max
        assert rig.pump.parked == 0
        assert not rig.pump.polls._probes


class TestReadAhead:
    @virtual(seeds=2)
    async def test_it_is_bounded_in_messages_and_bytes_over_all_partitions(self) -> None:
        async with opened(4) as rig:
            for partition in (P0, P1, P2, P3):
                await rig.fill(partition, 500, size=100)
            options = PollOptions(count=100, max_bytes=20_000)
            async with rig.consumer(poll=options, buffer_messages=150, buffer_bytes=25_000) as consumer:
                seen: list[tuple[int, int]] = []

                async def look() -> None:
                    while True:
                        seen.append((consumer._fetches.messages, consumer._fetches.size))
                        await anyio.lowlevel.checkpoint()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(look)
                    await settled()
                    assert len(await take(consumer, 2000)) == 2000
                    tasks.cancel_scope.cancel()
            assert max(messages for messages, _ in seen) in range(100, 151)
            assert max(size for _, size in seen) in range(15_000, 25_001)

    @virtual()
    async def test_a_slow_reader_does_not_cause_a_request_per_message(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 1000)
            async with rig.consumer(poll=PollOptions(count=100)) as consumer:
                for _ in range(1000):
                    await anext(consumer)
                    await anyio.sleep(0.001)
            assert len(rig.calls("poll")) <= 15

    @rule("C24")
    @virtual(seeds=2)
    async def test_short_timeouts_do_not_restart_a_slow_fetch(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a")
            rig.script.on("poll", do=delay(3.0))
            async with rig.consumer() as consumer:
                attempts = 0
                found: list[int] = []
                while not found:
                    with anyio.move_on_after(0.01):
                        found.append((await anext(consumer)).offset)
                    attempts += 1
                assert found == [0]
                assert attempts > 250
                assert anyio.current_time() < 3.1
                assert len(rig.calls("poll")) <= 2

    @virtual()
    async def test_while_the_log_is_silent_nobody_asks_again(self) -> None:
        async with opened(2) as rig:
            rig.script.every("wait_ready", do=hold(anyio.Event()))
            async with rig.consumer() as consumer:
                assert await take_all(consumer, quiet=30.0) == []
                assert len(rig.calls("wait_ready")) == 1
