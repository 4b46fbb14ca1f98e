"""Readiness waits at an embedded log: what they watch, remembered from one wait to the next (S24, S52-S57).

A wait that goes on with the watch of the one before it costs what has changed; nothing else of what it names is looked
at. Whatever may have ended the right to read a partition, or its history, ends the watch, or has all of it looked at
again when a wait is on: that is rare, and the next wait names everything.

Not here: admission, deadlines and answers of requests (`polls`); who is satisfied by what (`_core.readiness`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice

from tarry import abc
from tarry._core.readiness import Counts, Readiness, Watch
from tarry.brokers.local.probes import Member, Probe, Target, WaitTerms, Watched
from tarry.brokers.local.view import Partition, View
from tarry.errors import CapacityExceeded, ConfigError, StaleAssignment, TarryError, TopicNotFound
from tarry.types import Position, Start, TopicPartition

WATCHES_MAX = 64
"""So many watches of one session are remembered, those that it used last."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What this needs of `polls`.

    Args:
        check: raises when a member may wait no more.
        check_owner: raises when a member may not read a target (any more).
        park: a wait is on until it is answered, or its deadline; False when there was no room, which is answered.
        answer: ends it.
    """

    check: Callable[[Member], None]
    check_owner: Callable[[Member, abc.FetchTarget], None]
    park: Callable[[Probe], bool]
    answer: Callable[[Probe, tuple[abc.Ready, ...] | TarryError], None]


class Watches:
    """All watches of one log. `targets_max`: so many targets may be watched, all together."""

    def __init__(self, store: abc.LogStore, clock: abc.Clock, view: View, desk: Desk, *, targets_max: int) -> None:
        self._store = store
        self._clock = clock
        self._view = view
        self._desk = desk
        self._targets_max = targets_max
        self._readiness = Readiness()
        self._waiting: dict[Watched, None] = {}

    # -------------------------------------------------------------------------------------------- waits

    def begin(self, probe: Probe, terms: WaitTerms) -> None:
        """A wait begins whose targets have their positions."""
        member, change = probe.member, terms.change
        if change is None:
            watched = Watched(member, probe.call, 0)
        else:
            watched = Watched(member, change.watch, change.version)
            self._make_room(member, change.watch)
        member.watches[watched.key] = watched
        try:
            self._desk.check(member)
            for target in probe.targets:
                self._name(watched, target)
        except TarryError as error:
            self._forget(watched)
            self._desk.answer(probe, error)
        else:
            self._start(watched, probe)

    def go_on(self, probe: Probe, terms: WaitTerms) -> bool:
        """Let a wait go on with what the one before it named; False when that is not remembered, or is not the same."""
        change, watches = terms.change, probe.member.watches
        if change is None or change.watch not in watches or watches[change.watch].version != change.version - 1:
            return False
        watched = watches[change.watch] = watches.pop(change.watch)
        watched.version = change.version
        self._supersede(watched)
        try:
            for partition in change.dropped:
                self._drop(watched, partition)
            for spec in change.named:
                self._name_anew(watched, spec)
        except TarryError as error:
            self._forget(watched)
            self._desk.answer(probe, error)
            return True
        if len(watched.targets) + len(watched.void) != len(probe.specs):
            self._forget(watched)
            return False
        self._start(watched, probe)
        return True

    def _name_anew(self, watched: Watched, spec: abc.FetchTarget) -> None:
        try:
            part = self._view.find(spec.partition)
        except TopicNotFound:
            self._drop(watched, spec.partition)
            watched.void[spec.partition] = None
            return
        if isinstance(spec.at, Start):
            raise ConfigError(f"{spec.partition} at {spec.at}: what changes in a watch stands at a position")
        is_void = spec.history is not None and spec.history != part.history
        self._name(watched, Target(spec, part, spec.at, is_void))

    def _start(self, watched: Watched, probe: Probe) -> None:
        """A wait is on, unless there is enough already (S12, S56)."""
        assert probe.wait is not None
        watched.probe, probe.watched = probe, watched
        self._readiness.begin(watched.counts, probe.wait.min_count, probe.wait.min_bytes, self._count_by_id)
        self._judge(watched, probe)

    def _supersede(self, watched: Watched) -> None:
        """Another wait on the same watch begins, so nobody waits any more for the one that is on."""
        if watched.probe is not None:
            self._desk.answer(watched.probe, self._ready(watched))

    def _judge(self, watched: Watched, probe: Probe) -> None:
        if watched.void or watched.counts.satisfied or self._clock.now() >= probe.wait_until:
            self._desk.answer(probe, self._ready(watched))
        elif probe.parked is None and self._desk.park(probe):
            self._waiting[watched] = None

    def ended(self, probe: Probe) -> None:
        """A wait is over, however it ended; what it named is remembered, if another may go on with it.

        What was void may be there again by then, or be this member's again under the same ownership.
        """
        watched, probe.watched = probe.watched, None
        if watched is None or watched.probe is not probe:
            return
        watched.probe = None
        self._waiting.pop(watched, None)
        self._readiness.end(watched.counts)
        if watched.key is probe.call or watched.void:
            self._forget(watched)

    def timed_out(self, probe: Probe) -> None:
        """The deadline of a wait has come (S28)."""
        assert probe.watched is not None
        self._end(probe.watched, probe)

    def _end(self, watched: Watched, probe: Probe) -> None:
        """Answer what there is, to a member that still is one (S22, S55)."""
        try:
            self._desk.check(watched.member)
        except TarryError as error:
            self._desk.answer(probe, error)
        else:
            self._desk.answer(probe, self._ready(watched))

    def _ready(self, watched: Watched) -> tuple[abc.Ready, ...]:
        found = ((self._view.by_id(part_id), have) for part_id, have in watched.counts.have.items())
        ready = tuple(abc.Ready(part.at, *have) for part, have in found if part is not None)
        return (*ready, *map(void, watched.void))

    # -------------------------------------------------------------------------------------------- what happens

    def grown(self, part: Partition, size: int) -> None:
        """A partition grew by `size` bytes: answer the waits that have enough now (S20, S53)."""
        for watch in self._readiness.grown(part.id, part.log_end, size):
            watched = _watched_of(watch)
            if watched.probe is not None:
                self._end(watched, watched.probe)

    def trimmed(self, part: Partition) -> None:
        """Messages went: they count no more."""
        self._readiness.trimmed(part.id, part.log_start, part.log_end, part.size)

    def changed(self, parts: Iterable[Partition]) -> None:
        """The histories of partitions changed or ended (S24)."""
        changed = {part.id for part in parts}
        for watch in self._readiness:
            if not changed.isdisjoint(watch.starts):
                self._look_at_all(_watched_of(watch))

    def look_again(self, member: Member, partitions: Container[TopicPartition]) -> None:
        """A member lost partitions."""
        for watched in list(member.watches.values()):
            if any(at in partitions for at in watched.targets):
                self._look_at_all(watched)

    def leave(self, member: Member) -> None:
        """A session is over, and so is what its next waits would have named."""
        for watched in list(member.watches.values()):
            self._forget(watched)

    def sweep(self, targets: int) -> None:
        """Look at the next window of what is waited for, as a safety net; it counts targets, not waits (S25, S54)."""
        for watched in list(islice(self._waiting, targets)):
            if targets <= 0:
                return
            if watched not in self._waiting:
                continue  # ended by what was done about an earlier one
            window = list(islice(watched.targets.values(), watched.swept, watched.swept + targets))
            targets -= max(len(window), 1)
            watched.swept += len(window)
            if watched.swept >= len(watched.targets):
                watched.swept = 0
                self._waiting[watched] = self._waiting.pop(watched)
            if not watched.member.open or any(self._is_wake_lost(watched, target.part) for target in window):
                self._look_at_all(watched)

    def _is_wake_lost(self, watched: Watched, part: Partition) -> bool:
        return self._view.is_gone(part) or not watched.counts.knows(part.id, part.log_end)

    def _look_at_all(self, watched: Watched) -> None:
        """Evaluate each target anew for the wait that is on; without one the next names everything."""
        probe = watched.probe
        if probe is None:
            self._forget(watched)
            return
        try:
            self._desk.check(watched.member)
            for target in list(watched.targets.values()):
                self._name(watched, target)
        except TarryError as error:
            self._forget(watched)
            self._desk.answer(probe, error)
        else:
            self._judge(watched, probe)

    # -------------------------------------------------------------------------------------------- what is named

    def _name(self, watched: Watched, target: Target) -> None:
        """Watch a target from now on, or know it as void."""
        at = target.spec.partition
        self._drop(watched, at)
        if target.is_void or self._view.is_gone(target.part) or not self._may_read(watched.member, target):
            watched.void[at] = None
            return
        if target.asked > target.part.log_end:
            raise target.part.beyond(target.asked)
        self._find_room(watched)
        watched.targets[at] = target
        self._readiness.name(watched.counts, target.part.id, target.begin, self._count(target.part, target.begin))

    def _make_room(self, member: Member, number: int) -> None:
        """Another watch of that number begins; what a session does not go on with is not remembered for ever."""
        if number in member.watches:
            self._supersede(member.watches[number])
            self._forget(member.watches[number])
        resting = [watched for watched in member.watches.values() if watched.probe is None]
        for watched in resting[: max(len(resting) - WATCHES_MAX + 1, 0)]:
            self._forget(watched)

    def _find_room(self, watched: Watched) -> None:
        """There may be one more target: what is remembered between waits gives way to what is waited for."""
        if self._readiness.entries < self._targets_max:
            return
        for watch in self._readiness:
            if watch.starts and not watch.is_waiting and watch is not watched.counts:
                self._forget(_watched_of(watch))
                return
        raise CapacityExceeded(
            f"{self._targets_max} targets of waits are watched at this log already (the most allowed); nothing was "
            "applied, back off and ask again"
        )

    def _may_read(self, member: Member, target: Target) -> bool:
        try:
            self._desk.check_owner(member, target.spec)
        except StaleAssignment:
            return False
        return True

    def _drop(self, watched: Watched, partition: TopicPartition) -> None:
        watched.void.pop(partition, None)
        target = watched.targets.pop(partition, None)
        if target is not None:
            self._readiness.drop(watched.counts, target.part.id)

    def _forget(self, watched: Watched) -> None:
        self._readiness.forget(watched.counts)
        if watched.member.watches.get(watched.key) is watched:
            del watched.member.watches[watched.key]

    def _count_by_id(self, key: Hashable, start: int) -> tuple[int, Counts]:
        part = self._view.by_id(key)
        assert part is not None, "what is gone is named no more"
        position = max(Position(start), part.log_start)
        return position, self._count(part, position)

    def _count(self, part: Partition, position: Position) -> Counts:
        messages = part.messages_from(position)
        return messages, self._store.bytes_between(part.id, position) if messages else 0


def void(partition: TopicPartition) -> abc.Ready:
    """What a wait says of a target that is gone, so that a poll reports it."""
    return abc.Ready(partition, 0, 0)


def _watched_of(watch: Watch) -> Watched:
    assert isinstance(watch.record, Watched)
    return watch.record
