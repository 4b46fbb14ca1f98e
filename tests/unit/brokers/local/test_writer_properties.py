"""Rounds of random jobs: the SQLite writer does what the memory store does one job after the other.

The writer runs here without its thread. Faults at random moments must change nothing but the answers of that round.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry import abc
from tarry.brokers.local.committer import Content
from tarry.brokers.local.database import identify_file, open_reader
from tarry.brokers.local.reader import _read
from tarry.brokers.local.store_memory import MemoryStore
from tarry.brokers.local.tables import Tables
from tarry.brokers.local.writer import Writer
from tarry.config import LogOptions, TopicOptions
from tarry.errors import OutcomeUnknown, TarryError
from tarry.types import Offset, Position, ProducerStamp
from tests.marks import rule
from tests.unit.brokers.local.store_rig import (
    CONSTRAINT,
    FULL,
    IO_ERROR,
    FaultyDatabase,
    Listener,
    WallClock,
    batch_of,
)

pytestmark = pytest.mark.slow
TOPICS = ("plain", "small", "young", "tiny records")
OPTIONS = {
    "plain": TopicOptions(partitions=2),
    "small": TopicOptions(retention_bytes=120),
    "young": TopicOptions(retention_age=5.0),
    "tiny records": TopicOptions(max_record_bytes=30),
}
PARTITIONS = st.integers(1, 12).map(abc.PartitionId)
STAMPS = st.builds(ProducerStamp, st.sampled_from([b"a" * 16, b"b" * 16]), st.sampled_from([0, 1, 2, 3, 1024, 1030]))
VALUES = st.lists(st.sampled_from([b"", b"v" * 10, b"v" * 40]), min_size=1, max_size=3)
APPENDS = st.builds(abc.Append, PARTITIONS, VALUES.map(lambda values: batch_of(*values)), st.none() | STAMPS)
STORES = st.builds(
    abc.StoreOffset,
    PARTITIONS,
    st.sampled_from(["name:x", "group:x"]),
    st.none() | st.integers(0, 9).map(Offset),
    st.booleans(),
    st.none() | st.builds(abc.Expected, st.none() | st.integers(0, 9).map(Offset)),
)
GROUPS = st.builds(abc.SaveGroup, st.sampled_from(["a", "b"]), st.none() | st.binary(max_size=2))
TOPIC_JOBS = st.sampled_from(TOPICS).flatmap(
    lambda name: st.sampled_from([abc.CreateTopic(name, OPTIONS[name]), abc.DeleteTopic(name)])
)
JOBS = st.one_of(APPENDS, APPENDS, APPENDS, STORES, GROUPS, TOPIC_JOBS, st.just(abc.Retain()))
MakeError = Callable[[], sqlite3.Error]
ROUNDS = st.lists(st.tuples(st.lists(JOBS, min_size=1, max_size=8), st.integers(0, 3000)), max_size=8)


@contextmanager
def file_writer(clock: WallClock, faulty: FaultyDatabase) -> Generator[tuple[Writer, Path]]:
    with TemporaryDirectory() as directory:
        path = Path(directory, "a.db")
        writer = Writer(
            str(path),
            LogOptions(durability="memory", busy_timeout=0),
            clock,
            connect=faulty.connect,
            reader=lambda: None,
            retire_readers=lambda: None,
        )
        try:
            yield writer, path
        finally:
            writer.finish()


def plain(result: abc.JobResult | TarryError) -> object:
    """Errors by their kind: the two stores use their own words."""
    return type(result) if isinstance(result, TarryError) else result


def model_results(model: MemoryStore, jobs: list[abc.Job]) -> list[object]:
    answers: list[object] = []
    for job in jobs:
        model.submit(job, lambda result: answers.append(plain(result)))
    return answers


def reread(path: Path, clock: WallClock) -> Content:
    """What the file says by itself."""
    db = open_reader(str(path), identify_file(str(path)), sqlite3.connect)
    try:
        return by_name(Tables(db, str(path), clock).content())
    finally:
        db.close()


def by_name(content: Content) -> Content:
    return Content(sorted(content.topics, key=lambda topic: topic.name), content.groups)


def runs_of(path: Path, partition: abc.PartitionId) -> bytes:
    """All retained records of a partition, as a reader finds them."""
    db = open_reader(str(path), identify_file(str(path)), sqlite3.connect)
    try:
        runs = _read(db, str(path), abc.Query(partition, Position(0), 100_000, 1 << 30))
    finally:
        db.close()
    return b"".join(run.payload for run in runs)


@rule("W6", "W7", "W8")
@given(rounds=ROUNDS)
def test_a_round_does_what_its_jobs_do_one_after_the_other(rounds: list[tuple[list[abc.Job], int]]) -> None:
    clock, faulty = WallClock(), FaultyDatabase()
    model, told = MemoryStore(clock), Listener()
    model.open(told)
    rows: list[abc.Row] = []
    groups: dict[str, bytes | None] = {}
    with file_writer(clock, faulty) as (writer, path):
        first: list[abc.Job] = [abc.CreateTopic(name, OPTIONS[name]) for name in TOPICS]
        for jobs, pause in [(first, 0), *rounds]:
            jobs = [abc.Retain(), *jobs]  # Age is looked at by `Retain`; the memory store also does so at appends.
            outcome = writer.write(jobs)
            rows += outcome.changes.rows
            groups.update(outcome.changes.groups)
            assert [plain(result) for result in outcome.results] == model_results(model, jobs)
            clock.wall += pause
        content = reread(path, clock)
        assert content == by_name(writer._tables.content())
        assert content.groups == model.groups() == {name: state for name, state in groups.items() if state is not None}
        assert content == by_name(Content(model.open(told), model.groups()))
        for part in (part for topic in content.topics for part in topic.partitions):
            found = model.read(abc.Query(part.id, part.log_start, 100_000, 1 << 30))
            assert found is not None
            assert runs_of(path, part.id) == b"".join(run.payload for run in found.runs)
    announced = [(row.partition, row.base + index) for row in rows for index in range(row.batch.count)]
    expected = [(row.partition, row.base + index) for row in told.rows for index in range(row.batch.count)]
    assert sorted(announced) == sorted(expected)


@rule("W9", "W10", "K39")
@given(
    rounds=ROUNDS,
    faults=st.lists(
        st.tuples(
            st.sampled_from(["INSERT INTO batch", "UPDATE", "INSERT", "DELETE", "SAVEPOINT", "RELEASE", "COMMIT"]),
            st.sampled_from([CONSTRAINT, FULL, IO_ERROR]),
            st.integers(0, 5),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_whatever_fails_what_was_answered_is_what_the_file_holds(
    rounds: list[tuple[list[abc.Job], int]], faults: list[tuple[str, MakeError, int, bool]]
) -> None:
    """What was acknowledged is there, at its offsets; what was refused is not; only what is unknown may be either."""
    clock, faulty = WallClock(), FaultyDatabase()
    acknowledged: dict[abc.PartitionId, dict[int, int]] = {}
    unknown_count = 0
    with file_writer(clock, faulty) as (writer, path):
        writer.write([abc.CreateTopic(name, OPTIONS[name]) for name in TOPICS])
        for prefix, error, skip, after in faults:
            # Only an I/O error may hide a commit that took effect: the others prove that it did not.
            faulty.fail(prefix, error, skip=skip, after=after and (error is IO_ERROR or prefix != "COMMIT"))
        for jobs, pause in rounds:
            outcome = writer.write(jobs)
            assert outcome.fatal is None
            assert not faulty.connections[-1].in_transaction
            for job, result in zip(jobs, outcome.results, strict=True):
                if isinstance(job, abc.Append) and isinstance(result, OutcomeUnknown):
                    unknown_count += job.batch.count
                if isinstance(job, abc.Append) and isinstance(result, abc.Appended) and not result.duplicate:
                    places = acknowledged.setdefault(job.partition, {})
                    assert result.base not in places, "an offset was given twice"
                    places[result.base] = job.batch.count
            clock.wall += pause
        faulty.faults.clear()
        content = reread(path, clock)
        assert content == by_name(writer._tables.content())
        ends = {part.id: part.log_end for topic in content.topics for part in topic.partitions}
    for key in ends.keys() & acknowledged.keys():
        places = acknowledged[key]
        assert max(base + count for base, count in places.items()) <= ends[key]
        assert 0 <= ends[key] - sum(places.values()) <= unknown_count
