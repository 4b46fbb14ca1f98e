"""The loops that bring messages into the read-ahead, and how they work together.

Fetching belongs to these loops and never to a read call, so that a cancelled or timed-out read restarts nothing (C24).
They run side by side, each wakes those that its news is for, and one that is held up holds up no other:

- `resolving` gives each partition its position, and `routing` finds out who leads it;
- *fetching* sends immediate polls for partitions that are ready, one at a time to each leader, so that a backlog on one
  partition does not hide new messages on another;
- `watching` keeps readiness waits over the idle ones (C72-C76), and says which are ready. With one partition alone,
  fetching sends the deferred poll itself and nobody watches (C84);
- `stopping` lets those rest that are lastingly refused, and says when they may be asked about again.

Under commit-on-poll another loop fetches: a fetch is immediate, of one partition, one at a time, goes to the leader of
that partition (C114), and goes out only while a reader waits (C59); `committing` guards it (C60), and brings back what
nobody will read.

What is fetched next is decided by `_core.fetches`, where by `_core.positions`, from whom by `_core.routes`; here
requests are sent and answers taken in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from tarry import abc
from tarry._core.autocommit import Commits
from tarry._core.backoff import Backoff, Refusals
from tarry._core.fetches import Demand, Fetches, Plan, pieces
from tarry._core.gaps import Gap, Gaps
from tarry._core.positions import Positions
from tarry._core.routes import Routes
from tarry._core.stopped import is_lasting
from tarry._wire.batch import DECODE_BYTES
from tarry.config import PollOptions
from tarry.consumer import committing, resolving, watching
from tarry.consumer.bell import Bell
from tarry.consumer.committing import Committing
from tarry.consumer.lanes import ProgressLanes
from tarry.consumer.resolving import Resolving
from tarry.consumer.routing import Routing
from tarry.consumer.standing import Standing
from tarry.consumer.stopping import Stopping
from tarry.consumer.watching import Watching, spacing
from tarry.errors import (
    ConsumerFailed,
    FencedError,
    NotAccepted,
    TarryError,
    TopicNotFound,
    UncertainError,
)
from tarry.instruments import Instruments
from tarry.types import HistoryId, Offset, Origin, Position, Segment, Start, TopicPartition, position_after

Loop = Callable[[], Coroutine[Any, Any, None]]

TOLD_MAX = 16
"""So many errors wait for a reader that does not come; the newest ones."""
DEAD_END_S = 0.02
"""So long a read takes at a dead end: who reads on after each error does not spin (K41), and is told in time (K52)."""
HEAD_START_S = 0.1
"""How long watching waits for the first round of starts: one wait over all partitions instead of one for each."""


@dataclass(frozen=True, slots=True)
class Order:
    """One poll: what was planned, and what its targets are at that moment, with their epochs."""

    plan: Plan
    targets: Sequence[abc.FetchTarget]
    epochs: Sequence[int]


@dataclass(slots=True)
class Lane:
    """How one leader has answered polls lately. `rests`: it is asked for nothing for a while."""

    refusals: Refusals
    pacing: Backoff = field(default_factory=Backoff)
    rests: bool = False


@dataclass(slots=True, eq=False)
class Direct:
    """The deferred poll of the only partition that is out (C84), and for whom."""

    partition: TopicPartition
    demand: Demand | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Worker:
    """The loops of one consumer.

    Args:
        commits, lanes, put_back: see `Committing`.
        find: see `Resolving`.
        began: called with the position that a partition was given by the start rule.
        beside: more loops that live and die with these.
        arrived: called whenever a reader should look again.
        renewed: called when a partition turns out to be another one of the same name, before it is resolved again.
        cool_down_s: seconds after which a stopped partition is tried again for the first time.
    """

    def __init__(
        self,
        standing: Standing,
        *,
        start: Start,
        poll: PollOptions,
        positions: Positions,
        fetches: Fetches,
        commits: Commits | None,
        find: Callable[[TopicPartition], Awaitable[None]] | None,
        put_back: Callable[[TopicPartition], Awaitable[None]],
        lanes: ProgressLanes,
        began: Callable[[TopicPartition, Position], None],
        beside: Sequence[Loop],
        arrived: Callable[[], None],
        renewed: Callable[[TopicPartition], None],
        instruments: Instruments,
        random: Callable[[], float],
        cool_down_s: float,
    ) -> None:
        self._standing = standing
        self._positions = positions
        self._fetches = fetches
        self._began = began
        self._beside = beside
        self._arrived = arrived
        self._renewed = renewed
        self._instruments = instruments
        self._random = random
        self._bell = Bell()
        self._routes = Routes(abc.TARGETS_MAX)
        self._stopping = Stopping(cool_down_s, instruments=instruments, random=random, probed=self._probe)
        self._stopped = self._stopping.machine
        self._routing = Routing(
            standing,
            self._routes,
            held=positions,
            rests=self._stopped.holds,
            bell=self._bell,
            changed=self.kick,
            refused=self._report_refusal,
            unknown=self._unknown,
            random=random,
        )
        self._resolving = Resolving(
            standing,
            self._routes,
            positions,
            resolving.Desk(self._begun, self._report_refusal, self._count_lasting),
            start=start,
            find=find,
            stopping=self._stopping,
            bell=self._bell,
            random=random,
        )
        self._watching = Watching(
            standing,
            self._routes,
            fetches,
            watching.Desk(
                self._is_active, self._alone, self._is_busy, self._target, self._route_refused, arrived, self._nudge
            ),
            poll=poll,
            bell=self._bell,
            random=random,
        )
        self.committing = Committing(
            positions,
            fetches,
            self._stopped,
            self._watching,
            committing.Desk(self._free_lane, self._report_refusal, self._again),
            commits=commits,
            lanes=lanes,
            put_back=put_back,
            random=random,
        )
        self._lanes: dict[str, Lane] = {}
        self._suspects: set[TopicPartition] = set()
        self._scope = anyio.CancelScope(shield=True)
        self._finished = anyio.Event()
        self._direct: Direct | None = None
        self._gaps = Gaps(start.on_gap)
        self._histories: dict[TopicPartition, HistoryId] = {}
        self._errors: dict[TopicPartition | None, TarryError] = {}
        self._told: deque[TarryError] = deque(maxlen=TOLD_MAX)
        self.failure: ConsumerFailed | None = None
        if self.committing.is_on:
            lanes.freed = self.taken

    @property
    def stopped(self) -> dict[TopicPartition, TarryError]:
        """The stopped partitions, each with its last error."""
        return self._stopped.errors

    # ------------------------------------------------------------------------------------------- control

    async def run(self) -> None:
        """Run until `stop`. An error that no rule covers becomes the reader's `ConsumerFailed`, never silence (K07)."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for loop in self._beside:
                        tasks.start_soon(loop)
                    tasks.start_soon(self._resolving.run)
                    tasks.start_soon(self._routing.run)
                    tasks.start_soon(self._stopping.run)
                    with anyio.move_on_after(HEAD_START_S):
                        await self._resolving.first_round.wait()
                        await self._routing.first_round.wait()
                    tasks.start_soon(self._fetching_to_commit if self.committing.is_on else self._fetching)
                    tasks.start_soon(self._watching.run)
        except Exception as error:  # noqa: BLE001  # it becomes the reader's error
            cause = _cause(error)
            self.failure = ConsumerFailed(f"an internal task of this consumer died: {cause!r}; open a new consumer")
            self.failure.__cause__ = cause
        finally:
            self._finished.set()
            self._arrived()

    async def stop(self, limit_s: float) -> None:
        """Begin nothing more and withdraw what is parked; when this returns nothing is out.

        A committing fetch has `limit_s` to come back; what it brings counts as not delivered (C63, C64).
        """
        self.committing.limit(limit_s)
        self._scope.cancel()
        await self._finished.wait()

    def kick(self) -> None:
        """Something changed: every loop looks again, at all partitions, and waits that no longer fit are replaced."""
        self._watching.touch()
        self._bell.ring()
        self._look()

    def _nudge(self) -> None:
        """Fetches went on, or a `poll` came or went, and nothing else changed: what is to be done now?"""
        self._bell.ring("fetching", "resting", "watching")
        self._look()

    def _look(self) -> None:
        self._watching.look()
        direct = self._direct
        if direct is not None and not (direct.demand is self._fetches.demand and self._alone()):
            direct.scope.cancel()  # a second partition must not wait for the end of the first one's poll

    def taken(self) -> None:
        """Something was taken out of the read-ahead: there may be room for the next fetch."""
        self._bell.ring("fetching")

    def demand(self, demand: Demand | None) -> None:
        """A `poll` waits (or does not any more)."""
        self._fetches.demand = demand
        self._nudge()

    def awaited(self) -> None:
        """A reader waits for a single message."""
        if self.committing.is_on and not self._fetches.is_awaited:
            self._fetches.is_awaited = True
            self.taken()

    def served(self) -> None:
        """It does not any more."""
        self._fetches.is_awaited = False

    def forget(self, partitions: Sequence[TopicPartition], kept: Callable[[Origin], bool]) -> None:
        """Partitions are not held any more; what was fetched of them and is `kept` is delivered all the same (C36)."""
        for partition in partitions:
            self._stopped.succeeded(partition)
            self._begin_anew(partition)
            self._resolving.forget(partition)
            self._fetches.bring_back(partition)
            self._fetches.void(partition, kept)
        self._withdraw(partitions)
        self.kick()

    def tell(self, error: TarryError) -> None:
        """The reader gets this error once."""
        self._told.append(error)
        self._arrived()

    def moved(self, partition: TopicPartition) -> None:
        """The position of a partition was set by hand: what is out for it is void (C33), and it is read again."""
        history = self._positions[partition].history
        if history is not None:
            self._note_history(partition, history)
        self._stopping.succeeded(partition)
        self._begin_anew(partition)
        self._void(partition)
        self.committing.leave_unread(partition)  # what is void now, and was committed

    def halt(self, partition: TopicPartition, error: TarryError) -> None:
        """Stop reading a partition until it is sought; the caller raises the error itself."""
        self._stopping.halt(partition, error)
        self.committing.leave_unread(partition)
        self._void(partition)

    def gone(self, partition: TopicPartition) -> None:
        """The topic of a partition was deleted: it stops until it is `back`; the reader is told, unless he knows."""
        what = f"topic {partition.topic!r} was deleted; {partition} is read again when it is created again"
        if not self._stopped.is_stopped(partition):
            self._errors[partition] = TopicNotFound(what)
        self._stopping.halt(partition, TopicNotFound(what))
        self._fetches.settled(partition)
        self._let_rest(partition)

    def is_held_back(self, partition: TopicPartition) -> bool:
        """It is not read now, since it was lastingly refused or lies in front of a gap."""
        return self._stopped.holds(partition) or partition in self._gaps

    def back(self, partition: TopicPartition) -> None:
        """The topic of a partition is there again: it is read again, from anew where it is another one (K57)."""
        self._stopping.succeeded(partition)
        self._begin_anew(partition)
        self._probe(partition)

    def _begin_anew(self, partition: TopicPartition) -> None:
        """No gap in front of it and nothing dropped behind it holds it back, and no error of it is to be told."""
        self._errors.pop(partition, None)
        self._gaps.forget(partition)
        self._suspects.discard(partition)
        self.committing.forget(partition)

    def raise_pending(self) -> None:
        """Raise what the reader has to know: each error once, the end of these loops every time."""
        if self._told:
            raise self._told.popleft()
        for gap in self._gaps.due(self._fetches.buffers):
            error = self._errors[gap.partition] = gap.error()
            self.halt(gap.partition, error)
        for key in list(self._errors):
            raise self._errors.pop(key).with_traceback(None)
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    @property
    def is_dead_end(self) -> bool:
        """Every partition is lastingly refused: nothing is expected to come."""
        return self._stopped.dead_end(self._positions) is not None

    async def left_dead_end(self) -> bool:
        """Where every partition is lastingly refused each read says so, instead of waiting (C91, K52).

        Returns:
            False when there is no dead end; True when there was one and the reader has to look again.
        """
        if not self.is_dead_end:
            return False
        self._fetches.is_tried = True
        self._bell.ring("fetching")
        await anyio.sleep(DEAD_END_S)
        error = self._stopped.dead_end(self._positions)
        if error is not None:
            raise error.with_traceback(None)
        return True

    def _void(self, partition: TopicPartition) -> None:
        self._fetches.void(partition)
        self._withdraw([partition])
        self.kick()

    def _withdraw(self, partitions: Sequence[TopicPartition]) -> None:
        """End the deferred requests that name any of these; the loops send new ones."""
        self._watching.withdraw(partitions)
        if self._direct is not None and self._direct.partition in partitions:
            self._direct.scope.cancel()

    # ------------------------------------------------------------------------------------------- fetching

    async def _fetching(self) -> None:
        """Polls for what is ready, side by side; for a partition that is alone, one that waits (C84)."""
        async with anyio.create_task_group() as tasks:
            while True:
                plan = self._fetches.plan(abc.TARGETS_MAX, self._free_lane, lanes=len(self._routes.groups))
                if plan is not None:
                    tasks.start_soon(self._serve, self._order(self._unsuspected(plan)), tasks)
                elif (partition := self._alone()) and not self._is_busy() and not self._lane(partition).rests:
                    await self._fetch_alone(partition, tasks)
                else:
                    await self._bell.heard("fetching")

    async def _fetching_to_commit(self) -> None:
        """Polls that commit, one after another, once nothing is left that has to be brought back."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self.committing.put_back_stranded()
                plan = self.committing.plan()
                if plan is not None:
                    await self._serve(self._order(plan), tasks)
                else:
                    await self._bell.heard("fetching")

    def _order(self, plan: Plan) -> Order:
        """A poll that goes out now."""
        self._fetches.started(plan)
        return Order(plan, [*map(self._target, plan.partitions)], [self._positions[at].epoch for at in plan.partitions])

    def _askable(self, partition: TopicPartition) -> str | None:
        """The leader that is asked about a partition; None: nobody is for now."""
        return None if self._stopped.holds(partition) else self._routes.leader(partition)

    def _free_lane(self, partition: TopicPartition) -> str | None:
        """The same, unless that leader rests."""
        leader = self._askable(partition)
        is_free = leader is not None and not (leader in self._lanes and self._lanes[leader].rests)
        return leader if is_free else None

    def _is_busy(self) -> bool:
        return self._fetches.busy(self._askable)

    def _lane(self, partition: TopicPartition) -> Lane:
        """How the leader of an active partition has answered."""
        leader = self._routes.leader(partition) or ""
        return self._lanes.setdefault(leader, Lane(Refusals(limit_s=abc.REQUEST_GRACE, random=self._random)))

    def _unsuspected(self, plan: Plan) -> Plan:
        """Of what is planned the first partition, and those that it may be asked for with."""
        first, *others = plan.partitions
        together = () if first in self._suspects else (at for at in others if at not in self._suspects)
        return replace(plan, partitions=(first, *together))

    async def _serve(self, order: Order, tasks: anyio.abc.TaskGroup) -> None:
        """One immediate poll. Who refused, or had nothing though it had said so, is left alone for a while."""
        lane = self._lane(order.plan.partitions[0])
        brought = await self._fetch(order, lane.refusals)
        if brought:
            lane.pacing.reset()
        else:
            lane.rests = True
            tasks.start_soon(self._rest, lane, lane.refusals.pause() if brought is None else lane.pacing.next())
        self.taken()

    async def _rest(self, lane: Lane, seconds: float) -> None:
        await self._watching.pause("resting", seconds)
        lane.rests = False
        self.taken()

    def _alone(self) -> TopicPartition | None:
        """The only partition, if it has a position and a leader, and fetches need no demand (C84)."""
        if self.committing.is_on:
            return None
        going = list(islice(filter(self._goes, self._positions), 2))
        return going[0] if len(going) == 1 and self._is_active(going[0]) else None

    def _goes(self, partition: TopicPartition) -> bool:
        """It is read, or soon will be: it neither rests nor is lastingly refused its place or its leader."""
        if self._stopped.holds(partition):
            return False
        return not self._stopped.is_refused(partition) or self._is_active(partition)

    async def _fetch_alone(self, partition: TopicPartition, tasks: anyio.abc.TaskGroup) -> None:
        """One deferred poll for the only partition, once drained; replaced when a demand changes what it waits for.

        The pause behind it is its leader's: if it is not alone any more by then, no other waits for it.
        """
        room, demand = self._fetches.room(), self._fetches.demand
        if room is None or (demand is not None and demand.asked):
            await self._bell.heard("fetching")
            return
        terms, lane, (count, max_bytes) = self._watching.terms(demand), self._lane(partition), room
        plan = Plan((partition,), count, min(max_bytes, terms.min_bytes or max_bytes), self._routes.leader(partition))
        direct = self._direct = Direct(partition, demand)
        brought, began = None, anyio.current_time()
        with direct.scope:
            brought = await self._fetch(
                self._order(plan), lane.refusals, min_count=min(terms.min_count, count), max_wait=terms.max_wait
            )
        self._direct = None
        if direct.scope.cancelled_caught:
            self._watching.settle()
            if not self._alone():
                self._nudge()  # from now on it has to be watched
            return
        self._watching.answered(demand, *self._routes.groups)
        is_refused = brought is None
        rest = (
            lane.refusals.pause() if is_refused else spacing(lane.pacing, began, terms.max_wait, brought=bool(brought))
        )
        if rest:
            lane.rests = True
            tasks.start_soon(self._rest, lane, rest)
        else:
            await anyio.lowlevel.checkpoint()  # whoever waits for what was just found out comes first

    async def _fetch(
        self, order: Order, refusals: Refusals, *, min_count: int = 1, max_wait: float = 0.0
    ) -> bool | None:
        """Send one poll and take in its reply.

        Returns:
            Whether there is no reason to wait before the next: it brought something, or what was refused rests. None
            when the leader refused.
        """
        plan, epochs = order.plan, order.epochs
        poll = partial(
            self._standing.session.poll,
            abc.Leader(str(plan.lane)),
            order.targets,
            count=plan.count,
            max_bytes=plan.max_bytes,
            min_count=min_count,
            max_wait=max_wait,
        )
        refusal: TarryError | None = None
        reply = abc.PollReply(())
        try:
            reply = await self.committing.fetch(plan, poll)
        except TarryError as error:
            refusal = error
        finally:
            self._fetches.landed(plan.partitions)
        if refusal is not None:
            return await self._fetch_refused(refusal, order, refusals, waited=max_wait > 0)
        refusals.reset()
        self._suspects.difference_update(plan.partitions)
        answers = list(zip(reply.targets, epochs, strict=True))
        for target, epoch in sorted(answers, key=lambda answer: bool(answer[0].runs)):  # who got nothing is next
            self._take(target, epoch)
        self._watching.settle()
        if not self._alone():
            self._nudge()  # idle partitions have to be watched
        self._arrived()
        return any(target.runs for target in reply.targets)

    def _take(self, reply: abc.TargetReply, epoch: int) -> None:
        """Buffer what one target brought, unless it is void (C35, C38, Q10)."""
        partition = reply.partition
        place = self._positions.get(partition)
        if place is None or place.ownership != reply.ownership:
            if self.committing.is_on:  # lost while it was out: what was committed is delivered all the same (C37)
                self._buffer(reply, reply.position)
            return
        if place.epoch != epoch:
            return
        if self._stopped.holds(partition):  # it may lie behind what does not decode, and must not pass that
            self._leave_unread(reply)
            return
        self._stopping.succeeded(partition)
        if place.history is not None and reply.history != place.history:
            self.renew(partition)
            return
        if reply.asked < reply.position and not self._meet(_gap_in(reply)):
            self._leave_unread(reply)
            return
        new_from = self._positions.fetched(partition, epoch, reply.next)
        if new_from is None:
            return
        self._buffer(reply, new_from)
        self._fetches.touch(partition)
        if reply.next <= _head(reply):
            self._fetches.ready(partition)

    def _leave_unread(self, reply: abc.TargetReply) -> None:
        """What it brought is dropped."""
        if reply.runs:
            self.committing.leave_unread(reply.partition)

    def _buffer(self, reply: abc.TargetReply, new_from: Position) -> None:
        """Keep what it brought from a position on (C38)."""
        if not reply.runs:
            return
        origin = Origin(reply.partition, _head(reply), reply.ownership, reply.history)
        fresh = Segment(origin, reply.runs).after(new_from)
        for piece in pieces(fresh, DECODE_BYTES) if fresh is not None else ():
            self._fetches.put(piece)

    def _begun(self, partition: TopicPartition, start: abc.Resolved, gap: Gap | None) -> None:
        """The start rule has given a partition its position."""
        self._note_history(partition, start.history)
        self._began(partition, start.position)
        if gap is not None:
            self._meet(gap)
        self.kick()
        self._arrived()

    def _again(self, partition: TopicPartition) -> None:
        """A partition is read again from further back; a gap is met again, from there on."""
        self._gaps.forget(partition)
        self.kick()

    def _note_history(self, partition: TopicPartition, history: HistoryId) -> None:
        """A partition has a position; in a group it may have been lost, and its topic created again, meanwhile."""
        if self._histories.get(partition, history) != history:
            self._warn_recreated(partition)
        self._histories[partition] = history

    def _warn_recreated(self, partition: TopicPartition) -> None:
        self._instruments.warn(
            "consumer",
            "topic_recreated",
            f"{partition} was deleted and created again; its position is dropped and the start rule decides again",
            partition=partition,
            old_history=self._histories.pop(partition, None),
        )

    def renew(self, partition: TopicPartition) -> None:
        """The topic of a partition was created again: nothing that is known of it counts."""
        self._warn_recreated(partition)
        self._gaps.forget(partition)
        self._fetches.void(partition)
        self._renewed(partition)
        self._positions.reset(partition)
        self.kick()

    def _meet(self, gap: Gap) -> bool:
        """Retention removed what was to be read next: say so once; whether reading goes on behind it (Q9, K09)."""
        if gap.partition in self._gaps or self._stopped.is_stopped(gap.partition):
            return False
        goes_on = self._gaps.met(gap)
        self._instruments.warn(
            "consumer",
            "gap",
            f"{gap}; " + (f"going on at {gap.log_start}" if goes_on else "it is read no further until it is sought"),
            partition=gap.partition,
            first=gap.begin,
            last=gap.log_start - 1,
        )
        if not goes_on:
            self._fetches.drained(gap.partition)
            self._withdraw([gap.partition])
            self.kick()
        return goes_on

    # ------------------------------------------------------------------------------------------- targets

    def _is_active(self, partition: TopicPartition) -> bool:
        """It may be read, has a position and a leader, is not paused, and does not rest after a lasting refusal."""
        is_readable = self._is_readable(partition) and not self.is_held_back(partition)
        return is_readable and self._routes.leader(partition) is not None

    def _is_readable(self, partition: TopicPartition) -> bool:
        """It has a position, and is neither paused nor about to be handed over."""
        place = self._positions.get(partition)
        return place is not None and place.is_open and place.fetch_at is not None and place.paused is None

    def _target(self, partition: TopicPartition) -> abc.FetchTarget:
        """Always the explicit position (C28)."""
        place = self._positions[partition]
        return abc.FetchTarget(partition, place.fetch_at or Position(0), place.ownership, place.history)

    # ------------------------------------------------------------------------------------------- refusals

    async def _fetch_refused(self, error: TarryError, order: Order, refusals: Refusals, *, waited: bool) -> bool | None:
        """Let rest what cannot work, tell the reader, or leave it to the next try (C23, C91); returns as `_fetch`."""
        partitions = order.plan.partitions
        if not is_lasting(error):
            for partition in partitions:
                self._fetches.drained(partition)
            self._watching.end_asked()
            if isinstance(error, NotAccepted) and refusals.count and len(partitions) > 1:
                self._suspects.update(partitions)  # each is asked for alone until that works
            self._route_refused(str(order.plan.lane), partitions, error, refusals)
            for partition in partitions:
                if self._stopped.is_refused(partition) and not self.is_held_back(partition):
                    self._probe(partition)  # it is made until it is answered
            return None
        if waited or len(partitions) > 1:
            return await self._fetch_singly(order.plan, refusals)
        if self._is_same(order.targets[0].partition, order.epochs[0]):
            self._count_lasting(order.targets[0].partition, error)
        else:
            self._nudge()  # it is idle where it stands now
        return True

    def _route_refused(
        self, leader: str, partitions: Iterable[TopicPartition], error: TarryError, refusals: Refusals
    ) -> None:
        """A leader refused a request; if it does not lead (any more), who does is looked up again (C83, C85)."""
        for partition in self._routes.refused(leader, partitions, error):
            self._fetches.drained(partition)
        self._report_refusal(error, refusals)
        self.kick()

    def _unknown(self, partition: TopicPartition, error: TarryError) -> None:
        """Asking again is not expected to tell who leads it."""
        if partition in self._positions:
            self._count_lasting(partition, error)

    def _is_same(self, partition: TopicPartition, epoch: int) -> bool:
        place = self._positions.get(partition)
        return place is not None and place.epoch == epoch

    async def _fetch_singly(self, refused: Plan, refusals: Refusals) -> bool | None:
        """A poll was refused for the sake of one of its partitions: ask for each alone, so that the right one rests.

        A parked one ends when its topic is deleted; by now there may be a new topic of that name.
        """
        partitions = [at for at in refused.partitions if self._is_readable(at) and not self.is_held_back(at)]
        for partition in partitions:
            self._fetches.ready(partition)
        answers: list[bool | None] = []
        for partition in partitions:
            plan = self._fetches.plan(1, partial(_only, partition, refused.lane))
            if plan is not None and self._is_active(partition):
                answers.append(await self._fetch(self._order(plan), refusals))
        return None if None in answers else any(answers)

    def _report_refusal(self, error: TarryError, refusals: Refusals) -> None:
        """Tell the reader what a retry is not expected to cure, and what several did not; the first one is counted.

        A read is simply made again, at the same explicit position: a plain one has changed nothing (C94), and what a
        committing one may have stored is brought back at the end (C28, C93). A fence is part of every hand-over and the
        membership's to deal with: the new assignment is on its way (C22). Those of two hand-overs are no series.
        """
        about = self._standing.session.assignment if isinstance(error, FencedError) else None
        line, is_overdue = refusals.note(anyio.current_time(), about)
        may_pass = error.retry == "back off" or isinstance(error, (UncertainError, FencedError))
        if line is not None and (is_overdue or not isinstance(error, FencedError)):
            self._log_refusal(error, line)
        if is_overdue or not may_pass:
            self._errors[None] = error
        self._watching.settle()
        self._arrived()

    def _log_refusal(self, error: TarryError, count: int) -> None:
        what = "a request was refused" if count == 1 else f"{count} requests were refused, the last one"
        self._instruments.warn("consumer", "refused", f"{what}: {error}; asking again", error=str(error), count=count)

    def _count_lasting(self, partition: TopicPartition, error: TarryError) -> None:
        """A refusal that asking again is not expected to cure: the reader hears of the first one in a row, at once."""
        counted = self._stopping.refused(partition, error)
        if counted.is_first:
            self._errors[partition] = error
        if counted.is_first and not counted.stops:
            self._log_refusal(error, 1)
        if counted.stops:
            self._fetches.settled(partition)  # no other waits any longer for what is in doubt of it
        self._let_rest(partition)

    def _let_rest(self, partition: TopicPartition) -> None:
        """Nothing is asked about it for now."""
        self._fetches.drained(partition)
        self._withdraw([partition])
        self._watching.settle()
        self.kick()
        self._arrived()

    def _probe(self, partition: TopicPartition) -> None:
        """A partition has rested: a request goes out for it, unless something else stands against reading it."""
        if self._is_readable(partition):
            self._fetches.ready(partition)
        self.kick()


def _gap_in(reply: abc.TargetReply) -> Gap:
    return Gap(reply.partition, reply.asked, reply.position, position_after(_head(reply)))


def _head(reply: abc.TargetReply) -> Offset:
    """The last offset that there is; -1: none."""
    return Offset(-1) if reply.head is None else reply.head


def _only(wanted: TopicPartition, lane: Hashable, partition: TopicPartition) -> Hashable | None:
    return lane if partition == wanted else None


def _cause(error: BaseException) -> BaseException:
    """The first real error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error  # pyright: ignore[reportUnknownVariableType]
