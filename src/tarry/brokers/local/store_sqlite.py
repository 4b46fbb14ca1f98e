"""The embedded log in an SQLite file: `abc.LogStore` over one writer thread, a few readers and a resident tail.

Here the parts are put together: opening, closing, and what a commit changes in the memory of the loop. Not here:
transactions (`writer`), rounds (`committer`), reads (`reader`, `tail`), parked polls (`pump`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence

import anyio

from tarry._runtime.bridge import Post
from tarry.abc import (
    Clock,
    Job,
    JobDone,
    PartitionId,
    Query,
    Selection,
    StoreListener,
    TopicState,
)
from tarry.brokers.local.committer import Changes, Committer, Ticket
from tarry.brokers.local.database import Connect
from tarry.brokers.local.lock import FileLock
from tarry.brokers.local.reader import Readers
from tarry.brokers.local.tail import ResidentTail
from tarry.brokers.local.writer import Writer
from tarry.config import LogOptions
from tarry.errors import LogUnavailable, NotStarted, TarryError
from tarry.types import Position, Run


class SqliteStore:
    """A log in one file.

    Every change goes through one connection in one thread (design 5.2): SQLite before 3.51.3 can corrupt a file when
    two connections write or checkpoint at once. Memory and waiters follow only after COMMIT returned (W5).

    Args:
        path: the file; symbolic links are resolved when it is opened.
        post: runs a function on the loop that owns this store, from any thread.
        connect: stands in for `sqlite3.connect` in tests that need a failing database.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: LogOptions,
        clock: Clock,
        post: Post,
        *,
        connect: Connect = sqlite3.connect,
    ) -> None:
        self._path = os.path.realpath(path)
        self._options = options
        self._clock = clock
        self._post = post
        self._connect = connect
        self._tail = ResidentTail(options.resident_bytes)
        self._groups: dict[str, bytes] = {}
        self._lock: FileLock | None = None
        self._readers: Readers | None = None
        self._committer: Committer | None = None
        self._listener: StoreListener | None = None
        self._is_closing = False
        self._closed = anyio.Event()

    def open(self, listener: StoreListener) -> Sequence[TopicState]:
        """Lock the file, open or make it, and read what it holds. Blocks; after an error everything is released.

        Raises:
            LogInUse: another process, or another client of this one, has it open.
            LogBusy, LogFull, LogUnavailable, DataError: see `database.open_writer`.
        """
        lock = FileLock.acquire(self._path)
        readers = Readers(self._path, self._connect, self._post)
        try:
            writer = Writer(
                self._path,
                self._options,
                self._clock,
                connect=self._connect,
                reader=readers.oldest,
                retire_readers=readers.retire,
            )
        except BaseException:
            readers.close(lambda: None)
            lock.release()
            raise
        readers.file = writer.file
        for state in writer.opened_with.topics:
            self._take_in(state)
        self._groups = dict(writer.opened_with.groups)
        self._lock, self._readers, self._listener = lock, readers, listener
        self._committer = Committer(
            writer,
            applied=self._apply,
            failed=listener.failed,
            post=self._post,
            queue_bytes=self._options.queue_bytes,
            name="tarry-write",
        )
        return writer.opened_with.topics

    def groups(self) -> Mapping[str, bytes]:
        """The state of each group, as the file holds it."""
        return dict(self._groups)

    def submit(self, job: Job, done: JobDone) -> Ticket:
        """Queue a job for the next transaction; see `Committer.submit`."""
        if self._committer is None:
            raise NotStarted(f"the log {self._path} is not open")
        return self._committer.submit(job, done)

    def withdraw(self, ticket: object) -> bool:
        """Take a job out that was not handed to the writer; see `Committer.withdraw`."""
        return self._committer is not None and isinstance(ticket, Ticket) and self._committer.withdraw(ticket)

    def read(self, query: Query) -> Selection | None:
        """Answer from memory, or None when the disk is needed."""
        return self._tail.read(query)

    def read_disk(self, query: Query, done: Callable[[Selection | TarryError], None]) -> None:
        """Answer from the file, later, in the order of the calls (S36).

        Records below the log start are left out, so the answer may begin behind the position. `DataError`: what lies at
        the position is damaged; names file, partition and offsets. `TopicNotFound`: deleted meanwhile.
        """

        def finish(result: tuple[Run, ...] | TarryError) -> None:
            done(result if isinstance(result, TarryError) else self._visible(query, result))

        readers = self._open_readers(done)
        if readers is not None:
            readers.read(query, finish)

    def bytes_between(self, partition: PartitionId, position: Position) -> int:
        """Bytes from `position` to the end.

        Exact from the first resident record on; what is only on the disk counts with the average size of its records
        (S18 asks for what memory knows, without reading).
        """
        return self._tail.bytes_between(partition, position)

    def find_time(
        self, partition: PartitionId, timestamp_ms: int, done: Callable[[Position | TarryError], None]
    ) -> None:
        """Position of the first message at or after a time; the end when there is none. Reads the disk."""

        def finish(result: Position | TarryError) -> None:
            end = self._tail.log_end(partition)
            done(result if isinstance(result, TarryError) or end is None else min(result, end))

        readers = self._open_readers(done)
        if readers is not None:
            readers.find_time(partition, timestamp_ms, finish)

    async def aclose(self) -> None:
        """Write what is queued, answer everybody, close readers, then the writer, release the lock last. Idempotent.

        Cancellation: closing goes on; call again to wait for its end.
        """
        if self._readers is None:
            return
        if not self._is_closing:
            self._is_closing = True
            self._readers.close(self._close_committer)
        await self._closed.wait()

    def _close_committer(self) -> None:
        assert self._committer is not None
        self._committer.close(self._release)

    def _release(self) -> None:
        assert self._lock is not None
        self._lock.release()
        self._closed.set()

    def _open_readers(self, done: Callable[[TarryError], None]) -> Readers | None:
        """The readers, or None once closing has begun; `done` is told why."""
        if self._readers is None or self._is_closing:
            self._post(done, LogUnavailable(f"the log {self._path} is closed"))
            return None
        return self._readers

    def _visible(self, query: Query, runs: tuple[Run, ...]) -> Selection:
        """Without what the disk showed before its commit was announced here."""
        end = self._tail.log_end(query.partition)
        if end is None or not runs or runs[-1].end <= end:
            return Selection(runs)
        return Selection(
            tuple(run if run.end <= end else run.split(end - run.base)[0] for run in runs if run.base < end)
        )

    def _apply(self, changes: Changes) -> None:
        """Bring memory up to what was committed, then tell the listener."""
        assert self._listener is not None
        for topic in changes.created:
            self._take_in(topic)
        for row in changes.rows:
            self._tail.push(row)
        for trim in changes.trims:
            self._tail.trim(trim)
        for partition in changes.deleted:
            self._tail.remove(partition)
        for name, state in changes.groups.items():
            if state is None:
                self._groups.pop(name, None)
            else:
                self._groups[name] = state
        if changes.reopened is not None:
            self._tail.replace([part for topic in changes.reopened.topics for part in topic.partitions])
            self._groups = dict(changes.reopened.groups)
        if changes.rows:
            self._listener.committed(changes.rows)
        if changes.trims:
            self._listener.trimmed(changes.trims)
        if changes.reopened is not None:
            self._listener.reopened(changes.reopened.topics)

    def _take_in(self, topic: TopicState) -> None:
        for part in topic.partitions:
            self._tail.add(part)
