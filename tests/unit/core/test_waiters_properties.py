"""The waiters against a list that is searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry._core.waiters import Full, Parked, Partition, Threshold, Waiters
from tests.marks import rule as proves
from tests.unit.machines import HALF

PARTITIONS: tuple[Partition, ...] = ("p", "q", "r")
PER_PARTITION_MAX, TOTAL_MAX = 4, 7


@dataclass(eq=False)
class Entry:
    """One waiter of the model."""

    parked: Parked
    deadline: float
    threshold: Threshold | None

    def names(self, partition: Partition) -> bool:
        return self.threshold is not None and self.threshold.partition == partition


class WaitersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.waiters = Waiters(per_partition_max=PER_PARTITION_MAX, total_max=TOTAL_MAX)
        self.parked: list[Entry] = []  # in the order of parking
        self.rotation: list[Entry] = []  # in the order of the sweep
        self.messages = dict.fromkeys(PARTITIONS, 0)
        self.bytes = dict.fromkeys(PARTITIONS, 0)
        self.now = 0.0
        self.number = 0

    def refusal(self, threshold: Threshold | None) -> str | None:
        if len(self.parked) >= TOTAL_MAX:
            return "requests wait"
        if threshold is None:
            return None
        polls = [entry for entry in self.parked if entry.names(threshold.partition)]
        return "polls wait" if len(polls) >= PER_PARTITION_MAX else None

    @rule(
        names=st.none()
        | st.tuples(
            st.sampled_from(PARTITIONS),
            st.integers(min_value=1, max_value=6),
            st.none() | st.integers(min_value=1, max_value=6),
        ),
        wait=st.integers(min_value=0, max_value=5),
    )
    def park(self, names: tuple[Partition, int, int | None] | None, wait: int) -> None:
        threshold = None
        if names is not None:
            partition, messages, size = names
            bytes_at = None if size is None else self.bytes[partition] + size
            threshold = Threshold(partition, self.messages[partition] + messages, bytes_at)
        refused = self.refusal(threshold)
        if refused:
            before = (len(self.waiters), self.waiters.entries)
            with pytest.raises(Full, match=refused):
                self.waiters.park(self.number, self.now + wait, threshold)
            assert (len(self.waiters), self.waiters.entries) == before
            return
        self.number += 1
        parked = self.waiters.park(self.number, self.now + wait, threshold)
        assert parked.record == self.number
        entry = Entry(parked, self.now + wait, threshold)
        self.parked.append(entry)
        self.rotation.append(entry)

    @rule(partition=st.sampled_from(PARTITIONS), messages=st.integers(min_value=1, max_value=6))
    def park_poll(self, partition: Partition, messages: int) -> None:
        self.park((partition, messages, messages + 2), 5)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.parked))
        assert self.waiters.remove(entry.parked)
        assert not self.waiters.remove(entry.parked)
        self.drop([entry])

    @rule(
        partition=st.sampled_from(PARTITIONS),
        messages=st.integers(min_value=0, max_value=6),
        size=st.integers(min_value=0, max_value=3),
    )
    def advance(self, partition: Partition, messages: int, size: int) -> None:
        self.messages[partition] += messages
        self.bytes[partition] += size
        woken = [entry for entry in self.parked if self.is_reached(entry, partition)]
        found = self.waiters.advanced(partition, self.messages[partition], self.bytes[partition])
        assert found == [entry.parked for entry in woken]
        self.drop(woken)

    @rule(partition=st.sampled_from(PARTITIONS), size=st.integers(min_value=1, max_value=6))
    def advance_by_bytes(self, partition: Partition, size: int) -> None:
        self.advance(partition, 0, size)

    def is_reached(self, entry: Entry, partition: Partition) -> bool:
        threshold = entry.threshold
        if threshold is None or threshold.partition != partition:
            return False
        has_bytes = threshold.bytes_at is not None and self.bytes[partition] >= threshold.bytes_at
        return self.messages[partition] >= threshold.messages_at or has_bytes

    @rule(partition=st.sampled_from(PARTITIONS))
    def change(self, partition: Partition) -> None:
        woken = [entry for entry in self.parked if entry.names(partition)]
        assert self.waiters.changed(partition) == [entry.parked for entry in woken]
        self.drop(woken)

    @rule(seconds=st.integers(min_value=0, max_value=3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        expired = [entry for entry in self.parked if entry.deadline <= self.now]
        expired.sort(key=lambda entry: entry.deadline)  # stable: the older one first
        assert self.waiters.expire(self.now) == [entry.parked for entry in expired]
        self.drop(expired)

    @rule(window_max=st.integers(min_value=1, max_value=5))
    def sweep(self, window_max: int) -> None:
        window, rest = self.rotation[:window_max], self.rotation[window_max:]
        assert list(self.waiters.sweep(window_max)) == [entry.parked for entry in window]
        self.rotation = rest + window

    def drop(self, entries: list[Entry]) -> None:
        self.parked = [entry for entry in self.parked if entry not in entries]
        self.rotation = [entry for entry in self.rotation if entry not in entries]

    @invariant()
    def agrees(self) -> None:
        self.waiters.check()
        assert len(self.waiters) == len(self.parked)
        assert self.waiters.next_deadline() == min((entry.deadline for entry in self.parked), default=None)
        for partition in PARTITIONS:
            polls = [entry for entry in self.parked if entry.names(partition)]
            assert self.waiters.count_of(partition) == len(polls)

    @invariant()
    def is_bounded(self) -> None:
        living = sum(1 if entry.threshold is None else 2 for entry in self.parked)
        assert living <= self.waiters.entries <= max(2 * living, 1)
        heaps = self.waiters._heaps.values()
        assert sum(len(heap.messages) for heap in heaps) + len(self.waiters._deadlines) <= self.waiters.entries
        assert all(len(heap.bytes) <= len(heap.messages) + self.waiters.entries for heap in heaps)


@pytest.mark.slow
@proves("S17", "S24", "S25")
def test_agrees_with_a_list():
    run_state_machine_as_test(WaitersMachine, settings=HALF)
