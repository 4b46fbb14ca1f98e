"""What a log in a file can do and suffer: opening, foreign programs, faults of the disk, housekeeping.

Faults are put between the store and SQLite (`FaultyDatabase`). Not here: what every store does (`test_store`),
processes that are killed and syncs that are counted (tests/integration/test_durability.py).
"""

# ruff: noqa: ASYNC240  # Small local files; the loop has nothing else to do.

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from tarry import abc
from tarry.brokers.local import database, wal
from tarry.brokers.local.lock import FileLock
from tarry.brokers.local.store_sqlite import SqliteStore
from tarry.config import LogOptions, TopicOptions
from tarry.errors import (
    BatchTooLarge,
    DataError,
    LogBusy,
    LogFull,
    LogInUse,
    LogUnavailable,
    NotAccepted,
    NotStarted,
    OutcomeUnknown,
    TarryError,
    TopicNotFound,
)
from tarry.types import BATCH_BYTES_MAX, Offset, Position, ProducerStamp
from tests.marks import rule
from tests.unit.brokers.local.store_rig import (
    BUSY,
    CONSTRAINT,
    FULL,
    IO_ERROR,
    MIB,
    PRODUCER,
    FaultyDatabase,
    Listener,
    WallClock,
    batch_of,
    make_sqlite,
    nothing_left,
    offsets_of,
    opened,
    values_of,
)

pytestmark = pytest.mark.anyio
KIB = 1024
PRAGMAS = ("synchronous", "journal_mode", "wal_autocheckpoint", "journal_size_limit")
FAST = LogOptions(durability="memory")
GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def faulty() -> FaultyDatabase:
    return FaultyDatabase()


def appended(*bases: int) -> list[abc.Appended]:
    return [abc.Appended(Offset(base), duplicate=False) for base in bases]


def appends(partition: abc.PartitionId, *values: bytes) -> list[abc.Job]:
    return [abc.Append(partition, batch_of(value)) for value in values]


async def until(is_true: Callable[[], object]) -> None:
    """Wait for what threads do; the test's ceiling is the limit."""
    while not is_true():  # noqa: ASYNC110  # Threads and files set no event.
        await anyio.sleep(0.002)


def open_error(path: Path, make: FaultyDatabase | None = None) -> TarryError:
    """The error of opening, after which nothing is left behind."""
    with nothing_left():
        store = (make or FaultyDatabase()).make(path, LogOptions(busy_timeout=0.05), WallClock())
        with pytest.raises(TarryError) as caught:
            store.open(Listener())
        del store
    return caught.value


# --- opening ---


async def test_a_new_file_is_ours_and_says_so(path: Path) -> None:
    async with opened(make_sqlite, path):
        pass
    db = sqlite3.connect(path)
    pragmas = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version", "auto_vacuum")]
    assert pragmas == [0x74617279, 2, 2]
    db.close()


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1), ("memory", 0)])
async def test_the_write_connection_syncs_as_the_durability_says(
    path: Path, faulty: FaultyDatabase, durability: str, synchronous: int
) -> None:
    async with opened(faulty.make, path, LogOptions(durability=durability)) as rig:  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await rig.topic()
        (writer,) = faulty.connections
        assert [writer.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS] == [synchronous, "wal", 0, 4 * MIB]


async def test_readers_cannot_write(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        await rig.read(part, where="disk")
        _, reader = faulty.connections
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM batch")


async def test_closing_leaves_no_thread_no_descriptor_and_one_file(path: Path) -> None:
    with nothing_left():
        async with opened(make_sqlite, path) as rig:
            (part,) = await rig.topic()
            await rig.ask_all(appends(part, b"a", b"b"))
            await rig.read(part, where="disk")
    assert sorted(file.name for file in path.parent.iterdir()) == ["orders.db", "orders.db.lock"]


async def test_use_before_opening_is_refused_and_closing_then_is_nothing(path: Path) -> None:
    store = make_sqlite(path, LogOptions(), WallClock())
    with pytest.raises(NotStarted, match=r"orders\.db"):
        store.submit(abc.Retain(), lambda _: None)
    assert not store.withdraw(object())
    await store.aclose()


async def test_reads_after_the_end_are_refused(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        await rig.store.aclose()
        with pytest.raises(LogUnavailable, match="closed"):
            await rig.read(part, where="disk")
        with pytest.raises(LogUnavailable, match="closed"):
            await rig.find_time(part, 0)


@rule("K90")
async def test_a_file_that_is_open_is_refused_with_the_holder(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with opened(make_sqlite, path) as rig:
        lock = path.with_name("orders.db.lock")
        assert lock.stat().st_mode & 0o777 == 0o600
        assert json.loads(lock.read_bytes()) == {"pid": os.getpid()}
        for name in (path, link):
            store = make_sqlite(name, LogOptions(), WallClock())
            with pytest.raises(LogInUse, match=str(os.getpid())) as caught:
                store.open(Listener())
            assert caught.value.pid == os.getpid()
        assert await rig.topic()
    assert lock.read_bytes() == b""  # Nobody holds it; the file stays.
    async with opened(make_sqlite, link):
        pass


async def test_a_holder_that_cannot_be_read_is_nobody(tmp_path: Path) -> None:
    lock = FileLock.acquire(str(tmp_path / "a.db"))
    (tmp_path / "a.db.lock").write_bytes(b'{"pid')
    with pytest.raises(LogInUse, match="another process") as caught:
        FileLock.acquire(str(tmp_path / "a.db"))
    assert caught.value.pid is None
    lock.release()
    lock.release()
    FileLock.acquire(str(tmp_path / "a.db")).release()


@pytest.mark.parametrize("opens", [False, True])
async def test_a_lock_file_that_the_disk_does_not_write_is_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    close = os.close

    def fail(_: int, __: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def close_with_a_complaint(descriptor: int) -> None:
        """As Linux does it: the descriptor is gone all the same."""
        is_ours = os.path.samestat(os.fstat(descriptor), path.with_name(f"{path.name}.lock").stat())
        close(descriptor)
        if is_ours:
            fail(descriptor, 0)

    def break_disk() -> None:
        monkeypatch.setattr(os, "ftruncate", fail)
        monkeypatch.setattr(os, "close", close_with_a_complaint)

    with nothing_left(), anyio.fail_after(5):
        if opens:
            async with opened(make_sqlite, path):
                break_disk()
        else:
            break_disk()
            with pytest.raises(LogUnavailable, match="cannot write the lock file"):
                FileLock.acquire(str(path))
    monkeypatch.undo()
    async with opened(make_sqlite, path):
        pass


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    error = open_error(tmp_path / "no" / "such" / "a.db")
    assert isinstance(error, LogUnavailable)
    assert str(tmp_path / "no" / "such") in str(error)
    assert "does not exist" in str(error)


async def test_a_directory_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "dir.db").mkdir()
    error = open_error(tmp_path / "dir.db")
    assert isinstance(error, LogUnavailable)
    assert "directory" in str(error)


async def test_what_may_not_be_written_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> bool:
        return False

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    async with opened(make_sqlite, path):
        pass
    with monkeypatch.context() as patch:
        patch.setattr("os.access", never)  # The suite may run as root, who may write everything.
        assert "may not write" in str(open_error(path))

    with monkeypatch.context() as patch:
        patch.setattr("os.open", refuse)
        store = make_sqlite(path, LogOptions(), WallClock())
        with pytest.raises(LogUnavailable, match=r"orders.db.lock: Permission denied.*writable"):
            store.open(Listener())


@pytest.mark.parametrize("content", [b"hello", b"not a database " * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_what_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    error = open_error(path)
    assert isinstance(error, DataError)
    assert str(path) in str(error)
    assert path.read_bytes() == content


async def test_another_database_is_refused_and_left_alone(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE customers (id)")
    db.close()
    content = path.read_bytes()
    error = open_error(path)
    assert isinstance(error, DataError)
    assert "another SQLite database" in str(error)
    assert "customers" in str(error)
    assert path.read_bytes() == content


async def test_a_newer_format_is_refused_by_name(path: Path) -> None:
    async with opened(make_sqlite, path):
        pass
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=7")
    db.close()
    error = open_error(path)
    assert isinstance(error, DataError)
    assert "version 7" in str(error)
    assert "up to version 2" in str(error)


async def test_an_older_format_is_brought_up_to_date_in_one_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make_sqlite, path) as rig:
        await rig.topic("kept")
    monkeypatch.setattr(database, "VERSION", 4)
    assert "no longer reads" in str(open_error(path))
    monkeypatch.setitem(database.MIGRATIONS, 2, "ALTER TABLE topic ADD COLUMN note TEXT")
    monkeypatch.setitem(database.MIGRATIONS, 3, "this is no SQL")
    assert isinstance(open_error(path), LogUnavailable)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (2,)
    assert "note" not in db.execute("SELECT sql FROM sqlite_master WHERE name='topic'").fetchone()[0]
    db.close()
    monkeypatch.setitem(database.MIGRATIONS, 3, "ALTER TABLE topic ADD COLUMN more TEXT")
    async with opened(make_sqlite, path) as rig:
        assert [topic.name for topic in rig.topics] == ["kept"]


async def test_a_file_of_version_1_is_taken_over_as_it_is(path: Path, tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "log-v1.db", path)
    async with opened(make_sqlite, path) as rig:
        orders, empty = rig.topics
        first, second = [part.id for part in orders.partitions]
        assert (orders.name, orders.options.retention_bytes, empty.name) == ("orders", 1000, "shop/empty")
        assert values_of(await rig.read(first)) == [b"a", b"b", b"c"]
        assert values_of(await rig.read(second)) == [b"d"]
        assert [dict(part.stored) for part in orders.partitions] == [{"name:billing": 1}, {}]
        assert await rig.append(first, b"a", b"b", sequence=7) == abc.Appended(Offset(0), duplicate=True)
        assert rig.store.groups() == {}
        assert await rig.ask(abc.SaveGroup("billing", b"state")) is None
    async with opened(make_sqlite, path) as rig:
        assert rig.store.groups() == {"billing": b"state"}
    async with opened(make_sqlite, tmp_path / "new.db"):
        pass
    assert shape(path) == shape(tmp_path / "new.db")


def shape(path: Path) -> list[object]:
    """Version, tables, columns and indexes of a file."""
    db = sqlite3.connect(path)
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
    columns = [(name, db.execute(f"PRAGMA table_info({name})").fetchall()) for name in names]
    version = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return [version, columns]


@pytest.mark.parametrize("damage", ["DELETE FROM batch WHERE base_offset=0", "UPDATE partition SET log_end=9"])
async def test_tables_that_contradict_each_other_are_refused(path: Path, damage: str) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        await rig.append(part, b"b")
    with sqlite3.connect(path) as db:
        db.execute(damage)
    db.close()
    error = open_error(path)
    assert isinstance(error, DataError)
    assert "t[0]" in str(error)


async def test_damaged_pages_are_refused(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        for _ in range(50):
            await rig.append(part, b"v" * 1000)
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    assert isinstance(open_error(path), DataError)


@pytest.mark.parametrize(
    ("error", "kind"), [(BUSY, LogBusy), (FULL, LogFull), (IO_ERROR, LogUnavailable), (CONSTRAINT, LogUnavailable)]
)
async def test_what_goes_wrong_while_opening_has_its_type(
    path: Path, faulty: FaultyDatabase, error: Callable[[], sqlite3.Error], kind: type[TarryError]
) -> None:
    faulty.fail("PRAGMA synchronous", error)
    raised = open_error(path, faulty)
    assert type(raised) is kind
    assert str(path) in str(raised)
    async with opened(make_sqlite, path):
        pass


# --- commits ---


@rule("W5")
async def test_what_is_answered_is_committed(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        other = sqlite3.connect(path)
        for number in range(20):
            await rig.append(part, b"v")
            assert other.execute("SELECT max(base_offset) FROM batch").fetchone() == (number,)
        other.close()


@rule("W1", "W6")
async def test_appends_of_one_transaction_share_rows_up_to_the_limits_of_a_batch(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        first, second, third = await rig.topic(partitions=3)
        many: list[abc.Job] = [abc.Append(third, batch_of(*[b"v"] * 400)) for _ in range(3)]
        jobs = [*appends(first, *[b"v"] * 64), *appends(second, *[b"v" * 60 * KIB] * 9), *many]
        assert all(isinstance(answer, abc.Appended) for answer in await rig.ask_all(jobs))
        other = sqlite3.connect(path)
        rows = other.execute("SELECT partition_id, base_offset, count, bytes FROM batch ORDER BY id").fetchall()
        other.close()
        assert [row[:3] for row in rows] == [
            (first, 0, 64),
            *((second, 0, 4), (second, 4, 4), (second, 8, 1)),
            *((third, 0, 800), (third, 800, 400)),
        ]
        assert max(row[3] for row in rows) <= BATCH_BYTES_MAX


async def test_a_batch_of_too_many_records_is_refused(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        with pytest.raises(BatchTooLarge, match="1001 records"):
            await rig.append(part, *[b"v"] * 1001)


async def test_memory_and_listener_come_before_the_callers(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic(retention_bytes=10)
        answered = anyio.Event()

        def done(_: object) -> None:
            rig.listener.log.append("done")
            assert rig.store.read(abc.Query(part, Position(0), 1, 1)) == abc.Selection(())
            answered.set()

        rig.store.submit(abc.Append(part, batch_of(b"v" * 20)), done)
        await answered.wait()
        assert rig.listener.log == ["committed", "trimmed", "done"]


async def test_time_in_the_file_never_goes_back(path: Path) -> None:
    clock = WallClock()
    async with opened(make_sqlite, path, clock=clock) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        clock.wall -= 5000
        await rig.append(part, b"b")
    async with opened(make_sqlite, path, clock=clock) as rig:
        await rig.append(part, b"c")
        other = sqlite3.connect(path)
        assert other.execute("SELECT count(DISTINCT appended_at) FROM batch").fetchone() == (1,)
        other.close()


async def test_a_copy_taken_at_any_moment_opens_with_all_that_was_answered(path: Path, tmp_path: Path) -> None:
    """As after a kill: the file and its write-ahead file as they are, nobody closed anything."""
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        for number in range(30):
            await rig.append(part, b"%d" % number)
        await rig.store_offset(part, 12)
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("orders.db", "orders.db-wal"):
            shutil.copy(path.with_name(name), copy / name)
    async with opened(make_sqlite, copy / "orders.db") as rig:
        ((state,),) = [topic.partitions for topic in rig.topics]
        assert (state.log_end, dict(state.stored)) == (30, {"name:x": 12})
        assert values_of(await rig.read(part)) == [b"%d" % number for number in range(30)]
        assert (await rig.append(part, b"next")).base == 30


@pytest.mark.slow
@rule("K39")
async def test_cancelled_callers_leave_no_transaction_open(path: Path) -> None:
    choose = random.Random(39)
    answers: dict[int, list[object]] = {}
    withdrawn: set[int] = set()
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        other = sqlite3.connect(path, isolation_level=None, timeout=10)
        for number in range(200):
            answers[number] = []
            ticket = rig.store.submit(abc.Append(part, batch_of(b"%d" % number)), answers[number].append)
            for _ in range(choose.randrange(4)):
                await anyio.sleep(choose.choice([0, 0, 0.001]))
            if rig.store.withdraw(ticket):
                withdrawn.add(number)
            other.execute("BEGIN IMMEDIATE")  # Waits while a commit runs; never for a transaction somebody left open.
            other.execute("ROLLBACK")
        await rig.append(part, b"last")
        other.close()
        stored = [int(value or b"") for value in values_of(await rig.read(part, where="disk"))[:-1]]
    assert stored == [number for number in range(200) if number not in withdrawn]
    assert all(not answers[number] for number in withdrawn)
    assert all(len(answers[number]) == 1 for number in stored)
    assert 0 < len(withdrawn) < 200


# --- a job that fails ---


@rule("W8", "W23")
async def test_a_failing_statement_undoes_its_job_alone(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("INSERT INTO stored_offset", CONSTRAINT, skip=1)
        jobs = [
            *appends(part, b"a"),
            abc.StoreOffset(part, "name:x", Offset(1)),
            abc.StoreOffset(part, "name:poison", Offset(2)),
            abc.StoreOffset(part, "name:y", Offset(3)),
            *appends(part, b"b"),
        ]
        first, x, poison, y, last = await rig.ask_all(jobs)
        assert [first, last] == appended(0, 1)
        assert (x, y) == (abc.Stored(Offset(1)), abc.Stored(Offset(3)))
        assert isinstance(poison, NotAccepted)
        assert isinstance(poison.__cause__, sqlite3.Error)
        assert faulty.count("COMMIT") == 2  # One for the topic.
    async with opened(make_sqlite, path) as rig:
        assert dict(rig.topics[0].partitions[0].stored) == {"name:x": 1, "name:y": 3}


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "SAVEPOINT", "RELEASE", "INSERT INTO batch", "COMMIT"])
@rule("W9", "W10")
async def test_a_transaction_that_cannot_be_done_is_tried_job_by_job(
    path: Path, faulty: FaultyDatabase, statement: str
) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail(statement, CONSTRAINT)
        jobs = [*appends(part, b"a"), abc.StoreOffset(part, "name:x", Offset(0)), *appends(part, b"b")]
        a, stored, b = await rig.ask_all(jobs)
        assert [a, b] == appended(0, 1)
        assert stored == abc.Stored(Offset(0))
        assert values_of(await rig.read(part, where="disk")) == [b"a", b"b"]
        assert rig.listener.reopenings == []


@rule("W10", "W6")
async def test_a_commit_that_proves_a_rollback_fails_only_its_cause(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("COMMIT", CONSTRAINT)  # The three together,
        faulty.fail("COMMIT", CONSTRAINT, skip=1)  # and then the second of them alone.
        a, poison, c = await rig.ask_all(appends(part, b"a", b"poison", b"c"))
        assert [a, c] == appended(0, 1)
        assert isinstance(poison, NotAccepted)
        assert values_of(await rig.read(part)) == values_of(await rig.read(part, where="disk")) == [b"a", b"c"]


@rule("W7")
async def test_a_stamp_of_a_rolled_back_append_is_not_remembered(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("COMMIT", FULL)
        with pytest.raises(LogFull):
            await rig.append(part, b"a", sequence=1)
        assert await rig.append(part, b"a", sequence=1) == abc.Appended(Offset(0), duplicate=False)
        assert await rig.append(part, b"a", sequence=1) == abc.Appended(Offset(0), duplicate=True)


@rule("W8")
async def test_a_deletion_that_fails_takes_no_append_with_it(path: Path, faulty: FaultyDatabase) -> None:
    """Appends of the same transaction are written in front of its savepoint."""
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic("t")
        (other,) = await rig.topic("other")
        faulty.fail("DELETE FROM topic", CONSTRAINT)
        faulty.fail("DELETE FROM sequence WHERE (", CONSTRAINT)
        jobs = [*appends(part, b"a"), *appends(other, b"b"), abc.DeleteTopic("t"), abc.Retain(), *appends(part, b"c")]
        answers = await rig.ask_all(jobs)
        assert [type(answer) for answer in answers[2:4]] == [NotAccepted, NotAccepted]
        assert [answers[0], answers[1], answers[4]] == appended(0, 0, 1)
        assert values_of(await rig.read(part, where="disk")) == [b"a", b"c"]
        assert values_of(await rig.read(other, where="disk")) == [b"b"]
    async with opened(make_sqlite, path) as rig:
        assert [topic.name for topic in rig.topics] == ["other", "t"]


# --- busy ---


@rule("K14", "W23")
async def test_a_foreign_write_lock_is_waited_for_and_the_loop_goes_on(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answers: list[object] = []
        rig.store.submit(abc.Append(part, batch_of(b"a")), answers.append)
        for _ in range(100):  # Turns of the loop, while the writer waits.
            await anyio.sleep(0.001)
        assert answers == []
        assert values_of(await rig.read(part, where="disk")) == []  # Reads go on too.
        other.execute("ROLLBACK")
        await until(lambda: answers)
        assert answers == appended(0)
        other.close()


@rule("K14")
async def test_beyond_the_busy_limit_nothing_is_written_and_everybody_is_told(path: Path) -> None:
    async with opened(make_sqlite, path, LogOptions(busy_timeout=0.1)) as rig:
        (part,) = await rig.topic()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answers = await rig.ask_all([*appends(part, b"a", b"b"), abc.StoreOffset(part, "name:x", Offset(0))])
        assert [type(answer) for answer in answers] == [LogBusy, LogBusy, LogBusy]
        assert len({id(answer) for answer in answers}) == 3
        assert "0.1 s" in str(answers[0])
        other.execute("ROLLBACK")
        other.close()
        assert await rig.append(part, b"c") == abc.Appended(Offset(0), duplicate=False)
        assert values_of(await rig.read(part, where="disk")) == [b"c"]


@rule("W23")
async def test_a_commit_that_is_busy_is_asked_again(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("COMMIT", BUSY, times=3)
        assert await rig.append(part, b"a") == abc.Appended(Offset(0), duplicate=False)
        assert faulty.count("COMMIT") == 5


@rule("W23", "K14")
async def test_a_commit_that_stays_busy_is_rolled_back(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path, LogOptions(busy_timeout=0.05)) as rig:
        (part,) = await rig.topic()
        faulty.fail("COMMIT", BUSY, times=1_000_000)
        with pytest.raises(LogBusy):
            await rig.append(part, b"a")
        faulty.faults.clear()
        other = sqlite3.connect(path, isolation_level=None, timeout=0)
        other.execute("BEGIN IMMEDIATE")  # The lock is free.
        other.execute("ROLLBACK")
        other.close()
        assert await rig.append(part, b"b") == abc.Appended(Offset(0), duplicate=False)


# --- full ---


async def test_a_full_disk_fails_appends_and_a_deletion_makes_room(path: Path, faulty: FaultyDatabase) -> None:
    faulty.setup = ["PRAGMA max_page_count=200"]
    async with opened(faulty.make, path) as rig:
        (victim,) = await rig.topic("victim")
        (part,) = await rig.topic("t")
        await rig.append(victim, b"v" * 400 * KIB)
        await rig.append(part, b"a")
        with pytest.raises(LogFull, match="nothing was written"):
            await rig.append(part, b"v" * 600 * KIB)
        assert await rig.append(part, b"b") == abc.Appended(Offset(1), duplicate=False)
        full, gone = await rig.ask_all([*appends(part, b"v" * 600 * KIB), abc.DeleteTopic("victim")])
        assert (type(full), gone) == (LogFull, None)
        assert await rig.append(part, b"v" * 600 * KIB) == abc.Appended(Offset(2), duplicate=False)
        assert offsets_of(await rig.read(part, where="disk")) == [0, 1, 2]
        assert rig.listener.reopenings == []
    async with opened(make_sqlite, path) as rig:
        assert [topic.name for topic in rig.topics] == ["t"]


async def test_a_commit_without_space_is_rolled_back_for_everybody(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("COMMIT", FULL, times=2)
        answers = await rig.ask_all([*appends(part, b"a"), abc.StoreOffset(part, "name:x", Offset(0))])
        assert [type(answer) for answer in answers] == [LogFull, LogFull]
        assert await rig.append(part, b"b") == abc.Appended(Offset(0), duplicate=False)


# --- fail-stop ---


@pytest.mark.parametrize("statement", ["COMMIT", "INSERT INTO batch", "BEGIN IMMEDIATE", "SAVEPOINT"])
async def test_an_io_error_is_an_unknown_outcome_and_the_file_is_opened_again(
    path: Path, faulty: FaultyDatabase, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a", sequence=1)
        await rig.read(part, where="disk")
        stamped = abc.Append(part, batch_of(b"b"), ProducerStamp(PRODUCER, 2))
        await rig.do(abc.SaveGroup("g", b"1"))
        faulty.fail(statement, IO_ERROR)
        answers = await rig.ask_all([stamped, abc.StoreOffset(part, "name:x", Offset(0)), abc.SaveGroup("g", b"2")])
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
        assert (rig.listener.groups_then, rig.store.groups()) == ([{"g": b"1"}], {"g": b"1"})
        assert isinstance(getattr(answers[0], "__cause__", None), sqlite3.Error)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        ((topic,),) = rig.listener.reopenings
        assert [(state.log_end, dict(state.stored)) for state in topic.partitions] == [(1, {})]
        assert await rig.do(stamped) == abc.Appended(Offset(1), duplicate=False)
        assert values_of(await rig.read(part, where="disk")) == [b"a", b"b"]
        assert len(faulty.connections) == 4  # The reader is a new one, too.
        assert rig.listener.failures == []


async def test_a_commit_whose_answer_was_lost_is_found_after_reopening(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        faulty.fail("COMMIT", IO_ERROR, after=True)
        stamped = abc.Append(part, batch_of(b"b"), ProducerStamp(PRODUCER, 2))
        topic = abc.CreateTopic("new", TopicOptions())
        group = abc.SaveGroup("g", b"1")
        jobs: list[abc.Job] = [stamped, abc.StoreOffset(part, "name:x", Offset(0)), topic, group]
        assert [type(answer) for answer in await rig.ask_all(jobs)] == [OutcomeUnknown] * 4
        assert (rig.listener.groups_then, rig.store.groups()) == ([{"g": b"1"}], {"g": b"1"})
        (topics,) = rig.listener.reopenings
        assert [(topic.name, topic.partitions[0].log_end) for topic in topics] == [("new", 0), ("t", 2)]
        assert dict(topics[1].partitions[0].stored) == {"name:x": 0}
        assert rig.store.read(abc.Query(part, Position(2), 1, 1)) == abc.Selection(())
        assert values_of(await rig.read(part)) == [b"a", b"b"]
        assert await rig.do(stamped) == abc.Appended(Offset(1), duplicate=True)
        (new,) = [state.id for state in topics[0].partitions]
        assert (await rig.append(new, b"n")).base == 0
        assert values_of(await rig.read(new)) == [b"n"]


@rule("K56")
@pytest.mark.parametrize("is_committed", [False, True])
async def test_growth_whose_outcome_was_lost_is_found_after_reopening(
    path: Path, faulty: FaultyDatabase, is_committed: bool
) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        faulty.fail("COMMIT", IO_ERROR, after=is_committed)
        assert isinstance(await rig.ask(abc.GrowTopic("t", 3)), OutcomeUnknown)
        ((topic,),) = rig.listener.reopenings
        assert len(topic.partitions) == topic.options.partitions == (3 if is_committed else 1)
        grown = await rig.do(abc.GrowTopic("t", 3))
        assert isinstance(grown, abc.TopicState)
        assert [part.number for part in grown.partitions] == [0, 1, 2]
        assert (await rig.append(grown.partitions[2].id, b"b")).base == 0


@rule("K56")
async def test_growth_that_the_disk_has_no_room_for_leaves_the_topic_as_it_was(
    path: Path, faulty: FaultyDatabase
) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("INSERT INTO partition", FULL)
        assert isinstance(await rig.ask(abc.GrowTopic("t", 3)), LogFull)
        grown = await rig.do(abc.GrowTopic("t", 2))
        assert isinstance(grown, abc.TopicState)
        assert [state.number for state in grown.partitions] == [0, 1]
        assert grown.partitions[0].id == part


async def test_a_log_that_cannot_be_opened_again_is_unavailable(path: Path, faulty: FaultyDatabase) -> None:
    with nothing_left():
        async with opened(faulty.make, path) as rig:
            (part,) = await rig.topic()
            await rig.append(part, b"a")
            faulty.fail("COMMIT", IO_ERROR)
            faulty.fail("PRAGMA synchronous", IO_ERROR)
            with pytest.raises(OutcomeUnknown):
                await rig.append(part, b"b")
            assert [type(error) for error in rig.listener.failures] == [LogUnavailable]
            with pytest.raises(LogUnavailable, match="cannot be opened again"):
                await rig.append(part, b"c")
            assert values_of(await rig.read(part)) == [b"a"]  # What is in memory is still served.
        del rig
    async with opened(make_sqlite, path) as rig:
        assert values_of(await rig.read(part)) == [b"a"]


@rule("W5")
@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_confirmed_that_nobody_will_find(path: Path, replaced: bool) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        path.rename(path.with_name("moved.db"))
        if replaced:
            path.write_bytes(b"of somebody else")
        for value in (b"b", b"c"):
            with pytest.raises(LogUnavailable, match="is gone"):
                await rig.append(part, value)
        assert [type(error) for error in rig.listener.failures] == [LogUnavailable]
    path.with_name("moved.db").rename(path)
    async with opened(make_sqlite, path) as rig:
        assert values_of(await rig.read(part)) == [b"a"]


@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_read_from_a_file_that_took_the_place_of_ours(path: Path, replaced: bool) -> None:
    other = path.with_name("other.db")
    for file, value in ((other, b"b"), (path, b"a")):
        async with opened(make_sqlite, file) as rig:
            (part,) = await rig.topic()
            await rig.append(part, value)
    async with opened(make_sqlite, path) as rig:
        (part,) = (part.id for topic in rig.topics for part in topic.partitions)
        path.unlink()
        if replaced:
            other.rename(path)
        with pytest.raises(LogUnavailable, match="is gone"):
            await rig.read(part, where="disk")
        assert path.exists() == replaced
        assert isinstance(rig.store, SqliteStore)
        assert rig.store._readers is not None
        assert rig.store._readers.oldest() is None  # else each warning of the write-ahead file blames that read


async def test_a_file_that_vanished_is_not_made_anew(path: Path, faulty: FaultyDatabase) -> None:
    def vanish() -> sqlite3.Error:
        path.unlink()
        return IO_ERROR()

    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("COMMIT", vanish)
        with pytest.raises(OutcomeUnknown):
            await rig.append(part, b"b")
        with pytest.raises(LogUnavailable, match="is gone"):
            await rig.append(part, b"c")
        assert not path.exists()


@rule("W15")
async def test_a_mistake_in_the_writer_leaves_nobody_hanging(path: Path, faulty: FaultyDatabase) -> None:
    def act() -> None:
        raise ZeroDivisionError

    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        faulty.fail("INSERT INTO batch", IO_ERROR)
        faulty.faults[-1].act = act
        with pytest.raises(OutcomeUnknown):
            await rig.append(part, b"a")
        with pytest.raises(LogUnavailable):
            await rig.append(part, b"b")
    async with opened(make_sqlite, path) as rig:
        assert values_of(await rig.read(part)) == []


async def test_a_foreign_write_to_the_log_is_loud_and_final(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        with sqlite3.connect(path) as other:
            other.execute("UPDATE partition SET log_end=5")
        other.close()
        answers = await rig.ask_all([*appends(part, b"b"), abc.StoreOffset(part, "name:x", Offset(0))])
        assert [type(answer) for answer in answers] == [LogUnavailable, LogUnavailable]
        ((failure),) = rig.listener.failures
        assert isinstance(failure, DataError)
        assert "t[0] should end at offset 1, it ends at 5" in str(failure)
        with pytest.raises(LogUnavailable, match="another program"):
            await rig.append(part, b"c")


async def test_foreign_writes_and_checkpoints_that_leave_the_log_alone_are_fine(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        assert (await rig.append(part, b"b")).base == 1
        other.execute("CREATE TABLE notes (text)")
        other.close()
        assert (await rig.append(part, b"c")).base == 2


# --- reads ---


async def test_a_disk_read_never_shows_what_is_not_announced(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a", b"b")
        gate = faulty.hold("COMMIT", after=True)
        answers: list[object] = []
        rig.store.submit(abc.Append(part, batch_of(b"c")), answers.append)
        await until(gate.reached.is_set)
        assert offsets_of(await rig.read(part, 1, where="disk")) == [1]
        assert offsets_of(await rig.read(part, 2, where="disk")) == []
        assert await rig.find_time(part, 1 << 60) == 2
        gate.opened.set()
        await until(lambda: answers)
        assert offsets_of(await rig.read(part, 1, where="disk")) == [1, 2]


async def test_a_read_of_a_deleted_topic_says_so(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        await rig.do(abc.DeleteTopic("t"))
        assert rig.store.read(abc.Query(part, Position(0), 1, 1)) is None
        assert rig.store.bytes_between(part, Position(0)) == 0
        for read in (rig.read(part, where="disk"), rig.find_time(part, 0)):
            with pytest.raises(TopicNotFound):
                await read


@rule("S45", "S43")
async def test_a_read_takes_no_more_rows_from_the_disk_than_it_can_return(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path, FAST) as rig:
        (part,) = await rig.topic(max_record_bytes=4 * MIB)
        for _ in range(10):
            await rig.append(part, *[b"v" * 20 * KIB] * 10)
        await rig.append(part, b"v" * 3 * MIB)
        selection = await rig.read(part, limit=MIB, where="disk")
        assert selection.size <= MIB < selection.size + 21 * KIB
        assert faulty.count("BLOB batch.records") == 6
        faulty.statements.clear()
        assert offsets_of(await rig.read(part, 95, limit=MIB, where="disk")) == [95, 96, 97, 98, 99]
        assert faulty.count("BLOB batch.records") == 1  # The large one that follows is looked at, not read.
        assert offsets_of(await rig.read(part, 100, limit=MIB, where="disk")) == [100]


@pytest.mark.parametrize("size", [100, 20 * KIB], ids=["read at once", "read on demand"])
async def test_damage_is_found_where_it_lies(path: Path, size: int) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        for number in range(5):
            await rig.append(part, *[b"%d" % number * size] * 2)
    with sqlite3.connect(path) as db:
        (records,) = db.execute("SELECT records FROM batch WHERE base_offset=4").fetchone()
        db.execute("UPDATE batch SET records=? WHERE base_offset=4", (records[:-1] + b"!",))
    db.close()
    async with opened(make_sqlite, path) as rig:
        assert offsets_of(await rig.read(part)) == [0, 1, 2, 3]  # What lies in front is served first.
        for position in (4, 5):
            with pytest.raises(DataError, match=r"orders\.db: t\[0\] offsets 4 to 5 are damaged: checksum"):
                await rig.read(part, position)
        assert offsets_of(await rig.read(part, 6)) == [6, 7, 8, 9]


async def test_a_missing_row_is_damage_too(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        for number in range(5):
            await rig.append(part, b"%d" % number)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM batch WHERE base_offset=2")
    db.close()
    async with opened(make_sqlite, path) as rig:
        assert offsets_of(await rig.read(part)) == [0, 1]
        with pytest.raises(DataError, match=r"offsets 2 to 2 are damaged: they are missing"):
            await rig.read(part, 2)
        assert offsets_of(await rig.read(part, 3)) == [3, 4]


async def test_a_reader_that_fails_is_replaced(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        faulty.fail("BEGIN", IO_ERROR, skip=0)
        with pytest.raises(LogUnavailable, match=r"orders\.db"):
            await rig.read(part, where="disk")
        assert values_of(await rig.read(part, where="disk")) == [b"a"]
        assert rig.listener.reopenings == []


async def test_at_most_four_reads_run_at_once_and_closing_waits_for_them(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a")
        gates = [faulty.hold("BEGIN") for _ in range(6)]
        answers: list[object] = []
        for _ in range(6):
            rig.store.read_disk(abc.Query(part, Position(0), 1, 1), answers.append)
        await until(lambda: all(gate.reached.is_set() for gate in gates[:4]))
        assert not gates[4].reached.is_set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.store.aclose)
            await anyio.lowlevel.checkpoint()
            for gate in gates:
                gate.opened.set()
        assert [type(answer) for answer in answers] == [abc.Selection] * 6


async def test_bytes_on_the_disk_are_estimated(path: Path) -> None:
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        for _ in range(10):
            await rig.append(part, *[b"v" * 100] * 10)
    async with opened(make_sqlite, path) as rig:
        whole = (await rig.read(part)).size
        assert rig.store.bytes_between(part, Position(0)) == whole
        assert rig.store.bytes_between(part, Position(25)) == whole * 3 // 4
        await rig.append(part, b"v" * 1000)
        resident = (await rig.read(part, 100, where="memory")).size
        assert rig.store.bytes_between(part, Position(100)) == resident
        assert rig.store.bytes_between(part, Position(50)) == whole // 2 + resident


# --- housekeeping ---


async def test_a_checkpoint_comes_in_an_idle_moment_when_it_is_worth_it(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(faulty.make, path, FAST) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"small")
        await rig.append(part, b"v" * 900 * KIB)
        await rig.append(part, b"v" * 300 * KIB)
        await until(lambda: path.stat().st_size > MIB)
        assert faulty.count("PRAGMA wal_checkpoint") == 1


def test_a_checkpoint_is_forced_at_1000_pages_under_load(tmp_path: Path) -> None:
    db = FaultyDatabase()
    writer = wal.WriteAhead(str(tmp_path / "a.db"), MIB, lambda: None)
    connection = db.connect(str(tmp_path / "a.db"), isolation_level=None)
    row = abc.Row(abc.PartitionId(1), Offset(0), batch_of(b"v" * 240 * KIB))
    pauses: list[float | None] = []
    for _ in range(16):
        writer.wrote([row])
        pauses.append(writer.rest(connection))
    connection.close()
    assert db.count("PRAGMA wal_checkpoint(PASSIVE)") == 1
    assert pauses[0] is None
    assert pauses[7] == wal.IDLE_S


@rule("K26")
async def test_the_write_ahead_file_stays_small_under_load(path: Path) -> None:
    largest = 0
    async with opened(make_sqlite, path, FAST) as rig:
        (part,) = await rig.topic()
        for number in range(100):
            await rig.append(part, b"v" * 200 * KIB)
            if number % 10 == 0:
                await rig.read(part, number, count=1, where="disk")
            largest = max(largest, path.with_name("orders.db-wal").stat().st_size)
    assert largest < 8 * MIB


@rule("K26")
async def test_a_foreign_reader_that_pins_the_file_is_reported_once_and_then_it_shrinks(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wal, "RETRY_S", 0.01)
    side = path.with_name("orders.db-wal")
    async with opened(make_sqlite, path, LogOptions(durability="memory", wal_warn_bytes=2 * MIB)) as rig:
        (part,) = await rig.topic()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN")
        other.execute("SELECT * FROM batch").fetchall()
        for _ in range(60):
            await rig.append(part, b"v" * 200 * KIB)
        await until(lambda: caplog.records)
        assert side.stat().st_size > 10 * MIB
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: side.stat().st_size <= 4 * MIB)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "orders.db-wal has grown to" in record.getMessage()
        assert "another program" in record.getMessage()


@rule("K26")
async def test_a_reader_of_ours_that_pins_the_file_is_named(
    path: Path, faulty: FaultyDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wal, "RETRY_S", 0.01)
    async with opened(faulty.make, path, LogOptions(durability="memory", wal_warn_bytes=2 * MIB)) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"v")
        gate = faulty.hold("SELECT id, base_offset", after=True)
        answers: list[object] = []
        rig.store.read_disk(abc.Query(part, Position(0), 1, 1), answers.append)
        await until(gate.reached.is_set)
        for _ in range(20):
            await rig.append(part, b"v" * 200 * KIB)
        await until(lambda: caplog.records)
        gate.opened.set()
        await until(lambda: answers)
        assert f"a read of partition {part} from offset 0 in this process" in caplog.records[0].getMessage()


async def test_housekeeping_that_fails_is_tried_again(
    path: Path, faulty: FaultyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.brokers.local.writer.RETRY_S", 0.01)
    async with opened(faulty.make, path, FAST) as rig:
        (part,) = await rig.topic()
        faulty.fail("PRAGMA wal_checkpoint", BUSY)
        faulty.fail("PRAGMA wal_checkpoint", IO_ERROR)
        await rig.append(part, b"v" * 900 * KIB)
        await rig.append(part, b"v" * 300 * KIB)
        await until(lambda: faulty.count("PRAGMA wal_checkpoint(TRUNCATE)"))
        assert (await rig.append(part, b"w")).base == 2
        assert len(rig.listener.reopenings) == 1


async def test_space_of_what_was_deleted_goes_back_to_the_file_system(path: Path, faulty: FaultyDatabase) -> None:
    async with opened(make_sqlite, path, FAST) as rig:
        (part,) = await rig.topic()
        for _ in range(20):
            await rig.append(part, b"v" * 200 * KIB)
    large = path.stat().st_size
    async with opened(faulty.make, path, FAST) as rig:
        await rig.do(abc.DeleteTopic("t"))
        other = sqlite3.connect(path)
        await until(lambda: other.execute("PRAGMA freelist_count").fetchone() == (0,))
        other.close()
        assert faulty.count("PRAGMA freelist_count") == 4  # 1,000 pages, 256 at a time.
    assert path.stat().st_size < large // 10


@rule("K40")
async def test_offsets_go_on_after_a_vacuum_of_an_emptied_log(path: Path) -> None:
    clock = WallClock()
    async with opened(make_sqlite, path, clock=clock) as rig:
        (part,) = await rig.topic(retention_age=1.0)
        await rig.append(part, *[b"v"] * 10)
        clock.wall += 1000
        await rig.do(abc.Retain())
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM batch").fetchone() == (0,)
    db.execute("VACUUM")
    db.close()
    async with opened(make_sqlite, path) as rig:
        assert (await rig.append(part, b"new")).base == 10
        assert values_of(await rig.read(part, 10)) == [b"new"]


async def test_what_a_producer_sent_is_forgotten_after_a_week_without_it(path: Path) -> None:
    week = 7 * 24 * 3600 * 1000
    clock = WallClock()
    async with opened(make_sqlite, path, clock=clock) as rig:
        (part,) = await rig.topic()
        await rig.append(part, b"a", sequence=1)
        clock.wall += week
        await rig.do(abc.Retain())
        assert (await rig.append(part, b"a", sequence=1)).duplicate
        clock.wall += 1
        await rig.do(abc.Retain())
        assert not (await rig.append(part, b"a", sequence=1)).duplicate


async def test_a_clock_that_was_wrong_for_a_moment_costs_no_message(path: Path) -> None:
    clock = WallClock()
    async with opened(make_sqlite, path, clock=clock) as rig:
        (part,) = await rig.topic(retention_age=60.0)
        await rig.append(part, b"a")
        clock.wall += 3600 * 1000
        await rig.append(part, b"b")
        clock.wall -= 3599 * 1000
        await rig.do(abc.Retain())
        assert values_of(await rig.read(part)) == [b"a", b"b"]
        clock.wall += 59 * 1000
        await rig.do(abc.Retain())
        assert values_of(await rig.read(part, 1)) == [b"b"]
        assert [trim.log_start for trim in rig.listener.trims] == [1]


async def test_producers_that_are_gone_leave_nothing_without_any_retention_either(path: Path) -> None:
    """A program that is started every minute is another producer each time; in one log that stays open, or in many."""
    clock = WallClock()
    for _ in range(2):
        async with opened(make_sqlite, path, clock=clock) as rig:
            (part,) = await rig.topic(f"t{clock.wall}")
            for _ in range(3):
                clock.wall += 4 * 24 * 3600 * 1000
                await rig.do(abc.Append(part, batch_of(b"a"), ProducerStamp(b"%016d" % clock.wall, 0)))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM sequence").fetchone() == (2,)


async def test_what_a_producer_sent_is_forgotten_with_its_messages_an_hour_later(path: Path) -> None:
    clock = WallClock()
    async with opened(make_sqlite, path, clock=clock) as rig:
        (part,) = await rig.topic(retention_age=60.0)
        await rig.append(part, b"a", sequence=1)
        clock.wall += 3600 * 1000
        await rig.do(abc.Retain())
        assert (await rig.append(part, b"a", sequence=1)).duplicate  # Retries end long before.
        clock.wall += 1
        await rig.do(abc.Retain())
        assert not (await rig.append(part, b"a", sequence=1)).duplicate


@pytest.mark.slow
async def test_the_file_keeps_no_more_sequences_than_the_window_and_some(path: Path) -> None:
    async with opened(make_sqlite, path, FAST) as rig:
        (part,) = await rig.topic()
        for sequence in range(1500):
            await rig.append(part, b"v", sequence=sequence)
        other = sqlite3.connect(path)
        ((rows,),) = other.execute("SELECT count(*) FROM sequence").fetchall()
        other.close()
        assert 1024 <= rows <= 1024 + 256


async def test_windows_that_memory_has_no_room_for_come_back_from_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.brokers.local.sequences.WINDOWS_MAX", 2)
    async with opened(make_sqlite, path) as rig:
        (part,) = await rig.topic()
        stamps = [ProducerStamp(bytes([number]) * 16, 1) for number in range(5)]
        jobs = [abc.Append(part, batch_of(b"v"), stamp) for stamp in stamps]
        assert await rig.ask_all(jobs) == appended(0, 1, 2, 3, 4)
        repeated = [abc.Appended(Offset(base), duplicate=True) for base in range(5)]
        assert [await rig.do(job) for job in jobs] == repeated
        assert await rig.ask_all(jobs) == repeated
