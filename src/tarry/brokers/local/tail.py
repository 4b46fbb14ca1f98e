"""What the loop knows of a store's partitions: where they begin and end, and their newest rows (design 5.3).

Belongs to the loop; changes only after a commit. Not here: parked polls (`pump`), reads from the disk (`reader`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from tarry._wire.batch import collect
from tarry.abc import PartitionId, PartitionState, Query, Row, Selection, Trimmed
from tarry.types import Offset, Position, RecordBatch, Run

ROW_OVERHEAD: Final = 400
"""Bytes that a row costs in memory besides its records."""


def _cost(batch: RecordBatch) -> int:
    return batch.size + 4 * batch.count + ROW_OVERHEAD


class _PartitionTail:
    """The resident rows of one partition, oldest first; `starts` counts bytes from an arbitrary zero.

    Rows leave at the front: `head` is the first one that counts, and what is before it is cut off when it is the
    larger half.
    """

    __slots__ = ("bases", "bytes_end", "head", "log_end", "log_start", "rows", "size", "starts")

    def __init__(self, state: PartitionState) -> None:
        self.log_start = int(state.log_start)
        self.log_end = int(state.log_end)
        self.size = state.size
        self.rows: list[RecordBatch | None] = []
        self.bases: list[int] = []
        self.starts: list[int] = []
        self.bytes_end = 0
        self.head = 0

    @property
    def first(self) -> int:
        """Offset of the first resident record; the log end without one."""
        return self.bases[self.head] if self.head < len(self.bases) else self.log_end

    def push(self, base: int, batch: RecordBatch) -> None:
        self.rows.append(batch)
        self.bases.append(base)
        self.starts.append(self.bytes_end)
        self.bytes_end += batch.size
        self.log_end = base + batch.count
        self.size += batch.size

    def pop(self) -> RecordBatch:
        """Let the oldest row go."""
        batch = self.rows[self.head]
        assert batch is not None
        self.rows[self.head] = None
        self.head += 1
        if self.head * 2 > len(self.rows):
            del self.rows[: self.head], self.bases[: self.head], self.starts[: self.head]
            self.head = 0
        return batch

    def index_of(self, position: int) -> int:
        """The resident row that holds `position`, which is at or behind `first` and in front of the end."""
        return bisect_right(self.bases, position, self.head) - 1

    def runs(self, index: int) -> Iterator[Run]:
        """Resident rows from `index` on."""
        for place in range(index, len(self.rows)):
            batch = self.rows[place]
            assert batch is not None
            yield Run(Offset(self.bases[place]), batch, 0, batch.count)

    def bytes_after(self, position: int) -> int:
        """Bytes from `position` to the end; exact from `first` on, in front of it by the average size of a record."""
        if position >= self.log_end:
            return 0
        first = self.first
        if position >= first:
            index = self.index_of(position)
            batch = self.rows[index]
            assert batch is not None
            return self.bytes_end - self.starts[index] - batch.start_of(position - self.bases[index])
        resident = self.bytes_end - self.starts[self.head] if first < self.log_end else 0
        elsewhere, records = self.size - resident, first - self.log_start
        return resident + elsewhere * (first - max(position, self.log_start)) // max(records, 1)


class ResidentTail:
    """Keep the newest rows of all partitions in memory, under one byte budget; the oldest row leaves first.

    A poll at the end of a log, the usual case, is answered from here without any I/O.
    Bounds: `limit` bytes, bookkeeping included.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._partitions: dict[PartitionId, _PartitionTail] = {}
        self._order: OrderedDict[tuple[PartitionId, int], None] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    def add(self, state: PartitionState) -> None:
        """Take a partition in, nothing of it resident yet."""
        self._partitions[state.id] = _PartitionTail(state)

    def replace(self, states: list[PartitionState]) -> None:
        """Take over what a reopened file holds; rows stay where the partition is as it was known."""
        for key in self._partitions.keys() - {state.id for state in states}:
            self.remove(key)
        for state in states:
            known = self._partitions.get(state.id)
            if known is None or (known.log_start, known.log_end) != (state.log_start, state.log_end):
                self.remove(state.id)
                self.add(state)

    def remove(self, partition: PartitionId) -> None:
        """Drop a partition; unknown ones are fine."""
        tail = self._partitions.pop(partition, None)
        while tail is not None and tail.head < len(tail.rows):
            self._drop_oldest(partition, tail)

    def push(self, row: Row) -> None:
        """A committed row; the oldest rows of all partitions make room."""
        tail = self._partitions[row.partition]
        tail.push(row.base, row.batch)
        self._order[row.partition, row.base] = None
        self._used += _cost(row.batch)
        while self._used > self._limit:
            partition, _ = next(iter(self._order))
            self._drop_oldest(partition, self._partitions[partition])

    def trim(self, trim: Trimmed) -> None:
        """Records below a new log start are gone."""
        tail = self._partitions[trim.partition]
        tail.log_start, tail.size = trim.log_start, trim.size
        while tail.head < len(tail.rows) and tail.first < trim.log_start:
            self._drop_oldest(trim.partition, tail)

    def log_end(self, partition: PartitionId) -> Position | None:
        """Position behind the newest visible record; None for an unknown partition."""
        tail = self._partitions.get(partition)
        return None if tail is None else Position(tail.log_end)

    def read(self, query: Query) -> Selection | None:
        """Answer a query when all it may want is resident; None when the disk is needed."""
        tail = self._partitions.get(query.partition)
        if tail is None:
            return None
        position = max(query.position, tail.log_start)
        if position >= tail.log_end:
            return Selection(())
        if position < tail.first:
            return None
        return Selection(collect(tail.runs(tail.index_of(position)), Position(position), query.count, query.limit))

    def bytes_between(self, partition: PartitionId, position: Position) -> int:
        """Bytes from `position` to the end: exact from the first resident record on, else partly estimated."""
        tail = self._partitions.get(partition)
        return 0 if tail is None else tail.bytes_after(position)

    def _drop_oldest(self, partition: PartitionId, tail: _PartitionTail) -> None:
        del self._order[partition, tail.first]
        self._used -= _cost(tail.pop())
