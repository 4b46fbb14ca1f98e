"""Readiness waits: which targets have something to read, over many at once, without moving a message."""

from __future__ import annotations

from tarry import abc
from tarry.errors import ConfigError
from tarry.testing.conformance.rig import LONG, Rig, offsets, only, refused, target
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import UNFENCED, HistoryId, Offset, Position, Start, TopicPartition


class Readiness(Suite):
    """See the module."""

    @rests_on("S52", "S56")
    async def test_targets_that_have_something_are_named_at_once(self, rig: Rig) -> None:
        p0, p1, p2 = await rig.topic(3)
        await rig.fill(p0, 2, size=100)
        await rig.fill(p2, 5, size=200)
        reader = await rig.reader(p0, p1, p2)
        with rig.taking(0):
            found = await rig.wait(reader, (p0, 1), (p1, 0), (p2, 0))
        assert {at: ready.messages for at, ready in found.items()} == {p0: 1, p2: 5}
        assert found[p2].size in {0, 1000}, "bytes as far as they are known"

    @rests_on("S52", "S53")
    async def test_an_append_to_one_of_many_answers_with_that_one(self, rig: Rig) -> None:
        partitions = await rig.topic(20)
        reader = await rig.reader(*partitions)
        wait = rig.ask(rig.wait, reader, *[(at, 0) for at in partitions])
        await rig.settle()
        assert wait.is_out
        await rig.append(partitions[13], b"a", b"b")
        found = await wait.answer()
        assert {at: ready.messages for at, ready in found.items()} == {partitions[13]: 2}
        assert offsets(only(await rig.poll(reader, (partitions[13], 0)))) == [0, 1]

    @rests_on("design 3")
    async def test_asking_moves_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        answers = [await rig.wait(reader, (at, Start.next())) for _ in range(3)]
        assert [answer[at].messages for answer in answers] == [2, 2, 2]
        assert await reader.stored_offset(at) is None
        await reader.store_offset(at, Offset(0), ownership=UNFENCED)
        assert (await rig.wait(reader, (at, Start.next())))[at].messages == 1

    @rests_on("S11", "S52")
    async def test_a_start_is_found_when_a_readiness_wait_begins(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        readers = [await rig.reader(at) for _ in range(2)]
        waits = [rig.ask(rig.wait, each, (at, Start.end()), min_count=1 + i) for i, each in enumerate(readers)]
        await rig.settle()
        for index, wait in enumerate(waits):
            assert wait.is_out
            await rig.append(at, b"c")
            assert (await wait.answer())[at].messages == 1 + index

    @rests_on("C6", "S28")
    async def test_the_end_of_a_readiness_wait_names_what_there_is(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        with rig.taking(rig.short):
            assert await rig.wait(reader, (p0, 0), (p1, 0), max_wait=rig.short) == {}
        await rig.append(p1, b"a")
        with rig.taking(rig.short):
            found = await rig.wait(reader, (p0, 0), (p1, 0), min_count=5, max_wait=rig.short)
        assert {at: ready.messages for at, ready in found.items()} == {p1: 1}

    @rests_on("design 4.2", "K89")
    async def test_min_count_counts_over_all_targets_together(self, rig: Rig) -> None:
        partitions = await rig.topic(4)
        reader = await rig.reader(*partitions)
        await rig.append(partitions[0], b"a")
        wait = rig.ask(rig.wait, reader, *[(at, 0) for at in partitions], min_count=5)
        for at in partitions[:3]:
            await rig.settle()
            assert wait.is_out
            await rig.append(at, b"b")
        await rig.settle()
        assert wait.is_out
        await rig.append(partitions[1], b"c", b"d")
        found = await wait.answer()
        assert {at: ready.messages for at, ready in found.items()} == dict(zip(partitions, (2, 3, 1), strict=False))

    @rests_on("design 4.2")
    async def test_min_bytes_counts_over_all_targets_together(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        wait = rig.ask(rig.wait, reader, (p0, 0), (p1, 0), min_count=1000, min_bytes=3000)
        for at in p0, p1:
            await rig.settle()
            assert wait.is_out
            await rig.fill(at, 1, size=1400)
        await rig.settle()
        assert wait.is_out
        await rig.fill(p0, 1, size=400)
        found = await wait.answer()
        assert {at: ready.messages for at, ready in found.items()} == {p0: 2, p1: 1}

    @rests_on("design 4.2")
    async def test_either_of_both_limits_is_enough(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.fill(at, 3, size=1000)
        reader = await rig.reader(at)
        for min_count, min_bytes in ((3, 1_000_000), (1000, 3000)):
            with rig.taking(0):
                found = await rig.wait(reader, (at, 0), min_count=min_count, min_bytes=min_bytes)
            assert found[at].messages == 3

    @rests_on("S53", "C73")
    async def test_a_wait_that_goes_on_with_the_one_before_waits_for_all_its_targets(self, rig: Rig) -> None:
        """Whether the log remembers what that one named is its own affair; what comes between the two is not lost."""
        p0, p1, p2 = await rig.topic(3)
        reader = await rig.reader(p0, p1, p2)
        begin = tuple(target((at, 0)) for at in (p0, p1))
        first = rig.ask(rig.wait, reader, *begin, change=abc.WatchChange(7, 0, begin, ()))
        await rig.settle()
        await rig.append(p0, b"a")
        assert set(await first.answer()) == {p0}
        await rig.append(p1, b"b")
        again = target((p0, 1))
        found = await rig.wait(reader, again, begin[1], change=abc.WatchChange(7, 1, (again,), ()))
        assert {at: ready.messages for at, ready in found.items()} == {p1: 1}
        new = target((p2, 0))
        last = rig.ask(rig.wait, reader, again, new, change=abc.WatchChange(7, 2, (new,), (p1,)))
        await rig.settle()
        assert last.is_out, "what was dropped is not waited for"
        await rig.append(p2, b"c")
        assert set(await last.answer()) == {p2}

    @rests_on("S53", "C4")
    async def test_a_change_behind_a_wait_that_never_came_goes_by_the_targets(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        begin, lost = target((p0, 0)), target((p1, 0))
        assert await rig.wait(reader, begin, max_wait=rig.short, change=abc.WatchChange(7, 0, (begin,), ())) == {}
        wait = rig.ask(rig.wait, reader, lost, change=abc.WatchChange(7, 2, (), ()))
        await rig.settle()
        await rig.append(p0, b"a")
        await rig.settle()
        assert wait.is_out
        await rig.append(p1, b"b")
        assert set(await wait.answer()) == {p1}

    @rests_on("S24", "design 3")
    async def test_a_target_that_is_gone_counts_as_ready(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at)
        gone = [
            target((TopicPartition(rig.name("no"), 0), 0)),
            target((TopicPartition(at.topic, 1), 0)),
            abc.FetchTarget(at, Position(0), history=HistoryId(12345)),
        ]
        for spec in gone:
            others = [] if spec.partition == at else [target((at, 0))]
            leader = await reader.route(at)
            with rig.taking(0):
                found = await reader.wait_ready(leader, [*others, spec], max_wait=LONG)
            assert spec.partition in {ready.partition for ready in found}

    @rests_on("S24")
    async def test_a_target_that_goes_ends_the_wait(self, rig: Rig) -> None:
        (kept,), (gone,) = await rig.topic(label="kept"), await rig.topic(label="gone")
        readers = [await rig.reader(kept, gone), await rig.reader(kept, gone)]
        waits = [rig.ask(rig.wait, each, (kept, 0), (gone, 0), min_count=1 + 9 * i) for i, each in enumerate(readers)]
        await rig.settle()
        await rig.broker.delete_topic(gone.topic)
        for wait in waits:
            assert gone in await wait.answer()

    @rests_on("S8")
    async def test_a_withdrawn_wait_is_gone_and_the_session_goes_on(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        reader = await rig.reader(*partitions)
        for min_count in 1, 5:
            wait = rig.ask(rig.wait, reader, *[(at, 0) for at in partitions], min_count=min_count)
            await rig.settle()
            await wait.withdraw()
        await rig.nothing_parked()
        wait = rig.ask(rig.wait, reader, *[(at, 0) for at in partitions])
        await rig.settle()
        await rig.append(partitions[2], b"a")
        assert list(await wait.answer()) == [partitions[2]]

    @rests_on("C59", "C76")
    async def test_a_wait_and_a_poll_of_one_session_go_on_side_by_side(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        poll = rig.ask(rig.poll, reader, (p0, 0), max_wait=LONG)
        wait = rig.ask(rig.wait, reader, (p1, 0))
        await rig.settle()
        await rig.append(p1, b"a")
        assert list(await wait.answer()) == [p1]
        assert poll.is_out
        await rig.append(p0, b"a")
        assert offsets(only(await poll.answer())) == [0]

    @rests_on("C80", "S4")
    async def test_a_readiness_wait_out_of_range_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        reader = await rig.reader(at)
        leader = await reader.route(at)
        for min_count, min_bytes in ((0, None), (1, 0)):
            with refused(ConfigError):
                await rig.wait(reader, (at, 0), min_count=min_count, min_bytes=min_bytes)
        for max_wait in -1.0, 601.0:
            with refused(ConfigError):
                await rig.wait(reader, (at, 0), max_wait=max_wait)
        for targets in [], [target((at, 0))] * 1001:
            with refused(ConfigError):
                await reader.wait_ready(leader, targets, max_wait=1.0)
        assert list(await rig.wait(reader, (at, 0), min_count=1, min_bytes=1, max_wait=600.0)) == [at]

    @rests_on("C80", "S52")
    async def test_a_thousand_targets_are_waited_for_at_once(self, rig: Rig) -> None:
        partitions = await rig.topic(abc.TARGETS_MAX)
        reader = await rig.reader(*partitions)
        wait = rig.ask(rig.wait, reader, *[(at, 0) for at in partitions])
        await rig.settle()
        await rig.append(partitions[777], b"a")
        assert list(await wait.answer()) == [partitions[777]]
