"""Which partitions are not read for now because the log lastingly refuses them, and until when (C109-C112).

A *lasting* refusal is one that asking again is not expected to cure; the reader hears of the first one in a row, at
once (K52). Its partition then rests, and no other does: it is asked about again after a pause as after any refusal
(C92). Six in a row stop it; a topic that is gone stops it with the first, since nothing is ambiguous about that. A
stopped partition is probed after a cool-down, which doubles with each probe that fails; a success ends it all. A
position that the log does not have waits for a seek: by the time the log has grown to it, reading there would skip what
came in between (K09).

Not here: clocks, telling anybody (`consumer.stopping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tarry.errors import DataError, FeatureUnavailable, OffsetOutOfRange, TarryError, TopicNotFound
from tarry.types import TopicPartition

LASTING_MAX = 6
"""So many lasting refusals in a row stop a partition (C109)."""
COOL_DOWN_MAX_S = 60.0
"""The cool-down doubles up to here; one that begins higher stays where it is."""


def is_lasting(error: TarryError) -> bool:
    """It counts towards stopping; 57, 58, 90, fences and connection faults do not (C112)."""
    return isinstance(error, (TopicNotFound, DataError, FeatureUnavailable))


class Counted(NamedTuple):
    """What one more lasting refusal means.

    Args:
        is_first: of those in a row; the reader has to know.
        stops: the partition has just been stopped by it.
    """

    is_first: bool
    stops: bool


@dataclass(slots=True)
class Series:
    """Lasting refusals of one partition in a row; `pause` gives the seconds to rest after the next one.

    `cool_down_s` is None until they stop it; `due` is when it is asked about again, None while it is.
    """

    error: TarryError
    pause: Callable[[], float]
    count: int = 0
    cool_down_s: float | None = None
    due: float | None = None

    @property
    def is_stopped(self) -> bool:
        """They were too many."""
        return self.cool_down_s is not None


class Stopped:
    """The refused partitions of one consumer.

    Args:
        cool_down_s: seconds from a stop to its first probe.
        backoff: begins a series: what it returns gives the seconds to rest after each refusal (C92).
    """

    def __init__(self, cool_down_s: float, backoff: Callable[[], Callable[[], float]]) -> None:
        self._cool_down_s = cool_down_s
        self._backoff = backoff
        self._series: dict[TopicPartition, Series] = {}

    @property
    def errors(self) -> dict[TopicPartition, TarryError]:
        """What is stopped, and the last error of each; one that is being probed is among them."""
        return {partition: series.error for partition, series in self._series.items() if series.is_stopped}

    @property
    def next_due(self) -> float:
        """When the next one is to be asked about again; infinity: never."""
        return min((series.due for series in self._series.values() if series.due is not None), default=inf)

    def is_stopped(self, partition: TopicPartition) -> bool:
        """It is stopped, or being probed."""
        series = self._series.get(partition)
        return series is not None and series.is_stopped

    def is_refused(self, partition: TopicPartition) -> bool:
        """It was lastingly refused, and nothing has worked since."""
        return partition in self._series

    def holds(self, partition: TopicPartition) -> bool:
        """Nothing may be asked about it now."""
        series = self._series.get(partition)
        return series is not None and series.due is not None

    def cool_down(self, partition: TopicPartition) -> float | None:
        """Seconds from the last refusal to the next probe of what is stopped; None: only a seek ends that."""
        series = self._series[partition]
        return None if series.due == inf else series.cool_down_s

    def dead_end(self, partitions: Iterable[TopicPartition]) -> TarryError | None:
        """The error of the first of these, when each is lastingly refused: nothing is expected to come."""
        if not self._series:
            return None
        found = [self._series.get(partition) for partition in partitions]
        first = found[0] if found and all(found) else None
        return None if first is None else first.error

    def refused(self, partition: TopicPartition, error: TarryError, now: float) -> Counted:
        """A lasting refusal of this partition. What was asked before a stop, and is answered after it, adds nothing."""
        is_first = partition not in self._series
        series = self._series.setdefault(partition, Series(error, self._backoff()))
        if series.due is not None:
            return Counted(is_first=False, stops=False)
        was_stopped, series.error, series.count, pause = series.is_stopped, error, series.count + 1, series.pause()
        if was_stopped or series.count >= LASTING_MAX or isinstance(error, (TopicNotFound, OffsetOutOfRange)):
            pause = series.cool_down_s = self._longer(series.cool_down_s)
        series.due = inf if isinstance(error, OffsetOutOfRange) else now + pause
        return Counted(is_first, series.is_stopped and not was_stopped)

    def _longer(self, cool_down_s: float | None) -> float:
        if cool_down_s is None:
            return self._cool_down_s
        return max(cool_down_s, min(2 * cool_down_s, COOL_DOWN_MAX_S))

    def halt(self, partition: TopicPartition, error: TarryError) -> None:
        """Stop it until it is sought or owned anew; asking again can change nothing."""
        self._series[partition] = Series(error, self._backoff(), 1, self._cool_down_s, inf)

    def probe(self, now: float) -> list[TopicPartition]:
        """Let a request through for each partition that is due."""
        due = [at for at, series in self._series.items() if series.due is not None and series.due <= now]
        for partition in due:
            self._series[partition].due = None
        return due

    def succeeded(self, partition: TopicPartition) -> bool:
        """The log answered, or reading begins anew: nothing counts any more; whether it was stopped."""
        series = self._series.pop(partition, None)
        return series is not None and series.is_stopped
