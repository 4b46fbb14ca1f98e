"""Fences: what a member asks for under an ownership that it does not have is refused, and nothing is applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from tarry import abc
from tarry.errors import (
    FencedError,
    GroupNotFound,
    NotAccepted,
    NotAMember,
    OffsetOutOfRange,
    StaleAssignment,
    TopicNotFound,
)
from tarry.testing.conformance.groups import owns, pair, share
from tarry.testing.conformance.rig import LONG, Rig, offsets, only, refused
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import UNFENCED, Offset, Ownership, Position, Start, TopicPartition


class Fences(Suite):
    """See the module."""

    @rests_on("design 3")
    async def test_an_owner_reads_and_stores(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, b"a", b"b")
        member = await rig.member(partitions[0].topic)
        await owns(rig, member, *partitions)
        ready = await rig.wait(member, *[mine(member, at) for at in partitions])
        assert ready.keys() == set(partitions)
        reply = await rig.poll(member, *[mine(member, at) for at in partitions])
        assert [(offsets(found), found.ownership) for found in reply.targets] == [
            ([0, 1], member.assignment.owned[at]) for at in partitions
        ]
        for at in partitions:
            assert await member.store_offset(at, Offset(1), ownership=member.assignment.owned[at]) == 1

    @rests_on("S14", "S22", "K06")
    async def test_another_ownership_is_refused(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, b"a", b"b")
        first, second = await pair(rig, partitions)
        (at,), (foreign,) = first.assignment.owned, second.assignment.owned
        held, theirs = first.assignment.owned[at], second.assignment.owned[foreign]
        wrong = [(at, UNFENCED), (at, Ownership(held - 1)), (at, Ownership(held + 1)), (foreign, theirs)]
        for partition, ownership in wrong:
            with refused(StaleAssignment):
                await rig.poll(first, abc.FetchTarget(partition, Position(0), ownership))
            with refused(StaleAssignment):
                await rig.poll(first, mine(first, at), abc.FetchTarget(partition, Position(0), ownership))
            with refused(StaleAssignment):
                await rig.poll(first, abc.FetchTarget(partition, Position(2), ownership), max_wait=LONG)
            for offset in Offset(0), None:
                with refused(StaleAssignment):
                    await first.store_offset(partition, offset, ownership=ownership, lower=True)
        for partition in partitions:
            assert await first.stored_offset(partition) is None

    @rests_on("S67", "K53", "design 4.1")
    async def test_what_is_wanted_back_is_not_read_but_stored(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, b"a", b"b", b"c")
        old, new, wanted = await handing_over(rig, partitions)
        held = old.assignment.owned[wanted]
        (kept,) = set(partitions) - {wanted}
        with refused(StaleAssignment):
            await rig.poll(old, mine(old, wanted))
        with refused(StaleAssignment):
            await rig.poll(old, mine(old, kept), mine(old, wanted))
        assert offsets(only(await rig.poll(old, mine(old, kept)))) == [0, 1, 2]
        assert await old.store_offset(wanted, Offset(2), ownership=held) == 2
        assert await old.store_offset(wanted, Offset(1), ownership=held, lower=True) == 1
        assert await old.store_offset(kept, Offset(0), ownership=old.assignment.owned[kept]) == 0
        await old.release([wanted])
        await owns(rig, new, wanted)
        assert offsets(only(await rig.poll(new, mine(new, wanted, Start.next())))) == [2]

    @rests_on("K06", "S71")
    async def test_a_former_owner_stores_nothing_any_more(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, *[b"x"] * 10)
        old, new, wanted = await handing_over(rig, partitions)
        held = old.assignment.owned[wanted]
        await old.store_offset(wanted, Offset(3), ownership=held)
        await old.release([wanted])
        await owns(rig, new, wanted)
        await new.store_offset(wanted, Offset(8), ownership=new.assignment.owned[wanted])
        for offset in Offset(9), Offset(4), None:
            with refused(StaleAssignment):
                await old.store_offset(wanted, offset, ownership=held, lower=True)
        await new.leave()
        await owns(rig, old, *partitions)
        assert old.assignment.owned[wanted] > held
        for offset in Offset(9), Offset(4):
            with refused(StaleAssignment):
                await old.store_offset(wanted, offset, ownership=held, lower=True)
        with refused(StaleAssignment):
            await rig.poll(old, abc.FetchTarget(wanted, Position(4), held))
        reply = only(await rig.poll(old, mine(old, wanted, Start.next())))
        assert (reply.position, reply.ownership) == (9, old.assignment.owned[wanted])

    @rests_on("S22", "C31", "K53")
    async def test_a_parked_poll_ends_when_its_partition_is_wanted_back(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        old = await rig.member(partitions[0].topic)
        elsewhere = await rig.member(partitions[0].topic, group="elsewhere")
        for member in old, elsewhere:
            await owns(rig, member, *partitions)
        for at, seen in both_ways(partitions):
            poll, other = (rig.ask(rig.poll, member, mine(member, at), max_wait=LONG) for member in (old, elsewhere))
            await rig.settle()
            new = await rig.member(at.topic)
            await rig.until(lambda: bool(old.assignment.revoking))
            seen.add(at in old.assignment.revoking)
            if at in old.assignment.revoking:
                with refused(StaleAssignment):
                    await poll.answer()
            else:
                await rig.settle()
                await poll.withdraw()
            await other.withdraw()
            await new.leave()
            await owns(rig, old, *partitions)

    @rests_on("S22", "design 3")
    async def test_a_target_that_may_not_be_read_counts_as_ready(self, rig: Rig) -> None:
        """As one does that is gone: a poll then says why."""
        partitions = await rig.topic(2)
        old, new, wanted = await handing_over(rig, partitions)
        (kept,) = set(partitions) - {wanted}
        stale = abc.FetchTarget(kept, Start.next(), Ownership(old.assignment.owned[kept] + 1))
        foreign = abc.FetchTarget(wanted, Position(0), old.assignment.owned[wanted])
        for member, spec in ((old, mine(old, wanted)), (old, stale), (new, foreign)):
            with rig.taking(0):
                assert (await rig.wait(member, spec, min_count=5)).keys() == {spec.partition}
        with rig.taking(0):
            assert wanted in await rig.wait(old, mine(old, kept), mine(old, wanted))

    @rests_on("S22", "S53")
    async def test_a_readiness_wait_ends_when_a_target_is_wanted_back(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        old = await rig.member(partitions[0].topic)
        await owns(rig, old, *partitions)
        for min_count in 1, 5:
            wait = rig.ask(rig.wait, old, *[mine(old, at) for at in partitions], min_count=min_count)
            await rig.settle()
            new = await rig.member(partitions[0].topic)
            await rig.until(lambda: bool(old.assignment.revoking))
            assert (await wait.answer()).keys() == old.assignment.revoking
            await new.leave()
            await owns(rig, old, *partitions)

    @rests_on("S22", "design 4.1", lapsing="session")
    async def test_what_an_evicted_member_has_out_ends(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        member = await rig.member(partitions[0].topic)
        await owns(rig, member, *partitions)
        poll = rig.ask(rig.poll, member, mine(member, partitions[0]), max_wait=LONG)
        wait = rig.ask(rig.wait, member, mine(member, partitions[1]))
        await rig.until(lambda: not (poll.is_out or wait.is_out), within=2 * rig.timeouts.session)
        for answer in poll.answer, wait.answer:
            with refused(FencedError):
                await answer()
        with refused(NotAMember):
            await member.changed(member.assignment.version)

    @rests_on("S22", "S50", "K06")
    async def test_a_committing_poll_is_fenced_and_stores_nothing(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, b"a", b"b", b"c")
        old, new, wanted = await handing_over(rig, partitions)
        held = old.assignment.owned[wanted]
        (kept,) = set(partitions) - {wanted}
        for ownership in UNFENCED, held, Ownership(held + 1):
            with refused(StaleAssignment):
                await rig.poll(old, abc.FetchTarget(wanted, Start.next(), ownership), commit=True)
        with refused(StaleAssignment):
            await rig.poll(new, abc.FetchTarget(wanted, Start.next(), held), commit=True)
        assert [await old.stored_offset(at) for at in partitions] == [None, None]
        assert offsets(only(await rig.poll(old, mine(old, kept, Start.next()), count=2, commit=True))) == [0, 1]
        assert await new.stored_offset(kept) == 1
        await old.release([wanted])
        await owns(rig, new, wanted)
        with refused(StaleAssignment):
            await rig.poll(old, abc.FetchTarget(wanted, Start.next(), held), commit=True)
        assert offsets(only(await rig.poll(new, mine(new, wanted, Start.next()), commit=True))) == [0, 1, 2]
        assert await old.stored_offset(wanted) == 2

    @rests_on("S22", "S50", "K32")
    async def test_a_parked_committing_poll_ends_when_its_partition_is_wanted_back(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        old = await rig.member(partitions[0].topic)
        await owns(rig, old, *partitions)
        for at, seen in both_ways(partitions):
            poll = rig.ask(rig.poll, old, mine(old, at, Start.next()), max_wait=LONG, commit=True)
            await rig.settle()
            new = await rig.member(at.topic)
            await rig.until(lambda: bool(old.assignment.revoking))
            seen.add(at in old.assignment.revoking)
            before = await old.stored_offset(at)
            receipt = await rig.append(at, b"a")
            if at in old.assignment.revoking:
                with refused(StaleAssignment):
                    await poll.answer()
                assert await old.stored_offset(at) == before
            else:
                assert offsets(only(await poll.answer()))[-1] == receipt.offset
                assert await old.stored_offset(at) == receipt.offset
            await new.leave()
            await owns(rig, old, *partitions)
            await old.store_offset(at, receipt.offset, ownership=old.assignment.owned[at])


class GroupOffsets(Suite):
    """What is stored for a group, and what people are told of it."""

    @rests_on("design 3")
    async def test_offsets_belong_to_the_group_and_not_to_a_name(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, *[b"x"] * 5)
        first, second = await pair(rig, partitions)
        (at,) = first.assignment.owned
        await first.store_offset(at, Offset(3), ownership=first.assignment.owned[at])
        assert await second.stored_offset(at) == 3
        other, reader = await rig.member(at.topic, group="other"), await rig.reader(at, name="group")
        assert [await other.stored_offset(at), await reader.stored_offset(at)] == [None, None]
        await reader.store_offset(at, Offset(0), ownership=UNFENCED)
        assert await first.stored_offset(at) == 3
        for member in first, second:
            await member.leave()
        later = await rig.member(at.topic)
        assert await later.stored_offset(at) == 3

    @rests_on("K85", "C52", "I7")
    async def test_a_groups_offset_goes_down_only_when_told_to(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, *[b"x"] * 10)
        member = await rig.member(at.topic)
        await owns(rig, member, at)
        ownership = member.assignment.owned[at]
        for offset, lower, stored in ((9, False, 9), (4, False, 9), (7, False, 9), (2, True, 2), (3, False, 3)):
            assert await member.store_offset(at, Offset(offset), ownership=ownership, lower=lower) == stored
        assert await member.store_offset(at, None, ownership=ownership) is None

    @rests_on("design 1.1")
    async def test_a_group_is_described_as_it_is(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        for at in partitions:
            await rig.append(at, *[b"x"] * 10)
        first = await rig.member(partitions[0].topic, static="one")
        await owns(rig, first, *partitions)
        await first.store_offset(partitions[0], Offset(6), ownership=first.assignment.owned[partitions[0]])
        second = await rig.member(partitions[0].topic)
        await rig.until(lambda: bool(first.assignment.revoking))
        info = await rig.broker.describe_group(rig.name("group"))
        assert (info.name, info.generation) == (rig.name("group"), first.assignment.generation)
        assert sorted(member.member or "" for member in info.members) == ["", "one"]
        two, one = sorted(info.members, key=lambda member: member.member or "")
        assert one.id != two.id
        assert one.topics == two.topics == (partitions[0].topic,)
        assert set(one.owned) == set(partitions)
        assert set(one.revoking) == first.assignment.revoking
        assert (two.owned, two.revoking) == ((), ())
        assert one.idle >= 0
        for at in partitions:
            found = info.offsets[at]
            stored, lag = (6, 3) if at == partitions[0] else (None, 10)
            assert (found.stored, found.log_end, found.lag, found.owner) == (stored, 10, lag, one.id)
        assert info.lag == 23
        await share(rig, [first, second], partitions)
        info = await rig.broker.describe_group(rig.name("group"))
        by_owner = {at: offset.owner for at, offset in info.offsets.items()}
        assert by_owner == {at: one.id if at in first.assignment.owned else two.id for at in partitions}

    @rests_on("K104")
    async def test_names_of_groups_and_members_come_back_byte_for_byte(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        member = await rig.member(at.topic, group="グループ é", static="член e\u0301")
        await owns(rig, member, at)
        info = await rig.broker.describe_group(rig.name("グループ é"))
        assert (info.name, [each.member for each in info.members]) == (rig.name("グループ é"), ["член e\u0301"])
        assert await self._listed(rig) == {rig.name("グループ é"): 1}
        with refused(GroupNotFound):
            await rig.broker.describe_group(rig.name("グループ e\u0301"))

    @rests_on("design 1.1")
    async def test_groups_are_listed_while_anything_is_known_of_them(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        with refused(GroupNotFound):
            await rig.broker.describe_group(rig.name("b"))
        stores, idles = await rig.member(at.topic, group="b"), await rig.member(at.topic, group="a")
        await owns(rig, stores, at)
        await stores.store_offset(at, Offset(0), ownership=stores.assignment.owned[at])
        assert await self._listed(rig) == {rig.name("a"): 1, rig.name("b"): 1}
        for member in stores, idles:
            await member.leave()
        assert await self._listed(rig) == {rig.name("b"): 0}
        with refused(GroupNotFound):
            await rig.broker.describe_group(rig.name("a"))
        info = await rig.broker.describe_group(rig.name("b"))
        assert (info.members, info.offsets[at].stored, info.offsets[at].owner) == ((), 0, None)
        await rig.broker.reset_group(rig.name("b"), {at: None})
        assert await self._listed(rig) == {}

    async def _listed(self, rig: Rig) -> dict[str, int]:
        """The groups of this test, and how many members each has."""
        found = await rig.broker.list_groups()
        assert [info.name for info in found] == sorted(info.name for info in found)
        return {info.name: len(info.members) for info in found if info.name.startswith(rig.name(""))}

    @rests_on("design 1.3", "C56")
    async def test_a_reset_sets_offsets_in_either_direction(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        for at in partitions:
            await rig.append(at, *[b"x"] * 10)
        member = await rig.member(partitions[0].topic)
        await owns(rig, member, *partitions)
        for at in partitions:
            await member.store_offset(at, Offset(5), ownership=member.assignment.owned[at])
        await member.leave()
        up, down, gone = partitions
        await rig.broker.reset_group(rig.name("group"), {up: Offset(8), down: Offset(2), gone: None})
        info = await rig.broker.describe_group(rig.name("group"))
        assert [info.offsets[at].stored for at in (up, down)] == [8, 2]
        member = await rig.member(partitions[0].topic)
        assert [await member.stored_offset(at) for at in partitions] == [8, 2, None]

    @rests_on("design 3")
    async def test_a_reset_is_checked_as_a_whole_first(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, *[b"x"] * 10)
        member = await rig.member(partitions[0].topic)
        await owns(rig, member, *partitions)
        for at in partitions:
            await member.store_offset(at, Offset(5), ownership=member.assignment.owned[at])
        good: dict[TopicPartition, Offset | None] = {partitions[0]: Offset(2)}
        with refused(NotAccepted):
            await rig.broker.reset_group(rig.name("group"), good)
        await member.leave()
        for wrong in Offset(10), Offset(-1):
            with refused(OffsetOutOfRange):
                await rig.broker.reset_group(rig.name("group"), good | {partitions[1]: wrong})
        for nowhere in TopicPartition(rig.name("no"), 0), TopicPartition(partitions[0].topic, 2):
            with refused(TopicNotFound):
                await rig.broker.reset_group(rig.name("group"), good | {nowhere: Offset(0)})
        info = await rig.broker.describe_group(rig.name("group"))
        assert [info.offsets[at].stored for at in partitions] == [5, 5]


def both_ways(partitions: Sequence[TopicPartition]) -> Iterator[tuple[TopicPartition, set[bool]]]:
    """Take turns until both was seen, and noted: a partition that is wanted back, and one that stays.

    Which of them is wanted back is the broker's choice.
    """
    seen: set[bool] = set()
    for at in islice(cycle(partitions), 20):
        yield at, seen
        if len(seen) == 2:
            return
    raise AssertionError(f"twenty members joined, and the partition was wanted back each time or never: {seen}")


def mine(member: abc.Session, at: TopicPartition, start: Position | Start = Position(0)) -> abc.FetchTarget:
    """A target of a partition that a member owns."""
    return abc.FetchTarget(at, start, member.assignment.owned[at])


async def handing_over(
    rig: Rig, partitions: tuple[TopicPartition, ...]
) -> tuple[abc.Session, abc.Session, TopicPartition]:
    """An owner of two partitions, a newcomer, and the partition that the owner is asked to give up."""
    old = await rig.member(partitions[0].topic)
    await owns(rig, old, *partitions)
    new = await rig.member(partitions[0].topic)
    await rig.until(lambda: bool(old.assignment.revoking))
    (wanted,) = old.assignment.revoking
    return old, new, wanted
