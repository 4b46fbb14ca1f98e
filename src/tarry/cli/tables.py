"""How commands print what they found: a table for people, or JSON lines for programs. Not here: what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from tarry.cli.options import Output

Cell = str | int | None
As = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """One object a line."""
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def print_table(rows: Sequence[Mapping[str, Cell]]) -> None:
    """Columns under their names: text to the left, numbers to the right, `-` for what is not there."""
    names = list(rows[0])
    right = {name: not any(isinstance(row[name], str) for row in rows) for name in names}
    widths = {name: max(len(name), *(len(_text(row[name])) for row in rows)) for name in names}
    print("  ".join(_cell(name, widths[name], right=right[name]) for name in names).rstrip())
    for row in rows:
        print("  ".join(_cell(_text(row[name]), widths[name], right=right[name]) for name in names).rstrip())


def counted(count: int, what: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _text(value: Cell) -> str:
    return "-" if value is None else str(value)


def _cell(text: str, width: int, *, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
