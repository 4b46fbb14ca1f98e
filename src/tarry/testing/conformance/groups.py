"""Groups: who owns what, how partitions move, who is let in and who is thrown out."""

from __future__ import annotations

import anyio

from tarry import abc
from tarry.errors import NotAccepted, NotAMember, StaleAssignment, TopicNotFound
from tarry.testing.conformance.rig import Rig, refused
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import Offset, Ownership, Position, TopicPartition

Ownerships = dict[TopicPartition, Ownership]


class Groups(Suite):
    """Members that come and go as they should."""

    @rests_on("S66", "design 3")
    async def test_the_first_member_owns_everything(self, rig: Rig) -> None:
        first, second = await rig.topic(3, label="first"), await rig.topic(2, label="second")
        member = await rig.member(first[0].topic, second[0].topic)
        await owns(rig, member, *first, *second)
        assignment = member.assignment
        assert all(ownership > 0 for ownership in assignment.owned.values())
        assert assignment.revoking == frozenset()
        assert dict(assignment.topics) == {first[0].topic: 3, second[0].topic: 2}

    @rests_on("K72", "K56")
    async def test_a_missing_topic_is_shared_once_it_is_created(self, rig: Rig) -> None:
        (there,) = await rig.topic(label="there")
        names = [rig.name("later"), there.topic]
        first, second = await rig.member(*names), await rig.member(*names)
        await owns(rig, first, there)
        assert dict(second.assignment.topics) == {there.topic: 1}
        later = await rig.topic(3, label="later")
        await share(rig, [first, second], (there, *later))
        for member in first, second:
            assert member.assignment.late == frozenset(at for at in member.assignment.owned if at in later)
            assert dict(member.assignment.topics) == {there.topic: 1, later[0].topic: 3}

    @rests_on("K56")
    async def test_what_a_topic_gains_is_shared_and_is_late_for_whoever_gets_it(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        topic = partitions[0].topic
        first, second = await pair(rig, partitions)
        kept = dict(first.assignment.owned) | dict(second.assignment.owned)
        await rig.broker.grow_topic(topic, 4)
        everything = tuple(TopicPartition(topic, number) for number in range(4))
        await share(rig, [first, second], everything)
        owned = dict(first.assignment.owned) | dict(second.assignment.owned)
        assert {at: owned[at] for at in kept} == kept, "nothing that was there moves"
        new = frozenset(everything[2:])
        assert first.assignment.late | second.assignment.late == new
        await first.leave()
        await second.leave()
        later = await rig.member(topic)
        await owns(rig, later, *everything)
        assert later.assignment.late == new, "also for a member that came afterwards"

    @rests_on("S66", "S71", "K69")
    async def test_a_newcomer_gets_what_is_released_and_nothing_else_moves(self, rig: Rig) -> None:
        partitions = await rig.topic(4)
        old = await rig.member(partitions[0].topic)
        await owns(rig, old, *partitions)
        before = dict(old.assignment.owned)
        new = await rig.member(partitions[0].topic)
        await rig.until(lambda: len(old.assignment.revoking) == 2)
        await rig.settle()
        assert (dict(old.assignment.owned), dict(new.assignment.owned)) == (before, {})
        for wanted in sorted(old.assignment.revoking):
            await old.release([wanted])
            await holds(rig, new, wanted)
            assert wanted not in old.assignment.owned
            assert new.assignment.owned[wanted] > before[wanted]
        assert len(old.assignment.owned) == len(new.assignment.owned) == 2
        assert old.assignment.owned.items() <= before.items()
        assert not old.assignment.revoking | new.assignment.revoking

    @rests_on("S69", "K69")
    async def test_a_clean_leave_hands_over_at_once(self, rig: Rig) -> None:
        partitions = await rig.topic(4)
        leaver, stayer = await pair(rig, partitions)
        left, kept = dict(leaver.assignment.owned), dict(stayer.assignment.owned)
        await leaver.leave()
        await owns(rig, stayer, *partitions)
        now = stayer.assignment.owned
        assert {at: now[at] for at in kept} == kept
        assert all(now[at] > left[at] for at in left)

    @rests_on("S66", "S69", "S71")
    async def test_partitions_are_shared_evenly_and_each_has_one_owner(self, rig: Rig) -> None:
        partitions = await rig.topic(8)
        members: list[abc.Session] = []
        seen: Ownerships = {}
        for step in "+++-+--+":
            if step == "+":
                members.append(await rig.member(partitions[0].topic))
            else:
                await members.pop(0).leave()
            await share(rig, members, partitions)
            shares = sorted(len(member.assignment.owned) for member in members)
            assert shares[-1] - shares[0] <= 1
            now: Ownerships = {}
            for member in members:
                assert not now.keys() & member.assignment.owned.keys(), "two owners"
                now |= member.assignment.owned
            assert all(now[at] >= seen.get(at, 0) for at in partitions), "ownership numbers only grow"
            seen = now

    @rests_on("S71", "C31")
    async def test_a_partition_that_leaves_and_returns_is_owned_anew(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        old = await rig.member(partitions[0].topic)
        await owns(rig, old, *partitions)
        before = dict(old.assignment.owned)
        new = await rig.member(partitions[0].topic)
        await share(rig, [old, new], partitions)
        (moved,) = new.assignment.owned
        (kept,) = old.assignment.owned
        await new.leave()
        await owns(rig, old, *partitions)
        assert old.assignment.owned[kept] == before[kept]
        assert old.assignment.owned[moved] > before[moved]

    @rests_on("design 3")
    async def test_a_release_of_what_is_not_owned_is_left_out(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        first, second = await pair(rig, partitions)
        before = dict(first.assignment.owned), dict(second.assignment.owned)
        await first.release([*second.assignment.owned, TopicPartition(rig.name("no"), 0)])
        await first.release([])
        await rig.settle()
        assert (dict(first.assignment.owned), dict(second.assignment.owned)) == before

    @rests_on("design 4.1", "S66")
    async def test_what_is_released_unasked_goes_to_another_member(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        first, second = await pair(rig, partitions)
        (given,) = first.assignment.owned
        before = first.assignment.owned[given]
        await first.release([given])
        await holds(rig, second, given)
        assert second.assignment.owned[given] > before

    @rests_on("K68", "C20")
    async def test_a_member_too_many_waits_and_takes_over(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        members = [await rig.member(at.topic) for _ in range(3)]
        await owns(rig, members[0], at)
        await rig.settle()
        assert [dict(member.assignment.owned) for member in members[1:]] == [{}, {}]
        assert members[0].assignment.revoking == frozenset()
        assert [dict(member.assignment.topics) for member in members] == [{at.topic: 1}] * 3
        for _ in range(2):
            await members.pop(0).leave()
            await rig.until(lambda: sum(len(member.assignment.owned) for member in members) == 1)
            members.sort(key=lambda member: -len(member.assignment.owned))

    @rests_on("design 3")
    async def test_the_version_moves_with_every_change_and_wakes_who_waits(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        member = await rig.member(partitions[0].topic)
        await owns(rig, member, *partitions)
        version = member.assignment.version
        follows = rig.ask(member.changed, version)
        await rig.settle()
        assert follows.is_out
        other = await rig.member(partitions[0].topic)
        asked = await follows.answer()
        assert asked.version != version
        assert len(asked.revoking) == 1
        assert await member.changed(version) == member.assignment
        follows = rig.ask(other.changed, other.assignment.version)
        await rig.settle()
        await member.release(sorted(asked.revoking))
        assert (await follows.answer()).owned.keys() == asked.revoking
        await rig.until(lambda: member.assignment.version != asked.version)

    @rests_on("design 3")
    async def test_the_generation_counts_changes_of_the_members(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        member = await rig.member(partitions[0].topic)
        found = [member.assignment.generation]
        other = await rig.member(partitions[0].topic)
        await share(rig, [member, other], partitions)
        found.append(member.assignment.generation)
        assert other.assignment.generation == found[-1]
        await other.leave()
        await owns(rig, member, *partitions)
        found.append(member.assignment.generation)
        assert found == sorted(set(found)), "it grows with each of them"
        assert (await rig.broker.describe_group(rig.name("group"))).generation == found[-1]

    @rests_on("S15", "C21")
    async def test_a_member_that_left_is_none(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        member = await rig.member(at.topic)
        await owns(rig, member, at)
        version, ownership = member.assignment.version, member.assignment.owned[at]
        follows = rig.ask(member.changed, version)
        await rig.settle()
        await member.leave()
        await member.leave()
        with refused(NotAMember):
            await follows.answer()
        with refused(NotAMember):
            await member.changed(version)
        with refused(NotAMember):
            await rig.poll(member, abc.FetchTarget(at, Position(0), ownership))
        with refused(NotAMember):
            await member.release([at])

    @rests_on("design 4.1")
    async def test_a_static_name_is_held_by_one_living_member(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        first = await rig.member(partitions[0].topic, static="one")
        await owns(rig, first, *partitions)
        with refused(NotAccepted):
            await rig.member(partitions[0].topic, static="one")
        await rig.settle()
        assert (len(first.assignment.owned), first.assignment.revoking) == (2, frozenset())
        other = await rig.member(partitions[0].topic, group="elsewhere", static="one")
        await owns(rig, other, *partitions)
        await first.leave()
        again = await rig.member(partitions[0].topic, static="one")
        await owns(rig, again, *partitions)

    @rests_on("design 3")
    async def test_all_members_read_the_same_topics(self, rig: Rig) -> None:
        (a,), (b,) = await rig.topic(label="a"), await rig.topic(label="b")
        member = await rig.member(a.topic, b.topic)
        for topics in [a.topic], [b.topic]:
            with refused(NotAccepted):
                await rig.member(*topics)
        await owns(rig, member, a, b)
        second = await rig.member(b.topic, a.topic)
        await share(rig, [member, second], (a, b))
        for each in member, second:
            await each.leave()
        other = await rig.member(b.topic)
        await owns(rig, other, b)

    @rests_on("C15")
    async def test_a_group_on_a_missing_topic_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        with refused(TopicNotFound) as caught:
            await rig.member(rig.name("no"))
        assert rig.name("no") in str(caught.value)
        member = await rig.member(at.topic)
        await owns(rig, member, at)

    @rests_on("design 5", "S69")
    async def test_a_deleted_topic_leaves_the_assignment_and_comes_back_as_another(self, rig: Rig) -> None:
        (a,), (b,) = await rig.topic(label="a"), await rig.topic(label="b")
        member = await rig.member(a.topic, b.topic)
        await owns(rig, member, a, b)
        before = dict(member.assignment.owned)
        await rig.broker.delete_topic(b.topic)
        await owns(rig, member, a)
        assert member.assignment.owned[a] == before[a]
        await rig.topic(label="b")
        await owns(rig, member, a, b)
        assert member.assignment.owned[a] == before[a]
        assert member.assignment.owned[b] > before[b]

    @rests_on("S8", "S15", "K05")
    async def test_a_join_whose_caller_went_away_leaves_no_member_behind(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        for turns in range(12):
            for session in await rig.ask(rig.member, at.topic, static=str(turns)).abandon(turns=turns):
                await session.leave()

        async def empty() -> bool:
            return rig.name("group") not in {info.name for info in await rig.broker.list_groups()}

        await rig.until(empty)
        member = await rig.member(at.topic, static="0")
        await owns(rig, member, at)

    @rests_on("design 3")
    async def test_groups_know_nothing_of_each_other(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        one, two = await rig.member(partitions[0].topic, group="1"), await rig.member(partitions[0].topic, group="2")
        for each in one, two:
            await owns(rig, each, *partitions)
        await one.leave()
        await rig.settle()
        await owns(rig, two, *partitions)


class Eviction(Suite):
    """Members that say nothing, or do not let go."""

    @rests_on("design 4.1", "S69", lapsing="session")
    async def test_a_member_that_is_not_heard_of_is_evicted(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        silent = await rig.member(at.topic, static="one")
        await owns(rig, silent, at)
        ownership = silent.assignment.owned[at]
        assert silent.session_timeout == rig.timeouts.session
        follows = rig.ask(silent.changed, silent.assignment.version)
        if rig.is_virtual:
            await anyio.sleep(0.9 * rig.timeouts.session)
            assert follows.is_out
        await rig.until(lambda: not follows.is_out, within=2 * rig.timeouts.session)
        with refused(NotAMember):
            await follows.answer()
        with refused(NotAMember):
            await silent.store_offset(at, Offset(0), ownership=ownership)
        silent.touch()
        with refused(NotAMember):
            await silent.changed(silent.assignment.version)
        with refused(NotAMember):
            await silent.release(())
        again = await rig.member(at.topic, static="one")
        await owns(rig, again, at)
        assert again.assignment.owned[at] > ownership

    @rests_on("design 4.1", "K12", lapsing="session")
    async def test_a_member_that_is_heard_of_stays_and_keeps_what_it_has(self, rig: Rig) -> None:
        (topic, _), session = await rig.topic(2), rig.timeouts.session
        for attempt in range(10):
            begin = anyio.current_time()
            heard = await rig.member(topic.topic, group=f"group{attempt}")
            before = dict(heard.assignment.owned)
            silent = await rig.member(topic.topic, group=f"group{attempt}")
            gap = await touched(heard, 2.5 * session, begin)
            if gap < 0.9 * session:
                break  # Else this machine stood still for too long to judge anything.
        else:
            raise AssertionError("no sign of life was sent in time, ten times over")
        with refused(NotAMember):
            await silent.changed(silent.assignment.version)
        await rig.until(lambda: not heard.assignment.revoking)
        await heard.release(())
        assert dict(heard.assignment.owned) == before
        follows = rig.ask(heard.changed, heard.assignment.version)
        await rig.turn()
        assert follows.is_out

    @rests_on("S68", "design 4.1", lapsing="rebalance")
    async def test_what_is_not_released_in_time_is_taken(self, rig: Rig) -> None:
        partitions = await rig.topic(2)
        for at in partitions:
            await rig.append(at, b"a")
        old = await rig.member(partitions[0].topic)
        await owns(rig, old, *partitions)
        before = dict(old.assignment.owned)
        new = await rig.member(partitions[0].topic)
        if rig.is_virtual:
            await anyio.sleep(0.9 * rig.timeouts.rebalance)
            for at in partitions:
                assert await old.store_offset(at, None, ownership=before[at]) is None
        await rig.until(lambda: bool(new.assignment.owned), within=2 * rig.timeouts.rebalance)
        (wanted,) = new.assignment.owned
        assert new.assignment.owned[wanted] > before[wanted]
        with refused(StaleAssignment):
            await old.store_offset(wanted, Offset(0), ownership=before[wanted])
        await rig.until(lambda: wanted not in old.assignment.owned)
        (kept,) = old.assignment.owned
        assert await old.store_offset(kept, Offset(0), ownership=before[kept]) == 0
        await old.release([wanted])
        await rig.settle()
        assert wanted in new.assignment.owned


async def owns(rig: Rig, member: abc.Session, *partitions: TopicPartition) -> None:
    """Wait until a member owns just these, none of them wanted back."""
    wanted = set(partitions)
    await rig.until(lambda: set(member.assignment.owned) == wanted and not member.assignment.revoking)


async def holds(rig: Rig, member: abc.Session, partition: TopicPartition) -> None:
    """Wait until a member owns a partition, whatever else it owns."""
    await rig.until(lambda: partition in member.assignment.owned)


async def pair(rig: Rig, partitions: tuple[TopicPartition, ...]) -> tuple[abc.Session, abc.Session]:
    """Two members that share partitions, each with at least one."""
    first = await rig.member(partitions[0].topic)
    await owns(rig, first, *partitions)
    second = await rig.member(partitions[0].topic)
    await share(rig, [first, second], partitions)
    return first, second


async def share(rig: Rig, members: list[abc.Session], partitions: tuple[TopicPartition, ...]) -> None:
    """Let everybody release what is wanted back, until all is owned and nothing is wanted back."""

    async def shared() -> bool:
        for member in members:
            if member.assignment.revoking:
                await member.release(sorted(member.assignment.revoking))
        owned = [at for member in members for at in member.assignment.owned]
        wanted = any(member.assignment.revoking for member in members)
        return not wanted and sorted(owned) == sorted(partitions) and all(_even(members))

    await rig.until(shared)


def _even(members: list[abc.Session]) -> list[bool]:
    counts = [len(member.assignment.owned) for member in members]
    return [max(counts) - min(counts) <= 1]


async def touched(member: abc.Session, seconds: float, last: float) -> float:
    """Keep a member alive for so long; returns the longest time for which it said nothing since `last`."""
    longest, end = 0.0, anyio.current_time() + seconds
    while anyio.current_time() < end:
        member.touch()
        longest, last = max(longest, anyio.current_time() - last), anyio.current_time()
        await anyio.sleep(seconds / 7)
    return max(longest, anyio.current_time() - last)
