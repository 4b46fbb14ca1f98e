"""The resident tail against the plainest model: all rows in a list, the newest of them resident."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tarry import abc
from tarry.brokers.local.tail import ROW_OVERHEAD, ResidentTail
from tarry.types import Offset, Position, RecordBatch
from tests.unit.brokers.local.store_rig import batch_of, offsets_of

PARTITIONS = (abc.PartitionId(1), abc.PartitionId(2), abc.PartitionId(3))
LIMIT = 4 * (ROW_OVERHEAD + 60)


@dataclass
class Model:
    """Every row ever pushed, in order, and what was cut off."""

    rows: list[abc.Row] = field(default_factory=list[abc.Row])
    starts: dict[abc.PartitionId, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    ends: dict[abc.PartitionId, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))

    def of(self, partition: abc.PartitionId) -> list[abc.Row]:
        return [row for row in self.rows if row.partition == partition]

    def size(self, partition: abc.PartitionId, position: int) -> int:
        return sum(
            row.batch.ends[index] - row.batch.start_of(index)
            for row in self.of(partition)
            for index in range(row.batch.count)
            if row.base + index >= position
        )


def cost(batch: RecordBatch) -> int:
    return batch.size + 4 * batch.count + ROW_OVERHEAD


def resident(model: Model) -> list[abc.Row]:
    """The newest rows that fit."""
    kept, room = list[abc.Row](), LIMIT
    for row in reversed(model.rows):
        room -= cost(row.batch)
        if room < 0:
            break
        kept.insert(0, row)
    return kept


PUSH = st.tuples(st.just("push"), st.sampled_from(PARTITIONS), st.integers(1, 4), st.integers(0, 30))
TRIM = st.tuples(st.just("trim"), st.sampled_from(PARTITIONS), st.integers(0, 3), st.just(0))
REMOVE = st.tuples(st.just("remove"), st.sampled_from(PARTITIONS), st.just(0), st.just(0))


@given(steps=st.lists(st.one_of(PUSH, PUSH, PUSH, TRIM, REMOVE), min_size=10, max_size=60))
def test_the_tail_holds_the_newest_rows_and_reads_them_right(
    steps: list[tuple[str, abc.PartitionId, int, int]],
) -> None:
    tail, model = ResidentTail(LIMIT), Model()
    for key in PARTITIONS:
        tail.add(abc.PartitionState(key, 0, Position(0), Position(0), 0, {}))
    evicted: set[tuple[abc.PartitionId, int]] = set()
    for what, key, number, size in steps:
        if what == "push":
            row = abc.Row(key, Offset(model.ends[key]), batch_of(*[b"v" * size] * number))
            model.rows.append(row)
            model.ends[key] += number
            tail.push(row)
        elif what == "trim":
            gone = model.of(key)[:number]
            if gone:
                model.starts[key] = gone[-1].base + gone[-1].batch.count
                model.rows = [row for row in model.rows if row not in gone]
                start = model.starts[key]
                tail.trim(abc.Trimmed(key, Position(start), model.size(key, start)))
        else:
            model.rows = [row for row in model.rows if row.partition != key]
            model.starts[key] = model.ends[key] = 0
            evicted = {place for place in evicted if place[0] != key}
            tail.remove(key)
            tail.add(abc.PartitionState(key, 0, Position(0), Position(0), 0, {}))
        kept = {(row.partition, int(row.base)) for row in resident(model)}
        evicted |= {(row.partition, int(row.base)) for row in model.rows} - kept
        held = [row for row in model.rows if (row.partition, int(row.base)) not in evicted]
        assert tail.used == sum(cost(row.batch) for row in held) <= LIMIT
    for key in PARTITIONS:
        rows = [row for row in model.of(key) if (key, int(row.base)) not in evicted]
        first = int(rows[0].base) if rows else model.ends[key]
        for position in range(model.ends[key] + 2):
            found = tail.read(abc.Query(key, Position(position), 100_000, 1 << 30))
            begin = max(position, model.starts[key])
            if begin < first:
                assert found is None
            else:
                assert found is not None
                assert offsets_of(found) == list(range(begin, model.ends[key]))
                assert tail.bytes_between(key, Position(begin)) == model.size(key, begin) == found.size


def test_what_a_reopened_file_says_replaces_what_was_known() -> None:
    tail = ResidentTail(LIMIT)
    same, moved, gone = PARTITIONS
    for key in PARTITIONS:
        tail.add(abc.PartitionState(key, 0, Position(0), Position(0), 0, {}))
        tail.push(abc.Row(key, Offset(0), batch_of(b"v")))
    new = abc.PartitionId(9)
    size = batch_of(b"v").size
    tail.replace(
        [
            abc.PartitionState(same, 0, Position(0), Position(1), size, {}),
            abc.PartitionState(moved, 0, Position(0), Position(2), 2 * size, {}),
            abc.PartitionState(new, 0, Position(0), Position(0), 0, {}),
        ]
    )
    assert [tail.log_end(key) for key in (same, moved, gone, new)] == [1, 2, None, 0]
    assert [tail.read(abc.Query(key, Position(0), 9, 999)) is None for key in (same, moved)] == [False, True]
    assert tail.used == cost(batch_of(b"v"))
