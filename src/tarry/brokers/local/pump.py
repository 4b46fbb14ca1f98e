"""The one place of an embedded log that decides: admission, parked requests, offsets, answers (S3-S31, S52-S57).

Synchronous and callback style: it runs on the loop that owns the store and never blocks it. Every request comes with a
`Call` (its key for a cancel, and where the answer goes) and is answered exactly once unless it is withdrawn. A wake
carries no data: whoever is woken is probed again, which validates and reads afresh (S22), so a cancel loses nothing.

Not here: loops and threads (`host`, `broker`), thresholds (`_core.waiters`), rows (`store_*`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tarry import abc
from tarry._core.readiness import Gatherers, Wait
from tarry._core.waiters import Full, Parked, Threshold, Waiters
from tarry._wire.batch import RUN_OVERHEAD, reply_limit
from tarry.config import COUNT_MAX, WIRE_WAIT_MAX, TopicOptions
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    LogUnavailable,
    NotAMember,
    OffsetOutOfRange,
    StaleAssignment,
    TarryError,
    TopicExists,
    TopicNotFound,
    UsageError,
)
from tarry.types import (
    HistoryId,
    Offset,
    Ownership,
    PartitionInfo,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Run,
    Start,
    StartKind,
    TopicInfo,
    TopicPartition,
    offset_before,
)

SWEEP_TARGETS = 64
"""Targets that the safety net looks at per second (S25 as overruled)."""
SWEEP_PERIOD = 1.0
NEVER = 1 << 62
"""A threshold that no partition reaches: only a change of history or the deadline ends such an entry."""


class Reply(Protocol):
    """Where an answer goes (`_runtime.bridge.Call`)."""

    def reply(self, answer: Any) -> None:
        """Answer once."""
        ...


@dataclass(slots=True, eq=False)
class Partition:
    """What the pump keeps in memory about one partition.

    `visible_bytes` counts the bytes that commits made visible since the log was opened; it only grows (S18).
    """

    id: abc.PartitionId
    at: TopicPartition
    log_start: Position
    log_end: Position
    size: int
    stored: dict[str, Offset]
    visible_bytes: int = 0

    @property
    def head(self) -> Offset | None:
        """Newest visible offset."""
        return offset_before(self.log_end)

    @property
    def history(self) -> HistoryId:
        """The partition id is never reused, so it names the history (Q10)."""
        return HistoryId(self.id)

    def messages_from(self, position: Position) -> int:
        """Messages there from a position on."""
        return max(self.log_end - max(position, self.log_start), 0)


@dataclass(slots=True, eq=False)
class Topic:
    """A topic and its partitions."""

    name: str
    options: TopicOptions
    partitions: list[Partition]

    def info(self) -> TopicInfo:
        """The public description."""
        parts = tuple(
            PartitionInfo(part.at.partition, part.log_start, part.log_end, part.size, part.history)
            for part in self.partitions
        )
        options = self.options
        return TopicInfo(self.name, parts, options.retention_age, options.retention_bytes, options.max_record_bytes)


@dataclass(slots=True, eq=False)
class Member:
    """One open session: who it is, and its requests that are not answered yet."""

    identity: abc.ConsumerIdentity
    open: bool = True
    calls: dict[Reply, None] = field(default_factory=dict[Reply, None])


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request asks for."""

    count: int
    max_bytes: int
    min_count: int
    max_wait: float


@dataclass(slots=True, eq=False)
class _Target:
    """One target of a probe: where it stands, and what was read for it so far.

    `seen_end` and `seen_bytes` are what was visible when its read began: a read that ends in front of `seen_end` was
    ended by a limit; what came later belongs to the next look (S27).
    """

    spec: abc.FetchTarget
    part: Partition
    asked: Position
    fresh_history: bool
    runs: tuple[Run, ...] = ()
    seen_end: int = 0
    seen_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Probe:
    """A request that wants an answer: a poll (`targets`) or a readiness wait (`wait`)."""

    call: Reply
    member: Member
    limits: Limits
    wait_until: float
    specs: Sequence[abc.FetchTarget]
    targets: list[_Target] = field(default_factory=list[_Target])
    wait: Wait | None = None
    parked: Parked | None = None


class Pump:
    """See the module. `alarm(deadline)` is called when an earlier deadline than before was added."""

    def __init__(
        self,
        store: abc.LogStore,
        clock: abc.Clock,
        *,
        max_wait: float = 30.0,
        retention_interval: float = 30.0,
        alarm: Callable[[float], None] = lambda _: None,
        waiters: Waiters | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._max_wait = max_wait
        self._retention_interval = retention_interval
        self._retain_at: float | None = None
        self.alarm = alarm
        self._waiters = Waiters() if waiters is None else waiters
        self._gatherers = Gatherers()
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[Hashable, Partition] = {}  # by id, which thresholds carry as a plain key
        self._probes: dict[Reply, _Probe] = {}
        self._jobs: dict[Reply, object] = {}
        self._sweep_at: float | None = None
        self._failure: TarryError | None = None
        self.reads = 0
        self.requests = 0

    # -------------------------------------------------------------------------------------------- life

    def open(self) -> None:
        """Open the store and take over what it holds. May block."""
        for state in self._store.open(self):
            self._add_topic(state)

    @property
    def parked(self) -> int:
        """Requests that wait at the log."""
        return len(self._waiters)

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        found = [deadline for deadline in (self._next_poll_deadline(), self._retain_at) if deadline is not None]
        return min(found, default=None)

    def _next_poll_deadline(self) -> float | None:
        deadline = self._waiters.next_deadline()
        if deadline is None:
            return None
        return deadline if self._sweep_at is None else min(deadline, self._sweep_at)

    def tick(self, now: float) -> None:
        """Answer who waited long enough (S28, S31), and look at a window of the others as a safety net (S25)."""
        for parked in self._waiters.expire(now):
            self._timed_out(parked)
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_PERIOD if len(self._waiters) else None
            self._sweep()
        if self._retain_at is not None and now >= self._retain_at:
            self._retain_at = None
            self.retain()
            self._plan_retention()

    def close(self) -> None:
        """End every request; the store is closed by who opened the pump."""
        self._fail_all(LogUnavailable("the log was closed while this request waited"))

    def cancel(self, call: Reply) -> None:
        """Withdraw a request (S6-S9): parked or reading, it is gone; a write that was handed over goes on (W17)."""
        probe = self._probes.get(call)
        if probe is not None:
            self._finish(probe)
        ticket = self._jobs.pop(call, None)
        if ticket is not None:
            self._store.withdraw(ticket)

    # ------------------------------------------------------------------------------------------- topics

    def create_topic(self, call: Reply, name: str, options: TopicOptions, exist_ok: bool) -> None:  # noqa: FBT001  # posted
        """See `abc.Broker`."""
        if exist_ok and name in self._topics:
            call.reply(self._topics[name].info())
            return

        def done(result: Any) -> None:
            if isinstance(result, abc.TopicState):
                self._add_topic(result)
            if isinstance(result, TopicExists) and exist_ok and name in self._topics:
                result = abc.TopicState(name, options, ())
            self._answer(call, self._topics[name].info() if isinstance(result, abc.TopicState) else result)

        self._submit(call, abc.CreateTopic(name, options), done)

    def delete_topic(self, call: Reply, name: str) -> None:
        """See `abc.Broker`. Parked requests on it end with `TopicNotFound` (S24, Q16)."""

        def done(result: Any) -> None:
            if result is None:
                self._drop_topic(name)
            self._answer(call, result)

        self._submit(call, abc.DeleteTopic(name), done)

    def describe_topic(self, call: Reply, name: str) -> None:
        """See `abc.Broker`."""
        topic = self._topics.get(name)
        call.reply(topic.info() if topic else self._no_topic(name))

    def list_topics(self, call: Reply) -> None:
        """See `abc.Broker`."""
        call.reply(tuple(self._topics[name].info() for name in sorted(self._topics)))

    def retain(self, call: Reply | None = None) -> None:
        """Apply retention now."""
        self._submit(call, abc.Retain(), partial(self._answer, call))

    # ------------------------------------------------------------------------------------------- writing

    def append(self, call: Reply, at: TopicPartition, batch: RecordBatch, stamp: ProducerStamp | None) -> None:
        """See `abc.Broker`."""
        try:
            part = self._find(at)
        except TarryError as error:
            call.reply(error)
            return

        def done(result: Any) -> None:
            if isinstance(result, abc.Appended):
                result = Receipt(at.topic, at.partition, result.base, result.duplicate)
            self._answer(call, result)

        self._submit(call, abc.Append(part.id, batch, stamp), done)

    def store_offset(
        self,
        call: Reply,
        member: Member,
        at: TopicPartition,
        offset: Offset | None,
        history: HistoryId | None,
        lower: bool,  # noqa: FBT001  # posted
    ) -> None:
        """See `abc.Session`. Never lowers unless told to (C52, C56, I7)."""
        try:
            part, identity = self._check_store(member, at, offset, history)
        except TarryError as error:
            call.reply(error)
            return

        def done(result: Any) -> None:
            if isinstance(result, abc.Stored):
                if result.offset is None:
                    part.stored.pop(identity, None)
                else:
                    part.stored[identity] = result.offset
                result = result.offset
            self._answer(call, result)

        self._submit(call, abc.StoreOffset(part.id, identity, offset, lower), done)

    def stored_offset(self, call: Reply, member: Member, at: TopicPartition) -> None:
        """See `abc.Session`."""
        try:
            self._check_member(member)
            part = self._find(at)
        except TarryError as error:
            call.reply(error)
            return
        call.reply(part.stored.get(member.identity.key or ""))

    # ------------------------------------------------------------------------------------------- sessions

    def open_session(
        self, call: Reply, identity: abc.ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> None:
        """Answer a `Member` and its `Assignment`, or `TopicNotFound` naming everything that is missing (C15)."""
        missing = [repr(name) for name in topics if name not in self._topics]
        if missing:
            call.reply(TopicNotFound(f"topic {', '.join(missing)} does not exist; create it first (create_topic)"))
            return
        try:
            owned = {part.at: Ownership(0) for name in topics for part in self._topics[name].partitions}
            owned.update((self._find(at).at, Ownership(0)) for at in partitions)
        except TarryError as error:
            call.reply(error)
            return
        counts = {at.topic: len(self._topics[at.topic].partitions) for at in owned}
        call.reply((Member(identity), abc.Assignment(1, 1, owned, frozenset(), counts)))

    def leave(self, call: Reply | None, member: Member) -> None:
        """End a session; its parked requests are withdrawn (S15)."""
        member.open = False
        for pending in list(member.calls):
            self.cancel(pending)
            pending.reply(NotAMember("the session has left; open a new consumer"))
        if call is not None:
            call.reply(None)

    def resolve(self, call: Reply, member: Member, at: TopicPartition, start: Position | Start) -> None:
        """Where a start lies now (C26)."""
        try:
            self._check_member(member)
            part = self._find(at)
        except TarryError as error:
            call.reply(error)
            return

        def done(position: Position | TarryError) -> None:
            if isinstance(position, TarryError):
                call.reply(position)
            else:
                call.reply(abc.Resolved(position, part.log_start, part.log_end, part.history))

        self._resolve(part, start, member.identity, done)

    # ------------------------------------------------------------------------------------------- reading

    def poll(self, call: Reply, member: Member, targets: Sequence[abc.FetchTarget], limits: Limits) -> None:
        """Admit a poll (S11-S13): answer it, park it, or refuse it."""
        self._admit(_Probe(call, member, limits, self._wait_until(limits.max_wait), tuple(targets)))

    def wait_ready(
        self,
        call: Reply,
        member: Member,
        targets: Sequence[abc.FetchTarget],
        min_count: int,
        min_bytes: int | None,
        max_wait: float,
    ) -> None:
        """Admit a readiness wait; every target is evaluated here (S56), later only what changed (S53)."""
        limits = Limits(COUNT_MAX, 1, 1, max_wait)
        probe = _Probe(call, member, limits, self._wait_until(max_wait), tuple(targets))
        probe.wait = Wait({}, min_count, min_bytes, probe)
        if min_count < 1 or (min_bytes is not None and min_bytes < 1):
            call.reply(ConfigError(f"min_count={min_count}, min_bytes={min_bytes}: both must be at least 1"))
            return
        self._admit(probe)

    def _admit(self, probe: _Probe) -> None:
        self.requests += 1
        try:
            self._check_member(probe.member)
            self._check_limits(probe)
        except TarryError as error:
            probe.call.reply(error)
            return
        self._probes[probe.call] = probe
        probe.member.calls[probe.call] = None
        self._place(probe, 0)

    def _place(self, probe: _Probe, index: int) -> None:
        """Give each target its position, in order; a start by time may need the disk."""
        while index < len(probe.specs):
            spec = probe.specs[index]
            index += 1
            try:
                part = self._find(spec.partition)
            except TopicNotFound as error:
                if probe.wait is not None:
                    self._reply(probe, (abc.Ready(spec.partition, 0, 0),))
                    return
                self._reply(probe, error)
                return
            if not isinstance(spec.at, Start):
                fresh = spec.history is not None and spec.history != part.history
                probe.targets.append(_Target(spec, part, spec.at, fresh))
                continue
            if spec.at.kind is StartKind.TIMESTAMP:
                if self._park_reading(probe):
                    self._resolve(part, spec.at, probe.member.identity, partial(self._placed, probe, spec, part, index))
                return
            if not self._placed_now(probe, spec, part):
                return
        self._probe(probe)

    def _placed_now(self, probe: _Probe, spec: abc.FetchTarget, part: Partition) -> bool:
        answers: list[Position | TarryError] = []
        assert isinstance(spec.at, Start)
        self._resolve(part, spec.at, probe.member.identity, answers.append)
        return self._take_place(probe, spec, part, answers[0])

    def _placed(
        self, probe: _Probe, spec: abc.FetchTarget, part: Partition, index: int, answer: Position | TarryError
    ) -> None:
        if probe.call not in self._probes:
            return
        self._unpark(probe)
        if self._take_place(probe, spec, part, answer):
            self._place(probe, index)

    def _take_place(self, probe: _Probe, spec: abc.FetchTarget, part: Partition, answer: Position | TarryError) -> bool:
        if isinstance(answer, TarryError):
            self._reply(probe, answer)
            return False
        probe.targets.append(_Target(spec, part, answer, fresh_history=False))
        return True

    def _probe(self, probe: _Probe) -> None:
        """Look again: validate, read, then answer or park (S22, S23)."""
        try:
            self._validate(probe)
        except TarryError as error:
            self._reply(probe, error)
            return
        if probe.wait is not None:
            self._probe_wait(probe, probe.wait)
        else:
            self._read(probe, 0, probe.limits.count, max(probe.limits.max_bytes, 1), empty=True)

    # -- polls

    def _read(self, probe: _Probe, index: int, count: int, room: int, *, empty: bool) -> None:
        """Read the targets in order until `count` records or `room` bytes are used up."""
        while index < len(probe.targets):
            target = probe.targets[index]
            if self._is_gone(target):
                self._probe(probe)
                return
            target.runs = ()
            target.seen_end, target.seen_bytes = target.part.log_end, target.part.visible_bytes
            limit = room - RUN_OVERHEAD
            if count <= 0 or (limit <= 0 and not empty) or not self._has(target):
                index += 1
                continue
            query = abc.Query(target.part.id, _clamped(target), count, max(limit, 1))
            self.reads += 1
            selection = self._store.read(query)
            if selection is None:
                self._read_disk(probe, index, query, (count, room, empty))
                return
            count, room, empty = _used(target, selection, count, room, empty=empty)
            index += 1
        self._judge(probe)

    def _read_disk(self, probe: _Probe, index: int, query: abc.Query, left: tuple[int, int, bool]) -> None:
        """Read later, in a worker; until then only the request deadline ends the request (S29)."""
        if self._park_reading(probe):
            self._store.read_disk(query, partial(self._disk_read, probe, index, left))

    def _disk_read(
        self, probe: _Probe, index: int, left: tuple[int, int, bool], result: abc.Selection | TarryError
    ) -> None:
        if probe.call not in self._probes:
            return
        self._unpark(probe)
        if isinstance(result, TarryError):
            self._reply(probe, result)
            return
        count, room, empty = left
        target = probe.targets[index]
        if self._is_gone(target) or (not result.runs and self._has(target)):
            # Its topic was deleted, or retention passed the position while the read was on its way: look again.
            self._probe(probe)
            return
        count, room, empty = _used(target, result, count, room, empty=empty)
        self._read(probe, index + 1, count, room, empty=empty)

    def _judge(self, probe: _Probe) -> None:
        """Enough, or the wait is over: answer. Otherwise park for what is still missing (S16, S17, S23)."""
        if self._clock.now() >= probe.wait_until:
            self._reply(probe, _poll_reply(probe))
            return
        target, part = probe.targets[0], probe.targets[0].part
        count, size = sum(run.count for run in target.runs), sum(run.size for run in target.runs)
        limit = reply_limit(probe.limits.max_bytes)
        begin = target.runs[0].base if target.runs else _clamped(target)
        behind = begin + count
        if target.fresh_history or count >= probe.limits.min_count or size >= limit or behind < target.seen_end:
            self._reply(probe, _poll_reply(probe))
            return
        seen_bytes = part.visible_bytes if behind == part.log_end else target.seen_bytes
        threshold = Threshold(part.id, begin + probe.limits.min_count, seen_bytes - size + limit)
        if _is_reached(threshold, part):
            self._probe(probe)  # a commit came in while the disk was read (S27)
        else:
            target.runs = ()
            self._park(probe, (threshold,))

    # -- readiness waits

    def _probe_wait(self, probe: _Probe, wait: Wait) -> None:
        self._gatherers.remove(wait)
        wait.starts = {target.part.id: _clamped(target) for target in probe.targets}
        for target in probe.targets:
            if target.fresh_history:
                self._reply(probe, (abc.Ready(target.spec.partition, 0, 0),))
                return
            self._see(wait, target.part, _clamped(target))
        if wait.satisfied or self._clock.now() >= probe.wait_until:
            self._reply(probe, self._ready(wait))
            return
        if wait.accumulates:
            self._gatherers.add(wait)  # it is told of every growth
            self._park(probe, tuple(Threshold(part_id, NEVER) for part_id in wait.starts))
        else:
            self._park(probe, tuple(Threshold(part_id, start + 1) for part_id, start in wait.starts.items()))

    def _see(self, wait: Wait, part: Partition, position: Position) -> None:
        messages = part.messages_from(position)
        size = self._store.bytes_between(part.id, position) if messages else 0
        wait.see(part.id, messages, size)

    def _ready(self, wait: Wait) -> tuple[abc.Ready, ...]:
        found = ((self._partitions.get(part_id), have) for part_id, have in wait.have.items())
        return tuple(abc.Ready(part.at, *have) for part, have in found if part is not None)

    # -- parking

    def _park(self, probe: _Probe, thresholds: tuple[Threshold, ...]) -> bool:
        """Wait until a threshold is reached or the wait is over; False when there was no room, which is answered."""
        return self._park_until(probe, probe.wait_until, thresholds)

    def _park_reading(self, probe: _Probe) -> bool:
        """Wait for the disk; what ends it otherwise is the request deadline (S29)."""
        return self._park_until(probe, probe.wait_until + abc.REQUEST_GRACE, ())

    def _park_until(self, probe: _Probe, deadline: float, thresholds: tuple[Threshold, ...]) -> bool:
        try:
            probe.parked = self._waiters.park(probe, deadline, thresholds)
        except Full as full:
            self._reply(
                probe,
                CapacityExceeded(f"{full} already (the most allowed); nothing was applied, back off and ask again"),
            )
            return False
        if self._sweep_at is None or len(self._waiters) == 1:
            self._sweep_at = self._clock.now() + SWEEP_PERIOD
        self.alarm(min(deadline, self._sweep_at))
        return True

    def _unpark(self, probe: _Probe) -> None:
        if probe.parked is not None:
            self._waiters.remove(probe.parked)
            probe.parked = None
        if probe.wait is not None:
            self._gatherers.remove(probe.wait)

    def _timed_out(self, parked: Parked) -> None:
        probe = parked.record
        assert isinstance(probe, _Probe)
        probe.parked = None
        if parked.thresholds:
            self._probe(probe)
            return
        self._reply(
            probe,
            CapacityExceeded(
                f"the disk read for this request did not end within {abc.REQUEST_GRACE:g} s after its wait; "
                "nothing was applied, back off and ask again"
            ),
        )

    def _sweep(self) -> None:
        for parked, window in self._waiters.sweep(SWEEP_TARGETS):
            probe = parked.record
            if isinstance(probe, _Probe) and parked.alive and self._is_due(probe, window):
                self._unpark(probe)
                self._probe(probe)

    def _is_due(self, probe: _Probe, window: tuple[Threshold, ...]) -> bool:
        return not probe.member.open or any(self._is_wake_lost(probe.wait, threshold) for threshold in window)

    def _is_wake_lost(self, wait: Wait | None, threshold: Threshold) -> bool:
        part = self._partitions.get(threshold.partition)
        if part is None or _is_reached(threshold, part):
            return True
        return wait is not None and wait.accumulates and not wait.knows(part.id, part.log_end)

    # ---------------------------------------------------------------------------------- what the store reports

    def committed(self, rows: Sequence[abc.Row]) -> None:
        """Rows became visible: count, then wake whoever they may complete (S20; one peek when that is nobody)."""
        grown: dict[Partition, int] = {}
        for row in rows:
            part = self._partitions.get(row.partition)
            if part is None:
                continue
            part.log_end = Position(row.base + row.batch.count)
            part.size += row.batch.size
            part.visible_bytes += row.batch.size
            grown[part] = grown.get(part, 0) + row.batch.size
        for part, size in grown.items():
            self._wake(part, size)

    def trimmed(self, trims: Sequence[abc.Trimmed]) -> None:
        """Messages went. A poll that had counted on them notices at its next look; an accumulating wait is told now."""
        for trim in trims:
            part = self._partitions.get(trim.partition)
            if part is not None:
                part.log_start, part.size = trim.log_start, trim.size
                self._gatherers.trimmed(part.id, part.log_start, part.log_end, part.size)

    def reopened(self, topics: Sequence[abc.TopicState]) -> None:
        """The store read everything again: take it over, then everybody who waits looks again."""
        found = {state.name: state for state in topics}
        for name in [name for name in self._topics if name not in found]:
            self._drop_topic(name)
        for state in topics:
            known = self._topics.get(state.name)
            if known is None or [part.id for part in known.partitions] != [part.id for part in state.partitions]:
                self._drop_topic(state.name)
                self._add_topic(state)
                continue
            for part, now in zip(known.partitions, state.partitions, strict=True):
                part.visible_bytes += max(now.size - part.size, 0)
                part.log_start, part.log_end, part.size = now.log_start, now.log_end, now.size
                part.stored = dict(now.stored)
                self._look_again(part)

    def failed(self, error: TarryError) -> None:
        """The store is gone for good."""
        self._failure = error
        self._fail_all(error)

    def _wake(self, part: Partition, size: int) -> None:
        for wait in self._gatherers.grown(part.id, part.log_end, size):
            probe = wait.record
            assert isinstance(probe, _Probe)
            self._end_wait(probe, wait)
        for parked in self._waiters.advanced(part.id, part.log_end, part.visible_bytes):
            probe = parked.record
            assert isinstance(probe, _Probe)
            probe.parked = None
            if probe.wait is None:
                self._probe(probe)
            else:
                self._see(probe.wait, part, Position(probe.wait.starts[part.id]))  # only the one that changed (S53)
                self._end_wait(probe, probe.wait)

    def _end_wait(self, probe: _Probe, wait: Wait) -> None:
        """Answer a wait that seems to be satisfied."""
        try:
            self._check_member(probe.member)
        except TarryError as error:
            self._reply(probe, error)
            return
        if wait.satisfied:
            self._reply(probe, self._ready(wait))
        else:
            self._probe(probe)  # what woke it is gone again

    # ------------------------------------------------------------------------------------------- helpers

    def _add_topic(self, state: abc.TopicState) -> None:
        parts = [
            Partition(
                part.id,
                TopicPartition(state.name, part.number),
                part.log_start,
                part.log_end,
                part.size,
                dict(part.stored),
            )
            for part in state.partitions
        ]
        self._topics[state.name] = Topic(state.name, state.options, parts)
        self._partitions.update((part.id, part) for part in parts)
        self._plan_retention()

    def _plan_retention(self) -> None:
        """Retention by age needs a clock: a pass every interval, while any topic asks for it."""
        if self._retain_at is None and any(topic.options.retention_age for topic in self._topics.values()):
            self._retain_at = self._clock.now() + self._retention_interval
            self.alarm(self._retain_at)

    def _drop_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        parts = topic.partitions if topic else []
        for part in parts:
            del self._partitions[part.id]
        for part in parts:
            self._look_again(part)

    def _look_again(self, part: Partition) -> None:
        """Probe everybody who names a partition (S24)."""
        for parked in self._waiters.changed(part.id):
            probe = parked.record
            assert isinstance(probe, _Probe)
            probe.parked = None
            self._probe(probe)

    def _find(self, at: TopicPartition) -> Partition:
        topic = self._topics.get(at.topic)
        if topic is None:
            raise self._no_topic(at.topic)
        if not 0 <= at.partition < len(topic.partitions):
            raise TopicNotFound(
                f"topic {at.topic!r} has no partition {at.partition}; it has {len(topic.partitions)}, "
                f"numbered 0 to {len(topic.partitions) - 1}"
            )
        return topic.partitions[at.partition]

    def _no_topic(self, name: str) -> TopicNotFound:
        return TopicNotFound(f"topic {name!r} does not exist; create it first (create_topic)")

    def _check_member(self, member: Member) -> None:
        if self._failure is not None:
            raise _own(self._failure)
        if not member.open:
            raise NotAMember("the session has left; open a new consumer")

    def _check_limits(self, probe: _Probe) -> None:
        """What a decoder would refuse (S4)."""
        limits = probe.limits
        if not 1 <= len(probe.specs) <= abc.TARGETS_MAX:
            raise ConfigError(f"{len(probe.specs)} targets in one request; 1 to {abc.TARGETS_MAX} are allowed")
        if not 1 <= limits.count <= COUNT_MAX:
            raise ConfigError(f"count={limits.count}; 1 to {COUNT_MAX} are allowed")
        if not 1 <= limits.min_count <= limits.count:
            raise ConfigError(f"min_count={limits.min_count}; 1 to count={limits.count} are allowed")
        if not 0 <= limits.max_wait <= WIRE_WAIT_MAX:
            raise ConfigError(f"max_wait={limits.max_wait}; 0 to {WIRE_WAIT_MAX:g} seconds are allowed")
        if limits.max_bytes < 1:
            raise ConfigError(f"max_bytes={limits.max_bytes}; at least 1 is needed")
        if probe.wait is None and limits.max_wait > 0 and len(probe.specs) != 1:
            raise ConfigError(f"a poll that waits takes one target, not {len(probe.specs)}; use wait_ready for several")

    def _check_store(
        self, member: Member, at: TopicPartition, offset: Offset | None, history: HistoryId | None
    ) -> tuple[Partition, str]:
        self._check_member(member)
        part = self._find(at)
        identity = member.identity.key
        if identity is None:
            raise UsageError("this consumer has no name to store offsets under; pass name= to consumer()")
        if history is not None and history != part.history:
            raise StaleAssignment(f"{at} was deleted and created again; the offset belongs to the old history")
        if offset is not None and not 0 <= offset < part.log_end:
            raise OffsetOutOfRange(
                f"offset {offset} of {at} does not exist; the log ends at {part.log_end}",
                asked=offset,
                log_start=part.log_start,
                log_end=part.log_end,
            )
        return part, identity

    def _validate(self, probe: _Probe) -> None:
        """Session, partitions and positions still hold (S22, S24); the caller once, not once per target (S55)."""
        self._check_member(probe.member)
        for target in probe.targets:
            part = target.part
            if self._is_gone(target):
                if probe.wait is not None:
                    target.fresh_history = True
                    continue
                raise TopicNotFound(f"topic {part.at.topic!r} was deleted while a request waited for it")
            if target.asked > part.log_end and not target.fresh_history:
                raise OffsetOutOfRange(
                    f"position {target.asked} of {part.at} lies behind the end of the log; messages "
                    f"{part.log_start} to {part.log_end - 1} are there; seek to a valid position",
                    asked=target.asked,
                    log_start=part.log_start,
                    log_end=part.log_end,
                )

    def _is_gone(self, target: _Target) -> bool:
        return self._partitions.get(target.part.id) is not target.part

    def _has(self, target: _Target) -> bool:
        return not target.fresh_history and target.part.messages_from(target.asked) > 0

    def _wait_until(self, max_wait: float) -> float:
        """Absolute end of the wait, capped by the log (S3, S31)."""
        return self._clock.now() + min(max(max_wait, 0.0), self._max_wait)

    def _resolve(
        self,
        part: Partition,
        start: Position | Start,
        identity: abc.ConsumerIdentity,
        done: Callable[[Position | TarryError], None],
    ) -> None:
        """C26. All kinds but a time are answered before this returns."""
        if not isinstance(start, Start):
            done(start)
            return
        if start.kind is StartKind.TIMESTAMP:
            assert start.value is not None
            self._store.find_time(part.id, start.value, done)
            return
        if start.kind is StartKind.NEXT:
            stored = part.stored.get(identity.key or "")
            done(_next_position(part, start, stored))
            return
        if start.kind is StartKind.OFFSET and (start.value or 0) > part.log_end:
            done(
                OffsetOutOfRange(
                    f"offset {start.value} of {part.at} lies behind the end of the log ({part.log_end}); "
                    f"use an offset from {part.log_start} to {part.log_end}, or Start.end()",
                    asked=start.value,
                    log_start=part.log_start,
                    log_end=part.log_end,
                )
            )
            return
        value = start.value or 0
        places = {
            StartKind.FIRST: part.log_start,
            StartKind.END: part.log_end,
            StartKind.OFFSET: Position(value),
            StartKind.LAST: Position(max(part.log_start, part.log_end - (value or 1000))),
        }
        done(places[start.kind])

    def _submit(self, call: Reply | None, job: abc.Job, done: abc.JobDone) -> None:
        self.requests += 1
        if self._failure is not None:
            done(_own(self._failure))
            return
        if call is None:
            self._store.submit(job, done)
            return
        self._jobs[call] = None
        ticket = self._store.submit(job, done)
        if call in self._jobs:  # else it was answered at once
            self._jobs[call] = ticket

    def _answer(self, call: Reply | None, result: Any) -> None:
        if call is not None:
            self._jobs.pop(call, None)
            call.reply(result)

    def _reply(self, probe: _Probe, answer: Any) -> None:
        self._finish(probe)
        probe.call.reply(answer)

    def _finish(self, probe: _Probe) -> None:
        self._unpark(probe)
        self._probes.pop(probe.call, None)
        probe.member.calls.pop(probe.call, None)

    def _fail_all(self, error: TarryError) -> None:
        for probe in list(self._probes.values()):
            self._reply(probe, _own(error))


def _clamped(target: _Target) -> Position:
    """Where reading begins: what retention removed is skipped (Q9)."""
    return max(target.asked, target.part.log_start)


def _used(target: _Target, selection: abc.Selection, count: int, room: int, *, empty: bool) -> tuple[int, int, bool]:
    """Take what was read; an oversized record comes alone, so behind other records it waits for its turn (S45)."""
    left = room - selection.size - RUN_OVERHEAD
    if not selection.runs or (left < 0 and not empty):
        return count, room, empty
    target.runs = selection.runs
    return count - selection.count, left, False


def _is_reached(threshold: Threshold, part: Partition) -> bool:
    _, messages_at, bytes_at = threshold
    return part.log_end >= messages_at or (bytes_at is not None and part.visible_bytes >= bytes_at)


def _own(error: TarryError) -> TarryError:
    """A copy for one caller: an exception that is raised in several tasks mixes up their tracebacks."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own


def _poll_reply(probe: _Probe) -> abc.PollReply:
    return abc.PollReply(tuple(_target_reply(target) for target in probe.targets))


def _target_reply(target: _Target) -> abc.TargetReply:
    part = target.part
    return abc.TargetReply(
        partition=target.spec.partition,
        asked=target.asked,
        position=Position(target.runs[0].base) if target.runs else _as_position(target),
        runs=target.runs,
        head=part.head,
        log_start=part.log_start,
        history=part.history,
        ownership=target.spec.ownership,
    )


def _as_position(target: _Target) -> Position:
    return target.asked if target.fresh_history else _clamped(target)


def _next_position(part: Partition, start: Start, stored: Offset | None) -> Position | TarryError:
    if stored is not None:
        return Position(stored + 1)
    if start.otherwise == "end":
        return part.log_end
    if start.otherwise == "fail":
        return OffsetOutOfRange(
            f"nothing is stored for {part.at} and Start.next(otherwise='fail') was asked for; "
            "store an offset first or use Start.next(otherwise=Start.first())",
            asked=None,
            log_start=part.log_start,
            log_end=part.log_end,
        )
    return part.log_start
