"""`poll()`: when it returns, with what, and why; the same with one partition (a deferred poll) and several (a wait)."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import anyio
import pytest

import tarry.consumer.lists
from tarry import AutoCommit, Batch, Message, PollOptions, Start
from tarry._wire.batch import DECODE_BYTES, RUN_OVERHEAD, decode
from tarry.errors import NotAccepted
from tarry.testing import answer_empty, delay, hold, lose_reply, lose_request, refuse
from tarry.types import Segment, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, Rig, offsets, opened, places, settled, start, take
from tests.virtual import virtual

PARTITIONS = pytest.mark.parametrize("partitions", [1, 4])


def record_size(rig: Rig, partition: TopicPartition = P0) -> int:
    """Encoded bytes of one message (all of them are of one size)."""
    part = rig.pump.view.find(partition)
    return part.size // (part.log_end - part.log_start)


class TestWhenItReturns:
    @rule("C2")
    @PARTITIONS
    @virtual(seeds=2)
    async def test_without_a_wait_it_answers_at_once_with_what_is_there(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            assert await consumer.poll(max_wait=0) == []  # also as the very first call
            await rig.fill(P0, 7)
            assert len(await consumer.poll(max_wait=0)) == 7
            assert await consumer.poll(max_wait=0.0) == []
            assert anyio.current_time() == 0

    @rule("C2")
    @PARTITIONS
    @virtual(seeds=2)
    async def test_the_first_poll_without_a_wait_sees_what_is_there(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 7)
            async with rig.consumer() as consumer:
                batch = await consumer.poll(max_wait=0)
                assert (len(batch), batch.reason) == (7, "count")

    @rule("K101", "C6")
    @PARTITIONS
    @virtual()
    async def test_an_empty_topic_gives_an_empty_batch_after_the_wait_each_time(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            for _ in range(100):
                began = anyio.current_time()
                batch = await consumer.poll(max_wait=0.2)
                assert 0.2 <= anyio.current_time() - began + 1e-9 < 0.3
                assert batch == []
                assert (len(batch), batch.reason, batch.offsets) == (0, "wait", {})

    @rule("K101", "C6")
    @PARTITIONS
    @virtual()
    async def test_fewer_than_wanted_come_when_the_wait_is_over(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await rig.fill(P0, 1)
            batch = await consumer.poll(min_count=5, max_wait=0.2)
            assert 0.2 <= anyio.current_time() + 1e-9 < 0.3
            assert (offsets(batch), batch.reason) == ([0], "wait")

    @rule("K89")
    @PARTITIONS
    @pytest.mark.parametrize("rest", [27, 0])
    @virtual(seeds=3)
    async def test_it_waits_for_the_rest_as_long_as_it_may(self, partitions: int, rest: int) -> None:
        async with opened(partitions) as rig:
            targets = [TopicPartition("t", number) for number in range(partitions)]
            await rig.fill(targets[0], 60)
            await rig.fill(targets[-1], 13)
            async with rig.consumer() as consumer, anyio.create_task_group() as tasks:
                reader = start(tasks, lambda: consumer.poll(min_count=100, max_wait=10.0))
                await anyio.sleep(5)
                assert reader.outcome == "running"
                await rig.fill(targets[partitions // 2], rest)
                await reader.done.wait()
                batch: Batch = reader.result
                assert len(batch) == 73 + rest
                assert batch.reason == ("count" if rest else "wait")
                assert 0 <= anyio.current_time() - (5 if rest else 10) < 0.1
                assert len(rig.calls("poll", "wait_ready")) < 10 * rig.leaders(partitions)

    @rule("K89")
    @PARTITIONS
    @virtual(seeds=2)
    async def test_it_returns_at_once_when_its_bytes_are_reached(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 100, size=50)
            room = 40 * record_size(rig) + RUN_OVERHEAD
            async with rig.consumer() as consumer:
                batch = await consumer.poll(min_count=100, max_wait=10.0, max_bytes=room)
                assert (offsets(batch), batch.reason) == (list(range(40)), "bytes")
                assert anyio.current_time() < 0.1
                batch = await consumer.poll(min_count=100, max_wait=10.0, max_bytes=room)
                assert (offsets(batch), batch.reason) == (list(range(40, 80)), "bytes")
                batch = await consumer.poll(min_count=20, max_wait=10.0, max_bytes=room)
                assert (offsets(batch), batch.reason) == (list(range(80, 100)), "count")
                assert anyio.current_time() < 0.1

    @rule("K89")
    @virtual(seeds=2)
    async def test_bytes_of_many_partitions_end_it_with_the_framing_of_each(self) -> None:
        async with opened(20) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            for number in range(20):
                await rig.fill(TopicPartition("t", number), 1)
            await anyio.sleep(0.5)  # all of it is read ahead: 20 messages, and 20 times the framing
            reader = start(tasks, lambda: consumer.poll(min_count=1000, max_bytes=2000, max_wait=30.0))
            await anyio.sleep(0.1)
            assert reader.outcome == "running"
            await rig.fill(P0, 1, size=800)
            await reader.done.wait()
            assert anyio.current_time() < 1
            assert reader.result.reason == "bytes"

    @rule("K89")
    @PARTITIONS
    @virtual()
    async def test_bytes_that_arrive_during_the_wait_end_it(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10, size=50)
            room = 25 * record_size(rig) + RUN_OVERHEAD
            reader = start(tasks, lambda: consumer.poll(min_count=1000, max_wait=10.0, max_bytes=room))
            await anyio.sleep(1)
            await rig.fill(P0, 10, size=50)
            await anyio.sleep(1)
            assert reader.outcome == "running"
            await rig.fill(P0, 10, size=50)
            await reader.done.wait()
            assert anyio.current_time() < 2.1
            assert (offsets(reader.result), reader.result.reason) == (list(range(25)), "bytes")

    @rule("K89")
    @virtual(seeds=3)
    async def test_a_trickle_over_many_partitions_is_gathered_with_few_requests(self) -> None:
        async with opened(50) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            reader = start(tasks, lambda: consumer.poll(min_count=100, max_wait=60.0))
            for number in range(100):
                await anyio.sleep(0.1)
                await rig.append(TopicPartition("t", number % 50), b"x")
            await reader.done.wait()
            assert (len(reader.result), reader.result.reason) == (100, "count")
            assert anyio.current_time() < 10.1
            assert len(rig.calls("poll", "wait_ready")) <= 6 * rig.leaders(50)

    @rule("C5")
    @PARTITIONS
    @virtual()
    async def test_the_cap_of_the_log_is_invisible(self, partitions: int) -> None:
        async with (
            opened(partitions, max_wait=1.0) as rig,
            rig.consumer() as consumer,
            anyio.create_task_group() as tasks,
        ):
            reader = start(tasks, lambda: consumer.poll(max_wait=20.0))
            await anyio.sleep(7.5)
            await rig.append(P0, b"x")
            await reader.done.wait()
            assert anyio.current_time() < 7.6  # nobody paused between the capped requests
            assert len(reader.result) == 1
            began = anyio.current_time()
            assert await consumer.poll(max_wait=4.0) == []
            assert 4 <= anyio.current_time() - began + 1e-9 < 4.1

    @rule("C8", "C5")
    @PARTITIONS
    @virtual()
    async def test_each_request_of_one_poll_asks_for_what_is_left(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            rig.script.calls.clear()
            began = anyio.current_time()
            assert await consumer.poll(max_wait=70.0) == []
            asked = [(call.at - began, call.arguments["max_wait"]) for call in rig.calls("poll", "wait_ready")]
            assert [(round(at, 3), round(wait, 3)) for at, wait in asked] == [(0, 30), (30, 30), (60, 10)]

    @rule("C8")
    @PARTITIONS
    @virtual()
    async def test_after_lost_replies_too(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            rig.script.calls.clear()
            for operation in ("poll", "wait_ready"):
                rig.script.on(operation, do=lose_request(after=4.0))
            began = anyio.current_time()
            assert await consumer.poll(max_wait=10.0) == []
            assert 10 <= anyio.current_time() - began + 1e-9 < 10.1
            for call in rig.calls("poll", "wait_ready"):
                assert call.at + call.arguments["max_wait"] == pytest.approx(began + 10)

    @PARTITIONS
    @virtual()
    async def test_a_log_that_refuses_does_not_hold_a_poll_up(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            rig.script.every("poll", do=refuse(NotAccepted("no")))
            rig.script.every("wait_ready", do=refuse(NotAccepted("no")))
            for _ in range(2):
                began = anyio.current_time()
                assert await consumer.poll(max_wait=0.1) == []
                assert 0.1 <= anyio.current_time() - began + 1e-9 < 0.2
            await anyio.sleep(30)  # the loops are backing off for up to two seconds now
            with pytest.raises(NotAccepted):
                await consumer.poll(max_wait=0.5)
            rig.script.calls.clear()
            for _ in range(20):
                began = anyio.current_time()
                with pytest.raises(NotAccepted):
                    await consumer.poll(max_wait=0.5)
                assert anyio.current_time() - began < 0.6
            assert len(rig.calls("poll", "wait_ready")) <= 21  # nobody is asked more often for the error

    @PARTITIONS
    @virtual()
    async def test_a_pause_between_requests_does_not_hold_a_poll_up(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            empty = [rig.script.every(operation, do=answer_empty()) for operation in ("poll", "wait_ready")]
            await anyio.sleep(30)  # the loops are pacing themselves at two seconds now
            for rule_ in empty:
                rig.script.remove(rule_)
            await rig.fill(P0, 3)
            began = anyio.current_time()
            assert len(await consumer.poll(max_wait=0.0)) == 3
            assert anyio.current_time() - began < 0.01

    @PARTITIONS
    @virtual()
    async def test_a_slow_answer_at_the_end_of_the_wait_still_counts(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            await rig.fill(P0, 3)
            for operation in ("poll", "wait_ready"):
                rig.script.every(operation, do=delay(0.3))
            batch = await consumer.poll(min_count=3, max_wait=0.4)
            assert len(batch) == 3
            assert anyio.current_time() < 1.3

    @PARTITIONS
    @virtual()
    async def test_a_log_that_says_nothing_at_all_ends_no_later_than_the_request_would(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            for operation in ("poll", "wait_ready"):
                rig.script.every(operation, do=hold(anyio.Event()))
            began = anyio.current_time()
            batch = await consumer.poll(max_wait=3.0)
            assert (len(batch), batch.reason) == (0, "wait")
            assert anyio.current_time() - began <= 13.001

    @virtual()
    async def test_a_start_that_is_not_known_yet_does_not_hold_a_poll_up(self) -> None:
        async with opened(2) as rig:
            rig.script.every("resolve", do=hold(anyio.Event()))
            async with rig.consumer() as consumer:
                assert await consumer.poll(max_wait=2.0) == []
                assert anyio.current_time() == pytest.approx(2.0)
                assert await consumer.poll(max_wait=0.0) == []
                assert anyio.current_time() == pytest.approx(2.0)

    @virtual()
    async def test_durations_may_be_timedeltas(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            wait: float = timedelta(seconds=2)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
            assert await consumer.poll(max_wait=wait) == []
            assert anyio.current_time() == pytest.approx(2.0)


class TestWhatItBrings:
    @rule("C3")
    @PARTITIONS
    @virtual(seeds=2)
    async def test_at_most_count_messages_and_nothing_gets_lost_between_calls(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            targets = [TopicPartition("t", number) for number in range(partitions)]
            for target in targets:
                await rig.fill(target, 130)
            async with rig.consumer() as consumer:
                found: list[tuple[int, int]] = []
                while len(found) < 130 * partitions:
                    batch = await consumer.poll(count=70, min_count=70, max_wait=1.0)
                    assert len(batch) == min(70, 130 * partitions - len(found))
                    found += places(batch)
                for number in range(partitions):
                    assert [offset for part, offset in found if part == number] == list(range(130))

    @rule("C7")
    @virtual(seeds=2)
    async def test_max_bytes_counts_overhead_for_each_partition(self) -> None:
        async with opened(3) as rig:
            for target in (P0, P1, P2):
                await rig.fill(target, 10, size=100)
            size = record_size(rig)
            async with rig.consumer() as consumer:
                batch = await consumer.poll(max_bytes=25 * size + 3 * RUN_OVERHEAD, min_count=1000)
                assert len(batch) == 25
                assert len(batch.offsets) == 3
                batch = await consumer.poll(max_bytes=5 * size + RUN_OVERHEAD - 1, min_count=1000)
                assert len(batch) == 4

    @rule("K22", "C7", "C108")
    @virtual(seeds=3)
    async def test_a_message_above_the_limit_comes_alone_and_holds_nobody_up(self) -> None:
        async with opened(2) as rig:
            for size in (100, 5000, 100):
                await rig.append(P0, bytes(size))
            await rig.fill(P1, 50, size=100)
            seen: list[list[tuple[int, int, int]]] = []
            async with rig.consumer(poll=PollOptions(max_bytes=1000)) as consumer:
                while sum(map(len, seen)) < 53:
                    batch = await consumer.poll(min_count=8, max_wait=0.1)
                    seen.append([(m.partition, m.offset, len(m.value or b"")) for m in batch])
            assert [offset for batch in seen for part, offset, _ in batch if part == 0] == [0, 1, 2]
            assert [offset for batch in seen for part, offset, _ in batch if part == 1] == list(range(50))
            assert [(0, 1, 5000)] in seen
            assert len(seen) <= 12
            assert anyio.current_time() < 0.5

    @rule("C108")
    @virtual()
    async def test_the_read_ahead_asks_for_a_large_message_alone_and_then_as_before(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3, size=100)
            await rig.append(P0, bytes(5000))
            await rig.fill(P0, 4, size=100)
            async with rig.consumer(poll=PollOptions(max_bytes=1000)) as consumer:
                assert offsets(await take(consumer, 8)) == list(range(8))
            limits = [call.arguments["max_bytes"] for call in rig.calls("poll")]
            assert limits == [1000] * len(limits)

    @virtual()
    async def test_a_poll_may_ask_for_more_than_the_consumer_reads_ahead(self) -> None:
        options = PollOptions(count=100, max_bytes=10_000)
        async with opened(2) as rig:
            await rig.fill(P0, 3000, size=100)
            await rig.fill(P1, 3000, size=100)
            async with rig.consumer(poll=options, buffer_bytes=20_000) as consumer:
                batch = await consumer.poll(count=5000, min_count=5000, max_bytes=10_000_000)
                assert (len(batch), batch.reason) == (5000, "count")
                assert consumer._fetches.messages <= 1000
                first, second = batch.offsets[P0], batch.offsets[P1]
                assert sum(last - start + 1 for start, last in (first, second)) == 5000

    @virtual(seeds=2)
    async def test_a_loop_and_polls_may_alternate(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 50)
            await rig.fill(P1, 50)
            found: list[tuple[int, int]] = []
            async with rig.consumer(poll=PollOptions(count=20)) as consumer:
                while len(found) < 100 and anyio.current_time() < 60:
                    with anyio.move_on_after(60):
                        found += places(await take(consumer, min(3, 100 - len(found))))
                    found += places(await consumer.poll(count=min(7, max(100 - len(found), 1)), max_wait=0.0))
            for number in (0, 1):
                assert [offset for part, offset in found if part == number] == list(range(50))

    @rule("C6")
    @virtual()
    async def test_a_batch_is_a_sequence_of_messages(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.append(P1, None, b"")
            async with rig.consumer(start=Start.first()) as consumer:
                batch = await consumer.poll(min_count=5)
                assert len(batch) == 5
                assert isinstance(batch[0], Message)
                assert list(batch) == [batch[index] for index in range(5)]
                assert {m.value for m in batch if m.partition == 1} == {None, b""}
                assert batch.offsets == {P0: (0, 2), P1: (0, 1)}


class TestAbandoned:
    @rule("C24", "K05")
    @PARTITIONS
    @virtual(seeds=3)
    async def test_what_a_cancelled_poll_had_gathered_comes_with_the_next(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await rig.fill(P0, 60)
            with anyio.move_on_after(1.0) as limit:
                await consumer.poll(min_count=100, max_wait=30.0)
            assert limit.cancelled_caught
            await rig.fill(P0, 40)
            batch = await consumer.poll(min_count=100, max_wait=30.0)
            assert offsets(batch) == list(range(100))
            assert anyio.current_time() < 1.1

    @rule("C24")
    @PARTITIONS
    @virtual()
    async def test_a_poll_that_was_given_up_asks_for_nothing_any_more(self, partitions: int) -> None:
        async with opened(partitions) as rig, rig.consumer() as consumer:
            with anyio.move_on_after(1.0):
                await consumer.poll(min_count=100, max_wait=25.0)
            await settled()
            assert consumer._fetches.demand is None
            assert rig.pump.parked == 1
            assert rig.calls("poll", "wait_ready")[-1].arguments["min_count"] == 1
            await rig.fill(P0, 1)
            assert (await anext(consumer)).offset == 0

    @rule("K05")
    @PARTITIONS
    @virtual(seeds=10)
    async def test_cancelled_at_every_point_nothing_is_lost_or_doubled(self, partitions: int, seed: int) -> None:
        """The poll is given up after each possible number of turns of the loop, while messages arrive."""
        async with opened(partitions) as rig, rig.consumer(commit=AutoCommit.finished(0.5)) as consumer:
            found: list[tuple[int, int]] = []
            async with anyio.create_task_group() as tasks:
                for turns in range(25):
                    await rig.fill(TopicPartition("t", (turns + seed) % partitions), 1 + turns % 3)
                    reader = start(tasks, lambda: consumer.poll(min_count=3, max_wait=30.0))
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    await reader.cancel()
                    if reader.outcome == "returned" and reader.result is not None:
                        found += places(reader.result)
            found += places(await consumer.poll(max_wait=1.0, min_count=1000))
            expected = [
                (number, offset)
                for number in range(partitions)
                for offset in range(rig.end(TopicPartition("t", number)))
            ]
            assert sorted(found) == expected

    @virtual()
    async def test_a_lost_reply_inside_a_poll(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.fill(P0, 10)
            rig.script.on("poll", nth=[2, 3], do=lose_reply(after=0.1))
            batch = await consumer.poll(min_count=10, max_wait=5.0)
            assert offsets(batch) == list(range(10))


class TestDecodingInTurns:
    @rule("K91")
    @virtual()
    async def test_a_large_backlog_is_decoded_a_little_in_each_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """10,000 messages of 1 KB: no turn of the loop decodes more than 256 KiB, and a ticker runs between any two."""
        decoded: list[int] = []
        ticks: list[int] = []

        def counting(segment: Segment) -> list[Message]:
            decoded.append(segment.size)
            return decode(segment)

        monkeypatch.setattr(tarry.consumer.lists, "decode", counting)

        async def tick() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                ticks.append(len(decoded))

        async with opened() as rig:
            await rig.fill(P0, 10_000, size=1000)
            options = PollOptions(max_bytes=16_000_000, count=10_000)
            async with rig.consumer(poll=options) as consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(tick)
                expected = 0
                async for message in consumer:
                    assert message.offset == expected
                    expected += 1
                    if expected == 10_000:
                        break
                tasks.cancel_scope.cancel()
        assert max(decoded) <= DECODE_BYTES
        assert len(decoded) >= 10_000_000 // DECODE_BYTES
        # Trio shuffles the tasks of a turn, so that two turns of the reader may lie between two of the ticker.
        assert max(after - before for before, after in pairwise([0, *ticks])) <= 2

    @rule("K91")
    @virtual()
    async def test_a_large_batch_costs_nothing_until_it_is_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoded: list[int] = []

        def counting(segment: Segment) -> list[Message]:
            decoded.append(segment.size)
            return decode(segment)

        monkeypatch.setattr(tarry.consumer.lists, "decode", counting)
        async with opened() as rig:
            await rig.fill(P0, 10_000, size=1000)
            async with rig.consumer(buffer_bytes=32_000_000) as consumer:
                batch = await consumer.poll(count=10_000, min_count=10_000, max_bytes=32_000_000)
                assert len(batch) == 10_000
                assert batch.offsets == {P0: (0, 9999)}
                assert decoded == []
                for expected, message in enumerate(batch):
                    assert message.offset == expected
                assert max(decoded) <= DECODE_BYTES
