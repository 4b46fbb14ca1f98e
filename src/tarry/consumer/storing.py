"""Storing offsets: what the user asks for, what the mode does by itself, and the last word at shutdown.

Which offset is stored is decided by `_core.autocommit`; here requests are sent, off the delivery path (C51).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio

from tarry._core.autocommit import Commits, Store
from tarry._core.backoff import Backoff
from tarry._core.positions import Positions
from tarry._runtime.retry import may_pass
from tarry.consumer.lanes import ProgressLanes
from tarry.consumer.saying import Saying
from tarry.consumer.standing import Standing
from tarry.errors import NotAMember, StaleAssignment, TarryError
from tarry.instruments import Instruments
from tarry.types import HistoryId, Offset, TopicPartition

Decide = Callable[[TopicPartition], Store | None]
"""What to store for a partition, asked once its turn has come."""

STORE_S_MIN = 1.0
"""Time for the final stores, and for leaving, however short `drain_timeout` is: that one is about the application."""


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """How the stores of one consumer went, so that a mode that gets nowhere can be seen (C54).

    Args:
        stored: stores that the log accepted.
        failed: stores of the mode, or of the end, that it did not.
        last_error: of the last failed one; None: none failed.
    """

    stored: int = 0
    failed: int = 0
    last_error: TarryError | None = None


@dataclass(frozen=True, slots=True)
class LastWord:
    """What became of the final stores.

    Args:
        rewound: by how many messages a stored offset was brought back, where it was.
        cut_off: which should have been stored and did not come through in time.
        skipped: the first and last message that the log goes on counting as read though nobody has finished them, where
            a store was cut off or refused for good.
    """

    rewound: Mapping[TopicPartition, int]
    cut_off: Sequence[TopicPartition]
    skipped: Mapping[TopicPartition, tuple[Offset, Offset]]


class Storing:
    """The offsets of one consumer on their way to the log. `note` brings the marks up to date before they are read.

    The requests of a partition go one at a time, and what each of them stores is decided when its turn has come: a
    later store never overtakes an earlier one, and the last word knows the outcome of all before it. Partitions go side
    by side: one that is refused, or gets no answer, holds up no other one (C101).
    """

    def __init__(
        self,
        standing: Standing,
        commits: Commits,
        positions: Positions,
        *,
        period: float | None,
        note: Callable[[], None],
        instruments: Instruments,
        random: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._commits = commits
        self._positions = positions
        self._period = period
        self._note = note
        self._saying = Saying(instruments)
        self._random = random
        self._queue: dict[TopicPartition, None] = {}
        self._at_work: set[TopicPartition] = set()
        self._queued = anyio.Event()
        self.lanes = ProgressLanes()
        self.counts = StoreCounts()

    async def keep_time(self) -> None:
        """Store what the mode says, every period; a store that fails is counted and tried again with the next one.

        Where a store is out, or waits, the next period makes up for it too.
        """
        if self._period is None:
            return
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(self._period)
                self._note()
                for partition in self._positions:
                    if self.lanes.is_free(partition) and self._commits.due(partition) is not None:
                        tasks.start_soon(self._try, partition, self._commits.due, f"trying again in {self._period:g} s")

    def queue(self, partition: TopicPartition) -> None:
        """The mode has queued an offset of a partition: it is stored soon, whoever queued it goes on (C51)."""
        self._queue[partition] = None
        self._queued.set()

    async def work_off(self) -> None:
        """Store what is queued; one task for each partition that has something queued."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._queued.wait()
                self._queued = anyio.Event()
                for partition in [at for at in self._queue if at not in self._at_work]:
                    self._at_work.add(partition)
                    tasks.start_soon(self._work_off, partition)

    async def _work_off(self, partition: TopicPartition) -> None:
        """Store what is queued for one partition, until nothing is; what is refused for now comes again."""
        backoff = Backoff(random=self._random)
        try:
            while partition in self._queue:
                del self._queue[partition]
                error = await self._try(partition, self._commits.queued, "a later store makes up for it")
                if error is None:
                    backoff.reset()
                elif may_pass(error):
                    self._queue.setdefault(partition)
                    await anyio.sleep(backoff.next())
        finally:
            self._at_work.discard(partition)

    async def find(self, partition: TopicPartition) -> None:
        """Read what is stored for a partition that was taken over (Q4)."""
        is_held = self._held(partition)
        async with self.lanes.turn(partition):
            stored = await self._standing.session.stored_offset(partition)
            if is_held():
                self._commits.found(partition, stored)

    async def put_back(self, partition: TopicPartition) -> None:
        """Bring the stored offset back to the last finished message, while reading goes on (K01, K48).

        Raises:
            TarryError: it may be stored still as it was.
        """
        self._note()
        await self._send(partition, self._while_held(partition, self._commits.undone))

    async def store(self, partition: TopicPartition, offset: Offset, history: HistoryId | None) -> None:
        """Store one offset for the user, unless it changes nothing (C52); its error is raised (C53).

        That it changes nothing is known only while nothing of the partition is on its way: a store may be lowering.
        """
        if not self.lanes.is_free(partition) or self._commits.asked(partition, offset) is not None:
            await self._send(
                partition, self._while_held_or_raise(partition, lambda at: self._commits.asked(at, offset)), history
            )

    async def delete(self, partition: TopicPartition) -> None:
        """Remove the stored offset (C55)."""
        await self._send(partition, self._while_held_or_raise(partition, self._commits.deleted))

    async def finish(self, partitions: Sequence[TopicPartition], within_s: float) -> LastWord:
        """The final stores of an automatic mode, side by side, for so many seconds at most.

        A store that is refused for now, or whose answer is lost, is made again. One that fails for good is logged; the
        others go on (C67).

        Cancellation: a store that was out may still be applied; the partition is in doubt.
        """
        pending = {partition: self._while_held(partition, self._commits.final) for partition in partitions}
        rewound: dict[TopicPartition, int] = {}
        refused: list[TopicPartition] = []

        async def finish(partition: TopicPartition, decide: Decide) -> None:
            back = await self._finish(partition, decide)
            if back is None:
                refused.append(partition)
            elif back:
                rewound[partition] = back
            del pending[partition]

        with anyio.move_on_after(within_s):
            async with anyio.create_task_group() as tasks:
                for partition, decide in pending.items():
                    tasks.start_soon(finish, partition, decide)
            for partition in partitions:  # what is being stored by hand at this moment is let through (C66)
                await self.lanes.passed(partition)
        cut_off = [partition for partition, decide in pending.items() if decide(partition) is not None]
        skipped = {partition: self._commits.ahead(partition) for partition in (*cut_off, *refused)}
        return LastWord(rewound, cut_off, {partition: span for partition, span in skipped.items() if span is not None})

    async def _finish(self, partition: TopicPartition, decide: Decide) -> int | None:
        """One final store; by how many messages the offset was brought back, None when it was refused for good."""
        backoff = Backoff(random=self._random)
        while True:
            try:
                return await self._send(partition, decide)
            except TarryError as error:
                if not may_pass(error):
                    self._failed(partition, error, "the next start begins where it is stored now")
                    return None
            await anyio.sleep(backoff.next())

    async def _try(self, partition: TopicPartition, decide: Decide, consequence: str) -> TarryError | None:
        """Store what the mode says; why that failed, if it did."""
        try:
            await self._send(partition, self._while_held(partition, decide))
        except TarryError as error:
            self._failed(partition, error, consequence)
            return error
        return None

    def _failed(self, partition: TopicPartition, error: TarryError, consequence: str) -> None:
        self.counts = replace(self.counts, failed=self.counts.failed + 1, last_error=error)
        self._saying.warn(
            "store_failed",
            f"{partition}: the offset could not be stored ({error}); {consequence}",
            partition=partition,
        )

    async def _send(
        self,
        partition: TopicPartition,
        decide: Decide,
        history: HistoryId | None = None,
    ) -> int:
        """Wait for the turn, decide, store. `history`: what the offset belongs to, where that is known.

        While it waits the partition may be lost, and even be held anew: what was to be stored belongs to the past then.

        Returns:
            By how many messages the stored offset went back.
        """
        async with self.lanes.turn(partition):
            await self._standing.sure()  # a store of before a gap is none of what may be held after it (K18)
            store = decide(partition)
            if store is None:
                return 0
            place = self._positions.get(partition)
            if place is None or (history is not None and history != place.history):
                raise _stale(partition)
            is_held = self._held(partition)
            try:
                stored = await self._standing.session.store_offset(
                    partition, store.offset, ownership=place.ownership, history=place.history, lower=store.lower
                )
            except BaseException as error:
                is_settled = isinstance(error, TarryError) and error.applied == "no"
                if not is_settled and is_held():
                    self._commits.lost(store)
                if isinstance(error, NotAMember):
                    raise _stale(partition) from error
                raise
            self.counts = replace(self.counts, stored=self.counts.stored + 1)
            if not is_held():  # the marks are those of a later ownership, or of a later topic
                return 0
            return self._commits.accepted(store, stored)

    def _while_held(self, partition: TopicPartition, decide: Decide) -> Decide:
        """Decide only as long as the partition is held as it is now; nothing is to be done for it afterwards."""
        is_held = self._held(partition)
        return lambda at: decide(at) if is_held() else None

    def _while_held_or_raise(self, partition: TopicPartition, decide: Decide) -> Decide:
        """The same, where somebody waits who has to be told."""
        is_held = self._held(partition)

        def decide_or_raise(at: TopicPartition) -> Store | None:
            if not is_held():
                raise _stale(at)
            return decide(at)

        return decide_or_raise

    def _held(self, partition: TopicPartition) -> Callable[[], bool]:
        """Whether a partition is still held as it is now: under the same ownership, and with the same topic.

        Its marks are replaced when either ends; without a group the ownership stays when a topic is created anew.
        """
        place, marks = self._positions.get(partition), self._commits[partition]
        ownership = None if place is None else place.ownership

        def is_held() -> bool:
            now = self._positions.get(partition)
            return now is not None and now.ownership == ownership and self._commits[partition] is marks

        return is_held


def _stale(partition: TopicPartition) -> StaleAssignment:
    return StaleAssignment(f"{partition} is not held any more as it was; nothing was stored")
