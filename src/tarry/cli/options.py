"""What people type, as values: durations, sizes, places to start, the log; and the options that several commands share.

Each parser raises `typer.BadParameter` with what is wrong and an example of what is right. Not here: opening the log
(`logs`).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated

import typer

from tarry.cli.records import parse_time
from tarry.config import COUNT_MAX
from tarry.types import Start, StartKind

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BYTES_BY_LOWER = {unit.lower(): size for unit, size in _BYTES.items()}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


class Output(Enum):
    """How a command prints what it found."""

    TEXT = "text"
    JSONL = "jsonl"


def examples(*commands: str) -> str:
    """The end of a help text: commands to copy, each on a line that is not wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def duration(text: str) -> float:
    """Seconds out of `1500ms`, `30s`, `2m`, `1h`, `7d`; a bare number is seconds."""
    match = _NUMBER.fullmatch(text.strip())
    factor = None if match is None else _SECONDS.get(match[2] or "s")
    if match is None or factor is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 1500ms, 30s, 2m or 1h")
    return float(match[1]) * factor


def size(text: str) -> int:
    """Bytes out of `64KiB`, `1MiB`, `500kB`; a bare number is bytes."""
    match = _NUMBER.fullmatch(text.strip())
    factor = None if match is None else _BYTES_BY_LOWER.get(match[2].lower() or "b")
    if match is None or factor is None:
        raise typer.BadParameter(f"{text!r} is no size; write 65536, 64KiB or 1MiB")
    count = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    if count != int(count):
        raise typer.BadParameter(f"{text!r} is no whole number of bytes")
    return int(count)


def start(text: str) -> Start:
    """A `Start` out of `start`, `end`, `-100` (the newest 100), `@TIME` (with zone) or an offset."""
    if text == "start":
        return Start.first()
    if text == "end":
        return Start.end()
    if text.startswith("@"):
        return _start_at(text)
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII) is None:
        raise typer.BadParameter(
            f"{text!r} is no place to start; write start, end, an offset like 42, -100 for the newest 100, "
            "or @2026-11-01T00:00Z"
        )
    number = int(text)
    if not text.startswith("-"):
        return Start.offset(number)
    if not 1 <= -number <= COUNT_MAX:
        raise typer.BadParameter(f"{text} is out of range; -1 to -{COUNT_MAX} start at that many newest messages")
    return Start(StartKind.LAST, -number)


def _start_at(text: str) -> Start:
    try:
        return Start.timestamp(parse_time(text[1:]))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from None


Url = Annotated[
    str | None,
    typer.Option("--url", "-u", metavar="URL", help="The log: a path or sqlite:///path. Default: TARRY_URL."),
]
Db = Annotated[str | None, typer.Option("--db", metavar="PATH", help="The log; the same as --url.")]
