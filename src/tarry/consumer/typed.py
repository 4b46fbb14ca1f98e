"""Lists of messages with decoded values: decoded a part at a time, and cut at what does not decode.

A decoder of a user may be slow, so no turn of the loop decodes more than `PART_MESSAGES` (K91). What a `poll` is going
to take is decoded while it still lies in the read-ahead: a cancel in between loses nothing, and what was decoded is
kept for the next one, so that polls under short timeouts get on.

Not here: how one value is decoded (`values`), fetching and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tarry._core.fetches import cut, from_position, up_to
from tarry._wire.batch import Undecoded, decode, decode_values
from tarry.errors import DataError, UndecodableMessage
from tarry.types import Message, Offset, Origin, Position, Segment

DecodeValue = Callable[[bytes], object]

PART_MESSAGES = 500
"""Most messages decoded in one turn: some milliseconds with pydantic."""
CAUSE_TEXT = 200
"""So much of what a decoder said is shown in our error; the whole of it is its `__cause__`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Messages from the front of a segment, up to the first that does not decode, which `error` is about."""

    messages: list[Message[Any]]
    error: DataError | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """Segments in order, up to the first message that does not decode; `rest` begins with it, `error` says why."""

    segments: list[Segment]
    found: dict[tuple[Origin, Offset], list[Message[Any]]]
    rest: list[Segment]
    error: DataError | None

    def messages(self, segment: Segment) -> list[Message[Any]]:
        """The messages of one of `segments`."""
        return self.found[segment.origin, segment.first]


class Typed:
    """Decodes records and their values. Of a part with a damaged record nothing is known: it is the rest's."""

    def __init__(self, decode_value: DecodeValue) -> None:
        self._decode_value = decode_value
        self._ahead: dict[tuple[Origin, Offset, Offset], Part] = {}

    def decode_ahead(self, segments: Sequence[Segment]) -> bool:
        """Decode one more part of what is going to be taken; False: all that can be taken is decoded."""
        parts = [part for segment in segments for part in in_parts(segment)]
        self._ahead = {key: self._ahead[key] for part in parts if (key := _key(part)) in self._ahead}
        left = PART_MESSAGES
        for part in parts:
            if _key(part) not in self._ahead:
                if left < part.count:
                    return True
                left -= part.count
            if self._decoded(part).error is not None:
                break  # what is behind it is not taken now
        return False

    def take(self, segments: Sequence[Segment]) -> Decoded:
        """Decode segments that were taken; what was decoded ahead is ready. Nothing is kept for another time."""
        try:
            return self._take(segments)
        finally:
            self._ahead = {}

    def _take(self, segments: Sequence[Segment]) -> Decoded:
        taken: list[Segment] = []
        found: dict[tuple[Origin, Offset], list[Message[Any]]] = {}
        for number, segment in enumerate(segments):
            messages, error = self._whole(segment)
            if messages:
                taken.append(segment if error is None else up_to(segment, messages[-1].offset))
                found[segment.origin, segment.first] = messages
            if error is not None:
                rest = from_position(segment, Position(segment.first + len(messages)))
                assert rest is not None
                return Decoded(taken, found, [rest, *segments[number + 1 :]], error)
        return Decoded(taken, found, [], None)

    def _whole(self, segment: Segment) -> tuple[list[Message[Any]], DataError | None]:
        messages: list[Message[Any]] = []
        for part in in_parts(segment):
            decoded = self._decoded(part)
            messages += decoded.messages
            if decoded.error is not None:
                return messages, decoded.error
        return messages, None

    def _decoded(self, part: Segment) -> Part:
        key = _key(part)
        if key not in self._ahead:
            self._ahead[key] = self._decode(part)
        return self._ahead[key]

    def _decode(self, part: Segment) -> Part:
        try:
            messages: list[Message[Any]] = list(decode(part))
        except DataError as error:
            return Part([], error)
        bad = decode_values(messages, self._decode_value)
        if bad is None:
            return Part(messages, None)
        return Part(messages[: bad.place], _undecodable(messages[bad.place], bad))


def in_parts(segment: Segment) -> Iterator[Segment]:
    """A segment in parts that may be decoded in one turn each."""
    rest: Segment | None = segment
    while rest is not None:
        head, rest = cut(rest, PART_MESSAGES, rest.size, at_least=1)
        assert head is not None
        yield head


def _key(part: Segment) -> tuple[Origin, Offset, Offset]:
    return part.origin, part.first, part.last


def _undecodable(message: Message[Any], bad: Undecoded) -> UndecodableMessage:
    said = " ".join(str(bad.cause).split())
    error = UndecodableMessage(
        f"{message.topic_partition} offset {message.offset}: a value of {len(bad.raw)} bytes does not decode "
        f"({type(bad.cause).__name__}: {said[:CAUSE_TEXT]}); skip it with "
        f"seek(TopicPartition({message.topic!r}, {message.partition}), {message.offset + 1}), or correct value_type",
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        raw=bad.raw,
    )
    error.__cause__ = bad.cause
    return error
