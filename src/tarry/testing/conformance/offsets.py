"""Stored offsets: they never go down unless told to, belong to one name, and to one history."""

from __future__ import annotations

from tarry.errors import OffsetOutOfRange, StaleAssignment, TopicNotFound, UsageError
from tarry.testing.conformance.rig import Rig, refused
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import UNFENCED, Offset, Start, TopicPartition


class StoredOffsets(Suite):
    """See the module."""

    @rests_on("D2")
    async def test_nothing_stored_is_none_and_not_the_first_offset(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        assert await reader.stored_offset(at) is None
        assert await reader.store_offset(at, Offset(0), ownership=UNFENCED) == 0
        assert await reader.stored_offset(at) == 0

    @rests_on("C52", "I7", "K85")
    async def test_a_lower_offset_changes_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        reader = await rig.reader(at, name="reader")
        for offset, stored in ((9, 9), (4, 9), (7, 9), (0, 9), (9, 9)):
            assert await reader.store_offset(at, Offset(offset), ownership=UNFENCED) == stored
            assert await reader.stored_offset(at) == stored

    @rests_on("C56", "I7")
    async def test_lower_sets_it_in_either_direction(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        reader = await rig.reader(at, name="reader")
        for offset in 5, 2, 2, 8, 0:
            assert await reader.store_offset(at, Offset(offset), ownership=UNFENCED, lower=True) == offset
            assert await reader.stored_offset(at) == offset

    @rests_on("C55")
    async def test_none_deletes_it(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        reader = await rig.reader(at, name="reader")
        for lower in False, True:
            await reader.store_offset(at, Offset(7), ownership=UNFENCED)
            for _ in range(2):
                assert await reader.store_offset(at, None, ownership=UNFENCED, lower=lower) is None
                assert await reader.stored_offset(at) is None
            assert (await reader.resolve(at, Start.next())).position == 0

    @rests_on("design 3")
    async def test_offsets_belong_to_a_name_and_a_partition(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        for at in p0, p1:
            await rig.append(at, *[b"x"] * 3)
        reader, twin = await rig.reader(p0, p1, name="reader"), await rig.reader(p0, p1, name="reader")
        other, nobody = await rig.reader(p0, p1, name="Reader"), await rig.reader(p0, p1)
        await reader.store_offset(p0, Offset(1), ownership=UNFENCED)
        await other.store_offset(p1, Offset(2), ownership=UNFENCED)
        for session, found in ((reader, [1, None]), (twin, [1, None]), (other, [None, 2]), (nobody, [None, None])):
            assert [await session.stored_offset(at) for at in (p0, p1)] == found
        assert await twin.store_offset(p0, Offset(2), ownership=UNFENCED) == 2
        assert await reader.stored_offset(p0) == 2

    @rests_on("design 1.1")
    async def test_who_has_no_name_stores_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        nobody = await rig.reader(at)
        with refused(UsageError):
            await nobody.store_offset(at, Offset(0), ownership=UNFENCED)
        assert await nobody.stored_offset(at) is None

    @rests_on("design 1.1")
    async def test_an_offset_that_names_no_message_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        await reader.store_offset(at, Offset(0), ownership=UNFENCED)
        for offset in 2, 3, -1:
            for lower in False, True:
                with refused(OffsetOutOfRange):
                    await reader.store_offset(at, Offset(offset), ownership=UNFENCED, lower=lower)
        for nowhere in TopicPartition(at.topic, 1), TopicPartition(rig.name("no"), 0):
            with refused(TopicNotFound):
                await reader.store_offset(nowhere, Offset(0), ownership=UNFENCED)
            with refused(TopicNotFound):
                await reader.stored_offset(nowhere)
        assert await reader.stored_offset(at) == 0

    @rests_on("Q10", "S74")
    async def test_an_offset_of_another_history_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t")
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        old = (await reader.resolve(at, Start.first())).history
        assert await reader.store_offset(at, Offset(0), ownership=UNFENCED, history=old) == 0
        await rig.broker.delete_topic(at.topic)
        await rig.topic(label="t")
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        for offset in Offset(1), None:
            with refused(StaleAssignment):
                await reader.store_offset(at, offset, ownership=UNFENCED, history=old)
        assert await reader.stored_offset(at) is None
        new = (await reader.resolve(at, Start.first())).history
        assert await reader.store_offset(at, Offset(1), ownership=UNFENCED, history=new) == 1

    @rests_on("W6", "C52")
    async def test_stores_at_the_same_time_leave_the_highest(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 20)
        readers = [await rig.reader(at, name="reader") for _ in range(20)]
        order = [(7 * each) % 20 for each in range(20)]
        asked = [
            rig.ask(reader.store_offset, at, Offset(offset), ownership=UNFENCED)
            for reader, offset in zip(readers, order, strict=True)
        ]
        stored = [await each.answer() for each in asked]
        assert all(found is not None and found >= offset for found, offset in zip(stored, order, strict=True))
        assert await readers[0].stored_offset(at) == 19

    @rests_on("K44", "W17")
    async def test_a_store_whose_caller_went_away_is_applied_or_not(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 12)
        reader = await rig.reader(at, name="reader")
        for turns in range(10):
            await rig.ask(reader.store_offset, at, Offset(turns), ownership=UNFENCED).abandon(turns=turns)
            stored = await reader.stored_offset(at)
            assert stored is None or stored <= turns
        assert await reader.store_offset(at, Offset(11), ownership=UNFENCED) == 11
