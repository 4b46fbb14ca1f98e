"""Which offset is stored, and when (C40, C41, C51-C53; design 1.2, 1.3).

Per partition four marks: what was delivered, what is finished, what the user stored himself, what the log holds. The modes
differ in which mark they store while running; at the end every automatic mode brings the stored offset to the last *finished*
message, down too, but never below what the user stored himself. `disabled` is never touched (I1, K43).

Not here: requests and timers (`consumer.storing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tarry.types import Offset, TopicPartition, moves

Mode = Literal["disabled", "finished", "interval"]


class Store(NamedTuple):
    """A store to send: `offset` None deletes the stored offset."""

    partition: TopicPartition
    offset: Offset | None
    lower: bool


@dataclass(slots=True)
class Marks:
    """The marks of one partition; None: nothing yet.

    `floor` is what was stored before this consumer stored anything by itself. `sought`: a seek happened, so the next store
    may go down (design 1.3).
    """

    floor: Offset | None = None
    stored: Offset | None = None
    delivered: Offset | None = None
    finished: Offset | None = None
    explicit: Offset | None = None
    automatic: bool = False
    sought: bool = False


class Commits:
    """The marks of one consumer."""

    def __init__(self, mode: Mode) -> None:
        self._mode: Mode = mode
        self._marks: dict[TopicPartition, Marks] = {}

    def __getitem__(self, partition: TopicPartition) -> Marks:
        return self._marks.setdefault(partition, Marks())

    def found(self, partition: TopicPartition, stored: Offset | None) -> None:
        """What the log held when the partition was taken over: the floor of a rewind (Q4)."""
        self._marks[partition] = Marks(floor=stored, stored=stored)

    def delivered(self, partition: TopicPartition, offset: Offset) -> None:
        """A message, or everything up to it, was handed over."""
        self[partition].delivered = offset

    def finished(self, partition: TopicPartition, offset: Offset) -> None:
        """Everything handed over up to `offset` is finished."""
        self[partition].finished = offset

    def sought(self, partition: TopicPartition) -> None:
        """The position was set by hand: what was delivered and finished before does not count any more."""
        marks = self[partition]
        marks.delivered = marks.finished = None
        marks.sought = True

    def asked(self, partition: TopicPartition, offset: Offset) -> Store | None:
        """The user stores `offset`: what to send, None when it changes nothing (C52)."""
        marks = self[partition]
        if not moves(marks.stored, offset, lower=marks.sought):
            return None
        return Store(partition, offset, marks.sought)

    def accepted(self, store: Store, now_stored: Offset | None, *, explicit: bool) -> None:
        """The log answered a store; a failed one leaves everything as it was (C53)."""
        marks = self[store.partition]
        marks.stored = now_stored
        marks.sought = False
        marks.automatic = marks.automatic or not explicit
        if explicit and store.offset is not None:
            higher = marks.explicit is None or store.lower or store.offset > marks.explicit
            marks.explicit = store.offset if higher else marks.explicit
        if explicit and store.offset is None:
            marks.explicit = marks.floor = None

    def due(self) -> Iterator[Store]:
        """What the mode stores now, newest per partition (C41, C51)."""
        for partition, marks in list(self._marks.items()):
            offset = self._wanted(marks)
            if offset is not None and moves(marks.stored, offset, lower=marks.sought):
                yield Store(partition, offset, marks.sought)

    def final(self, partitions: Iterable[TopicPartition]) -> Iterator[Store]:
        """What the end stores: up or down to the last finished message, in every automatic mode (C34, C62 as overruled)."""
        if self._mode == "disabled":
            return
        for partition in partitions:
            marks = self._marks.get(partition)
            if marks is None:
                continue
            target = self._rest(marks)
            if target != marks.stored and (marks.automatic or target is not None):
                down = marks.stored is not None and (target is None or target < marks.stored)
                yield Store(partition, target, lower=down)

    def _wanted(self, marks: Marks) -> Offset | None:
        if self._mode == "disabled":
            return None
        return marks.finished if self._mode == "finished" else marks.delivered

    def _rest(self, marks: Marks) -> Offset | None:
        """Where the stored offset belongs when nothing more will be finished."""
        if marks.sought and marks.finished is None:
            return marks.stored
        marks_found = [mark for mark in (marks.finished, marks.explicit) if mark is not None]
        if not marks.sought and marks.floor is not None:
            marks_found.append(marks.floor)
        return max(marks_found, default=None)
