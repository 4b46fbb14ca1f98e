"""How a member of a group takes partitions over and gives them up (design 4.1; C18-C22, C29-C32, C36).

The loop follows the assignment of the session. A new partition is read once `on_assigned` has run. One that the log
wants back is handed over: nothing more of it is delivered, its committing fetch comes back, the message in hand is
waited for, `on_revoked` runs, the last finished offset is stored, then it is released. One that was lost without notice
(eviction, a new session) is dropped; what a committing fetch brought of it is delivered all the same. One whose message
is in hand for longer than `max_processing_time` is handed over unasked, without waiting for the hand (K12).

Hooks run one at a time, in a task of their own, and hold nothing that a reader may wait for (K55).

Not here: requests for messages (`worker`), what the application has in hand (`consumer`), who gets what (the log).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable

import anyio
import anyio.abc

from tarry import abc
from tarry._core.autocommit import Commits
from tarry._core.backoff import Backoff, Refusals
from tarry._core.patience import InHand, Patience
from tarry._core.positions import Positions
from tarry._runtime.retry import insist, may_pass
from tarry.config import ConsumerOptions
from tarry.consumer.standing import Standing
from tarry.consumer.storing import STORE_S_MIN, Storing
from tarry.consumer.worker import Worker
from tarry.errors import FencedError, NotAMember, RebalanceHookError, TarryError
from tarry.instruments import Instruments
from tarry.types import Offset, Origin, Ownership, TopicPartition

Hook = Callable[[frozenset[TopicPartition]], object]
"""Called with the partitions that came or go; may be async."""


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
        look: what is in hand now.
    """

    cut: Callable[[Iterable[TopicPartition]], None]
    holds: Callable[[TopicPartition], bool]
    settled: Callable[[TopicPartition, float], Awaitable[None]]
    interrupt: Callable[[], None]
    look: Callable[[], InHand]


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
        self._random = random
        self._worker: Worker
        self._tasks: anyio.abc.TaskGroup
        self._hook_lane = anyio.Lock()
        self._patience = Patience(options.max_processing_time)
        self._leaving: dict[TopicPartition, None] = {}
        self.is_member = True

    def begin(self) -> None:
        """Hold what the session came with."""
        assignment = self._standing.session.assignment
        self._noted(assignment)
        self._hold({at: own for at, own in assignment.owned.items() if at not in assignment.revoking})

    async def run(self, worker: Worker) -> None:
        """Follow the assignment until cancelled. Steps that are under way are abandoned then (K50)."""
        self._worker = worker
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._beat)
            self._welcome({partition: self._positions[partition].ownership for partition in self._positions})
            await self._follow()

    async def farewell(self) -> None:
        """Tell the application that everything goes, at shutdown; an error is logged, there is no reader any more."""
        error = await self._call(self._hooks.on_revoked, list(self._positions))
        if error is not None:
            self._instruments.warn("consumer", "hook_failed", f"{self._name}: {error}")

    async def _beat(self) -> None:
        """Say that this member lives, whatever its application does; that one may take too long."""
        while True:
            self._standing.session.touch()
            self._give_up_overdue()
            await anyio.sleep(self._options.heartbeat_interval)

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
        self._instruments.warn(
            "consumer",
            "evicted",
            f"{self._name}: the group went on without this member (no sign of life within the log's session_timeout); "
            "its partitions may be somebody else's; joining again",
        )
        self.is_member = False
        self._name_what_was_dropped()
        self._leaving.clear()
        self._lose(list(self._positions))
        refusals = Refusals(limit_s=abc.REQUEST_GRACE, random=self._random)
        while True:
            try:
                self._standing.session = await self._join()
            except TarryError as error:
                if not may_pass(error):
                    raise
                if refusals.note(anyio.current_time()).is_overdue:
                    self._worker.tell(error)
                await anyio.sleep(refusals.pause())
            else:
                self._standing.session.touch()
                self.is_member = True
                return

    # ------------------------------------------------------------------------------------------- taking over

    def _hold(self, new: Mapping[TopicPartition, Ownership]) -> None:
        """Nothing of new partitions is delivered before the hook has run."""
        held = {partition: self._positions[partition].ownership for partition in self._positions}
        self._positions.assign(held | dict(new))
        if self._hooks.on_assigned is not None:
            for partition in new:
                self._positions.close(partition)

    def _welcome(self, new: Mapping[TopicPartition, Ownership]) -> None:
        if self._hooks.on_assigned is None:
            self._worker.kick()
        elif new:
            self._tasks.start_soon(self._tell_assigned, new)

    async def _tell_assigned(self, new: Mapping[TopicPartition, Ownership]) -> None:
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
        if not self._keeps:
            self._reader.cut(partitions)
        self._drop(partitions, lambda _: self._keeps)
        self._reader.interrupt()
        self._instruments.emit("partitions_lost", partitions=tuple(partitions))
        if self._hooks.on_revoked is not None:
            self._tasks.start_soon(self._tell_lost, partitions)

    def _name_what_was_dropped(self) -> None:
        """What is being given up was cut, to be brought back by its last store, which nobody takes any more (Q6)."""
        for partition in self._leaving if self._keeps else ():
            span = self._commits.ahead(partition) if partition in self._positions else None
            if span is not None:
                warn_possibly_lost(self._instruments, partition, *span)

    async def _tell_lost(self, partitions: Sequence[TopicPartition]) -> None:
        error = await self._call(self._hooks.on_revoked, partitions)
        if error is not None:
            self._worker.tell(error)

    def _drop(self, partitions: Sequence[TopicPartition], kept: Callable[[Origin], bool]) -> None:
        for partition in partitions:
            self._positions.drop(partition)
            self._commits.forget(partition)
        self._worker.forget(partitions, kept)

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
        for partition in held:
            self._positions.close(partition)
        self._reader.cut(held)
        self._worker.forget(list(held), self._older_than(held))
        self._reader.interrupt()
        busy = [at for at in held if self._reader.holds(at) or self._worker.commits_now(at)]
        free = [at for at in partitions if at not in busy]
        if free:
            self._tasks.start_soon(self._give_up, free, held)
        for partition in busy:
            self._tasks.start_soon(self._drain, partition, held, anyio.current_time() + wait_s)

    async def _drain(
        self, partition: TopicPartition, held: Mapping[TopicPartition, Ownership], deadline: float
    ) -> None:
        await self._worker.recall(partition, anyio.current_time() + self._options.drain_timeout)
        self._worker.forget([partition], self._older_than(held))
        if self._keeps:  # what is in hand may outlast the log's patience; what was dropped must not be lost with it
            await self._store(self._still([partition], held))
        await self._reader.settled(partition, deadline)
        await self._give_up([partition], held)

    async def _give_up(self, partitions: Sequence[TopicPartition], held: Mapping[TopicPartition, Ownership]) -> None:
        """Hook, last store, release. The stored offset covers finished messages only (K32)."""
        session = self._standing.session
        mine = self._still(partitions, held)
        error = await self._call(self._hooks.on_revoked, mine)
        mine = self._still(mine, held)
        await self._store(mine)
        self._drop(self._still(mine, held), self._older_than(held))
        if session is self._standing.session and await self._release(session, partitions):
            for partition in partitions:
                self._leaving.pop(partition, None)
            self._apply()
        if error is not None:
            self._worker.tell(error)

    async def _release(self, session: abc.Session, partitions: Sequence[TopicPartition]) -> bool:
        """False when the session is over: what it knew of the assignment counts for nothing, joining is under way."""
        try:
            await insist(partial(session.release, partitions), again=may_pass)
        except FencedError as error:
            self._instruments.emit("release_refused", partitions=tuple(partitions))
            return not isinstance(error, NotAMember)
        return True

    async def _store(self, partitions: Sequence[TopicPartition]) -> None:
        with anyio.move_on_after(max(self._options.drain_timeout, STORE_S_MIN)):
            await self._storing.finish(partitions)

    def _older_than(self, held: Mapping[TopicPartition, Ownership]) -> Callable[[Origin], bool]:
        """What was kept when an earlier ownership was lost is none of this one's: no store brings it back (C36)."""
        return lambda origin: self._keeps and origin.ownership != held.get(origin.partition)

    def _still(
        self, partitions: Iterable[TopicPartition], held: Mapping[TopicPartition, Ownership]
    ) -> list[TopicPartition]:
        """Those that were not lost meanwhile."""
        places = ((partition, self._positions.get(partition)) for partition in partitions)
        return [at for at, place in places if place is not None and place.ownership == held.get(at)]

    # ------------------------------------------------------------------------------------------- hooks

    async def _call(self, hook: Hook | None, partitions: Sequence[TopicPartition]) -> RebalanceHookError | None:
        """Run a hook; one that takes too long is cut off with a warning, an error is returned (K55, K88)."""
        if hook is None or not partitions:
            return None
        failure: Exception | None = None
        async with self._hook_lane:
            with anyio.move_on_after(self._options.hook_timeout) as limit:
                self._reader.interrupt()  # whoever reads may hold what the hook waits for
                try:
                    result = hook(frozenset(partitions))
                    if isawaitable(result):
                        await result
                except Exception as error:  # noqa: BLE001  # it becomes the reader's error
                    failure = error
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
    """Committed for a member that lost the partition before it finished them: nobody else reads them (C36, Q6)."""
    instruments.warn(
        "consumer",
        "possibly_lost",
        f"{partition}: messages {first} to {last} were committed for this consumer, which lost the partition before it "
        "finished them; nobody else may have read them",
        partition=partition,
        first=first,
        last=last,
    )
