"""What the application has in hand: what it was given and has not finished (C24, C34-C37; K05, K10).

That is either one *list*, given message by message, or the *batch* of one `poll`. Of a list the message that was given
last is in hand, and those before it are finished; a batch is in hand as a whole. Whoever reads again *settles*: what
was in hand is finished, unless a handler failed on it, and what is left of a list goes back to where it was taken from.

How far a list has come its cursor knows, and is asked when somebody wants to know: nothing is noted per message (design
4.3). A list that is *cut* gives nothing more; the message in hand stays in hand. Whoever cuts one stops its cursor.

What is in hand of a partition that is not held any more is somebody else's. What the user stored himself is finished.

Not here: marks and stores (`positions`, `autocommit`), decoding (`consumer.lists`), reading (`consumer.consumer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tarry.types import Offset, Origin, Position, Segment, TopicPartition, position_after

FromWhere = Callable[[Origin], Position | None]
"""Where the messages begin that the user has not stored himself; None: the origin is not held any more."""


class Span(NamedTuple):
    """First and last message of one origin."""

    origin: Origin
    first: Offset
    last: Offset


class Reached(NamedTuple):
    """How far something has come that was given out.

    Args:
        delivered: the last message that was given.
        finished: the last finished one; None: none is.
    """

    origin: Origin
    delivered: Offset
    finished: Offset | None


class Settled(NamedTuple):
    """What becomes of what was in hand: what is finished, and what of the list was not given, or comes again."""

    reached: list[Reached]
    rest: Segment | None


@dataclass(slots=True)
class _List:
    """A list that is given message by message; at least one message of it was given.

    Args:
        end: the last message that the cursor goes to, also where the list was cut since.
        left: how many messages the cursor has before it.
    """

    segment: Segment
    end: Offset
    left: Callable[[], int]
    has_failed: bool = False

    @property
    def origin(self) -> Origin:
        return self.segment.origin

    @property
    def last(self) -> Offset:
        """The message that was given last."""
        return Offset(self.end - self.left())

    @property
    def rest(self) -> Segment | None:
        """What was not given yet."""
        return self.segment.after(position_after(self.last))

    def cut(self) -> None:
        self.segment = self.segment.up_to(self.last)


class Hand:
    """What one application has in hand, and how much it was given in all."""

    def __init__(self, from_where: FromWhere) -> None:
        self._from_where = from_where
        self._list: _List | None = None
        self._batch: dict[Origin, Span] = {}
        self._given_up: set[Origin] = set()
        # What was given in all, without the list.
        self._messages = 0
        self._size = 0

    # ------------------------------------------------------------------------------------------- giving

    def give_list(self, segment: Segment, left: Callable[[], int]) -> None:
        """A list is given from now on; its first message at once. `left`: how many have not been given yet."""
        self._list = _List(segment, segment.last, left)

    def give_batch(self, segment: Segment) -> None:
        """A part of a batch is given as a whole."""
        self._messages += segment.count
        self._size += segment.size
        before = self._batch.get(segment.origin)
        first = segment.first if before is None else before.first
        self._batch[segment.origin] = Span(segment.origin, first, segment.last)

    def fail(self) -> None:
        """A handler has failed on the message in hand: nobody works on it any more, and it comes again (K10)."""
        if self._list is not None:
            self._list.has_failed = True

    def settle(self) -> Settled:
        """Whoever reads again has finished what he was given, unless a handler failed on it; the hand is empty."""
        reached = [Reached(span.origin, span.last, span.last) for span in self._batch.values()]
        now, rest = self._list, None
        if now is not None and self._comes_again(now):
            rest = now.segment.after(Position(now.last))
        elif now is not None:
            reached.append(Reached(now.origin, now.last, now.last))
            rest = now.rest
        self._put_away()
        self._batch = {}
        self._given_up.clear()
        return Settled(reached, rest)

    # ------------------------------------------------------------------------------------------- cutting

    def give_up(self, partitions: Container[TopicPartition]) -> bool:
        """Nothing more is given of these as they are held now, and what was stored for them is brought back (Q6).

        Returns:
            Whether the list was cut.
        """
        gone = {span.origin for span in self._spans() if span.origin.partition in partitions}
        gone = {origin for origin in gone if self._from_where(origin) is not None}
        self._given_up |= gone
        is_cut = self._list is not None and self._list.origin in gone
        if self._list is not None and is_cut:
            self._list.cut()
        return is_cut

    def cut(self, partition: TopicPartition) -> Segment | None:
        """Nothing more is given of a partition for now: what is left of its list, if it is in hand."""
        now = self._list
        if now is None or now.origin.partition != partition:
            return None
        rest = now.rest
        now.cut()
        return rest

    def drop(self, partition: TopicPartition) -> bool:
        """What is in hand of a partition counts neither as finished nor as unfinished any more.

        Returns:
            Whether the list was put away.
        """
        self._batch = {origin: span for origin, span in self._batch.items() if origin.partition != partition}
        if self._list is None or self._list.origin.partition != partition:
            return False
        self._put_away()
        return True

    def _put_away(self) -> None:
        self._messages, self._size, self._list = self.messages, self.size, None

    # ------------------------------------------------------------------------------------------- looking

    @property
    def messages(self) -> int:
        """How many messages were given in all; one that came again counts again."""
        now = self._list
        return self._messages + (0 if now is None else now.last - now.segment.first + 1)

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._size + (0 if self._list is None else self._list.segment.up_to(self._list.last).size)

    @property
    def rest(self) -> Segment | None:
        """What is left of the list, and not given yet."""
        return None if self._list is None else self._list.rest

    @property
    def has_failed(self) -> bool:
        """A handler has failed on the message in hand, which comes again."""
        return self._list is not None and self._comes_again(self._list)

    @property
    def reached(self) -> Reached | None:
        """How far the list has come; None: there is none."""
        now = self._list
        if now is None:
            return None
        return Reached(now.origin, now.last, Offset(now.last - 1) if now.last > now.segment.first else None)

    def unfinished(self) -> dict[TopicPartition, int]:
        """How many messages of each partition are in hand."""
        left: Counter[TopicPartition] = Counter()
        for origin, first, last in self._held():
            left[origin.partition] += last - first + 1
        return dict(left)

    def in_work(self) -> dict[TopicPartition, Offset]:
        """The first message in hand of each partition; none of one that a handler has failed on."""
        firsts: dict[TopicPartition, Offset] = {}
        if self._list is None or not self._list.has_failed:
            for origin, first, _ in self._held():
                firsts.setdefault(origin.partition, first)
        return firsts

    def lost(self, fetched: Iterable[Segment]) -> list[Span]:
        """What was in hand, left of the list, or fetched, and is not held: nobody reads it, unless it was given up.

        Those that follow on one another are one.
        """
        spans = [*(Span(part.origin, part.first, part.last) for part in fetched), *self._batch.values()]
        if self._list is not None:
            spans.append(Span(self._list.origin, self._list.last, self._list.segment.last))
        spans = [at for at in spans if at.origin not in self._given_up and self._from_where(at.origin) is None]
        return _joined(spans)

    def _comes_again(self, now: _List) -> bool:
        """A handler has failed on its message, which was not stored by hand, and nobody else gets (K10, C36)."""
        if not now.has_failed:
            return False
        begin = self._from_where(now.origin)
        return now.origin not in self._given_up if begin is None else begin <= now.last

    def _spans(self) -> Iterator[Span]:
        """What is in hand, whoever holds it."""
        yield from self._batch.values()
        if self._list is not None:
            yield Span(self._list.origin, self._list.last, self._list.last)

    def _held(self) -> Iterator[Span]:
        """What is in hand, held, and not stored by hand."""
        for origin, first, last in self._spans():
            begin = self._from_where(origin)
            if begin is not None and begin <= last:
                yield Span(origin, max(first, Offset(begin)), last)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Those that follow on one another as one."""
    found: list[Span] = []
    for origin, first, last in sorted(spans, key=lambda span: (span.origin.partition, span.first)):
        if found and found[-1].origin == origin and found[-1].last + 1 == first:
            origin, first, _ = found.pop()
        found.append(Span(origin, first, last))
    return found
