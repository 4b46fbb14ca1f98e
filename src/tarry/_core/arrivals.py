"""Which partitions came into being while somebody was there to read them (K56).

Such a partition is *late*: what it held when it was found had been written for this reader, so with nothing stored it
is read from its first message, whatever the start rule says. A partition whose name was there before belongs to a topic
that was created again, and the start rule decides (K57).

What is late follows from what there is and what was *seen*. So a topic that grows changes nothing that has to be saved
together with it: whoever goes on with what was seen before finds the same.

Not here: positions, and what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tarry.types import HistoryId, TopicPartition


class Arrivals:
    """The partitions of one reader, or of one group."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._late: dict[HistoryId, None] = {}

    @property
    def late(self) -> tuple[HistoryId, ...]:
        """Those that came late and are still there, in the order in which they came."""
        return tuple(self._late)

    @property
    def seen(self) -> dict[str, int]:
        """Up to which number partitions of each topic have been there, deleted topics included."""
        return dict(self._seen)

    def begin(self, partitions: Mapping[HistoryId, TopicPartition], late: Iterable[HistoryId] = ()) -> None:
        """The reader begins with these; `late` are known to have come late in an earlier life of it."""
        self._seen = {}
        self._note(partitions)
        self._late = {history: None for history in late if history in partitions}

    def resume(
        self,
        partitions: Mapping[HistoryId, TopicPartition],
        late: Iterable[HistoryId],
        seen: Mapping[str, int] | None,
    ) -> bool:
        """Go on where `late` and `seen` were saved; what came since then is late too.

        Without `seen`, as an old release saved it, nothing came. Returns whether there is something new to save.
        """
        self.begin(partitions, late)
        if seen is None:
            return True
        self._seen = dict(seen)
        return self.follow(partitions)

    def follow(self, partitions: Mapping[HistoryId, TopicPartition]) -> bool:
        """These are there now; says whether some of them have come late."""
        kept = {history: None for history in self._late if history in partitions}
        come = {history: None for history, at in partitions.items() if at.partition >= self._seen.get(at.topic, 0)}
        self._late = kept | come
        self._note(partitions)
        return bool(come)

    def _note(self, partitions: Mapping[HistoryId, TopicPartition]) -> None:
        for topic, number in partitions.values():
            self._seen[topic] = max(self._seen.get(topic, 0), number + 1)
