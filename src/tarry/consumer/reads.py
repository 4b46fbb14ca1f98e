"""What a consumer reads, and under which name.

Not here: where a partition is read (`_core.positions`), which topics exist (`topics`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tarry import abc
from tarry.types import Start, StartKind, TopicPartition


@dataclass(frozen=True, slots=True)
class Reads:
    """What a consumer reads and under which name; checked when the consumer is made."""

    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    identity: abc.ConsumerIdentity
    start: Start

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Those of the chosen partitions too."""
        return tuple(dict.fromkeys((*self.topics, *(partition.topic for partition in self.partitions))))

    @property
    def is_named(self) -> bool:
        """Offsets can be stored for it."""
        return self.identity.name is not None

    def __str__(self) -> str:
        what = ", ".join([*self.topics, *map(str, self.partitions)])
        return f"consumer {self.identity.name!r} of {what}" if self.identity.name else f"unnamed consumer of {what}"


def fill_count(start: Start, count: int) -> Start:
    """`Start.last()` means up to one poll's `count` of the newest messages (C26)."""
    return replace(start, value=count) if start.kind is StartKind.LAST else start
