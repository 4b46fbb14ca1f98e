"""Polls that commit, over a memory store and a clock moved by hand: what is stored, when, and what is answered.

Also the fence of groups, with owners that a test writes down: who owns what is decided elsewhere.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tarry import abc
from tarry._core.waiters import Waiters
from tarry._wire.batch import seal
from tarry.brokers.local.probes import Member
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    LogBusy,
    LogFull,
    LogUnavailable,
    NotAccepted,
    NotAMember,
    OffsetOutOfRange,
    OutcomeUnknown,
    StaleAssignment,
    TarryError,
    TopicNotFound,
    UsageError,
)
from tarry.types import Ownership, Position, Start, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import P0, P1, TOPIC, Ask, Owners, PumpRig, python_calls
from tests.unit.brokers.local.test_pump import at, room

YESTERDAY = datetime(2012, 1, 1, tzinfo=UTC)


def commit(rig: PumpRig, place: int | Start | abc.FetchTarget = 0, **more: Any) -> Ask:
    return rig.poll(place, commit=True, **more)


class TestCommits:
    @rule("S50")
    def test_the_last_offset_of_the_reply_is_stored(self):
        rig = PumpRig()
        rig.append(5)
        poll = commit(rig, count=3)
        assert (poll.count, poll.one.next, rig.stored()) == (3, 3, 2)
        assert (commit(rig, 3).count, rig.stored()) == (2, 4)
        assert rig.poll(Start.next()).one.position == 5
        assert rig.store.open(rig.pump)[0].partitions[0].stored == {"name:billing": 4}

    @rule("S50")
    def test_what_did_not_fit_into_the_reply_is_not_stored(self):
        rig = PumpRig()
        rig.append_sizes([100, 100, 300, 5000])
        assert (commit(rig, max_bytes=room(100, 100, 299)).count, rig.stored()) == (2, 1)
        assert (commit(rig, 2, max_bytes=room(100)).count, rig.stored()) == (1, 2)
        assert (commit(rig, 3, max_bytes=room(100)).count, rig.stored()) == (1, 3)

    @rule("S50")
    def test_it_is_answered_when_the_commit_is_durable_and_not_before(self):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        poll = commit(rig, max_wait=5)
        assert (poll.pending, rig.stored(), rig.pump.parked) == (True, None, 1)
        rig.store.sync()
        assert (poll.count, rig.stored(), rig.pump.parked) == (5, 4, 0)
        assert (rig.pump.polls._probes, rig.member.calls) == ({}, {})

    @rule("S50")
    @pytest.mark.parametrize("max_wait", [0.0, 5.0])
    def test_without_messages_nothing_is_stored(self, max_wait: float):
        rig = PumpRig()
        rig.append(3)
        rig.store.answer = LogUnavailable("nothing was to be stored")
        for place in (3, Start.end()):
            poll = commit(rig, place, max_wait=max_wait)
            rig.advance(max_wait)
            assert (poll.count, rig.stored()) == (0, None)

    @rule("S50", "C56", "I7")
    def test_a_commit_never_lowers_what_is_stored(self):
        rig = PumpRig()
        rig.append(9)
        rig.store_offset(7)
        assert (commit(rig, count=3).count, rig.stored()) == (3, 7)
        assert (commit(rig, 6, count=2).count, rig.stored()) == (2, 7)
        assert (commit(rig, 6).count, rig.stored()) == (3, 8)

    @rule("C28")
    def test_a_position_is_served_again_whatever_is_stored(self):
        """The reply was lost and its commit was not: whoever asks at its position gets the messages."""
        rig = PumpRig()
        rig.append(5)
        lost = commit(rig)
        assert rig.stored() == 4
        again = commit(rig)
        assert (again.count, again.one.runs[0].base, rig.stored()) == (lost.count, 0, 4)
        rig.store_offset(1, lower=True)
        assert (commit(rig, 3).count, rig.stored()) == (2, 4), "a position is no start: nobody's rewind refuses it"

    @rule("S50", "S21")
    def test_a_parked_one_commits_when_it_is_complete(self):
        rig = PumpRig()
        poll, late = commit(rig, min_count=3, max_wait=5), commit(rig, at(P1, 0), min_count=3, max_wait=5)
        rig.append(2)
        rig.append(2, P1)
        assert (poll.pending, rig.stored()) == (True, None)
        rig.append(1)
        assert (poll.count, rig.stored(), rig.store.reads) == (3, 2, 1)
        rig.advance(4.999)
        assert (late.pending, rig.stored(P1)) == (True, None)
        rig.advance(0.001)
        assert (late.count, rig.stored(P1)) == (2, 1)

    @rule("S50")
    def test_every_start_commits_what_it_reads(self):
        rig = PumpRig()
        rig.append_times(1000, 2000, 3000, 4000)
        two = Start.timestamp(datetime.fromtimestamp(2, tz=UTC))
        starts: list[int | Start] = [Start.first(), Start.next(), two, Start.offset(2), 1]
        for index, start in enumerate(starts):
            member = rig.open(f"reader {index}")
            poll = commit(rig, start, count=2, member=member)
            assert rig.stored(member=member) == poll.one.next - 1
        assert rig.stored() is None

    def test_a_commit_wakes_nobody(self):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        others = [rig.poll(5, max_wait=5), rig.wait(5), rig.wait(5, min_count=2), commit(rig, 5, max_wait=5)]
        poll, reads = commit(rig), rig.store.reads
        with python_calls("polls.py") as calls:
            rig.store.sync()
        assert (poll.count, rig.store.reads) == (5, reads)
        assert all(other.pending for other in others)
        assert "_probe" not in calls

    def test_a_poll_that_does_not_commit_stores_nothing(self):
        rig = PumpRig()
        rig.append(5)
        assert (rig.poll(Start.next()).count, rig.poll(0, max_wait=5).count, rig.stored()) == (5, 5, None)

    @rule("S4")
    def test_it_takes_one_target_and_a_name(self):
        rig = PumpRig(cold=True)
        rig.append(1)
        two = rig.poll((P0, 0), (P1, 0), commit=True)
        assert isinstance(two.error, ConfigError)
        assert "one target, not 2" in str(two.error)
        for place in (0, Start.next(), Start.timestamp(YESTERDAY)):
            nameless = commit(rig, place, max_wait=5, member=rig.open(None))
            assert isinstance(nameless.error, UsageError)
            assert "name=" in str(nameless.error)
        behind = commit(rig, 2, max_wait=5)
        assert isinstance(behind.error, OffsetOutOfRange)
        assert (rig.store.reads, rig.store.disk, rig.stored(), rig.pump.parked) == (0, [], None, 0)

    @rule("S13")
    def test_without_room_to_wait_for_the_store_nothing_is_applied(self):
        rig = PumpRig(waiters=Waiters(total_max=0))
        rig.append(1)
        poll = commit(rig)
        assert isinstance(poll.error, CapacityExceeded)
        assert (rig.stored(), rig.pump.parked) == (None, 0)


class TestNext:
    @rule("S47", "S48")
    @pytest.mark.parametrize("offset", [1, 3, 6, None], ids=["rewind", "one less", "ahead", "deleted"])
    def test_another_stored_offset_ends_a_poll_that_waited_at_next(self, offset: int | None):
        rig = PumpRig()
        rig.append(8)
        rig.store_offset(4)
        poll = commit(rig, Start.next(), min_count=5, max_wait=5)
        rig.store_offset(offset, lower=True, member=rig.open("billing"))
        assert poll.pending
        reads = rig.store.reads
        rig.append(2)
        assert isinstance(poll.error, NotAccepted)
        assert (poll.error.code, rig.stored(), rig.store.reads) == (58, offset, reads), "ahead of the read"
        position = 0 if offset is None else offset + 1
        again = commit(rig, Start.next())
        assert (again.one.position, again.one.next, rig.stored()) == (position, 10, 9), "resolved anew"

    @rule("S47")
    def test_the_last_read_of_the_wait_is_checked_too(self):
        """It would find nothing, and say so, although something is there from the stored offset on."""
        rig = PumpRig()
        rig.append(5)
        rig.store_offset(4)
        poll = commit(rig, Start.next(), max_wait=5)
        rig.store_offset(1, lower=True)
        rig.advance(5)
        assert isinstance(poll.error, NotAccepted)
        assert rig.stored() == 1

    @rule("S47")
    def test_the_first_stored_offset_of_all_is_another_one_too(self):
        rig = PumpRig()
        rig.append(1)
        poll = commit(rig, Start.next(otherwise=Start.end()), max_wait=5)
        rig.store_offset(0)
        rig.append(1)
        assert isinstance(poll.error, NotAccepted), "although the start would be the same"

    @rule("S48")
    def test_offsets_of_others_and_the_same_one_again_change_nothing(self):
        rig = PumpRig()
        rig.append(5)
        rig.append(5, P1)
        rig.store_offset(2)
        poll = commit(rig, Start.next(), min_count=5, max_wait=5)
        rig.store_offset(4, member=rig.open("other"))
        rig.store_offset(3, P1)
        rig.store_offset(2)
        rig.store_offset(1)
        rig.append(3)
        assert (poll.one.position, poll.count, rig.stored()) == (3, 5, 7)

    @rule("S47")
    @pytest.mark.parametrize("start", [Start.first(), Start.offset(0), 0], ids=str)
    def test_nobody_s_store_refuses_another_start(self, start: int | Start):
        rig = PumpRig()
        rig.append(2)
        poll = commit(rig, start, min_count=3, max_wait=5)
        rig.store_offset(1)
        rig.store_offset(0, lower=True)
        rig.append(1)
        assert (poll.one.position, poll.count, rig.stored()) == (0, 3, 2)

    @rule("S49", "S48")
    def test_an_offset_stored_while_the_disk_is_read_is_seen_ahead_of_the_commit(self):
        rig = PumpRig(cold=True)
        rig.append(5)
        rig.store_offset(3)
        poll = commit(rig, Start.next(), max_wait=5)
        rig.store_offset(1, lower=True)
        rig.store.end_read()
        assert isinstance(poll.error, NotAccepted)
        assert (rig.stored(), rig.pump.parked, rig.store.disk) == (1, 0, [])

    @rule("S47")
    def test_an_offset_on_its_way_to_the_file_is_seen_in_the_transaction(self):
        rig = PumpRig()
        rig.append(5)
        rig.store_offset(3)
        rig.store.hold()
        rewind = rig.store_offset(1, lower=True)
        poll = commit(rig, Start.next())
        assert (rig.stored(), poll.pending) == (3, True), "nobody knows of it yet"
        rig.store.sync()
        assert (rewind.answer, rig.stored()) == (1, 1)
        assert isinstance(poll.error, NotAccepted)

    @rule("S47")
    @pytest.mark.parametrize("hold", [False, True], ids=["one by one", "in one transaction"])
    def test_of_several_at_one_next_one_gets_the_messages(self, hold: bool):
        rig = PumpRig()
        polls = [commit(rig, Start.next(), max_wait=5, member=rig.open("billing")) for _ in range(3)]
        rig.append(2)
        assert [poll.count for poll in polls if isinstance(poll.answer, abc.PollReply)] == [2]
        rig.store.hold(hold)
        more = [commit(rig, place, min_count=1) for place in (Start.next(), Start.next())]
        rig.store.sync()
        assert [poll.count for poll in more] == [0, 0], "nothing is left for those who ask again"
        refused = [poll.answer for poll in polls if not isinstance(poll.answer, abc.PollReply)]
        assert [type(answer) for answer in refused] == [NotAccepted] * 2

    @rule("S49")
    def test_the_start_stays_where_it_was_when_retention_passes_it(self):
        rig = PumpRig(retention_bytes=500)
        poll = commit(rig, Start.next(), min_count=10, max_wait=5)
        for _ in range(9):
            rig.append(1, size=101)
        rig.advance(5)
        assert (poll.one.asked, poll.one.position, poll.one.next, rig.stored()) == (0, 5, 9, 8)

    @rule("S47")
    def test_a_poll_that_does_not_commit_is_not_refused(self):
        rig = PumpRig()
        rig.append(1)
        poll = rig.poll(Start.next(), min_count=2, max_wait=5)
        rig.store_offset(0)
        rig.append(1)
        assert (poll.one.position, poll.count) == (0, 2)


class TestRefusals:
    @rule("S73")
    def test_beyond_the_bound_a_new_identity_gets_nothing_at_all(self):
        rig = PumpRig()
        rig.append(5)
        for index in range(4096):
            rig.store_offset(0, member=rig.open(f"reader {index}"))
        refused = commit(rig)
        assert isinstance(refused.error, CapacityExceeded)
        assert "3024" in str(refused.error)
        assert rig.stored() is None
        assert rig.poll(0).count == 5, "who stores nothing needs no entry"
        known = rig.open("reader 7")
        assert (commit(rig, member=known).count, rig.stored(member=known)) == (5, 4)

    @rule("S50")
    @pytest.mark.parametrize("kind", [CapacityExceeded, LogFull, LogBusy, LogUnavailable, NotAccepted, OutcomeUnknown])
    def test_a_commit_that_fails_fails_the_poll_as_a_whole(self, kind: type[TarryError]):
        rig = PumpRig()
        rig.append(5)
        rig.store.answer = kind("no")
        for poll in (commit(rig), commit(rig, Start.next(), max_wait=5)):
            assert poll.answer is rig.store.answer
        assert (rig.stored(), rig.pump.parked, rig.pump.polls._probes) == (None, 0, {})
        rig.store.answer = None
        assert (commit(rig).count, rig.stored()) == (5, 4)

    @rule("S22")
    def test_a_session_that_left_while_the_disk_was_read_commits_nothing(self):
        rig = PumpRig(cold=True)
        rig.append(5)
        member = rig.open("other")
        poll = commit(rig, member=member)
        member.open = False  # as if its requests had not been withdrawn
        rig.store.end_read()
        assert isinstance(poll.error, NotAMember)
        assert rig.part().stored == {}

    def test_a_store_that_failed_while_the_disk_was_read_takes_no_commit(self):
        rig = PumpRig(cold=True)
        rig.append(5)
        poll = commit(rig)
        rig.pump.failed(LogUnavailable("gone"))
        rig.store.end_reads()
        assert isinstance(poll.error, LogUnavailable)
        assert rig.store.open(rig.pump)[0].partitions[0].stored == {}


class TestHistory:
    @rule("S74")
    @pytest.mark.parametrize("early", [True, False], ids=["read before", "read after"])
    @pytest.mark.parametrize("again", [True, False], ids=["created again", "gone"])
    def test_a_topic_deleted_while_it_was_read_stores_nothing(self, early: bool, again: bool):
        rig = PumpRig(cold=True, early=early)
        rig.append(5)
        poll = commit(rig, max_wait=5)
        rig.delete()
        if again:
            rig.create(TOPIC, 2)
            rig.append(5)
        rig.store.end_reads()
        assert isinstance(poll.error, TopicNotFound)
        if again:
            assert rig.stored() is None
        assert (rig.pump.parked, rig.store.disk) == (0, [])

    @rule("S74")
    def test_a_topic_deleted_while_the_commit_is_on_its_way_stores_nothing(self):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        deleted, poll = rig.delete(), commit(rig)
        rig.store.sync()
        assert deleted.answer is None
        assert isinstance(poll.error, TopicNotFound)
        assert (rig.pump.parked, rig.pump.polls._probes) == (0, {})

    @rule("S74")
    def test_a_commit_ahead_of_the_deletion_stands(self):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        poll, deleted = commit(rig), rig.delete()
        rig.store.sync()
        assert (poll.count, deleted.answer) == (5, None)

    @rule("S74")
    def test_a_position_of_another_history_stores_nothing(self):
        rig = PumpRig()
        rig.append(5)
        old = rig.part().history
        rig.delete()
        rig.create(TOPIC, 2)
        rig.append(5)
        poll = commit(rig, at(P0, 2, old), max_wait=5)
        assert (poll.count, poll.one.history, rig.stored()) == (0, rig.part().history, None)

    @rule("S74")
    def test_messages_that_a_reopened_store_does_not_hold_are_not_committed(self):
        rig, other = PumpRig(cold=True, early=True), PumpRig()
        rig.append(5)
        other.append(3)
        poll, fine = commit(rig), commit(rig, count=3)
        rig.pump.reopened(other.store.open(other.pump))
        rig.store.end_reads()
        assert isinstance(poll.error, NotAccepted)
        assert (fine.count, rig.stored()) == (3, 2)


class TestEndings:
    @rule("W17")
    def test_a_cancel_ahead_of_the_store_applies_nothing(self):
        rig = PumpRig(cold=True)
        rig.append(5)
        parked, reading = commit(rig, 5, max_wait=5), commit(rig)
        rig.store.hold()
        waiting = commit(rig)
        rig.store.disk.pop()()
        assert rig.pump.parked == 3
        for poll in (parked, reading, waiting):
            rig.pump.cancel(poll)
        rig.store.end_reads()
        rig.store.sync()
        rig.store.hold(False)
        rig.append(1)
        assert all(poll.pending for poll in (parked, reading, waiting))
        assert (rig.stored(), rig.pump.parked, rig.member.calls) == (None, 0, {})

    @rule("W17")
    def test_a_cancel_behind_it_changes_nothing_but_the_answer(self):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        poll = commit(rig)
        rig.store.taken = True
        rig.pump.cancel(poll)
        assert (rig.pump.parked, rig.member.calls) == (0, {})
        rig.store.sync()
        assert (poll.pending, rig.stored()) == (True, 4), "memory follows the file"
        assert rig.poll(Start.next()).one.position == 5

    @rule("I4")
    @pytest.mark.parametrize("taken", [False, True], ids=["withdrawn", "being written"])
    def test_leaving_tells_what_became_of_it(self, taken: bool):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        poll = commit(rig)
        rig.store.taken = taken
        rig.pump.leave(None, rig.member)
        assert type(poll.error) is (OutcomeUnknown if taken else NotAMember)
        rig.store.sync()
        assert rig.part().stored == ({"name:billing": 4} if taken else {})
        assert rig.pump.parked == 0

    @rule("I4", "S29")
    @pytest.mark.parametrize("taken", [False, True], ids=["withdrawn", "being written"])
    def test_a_commit_that_takes_too_long_ends_at_the_request_deadline(self, taken: bool):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        poll = commit(rig, max_wait=5)
        rig.store.taken = taken
        rig.advance(14.999)
        assert poll.pending
        rig.advance(0.001)
        assert type(poll.error) is (OutcomeUnknown if taken else CapacityExceeded)
        assert ("nothing was applied" in str(poll.error)) is not taken
        rig.store.sync()
        assert (rig.stored(), rig.pump.parked) == (4 if taken else None, 0)

    @rule("I4")
    def test_closing_leaves_it_to_the_store(self):
        rig = PumpRig()
        rig.append(5)
        parked = commit(rig, 5, max_wait=5)
        rig.store.hold()
        poll = commit(rig)
        rig.pump.close()
        assert isinstance(parked.error, LogUnavailable)
        assert poll.pending
        rig.store.sync()
        assert poll.count == 5

    @rule("I4")
    def test_a_store_that_fails_answers_it(self):
        rig = PumpRig()
        rig.append(5)
        rig.store.hold()
        poll = commit(rig)
        rig.pump.failed(LogUnavailable("the disk is gone"))
        rig.store.crash()
        assert isinstance(poll.error, OutcomeUnknown)
        assert rig.pump.parked == 0

    def test_the_sweep_lets_a_commit_be(self):
        rig = PumpRig()
        rig.append(5)
        member = rig.open("other")
        rig.store.hold()
        poll, reads = commit(rig, member=member, max_wait=5), rig.store.reads
        member.open = False
        rig.advance(3)
        assert (poll.pending, rig.store.reads, rig.ticks) == (True, reads, 3)
        rig.store.sync()
        assert poll.count == 5


class FencedRig(PumpRig):
    """A pump with one group of one member that owns both partitions, under ownership 1."""

    def __init__(self, **options: Any) -> None:
        self.owners = Owners()
        super().__init__(fence=self.owners, **options)
        self.member = self.open("billing", "group")
        self.owners.give(self.member, P0, P1)

    def lose(self, *partitions: TopicPartition, member: Member | None = None) -> None:
        self.owners.take(member or self.member, *partitions)
        self.pump.polls.look_again(member or self.member, frozenset(partitions))


def owned(place: int | Start, partition: TopicPartition = P0, ownership: int = 1) -> abc.FetchTarget:
    start = place if isinstance(place, Start) else Position(place)
    return abc.FetchTarget(partition, start, Ownership(ownership))


class TestFence:
    @rule("C31")
    @pytest.mark.parametrize("commits", [True, False])
    @pytest.mark.parametrize("place", [0, 3, 99, Start.next(), Start.offset(99), Start.timestamp(YESTERDAY)])
    def test_a_poll_under_an_old_ownership_is_refused_at_admission(self, place: int | Start, commits: bool):
        rig = FencedRig(cold=True)
        rig.append(5)
        rig.owners.give(rig.member, P0, ownership=2)  # it went away and came back
        poll = rig.poll(owned(place), commit=commits, max_wait=5)
        assert isinstance(poll.error, StaleAssignment)
        assert (rig.store.disk, rig.pump.parked, rig.stored()) == ([], 0, None)
        current = rig.poll(owned(0, ownership=2), commit=commits)
        rig.store.end_reads()
        assert current.count == 5
        assert current.one.ownership == 2

    def test_what_is_wanted_back_is_not_read_any_more_and_still_stored(self):
        rig = FencedRig()
        rig.append(5)
        rig.owners.revoking = {P0}
        assert isinstance(rig.poll(owned(0)).error, StaleAssignment)
        assert isinstance(commit(rig, owned(0)).error, StaleAssignment)
        assert rig.stored() is None
        assert rig.store_offset(3, ownership=1).answer == 3

    @rule("C31")
    def test_a_store_under_an_old_ownership_is_refused(self):
        rig = FencedRig()
        rig.append(5)
        rig.owners.give(rig.member, P0, ownership=2)
        for offset in (3, None, 99):
            assert isinstance(rig.store_offset(offset, ownership=1, lower=True).error, StaleAssignment)
        assert rig.store_offset(3, ownership=2).answer == 3
        assert rig.owners.asked[-1] == (P0, 2, True)

    @rule("S22")
    def test_a_wake_asks_the_fence_again(self):
        rig = FencedRig()
        poll, timed = commit(rig, owned(0), max_wait=5), rig.poll(owned(0, P1), max_wait=5)
        rig.owners.take(rig.member, P0, P1)  # and nobody tells the pump
        rig.append(1)
        assert isinstance(poll.error, StaleAssignment)
        rig.advance(5)
        assert isinstance(timed.error, StaleAssignment)
        assert (rig.store.reads, rig.stored()) == (0, None)

    @rule("S22")
    def test_the_fence_is_asked_directly_ahead_of_the_commit(self):
        rig = FencedRig(cold=True)
        rig.append(5)
        poll = commit(rig, owned(0))
        rig.owners.take(rig.member, P0)
        rig.store.end_read()
        assert isinstance(poll.error, StaleAssignment)
        assert rig.part().stored == {}

    def test_a_lost_target_of_a_wait_counts_as_ready(self):
        rig = FencedRig()
        rig.append(2, P1)
        rig.owners.take(rig.member, P0)
        for place in (0, Start.next(), 99):
            assert rig.wait(owned(place), owned(2, P1)).ready == {P0: (0, 0)}
        rig.owners.give(rig.member, P0)
        wait, gathering = rig.wait(owned(0), owned(2, P1)), rig.wait(owned(0), owned(2, P1), min_count=3)
        rig.lose(P1)
        assert (wait.ready, gathering.ready) == ({P1: (0, 0)}, {P1: (0, 0)})
        assert rig.pump.parked == 0
        assert rig.pump.polls._watches._readiness._listening == {}

    def test_an_evicted_member_is_told_so(self):
        rig = FencedRig()
        parked, wait = commit(rig, owned(0), max_wait=5), rig.wait(owned(0))
        rig.owners.evicted = {"billing"}
        rig.pump.polls.look_again(rig.member, {P0})
        late = [rig.poll(owned(0)), rig.wait(owned(Start.next())), rig.store_offset(None, ownership=1)]
        for ask in (parked, wait, *late):
            assert isinstance(ask.error, NotAMember)

    def test_what_waits_for_a_lost_partition_ends_at_once(self):
        rig = FencedRig()
        polls = [rig.poll(owned(0), max_wait=5), commit(rig, owned(Start.next()), max_wait=5)]
        kept = [rig.poll(owned(0, P1), max_wait=5), rig.wait(owned(0, P1))]
        other = rig.open("other", "group")
        rig.owners.give(other, P0)
        theirs = rig.poll(owned(0), max_wait=5, member=other)
        reads = rig.store.reads
        rig.lose(P0)
        assert [type(poll.error) for poll in polls] == [StaleAssignment] * 2
        assert all(ask.pending for ask in (*kept, theirs))
        assert (rig.pump.parked, rig.store.reads) == (3, reads)
        rig.append(1, P1)
        assert (kept[0].count, kept[1].ready) == (1, {P1: (1, 100)})

    def test_what_the_fence_lets_pass_goes_on_waiting(self):
        rig = FencedRig(cold=True)
        rig.append(2)
        parked, reading = rig.poll(owned(2), max_wait=5), commit(rig, owned(0))
        rig.store.hold()
        committing = commit(rig, owned(0))
        rig.store.disk.pop()()
        rig.pump.polls.look_again(rig.member, {P0})
        assert (rig.pump.parked, len(rig.store.disk)) == (3, 1), "nothing was read a second time"
        rig.store.end_reads()
        rig.store.sync()
        assert (reading.count, committing.count, parked.pending) == (2, 2, True)

    def test_a_read_for_a_lost_partition_ends_at_once(self):
        rig = FencedRig(cold=True)
        rig.append(5)
        polls = [rig.poll(owned(0)), commit(rig, owned(0)), rig.poll(owned(0, P1), owned(0))]
        rig.lose(P0)
        assert [type(poll.error) for poll in polls] == [StaleAssignment] * 3
        rig.store.end_reads()
        assert (rig.pump.parked, rig.part().stored) == (0, {})

    @rule("C36")
    @pytest.mark.parametrize("taken", [False, True], ids=["withdrawn", "being written"])
    def test_a_commit_for_a_lost_partition_is_withdrawn_or_stands(self, taken: bool):
        rig = FencedRig()
        rig.append(5)
        rig.store.hold()
        poll = commit(rig, owned(0))
        rig.store.taken = taken
        rig.lose(P0)
        assert poll.pending is taken
        rig.store.sync()
        if taken:
            assert (poll.count, poll.one.ownership, rig.part().stored) == (5, 1, {"group:billing": 4})
        else:
            assert isinstance(poll.error, StaleAssignment)
            assert rig.part().stored == {}

    def test_members_without_a_group_are_never_asked_about(self):
        rig = FencedRig()
        alone = rig.open("billing")
        assert not alone.fenced
        commit(rig, max_wait=5, member=alone)
        rig.wait((P0, 0), (P1, 0), member=alone)
        rig.append(1)
        assert rig.store_offset(0, member=alone).answer == 0
        assert rig.owners.asked == []

    def test_a_group_and_a_name_store_apart(self):
        rig = FencedRig()
        rig.append(5)
        alone = rig.open("billing")
        assert commit(rig, owned(0)).count == 5
        assert (rig.stored(), rig.stored(member=alone)) == (4, None)
        assert commit(rig, Start.next(), count=2, member=alone).count == 2
        assert rig.part().stored == {"group:billing": 4, "name:billing": 1}


def test_a_commit_and_an_append_of_one_transaction_do_not_mix():
    """A poll that an append wakes commits in the next transaction: what it covers must be durable first."""
    rig = PumpRig()
    rig.store.hold()
    poll = commit(rig, max_wait=5)
    appended = rig.ask_append(seal([b"x"], [0]))
    rig.store.sync()
    assert appended.answer.offset == 0
    assert (poll.pending, rig.stored()) == (True, None)
    rig.store.sync()
    assert (poll.count, rig.stored()) == (1, 0)
