"""How a member of a group takes partitions over and gives them up (design 4.1; C18-C22, C29-C32, C36).

The loop follows the assignment of the session. A new partition is read once `on_assigned` has run. One that the log
wants back is handed over: nothing more of it is delivered, its committing fetch comes back, the message in hand is
waited for, `on_revoked` runs, the last finished offset is stored, then it is released. One that was lost without notice
(eviction, a new session) is dropped; what a committing fetch brought of it is delivered all the same. One whose message
is in hand for longer than `max_processing_time` is handed over unasked, without waiting for the hand (K12).

After a gap that the log may have ended the session for (a blocked loop, a stopped process) the log is asked; until it
has said nothing is delivered or stored (K18).

Hooks run one at a time, in a task of their own, and hold nothing that a reader may wait for (K55).

Not here: requests for messages (`worker`), what the application has in hand (`handing`), who gets what (the log).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from math import inf

import anyio
import anyio.abc

from tarry import abc
from tarry._core.autocommit import Commits
from tarry._core.backoff import Backoff, Refusals
from tarry._core.lease import Lease
from tarry._core.patience import InHand, Patience
from tarry._core.positions import Positions
from tarry._runtime.retry import insist, may_pass
from tarry._runtime.tasks import is_cancelled
from tarry.config import ConsumerOptions
from tarry.consumer.saying import Saying
from tarry.consumer.standing import Standing
from tarry.consumer.storing import STORE_S_MIN, LastWord, Storing
from tarry.consumer.worker import Worker
from tarry.errors import FencedError, NotAMember, RebalanceHookError, TarryError, TopicNotFound
from tarry.instruments import Instruments
from tarry.types import Offset, Origin, Ownership, TopicPartition

CALM_S = 30.0
"""A member that lasted so long joins again at once when it is evicted."""

_NOTHING = abc.Assignment(0, 0, {}, frozenset(), {})
"""What there is to own when none of the topics exists."""

Hook = Callable[[frozenset[TopicPartition]], object]
"""Called with the partitions that came or go; may be async."""

_HOOK: ContextVar[object] = ContextVar("tarry_hook", default=None)
"""The run of a hook to which a task belongs."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What an application wants to be told of rebalances."""

    on_assigned: Hook | None = None
    on_revoked: Hook | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """What membership needs of whoever reads.

    Args:
        cut: deliver nothing more of these partitions.
        holds: a message or batch of a partition is handed out and neither finished nor stored.
        settled: wait until that is over, the reader has ended, or the loop's time has come.
        interrupt: end a `poll` that waits.
        stop_short: the next read looks at everything again before it gives anything.
        wake: whoever waits looks again.
        look: what is in hand now.
    """

    cut: Callable[[Iterable[TopicPartition]], None]
    holds: Callable[[TopicPartition], bool]
    settled: Callable[[TopicPartition, float], Awaitable[None]]
    interrupt: Callable[[], None]
    stop_short: Callable[[], None]
    wake: Callable[[], None]
    look: Callable[[], InHand]


@dataclass(frozen=True, slots=True)
class Tenure:
    """What is given up: by which session it was held, and under which ownerships; a later one has none of it."""

    session: abc.Session
    owned: Mapping[TopicPartition, Ownership]


class Membership:
    """One member's standing in its group.

    Args:
        join: opens a session anew.
        noted: told of each assignment.
        keeps: what was fetched under a lost ownership is delivered all the same, since the log counts it as read (C36).
    """

    def __init__(
        self,
        standing: Standing,
        *,
        name: str,
        join: Callable[[], Awaitable[abc.Session]],
        noted: Callable[[abc.Assignment], None],
        hooks: Hooks,
        reader: Reader,
        keeps: bool,
        positions: Positions,
        commits: Commits,
        storing: Storing,
        options: ConsumerOptions,
        instruments: Instruments,
        random: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._name = name
        self._join = join
        self._noted = noted
        self._hooks = hooks
        self._reader = reader
        self._keeps = keeps
        self._positions = positions
        self._commits = commits
        self._storing = storing
        self._options = options
        self._instruments = instruments
        self._saying = Saying(instruments)
        self._random = random
        self._lease: Lease
        self._worker: Worker
        self._tasks: anyio.abc.TaskGroup
        self._hook_lane = anyio.Lock()
        self._hook: object = None
        self._told: dict[tuple[TopicPartition, Ownership], None] = {}  # what the application knows that it has
        self._patience = Patience(options.max_processing_time)
        self._store_s = max(options.drain_timeout, STORE_S_MIN)
        self._leaving: dict[TopicPartition, None] = {}
        self._rejoins = Backoff(random=random)
        self._joined_at = -inf

    @property
    def is_member(self) -> bool:
        """The log counts it in; False from an eviction until it has joined again."""
        return not self._standing.is_over

    def begin(self) -> None:
        """Hold what the session came with."""
        session = self._standing.session
        session.touch()
        self._lease = self._standing.lease = Lease(
            session.session_timeout, self._options.heartbeat_interval, anyio.current_time()
        )
        assignment = session.assignment
        self._noted(assignment)
        self._hold({at: own for at, own in assignment.owned.items() if at not in assignment.revoking})

    async def run(self, worker: Worker) -> None:
        """Follow the assignment until cancelled. Steps that are under way are abandoned then (K50)."""
        self._worker = worker
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._beat)
                self._welcome({partition: self._positions[partition].ownership for partition in self._positions})
                await self._follow()
        finally:
            self._standing.lease = None  # what is stored from now on is for the log to judge
            self._standing.settle()

    async def stay(self) -> None:
        """Say that this member lives while it shuts down: what is finished meanwhile has to be stored, too.

        An internal error ends this, and nothing else: there is enough that can be stored all the same.
        """
        try:
            while True:
                self._standing.touch()
                await anyio.sleep(self._options.heartbeat_interval)
        except Exception as error:  # noqa: BLE001
            self._instruments.warn("consumer", "heartbeat_failed", f"{self._name}: no sign of life goes out: {error!r}")

    async def farewell(self) -> None:
        """Tell the application that everything goes, at shutdown; an error is logged, there is no reader any more."""
        error = await self._call(self._hooks.on_revoked, list(dict.fromkeys(at for at, _ in self._told)))
        if error is not None:
            self._instruments.warn("consumer", "hook_failed", f"{self._name}: {error}")

    async def _beat(self) -> None:
        """Say that this member lives, whatever its application does; that one may take too long."""
        while True:
            now = anyio.current_time()
            self._standing.touch()
            if self._note_gap(now):
                self._tasks.start_soon(self._find_out)
            if not self._lease.is_over(now):
                self._give_up_overdue()
            await self._standing.doubted(self._options.heartbeat_interval)

    # ------------------------------------------------------------------------------------------- standing still

    def _note_gap(self, now: float) -> bool:
        """Nothing is delivered or stored after a gap that the log may have ended the session for (K18).

        True when it is one, and was not noted before.
        """
        gap, timeout_s = self._lease.beat(now), self._standing.session.session_timeout
        if gap is None or timeout_s is None:
            return False
        self._reader.stop_short()
        hint = (
            f"heartbeat_interval={self._options.heartbeat_interval:g} s has to lie well below that"
            if self._options.heartbeat_interval >= timeout_s
            else "the event loop was blocked, or the process stood still. Move blocking work to a thread "
            "(anyio.to_thread.run_sync), or raise session_timeout"
        )
        self._saying.warn(
            "clock_gap",
            f"{self._name}: no sign of life for {gap:.1f} s, longer than the log's session_timeout={timeout_s:g} s; "
            f"nothing is delivered or stored before the log has said whose the partitions are: {hint}",
            seconds=gap,
        )
        return True

    async def _find_out(self) -> None:
        """Ask the log whether the session stands, until it says; the reader is told when that takes long."""
        session, stands = self._standing.session, True
        refusals = Refusals(limit_s=abc.REQUEST_GRACE, random=self._random)
        while session is self._standing.session:
            try:
                await session.release(())
                break
            except FencedError:
                stands = False  # a member is told by `changed`, too: then everything is lost
                break
            except TarryError as error:
                await self._back_off(error, refusals)
        if session is self._standing.session and stands == self.is_member:
            self._settle()

    async def _back_off(self, error: TarryError, refusals: Refusals) -> None:
        """What may pass is asked again after a pause; the reader is told of what goes on for long."""
        if not may_pass(error):
            raise error
        if refusals.note(anyio.current_time()).is_overdue:
            self._worker.tell(error)
        await anyio.sleep(refusals.pause())

    def _settle(self) -> None:
        """It is known where the session stands: it does, or everything is lost and nobody may act on it."""
        self._lease.renew(anyio.current_time())
        self._standing.settle()
        self._reader.wake()

    # ------------------------------------------------------------------------------------------- following

    async def _follow(self) -> None:
        backoff = Backoff(random=self._random)
        while True:
            version = self._apply()
            try:
                await self._standing.session.changed(version)
            except NotAMember:
                await self._rejoin()
            except TarryError as error:
                if not may_pass(error):
                    raise
                await anyio.sleep(backoff.next())
            else:
                backoff.reset()

    def _apply(self) -> int:
        """Bring what is held to what the newest assignment says, as far as that needs no waiting; returns its version.

        What is being given up is left alone: giving up ends with another look at the assignment.
        """
        assignment = self._standing.session.assignment
        self._noted(assignment)
        mine = [partition for partition in self._positions if partition not in self._leaving]
        lost = [at for at in mine if assignment.owned.get(at) != self._positions[at].ownership]
        if lost:
            self._lose(lost)
        wanted = [at for at in assignment.owned if at in assignment.revoking and at not in self._leaving]
        if wanted:
            self._begin_giving_up(wanted, assignment.owned, wait_s=self._options.drain_timeout)
        new = {at: ownership for at, ownership in assignment.owned.items() if at not in self._positions}
        new = {at: ownership for at, ownership in new.items() if at not in self._leaving}
        if new:
            self._hold(new)
            self._welcome(new)
        return assignment.version

    async def _rejoin(self) -> None:
        """The log does not know this member any more: everything is lost; join again (C21, C30, K12)."""
        now = anyio.current_time()
        self._note_gap(now)
        self._saying.warn(
            "evicted",
            f"{self._name}: the group went on without this member (no sign of life within the log's session_timeout); "
            "its partitions may be somebody else's; joining again",
        )
        self._standing.is_over = True
        self._name_what_was_dropped()
        self._leaving.clear()
        self._lose(list(self._positions))
        self._settle()
        await self._calm_down(now)
        refusals = Refusals(limit_s=abc.REQUEST_GRACE, random=self._random)
        while True:
            try:
                self._standing.session = await self._join()
            except TopicNotFound:  # who had stayed a member would own nothing, until one is created again (K57)
                self._noted(_NOTHING)
                await anyio.sleep(refusals.pause())
            except TarryError as error:
                await self._back_off(error, refusals)
            else:
                self._standing.is_over = False
                self._standing.touch()
                self._joined_at = anyio.current_time()
                self._settle()
                return

    async def _calm_down(self, now: float) -> None:
        """Who is evicted again and again joins less and less often: each time moves the partitions of all members."""
        if now - self._joined_at >= CALM_S:
            self._rejoins.reset()
        else:
            await anyio.sleep(self._rejoins.next())

    # ------------------------------------------------------------------------------------------- taking over

    def _hold(self, new: Mapping[TopicPartition, Ownership]) -> None:
        """Nothing of new partitions is delivered before the hook has run."""
        held = {partition: self._positions[partition].ownership for partition in self._positions}
        self._positions.assign(held | dict(new))
        if self._hooks.on_assigned is None:
            self._note_told(new)
        else:
            for partition in new:
                self._positions.close(partition)

    def _welcome(self, new: Mapping[TopicPartition, Ownership]) -> None:
        if self._hooks.on_assigned is None:
            self._worker.kick()
        elif new:
            self._tasks.start_soon(self._tell_assigned, new)

    async def _tell_assigned(self, new: Mapping[TopicPartition, Ownership]) -> None:
        async with self._hook_lane:
            self._note_told(new)
            error = await self._call(self._hooks.on_assigned, list(new))
        for partition, ownership in new.items():
            if partition not in self._leaving:
                self._positions.reopen(partition, ownership)
        self._worker.kick()
        if error is not None:
            self._worker.tell(error)

    # ------------------------------------------------------------------------------------------- losing

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Without notice: nothing is stored for them any more (C35-C37, Q6)."""
        lost = {partition: self._positions[partition].ownership for partition in partitions}
        if not self._keeps:
            self._reader.cut(partitions)
        self._warn_dropped(self._worker.committing.unread(partitions))
        self._drop(partitions, lambda _: self._keeps)
        self._reader.interrupt()
        self._instruments.emit("partitions_lost", partitions=tuple(partitions))
        if self._hooks.on_revoked is not None:
            self._tasks.start_soon(self._tell_lost, lost)

    def _name_what_was_dropped(self) -> None:
        """What is being given up was cut, to be brought back by its last store, which nobody takes any more (Q6)."""
        unread = self._worker.committing.unread(self._leaving)  # `_lose` names these
        self._warn_dropped(at for at in self._leaving if self._keeps and at in self._positions and at not in unread)

    def _warn_dropped(self, dropped: Iterable[TopicPartition]) -> None:
        """Say what was committed of these, and neither finished nor kept."""
        for partition in dropped:
            span = self._commits.ahead(partition)
            if span is not None:
                warn_possibly_lost(self._instruments, partition, *span)

    async def _tell_lost(self, lost: Mapping[TopicPartition, Ownership]) -> None:
        error = await self._tell_revoked(lost)
        if error is not None:
            self._worker.tell(error)

    def _drop(self, partitions: Sequence[TopicPartition], kept: Callable[[Origin], bool]) -> None:
        for partition in partitions:
            self._positions.drop(partition)
            self._commits.forget(partition)
        self._worker.forget(partitions, kept)
        self._reader.wake()  # whoever waits for positions waits for fewer

    # ------------------------------------------------------------------------------------------- giving up

    def _give_up_overdue(self) -> None:
        """Work that takes too long costs its partition, not the membership; a late store is refused (K12)."""
        hand = self._reader.look()
        age = self._patience.look(hand, anyio.current_time())
        if age is None:
            return
        owned = self._standing.session.assignment.owned
        mine = [at for at in hand.firsts if at not in self._leaving and owned.get(at) == self._positions[at].ownership]
        for partition in mine:
            self._warn_overdue(partition, hand.firsts[partition], age)
        if mine:
            self._begin_giving_up(mine, owned, wait_s=0.0)

    def _warn_overdue(self, partition: TopicPartition, offset: Offset, age: float) -> None:
        self._instruments.warn(
            "consumer",
            "processing_too_slow",
            f"{self._name}: message {offset} of {partition} has been in hand for {age:.1f} s, longer than "
            f"max_processing_time={self._options.max_processing_time:g} s; the partition is given up, and the message "
            "comes again to whoever gets it. Raise max_processing_time, or take smaller batches",
            partition=partition,
            offset=offset,
            seconds=age,
        )

    def _begin_giving_up(
        self, partitions: Sequence[TopicPartition], owned: Mapping[TopicPartition, Ownership], *, wait_s: float
    ) -> None:
        """From now on nothing more of them is delivered. What is in nobody's hands goes at once (K32, K86, K87).

        What is in hand is waited for, so many seconds.
        """
        self._leaving.update(dict.fromkeys(partitions))
        held = {at: owned[at] for at in partitions if at in self._positions}
        tenure = Tenure(self._standing.session, held)
        for partition in held:
            self._positions.close(partition)
        self._reader.cut(held)
        self._drop_ahead(list(held), tenure)
        self._reader.interrupt()
        busy = [at for at in held if self._reader.holds(at) or self._worker.committing.is_out(at)]
        free = [at for at in partitions if at not in busy]
        if free:
            self._tasks.start_soon(self._give_up, free, tenure)
        for partition in busy:
            self._tasks.start_soon(self._drain, partition, tenure, anyio.current_time() + wait_s)

    async def _drain(self, partition: TopicPartition, tenure: Tenure, deadline: float) -> None:
        await self._worker.committing.recall(partition, anyio.current_time() + self._options.drain_timeout)
        self._drop_ahead(self._still([partition], tenure), tenure)  # if it was lost, what came back is delivered (C37)
        if self._keeps:  # what is in hand may outlast the log's patience; what was dropped must not be lost with it
            await self._store(self._still([partition], tenure))
        await self._reader.settled(partition, deadline)
        await self._give_up([partition], tenure)

    def _drop_ahead(self, partitions: Sequence[TopicPartition], tenure: Tenure) -> None:
        """What was fetched ahead of these goes; committed, it is brought back before anything else is committed (K01).

        Their last store does that too, but it waits for a hook.
        """
        self._worker.forget(partitions, self._older_than(tenure))
        for partition in partitions:
            self._worker.committing.leave_unread(partition)

    async def _give_up(self, partitions: Sequence[TopicPartition], tenure: Tenure) -> None:
        """Hook, last store, release. The stored offset covers finished messages only (K32)."""
        mine = self._still(partitions, tenure)
        error = await self._tell_revoked({partition: tenure.owned[partition] for partition in mine})
        mine = self._still(mine, tenure)
        last = await self._store(mine)
        mine = self._still(mine, tenure)
        self._warn_unstored([partition for partition in last.cut_off if partition in mine])
        for partition in mine:
            if partition in last.skipped:
                warn_possibly_lost(self._instruments, partition, *last.skipped[partition])
        self._drop(mine, self._older_than(tenure))
        if await self._release(partitions, tenure):
            for partition in partitions:
                self._leaving.pop(partition, None)
            self._apply()
        if error is not None:
            self._worker.tell(error)

    async def _release(self, partitions: Sequence[TopicPartition], tenure: Tenure) -> bool:
        """False when the session is over: what it knew of the assignment counts for nothing, joining is under way."""
        if self._is_over(tenure):
            return False
        try:
            await insist(partial(tenure.session.release, partitions), again=may_pass)
        except FencedError as error:
            self._instruments.emit("release_refused", partitions=tuple(partitions))
            return not (isinstance(error, NotAMember) or self._is_over(tenure))
        return not self._is_over(tenure)  # the log may have released them, and forgotten the member right after

    def _is_over(self, tenure: Tenure) -> bool:
        return tenure.session is not self._standing.session or not self.is_member

    async def _store(self, partitions: Sequence[TopicPartition]) -> LastWord:
        """The last stores, and what became of them."""
        return await self._storing.finish(partitions, self._store_s)

    def _warn_unstored(self, partitions: Sequence[TopicPartition]) -> None:
        """These are released though the log did not take their last store."""
        if not partitions:
            return
        self._instruments.warn(
            "consumer",
            "released_unstored",
            f"{self._name}: the last store of {', '.join(map(str, partitions))} did not come through within "
            f"{self._store_s:g} s; what was finished behind the stored offset comes again to whoever gets them",
            partitions=tuple(partitions),
        )

    def _older_than(self, tenure: Tenure) -> Callable[[Origin], bool]:
        """What was kept when an earlier ownership was lost is none of this one's: no store brings it back (C36)."""
        return lambda origin: self._keeps and origin.ownership != tenure.owned.get(origin.partition)

    def _still(self, partitions: Iterable[TopicPartition], tenure: Tenure) -> list[TopicPartition]:
        """Those that were not lost meanwhile."""
        places = ((partition, self._positions.get(partition)) for partition in partitions)
        return [at for at, place in places if place is not None and place.ownership == tenure.owned.get(at)]

    # ------------------------------------------------------------------------------------------- hooks

    @property
    def is_in_hook(self) -> bool:
        """Whoever asks is a hook that runs, or was started by it: it must not wait for what waits for its end."""
        return self._hook is not None and _HOOK.get() is self._hook

    @contextmanager
    def _hook_runs(self) -> Generator[None]:
        self._hook = object()
        token = _HOOK.set(self._hook)
        try:
            yield
        finally:
            _HOOK.reset(token)
            self._hook = None

    def _note_told(self, new: Mapping[TopicPartition, Ownership]) -> None:
        """The application is told of these now, and once more when they go."""
        if self._hooks.on_revoked is not None:
            self._told.update(dict.fromkeys(new.items()))

    async def _tell_revoked(self, gone: Mapping[TopicPartition, Ownership]) -> RebalanceHookError | None:
        """Once for each that the application was told of, in whatever way it goes; what went wrong.

        A hook that a shutdown cuts short has not told it: it runs again at the end.
        """
        if self._hooks.on_revoked is None:
            return None
        async with self._hook_lane:
            known = [held for held in gone.items() if held in self._told]
            error = await self._call(self._hooks.on_revoked, [partition for partition, _ in known])
            for held in known:
                del self._told[held]
        return error

    async def _call(self, hook: Hook | None, partitions: Sequence[TopicPartition]) -> RebalanceHookError | None:
        """Run a hook; one that takes too long is cut off with a warning, an error is returned (K55, K88).

        Hooks run one at a time: while this consumer runs, whoever calls one holds the lane.
        """
        if hook is None or not partitions:
            return None
        failure: BaseException | None = None
        with anyio.move_on_after(self._options.hook_timeout) as limit, self._hook_runs():
            self._reader.interrupt()  # whoever reads may hold what the hook waits for
            try:
                result = hook(frozenset(partitions))
                if isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001  # it becomes the reader's error
                failure = error
            except anyio.get_cancelled_exc_class() as error:
                if is_cancelled():
                    raise
                failure = error  # what it waited for was cancelled, and not the hook
        name = getattr(hook, "__name__", repr(hook))
        if limit.cancelled_caught:
            self._instruments.warn(
                "consumer",
                "hook_cut_off",
                f"{self._name}: hook {name} was cut off after hook_timeout={self._options.hook_timeout:g} s; "
                "the rebalance goes on",
                partitions=tuple(partitions),
            )
        if failure is None:
            return None
        told = RebalanceHookError(
            f"hook {name} raised {failure!r} for {', '.join(map(str, sorted(partitions)))}; the assignment is in its "
            "new state and reading may go on"
        )
        told.__cause__ = failure
        return told


def warn_possibly_lost(instruments: Instruments, partition: TopicPartition, first: Offset, last: Offset) -> None:
    """Committed for a consumer that has not finished them, nor can bring them back: nobody reads them (C36, Q6)."""
    instruments.warn(
        "consumer",
        "possibly_lost",
        f"{partition}: messages {first} to {last} were committed for this consumer, which has not finished them; the "
        "stored offset could not be brought back, so that nobody else may ever read them. Read them with seek(), or "
        "set the stored offset back",
        partition=partition,
        first=first,
        last=last,
    )
