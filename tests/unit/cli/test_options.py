"""What people type: each form that is understood, and what is said about the others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from tarry.cli.options import duration, size, start
from tarry.types import Start, StartKind


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1500ms", 1.5), ("30s", 30.0), ("2m", 120.0), ("1h", 3600.0), ("7d", 604800.0), ("5", 5.0), ("0.5 s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1.s", "5 minutes", "1M", "nan", "1e3", "\u0661s"])
def test_what_is_no_duration_is_answered_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is no duration; write 1500ms, 30s, 2m or 1h"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("65536", 65536), ("64KiB", 65536), ("1MiB", 1048576), ("1mib", 1048576), ("1MB", 1000000), ("1.5KiB", 1536)],
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "big", "-1", "1M", "1 mebibyte"])
def test_what_is_no_size_is_answered_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is no size; write 65536, 64KiB or 1MiB"):
        size(text)


def test_a_size_is_whole_bytes() -> None:
    with pytest.raises(typer.BadParameter, match=r"'0\.3B' is no whole number of bytes"):
        size("0.3B")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Start.first()),
        ("end", Start.end()),
        ("0", Start.offset(0)),
        ("42", Start.offset(42)),
        ("-100", Start(StartKind.LAST, 100)),
        ("@2026-11-01T00:00Z", Start.timestamp(datetime(2026, 11, 1, tzinfo=UTC))),
        ("@2026-11-01T01:30:00+01:30", Start.timestamp(datetime(2026, 11, 1, tzinfo=UTC))),
    ],
)
def test_places_to_start(text: str, expected: Start) -> None:
    assert start(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("beginning", "write start, end, an offset like 42"),
        ("", "write start, end, an offset like 42"),
        ("4.2", "write start, end, an offset like 42"),
        ("-0", "-1 to -10000 start at that many newest messages"),
        ("-10001", "-1 to -10000 start at that many newest messages"),
        ("@yesterday", "write a time like 2026-11-01T00:00Z"),
        ("@1730419200", "write a time like 2026-11-01T00:00Z"),
        ("@2026-11-01T00:00", "a time needs its zone"),
        ("@2026-11-01", "a time needs its zone"),
        ("@0001-01-01T00:00+10:00", "the years 1 to 9999"),
    ],
)
def test_what_is_no_place_is_answered_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        start(text)
    assert says in str(refused.value)
    assert repr(text) in str(refused.value) or text in str(refused.value)
