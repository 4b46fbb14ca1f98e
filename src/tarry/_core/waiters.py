"""Parked requests by the threshold at which they may be completed (S16-S31, design 5.3).

A waiter whose read stayed short needs a *fixed* number of visible messages, or of visible bytes, before another read
can help (S17). So each partition keeps two heaps of thresholds, and a commit that completes nobody is one peek at each,
however many wait. A waiter without a threshold has nothing but its deadline. What is probed and what it gets is decided
by the pump; what a wait over many partitions has gathered is in `readiness`.

Time: reads no clock. Bounds: `per_partition_max` waiters of one partition, `total_max` waiters; heaps are rebuilt when
more than half of all entries are dead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

Partition = Hashable


class Threshold(NamedTuple):
    """When to look again: the partition's count of visible messages, or of visible bytes, has reached a number."""

    partition: Partition
    messages_at: int
    bytes_at: int | None = None


@dataclass(slots=True, eq=False)
class Parked:
    """One parked waiter; `record` belongs to the caller."""

    record: object
    deadline: float
    threshold: Threshold | None
    order: int
    alive: bool = True


class Full(Exception):
    """A bound is reached: nothing was parked (S13, Q15)."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{limit} {what}")
        self.what = what
        self.limit = limit


_Entry = tuple[float, int, Parked]


@dataclass(slots=True)
class _Heaps:
    messages: list[_Entry] = field(default_factory=list[_Entry])
    bytes: list[_Entry] = field(default_factory=list[_Entry])
    living: int = 0


class Waiters:
    """All parked waiters of one pump."""

    def __init__(
        self,
        *,
        per_partition_max: int = 1024,
        total_max: int = 65_536,
    ) -> None:
        self._per_partition_max = per_partition_max
        self._total_max = total_max
        self._heaps: dict[Partition, _Heaps] = {}
        self._deadlines: list[_Entry] = []
        self._alive: dict[Parked, None] = {}
        self._entries = 0
        self._dead = 0
        self._order = 0

    def __len__(self) -> int:
        return len(self._alive)

    def count_of(self, partition: Partition) -> int:
        """Waiters of a partition."""
        heaps = self._heaps.get(partition)
        return heaps.living if heaps else 0

    def park(self, record: object, deadline: float, threshold: Threshold | None) -> Parked:
        """Park a waiter until its threshold is reached or its deadline passes.

        Raises:
            Full: a bound is reached; nothing changed.
        """
        parked = Parked(record, deadline, threshold, self._order)
        self._check_room(threshold)
        self._order += 1
        if threshold is not None:
            heaps = self._heaps.setdefault(threshold.partition, _Heaps())
            heappush(heaps.messages, (threshold.messages_at, parked.order, parked))
            if threshold.bytes_at is not None:
                heappush(heaps.bytes, (threshold.bytes_at, parked.order, parked))
            heaps.living += 1
        heappush(self._deadlines, (deadline, parked.order, parked))
        self._alive[parked] = None
        self._entries += _weight(parked)
        return parked

    def remove(self, parked: Parked) -> bool:
        """Take a waiter out; False when it was out already. Its heap entries die where they are."""
        if not parked.alive:
            return False
        parked.alive = False
        del self._alive[parked]
        if parked.threshold is not None:
            self._heaps[parked.threshold.partition].living -= 1
        self._dead += _weight(parked)
        if self._dead * 2 > self._entries:
            self._rebuild()
        return True

    def advanced(self, partition: Partition, visible: int, visible_bytes: int) -> list[Parked]:
        """A commit made a partition grow to these running counts: take out and return whom it may complete.

        Returns: the oldest first.
        """
        heaps = self._heaps.get(partition)
        if heaps is None:
            return []
        woken = [*_reached(heaps.messages, visible), *_reached(heaps.bytes, visible_bytes)]
        return self._take(woken)

    def changed(self, partition: Partition) -> list[Parked]:
        """The history of a partition changed or ended (S24): take out and return everybody who names it."""
        heaps = self._heaps.get(partition)
        if heaps is None:
            return []
        return self._take([entry[2] for entry in heaps.messages])

    def expire(self, now: float) -> list[Parked]:
        """Take out and return whoever's deadline is not after `now`, earliest first."""
        expired: list[Parked] = []
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].alive):
            parked = heappop(self._deadlines)[2]
            if self.remove(parked):
                expired.append(parked)
        return expired

    def next_deadline(self) -> float | None:
        """The earliest deadline of a living waiter."""
        while self._deadlines and not self._deadlines[0][2].alive:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def sweep(self, count: int) -> Iterator[Parked]:
        """The next window of the safety net, in rotation (S25)."""
        for parked in list(islice(self._alive, count)):
            if parked.alive:  # else it was ended by what was done about an earlier one
                self._alive[parked] = self._alive.pop(parked)
                yield parked

    def check(self) -> None:
        """Assert the invariants (tests)."""
        assert all(parked.alive for parked in self._alive)
        assert 0 <= self._dead <= self._entries
        assert self._dead * 2 <= self._entries
        wanted = [parked.threshold for parked in self._alive if parked.threshold is not None]
        by_messages = [entry for heaps in self._heaps.values() for entry in heaps.messages if entry[2].alive]
        by_bytes = [entry for heaps in self._heaps.values() for entry in heaps.bytes if entry[2].alive]
        assert len(by_messages) == len(wanted)
        assert len(by_bytes) == sum(threshold.bytes_at is not None for threshold in wanted)
        assert sum(heaps.living for heaps in self._heaps.values()) == len(wanted)

    @property
    def entries(self) -> int:
        """Heap entries, dead ones included (bounded by twice the living)."""
        return self._entries

    def _check_room(self, threshold: Threshold | None) -> None:
        if len(self._alive) >= self._total_max:
            raise Full("requests wait at this log", self._total_max)
        if threshold is not None and self.count_of(threshold.partition) >= self._per_partition_max:
            raise Full("polls wait at this partition", self._per_partition_max)

    def _take(self, woken: list[Parked]) -> list[Parked]:
        return sorted((parked for parked in woken if self.remove(parked)), key=lambda parked: parked.order)

    def _rebuild(self) -> None:
        # A partition without entries may still have polls that `_take` has popped and not yet removed.
        living = {partition: _living(heaps) for partition, heaps in self._heaps.items()}
        self._heaps = {partition: heaps for partition, heaps in living.items() if heaps.messages or heaps.living}
        self._deadlines = _alive_only(self._deadlines)
        self._entries = sum(_weight(parked) for parked in self._alive)
        self._dead = 0


def _weight(parked: Parked) -> int:
    return 1 if parked.threshold is None else 2


def _reached(heap: list[_Entry], count: int) -> list[Parked]:
    found: list[Parked] = []
    while heap and (heap[0][0] <= count or not heap[0][2].alive):
        found.append(heappop(heap)[2])
    return found


def _living(heaps: _Heaps) -> _Heaps:
    return _Heaps(_alive_only(heaps.messages), _alive_only(heaps.bytes), heaps.living)


def _alive_only(heap: list[_Entry]) -> list[_Entry]:
    kept = [entry for entry in heap if entry[2].alive]
    heapify(kept)
    return kept
