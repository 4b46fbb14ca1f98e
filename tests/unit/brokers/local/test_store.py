"""What every store does for the embedded log, whether it keeps its rows in a file or in memory.

Not here: what only a file can do or suffer (`test_store_sqlite`), parked polls (`test_pump`).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tarry import abc
from tarry._wire.batch import encode_record, seal
from tarry.config import LogOptions, TopicOptions
from tarry.errors import (
    BatchTooLarge,
    CapacityExceeded,
    LogUnavailable,
    MessageTooLarge,
    NotAccepted,
    OutcomeUnknown,
    TarryError,
    TopicExists,
    TopicNotFound,
)
from tarry.types import Offset, Position, ProducerStamp
from tests.marks import rule
from tests.unit.brokers.local.store_rig import (
    MIB,
    NOW_MS,
    PRODUCER,
    MakeStore,
    WallClock,
    Where,
    batch_of,
    make_memory,
    make_sqlite,
    offsets_of,
    opened,
    values_of,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "memory"])
def make(request: pytest.FixtureRequest) -> MakeStore:
    return make_sqlite if request.param == "sqlite" else make_memory()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


# --- appends and reads ---


async def test_offsets_of_each_partition_follow_each_other_from_0(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        first, second = await rig.topic(partitions=2)
        assert await rig.append(first, b"a", b"b") == abc.Appended(Offset(0), duplicate=False)
        assert await rig.append(first, b"c") == abc.Appended(Offset(2), duplicate=False)
        assert await rig.append(second, b"d") == abc.Appended(Offset(0), duplicate=False)
        assert values_of(await rig.read(first)) == [b"a", b"b", b"c"]
        assert values_of(await rig.read(second)) == [b"d"]
        assert [(row.partition, row.base, row.batch.count) for row in rig.listener.rows] == [
            (first, 0, 2),
            (first, 2, 1),
            (second, 0, 1),
        ]


@rule("W6")
async def test_what_shares_a_transaction_gets_its_own_offsets_in_order(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        first, second = await rig.topic(partitions=2)
        jobs = [abc.Append((first, second)[i % 2], batch_of(*[b"%d" % i] * (i % 3 + 1))) for i in range(20)]
        answers = await rig.ask_all(jobs)
        ends = {first: 0, second: 0}
        for job, answer in zip(jobs, answers, strict=True):
            assert answer == abc.Appended(Offset(ends[job.partition]), duplicate=False)
            ends[job.partition] += job.batch.count
        for part in (first, second):
            expected = [b"%d" % i for i in range(20) for _ in range(i % 3 + 1) if (first, second)[i % 2] == part]
            assert values_of(await rig.read(part)) == expected
            assert values_of(await rig.read(part, where="disk")) == expected


@pytest.mark.parametrize("where", ["memory", "disk"])
@rule("S45")
async def test_a_read_is_cut_by_count_and_by_bytes(make: MakeStore, path: Path, where: Where) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic(max_record_bytes=2 * MIB)
        for group in range(4):
            await rig.append(part, *[b"%d" % (group * 10 + i) for i in range(10)])
        record = len(encode_record(b"11", None, (), NOW_MS))

        async def read(position: int, **limits: int) -> list[int]:
            return offsets_of(await rig.read(part, position, where=where, **limits))

        assert await read(0) == list(range(40))
        assert await read(7, count=5) == [7, 8, 9, 10, 11]
        assert await read(15, limit=3 * record) == [15, 16, 17]
        assert await read(15, limit=3 * record + record - 1) == [15, 16, 17]
        assert await read(38) == [38, 39]
        assert await read(40) == []
        assert await read(41) == []
        await rig.append(part, b"x" * MIB)
        await rig.append(part, b"y")
        assert await read(38, limit=1000) == [38, 39]  # What does not fit is left for the next read,
        assert await read(40, limit=1000) == [40]  # where it comes alone and whole.
        assert await read(40, limit=1) == [40]
        assert await read(12, limit=1) == [12]
        assert await read(40) == [40, 41]


async def test_bytes_to_the_end_are_known_without_reading(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        assert rig.store.bytes_between(part, Position(0)) == 0
        for number in range(10):
            await rig.append(part, *[b"v" * (number + 1)] * 3)
        for position in range(31):
            assert rig.store.bytes_between(part, Position(position)) == (await rig.read(part, position)).size


async def test_a_time_finds_the_first_message_at_or_after_it(make: MakeStore, path: Path) -> None:
    choose = random.Random(26)
    times = [[choose.randrange(row, row + 100) for _ in range(choose.randrange(1, 4))] for row in range(60)]
    flat = [time for group in times for time in group]
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        assert await rig.find_time(part, 0) == 0
        for group in times[:30]:
            await rig.append(part, *[b"v"] * len(group), times=group)
    async with opened(make, path) as rig:
        for group in times[30:]:
            await rig.append(part, *[b"v"] * len(group), times=group)
        for wanted in range(0, 170, 3):
            expected = next((index for index, time in enumerate(flat) if time >= wanted), len(flat))
            assert await rig.find_time(part, wanted) == expected, wanted


async def test_a_time_is_found_behind_what_retention_removed(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic(retention_bytes=3 * batch_of(b"v", times=[9000]).size)
        for time in [9000, 1000, 2000, 3000]:
            await rig.append(part, b"v", times=[time])
        assert [await rig.find_time(part, time) for time in (500, 1500, 3000, 5000)] == [1, 2, 3, 4]


@rule("W8")
async def test_what_cannot_be_appended_fails_alone_with_both_sizes(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic(max_record_bytes=100)
        too_large = batch_of(b"ok", b"x" * 200)
        jobs = [
            abc.Append(part, batch_of(b"a")),
            abc.Append(part, too_large),
            abc.Append(abc.PartitionId(999), batch_of(b"nowhere")),
            abc.Append(part, batch_of(*[b"y" * 80] * 4000)),
            abc.Append(part, batch_of(b"b")),
        ]
        good, large, unknown, batch, also_good = await rig.ask_all(jobs)
        assert (good, also_good) == (abc.Appended(Offset(0), duplicate=False), abc.Appended(Offset(1), duplicate=False))
        assert isinstance(large, MessageTooLarge)
        assert (large.size, large.limit) == (len(encode_record(b"x" * 200, None, (), NOW_MS)), 100)
        assert str(large.size) in str(large)
        assert "100" in str(large)
        assert isinstance(unknown, TopicNotFound)
        assert isinstance(batch, BatchTooLarge)
        assert values_of(await rig.read(part)) == [b"a", b"b"]


async def test_a_single_record_may_be_larger_than_a_batch(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        big = b"x" * (700 * 1024)
        jobs = [abc.Append(part, batch_of(value)) for value in (b"a", big, b"b")]
        assert [getattr(answer, "base", None) for answer in await rig.ask_all(jobs)] == [0, 1, 2]
        assert values_of(await rig.read(part, where="disk")) == [b"a", big, b"b"]


# --- idempotent append ---


@rule("W7")
async def test_a_repeated_sequence_gets_the_same_receipt_and_writes_nothing(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        first, second = await rig.topic(partitions=2)
        assert await rig.append(first, b"a", b"b", sequence=1) == abc.Appended(Offset(0), duplicate=False)
        assert await rig.append(first, b"c", sequence=2) == abc.Appended(Offset(2), duplicate=False)
        assert await rig.append(first, b"a", b"b", sequence=1) == abc.Appended(Offset(0), duplicate=True)
        assert await rig.append(second, b"z", sequence=1) == abc.Appended(Offset(0), duplicate=False)
        other = abc.Append(first, batch_of(b"d"), ProducerStamp(b"another producer", 1))
        assert await rig.do(other) == abc.Appended(Offset(3), duplicate=False)
        assert values_of(await rig.read(first)) == [b"a", b"b", b"c", b"d"]


@rule("W7")
async def test_the_second_of_two_equal_sequences_in_one_transaction_is_the_duplicate(
    make: MakeStore, path: Path
) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        job = abc.Append(part, batch_of(b"a"), ProducerStamp(PRODUCER, 5))
        other = abc.Append(part, batch_of(b"b"), ProducerStamp(PRODUCER, 6))
        assert await rig.ask_all([job, other, job]) == [
            abc.Appended(Offset(0), duplicate=False),
            abc.Appended(Offset(1), duplicate=False),
            abc.Appended(Offset(0), duplicate=True),
        ]
        assert values_of(await rig.read(part)) == [b"a", b"b"]


async def test_sequences_come_in_any_order_inside_the_window_and_not_below_it(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        for sequence in (2000, 977, 1500, 1999):
            assert not (await rig.append(part, b"%d" % sequence, sequence=sequence)).duplicate
        for sequence, base in ((977, 1), (1999, 3), (2000, 0), (1500, 2)):
            again = await rig.append(part, b"again", sequence=sequence)
            assert again == abc.Appended(Offset(base), duplicate=True)
        with pytest.raises(OutcomeUnknown, match=r"976.*1024"):
            await rig.append(part, b"old", sequence=976)
        assert len(offsets_of(await rig.read(part))) == 4


async def test_the_window_moves_and_survives_reopening(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        for begin in range(0, 3000, 100):
            jobs = [abc.Append(part, batch_of(b"v"), ProducerStamp(PRODUCER, begin + i)) for i in range(100)]
            assert not any(isinstance(answer, TarryError) for answer in await rig.ask_all(jobs))
    async with opened(make, path) as rig:
        for sequence in (1976, 2500, 2999):
            assert await rig.append(part, b"v", sequence=sequence) == abc.Appended(Offset(sequence), duplicate=True)
        for sequence in (0, 1975):
            with pytest.raises(OutcomeUnknown):
                await rig.append(part, b"v", sequence=sequence)
        assert await rig.append(part, b"v", sequence=3000) == abc.Appended(Offset(3000), duplicate=False)


# --- stored offsets ---


async def test_a_stored_offset_only_rises_unless_told_otherwise(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        first, second = await rig.topic(partitions=2)
        assert await rig.store_offset(first, 5) == 5
        assert await rig.store_offset(first, 3) == 5
        assert await rig.store_offset(first, 7) == 7
        assert await rig.store_offset(first, 2, lower=True) == 2
        assert await rig.store_offset(first, 1, "group:x") == 1
        assert await rig.store_offset(second, 0) == 0
        assert await rig.store_offset(second, None) is None
        assert await rig.store_offset(second, None) is None
        assert await rig.store_offset(second, 4, lower=True) == 4
    async with opened(make, path) as rig:
        (topic,) = rig.topics
        assert [dict(part.stored) for part in topic.partitions] == [{"name:x": 2, "group:x": 1}, {"name:x": 4}]


@rule("S73")
async def test_a_partition_keeps_offsets_of_4096_identities(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        jobs = [abc.StoreOffset(part, f"name:{i}", Offset(1)) for i in range(4096)]
        assert set(await rig.ask_all(jobs)) == {abc.Stored(Offset(1))}
        with pytest.raises(CapacityExceeded, match="3024"):
            await rig.store_offset(part, 1, "name:one more")
        assert await rig.store_offset(part, 2, "name:7") == 2
        await rig.store_offset(part, None, "name:8")
        assert await rig.store_offset(part, 1, "name:one more") == 1


@rule("W8", "W23")
async def test_offset_stores_and_appends_share_a_transaction_and_fail_alone(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        answers = await rig.ask_all(
            [
                abc.Append(part, batch_of(b"a")),
                abc.StoreOffset(part, "name:x", Offset(0)),
                abc.StoreOffset(abc.PartitionId(999), "name:x", Offset(0)),
                abc.CreateTopic("t", TopicOptions()),
                abc.DeleteTopic("missing"),
                abc.Append(part, batch_of(b"b")),
            ]
        )
        kinds = [type(answer) for answer in answers]
        assert kinds == [abc.Appended, abc.Stored, TopicNotFound, TopicExists, TopicNotFound, abc.Appended]
        assert values_of(await rig.read(part)) == [b"a", b"b"]


@rule("S47")
async def test_a_store_on_a_condition_applies_only_while_it_holds(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        first, second = await rig.topic(partitions=2)

        async def ask(offset: int, expected: int | None, identity: str = "name:x") -> object:
            given = None if expected is None else Offset(expected)
            job = abc.StoreOffset(first, identity, Offset(offset), expected=abc.Expected(given))
            return await rig.ask(job)

        async def refused(offset: int, expected: int | None) -> bool:
            answer = await ask(offset, expected)
            return isinstance(answer, NotAccepted) and "nothing was applied" in str(answer)

        assert await refused(4, 3)
        assert await ask(4, None) == abc.Stored(Offset(4))
        assert await refused(7, None), "somebody stored one meanwhile"
        assert await refused(7, 3)
        assert await refused(7, 5)
        assert await rig.store_offset(first, 4, "name:x") == 4, "nothing was applied"
        assert await ask(7, 4) == abc.Stored(Offset(7))
        assert await ask(5, 7) == abc.Stored(Offset(7)), "and it never lowers"
        assert await ask(1, None, "name:y") == abc.Stored(Offset(1)), "others do not count"
        assert await rig.store_offset(second, 1) == 1
        assert await rig.store_offset(first, None) is None
        assert await ask(2, None) == abc.Stored(Offset(2))


@rule("S47")
async def test_a_condition_is_judged_in_the_transaction(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        await rig.store_offset(part, 4)
        jobs = [
            abc.StoreOffset(part, "name:x", Offset(1), lower=True),
            abc.StoreOffset(part, "name:x", Offset(9), expected=abc.Expected(Offset(4))),
            abc.StoreOffset(part, "name:x", Offset(8), expected=abc.Expected(Offset(1))),
        ]
        first, second, third = await rig.ask_all(jobs)
        assert (first, type(second), third) == (abc.Stored(Offset(1)), NotAccepted, abc.Stored(Offset(8)))


# --- groups ---


async def test_the_state_of_a_group_is_what_was_saved_last(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        assert rig.store.groups() == {}
        assert await rig.ask(abc.SaveGroup("a", b"1")) is None
        assert rig.store.groups() == {"a": b"1"}
        states = [("a", b"2"), ("b", b""), ("c", b"3"), ("a", b"\x00")]
        assert await rig.ask_all([abc.SaveGroup(name, state) for name, state in states]) == [None] * 4
        assert rig.store.groups() == {"a": b"\x00", "b": b"", "c": b"3"}
        assert await rig.ask_all([abc.SaveGroup("b", None), abc.SaveGroup("unknown", None)]) == [None] * 2
        assert rig.store.groups() == {"a": b"\x00", "c": b"3"}
    async with opened(make, path) as rig:
        assert rig.store.groups() == {"a": b"\x00", "c": b"3"}
        assert rig.listener.log == []


async def test_groups_and_offsets_share_a_transaction_and_fail_alone(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        jobs: list[abc.Job] = [
            abc.SaveGroup("g", b"1"),
            abc.StoreOffset(part, "group:g", Offset(0), expected=abc.Expected(Offset(3))),
            abc.StoreOffset(part, "group:g", Offset(0)),
            abc.SaveGroup("g", b"2"),
            abc.DeleteTopic("missing"),
        ]
        answers = await rig.ask_all(jobs)
        assert [type(answer) for answer in answers] == [type(None), NotAccepted, abc.Stored, type(None), TopicNotFound]
        await rig.do(abc.DeleteTopic("t"))
        assert rig.store.groups() == {"g": b"2"}, "a group outlives its topics"


# --- topics ---


async def test_topics_come_back_as_they_were_made(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        await rig.topic("b", partitions=2, retention_age=1.5, retention_bytes=1000, max_record_bytes=100)
        (part,) = await rig.topic("a")
        await rig.append(part, b"v", b"w")
        size = (await rig.read(part)).size
    async with opened(make, path) as rig:
        by_name = {topic.name: topic for topic in rig.topics}
        assert sorted(by_name) == ["a", "b"]
        options = by_name["b"].options
        assert (options.partitions, options.retention_age, options.retention_bytes) == (2, 1.5, 1000)
        assert options.max_record_bytes == 100
        assert [state.number for state in by_name["b"].partitions] == [0, 1]
        (state,) = by_name["a"].partitions
        assert (state.log_start, state.log_end, state.size, state.id) == (0, 2, size, part)


async def test_a_name_is_taken_once_and_an_id_never_again(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        old = await rig.topic("t", partitions=2)
        with pytest.raises(TopicExists, match="'t'"):
            await rig.topic("t")
        await rig.append(old[0], b"old")
        await rig.store_offset(old[0], 0)
        assert await rig.do(abc.DeleteTopic("t")) is None
        with pytest.raises(TopicNotFound):
            await rig.do(abc.DeleteTopic("t"))
        for job in (abc.Append(old[0], batch_of(b"v")), abc.StoreOffset(old[0], "name:x", Offset(1))):
            with pytest.raises(TopicNotFound):
                await rig.do(job)
    async with opened(make, path) as rig:
        new = await rig.topic("t", partitions=2)
        assert not set(old) & set(new)
        assert await rig.append(new[0], b"new") == abc.Appended(Offset(0), duplicate=False)
        assert values_of(await rig.read(new[0])) == [b"new"]
    async with opened(make, path) as rig:
        (topic,) = rig.topics
        assert [dict(part.stored) for part in topic.partitions] == [{}, {}]


async def test_appends_before_and_after_a_deletion_in_one_transaction(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic("t")
        (other,) = await rig.topic("other")
        answers = await rig.ask_all(
            [
                abc.Append(part, batch_of(b"a")),
                abc.Append(other, batch_of(b"b")),
                abc.DeleteTopic("t"),
                abc.Append(part, batch_of(b"c")),
                abc.Append(other, batch_of(b"d")),
                abc.CreateTopic("t", TopicOptions()),
            ]
        )
        kinds = [type(answer) for answer in answers]
        assert kinds == [abc.Appended, abc.Appended, type(None), TopicNotFound, abc.Appended, abc.TopicState]
        assert values_of(await rig.read(other, where="disk")) == [b"b", b"d"]


# --- retention ---


@rule("K40")
async def test_bytes_above_the_limit_go_oldest_first_and_offsets_go_on(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        one = batch_of(b"v" * 50).size
        (part,) = await rig.topic(retention_bytes=3 * one)
        for _ in range(5):
            await rig.append(part, b"v" * 50)
        assert offsets_of(await rig.read(part)) == [2, 3, 4]
        assert rig.listener.trims[-1] == abc.Trimmed(part, Position(2), 3 * one)
        assert offsets_of(await rig.read(part, 2, where="disk")) == [2, 3, 4]
    async with opened(make, path) as rig:
        ((state,),) = [topic.partitions for topic in rig.topics]
        assert (state.log_start, state.log_end, state.size) == (2, 5, 3 * one)
        assert (await rig.append(part, b"v" * 50)).base == 5


async def test_a_burst_above_the_limit_keeps_its_newest_messages(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic(retention_bytes=3 * batch_of(b"v").size)
        await rig.ask_all([abc.Append(part, batch_of(b"v")) for _ in range(10)])
        assert offsets_of(await rig.read(part)) == [7, 8, 9]


@rule("K40")
async def test_the_newest_message_goes_too_when_it_alone_is_above_the_limit(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (part,) = await rig.topic(retention_bytes=100)
        for number in range(11):
            await rig.append(part, b"v" * (10 if number < 10 else 200))
        assert rig.listener.log[-2:] == ["committed", "trimmed"]
        assert rig.listener.trims[-1] == abc.Trimmed(part, Position(11), 0)
        assert offsets_of(await rig.read(part, 11)) == []
    async with opened(make, path) as rig:
        assert (await rig.append(part, b"v")).base == 11
        assert offsets_of(await rig.read(part, 11)) == [11]


@rule("K40")
async def test_offsets_go_on_after_age_removed_everything(make: MakeStore, path: Path) -> None:
    clock = WallClock()
    async with opened(make, path, clock=clock) as rig:
        (part,) = await rig.topic(retention_age=60.0)
        (kept,) = await rig.topic("kept")
        for _ in range(10):
            await rig.append(part, b"v")
        await rig.append(kept, b"v")
        await rig.store_offset(part, 9)
        clock.wall += 59_000
        assert await rig.do(abc.Retain()) == ()
        await rig.append(part, b"younger")
        clock.wall += 1_000
        assert [(trim.log_start, trim.partition) for trim in trims(await rig.do(abc.Retain()))] == [(10, part)]
        clock.wall += 60_000
        assert trims(await rig.do(abc.Retain())) == (abc.Trimmed(part, Position(11), 0),)
        assert values_of(await rig.read(kept)) == [b"v"]
    async with opened(make, path, clock=clock) as rig:
        assert (await rig.append(part, b"new")).base == 11
        assert values_of(await rig.read(part, 11)) == [b"new"]


def trims(result: abc.JobResult) -> tuple[abc.Trimmed, ...]:
    assert isinstance(result, tuple)
    return result


# --- the end ---


@rule("W16")
async def test_closing_writes_what_is_queued_and_refuses_what_comes(make: MakeStore, path: Path) -> None:
    answers: list[abc.JobResult | TarryError] = []
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        for number in range(10):
            rig.store.submit(abc.Append(part, batch_of(b"%d" % number)), answers.append)
        await rig.store.aclose()
        await rig.store.aclose()
        assert [getattr(answer, "base", None) for answer in answers] == list(range(10))
        with pytest.raises(LogUnavailable):
            await rig.append(part, b"late")
    async with opened(make, path) as rig:
        assert values_of(await rig.read(part)) == [b"%d" % number for number in range(10)]


async def test_a_small_memory_serves_everything_all_the_same(make: MakeStore, path: Path) -> None:
    async with opened(make, path, LogOptions(resident_bytes=3000)) as rig:
        first, second = await rig.topic(partitions=2)
        for number in range(50):
            await rig.append((first, second)[number % 2], b"%d" % number)
        for part, start in ((first, 0), (second, 1)):
            for position in range(26):
                expected = [b"%d" % number for number in range(start + 2 * position, 50, 2)]
                assert values_of(await rig.read(part, position)) == expected


async def test_headers_keys_and_times_come_back_byte_for_byte(make: MakeStore, path: Path) -> None:
    record = encode_record(None, b"k", (("h", b"1"), ("h", b"2")), 12)
    async with opened(make, path) as rig:
        (part,) = await rig.topic()
        await rig.do(abc.Append(part, seal([record], [12])))
        (run,) = (await rig.read(part, where="disk")).runs
        assert run.payload == record


# --- topics that grow ---


@rule("K56")
async def test_a_topic_gains_partitions_that_are_there_after_the_next_opening(make: MakeStore, path: Path) -> None:
    async with opened(make, path) as rig:
        (first,) = await rig.topic()
        (other,) = await rig.topic("u")
        await rig.append(first, b"a")
        grown = await rig.do(abc.GrowTopic("t", 3))
        assert isinstance(grown, abc.TopicState)
        ids = [part.id for part in grown.partitions]
        assert ids[0] == first
        assert [part.number for part in grown.partitions] == [0, 1, 2]
        assert len({*ids, other}) == 4, "a history is never used twice"
        assert grown.options.partitions == 3
        assert await rig.do(abc.GrowTopic("t", 3)) == grown
        assert (await rig.append(ids[2], b"b", b"c")).base == 0
        assert (await rig.append(first, b"d")).base == 1, "what was there goes on"
        assert values_of(await rig.read(ids[2])) == [b"b", b"c"]
        for job, error in (
            (abc.GrowTopic("t", 2), "has 3 partitions and cannot be cut down to 2"),
            (abc.GrowTopic("missing", 2), "'missing' does not exist; create it first (create_topic)"),
        ):
            refused = await rig.ask(job)
            assert isinstance(refused, TarryError)
            assert error in str(refused)
        await rig.do(abc.StoreOffset(ids[1], "name:x", Offset(0)))
    async with opened(make, path) as rig:
        (topic,) = [state for state in rig.topics if state.name == "t"]
        assert [part.id for part in topic.partitions] == ids
        assert topic.options.partitions == 3
        assert [part.log_end for part in topic.partitions] == [2, 0, 2]
        assert values_of(await rig.read(ids[2])) == [b"b", b"c"]
