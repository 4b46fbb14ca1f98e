"""Storing offsets: what the user asks for, what the mode does by itself, and the last word at shutdown.

Which offset is stored is decided by `_core.autocommit`; here requests are sent, off the delivery path (C51).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio

from tarry._core.autocommit import Commits, Store
from tarry._core.backoff import Backoff
from tarry._core.positions import Positions
from tarry._runtime.retry import may_pass
from tarry.consumer.standing import Standing
from tarry.errors import StaleAssignment, TarryError
from tarry.instruments import Instruments
from tarry.types import HistoryId, Offset, Ownership, TopicPartition

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


class Storing:
    """The offsets of one consumer on their way to the log. `note` brings the marks up to date before they are read.

    Requests go one at a time, and what each of them stores is decided when its turn has come: a later store never
    overtakes an earlier one, and the last word knows the outcome of all before it.
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
        self._instruments = instruments
        self._random = random
        self._lane = anyio.Lock()
        self._sent = 0
        self._queue: dict[TopicPartition, None] = {}
        self._queued = anyio.Event()
        self.counts = StoreCounts()

    async def keep_time(self) -> None:
        """Store what the mode says, every period; a store that fails is counted and tried again with the next one."""
        while self._period is not None:
            await anyio.sleep(self._period)
            self._note()
            for partition in list(self._positions):
                await self._try(partition, self._commits.due, f"trying again in {self._period:g} s")

    def queue(self, partition: TopicPartition) -> None:
        """The mode has queued an offset of a partition: it is stored soon, whoever queued it goes on (C51)."""
        self._queue[partition] = None
        self._queued.set()

    async def work_off(self) -> None:
        """Store what is queued, one partition after the other; one that is refused for now comes again, behind them."""
        backoff = Backoff(random=self._random)
        while True:
            await self._queued.wait()
            self._queued = anyio.Event()
            while self._queue:
                partition = next(iter(self._queue))
                del self._queue[partition]
                error = await self._try(partition, self._commits.queued, "a later store makes up for it")
                if error is None:
                    backoff.reset()
                elif may_pass(error):
                    self._queue.setdefault(partition)
                    await anyio.sleep(backoff.next())

    async def find(self, partition: TopicPartition) -> None:
        """Read what is stored for a partition that was taken over (Q4).

        Several may be read at a time; not beside a store, whose answer would be newer than what was read.
        """
        is_held, sent = self._held(partition), self._sent
        stored = None if self._lane.locked() else await self._standing.session.stored_offset(partition)
        if not self._lane.locked() and sent == self._sent:
            self._found(partition, stored, is_held)
            return
        async with self._lane:
            self._found(partition, await self._standing.session.stored_offset(partition), is_held)

    def _found(self, partition: TopicPartition, stored: Offset | None, is_held: Callable[[], bool]) -> None:
        if is_held():
            self._commits.found(partition, stored)

    async def store(self, partition: TopicPartition, offset: Offset, history: HistoryId | None) -> None:
        """Store one offset for the user, unless it changes nothing (C52); its error is raised (C53).

        That it changes nothing is known only while no store is on its way: one may be lowering.
        """
        if self._lane.locked() or self._commits.asked(partition, offset) is not None:
            await self._send(
                partition, self._while_held_or_raise(partition, lambda at: self._commits.asked(at, offset)), history
            )

    async def delete(self, partition: TopicPartition) -> None:
        """Remove the stored offset (C55)."""
        await self._send(partition, self._while_held_or_raise(partition, self._commits.deleted))

    async def finish(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The final stores of an automatic mode; by how many messages each was brought back, where it was.

        A store that is refused for now, or whose answer is lost, is made again: the caller bounds the time. One that
        fails for good is logged; the others go on (C67).
        """
        rewound: dict[TopicPartition, int] = {}
        backoff = Backoff(random=self._random)
        pending = {partition: self._while_held(partition, self._commits.final) for partition in partitions}
        while pending:
            pending = {at: decide for at, decide in pending.items() if not await self._finish(at, decide, rewound)}
            if pending:
                await anyio.sleep(backoff.next())
        async with self._lane:  # what is being stored by hand at this moment is let through (C66)
            return rewound

    async def _finish(self, partition: TopicPartition, decide: Decide, rewound: dict[TopicPartition, int]) -> bool:
        """One final store; False when it is worth another try."""
        before = self._commits[partition].stored
        try:
            store = await self._send(partition, decide)
        except TarryError as error:
            if may_pass(error):
                return False
            self._failed(partition, error, "the next start begins where it is stored now")
            return True
        if store is not None and before is not None:
            back = before - (-1 if store.offset is None else store.offset)
            rewound.update({partition: back} if back > 0 else {})
        return True

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
        self._instruments.warn(
            "consumer",
            "store_failed",
            f"{partition}: the offset could not be stored ({error}); {consequence}",
            partition=partition,
        )

    async def _send(
        self,
        partition: TopicPartition,
        decide: Decide,
        history: HistoryId | None = None,
    ) -> Store | None:
        """Wait for the turn, decide, store. `history`: what the offset belongs to, where that is known.

        While it waits the partition may be lost, and even be held anew: what was to be stored belongs to the past then.
        """
        async with self._lane:
            self._sent += 1
            store = decide(partition)
            if store is None:
                return None
            place = self._positions.get(partition)
            if place is None or (history is not None and history != place.history):
                raise _stale(partition)
            try:
                stored = await self._standing.session.store_offset(
                    partition, store.offset, ownership=place.ownership, history=place.history, lower=store.lower
                )
            except BaseException as error:
                is_settled = isinstance(error, TarryError) and error.applied == "no"
                if not is_settled and self._is_held(partition, place.ownership):
                    self._commits.lost(store)
                raise
            if self._is_held(partition, place.ownership):  # else the marks are those of a later ownership
                self._commits.accepted(store, stored)
            self.counts = replace(self.counts, stored=self.counts.stored + 1)
            return store

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
        """Whether a partition is still held as it is now."""
        place = self._positions.get(partition)
        ownership = None if place is None else place.ownership
        return lambda: ownership is not None and self._is_held(partition, ownership)

    def _is_held(self, partition: TopicPartition, ownership: Ownership) -> bool:
        place = self._positions.get(partition)
        return place is not None and place.ownership == ownership


def _stale(partition: TopicPartition) -> StaleAssignment:
    return StaleAssignment(f"{partition} is not held any more as it was; nothing was stored")
