"""Typed values in lists of messages, and where a list is cut at a value that does not decode.

Not here: how one value is decoded (`values`), fetching and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import force_setattr

from tarry._core.fetches import from_position, up_to
from tarry._wire.batch import decode
from tarry.errors import UndecodableMessage
from tarry.types import Message, Offset, Position, Segment

DecodeValue = Callable[[bytes], object]
Key = tuple[object, Offset]


@dataclass(slots=True)
class Decoded:
    """Lists in order, up to the first value that does not decode; `rest` begins with that one."""

    segments: list[Segment] = field(default_factory=list[Segment])
    rest: list[Segment] = field(default_factory=list[Segment])
    error: UndecodableMessage | None = None
    found: dict[Key, list[Message]] = field(default_factory=dict[Key, list[Message]])

    def messages(self, segment: Segment) -> list[Message]:
        """The messages of one of `segments`."""
        return self.found[segment.origin, segment.first]

    def keep(self, segment: Segment, messages: list[Message]) -> None:
        """One more list."""
        self.segments.append(segment)
        self.found[segment.origin, segment.first] = messages


def decode_typed(segments: Sequence[Segment], decode_value: DecodeValue) -> Decoded:
    """Decode records and their values.

    Raises:
        DataError: a record is not a valid record.
    """
    done = Decoded()
    for number, segment in enumerate(segments):
        messages = decode(segment)
        done.error = _fill_in(messages, decode_value)
        if done.error is None:
            done.keep(segment, messages)
            continue
        bad = done.error.offset
        if bad > segment.first:
            done.keep(up_to(segment, Offset(bad - 1)), messages[: bad - segment.first])
        rest = from_position(segment, Position(bad))
        assert rest is not None
        done.rest = [rest, *segments[number + 1 :]]
        break
    return done


def _fill_in(messages: Sequence[Message], decode_value: DecodeValue) -> UndecodableMessage | None:
    """Put decoded values in the place of bytes, up to the first that does not decode; a delete marker stays (K76)."""
    for message in messages:
        raw = message.value
        if raw is None:
            continue
        try:
            force_setattr(message, "value", decode_value(raw))
        except Exception as error:  # noqa: BLE001  # whatever a user's decoder raises; it is raised as the cause
            return _undecodable(message, raw, error)
    return None


def _undecodable(message: Message, raw: bytes, cause: Exception) -> UndecodableMessage:
    error = UndecodableMessage(
        f"{message.topic_partition} offset {message.offset}: a value of {len(raw)} bytes does not decode "
        f"({type(cause).__name__}: {cause}); skip it with seek(partition, {message.offset + 1})",
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        raw=raw,
    )
    error.__cause__ = cause
    return error
