"""The log file as SQLite sees it: make, identify, configure a connection, and read what its errors prove.

Not here: the tables' content (`writer`, `reader`), the lock beside the file (`lock`).
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from tarry._core import outcomes
from tarry._core.outcomes import Verdict
from tarry.config import LogOptions
from tarry.errors import DataError, LogBusy, LogFull, LogUnavailable, TarryError

Connect = Callable[..., sqlite3.Connection]
"""`sqlite3.connect`, or what a test puts in its place."""

FileId = tuple[int, int]
"""Device and number: what tells a file from every other that its path may lead to later."""

APPLICATION_ID: Final = 0x74617279  # "tary"
VERSION: Final = 2
MIGRATIONS: Final[dict[int, str]] = {
    1: "CREATE TABLE consumer_group (name TEXT NOT NULL PRIMARY KEY, state BLOB NOT NULL)",
}
"""Format version -> statements that turn a file of that version into the next one."""

SYNCHRONOUS: Final = {"full": "FULL", "normal": "NORMAL", "memory": "OFF"}
WAL_BYTES_KEPT: Final = 4 * 1024 * 1024
"""The write-ahead file is cut back to this size when it starts over."""


def primary_code(error: sqlite3.Error) -> int | None:
    """The primary result code of an error; None when it did not come from SQLite itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def verdict(error: sqlite3.Error) -> Verdict:
    """What an error proves about the transaction that it broke."""
    return outcomes.verdict(getattr(error, "sqlite_errorcode", None))


def open_writer(path: str, options: LogOptions, connect: Connect) -> sqlite3.Connection:
    """Open the one connection that writes, making the file when it does not exist. Blocks.

    A file that is not ours is left exactly as it is.

    Raises:
        DataError: not a database, damaged, another application's, or of a newer format.
        LogBusy: a foreign connection kept it locked for the whole busy limit.
        LogFull: no space to make it.
        LogUnavailable: it cannot be opened or written.
    """
    if os.path.isdir(path):
        raise LogUnavailable(f"{path} is a directory; a log is a file")
    if os.path.exists(path) and not os.access(path, os.W_OK):  # SQLite would open it for reading, without a word.
        raise LogUnavailable(f"this program may not write {path}; change its mode or owner")
    db: sqlite3.Connection | None = None
    try:
        db = connect(path, timeout=options.busy_timeout, isolation_level=None, check_same_thread=False)
        db.execute(f"PRAGMA synchronous={SYNCHRONOUS[options.durability]}")
        _identify(db, path)
        _configure(db, path)
        return db
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, sqlite3.Error):
            raise explain(error, path) from error
        raise


def open_reader(path: str, file: FileId, connect: Connect) -> sqlite3.Connection:
    """Open a connection that can only read (design 5.2: one connection writes and checkpoints). Blocks.

    Raises:
        LogUnavailable: the path leads to another file than `file`; SQLite would make an empty one where there is none.
    """
    check_file(path, file)
    db = connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only=ON")
    return db


def identify_file(path: str) -> FileId:
    """Which file a path leads to now."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def check_file(path: str, file: FileId) -> None:
    """Refuse a file that nobody will find: what is written to it would be gone with its last descriptor.

    SQLite asks for this itself, but not when it has a write-ahead file.

    Raises:
        LogUnavailable: the path leads to another file, or to none.
    """
    try:
        is_there = identify_file(path) == file
    except OSError as error:
        is_there = error.errno not in (errno.ENOENT, errno.ENOTDIR)  # any other error proves nothing
    if not is_there:
        raise LogUnavailable(
            f"{path} is gone: it was removed, renamed or replaced while it was open; put it back and connect again"
        )


def explain(error: sqlite3.Error, path: str) -> TarryError:
    """An error outside of any request, as ours; it names the file and what to do."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return DataError(
            f"{path} is not an SQLite database ({error}); choose another path for the log, nothing was changed"
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return DataError(
            f"{path} is damaged ({error}); restore it from a copy, or save what `sqlite3 {path} .recover` finds"
        )
    match verdict(error):
        case Verdict.BUSY:
            return LogBusy(f"another program keeps {path} locked ({error}); end its transaction and try again")
        case Verdict.FULL:
            return LogFull(f"no space for {path} ({error}); free some and try again")
        case _:
            hint = "may this program write the file and its directory?"
            return LogUnavailable(
                f"cannot use {path}: {error} ({getattr(error, 'sqlite_errorname', 'no code')}); {hint}"
            )


def _identify(db: sqlite3.Connection, path: str) -> None:
    """Make an empty file ours, bring an older one up to date, refuse every other."""
    application = number(db, "PRAGMA application_id")
    version = number(db, "PRAGMA user_version")
    tables = [
        str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name LIMIT 4")
    ]
    if application == 0 and version == 0 and not tables:
        _create(db)
        return
    if application != APPLICATION_ID:
        content = f"application id {application:#x}, tables: {', '.join(tables) or 'none'}"
        raise DataError(
            f"{path} is another SQLite database ({content}), not a log; choose another path, nothing was changed"
        )
    if version > VERSION:
        raise DataError(
            f"{path} has format version {version}; this release reads up to version {VERSION}: "
            "open it with a newer release of tarry, nothing was changed"
        )
    _migrate(db, path, version)


def _create(db: sqlite3.Connection) -> None:
    """Make an empty file a log. Stopped in the middle, the file still counts as empty and is made again."""
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # Only possible before the first page is written.
    db.execute("PRAGMA journal_mode=WAL")
    schema = files("tarry.brokers.local").joinpath("schema.sql").read_text(encoding="utf-8")
    db.executescript(
        f"BEGIN IMMEDIATE; {schema}; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}; COMMIT"
    )


def _migrate(db: sqlite3.Connection, path: str, version: int) -> None:
    """All steps from `version` up to ours, in one transaction."""
    missing = [step for step in range(version, VERSION) if step not in MIGRATIONS]
    if missing:
        raise DataError(f"{path} has format version {version}, which this release no longer reads")
    if version < VERSION:
        steps = "; ".join(MIGRATIONS[step] for step in range(version, VERSION))
        db.executescript(f"BEGIN IMMEDIATE; {steps}; PRAGMA user_version={VERSION}; COMMIT")


def _configure(db: sqlite3.Connection, path: str) -> None:
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise LogUnavailable(
            f"{path} cannot have a write-ahead file (journal mode {mode}); put the log on a local disk"
        )
    for pragma in (
        "wal_autocheckpoint=0",  # The writer decides (design 5.2).
        f"journal_size_limit={WAL_BYTES_KEPT}",
        "secure_delete=OFF",  # Where it is on by default, deleting writes as much as appending did.
        "trusted_schema=OFF",
    ):
        db.execute(f"PRAGMA {pragma}").fetchall()


def number(db: sqlite3.Connection, sql: str, *parameters: Any) -> int:
    """The one number that a statement answers."""
    (value,) = db.execute(sql, parameters).fetchone()
    return int(value)
