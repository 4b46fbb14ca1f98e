"""Polls that store the offset of what they serve, before they answer."""

from __future__ import annotations

import anyio

from tarry import abc
from tarry.errors import ConfigError, NotAccepted, OffsetOutOfRange, TopicNotFound, UsageError
from tarry.testing.conformance.rig import LONG, MIB, Asked, Rig, offsets, only, refused, sized, target
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import UNFENCED, Offset, Position, Start, TopicPartition


class Committing(Suite):
    """See the module."""

    @rests_on("S50")
    async def test_the_last_offset_is_stored_when_the_reply_comes(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        reader, twin = await rig.reader(at, name="reader"), await rig.reader(at, name="reader")
        for count, expected in ((4, [0, 1, 2, 3]), (1, [4]), (100, [5, 6, 7, 8, 9])):
            reply = only(await rig.poll(reader, (at, Start.next()), count=count, commit=True))
            assert offsets(reply) == expected
            assert await twin.stored_offset(at) == expected[-1]
            assert await reader.stored_offset(at) == expected[-1]

    @rests_on("S50", "S21")
    async def test_a_waiting_one_stores_what_it_was_waiting_for(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader, twin = await rig.reader(at, name="reader"), await rig.reader(at, name="reader")
        poll = rig.ask(rig.poll, reader, (at, Start.next()), min_count=3, max_wait=LONG, commit=True)
        await rig.settle()
        await rig.append(at, b"a", b"b")
        await rig.settle()
        assert poll.is_out
        assert await twin.stored_offset(at) is None
        await rig.append(at, b"c", b"d")
        assert offsets(only(await poll.answer())) == [0, 1, 2, 3]
        assert await twin.stored_offset(at) == 3

    @rests_on("S50", "C28", "I7")
    async def test_it_never_lowers(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        reader = await rig.reader(at, name="reader")
        await reader.store_offset(at, Offset(7), ownership=UNFENCED)
        for begin, count, stored in ((0, 3, 7), (5, 3, 7), (6, 3, 8)):
            reply = only(await rig.poll(reader, (at, begin), count=count, commit=True))
            assert offsets(reply) == list(range(begin, begin + count))
            assert await reader.stored_offset(at) == stored

    @rests_on("S50")
    async def test_without_messages_nothing_is_stored(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at, name="reader")
        for max_wait in 0.0, rig.short:
            with rig.taking(max_wait):
                reply = only(await rig.poll(reader, (at, Start.next()), max_wait=max_wait, commit=True))
            assert offsets(reply) == []
            assert await reader.stored_offset(at) is None
        await rig.append(at, b"a")
        assert offsets(only(await rig.poll(reader, (at, 1), commit=True))) == []
        assert await reader.stored_offset(at) is None

    @rests_on("S28", "S50")
    async def test_at_the_end_of_the_wait_it_stores_what_it_brings(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        with rig.taking(rig.short):
            reply = only(
                await rig.poll(reader, (at, Start.next()), min_count=3, max_wait=rig.short, commit=True),
            )
        assert offsets(reply) == [0, 1]
        assert await reader.stored_offset(at) == 1

    @rests_on("S50", "C7", "S45")
    async def test_only_what_the_byte_limit_lets_through_is_stored(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.broker.append(at, sized(100, 100, 9000, 100))
        reader = await rig.reader(at, name="reader")
        for expected in [0, 1], [2], [3]:
            reply = only(await rig.poll(reader, (at, Start.next()), max_bytes=2000, commit=True))
            assert offsets(reply) == expected
            assert await reader.stored_offset(at) == expected[-1]

    @rests_on("Q11", "Q12", "C28")
    async def test_any_place_but_next_is_read_whatever_is_stored(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        twin = await rig.reader(at, name="reader")
        await rig.append(at, b"a", b"b", b"c")
        starts: list[Position | Start] = [Position(1), Start.offset(1), Start.first(), Start.end()]
        for stored, start in enumerate(starts):
            reader = await rig.reader(at, name="reader")
            begin = (await reader.resolve(at, start)).position
            end = await rig.log_end(at)
            poll = rig.ask(rig.poll, reader, (at, start), min_count=end - begin + 1, max_wait=LONG, commit=True)
            await rig.settle()
            await twin.store_offset(at, Offset(stored), ownership=UNFENCED)
            receipt = await rig.append(at, b"d")
            assert offsets(only(await poll.answer())) == list(range(begin, end + 1)), start
            assert await twin.stored_offset(at) == receipt.offset
            await twin.store_offset(at, None, ownership=UNFENCED)

    @rests_on("S50", "S4")
    async def test_it_takes_exactly_one_target(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        for at in p0, p1:
            await rig.append(at, b"a")
        reader = await rig.reader(p0, p1, name="reader")
        with refused(ConfigError):
            await rig.poll(reader, (p0, 0), (p1, 0), commit=True)
        with refused(ConfigError):
            await reader.poll(await reader.route(p0), [], count=1, max_bytes=MIB, commit=True)
        assert [await reader.stored_offset(at) for at in (p0, p1)] == [None, None]

    @rests_on("design 1.1")
    async def test_who_has_no_name_commits_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        nobody = await rig.reader(at)
        with refused(UsageError):
            await rig.poll(nobody, (at, 0), commit=True)

    @rests_on("S22", "S50")
    async def test_one_that_is_refused_stores_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        reader = await rig.reader(at, name="reader")
        with refused(OffsetOutOfRange):
            await rig.poll(reader, (at, 2), commit=True)
        with refused(OffsetOutOfRange):
            await rig.poll(reader, (at, Start.next("fail")), commit=True)
        with refused(TopicNotFound):
            leader = await reader.route(at)
            nowhere = target((TopicPartition(at.topic, 1), 0))
            await reader.poll(leader, [nowhere], count=1, max_bytes=MIB, commit=True)
        assert await reader.stored_offset(at) is None

    @rests_on("S74", "Q10")
    async def test_a_target_of_another_history_stores_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t")
        await rig.append(at, b"a")
        reader = await rig.reader(at, name="reader")
        old = only(await rig.poll(reader, (at, 0))).history
        poll = rig.ask(rig.poll, reader, (at, 1), max_wait=LONG, commit=True)
        await rig.settle()
        await rig.broker.delete_topic(at.topic)
        await rig.topic(label="t")
        await rig.append(at, b"b", b"c")
        with refused(TopicNotFound):
            await poll.answer()
        reader = await rig.reader(at, name="reader")
        reply = only(await rig.poll(reader, abc.FetchTarget(at, Position(0), history=old), commit=True))
        assert reply.runs == ()
        assert reply.history != old
        assert await reader.stored_offset(at) is None

    @rests_on("S6", "S8", "S10")
    async def test_a_withdrawn_one_stores_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader = await rig.reader(at, name="reader")
        for start in Start.next(), Position(0):
            poll = rig.ask(rig.poll, reader, (at, start), max_wait=LONG, commit=True)
            await rig.settle()
            await poll.withdraw()
        await rig.nothing_parked()
        await rig.append(at, b"a", b"b")
        await rig.settle()
        assert await reader.stored_offset(at) is None
        assert offsets(only(await rig.poll(reader, (at, Start.next()), commit=True))) == [0, 1]

    @rests_on("S10", "C93", "Q17")
    async def test_one_whose_caller_went_away_is_committed_or_not(self, rig: Rig) -> None:
        """Whichever it is, the stored offset is one that the poll would have stored, and the next one goes on there."""
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 40)
        reader = await rig.reader(at, name="reader")
        stored = None
        for turns in range(10):
            before = -1 if stored is None else stored
            asked = rig.ask(rig.poll, reader, (at, Start.next()), count=2, commit=True)
            await asked.abandon(turns=turns)
            await rig.settle()
            stored = await reader.stored_offset(at)
            assert (-1 if stored is None else stored) in {before, before + 2}
        reply = only(await rig.poll(reader, (at, Start.next()), count=2, commit=True))
        assert reply.position == (0 if stored is None else stored + 1)

    @rests_on("S47", "S48", "S49")
    async def test_a_store_ahead_ends_a_parked_next_poll(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b", b"c")
        reader, twin = await rig.reader(at, name="reader"), await rig.reader(at, name="reader")
        poll = rig.ask(rig.poll, reader, (at, Start.next()), min_count=4, max_wait=LONG, commit=True)
        await rig.settle()
        await twin.store_offset(at, Offset(1), ownership=UNFENCED)
        await rig.append(at, b"d", b"e")
        with refused(NotAccepted):
            await poll.answer()
        assert await twin.stored_offset(at) == 1
        reply = only(await rig.poll(reader, (at, Start.next()), max_wait=LONG, commit=True))
        assert (reply.asked, offsets(reply)) == (2, [2, 3, 4])
        assert await twin.stored_offset(at) == 4

    @rests_on("S47", "S48")
    async def test_a_rewind_ends_a_parked_next_poll(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        reader, twin = await rig.reader(at, name="reader"), await rig.reader(at, name="reader")
        for back in Offset(0), None:
            receipt = await rig.append(at, b"a", b"b")
            await twin.store_offset(at, Offset(receipt.offset + 1), ownership=UNFENCED)
            poll = rig.ask(rig.poll, reader, (at, Start.next()), max_wait=LONG, commit=True)
            await rig.settle()
            await twin.store_offset(at, back, ownership=UNFENCED, lower=True)
            await rig.append(at, b"c")
            with refused(NotAccepted):
                await poll.answer()
            assert await twin.stored_offset(at) == back
        reply = only(await rig.poll(reader, (at, Start.next()), max_wait=LONG, commit=True))
        assert offsets(reply) == [0, 1, 2, 3, 4, 5]

    @rests_on("S47", "S28")
    async def test_a_rewind_is_noticed_at_the_end_of_the_wait_too(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        reader, twin = await rig.reader(at, name="reader"), await rig.reader(at, name="reader")
        await twin.store_offset(at, Offset(1), ownership=UNFENCED)
        begin = anyio.current_time()
        poll = rig.ask(rig.poll, reader, (at, Start.next()), max_wait=rig.short, commit=True)
        await rig.settle()
        await twin.store_offset(at, Offset(0), ownership=UNFENCED, lower=True)
        is_in_time = anyio.current_time() < begin + rig.short  # Always under virtual time.
        await rig.until(lambda: not poll.is_out, within=rig.short)
        if is_in_time:
            with refused(NotAccepted):
                await poll.answer()
        assert await twin.stored_offset(at) == 0

    @rests_on("Q13", "S47")
    async def test_two_parked_next_polls_of_one_name_never_get_the_same_message(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        readers = [await rig.reader(at, name="reader") for _ in range(5)]
        seen: list[int] = []
        for each in range(4):
            polls: list[Asked[abc.PollReply]] = [
                rig.ask(rig.poll, reader, (at, Start.next()), max_wait=LONG, commit=True) for reader in readers
            ]
            await rig.settle()
            await rig.append(at, b"a", b"b")
            got: list[int] = []
            for poll in polls:
                try:
                    got += offsets(only(await poll.answer()))
                except NotAccepted:
                    continue
            assert got == [2 * each, 2 * each + 1]
            seen += got
        assert await readers[0].stored_offset(at) == seen[-1]
