"""The demo's data: daily weather observations out of a CSV file, and what is counted from delivered messages.

Numbers are decimals throughout, so that a sum over a year is exact. Not here: producing and consuming (`demo`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple, TextIO

from tarry.cli.failures import CommandError

NAME = "seattle-weather.csv"
NEEDED = ("date", "precipitation", "temp_max")


class Observation(NamedTuple):
    """One row: the key `2012-01` under which it is produced, and all its columns as JSON."""

    key: bytes
    value: bytes


@dataclass
class Year:
    """What the messages of one year add up to."""

    days: int = 0
    precipitation_mm: Decimal = Decimal(0)
    warmest: tuple[Decimal, date] | None = None

    def add(self, day: date, precipitation_mm: Decimal, temp_max_c: Decimal) -> None:
        """Count one day; of equally warm ones the first stays, in whatever order they come."""
        self.days += 1
        self.precipitation_mm += precipitation_mm
        if self.warmest is None or (temp_max_c, self.warmest[1]) > (self.warmest[0], day):
            self.warmest = (temp_max_c, day)


@dataclass
class Tally:
    """Years, counted from delivered values. A row that comes twice counts twice."""

    years: dict[int, Year] = field(default_factory=dict[int, Year])

    def add(self, value: bytes) -> None:
        """Count one observation."""
        row: dict[str, str] = json.loads(value)
        day = _day(row["date"])
        year = self.years.setdefault(day.year, Year())
        year.add(day, Decimal(row["precipitation"]), Decimal(row["temp_max"]))


def own_file() -> Path:
    """The file that comes with tarry: beside this module when installed, in `examples/data` of a checkout."""
    here = Path(__file__).resolve()
    places = [here.with_name(NAME), *(folder / "examples" / "data" / NAME for folder in here.parents[3:4])]
    for place in places:
        if place.is_file():
            return place
    raise CommandError(f"{NAME} did not come with this installation; name a file with --data")


def read(path: Path) -> list[Observation]:
    """All rows of a CSV file whose first line names at least `NEEDED`.

    Raises:
        CommandError: names the file, the line, the value and what is expected.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = list(_rows(path, file))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}; name a CSV file with --data") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start})") from None
    if not found:
        raise CommandError(f"{path} has no rows; expected is a line of column names and one line a day")
    return found


def _rows(path: Path, file: TextIO) -> Iterator[Observation]:
    lines = csv.reader(file)
    try:
        columns = next(lines, list[str]())
        _check_columns(path, columns)
        for fields in lines:
            if fields:
                yield _observation(f"{path} line {lines.line_num}", columns, fields)
    except csv.Error as error:
        raise CommandError(f"{path} line {lines.line_num}: {error}") from None


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    missing = [name for name in NEEDED if name not in columns]
    if missing and columns:
        raise CommandError(
            f"{path} line 1: there is no column {', '.join(missing)} among {', '.join(columns)[:80]!r}; "
            f"needed are {', '.join(NEEDED)}"
        )


def _observation(place: str, columns: Sequence[str], fields: Sequence[str]) -> Observation:
    if len(fields) != len(columns):
        raise CommandError(f"{place}: {len(fields)} fields, but line 1 names {len(columns)} columns")
    row = dict(zip(columns, fields, strict=True))
    try:
        day = _day(row["date"])
    except ValueError:
        raise CommandError(f"{place}: date {row['date']!r} is no day; write 2012/01/31") from None
    for name in NEEDED[1:]:
        _check_number(place, name, row[name])
    return Observation(f"{day:%Y-%m}".encode(), json.dumps(row).encode())


def _day(text: str) -> date:
    return date.fromisoformat(text.replace("/", "-"))


def _check_number(place: str, name: str, text: str) -> None:
    try:
        is_number = Decimal(text).is_finite()
    except InvalidOperation:
        is_number = False
    if not is_number:
        raise CommandError(f"{place}: {name} {text!r} is no number; write one like 12.8")
