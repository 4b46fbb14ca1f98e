"""The coordinator over a store that is slow, full, or cut off: what was shown is never taken back and given again.

The judge knows no rule of assignment. It keeps every ownership that anybody was ever shown, over all restarts.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry import abc
from tarry.brokers.local.coordinator import Seat
from tarry.errors import FencedError, LogFull, TarryError
from tarry.types import Offset, TopicPartition
from tests.marks import rule as proves
from tests.unit.brokers.local.pump_rig import Ask
from tests.unit.brokers.local.test_coordinator import TOPIC, Rig
from tests.unit.machines import HALF

PARTITIONS = 5


class CoordinatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(PARTITIONS)
        part = self.rig.view.find(TopicPartition(TOPIC, 0))
        keep = abc.StoreOffset(part.id, "group:billing", Offset(0))  # so that the group is never forgotten
        self.rig.store.submit(keep, lambda _: None)
        self.rig.store._hold = True
        self.names = 0
        self.rig.coordinator._new_id = self.new_id
        self.joins: list[Ask] = []
        self.seats: list[Seat] = []  # of this life of the log
        self.releases: list[tuple[Ask, Seat, int, int]] = []
        self.shown: dict[tuple[int, int], str] = {}  # who was shown a partition under a number, ever
        self.highest = dict.fromkeys(range(PARTITIONS), 0)  # that was ever shown

    def new_id(self) -> str:
        self.names += 1
        return f"m{self.names}"

    @property
    def open(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.open]

    def teardown(self) -> None:
        """Whatever happened: once saves go through again, everything is owned and everybody is answered."""
        self.rig.store.error = None
        self.settle()
        self.note()
        if self.open:
            owned = [at for seat in self.open for at in seat.shown.owned]
            assert sorted(owned) == [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        assert not any(ask.pending for ask, *_ in self.releases)
        assert not any(join.pending for join in self.joins)

    def settle(self) -> None:
        for _ in range(35):  # members of an earlier life have their grace
            self.rig.sync()
            self.rig.advance(1, *self.open)
            self.take_answers()
            for seat in self.open:
                self.rig.release(seat, *(at.partition for at in seat.shown.revoking))
            self.rig.sync()

    # -- requests

    @rule()
    def join(self) -> None:
        self.joins.append(self.rig.ask_join())
        self.take_answers()

    @precondition(lambda self: self.joins)
    @rule(data=st.data())
    def cancel_join(self, data: st.DataObject) -> None:
        join = data.draw(st.sampled_from(self.joins))
        self.joins.remove(join)
        self.rig.coordinator.cancel(join)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(self.open))
        self.rig.leave_group(seat)
        assert not seat.open

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_asked=st.booleans())
    def release(self, data: st.DataObject, is_asked: bool) -> None:
        seat = data.draw(st.sampled_from(self.open))
        places = sorted(seat.shown.revoking if is_asked else seat.shown.owned)
        given = data.draw(st.sampled_from([[at] for at in places] + [places])) if places else []
        before = seat.shown
        ask = self.rig.release(seat, *(at.partition for at in given))
        for at in given:
            self.releases.append((ask, seat, at.partition, before.owned[at]))
        self.take_answers()

    # -- time and the store

    @rule(data=st.data(), seconds=st.sampled_from((1.0, 10.0, 20.0)))
    def time_passes(self, data: st.DataObject, seconds: float) -> None:
        self.rig.advance(seconds, *data.draw(st.lists(st.sampled_from(self.open))) if self.open else ())
        self.take_answers()

    @rule()
    def one_save(self) -> None:
        held, self.rig.store._held = self.rig.store._held, []
        if held:
            self.rig.store._run(held[0])
            self.rig.store._held = [*held[1:], *self.rig.store._held]
        self.take_answers()

    @rule(is_full=st.booleans())
    def the_disk(self, is_full: bool) -> None:
        """Saves that are asked for from now on fail at once, or go through again."""
        self.rig.store.error = LogFull("full") if is_full else None

    @rule()
    def saves_fail(self) -> None:
        self.rig.store.crash()
        self.take_answers()

    @rule(is_closed=st.booleans())
    def restart(self, is_closed: bool) -> None:
        """The log goes, with all who were members of it; only what was saved comes back."""
        self.rig.store.error = None
        if is_closed:
            self.rig.coordinator.close()
            self.rig.store.sync()
            self.take_answers()
        self.rig.store._held = []
        self.rig.store._hold = False
        self.rig = Rig(store=self.rig.store, now=self.rig.clock.at)
        self.rig.coordinator._new_id = self.new_id
        self.rig.store._hold = True
        self.seats, self.joins, self.releases = [], [], []

    def take_answers(self) -> None:
        for join in [join for join in self.joins if not join.pending]:
            self.joins.remove(join)
            answer: Any = join.answer
            if isinstance(answer, TarryError):
                continue
            seat, assignment = answer
            assert assignment.version <= seat.shown.version
            self.seats.append(seat)
            self.check_saved(seat)

    # -- the judge

    def check_saved(self, seat: Seat) -> None:
        """What a member may know is in the store, unless something newer is."""
        state = self.rig.store.saved()
        assert state is not None
        member = next((member for member in state.members if member.id == seat.id), None)
        assert member is None or member.version >= seat.shown.version
        if member is not None and member.version == seat.shown.version:
            assert list(member.owned.values()) == list(seat.shown.owned.values())

    def note(self) -> None:
        for seat in self.seats:
            for at, number in seat.shown.owned.items():
                owner = self.shown.setdefault((at.partition, number), seat.id)
                assert owner == seat.id, "an ownership belongs to one member for ever"
                self.highest[at.partition] = max(self.highest[at.partition], number)

    @invariant()
    def what_is_shown_is_saved_and_nobody_else_s(self) -> None:
        self.note()
        for seat in self.open:
            self.check_saved(seat)

    @invariant()
    def one_member_at_most_reads_a_partition(self) -> None:
        """And nobody reads or stores under a number below one that was shown to somebody else."""
        self.note()
        for number in range(PARTITIONS):
            readers = [seat for seat in self.seats if self.passes(seat, number, storing=False)]
            storers = [seat for seat in self.seats if self.passes(seat, number, storing=True)]
            assert len(storers) <= 1
            assert all(seat in storers for seat in readers)
            for seat in storers:
                assert seat.shown.owned[TopicPartition(TOPIC, number)] == self.highest[number]

    def passes(self, seat: Seat, number: int, *, storing: bool) -> bool:
        ownership = seat.shown.owned.get(TopicPartition(TOPIC, number))
        if ownership is None:
            return False
        try:
            self.rig.fence(seat, number, ownership, storing=storing)
        except FencedError:
            return False
        return True

    @invariant()
    def what_was_given_up_is_gone_at_once(self) -> None:
        for _, seat, number, ownership in self.releases:
            with pytest.raises(FencedError):
                self.rig.fence(seat, number, ownership, storing=True)


@pytest.mark.slow
@proves("S67", "S71")
def test_what_was_shown_is_never_taken_back_and_given_again():
    run_state_machine_as_test(CoordinatorMachine, settings=HALF)
