"""The loops that bring messages into the read-ahead: they resolve starts, watch idle partitions, fetch ready ones.

Fetching belongs to these loops and never to a read call, so that a cancelled or timed-out read restarts nothing (C24). What
is fetched next is decided by `_core.fetches`, where by `_core.positions`; here requests are sent and answers handed in.

Two loops run side by side, so that a backlog on one partition does not hide new messages on another: *fetching* sends one
immediate poll at a time for partitions that are ready, *watching* keeps one readiness wait over all idle ones (C72-C75).
With one partition alone, fetching sends the deferred poll itself and nobody watches (C84).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.abc

from tarry import abc
from tarry._core.backoff import Backoff
from tarry._core.fetches import Demand, Fetches, from_position, pieces
from tarry._core.positions import Positions
from tarry._wire.batch import DECODE_BYTES
from tarry.config import PollOptions
from tarry.errors import ConsumerFailed, DataError, TarryError, TopicNotFound
from tarry.instruments import Instruments
from tarry.types import HistoryId, Offset, Origin, Position, Segment, Start, TopicPartition

LOG_WAIT_MAX = 30.0
"""Longest wait of one request at the log; longer ones are asked again with what is left (C5, C8)."""
EARLY = 0.9
"""An empty answer before this share of its wait is followed by a pause, so that nobody spins (K41)."""


@dataclass(slots=True, eq=False)
class Wait:
    """The deferred request that is out: what it names, for whom, and how to end it. A replaced one is told by identity (C78)."""

    partitions: frozenset[TopicPartition]
    demand: Demand | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Worker:
    """The loops of one consumer. `arrived` is called whenever a reader should look again."""

    def __init__(
        self,
        session: abc.Session,
        *,
        start: Start,
        poll: PollOptions,
        positions: Positions,
        fetches: Fetches,
        found: Callable[[TopicPartition, Offset | None], None],
        named: bool,
        arrived: Callable[[], None],
        instruments: Instruments,
        random: Callable[[], float],
    ) -> None:
        self._session = session
        self._start = start
        self._poll = poll
        self._positions = positions
        self._fetches = fetches
        self._found = found
        self._named = named
        self._arrived = arrived
        self._instruments = instruments
        self._random = random
        self._kicks: dict[str, anyio.Event] = {}
        self._scope = anyio.CancelScope(shield=True)
        self._finished = anyio.Event()
        self._wait: Wait | None = None
        self._direct: Wait | None = None
        self._gaps: dict[TopicPartition, Position] = {}
        self.errors: deque[TarryError] = deque()
        self.stopped: dict[TopicPartition, TarryError] = {}
        self.failure: ConsumerFailed | None = None

    # ------------------------------------------------------------------------------------------- control

    async def run(self) -> None:
        """Run until `stop`. An error that no rule covers ends the reader with `ConsumerFailed`, never in silence (K07)."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._resolving)
                    tasks.start_soon(self._fetching)
                    tasks.start_soon(self._watching)
        except Exception as error:  # noqa: BLE001  # it becomes the reader's error
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            self.failure = ConsumerFailed(f"an internal task of this consumer died: {cause!r}; open a new consumer")
            self.failure.__cause__ = cause
        finally:
            self._finished.set()
            self._arrived()

    async def stop(self) -> None:
        """Begin nothing more and withdraw what is parked; when this returns nothing is out. Shielded from cancellation."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._finished.wait()

    def kick(self) -> None:
        """Something changed: every loop looks again, and waits that no longer fit are replaced."""
        for event in self._kicks.values():
            event.set()
        if self._wait is not None and not self._fits(self._wait):
            self._wait.scope.cancel()
        if self._direct is not None and self._direct.demand is not self._fetches.demand:
            self._direct.scope.cancel()

    def demand(self, demand: Demand | None) -> None:
        """A `poll` waits (or does not any more)."""
        self._fetches.demand = demand
        self.kick()

    def moved(self, partition: TopicPartition) -> None:
        """The position of a partition was set by hand: what is out for it is void (C33), and it is read again."""
        self.stopped.pop(partition, None)
        self._gaps.pop(partition, None)
        self._void(partition)

    def halt(self, partition: TopicPartition, error: TarryError) -> None:
        """Stop reading a partition until it is sought; the caller raises the error itself."""
        self.stopped[partition] = error
        self._void(partition)

    def _void(self, partition: TopicPartition) -> None:
        self._fetches.void(partition)
        self._withdraw()
        self.kick()

    def _withdraw(self) -> None:
        """End the deferred requests that are out; the loops send new ones."""
        for wait in (self._wait, self._direct):
            if wait is not None:
                wait.scope.cancel()

    async def _kicked(self, who: str) -> None:
        """Wait for the next `kick`."""
        event = self._kicks[who] = anyio.Event()
        await event.wait()

    # ------------------------------------------------------------------------------------------- resolving

    async def _resolving(self) -> None:
        backoff = Backoff(random=self._random)
        while True:
            todo = [partition for partition in self._positions.unresolved() if partition not in self.stopped]
            if not todo:
                await self._kicked("resolving")
                continue
            try:
                for partition in todo:
                    await self._resolve(partition)
            except TarryError as error:
                await self._refused(error, todo[:1], backoff)
            else:
                backoff.reset()

    async def _resolve(self, partition: TopicPartition) -> None:
        """Ask once where a partition starts, and what is stored for it (C26, C27, Q4)."""
        place = self._positions[partition]
        try:
            if self._named:
                stored = await self._session.stored_offset(partition)
                if place.next is None:
                    self._found(partition, stored)
            resolved = await self._session.resolve(partition, self._start)
        except (TopicNotFound, DataError) as error:
            self._stop_partition(partition, error)
            return
        if self._positions.resolved(partition, place.epoch, resolved.position, resolved.history):
            self.kick()
            self._arrived()

    # ------------------------------------------------------------------------------------------- fetching

    async def _fetching(self) -> None:
        backoff = Backoff(random=self._random)
        pacing = Backoff()
        while True:
            if self._alone():
                await self._fetch_alone(backoff, pacing)
                continue
            plan = self._fetches.plan()
            if plan is None:
                await self._kicked("fetching")
                continue
            targets = self._targets(plan.partitions)
            await self._fetch(targets, backoff, count=plan.count, max_bytes=plan.max_bytes)

    def _alone(self) -> bool:
        """There is just one partition, and it has a position (C84)."""
        return len(self._active()) == 1 == sum(partition not in self.stopped for partition in self._positions)

    async def _fetch_alone(self, backoff: Backoff, pacing: Backoff) -> None:
        """One deferred poll for the only partition; replaced when a demand changes what it should wait for."""
        room = self._fetches.room()
        demand = self._fetches.demand
        if room is None or (demand is not None and demand.asked):
            await self._kicked("fetching")
            return
        count, max_bytes = room
        max_wait, min_count, last = self._terms(demand)
        if demand is not None:
            max_bytes = min(self._fetches.missing(demand)[1], max_bytes)
        targets = self._targets(self._active())
        began = anyio.current_time()
        direct = self._direct = Wait(frozenset(target.partition for target in targets), demand)
        brought: bool | None = None
        with direct.scope:
            brought = await self._fetch(
                targets, backoff, count=count, max_bytes=max_bytes, min_count=min(min_count, count), max_wait=max_wait
            )
        self._direct = None
        if direct.scope.cancelled_caught:
            self._fetches.landed([target.partition for target in targets])
            return
        self._answered(demand, last)
        await self._pace(pacing, demand, early=brought is False and anyio.current_time() < began + max_wait * EARLY)

    async def _pace(self, pacing: Backoff, demand: Demand | None, *, early: bool) -> None:
        """A log that answers empty ahead of time is not asked again at once (K41)."""
        if not early:
            pacing.reset()
            return
        delay = pacing.next()
        if demand is not None:
            delay = min(delay, max(demand.deadline - anyio.current_time(), 0.0))
        await anyio.sleep(delay)

    async def _fetch(
        self,
        targets: Sequence[abc.FetchTarget],
        backoff: Backoff,
        *,
        count: int,
        max_bytes: int,
        min_count: int = 1,
        max_wait: float = 0.0,
    ) -> bool | None:
        """Send one poll and take in its reply; whether it brought anything, None when it was refused."""
        partitions = [target.partition for target in targets]
        epochs = [self._positions[partition].epoch for partition in partitions]
        self._fetches.started(partitions)
        try:
            leader = await self._session.route(partitions[0])
            reply = await self._session.poll(
                leader, targets, count=count, max_bytes=max_bytes, min_count=min_count, max_wait=max_wait
            )
        except TarryError as error:
            self._fetches.landed(partitions)
            await self._refused(error, partitions, backoff)
            return None
        backoff.reset()
        self._fetches.landed(partitions)
        answers = list(zip(reply.targets, epochs, strict=True))
        for target, epoch in sorted(answers, key=lambda answer: bool(answer[0].runs)):  # who got nothing is next
            self._take(target, epoch)
        brought = any(target.runs for target in reply.targets)
        self._settle()
        self.kick()
        self._arrived()
        return brought

    def _take(self, reply: abc.TargetReply, epoch: int) -> None:
        """Buffer what one target brought, unless it is void (C35, C38, Q10)."""
        partition = reply.partition
        place = self._positions.get(partition)
        if place is None or place.epoch != epoch:
            return
        if place.history is not None and reply.history != place.history:
            self._new_history(partition, place.history)
            return
        if reply.asked < reply.position:
            self._report_gap(reply)
        if not self._positions.fetched(partition, epoch, reply.next):
            return
        head = Offset(-1) if reply.head is None else reply.head
        if reply.runs:
            self._buffer(Segment(Origin(partition, head, place.ownership, reply.history), reply.runs), epoch)
        if reply.next <= head:
            self._fetches.ready(partition)

    def _buffer(self, segment: Segment, epoch: int) -> None:
        fresh = from_position(segment, self._positions.skip_to(segment.origin.partition, epoch))
        for piece in pieces(fresh, DECODE_BYTES) if fresh is not None else ():
            self._fetches.put(piece)

    def _new_history(self, partition: TopicPartition, old: HistoryId) -> None:
        self._instruments.warn(
            "consumer",
            "topic_recreated",
            f"{partition} was deleted and created again; its position is dropped and the start rule decides again",
            partition=partition,
            old_history=old,
        )
        self._fetches.void(partition)
        self._positions.reset(partition)

    def _report_gap(self, reply: abc.TargetReply) -> None:
        """Retention removed what was to be read next: say so once, with the exact bounds (Q9, K09)."""
        if self._gaps.get(reply.partition) == reply.position:
            return
        self._gaps[reply.partition] = reply.position
        self._instruments.warn(
            "consumer",
            "gap",
            f"{reply.partition}: messages {reply.asked} to {reply.position - 1} were removed by retention before they "
            f"were read; going on at {reply.position}",
            partition=reply.partition,
            first=reply.asked,
            last=reply.position - 1,
        )

    # ------------------------------------------------------------------------------------------- watching

    async def _watching(self) -> None:
        backoff = Backoff(random=self._random)
        pacing = Backoff()
        while True:
            idle = self._idle()
            demand = self._fetches.demand
            if not self._active() and demand is not None:
                await self._sit_out(demand)
            elif not idle or self._alone() or (demand is not None and demand.asked):
                await self._kicked("watching")
            else:
                await self._watch(idle[: abc.TARGETS_MAX], demand, backoff, pacing)

    async def _sit_out(self, demand: Demand) -> None:
        """Nothing can be asked for (no partition has a position): a poll still ends when its wait does."""
        with anyio.CancelScope(deadline=demand.deadline):
            await self._kicked("watching")
        if anyio.current_time() >= demand.deadline and not self._active():
            demand.asked = True
            self._settle()
            await self._kicked("watching")

    async def _watch(
        self, idle: Sequence[TopicPartition], demand: Demand | None, backoff: Backoff, pacing: Backoff
    ) -> None:
        """One readiness wait over all idle partitions; a cancel goes out before its replacement (C79)."""
        max_wait, min_count, last = self._terms(demand)
        min_bytes = None if demand is None else self._fetches.missing(demand)[1]
        wait = self._wait = Wait(frozenset(idle), demand)
        began = anyio.current_time()
        ready: Sequence[abc.Ready] | None = None
        error: TarryError | None = None
        with wait.scope:
            try:
                leader = await self._session.route(idle[0])
                ready = await self._session.wait_ready(
                    leader, self._targets(idle), min_count=min_count, min_bytes=min_bytes, max_wait=max_wait
                )
            except TarryError as refusal:
                error = refusal
        self._wait = None
        if error is not None:
            await self._refused(error, idle, backoff)
        if ready is None:
            return  # replaced: whatever it might have said does not count (C78)
        backoff.reset()
        for item in ready:
            if item.partition in self._positions:
                self._fetches.ready(item.partition)
        self._answered(demand, last)
        self.kick()
        await self._pace(pacing, demand, early=not ready and anyio.current_time() < began + max_wait * EARLY)

    def _fits(self, wait: Wait) -> bool:
        """Whether a running wait still watches everybody it should, for the demand there is (C73)."""
        return wait.demand is self._fetches.demand and wait.partitions.issuperset(self._idle())

    def _idle(self) -> list[TopicPartition]:
        return self._fetches.idle(self._active())

    def _active(self) -> list[TopicPartition]:
        """Partitions that have a position and are not stopped."""
        return [
            partition
            for partition in self._positions
            if self._positions[partition].fetch_at is not None and partition not in self.stopped
        ]

    def _targets(self, partitions: Sequence[TopicPartition]) -> list[abc.FetchTarget]:
        """Always the explicit position (C28)."""
        places = [(partition, self._positions[partition]) for partition in partitions]
        return [
            abc.FetchTarget(partition, place.fetch_at or Position(0), place.ownership, place.history)
            for partition, place in places
        ]

    # ------------------------------------------------------------------------------------------- demand

    def _terms(self, demand: Demand | None) -> tuple[float, int, bool]:
        """Wait and message count to ask the log for, and whether that wait reaches to the end of the demand (C8)."""
        if demand is None:
            return min(self._poll.max_wait or LOG_WAIT_MAX, LOG_WAIT_MAX), self._poll.min_count, False
        left = max(demand.deadline - anyio.current_time(), 0.0)
        return min(left, LOG_WAIT_MAX), self._fetches.missing(demand)[0], left <= LOG_WAIT_MAX

    def _answered(self, demand: Demand | None, last: bool) -> None:
        """The log has answered a request made for `demand`; after the end of its wait nothing more will come."""
        if demand is not None and last and anyio.current_time() >= demand.deadline:
            demand.asked = True
        self._settle()

    def _settle(self) -> None:
        """The wait of a poll is over once the log was asked up to its end and everything known was fetched."""
        demand = self._fetches.demand
        if demand is not None and demand.asked and not demand.over and not self._fetches.busy:
            demand.over = True
            self._arrived()

    # ------------------------------------------------------------------------------------------- refusals

    async def _refused(self, error: TarryError, partitions: Sequence[TopicPartition], backoff: Backoff) -> None:
        """Stop what cannot work, back off from what may; the application sees both (C23, C91)."""
        if isinstance(error, (TopicNotFound, DataError)):
            await self._find_culprit(error, partitions)
            return
        if backoff.attempts == 0:
            self._instruments.emit("refused", error=str(error))
        if error.retry != "back off" or backoff.attempts >= 6:  # noqa: PLR2004  # about the request timeout (C91)
            self.errors.append(error)
            self._arrived()
        for partition in partitions:
            self._fetches.drained(partition)
        await anyio.sleep(backoff.next())
        self.kick()

    async def _find_culprit(self, error: TarryError, partitions: Sequence[TopicPartition]) -> None:
        """A request over several partitions was refused for one of them: ask for each alone, stop the one that is wrong."""
        if len(partitions) == 1:
            self._stop_partition(partitions[0], error)
            return
        for partition in partitions:
            place = self._positions.get(partition)
            if place is None or place.fetch_at is None:
                continue
            try:
                target = self._targets([partition])
                leader = await self._session.route(partition)
                await self._session.poll(leader, target, count=1, max_bytes=1)
            except (TopicNotFound, DataError) as refusal:
                self._stop_partition(partition, refusal)

    def _stop_partition(self, partition: TopicPartition, error: TarryError) -> None:
        self.stopped[partition] = error
        self._fetches.drained(partition)
        self._withdraw()
        self.errors.append(error)
        self._instruments.emit("partition_stopped", partition=partition, error=str(error))
        self.kick()
        self._arrived()
