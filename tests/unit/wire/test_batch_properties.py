"""Cutting and joining bytes against plain lists, and damage at any place."""

from __future__ import annotations

import struct
from array import array

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from tarry._wire.batch import (
    RUNS_MAX,
    check_ends,
    collect,
    decode,
    decode_batch,
    encode_ends,
    encode_head,
    encode_record,
    join,
    seal,
    timestamps,
)
from tarry.errors import DataError
from tarry.types import Header, Offset, Origin, Position, RecordBatch, Run, Segment, TopicPartition
from tests.marks import rule

Fields = tuple[bytes | None, bytes | None, tuple[Header, ...], int]

FIELDS: st.SearchStrategy[Fields] = st.tuples(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=10),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
)
BATCHES = st.lists(FIELDS, min_size=1, max_size=8)
SIZES = st.lists(st.integers(min_value=1, max_value=30), min_size=1, max_size=6)


def made(fields: list[Fields]) -> RecordBatch:
    return seal([encode_record(*one) for one in fields], [one[3] for one in fields])


def decoded(base: int, *runs: Run) -> list[tuple[int, Fields]]:
    segment = Segment(Origin(TopicPartition("t", 0), Offset(0)), runs)
    assert segment.first == base
    return [(m.offset, (m.value, m.key, m.headers, m.timestamp_ms)) for m in decode(segment)]


@rule("K76")
@given(BATCHES)
def test_what_goes_in_comes_out(fields: list[Fields]):
    batch = made(fields)
    back = decode_batch(encode_head(batch), encode_ends(batch), batch.records)
    assert back == batch
    assert decoded(5, Run(Offset(5), back, 0, back.count)) == list(enumerate(fields, 5))
    assert timestamps(batch) == [one[3] for one in fields]
    assert (batch.first_ms, batch.max_ms) == (fields[0][3], max(one[3] for one in fields))


@given(FIELDS)
def test_a_record_is_what_any_msgpack_reader_takes_it_for(fields: Fields):
    value, key, headers, timestamp = fields
    assert msgspec.msgpack.decode(encode_record(*fields)) == [
        value,
        key,
        [list(header) for header in headers],
        timestamp,
    ]


@given(BATCHES, st.data())
def test_any_cut_holds_just_its_records(fields: list[Fields], data: st.DataObject):
    batch = made(fields)
    lo = data.draw(st.integers(0, len(fields) - 1))
    hi = data.draw(st.integers(lo + 1, len(fields)))
    run = Run(Offset(100 + lo), batch, lo, hi)
    assert decoded(100 + lo, run) == list(enumerate(fields[lo:hi], 100 + lo))
    middle = data.draw(st.integers(0, hi - lo))
    front, back = run.split(middle)
    assert front.payload + back.payload == run.payload
    assert (front.count, front.base, back.end) == (middle, run.base, run.end)
    assert int(front.end) == int(back.base)
    assert (front.size, back.size) == (len(front.payload), len(back.payload))
    assert run.after(front.end).payload == back.payload
    if front.count and back.count:
        assert decoded(100 + lo, front, back) == decoded(100 + lo, run)


@given(st.lists(BATCHES, min_size=1, max_size=4))
def test_joining_is_as_if_it_had_been_sealed_at_once(parts: list[list[Fields]]):
    joined = join([made(part) for part in parts])
    assert joined == made([one for part in parts for one in part])
    check_ends(joined)


@given(SIZES, st.integers(0, 200))
def test_as_many_fit_as_fit(sizes: list[int], limit: int):
    batch = seal([bytes(size) for size in sizes], [0] * len(sizes))
    for lo in range(len(sizes)):
        fits = sum(sum(sizes[lo : lo + count]) <= limit for count in range(1, len(sizes) - lo + 1))
        assert Run(Offset(lo), batch, lo, len(sizes)).fit(limit) == fits


@rule("S45", "C7", "C108")
@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 25), st.integers(1, 25), st.integers(1, 120))
def test_a_selection_is_the_longest_that_fits(rows: list[list[int]], position: int, count: int, limit: int):
    check_selection(rows, position, count, limit)


@given(st.lists(SIZES, min_size=RUNS_MAX - 2, max_size=3 * RUNS_MAX), st.integers(0, 9), st.integers(9, 99))
def test_a_selection_of_many_rows_is_the_same_in_few_runs(rows: list[list[int]], position: int, count: int):
    found = check_selection(rows, position, count, 10_000)
    assert len(found) <= RUNS_MAX


def check_selection(rows: list[list[int]], position: int, count: int, limit: int) -> tuple[Run, ...]:
    records = [bytes([number % 256]) * size for number, size in enumerate(size for row in rows for size in row)]
    expected: list[bytes] = []
    for record in records[position:]:
        if len(expected) == count or (expected and len(b"".join(expected)) + len(record) > limit):
            break
        expected.append(record)
    found = collect(runs_of(rows, records), Position(position), count, limit)
    assert [record for run in found for record in records_of(run)] == expected
    assert sum(run.count for run in found) == len(expected)
    assert sum(run.size for run in found) <= limit or len(expected) == 1
    at = position
    for run in found:
        assert run.count > 0
        assert run.base == at, "nothing is missing, nothing comes twice"
        at = run.end
        check_ends(run.batch)
    return found


def runs_of(rows: list[list[int]], records: list[bytes]) -> list[Run]:
    runs: list[Run] = []
    base = 0
    for row in rows:
        batch = seal(records[base : base + len(row)], [0] * len(row))
        runs.append(Run(Offset(base), batch, 0, len(row)))
        base += len(row)
    return runs


def records_of(run: Run) -> list[bytes]:
    places = [(run.batch.start_of(index), run.batch.start_of(index + 1)) for index in range(run.lo, run.hi)]
    assert run.payload == b"".join(run.batch.records[start:end] for start, end in places)
    return [run.batch.records[start:end] for start, end in places]


@given(BATCHES, st.data())
def test_a_changed_byte_of_the_records_is_found(fields: list[Fields], data: st.DataObject):
    batch = made(fields)
    records = bytearray(batch.records)
    records[data.draw(st.integers(0, len(records) - 1))] ^= data.draw(st.integers(1, 255))
    assert refuses(encode_head(batch), encode_ends(batch), bytes(records))


@given(BATCHES, st.data())
def test_a_changed_byte_of_the_head_is_found_but_in_the_times(fields: list[Fields], data: st.DataObject):
    batch = made(fields)
    head = bytearray(encode_head(batch))
    head[data.draw(st.integers(0, 11))] ^= data.draw(st.integers(1, 255))
    assert refuses(bytes(head), encode_ends(batch), batch.records)


@given(BATCHES, st.data())
def test_a_part_that_is_cut_off_or_too_long_is_found(fields: list[Fields], data: st.DataObject):
    batch = made(fields)
    parts = [encode_head(batch), encode_ends(batch), batch.records]
    index = data.draw(st.integers(0, 2))
    cut = data.draw(st.integers(0, len(parts[index]) - 1))
    more = data.draw(st.binary(min_size=1, max_size=9))
    assert refuses(*(part[:cut] if number == index else part for number, part in enumerate(parts)))
    assert refuses(*(part + more if number == index else part for number, part in enumerate(parts)))


@given(st.binary(max_size=40), st.lists(st.integers(0, 2**32 - 1), max_size=5), st.binary(max_size=40))
def test_foreign_bytes_are_a_data_error_and_nothing_else(head: bytes, ends: list[int], records: bytes):
    assert refuses(head, struct.pack(f"<{len(ends)}I", *ends), records)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.binary(min_size=1, max_size=6))
def test_ends_hold_together_or_are_refused(ends: list[int], records: bytes):
    batch = RecordBatch(array("I", ends), records, 0, 0)
    good = ends == sorted(set(ends)) and ends[0] > 0 and ends[-1] == len(records)
    try:
        check_ends(batch)
    except DataError:
        assert not good
    else:
        assert good


@given(st.binary(min_size=1, max_size=60))
def test_decoding_foreign_records_is_a_data_error_and_nothing_else(records: bytes):
    batch = seal([records], [0])
    try:
        messages = decode(Segment(Origin(TopicPartition("t", 0), Offset(0)), (Run(Offset(0), batch, 0, 1),)))
    except DataError:
        return
    assume(messages)
    assert messages[0].offset == 0


def refuses(head: bytes, ends: bytes, records: bytes) -> bool:
    try:
        decode_batch(head, ends, records)
    except DataError:
        return True
    return False
