"""Lists of messages with decoded values, and where they are cut at what does not decode.

Not here: how one value is decoded (`values`), fetching and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarry._core.fetches import from_position, up_to
from tarry._wire.batch import Undecoded, decode, decode_values
from tarry.errors import DataError, UndecodableMessage
from tarry.types import Message, Offset, Origin, Position, Segment

DecodeValue = Callable[[bytes], object]

CAUSE_TEXT = 200
"""So much of what a decoder said is shown in our error; the whole of it is its `__cause__`."""


@dataclass(slots=True)
class Decoded:
    """Lists in order, up to the first message that does not decode; `rest` begins with that one, `error` says why."""

    segments: list[Segment] = field(default_factory=list[Segment])
    rest: list[Segment] = field(default_factory=list[Segment])
    error: DataError | None = None
    found: dict[tuple[Origin, Offset], list[Message[Any]]] = field(
        default_factory=dict[tuple[Origin, Offset], list[Message[Any]]]
    )

    def messages(self, segment: Segment) -> list[Message[Any]]:
        """The messages of one of `segments`."""
        return self.found[segment.origin, segment.first]

    def keep(self, segment: Segment, messages: list[Message[Any]]) -> None:
        """One more list."""
        self.segments.append(segment)
        self.found[segment.origin, segment.first] = messages


def decode_typed(segments: Sequence[Segment], decode_value: DecodeValue) -> Decoded:
    """Decode records and their values. Of a list with a damaged record nothing is known: it belongs to the rest."""
    done = Decoded()
    for number, segment in enumerate(segments):
        try:
            messages: list[Message[Any]] = list(decode(segment))
        except DataError as error:
            done.error, done.rest = error, list(segments[number:])
            break
        bad = decode_values(messages, decode_value)
        if bad is None:
            done.keep(segment, messages)
            continue
        done.error = _undecodable(messages[bad.place], bad)
        if bad.place:
            done.keep(up_to(segment, messages[bad.place - 1].offset), messages[: bad.place])
        rest = from_position(segment, Position(messages[bad.place].offset))
        assert rest is not None
        done.rest = [rest, *segments[number + 1 :]]
        break
    return done


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
