"""Which partitions are not read for now because the log lastingly refuses them, and until when (C109-C112).

A *lasting* refusal is one that asking again is not expected to cure. Six in a row stop a partition; a topic that is
gone stops it at once, since nothing is ambiguous about it. A stopped partition is probed after a cool-down, which
doubles with each probe that fails; a success ends the stop. A position that the log does not have waits for a seek: by
the time the log has grown to it, reading there would skip what came in between (K09).

Not here: clocks, telling anybody (`consumer.stopping`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from tarry.errors import DataError, FeatureUnavailable, OffsetOutOfRange, TarryError, TopicNotFound
from tarry.types import TopicPartition

LASTING_MAX = 6
"""So many lasting refusals in a row stop a partition (C109)."""
COOL_DOWN_MAX_S = 60.0
"""The cool-down doubles up to here; one that begins higher stays where it is."""


def is_lasting(error: TarryError) -> bool:
    """It counts towards stopping; 57, 58, 90, fences and connection faults do not (C112)."""
    return isinstance(error, (TopicNotFound, DataError, FeatureUnavailable))


@dataclass(slots=True)
class Stop:
    """One stopped partition; `due` is when it is probed, None while the probe is out."""

    error: TarryError
    due: float | None
    cool_down_s: float


class Stopped:
    """The refused partitions of one consumer.

    Args:
        cool_down_s: seconds from a stop to its first probe.
    """

    def __init__(self, cool_down_s: float) -> None:
        self._cool_down_s = cool_down_s
        self._refusals: dict[TopicPartition, int] = {}
        self._stops: dict[TopicPartition, Stop] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._stops

    def __len__(self) -> int:
        return len(self._stops)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._stops)

    @property
    def errors(self) -> dict[TopicPartition, TarryError]:
        """What is stopped, and the last error of each; one that is being probed is among them."""
        return {partition: stop.error for partition, stop in self._stops.items()}

    @property
    def next_due(self) -> float:
        """When the next probe is due; infinity: never."""
        return min((stop.due for stop in self._stops.values() if stop.due is not None), default=inf)

    def holds(self, partition: TopicPartition) -> bool:
        """Nothing may be asked about it now."""
        stop = self._stops.get(partition)
        return stop is not None and stop.due is not None

    def waits_for_seek(self, partition: TopicPartition) -> bool:
        """It is stopped, and no cool-down will end that."""
        stop = self._stops.get(partition)
        return stop is not None and stop.due == inf

    def refused(self, partition: TopicPartition, error: TarryError, now: float) -> bool:
        """A lasting refusal of this partition; whether it has just been stopped."""
        stop = self._stops.get(partition)
        if stop is not None:
            stop.error, stop.cool_down_s = error, max(stop.cool_down_s, min(2 * stop.cool_down_s, COOL_DOWN_MAX_S))
            stop.due = inf if isinstance(error, OffsetOutOfRange) else now + stop.cool_down_s
            return False
        count = self._refusals[partition] = self._refusals.get(partition, 0) + 1
        if isinstance(error, OffsetOutOfRange):
            self.halt(partition, error)
        elif isinstance(error, TopicNotFound) or count >= LASTING_MAX:
            self._stops[partition] = Stop(error, now + self._cool_down_s, self._cool_down_s)
        return partition in self._stops

    def halt(self, partition: TopicPartition, error: TarryError) -> None:
        """Stop it until it is sought or owned anew; asking again can change nothing."""
        self._stops[partition] = Stop(error, inf, self._cool_down_s)

    def probe(self, now: float) -> list[TopicPartition]:
        """Let one request through for each partition that is due."""
        due = [partition for partition, stop in self._stops.items() if stop.due is not None and stop.due <= now]
        for partition in due:
            self._stops[partition].due = None
        return due

    def succeeded(self, partition: TopicPartition) -> bool:
        """The log answered, or reading begins anew: nothing counts any more; whether it was stopped."""
        self._refusals.pop(partition, None)
        return self._stops.pop(partition, None) is not None
