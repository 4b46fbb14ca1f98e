"""Messages that retention removed before they were read (K09, Q9): noted with exact bounds, never passed in silence.

By default reading goes on with the oldest message that is left. Under `Start(on_gap="fail")` a partition is *held* from
the moment at which its gap is known: nothing more of it is read. Its error is *due* once all that was fetched in front
of the gap has been handed over, so that a seek over the gap skips nothing else.

Not here: events, stopping a partition, telling the reader (`consumer.worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from tarry.errors import OffsetOutOfRange
from tarry.types import Position, TopicPartition


class Gap(NamedTuple):
    """Messages from `begin` up to `log_start` (exclusive) are gone; those up to `log_end` (exclusive) are there."""

    partition: TopicPartition
    begin: Position
    log_start: Position
    log_end: Position

    def __str__(self) -> str:
        return (
            f"{self.partition}: messages {self.begin} to {self.log_start - 1} were removed by retention before they "
            "were read"
        )

    def error(self) -> OffsetOutOfRange:
        """What a reader is told who does not want to go on by itself."""
        return self._error(f"{self}; on_gap='fail' stops the partition there")

    def refusal(self) -> OffsetOutOfRange:
        """What is said to a seek into it: the reader is where it was."""
        return self._error(
            f"{self.partition}: messages {self.begin} to {self.log_start - 1} were removed by retention; on_gap='fail' "
            "refuses to pass over them, and nothing has moved"
        )

    def _error(self, what: str) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{what}: seek to {self.log_start}, the oldest message that is left, or elsewhere",
            asked=self.begin,
            log_start=self.log_start,
            log_end=self.log_end,
        )


class Gaps:
    """The gaps that a reader has yet to be told of. `on_gap`: see `Start`."""

    def __init__(self, on_gap: Literal["resume", "fail"]) -> None:
        self._fails = on_gap == "fail"
        self._held: dict[TopicPartition, Gap] = {}

    def __contains__(self, partition: object) -> bool:
        """The partition is held."""
        return partition in self._held

    def met(self, gap: Gap) -> bool:
        """Reading has met a gap; says whether it goes on behind it."""
        if self._fails:
            self._held[gap.partition] = gap
        return not self._fails

    def forget(self, partition: TopicPartition) -> None:
        """The partition is read from elsewhere, or not by this consumer any more."""
        self._held.pop(partition, None)

    def due(self, is_buffered: Callable[[TopicPartition], bool]) -> list[Gap]:
        """The gaps in front of which nothing is left to be handed over; they are held no longer."""
        due = [gap for partition, gap in self._held.items() if not is_buffered(partition)]
        for gap in due:
            del self._held[gap.partition]
        return due
