"""The hand against a model that notes each message: given, finished, or back where it came from."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry._core.hand import Hand
from tarry._wire.batch import seal
from tarry.types import Offset, Origin, Position, Run, Segment, TopicPartition
from tests.marks import rule as proves
from tests.unit.machines import HALF

PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
PARTITION = st.sampled_from(PARTITIONS)
COUNT = st.integers(min_value=1, max_value=5)


class HandMachine(RuleBasedStateMachine):
    """Messages lie in a queue for each partition; what is held, and what is stored by hand, changes at will."""

    def __init__(self) -> None:
        super().__init__()
        self.hand = Hand(self.from_where)
        self.queues = {partition: list(range(40)) for partition in PARTITIONS}
        self.held = set(PARTITIONS)
        self.stored = dict.fromkeys(PARTITIONS, -1)
        self.in_hand: dict[TopicPartition, list[int]] = {}
        self.coming: list[int] = []  # of the list that is given
        self.listed: TopicPartition | None = None
        self.is_list_over = False
        self.has_failed = False
        self.given_up: set[TopicPartition] = set()
        self.given = 0

    def from_where(self, origin: Origin) -> Position | None:
        return Position(self.stored[origin.partition] + 1) if origin.partition in self.held else None

    def take(self, partition: TopicPartition, count: int) -> Segment:
        offsets, self.queues[partition] = self.queues[partition][:count], self.queues[partition][count:]
        batch = seal([b"-"] * len(offsets), [0] * len(offsets))
        return Segment(Origin(partition, Offset(99)), (Run(Offset(offsets[0]), batch, 0, len(offsets)),))

    def next_message(self) -> None:
        assert self.listed is not None
        self.in_hand = {self.listed: [self.coming.pop(0)]}
        self.given += 1

    def empty(self) -> None:
        self.in_hand, self.coming, self.listed = {}, [], None
        self.is_list_over = self.has_failed = False

    @rule(partition=PARTITION, count=COUNT)
    def read(self, partition: TopicPartition, count: int) -> None:
        self.settle()
        if len(self.queues[partition]) >= count:
            segment = self.take(partition, count)
            self.coming, self.listed = list(range(segment.first, segment.last + 1)), partition
            coming = self.coming
            self.hand.give_list(segment, lambda: len(coming))
            self.next_message()

    @precondition(lambda self: self.coming and not self.is_list_over)
    @rule()
    def read_on(self) -> None:
        self.next_message()

    @rule(wanted=st.lists(st.tuples(PARTITION, COUNT), max_size=4))
    def poll(self, wanted: list[tuple[TopicPartition, int]]) -> None:
        self.settle()
        for partition, count in wanted:
            if len(self.queues[partition]) >= count:
                segment = self.take(partition, count)
                self.hand.give_batch(segment)
                self.in_hand.setdefault(partition, []).extend(range(segment.first, segment.last + 1))
                self.given += count

    @rule()
    def fail(self) -> None:
        self.hand.fail()
        self.has_failed = self.is_list_over = self.listed is not None

    def settle(self) -> None:
        finished = {partition: offsets[-1] for partition, offsets in self.in_hand.items()}
        back = [] if self.is_list_over and not self.has_failed else list(self.coming)
        if self.comes_again():
            assert self.listed is not None
            back = [finished.pop(self.listed), *self.coming]
        settled = self.hand.settle()
        assert {reached.origin.partition: reached.delivered for reached in settled.reached} == finished
        assert all(reached.delivered == reached.finished for reached in settled.reached)
        rest = settled.rest
        assert ([] if rest is None else list(range(rest.first, rest.last + 1))) == back
        if self.listed is not None:
            self.queues[self.listed] = back + self.queues[self.listed]
        self.empty()
        self.given_up = set()

    def comes_again(self) -> bool:
        if not self.has_failed or self.listed is None:
            return False
        if self.listed not in self.held:
            return self.listed not in self.given_up
        return self.in_hand[self.listed][0] > self.stored[self.listed]

    @rule(partitions=st.sets(PARTITION))
    def give_up(self, partitions: set[TopicPartition]) -> None:
        gone = self.in_hand.keys() & partitions & self.held
        self.given_up |= gone
        assert self.hand.give_up(partitions) == (self.listed in gone)
        if self.listed in gone:
            self.stop_list()

    @rule(partition=PARTITION)
    def pause(self, partition: TopicPartition) -> None:
        rest = self.hand.cut(partition)
        expected = self.coming if partition == self.listed else []
        assert ([] if rest is None else list(range(rest.first, rest.last + 1))) == expected
        if partition == self.listed:
            self.stop_list()

    def stop_list(self) -> None:
        """Nothing more of it comes from here, what is left is read again; the cursor stands still where it is."""
        assert self.listed is not None
        self.queues[self.listed] = self.coming + self.queues[self.listed]
        self.coming, self.is_list_over = [], True

    @rule(partition=PARTITION)
    def seek(self, partition: TopicPartition) -> None:
        assert self.hand.drop(partition) == (self.listed == partition)
        if self.listed == partition:
            self.empty()
        self.in_hand.pop(partition, None)

    @rule(partition=PARTITION, is_held=st.booleans())
    def rebalance(self, partition: TopicPartition, is_held: bool) -> None:
        (self.held.add if is_held else self.held.discard)(partition)

    @rule(partition=PARTITION)
    def store(self, partition: TopicPartition) -> None:
        if self.in_hand.get(partition):
            self.stored[partition] = max(self.stored[partition], self.in_hand[partition][0])

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        mine = {
            at: [one for one in self.in_hand[at] if one > self.stored[at]] for at in self.in_hand if at in self.held
        }
        mine = {partition: offsets for partition, offsets in mine.items() if offsets}
        assert self.hand.unfinished() == {partition: len(offsets) for partition, offsets in mine.items()}
        working = {} if self.has_failed else {partition: offsets[0] for partition, offsets in mine.items()}
        assert self.hand.in_work() == working
        assert self.hand.messages == self.given
        rest = self.hand.rest
        assert ([] if rest is None else list(range(rest.first, rest.last + 1))) == self.coming
        lost = {at for at in self.in_hand if at not in self.held and at not in self.given_up}
        assert {span.origin.partition for span in self.hand.lost([])} == lost


@proves("C24", "C36", "K05")
def test_the_hand_follows_the_model() -> None:
    run_state_machine_as_test(HandMachine, settings=HALF)
