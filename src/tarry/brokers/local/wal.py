"""When the write-ahead file is copied back into the log file (design 5.2, K26). Runs in the writer's thread.

SQLite's own automatic checkpoints are off: they stall the commit that happens to trip them.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from typing import Final

from tarry.abc import Row
from tarry.brokers.local.database import WAL_BYTES_KEPT

PAGE_BYTES: Final = 4096
IDLE_S: Final = 0.001
"""So long the writer must have had nothing to do before it tidies up."""
IDLE_PAGES: Final = 256
"""New pages that are worth a checkpoint in an idle moment: under 3 ms."""
LOAD_PAGES: Final = 1000
"""New pages at which one is forced under unbroken load: a stall of about 8 ms, growing with the file."""
PAGES_PER_COMMIT: Final = 5
"""Pages of tables and indexes that any commit touches besides the records."""
RETRY_S: Final = 1.0
"""Pause before the next try while a reader keeps a checkpoint from getting through."""

_logger = logging.getLogger("tarry.log")


class WriteAhead:
    """Count new pages, checkpoint at the right moments, warn once when the file grows.

    SQLite tells the exact number of pages only at a checkpoint, so between two of them it is estimated from what was
    written. A checkpoint here is passive: it waits for nobody and copies as much as the readers allow.

    Args:
        reader: describes the oldest read of this process that is running now, None without one.
    """

    def __init__(self, path: str, warn_bytes: int, reader: Callable[[], str | None]) -> None:
        self._path = f"{path}-wal"
        self._warn_bytes = warn_bytes
        self._reader = reader
        self._new_pages = 0
        self._is_blocked = False
        self._has_warned = False

    def wrote(self, rows: list[Row]) -> None:
        """A transaction was committed."""
        self._new_pages += PAGES_PER_COMMIT + sum(
            2 + (row.batch.size + 4 * row.batch.count) // PAGE_BYTES for row in rows
        )

    def vacuumed(self, pages: int) -> None:
        """Free pages were given back, which writes about as many."""
        self._new_pages += pages

    def rest(self, db: sqlite3.Connection) -> float | None:
        """After each round: a checkpoint when one is overdue; the seconds after which `idle` should run."""
        if self._new_pages >= LOAD_PAGES:
            self._checkpoint(db)
        return IDLE_S if self._new_pages > IDLE_PAGES else self._retry()

    def idle(self, db: sqlite3.Connection) -> float | None:
        """In an idle moment: a checkpoint when it is worth it, or when the last one did not get through."""
        if self._new_pages > IDLE_PAGES or self._is_blocked:
            self._checkpoint(db)
            if not self._is_blocked and self._size() > 2 * WAL_BYTES_KEPT:
                self.start_over(db)
        return self._retry()

    def _retry(self) -> float | None:
        return RETRY_S if self._is_blocked else None

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        _, pages, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._new_pages = 0
        self._is_blocked = copied < pages
        self._watch()

    def start_over(self, db: sqlite3.Connection) -> None:
        """Empty the file now, unless a reader uses it.

        To give its disk space back, which SQLite would only do at the next commit; and after a failed sync, since then
        nobody knows which of its pages are on the disk, and what is appended behind them may be lost with them.
        """
        timeout = db.execute("PRAGMA busy_timeout").fetchone()[0]
        db.execute("PRAGMA busy_timeout=0").fetchall()  # Nobody is waited for.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute(f"PRAGMA busy_timeout={timeout}").fetchall()
        self._watch()

    def _watch(self) -> None:
        size = self._size()
        if size <= self._warn_bytes:
            self._has_warned = False
        elif not self._has_warned and self._is_blocked:
            self._has_warned = True
            reader = self._reader()
            who = f"it is pinned by {reader}" if reader else "a reader in another program pins it; end its transaction"
            _logger.warning(
                "%s has grown to %.1f MiB (warning limit %.1f MiB): %s",
                self._path,
                _mib(size),
                _mib(self._warn_bytes),
                who,
            )

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0


def _mib(size: int) -> float:
    return size / (1024 * 1024)
