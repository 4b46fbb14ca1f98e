"""Messages as lines: everything comes back, and each wrong line is answered with what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.cli.failures import CommandError
from tarry.cli.records import Format, as_json, as_text, reader
from tarry.producer.producer import Outgoing
from tarry.types import Header, Message, Offset, Origin, TopicPartition

ORIGIN = Origin(TopicPartition("shop/orders", 3), Offset(9))


def read_json(line: bytes, key: bytes | None = None) -> Outgoing:
    found = reader(Format.JSONL, key)(line)
    assert found is not None
    return found


def message(
    value: bytes | None = b"v", key: bytes | None = None, headers: tuple[Header, ...] = (), timestamp_ms: int = 0
) -> Message:
    return Message(value, key, headers, timestamp_ms, Offset(7), ORIGIN)


def test_json_has_the_whole_message() -> None:
    line = as_json(message("größe".encode(), b"k", (("h", b"1"), ("h", b"\xff")), 1793491200123))
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "topic": "shop/orders",
        "partition": 3,
        "offset": 7,
        "key": "k",
        "value": "größe",
        "headers": [{"key": "h", "value": "1"}, {"key": "h", "value_base64": "/w=="}],
        "timestamp": "2026-11-01T00:00:00.123Z",
        "timestamp_ms": 1793491200123,
    }


def test_none_is_null_and_empty_is_empty() -> None:
    assert json.loads(as_json(message(None, b"")))["value"] is None
    assert json.loads(as_json(message(b"", None)))["value"] == ""
    assert json.loads(as_json(message(b"", None)))["key"] is None


def test_a_time_beyond_the_calendar_is_null_but_exact() -> None:
    fields = json.loads(as_json(message(timestamp_ms=2**53)))
    assert (fields["timestamp"], fields["timestamp_ms"]) == (None, 2**53)


some_bytes = st.binary(max_size=8) | st.text(max_size=8).map(lambda text: text.encode(errors="ignore"))


@given(
    value=some_bytes | st.none(),
    key=some_bytes | st.none(),
    headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), some_bytes), max_size=3),
    timestamp_ms=st.integers(-(2**40), 2**55),
)
def test_what_is_printed_as_json_is_read_back(
    value: bytes | None, key: bytes | None, headers: list[Header], timestamp_ms: int
) -> None:
    line = as_json(message(value, key, tuple(headers), timestamp_ms))
    assert line.count(b"\n") == 1
    assert read_json(line) == (value, key, tuple(headers), 3, timestamp_ms)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n")))
def test_text_that_was_one_line_comes_back_as_it_was(text: str) -> None:
    line = reader(Format.TEXT, b"k")(text.encode())
    assert line == Outgoing(text.encode(), b"k")
    assert as_text(message(text.encode())) == text.encode() + b"\n"


@pytest.mark.parametrize(
    ("value", "line"),
    [(None, b"\n"), (b"", b"\n"), (b"a\xffb", b"a\\xffb\n"), (b"two\nlines", b"two\\nlines\n"), (b"\r", b"\r\n")],
)
def test_text_is_one_line_whatever_the_value(value: bytes | None, line: bytes) -> None:
    assert as_text(message(value)) == line


def test_the_key_of_the_command_is_for_lines_without_one() -> None:
    assert read_json(b'{"value": "v"}', b"all").key == b"all"
    assert read_json(b'{"value": "v", "key": "own"}', b"all").key == b"own"
    assert read_json(b'{"value": "v", "key": null}', b"all").key is None


def test_a_blank_line_is_a_message_in_text_and_none_in_json() -> None:
    assert reader(Format.TEXT, None)(b"") == Outgoing(b"")
    assert [reader(Format.JSONL, b"k")(line) for line in (b"", b" \r")] == [None, None]


def test_headers_may_be_an_object() -> None:
    assert read_json(b'{"value": "v", "headers": {"a": "1", "b": ""}}').headers == (("a", b"1"), ("b", b""))


def test_a_time_may_be_text_and_milliseconds_win() -> None:
    line: dict[str, Any] = {"value": "v", "timestamp": "2026-11-01T00:00:00.123Z"}
    assert read_json(json.dumps(line).encode()).timestamp_ms == 1793491200123
    assert read_json(json.dumps(line | {"timestamp_ms": 5}).encode()).timestamp_ms == 5


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"plain text", "for plain lines use --format text"),
        (b'{"value": "v"', "this is no JSON"),
        (b"[" * 100_000, "this is no JSON"),
        (b"\xff", "this is no UTF-8"),
        (b'["v"]', 'write {"value": "..."}'),
        (b"{}", 'there is no "value"'),
        (b'{"key": "k"}', "null for a delete marker"),
        (b'{"vlaue": "v"}', "unknown field 'vlaue'; did you mean 'value'?"),
        (b'{"value": "v", "x": 1}', "known are value, value_base64, key"),
        (b'{"value": 5}', "'value' must be a string or null, not 5; put it in quotes"),
        (b'{"value": "v", "value_base64": "dg=="}', "leave one out"),
        (b'{"value_base64": "v"}', "is no base64"),
        (b'{"value_base64": 5}', "'value_base64' must be a string"),
        (b'{"value": "\\ud800"}', "half a surrogate pair"),
        (b'{"value": "v", "headers": "h"}', "must be a list or an object"),
        (b'{"value": "v", "headers": ["h"]}', "a header must look like"),
        (b'{"value": "v", "headers": [{"key": "h"}]}', "a header must look like"),
        (b'{"value": "v", "headers": {"h": null}}', "a header must look like"),
        (b'{"value": "v", "headers": [{"key": "h", "value": "x", "y": 1}]}', "a header must look like"),
        (b'{"value": "v", "partition": "1"}', "'partition' must be a whole number"),
        (b'{"value": "v", "partition": true}', "'partition' must be a whole number"),
        (b'{"value": "v", "timestamp_ms": -9223372036854775809}', "is out of range"),
        (b'{"value": "v", "timestamp_ms": 1.5}', "'timestamp_ms' must be a whole number"),
        (b'{"value": "v", "timestamp": "2026-11-01T00:00"}', "a time needs its zone"),
        (b'{"value": "v", "timestamp": 5}', "'timestamp' 5"),
    ],
)
def test_a_wrong_line_is_answered_with_what_is_wrong(line: bytes, says: str) -> None:
    with pytest.raises(CommandError) as refused:
        read_json(line)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 300
