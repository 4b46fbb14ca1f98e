"""Positions against a model in which a place is an object, and whatever was asked for an earlier object is void."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tarry._core.positions import Positions
from tarry.types import HistoryId, Offset, Ownership, Position, TopicPartition
from tests.marks import rule as proves

PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
PARTITION = st.sampled_from(PARTITIONS)
POSITION = st.integers(min_value=0, max_value=20)


@dataclass(eq=False)
class Spot:
    """One stay of a partition: begun by an assignment, a seek or a new history."""

    ownership: int
    epoch: int
    asked_from: int | None = None
    next: int | None = None
    delivered: int | None = None


class PositionsMachine(RuleBasedStateMachine):
    """Requests are made under the spot of the moment and answered at any later one."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()
        self.spots: dict[TopicPartition, Spot] = {}
        self.starts: list[tuple[TopicPartition, Spot]] = []
        self.fetches: list[tuple[TopicPartition, Spot, int]] = []
        self.epochs: set[int] = set()

    def settle(self, partition: TopicPartition, ownership: int) -> Spot:
        """Note a new spot; the machine must have given it an epoch that was never used."""
        epoch = self.positions[partition].epoch
        assert epoch not in self.epochs
        self.epochs.add(epoch)
        self.spots[partition] = Spot(ownership, epoch)
        return self.spots[partition]

    @initialize()
    def begin(self) -> None:
        self.assign(dict.fromkeys(PARTITIONS, 0))

    @rule(owned=st.dictionaries(PARTITION, st.integers(min_value=0, max_value=1)))
    def assign(self, owned: dict[TopicPartition, int]) -> None:
        self.positions.assign({partition: Ownership(number) for partition, number in owned.items()})
        kept = {p: spot for p, spot in self.spots.items() if owned.get(p) == spot.ownership}
        self.spots = kept.copy()
        for partition, ownership in owned.items():
            if partition not in kept:
                self.settle(partition, ownership)

    @rule(partition=PARTITION)
    def new_history(self, partition: TopicPartition) -> None:
        if partition in self.spots:
            self.positions.reset(partition)
            self.settle(partition, self.spots[partition].ownership)

    @rule(partition=PARTITION, at=POSITION)
    def seek(self, partition: TopicPartition, at: int) -> None:
        if partition in self.spots:
            self.positions.seek(partition, Position(at), HistoryId(1))
            spot = self.settle(partition, self.spots[partition].ownership)
            spot.asked_from = spot.next = at

    @rule()
    def ask_for_starts(self) -> None:
        for partition in self.positions.unresolved():
            self.starts.append((partition, self.spots[partition]))

    @rule(data=st.data(), at=POSITION)
    def start_is_known(self, data: st.DataObject, at: int) -> None:
        if not self.starts:
            return
        partition, spot = self.starts.pop(data.draw(st.integers(0, len(self.starts) - 1)))
        counts = self.spots.get(partition) is spot and spot.asked_from is None
        assert self.positions.resolved(partition, spot.epoch, Position(at), HistoryId(1)) == counts
        if counts:
            spot.asked_from = spot.next = at

    @rule(partition=PARTITION)
    def send_fetch(self, partition: TopicPartition) -> None:
        place, spot = self.positions.get(partition), self.spots.get(partition)
        if place is not None and spot is not None and place.fetch_at is not None:
            assert place.fetch_at == spot.asked_from  # always an explicit position, never the start rule again
            self.fetches.append((partition, spot, place.fetch_at))

    @rule(data=st.data(), count=st.integers(0, 5), is_lost=st.booleans())
    def fetch_returns(self, data: st.DataObject, count: int, is_lost: bool) -> None:
        if not self.fetches:
            return
        partition, spot, at = self.fetches.pop(data.draw(st.integers(0, len(self.fetches) - 1)))
        if is_lost:
            return  # nothing moves: the next fetch asks for the same
        counts = self.spots.get(partition) is spot
        expected = spot.asked_from if counts else None
        assert self.positions.fetched(partition, spot.epoch, Position(at + count)) == expected
        if counts:
            spot.asked_from = max(spot.asked_from or 0, at + count)

    @rule(partition=PARTITION)
    def hand_over(self, partition: TopicPartition) -> None:
        spot = self.spots.get(partition)
        if spot is not None and spot.next is not None and spot.asked_from is not None and spot.next < spot.asked_from:
            self.positions.handed(partition, Offset(spot.next))
            spot.delivered = spot.next
            spot.next += 1

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        assert set(self.positions) == set(self.spots)
        for partition, spot in self.spots.items():
            place = self.positions[partition]
            assert place.ownership == spot.ownership
            assert (place.fetch_at, place.next, place.delivered) == (spot.asked_from, spot.next, spot.delivered)
        assert self.positions.unresolved() == [p for p in self.positions if self.spots[p].asked_from is None]


@proves("C27", "C28", "C38")
def test_positions_follow_the_model() -> None:
    run_state_machine_as_test(PositionsMachine)
