"""A pump over a memory store, driven by hand: a clock that moves when told, requests that note their answers.

Not here: loops. What the driver does with deadlines is done by `PumpRig.advance`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from tarry import abc
from tarry._core.waiters import Waiters
from tarry._wire.batch import encode_record, seal
from tarry.brokers.local.probes import Fence, Limits, Member, WaitTerms
from tarry.brokers.local.pump import Pump
from tarry.brokers.local.store_memory import MemoryStore
from tarry.brokers.local.view import Partition
from tarry.config import TopicOptions
from tarry.errors import NotAMember, StaleAssignment, TarryError
from tarry.types import (
    HistoryId,
    Offset,
    Ownership,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Start,
    StartKind,
    TopicInfo,
    TopicPartition,
)

MIB = 1024 * 1024
TOPIC = "orders"
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall_ms(self) -> int:
        return int(self.at * 1000)


class Ask:
    """A request's answer; a second one is a failure of the pump."""

    is_wanted: bool = True

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def reply(self, answer: Any) -> None:
        assert not self.answers, f"answered twice: {answer!r}"
        self.answers.append(answer)

    @property
    def pending(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> Any:
        assert self.answers, "not answered yet"
        return self.answers[0]

    @property
    def error(self) -> TarryError:
        answer = self.answer
        assert isinstance(answer, TarryError), f"answered {answer!r}"
        return answer

    @property
    def poll(self) -> abc.PollReply:
        answer = self.answer
        assert isinstance(answer, abc.PollReply), f"answered {answer!r}"
        return answer

    @property
    def one(self) -> abc.TargetReply:
        """The only target of a poll."""
        (target,) = self.poll.targets
        return target

    @property
    def count(self) -> int:
        """Messages of a poll, all targets together."""
        return sum(run.count for target in self.poll.targets for run in target.runs)

    @property
    def ready(self) -> dict[TopicPartition, tuple[int, int]]:
        """Messages and bytes of each target that a readiness wait names."""
        answer = self.answer
        assert isinstance(answer, tuple), f"answered {answer!r}"
        items: list[abc.Ready] = list(answer)  # pyright: ignore[reportUnknownArgumentType]  # checked one by one
        assert all(isinstance(item, abc.Ready) for item in items)
        return {item.partition: (item.messages, item.size) for item in items}


class CountingStore(MemoryStore):
    """Counts what the pump asks for; with `cold` every read needs the disk and ends when the test says so.

    With `early` a disk read sees the log as it was when it was asked for, else as it is when it ends; a real one may do
    either. With `hold` jobs wait for `sync`; with `taken` nothing of what waits can be withdrawn any more, as when a
    writer has it. `answer` stands in for what the store would say to an offset store.
    """

    def __init__(self, clock: abc.Clock, *, cold: bool = False, early: bool = False, hold: bool = False) -> None:
        super().__init__(clock, hold=hold)
        self.cold = cold
        self.early = early
        self.taken = False
        self.answer: abc.Stored | TarryError | None = None
        self.reads = 0
        self.counted = 0
        self.disk: list[Callable[[], None]] = []

    def hold(self, on: bool = True) -> None:
        self._hold = on

    def submit(self, job: abc.Job, done: abc.JobDone) -> object:
        if self.answer is not None and isinstance(job, abc.StoreOffset):
            done(self.answer)
            return object()
        return super().submit(job, done)

    def withdraw(self, ticket: object) -> bool:
        return not self.taken and super().withdraw(ticket)

    def read(self, query: abc.Query) -> abc.Selection | None:
        self.reads += 1
        return None if self.cold else super().read(query)

    def read_disk(self, query: abc.Query, done: Callable[[abc.Selection | TarryError], None]) -> None:
        read = super().read
        if self.early:
            found = read(query) or abc.Selection(())
            self.disk.append(lambda: done(found))
        else:
            self.disk.append(lambda: done(read(query) or abc.Selection(())))

    def find_time(
        self, partition: abc.PartitionId, timestamp_ms: int, done: Callable[[Position | TarryError], None]
    ) -> None:
        find = super().find_time
        if self.cold:
            self.disk.append(lambda: find(partition, timestamp_ms, done))
        else:
            find(partition, timestamp_ms, done)

    def bytes_between(self, partition: abc.PartitionId, position: Position) -> int:
        self.counted += 1
        return super().bytes_between(partition, position)

    def end_read(self) -> None:
        """End the oldest disk read."""
        self.disk.pop(0)()

    def end_reads(self) -> None:
        """End disk reads until none is out."""
        while self.disk:
            self.end_read()


class Owners:
    """A fence made of a list: ownership by member and partition, and what is wanted back."""

    def __init__(self) -> None:
        self.owned: dict[tuple[Member, TopicPartition], int] = {}
        self.revoking: set[TopicPartition] = set()
        self.evicted: set[str] = set()
        self.asked: list[tuple[TopicPartition, int, bool]] = []

    def __call__(self, member: Member, partition: TopicPartition, ownership: Ownership, *, storing: bool) -> None:
        self.asked.append((partition, ownership, storing))
        if member.identity.name in self.evicted:
            raise NotAMember("evicted")
        if self.owned.get((member, partition)) != ownership:
            raise StaleAssignment(f"{partition} is not owned under {ownership}")
        if partition in self.revoking and not storing:
            raise StaleAssignment(f"{partition} is wanted back")

    def give(self, member: Member, *partitions: TopicPartition, ownership: int = 1) -> None:
        self.owned.update({(member, partition): ownership for partition in partitions})

    def take(self, member: Member, *partitions: TopicPartition) -> None:
        for partition in partitions:
            del self.owned[member, partition]


class PumpRig:
    """The pump and one open member, with a short word for each request."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        cold: bool = False,
        early: bool = False,
        hold: bool = False,
        waiters: Waiters | None = None,
        max_wait: float = 30.0,
        fence: Fence | None = None,
        watched_max: int = 100_000,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.store = CountingStore(self.clock, cold=cold, early=early)
        self.alarms: list[float] = []
        self.waiters = Waiters() if waiters is None else waiters
        self.pump = Pump(
            self.store,
            self.clock,
            max_wait=max_wait,
            alarm=self.alarms.append,
            waiters=self.waiters,
            watched_max=watched_max,
        )
        self.pump.open()
        self._has_own_fence = fence is not None
        if fence is not None:
            self.pump.polls.fence = fence
        self.ticks = 0
        self.create(TOPIC, partitions, **options)
        self.member = self.open("billing")
        self.store.hold(hold)

    # -- around

    def create(self, name: str, partitions: int = 1, **options: Any) -> TopicInfo:
        ask = Ask()
        self.pump.create_topic(ask, name, TopicOptions(partitions=partitions, **options), False)
        info = ask.answer
        assert isinstance(info, TopicInfo), info
        return info

    def delete(self, name: str = TOPIC) -> Ask:
        ask = Ask()
        self.pump.delete_topic(ask, name)
        return ask

    def open(self, name: str | None, kind: Literal["name", "group"] = "name") -> Member:
        identity = abc.ConsumerIdentity(name, kind)
        if kind == "group" and self._has_own_fence:
            return Member(identity)  # of no group but the fence's
        ask = Ask()
        self.pump.open_session(ask, identity, (TOPIC,), ())
        member, _ = ask.answer
        assert isinstance(member, Member)
        return member

    def part(self, at: TopicPartition = P0) -> Partition:
        return self.pump.view.find(at)

    def advance(self, seconds: float) -> None:
        """Let time pass the way the driver does: a tick at each deadline on the way."""
        end = self.clock.at + seconds
        while (deadline := self.pump.next_deadline()) is not None and deadline <= end + 1e-9:
            self.clock.at = max(deadline, self.clock.at)
            self.ticks += 1
            self.pump.tick(self.clock.at)
        self.clock.at = end

    # -- writing

    def append(self, count: int, at: TopicPartition = P0, *, size: int = 100) -> Receipt:
        """Append `count` records of exactly `size` bytes; the pump never decodes, so they may be anything."""
        return self.append_batch(seal([bytes(size)] * count, [self.clock.wall_ms()] * count), at)

    def append_sizes(self, sizes: Sequence[int], at: TopicPartition = P0) -> Receipt:
        """Append one batch of records of these sizes."""
        return self.append_batch(seal([bytes(size) for size in sizes], [self.clock.wall_ms()] * len(sizes)), at)

    def append_times(self, *times: int, at: TopicPartition = P0) -> Receipt:
        """Append one batch of proper records with these timestamps."""
        return self.append_batch(seal([encode_record(b"v", None, (), time) for time in times], times), at)

    def append_batch(self, batch: RecordBatch, at: TopicPartition = P0) -> Receipt:
        ask = self.ask_append(batch, at)
        receipt = ask.answer
        assert isinstance(receipt, Receipt), receipt
        return receipt

    def ask_append(self, batch: RecordBatch, at: TopicPartition = P0, stamp: ProducerStamp | None = None) -> Ask:
        ask = Ask()
        self.pump.append(ask, at, batch, stamp)
        return ask

    def store_offset(
        self,
        offset: int | None,
        at: TopicPartition = P0,
        *,
        history: HistoryId | None = None,
        lower: bool = False,
        ownership: int = 0,
        member: Member | None = None,
    ) -> Ask:
        ask = Ask()
        given = None if offset is None else Offset(offset)
        self.pump.store_offset(ask, member or self.member, at, given, Ownership(ownership), history, lower)
        return ask

    def ask_stored(self, at: TopicPartition = P0, *, member: Member | None = None) -> Ask:
        ask = Ask()
        self.pump.stored_offset(ask, member or self.member, at)
        return ask

    def stored(self, at: TopicPartition = P0, *, member: Member | None = None) -> Offset | None:
        answer: Offset | None = self.ask_stored(at, member=member).answer
        return answer

    # -- reading

    def poll(
        self,
        *targets: abc.FetchTarget | tuple[TopicPartition, int] | int | Start,
        count: int = 1000,
        max_bytes: int = MIB,
        min_count: int = 1,
        max_wait: float = 0.0,
        commit: bool = False,
        member: Member | None = None,
    ) -> Ask:
        """Poll; an int is a position of partition 0."""
        ask = Ask()
        limits = Limits(count, max_bytes, min_count, max_wait, commit)
        self.pump.poll(ask, member or self.member, [target(spec) for spec in targets], limits)
        return ask

    def wait(
        self,
        *targets: abc.FetchTarget | tuple[TopicPartition, int] | int | Start,
        min_count: int = 1,
        min_bytes: int | None = None,
        max_wait: float = 5.0,
        member: Member | None = None,
        change: abc.WatchChange | None = None,
    ) -> Ask:
        """Wait for readiness."""
        ask = Ask()
        specs = [target(spec) for spec in targets]
        self.pump.wait_ready(ask, member or self.member, specs, WaitTerms(min_count, min_bytes, max_wait, change))
        return ask

    def resolve(self, start: Start | int, at: TopicPartition = P0, *, member: Member | None = None) -> Ask:
        ask = Ask()
        place = start if isinstance(start, Start) else Position(start)
        self.pump.resolve(ask, member or self.member, at, place)
        return ask


def target(spec: abc.FetchTarget | tuple[TopicPartition, int] | int | Start) -> abc.FetchTarget:
    """A target out of a short form; a bare position or start means partition 0."""
    if isinstance(spec, abc.FetchTarget):
        return spec
    if isinstance(spec, Start):
        return abc.FetchTarget(P0, spec)
    if isinstance(spec, int):
        return abc.FetchTarget(P0, Position(spec))
    return abc.FetchTarget(spec[0], Position(spec[1]))


def last(count: int) -> Start:
    """`Start.last()` as the consumer sends it: with the count of its polls."""
    return Start(StartKind.LAST, count)


@contextmanager
def python_calls(*modules: str) -> Generator[list[str]]:
    """The functions of the package, or of some of its files, that are called: work as a count on any machine."""
    calls: list[str] = []
    package = str(Path(abc.__file__).parent)

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(package) and name.endswith(modules or ""):
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
