"""What the readiness waits of one group of partitions name, and what of it changed since the last one was sent (C73).

Not here: which partitions these are, and when a wait is sent (`watching`).
"""

from __future__ import annotations

from tarry import abc
from tarry.types import TopicPartition


class Watch:
    """See the module. `number` tells it from all others of its consumer.

    What is dropped and then named where it was sent last has not changed; of each dropped one it is known where that
    was, unless it was to be named elsewhere meanwhile.
    """

    def __init__(self, number: int) -> None:
        self.targets: dict[TopicPartition, abc.FetchTarget] = {}
        self._number = number
        self._version = 0
        self._named: dict[TopicPartition, abc.FetchTarget] = {}
        self._dropped: dict[TopicPartition, abc.FetchTarget | None] = {}

    def put(self, partition: TopicPartition, target: abc.FetchTarget | None) -> None:
        """Name a partition like this, or (None) do not."""
        if self.targets.get(partition) == target:
            return
        if target is None:
            sent = self.targets.pop(partition)
            is_unsent = self._named.pop(partition, None) is not None
            self._dropped[partition] = None if is_unsent else sent
        else:
            self.targets[partition] = target
            if self._dropped.pop(partition, None) != target:
                self._named[partition] = target

    @property
    def has_more(self) -> bool:
        """What was sent last lacks something, or names it elsewhere."""
        return bool(self._named)

    def may_name(self, partition: TopicPartition) -> bool:
        """What was sent last may name a partition."""
        return partition in self.targets or partition in self._dropped

    def send(self) -> tuple[tuple[abc.FetchTarget, ...], abc.WatchChange]:
        """What the next wait names, and how that differs from the one before."""
        change = abc.WatchChange(self._number, self._version, tuple(self._named.values()), tuple(self._dropped))
        self._version += 1
        self._named.clear()
        self._dropped.clear()
        return tuple(self.targets.values()), change
