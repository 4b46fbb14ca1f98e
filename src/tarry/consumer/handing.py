"""What the application was given, the marks that follow from it, and what of it goes back.

Marks are brought up when somebody needs them, never per message: the cursor says how far a list has come (design 4.3).

Not here: what is in hand (`_core.hand`), which offset is stored for it (`_core.autocommit`), who reads (`consumer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio

from tarry._core.autocommit import Commits
from tarry._core.fetches import Fetches
from tarry._core.hand import Hand, Reached
from tarry._core.patience import InHand
from tarry._core.positions import Positions
from tarry.types import Origin, Position, Segment, TopicPartition, position_after

READER_LOOK_S = 0.02
"""How often it is looked whether a reader has ended; trio has no callback for that."""


class Handing:
    """What one reader was given.

    Args:
        keeps: what is left of a lost partition is delivered all the same, since the log counts it as read (C36).
        is_open: messages are still delivered.
        is_gone: whoever read has ended.
        stop: the cursor gives nothing more; the next read takes the slow path.
    """

    def __init__(
        self,
        positions: Positions,
        commits: Commits,
        fetches: Fetches,
        *,
        keeps: bool,
        is_open: Callable[[], bool],
        is_gone: Callable[[], bool],
        stop: Callable[[], None],
    ) -> None:
        self._positions = positions
        self._commits = commits
        self._fetches = fetches
        self._keeps = keeps
        self._is_open = is_open
        self._is_gone = is_gone
        self._stop = stop
        self.machine = Hand(self._from_where)
        self._settling: anyio.Event | None = None

    # ------------------------------------------------------------------------------------------- reading

    def give_batch(self, segment: Segment) -> None:
        """A part of a batch goes to the application."""
        self.machine.give_batch(segment)
        self._mark(Reached(segment.origin, segment.last, None))

    def settle(self) -> None:
        """Whoever reads again has finished what he was given, unless a handler failed on it; the rest goes back."""
        self._stop()
        # At the end, what a handler has failed on stays in hand, unfinished.
        if self._is_open() or not self.machine.has_failed:
            settled = self.machine.settle()
            for reached in settled.reached:
                self._mark(reached)
            self._give_back(settled.rest)
        if self._settling is not None:
            self._settling.set()
            self._settling = None

    def note(self) -> None:
        """Bring the marks up to what the cursor says."""
        if (reached := self.machine.reached) is not None:
            self._mark(reached)

    def stop_short(self) -> None:
        """The next read looks at everything again; what is left of the list comes there."""
        self.note()
        self._stop()

    def pause(self, partition: TopicPartition) -> None:
        """The list ends with the message in hand; the rest comes later."""
        rest = self.machine.cut(partition)
        if rest is not None:
            self.stop_short()
            self._give_back(rest)

    def drop(self, partition: TopicPartition) -> None:
        """What is in hand of a partition counts for nothing any more."""
        if self.machine.drop(partition):
            self._stop()

    # ------------------------------------------------------------------------------------------- rebalances

    def cut_off(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing more of these as they are held now; the message in hand may still be finished."""
        if self.machine.give_up(set(partitions)):
            self.stop_short()

    def holds(self, partition: TopicPartition) -> bool:
        """Something of it is in hand, and somebody works on it."""
        return partition in self.machine.in_work()

    def look(self) -> InHand:
        """What somebody works on."""
        return InHand(self.machine.messages, self.machine.in_work())

    async def settled(self, partition: TopicPartition, deadline: float) -> None:
        """Until what is in hand of a partition is finished or stored, or nobody reads any more."""
        with anyio.CancelScope(deadline=deadline):
            while self.holds(partition) and not self._is_gone():
                settling = self._settling = self._settling or anyio.Event()
                with anyio.move_on_after(READER_LOOK_S):
                    await settling.wait()

    # ------------------------------------------------------------------------------------------- marks

    def _mark(self, reached: Reached) -> None:
        """The marks belong to one ownership (C38)."""
        if not self._positions.holds(reached.origin):
            return
        partition = reached.origin.partition
        self._positions.handed(partition, reached.delivered)
        self._commits.delivered(partition, reached.delivered)
        if reached.finished is not None:
            self._commits.finished(partition, reached.finished)

    def _give_back(self, rest: Segment | None) -> None:
        """What is left of a list comes next, if it is to be delivered at all."""
        if rest is not None and self._goes_on(rest.origin):
            self._fetches.put_first(rest)

    def _goes_on(self, origin: Origin) -> bool:
        """Nothing is delivered any more of a partition that is given up, or was lost (C35, C36)."""
        if self._positions.holds(origin):
            return self._is_open() and self._positions[origin.partition].is_open
        return self._keeps  # at the end too: what nobody got is named then

    def _from_where(self, origin: Origin) -> Position | None:
        """Where the messages begin that the user has not stored himself; None: the origin is not held any more."""
        if not self._positions.holds(origin):
            return None
        explicit = self._commits[origin.partition].explicit
        return Position(0) if explicit is None else position_after(explicit)
