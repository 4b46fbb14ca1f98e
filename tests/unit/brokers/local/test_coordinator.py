"""The coordinator over a memory store whose saves the test lets through, fails or crashes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from itertools import count

import msgspec
import pytest

from tarry import abc
from tarry._wire.groups import GroupState, decode_group, encode_group
from tarry.brokers.local.coordinator import RETRY_PERIOD, Coordinator, Seat
from tarry.brokers.local.probes import Member
from tarry.brokers.local.store_memory import MemoryStore
from tarry.brokers.local.view import View
from tarry.config import TopicOptions
from tarry.errors import (
    ConfigError,
    DataError,
    LogFull,
    LogUnavailable,
    NotAccepted,
    NotAMember,
    StaleAssignment,
    TarryError,
)
from tarry.types import Offset, Ownership, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import Ask, ManualClock, python_calls

TOPIC = "orders"
SESSION, REBALANCE = 30.0, 20.0


class Listener:
    """Nobody reads or appends here."""

    def committed(self, rows: Sequence[abc.Row]) -> None: ...
    def trimmed(self, trims: Sequence[abc.Trimmed]) -> None: ...
    def reopened(self, topics: Sequence[abc.TopicState]) -> None: ...
    def failed(self, error: TarryError) -> None: ...


class Store(MemoryStore):
    """Fails saves as long as `error` is set, and counts them."""

    error: TarryError | None = None
    saves = 0

    def submit(self, job: abc.Job, done: abc.JobDone) -> object:
        if isinstance(job, abc.SaveGroup):
            self.saves += 1
            if self.error is not None:
                done(self.error)
                return None
        return super().submit(job, done)

    def saved(self, name: str = "billing") -> GroupState | None:
        raw = self.groups().get(name)
        return None if raw is None else decode_group(raw)


class Rig:
    """A coordinator, what it told the readers, and a short word for each request."""

    def __init__(
        self, partitions: int = 4, *, hold: bool = False, store: Store | None = None, now: float = 0.0
    ) -> None:
        self.clock = ManualClock()
        self.clock.at = now
        self.store = Store(self.clock) if store is None else store
        self.alarms: list[float] = []
        self.lost: list[tuple[str, list[int]]] = []
        self.left: list[str] = []
        self.view = View()
        for state in self.store.open(Listener()):
            self.view.add(state)
        ids = count()
        self.coordinator = Coordinator(
            self.store,
            self.clock,
            self.view,
            readers=lambda: self,
            session_timeout=SESSION,
            rebalance_timeout=REBALANCE,
            alarm=self.alarms.append,
            new_id=lambda: f"m{next(ids)}",
        )
        self.coordinator.open()
        if store is None:
            self.topic(TOPIC, partitions)
        self.store._hold = hold

    # -- as readers

    def look_again(self, member: Member, partitions: Collection[TopicPartition]) -> None:
        assert isinstance(member, Seat)
        self.lost.append((member.id, sorted(at.partition for at in partitions)))

    def leave(self, member: Member) -> None:
        assert isinstance(member, Seat)
        self.left.append(member.id)

    # -- around

    def topic(self, name: str, partitions: int) -> None:
        def created(result: object) -> None:
            assert isinstance(result, abc.TopicState)
            self.view.add(result)
            self.coordinator.topic_changed(name)

        self.store.submit(abc.CreateTopic(name, TopicOptions(partitions=partitions)), created)

    def delete(self, name: str = TOPIC) -> None:
        self.store.submit(abc.DeleteTopic(name), lambda _: None)
        self.view.drop(name)
        self.coordinator.topic_changed(name)

    def advance(self, seconds: float, *touched: Seat) -> None:
        """Let time pass as the driver does; those who are touched are so all the time."""
        end = self.clock.at + seconds
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= end:
            self.clock.at = max(self.clock.at, deadline)
            for seat in touched:
                self.coordinator.touch(seat)
            self.coordinator.tick(self.clock.at)
        self.clock.at = end

    def sync(self) -> None:
        """Let saves through until none is out."""
        while self.store._held:
            self.store.sync()

    # -- requests

    def ask_join(self, group: str = "billing", static: str | None = None, topics: Sequence[str] = (TOPIC,)) -> Ask:
        ask = Ask()
        self.coordinator.join(ask, abc.ConsumerIdentity(group, "group", static), topics)
        return ask

    def join(self, group: str = "billing", static: str | None = None, topics: Sequence[str] = (TOPIC,)) -> Seat:
        seat, assignment = self.ask_join(group, static, topics).answer
        assert isinstance(seat, Seat)
        assert assignment is seat.shown
        return seat

    def settle(self, *seats: Seat) -> None:
        """Everybody gives up what is asked back."""
        for seat in seats:
            assert self.release(seat, *(at.partition for at in seat.shown.revoking)).answer is None

    def release(self, seat: Seat, *numbers: int) -> Ask:
        ask = Ask()
        self.coordinator.release(ask, seat, [TopicPartition(TOPIC, number) for number in numbers])
        return ask

    def leave_group(self, seat: Seat) -> Ask:
        ask = Ask()
        self.coordinator.leave(ask, seat)
        return ask

    def changed(self, seat: Seat, version: int | None = None) -> Ask:
        ask = Ask()
        self.coordinator.changed(ask, seat, seat.shown.version if version is None else version)
        return ask

    def fence(self, seat: Seat, number: int, ownership: int, *, storing: bool = False) -> None:
        self.coordinator.fence(seat, TopicPartition(TOPIC, number), Ownership(ownership), storing=storing)


def owned(seat: Seat) -> dict[int, int]:
    """Ownership by partition, as the member may know it."""
    return {at.partition: ownership for at, ownership in seat.shown.owned.items()}


def revoking(seat: Seat) -> list[int]:
    return sorted(at.partition for at in seat.shown.revoking)


class TestSavingFirst:
    @rule("S66")
    def test_a_join_is_answered_once_it_is_saved(self):
        rig = Rig(2, hold=True)
        join = rig.ask_join()
        assert join.pending
        rig.sync()
        seat, assignment = join.answer
        assert owned(seat) == {0: 1, 1: 2}
        assert (assignment.generation, assignment.topics, assignment.revoking) == (1, {TOPIC: 2}, frozenset())
        state = rig.store.saved()
        assert state is not None
        assert [(member.id, member.owned) for member in state.members] == [("m0", {1: 1, 2: 2})]

    @rule("S71")
    def test_nobody_sees_an_ownership_that_is_not_saved(self):
        rig = Rig(2)
        first, second = rig.join(), rig.join()
        news = rig.changed(second)
        rig.store._hold = True
        release = rig.release(first, 1)
        assert (owned(second), news.pending, release.pending) == ({}, True, True)
        rig.sync()
        assert owned(second) == {1: 3}
        assert news.answer is second.shown
        assert release.answer is None

    @rule("S67")
    def test_but_the_old_owner_is_fenced_at_the_decision(self):
        rig = Rig(2)
        first = rig.join()
        rig.store._hold = True
        rig.ask_join()
        assert revoking(first) == [], "it was not told yet"
        assert rig.lost == [("m0", [1])]
        with pytest.raises(StaleAssignment, match="it was asked back"):
            rig.fence(first, 1, 2)
        rig.fence(first, 1, 2, storing=True)
        rig.fence(first, 0, 1)
        rig.release(first, 1)
        with pytest.raises(StaleAssignment, match="owned by 'm1' under 3"):
            rig.fence(first, 1, 2, storing=True)

    def test_what_changes_while_a_save_is_out_goes_with_the_next_one(self):
        rig = Rig(6)
        first, second = rig.join(), rig.join()
        rig.store._hold = True
        before = rig.store.saves
        releases = [rig.release(first, number) for number in revoking(first)]
        assert (len(releases), rig.store.saves - before) == (3, 1)
        held, rig.store._held = rig.store._held, []
        rig.store._run(held[0])
        assert [release.pending for release in releases] == [False, True, True]
        assert len(owned(second)) == 1
        rig.sync()
        assert not any(release.pending for release in releases)
        assert (len(owned(second)), rig.store.saves - before) == (3, 2)

    def test_a_request_that_changes_nothing_waits_for_what_is_being_saved(self):
        rig = Rig(2)
        first = rig.join()
        rig.store._hold = True
        rig.ask_join()
        again = rig.release(first)
        assert again.pending
        rig.sync()
        assert (again.answer, rig.release(first, 77).answer) == (None, None)

    def test_any_other_version_is_answered_at_once(self):
        rig = Rig(2)
        first = rig.join()
        assert first.shown.version == 2
        for version in (0, 1, 3, 99):
            assert rig.changed(first, version).answer is first.shown
        assert rig.changed(first, 2).pending

    def test_an_assignment_that_nothing_changed_for_is_not_told_again(self):
        rig = Rig(1)
        first, second = rig.join(), rig.join()
        news = rig.changed(first), rig.changed(second)
        rig.settle(rig.join())
        assert news[0].pending
        assert news[1].pending


class TestFailedSaves:
    def full(self) -> LogFull:
        return LogFull("the disk is full")

    def test_a_join_that_cannot_be_saved_is_refused_and_changes_nothing(self):
        rig = Rig(2)
        first = rig.join()
        shown = first.shown
        rig.store.error = self.full()
        join = rig.ask_join()
        assert isinstance(join.error, LogFull)
        assert join.error is not rig.store.error, "each caller gets its own"
        assert first.shown is shown
        rig.fence(first, 1, 2)
        rig.store.error = None
        rig.advance(RETRY_PERIOD, first)
        state = rig.store.saved()
        assert state is not None
        assert [(member.id, member.revoking) for member in state.members] == [("m0", ())]
        assert (first.shown.owned, first.shown.revoking) == (shown.owned, frozenset())

    def test_what_was_decided_stays_decided_and_is_tried_again(self, caplog: pytest.LogCaptureFixture):
        rig = Rig(2)
        first, second = rig.join(), rig.join()
        rig.store.error = self.full()
        with caplog.at_level(logging.WARNING, "tarry.log"):
            assert isinstance(rig.release(first, 1).error, LogFull)
            rig.advance(10 * RETRY_PERIOD, first, second)
        assert caplog.messages == ["group 'billing' could not be saved and is tried again: the disk is full"]
        with pytest.raises(StaleAssignment):
            rig.fence(first, 1, 2)
        assert owned(second) == {}
        news = rig.changed(second)
        rig.store.error = None
        rig.advance(RETRY_PERIOD, first, second)
        assert news.answer.owned == {TopicPartition(TOPIC, 1): 3}
        before = rig.store.saves
        rig.advance(5, first, second)
        assert rig.store.saves == before

    def test_a_leave_is_done_whatever_the_store_says(self):
        rig = Rig(2)
        first, second = rig.join(), rig.join()
        rig.store.error = self.full()
        assert rig.leave_group(second).answer is None
        assert not second.open
        rig.store.error = None
        rig.advance(RETRY_PERIOD, first)
        assert owned(first) == {0: 1, 1: 2}

    def test_a_store_that_is_gone_for_good_ends_what_waits_and_is_not_asked_again(self):
        rig = Rig(2)
        first = rig.join()
        news = rig.changed(first)
        rig.view.failure = LogUnavailable("broken")
        rig.coordinator.failed(rig.view.failure)
        assert isinstance(news.error, LogUnavailable)
        before = rig.store.saves
        for ask in (rig.ask_join(), rig.release(first, 1), rig.changed(first)):
            assert isinstance(ask.error, LogUnavailable)
        assert rig.leave_group(first).answer is None
        rig.advance(100)
        assert rig.store.saves == before

    def test_what_the_file_lost_is_saved_anew(self):
        """The older state would give the same ownerships out a second time."""
        rig = Rig(2)
        first = rig.join()
        old = rig.store._groups.copy()
        second = rig.join()
        rig.settle(first)
        rig.store._groups = old
        rig.coordinator.reopened()
        state = rig.store.saved()
        assert state is not None
        assert (len(state.members), state.ownership, owned(second)) == (2, 3, {1: 3})
        before = rig.store.saves
        rig.coordinator.reopened()
        assert rig.store.saves == before


class TestMembers:
    @rule("K68")
    def test_more_members_than_partitions(self):
        rig = Rig(1)
        first, second, third = rig.join(), rig.join(), rig.join()
        assert [len(owned(seat)) for seat in (first, second, third)] == [1, 0, 0]
        news = rig.changed(second)
        rig.advance(SESSION, second, third)
        assert news.answer.owned == {TopicPartition(TOPIC, 0): 2}
        assert rig.left == ["m0"]

    @rule("C21", "S69")
    def test_an_evicted_session_is_told_so_at_once_and_by_every_request(self):
        rig = Rig(2)
        first, second = rig.join(), rig.join()
        rig.settle(first)
        news = rig.changed(first)
        rig.store._hold = True
        rig.advance(SESSION, second)
        for ask in (news, rig.changed(first), rig.changed(first, 0), rig.release(first, 0)):
            assert isinstance(ask.error, NotAMember)
            assert "not heard of for 30 s" in str(ask.error)
        with pytest.raises(NotAMember):
            rig.fence(first, 0, 1, storing=True)
        assert (rig.left, rig.lost[-1:]) == (["m0"], [("m0", [1])]), "its requests end with the session"
        leave = rig.leave_group(first)
        assert leave.pending
        rig.sync()
        assert leave.answer is None
        assert owned(second) == {1: 3, 0: 4}

    def test_only_a_touch_keeps_a_session(self):
        rig = Rig(2)
        first = rig.join()
        rig.advance(20)
        rig.coordinator.touch(first)
        rig.release(first)
        rig.advance(29)
        assert first.open
        rig.changed(first)
        rig.advance(1)
        assert not first.open

    def test_a_session_is_not_evicted_before_it_was_handed_out(self):
        rig = Rig(2, hold=True)
        join = rig.ask_join()
        rig.advance(2 * SESSION)
        rig.sync()
        seat, _ = join.answer
        assert seat.open
        rig.advance(SESSION)
        rig.sync()
        assert not seat.open

    @rule("S68")
    def test_what_is_not_given_up_in_time_is_taken(self):
        rig = Rig(2)
        first, second = rig.join(), rig.join()
        rig.advance(REBALANCE, first, second)
        assert (owned(first), revoking(first), owned(second)) == ({0: 1}, [], {1: 3})

    @rule("S69")
    def test_who_leaves_hands_over_at_once(self):
        rig = Rig(4)
        first, second = rig.join(), rig.join()
        rig.settle(first)
        news, own = rig.changed(second), rig.changed(first)
        assert rig.leave_group(first).answer is None
        assert len(news.answer.owned) == 4
        assert isinstance(own.error, NotAMember)
        assert rig.leave_group(first).answer is None, "again"
        assert (rig.left, second.shown.generation) == (["m0"], 3)

    def test_refusals_change_nothing(self):
        rig = Rig(2)
        rig.topic("users", 1)
        first = rig.join(static="east")
        before = rig.store.saves
        assert isinstance(rig.ask_join(topics=("users",)).error, NotAccepted)
        assert isinstance(rig.ask_join(static="east").error, NotAccepted)
        assert isinstance(rig.ask_join("", topics=(TOPIC,)).error, ConfigError)
        assert isinstance(rig.ask_join("other", topics=()).error, ConfigError)
        assert rig.store.saves == before
        assert list(rig.coordinator.groups()) == ["billing"]
        rig.leave_group(first)
        assert rig.ask_join(static="east", topics=("users",)).answer

    def test_a_static_name_is_free_as_soon_as_its_session_has_lapsed(self):
        """Even when the tick that would evict it is late."""
        rig = Rig(2)
        first = rig.join(static="east")
        rig.clock.at = SESSION
        assert rig.join(static="east").id == "m1"
        assert not first.open

    def test_groups_do_not_meet(self):
        rig = Rig(2)
        first, second = rig.join("billing"), rig.join("shipping")
        assert owned(first) == owned(second) == {0: 1, 1: 2}

    def test_each_change_of_deadlines_wakes_the_driver(self):
        rig = Rig(2)
        first = rig.join()
        assert rig.alarms[-1] == SESSION
        rig.advance(5, first)
        rig.join()
        assert rig.alarms[-1] == 5 + REBALANCE
        rig.store.error = LogFull("full")
        rig.release(first, 1)
        assert rig.alarms[-1] == 5 + RETRY_PERIOD
        assert rig.coordinator.next_deadline() == 5 + RETRY_PERIOD


class TestCancels:
    def test_a_withdrawn_join_is_none(self):
        rig = Rig(2)
        first = rig.join()
        rig.store._hold = True
        join = rig.ask_join()
        rig.coordinator.cancel(join)
        rig.sync()
        assert join.pending
        state = rig.store.saved()
        assert state is not None
        assert [member.id for member in state.members] == ["m0"]
        assert revoking(first) == []
        rig.fence(first, 1, 2)

    def test_a_join_that_is_withdrawn_with_its_answer_on_the_way_leaves_again(self):
        rig = Rig(2)
        join = rig.ask_join()
        seat, _ = join.answer
        rig.coordinator.cancel(join)
        assert not seat.open
        rig.coordinator.cancel(join)
        assert rig.coordinator._joins == {}

    def test_a_withdrawn_join_whose_save_fails_is_not_answered(self):
        rig = Rig(2, hold=True)
        join = rig.ask_join()
        rig.coordinator.cancel(join)
        rig.store.crash()
        assert join.pending

    def test_a_withdrawn_changed_is_forgotten(self):
        rig = Rig(2)
        first = rig.join()
        news = rig.changed(first)
        rig.coordinator.cancel(news)
        rig.join()
        assert news.pending
        assert (first.waiting, rig.coordinator._waiting) == ({}, {})


class TestTopics:
    def test_a_topic_that_comes_again_is_handed_out_again(self):
        rig = Rig(2)
        first = rig.join()
        news = rig.changed(first)
        rig.delete()
        assert (news.answer.owned, news.answer.topics) == ({}, {})
        news = rig.changed(first)
        rig.topic(TOPIC, 3)
        assert owned(first) == {0: 3, 1: 4, 2: 5}
        assert news.answer.topics == {TOPIC: 3}

    def test_a_group_without_members_sees_topics_when_somebody_joins(self):
        rig = Rig(2)
        rig.leave_group(rig.join())
        rig.delete()
        rig.topic(TOPIC, 1)
        assert owned(rig.join()) == {0: 3}

    def test_what_is_not_there_cannot_be_released(self):
        rig = Rig(2)
        first = rig.join()
        rig.delete()
        assert rig.release(first, 0, 1).answer is None


class TestRestart:
    def again(self, rig: Rig) -> Rig:
        return Rig(store=rig.store)

    def test_members_whose_process_is_gone_leave_at_once(self):
        """Nobody can resume their sessions, so their partitions are free for the next member, under new ownerships."""
        rig = Rig(4)
        rig.join(static="east")
        again = self.again(rig)
        again.coordinator.bury()
        group = again.coordinator.groups()["billing"]
        assert (group.members, group.generation) == ((), 2)
        heir = again.join(static="east")
        assert sorted(heir.shown.owned.values()) == [5, 6, 7, 8]
        again.coordinator.bury()
        assert [member.id for member in group.members] == [heir.id]

    def test_members_generations_and_ownerships_survive(self):
        rig = Rig(4)
        first, second = rig.join(static="east"), rig.join()
        rig.release(first, *revoking(first)[:1])
        again = self.again(rig)
        group = again.coordinator.groups()["billing"]
        assert group.generation == 2
        assert [(member.id, member.static, len(member.owned)) for member in group.members] == [
            ("m0", "east", 3),
            ("m1", None, 1),
        ]
        assert abc.Assignment(*group.assignment("m0")) == first.shown
        assert abc.Assignment(*group.assignment("m1")) == second.shown
        assert isinstance(again.ask_join(static="east").error, NotAccepted)

    def test_a_session_of_before_has_one_timeout_of_grace(self):
        rig = Rig(4)
        rig.join()
        again = self.again(rig)
        again.coordinator._new_id = lambda: "new"
        third = again.join()
        assert owned(third) == {}
        again.advance(SESSION - 1, third)
        assert len(owned(third)) == 2, "what was asked back was taken"
        again.advance(1, third)
        assert len(owned(third)) == 4
        assert min(owned(third).values()) > 4

    def resume(self, rig: Rig, member_id: str, group: str = "billing") -> Ask:
        ask = Ask()
        rig.coordinator.resume(ask, abc.ConsumerIdentity(group, "group"), member_id)
        return ask

    def test_a_session_of_before_goes_on(self):
        rig = Rig(4)
        first, second = rig.join(), rig.join()
        again = self.again(rig)
        seat, assignment = self.resume(again, first.id).answer
        assert (assignment, seat.shown) == (first.shown, first.shown)
        again.advance(2 * SESSION, seat)
        assert owned(seat).keys() == {0, 1, 2, 3}, "the other one did not come back"
        again.fence(seat, 0, owned(seat)[0])
        assert isinstance(self.resume(again, second.id).error, NotAMember)
        assert isinstance(self.resume(again, first.id, "another group").error, NotAMember)

    def test_a_session_goes_on_once_what_it_is_shown_is_saved(self):
        rig = Rig(2)
        first = rig.join()
        rig.store.submit(abc.DeleteTopic(TOPIC), lambda _: None)
        rig.store._hold = True
        again = self.again(rig)
        resumed = self.resume(again, first.id)
        assert resumed.pending
        again.sync()
        assert owned(resumed.answer[0]) == {}

    def test_a_session_that_goes_on_twice_is_one(self):
        rig = Rig(2)
        first = rig.join()
        again = self.again(rig)
        assert self.resume(again, first.id).answer[0] is self.resume(again, first.id).answer[0]

    def test_a_topic_that_went_in_between_is_owned_by_nobody(self):
        rig = Rig(2)
        rig.join()
        rig.store.submit(abc.DeleteTopic(TOPIC), lambda _: None)
        again = self.again(rig)
        state = again.store.saved()
        assert state is not None
        assert state.members[0].owned == {}

    def test_the_count_of_ownerships_outlives_the_last_member(self):
        """Also across a restart, as long as the group has stored offsets."""
        rig = Rig(1)
        rig.leave_group(rig.join())
        assert owned(rig.join()) == {0: 2}
        rig.leave_group(rig.join())
        part = rig.view.find(TopicPartition(TOPIC, 0))
        rig.store.submit(abc.StoreOffset(part.id, "group:billing", Offset(0)), lambda _: None)
        rig.advance(SESSION)
        assert owned(self.again(rig).join()) == {0: 3}

    def test_a_group_of_which_nothing_is_left_is_forgotten_at_the_next_open(self):
        rig = Rig(1)
        rig.leave_group(rig.join("gone"))
        rig.join("stays")
        assert sorted(rig.store.groups()) == ["gone", "stays"]
        again = self.again(rig)
        assert list(again.store.groups()) == ["stays"]
        assert list(again.coordinator.groups()) == ["stays"]

    @pytest.mark.parametrize("raw", [b"\x01\xff", b"\x02", b""])
    def test_a_damaged_state_is_named(self, raw: bytes):
        rig = Rig(1)
        rig.store._groups["billing"] = raw
        with pytest.raises(DataError, match="saved state of group 'billing' cannot be used"):
            self.again(rig)

    def test_a_state_under_another_name_is_damage(self):
        rig = Rig(1)
        rig.join()
        rig.store._groups["other"] = rig.store._groups["billing"]
        with pytest.raises(DataError, match="group 'other' cannot be used: it is the one of 'billing'"):
            self.again(rig)

    def test_closing_hands_over_what_is_not_saved_yet(self):
        rig = Rig(4)
        first, second = rig.join(), rig.join()
        news = rig.changed(first)
        rig.store._hold = True
        leaves = rig.leave_group(first), rig.leave_group(second)
        rig.coordinator.close()
        assert isinstance(news.error, NotAMember)
        rig.store.sync()  # once: then the store is closed
        assert [leave.answer for leave in leaves] == [None, None]
        state = rig.store.saved()
        assert state is not None
        assert state.members == ()

    def test_what_fails_while_a_log_closes_is_not_tried_again(self):
        rig = Rig(4)
        first, second = rig.join(), rig.join()
        rig.store._hold = True
        rig.leave_group(first)
        rig.leave_group(second)
        rig.coordinator.close()
        rig.store.crash()
        assert rig.coordinator.next_deadline() is None

    def test_closing_ends_what_waits(self):
        rig = Rig(1)
        news = rig.changed(rig.join())
        rig.coordinator.close()
        assert isinstance(news.error, LogUnavailable)


class TestLate:
    """Partitions that came while a group was there (K56)."""

    @staticmethod
    def late(seat: Seat) -> list[TopicPartition]:
        return sorted(seat.shown.late)

    @rule("K56")
    def test_a_new_partition_is_late_for_its_owner_over_a_restart_too(self):
        rig = Rig(1)
        first = rig.join(topics=(TOPIC, "u"))
        assert self.late(first) == []
        rig.topic("u", 2)
        new = [TopicPartition("u", 0), TopicPartition("u", 1)]
        assert self.late(first) == new
        again = Rig(store=rig.store)
        ask = Ask()
        again.coordinator.resume(ask, first.identity, first.id)
        assert self.late(ask.answer[0]) == new

    @rule("K56")
    def test_what_came_before_the_group_could_be_saved_is_found_when_the_log_opens(self):
        rig = Rig(1)
        first = rig.join()
        rig.store.submit(abc.GrowTopic(TOPIC, 2), lambda _: None)  # and the process was killed
        for _ in range(2):
            again = Rig(store=rig.store)
            ask = Ask()
            again.coordinator.resume(ask, first.identity, first.id)
            assert self.late(ask.answer[0]) == [TopicPartition(TOPIC, 1)]

    @rule("K56")
    def test_a_group_that_an_older_release_saved_learns_what_it_has_seen(self):
        rig = Rig(1)
        first = rig.join()
        state = rig.store.saved()
        assert state is not None
        old = msgspec.structs.replace(state, seen=None)
        rig.store.submit(abc.SaveGroup("billing", encode_group(old)), lambda _: None)
        Rig(store=rig.store)
        assert rig.store.saved() == state
        rig.store.submit(abc.GrowTopic(TOPIC, 2), lambda _: None)
        ask = Ask()
        Rig(store=rig.store).coordinator.resume(ask, first.identity, first.id)
        assert self.late(ask.answer[0]) == [TopicPartition(TOPIC, 1)]

    @rule("K56")
    def test_an_empty_group_knows_it_too(self):
        rig = Rig(1)
        rig.leave_group(rig.join(topics=(TOPIC, "u")))
        rig.topic("u", 1)
        assert self.late(rig.join(topics=(TOPIC, "u"))) == [TopicPartition("u", 0)]
        state = rig.store.saved()
        assert state is not None
        assert len(state.late) == 1

    @rule("K57")
    def test_a_topic_that_was_created_again_is_not(self):
        rig = Rig(2)
        seat = rig.join()
        rig.delete()
        rig.topic(TOPIC, 3)
        assert self.late(seat) == [TopicPartition(TOPIC, 2)]

    @rule("K56")
    def test_topics_that_a_group_reads_for_the_first_time_are_not(self):
        rig = Rig(1)
        rig.leave_group(rig.join())
        rig.topic("u", 1)
        assert self.late(rig.join(topics=(TOPIC, "u"))) == []

    @rule("K56")
    def test_a_topic_that_a_group_reads_on_keeps_them_when_the_others_change(self):
        rig = Rig(1)
        rig.leave_group(rig.join(topics=(TOPIC, "u")))
        rig.topic("u", 1)
        rig.topic("v", 1)
        assert self.late(rig.join(topics=("u", "v"))) == [TopicPartition("u", 0)]


class TestCost:
    def test_a_thousand_partitions_over_ten_members(self):
        """One save a change, and work for what moves: calls, the same on any machine."""
        rig = Rig(1000)
        with python_calls("coordinator.py") as calls:
            seats = [rig.join() for _ in range(10)]
            for number in revoking(seats[0]):
                rig.release(seats[0], number)
        assert {len(owned(seat)) for seat in seats} == {100}
        assert len(calls) <= 910 * 40

    def test_a_look_at_the_clock_costs_the_groups_that_are_due(self):
        rig = Rig(1)
        seats = [rig.join(f"group {number}") for number in range(100)]
        for seat in seats[1:]:
            rig.clock.at = 1.0
            rig.coordinator.touch(seat)
        with python_calls("groups.py") as calls:
            rig.coordinator.tick(1.0)
        assert set(calls) == {"next_deadline"}
