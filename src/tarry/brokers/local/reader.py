"""Reads from the log file, in threads of their own: fetch, check, leave (design 5.2, 5.3).

An open cursor pins the write-ahead file, so a read takes what it needs and ends. Not here: reads from memory (`tail`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from tarry._runtime.bridge import Post
from tarry._runtime.threads import Pool, now
from tarry._wire.batch import collect, decode, decode_batch
from tarry.abc import PartitionId, Query
from tarry.brokers.local.database import Connect, FileId, explain, open_reader
from tarry.errors import DataError, LogUnavailable, TarryError, TopicNotFound
from tarry.types import Offset, Origin, Position, RecordBatch, Run, Segment, TopicPartition

READERS_MAX: Final = 4
SMALL_BYTES: Final = 16 * 1024
"""Rows up to this size are read in one go with what describes them."""

_PLACE: Final = """
    SELECT t.name, p.number, p.log_start, p.log_end
    FROM partition p JOIN topic t ON t.id = p.topic_id WHERE p.id = ?"""
_WALK: Final = """
    SELECT id, base_offset, count, head, ends, CASE WHEN bytes <= ?3 THEN records END
    FROM batch WHERE partition_id = ?1 AND base_offset >= coalesce(
        (SELECT max(base_offset) FROM batch WHERE partition_id = ?1 AND base_offset <= ?2), ?2)
    ORDER BY base_offset"""
_ROW_OF: Final = """
    SELECT base_offset, count, ts_high
    FROM batch WHERE partition_id = ? AND base_offset <= ? ORDER BY base_offset DESC LIMIT 1"""
_ROW_AT: Final = """
    SELECT base_offset, count, head, ends, records
    FROM batch WHERE partition_id = ? AND base_offset >= ? AND max_ts >= ? ORDER BY base_offset LIMIT 1"""

Result = TypeVar("Result")


class Readers:
    """At most four reads at once, first come first served (S36), each on a connection that can only read.

    Everything but the reads themselves belongs to the loop; `oldest` and `retire` may come from the writer's.

    `file`: which one it is, known once the writer has opened it and before the first read.
    """

    def __init__(self, path: str, connect: Connect, post: Post) -> None:
        self.file: FileId | None = None
        self._path = path
        self._connect = connect
        self._pool = Pool("tarry-read", READERS_MAX, post)
        self._idle: list[sqlite3.Connection] = []
        self._generation = 0
        self._running: dict[int, tuple[float, str]] = {}
        self._reads = 0

    def read(self, query: Query, done: Callable[[tuple[Run, ...] | TarryError], None]) -> None:
        """Read runs from the first record at or behind the position on, within the limits of the query."""
        self._run(
            f"a read of partition {query.partition} from offset {query.position}",
            lambda db: _read(db, self._path, query),
            done,
        )

    def find_time(
        self, partition: PartitionId, timestamp_ms: int, done: Callable[[Position | TarryError], None]
    ) -> None:
        """Find the first record at or after a time."""
        self._run(
            f"a search in partition {partition}", lambda db: _find_time(db, self._path, partition, timestamp_ms), done
        )

    def oldest(self) -> str | None:
        """The read that has run longest, for a warning; None when none runs."""
        running = sorted(self._running.copy().values())
        return f"{running[0][1]} in this process, for {now() - running[0][0]:.1f} s" if running else None

    def retire(self) -> None:
        """Close all connections, those in use when their read ends: the file is about to be opened again."""
        self._generation += 1
        while (db := self._take_idle()) is not None:
            db.close()

    def close(self, closed: Callable[[], None]) -> None:
        """Let every read answer, close all connections, end the threads, then call `closed`."""

        def end() -> None:
            self.retire()
            closed()

        self._pool.close(end)

    def _run(
        self, what: str, work: Callable[[sqlite3.Connection], Result], done: Callable[[Result | TarryError], None]
    ) -> None:
        self._reads += 1
        number = self._reads

        def call() -> Result:
            generation = self._generation
            self._running[number] = (now(), what)
            try:
                return self._read_with(self._take_idle() or self._open(), generation, work)
            finally:
                del self._running[number]

        self._pool.run(call, lambda result: done(self._ours(result) if isinstance(result, Exception) else result))

    def _read_with(
        self, db: sqlite3.Connection, generation: int, work: Callable[[sqlite3.Connection], Result]
    ) -> Result:
        """Read, and keep the connection for the next read unless it failed."""
        try:
            result = work(db)
        except sqlite3.Error:
            db.close()
            raise
        except BaseException:
            self._give_back(db, generation)
            raise
        else:
            self._give_back(db, generation)
            return result

    def _take_idle(self) -> sqlite3.Connection | None:
        """A connection that nobody uses; the last one may go to another thread while it is looked at."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _open(self) -> sqlite3.Connection:
        assert self.file is not None
        return open_reader(self._path, self.file, self._connect)

    def _give_back(self, db: sqlite3.Connection, generation: int) -> None:
        if generation == self._generation:
            self._idle.append(db)
        else:
            db.close()

    def _ours(self, error: Exception) -> TarryError:
        if isinstance(error, TarryError):
            return error
        if isinstance(error, sqlite3.Error):
            ours = explain(error, self._path)
        else:
            ours = LogUnavailable(f"reading {self._path} failed: {error!r}")
        ours.__cause__ = error
        return ours


class _Place(NamedTuple):
    """A partition as a reader's snapshot shows it."""

    id: PartitionId
    path: str
    name: TopicPartition
    log_start: int
    log_end: int

    def damaged(self, first: int, behind: int, what: object) -> DataError:
        """A row that cannot be served: file, partition and offsets."""
        return DataError(f"{self.path}: {self.name} offsets {first} to {behind - 1} are damaged: {what}")


@contextmanager
def _snapshot(db: sqlite3.Connection) -> Generator[None]:
    """All statements inside see one state of the file."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _place(db: sqlite3.Connection, path: str, partition: PartitionId) -> _Place:
    row = db.execute(_PLACE, (partition,)).fetchone()
    if row is None:
        raise TopicNotFound(f"the partition with history id {partition} does not exist any more; its topic was deleted")
    topic, number, start, end = row
    return _Place(partition, path, TopicPartition(topic, number), start, end)


def _read(db: sqlite3.Connection, path: str, query: Query) -> tuple[Run, ...]:
    with _snapshot(db):
        place = _place(db, path, query.partition)
        position = Position(max(query.position, place.log_start))
        if position >= place.log_end:
            return ()
        return collect(_runs(db, place, position, query.limit), position, query.count, query.limit)


def _runs(db: sqlite3.Connection, place: _Place, position: Position, limit: int) -> Iterator[Run]:
    """The rows from the one that holds `position` on, checked, as long as one more record of them may fit (S43).

    The records of a large row are read only when they are wanted. Damage behind readable rows ends the walk: these are
    served first, and the read that begins at the damage reports it.
    """
    rows = db.execute(_WALK, (place.id, position, SMALL_BYTES))
    expected = int(position)
    is_first = True
    for key, base, count, head, ends, records in rows:
        if is_first and base + count <= position:
            continue
        if is_first and base > position:
            raise place.damaged(position, base, "they are missing")
        if not is_first and (base != expected or int.from_bytes(ends[:4], "little") > limit):
            return
        if records is None:
            with db.blobopen("batch", "records", key, readonly=True) as blob:  # one copy less than a column
                records = blob.read()
        try:
            run = Run(Offset(base), _checked(place, base, count, head, ends, records), 0, count)
        except DataError:
            if is_first:
                raise
            return
        yield run
        limit -= run.after(position).size
        expected = run.end
        is_first = False
    if is_first:
        raise place.damaged(position, place.log_end, "they are missing")


def _find_time(db: sqlite3.Connection, path: str, partition: PartitionId, timestamp_ms: int) -> Position:
    """Halve the rows by the running maximum of their timestamps, then look into one.

    Records that retention removed still count in that maximum, so the row found is only where the search begins.
    """
    with _snapshot(db):
        place = _place(db, path, partition)
        low, high = place.log_start, place.log_end
        while low < high:
            middle = (low + high) // 2
            found = db.execute(_ROW_OF, (partition, middle)).fetchone()
            if found is None:
                raise place.damaged(low, high, "they are missing")
            base, count, ts_high = found
            low, high = (low, base) if ts_high >= timestamp_ms else (max(base + count, middle + 1), high)
        row = db.execute(_ROW_AT, (partition, low, timestamp_ms)).fetchone()
        if row is None:
            return Position(place.log_end)
        base, count, *parts = row
        run = Run(Offset(base), _checked(place, base, count, *parts), 0, count)
        messages = decode(Segment(Origin(place.name, Offset(run.end - 1)), (run,)))
        return Position(
            next((message.offset for message in messages if message.timestamp_ms >= timestamp_ms), run.base)
        )


def _checked(place: _Place, base: int, count: int, head: bytes, ends_raw: bytes, records: bytes) -> RecordBatch:
    """A row as a batch, after comparing it with its checksum.

    Raises:
        DataError: names file, partition and offsets.
    """
    try:
        batch = decode_batch(head, ends_raw, records)
    except DataError as error:
        raise place.damaged(base, base + count, error) from error
    if batch.count != count:
        raise place.damaged(base, base + count, f"the row should hold {count} records and holds {batch.count}")
    return batch
