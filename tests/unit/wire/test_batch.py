"""Records and batches as bytes: the format, and what damage looks like."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Any
from zlib import crc32

import msgspec
import pytest

from tarry._wire.batch import (
    HEAD,
    RUN_OVERHEAD,
    append_refusal,
    array_header,
    check_ends,
    collect,
    decode,
    decode_batch,
    decode_ends,
    encode_ends,
    encode_head,
    encode_record,
    join,
    reply_limit,
    seal,
    timestamps,
)
from tarry.errors import BatchTooLarge, ConfigError, DataError, MessageTooLarge
from tarry.types import Header, Offset, Origin, Position, RecordBatch, Run, Segment, TopicPartition
from tests.marks import rule
from tests.unit.wire.golden import golden

P0 = TopicPartition("orders", 0)

RECORDS: list[tuple[bytes | None, bytes | None, tuple[Header, ...], int]] = [
    (b"a cup", b"customer-7", (("trace", b"\x01"), ("trace", b"")), 1_325_376_000_000),
    (None, b"k", (), 1_325_376_000_001),
    (b"", None, (), -1),
]


def sample() -> RecordBatch:
    return seal([encode_record(*record) for record in RECORDS], [record[3] for record in RECORDS])


def segment(*runs: Run) -> Segment:
    return Segment(Origin(P0, Offset(9)), runs)


def whole(batch: RecordBatch, base: int = 0) -> Run:
    return Run(Offset(base), batch, 0, batch.count)


def sized(*sizes: int) -> RecordBatch:
    return seal([bytes(size) for size in sizes], [0] * len(sizes))


class TestGolden:
    def test_what_is_written_is_pinned(self):
        batch, pinned = sample(), golden("batch-v1")
        assert [encode_record(*record) for record in RECORDS] == [pinned[f"record {index}"] for index in range(3)]
        assert batch.records == b"".join(pinned[f"record {index}"] for index in range(3))
        assert encode_head(batch) == pinned["head"]
        assert encode_ends(batch) == pinned["ends"]

    def test_what_was_written_is_read(self):
        pinned = golden("batch-v1")
        records = b"".join(pinned[f"record {index}"] for index in range(3))
        batch = decode_batch(pinned["head"], pinned["ends"], records)
        messages = decode(segment(whole(batch, 7)))
        assert [(m.value, m.key, m.headers, m.timestamp_ms) for m in messages] == RECORDS
        assert [message.offset for message in messages] == [7, 8, 9]

    def test_the_layout_is_as_documented(self):
        """Taken apart by hand, without this package."""
        pinned = golden("batch-v1")
        assert struct.unpack("<BBBBIIqq", pinned["head"]) == (
            0x7A,
            1,
            0,
            0,
            3,
            crc32(b"".join(pinned[f"record {index}"] for index in range(3))),
            1_325_376_000_000,
            1_325_376_000_001,
        )
        ends = struct.unpack("<3I", pinned["ends"])
        assert ends == (ends[0], ends[0] + len(pinned["record 1"]), ends[1] + len(pinned["record 2"]))
        assert pinned["record 2"] == b"\x94" + b"\xc4\x00" + b"\xc0" + b"\x90" + b"\xff"


class TestRecords:
    @rule("K76")
    def test_none_and_empty_differ_for_value_and_key(self):
        given = [(b"a", None), (b"a", b""), (None, None), (b"", b"x")]
        records = [encode_record(value, key, (), 0) for key, value in given]
        assert len(set(records)) == 4
        messages = decode(segment(whole(seal(records, [0] * 4))))
        assert [(message.key, message.value) for message in messages] == given
        assert [type(message.value) for message in messages] == [type(None), bytes, type(None), bytes]

    @rule("K104")
    def test_keys_are_bytes_that_come_back_as_they_are(self):
        keys = ["ключ".encode(), "é".encode(), b"\x00\xff", b"k" * 65_536]
        batch = seal([encode_record(b"", key, (), 0) for key in keys], [0] * 4)
        assert [message.key for message in decode(segment(whole(batch)))] == keys

    def test_headers_keep_order_and_duplicates(self):
        headers = (("b", b"1"), ("a", b"2"), ("b", b""), ("日本", b"\xff"))
        (message,) = decode(segment(whole(seal([encode_record(b"", None, headers, 0)], [0]))))
        assert message.headers == headers

    @pytest.mark.parametrize("more", [(5,), ("text",), (None, {"a": 1}), (b"", b"", b"", [1, 2])], ids=str)
    def test_fields_that_a_newer_release_appends_are_ignored(self, more: tuple[Any, ...]):
        record = msgspec.msgpack.encode((b"v", b"k", (), 9, *more))
        old = encode_record(b"w", None, (), 10)
        batch = seal([record, old], [9, 10])
        first, second = decode(segment(whole(batch, 3)))
        assert (first.value, first.key, first.timestamp_ms, first.offset, first.topic) == (b"v", b"k", 9, 3, "orders")
        assert (second.value, second.offset) == (b"w", 4)
        assert timestamps(batch) == [9, 10]


class TestBatches:
    def test_a_seal_notes_ends_and_times(self):
        batch = seal([b"ab", b"c", b"def"], [5, 9, 7])
        assert (list(batch.ends), batch.records, batch.first_ms, batch.max_ms) == ([2, 3, 6], b"abcdef", 5, 9)
        assert (batch.count, batch.size) == (3, 6)
        assert [batch.start_of(index) for index in range(4)] == [0, 2, 3, 6]

    def test_batches_join_by_bytes_alone(self):
        joined = join([seal([b"ab"], [5]), seal([b"c", b"def"], [9, 7]), seal([b"g"], [1])])
        assert joined == seal([b"ab", b"c", b"def", b"g"], [5, 9, 7, 1])
        lone = seal([b"x"], [1])
        assert join([lone]) is lone

    def test_a_batch_comes_back_from_its_row(self):
        batch = sample()
        assert decode_batch(encode_head(batch), encode_ends(batch), batch.records) == batch
        assert timestamps(batch) == [1_325_376_000_000, 1_325_376_000_001, -1]

    def test_ends_are_little_endian_on_every_machine(self, monkeypatch: pytest.MonkeyPatch):
        batch = seal([b"a" * 300], [0])
        assert encode_ends(batch) == (300).to_bytes(4, "little")
        assert decode_ends((300).to_bytes(4, "little")) == batch.ends
        monkeypatch.setattr(sys, "byteorder", "big")
        swapped = encode_ends(batch)
        assert swapped == (300).to_bytes(4, "big"), "this machine's order, turned round"
        assert list(decode_ends(swapped)) == [300]
        assert list(batch.ends) == [300], "what is in memory stays"


class TestDamage:
    """What stands in a file may be anything; each kind is a DataError that says what does not fit."""

    def row(self) -> tuple[bytes, bytes, bytes]:
        batch = sample()
        return encode_head(batch), encode_ends(batch), batch.records

    def test_a_wrong_checksum(self):
        head, ends, records = self.row()
        for index in range(len(records)):
            damaged = bytearray(records)
            damaged[index] ^= 0x10
            with pytest.raises(DataError, match=r"checksum mismatch over \d+ bytes: stored [0-9a-f]{8}, computed"):
                decode_batch(head, ends, bytes(damaged))

    @pytest.mark.parametrize(
        ("index", "says"),
        [
            (0, r"begins with 0x7b instead of 0x7a"),
            (1, r"version 0, codec 0 and flags 0; this release reads version 1"),
            (2, r"version 1, codec 1 and flags 0"),
            (3, r"version 1, codec 0 and flags 1"),
            (4, r"a batch of 2 records has 3 end positions"),
            (7, r"a batch of 16777219 records has 3 end positions"),
            (8, r"checksum mismatch"),
            (11, r"checksum mismatch"),
        ],
    )
    def test_each_field_of_the_head(self, index: int, says: str):
        head, ends, records = self.row()
        damaged = bytearray(head)
        damaged[index] ^= 1
        with pytest.raises(DataError, match=says):
            decode_batch(bytes(damaged), ends, records)

    @pytest.mark.parametrize("version", [2, 255])
    def test_a_newer_version_is_refused_by_name(self, version: int):
        head, ends, records = self.row()
        with pytest.raises(DataError, match=rf"version {version}, codec 0 .* reads version 1"):
            decode_batch(head[:1] + bytes([version]) + head[2:], ends, records)

    @pytest.mark.parametrize("length", [0, 1, HEAD.size - 1, HEAD.size + 1])
    def test_a_head_of_the_wrong_length(self, length: int):
        head, ends, records = self.row()
        with pytest.raises(DataError, match=rf"head of a batch is {length} bytes long instead of {HEAD.size}"):
            decode_batch((head + b"\x00")[:length], ends, records)

    @pytest.mark.parametrize("cut", [1, 2, 3])
    def test_an_index_of_the_wrong_length(self, cut: int):
        head, ends, records = self.row()
        with pytest.raises(DataError, match="not a multiple of 4"):
            decode_batch(head, ends[:-cut], records)

    @pytest.mark.parametrize(
        ("ends", "says"),
        [
            ([], "0 records sum up to 0 bytes, the batch has 6"),
            ([0, 3, 6], "record 0 of a batch has length 0"),
            ([3, 3, 6], "record 1 of a batch has length 0"),
            ([4, 3, 6], "record 1 of a batch has length -1"),
            ([2, 4, 5], "3 records sum up to 5 bytes, the batch has 6"),
            ([2, 4, 7], "3 records sum up to 7 bytes, the batch has 6"),
            ([2, 4, 0xFFFFFFFF], "sum up to 4294967295 bytes"),
        ],
        ids=str,
    )
    def test_hostile_lengths(self, ends: list[int], says: str):
        records = b"abcdef"
        with pytest.raises(DataError, match=says):
            check_ends(RecordBatch(array("I", ends), records, 0, 0))
        head = HEAD.pack(0x7A, 1, 0, 0, len(ends), crc32(records), 0, 0)
        with pytest.raises(DataError, match=says):
            decode_batch(head, struct.pack(f"<{len(ends)}I", *ends), records)

    def test_an_empty_batch_is_none(self):
        with pytest.raises(DataError, match="0 records"):
            decode_batch(HEAD.pack(0x7A, 1, 0, 0, 0, 0, 0, 0), b"", b"")

    @pytest.mark.parametrize(
        "record",
        [
            b"\xc1",
            b"\x94\xc4",
            msgspec.msgpack.encode("text"),
            msgspec.msgpack.encode({"value": b""}),
            msgspec.msgpack.encode((b"v", b"k", ())),
            msgspec.msgpack.encode(("text", None, (), 0)),
            msgspec.msgpack.encode((b"", 5, (), 0)),
            msgspec.msgpack.encode((b"", None, ((b"bytes", b""),), 0)),
            msgspec.msgpack.encode((b"", None, (("a", b"", b""),), 0)),
            msgspec.msgpack.encode((b"", None, (), "now")),
            msgspec.msgpack.encode((b"", None, (), 1.5)),
            b"\x94\xc4\x00\xc0\x91\x92\xa1\xff\xc4\x00\x00",
        ],
        ids=[
            "no msgpack",
            "cut off",
            "a text",
            "a map",
            "three fields",
            "value as text",
            "key as number",
            "header name as bytes",
            "header of three",
            "time as text",
            "time as float",
            "header name no UTF-8",
        ],
    )
    def test_what_is_no_record_is_named_with_its_offsets(self, record: bytes):
        batch = seal([encode_record(b"", None, (), 0), record], [0, 0])
        with pytest.raises(DataError, match=r"orders\[0\] offsets 5 to 6: not valid records: ") as refused:
            decode(segment(whole(batch, 5)))
        assert refused.value.__cause__ is not None
        with pytest.raises(DataError, match="not valid records"):
            timestamps(batch)

    def test_bytes_behind_the_last_record(self):
        batch = seal([encode_record(b"", None, (), 0) + b"\x00"], [0])
        with pytest.raises(DataError, match="not valid records"):
            decode(segment(whole(batch)))


class TestRuns:
    def test_cut_without_copying(self):
        batch = seal([b"ab", b"c", b"def", b"g"], [0] * 4)
        run = whole(batch, 10)
        assert (run.count, run.size, run.end, run.payload) == (4, 7, 14, b"abcdefg")
        assert run.payload is batch.records
        front, back = run.split(1)
        assert (front.base, front.payload, front.end) == (10, b"ab", 11)
        assert (back.base, back.payload, back.size, back.end) == (11, b"cdefg", 5, 14)
        middle = back.split(2)[0]
        assert (middle.base, middle.payload) == (11, b"cdef")
        assert middle.batch is batch

    def test_after_a_position(self):
        run = whole(seal([b"a", b"b", b"c"], [0] * 3), 10)
        assert run.after(Position(5)) is run
        assert run.after(Position(10)) is run
        assert (run.after(Position(11)).base, run.after(Position(11)).payload) == (11, b"bc")
        assert run.after(Position(13)).count == run.after(Position(99)).count == 0

    @pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (99, 3)])
    def test_how_many_fit(self, limit: int, count: int):
        run = whole(seal([b"ab", b"c", b"def"], [0] * 3))
        assert run.fit(limit) == count
        assert run.split(1)[1].fit(limit) == (0 if limit < 1 else 1 if limit < 4 else 2)

    def test_a_segment_adds_its_runs_up(self):
        first, second = whole(sized(1, 2), 5), whole(sized(3), 7)
        one = segment(first, second)
        assert (one.first, one.last, one.count, one.size) == (5, 7, 3, 6)


class TestCollect:
    runs = (whole(sized(100, 100, 100), 0), whole(sized(5000), 3), whole(sized(100, 100), 4))

    def taken(self, position: int, count: int = 1000, limit: int = 10**6) -> list[tuple[int, int]]:
        """Offset and length of each run."""
        return [(run.base, run.count) for run in collect(self.runs, Position(position), count, limit)]

    def test_from_a_position_across_runs(self):
        assert self.taken(0) == [(0, 3), (3, 1), (4, 2)]
        assert self.taken(1) == [(1, 2), (3, 1), (4, 2)]
        assert self.taken(5) == [(5, 1)]
        assert self.taken(6) == []

    def test_at_most_count(self):
        assert self.taken(0, count=2) == [(0, 2)]
        assert self.taken(0, count=3) == [(0, 3)]
        assert self.taken(2, count=3) == [(2, 1), (3, 1), (4, 1)]

    @rule("S45", "C108")
    def test_a_first_record_above_the_limit_comes_alone(self):
        assert self.taken(3, limit=1) == [(3, 1)]
        assert self.taken(3, limit=4999) == [(3, 1)]
        assert self.taken(3, limit=5099) == [(3, 1)]
        assert self.taken(3, limit=5100) == [(3, 1), (4, 1)]
        assert self.taken(4, limit=150) == [(4, 1)]

    @rule("S45")
    def test_a_later_record_that_does_not_fit_ends_it(self):
        assert self.taken(0, limit=300) == [(0, 3)]
        assert self.taken(0, limit=299) == [(0, 2)]
        assert self.taken(2, limit=5099) == [(2, 1)]
        assert self.taken(2, limit=5100) == [(2, 1), (3, 1)]

    def test_looks_no_further_than_it_needs(self):
        def runs() -> Any:
            yield self.runs[0]
            raise AssertionError("read on")

        assert len(collect(runs(), Position(0), 3, 10**6)) == 1
        assert len(collect(runs(), Position(0), 1000, 300)) == 1

    def test_many_short_runs_come_as_few(self):
        sizes = [2, *[1, 3] * 20, 2]
        runs, offset = list[Run](), 0
        for size in sizes:
            numbers = range(offset, offset + size)
            runs.append(
                whole(seal([encode_record(b"%d" % number, None, (), number) for number in numbers], [0] * size), offset)
            )
            offset += size
        found = collect(runs, Position(1), offset - 2, 10**6)  # cuts the first run and the last one
        assert len(found) == 3
        messages = decode(segment(*found))
        assert [message.value for message in messages] == [b"%d" % number for number in range(1, offset - 1)]
        assert [message.offset for message in messages] == list(range(1, offset - 1))


class TestReplies:
    @rule("C7")
    def test_a_reply_leaves_room_for_its_framing(self):
        assert reply_limit(1000) == 1000 - RUN_OVERHEAD
        assert [reply_limit(max_bytes) for max_bytes in (1, RUN_OVERHEAD, RUN_OVERHEAD + 1)] == [1, 1, 1]

    @pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536, 10_000])
    def test_any_number_of_records_gets_the_same_header(self, count: int):
        header = array_header(count)
        assert (len(header), header[0], int.from_bytes(header[1:], "big")) == (5, 0xDD, count)
        assert len(header) < RUN_OVERHEAD
        assert len(msgspec.msgpack.decode(header + b"\xc0" * count)) == count


def test_a_batch_above_a_limit_is_refused_with_its_sizes() -> None:
    """By the records, by the bytes, by one record, by its time; what fits is not."""
    limit = 2**20
    assert append_refusal(seal([b"x"] * 1000, [0] * 1000), 10) is None
    assert append_refusal(seal([bytes(limit)], [0]), limit) is None
    cases = [
        (seal([b"x"] * 1001, [0] * 1001), 10, BatchTooLarge, "1001 records and 1001 bytes"),
        (seal([bytes(131_073)] * 2, [0] * 2), limit, BatchTooLarge, "2 records and 262146 bytes"),
        (seal([bytes(10), bytes(11)], [0] * 2), 10, MessageTooLarge, "a record of 11 bytes"),
        (seal([b"x"], [2**62]), 10, ConfigError, "years 1 to 9999"),
        (seal([b"x"], [-(2**62)]), 10, ConfigError, "years 1 to 9999"),
    ]
    for batch, most, kind, text in cases:
        refusal = append_refusal(batch, most)
        assert isinstance(refusal, kind)
        assert text in str(refusal)
