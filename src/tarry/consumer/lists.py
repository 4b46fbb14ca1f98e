"""The lists that a reader gets of what was fetched: cut to length, decoded, up to what does not decode.

The front of what was fetched becomes a list, so long that no turn of the loop decodes too much (K91), and that a member
of a group gets no more than it does in a turn (K18). What is left goes back into the read-ahead and comes next.

Messages that do not decode stop their partition, and their error is raised (C23).

Not here: how values are decoded (`typed`), what becomes of a list that was given (`_core.hand`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, cast

from tarry._core.fetches import Fetches
from tarry._core.pace import MOST, Pace
from tarry._wire.batch import decode
from tarry.consumer.typed import PART_MESSAGES, Typed
from tarry.errors import DataError
from tarry.types import Decode, Message, Offset, Segment, T


class Gathered(NamedTuple, Generic[T]):
    """What a `poll` takes, and how it is read. `is_whole` is False in front of what does not decode."""

    segments: list[Segment]
    read: Decode[T]
    is_whole: bool = True


class Lists(Generic[T]):
    """Makes lists for one reader.

    Args:
        typed: decodes values; None: they stay bytes.
        pace: how long lists may be; None: as long as what was fetched.
        stop: called with messages that do not decode, before their error is raised.
    """

    def __init__(
        self,
        fetches: Fetches,
        *,
        typed: Typed | None,
        pace: Pace | None,
        stop: Callable[[Segment, DataError], None],
    ) -> None:
        self._fetches = fetches
        self._typed = typed
        self._pace = pace
        self._stop = stop
        self.read = cast("Decode[T]", decode)

    def done(self, now: float) -> None:
        """The reader is done with the list it was given last; `now` as for `Pace`."""
        if self._pace is not None:
            self._pace.done(now)

    def next(self, segment: Segment, now: float) -> tuple[Segment, list[Message[T]], Offset]:
        """Make a list of the front of a segment that was taken; the offset is where that ends, or stops to decode.

        Raises:
            DataError: it begins with what does not decode.
        """
        head, rest = segment.split(self._most())
        if rest is not None:
            self._fetches.put_first(rest)
        if self._pace is not None:
            self._pace.gave(head.count, now)
        if self._typed is not None:
            (head,), read, is_whole = self._decode(self._typed, [head])
            return head, read(head), segment.last if is_whole else head.last
        try:
            return head, self.read(head), segment.last
        except DataError as error:
            self._stop(head, error)
            raise

    def _most(self) -> int:
        part = MOST if self._typed is None else PART_MESSAGES
        return part if self._pace is None else min(part, self._pace.count)

    def decode_ahead(self, count: int, max_bytes: int) -> bool:
        """Decode one more part of what `gather` is going to take; False: nothing is left to be decoded ahead."""
        return self._typed is not None and self._typed.decode_ahead(self._fetches.preview(count, max_bytes))

    def gather(self, count: int, max_bytes: int) -> Gathered[T]:
        """Take what a `poll` may have.

        Raises:
            DataError: it begins with what does not decode.
        """
        segments = self._fetches.gather(count, max_bytes)
        return Gathered(segments, self.read) if self._typed is None else self._decode(self._typed, segments)

    def _decode(self, typed: Typed, segments: list[Segment]) -> Gathered[T]:
        """What comes before the first message that does not decode.

        The rest is taken next; when it begins with that message, its partition is stopped and the error raised.
        """
        put_back = segments
        try:
            done = typed.take(segments)
            put_back = done.rest if done.bad is None or not done.segments else [done.bad, *done.rest]
        finally:
            for segment in reversed(put_back):
                self._fetches.put_first(segment)
        if done.error is not None and done.bad is not None and not done.segments:
            self._stop(done.bad, done.error)
            raise done.error
        return Gathered(done.segments, done.messages, done.bad is None)
