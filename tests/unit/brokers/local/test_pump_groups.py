"""The pump with groups: what a member may read and store, and when what it waits for ends."""

from __future__ import annotations

from typing import Any

import pytest

from tarry import abc
from tarry.brokers.local.coordinator import Seat
from tarry.brokers.local.pump import Pump
from tarry.config import TopicOptions
from tarry.errors import (
    LogUnavailable,
    NotAccepted,
    NotAMember,
    OutcomeUnknown,
    StaleAssignment,
    TopicNotFound,
)
from tarry.types import GroupInfo, Offset, Ownership, Position, Start, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import P0, P1, TOPIC, Ask, PumpRig

SESSION, REBALANCE = 30.0, 30.0


class GroupRig(PumpRig):
    """A pump with a group `billing`; its first member owns both partitions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first = self.join()

    def ask_join(self, *topics: str, group: str = "billing", static: str | None = None) -> Ask:
        ask = Ask()
        self.pump.open_session(ask, abc.ConsumerIdentity(group, "group", static), topics or (TOPIC,), ())
        return ask

    def join(self, *topics: str, group: str = "billing") -> Seat:
        ask = self.ask_join(*topics, group=group)
        self.sync()
        seat, _ = ask.answer
        assert isinstance(seat, Seat)
        return seat

    def sync(self) -> None:
        """Let through what the store holds, and what follows from it."""
        while self.store._held:
            self.store.sync()

    def leave(self, seat: Seat) -> Ask:
        ask = Ask()
        self.pump.leave(ask, seat)
        return ask

    def release(self, seat: Seat, *partitions: TopicPartition) -> Ask:
        ask = Ask()
        self.pump.groups.release(ask, seat, partitions)
        return ask

    def changed(self, seat: Seat) -> Ask:
        ask = Ask()
        self.pump.groups.changed(ask, seat, seat.shown.version)
        return ask

    def describe(self, group: str = "billing") -> GroupInfo:
        ask = Ask()
        self.pump.desk.describe(ask, group)
        info = ask.answer
        assert isinstance(info, GroupInfo)
        return info

    def at(self, seat: Seat, partition: TopicPartition, place: int | Start = 0) -> abc.FetchTarget:
        """A target under the ownership that the member knows."""
        where = place if isinstance(place, Start) else Position(place)
        return abc.FetchTarget(partition, where, seat.shown.owned.get(partition, Ownership(0)))

    def store_as(self, seat: Seat, offset: int, partition: TopicPartition = P0, ownership: int | None = None) -> Ask:
        under = seat.shown.owned[partition] if ownership is None else ownership
        return self.store_offset(offset, partition, ownership=under, member=seat)


class TestReading:
    @rule("S71")
    def test_a_member_reads_what_it_owns_under_its_ownership(self):
        rig = GroupRig()
        rig.append(3)
        poll = rig.poll(rig.at(rig.first, P0), member=rig.first)
        assert (poll.count, poll.one.ownership) == (3, rig.first.shown.owned[P0])
        assert rig.wait(rig.at(rig.first, P0), member=rig.first).ready == {P0: (3, 300)}
        second = rig.join()
        for ask in (
            rig.poll(abc.FetchTarget(P0, Position(0)), member=rig.first),
            rig.poll(abc.FetchTarget(P0, Position(0), Ownership(99)), member=rig.first),
            rig.poll(rig.at(rig.first, P0), member=second),
        ):
            assert isinstance(ask.error, StaleAssignment)
            assert ask.error.code == 5009

    @rule("S67")
    def test_what_is_asked_back_is_read_no_more_and_may_be_stored(self):
        rig = GroupRig()
        rig.append(5, P1)
        target = rig.at(rig.first, P1)
        rig.join()
        for commit in (False, True):
            refused = rig.poll(target, commit=commit, member=rig.first)
            assert isinstance(refused.error, StaleAssignment)
            assert "it was asked back" in str(refused.error)
        assert rig.store_as(rig.first, 4, P1).answer == 4
        assert rig.wait(target, member=rig.first).ready == {P1: (0, 0)}, "a poll says why"

    @rule("S67")
    def test_what_waits_for_it_ends_at_once_and_the_rest_goes_on(self):
        rig = GroupRig()
        lost = [
            rig.poll(rig.at(rig.first, P1), max_wait=5, member=rig.first),
            rig.poll(rig.at(rig.first, P1, Start.next()), max_wait=5, commit=True, member=rig.first),
        ]
        wait = rig.wait(rig.at(rig.first, P0), rig.at(rig.first, P1), member=rig.first)
        kept = rig.poll(rig.at(rig.first, P0), max_wait=5, member=rig.first)
        alone = rig.poll((P1, 0), max_wait=5)
        rig.join()
        assert [type(poll.error) for poll in lost] == [StaleAssignment, StaleAssignment]
        assert wait.ready == {P1: (0, 0)}
        assert (kept.pending, alone.pending, rig.pump.parked) == (True, True, 2)

    def test_a_disk_read_does_not_outlive_the_ownership(self):
        rig = GroupRig(cold=True)
        rig.append(3, P1)
        poll = rig.poll(rig.at(rig.first, P1), member=rig.first)
        rig.join()
        assert isinstance(poll.error, StaleAssignment)
        rig.store.end_reads()

    @rule("S66")
    def test_what_stays_is_read_on_without_a_break(self):
        rig = GroupRig()
        parked = rig.poll(rig.at(rig.first, P0), max_wait=30, member=rig.first)
        second = rig.join()
        rig.release(rig.first, P1)
        rig.leave(second)
        rig.append(2)
        assert parked.count == 2


class TestHandOver:
    @rule("S71", "S72")
    def test_the_new_owner_goes_on_behind_what_the_old_one_stored(self):
        rig = GroupRig()
        rig.append(9, P1)
        second = rig.join()
        rig.store_as(rig.first, 3, P1)
        old = rig.first.shown.owned[P1]
        rig.release(rig.first, P1)
        assert rig.poll(rig.at(second, P1, Start.next()), member=second).one.position == 4
        late = rig.store_as(rig.first, 8, P1, ownership=old)
        assert isinstance(late.error, StaleAssignment)
        assert rig.stored(P1, member=second) == 3

    @rule("S71")
    def test_a_store_on_its_way_is_there_before_the_new_owner_hears_of_the_partition(self):
        rig = GroupRig()
        rig.append(9, P1)
        second = rig.join()
        news = rig.changed(second)
        rig.store.hold()
        store, release = rig.store_as(rig.first, 6, P1), rig.release(rig.first, P1)
        assert (store.pending, release.pending, news.pending) == (True, True, True)
        rig.sync()
        assert (store.answer, release.answer) == (6, None)
        assert rig.poll(rig.at(second, P1, Start.next()), member=second).one.position == 7

    def test_a_commit_that_the_store_has_stands(self):
        """Its batch is the old owner's, and the new one starts behind it."""
        rig = GroupRig()
        rig.append(9, P1)
        rig.store.hold()
        commit = rig.poll(rig.at(rig.first, P1, Start.next()), commit=True, member=rig.first, count=5)
        held, rig.store._held = rig.store._held, []
        second = rig.join()
        assert commit.pending
        rig.store._held = held
        rig.sync()
        assert commit.count == 5
        rig.release(rig.first, P1)
        rig.sync()
        assert rig.poll(rig.at(second, P1, Start.next()), member=second).one.position == 5

    @rule("S68")
    def test_what_is_not_given_up_in_time_is_taken_with_all_that_was_read_of_it(self):
        rig = GroupRig()
        second = rig.join()
        for _ in range(6):
            rig.advance(REBALANCE / 6 - 0.001)
            rig.pump.groups.touch(rig.first)
            rig.pump.groups.touch(second)
        assert P1 not in second.shown.owned
        rig.advance(0.006)
        assert P1 in second.shown.owned
        assert isinstance(rig.store_as(rig.first, 0, P1, ownership=2).error, StaleAssignment)


class TestSessions:
    @rule("C21", "S69")
    def test_an_evicted_member_loses_all_that_waits_and_may_do_nothing(self):
        rig = GroupRig(max_wait=600)
        rig.append(1)
        polls = [
            rig.poll(rig.at(rig.first, P0, 1), max_wait=60, member=rig.first),
            rig.poll(rig.at(rig.first, P1, Start.next()), max_wait=60, commit=True, member=rig.first),
            rig.wait(rig.at(rig.first, P0, 1), max_wait=60, member=rig.first),
            rig.changed(rig.first),
        ]
        rig.advance(SESSION - 1)
        assert all(poll.pending for poll in polls)
        rig.advance(1)
        requests = [
            rig.poll(rig.at(rig.first, P0), member=rig.first),
            rig.wait(rig.at(rig.first, P0), member=rig.first),
            rig.store_as(rig.first, 0),
            rig.release(rig.first, P0),
            rig.changed(rig.first),
            rig.resolve(0, member=rig.first),
            rig.ask_stored(member=rig.first),
        ]
        for ask in (*polls, *requests):
            assert isinstance(ask.error, NotAMember)
            assert ask.error.code == 5006
            assert "not heard of for 30 s" in str(ask.error)
        assert rig.pump.parked == 0
        assert rig.leave(rig.first).answer is None

    def test_a_commit_that_the_store_has_when_its_member_is_evicted_is_unknown(self):
        rig = GroupRig()
        rig.append(1)
        rig.store.hold()
        commit = rig.poll(rig.at(rig.first, P0, Start.next()), commit=True, member=rig.first)
        rig.store._held.clear()  # the writer has it
        rig.advance(SESSION)
        assert isinstance(commit.error, OutcomeUnknown)

    @rule("S15", "S69")
    def test_who_leaves_is_gone_at_once(self):
        rig = GroupRig()
        second = rig.join()
        news = rig.changed(second)
        poll = rig.poll(rig.at(rig.first, P0), max_wait=5, member=rig.first)
        assert rig.leave(rig.first).answer is None
        assert isinstance(poll.error, NotAMember)
        assert set(news.answer.owned) == {P0, P1}
        assert rig.leave(rig.first).answer is None

    def test_a_withdrawn_join_is_none(self):
        rig = GroupRig()
        rig.store.hold()
        join = rig.ask_join()
        rig.pump.cancel(join)
        rig.sync()
        assert join.pending
        assert [member.id for member in rig.describe().members] == [rig.first.id]

    def test_a_withdrawn_changed_is_forgotten(self):
        rig = GroupRig()
        news = rig.changed(rig.first)
        rig.pump.cancel(news)
        rig.join()
        assert news.pending

    @rule("C15")
    def test_a_group_reads_topics_that_exist(self):
        rig = GroupRig()
        refused = rig.ask_join("nowhere", "neither", group="other")
        assert isinstance(refused.error, TopicNotFound)
        assert "'nowhere', 'neither'" in str(refused.error)
        rig.create("users", 1)
        assert isinstance(rig.ask_join(TOPIC, "users").error, NotAccepted)

    @rule("C18")
    def test_the_assignment_decides_not_what_a_member_asks_for(self):
        rig = GroupRig()
        ask = Ask()
        rig.pump.open_session(ask, abc.ConsumerIdentity("pinned", "group"), (TOPIC,), (P1,))
        _, assignment = ask.answer
        assert set(assignment.owned) == {P0, P1}

    @rule("K68")
    def test_a_member_without_partitions_asks_for_nothing_and_takes_over(self):
        rig = GroupRig(partitions=1)
        spare = [rig.join(), rig.join()]
        news = [rig.changed(seat) for seat in spare]
        before = rig.pump.requests
        for _ in range(3):
            rig.advance(9.9)
            for seat in spare:
                rig.pump.groups.touch(seat)
        assert (rig.pump.requests, news[0].pending, news[1].pending) == (before, True, True)
        ticks = rig.ticks
        rig.advance(0.3)
        assert (set(news[0].answer.owned), news[1].pending) == ({P0}, True)
        assert rig.ticks - ticks == 1

    def test_deadlines_of_members_and_of_parked_polls_share_one_timer(self):
        rig = GroupRig()
        rig.poll((P0, 0), max_wait=2)
        assert rig.pump.next_deadline() == rig.clock.at + 1, "the sweep"
        rig.advance(5)
        assert rig.pump.next_deadline() == rig.clock.at + SESSION - 5


class TestTopics:
    @rule("S24")
    def test_a_deleted_topic_is_owned_by_nobody_and_a_new_one_is_handed_out(self):
        rig = GroupRig()
        poll = rig.poll(rig.at(rig.first, P0), max_wait=5, member=rig.first)
        old = rig.at(rig.first, P0)
        rig.delete()
        assert isinstance(poll.error, TopicNotFound)
        assert (rig.first.shown.owned, rig.first.shown.topics) == ({}, {})
        rig.create(TOPIC, 3)
        assert len(rig.first.shown.owned) == 3
        assert isinstance(rig.poll(old, member=rig.first).error, StaleAssignment)
        rig.append(1)
        assert rig.poll(rig.at(rig.first, P0), member=rig.first).count == 1

    def test_topics_of_others_change_nothing(self):
        rig = GroupRig()
        news = rig.changed(rig.first)
        rig.create("users", 3)
        rig.delete("users")
        assert news.pending


class TestTheStore:
    def test_a_store_that_read_everything_again_takes_no_ownership_back(self):
        rig = GroupRig()
        rig.append(1)
        poll = rig.poll(rig.at(rig.first, P0, 1), max_wait=5, member=rig.first)
        before, rig.store._groups = rig.store._groups["billing"], {}
        rig.pump.reopened(list(rig.store.open(rig.pump)))
        assert rig.store.groups() == {"billing": before}
        assert poll.pending

    def test_a_topic_that_the_store_lost_is_lost_to_its_owner(self):
        rig = GroupRig()
        rig.pump.reopened([])
        assert rig.first.shown.owned == {}

    def test_a_store_that_is_gone_ends_what_waits(self):
        rig = GroupRig()
        asks = [rig.changed(rig.first), rig.poll(rig.at(rig.first, P0), max_wait=5, member=rig.first)]
        rig.pump.failed(LogUnavailable("broken"))
        for ask in (*asks, rig.ask_join(), rig.release(rig.first, P0)):
            assert isinstance(ask.error, LogUnavailable)
        assert rig.leave(rig.first).answer is None

    def test_a_closed_log_ends_what_waits(self):
        rig = GroupRig()
        news = rig.changed(rig.first)
        rig.pump.close()
        assert isinstance(news.error, LogUnavailable)


class TestSettingOffsets:
    def reset(self, rig: GroupRig, offsets: dict[TopicPartition, int | None]) -> Ask:
        ask = Ask()
        given = {at: None if offset is None else Offset(offset) for at, offset in offsets.items()}
        rig.pump.desk.reset(ask, "billing", given)
        return ask

    @rule("C56")
    def test_offsets_of_a_group_without_members_go_in_either_direction(self):
        rig = GroupRig()
        rig.append(9)
        rig.store_as(rig.first, 5)
        assert isinstance(self.reset(rig, {P0: 2}).error, NotAccepted)
        rig.leave(rig.first)
        assert self.reset(rig, {P0: 2}).answer is None
        assert rig.describe().offsets[P0].stored == 2
        assert rig.poll(rig.at(again := rig.join(), P0, Start.next()), member=again).one.position == 3

    def test_who_joins_while_offsets_are_set_starts_behind_them(self):
        rig = GroupRig()
        rig.append(9)
        rig.store_as(rig.first, 5)
        rig.leave(rig.first)
        rig.store.hold()
        reset, join = self.reset(rig, {P0: 2}), rig.ask_join()
        rig.sync()
        assert reset.answer is None
        seat, _ = join.answer
        assert rig.poll(rig.at(seat, P0, Start.next()), member=seat).one.position == 3

    def test_a_store_that_is_gone_is_the_answer(self):
        rig = GroupRig()
        rig.append(9)
        rig.store_as(rig.first, 5)
        rig.leave(rig.first)
        rig.pump.failed(LogUnavailable("broken"))
        assert isinstance(self.reset(rig, {P0: 2}).error, LogUnavailable)


@pytest.mark.parametrize("partitions", [1, 5])
@rule("S66")
def test_a_group_and_a_standalone_consumer_do_not_meet(partitions: int):
    rig = GroupRig(partitions=partitions)
    rig.append(3)
    assert rig.store_offset(2).answer == 2
    assert rig.stored(member=rig.first) is None
    assert rig.store_as(rig.first, 1).answer == 1
    assert rig.stored() == 2
    other = rig.join(group="shipping")
    assert rig.poll(rig.at(other, P0), member=other).count == 3


class TestComing:
    """What comes while a group is there is late for it, wherever the log stops."""

    @staticmethod
    def late(rig: GroupRig, seat: Seat) -> tuple[int, list[TopicPartition]]:
        """What the topic and a member are after a crash."""
        rig.store.crash()
        rig.store.hold(False)
        pump, ask = Pump(rig.store, rig.clock), Ask()
        pump.open()
        pump.groups.resume(ask, seat.identity, seat.id)
        _, shown = ask.answer
        assert isinstance(shown, abc.Assignment)
        return len(shown.owned), sorted(shown.late)

    @rule("K56")
    @pytest.mark.parametrize("synced", [0, 1, 2])
    def test_a_growth_is_known_wherever_the_log_stops(self, synced: int):
        rig, ask = GroupRig(), Ask()
        rig.store.hold()
        rig.pump.grow_topic(ask, TOPIC, 3)
        for _ in range(synced):
            rig.store.sync()
        new = [TopicPartition(TOPIC, 2)][: synced and 1]
        assert self.late(rig, rig.first) == (2 + len(new), new)
        assert self.late(rig, rig.first) == (2 + len(new), new), "as it was saved then"

    @rule("K56", "K72")
    @pytest.mark.parametrize("synced", [1, 2])
    def test_so_is_a_creation(self, synced: int):
        rig, ask = GroupRig(), Ask()
        seat = rig.join("later", TOPIC, group="other")
        rig.store.hold()
        rig.pump.create_topic(ask, "later", TopicOptions(), False)
        for _ in range(synced):
            rig.store.sync()
        assert self.late(rig, seat) == (3, [TopicPartition("later", 0)])

    @rule("K56")
    def test_who_grows_a_topic_need_not_wait_for_the_groups_on_it(self):
        rig, ask = GroupRig(), Ask()
        rig.store.hold()
        rig.pump.grow_topic(ask, TOPIC, 3)
        rig.store.sync()
        assert len(ask.answer.partitions) == 3
