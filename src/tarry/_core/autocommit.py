"""Which offset is stored, and when (C40-C53; design 1.2, 1.3).

Per partition marks: what was delivered, what is finished, what the user stored himself, what the log holds. The modes
differ in which event stores which mark while running: the timer (`due`), a hand-over or the return of a handler, which
queue the offset they are about (`queued`). At the end every automatic mode brings the stored offset to the last
*finished* message, down too, but never below what the user stored himself; behind this last word no mode stores
anything. `disabled` is never touched (I1, K43). Under `on_poll` nothing is stored while running: the log does it with
each committing fetch, and the end rewinds.

A store whose fate is unknown (cancelled, or the answer lost) leaves a partition *in doubt*: what is believed to be
stored counts for nothing until the next answer, and the end sets it right in either direction (C61).

Not here: requests and timers (`consumer.storing`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tarry.types import CommitMode, Offset, Position, TopicPartition, moves, offset_before

AT_HAND_OVER: frozenset[CommitMode] = frozenset(("each_message", "each_batch", "every_nth"))
AFTER_HANDLER: frozenset[CommitMode] = frozenset(("after_each", "after_nth", "after_head"))


class Store(NamedTuple):
    """A store to send: `offset` None deletes the stored offset. `seeks`: how many seeks it knows of."""

    partition: TopicPartition
    offset: Offset | None
    lower: bool
    explicit: bool = False
    seeks: int = 0


@dataclass(slots=True)
class Marks:
    """The marks of one partition; None: nothing yet.

    Args:
        floor: below this nothing is brought back: what was stored before, or what lies in front of a seek (Q4).
        explicit: the highest offset that the user gave since the last seek.
        queued: the highest offset that a hand-over or a handler queued since the last seek (C51).
        rest: where the stored offset belonged before the last seek.
        is_known: the log has said what it holds; `in_doubt`: since then a store was lost.
        is_over: the last word was said; what a mode would store from here on could only be ahead of it.
        seeks: how many seeks there were, `followed` how many of them a store has followed; the first store after a seek
            may go down (design 1.3).
    """

    floor: Offset | None = None
    stored: Offset | None = None
    delivered: Offset | None = None
    finished: Offset | None = None
    explicit: Offset | None = None
    queued: Offset | None = None
    rest: Offset | None = None
    is_known: bool = False
    in_doubt: bool = False
    is_over: bool = False
    seeks: int = 0
    followed: int = 0

    @property
    def sought(self) -> bool:
        """A seek happened and nothing was stored since."""
        return self.seeks > self.followed

    def hold(self, stored: Offset | None) -> None:
        """The log has said what it holds."""
        self.stored, self.is_known, self.in_doubt = stored, True, False

    def given(self, offset: Offset) -> None:
        """The user said that everything up to `offset` is finished."""
        self.explicit = _highest((self.explicit, offset))


class Commits:
    """The marks of one consumer. `n`: what divides the offsets that `every_nth` and `after_nth` store."""

    def __init__(self, mode: CommitMode, *, n: int | None = None) -> None:
        self._mode: CommitMode = mode
        self._n = n or 1
        self._marks: dict[TopicPartition, Marks] = {}

    def __getitem__(self, partition: TopicPartition) -> Marks:
        return self._marks.setdefault(partition, Marks())

    def forget(self, partition: TopicPartition) -> None:
        """The history of a partition ended; nothing that is known about it counts."""
        self._marks.pop(partition, None)

    def found(self, partition: TopicPartition, stored: Offset | None) -> None:
        """What the log holds, read when the partition was taken over: the floor of a rewind (Q4)."""
        marks = self[partition]
        if not marks.seeks:
            marks.floor = stored
        elif not marks.is_known:
            marks.rest = stored
        marks.hold(stored)

    def began(self, partition: TopicPartition, position: Position) -> None:
        """Nothing was stored and reading begins behind messages that are to be skipped: there is the floor.

        Else the next run would begin behind what came meanwhile.
        """
        marks = self[partition]
        if marks.floor is None and not marks.seeks:
            marks.floor = offset_before(position)

    def delivered(self, partition: TopicPartition, offset: Offset) -> None:
        """A message, or everything up to it, was handed over."""
        self[partition].delivered = offset

    def finished(self, partition: TopicPartition, offset: Offset) -> None:
        """Everything handed over up to `offset` is finished."""
        self[partition].finished = offset

    def handed_over(self, partition: TopicPartition, first: Offset, last: Offset, *, end: Offset) -> bool:
        """The messages from `first` to `last` go to the application now, out of a list that ends at `end` (C43-C45).

        Returns:
            Whether a store was queued.
        """
        if self._mode == "each_message" or (self._mode == "each_batch" and last == end):
            return self._queue(partition, last)
        nth = Offset(last - last % self._n)
        return self._mode == "every_nth" and nth >= first and self._queue(partition, nth)

    def returned(self, partition: TopicPartition, offset: Offset, head: Offset) -> bool:
        """The handler is done with a message whose batch said that `head` is the newest one (C46-C48).

        Returns:
            Whether a store was queued.
        """
        if self._mode == "after_nth":
            is_wanted = offset % self._n == 0
        else:
            is_wanted = self._mode == "after_each" or (self._mode == "after_head" and offset == head)
        return is_wanted and self._queue(partition, offset)

    def sought(self, partition: TopicPartition, position: Position) -> None:
        """The position was set by hand: what was delivered, finished and stored before does not count any more."""
        marks = self[partition]
        marks.rest = self._rest(marks)
        marks.delivered = marks.finished = marks.explicit = marks.queued = None
        marks.floor = offset_before(position)
        marks.seeks += 1

    def took(self, partition: TopicPartition, offset: Offset) -> None:
        """A committing fetch came back: the log holds its last offset now, or a higher one (S50, C58)."""
        marks = self[partition]
        marks.stored = _highest((marks.stored, offset))

    def unsettled(self, partition: TopicPartition) -> None:
        """Nobody knows whether a committing fetch was applied: forget what is believed to be stored (C61)."""
        self[partition].in_doubt = True

    def asked(self, partition: TopicPartition, offset: Offset) -> Store | None:
        """The user stores `offset`: what to send, None when it changes nothing at the log (C52)."""
        marks = self[partition]
        if marks.in_doubt or moves(marks.stored, offset, lower=marks.sought):
            return Store(partition, offset, marks.sought, explicit=True, seeks=marks.seeks)
        marks.given(offset)
        marks.followed = marks.seeks
        return None

    def deleted(self, partition: TopicPartition) -> Store:
        """The user deletes the stored offset: what to send (C55)."""
        return Store(partition, None, lower=True, explicit=True, seeks=self[partition].seeks)

    def due(self, partition: TopicPartition) -> Store | None:
        """What the timer stores now, None when it is stored already (C41, C50, C51)."""
        if self._mode in ("disabled", "on_poll"):
            return None
        marks = self[partition]
        return self._automatic(partition, marks.finished if self._mode == "finished" else marks.delivered)

    def queued(self, partition: TopicPartition) -> Store | None:
        """What was queued and is not stored yet: the newest offset alone (C51)."""
        return self._automatic(partition, self[partition].queued)

    def final(self, partition: TopicPartition) -> Store | None:
        """What the end stores: up or down to the last finished message (C34, C62 as overruled); None: it is there."""
        self[partition].is_over = True
        return self.undone(partition)

    def undone(self, partition: TopicPartition) -> Store | None:
        """The same while reading goes on: what was committed and not delivered is to be fetched again (K01, K48)."""
        marks = self[partition]
        target = self._rest(marks)
        if target is None and not marks.is_known:
            return None  # nothing was read of it, and nobody knows what is stored
        if self._mode == "disabled" or (target == marks.stored and not marks.in_doubt):
            return None
        is_lower = marks.stored is not None and (target is None or target < marks.stored)
        seeks = marks.followed if self._is_mere_seek(marks) else marks.seeks  # where it belonged before follows no seek
        return Store(partition, target, is_lower or marks.in_doubt or marks.sought, seeks=seeks)

    def ahead(self, partition: TopicPartition) -> tuple[Offset, Offset] | None:
        """The first and last message that the log counts as read though they are not finished; None: there is none."""
        marks = self[partition]
        first = Offset(0) if (done := self._rest(marks)) is None else Offset(done + 1)
        return None if marks.stored is None or marks.stored < first else (first, marks.stored)

    def accepted(self, store: Store, now_stored: Offset | None) -> int:
        """The log answered a store with what it holds now. A refused one changes nothing here (C53).

        Returns:
            By how many messages the stored offset went back, as far as was known.
        """
        marks = self[store.partition]
        before = marks.stored
        marks.hold(now_stored)
        marks.followed = max(marks.followed, store.seeks)
        if store.offset is None and store.explicit:
            marks.queued = None
            marks.explicit = marks.floor = None
        self._count(marks, store)
        return 0 if before is None else max(0, before - (-1 if now_stored is None else now_stored))

    def lost(self, store: Store) -> None:
        """Nobody knows what became of a store."""
        marks = self[store.partition]
        marks.in_doubt = True
        self._count(marks, store)

    def _queue(self, partition: TopicPartition, offset: Offset) -> bool:
        marks = self[partition]
        marks.queued = _highest((marks.queued, offset))
        return True

    def _automatic(self, partition: TopicPartition, mark: Offset | None) -> Store | None:
        """Store a mark, or what the user gave beyond it; None when that changes nothing, or comes after the end."""
        marks = self[partition]
        offset = None if mark is None or marks.is_over else _highest((mark, marks.explicit))
        if offset is None or not (marks.in_doubt or moves(marks.stored, offset, lower=marks.sought)):
            return None
        return Store(partition, offset, marks.sought, seeks=marks.seeks)

    @staticmethod
    def _count(marks: Marks, store: Store) -> None:
        """What the user gave is finished, whether or not the log has it; unless he went elsewhere meanwhile."""
        if store.explicit and store.offset is not None and store.seeks == marks.seeks:
            marks.given(store.offset)

    def _rest(self, marks: Marks) -> Offset | None:
        """Where the stored offset belongs when nothing more will be finished; after a mere seek where it belonged."""
        if self._is_mere_seek(marks):
            return marks.rest
        return _highest((marks.finished, marks.explicit, marks.floor))

    @staticmethod
    def _is_mere_seek(marks: Marks) -> bool:
        """Since a seek nothing was finished, nor stored."""
        return marks.sought and marks.finished is None and marks.explicit is None


def _highest(offsets: Iterable[Offset | None]) -> Offset | None:
    return max((offset for offset in offsets if offset is not None), default=None)
