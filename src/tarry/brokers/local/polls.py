"""Requests that wait at an embedded log: polls and readiness waits, from admission to answer (S3-S31, S47-S57, S74).

A wake carries no data: whoever is woken is probed again, which validates and reads afresh (S22), so a cancel loses
nothing. Every request is answered exactly once unless it is withdrawn.

A committing poll reads like any other. What it would answer is validated once more, then its last offset goes to the
store, and the answer follows when that is durable (S50). Until the store has it nothing is applied; from then on only
the store knows, so whoever ends the request then says `OutcomeUnknown`.

Not here: what one request is (`probes`), thresholds (`_core.waiters`), what readiness waits watch (`watches`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from tarry import abc
from tarry._core.waiters import Full, Parked, Threshold, Waiters
from tarry._wire.batch import RUN_OVERHEAD, reply_limit
from tarry.brokers.local.probes import Fence, Limits, Member, Probe, Reply, Target, WaitTerms
from tarry.brokers.local.view import Partition, View, own
from tarry.brokers.local.watches import Desk, Watches, void
from tarry.config import COUNT_MAX
from tarry.errors import (
    CapacityExceeded,
    NotAccepted,
    OutcomeUnknown,
    StaleAssignment,
    TarryError,
    TopicNotFound,
)
from tarry.types import Offset, Position, Start, StartKind, TopicPartition

SWEEP_TARGETS = 64
"""Targets that the safety net looks at per second (S25 as overruled)."""
SWEEP_PERIOD = 1.0


class Polls:
    """See the module. `alarm(deadline)` is called when an earlier deadline than before may have been added.

    `fence` says whether a member of a group owns what it asks for; whoever takes ownership away calls `look_again`.
    """

    def __init__(
        self,
        store: abc.LogStore,
        clock: abc.Clock,
        view: View,
        *,
        max_wait: float,
        alarm: Callable[[float], None],
        waiters: Waiters,
        watched_max: int,
        fence: Fence,
    ) -> None:
        self._store = store
        self._clock = clock
        self._view = view
        self._max_wait = max_wait
        self._alarm = alarm
        self._waiters = waiters
        self.fence = fence
        desk = Desk(self.check_member, self._check_owner, self._wait, self._reply)
        self._watches = Watches(store, clock, view, desk, targets_max=watched_max)
        self._probes: dict[Reply, Probe] = {}
        self._sweep_at: float | None = None
        self.reads = 0
        self.requests = 0

    # -------------------------------------------------------------------------------------------- life

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiters)

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
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

    def cancel(self, call: Reply) -> None:
        """Withdraw a request (S6-S9): parked or reading, it is gone; a commit that was handed over may be applied."""
        probe = self._probes.get(call)
        if probe is not None:
            self._withdraw(probe)

    def leave(self, member: Member) -> None:
        """Withdraw and tell everything that a session has waiting (S15)."""
        for call in list(member.calls):
            self._end(self._probes[call], member.refusal())
        self._watches.leave(member)

    def fail(self, error: TarryError) -> None:
        """End every request, but for those whose commit is with the store: it answers them before it is gone."""
        for probe in list(self._probes.values()):
            if probe.ticket is None:
                self._reply(probe, own(error))

    # -------------------------------------------------------------------------------------------- admission

    def poll(self, call: Reply, member: Member, targets: Sequence[abc.FetchTarget], limits: Limits) -> None:
        """Admit a poll (S11-S13): answer it, park it, or refuse it."""
        self._admit(Probe(call, member, limits, self._wait_until(limits.max_wait), tuple(targets)))

    def wait_ready(self, call: Reply, member: Member, targets: Sequence[abc.FetchTarget], terms: WaitTerms) -> None:
        """Admit a readiness wait; later only what changed is evaluated (S53, S56)."""
        limits = Limits(COUNT_MAX, 1, 1, terms.max_wait)
        self._admit(Probe(call, member, limits, self._wait_until(terms.max_wait), tuple(targets), wait=terms))

    def check_member(self, member: Member) -> None:
        """The store is there and the session is open."""
        if self._view.failure is not None:
            raise own(self._view.failure)
        if not member.open:
            raise member.refusal()

    def _admit(self, probe: Probe) -> None:
        self.requests += 1
        try:
            self.check_member(probe.member)
            probe.check()
        except TarryError as error:
            probe.call.reply(error)
            return
        self._probes[probe.call] = probe
        probe.member.calls[probe.call] = None
        if probe.wait is None or not self._watches.go_on(probe, probe.wait):
            self._place(probe, 0)

    def _place(self, probe: Probe, index: int) -> None:
        """Give each target its position, in order; a start by time may need the disk."""
        while index < len(probe.specs):
            spec = probe.specs[index]
            index += 1
            try:
                part = self._view.find(spec.partition)
                if not isinstance(spec.at, Start):
                    fresh = spec.history is not None and spec.history != part.history
                    probe.targets.append(Target(spec, part, spec.at, fresh))
                    continue
                self._check_owner(probe.member, spec)
                if spec.at.kind is StartKind.TIMESTAMP:
                    self._find_time(probe, spec, part, index)
                    return
                probe.targets.append(self._started(probe, spec, part, spec.at))
            except (TopicNotFound, StaleAssignment) as error:
                self._reply(probe, error if probe.wait is None else (void(spec.partition),))
                return
            except TarryError as error:
                self._reply(probe, error)
                return
        self._probe(probe)

    def _started(self, probe: Probe, spec: abc.FetchTarget, part: Partition, start: Start) -> Target:
        """A target at a start; one at `Start.next()` that commits remembers what that start was made of (S47)."""
        target = Target(spec, part, part.place(start, probe.member.identity))
        if probe.limits.commit and start.kind is StartKind.NEXT:
            target.expected = abc.Expected(part.stored.get(probe.member.key))
        return target

    def _find_time(self, probe: Probe, spec: abc.FetchTarget, part: Partition, index: int) -> None:
        assert isinstance(spec.at, Start)
        assert spec.at.value is not None
        if self._park_until_answered(probe):
            self._store.find_time(part.id, spec.at.value, partial(self._placed, probe, spec, part, index))

    def _placed(
        self, probe: Probe, spec: abc.FetchTarget, part: Partition, index: int, answer: Position | TarryError
    ) -> None:
        if probe.call not in self._probes:
            return
        self._unpark(probe)
        if isinstance(answer, TarryError):
            self._reply(probe, answer)
            return
        probe.targets.append(Target(spec, part, answer))
        self._place(probe, index)

    def _wait_until(self, max_wait: float) -> float:
        """Absolute end of the wait, capped by the log (S3, S31)."""
        return self._clock.now() + min(max(max_wait, 0.0), self._max_wait)

    # -------------------------------------------------------------------------------------------- probes

    def _probe(self, probe: Probe) -> None:
        """Look again: validate, read, then answer or park (S22, S23)."""
        if probe.wait is not None:
            self._watches.begin(probe, probe.wait)
            return
        try:
            self._validate(probe)
        except TarryError as error:
            self._reply(probe, error)
            return
        self._read(probe, 0, probe.limits.count, max(probe.limits.max_bytes, 1), empty=True)

    def _validate(self, probe: Probe) -> None:
        """Session, partitions and positions still hold (S22, S24); the caller once, not once per target (S55)."""
        self.check_member(probe.member)
        for target in probe.targets:
            if self._view.is_gone(target.part):
                raise TopicNotFound(f"topic {target.part.at.topic!r} was deleted while a request waited for it")
            self._check_owner(probe.member, target.spec)
            if target.asked > target.part.log_end and not target.is_void:
                raise target.part.beyond(target.asked)
        if probe.limits.commit:
            self._check_start(probe)

    def _check_owner(self, member: Member, spec: abc.FetchTarget) -> None:
        if member.fenced:
            self.fence(member, spec.partition, spec.ownership, storing=False)

    def _check_start(self, probe: Probe) -> None:
        """What a committing poll at `Start.next()` started from is still stored; its start is never moved (S47-S49)."""
        for target in probe.targets:
            stored = target.part.stored.get(probe.member.key)
            if target.expected is not None and target.expected.offset != stored:
                raise NotAccepted(
                    f"the stored offset of {target.part.at} is {stored} and not {target.expected.offset} any more, so "
                    "Start.next() lies elsewhere; nothing was applied, ask again"
                )

    # -- polls

    def _read(self, probe: Probe, index: int, count: int, room: int, *, empty: bool) -> None:
        """Read the targets in order until `count` records or `room` bytes are used up."""
        while index < len(probe.targets):
            target = probe.targets[index]
            if self._view.is_gone(target.part):
                self._probe(probe)
                return
            target.runs = ()
            target.seen_end, target.seen_bytes = target.part.log_end, target.part.visible_bytes
            limit = room - RUN_OVERHEAD
            if count <= 0 or (limit <= 0 and not empty) or not target.has_messages:
                index += 1
                continue
            query = abc.Query(target.part.id, target.begin, count, max(limit, 1))
            self.reads += 1
            selection = self._store.read(query)
            if selection is None:
                self._read_disk(probe, index, query, (count, room, empty))
                return
            count, room, empty = target.take(selection, count, room, empty=empty)
            index += 1
        self._judge(probe)

    def _read_disk(self, probe: Probe, index: int, query: abc.Query, left: tuple[int, int, bool]) -> None:
        """Read later, in a worker; until then only the request deadline ends the request (S29)."""
        if self._park_until_answered(probe):
            self._store.read_disk(query, partial(self._disk_read, probe, index, left))

    def _disk_read(
        self, probe: Probe, index: int, left: tuple[int, int, bool], result: abc.Selection | TarryError
    ) -> None:
        if probe.call not in self._probes:
            return
        self._unpark(probe)
        if isinstance(result, TarryError):
            self._reply(probe, result)
            return
        count, room, empty = left
        target = probe.targets[index]
        if self._view.is_gone(target.part) or (not result.runs and target.has_messages):
            # Its topic was deleted, or retention passed the position while the read was on its way: look again.
            self._probe(probe)
            return
        count, room, empty = target.take(result, count, room, empty=empty)
        self._read(probe, index + 1, count, room, empty=empty)

    def _judge(self, probe: Probe) -> None:
        """Enough, or the wait is over: answer. Otherwise park for what is still missing (S16, S17, S23)."""
        if self._clock.now() >= probe.wait_until:
            self._deliver(probe)
            return
        target, part = probe.targets[0], probe.targets[0].part
        count, size = sum(run.count for run in target.runs), sum(run.size for run in target.runs)
        limit = reply_limit(probe.limits.max_bytes)
        begin = target.runs[0].base if target.runs else target.begin
        behind = begin + count
        if target.is_void or count >= probe.limits.min_count or size >= limit or behind < target.seen_end:
            self._deliver(probe)
            return
        seen_bytes = part.visible_bytes if behind == part.log_end else target.seen_bytes
        threshold = Threshold(part.id, begin + probe.limits.min_count, seen_bytes - size + limit)
        if _is_reached(threshold, part):
            self._probe(probe)  # a commit came in while the disk was read (S27)
        else:
            target.runs = ()
            self._park(probe, threshold)

    # -- commits

    def _deliver(self, probe: Probe) -> None:
        """Answer a poll with what was read; a committing one that read something when that is stored (S50)."""
        if probe.limits.commit and probe.targets[0].runs:
            self._commit(probe, probe.targets[0])
        else:
            self._reply(probe, probe.reply())

    def _commit(self, probe: Probe, target: Target) -> None:
        """Validate for the last time, then store the last offset of the reply (S22, S50, S74)."""
        end = target.runs[-1].end
        try:
            self._validate(probe)
            if end > target.part.log_end:
                raise NotAccepted(f"{target.part.at} changed while it was read; nothing was applied, ask again")
        except TarryError as error:
            self._reply(probe, error)
            return
        if self._park_until_answered(probe):
            job = abc.StoreOffset(target.part.id, probe.member.key, Offset(end - 1), expected=target.expected)
            probe.ticket = self._store.submit(job, partial(self._stored, probe, target))

    def _stored(self, probe: Probe, target: Target, result: abc.JobResult | TarryError) -> None:
        """The fate of a commit is known. Whoever asked may be gone; what is stored is stored."""
        if isinstance(result, abc.Stored):
            target.part.note(probe.member.key, result)
        if probe.call in self._probes:
            self._reply(probe, result if isinstance(result, TarryError) else probe.reply())

    # -------------------------------------------------------------------------------------------- wakes

    def grown(self, part: Partition, size: int) -> None:
        """A partition grew by `size` bytes: wake whoever that may complete (S20; one peek when that is nobody)."""
        self._watches.grown(part, size)
        for parked in self._waiters.advanced(part.id, part.log_end, part.visible_bytes):
            probe = _probe_of(parked.record)
            probe.parked = None
            self._probe(probe)

    def trimmed(self, part: Partition) -> None:
        """Messages went. A poll that had counted on them notices at its next look; a readiness wait is told now."""
        self._watches.trimmed(part)

    def changed(self, parts: Sequence[Partition]) -> None:
        """The histories of partitions changed or ended: probe everybody who names one, waits over many once (S24)."""
        self._watches.changed(parts)
        for part in parts:
            for parked in self._waiters.changed(part.id):
                probe = _probe_of(parked.record)
                probe.parked = None
                self._probe(probe)

    def look_again(self, member: Member, partitions: Container[TopicPartition]) -> None:
        """A member lost partitions: what it has waiting for them ends at once, unless the fence lets it pass.

        A commit that the store has not begun is withdrawn; one that it has stands, and is answered (C36).
        """
        self._watches.look_again(member, partitions)
        for probe in [self._probes[call] for call in member.calls]:
            if probe.wait is not None or not any(spec.partition in partitions for spec in probe.specs):
                continue
            if probe.parked is not None and probe.parked.threshold is not None:
                self._unpark(probe)
                self._probe(probe)
            else:
                self._check_again(probe)

    def _check_again(self, probe: Probe) -> None:
        """End a request that reads or commits if it does not hold any more; else what it waits for goes on."""
        try:
            self._validate(probe)
        except TarryError as error:
            if probe.ticket is None or self._store.withdraw(probe.ticket):
                self._reply(probe, error)

    def _timed_out(self, parked: Parked) -> None:
        probe = _probe_of(parked.record)
        probe.parked = None
        if probe.watched is not None:
            self._watches.timed_out(probe)
            return
        if parked.threshold is not None:
            self._probe(probe)
            return
        what = "disk read" if probe.ticket is None else "commit"
        self._end(
            probe,
            CapacityExceeded(
                f"the {what} for this request did not end within {abc.REQUEST_GRACE:g} s after its wait; "
                "nothing was applied, back off and ask again"
            ),
        )

    def _sweep(self) -> None:
        self._watches.sweep(SWEEP_TARGETS)
        for parked in self._waiters.sweep(SWEEP_TARGETS):
            probe = _probe_of(parked.record)
            if parked.alive and probe.watched is None and probe.ticket is None and self._is_due(probe, parked):
                self._unpark(probe)
                self._probe(probe)

    def _is_due(self, probe: Probe, parked: Parked) -> bool:
        return not probe.member.open or (parked.threshold is not None and self._is_wake_lost(parked.threshold))

    def _is_wake_lost(self, threshold: Threshold) -> bool:
        part = self._view.by_id(threshold.partition)
        return part is None or _is_reached(threshold, part)

    # -------------------------------------------------------------------------------------------- parking and answers

    def _park(self, probe: Probe, threshold: Threshold | None) -> bool:
        """Wait until the threshold is reached or the wait is over; False when there was no room, which is answered."""
        return self._park_until(probe, probe.wait_until, threshold)

    def _wait(self, probe: Probe) -> bool:
        """A readiness wait waits for what is watched, or its deadline."""
        return self._park(probe, None)

    def _park_until_answered(self, probe: Probe) -> bool:
        """Wait for the store; what ends it otherwise is the request deadline (S29)."""
        return self._park_until(probe, probe.wait_until + abc.REQUEST_GRACE, None)

    def _park_until(self, probe: Probe, deadline: float, threshold: Threshold | None) -> bool:
        try:
            probe.parked = self._waiters.park(probe, deadline, threshold)
        except Full as full:
            self._reply(
                probe,
                CapacityExceeded(f"{full} already (the most allowed); nothing was applied, back off and ask again"),
            )
            return False
        if self._sweep_at is None or len(self._waiters) == 1:
            self._sweep_at = self._clock.now() + SWEEP_PERIOD
        self._alarm(min(deadline, self._sweep_at))
        return True

    def _unpark(self, probe: Probe) -> None:
        if probe.parked is not None:
            self._waiters.remove(probe.parked)
            probe.parked = None

    def _reply(self, probe: Probe, answer: abc.PollReply | tuple[abc.Ready, ...] | TarryError) -> None:
        self._finish(probe)
        probe.call.reply(answer)

    def _end(self, probe: Probe, error: TarryError) -> None:
        """End a request from outside, where nothing was applied; a commit that the store has may be."""
        if self._withdraw(probe):
            probe.call.reply(error)
            return
        unknown = OutcomeUnknown(
            "this request ended while its commit was being written; what it read may or may not be stored as read"
        )
        unknown.__cause__ = error
        probe.call.reply(unknown)

    def _withdraw(self, probe: Probe) -> bool:
        """Take a request out; False when its commit is being written."""
        self._finish(probe)
        return probe.ticket is None or self._store.withdraw(probe.ticket)

    def _finish(self, probe: Probe) -> None:
        self._unpark(probe)
        self._watches.ended(probe)
        self._probes.pop(probe.call, None)
        probe.member.calls.pop(probe.call, None)


def _is_reached(threshold: Threshold, part: Partition) -> bool:
    _, messages_at, bytes_at = threshold
    return part.log_end >= messages_at or (bytes_at is not None and part.visible_bytes >= bytes_at)


def _probe_of(record: object) -> Probe:
    assert isinstance(record, Probe)
    return record
