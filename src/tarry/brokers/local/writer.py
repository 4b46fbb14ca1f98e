"""The one writer of a log file: rounds of jobs become transactions (design 5.2). Runs in its own thread.

Here is what an error of SQLite means for the jobs of its transaction. Not here: how rounds are made (`committer`), what
jobs do to the tables (`tables`), opening and identifying the file (`database`).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tarry._core.outcomes import Verdict
from tarry._runtime.threads import attempts
from tarry.abc import Append, Clock, DeleteTopic, Job, JobResult, Retain
from tarry.brokers.local.committer import Changes, Outcome
from tarry.brokers.local.database import Connect, check_file, explain, identify_file, number, open_writer, verdict
from tarry.brokers.local.tables import Tables
from tarry.brokers.local.wal import IDLE_S, RETRY_S, WriteAhead
from tarry.config import LogOptions
from tarry.errors import DataError, LogBusy, LogFull, LogUnavailable, NotAccepted, OutcomeUnknown, TarryError

VACUUM_PAGES: Final = 256
"""Free pages given back to the file system at a time, in idle moments."""

_logger = logging.getLogger("tarry.log")


@dataclass(slots=True, eq=False)
class _Entry:
    """A job of the round and what became of it."""

    job: Job
    result: JobResult | TarryError = None
    is_settled: bool = False

    def settle(self, result: JobResult | TarryError) -> None:
        self.result = result
        self.is_settled = True


class Writer:
    """Write rounds, one transaction each, so that a job that cannot be done fails alone.

    Appends are checked before any statement is made for them and joined into rows per partition; every other job has a
    savepoint (W8). What an error of SQLite does depends on what it proves: busy and full roll back and say so; a
    refused statement or commit rolls back, and each job is tried alone (W9, W10); anything else proves nothing: callers
    get `OutcomeUnknown`, and the file is opened again. A `TarryError` out of `_settle` is its end.

    Time: waits for a foreign write lock up to the busy limit.

    `file`: which one it is. `opened_with`: what it held when it was opened.

    Args:
        reader: describes the oldest read of this process that is running (for the warning of `WriteAhead`).
        retire_readers: closes the connections of readers, before the file is opened again.

    Raises:
        LogBusy, LogFull, LogUnavailable, DataError: it cannot be opened, see `open_writer`.
    """

    def __init__(
        self,
        path: str,
        options: LogOptions,
        clock: Clock,
        *,
        connect: Connect,
        reader: Callable[[], str | None],
        retire_readers: Callable[[], None],
    ) -> None:
        self._path = path
        self._options = options
        self._clock = clock
        self._connect = connect
        self._retire_readers = retire_readers
        self._wal = WriteAhead(path, options.wal_warn_bytes, reader)
        self._is_vacuuming = False
        self._has_reopened = False
        self._data_version = 0
        self._db = open_writer(path, options, connect)
        try:
            self.file = identify_file(path)
            self._take_stock()
            self.opened_with = self._tables.content()
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise explain(error, path) from error
            raise

    # --- what the committer's thread calls ---

    def write(self, jobs: Sequence[Job]) -> Outcome:
        """Write a round; see `Writer` for what becomes of jobs that fail."""
        entries = [_Entry(job) for job in jobs]
        changes = Changes()
        fatal: TarryError | None = None
        try:
            self._settle(entries, changes)
            if self._has_reopened:
                changes.reopened = self._tables.content()
                self._has_reopened = False
        except TarryError as error:
            fatal = error
            for entry in entries:
                if not entry.is_settled:
                    entry.settle(LogUnavailable(f"{error}; nothing of this request was applied"))
        return Outcome([entry.result for entry in entries], changes, fatal)

    def rest(self) -> float | None:
        """Checkpoint when one is overdue (design 5.2)."""
        pause = self._guarded(self._wal.rest)
        return IDLE_S if self._is_vacuuming else pause

    def idle(self) -> float | None:
        """Give free pages back, checkpoint when it is worth it."""
        return self._guarded(self._vacuum if self._is_vacuuming else self._wal.idle)

    def finish(self) -> None:
        """Close the connection; SQLite copies the write-ahead file back and removes it."""
        self._db.close()

    # --- transactions ---

    def _settle(self, entries: Sequence[_Entry], changes: Changes) -> None:
        """Give every entry its result: all in one transaction, or as the error that broke it allows."""
        if not entries:
            return
        try:
            changes.add(self._transaction(entries))
        except sqlite3.Error as error:
            match verdict(error):
                case Verdict.BUSY:
                    _settle_each(entries, self._busy, error)
                case Verdict.FULL:
                    self._settle_full(entries, changes, error)
                case Verdict.REFUSED if len(entries) > 1:
                    for entry in entries:
                        self._settle([entry], changes)
                case Verdict.REFUSED:
                    _settle_each(entries, _refused, error)
                case Verdict.BROKEN:
                    _settle_each(entries, self._unknown, error)
                    self._reopen(error)

    def _settle_full(self, entries: Sequence[_Entry], changes: Changes, error: sqlite3.Error) -> None:
        """No space: appends fail; the rest is tried without them, since a deletion may be what makes room."""
        others = [entry for entry in entries if not isinstance(entry.job, Append)]
        _settle_each(entries, self._full, error)
        if len(others) < len(entries):
            self._settle(others, changes)

    def _transaction(self, entries: Sequence[_Entry]) -> Changes:
        """All entries in one transaction; they are settled when it is committed, and otherwise left as they are."""
        made = Changes()
        check_file(self._path, self.file)
        # The write lock first: a reader cannot become a writer without failing (K14).
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._check_foreign_writes()
            results = [self._perform(entry.job, made) for entry in entries]
            self._tables.flush(made)
            self._commit()
        except BaseException as error:
            self._roll_back(error)
            raise
        for entry, result in zip(entries, results, strict=True):
            entry.settle(result)
        self._wal.wrote(made.rows)
        self._is_vacuuming = self._is_vacuuming or any(isinstance(entry.job, DeleteTopic | Retain) for entry in entries)
        return made

    def _perform(self, job: Job, made: Changes) -> JobResult | TarryError:
        """Stage an append; do any other job in a savepoint, so that one that fails fails alone (W8)."""
        if isinstance(job, Append):
            return self._tables.stage(job)
        if isinstance(job, DeleteTopic | Retain):
            self._tables.flush(made)  # They delete rows; and the appends before them must not share the savepoint.
        self._db.execute("SAVEPOINT job")
        result: JobResult | TarryError
        try:
            result = self._tables.perform(job, made)
        except TarryError as error:
            result = error
        except sqlite3.Error as error:
            if verdict(error) is not Verdict.REFUSED:
                raise
            result = _refused(error)
        if isinstance(result, TarryError):
            self._db.execute("ROLLBACK TO job")
        self._db.execute("RELEASE job")
        return result

    def _commit(self) -> None:
        """Commit; BUSY leaves the transaction open and is asked again until the busy limit (W23)."""
        busy: sqlite3.Error | None = None
        for _ in attempts(self._options.busy_timeout):
            try:
                self._db.execute("COMMIT")
                return
            except sqlite3.Error as error:
                if verdict(error) is not Verdict.BUSY:
                    raise
                busy = error
        assert busy is not None
        raise busy

    def _roll_back(self, error: BaseException) -> None:
        """End the transaction before the connection is used again (K39), and correct what memory made of it."""
        if isinstance(error, sqlite3.Error) and verdict(error) is Verdict.BROKEN:
            return  # `_reopen` closes the connection, and with it the transaction.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):  # Anything else is the end of this writer.
            self._tables = Tables(self._db, self._path, self._clock)

    def _check_foreign_writes(self) -> None:
        """Nobody else may write while we hold the lock (design 5.5, 4); a foreign checkpoint may also show here."""
        version = number(self._db, "PRAGMA data_version")
        if version == self._data_version:
            return
        change = self._tables.foreign_change()
        if change is not None:
            raise DataError(
                f"{self._path} was written by another program while this one held its lock: {change}. Stop the other "
                "program (a database shell, or a log on a network drive whose locks do not work) and open the log again"
            )
        self._data_version = version

    def _take_stock(self) -> None:
        """Read what memory must know of the file."""
        self._tables = Tables(self._db, self._path, self._clock)
        self._data_version = number(self._db, "PRAGMA data_version")

    def _reopen(self, cause: sqlite3.Error) -> None:
        """Fail-stop: throw the connection away and start again from what the file holds.

        Raises:
            LogUnavailable: that is not possible; this is the end of the writer.
        """
        _logger.error("%s: %s; opening the file again", self._path, cause)
        self._retire_readers()
        try:
            self._db.close()
        except sqlite3.Error as error:
            _logger.warning("%s: closing it after the failure: %s", self._path, error)
        try:
            check_file(self._path, self.file)
            self._db = open_writer(self._path, self._options, self._connect)
            self._wal.start_over(self._db)
            self._take_stock()
        except (TarryError, sqlite3.Error) as error:
            raise LogUnavailable(f"{self._path} failed ({cause}) and cannot be opened again: {error}") from error
        self._has_reopened = True

    # --- housekeeping ---

    def _guarded(self, step: Callable[[sqlite3.Connection], float | None]) -> float | None:
        """Housekeeping that fails is tried again later, on a new connection if need be; no caller waits for it."""
        try:
            return step(self._db)
        except sqlite3.Error as error:
            if verdict(error) is Verdict.BROKEN:
                self._reopen(error)
            return RETRY_S

    def _vacuum(self, db: sqlite3.Connection) -> float | None:
        """Give some free pages back; in small steps, so that a commit never waits long for it."""
        # Not `execute`: the pragma makes a row without columns per page, and that stops after the first one.
        db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        self._wal.vacuumed(VACUUM_PAGES)
        self._is_vacuuming = number(db, "PRAGMA freelist_count") > 0
        return IDLE_S

    # --- what callers are told ---

    def _busy(self, error: sqlite3.Error) -> LogBusy:
        return LogBusy(
            f"another program held the write lock of {self._path} for {self._options.busy_timeout:g} s ({error}); "
            "nothing was written, try again when its transaction has ended"
        )

    def _full(self, error: sqlite3.Error) -> LogFull:
        return LogFull(
            f"no space for {self._path} ({error}); nothing was written: free space on the disk, delete topics, "
            "or give topics a retention"
        )

    def _unknown(self, error: sqlite3.Error) -> OutcomeUnknown:
        unknown = OutcomeUnknown(f"writing to {self._path} failed ({error}); this may or may not have been applied")
        unknown.__cause__ = error
        return unknown


def _settle_each(
    entries: Sequence[_Entry], explain: Callable[[sqlite3.Error], TarryError], error: sqlite3.Error
) -> None:
    """An error of its own for each caller: they raise it in different tasks."""
    for entry in entries:
        entry.settle(explain(error))


def _refused(error: sqlite3.Error) -> NotAccepted:
    refused = NotAccepted(f"the database refused this ({error}); nothing of it was applied")
    refused.__cause__ = error
    return refused
