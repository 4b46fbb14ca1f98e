"""Which partitions came into being while somebody was there to read them (K56).

Such a partition is *late*: what it held when it was found had been written for this reader, so with nothing stored it
is read from its first message, whatever the start rule says. A partition whose name was there before belongs to a topic
that was created again, and the start rule decides (K57).

Not here: positions, and what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tarry.types import HistoryId, TopicPartition


class Arrivals:
    """The partitions of one reader, or of one group."""

    def __init__(self) -> None:
        self._names: dict[TopicPartition, None] = {}
        self._late: dict[HistoryId, None] = {}

    @property
    def late(self) -> tuple[HistoryId, ...]:
        """Those that came late and are still there, in the order in which they came."""
        return tuple(self._late)

    def begin(self, partitions: Mapping[HistoryId, TopicPartition], late: Iterable[HistoryId] = ()) -> None:
        """The reader begins with these; `late` are known to have come late in an earlier life of it."""
        self._names = dict.fromkeys(partitions.values())
        self._late = {history: None for history in late if history in partitions}

    def follow(self, partitions: Mapping[HistoryId, TopicPartition]) -> bool:
        """These are there now; says whether some of them have come late."""
        kept = {history: None for history in self._late if history in partitions}
        come = {history: None for history, at in partitions.items() if at not in self._names}
        self._late = kept | come
        self._names.update(dict.fromkeys(partitions.values()))
        return bool(come)
