"""One group: who gets which partition, when it moves, and what an old owner may still do."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tarry._core.groups import Change, Group, Member
from tarry.errors import NotAccepted, NotAMember, StaleAssignment
from tarry.types import HistoryId, Ownership, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import python_calls

SESSION, REBALANCE = 30.0, 20.0


def parts(number: int, topic: str = "orders", first: int = 100) -> dict[HistoryId, TopicPartition]:
    """Partitions of a topic; the id of partition n is `first` + n."""
    return {HistoryId(first + index): TopicPartition(topic, index) for index in range(number)}


def ids(*numbers: int) -> list[HistoryId]:
    return [HistoryId(100 + number) for number in numbers]


class Rig:
    """A group that reads `orders`, with short words; partitions are called by their number."""

    def __init__(self, partitions: int, *members: str) -> None:
        self.group = Group("billing", session_timeout=SESSION, rebalance_timeout=REBALANCE)
        self.now = 0.0
        self.count = partitions
        for name in members:
            self.settle(name)

    def join(self, name: str, static: str | None = None, topics: Iterable[str] = ("orders",)) -> Change:
        return self.group.join(Member(name, static, self.now), topics, parts(self.count))

    def settle(self, name: str) -> None:
        """Join, and let everybody give up what is asked back."""
        self.join(name)
        for member in self.group.members:
            self.group.release(member.id, list(member.revoking), self.now)

    def release(self, name: str, *numbers: int) -> Change:
        return self.group.release(name, ids(*numbers), self.now)

    def advance(self, seconds: float, *touched: str) -> Change:
        self.now += seconds
        for name in touched:
            self.group.touch(name, self.now)
        return self.group.expire(self.now)

    def owned(self, name: str) -> list[int]:
        return [partition for _, partition in self.group.assignment(name).owned]

    def kept(self, name: str) -> list[int]:
        assignment = self.group.assignment(name)
        return [place.partition for place in assignment.owned if place not in assignment.revoking]

    def revoking(self, name: str) -> list[int]:
        return sorted(partition for _, partition in self.group.assignment(name).revoking)

    def sizes(self) -> list[int]:
        return [len(member.owned) for member in self.group.members]

    def version(self, name: str) -> int:
        return self.group.assignment(name).version

    def ownership(self, number: int) -> Ownership:
        (partition,) = ids(number)
        owner = self.group.owner(partition)
        assert owner is not None
        return owner.owned[partition]

    def fence(self, name: str, number: int, ownership: int, *, storing: bool = False) -> None:
        self.group.fence(name, HistoryId(100 + number), Ownership(ownership), storing=storing)


def names(change: Change) -> list[str]:
    return [member.id for member in change.members]


class TestJoining:
    @rule("S66")
    def test_the_first_member_gets_everything_at_once(self):
        rig = Rig(3)
        change = rig.join("a")
        assert names(change) == ["a"]
        assert (rig.owned("a"), rig.revoking("a")) == ([0, 1, 2], [])

    @rule("S66")
    def test_only_the_excess_is_asked_back_and_moves_when_it_is_released(self):
        rig = Rig(4, "a")
        change = rig.join("b")
        assert names(change) == ["b", "a"]
        assert change.stopped == [("a", HistoryId(103)), ("a", HistoryId(102))]
        assert (rig.owned("a"), rig.revoking("a"), rig.owned("b")) == ([0, 1, 2, 3], [2, 3], [])
        assert names(rig.release("a", 3)) == ["a", "b"]
        assert (rig.owned("a"), rig.revoking("a"), rig.owned("b")) == ([0, 1, 2], [2], [3])
        rig.release("a", 2)
        assert (rig.owned("a"), rig.revoking("a"), rig.owned("b")) == ([0, 1], [], [3, 2])

    @rule("S66")
    def test_what_nobody_owns_is_given_to_those_who_own_least_first(self):
        rig = Rig(2, "a", "b", "c")
        rig.group.repartition(parts(5), rig.now)
        assert [rig.owned(name) for name in "abc"] == [[0, 4], [1, 3], [2]]

    @rule("S66")
    @pytest.mark.parametrize("partitions", [1, 7, 12, 100])
    @pytest.mark.parametrize("members", [2, 3, 5])
    def test_sizes_differ_by_at_most_one_once_settled(self, partitions: int, members: int):
        rig = Rig(partitions, *"abcde"[:members])
        assert sum(rig.sizes()) == partitions
        assert max(rig.sizes()) - min(rig.sizes()) <= 1

    @rule("S66")
    def test_as_few_as_possible_move(self):
        rig = Rig(12, "a", "b", "c")
        before = {name: set(rig.kept(name)) for name in "abc"}
        rig.join("d")
        assert [len(rig.revoking(name)) for name in "abc"] == [1, 1, 1]
        assert all(set(rig.kept(name)) < before[name] for name in "abc")

    @rule("S66")
    def test_the_larger_share_stays_where_most_is_owned(self):
        rig = Rig(7, "a", "b")
        rig.group.leave("a", rig.now)
        rig.settle("c")
        assert rig.sizes() == [4, 3]
        rig.settle("d")
        assert rig.sizes() == [3, 2, 2]
        rig.group.leave("d", rig.now)
        assert rig.sizes() == [4, 3], "nothing moves between the two"

    @rule("K68")
    def test_a_member_without_partitions_is_a_member_and_takes_over(self):
        rig = Rig(1, "a", "b", "c")
        assert rig.sizes() == [1, 0, 0]
        assert rig.group.assignment("c").topics == {"orders": 1}
        assert not rig.advance(29, "b", "c")
        change = rig.advance(1, "b", "c")
        assert [member.id for member in change.gone] == ["a"]
        assert (names(change), rig.sizes()) == (["b"], [1, 0])

    @rule("K68")
    def test_a_member_that_nothing_changes_for_sees_no_change(self):
        rig = Rig(1, "a", "b")
        versions = rig.version("a"), rig.version("b")
        change = rig.join("c")
        assert names(change) == ["c"]
        assert (rig.version("a"), rig.version("b")) == versions
        rig.group.leave("c", rig.now)
        assert (rig.version("a"), rig.version("b")) == versions

    def test_another_set_of_topics_is_refused_while_members_live(self):
        rig = Rig(2, "a")
        with pytest.raises(NotAccepted, match="reads orders, this member asks for orders, users"):
            rig.join("b", topics=("users", "orders"))
        assert ("b" in rig.group, rig.group.generation) == (False, 1)
        rig.join("b", topics=("orders", "orders"))
        rig.group.leave("a", rig.now)
        rig.group.leave("b", rig.now)
        rig.group.join(Member("c", None, rig.now), ("users",), parts(1, "users", 500))
        assert list(rig.group.assignment("c").owned) == [TopicPartition("users", 0)]

    def test_a_second_static_member_of_a_name_is_refused_while_the_first_lives(self):
        rig = Rig(2)
        rig.join("1", static="east")
        rig.join("2", static="west")
        with pytest.raises(NotAccepted, match=r"a living member named 'east'.*30 s"):
            rig.join("3", static="east")
        assert rig.group.generation == 2
        rig.group.leave("1", rig.now)
        rig.join("3", static="east")
        rig.advance(30, "3")
        assert [member.id for member in rig.group.members] == ["3"]
        rig.join("4", static="west")

    def test_the_same_history_gives_the_same_assignment_whatever_the_members_are_called(self):
        """Ids are random text, so no order may come from them."""
        seen: list[list[list[int]]] = []
        for called in ("abcd", "dcba", "badc"):
            rig = Rig(17, *called)
            rig.group.leave(called[1], rig.now)
            rig.join(called[1])
            seen.append([rig.kept(name) for name in called])
        assert seen[0] == seen[1] == seen[2]


class TestHandOver:
    @rule("S71")
    def test_an_ownership_is_kept_while_the_partition_stays_and_new_after_each_move(self):
        rig = Rig(2, "a")
        before = [rig.ownership(0), rig.ownership(1)]
        assert before == [1, 2]
        rig.join("b")
        assert [rig.ownership(0), rig.ownership(1)] == before
        rig.release("a", 1)
        assert [rig.ownership(0), rig.ownership(1)] == [1, 3]
        rig.group.leave("b", rig.now)
        assert (rig.owned("a"), rig.ownership(0), rig.ownership(1)) == ([0, 1], 1, 4)

    @rule("S69")
    def test_who_leaves_hands_over_at_once(self):
        rig = Rig(6, "a", "b", "c")
        kept = rig.kept("a"), rig.kept("b")
        change = rig.group.leave("c", rig.now)
        assert [member.id for member in change.gone] == ["c"]
        assert len(change.stopped) == 2
        assert rig.sizes() == [3, 3]
        assert (rig.kept("a")[:2], rig.kept("b")[:2]) == kept
        with pytest.raises(NotAMember, match="group 'billing' has no member 'c'"):
            rig.group.leave("c", rig.now)

    @rule("S69")
    def test_who_is_not_heard_of_is_evicted_and_unknown_afterwards(self):
        rig = Rig(4, "a", "b")
        assert not rig.advance(29, "a")
        assert (rig.sizes(), rig.group.next_deadline()) == ([2, 2], SESSION)
        change = rig.advance(1)
        assert ([member.id for member in change.gone], rig.sizes()) == (["b"], [4])
        assert rig.group.next_deadline() == 59
        for ask in (
            lambda: rig.group.touch("b", rig.now),
            lambda: rig.group.assignment("b"),
            lambda: rig.release("b", 0),
            lambda: rig.fence("b", 0, 1),
        ):
            with pytest.raises(NotAMember, match=r"no member 'b'.*join again"):
                ask()

    @rule("S68")
    def test_what_is_not_given_up_in_time_is_taken(self):
        rig = Rig(4, "a")
        rig.advance(5, "a")
        rig.join("b")
        assert rig.group.next_deadline() == 25
        assert not rig.advance(19.9, "a", "b")
        change = rig.advance(0.1, "a", "b")
        assert (names(change), change.stopped) == (["a", "b"], []), "it was not readable before either"
        assert (rig.owned("a"), rig.owned("b")) == ([0, 1], [2, 3])

    @rule("S66")
    def test_what_was_asked_back_stays_when_the_one_it_was_for_leaves(self):
        rig = Rig(2, "a")
        rig.join("b")
        assert rig.revoking("a") == [1]
        version = rig.version("a")
        change = rig.group.leave("b", rig.now)
        assert (names(change), change.stopped) == (["a"], [])
        assert (rig.revoking("a"), rig.ownership(1), rig.version("a")) == ([], 2, version + 1)
        rig.fence("a", 1, 2)
        assert not rig.advance(25, "a"), "nothing is taken any more"

    @rule("S69")
    def test_what_was_left_behind_is_dealt_out_in_turn(self):
        """So the partitions of one topic do not all end up with one member."""
        rig = Rig(12, "a", "b", "c")
        left = sorted(rig.owned("c"))
        rig.group.leave("c", rig.now)
        assert [rig.owned(name)[4:] for name in "ba"] == [left[0::2], left[1::2]]

    def test_a_member_that_joins_in_between_asks_for_no_more_than_is_needed(self):
        rig = Rig(9, "a")
        rig.join("b")
        rig.join("c")
        assert (len(rig.kept("a")), len(rig.revoking("a"))) == (3, 6)
        for number in (8, 7, 6, 5, 4, 3):
            rig.release("a", number)
        assert rig.sizes() == [3, 3, 3]

    @rule("K12")
    def test_what_is_given_up_unasked_goes_to_somebody_else(self):
        rig = Rig(4, "a", "b")
        change = rig.release("a", 0)
        assert 0 in rig.owned("b")
        assert rig.revoking("b") != [0], "another one is asked back for it"
        assert len(rig.revoking("b")) == 1
        assert ("a", HistoryId(100)) in change.stopped
        rig.release("b", *rig.revoking("b"))
        assert rig.sizes() == [2, 2]

    @rule("K12")
    def test_what_is_given_up_unasked_goes_to_who_owns_least(self):
        rig = Rig(5, "a", "b", "c")
        assert rig.sizes() == [2, 2, 1]
        rig.release("a", *rig.owned("a")[:1])
        assert (rig.sizes(), rig.revoking("c"), rig.revoking("b")) == ([1, 2, 2], [], [])

    def test_what_the_only_member_gives_up_unasked_comes_back_under_a_new_ownership(self):
        rig = Rig(2, "a")
        assert rig.release("a", 0, 0).stopped == [("a", HistoryId(100))]
        assert (rig.owned("a"), rig.ownership(0)) == ([1, 0], 3)

    def test_everything_given_up_at_once_comes_back_in_parts_and_under_new_ownerships(self):
        rig = Rig(10, "a")
        rig.join("b")
        assert len(rig.release("a", *range(10)).stopped) == 5
        assert rig.sizes() == [5, 5]
        assert sorted(rig.ownership(number) for number in range(10)) == list(range(11, 21))

    def test_what_is_not_owned_cannot_be_released(self):
        rig = Rig(4, "a", "b")
        assert not rig.release("b", *rig.owned("a"), 77)
        assert not rig.release("b")
        assert rig.sizes() == [2, 2]


class TestFence:
    @rule("S67")
    def test_what_is_asked_back_may_be_stored_and_not_read(self):
        rig = Rig(2, "a")
        rig.join("b")
        rig.fence("a", 1, 2, storing=True)
        with pytest.raises(StaleAssignment, match=r"orders\[1\] under ownership 2: it was asked back.*release it"):
            rig.fence("a", 1, 2)
        rig.fence("a", 0, 1)

    @rule("S71")
    @pytest.mark.parametrize("storing", [False, True])
    def test_an_old_owner_is_refused_and_told_who_has_it(self, storing: bool):
        rig = Rig(2, "a")
        rig.join("b")
        rig.release("a", 1)
        with pytest.raises(StaleAssignment, match=r"orders\[1\] under ownership 2: it is owned by 'b' under 3"):
            rig.fence("a", 1, 2, storing=storing)
        rig.fence("b", 1, 3, storing=storing)

    @rule("S71")
    @pytest.mark.parametrize("storing", [False, True])
    def test_an_older_ownership_of_the_same_member_is_refused(self, storing: bool):
        rig = Rig(1, "a")
        rig.release("a", 0)
        with pytest.raises(StaleAssignment, match="under ownership 1: this member owns it under 2 by now"):
            rig.fence("a", 0, 1, storing=storing)

    def test_a_partition_that_the_group_does_not_read_is_refused(self):
        rig = Rig(1, "a")
        with pytest.raises(StaleAssignment, match=r"a partition of orders.*not one of the group's partitions"):
            rig.fence("a", 55, 1)


class TestGeneration:
    def test_it_counts_changes_of_the_members_only(self):
        rig = Rig(4, "a", "b")
        assert rig.group.generation == 2
        rig.release("a", 0)
        rig.group.repartition(parts(8), rig.now)
        rig.advance(REBALANCE, "a", "b")
        assert rig.group.generation == 2
        rig.group.leave("a", rig.now)
        assert rig.group.assignment("b").generation == 3
        rig.advance(SESSION)
        assert rig.group.generation == 4


class TestTopics:
    @rule("S69")
    def test_new_partitions_are_handed_out_and_everybody_sees_the_count(self):
        rig = Rig(2, "a", "b", "c")
        change = rig.group.repartition(parts(3), rig.now)
        assert names(change) == ["a", "b", "c"]
        assert rig.sizes() == [1, 1, 1]
        assert rig.group.assignment("a").topics == {"orders": 3}
        assert not rig.group.repartition(parts(3), rig.now)

    def test_a_topic_that_is_created_again_has_other_partitions(self):
        rig = Rig(2, "a", "b")
        change = rig.group.repartition(parts(2, first=200), rig.now)
        assert sorted(change.stopped) == [("a", HistoryId(100)), ("b", HistoryId(101))]
        assert [sorted(rig.group.assignment(name).owned.values()) for name in "ab"] == [[5], [4]]
        with pytest.raises(StaleAssignment):
            rig.fence("a", 0, 1)

    def test_a_topic_that_went_is_owned_by_nobody(self):
        rig = Rig(2, "a", "b")
        rig.group.repartition({}, rig.now)
        assert rig.group.assignment("a") == (rig.version("a"), 2, {}, frozenset(), {})
        assert [member.id for member in rig.group.members] == ["a", "b"]

    def test_what_is_asked_back_and_goes_is_asked_no_more(self):
        rig = Rig(4, "a")
        rig.join("b")
        rig.group.repartition(parts(2), rig.now)
        assert (rig.kept("a"), rig.revoking("a"), rig.owned("b")) == ([0], [1], [])
        rig.group.repartition(parts(1), rig.now)
        assert (rig.kept("a"), rig.revoking("a")) == ([0], [])
        assert not rig.advance(REBALANCE, "a", "b")


class TestRestart:
    def resumed(self, rig: Rig, partitions: int, now: float) -> tuple[Rig, Change]:
        again = Rig(partitions)
        again.now = now
        return again, again.group.resume(rig.group.saved(), parts(partitions), now)

    def test_members_ownerships_and_askings_are_taken_over(self):
        rig = Rig(4, "a")
        rig.join("b", static="east")
        before = [rig.group.assignment(name) for name in "ab"]
        again, change = self.resumed(rig, 4, 500.0)
        assert not change
        assert [again.group.assignment(name) for name in "ab"] == before
        with pytest.raises(NotAccepted):
            again.join("c", static="east")
        again.release("a", 3)
        assert again.ownership(3) == 5

    def test_each_session_and_each_asking_has_its_whole_timeout_again(self):
        rig = Rig(4, "a")
        rig.join("b")
        rig.now = 19.0
        again, _ = self.resumed(rig, 4, 1000.0)
        assert again.group.next_deadline() == 1020
        assert not again.advance(19.9)
        again.advance(0.1)
        assert again.sizes() == [2, 2]
        assert not again.advance(9.9)
        assert len(again.advance(0.1).gone) == 2

    def test_what_came_and_went_meanwhile_is_seen(self):
        rig = Rig(4, "a", "b")
        again, change = self.resumed(rig, 6, 0.0)
        assert (names(change), again.sizes()) == (["b", "a"], [3, 3])
        fewer, change = self.resumed(Rig(4, "a", "b"), 1, 0.0)
        assert (len(change.stopped), fewer.sizes()) == (3, [1, 0])

    def test_a_hand_over_goes_on_where_it_was(self):
        rig = Rig(10, "a", "b")
        rig.join("c")
        (asked,) = rig.revoking("a")
        rig.release("a", asked)
        again, change = self.resumed(rig, 10, 0.0)
        assert not change
        again.release("b", *again.revoking("b"))
        assert sorted(again.sizes()) == [3, 3, 4]
        assert [again.revoking(name) for name in "abc"] == [[], [], []]

    def test_an_empty_group_keeps_its_count_of_ownerships(self):
        rig = Rig(3, "a")
        rig.group.leave("a", rig.now)
        again, _ = self.resumed(rig, 3, 0.0)
        again.join("b")
        assert [again.ownership(number) for number in range(3)] == [4, 5, 6]
        assert again.group.generation == 3


class TestDeadlines:
    def test_a_group_without_members_has_none(self):
        rig = Rig(2)
        assert rig.group.next_deadline() is None
        rig.join("a")
        assert rig.group.next_deadline() == SESSION
        rig.group.leave("a", rig.now)
        assert rig.group.next_deadline() is None

    def test_a_touch_is_seen_at_the_next_look(self):
        rig = Rig(2, "a")
        for at in (10.0, 20.0, 5.0):
            rig.group.touch("a", at)
        assert rig.group.next_deadline() == SESSION
        rig.now = SESSION
        assert not rig.group.expire(rig.now)
        assert rig.group.next_deadline() == 20 + SESSION, "a touch from the past takes nothing back"


class TestCost:
    """Work as a count of calls: the same on any machine."""

    @rule("S66")
    @pytest.mark.parametrize("at_once", [False, True])
    def test_giving_up_900_of_1000_partitions_costs_what_moves(self, at_once: bool):
        rig = Rig(1000, "a")
        with python_calls("groups.py") as joins:
            for name in "bcdefghij":
                rig.join(name)
        assert len(joins) <= 100 * 9
        asked = list(rig.group.members[0].revoking)
        assert len(asked) == 900
        with python_calls("groups.py") as releases:
            for some in [asked] if at_once else [[partition] for partition in asked]:
                rig.group.release("a", some, rig.now)
        assert set(rig.sizes()) == {100}
        assert len(releases) <= (3 if at_once else 8) * 900

    def test_a_look_before_its_time_looks_at_nobody(self):
        rig = Rig(1, *"abcdefghij")
        with python_calls("groups.py") as calls:
            assert not rig.group.expire(SESSION - 1)
        assert calls == ["expire", "_done", "__bool__"]
