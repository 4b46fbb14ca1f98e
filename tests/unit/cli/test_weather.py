"""The demo's data: what a row must look like, and what is counted."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from tarry.cli.failures import CommandError
from tarry.cli.weather import Tally, own_file, read

HEADER = "date,precipitation,temp_max\n"


def test_the_file_that_comes_along_has_four_years() -> None:
    observations = read(own_file())
    assert len(observations) == 1461
    assert (observations[0].key, observations[-1].key) == (b"2012-01", b"2015-12")


def test_sums_are_exact_and_the_first_of_equally_warm_days_stays(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(
        HEADER + "2012/07/03,0.1,30.0\n2012/07/02,0.2,30.0\n2012/07/04,0.7,29.9\n2013-01-01,0.0,-3.5\n2012/07/05,0,30\n"
    )
    rows = read(file)
    for order in (rows, rows[::-1]):
        tally = Tally()
        for row in order:
            tally.add(row.value)
        assert tally.years[2012].days == 4
        assert tally.years[2012].precipitation_mm == Decimal("1.0")
        assert tally.years[2012].warmest == (Decimal("30.0"), date(2012, 7, 2))
        assert tally.years[2013].warmest == (Decimal("-3.5"), date(2013, 1, 1))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no rows"),
        (HEADER, "has no rows"),
        ("day,rain\n", "line 1: there is no column date, precipitation, temp_max among 'day, rain'"),
        (HEADER + "2012/01/01,0.0\n", "line 2: 2 fields, but line 1 names 3 columns"),
        (HEADER + "2012/01/01,0.0,1.0\n\n2012/13/01,0.0,1.0\n", "line 4: date '2012/13/01' is no day"),
        (HEADER + "2012/01/01,much,1.0\n", "line 2: precipitation 'much' is no number"),
        (HEADER + "2012/01/01,0.0,\n", "line 2: temp_max '' is no number"),
        (HEADER + "2012/01/01,0.0,nan\n", "line 2: temp_max 'nan' is no number"),
        (HEADER + "2012/01/01,\xff", "is no UTF-8 text"),
    ],
)
def test_a_wrong_file_is_answered_with_line_and_value(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "w.csv"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(CommandError) as refused:
        read(file)
    assert str(file) in str(refused.value)
    assert says in str(refused.value)


def test_a_file_that_is_not_there_or_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file or directory; name a CSV file with --data"):
        read(tmp_path / "w.csv")
    with pytest.raises(CommandError, match="Is a directory; name a CSV file with --data"):
        read(tmp_path)
