"""Watches idle partitions: one readiness wait per leader and 1,000 partitions (C72-C81; I5).

A loop per group of `_core.routes`. It sends a wait for the idle partitions of its group, and replaces it when it does
not fit any more: a partition was drained (C73), another `poll` waits, or what that still misses is less than the wait
asks for. When the groups are made anew all loops are: every wait has been withdrawn before the first new one begins
(C77, C79). What a replaced wait says does not count (C78).

A wait for many messages asks each of L groups for its part, the L-th of what is missing, rounded up: when enough is
there altogether, one of them has its part (design 4.2).

Not here: fetching what is ready (`worker`); who leads what (`routing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import anyio

from tarry import abc
from tarry._core.backoff import Backoff, Refusals
from tarry._core.fetches import RUN_OVERHEAD, Demand, Fetches
from tarry._core.routes import Group, Routes
from tarry._core.stopped import is_lasting
from tarry.config import PollOptions
from tarry.consumer.bell import Bell
from tarry.consumer.standing import Standing
from tarry.consumer.watch import Watch
from tarry.errors import NotAccepted, TarryError
from tarry.types import TopicPartition

LOG_WAIT_MAX = 30.0
"""Longest wait of one request at the log; longer ones are asked again with what is left (C5, C8)."""
EARLY = 0.9
"""An empty answer before this share of its wait may be followed by a pause, so that nobody spins (K41)."""
HURRY_S = 0.05
"""A pause that the end of a `poll` cuts short lasts so long all the same: the poll may wait for another leader."""
REFUSALS_MAX = 6
"""So many times in a row a fetch may find out which partition a wait was refused for; then the reader is told."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a deferred request asks for: seconds, messages, and bytes (None: they do not matter)."""

    max_wait: float
    min_count: int
    min_bytes: int | None

    def part(self, groups: int) -> Terms:
        """What one of so many groups is asked for."""
        size = self.min_bytes and -(-max(self.min_bytes - RUN_OVERHEAD, 1) // groups)
        return Terms(self.max_wait, -(-self.min_count // groups), size)


@dataclass(slots=True, eq=False)
class Wait:
    """A deferred request that is out: for whom, how to end it. Replaced ones are told by identity."""

    demand: Demand | None
    terms: Terms
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is asked for until then; the end of a `poll` brings that forward, but not before `soonest`."""

    soonest: float
    until: float

    @classmethod
    def begun(cls, seconds: float) -> Rest:
        """One that begins now."""
        now = anyio.current_time()
        return cls(now + min(seconds, HURRY_S), now + seconds)

    def end(self, demand: Demand | None) -> float:
        """When it is over, for the `poll` that waits."""
        return max(self.soonest, self.until if demand is None else min(self.until, demand.deadline))


@dataclass(slots=True)
class Lane:
    """How one leader has answered lately; outlives the groups."""

    refusals: Refusals
    rest: Rest = Rest(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Desk:
    """What watching needs of the worker.

    Args:
        is_active: a partition may be read, has a position and a leader.
        alone: the partition that is polled directly, and nobody is watched (C84); None: there is none.
        is_busy: more is on its way than what was fetched.
        target: a partition as a request names it.
        refused: a request to the leader of a group was refused.
        arrived: whoever reads should look again.
        nudge: fetches went on, and loops should look again.
    """

    is_active: Callable[[TopicPartition], bool]
    alone: Callable[[], TopicPartition | None]
    is_busy: Callable[[], bool]
    target: Callable[[TopicPartition], abc.FetchTarget]
    refused: Callable[[str, Iterable[TopicPartition], TarryError, Refusals], None]
    arrived: Callable[[], None]
    nudge: Callable[[], None]


class Watching:
    """The waits of one consumer."""

    def __init__(
        self,
        standing: Standing,
        routes: Routes,
        fetches: Fetches,
        desk: Desk,
        *,
        poll: PollOptions,
        bell: Bell,
        random: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._routes = routes
        self._fetches = fetches
        self._desk = desk
        self._poll = poll
        self._bell = bell
        self._random = random
        self._waits: dict[Group, Wait] = {}
        self._watches: dict[Group, Watch] = {}
        self._watch_of: dict[TopicPartition, Watch] = {}
        self._is_touched = True
        self._numbers = count()
        self._lanes: dict[str, Lane] = {}
        self._heard: dict[Group, Demand | None] = {}

    # ------------------------------------------------------------------------------------------- control

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            groups = self._routes.groups
            self._heard.clear()
            async with anyio.create_task_group() as tasks:
                for group in groups:
                    tasks.start_soon(self._watch_group, group)
                while self._routes.groups is groups:
                    await self._sit_out()
                tasks.cancel_scope.cancel()

    def touch(self) -> None:
        """Any partition may be another one to watch now than it was."""
        self._is_touched = True

    def look(self) -> None:
        """Something changed: waits that do not fit any more are withdrawn; the loops send new ones."""
        for group, wait in self._waits.items():
            if not self._fits(group, wait):
                wait.scope.cancel()

    def withdraw(self, partitions: Sequence[TopicPartition]) -> None:
        """End the waits that name any of these."""
        for group, wait in self._waits.items():
            watch = self._watches.get(group)
            if watch is None or any(map(watch.may_name, partitions)):
                wait.scope.cancel()

    # ------------------------------------------------------------------------------------------- what is watched

    def _idle(self, group: Group) -> Watch | None:
        """The idle partitions of a group; None: it is not among the groups any more.

        Only those are looked at about which something is new (S53), unless anything may be.
        """
        if self._routes.groups != tuple(self._watches):
            self._regroup()
        changed = self._fetches.touched()
        for partition in self._watch_of if self._is_touched else changed:
            watch = self._watch_of.get(partition)
            if watch is not None:
                is_idle = self._fetches.is_idle(partition) and self._desk.is_active(partition)
                watch.put(partition, self._desk.target(partition) if is_idle else None)
        self._is_touched = False
        return self._watches.get(group)

    def _regroup(self) -> None:
        self._watches = {group: Watch(next(self._numbers)) for group in self._routes.groups}
        self._watch_of = {at: watch for group, watch in self._watches.items() for at in group.partitions}
        self._is_touched = True

    # ------------------------------------------------------------------------------------------- the loops

    async def _sit_out(self) -> None:
        """While nobody can be asked (no partition has a position and a leader) a poll still ends when its wait does."""
        demand = self._fetches.demand
        if demand is not None and demand.asked:
            self.settle()  # what it still waited for may have been paused, or withdrawn
        if demand is None or demand.asked or self._can_ask():
            await self._bell.heard("watching")
            return
        with anyio.CancelScope(deadline=demand.deadline):
            await self._bell.heard("watching")
        self.settle()

    def _can_ask(self) -> bool:
        return any(self._desk.is_active(at) for group in self._routes.groups for at in group.partitions)

    async def _watch_group(self, group: Group) -> None:
        lane = self._lanes.setdefault(group.leader, Lane(Refusals(limit_s=abc.REQUEST_GRACE, random=self._random)))
        pacing = Backoff()
        while True:
            await self._over("watching", lane.rest)
            idle, demand = self._idle(group), self._fetches.demand
            is_asked = demand is not None and (demand.asked or self._heard.get(group) is demand)
            if idle is None or not idle.targets or is_asked or self._desk.alone():
                await self._bell.heard("watching")
            else:
                await self._watch(group, idle, lane, pacing)

    async def _watch(self, group: Group, idle: Watch, lane: Lane, pacing: Backoff) -> None:
        demand = self._fetches.demand
        terms = self.terms(demand).part(len(self._routes.groups))
        wait = self._waits[group] = Wait(demand, terms)
        targets, change = idle.send()
        answer: Sequence[abc.Ready] | TarryError = ()
        began = anyio.current_time()
        try:
            with wait.scope:
                answer = await self._ask(group, targets, change, terms)
        finally:
            del self._waits[group]
        if wait.scope.cancel_called or group not in self._routes.groups:
            return  # replaced: whatever it may have said does not count (C78)
        if isinstance(answer, TarryError):
            self._refused(group, [target.partition for target in targets], answer, lane)
        else:
            lane.refusals.reset()
            for item in answer:
                self._fetches.ready(item.partition)
        self.answered(demand, group)
        self._desk.nudge()
        if not isinstance(answer, TarryError):
            await self.pause("watching", spacing(pacing, began, terms.max_wait, brought=bool(answer)))

    async def _ask(
        self, group: Group, targets: Sequence[abc.FetchTarget], change: abc.WatchChange, terms: Terms
    ) -> Sequence[abc.Ready] | TarryError:
        try:
            return await self._standing.session.wait_ready(
                abc.Leader(group.leader),
                targets,
                min_count=terms.min_count,
                min_bytes=terms.min_bytes,
                max_wait=terms.max_wait,
                change=change,
            )
        except TarryError as error:
            return error

    def _refused(self, group: Group, named: Sequence[TopicPartition], error: TarryError, lane: Lane) -> None:
        if not is_lasting(error) or lane.refusals.count >= REFUSALS_MAX:
            self._desk.refused(group.leader, named, error, lane.refusals)
        is_again = isinstance(error, NotAccepted) and lane.refusals.count > 0 and len(named) > 1
        for partition in named if is_lasting(error) or is_again else ():
            self._fetches.ready(partition)  # fetching finds out which of them it is, and brings what the others have
        lane.rest = Rest.begun(lane.refusals.pause())

    def _fits(self, group: Group, wait: Wait) -> bool:
        """Whether a running wait still watches everybody it should, for the demand there is, and not for too much."""
        idle = self._idle(group)
        if idle is None:
            return False  # the groups were made anew, perhaps none; the loop of this one is about to end (C77)
        if wait.demand is not self._fetches.demand or idle.has_more:
            return False
        now = self.terms(wait.demand).part(len(self._routes.groups))
        return wait.terms.min_count <= now.min_count and (wait.terms.min_bytes or 0) <= (now.min_bytes or 0)

    # ------------------------------------------------------------------------------------------- demand

    def terms(self, demand: Demand | None) -> Terms:
        """Wait, messages and bytes to ask for: what is left of a demand (C8), else what the options say."""
        if demand is None:
            return Terms(min(self._poll.max_wait or LOG_WAIT_MAX, LOG_WAIT_MAX), self._poll.min_count, None)
        left = max(demand.deadline - anyio.current_time(), 0.0)
        return Terms(min(left, LOG_WAIT_MAX), *self._fetches.missing(demand))

    async def pause(self, who: str, seconds: float) -> None:
        """Ask for nothing for a while, but no longer than a `poll` may wait."""
        await self._over(who, Rest.begun(seconds))

    async def _over(self, who: str, rest: Rest) -> None:
        await self._bell.quiet_until(who, lambda: rest.end(self._fetches.demand))

    def answered(self, demand: Demand | None, *groups: Group) -> None:
        """The leader of a group has answered or refused a request for `demand`; behind its end that was the last."""
        if demand is not None and anyio.current_time() >= demand.deadline:
            self._heard.update(dict.fromkeys(groups, demand))
        self.settle()

    def settle(self) -> None:
        """The wait of a poll is over once every leader was asked up to its end and everything known was fetched."""
        demand = self._fetches.demand
        if demand is None or demand.over:
            return
        if anyio.current_time() >= demand.deadline:
            unheard = (group for group in self._routes.groups if self._heard.get(group) is not demand)
            demand.asked = demand.asked or not any(idle.targets for group in unheard if (idle := self._idle(group)))
        if demand.asked and not self._desk.is_busy():
            demand.over = True
            self._desk.arrived()

    def end_asked(self) -> None:
        """A `poll` is over: the log was asked up to the end of its wait, and says no."""
        demand = self._fetches.demand
        if demand is not None and demand.asked:
            demand.over = True
            self._desk.arrived()


def spacing(pacing: Backoff, began: float, max_wait: float, *, brought: bool) -> float:
    """How long to wait before asking again: no time, unless the log keeps answering empty ahead of time (K41)."""
    elapsed, pause = anyio.current_time() - began, pacing.next()
    if brought or elapsed >= min(pause, max_wait * EARLY):
        pacing.reset()
        return 0.0
    return pause - elapsed
