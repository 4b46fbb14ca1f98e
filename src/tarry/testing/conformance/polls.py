"""Polls that store nothing: limits, order, waiting, and what a target is told beside its messages."""

from __future__ import annotations

from typing import Any

import anyio

from tarry import abc
from tarry.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from tarry.testing.conformance.rig import (
    LONG,
    MIB,
    OVERHEAD,
    Rig,
    counts,
    offsets,
    only,
    refused,
    size_of,
    sized,
    target,
)
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import Position, Start, TopicPartition


class Polls(Suite):
    """Polls that are answered at once."""

    @rests_on("design 3", "C6")
    async def test_every_target_is_answered_in_the_order_asked(self, rig: Rig) -> None:
        p0, p1, p2 = await rig.topic(3)
        await rig.append(p0, b"a", b"b")
        await rig.append(p2, b"c")
        reader = await rig.reader(p0, p1, p2)
        histories = [part.history for part in (await rig.broker.describe_topic(p0.topic)).partitions]
        reply = await rig.poll(reader, (p2, 0), (p1, 0), (p0, 1))
        found = [
            (each.partition, each.asked, each.position, offsets(each), each.next, each.head, each.log_start)
            for each in reply.targets
        ]
        assert found == [
            (p2, 0, 0, [0], 1, 0, 0),
            (p1, 0, 0, [], 0, None, 0),
            (p0, 1, 1, [1], 2, 1, 0),
        ]
        assert [each.history for each in reply.targets] == [histories[2], histories[1], histories[0]]

    @rests_on("C6", "K101")
    async def test_nothing_there_is_an_empty_answer_each_time(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at)
        for _ in range(10):
            with rig.taking(0):
                found = only(await rig.poll(reader, (at, 0)))
            assert (found.runs, found.position, found.head) == ((), 0, None)
        await rig.append(at, b"a")
        found = only(await rig.poll(reader, (at, 1)))
        assert (found.runs, found.position, found.next, found.head) == ((), 1, 1, 0)

    @rests_on("design 3")
    async def test_count_is_exact_over_all_targets(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        for at in partitions:
            for _ in range(4):
                await rig.fill(at, 5)
        reader = await rig.reader(*partitions)
        for count in 1, 3, 5, 19, 20, 21, 33, 59, 60, 61:
            reply = await rig.poll(reader, *[(at, 0) for at in partitions], count=count)
            assert sum(counts(reply)) == min(count, 60), count

    @rests_on("C7", "design 3")
    async def test_max_bytes_is_exact_over_all_targets(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        for at in partitions:
            for _ in range(2):
                await rig.fill(at, 5, size=1000)
        reader = await rig.reader(*partitions)
        for limit in 1, 999, 1000, 1500, 2999, 5000, 9999, 15_000, 31_000, MIB:
            reply = await rig.poll(reader, *[(at, 0) for at in partitions], max_bytes=limit)
            size = size_of(reply)
            assert size < limit or sum(counts(reply)) == 1, f"{limit}: what is round the records counts, too"
            assert size >= 1000 * min(max((limit - 3 * OVERHEAD) // 1000, 1), 30), limit

    @rests_on("S45", "K22", "C7")
    async def test_an_oversized_record_comes_whole_and_alone(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        await rig.broker.append(p0, sized(100, 20_000, 100))
        await rig.broker.append(p1, sized(30_000, 100))
        reader = await rig.reader(p0, p1)
        walk = {p0: Position(0), p1: Position(0)}
        seen: list[tuple[int, int]] = []
        for _ in range(5):
            reply = await rig.poll(reader, *walk.items(), max_bytes=5000)
            if not sum(counts(reply)):
                break
            seen.append((sum(counts(reply)), size_of(reply)))
            walk |= {found.partition: found.next for found in reply.targets}
        assert all(size <= 5000 or count == 1 for count, size in seen), seen
        assert sum(size for _, size in seen) == 50_300, seen

    @rests_on("C7")
    async def test_a_large_record_comes_through_the_smallest_limit(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.broker.append(at, sized(MIB))
        reader = await rig.reader(at)
        for max_wait in 0.0, LONG:
            reply = await rig.poll(reader, (at, 0), max_bytes=1, max_wait=max_wait)
            assert (counts(reply), size_of(reply)) == ([1], MIB)

    @rests_on("I2", "C27")
    async def test_walking_on_from_next_meets_every_message_once(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for size in range(20, 60):
            await rig.broker.append(partitions[size % 2], sized(*[size] * (1 + size % 7)))
        reader = await rig.reader(*partitions)
        for count, limit in ((1000, 300), (7, MIB), (1, MIB), (3, 200)):
            walk = dict.fromkeys(partitions, Position(0))
            seen: dict[TopicPartition, list[int]] = {at: [] for at in partitions}
            while True:
                reply = await rig.poll(reader, *walk.items(), count=count, max_bytes=limit)
                for found in reply.targets:
                    assert found.asked == found.position == walk[found.partition]
                    seen[found.partition] += offsets(found)
                    walk[found.partition] = found.next
                if not sum(counts(reply)):
                    break
            for at in partitions:
                assert seen[at] == list(range(await rig.log_end(at))), (count, limit)

    @rests_on("Q10", "S74")
    async def test_a_target_of_another_history_reads_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t")
        await rig.append(at, b"old", b"old", b"old")
        reader = await rig.reader(at)
        old = only(await rig.poll(reader, (at, 0))).history
        await rig.broker.delete_topic(at.topic)
        await rig.topic(label="t")
        await rig.append(at, b"new")
        new = (await reader.resolve(at, Start.first())).history
        for position in 0, 3:
            stale = abc.FetchTarget(at, Position(position), history=old)
            with rig.taking(0):
                found = only(await rig.poll(reader, stale, max_wait=LONG))
            assert (found.runs, found.history) == ((), new)
        fresh = abc.FetchTarget(at, Position(0), history=new)
        assert offsets(only(await rig.poll(reader, fresh))) == [0]

    @rests_on("Q9", "K40")
    async def test_what_retention_removed_is_skipped_and_the_gap_is_told(self, rig: Rig) -> None:
        (at,) = await rig.topic(retention_bytes=5000)
        appended = 0

        async def trimmed() -> bool:
            nonlocal appended
            receipt = await rig.fill(at, 5, size=500)
            assert receipt.offset == appended
            appended += 5
            return (await rig.broker.describe_topic(at.topic)).partitions[0].log_start > 0

        await rig.until(trimmed)
        reader = await rig.reader(at)
        found = only(await rig.poll(reader, (at, 0)))
        assert found.asked == 0
        assert 0 < found.log_start <= found.position
        assert (found.next, found.head) == (appended, appended - 1)
        resolved = await reader.resolve(at, Start.first())
        assert resolved.position == resolved.log_start > 0

    @rests_on("design 3")
    async def test_a_position_that_does_not_exist_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at)
        for max_wait in 0.0, LONG:
            with refused(OffsetOutOfRange) as caught:
                await rig.poll(reader, (at, 3), max_wait=max_wait)
            error = caught.value
            assert isinstance(error, OffsetOutOfRange)
            assert (error.asked, error.log_start, error.log_end) == (3, 0, 2)
            for nowhere in TopicPartition(at.topic, 1), TopicPartition(rig.name("no"), 0):
                with refused(TopicNotFound):
                    leader = await reader.route(at)
                    await reader.poll(leader, [target((nowhere, 0))], count=1, max_bytes=MIB, max_wait=max_wait)

    @rests_on("C3", "S4", "C80")
    async def test_a_poll_out_of_range_is_refused(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        await rig.append(p0, b"a")
        wrong: list[dict[str, Any]] = [
            {"count": 0},
            {"count": 10_001},
            {"min_count": 0},
            {"count": 2, "min_count": 3},
            {"max_bytes": 0},
            {"max_wait": -1.0},
            {"max_wait": 601.0},
        ]
        for options in wrong:
            with refused(ConfigError):
                await rig.poll(reader, (p0, 0), **options)
        with refused(ConfigError):
            await rig.poll(reader, (p0, 0), (p1, 0), max_wait=1.0)
        leader = await reader.route(p0)
        for targets in [], [target((p0, 0))] * 1001:
            with refused(ConfigError):
                await reader.poll(leader, targets, count=1, max_bytes=MIB)
        assert offsets(only(await rig.poll(reader, (p0, 0), count=10_000, max_wait=600.0))) == [0]

    @rests_on("C80")
    async def test_a_thousand_targets_are_read_at_once(self, rig: Rig) -> None:
        partitions = await rig.topic(abc.TARGETS_MAX)
        for number in 7, 500, 999:
            await rig.append(partitions[number], b"a")
        reader = await rig.reader(*partitions)
        reply = await rig.poll(reader, *[(at, 0) for at in partitions])
        assert [found.partition for found in reply.targets] == list(partitions)
        assert [found.partition.partition for found in reply.targets if found.runs] == [7, 500, 999]


class WaitingPolls(Suite):
    """Polls that wait at the log."""

    @rests_on("S21", "C2")
    async def test_a_waiting_poll_is_answered_by_the_append(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        poll = rig.ask(rig.poll, reader, (p0, 0), max_wait=LONG)
        await rig.settle()
        await rig.append(p1, b"other")
        await rig.settle()
        assert poll.is_out
        await rig.append(p0, b"a", b"b")
        found = only(await poll.answer())
        assert (offsets(found), found.head) == ([0, 1], 1)

    @rests_on("S12")
    async def test_what_is_there_already_is_not_waited_for(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b", b"c")
        reader = await rig.reader(at)
        for min_count, count in ((1, 1000), (3, 1000), (2, 2)):
            with rig.taking(0):
                found = only(await rig.poll(reader, (at, 0), min_count=min_count, count=count, max_wait=LONG))
            assert offsets(found) == list(range(min(count, 3)))

    @rests_on("S16", "S23")
    async def test_min_count_waits_for_so_many(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"before")
        reader = await rig.reader(at)
        poll = rig.ask(rig.poll, reader, (at, 0), min_count=4, max_wait=LONG)
        for value in b"a", b"b":
            await rig.settle()
            await rig.append(at, value)
        await rig.settle()
        assert poll.is_out
        await rig.append(at, b"c", b"d")
        assert offsets(only(await poll.answer())) == [0, 1, 2, 3, 4]

    @rests_on("S19", "S23")
    async def test_a_byte_limit_that_can_be_reached_ends_the_wait(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at)
        poll = rig.ask(rig.poll, reader, (at, 0), min_count=1000, max_bytes=10_000, max_wait=LONG)
        await rig.settle()
        await rig.fill(at, 1, size=1000)
        await rig.settle()
        assert poll.is_out
        await rig.fill(at, 9, size=1000)
        reply = await poll.answer()
        assert 10_000 - 1000 - OVERHEAD < size_of(reply) < 10_000

    @rests_on("S28", "C6", "K101")
    async def test_the_end_of_the_wait_answers_with_what_there_is(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        await rig.append(p1, b"a")
        reader = await rig.reader(p0, p1)
        for at, there in ((p0, []), (p1, [0])):
            with rig.taking(rig.short):
                found = only(await rig.poll(reader, (at, 0), min_count=2, max_wait=rig.short))
            assert offsets(found) == there

    @rests_on("S31")
    async def test_messages_that_are_too_few_do_not_prolong_the_wait(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at)
        with rig.taking(rig.short):
            poll = rig.ask(rig.poll, reader, (at, 0), min_count=100, max_wait=rig.short)
            for _ in range(3):
                await anyio.sleep(rig.short / 5)
                await rig.append(at, b"a")
            await rig.until(lambda: not poll.is_out, within=rig.short)
        found = offsets(only(await poll.answer()))
        assert found == [0, 1, 2][: len(found)]
        assert len(found) == 3 or not rig.is_virtual, "by the real clock an append may come late"

    @rests_on("S11", "Q11")
    async def test_a_start_is_found_when_the_wait_begins(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        starts = Start.end(), Start.offset(2)
        out = [rig.ask(rig.poll, await rig.reader(at), (at, start), max_wait=LONG) for start in starts]
        two = rig.ask(rig.poll, await rig.reader(at), (at, Start.end()), min_count=2, max_wait=LONG)
        await rig.settle()
        await rig.append(at, b"c")
        for poll in out:
            found = only(await poll.answer())
            assert (found.asked, found.position, offsets(found)) == (2, 2, [2])
        await rig.append(at, b"d")
        assert offsets(only(await two.answer())) == [2, 3]

    @rests_on("S20")
    async def test_one_append_answers_all_who_wait_for_it(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        readers = [await rig.reader(at) for _ in range(10)]
        polls = [rig.ask(rig.poll, reader, (at, 0), max_wait=LONG) for reader in readers]
        more = rig.ask(rig.poll, await rig.reader(at), (at, 0), min_count=2, max_wait=LONG)
        await rig.settle()
        await rig.append(at, b"a")
        assert [offsets(only(await poll.answer())) for poll in polls] == [[0]] * 10
        assert more.is_out
        await more.withdraw()

    @rests_on("S8", "design 3")
    async def test_a_withdrawn_poll_is_gone_and_the_session_goes_on(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        gone, stays = await rig.reader(at), await rig.reader(at)
        polls = [rig.ask(rig.poll, reader, (at, 0), max_wait=LONG) for reader in (gone, stays)]
        await rig.settle()
        await polls[0].withdraw()
        await rig.append(at, b"a")
        assert offsets(only(await polls[1].answer())) == [0]
        await rig.nothing_parked()
        assert offsets(only(await rig.poll(gone, (at, 0), max_wait=LONG))) == [0]

    @rests_on("S8", "I4", "Q14")
    async def test_withdrawn_polls_leave_room_for_others(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        readers = [await rig.reader(at) for _ in range(50)]
        for _ in range(21 if rig.parked is None else 2):  # 1050: more than a partition has room for (Q14).
            polls = [rig.ask(rig.poll, reader, (at, 0), max_wait=LONG) for reader in readers]
            await rig.turn()
            for poll in polls:
                await poll.withdraw()
        await rig.nothing_parked()
        last = rig.ask(rig.poll, readers[0], (at, 0), max_wait=LONG)
        await rig.settle()
        await rig.append(at, b"a")
        assert offsets(only(await last.answer())) == [0]

    @rests_on("S24", "Q16")
    async def test_a_topic_created_again_does_not_answer_who_waited_for_the_old_one(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t")
        reader = await rig.reader(at)
        poll = rig.ask(rig.poll, reader, (at, 0), min_count=2, max_wait=LONG)
        await rig.settle()
        await rig.broker.delete_topic(at.topic)
        await rig.topic(label="t")
        await rig.append(at, b"a", b"b")
        with refused(TopicNotFound):
            await poll.answer()
