"""A store in memory, for `memory:` and for simulations: the port of the SQLite store, synchronous, without threads.

Every job is applied and answered inside `submit`. With `hold=True` jobs wait for `sync()`, and `crash()` drops what was
not synced, as a power cut does; the caller is then told nothing it could believe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tarry import abc
from tarry._wire.batch import append_refusal, collect, timestamps
from tarry.brokers.local.view import growth_refusal, no_topic
from tarry.config import TopicOptions
from tarry.errors import (
    CapacityExceeded,
    LogUnavailable,
    NotAccepted,
    OutcomeUnknown,
    TarryError,
    TopicExists,
    TopicNotFound,
)
from tarry.types import Offset, Position, ProducerStamp, RecordBatch, Run

SEQUENCES_MAX = 1024
"""Sequences remembered per producer and partition (design 5.4)."""
PRODUCERS_MAX = 512
"""Producers of which a partition remembers any; the one that has sent nothing for longest is forgotten."""
IDENTITIES_MAX = 4096
"""Identities with stored offsets per partition (design 5.6)."""


@dataclass(slots=True)
class _Row:
    base: Offset
    batch: RecordBatch
    appended_ms: int

    @property
    def end(self) -> Position:
        return Position(self.base + self.batch.count)


@dataclass(slots=True)
class _Partition:
    id: abc.PartitionId
    number: int
    options: TopicOptions
    rows: list[_Row] = field(default_factory=list[_Row])
    log_start: Position = Position(0)
    log_end: Position = Position(0)
    size: int = 0
    stored: dict[str, Offset] = field(default_factory=dict[str, Offset])
    sequences: dict[bytes, dict[int, Offset]] = field(default_factory=dict[bytes, dict[int, Offset]])

    def rows_from(self, position: Position) -> Iterator[_Row]:
        """The rows that reach behind a position, without looking at those in front of it."""
        first = bisect_right(self.rows, position, key=lambda row: row.end)
        return (self.rows[index] for index in range(first, len(self.rows)))


@dataclass(slots=True, eq=False)
class _Ticket:
    job: abc.Job
    done: abc.JobDone


class MemoryStore:
    """See the module; implements `abc.LogStore`."""

    def __init__(self, clock: abc.Clock, *, hold: bool = False) -> None:
        self._clock = clock
        self._hold = hold
        self._held: list[_Ticket] = []
        self._topics: dict[str, tuple[TopicOptions, list[_Partition]]] = {}
        self._partitions: dict[abc.PartitionId, _Partition] = {}
        self._groups: dict[str, bytes] = {}
        self._next_id = 1
        self._listener: abc.StoreListener | None = None
        self._closed = False

    def open(self, listener: abc.StoreListener) -> Sequence[abc.TopicState]:
        """Open (again, after a crash too): what was synced is there."""
        self._listener = listener
        self._closed = False
        return [_topic_state(name, options, parts) for name, (options, parts) in self._topics.items()]

    def groups(self) -> Mapping[str, bytes]:
        """The state of each group, as it was synced."""
        return dict(self._groups)

    def submit(self, job: abc.Job, done: abc.JobDone) -> object:
        """Apply and answer at once, or with `hold` at the next `sync`."""
        ticket = _Ticket(job, done)
        if self._closed:
            done(LogUnavailable("the log is closed; connect again"))
        elif self._hold:
            self._held.append(ticket)
        else:
            self._run(ticket)
        return ticket

    def withdraw(self, ticket: object) -> bool:
        """True for a job that waits for `sync`."""
        if isinstance(ticket, _Ticket) and ticket in self._held:
            self._held.remove(ticket)
            return True
        return False

    def sync(self) -> None:
        """Apply and answer what is held, in order."""
        held, self._held = self._held, []
        for ticket in held:
            self._run(ticket)

    def crash(self) -> None:
        """Drop what was not synced; its callers cannot know."""
        held, self._held = self._held, []
        for ticket in held:
            ticket.done(OutcomeUnknown("the log crashed before this was known to be durable"))

    def read(self, query: abc.Query) -> abc.Selection | None:
        """Everything is in memory."""
        part = self._partitions.get(query.partition)
        if part is None:
            return abc.Selection(())
        runs = (Run(row.base, row.batch, 0, row.batch.count) for row in part.rows_from(query.position))
        return abc.Selection(collect(runs, query.position, query.count, query.limit))

    def read_disk(self, query: abc.Query, done: Callable[[abc.Selection | TarryError], None]) -> None:
        """There is no disk; answers like `read`."""
        done(self.read(query) or abc.Selection(()))

    def bytes_between(self, partition: abc.PartitionId, position: Position) -> int:
        """Exact."""
        part = self._partitions.get(partition)
        if part is None:
            return 0
        return sum(row.batch.size - row.batch.start_of(max(position - row.base, 0)) for row in part.rows_from(position))

    def find_time(
        self, partition: abc.PartitionId, timestamp_ms: int, done: Callable[[Position | TarryError], None]
    ) -> None:
        """Walks the rows, then the records of the first row that reaches the time."""
        part = self._partitions.get(partition)
        if part is None:
            done(TopicNotFound(f"partition {partition} does not exist"))
            return
        for row in part.rows:
            if row.batch.max_ms >= timestamp_ms:
                index = next(i for i, time in enumerate(timestamps(row.batch)) if time >= timestamp_ms)
                done(Position(row.base + index))
                return
        done(part.log_end)

    async def aclose(self) -> None:
        """Sync and close."""
        self.sync()
        self._closed = True

    # ------------------------------------------------------------------------------------------------- jobs

    def _run(self, ticket: _Ticket) -> None:
        try:
            result = self._apply(ticket.job)
        except TarryError as error:
            ticket.done(error)
        else:
            ticket.done(result)

    def _apply(self, job: abc.Job) -> abc.JobResult:
        match job:
            case abc.Append():
                return self._append(job)
            case abc.StoreOffset():
                return self._store(job)
            case abc.SaveGroup():
                self._save(job)
                return None
            case abc.CreateTopic():
                return self._create(job)
            case abc.GrowTopic():
                return self._grow(job)
            case abc.DeleteTopic():
                self._delete(job)
                return None
            case abc.Retain():
                trims = tuple(trim for part in self._partitions.values() if (trim := self._retain(part)))
                return self._tell_trimmed(trims)

    def _partition(self, key: abc.PartitionId) -> _Partition:
        part = self._partitions.get(key)
        if part is None:
            raise TopicNotFound(f"partition {key} does not exist any more; its topic was deleted")
        return part

    def _append(self, job: abc.Append) -> abc.Appended:
        part = self._partition(job.partition)
        refusal = append_refusal(job.batch, part.options.max_record_bytes)
        if refusal is not None:
            raise refusal
        known = _known(part, job.stamp)
        if known is not None:
            return abc.Appended(known, duplicate=True)
        base = Offset(part.log_end)
        part.rows.append(_Row(base, job.batch, self._clock.wall_ms()))
        part.log_end = Position(part.log_end + job.batch.count)
        part.size += job.batch.size
        if job.stamp is not None:
            _remember(part, job.stamp, base)
        listener = self._told()
        listener.committed([abc.Row(part.id, base, job.batch)])
        trim = self._retain(part)
        if trim is not None:
            listener.trimmed([trim])
        return abc.Appended(base, duplicate=False)

    def _store(self, job: abc.StoreOffset) -> abc.Stored:
        part = self._partition(job.partition)
        before = part.stored.get(job.identity)
        if job.expected is not None and job.expected.offset != before:
            raise NotAccepted(
                f"the stored offset of {job.identity!r} is {before} and not {job.expected.offset} any more; "
                "nothing was applied, ask again"
            )
        if job.offset is None:
            part.stored.pop(job.identity, None)
        elif before is None or job.offset > before or job.lower:
            if before is None and len(part.stored) >= IDENTITIES_MAX:
                raise CapacityExceeded(
                    f"{IDENTITIES_MAX} consumers and groups have offsets stored in this partition (3024); "
                    "delete unused ones"
                )
            part.stored[job.identity] = job.offset
        return abc.Stored(part.stored.get(job.identity))

    def _save(self, job: abc.SaveGroup) -> None:
        if job.state is None:
            self._groups.pop(job.name, None)
        else:
            self._groups[job.name] = job.state

    def _create(self, job: abc.CreateTopic) -> abc.TopicState:
        if job.name in self._topics:
            raise TopicExists(f"topic {job.name!r} exists; pass exist_ok=True to accept it")
        return self._extend(job.name, job.options, [])

    def _grow(self, job: abc.GrowTopic) -> abc.TopicState:
        if job.name not in self._topics:
            raise no_topic(job.name)
        options, parts = self._topics[job.name]
        refusal = growth_refusal(job, len(parts))
        if refusal is not None:
            raise refusal
        return self._extend(job.name, options.model_copy(update={"partitions": job.partitions}), parts)

    def _extend(self, name: str, options: TopicOptions, parts: list[_Partition]) -> abc.TopicState:
        """Bring a topic to the partitions that its options say."""
        for number in range(len(parts), options.partitions):
            parts.append(_Partition(abc.PartitionId(self._next_id), number, options))
            self._partitions[parts[-1].id] = parts[-1]
            self._next_id += 1
        self._topics[name] = (options, parts)
        return _topic_state(name, options, parts)

    def _delete(self, job: abc.DeleteTopic) -> None:
        if job.name not in self._topics:
            raise TopicNotFound(f"topic {job.name!r} does not exist")
        for part in self._topics.pop(job.name)[1]:
            del self._partitions[part.id]

    def _retain(self, part: _Partition) -> abc.Trimmed | None:
        """Oldest rows go while the partition is above its bytes, or older than its age."""
        gone = 0
        oldest_ms = self._clock.wall_ms() - (part.options.retention_age or 0) * 1000
        for row in part.rows:
            too_big = part.options.retention_bytes is not None and part.size > part.options.retention_bytes
            too_old = part.options.retention_age is not None and row.appended_ms <= oldest_ms
            if not (too_big or too_old):
                break
            part.size -= row.batch.size
            part.log_start = row.end
            gone += 1
        del part.rows[:gone]
        return abc.Trimmed(part.id, part.log_start, part.size) if gone else None

    def _tell_trimmed(self, trims: tuple[abc.Trimmed, ...]) -> tuple[abc.Trimmed, ...]:
        if trims:
            self._told().trimmed(trims)
        return trims

    def _told(self) -> abc.StoreListener:
        assert self._listener is not None, "open comes first"
        return self._listener


def _known(part: _Partition, stamp: ProducerStamp | None) -> Offset | None:
    """Base of an append that is here already.

    Raises:
        OutcomeUnknown: the sequence lies below what is remembered.
    """
    seen = part.sequences.get(stamp.producer) if stamp else None
    if stamp is None or not seen:
        return None
    if stamp.sequence in seen:
        return seen[stamp.sequence]
    if stamp.sequence <= max(seen) - SEQUENCES_MAX:
        raise OutcomeUnknown(
            f"sequence {stamp.sequence} is older than the {SEQUENCES_MAX} remembered ones (newest {max(seen)}); "
            "whether it was appended before is not known any more"
        )
    return None


def _remember(part: _Partition, stamp: ProducerStamp, base: Offset) -> None:
    seen = part.sequences[stamp.producer] = part.sequences.pop(stamp.producer, {})
    if len(part.sequences) > PRODUCERS_MAX:
        del part.sequences[next(iter(part.sequences))]
    seen[stamp.sequence] = base
    oldest = max(seen) - SEQUENCES_MAX
    for sequence in [s for s in seen if s <= oldest]:
        del seen[sequence]


def _topic_state(name: str, options: TopicOptions, parts: list[_Partition]) -> abc.TopicState:
    return abc.TopicState(
        name,
        options,
        tuple(
            abc.PartitionState(part.id, part.number, part.log_start, part.log_end, part.size, dict(part.stored))
            for part in parts
        ),
    )
