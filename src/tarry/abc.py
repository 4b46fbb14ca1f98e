"""The ports: what a log offers (`Broker`, `Session`), what a store offers the embedded log (`LogStore`), plug-ins.

Requests and replies that cross a port are defined beside it. No behaviour here; the only code is arithmetic on a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NewType, Protocol, TypeVar

from tarry.types import UNFENCED, Start, T

if TYPE_CHECKING:
    from tarry.config import TopicOptions
    from tarry.errors import TarryError
    from tarry.types import (
        GroupInfo,
        HistoryId,
        Offset,
        Ownership,
        Position,
        ProducerStamp,
        Receipt,
        RecordBatch,
        Run,
        TopicInfo,
        TopicPartition,
    )

TARGETS_MAX = 1000
"""Most partitions that one poll or readiness wait names (C80)."""
REQUEST_GRACE = 10.0
"""Seconds after the end of a wait at which the sender gives the request up (C4)."""

_Decoded_co = TypeVar("_Decoded_co", covariant=True)
_Encoded_contra = TypeVar("_Encoded_contra", contravariant=True)

Leader = NewType("Leader", str)
"""Who leads a partition; one embedded log leads all of its partitions."""


class Clock(Protocol):
    """Time, handed in. Machines get `now` as an argument; only shells ask a clock."""

    def now(self) -> float:
        """Monotonic seconds of the loop that asks."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; only for message timestamps, `appended_at` and logs."""
        ...


class Partitioner(Protocol):
    """Chooses the partition of a message; wins over everything else (P4)."""

    def __call__(self, key: bytes | None, value: bytes | None, partitions: int, /) -> int:
        """Return a number in `range(partitions)`."""
        ...


class Decoder(Protocol[_Decoded_co]):
    """Makes values of bytes, for `client.consumer(..., value_type=decoder)`."""

    def decode(self, data: bytes, /) -> _Decoded_co:
        """The value that `data` stands for; any `Exception` makes the message an `UndecodableMessage`.

        Never called for a delete marker (None), but for `b""`. It may be called again for a message that is delivered
        again, and must not block: it runs in the event loop.
        """
        ...


class Encoder(Protocol[_Encoded_contra]):
    """Makes bytes of values, for `client.producer(..., value_type=encoder)`."""

    def encode(self, value: _Encoded_contra, /) -> bytes:
        """The bytes that stand for a value; any `Exception` makes the send an `UnencodableValue`.

        Never called for a delete marker (None). It must not block: it runs in the event loop.
        """
        ...


class Codec(Decoder[T], Encoder[T], Protocol[T]):
    """Both ways: `decode(encode(value)) == value`."""


class Instrument(Protocol):
    """Receives one event at a time; must not block. See `instruments` for the events."""

    def __call__(self, event: str, fields: Mapping[str, object], /) -> None:
        """Take note of an event; an exception out of here is logged once and the instrument is dropped."""
        ...


# --------------------------------------------------------------------------------------------- the broker port


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker can do beyond the minimum."""

    groups: bool
    timestamps: bool
    idempotent_append: bool
    commit_on_poll: Literal["atomic", "emulated", "none"]


@dataclass(frozen=True, slots=True)
class ConsumerIdentity:
    """Who stores offsets: a named standalone consumer, a group, or (None) somebody who stores nothing.

    `member` is the name of a static member of a group: two of one name are not let in at the same time.
    """

    name: str | None
    kind: Literal["name", "group"] = "name"
    member: str | None = None

    @property
    def key(self) -> str | None:
        """Name under which offsets are stored; names and groups do not collide."""
        return None if self.name is None else f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a session owns now.

    Args:
        version: moves at every change, and is never used for another assignment again, whatever restarts.
        generation: counts the changes of the group's members; for people.
        owned: the partitions with their ownership; those in `revoking` are among them.
        revoking: these are wanted back: deliver nothing more of them, finish, store, then `release` (design 4.1).
        topics: partition count of each topic; one that was asked for and does not exist is not there.
        late: those of `owned` that came into being while the session, or its group, was there: with nothing stored they
            are read from their first message (K56). Not those of a topic that was deleted and created again (K57).
    """

    version: int
    generation: int
    owned: Mapping[TopicPartition, Ownership]
    revoking: frozenset[TopicPartition]
    topics: Mapping[str, int]
    late: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """One partition of a poll or readiness wait.

    `at` is a `Start` only while the partition has no position; it is resolved at admission (S11) and comes back as
    `TargetReply.position`. `history` is what the position belongs to, None while it is unknown.
    """

    partition: TopicPartition
    at: Position | Start
    ownership: Ownership = UNFENCED
    history: HistoryId | None = None


@dataclass(frozen=True, slots=True)
class TargetReply:
    """What one target of a poll got.

    Args:
        position: where the read began, after resolving the start and after skipping what retention removed.
        asked: the position asked for, before that skip; `asked < position` is a gap (Q9).
        runs: the records, in order, nothing missing between them.
        head: newest visible offset, None while the partition never held a message.
        history: identity of the history the positions belong to. When the target named another one nothing was read:
            drop the position and resolve the start again (Q10).
    """

    partition: TopicPartition
    asked: Position
    position: Position
    runs: tuple[Run, ...]
    head: Offset | None
    log_start: Position
    history: HistoryId
    ownership: Ownership

    @property
    def next(self) -> Position:
        """Position behind the last record."""
        return self.runs[-1].end if self.runs else self.position


@dataclass(frozen=True, slots=True)
class PollReply:
    """Replies per target, in the order of the request; targets that brought nothing are there too."""

    targets: tuple[TargetReply, ...]


@dataclass(frozen=True, slots=True)
class WatchChange:
    """How the targets of a readiness wait differ from those of the one before it on the same watch.

    Args:
        watch: tells apart what a session watches; never used again for another one.
        version: 0 for the first wait of a watch, then 1 more with each. A log that has not seen the one before, or that
            does not remember it, goes by the targets.
        named: targets that were not named before, or stand elsewhere now; all of them at an explicit position.
        dropped: partitions that are not named any more.
    """

    watch: int
    version: int
    named: tuple[FetchTarget, ...]
    dropped: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """One target of a readiness wait that has something to read: messages there, and bytes as far as they are known."""

    partition: TopicPartition
    messages: int
    size: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a start lies now; retained messages are `log_start` up to `log_end` (exclusive).

    Args:
        age_s: of a `Position` that was asked for: how many seconds ago the first retained message from there on was
            made, by its timestamp and the log's clock, at least 0; 0 when there is none. None: unknown, since a
            `Start` was asked for, or the message is damaged.
    """

    position: Position
    log_start: Position
    log_end: Position
    history: HistoryId
    age_s: float | None = None


class Session(Protocol):
    """One consumer's standing with a log.

    Requests to different leaders may be out at the same time; of those to one leader one poll and one wait per 1,000
    partitions. Of `route`, `resolve` and `stored_offset` several may be out, up to 16 of each for a consumer that takes
    its partitions over. All others: one task at a time per kind of request.

    Cancelling an awaiting task withdraws its request at the log, at once; an offset store that was already handed over
    may still be applied.
    """

    @property
    def assignment(self) -> Assignment:
        """The newest assignment known here."""
        ...

    @property
    def session_timeout(self) -> float | None:
        """Seconds without a `touch` after which the log ends this session; None: it does not lapse."""
        ...

    async def changed(self, version: int) -> Assignment:
        """Wait until the assignment's version differs from `version`.

        A standalone one changes too: with partitions that a topic gains, and with topics that are created or deleted.

        Raises:
            NotAMember: the session was evicted, or it left; everything it owned is lost.
        """
        ...

    async def route(self, partition: TopicPartition) -> Leader:
        """Who leads a partition."""
        ...

    async def resolve(self, partition: TopicPartition, start: Position | Start) -> Resolved:
        """Where a start lies now (serves `seek`), or how old what lies at a position is (serves `lag`)."""
        ...

    async def wait_ready(
        self,
        leader: Leader,
        targets: Sequence[FetchTarget],
        *,
        min_count: int = 1,
        min_bytes: int | None = None,
        max_wait: float,
        change: WatchChange | None = None,
    ) -> Sequence[Ready]:
        """Wait until the targets together have `min_count` messages or `min_bytes` bytes to read (S52, design 4.2).

        Moves no messages. Answers the targets that have something, empty ones left out; at the end of the wait
        whatever there is. Targets whose partition or history is gone count as ready, with no messages, so that a poll
        reports it.

        `change` says how `targets` differ from those of the wait before, so that a log which remembers that one looks
        at nothing else. It may be left out, or not be looked at: `targets` are always all that is waited for.
        """
        ...

    async def poll(
        self,
        leader: Leader,
        targets: Sequence[FetchTarget],
        *,
        count: int,
        max_bytes: int,
        min_count: int = 1,
        max_wait: float = 0.0,
        commit: bool = False,
    ) -> PollReply:
        """Read 1 to 1000 targets; `count` and `max_bytes` are exact over all of them.

        `max_wait` above 0 takes exactly one target and parks until `min_count` messages are there, the byte limit is
        reachable, or the wait is over; then it answers with what there is, possibly nothing. A first record above
        `max_bytes` comes alone and whole.

        `commit` takes exactly one target. The last offset of the reply is stored before it is answered, in one step
        with the last check of session, history and ownership; never lower than what is stored, and not at all without
        messages (S50). A target at `Start.next()` ends with `NotAccepted` when the stored offset is another one than at
        its admission: nothing was applied, ask again (S47).

        Raises:
            StaleAssignment: a target is not owned, or under another ownership, or is wanted back; nothing was applied.
            OutcomeUnknown: a committing poll whose commit may or may not have been applied (57).
        """
        ...

    async def stored_offset(self, partition: TopicPartition) -> Offset | None:
        """The stored offset of this identity, None without one."""
        ...

    async def store_offset(
        self,
        partition: TopicPartition,
        offset: Offset | None,
        *,
        ownership: Ownership,
        history: HistoryId | None = None,
        lower: bool = False,
    ) -> Offset | None:
        """Store an offset (None deletes); durable when it returns. Lower ones change nothing unless `lower`.

        Returns the stored offset afterwards. `history` refuses a store for a topic that was deleted and created again.

        Raises:
            StaleAssignment: the partition is not owned under this ownership; nothing was applied. A partition that is
                wanted back may still be stored.
        """
        ...

    async def release(self, partitions: Sequence[TopicPartition]) -> None:
        """Give partitions up (groups): once it returns they may be somebody else's. What is not owned is left out.

        With none of them it only asks the log whether the session stands.

        Raises:
            NotAMember: the session was evicted, or it left; nothing was applied.
        """
        ...

    def touch(self) -> None:
        """The worker lives: a session that is not touched for `session_timeout` is evicted (groups)."""
        ...

    async def leave(self) -> None:
        """End the session; what it has parked is withdrawn. Idempotent."""
        ...


class Broker(Protocol):
    """A partitioned log: topics, appends, sessions."""

    @property
    def capabilities(self) -> Capabilities:
        """What this broker can do."""
        ...

    async def create_topic(self, name: str, options: TopicOptions, *, exist_ok: bool) -> TopicInfo:
        """Create a topic; with `exist_ok` an existing one is returned as it is."""
        ...

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Give a topic more partitions, `partitions` in all; with as many as it has nothing changes.

        The new ones are empty, and sessions on the whole topic get them as late ones (`Assignment.late`).

        Raises:
            ConfigError: it has more; nothing was applied.
        """
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages and stored offsets; parked requests on it end with `TopicNotFound`."""
        ...

    async def describe_topic(self, name: str) -> TopicInfo:
        """One topic, or `TopicNotFound`."""
        ...

    async def list_topics(self) -> Sequence[TopicInfo]:
        """All topics, by name."""
        ...

    async def append(
        self, partition: TopicPartition, batch: RecordBatch, *, producer: ProducerStamp | None = None
    ) -> Receipt:
        """Append a batch; durable when it returns the receipt of its first message (the others follow it).

        A cancelled call may still be applied once the batch was handed to the writer; with a `producer` stamp sending
        the same batch again is harmless.
        """
        ...

    async def open_session(
        self, identity: ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> Session:
        """Open a standalone session on chosen partitions and on all of `topics`, or join a group on `topics`.

        Topics that do not exist are left out until they are created, if there is anything else to read (K72).

        Raises:
            TopicNotFound: none of `topics` exists, and no partition is chosen; names all of them. Or a chosen partition
                does not exist.
            NotAccepted: the group has members that read another set of topics, or a living static member of that name.
        """
        ...

    async def describe_group(self, name: str) -> GroupInfo:
        """One group: members, who owns what, stored offsets and lag; `GroupNotFound` when nothing is known of it."""
        ...

    async def list_groups(self) -> Sequence[GroupInfo]:
        """Every group with members or stored offsets, by name."""
        ...

    async def reset_group(self, name: str, offsets: Mapping[TopicPartition, Offset | None]) -> None:
        """Set stored offsets of a group in either direction (None deletes); all of them are checked before the first.

        Raises:
            NotAccepted: the group has members; nothing was applied.
            OffsetOutOfRange: one of them does not exist; nothing was applied.
        """
        ...

    async def aclose(self) -> None:
        """Close; parked requests end, queued appends are written. Idempotent."""
        ...


# ---------------------------------------------------------------------------------------------- the store port

PartitionId = NewType("PartitionId", int)
"""Number of one partition in a store, never reused: it *is* the history id (design 5.1)."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a store knows about a partition when it is opened. `stored`: offset by identity key."""

    id: PartitionId
    number: int
    log_start: Position
    log_end: Position
    size: int
    stored: Mapping[str, Offset]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in a store."""

    name: str
    options: TopicOptions
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """Append `batch` to a partition; answers `Appended`. `timestamp` of the append is taken by the store."""

    partition: PartitionId
    batch: RecordBatch
    stamp: ProducerStamp | None = None

    @property
    def size(self) -> int:
        """Bytes this job keeps in the queue."""
        return self.batch.size + 4 * self.batch.count


@dataclass(frozen=True, slots=True)
class Appended:
    """Offset of the first record; `duplicate` when the stamp was known and nothing was written."""

    base: Offset
    duplicate: bool


@dataclass(frozen=True, slots=True)
class StoreOffset:
    """Store (with None: delete) the offset of an identity; answers `Stored`. Never lowers unless `lower` (C52).

    With `expected` it is refused with `NotAccepted` when something else is stored at that moment (S47).
    """

    partition: PartitionId
    identity: str
    offset: Offset | None
    lower: bool = False
    expected: Expected | None = None
    size: int = 128


@dataclass(frozen=True, slots=True)
class Expected:
    """The stored offset that a decision was made on."""

    offset: Offset | None


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored offset after a `StoreOffset`."""

    offset: Offset | None


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic; answers its `TopicState`, or `TopicExists`."""

    name: str
    options: TopicOptions
    size: int = 1024


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Give a topic partitions up to this number of them; answers its `TopicState`, `ConfigError` or `TopicNotFound`."""

    name: str
    partitions: int
    size: int = 1024


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic, its messages and stored offsets; answers None, or `TopicNotFound`."""

    name: str
    size: int = 128


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Keep the state of a group, opaque to the store (None: forget it); answers None."""

    name: str
    state: bytes | None

    @property
    def size(self) -> int:
        """Bytes this job keeps in the queue."""
        return 128 + len(self.state or b"")


@dataclass(frozen=True, slots=True)
class Retain:
    """Apply retention to all topics now; answers the `Trimmed` partitions (reported to the listener too)."""

    size: int = 128


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Messages of a partition below `log_start` are gone; `size` bytes are left."""

    partition: PartitionId
    log_start: Position
    size: int


Job = Append | StoreOffset | SaveGroup | CreateTopic | GrowTopic | DeleteTopic | Retain
JobResult = Appended | Stored | TopicState | tuple[Trimmed, ...] | None
JobDone = Callable[["JobResult | TarryError"], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One stored row: a batch at `base` of a partition, made visible by a commit."""

    partition: PartitionId
    base: Offset
    batch: RecordBatch


class StoreListener(Protocol):
    """Who is told what commits changed: on the loop that owns the store, before the jobs are answered."""

    def committed(self, rows: Sequence[Row]) -> None:
        """Rows became visible, in the order of their offsets within a partition."""
        ...

    def trimmed(self, trims: Sequence[Trimmed]) -> None:
        """Messages went."""
        ...

    def reopened(self, topics: Sequence[TopicState]) -> None:
        """The store failed and recovered by reading everything again: this is all it holds; take it over, look again.

        Ends, log starts, stored offsets and topics may differ from what was known in either direction: outcomes that
        were unknown are decided now. Comes after `committed` and `trimmed` of the same round.
        """
        ...

    def failed(self, error: TarryError) -> None:
        """The store stopped for good; nothing more will be answered with success."""
        ...


@dataclass(frozen=True, slots=True)
class Query:
    """Read from `position` on: at most `count` records and `limit` bytes; a first larger record comes alone (S45)."""

    partition: PartitionId
    position: Position
    count: int
    limit: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Records read by a `Query`: consecutive runs from its position on."""

    runs: tuple[Run, ...]

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(run.count for run in self.runs)

    @property
    def size(self) -> int:
        """Bytes of the encoded records."""
        return sum(run.size for run in self.runs)


class LogStore(Protocol):
    """Where the embedded log keeps rows, offsets and topics. Every method is called on one loop and none blocks it."""

    def open(self, listener: StoreListener) -> Sequence[TopicState]:
        """Open and return what is there. May block (called before the loop serves anybody)."""
        ...

    def groups(self) -> Mapping[str, bytes]:
        """The state of each group as it was last made durable; to be asked after `open`, and when it was `reopened`."""
        ...

    def submit(self, job: Job, done: JobDone) -> object:
        """Queue a job for the next commit; returns a ticket. `done` is called once, when its fate is known (W5)."""
        ...

    def withdraw(self, ticket: object) -> bool:
        """Take a queued job out; True when the writer does not have it yet: nothing is applied, `done` stays silent."""
        ...

    def read(self, query: Query) -> Selection | None:
        """Answer from memory, or None when the disk is needed."""
        ...

    def read_disk(self, query: Query, done: Callable[[Selection | TarryError], None]) -> None:
        """Answer from the disk, later, on this loop; first come first served (S36)."""
        ...

    def bytes_between(self, partition: PartitionId, position: Position) -> int:
        """Bytes from `position` to the end as far as memory knows them, without reading (S18)."""
        ...

    def find_time(
        self, partition: PartitionId, timestamp_ms: int, done: Callable[[Position | TarryError], None]
    ) -> None:
        """Position of the first message at or after a time; the end when there is none."""
        ...

    async def aclose(self) -> None:
        """Write what is queued, answer everybody, close. Idempotent."""
        ...
