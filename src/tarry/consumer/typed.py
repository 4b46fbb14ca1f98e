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

from tarry._wire.batch import Undecoded, decode, decode_values
from tarry.errors import DataError, UndecodableMessage
from tarry.types import Message, Offset, Origin, Position, Segment, position_after

DecodeValue = Callable[[bytes], object]

PART_MESSAGES = 500
"""Most messages decoded in one turn: some milliseconds with pydantic."""
CAUSE_TEXT = 200
"""So much of what a decoder said is shown in our error; the whole of it is its `__cause__`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Messages from the front of a segment; `bad` is what follows them and does not decode, `error` says why."""

    messages: list[Message[Any]]
    bad: Segment | None = None
    error: DataError | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """Segments in order, up to the first message that does not decode.

    That is `bad` (one message, or a part with a damaged record), `error` says why, and `rest` is what lies behind it.
    """

    segments: list[Segment]
    found: dict[tuple[Origin, Offset], list[Message[Any]]]
    rest: list[Segment]
    bad: Segment | None = None
    error: DataError | None = None

    def messages(self, segment: Segment) -> list[Message[Any]]:
        """The messages of one of `segments`."""
        return self.found[segment.origin, segment.first]


class Typed:
    """Decodes records and their values. A part with a damaged record does not decode as a whole."""

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
            if self._decoded(part).bad is not None:
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
            whole = self._whole(segment)
            if whole.messages:
                taken.append(segment if whole.bad is None else segment.up_to(whole.messages[-1].offset))
                found[segment.origin, segment.first] = whole.messages
            if whole.bad is not None:
                behind = segment.after(position_after(whole.bad.last))
                rest = [*([] if behind is None else [behind]), *segments[number + 1 :]]
                return Decoded(taken, found, rest, whole.bad, whole.error)
        return Decoded(taken, found, [])

    def _whole(self, segment: Segment) -> Part:
        messages: list[Message[Any]] = []
        for part in in_parts(segment):
            decoded = self._decoded(part)
            messages += decoded.messages
            if decoded.bad is not None:
                return Part(messages, decoded.bad, decoded.error)
        return Part(messages)

    def _decoded(self, part: Segment) -> Part:
        key = _key(part)
        if key not in self._ahead:
            self._ahead[key] = self._decode(part)
        return self._ahead[key]

    def _decode(self, part: Segment) -> Part:
        try:
            messages: list[Message[Any]] = list(decode(part))
        except DataError as error:
            return Part([], part, error)
        undecoded = decode_values(messages, self._decode_value)
        if undecoded is None:
            return Part(messages)
        message = messages[undecoded.place]
        bad = part.up_to(message.offset).after(Position(message.offset))
        return Part(messages[: undecoded.place], bad, _undecodable(message, undecoded))


def in_parts(segment: Segment) -> Iterator[Segment]:
    """A segment in parts that may be decoded in one turn each."""
    rest: Segment | None = segment
    while rest is not None:
        head, rest = rest.split(PART_MESSAGES)
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
