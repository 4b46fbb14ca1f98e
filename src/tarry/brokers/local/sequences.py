"""Which stamped appends the log has already: the de-duplication windows of design 5.4, kept in table `sequence`.

Runs in the writer's thread, inside its transactions. Not here: who gets which answer (`writer`).
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from collections import OrderedDict
from typing import Final

from tarry.abc import PartitionId
from tarry.errors import OutcomeUnknown
from tarry.types import Offset, ProducerStamp

WINDOW: Final = 1024
"""How many sequences below the highest one are remembered per producer and partition."""
SLACK: Final = 256
"""By how many more a window grows before what is older is removed."""
WINDOWS_MAX: Final = 512
"""Windows kept in memory; others are read again when they are needed."""
UNUSED_MS: Final = 7 * 24 * 3600 * 1000
GONE_UNUSED_MS: Final = 3600 * 1000
"""Shorter life for a window whose records are all gone by retention; still far above any delivery timeout."""

EXPIRE_MS: Final = 3600 * 1000
"""Time between two looks for unused windows while producers send; that may be all who ever comes by."""


class _Window:
    """One producer on one partition: base offset by sequence, and what this transaction added."""

    __slots__ = ("added", "bases", "high", "removed_up_to")

    def __init__(self) -> None:
        self.bases: dict[int, int] = {}
        self.high = -1
        self.removed_up_to = -1
        self.added: list[int] = []


class Sequences:
    """Remember the newest stamped appends of every (producer, partition).

    The table is the truth; memory holds the windows in use, the least recently used one goes first. After a rollback
    memory is wrong: make a new one.
    Bounds: `WINDOWS_MAX` windows of `WINDOW + SLACK` sequences in memory.
    """

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[PartitionId, bytes], _Window] = OrderedDict()
        self._touched: dict[tuple[PartitionId, bytes], _Window] = {}
        self._expire_at = 0

    def find_or_add(
        self, db: sqlite3.Connection, partition: PartitionId, stamp: ProducerStamp, base: Offset
    ) -> Offset | None:
        """The base offset of an append that came before; None when it is new, and then it is noted with `base`.

        New ones may come in any order inside the window.

        Raises:
            OutcomeUnknown: older than the window; nobody knows any more.
        """
        key = (partition, stamp.producer)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _read(db, partition, stamp.producer)
        self._windows.move_to_end(key)
        sequence = stamp.sequence
        if sequence <= window.high - WINDOW:
            raise OutcomeUnknown(
                f"sequence {sequence} of producer {stamp.producer.hex()} is older than the {WINDOW} remembered ones "
                f"(newest {window.high}); it may have been appended, read the topic to find out"
            )
        known = window.bases.get(sequence)
        if known is not None:
            return Offset(known)
        window.bases[sequence] = base
        window.high = max(window.high, sequence)
        if not window.added:
            self._touched[key] = window
        window.added.append(sequence)
        return None

    def write(self, db: sqlite3.Connection, now_ms: int) -> None:
        """Write what was added since the last call: one row per window; now and then remove the unused ones."""
        is_due = bool(self._touched) and now_ms >= self._expire_at
        for (partition, producer), window in self._touched.items():
            bases = [window.bases[sequence] for sequence in window.added]
            pairs = _encode(window.added, bases)
            row = (partition, producer, max(window.added), max(bases), now_ms, pairs)
            db.execute("INSERT INTO sequence VALUES (?, ?, ?, ?, ?, ?)", row)
            window.added = []
            if window.high - window.removed_up_to > WINDOW + SLACK:
                self._shorten(db, partition, producer, window)
        self._touched.clear()
        if is_due:
            self.expire(db, now_ms)
        while len(self._windows) > WINDOWS_MAX:
            self._windows.popitem(last=False)

    def expire(self, db: sqlite3.Connection, now_ms: int) -> None:
        """Remove the windows unused for `UNUSED_MS`, or for `GONE_UNUSED_MS` with all their records gone."""
        db.execute(
            "DELETE FROM sequence WHERE (partition_id, producer) IN ("
            " SELECT s.partition_id, s.producer FROM sequence s JOIN partition p ON p.id = s.partition_id"
            " GROUP BY s.partition_id, s.producer"
            " HAVING max(s.used_at) < ? OR (max(s.used_at) < ? AND max(s.last_base) < p.log_start))",
            (now_ms - UNUSED_MS, now_ms - GONE_UNUSED_MS),
        )
        self._windows.clear()
        self._expire_at = now_ms + EXPIRE_MS

    def _shorten(self, db: sqlite3.Connection, partition: PartitionId, producer: bytes, window: _Window) -> None:
        oldest = window.high - WINDOW
        window.removed_up_to = oldest
        window.bases = {sequence: base for sequence, base in window.bases.items() if sequence > oldest}
        db.execute(
            "DELETE FROM sequence WHERE partition_id=? AND producer=? AND last<=?", (partition, producer, oldest)
        )


def _read(db: sqlite3.Connection, partition: PartitionId, producer: bytes) -> _Window:
    window = _Window()
    rows = db.execute(
        "SELECT last, pairs FROM sequence WHERE partition_id=? AND producer=? ORDER BY last", (partition, producer)
    )
    for last, pairs in rows:
        window.high = int(last)
        window.bases.update(_decode(pairs))
    window.removed_up_to = window.high - WINDOW - SLACK
    return window


def _encode(sequences: list[int], bases: list[int]) -> bytes:
    pairs = array("q")
    for pair in zip(sequences, bases, strict=True):
        pairs.extend(pair)
    return _little(pairs).tobytes()


def _decode(raw: bytes) -> zip[tuple[int, int]]:
    pairs = array("q")
    pairs.frombytes(raw)
    numbers = iter(_little(pairs))
    return zip(numbers, numbers, strict=True)


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
