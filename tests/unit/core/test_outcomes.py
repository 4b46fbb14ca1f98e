"""What SQLite's errors prove, against SQLite's own constants and real errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tarry._core import outcomes
from tarry._core.outcomes import Verdict, verdict
from tests.marks import rule

NAMES = "ERROR PERM BUSY LOCKED READONLY IOERR CORRUPT FULL TOOBIG CONSTRAINT MISMATCH AUTH RANGE"


def test_the_codes_are_those_of_sqlite() -> None:
    """Each name has the number that the library has."""
    for name in NAMES.split():
        assert getattr(outcomes, name) == getattr(sqlite3, f"SQLITE_{name}")


@rule("W10", "W23")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, Verdict.BUSY),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Verdict.BUSY),
        (sqlite3.SQLITE_FULL, Verdict.FULL),
        (sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, Verdict.REFUSED),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, Verdict.REFUSED),
        (sqlite3.SQLITE_READONLY, Verdict.REFUSED),
        (sqlite3.SQLITE_IOERR_FSYNC, Verdict.BROKEN),
        (sqlite3.SQLITE_CORRUPT, Verdict.BROKEN),
        (sqlite3.SQLITE_NOMEM, Verdict.BROKEN),
        (0, Verdict.BROKEN),
        (None, Verdict.BROKEN),
    ],
)
def test_only_what_is_known_to_undo_everything_proves_it(code: int | None, expected: Verdict) -> None:
    """Extended codes count as their primary one; whatever is not listed proves nothing."""
    assert verdict(code) is expected


@rule("W9", "W10")
def test_real_errors_get_their_verdict(tmp_path: Path) -> None:
    """A broken constraint, a foreign key at commit, a lock, a full file."""
    first = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0)
    second = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0)
    first.execute("PRAGMA foreign_keys=ON")
    first.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
    first.execute("CREATE TABLE b (a REFERENCES a DEFERRABLE INITIALLY DEFERRED, text)")
    assert _verdict(first, "INSERT INTO nowhere VALUES (1)") is Verdict.REFUSED
    first.execute("BEGIN IMMEDIATE")
    first.execute("INSERT INTO b VALUES (7, '')")
    assert _verdict(first, "COMMIT") is Verdict.REFUSED
    assert _verdict(second, "BEGIN IMMEDIATE") is Verdict.BUSY
    first.execute("ROLLBACK")
    first.execute("PRAGMA max_page_count=4")
    assert _verdict(first, f"INSERT INTO b VALUES (NULL, '{'x' * 50_000}')") is Verdict.FULL
    first.close()
    second.close()


def _verdict(db: sqlite3.Connection, statement: str) -> Verdict:
    with pytest.raises(sqlite3.Error) as caught:
        db.execute(statement)
    return verdict(caught.value.sqlite_errorcode)
