"""The parts of the documentation that are made from the code: `python -m tests.tools.reference [--update]`.

Such a part stands between `<!-- options: PollOptions -->` (docs/configuration.md, a table per option model),
`<!-- help: tarry topic create -->` (docs/reference/cli.md, the help of each command) or
`<!-- table: what can happen -->` (docs/guarantees.md, what tests/integration/test_what_can_happen.py plays) and
`<!-- end -->`. Without `--update` it says which page is out of date; tests/docs/test_reference.py checks the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tarry import config
from tests.integration import situations
from tests.tools.rules import ROOT

CONFIGURATION = ROOT / "docs" / "configuration.md"
CLI = ROOT / "docs" / "reference" / "cli.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"

_PART = re.compile(
    r"(?P<begin><!-- (?:options|help|table): (?P<name>[\w ]+) -->\n\n).*?(?P<end>\n\n<!-- end -->)", re.DOTALL
)
_RULES = re.compile(r" \((?:[A-Z]\d+(?:-[A-Z]\d+)?|design [\d.]+)(?:, (?:[A-Z]\d+|design [\d.]+))*\)")


def updated(page: Path) -> str:
    """A page with the parts made anew.

    Raises:
        ValueError: a part has nothing in the code, or something in the code no part.
    """
    text = page.read_text(encoding="utf-8")
    made = PAGES[page]()
    found = [match["name"] for match in _PART.finditer(text)]
    if sorted(found) != sorted(made):
        raise ValueError(f"{page.name} has parts for {sorted(found)}; there should be {sorted(made)}")
    return _PART.sub(lambda match: match["begin"] + made[match["name"]] + match["end"], text)


# ------------------------------------------------------------------------------------------------------ options


def option_tables() -> Mapping[str, str]:
    """A table for each option model: default, allowed values and meaning."""
    return {model.__name__: _table(model) for model in config.Options.__subclasses__()}


def _table(model: type[config.Options]) -> str:
    rows = ["| option | default | values | meaning |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        cells = (f"`{name}`", _default(name, field), _values(name, field), _meaning(field))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _default(name: str, field: FieldInfo) -> str:
    if isinstance(field.default, str):
        return f'`"{field.default}"`'
    return "`None`" if field.default is None else _number(name, field.default)


def _values(name: str, field: FieldInfo) -> str:
    kind = field.annotation
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{choice}"`' for choice in get_args(kind))
    inside = {part for outer in (kind, *get_args(kind)) for part in (outer, *get_args(outer))}
    unit = " seconds" if float in inside else " bytes" if "bytes" in name else ""
    bounds = config.bounds(field)
    if "le" in bounds and bounds["le"] != config.STORED_MAX:
        low = f"above {_number(name, bounds['gt'])}, up" if "gt" in bounds else _number(name, bounds["ge"])
        text = f"{low} to {_number(name, bounds['le'])}{unit}"
    else:
        text = f"above {bounds['gt']}{unit}" if "gt" in bounds else f"{_number(name, bounds['ge'])}{unit} or more"
    text = text.replace("iB bytes", "iB").replace("1 bytes or", "1 byte or")
    return f"{text}, or `None`" if type(None) in inside else text


def _number(name: str, value: float) -> str:
    """A number as people read it."""
    if "bytes" in name and value >= config.MIB:
        return f"{value // config.MIB:,} MiB"
    if "bytes" in name and value >= config.KIB:
        return f"{value // config.KIB:,} KiB"
    return f"{value:,.10g}"


def _meaning(field: FieldInfo) -> str:
    text = _RULES.sub("", " ".join((field.description or "").split()))
    if not text:
        raise ValueError("an option has no docstring")
    return text


# --------------------------------------------------------------------------------------------------------- help


def help_texts() -> Mapping[str, str]:
    """What `--help` prints, for each command and group of commands."""
    import typer.main

    from tarry.cli import main as command_line
    from tarry.cli.app import app

    found: dict[str, str] = {}
    for words in _commands(typer.main.get_command(app), ()):
        out = io.StringIO()
        with _terminal(), contextlib.redirect_stdout(out):
            code = command_line([*words, "--help"])
        if code:
            raise ValueError(f"{' '.join(words)} --help ended with {code}")
        name = " ".join(("tarry", *words))
        found[name] = f'### {name}\n\n```text title="{name} --help"\n{out.getvalue().strip()}\n```'
    return found


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*words, name))


@contextlib.contextmanager
def _terminal() -> Generator[None]:
    """The width that the pages are written for, and no colours."""
    before = dict(os.environ)
    os.environ.update(COLUMNS="80", NO_COLOR="1", TERM="dumb")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def tables() -> Mapping[str, str]:
    """What each situation does to messages."""
    return {"what can happen": situations.table()}


PAGES: Mapping[Path, Callable[[], Mapping[str, str]]] = {
    CONFIGURATION: option_tables,
    CLI: help_texts,
    GUARANTEES: tables,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the pages, or write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write these parts anew")
    options = parser.parse_args(arguments)
    stale = [page for page in PAGES if updated(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        if options.update:
            page.write_text(updated(page), encoding="utf-8")
        else:
            print(f"{page.relative_to(ROOT)} is out of date; python -m tests.tools.reference --update")
    return int(bool(stale) and not options.update)


if __name__ == "__main__":
    sys.exit(main())
