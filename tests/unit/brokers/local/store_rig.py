"""A store in the hands of a test: jobs and reads as awaitable calls, on whatever loop runs the test.

Also the faults that a test puts between a store and SQLite. Not here: what the stores should do.
"""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio

from tarry import abc
from tarry._runtime.bridge import loop_post
from tarry._wire.batch import decode, encode_record, seal
from tarry.brokers.local.store_memory import MemoryStore
from tarry.brokers.local.store_sqlite import SqliteStore
from tarry.config import LogOptions, TopicOptions
from tarry.errors import TarryError
from tarry.types import Offset, Origin, Position, ProducerStamp, RecordBatch, Segment, TopicPartition

Where = Literal["any", "disk", "memory"]
NOW_MS = 1_700_000_000_000
MIB = 1024 * 1024
PRODUCER = bytes(range(16))


class WallClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.wall = NOW_MS

    def now(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return self.wall


class Listener:
    """Notes what a store reports."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.rows: list[abc.Row] = []
        self.trims: list[abc.Trimmed] = []
        self.reopenings: list[Sequence[abc.TopicState]] = []
        self.groups: Callable[[], Mapping[str, bytes]] = dict
        self.groups_then: list[Mapping[str, bytes]] = []
        self.failures: list[TarryError] = []

    def committed(self, rows: Sequence[abc.Row]) -> None:
        self.log.append("committed")
        self.rows += rows

    def trimmed(self, trims: Sequence[abc.Trimmed]) -> None:
        self.log.append("trimmed")
        self.trims += trims

    def reopened(self, topics: Sequence[abc.TopicState]) -> None:
        self.log.append("reopened")
        self.reopenings.append(topics)
        self.groups_then.append(self.groups())

    def failed(self, error: TarryError) -> None:
        self.log.append("failed")
        self.failures.append(error)


class MakeStore(Protocol):
    """Makes the store of one test; called again, it makes one with the same content."""

    def __call__(self, path: Path, options: LogOptions, clock: abc.Clock) -> abc.LogStore: ...


def make_sqlite(path: Path, options: LogOptions, clock: abc.Clock) -> SqliteStore:
    return SqliteStore(path, options, clock, loop_post())


def make_memory() -> MakeStore:
    stores: dict[Path, MemoryStore] = {}

    def make(path: Path, options: LogOptions, clock: abc.Clock) -> MemoryStore:
        return stores.setdefault(path, MemoryStore(clock))

    return make


def batch_of(*values: bytes, times: Sequence[int] = ()) -> RecordBatch:
    times = times or [NOW_MS] * len(values)
    return seal([encode_record(value, None, (), time) for value, time in zip(values, times, strict=True)], times)


def values_of(selection: abc.Selection) -> list[bytes | None]:
    origin = Origin(TopicPartition("any", 0), Offset(0))
    return [message.value for run in selection.runs for message in decode(Segment(origin, (run,)))]


def offsets_of(selection: abc.Selection) -> list[int]:
    return [run.base + index for run in selection.runs for index in range(run.count)]


@dataclass
class Rig:
    """An open store."""

    store: abc.LogStore
    topics: Sequence[abc.TopicState]
    listener: Listener
    clock: WallClock

    async def ask(self, job: abc.Job) -> abc.JobResult | TarryError:
        """The answer to a job, whatever it is."""
        answers: list[abc.JobResult | TarryError] = []
        answered = anyio.Event()

        def done(result: abc.JobResult | TarryError) -> None:
            assert not answers, "answered twice"
            answers.append(result)
            answered.set()

        self.store.submit(job, done)
        await answered.wait()
        return answers[0]

    async def do(self, job: abc.Job) -> abc.JobResult:
        """The result of a job; raises its error."""
        result = await self.ask(job)
        if isinstance(result, TarryError):
            raise result
        return result

    async def ask_all(self, jobs: Sequence[abc.Job]) -> list[abc.JobResult | TarryError]:
        """Submit all in one turn, so that they share a transaction; answers in the order of the jobs."""
        answers: dict[int, abc.JobResult | TarryError] = {}
        order: list[int] = []
        answered = anyio.Event()

        def done(index: int, result: abc.JobResult | TarryError) -> None:
            answers[index] = result
            order.append(index)
            if len(answers) == len(jobs):
                answered.set()

        for index, job in enumerate(jobs):
            self.store.submit(job, lambda result, index=index: done(index, result))  # type: ignore[misc]
        await answered.wait()
        assert order == sorted(order), "answers out of order"
        return [answers[index] for index in range(len(jobs))]

    async def topic(self, name: str = "t", **options: Any) -> list[abc.PartitionId]:
        """Create a topic; the ids of its partitions."""
        state = await self.do(abc.CreateTopic(name, TopicOptions(**options)))
        assert isinstance(state, abc.TopicState)
        return [part.id for part in state.partitions]

    async def append(
        self, partition: abc.PartitionId, *values: bytes, times: Sequence[int] = (), sequence: int | None = None
    ) -> abc.Appended:
        stamp = None if sequence is None else ProducerStamp(PRODUCER, sequence)
        result = await self.do(abc.Append(partition, batch_of(*values, times=times), stamp))
        assert isinstance(result, abc.Appended)
        return result

    async def store_offset(
        self, partition: abc.PartitionId, offset: int | None, identity: str = "name:x", *, lower: bool = False
    ) -> Offset | None:
        wanted = None if offset is None else Offset(offset)
        result = await self.do(abc.StoreOffset(partition, identity, wanted, lower))
        assert isinstance(result, abc.Stored)
        return result.offset

    async def read(
        self,
        partition: abc.PartitionId,
        position: int = 0,
        *,
        count: int = 100_000,
        limit: int = 64 * MIB,
        where: Where = "any",
    ) -> abc.Selection:
        """Read as the pump does: from memory, else from the disk; or from where the test says."""
        query = abc.Query(partition, Position(position), count, limit)
        found = None if where == "disk" else self.store.read(query)
        if found is not None or where == "memory":
            assert found is not None, "not resident"
            return found
        selection: abc.Selection = await self._later(lambda done: self.store.read_disk(query, done))
        return selection

    async def find_time(self, partition: abc.PartitionId, time: int) -> int:
        position: Position = await self._later(lambda done: self.store.find_time(partition, time, done))
        return position

    async def _later(self, start: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        answered = anyio.Event()

        def done(result: Any) -> None:
            answers.append(result)
            answered.set()

        start(done)
        await answered.wait()
        if isinstance(answers[0], TarryError):
            raise answers[0]
        return answers[0]


@asynccontextmanager
async def opened(
    make: MakeStore, path: Path, options: LogOptions | None = None, clock: WallClock | None = None
) -> AsyncGenerator[Rig]:
    """Open a store, close it at the end."""
    clock = clock or WallClock()
    listener = Listener()
    store = make(path, options or LogOptions(), clock)
    topics = store.open(listener)
    listener.groups = store.groups
    try:
        yield Rig(store, topics, listener, clock)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


@contextmanager
def nothing_left() -> Generator[None]:
    """No thread and no descriptor stays behind."""
    gc.collect()
    threads, descriptors = set(threading.enumerate()), _descriptors()
    yield
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert _descriptors() == descriptors


def _descriptors() -> list[str]:
    links: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:  # The listing's own.
            continue
    return sorted(links)


# --- faults ---


@dataclass
class Fault:
    """What happens to `times` statements that begin with `prefix`, behind the first `skip`.

    `after`: the statement takes effect first, as when only its answer is lost.
    """

    prefix: str
    act: Callable[[], None]
    times: int = 1
    skip: int = 0
    after: bool = False


@dataclass
class Gate:
    """Where a thread waits for the test."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(10)


@dataclass
class FaultyDatabase:
    """Stands in for `sqlite3.connect`; shows every statement and fails those a test names."""

    statements: list[str] = field(default_factory=list[str])
    faults: list[Fault] = field(default_factory=list[Fault])
    setup: Sequence[str] = ()
    """Run on every new connection."""
    on_connect: Callable[[], None] = lambda: None
    connections: list[sqlite3.Connection] = field(default_factory=list[sqlite3.Connection])

    def connect(self, path: str, **options: Any) -> sqlite3.Connection:
        self.on_connect()
        faulty = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                faulty.statements.append(sql)
                fault = faulty.match(sql)
                if fault is not None and not fault.after:
                    fault.act()
                cursor = super().execute(sql, parameters)
                if fault is not None and fault.after:
                    fault.act()
                return cursor

            def blobopen(self, table: str, column: str, row: int, /, **options: Any) -> sqlite3.Blob:
                faulty.statements.append(f"BLOB {table}.{column}")
                return super().blobopen(table, column, row, **options)

        db = sqlite3.connect(path, factory=Connection, **options)
        self.connections.append(db)
        for statement in self.setup:
            db.execute(statement).fetchall()
        return db

    def fail(
        self, prefix: str, error: Callable[[], sqlite3.Error], *, times: int = 1, skip: int = 0, after: bool = False
    ) -> None:
        def act() -> None:
            raise error()

        self.faults.append(Fault(prefix, act, times, skip, after))

    def hold(self, prefix: str, *, after: bool = False) -> Gate:
        """Stop the thread at the next such statement until the gate is opened."""
        gate = Gate()
        self.faults.append(Fault(prefix, gate.pass_through, after=after))
        return gate

    def match(self, sql: str) -> Fault | None:
        for fault in self.faults:
            if not fault.times or not sql.lstrip().startswith(fault.prefix):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            return fault
        return None

    def count(self, prefix: str) -> int:
        """How many such statements ran."""
        return sum(1 for sql in self.statements if sql.lstrip().startswith(prefix))

    def make(self, path: Path, options: LogOptions, clock: abc.Clock) -> SqliteStore:
        return SqliteStore(path, options, clock, loop_post(), connect=self.connect)


def sqlite_error(text: str, code: int) -> Callable[[], sqlite3.Error]:
    """An error as SQLite raises it."""

    def error() -> sqlite3.Error:
        made = sqlite3.OperationalError(text)
        made.sqlite_errorcode = code
        made.sqlite_errorname = text
        return made

    return error


BUSY = sqlite_error("database is locked", sqlite3.SQLITE_BUSY)
FULL = sqlite_error("database or disk is full", sqlite3.SQLITE_FULL)
IO_ERROR = sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR_FSYNC)
CONSTRAINT = sqlite_error("FOREIGN KEY constraint failed", sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY)
