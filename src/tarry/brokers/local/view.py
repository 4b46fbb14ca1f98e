"""What memory knows of an embedded log: topics, partitions, their ends, stored offsets, and where a start lies (C26).

Here are also the checks of names, offsets and starts against it. Not here: requests and who waits (`pump`, `polls`),
rows (`store_*`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass

from tarry import abc
from tarry.config import TopicOptions
from tarry.errors import ConfigError, OffsetOutOfRange, TarryError, TopicNotFound
from tarry.types import (
    HistoryId,
    Offset,
    PartitionInfo,
    Position,
    Start,
    StartKind,
    TopicInfo,
    TopicPartition,
    offset_before,
)


@dataclass(slots=True, eq=False)
class Partition:
    """What memory knows of one partition.

    `visible_bytes` counts the bytes that commits made visible since the log was opened; it only grows (S18).
    """

    id: abc.PartitionId
    at: TopicPartition
    log_start: Position
    log_end: Position
    size: int
    stored: dict[str, Offset]
    visible_bytes: int = 0

    @property
    def head(self) -> Offset | None:
        """Newest visible offset."""
        return offset_before(self.log_end)

    @property
    def history(self) -> HistoryId:
        """The partition id is never reused, so it names the history (Q10)."""
        return HistoryId(self.id)

    def messages_from(self, position: Position) -> int:
        """Messages there from a position on."""
        return max(self.log_end - max(position, self.log_start), 0)

    def note(self, identity: str, stored: abc.Stored) -> None:
        """Take note of what a store left as the stored offset of an identity."""
        if stored.offset is None:
            self.stored.pop(identity, None)
        else:
            self.stored[identity] = stored.offset

    def place(self, start: Start, identity: abc.ConsumerIdentity) -> Position:
        """Where a start lies now; all kinds but a time, which only the store knows.

        Raises:
            OffsetOutOfRange: it does not exist.
        """
        if start.kind is StartKind.NEXT:
            return self._next(start, self.stored.get(identity.key or ""))
        value = start.value or 0
        if start.kind is StartKind.OFFSET and value > self.log_end:
            raise self._out_of_range(
                f"offset {value} of {self.at} lies behind the end of the log ({self.log_end}); "
                f"use an offset from {self.log_start} to {self.log_end}, or Start.end()",
                value,
            )
        places = {
            StartKind.FIRST: self.log_start,
            StartKind.END: self.log_end,
            StartKind.OFFSET: Position(value),
            StartKind.LAST: Position(max(self.log_start, self.log_end - (value or 1000))),
        }
        return places[start.kind]

    def _next(self, start: Start, stored: Offset | None) -> Position:
        if stored is not None:
            return Position(stored + 1)
        if start.otherwise == "end":
            return self.log_end
        if start.otherwise == "fail":
            raise self._out_of_range(
                f"nothing is stored for {self.at} and Start.next(otherwise='fail') was asked for; "
                "store an offset first or use Start.next(otherwise=Start.first())",
                None,
            )
        return self.log_start

    def beyond(self, position: Position) -> OffsetOutOfRange:
        """What to say of a position behind the end."""
        return self._out_of_range(
            f"position {position} of {self.at} lies behind the end of the log; messages "
            f"{self.log_start} to {self.log_end - 1} are there; seek to a valid position",
            position,
        )

    def check_offset(self, offset: Offset | None) -> None:
        """Refuse an offset that names no message; None names none and is fine."""
        if offset is not None and not 0 <= offset < self.log_end:
            raise self._out_of_range(
                f"offset {offset} of {self.at} does not exist; the log ends at {self.log_end}", offset
            )

    def _out_of_range(self, message: str, asked: int | None) -> OffsetOutOfRange:
        return OffsetOutOfRange(message, asked=asked, log_start=self.log_start, log_end=self.log_end)


@dataclass(slots=True, eq=False)
class Topic:
    """A topic and its partitions."""

    name: str
    options: TopicOptions
    partitions: list[Partition]

    def info(self) -> TopicInfo:
        """The public description."""
        parts = tuple(
            PartitionInfo(part.at.partition, part.log_start, part.log_end, part.size, part.history)
            for part in self.partitions
        )
        options = self.options
        return TopicInfo(self.name, parts, options.retention_age, options.retention_bytes, options.max_record_bytes)


class View:
    """All topics, by name, as commits left them. `failure`: the store is gone for good, and why."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.failure: TarryError | None = None
        self._partitions: dict[Hashable, Partition] = {}  # by id, which thresholds carry as a plain key

    # -- looking

    def topic(self, name: str) -> Topic:
        """A topic, or `TopicNotFound`."""
        topic = self.topics.get(name)
        if topic is None:
            raise no_topic(name)
        return topic

    def find(self, at: TopicPartition) -> Partition:
        """A partition by name, or `TopicNotFound`."""
        topic = self.topics.get(at.topic)
        if topic is None:
            raise no_topic(at.topic)
        if not 0 <= at.partition < len(topic.partitions):
            raise TopicNotFound(
                f"topic {at.topic!r} has no partition {at.partition}; it has {len(topic.partitions)}, "
                f"numbered 0 to {len(topic.partitions) - 1}"
            )
        return topic.partitions[at.partition]

    def by_id(self, key: Hashable) -> Partition | None:
        """A partition by id; None when it does not exist any more."""
        return self._partitions.get(key)

    def is_gone(self, part: Partition) -> bool:
        """Its topic was deleted, or the store read everything again and it was not there."""
        return self._partitions.get(part.id) is not part

    # -- following the store

    def add(self, state: abc.TopicState) -> None:
        """Take a topic in."""
        self.topics[state.name] = Topic(state.name, state.options, [])
        self.extend(state)

    def extend(self, state: abc.TopicState) -> bool:
        """Take in the partitions that a known topic has gained; says whether there are any."""
        topic = self.topics[state.name]
        parts = [_partition(state.name, part) for part in state.partitions[len(topic.partitions) :]]
        topic.options = state.options
        topic.partitions += parts
        self._partitions.update((part.id, part) for part in parts)
        return bool(parts)

    def drop(self, name: str) -> list[Partition]:
        """Forget a topic, if it is known; return the partitions that it had."""
        topic = self.topics.pop(name, None)
        parts = topic.partitions if topic else []
        for part in parts:
            del self._partitions[part.id]
        return parts

    def grow(self, rows: Sequence[abc.Row]) -> dict[Partition, int]:
        """Rows became visible: count them; return by how many bytes each partition grew."""
        grown: dict[Partition, int] = {}
        for row in rows:
            part = self._partitions.get(row.partition)
            if part is None:
                continue
            part.log_end = Position(row.base + row.batch.count)
            part.size += row.batch.size
            part.visible_bytes += row.batch.size
            grown[part] = grown.get(part, 0) + row.batch.size
        return grown

    def trim(self, trim: abc.Trimmed) -> Partition | None:
        """Messages went; return the partition that lost them, None when it went as a whole."""
        part = self._partitions.get(trim.partition)
        if part is not None:
            part.log_start, part.size = trim.log_start, trim.size
        return part

    def refresh(self, state: abc.TopicState) -> list[Partition] | None:
        """Take over what the store read again of a topic; None, and nothing done, when it has other partitions now.

        Those that it has gained are left to `extend`.
        """
        known = self.topics.get(state.name)
        if known is None:
            return None
        now_there = state.partitions[: len(known.partitions)]
        if [part.id for part in known.partitions] != [part.id for part in now_there]:
            return None
        for part, now in zip(known.partitions, now_there, strict=True):
            part.visible_bytes += max(now.size - part.size, 0)
            part.log_start, part.log_end, part.size = now.log_start, now.log_end, now.size
            part.stored = dict(now.stored)
        return known.partitions


def _partition(topic: str, state: abc.PartitionState) -> Partition:
    at = TopicPartition(topic, state.number)
    return Partition(state.id, at, state.log_start, state.log_end, state.size, dict(state.stored))


def no_topic(name: str) -> TopicNotFound:
    """What to say of a topic that is asked for and not there."""
    return TopicNotFound(f"topic {name!r} does not exist; create it first (create_topic)")


def growth_refusal(job: abc.GrowTopic, count: int) -> ConfigError | None:
    """Why a topic of `count` partitions cannot grow like that."""
    if job.partitions >= count:
        return None
    return ConfigError(
        f"topic {job.name!r} has {count} partitions and cannot be cut down to {job.partitions}: with a partition its "
        "messages and stored offsets would go. Create another topic with fewer, and delete this one when it is read"
    )


def own(error: TarryError) -> TarryError:
    """A copy for one caller: an exception that is raised in several tasks mixes up their tracebacks."""
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied
