"""Warnings for the user of a consumer about what he does with it: what is skipped, not stored, or comes again.

Not here: warnings about the log (`worker`) and the group (`membership`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tarry._core.autocommit import AFTER_HANDLER
from tarry.config import AutoCommit
from tarry.consumer.reads import Reads
from tarry.consumer.saying import Saying
from tarry.instruments import Instruments
from tarry.types import Message, Otherwise, StartKind, TopicPartition

_NEXT_START: dict[Otherwise, str] = {
    "first": "begins at the first message again",
    "end": "begins at the end and skips what is there",
    "fail": "is refused with OffsetOutOfRange",
}
"""What a start comes to while nothing is stored."""


class Advice:
    """What one consumer has to say to its user."""

    def __init__(self, reads: Reads, commit: AutoCommit, instruments: Instruments) -> None:
        self._reads = reads
        self._commit = commit
        self._instruments = instruments
        self._saying = Saying(instruments)
        self._is_told_unstarted = False
        self._knows_handlers = False

    def not_started(self, message: str) -> None:
        """It is used before its start (C16, K90). Said once."""
        if not self._is_told_unstarted:
            self._is_told_unstarted = True
            self._instruments.warn("consumer", "not_started", message)

    def begins_handling(self) -> None:
        """A handler loop begins: it may be that nothing is ever stored (C98)."""
        self._knows_handlers = True
        if not self._stores_by_itself():
            what, name = (" unless the handler calls store_offset", "") if self._reads.is_named else ("", "name= and ")
            self._instruments.warn(
                "consumer",
                "never_stored",
                f"{self._reads}: nothing is stored when the handler returns, so each start {self._next_start()}{what}; "
                f"pass {name}commit=AutoCommit.after_each()",
            )

    def reads_plainly(self) -> None:
        """C49: a plain read cannot tell when the work is done. Said once, unless handlers are used too."""
        if self._commit.mode in AFTER_HANDLER and not self._knows_handlers:
            self._knows_handlers = True
            period = self._commit.period
            if period is None:
                instead = "what is finished is stored at shutdown only; use consume(), or AutoCommit.finished()"
            else:
                instead = (
                    f"what was delivered is stored every {period:g} s, ahead of the work on it, which a kill may lose; "
                    f"use AutoCommit.finished({period:g})"
                )
            self._instruments.warn(
                "consumer",
                "no_handler",
                f"{self._reads}: {self._commit} stores when the handler of consume() returns, and there is none: "
                f"{instead}",
            )

    def skipped(self, message: Message[Any], error: Exception) -> None:
        """A handler has failed, and its message counts as finished."""
        self._saying.warn(
            "handler_failed",
            f"{self._reads}: the handler failed on message {message.offset} of {message.topic_partition} "
            f"({type(error).__name__}); it counts as finished, as on_error='skip' says",
            cause=error,
            partition=message.topic_partition,
            offset=message.offset,
        )

    def stored_nothing(self) -> None:
        """It ends, was given messages, and nothing is stored: the next start knows nothing of them (C98)."""
        if not self._stores_by_itself():
            how = "call store_offset, or pass" if self._reads.is_named else "pass name= and"
            self._instruments.warn(
                "consumer",
                "nothing_stored",
                f"{self._reads}: messages were delivered but no offset was ever stored, so the next start "
                f"{self._next_start()}; {how} commit=AutoCommit.finished()",
            )

    def ended_unstored(self, partitions: Sequence[TopicPartition], limit_s: float) -> None:
        """The last stores of these did not come through."""
        self._instruments.warn(
            "consumer",
            "drain_timeout",
            f"{self._reads}: the final offsets of {', '.join(map(str, partitions))} were not stored within "
            f"{limit_s:g} s",
            partitions=tuple(partitions),
        )

    def _next_start(self) -> str:
        return _NEXT_START[self._reads.start.otherwise]

    def _stores_by_itself(self) -> bool:
        """Or else begins somewhere that does not depend on what is stored."""
        return self._commit.mode != "disabled" or self._reads.start.kind is not StartKind.NEXT
