"""Messages as lines of text or JSON, in both directions.

One JSON object a line. Bytes that are no UTF-8 are base64 under a name of their own (`value_base64`), None is null.
What `consume -o jsonl` prints, `produce --format jsonl` takes. Not here: reading and writing lines (`pipes`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any, cast

from tarry.cli.failures import CommandError
from tarry.producer.producer import Outgoing
from tarry.types import EPOCH, Header, Message

FIELDS = ("value", "value_base64", "key", "key_base64", "headers", "partition", "timestamp_ms", "timestamp")
IGNORED = ("topic", "offset")
"""What `consume` prints and `produce` cannot choose."""


class Format(Enum):
    """How messages look as lines."""

    TEXT = "text"
    JSONL = "jsonl"


# ------------------------------------------------------------------------------------------------- messages out


def as_text(message: Message) -> bytes:
    r"""The value as UTF-8, one line: other bytes become `\xff`, a line break `\n`, a delete marker an empty line."""
    value = message.value or b""
    try:
        value.decode()
    except UnicodeDecodeError:
        value = value.decode(errors="backslashreplace").encode()
    return value.replace(b"\n", rb"\n") + b"\n"


def as_json(message: Message) -> bytes:
    """The whole message as one JSON object."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        **_bytes_out("key", message.key),
        **_bytes_out("value", message.value),
        "headers": [{"key": name, **_bytes_out("value", value)} for name, value in message.headers],
        "timestamp": _time_out(message.timestamp_ms),
        "timestamp_ms": message.timestamp_ms,
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def writer(form: Format) -> Callable[[Message], bytes]:
    """The function that makes a line of a message."""
    return as_text if form is Format.TEXT else as_json


def _bytes_out(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _time_out(timestamp_ms: int) -> str | None:
    """ISO 8601 in UTC with milliseconds; None outside of the years 1 to 9999."""
    try:
        time = EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -------------------------------------------------------------------------------------------------- messages in


def reader(form: Format, key: bytes | None) -> Callable[[bytes], Outgoing | None]:
    """The function that makes a message of a line; `key` is for lines that name none.

    A blank line among JSON lines is no message: None. It raises `CommandError` with what is wrong, without the place.
    """
    if form is Format.TEXT:
        return lambda line: Outgoing(line, key)
    return lambda line: _from_json(line, key) if line.strip() else None


def _from_json(line: bytes, key: bytes | None) -> Outgoing:
    fields = _object(line)
    _check_fields(fields)
    if "value" not in fields and "value_base64" not in fields:
        raise CommandError('there is no "value"; write {"value": "..."}, or null for a delete marker')
    return Outgoing(
        _bytes_in(fields, "value"),
        _bytes_in(fields, "key") if "key" in fields or "key_base64" in fields else key,
        _headers(fields.get("headers")),
        _whole(fields, "partition"),
        _timestamp(fields),
    )


def _object(line: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(line)
    except UnicodeDecodeError as error:
        raise CommandError(f"this is no UTF-8 ({error.reason} at byte {error.start}); JSON lines are UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"this is no JSON ({error}): {_shown(line)}; for plain lines use --format text") from None
    if not isinstance(found, dict):
        raise CommandError(f'this is no JSON object: {_shown(line)}; write {{"value": "..."}}, or use --format text')
    return cast("dict[str, Any]", found)


def _shown(line: bytes) -> str:
    text = line.decode(errors="backslashreplace")
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _check_fields(fields: dict[str, Any]) -> None:
    for name in fields:
        if name not in FIELDS and name not in IGNORED:
            close = get_close_matches(name, FIELDS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(FIELDS)}"
            raise CommandError(f"unknown field {name!r}; {hint}")
    for name in ("value", "key"):
        if name in fields and f"{name}_base64" in fields:
            raise CommandError(f"both {name!r} and '{name}_base64' are given; leave one out")


def _bytes_in(fields: dict[str, Any], name: str) -> bytes | None:
    text = fields.get(name)
    if text is None and fields.get(f"{name}_base64") is None:
        return None
    if text is not None:
        if not isinstance(text, str):
            raise CommandError(f"{name!r} must be a string or null, not {json.dumps(text)[:40]}; put it in quotes")
        return _encoded(name, text)
    coded = fields[f"{name}_base64"]
    if not isinstance(coded, str):
        raise CommandError(f"'{name}_base64' must be a string, not {json.dumps(coded)[:40]}")
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CommandError(f"'{name}_base64' is no base64 ({error}): {coded[:40]!r}") from None


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CommandError(f"{name!r} holds half a surrogate pair: {text[:40]!r}; use '{name}_base64'") from None


def _headers(given: object) -> tuple[Header, ...]:
    if given is None:
        return ()
    if isinstance(given, dict):
        pairs = cast("dict[str, Any]", given)
        return tuple(_header({"key": name, "value": value}) for name, value in pairs.items())
    if isinstance(given, list):
        return tuple(_header(item) for item in given)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise CommandError(f"'headers' must be a list or an object, not {json.dumps(given)[:40]}")


def _header(given: object) -> Header:
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    name = fields.get("key")
    value = _bytes_in(fields, "value")
    if not isinstance(name, str) or value is None or not fields.keys() <= {"key", "value", "value_base64"}:
        raise CommandError(f'a header must look like {{"key": "...", "value": "..."}}, not {json.dumps(given)[:60]}')
    return _encoded("key", name).decode(), value


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise CommandError(f"{name!r} must be a whole number, not {json.dumps(value)[:40]}")


def _timestamp(fields: dict[str, Any]) -> int | None:
    exact = _whole(fields, "timestamp_ms")
    if exact is not None and not -(2**63) <= exact < 2**63:
        raise CommandError(f"'timestamp_ms' {exact} is out of range; it is milliseconds since 1970 UTC, in 64 bits")
    text = fields.get("timestamp")
    if exact is not None or text is None:
        return exact
    try:
        time = parse_time(text)
    except (TypeError, ValueError) as error:
        raise CommandError(f"'timestamp' {json.dumps(text)[:40]}: {error}") from None
    return (time - EPOCH) // timedelta(milliseconds=1)


def parse_time(text: str) -> datetime:
    """An ISO 8601 time with its zone, in UTC.

    Raises:
        ValueError: it is none, or has no zone; says what to write.
    """
    example = "2026-11-01T00:00Z"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"write a time like {example}") from None
    if time.tzinfo is None:
        raise ValueError(f"a time needs its zone, like {example} or 2026-11-01T00:00+01:00")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("the years 1 to 9999 are possible") from None
