"""What jobs do to the tables of a log file, inside a transaction that `writer` begins and ends.

Belongs to the writer's thread. Not here: savepoints, errors of SQLite and what they prove.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tarry import abc
from tarry._wire.batch import append_refusal, encode_ends, encode_head, join
from tarry.abc import Append, Appended, Clock, Job, JobResult, PartitionId, Row, Stored, TopicState, Trimmed
from tarry.brokers.local.catalog import Catalog, Partition, Topic, state
from tarry.brokers.local.committer import Changes, Content
from tarry.brokers.local.database import number
from tarry.brokers.local.sequences import Sequences
from tarry.brokers.local.view import growth_refusal, no_topic
from tarry.errors import (
    CapacityExceeded,
    NotAccepted,
    OutcomeUnknown,
    TarryError,
    TopicExists,
    TopicNotFound,
)
from tarry.types import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Offset, Position, RecordBatch

IDENTITIES_MAX: Final = 4096
"""Identities with a stored offset per partition (design 5.6)."""

_INSERT: Final = """
    INSERT INTO batch
        (partition_id, base_offset, count, bytes, max_ts, ts_high, appended_at, head, ends, records)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_UPDATE: Final = "UPDATE partition SET log_start=?, log_end=?, size=? WHERE id=?"
_OLDEST: Final = "SELECT base_offset + count, bytes, appended_at FROM batch WHERE partition_id=? ORDER BY base_offset"
_RAISE_OFFSET: Final = """
    UPDATE stored_offset SET record_offset = max(record_offset, ?)
    WHERE partition_id = ? AND identity = ? RETURNING record_offset"""
_STORED: Final = "SELECT record_offset FROM stored_offset WHERE partition_id = ? AND identity = ?"
_SAVE_GROUP: Final = """
    INSERT INTO consumer_group VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET state = excluded.state"""
_SET_OFFSET: Final = _RAISE_OFFSET.replace("max(record_offset, ?)", "?")
_NEW_TOPIC: Final = "INSERT INTO topic (name, retention_age, retention_bytes, max_record_bytes) VALUES (?, ?, ?, ?)"
_NEW_PARTITION: Final = "INSERT INTO partition (topic_id, number, log_start, log_end, size) VALUES (?, ?, 0, 0, 0)"
_DELETE_CONTENT: Final = (
    "DELETE FROM batch WHERE partition_id=?",
    "DELETE FROM stored_offset WHERE partition_id=?",
    "DELETE FROM sequence WHERE partition_id=?",
)


@dataclass(slots=True, eq=False)
class _Staged:
    """Appends of this transaction to one partition, joined into rows when they are written."""

    part: Partition
    first: int
    batches: list[RecordBatch]


class Tables:
    """The content of a file, with a copy of the small part of it in memory that runs ahead of the open transaction.

    After a rollback the copy is wrong: throw it away and make a new one, which reads the file.
    """

    def __init__(self, db: sqlite3.Connection, path: str, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._catalog = Catalog.read(db, path)
        self._sequences = Sequences()
        self._staged: dict[PartitionId, _Staged] = {}

    def content(self) -> Content:
        """All topics as the port describes them, and all groups."""
        groups = self._db.execute("SELECT name, state FROM consumer_group ORDER BY name").fetchall()
        return Content(self._catalog.states(self._db), dict(groups))

    def foreign_change(self) -> str | None:
        """What somebody else did to the ends of the partitions; None when they are where we left them."""
        found = dict(self._db.execute("SELECT id, log_end FROM partition").fetchall())
        for part in self._catalog.partitions.values():
            end = found.pop(part.id, None)
            if end != part.log_end:
                return f"{part.name} should end at offset {part.log_end}, it " + (
                    f"ends at {end}" if end else "is gone"
                )
        return f"partitions with the ids {sorted(found)} appeared" if found else None

    # --- appends ---

    def stage(self, job: Append) -> Appended | TarryError:
        """Give an append its offsets; `flush` writes it. A repeat gets the offsets that it has (W7).

        Whatever may be wrong with it is found here, before any statement is made for it (W8).
        """
        staged = self._staged.get(job.partition) or self._begin_staging(job.partition)
        if staged is None:
            return _no_partition(job.partition)
        part = staged.part
        refusal = append_refusal(job.batch, part.topic.options.max_record_bytes, part.name)
        if refusal is not None:
            return refusal
        if job.stamp is not None:
            try:
                known = self._sequences.find_or_add(self._db, part.id, job.stamp, Offset(part.log_end))
            except OutcomeUnknown as error:
                return error
            if known is not None:
                return Appended(known, duplicate=True)
        base = Offset(part.log_end)
        part.log_end += job.batch.count
        staged.batches.append(job.batch)
        return Appended(base, duplicate=False)

    def flush(self, made: Changes) -> None:
        """Write what is staged: few large rows, whose transaction also keeps the topic's limit in bytes."""
        if not self._staged:
            return
        now_ms = self._catalog.appended_at = self._now_ms()
        for key, staged in self._staged.items():
            part, base = staged.part, staged.first
            for batch in _rows(staged.batches, _row_limit(part)):
                self._insert(part, base, batch, now_ms)
                made.rows.append(Row(key, Offset(base), batch))
                base += batch.count
            trim = self._trim(part, None)
            if trim is not None:
                made.trims.append(_apply(part, trim))
            elif staged.batches:
                self._db.execute(_UPDATE, (part.log_start, part.log_end, part.size, key))
        self._sequences.write(self._db, now_ms)
        self._staged.clear()

    def _begin_staging(self, key: PartitionId) -> _Staged | None:
        part = self._catalog.partitions.get(key)
        if part is None:
            return None
        staged = self._staged[key] = _Staged(part, part.log_end, [])
        return staged

    def _insert(self, part: Partition, base: int, batch: RecordBatch, now_ms: int) -> None:
        part.ts_high = max(part.ts_high, batch.max_ms)
        part.size += batch.size
        place = (part.id, base, batch.count, batch.size)
        times = (batch.max_ms, part.ts_high, now_ms)
        self._db.execute(_INSERT, (*place, *times, encode_head(batch), encode_ends(batch), batch.records))

    def _now_ms(self) -> int:
        """Wall time that never decreases, so that age is in the order of the rows."""
        return max(self._catalog.appended_at, self._clock.wall_ms())

    # --- every other job ---

    def perform(self, job: Job, made: Changes) -> JobResult:
        """Do anything but an append: statements first, memory last, so that an error leaves memory as it was."""
        match job:
            case abc.StoreOffset():
                return self._store_offset(job)
            case abc.SaveGroup():
                self._save_group(job, made)
                return None
            case abc.CreateTopic():
                return self._create_topic(job, made)
            case abc.GrowTopic():
                return self._grow_topic(job, made)
            case abc.DeleteTopic():
                self._delete_topic(job, made)
                return None
            case abc.Retain():
                return self._retain(made)
            case Append():
                raise AssertionError("appends are staged")

    def _store_offset(self, job: abc.StoreOffset) -> Stored:
        part = self._catalog.partitions.get(job.partition)
        if part is None:
            raise _no_partition(job.partition)
        place = (job.partition, job.identity)
        if job.expected is not None:
            self._check_expected(part, place, job.expected)
        if job.offset is None:
            self._db.execute("DELETE FROM stored_offset WHERE partition_id=? AND identity=?", place)
            return Stored(None)
        found = self._db.execute(_SET_OFFSET if job.lower else _RAISE_OFFSET, (job.offset, *place)).fetchall()
        if found:
            return Stored(Offset(found[0][0]))
        if number(self._db, "SELECT count(*) FROM stored_offset WHERE partition_id=?", part.id) >= IDENTITIES_MAX:
            raise CapacityExceeded(
                f"{part.name} keeps the stored offsets of {IDENTITIES_MAX} consumers and groups, there is no room for "
                f"{job.identity!r} (3024); delete_offset those that are no longer used"
            )
        self._db.execute("INSERT INTO stored_offset VALUES (?, ?, ?)", (*place, job.offset))
        return Stored(job.offset)

    def _check_expected(self, part: Partition, place: tuple[PartitionId, str], expected: abc.Expected) -> None:
        """Refuse a decision that was made on another stored offset than there is now (S47)."""
        row = self._db.execute(_STORED, place).fetchone()
        stored = None if row is None else Offset(row[0])
        if stored != expected.offset:
            raise NotAccepted(
                f"the stored offset of {place[1]!r} in {part.name} is {stored} and not {expected.offset} any more; "
                "nothing was applied, ask again"
            )

    def _save_group(self, job: abc.SaveGroup, made: Changes) -> None:
        if job.state is None:
            self._db.execute("DELETE FROM consumer_group WHERE name=?", (job.name,))
        else:
            self._db.execute(_SAVE_GROUP, (job.name, job.state))
        made.groups[job.name] = job.state

    def _create_topic(self, job: abc.CreateTopic, made: Changes) -> TopicState:
        if job.name in self._catalog.topics:
            raise TopicExists(f"topic {job.name!r} exists already; pass exist_ok=True to take it as it is")
        options = job.options
        row = (job.name, options.retention_age, options.retention_bytes, options.max_record_bytes)
        topic = Topic(self._db.execute(_NEW_TOPIC, row).lastrowid or 0, job.name, options)
        parts = self._new_partitions(topic, options.partitions)
        self._catalog.topics[job.name] = topic
        return self._add_partitions(topic, parts, made)

    def _grow_topic(self, job: abc.GrowTopic, made: Changes) -> TopicState:
        topic = self._catalog.topics.get(job.name)
        if topic is None:
            raise no_topic(job.name)
        refusal = growth_refusal(job, len(topic.partitions))
        if refusal is not None:
            raise refusal
        parts = self._new_partitions(topic, job.partitions)
        topic.options = topic.options.model_copy(update={"partitions": job.partitions})
        return self._add_partitions(topic, parts, made)

    def _new_partitions(self, topic: Topic, count: int) -> list[Partition]:
        """Those that a topic lacks to have so many, in the tables."""
        numbers = range(len(topic.partitions), count)
        keys = [self._db.execute(_NEW_PARTITION, (topic.id, number)).lastrowid or 0 for number in numbers]
        return [Partition(PartitionId(key), topic, number, 0, 0, 0) for number, key in zip(numbers, keys, strict=True)]

    def _add_partitions(self, topic: Topic, parts: Sequence[Partition], made: Changes) -> TopicState:
        """The same in memory; only they are new to the memory of the loop."""
        before = len(topic.partitions)
        for part in parts:
            self._catalog.add(part)
        now = state(topic, {})
        made.created.append(replace(now, partitions=now.partitions[before:]))
        return now

    def _delete_topic(self, job: abc.DeleteTopic, made: Changes) -> None:
        topic = self._catalog.topics.get(job.name)
        if topic is None:
            raise TopicNotFound(f"topic {job.name!r} does not exist")
        for part in topic.partitions:
            for statement in _DELETE_CONTENT:
                self._db.execute(statement, (part.id,))
        self._db.execute("DELETE FROM partition WHERE topic_id=?", (topic.id,))
        self._db.execute("DELETE FROM topic WHERE id=?", (topic.id,))
        self._catalog.remove(topic)
        made.deleted += [part.id for part in topic.partitions]

    def _retain(self, made: Changes) -> tuple[Trimmed, ...]:
        now_ms = self._clock.wall_ms()  # not that of a row, which a clock that was wrong for a moment may have marked
        found = [(part, self._trim(part, now_ms)) for part in self._catalog.partitions.values()]
        self._sequences.expire(self._db, now_ms)
        trims = tuple(_apply(part, trim) for part, trim in found if trim is not None)
        made.trims += trims
        return trims

    def _trim(self, part: Partition, now_ms: int | None) -> Trimmed | None:
        """Delete the oldest rows: those above the topic's limit in bytes and, with `now_ms`, those past its age.

        The newest row may go too; `log_end` stays, so no offset is ever used again (K40).
        Returns: what is left, for `_apply`; None when nothing goes.
        """
        options = part.topic.options
        limit = part.size if options.retention_bytes is None else options.retention_bytes
        age = None if now_ms is None else options.retention_age
        if part.log_start == part.log_end or (part.size <= limit and age is None):
            return None
        horizon = -1 if now_ms is None or age is None else now_ms - age * 1000
        start, size = part.log_start, part.size
        rows = self._db.execute(_OLDEST, (part.id,))
        for end, row_bytes, appended_at in rows:
            if size <= limit and appended_at > horizon:
                break
            start, size = end, size - row_bytes
        rows.close()
        if start == part.log_start:
            return None
        self._db.execute("DELETE FROM batch WHERE partition_id=? AND base_offset<?", (part.id, start))
        self._db.execute(_UPDATE, (start, part.log_end, size, part.id))
        return Trimmed(part.id, Position(start), size)


def _no_partition(partition: PartitionId) -> TopicNotFound:
    return TopicNotFound(f"the partition with history id {partition} does not exist any more; its topic was deleted")


def _apply(part: Partition, trim: Trimmed) -> Trimmed:
    part.log_start, part.size = trim.log_start, trim.size
    return trim


def _row_limit(part: Partition) -> int:
    """Bytes up to which appends are joined; rows go as a whole, so a topic with little room gets small ones."""
    room = part.topic.options.retention_bytes
    return BATCH_BYTES_MAX if room is None else min(room // 16, BATCH_BYTES_MAX)


def _rows(batches: Sequence[RecordBatch], limit: int) -> Iterator[RecordBatch]:
    """Join batches, in order, into rows of at most `limit` bytes and 1,000 records; a larger one stays alone."""
    together: list[RecordBatch] = []
    size = count = 0
    for batch in batches:
        size += batch.size
        count += batch.count
        if together and (size > limit or count > BATCH_RECORDS_MAX):
            yield join(together)
            together, size, count = [], batch.size, batch.count
        together.append(batch)
    if together:
        yield join(together)
