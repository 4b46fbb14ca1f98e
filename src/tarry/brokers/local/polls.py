"""Requests that wait at an embedded log: polls and readiness waits, from admission to answer (S3-S31, S52-S57).

A wake carries no data: whoever is woken is probed again, which validates and reads afresh (S22), so a cancel loses
nothing. Every request is answered exactly once unless it is withdrawn.

Not here: what one request is (`probes`), thresholds (`_core.waiters`), what a wait has gathered (`_core.readiness`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tarry import abc
from tarry._core.readiness import Gatherers, Wait
from tarry._core.waiters import Full, Parked, Threshold, Waiters
from tarry._wire.batch import RUN_OVERHEAD, reply_limit
from tarry.brokers.local.probes import Limits, Member, Probe, Reply, Target
from tarry.brokers.local.view import Partition, View, own
from tarry.config import COUNT_MAX
from tarry.errors import CapacityExceeded, ConfigError, NotAMember, OffsetOutOfRange, TarryError, TopicNotFound
from tarry.types import Position, Start, StartKind

SWEEP_TARGETS = 64
"""Targets that the safety net looks at per second (S25 as overruled)."""
SWEEP_PERIOD = 1.0
NEVER = 1 << 62
"""A threshold that no partition reaches: only a change of history or the deadline ends such an entry."""


class Polls:
    """See the module. `alarm(deadline)` is called when an earlier deadline than before may have been added."""

    def __init__(
        self,
        store: abc.LogStore,
        clock: abc.Clock,
        view: View,
        *,
        max_wait: float,
        alarm: Callable[[float], None],
        waiters: Waiters,
    ) -> None:
        self._store = store
        self._clock = clock
        self._view = view
        self._max_wait = max_wait
        self._alarm = alarm
        self._waiters = waiters
        self._gatherers = Gatherers()
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
        """Withdraw a request (S6-S9): parked or reading, it is gone."""
        probe = self._probes.get(call)
        if probe is not None:
            self._finish(probe)

    def leave(self, member: Member) -> None:
        """Withdraw and tell everything that a session has waiting (S15)."""
        for call in list(member.calls):
            self.cancel(call)
            call.reply(NotAMember("the session has left; open a new consumer"))

    def fail(self, error: TarryError) -> None:
        """End every request."""
        for probe in list(self._probes.values()):
            self._reply(probe, own(error))

    # -------------------------------------------------------------------------------------------- admission

    def poll(self, call: Reply, member: Member, targets: Sequence[abc.FetchTarget], limits: Limits) -> None:
        """Admit a poll (S11-S13): answer it, park it, or refuse it."""
        self._admit(Probe(call, member, limits, self._wait_until(limits.max_wait), tuple(targets)))

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
        probe = Probe(call, member, limits, self._wait_until(max_wait), tuple(targets))
        probe.wait = Wait({}, min_count, min_bytes, probe)
        if min_count < 1 or (min_bytes is not None and min_bytes < 1):
            call.reply(ConfigError(f"min_count={min_count}, min_bytes={min_bytes}: both must be at least 1"))
            return
        self._admit(probe)

    def check_member(self, member: Member) -> None:
        """The store is there and the session is open."""
        self._view.check()
        member.check()

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
        self._place(probe, 0)

    def _place(self, probe: Probe, index: int) -> None:
        """Give each target its position, in order; a start by time may need the disk."""
        while index < len(probe.specs):
            spec = probe.specs[index]
            index += 1
            try:
                part = self._view.find(spec.partition)
            except TopicNotFound as error:
                self._reply(probe, error if probe.wait is None else (abc.Ready(spec.partition, 0, 0),))
                return
            if not isinstance(spec.at, Start):
                fresh = spec.history is not None and spec.history != part.history
                probe.targets.append(Target(spec, part, spec.at, fresh))
                continue
            if spec.at.kind is StartKind.TIMESTAMP:
                assert spec.at.value is not None
                if self._park_reading(probe):
                    self._store.find_time(part.id, spec.at.value, partial(self._placed, probe, spec, part, index))
                return
            try:
                position = part.place(spec.at, probe.member.identity)
            except OffsetOutOfRange as error:
                self._reply(probe, error)
                return
            probe.targets.append(Target(spec, part, position, fresh_history=False))
        self._probe(probe)

    def _placed(
        self, probe: Probe, spec: abc.FetchTarget, part: Partition, index: int, answer: Position | TarryError
    ) -> None:
        if probe.call not in self._probes:
            return
        self._unpark(probe)
        if isinstance(answer, TarryError):
            self._reply(probe, answer)
            return
        probe.targets.append(Target(spec, part, answer, fresh_history=False))
        self._place(probe, index)

    def _wait_until(self, max_wait: float) -> float:
        """Absolute end of the wait, capped by the log (S3, S31)."""
        return self._clock.now() + min(max(max_wait, 0.0), self._max_wait)

    # -------------------------------------------------------------------------------------------- probes

    def _probe(self, probe: Probe) -> None:
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

    def _validate(self, probe: Probe) -> None:
        """Session, partitions and positions still hold (S22, S24); the caller once, not once per target (S55)."""
        self.check_member(probe.member)
        for target in probe.targets:
            if self._view.is_gone(target.part):
                if probe.wait is not None:
                    target.fresh_history = True
                    continue
                raise TopicNotFound(f"topic {target.part.at.topic!r} was deleted while a request waited for it")
            if target.asked > target.part.log_end and not target.fresh_history:
                raise target.part.beyond(target.asked)

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
        if self._park_reading(probe):
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
            self._reply(probe, probe.reply())
            return
        target, part = probe.targets[0], probe.targets[0].part
        count, size = sum(run.count for run in target.runs), sum(run.size for run in target.runs)
        limit = reply_limit(probe.limits.max_bytes)
        begin = target.runs[0].base if target.runs else target.begin
        behind = begin + count
        if target.fresh_history or count >= probe.limits.min_count or size >= limit or behind < target.seen_end:
            self._reply(probe, probe.reply())
            return
        seen_bytes = part.visible_bytes if behind == part.log_end else target.seen_bytes
        threshold = Threshold(part.id, begin + probe.limits.min_count, seen_bytes - size + limit)
        if _is_reached(threshold, part):
            self._probe(probe)  # a commit came in while the disk was read (S27)
        else:
            target.runs = ()
            self._park(probe, (threshold,))

    # -- readiness waits

    def _probe_wait(self, probe: Probe, wait: Wait) -> None:
        self._gatherers.remove(wait)
        wait.starts = {target.part.id: target.begin for target in probe.targets}
        for target in probe.targets:
            if target.fresh_history:
                self._reply(probe, (abc.Ready(target.spec.partition, 0, 0),))
                return
            self._see(wait, target.part, target.begin)
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
        found = ((self._view.by_id(part_id), have) for part_id, have in wait.have.items())
        return tuple(abc.Ready(part.at, *have) for part, have in found if part is not None)

    def _end_wait(self, probe: Probe, wait: Wait) -> None:
        """Answer a wait that seems to be satisfied."""
        try:
            self.check_member(probe.member)
        except TarryError as error:
            self._reply(probe, error)
            return
        if wait.satisfied:
            self._reply(probe, self._ready(wait))
        else:
            self._probe(probe)  # what woke it is gone again

    # -------------------------------------------------------------------------------------------- wakes

    def grown(self, part: Partition, size: int) -> None:
        """A partition grew by `size` bytes: wake whoever that may complete (S20; one peek when that is nobody)."""
        for wait in self._gatherers.grown(part.id, part.log_end, size):
            self._end_wait(_probe_of(wait.record), wait)
        for parked in self._waiters.advanced(part.id, part.log_end, part.visible_bytes):
            probe = _probe_of(parked.record)
            probe.parked = None
            if probe.wait is None:
                self._probe(probe)
            else:
                self._see(probe.wait, part, Position(probe.wait.starts[part.id]))  # only the one that changed (S53)
                self._end_wait(probe, probe.wait)

    def trimmed(self, part: Partition) -> None:
        """Messages went. A poll that had counted on them notices at its next look; an accumulating wait is told now."""
        self._gatherers.trimmed(part.id, part.log_start, part.log_end, part.size)

    def look_again(self, part: Partition) -> None:
        """Probe everybody who names a partition (S24)."""
        for parked in self._waiters.changed(part.id):
            probe = _probe_of(parked.record)
            probe.parked = None
            self._probe(probe)

    def _timed_out(self, parked: Parked) -> None:
        probe = _probe_of(parked.record)
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
            probe = _probe_of(parked.record)
            if parked.alive and self._is_due(probe, window):
                self._unpark(probe)
                self._probe(probe)

    def _is_due(self, probe: Probe, window: tuple[Threshold, ...]) -> bool:
        return not probe.member.open or any(self._is_wake_lost(probe.wait, threshold) for threshold in window)

    def _is_wake_lost(self, wait: Wait | None, threshold: Threshold) -> bool:
        part = self._view.by_id(threshold.partition)
        if part is None or _is_reached(threshold, part):
            return True
        return wait is not None and wait.accumulates and not wait.knows(part.id, part.log_end)

    # -------------------------------------------------------------------------------------------- parking and answers

    def _park(self, probe: Probe, thresholds: tuple[Threshold, ...]) -> bool:
        """Wait until a threshold is reached or the wait is over; False when there was no room, which is answered."""
        return self._park_until(probe, probe.wait_until, thresholds)

    def _park_reading(self, probe: Probe) -> bool:
        """Wait for the disk; what ends it otherwise is the request deadline (S29)."""
        return self._park_until(probe, probe.wait_until + abc.REQUEST_GRACE, ())

    def _park_until(self, probe: Probe, deadline: float, thresholds: tuple[Threshold, ...]) -> bool:
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
        self._alarm(min(deadline, self._sweep_at))
        return True

    def _unpark(self, probe: Probe) -> None:
        if probe.parked is not None:
            self._waiters.remove(probe.parked)
            probe.parked = None
        if probe.wait is not None:
            self._gatherers.remove(probe.wait)

    def _reply(self, probe: Probe, answer: abc.PollReply | tuple[abc.Ready, ...] | TarryError) -> None:
        self._finish(probe)
        probe.call.reply(answer)

    def _finish(self, probe: Probe) -> None:
        self._unpark(probe)
        self._probes.pop(probe.call, None)
        probe.member.calls.pop(probe.call, None)


def _is_reached(threshold: Threshold, part: Partition) -> bool:
    _, messages_at, bytes_at = threshold
    return part.log_end >= messages_at or (bytes_at is not None and part.visible_bytes >= bytes_at)


def _probe_of(record: object) -> Probe:
    assert isinstance(record, Probe)
    return record
