"""Standalone sessions: what they read, where a start lies, and how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio

from tarry import abc
from tarry.errors import NotAMember, OffsetOutOfRange, TopicNotFound
from tarry.testing.conformance.rig import LONG, Rig, offsets, only, refused
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import EPOCH, TIMESTAMP_MS_MAX, UNFENCED, Offset, Position, Start, StartKind, TopicPartition


class Sessions(Suite):
    """See the module."""

    @rests_on("design 3")
    async def test_a_standalone_session_owns_what_it_chose(self, rig: Rig) -> None:
        whole, part = await rig.topic(2, label="whole"), await rig.topic(3, label="part")
        session = await rig.broker.open_session(abc.ConsumerIdentity(None), [whole[0].topic], [part[2], part[0]])
        assignment = session.assignment
        assert dict(assignment.owned) == dict.fromkeys([*whole, part[0], part[2]], UNFENCED)
        assert assignment.revoking == frozenset()
        assert dict(assignment.topics) == {whole[0].topic: 2, part[0].topic: 3}

    @rests_on("C15")
    async def test_all_that_is_missing_is_named(self, rig: Rig) -> None:
        (there,) = await rig.topic(label="there")
        missing = [rig.name("no"), rig.name("neither")]
        with refused(TopicNotFound) as caught:
            await rig.broker.open_session(abc.ConsumerIdentity(None), missing, [])
        assert [name in str(caught.value) for name in missing] == [True, True]
        for nowhere in TopicPartition(there.topic, 1), TopicPartition(rig.name("no"), 0):
            with refused(TopicNotFound):
                await rig.reader(nowhere)

    @rests_on("K72", "K56")
    async def test_a_missing_topic_is_left_out_until_it_is_created(self, rig: Rig) -> None:
        (there,) = await rig.topic(label="there")
        names = [rig.name("later"), there.topic]
        reader = await rig.broker.open_session(abc.ConsumerIdentity(None), names, [])
        before = reader.assignment
        assert (list(before.owned), dict(before.topics)) == ([there], {there.topic: 1})
        follows = rig.ask(reader.changed, before.version)
        await rig.settle()
        assert follows.is_out
        later = await rig.topic(2, label="later")
        after = await follows.answer()
        assert after.version != before.version
        assert dict(after.owned) == dict.fromkeys([there, *later], UNFENCED)
        assert dict(after.topics) == {there.topic: 1, later[0].topic: 2}
        assert after.late == frozenset(later)
        assert reader.assignment == after

    @rests_on("K56")
    async def test_a_session_on_a_whole_topic_gets_what_it_gains(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        whole = await rig.broker.open_session(abc.ConsumerIdentity(None), [p0.topic], [])
        chosen = await rig.reader(p1)
        follows = rig.ask(whole.changed, whole.assignment.version)
        await rig.settle()
        await rig.broker.grow_topic(p0.topic, 3)
        now = await follows.answer()
        p2 = TopicPartition(p0.topic, 2)
        assert dict(now.owned) == dict.fromkeys([p0, p1, p2], UNFENCED)
        assert (dict(now.topics), now.late) == ({p0.topic: 3}, frozenset([p2]))
        assert list(chosen.assignment.owned) == [p1]
        new = await rig.broker.open_session(abc.ConsumerIdentity(None), [p0.topic], [])
        assert (list(new.assignment.owned), new.assignment.late) == ([p0, p1, p2], frozenset())

    @rests_on("K57")
    async def test_a_deleted_topic_goes_and_comes_again_as_another_one(self, rig: Rig) -> None:
        (kept,), (gone,) = await rig.topic(label="kept"), await rig.topic(label="gone")
        whole = await rig.broker.open_session(abc.ConsumerIdentity(None), [kept.topic, gone.topic], [])
        chosen = await rig.reader(kept, gone)
        await rig.broker.delete_topic(gone.topic)
        for reader in whole, chosen:
            with anyio.fail_after(rig.patience):
                assert dict((await reader.changed(1)).topics) == {kept.topic: 1}
        assert await rig.topic(label="gone") == (gone,)
        for reader in whole, chosen:
            version = reader.assignment.version
            if gone not in reader.assignment.owned:
                with anyio.fail_after(rig.patience):
                    await reader.changed(version)
            assert dict(reader.assignment.owned) == dict.fromkeys([kept, gone], UNFENCED)
            assert reader.assignment.late == frozenset(), "the start rule decides where it begins"

    @rests_on("S22")
    async def test_leaving_ends_what_follows_the_assignment(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at)
        follows = rig.ask(reader.changed, reader.assignment.version)
        await rig.settle()
        await reader.leave()
        with refused(NotAMember):
            await follows.answer()
        with refused(NotAMember):
            await reader.changed(reader.assignment.version)

    @rests_on("design 3")
    async def test_an_assignment_that_stays_keeps_who_follows_it_waiting(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at)
        version = reader.assignment.version
        assert await reader.changed(version - 1) == reader.assignment
        follows = rig.ask(reader.changed, version)
        await rig.append(at, b"a")
        await rig.settle()
        await follows.withdraw()
        assert reader.assignment.version == version

    @rests_on("design 3")
    async def test_a_partition_has_one_leader(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        first, second = await rig.reader(*partitions), await rig.reader(*partitions)
        leaders = [await first.route(at) for at in partitions]
        assert [await first.route(at) for at in partitions] == leaders
        assert [await second.route(at) for at in partitions] == leaders

    @rests_on("S15")
    async def test_leaving_ends_what_the_session_has_out(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        leavers, stayer = [await rig.reader(at), await rig.reader(at)], await rig.reader(at)
        polls = [rig.ask(rig.poll, leaver, (at, 0), max_wait=LONG) for leaver in leavers]
        waits = [rig.ask(rig.wait, leaver, (at, 0), min_count=1 + each) for each, leaver in enumerate(leavers)]
        stays = rig.ask(rig.poll, stayer, (at, 0), max_wait=LONG)
        await rig.settle()
        for leaver in leavers:
            await leaver.leave()
        for poll, wait in zip(polls, waits, strict=True):
            with refused(NotAMember):
                await poll.answer()
            with refused(NotAMember):
                await wait.answer()
        assert stays.is_out
        await rig.append(at, b"a")
        assert offsets(only(await stays.answer())) == [0]

    @rests_on("S22")
    async def test_a_session_that_left_is_no_member(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        reader = await rig.reader(at, name="reader")
        assert reader.session_timeout is None
        await reader.leave()
        await reader.leave()
        verbs: list[Callable[[], Awaitable[object]]] = [
            lambda: rig.poll(reader, (at, 0)),
            lambda: rig.wait(reader, (at, 0)),
            lambda: reader.resolve(at, Start.first()),
            lambda: reader.stored_offset(at),
            lambda: reader.store_offset(at, Offset(0), ownership=UNFENCED),
        ]
        for verb in verbs:
            with refused(NotAMember):
                await verb()
        other = await rig.reader(at, name="reader")
        assert await other.stored_offset(at) is None


class Resolving(Suite):
    """Where a start lies, asked for by itself and as the start of a poll."""

    @rests_on("C26")
    async def test_starts_of_an_empty_partition_lie_at_its_end(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at, name="reader")
        (history,) = [part.history for part in (await rig.broker.describe_topic(at.topic)).partitions]
        for start in Start.first(), Start.end(), _last(10), Start.next(), Start.offset(0):
            assert await reader.resolve(at, start) == abc.Resolved(Position(0), Position(0), Position(0), history)
        found = await reader.resolve(at, Position(0))
        assert (found.position, found.log_start, found.log_end, found.history) == (0, 0, 0, history)

    @rests_on("design 3")
    async def test_a_consumer_that_takes_over_asks_for_many_partitions_at_once(self, rig: Rig) -> None:
        partitions = await rig.topic(16)
        for at in partitions:
            await rig.fill(at, at.partition + 1)
        reader = await rig.reader(*partitions, name="reader")
        starts = [rig.ask(reader.resolve, at, Start.end()) for at in partitions]
        stored = [rig.ask(reader.stored_offset, at) for at in partitions]
        assert [(await start.answer()).position for start in starts] == list(range(1, 17))
        assert [await offset.answer() for offset in stored] == [None] * 16

    @rests_on("C26", "S11")
    async def test_a_start_is_found_alike_by_resolve_and_by_a_poll(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        reader = await rig.reader(at, name="reader")
        await reader.store_offset(at, Offset(5), ownership=UNFENCED)
        starts: dict[Start, int] = {
            Start.first(): 0,
            Start.end(): 10,
            _last(1): 9,
            _last(4): 6,
            _last(100): 0,
            Start.offset(0): 0,
            Start.offset(7): 7,
            Start.offset(10): 10,
            Start.next(): 6,
            Start.next(Start.end()): 6,
            Start.next("fail"): 6,
        }
        for start, position in starts.items():
            found = await reader.resolve(at, start)
            assert (found.position, found.log_start, found.log_end) == (position, 0, 10), start
            reply = only(await rig.poll(reader, (at, start)))
            assert (reply.asked, reply.position, reply.history) == (position, position, found.history), start
            assert offsets(reply) == list(range(position, 10)), start

    @rests_on("C26", "D2")
    async def test_next_begins_behind_the_stored_offset(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 3)
        reader = await rig.reader(at, name="reader")
        places: list[tuple[Offset | None, list[int]]] = [
            (None, [0, 3]),
            (Offset(0), [1, 1]),
            (Offset(2), [3, 3]),
            (None, [0, 3]),
        ]
        for stored, expected in places:
            await reader.store_offset(at, stored, ownership=UNFENCED)
            starts = Start.next(), Start.next(Start.end())
            assert [(await reader.resolve(at, start)).position for start in starts] == expected, stored

    @rests_on("C26")
    async def test_a_start_that_does_not_exist_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 3)
        reader = await rig.reader(at, name="reader")
        for start, asked in ((Start.offset(4), 4), (Start.next("fail"), None)):
            with refused(OffsetOutOfRange) as caught:
                await reader.resolve(at, start)
            error = caught.value
            assert isinstance(error, OffsetOutOfRange)
            assert (error.asked, error.log_start, error.log_end) == (asked, 0, 3)
            with refused(OffsetOutOfRange):
                await rig.poll(reader, (at, start), max_wait=LONG)
        with refused(TopicNotFound):
            await reader.resolve(TopicPartition(rig.name("no"), 0), Start.first())

    @rests_on("design 3")
    async def test_a_position_says_how_old_what_lies_there_is(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at, name="reader")
        assert (await reader.resolve(at, Position(0))).age_s == 0.0, "nothing lies there"
        await rig.append(at, b"a", b"b", times=[0, 1_000_000])
        await rig.append(at, b"c", times=[TIMESTAMP_MS_MAX])
        ages = [(await reader.resolve(at, Position(place))).age_s for place in range(4)]
        oldest, newer, future, end = ages
        assert oldest is not None
        assert newer is not None
        assert 900.0 < oldest - newer <= 1000.0
        assert (future, end) == (0.0, 0.0)
        assert (await reader.resolve(at, Start.first())).age_s is None

    @rests_on("C26", "K103")
    async def test_a_time_is_the_first_message_at_or_after_it(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b", times=[1000, 2000])
        await rig.append(at, b"c", b"d", times=[2000, 3000])
        reader = await rig.reader(at, name="reader")
        for milliseconds, position in ((0, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 3), (3000, 3), (3001, 4)):
            start = Start.timestamp(EPOCH + timedelta(milliseconds=milliseconds))
            assert (await reader.resolve(at, start)).position == position, milliseconds
            reply = only(await rig.poll(reader, (at, start)))
            assert (reply.position, offsets(reply)) == (position, list(range(position, 4))), milliseconds


def _last(count: int) -> Start:
    """`Start.last()` as a consumer sends it: with the `count` of its polls."""
    return Start(StartKind.LAST, count)
