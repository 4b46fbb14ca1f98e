"""The vocabulary: what users and all layers hand to each other.

Here are values without behaviour towards the outside: positions, messages, batches, starts, reports. Not here: options
(`config`), the ports and their requests (`abc`), encoding (`_wire`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NewType, Self, cast, overload

import msgspec

from tarry.errors import ConfigError, ConfigTypeError, InvalidName, TarryError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
else:
    from typing import TypeVar  # without a default before Python 3.13

    T = TypeVar("T")
"""What values are decoded to, and encoded from (`value_type`); plain bytes unless said otherwise."""

Offset = NewType("Offset", int)
"""Names one existing message of a partition; stored offsets are inclusive."""
Position = NewType("Position", int)
"""The next message to read of a partition."""
Ownership = NewType("Ownership", int)
"""Fencing number of one (group, partition); 0 for standalone consumers."""
HistoryId = NewType("HistoryId", int)
"""Identity of one partition's history; a topic deleted and created again gets new ones (Q10)."""

UNFENCED = Ownership(0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_STREAM = "default"
NAME_BYTES_MAX = 255
KEY_BYTES_MAX = 64 * 1024
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 32 * 1024
BATCH_RECORDS_MAX = 1000
BATCH_BYTES_MAX = 256 * 1024
"""A batch is sealed at this size; a single larger record travels alone (design 5.1)."""

TIMESTAMP_MS_MIN = -62_135_596_800_000
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""Timestamps lie within the years 1 to 9999, which an aware datetime can show."""
REPR_BYTES = 40
"""So much of a key or value is shown in the text of a message."""

Header = tuple[str, bytes]
Reason = Literal["count", "bytes", "wait", "drain", "rebalance", "error"]
"""Why a poll returned: enough messages, byte limit reached, time over, shutting down, assignment changed, or what is
behind these cannot be read, which the next read raises."""


def position_after(offset: Offset) -> Position:
    """The position behind a message: the next one to read."""
    return Position(offset + 1)


def offset_before(position: Position) -> Offset | None:
    """The last message in front of a position; None at the very beginning (D2)."""
    return Offset(position - 1) if position > 0 else None


def moves(stored: Offset | None, offset: Offset, *, lower: bool) -> bool:
    """Whether storing `offset` over `stored` changes it: it never goes down unless told to (C52, C56, I7)."""
    return stored is None or offset > stored or (lower and offset < stored)


class TopicPartition(NamedTuple):
    """One partition of a topic; the topic is its full name, `stream/topic` or bare for the stream `default`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


def check_name(kind: str, name: object) -> str:
    """Return `name` when it may name a topic, stream, group or consumer.

    Allowed: 1 to 255 bytes of UTF-8 without control characters; lengths count bytes (K104).

    Raises:
        InvalidName: names the kind, the character or the length, and the limit.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{kind} must be a str, not {type(name).__name__} ({name!r})")
    if not name:
        raise InvalidName(f"{kind} must not be empty")
    for character in name:
        if ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 or 0xD800 <= ord(character) < 0xE000:
            raise InvalidName(
                f"{kind} {name!r} holds the character U+{ord(character):04X}; control characters are not allowed"
            )
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise InvalidName(
            f"{kind} {name[:40]!r}... is {size} bytes of UTF-8 long; at most {NAME_BYTES_MAX} are allowed"
        )
    return name


def check_topic(name: object) -> str:
    """Return the full name of a topic: `stream/topic`, without the stream when it is the default one.

    Raises:
        InvalidName: a part that `check_name` refuses, or more than one slash.
    """
    text = check_name("topic name", name)
    parts = text.split("/")
    if len(parts) > 2:
        raise InvalidName(f"topic name {text!r} holds {len(parts) - 1} slashes; at most one (stream/topic) is allowed")
    for part in parts:
        check_name("a part of topic name " + repr(text), part)
    return parts[1] if len(parts) == 2 and parts[0] == DEFAULT_STREAM else text


def check_text(what: str, text: str) -> str:
    """Return a text that can be written as UTF-8.

    Raises:
        ConfigError: it holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} ({text!r}) cannot be written as UTF-8: {error.reason}") from error
    return text


def check_partition(given: object) -> TopicPartition:
    """Return a partition that is named in full, with its topic as `check_topic` has it.

    Raises:
        ConfigTypeError: it is no pair of a topic and an int.
        ConfigError: its number is below 0.
        InvalidName: its topic cannot be one.
    """
    if not isinstance(given, tuple) or len(given) != 2:  # pyright: ignore[reportUnknownArgumentType]
        hint = "; use its topic_partition" if isinstance(given, Message) else ""
        raise ConfigTypeError(
            f"a partition is an int or a TopicPartition, not {type(given).__name__} ({given!r}){hint}"  # pyright: ignore[reportUnknownArgumentType]
        )
    topic, number = cast("tuple[object, object]", given)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigTypeError(f"the number of a partition is an int, not {type(number).__name__} ({number!r})")
    if number < 0:
        raise ConfigError(f"there is no partition {number}; they are numbered from 0 on")
    return TopicPartition(check_topic(topic), number)


def named_partition(given: object, topics: Sequence[str]) -> TopicPartition:
    """The partition that a user means: with one topic a plain int names one of it.

    Raises:
        ConfigError: it names none; see `check_partition`.
    """
    if isinstance(given, bool) or not isinstance(given, int):
        return check_partition(given)
    if len(topics) != 1:
        example = TopicPartition(topics[0] if topics else "orders", given)
        raise ConfigError(f"partition {given} of which topic? Name it, as in {example!r}")
    return check_partition((topics[0], given))


def check_offset(where: str, given: object, removal: str) -> Offset:
    """Return the offset of a message, as it is to be stored; `removal` says how to remove what is stored.

    Raises:
        ConfigError: it is no int, or below 0.
    """
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigTypeError(f"{where} needs the offset of a message, an int, not {given!r}")
    if given < 0:
        raise ConfigError(f"{where}: offsets begin at 0, not at {given}; {removal} removes what is stored")
    return Offset(given)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """What all messages of one served run share: partition, newest visible offset at that moment, ownership."""

    partition: TopicPartition
    head: Offset
    ownership: Ownership = UNFENCED
    history: HistoryId = HistoryId(0)


def _short(value: object) -> str:
    if isinstance(value, bytes) and len(value) > REPR_BYTES:
        return f"{value[:REPR_BYTES]!r}... ({len(value)} bytes)"
    return repr(value)


_NOWHERE = Origin(TopicPartition("", -1), Offset(-1))


if TYPE_CHECKING:
    _StampedOffset = Offset
    _StampedOrigin = Origin
else:
    # A newer release may write fields behind the four of a record; what stands there is accepted and stamped over.
    _StampedOffset = _StampedOrigin = Any


class Message(msgspec.Struct, Generic[T], frozen=True, array_like=True, gc=False):
    """One message as the application gets it; its value is bytes, or what the consumer's `value_type` makes of them.

    `value` None is a delete marker and differs from `b""`; `headers` keep order and duplicates (K76). The four fields
    before `offset` are the record on the wire; `offset` and `origin` are stamped after decoding.
    """

    value: T | None
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int
    offset: _StampedOffset = Offset(-1)
    origin: _StampedOrigin = _NOWHERE

    def __repr__(self) -> str:
        parts = [f"{self.origin.partition}:{self.offset}", f"value={_short(self.value)}"]
        parts += [f"key={_short(self.key)}"] if self.key is not None else []
        parts += [f"headers={self.headers!r}"] if self.headers else []
        return f"<Message {' '.join(parts)}>"

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return self.origin.partition.topic

    @property
    def partition(self) -> int:
        """Number of the partition within its topic."""
        return self.origin.partition.partition

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return self.origin.partition

    @property
    def head(self) -> Offset:
        """Newest visible offset of the partition when this message's batch was served; the same for the whole batch."""
        return self.origin.head

    @property
    def ownership(self) -> Ownership:
        """The standing under which the message was served; stores under an older one are refused."""
        return self.origin.ownership

    @property
    def timestamp(self) -> datetime:
        """Time of the message, aware, UTC (K103)."""
        return EPOCH + timedelta(milliseconds=self.timestamp_ms)


class RecordBatch(msgspec.Struct, frozen=True, gc=False):
    """Encoded records, back to back: the unit that is appended, stored and served (design 5.1).

    Args:
        ends: end position of each record inside `records`; the length is the number of records.
        records: the bare concatenation of the encoded records, without an array header.
        first_ms, max_ms: timestamp of the first record, and the highest one.
    """

    ends: array[int]
    records: bytes
    first_ms: int
    max_ms: int

    def __repr__(self) -> str:
        return f"<RecordBatch of {self.count} records, {self.size} bytes>"

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.ends)

    @property
    def size(self) -> int:
        """Bytes of the encoded records."""
        return len(self.records)

    def start_of(self, index: int) -> int:
        """Where record `index` begins inside `records`; `index` may be `count`, which gives the end."""
        return self.ends[index - 1] if index else 0


class Run(msgspec.Struct, frozen=True, gc=False):
    """Consecutive records cut out of one batch without copying: records `lo` up to `hi` (exclusive).

    `base` is the offset of record `lo`.
    """

    base: Offset
    batch: RecordBatch
    lo: int
    hi: int

    @property
    def count(self) -> int:
        """Number of records."""
        return self.hi - self.lo

    @property
    def size(self) -> int:
        """Bytes of the encoded records."""
        return self.batch.start_of(self.hi) - self.batch.start_of(self.lo)

    @property
    def end(self) -> Position:
        """Position behind the last record."""
        return Position(self.base + self.hi - self.lo)

    @property
    def payload(self) -> bytes:
        """The encoded records, back to back."""
        if self.lo == 0 and self.hi == self.batch.count:
            return self.batch.records
        return self.batch.records[self.batch.start_of(self.lo) : self.batch.start_of(self.hi)]

    def fit(self, limit: int) -> int:
        """How many records from the front fit into `limit` bytes."""
        return bisect_right(self.batch.ends, self.batch.start_of(self.lo) + limit, self.lo, self.hi) - self.lo

    def split(self, count: int) -> tuple[Run, Run]:
        """Cut into the first `count` records and the rest."""
        middle = self.lo + count
        return Run(self.base, self.batch, self.lo, middle), Run(Offset(self.base + count), self.batch, middle, self.hi)

    def after(self, position: Position) -> Run:
        """The part from `position` on (which lies inside, or in front of the run)."""
        skip = min(max(position - self.base, 0), self.count)
        return self if not skip else self.split(skip)[1]


Decode = Callable[["Segment"], list[Message[T]]]


@dataclass(frozen=True, slots=True)
class Segment:
    """Runs of one partition that follow each other and were served together, still encoded."""

    origin: Origin
    runs: tuple[Run, ...]

    @property
    def first(self) -> Offset:
        """Offset of the first message."""
        return self.runs[0].base

    @property
    def last(self) -> Offset:
        """Offset of the last message."""
        return Offset(self.runs[-1].end - 1)

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.runs[-1].end - self.runs[0].base

    @property
    def size(self) -> int:
        """Bytes of the encoded records."""
        return sum(run.size for run in self.runs)

    def up_to(self, offset: Offset) -> Segment:
        """The part that ends with a message of it."""
        if offset >= self.last:
            return self
        runs = [run.split(min(offset + 1 - run.base, run.count))[0] for run in self.runs if run.base <= offset]
        return Segment(self.origin, tuple(runs))

    def after(self, position: Position) -> Segment | None:
        """The part from a position on (C38); None: there is nothing."""
        if position <= self.first:
            return self
        if position > self.last:
            return None
        return Segment(self.origin, tuple(part for run in self.runs if (part := run.after(position)).count))

    def split(self, count: int) -> tuple[Segment, Segment | None]:
        """Cut into the first `count` messages, at least 1, and the rest, if there is one."""
        middle = self.first + count
        return self.up_to(Offset(middle - 1)), self.after(Position(middle))


class Batch(Sequence[Message[T]]):
    """What one `poll` returned: messages of any number of partitions, in order within each.

    Making it and asking its length cost nothing; messages are decoded when they are first looked at, unless the
    consumer has a `value_type`: then all of them decode, and were decoded before. `reason` says why
    the poll returned (see `Reason`); an empty batch is a normal answer, not an error (C6, K101).
    """

    __slots__ = ("_decode", "_messages", "_segments", "reason")

    def __init__(self, segments: Sequence[Segment], reason: Reason, decode: Decode[T]) -> None:
        self._segments = tuple(segments)
        self._decode = decode
        self._messages: list[Message[T]] | None = None
        self.reason: Reason = reason

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The encoded parts, in the order of delivery."""
        return self._segments

    @property
    def offsets(self) -> dict[TopicPartition, tuple[Offset, Offset]]:
        """First and last offset of each partition in the batch."""
        found: dict[TopicPartition, tuple[Offset, Offset]] = {}
        for segment in self._segments:
            first, _ = found.get(segment.origin.partition, (segment.first, segment.last))
            found[segment.origin.partition] = (first, segment.last)
        return found

    def _decoded(self) -> list[Message[T]]:
        if self._messages is None:
            self._messages = [message for segment in self._segments for message in self._decode(segment)]
        return self._messages

    def __len__(self) -> int:
        return sum(segment.count for segment in self._segments)

    def __iter__(self) -> Iterator[Message[T]]:
        if self._messages is not None:
            return iter(self._messages)
        return chain.from_iterable(map(self._decode, self._segments))

    @overload
    def __getitem__(self, index: int) -> Message[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message[T]]: ...
    def __getitem__(self, index: int | slice) -> Message[T] | list[Message[T]]:
        return self._decoded()[index]

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of equal messages; so an empty batch equals `[]` (K101)."""
        if isinstance(other, Batch | list | tuple):
            return list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType]  # any sequence
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # compares by value

    def __repr__(self) -> str:
        parts = ", ".join(f"{partition}:{first}-{last}" for partition, (first, last) in self.offsets.items())
        return f"<Batch of {len(self)} ({self.reason}){': ' + parts if parts else ''}>"


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was appended, durable when it is handed out. `duplicate`: the log had it already."""

    topic: str
    partition: int
    offset: Offset
    duplicate: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)


class StartKind(Enum):
    """The rule of a `Start`."""

    NEXT = "next"
    FIRST = "first"
    LAST = "last"
    END = "end"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


OnGap = Literal["resume", "fail"]
"""What a consumer does when retention has removed what it was to read next."""
Otherwise = Literal["first", "end", "fail"]
"""Where `Start.next()` leads while nothing is stored."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a partition is read from while it has no position yet (C26, C27).

    Make one with the class methods. It is consulted once per ownership of a partition; from the first answer on the
    consumer reads at explicit positions.

    `on_gap` says what happens at any time when retention has removed what was to be read next (K09): `"resume"` goes on
    with the oldest message that is left and reports the gap once (event `gap`, a warning with the exact offsets);
    `"fail"` reports it too and stops the partition, and the reader gets `OffsetOutOfRange` for it once all in front of
    the gap was delivered. Other partitions go on; `seek` goes on with this one.
    """

    kind: StartKind
    value: int | None = None
    otherwise: Otherwise = "first"
    on_gap: OnGap = "resume"

    def __post_init__(self) -> None:
        if not isinstance(self.kind, StartKind):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise ConfigTypeError(
                f"Start({self.kind!r}) is not possible; make one with Start.next(), Start.first() ..."
            )
        if self.on_gap not in ("resume", "fail"):
            raise ConfigError(f"on_gap={self.on_gap!r} is not possible; use 'resume' or 'fail'")

    @classmethod
    def next(cls, otherwise: Start | Literal["fail"] | None = None, *, on_gap: OnGap = "resume") -> Self:
        """Behind the stored offset; without one as `otherwise` says: `Start.first()`, `Start.end()` or `"fail"`."""
        match otherwise:
            case None | Start(kind=StartKind.FIRST):
                return cls(StartKind.NEXT, on_gap=on_gap)
            case Start(kind=StartKind.END):
                return cls(StartKind.NEXT, otherwise="end", on_gap=on_gap)
            case "fail":
                return cls(StartKind.NEXT, otherwise="fail", on_gap=on_gap)
            case _:
                pass
        raise ConfigError(f"otherwise={otherwise!r} is not possible; use Start.first(), Start.end() or 'fail'")

    @classmethod
    def first(cls, *, on_gap: OnGap = "resume") -> Self:
        """The oldest retained message."""
        return cls(StartKind.FIRST, on_gap=on_gap)

    @classmethod
    def last(cls, *, on_gap: OnGap = "resume") -> Self:
        """Up to `PollOptions.count` of the newest messages."""
        return cls(StartKind.LAST, on_gap=on_gap)

    @classmethod
    def end(cls, *, on_gap: OnGap = "resume") -> Self:
        """Only what is appended from now on."""
        return cls(StartKind.END, on_gap=on_gap)

    @classmethod
    def offset(cls, offset: int, *, on_gap: OnGap = "resume") -> Self:
        """The message with this offset."""
        if isinstance(offset, bool) or not isinstance(offset, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigTypeError(f"Start.offset takes an int, not {type(offset).__name__} ({offset!r})")
        if offset < 0:
            raise ConfigError(f"Start.offset({offset}) is below 0; for the newest messages use Start.last()")
        return cls(StartKind.OFFSET, offset, on_gap=on_gap)

    @classmethod
    def timestamp(cls, time: datetime, *, on_gap: OnGap = "resume") -> Self:
        """The first message at or after `time`, an aware datetime; the end when there is none (K103)."""
        if not isinstance(time, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigTypeError(
                f"Start.timestamp takes an aware datetime, not {type(time).__name__} ({time!r}): "
                "numbers do not say their unit; use datetime.fromtimestamp(seconds, tz=UTC)"
            )
        if time.tzinfo is None or time.utcoffset() is None:
            raise ConfigError(
                f"Start.timestamp({time!r}) has no time zone; use time.replace(tzinfo=UTC) or time.astimezone()"
            )
        return cls(StartKind.TIMESTAMP, -((EPOCH - time) // timedelta(milliseconds=1)), on_gap=on_gap)

    def __str__(self) -> str:
        if self.otherwise != "first":
            return f"Start.next(otherwise={'Start.end()' if self.otherwise == 'end' else repr(self.otherwise)})"
        return f"Start.{self.kind.value}({'' if self.value is None else self.value})"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the log describes it. Sizes in bytes, ages in seconds; None means without limit."""

    name: str
    partitions: tuple[PartitionInfo, ...]
    retention_age: float | None
    retention_bytes: int | None
    max_record_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a `TopicInfo`: retained messages are `log_start` up to `log_end` (exclusive), `size` bytes."""

    partition: int
    log_start: Position
    log_end: Position
    size: int
    history: HistoryId


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of a group.

    Args:
        id: given by the log when it joined; a member that comes back after eviction has a new one.
        member: the name of a static member, None without one.
        owned: partitions it reads, those it is asked to give up included.
        revoking: of these, the ones it is asked to give up.
        idle: seconds since it was last heard of.
    """

    id: str
    member: str | None
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...]
    revoking: tuple[TopicPartition, ...]
    idle: float


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group stands in one partition: `stored` is inclusive, None without one; `lag` counts messages."""

    stored: Offset | None
    log_end: Position
    lag: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group: `generation` counts changes of its members; `offsets` has each partition that it reads or stored for."""

    name: str
    generation: int
    members: tuple[MemberInfo, ...]
    offsets: Mapping[TopicPartition, GroupOffset]

    @property
    def lag(self) -> int:
        """Messages behind, over all partitions."""
        return sum(offset.lag for offset in self.offsets.values())


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """What a consumer left behind.

    Args:
        committed: the stored offset of each partition when the consumer left it; None: nothing is stored.
        rewound: by how many messages the stored offset was brought back, where it was.
        unfinished: messages handed out but not finished; they come again.
    """

    committed: dict[TopicPartition, Offset | None]
    rewound: dict[TopicPartition, int]
    unfinished: dict[TopicPartition, int]

    def __str__(self) -> str:
        lines = [
            f"{partition}: committed {'nothing' if offset is None else offset}, "
            f"rewound {self.rewound.get(partition, 0)}, unfinished {self.unfinished.get(partition, 0)}"
            for partition, offset in sorted(self.committed.items())
        ]
        return "\n".join(lines) if lines else "no partitions"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind the end of a partition, in messages and in time.

    Args:
        position: the next message to be delivered, None while it is not known.
        delivered: messages that were not delivered yet.
        stored: messages that are not stored as finished.
        delivered_s: age in seconds of the oldest message that was not delivered, 0 when there is none. None: unknown.
        stored_s: the same of the oldest one that is not stored.
    """

    log_end: Position
    position: Position | None
    delivered: int
    stored: int
    delivered_s: float | None
    stored_s: float | None


CommitMode = Literal[
    "disabled",
    "finished",
    "interval",
    "on_poll",
    "each_message",
    "each_batch",
    "every_nth",
    "after_each",
    "after_nth",
    "after_head",
]
"""What makes a consumer store offsets by itself."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a consumer has done since it was entered.

    Args:
        messages: messages handed over; one that comes again counts again.
        bytes: their size as the log keeps them.
        buffered_messages: fetched, and not handed over yet.
        buffered_bytes: the size of those.
        polls: requests for messages.
        waits: requests that wait over idle partitions.
        refusals: requests of any kind that the log refused, or did not answer.
        stored: offset stores that the log accepted.
        stores_failed: stores of the mode, or of the end, that it did not (C54).
        store_error: of the last of those.
        rebalances: changes of this member's assignment.
        evictions: how often the group went on without this member.
        gaps: how often retention removed messages before they were read.
    """

    messages: int = 0
    bytes: int = 0
    buffered_messages: int = 0
    buffered_bytes: int = 0
    polls: int = 0
    waits: int = 0
    refusals: int = 0
    stored: int = 0
    stores_failed: int = 0
    store_error: TarryError | None = None
    rebalances: int = 0
    evictions: int = 0
    gaps: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a consumer gets on, or else why not.

    Args:
        ok: it is open, a member, the log answers, and no partition is stopped. Slow work does not change it.
        state: as in its repr, for example "open".
        is_member: the log counts it in; False after an eviction until it has joined again. True without a group.
        owned: the partitions it reads.
        missing: partitions that have no position yet, and why.
        missing_topics: topics that do not exist (any more); they do not make it ill.
        stopped: partitions that are not read for now, with the last error; tried again after a cool-down (C110).
        stalled_s: seconds since a message was handed over, while fetched ones wait; 0 when none waits.
        silent_s: seconds for which the log has owed an answer, or has refused every request about some partition.
        last_error: the last refusal, or what ended the consumer's loops.
    """

    ok: bool
    state: str
    is_member: bool
    owned: frozenset[TopicPartition]
    missing: dict[TopicPartition, str]
    stopped: dict[TopicPartition, TarryError]
    stalled_s: float
    silent_s: float
    last_error: TarryError | None
    missing_topics: tuple[str, ...] = ()


class ProducerStamp(NamedTuple):
    """Identity of one append for de-duplication: 16 random bytes of the producer, its sequence on the partition."""

    producer: bytes
    sequence: int
