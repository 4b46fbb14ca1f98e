"""Finds out where partitions begin: what is stored for them, and what the start rule says (C26, C27, Q4).

Not here: what a position is (`_core.positions`), and what follows once there is one (`worker`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.abc

from tarry import abc
from tarry._core.backoff import Refusals
from tarry._core.gaps import Gap
from tarry._core.positions import Positions
from tarry._core.routes import Routes
from tarry._core.stopped import is_lasting
from tarry.consumer.bell import Bell
from tarry.consumer.routing import LOOKUPS_MAX, side_by_side
from tarry.consumer.standing import Standing
from tarry.consumer.stopping import Stopping
from tarry.errors import TarryError
from tarry.types import Start, TopicPartition


@dataclass(frozen=True, slots=True)
class Desk:
    """What resolving needs of the worker.

    Args:
        begun: a partition has its position, perhaps behind or in front of a gap.
        refused: told of the first in a round that was refused, in their order.
        unknown: told of each that asking again is not expected to cure; from then on its partition rests.
    """

    begun: Callable[[TopicPartition, abc.Resolved, Gap | None], None]
    refused: Callable[[TarryError, Refusals], None]
    unknown: Callable[[TopicPartition, TarryError], None]


class Resolving:
    """Gives the partitions of one consumer their positions.

    Args:
        find: reads what is stored for a partition, before its start is resolved; None when nothing can be.
    """

    def __init__(
        self,
        standing: Standing,
        routes: Routes,
        positions: Positions,
        desk: Desk,
        *,
        start: Start,
        find: Callable[[TopicPartition], Awaitable[None]] | None,
        stopping: Stopping,
        bell: Bell,
        random: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._routes = routes
        self._positions = positions
        self._desk = desk
        self._start = start
        self._find = find
        self._stopping = stopping
        self._bell = bell
        self._refusals = Refusals(limit_s=abc.REQUEST_GRACE, random=random)
        self._postponed: dict[TopicPartition, int] = {}
        self.first_round = anyio.Event()

    async def run(self) -> None:
        """Resolve whatever has no position, until cancelled."""
        while True:
            unresolved = self._unresolved()
            if not unresolved:
                self.first_round.set()
                await self._bell.heard("resolving")
                continue
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._take_in, tasks, set(self._epochs()))
                refusal = await self._resolve_all(unresolved)
                self.first_round.set()
                if refusal is None:
                    self._refusals.reset()
                else:
                    self._desk.refused(refusal, self._refusals)
                    await anyio.sleep(self._refusals.pause())
                tasks.cancel_scope.cancel()

    async def _take_in(self, tasks: anyio.abc.TaskGroup, asked: set[int]) -> None:
        """What comes during a round is asked about once beside it, since something in the round may hang."""
        while True:
            come = {epoch: partition for epoch, partition in self._epochs().items() if epoch not in asked}
            if come:
                asked.update(come)
                tasks.start_soon(self._resolve_all, list(come.values()))
            await self._bell.heard("resolving")

    def forget(self, partition: TopicPartition) -> None:
        """The partition is not held any more."""
        self._postponed.pop(partition, None)

    def _unresolved(self) -> list[TopicPartition]:
        rests = self._stopping.machine.holds
        return [partition for partition in self._positions.unresolved() if not rests(partition)]

    def _epochs(self) -> dict[int, TopicPartition]:
        """What has no position; one that was lost and came back, or has another history, is not what it was before."""
        return {self._positions[partition].epoch: partition for partition in self._unresolved()}

    async def _resolve_all(self, unresolved: Sequence[TopicPartition]) -> TarryError | None:
        """One round, 16 at a time, for each leader until one is refused; why the first of those was.

        What is refused waits for the next round, at its end, and starves nobody; a leader that is away holds up those
        of no other. While the log refuses, a round begins with a single question to each, so that a log that is away is
        not asked for each partition.
        """
        failures: dict[TopicPartition, TarryError] = {}
        refusing: dict[str | None, None] = {}

        async def resolve(partition: TopicPartition) -> None:
            leader = self._routes.leader(partition)
            if leader in refusing:
                return
            refusal = await self._resolve(partition)
            if refusal is None:
                self._postponed.pop(partition, None)
            else:
                failures[partition] = refusal
                refusing.update({leader: None, self._routes.leader(partition): None})  # it may be known by now
                self._postponed[partition] = max(self._postponed.values(), default=0) + 1

        order = sorted(unresolved, key=lambda partition: self._postponed.get(partition, 0))
        firsts = {self._routes.leader(partition): partition for partition in reversed(order)}
        first = dict.fromkeys(reversed(firsts.values())) if self._refusals.count else {}
        rest = [partition for partition in order if partition not in first]
        for each in first, rest:
            await side_by_side(resolve, each, LOOKUPS_MAX)
        return next((failures[partition] for partition in order if partition in failures), None)

    async def _resolve(self, partition: TopicPartition) -> TarryError | None:
        """Ask where a partition starts, and what is stored for it; why it was refused, if that may pass."""
        place = self._positions.get(partition)
        if place is None or not place.is_unresolved:
            return None
        epoch = place.epoch  # it moves when the place is closed, and then the answer comes too late
        try:
            resolved = await self._standing.session.resolve(partition, self._start_of(partition))
            if self._find is not None and self._is_wanted(partition, epoch):
                await self._find(partition)  # last: of a topic that is made anew meanwhile a fetch tells, and both go
        except TarryError as error:
            if not is_lasting(error):
                return error
            if self._positions.get(partition) is place:
                self._desk.unknown(partition, error)
        else:
            self._begin(partition, epoch, resolved)
        return None

    def _is_wanted(self, partition: TopicPartition, epoch: int) -> bool:
        """It has no position yet; else what is stored is not what was stored before, and nobody may take it for that.

        One that came while a round was under way may be asked about by that round, and beside it (`_take_in`).
        """
        place = self._positions.get(partition)
        return place is not None and place.epoch == epoch and place.is_unresolved

    def _start_of(self, partition: TopicPartition) -> Start:
        """What came while this consumer or its group was there had been written for it (K56)."""
        return Start.next() if partition in self._standing.session.assignment.late else self._start

    def _begin(self, partition: TopicPartition, epoch: int, start: abc.Resolved) -> None:
        """The log has said where a partition starts: it is read from there, unless it was sought or lost meanwhile."""
        gap = gap_at(partition, start)
        goes_on = gap is None or self._start.on_gap == "resume"
        begin = max(start.position, start.log_start) if goes_on else start.position
        if self._positions.resolved(partition, epoch, begin, start.history):
            self._stopping.succeeded(partition)
            self._desk.begun(partition, start, gap)


def gap_at(partition: TopicPartition, start: abc.Resolved) -> Gap | None:
    """What retention removed behind the place of a start."""
    if start.position >= start.log_start:
        return None
    return Gap(partition, start.position, start.log_start, start.log_end)
