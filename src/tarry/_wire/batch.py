"""Records and batches as bytes (design 5.1): encode once, cut and join without decoding, decode at the very end.

Layout is documented in docs/reference/format.md and pinned by golden files. Not here: where batches are kept.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import force_setattr

from tarry.errors import BatchTooLarge, ConfigError, DataError, MessageTooLarge, TarryError
from tarry.types import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    Header,
    Message,
    Position,
    RecordBatch,
    Run,
    Segment,
)

MAGIC = 0x7A
VERSION = 1
CODEC_NONE = 0
HEAD = struct.Struct("<BBBBIIqq")
"""magic, version, codec, flags, record count, CRC-32 of the records, first timestamp, highest timestamp."""
DECODE_BYTES = 256 * 1024
"""Most bytes decoded at once (design 4.3): fresh 1 MiB buffers halve the rate."""

RUNS_MAX = 8
"""More runs than this in one selection are joined."""
RUN_OVERHEAD = 64
"""Bytes that `max_bytes` charges per partition in a reply for metadata and framing (C7)."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Message[bytes]])
_NOT_RECORDS = (msgspec.DecodeError, UnicodeDecodeError)


def encode_record(value: bytes | None, key: bytes | None, headers: Sequence[Header], timestamp_ms: int) -> bytes:
    """One record: the msgpack array `[value, key, headers, timestamp_ms]`. New fields only ever go to the end."""
    return _encoder.encode((value, key, headers, timestamp_ms))


def seal(records: Sequence[bytes], timestamps: Sequence[int]) -> RecordBatch:
    """Make a batch out of encoded records and their timestamps (at least one)."""
    if len(records) == 1:
        return RecordBatch(array("I", (len(records[0]),)), records[0], timestamps[0], timestamps[0])
    ends = array("I")
    end = 0
    for record in records:
        end += len(record)
        ends.append(end)
    return RecordBatch(ends, b"".join(records), timestamps[0], max(timestamps))


def join(batches: Sequence[RecordBatch]) -> RecordBatch:
    """One batch out of several, in order, by bytes alone."""
    if len(batches) == 1:
        return batches[0]
    ends = array("I")
    offset = 0
    for batch in batches:
        if batch.count == 1:  # 64 lone appends: 9 us instead of 34.
            ends.append(offset + batch.size)
        else:
            ends.extend([offset + end for end in batch.ends])
        offset += batch.size
    records = b"".join([batch.records for batch in batches])
    return RecordBatch(ends, records, batches[0].first_ms, max([batch.max_ms for batch in batches]))


def encode_head(batch: RecordBatch) -> bytes:
    """The head of a stored row: format, codec, count, checksum, timestamps."""
    return HEAD.pack(MAGIC, VERSION, CODEC_NONE, 0, batch.count, crc32(batch.records), batch.first_ms, batch.max_ms)


def encode_ends(batch: RecordBatch) -> bytes:
    """End positions as little-endian 32-bit numbers."""
    return _little(batch.ends).tobytes()


def decode_ends(raw: bytes) -> array[int]:
    """Inverse of `encode_ends`.

    Raises:
        DataError: the length is no multiple of 4.
    """
    if len(raw) % 4:
        raise DataError(f"the index of a batch is {len(raw)} bytes long, not a multiple of 4")
    ends = array("I")
    ends.frombytes(raw)
    return _little(ends)


def _little(ends: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return ends
    ends = array("I", ends)
    ends.byteswap()
    return ends


def decode_batch(head: bytes, ends_raw: bytes, records: bytes) -> RecordBatch:
    """A stored row, checked: format, count, lengths, checksum.

    Raises:
        DataError: says what does not fit; the caller adds file, partition and offsets.
    """
    if len(head) != HEAD.size:
        raise DataError(f"the head of a batch is {len(head)} bytes long instead of {HEAD.size}")
    magic, version, codec, flags, count, checksum, first_ms, max_ms = HEAD.unpack(head)
    if magic != MAGIC:
        raise DataError(f"a batch begins with 0x{magic:02x} instead of 0x{MAGIC:02x}")
    if version != VERSION or codec != CODEC_NONE or flags:
        raise DataError(
            f"a batch has version {version}, codec {codec} and flags {flags}; this release reads version {VERSION}, "
            f"codec {CODEC_NONE}, no flags"
        )
    ends = decode_ends(ends_raw)
    if len(ends) != count:
        raise DataError(f"a batch of {count} records has {len(ends)} end positions")
    batch = RecordBatch(ends, records, first_ms, max_ms)
    check_ends(batch)
    if crc32(records) != checksum:
        raise DataError(
            f"checksum mismatch over {len(records)} bytes: stored {checksum:08x}, computed {crc32(records):08x}"
        )
    return batch


def check_ends(batch: RecordBatch) -> None:
    """Every record has a positive length and the lengths sum up to the records.

    Raises:
        DataError: names the first record that does not fit.
    """
    before = 0
    for end in batch.ends:
        if end <= before:
            index = next(index for index in range(batch.count) if batch.ends[index] <= batch.start_of(index))
            raise DataError(f"record {index} of a batch has length {end - before}")
        before = end
    if before != batch.size or not batch.count:
        raise DataError(f"the lengths of {batch.count} records sum up to {before} bytes, the batch has {batch.size}")


def timestamps(batch: RecordBatch) -> list[int]:
    """The timestamp of each record, in milliseconds (what a search by time looks at in the end).

    Raises:
        DataError: a record is not a valid record.
    """
    try:
        records = _decoder.decode(array_header(batch.count) + batch.records)
    except _NOT_RECORDS as error:
        raise DataError(f"not valid records: {error}") from error
    return [record.timestamp_ms for record in records]


def first_timestamp(run: Run) -> int:
    """The timestamp of the first record of a run, in milliseconds.

    Raises:
        DataError: it is not a valid record.
    """
    first, _ = run.split(1)
    try:
        return _decoder.decode(array_header(1) + first.payload)[0].timestamp_ms
    except _NOT_RECORDS as error:
        raise DataError(f"not a valid record: {error}") from error


def append_refusal(batch: RecordBatch, max_record_bytes: int, where: object = "this topic") -> TarryError | None:
    """Why no store takes a batch: a size above its limit, or a time nobody can show (design 5.6); None: it may come."""
    size, count = batch.size, batch.count
    if size > max_record_bytes:
        largest = max(batch.ends[index] - batch.start_of(index) for index in range(count))
        if largest > max_record_bytes:
            return MessageTooLarge(
                f"a record of {largest} bytes: {where} takes up to {max_record_bytes} (max_record_bytes)",
                size=largest,
                limit=max_record_bytes,
            )
    if count > BATCH_RECORDS_MAX or (size > BATCH_BYTES_MAX and count > 1):
        return BatchTooLarge(
            f"a batch of {count} records and {size} bytes for {where}: at most {BATCH_RECORDS_MAX} records and "
            f"{BATCH_BYTES_MAX} bytes go together; split it"
        )
    if batch.max_ms > TIMESTAMP_MS_MAX or batch.first_ms < TIMESTAMP_MS_MIN:
        return ConfigError(
            f"timestamps from {batch.first_ms} to {batch.max_ms} ms: they must lie in the years 1 to 9999"
        )
    return None


def array_header(count: int) -> bytes:
    """What makes `count` bare records one msgpack array."""
    return b"\xdd" + count.to_bytes(4, "big")


def collect(runs: Iterable[Run], position: Position, count: int, limit: int) -> tuple[Run, ...]:
    """Cut a selection out of consecutive runs: from `position` on, at most `count` records and `limit` bytes.

    A first record above the limit comes alone (S45); a later one that does not fit is left for the next poll.
    """
    taken: list[Run] = []
    for run in runs:
        part = run if run.base >= position else run.after(position)
        there, size = part.count, part.size
        if not there:
            continue
        if there > count or size > limit:
            fit = min(part.fit(limit), count) or (0 if taken else 1)
            if fit:
                taken.append(part.split(fit)[0])
            break
        taken.append(part)
        count -= there
        limit -= size
        if not count or not limit:
            break
    return _joined(taken) if len(taken) > RUNS_MAX else tuple(taken)


def _joined(runs: list[Run]) -> tuple[Run, ...]:
    """Many short runs as few: each costs everybody on its way more than its bytes do. The outer ones may be cut."""
    first, *whole, last = runs
    batch = join([run.batch for run in whole])
    return first, Run(whole[0].base, batch, 0, batch.count), last


def reply_limit(max_bytes: int) -> int:
    """Bytes of records that fit into a reply of `max_bytes` (C7, S42); at least 1, as a first record always comes."""
    return max(max_bytes - RUN_OVERHEAD, 1)


def decode(segment: Segment) -> list[Message]:
    """Decode a segment and stamp each message with its offset and origin.

    Raises:
        DataError: a record is not a valid record.
    """
    payload = b"".join([array_header(segment.count), *[run.payload for run in segment.runs]])
    try:
        messages = _decoder.decode(payload)
    except _NOT_RECORDS as error:
        raise DataError(
            f"{segment.origin.partition} offsets {segment.first} to {segment.last}: not valid records: {error}"
        ) from error
    offset = int(segment.first)
    origin = segment.origin
    stamp = force_setattr
    for message in messages:
        stamp(message, "offset", offset)
        stamp(message, "origin", origin)
        offset += 1
    return messages


class Undecoded(NamedTuple):
    """The first message of a list whose value does not decode: where it stands, its bytes, what the decoder said."""

    place: int
    raw: bytes
    cause: Exception


def decode_values(messages: Sequence[Message[Any]], decode_value: Callable[[bytes], object]) -> Undecoded | None:
    """Put decoded values in the place of bytes, up to the first that does not decode; a delete marker stays (K76)."""
    for index, message in enumerate(messages):
        raw = message.value
        if raw is None:
            continue
        try:
            force_setattr(message, "value", decode_value(raw))
        except Exception as error:  # noqa: BLE001  # whatever a user's decoder raises: the caller raises it as the cause
            return Undecoded(index, raw, error)
    return None
