"""Giving partitions up and taking them over: who waits for whom, what is stored, what is never delivered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions, Start
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    CapacityExceeded,
    LogUnavailable,
    NotReady,
    RebalanceHookError,
    StaleAssignment,
    TarryError,
)
from tarry.testing import Call, CarryOut, delay, hold, lose_reply, refuse
from tarry.types import Message, ShutdownReport, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, items, offsets, opened, owns, places, settled, start, take, take_all
from tests.virtual import virtual

ON_POLL = AutoCommit.on_poll()
MODES = pytest.mark.parametrize("commit", [ON_POLL, AutoCommit.finished(0.2), AutoCommit.interval(0.2)])
HOOKS = pytest.mark.parametrize("hook", ["on_assigned", "on_revoked"])


class Log:
    """What members finished, and a body that takes some time."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int, int]] = []

    def finished(self) -> list[tuple[int, int]]:
        return [(partition, offset) for _, partition, offset in self.done]

    async def read(self, name: str, consumer: Consumer, *, body: float | Callable[[Message], float] = 0.0) -> None:
        before: Message | None = None
        async for message in consumer:
            if before is not None:
                self.done.append((name, before.partition, before.offset))
            await anyio.sleep(body(message) if callable(body) else body)
            before = message
        if before is not None:
            self.done.append((name, before.partition, before.offset))


class TestGivingUp:
    @rule("K53", "C32")
    @MODES
    @virtual(seeds=3)
    async def test_work_that_ends_in_time_is_stored_and_not_repeated(self, commit: AutoCommit) -> None:
        """Each partition for itself: the one that stays keeps its buffer and its position."""
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            await rig.fill(P1, 5)
            async with rig.member(commit=commit) as first:
                await first.poll(count=10, min_count=10)
                await rig.fill(P0, 15)
                await rig.fill(P1, 15)
                second = rig.member(commit=commit)
                opening = start(tasks, second.__aenter__)
                await anyio.sleep(0.4)
                assert len(first.assignment) == 2  # its batch is in hand: nothing is taken away
                assert not opening.done.is_set() or second.assignment == frozenset()
                polls = len(rig.calls("poll"))
                rest = await first.poll(max_wait=0.0)
                assert {message.partition for message in rest} <= {at.partition for at in first.assignment}
                (left,) = {P0, P1} - await owns(first, 1, within=1.0)
                assert rig.group_stored(left) == 4
                await owns(second, 1, within=1.0)
                message = await anext(second)
                assert (message.topic_partition, message.offset) == (left, 5)
                assert len(rig.calls("poll")) > polls
                await second.shutdown()

    @rule("K06", "S72")
    @MODES
    @virtual(seeds=3)
    async def test_the_case_of_a_body_that_outlasts_its_time(self, commit: AutoCommit) -> None:
        """Two partitions; the late store of the old owner is refused and changes nothing."""
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 50)
            await rig.fill(P1, 50)
            options: dict[str, Any] = {"commit": commit, "poll": PollOptions(count=10), "drain_timeout": 1.0}
            async with rig.member(**options) as first:
                held: list[Message] = []
                errors: list[TarryError] = []

                async def work() -> None:
                    async for message in first:
                        if len(held) < 12:
                            held.append(message)
                            continue
                        held.append(message)
                        await anyio.sleep(10.0)
                        try:
                            await first.store_offset(message)
                        except StaleAssignment as error:
                            errors.append(error)
                        return

                working = start(tasks, work)
                await anyio.sleep(1.0)
                second = await rig.member(**options).__aenter__()
                await owns(second, 1)
                await owns(first, 1)
                in_hand = held[-1].topic_partition
                (moved,) = second.assignment
                if moved == in_hand:
                    assert rig.group_stored(moved) == (held[-1].offset - 1 if held[-1].offset else None)
                taken = await take(second, 40)
                expected = held[-1].offset if moved == in_hand else None
                if expected is not None:
                    assert taken[0].offset == expected
                await second.store_offset(taken[-1])
                before = rig.group_stored(moved)
                await working.done.wait()
                assert bool(errors) == (moved == in_hand)
                assert rig.group_stored(moved) == before
                await second.shutdown()
                await owns(first, 2)
                await first.ready()
                assert first.position(moved) == (rig.group_stored(moved) or 0) + 1
                await anyio.sleep(5)
                assert rig.group_stored(moved) == taken[-1].offset

    @rule("K86")
    @pytest.mark.parametrize("buffered", [False, True])
    @virtual(seeds=2)
    async def test_what_was_never_delivered_is_given_up_at_once(self, buffered: bool) -> None:
        async with opened(2) as rig, rig.member(drain_timeout=30.0) as first:
            await first.ready()
            if buffered:
                await rig.fill(P0, 100)
                await rig.fill(P1, 100)
                await anyio.sleep(0.1)
            before = anyio.current_time()
            async with rig.member() as second:
                await owns(second, 1)
                assert anyio.current_time() - before < 0.2
                if buffered:
                    assert (await anext(second)).offset == 0

    @rule("K87", "C35")
    @MODES
    @virtual(seeds=2)
    async def test_the_buffer_is_dropped_and_not_worked_off(self, commit: AutoCommit) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 1024)
            await rig.fill(P1, 1024)
            log = Log()
            async with rig.member(commit=commit) as first:
                start(tasks, lambda: log.read("first", first, body=0.015))
                await anyio.sleep(1.0)
                before = anyio.current_time()
                second = await rig.member(commit=commit).__aenter__()
                await owns(second, 1)
                assert anyio.current_time() - before < 0.3
                (moved,) = second.assignment
                finished = [offset for partition, offset in log.finished() if partition == moved.partition]
                message = await anext(second)
                assert message.offset == len(finished)
                await second.shutdown()
                await first.shutdown()

    @rule("C29", "K79")
    @virtual(seeds=3)
    async def test_kept_partitions_keep_buffer_and_position(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 100)
            await rig.fill(P1, 10)
            async with rig.member() as first:
                found = places(await take(first, 30))
                polls = len(rig.calls("poll"))
                second = await rig.member().__aenter__()
                await owns(second, 1)
                (kept,) = first.assignment
                mine = [offset for at, offset in found if at == kept.partition]
                rest = places(await take(first, (100 if kept == P0 else 10) - len(mine)))
                assert rest == [(kept.partition, offset) for offset in range(len(mine), 100 if kept == P0 else 10)]
                polled = [
                    target.partition
                    for call in rig.calls("poll")[polls:]
                    if call.identity is not None and call.session is first._standing.session
                    for target in call.arguments["targets"]
                ]
                assert all(partition == kept for partition in polled)
                await second.shutdown()

    @rule("C31", "S71")
    @virtual(seeds=2)
    async def test_a_partition_that_left_and_came_back_starts_at_what_is_stored(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 10)
            await rig.fill(P1, 10)
            async with rig.member() as first:
                seen = await take(first, 20)
                before = {at: first._positions[at].ownership for at in first.assignment}
                async with rig.member() as second:
                    (moved,) = await owns(second, 1)
                    (kept,) = await owns(first, 1)
                await owns(first, 2)
                await first.ready()
                after = {at: first._positions[at].ownership for at in first.assignment}
                assert after[kept] == before[kept]
                assert after[moved] > before[moved]
                assert first.position(moved) == 0  # nothing was stored
                assert first.position(kept) == 10
                old = [message for message in seen if message.topic_partition == moved][-1]
                with pytest.raises(StaleAssignment):
                    await first.store_offset(old)
                assert rig.group_stored(moved) is None

    @rule("K43", "C40")
    @virtual(seeds=2)
    async def test_disabled_stores_nothing_in_a_rebalance(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 20)
            async with rig.member() as first:
                messages = await take(first, 20)
                await first.store_offset(messages[4])
                await anyio.sleep(3)
                async with rig.member() as second:
                    await owns(second, 1)
                await owns(first, 2)
            assert rig.group_stored(P0) == 4
            assert len(rig.calls("store_offset")) == 1

    @virtual(seeds=3)
    async def test_a_committing_fetch_that_is_out_comes_back_before_the_release(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            await rig.fill(P1, 20)
            async with rig.member(commit=ON_POLL, poll=PollOptions(count=5)) as first:
                rig.script.every("poll", do=delay(1.0, reply=True))
                reading = start(tasks, lambda: anext(first))
                await anyio.sleep(0.5)
                out = rig.calls("poll")[-1].arguments["targets"][0].partition
                second = await rig.member(commit=ON_POLL).__aenter__()
                await owns(first, 1)
                await reading.done.wait()
                (moved,) = await owns(second, 1)
                message = await anext(second)
                assert message.offset == 0
                assert (message.topic_partition == moved) is True
                assert reading.result.offset == 0
                if moved == out:
                    assert rig.calls("store_offset")[0].arguments["offset"] is None
                await second.shutdown()

    @rule("C32", "C36")
    @MODES
    @virtual(seeds=3)
    async def test_a_late_body_is_followed_by_nothing_of_the_partition_that_was_given_up(
        self, commit: AutoCommit
    ) -> None:
        """What was fetched behind the message in hand belongs to the new owner, also where the log had committed it."""
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            await rig.fill(P1, 20)
            async with rig.member(commit=commit, drain_timeout=1.0) as first:
                (message,) = await take(first, 1)
                second = await rig.member(commit=commit).__aenter__()
                (moved,) = await owns(second, 1)
                theirs = start(tasks, partial(take, second, 20))
                await anyio.sleep(1)
                found = places(await take_all(first))
                assert {partition for partition, _ in found} == {1 - moved.partition}
                await theirs.done.wait()
                assert offsets(theirs.result) == list(range(20))
                assert message.offset == 0
                await second.shutdown()

    @rule("I1")
    @virtual(seeds=3)
    async def test_a_partition_that_is_taken_before_its_hand_over_has_ended_loses_nothing_that_was_dropped(
        self,
    ) -> None:
        async with opened(2, rebalance_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 20)
            await rig.fill(P1, 20)
            async with rig.member(commit=ON_POLL, drain_timeout=10.0) as first:
                batch = await first.poll(count=40, min_count=40)
                assert len(batch) == 40
                second = await rig.member(commit=ON_POLL).__aenter__()
                await owns(second, 1)
                assert anyio.current_time() < 5
                assert offsets(await take(second, 20)) == list(range(20))
                reading = start(tasks, lambda: anext(first))
                await anyio.sleep(5)
                await reading.cancel()
                await second.shutdown()

    @rule("K01", "C61")
    @virtual(seeds=3)
    async def test_what_was_dropped_is_brought_back_before_the_next_commit_and_not_behind_the_hook(self) -> None:
        """The hook takes its time: a kill meanwhile must not find two batches committed and not served."""

        def is_about(call: Call, partition: TopicPartition) -> bool:
            return bool(call.arguments["targets"][0].partition == partition)

        async with opened(2) as rig, anyio.create_task_group() as tasks:
            held: list[int | None] = []

            async def note(_: Call, carry_out: CarryOut) -> object:
                held.append(rig.group_stored(P1))
                return await carry_out()

            async def revoked(_: frozenset[TopicPartition]) -> None:
                await anyio.sleep(2.0)

            rig.script.on("poll", do=lose_reply(), where=lambda call: is_about(call, P1))
            rig.script.on(
                "poll", nth=range(2, 1000), do=refuse(LogUnavailable("away")), where=lambda c: is_about(c, P1)
            )
            rig.script.every("poll", do=note, where=lambda call: is_about(call, P0))
            await rig.fill(P1, 3)
            async with rig.member(commit=ON_POLL, on_revoked=revoked) as first:
                reading = start(tasks, lambda: anext(first))
                await anyio.sleep(0.5)
                assert rig.group_stored(P1) == 2
                second = await rig.member(commit=ON_POLL).__aenter__()
                await rig.fill(P0, 1)
                await reading.done.wait()
                assert reading.result.topic_partition == P0
                assert held == [None]
                assert await owns(second, 1) == {P1}
                await second.shutdown()

    @rule("C30", "C37", "K07")
    @virtual(seeds=3)
    async def test_a_committing_fetch_that_outlasts_its_hand_over_and_the_membership_is_delivered(self) -> None:
        """The partition is lost by then: there is nothing to bring back, and nobody else to read it."""
        async with opened(2, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P1, 3)
            rig.script.on("poll", do=delay(4.0, reply=True), where=lambda c: c.arguments["targets"][0].partition == P1)
            rig.script.on("open_session", nth=3, do=hold(anyio.Event()))
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as first:
                reading = start(tasks, partial(take, first, 3))
                await anyio.sleep(0.5)
                async with rig.member(commit=ON_POLL, heartbeat_interval=0.5) as second:
                    assert await owns(second, 2) == {P0, P1}
                    assert rig.reported("evicted")
                    await anyio.sleep(3.0)
                    assert reading.outcome == "returned"
                    assert places(reading.result) == [(1, 0), (1, 1), (1, 2)]
                await reading.cancel()

    @rule("C32", "C35")
    @virtual(seeds=2)
    async def test_a_start_that_is_found_too_late_gives_what_goes_neither_a_position_nor_a_gap(self) -> None:
        async with opened(2) as rig:
            answers = anyio.Event()

            async def trimmed(_: Call, carry_out: CarryOut) -> object:
                found = await carry_out()
                await answers.wait()
                return replace(found, position=0, log_start=5, log_end=5)

            async def revoked(_: frozenset[TopicPartition]) -> None:
                await anyio.sleep(1.0)

            rig.script.every("resolve", do=trimmed, where=lambda call: call.arguments["partition"] == P1)
            async with rig.member(on_revoked=revoked, start=Start.next(on_gap="fail")) as first:
                await anyio.sleep(0.1)
                async with rig.member() as second:
                    await anyio.sleep(0.1)
                    answers.set()
                    with anyio.move_on_after(0.5):
                        await anext(first)
                    assert first.position(P1) is None
                    assert rig.reported("gap") == []
                    assert await owns(second, 1) == {P1}

    @rule("C33", "C32")
    @pytest.mark.parametrize("to", [0, 8])
    @virtual()
    async def test_after_a_mere_seek_what_was_finished_before_it_is_left_stored(self, to: int) -> None:
        async with opened(2) as rig:
            for at in (P0, P1):
                await rig.fill(at, 10)
            async with rig.member(commit=AutoCommit.on_poll()) as first:
                assert len(await first.poll(min_count=20)) == 20
                await first.poll(max_wait=0.0)  # all are finished
                for at in (P0, P1):
                    await rig.fill(at, 10)
                assert len(await first.poll(min_count=20)) == 20
                for at in (P0, P1):
                    await first.seek(at, to)
                async with rig.member() as second:
                    (moved,) = await owns(second, 1)
                    assert rig.group_stored(moved) == 9

    @rule("C33", "C32")
    @pytest.mark.parametrize("to", [0, 8])
    @virtual()
    async def test_a_shutdown_in_the_middle_of_one_leaves_it_too(self, to: int) -> None:
        every = [TopicPartition("t", number) for number in range(4)]
        async with opened(4) as rig:
            for at in every:
                await rig.fill(at, 10)
            first = await rig.member(commit=AutoCommit.finished(100.0)).__aenter__()
            assert len(await first.poll(min_count=40)) == 40
            await first.poll(max_wait=0.0)
            for at in every:
                await first.seek(at, to)
            held = rig.script.on("store_offset", do=hold(anyio.Event()))
            second = await rig.member().__aenter__()
            await anyio.sleep(2)
            rig.script.remove(held)
            report = await first.shutdown()
            await second.shutdown()
            assert {rig.group_stored(at) for at in every} == {9}
            assert report.rewound == {}


class TestPollsEndEarly:
    @rule("K55")
    @virtual(seeds=3)
    async def test_the_case_of_one_lock_around_reading_and_hook(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            lock = anyio.Lock()
            returned: list[tuple[float, str]] = []
            ran: list[float] = []

            async def revoked(_: frozenset[TopicPartition]) -> None:
                async with lock:
                    ran.append(anyio.current_time())

            async with rig.member(on_revoked=revoked) as first:

                async def read() -> None:
                    while True:
                        async with lock:
                            batch = await first.poll(max_wait=10.0)
                            returned.append((anyio.current_time(), batch.reason))

                reading = start(tasks, read)
                await anyio.sleep(1.0)
                second = await rig.member().__aenter__()
                await owns(second, 1)
                assert anyio.current_time() < 3.0
                assert returned[0][0] < 1.5
                assert returned[0][1] == "rebalance"
                assert ran
                await reading.cancel()
                await second.shutdown()

    @rule("K55")
    @virtual(seeds=2)
    async def test_a_hook_that_never_ends_is_cut_off_with_one_warning(self) -> None:
        async with opened(2) as rig:

            async def revoked(_: frozenset[TopicPartition]) -> None:
                await anyio.sleep_forever()

            async with rig.member(on_revoked=revoked, hook_timeout=2.0) as first:
                await first.ready()
                before = anyio.current_time()
                async with rig.member() as second:
                    await owns(second, 1)
                    assert anyio.current_time() - before < 2.5
                    assert len(rig.reported("hook_cut_off")) == 1


class TestHooks:
    @virtual(seeds=2)
    async def test_nothing_is_delivered_before_on_assigned_has_run(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            events: list[object] = []

            async def assigned(partitions: frozenset[TopicPartition]) -> None:
                await anyio.sleep(1.0)
                await consumer.seek(P1, 2)
                events.append(partitions)

            consumer = rig.member(on_assigned=assigned)
            async with consumer:
                found = places(await take(consumer, 4))
                assert events == [frozenset({P0, P1})]
                assert sorted(found) == [(0, 0), (0, 1), (0, 2), (1, 2)]

    @virtual(seeds=2)
    async def test_on_revoked_may_store_and_is_told_at_shutdown_too(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            told: list[frozenset[TopicPartition]] = []

            async def revoked(partitions: frozenset[TopicPartition]) -> None:
                told.append(partitions)
                for partition in partitions:
                    await first.store_offset(partition, 1, force=True)

            first = rig.member(on_revoked=revoked)
            async with first:
                await first.ready()
                second = await rig.member().__aenter__()
                (moved,) = await owns(second, 1)
                assert told == [frozenset({moved})]
                assert (await anext(second)).offset == 2
                (kept,) = await owns(first, 1)
                await second.shutdown()
                await owns(first, 2)
            assert told[1:] == [frozenset({P0, P1})]
            assert {rig.group_stored(kept), rig.group_stored(moved)} == {1}

    @rule("K72", "K55")
    @virtual(seeds=2)
    async def test_it_is_ready_when_the_hook_has_run_and_not_before(self) -> None:
        async def assigned(_: object) -> None:
            await anyio.sleep(3.0)

        async with opened(2) as rig, rig.member(on_assigned=assigned) as consumer:
            with pytest.raises(NotReady, match=r"no position yet for t\[0\], t\[1\] after 1 s"):
                await consumer.ready(timeout=1)
            await consumer.ready(timeout=5)
            assert (consumer.position(P0), consumer.position(P1)) == (0, 0)

    @rule("K72", "K55")
    @virtual(seeds=2)
    async def test_whoever_waits_for_a_position_waits_for_none_of_what_goes(self) -> None:
        async with opened(2) as rig, rig.member() as first, anyio.create_task_group() as tasks:
            rig.script.every("resolve", do=hold(anyio.Event()), where=lambda call: call.arguments["partition"] == P1)
            waiting = start(tasks, first.ready)
            await anyio.sleep(1.0)
            assert not waiting.done.is_set()
            async with rig.member():
                await owns(first, 1)
                await settled()
                assert waiting.outcome == "returned"
            tasks.cancel_scope.cancel()

    @rule("K88")
    @virtual(seeds=3)
    async def test_an_error_of_a_hook_reaches_the_reader_once_and_the_state_is_new(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 30)
            await rig.fill(P1, 30)

            def revoked(partitions: frozenset[TopicPartition]) -> None:
                if len(partitions) == 1:
                    raise KeyError("k")

            async with rig.member(on_revoked=revoked) as first:
                await first.ready()
                second = await rig.member().__aenter__()
                (moved,) = await owns(second, 1)
                await settled()
                (kept,) = first.assignment
                with pytest.raises(RebalanceHookError, match="KeyError") as caught:
                    await anext(first)
                assert isinstance(caught.value.__cause__, KeyError)
                assert {message.topic_partition for message in await take(first, 30)} == {kept}
                assert moved != kept
                await second.shutdown()

    @rule("K50", "K55")
    @HOOKS
    @virtual()
    async def test_a_hook_may_begin_the_shutdown_of_its_consumer(self, hook: str) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)

            async def end(_: frozenset[TopicPartition]) -> None:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(consumer.shutdown)
                assert await consumer.shutdown() == ShutdownReport({}, {}, {})

            consumer = rig.member(**{hook: end}, commit=AutoCommit.finished(60.0))
            async with consumer:
                if hook == "on_revoked":
                    await take(consumer, 3)
                    tasks.start_soon(consumer.shutdown)
                with anyio.fail_after(1.0), pytest.raises(StopAsyncIteration):
                    await anext(consumer)
            report = await consumer.shutdown()
            assert report.committed == ({} if hook == "on_assigned" else {P0: 2})
            assert rig.reported("hook_cut_off") == []

    @rule("K50", "K55")
    @HOOKS
    @virtual()
    async def test_a_hook_that_shuts_its_consumer_down_is_cut_short_unless_it_is_the_last(self, hook: str) -> None:
        async with opened() as rig:
            done: list[str] = []

            async def end(_: frozenset[TopicPartition]) -> None:
                await consumer.shutdown()
                await anyio.sleep(0.5)
                done.append(hook)

            consumer = rig.member(**{hook: end})
            async with consumer:
                await anyio.sleep(1.0)
            assert done == ([] if hook == "on_assigned" else ["on_revoked"])

    @rule("K07", "K88")
    @HOOKS
    @virtual()
    async def test_a_hook_that_waits_for_what_is_cancelled_has_failed(self, hook: str, backend: str) -> None:
        if backend == "trio":
            return  # there a cancel stays in its own scope
        async with opened(2) as rig:
            await rig.fill(P0, 1)
            await rig.fill(P1, 1)

            async def wait(partitions: frozenset[TopicPartition]) -> None:
                if len(partitions) == (2 if hook == "on_assigned" else 1):
                    task = asyncio.ensure_future(anyio.sleep(1.0))
                    task.cancel()
                    await task

            async with rig.member(**{hook: wait}) as first:
                if hook == "on_revoked":
                    await take(first, 2)
                    async with rig.member() as second:
                        found = await items(first, 1, patience=10.0)
                        await owns(second, 1)
                else:
                    found = await items(first, 3, patience=10.0)
                assert any(isinstance(item, RebalanceHookError) for item in found)

    @rule("K72")
    @virtual(seeds=2)
    async def test_a_member_is_ready_when_on_assigned_has_run(self) -> None:
        async with opened(2) as rig:
            asked: list[float] = []

            async def assigned(_: frozenset[TopicPartition]) -> None:
                await consumer.ready()  # a hook waits for nothing that waits for it
                asked.append(anyio.current_time())
                await anyio.sleep(1.0)

            consumer = rig.member(on_assigned=assigned)
            async with consumer:
                with pytest.raises(NotReady, match=r"no position yet for t\[0\], t\[1\] after 0.5 s"):
                    await consumer.ready(timeout=0.5)
                await consumer.ready()
                assert [consumer.position(P0), consumer.position(P1)] == [0, 0]
                assert anyio.current_time() - asked[0] == pytest.approx(1.0, abs=0.1)

    @rule("K72")
    @virtual(seeds=2)
    async def test_what_goes_without_a_position_is_waited_for_no_longer(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:

            async def assigned(_: frozenset[TopicPartition]) -> None:
                await anyio.sleep(5.0)

            async with rig.member(on_assigned=assigned, on_revoked=assigned) as first:
                ready = start(tasks, first.ready)
                await anyio.sleep(1.0)
                async with rig.member() as second:
                    await owns(second, 1)
                    await settled()
                    assert ready.outcome == "returned"
                    (kept,) = first.assignment
                    assert first.position(kept) == 0

    @rule("K55")
    @virtual(seeds=2)
    async def test_a_shutdown_in_a_hand_over_tells_nothing_twice(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            told: list[TopicPartition] = []
            async with rig.member(on_revoked=told.extend, commit=AutoCommit.finished(60.0)) as first:
                await take(first, 6)
                await first.poll(max_wait=0.0)
                rig.script.every("store_offset", do=delay(2.0))
                second = await rig.member().__aenter__()
                await anyio.sleep(1.0)
                assert len(told) == 1  # its last store is out
            assert sorted(told) == [P0, P1]
            await second.shutdown()

    @rule("K55", "C30")
    @virtual(seeds=2)
    async def test_an_eviction_in_a_hand_over_tells_nothing_twice(self) -> None:
        async with opened(2, session_timeout=2.0) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            told: list[TopicPartition] = []
            options: dict[str, Any] = {"commit": AutoCommit.finished(60.0), "heartbeat_interval": 1e3}
            async with rig.member(on_revoked=told.extend, **options) as first:
                await take(first, 6)
                await first.poll(max_wait=0.0)
                rig.script.on("store_offset", nth=range(1, 100), do=refuse(CapacityExceeded("not now")))
                async with rig.member(heartbeat_interval=0.5):
                    await anyio.sleep(3.0)
                    assert rig.reported("evicted")
                    assert sorted(told) == [P0, P1]

    @rule("K55")
    @virtual(seeds=2)
    async def test_on_revoked_is_told_only_of_what_on_assigned_was_told_of(self) -> None:
        """The first hook outlasts the consumer, so the second one does not begin."""
        async with opened(2) as rig, rig.member() as other:
            told: list[tuple[str, frozenset[TopicPartition]]] = []

            async def assigned(partitions: frozenset[TopicPartition]) -> None:
                told.append(("assigned", partitions))
                await anyio.sleep(5.0)

            def revoked(partitions: frozenset[TopicPartition]) -> None:
                told.append(("revoked", partitions))

            async with rig.member(on_assigned=assigned, on_revoked=revoked) as first:
                (early,) = await owns(first, 1)
                await other.shutdown()
                await owns(first, 2)
            assert told == [("assigned", frozenset({early})), ("revoked", frozenset({early}))]

    @rule("K55", "K50")
    @virtual(seeds=2)
    async def test_a_shutdown_tells_of_a_loss_that_was_not_told_to_its_end(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            told: list[frozenset[TopicPartition]] = []

            async def revoked(partitions: frozenset[TopicPartition]) -> None:
                await anyio.sleep(1.0)
                told.append(partitions)

            async with rig.member(on_revoked=revoked, heartbeat_interval=1e3):
                rig.script.every("open_session", do=refuse(LogUnavailable("away")))
                await anyio.sleep(2.5)
                assert rig.reported("evicted")
                assert told == []
            assert told == [frozenset({P0})]


class TestStops:
    @rule("K49")
    @pytest.mark.parametrize("slow", ["body", "hook"])
    @virtual(seeds=2)
    async def test_a_member_whose_end_takes_longer_than_its_session_stays_one(self, slow: str) -> None:
        """Else what is finished meanwhile could not be stored, and would come again."""
        async with opened(1, session_timeout=5.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            body_s, hook_s = (9.0, 0.0) if slow == "body" else (1.0, 9.0)

            async def revoked(_: frozenset[TopicPartition]) -> None:
                await anyio.sleep(hook_s)

            commit = AutoCommit.finished(60.0)
            member = rig.member(commit=commit, drain_timeout=20.0, heartbeat_interval=1.0, on_revoked=revoked)
            async with member:
                start(tasks, partial(Log().read, "", member, body=body_s))
                await anyio.sleep(0.5)
                report = await member.shutdown()
            assert report.committed == {P0: 0}
            assert rig.group_stored(P0) == 0

    @rule("K50")
    @virtual(seeds=40)
    async def test_a_stop_in_the_middle_of_a_rebalance_ends_and_hands_everything_over(self, seed: int) -> None:
        async with opened(6) as rig, anyio.create_task_group() as tasks:
            for number in range(6):
                await rig.fill(TopicPartition("t", number), 20)
            log = Log()
            members = [await rig.member(commit=ON_POLL).__aenter__() for _ in range(3)]
            for number, member in enumerate(members):
                start(tasks, partial(log.read, str(number), member, body=0.01))
            await anyio.sleep(0.1)
            rig.script.every("release", do=delay(0.02))
            fourth = rig.member(commit=ON_POLL)
            await fourth.__aenter__()
            start(tasks, partial(log.read, "fourth", fourth, body=0.01))
            await anyio.sleep(seed * 0.00125)
            before = anyio.current_time()
            await members[0].shutdown()
            assert anyio.current_time() - before < 2.0
            await anyio.sleep(3.0)
            owned = [at for member in (*members[1:], fourth) for at in member.assignment]
            assert sorted(owned) == [TopicPartition("t", number) for number in range(6)]
            for member in (*members[1:], fourth):
                await member.shutdown()
            assert sorted(log.finished()) == [(number, offset) for number in range(6) for offset in range(20)]

    @rule("K69", "I1")
    @virtual(seeds=2)
    async def test_a_rolling_restart_stops_only_what_moves_and_repeats_nothing(self) -> None:
        async with opened(12) as rig, anyio.create_task_group() as tasks:
            log = Log()
            moments: dict[int, list[float]] = {number: [] for number in range(12)}

            async def read(member: Consumer) -> None:
                async for message in member:
                    moments[message.partition].append(anyio.current_time())
                    log.done.append(("", message.partition, message.offset))

            async def produce() -> None:
                for turn in range(1500):
                    await rig.fill(TopicPartition("t", turn % 12), 1)
                    await anyio.sleep(0.01)

            members: list[Consumer] = []
            for _ in range(4):
                members.append(await rig.member(commit=ON_POLL).__aenter__())
                start(tasks, partial(read, members[-1]))
            await anyio.sleep(1)
            producing = start(tasks, produce)
            await anyio.sleep(1)
            for index in range(4):
                before = {at for member in members[index + 1 :] for at in member.assignment}
                leaving = members[index].assignment
                await members[index].shutdown()
                await anyio.sleep(1.0)
                now = {at for member in members if member is not members[index] for at in member.assignment}
                assert leaving <= now
                assert before <= now
                members[index] = await rig.member(commit=ON_POLL).__aenter__()
                start(tasks, partial(read, members[index]))
                await anyio.sleep(1.0)
            await producing.done.wait()
            await anyio.sleep(1)
            for member in members:
                await member.shutdown()
            assert sorted(log.finished()) == [(number, offset) for number in range(12) for offset in range(125)]
            gaps = [later - earlier for times in moments.values() for earlier, later in pairwise(times)]
            assert max(gaps) < 0.5
