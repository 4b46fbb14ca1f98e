"""Topics and partitions as the writer remembers them: a copy of the tables, read again whenever it may be wrong.

Belongs to the writer's thread. Not here: transactions (`writer`), what the loop remembers (`tail`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tarry.abc import PartitionId, PartitionState, TopicState
from tarry.config import TopicOptions
from tarry.errors import DataError
from tarry.types import Offset, Position, TopicPartition

_OLDEST: Final = "SELECT base_offset FROM batch WHERE partition_id=? ORDER BY base_offset LIMIT 1"
_NEWEST: Final = """
    SELECT base_offset + count, ts_high FROM batch WHERE partition_id = ? ORDER BY base_offset DESC LIMIT 1"""


@dataclass(slots=True, eq=False)
class Topic:
    """A topic and its partitions, by number."""

    id: int
    name: str
    options: TopicOptions
    partitions: list[Partition] = field(default_factory=list["Partition"])


@dataclass(slots=True, eq=False)
class Partition:
    """A partition; `ts_high` is the highest timestamp it ever held, as far as its rows tell."""

    id: PartitionId
    topic: Topic
    number: int
    log_start: int
    log_end: int
    size: int
    ts_high: int = -(1 << 63)

    @property
    def name(self) -> TopicPartition:
        """Topic and number."""
        return TopicPartition(self.topic.name, self.number)


class Catalog:
    """All topics and partitions of a file, and the time of its newest row."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[PartitionId, Partition] = {}
        self.appended_at = 0

    @classmethod
    def read(cls, db: sqlite3.Connection, path: str) -> Catalog:
        """Read it from the file.

        Raises:
            DataError: the tables contradict each other.
        """
        catalog = cls()
        by_id: dict[int, Topic] = {}
        for key, name, age, size, largest, count in db.execute(
            "SELECT t.id, t.name, t.retention_age, t.retention_bytes, t.max_record_bytes, count(*)"
            " FROM topic t JOIN partition p ON p.topic_id = t.id GROUP BY t.id ORDER BY t.name"
        ):
            options = TopicOptions(partitions=count, retention_age=age, retention_bytes=size, max_record_bytes=largest)
            by_id[key] = catalog.topics[name] = Topic(key, name, options)
        for key, topic, number, start, end, size in db.execute(
            "SELECT id, topic_id, number, log_start, log_end, size FROM partition ORDER BY topic_id, number"
        ):
            catalog.add(Partition(PartitionId(key), by_id[topic], number, start, end, size))
        for partition in catalog.partitions.values():
            _check(db, path, partition)
        newest = db.execute("SELECT appended_at FROM batch ORDER BY id DESC LIMIT 1").fetchone()
        catalog.appended_at = newest[0] if newest else 0
        return catalog

    def add(self, partition: Partition) -> None:
        """Add a partition to its topic."""
        partition.topic.partitions.append(partition)
        self.partitions[partition.id] = partition

    def remove(self, topic: Topic) -> None:
        """Remove a topic with its partitions."""
        del self.topics[topic.name]
        for partition in topic.partitions:
            del self.partitions[partition.id]

    def states(self, db: sqlite3.Connection) -> list[TopicState]:
        """Everything as the port describes it, stored offsets included."""
        stored: dict[PartitionId, dict[str, Offset]] = {}
        for partition, identity, offset in db.execute(
            "SELECT partition_id, identity, record_offset FROM stored_offset"
        ):
            stored.setdefault(partition, {})[identity] = Offset(offset)
        return [state(topic, stored) for topic in self.topics.values()]


def state(topic: Topic, stored: dict[PartitionId, dict[str, Offset]]) -> TopicState:
    """One topic as the port describes it."""
    return TopicState(topic.name, topic.options, tuple(_partition_states(topic.partitions, stored)))


def _partition_states(
    partitions: Iterable[Partition], stored: dict[PartitionId, dict[str, Offset]]
) -> Iterable[PartitionState]:
    for part in partitions:
        yield PartitionState(
            part.id, part.number, Position(part.log_start), Position(part.log_end), part.size, stored.get(part.id, {})
        )


def _check(db: sqlite3.Connection, path: str, partition: Partition) -> None:
    """The rows of a partition begin and end where its entry says; takes `ts_high` from the newest."""
    oldest = db.execute(_OLDEST, (partition.id,)).fetchone()
    newest = db.execute(_NEWEST, (partition.id,)).fetchone()
    start, end = (oldest[0], newest[0]) if oldest else (partition.log_end, partition.log_end)
    if (start, end) != (partition.log_start, partition.log_end):
        raise DataError(
            f"{path} is damaged: {partition.name} should hold offsets {partition.log_start} up to {partition.log_end} "
            f"(exclusive), its rows hold {start} up to {end}; restore the file from a copy"
        )
    if newest:
        partition.ts_high = newest[1]
