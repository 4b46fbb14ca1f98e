"""Fetches that commit: each is held until its fate is known, and what nobody will read is brought back (C60-C64, C114).

The log counts what such a fetch brings as read. Of what is then not handed over (it was stopped, paused, or lies behind
a gap) the stored offset goes back before anything else is committed: what would be lost with this process is never more
than the batch in work (K01, K48).

Not here: what becomes of what was fetched (`worker`), which fetch is the next (`_core.fetches`), how an offset is
brought back (`storing`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from tarry import abc
from tarry._core.autocommit import Commits
from tarry._core.backoff import Refusals
from tarry._core.fetches import Fetches, Plan
from tarry._core.positions import Positions
from tarry._core.stopped import Stopped
from tarry._runtime.retry import may_pass
from tarry.consumer.lanes import ProgressLanes
from tarry.consumer.watching import Watching
from tarry.errors import OutcomeUnknown, TarryError
from tarry.types import Offset, Ownership, TopicPartition


class Poll(Protocol):
    """A poll that is ready to be sent."""

    def __call__(self, *, commit: bool) -> Awaitable[abc.PollReply]:
        """Send it; `commit`: the log counts what it brings as read."""
        ...


@dataclass(slots=True, eq=False)
class Flight:
    """The committing fetch that is out. A stop of the loops does not reach into its scope (C63)."""

    partition: TopicPartition
    scope: anyio.CancelScope = field(default_factory=lambda: anyio.CancelScope(shield=True))
    landed: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True)
class Desk:
    """What committing fetches need of the worker.

    Args:
        lane: the leader that may be asked about a partition now; None: it may not be.
        refused: a stored offset could not be brought back.
        again: a partition is read again from further back.
    """

    lane: Callable[[TopicPartition], str | None]
    refused: Callable[[TarryError, Refusals], None]
    again: Callable[[TopicPartition], None]


class Committing:
    """The committing fetches of one consumer, one at a time. Where fetches do not commit nothing is ever out or unread.

    Args:
        commits: the marks that these fetches move; None: fetches do not commit.
        lanes: shared with stores.
        put_back: brings the stored offset of a partition back to what is finished.
    """

    def __init__(
        self,
        positions: Positions,
        fetches: Fetches,
        stopped: Stopped,
        watching: Watching,
        desk: Desk,
        *,
        commits: Commits | None,
        lanes: ProgressLanes,
        put_back: Callable[[TopicPartition], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._positions = positions
        self._fetches = fetches
        self._stopped = stopped
        self._watching = watching
        self._desk = desk
        self._commits = commits
        self._lanes = lanes
        self._put_back = put_back
        self._refusals = Refusals(limit_s=abc.REQUEST_GRACE, random=random)
        self._out: Flight | None = None
        self._unread: dict[TopicPartition, bool] = {}  # whether bringing it back is still tried

    @property
    def is_on(self) -> bool:
        """Fetches commit."""
        return self._commits is not None

    # ------------------------------------------------------------------------------------------- the fetch

    def plan(self) -> Plan | None:
        """The next fetch, if there is one that may go out."""
        return self._fetches.plan_committing(self._free_lane)

    def _free_lane(self, partition: TopicPartition) -> str | None:
        """Nothing of the partition is on its way that a committing fetch must not overtake (C101)."""
        return self._desk.lane(partition) if self._lanes.is_free(partition) else None

    async def fetch(self, plan: Plan, poll: Poll) -> abc.PollReply:
        """Poll; if that commits, hold it until its fate is known, and note when it does not become known (C60, C93).

        Raises:
            OutcomeUnknown: it was committing, and did not come back in time.
        """
        if self._commits is None:
            return await poll(commit=False)
        (partition,) = plan.partitions
        ownership = self._positions[partition].ownership
        out = self._out = Flight(partition)
        is_settled = False
        try:
            with self._lanes.at_once(partition), out.scope:
                reply = await poll(commit=True)
                self._settle(self._commits, reply)
                is_settled = True
                return reply
            raise OutcomeUnknown(f"{partition}: a committing fetch did not come back in time")
        except TarryError as error:
            is_settled = error.applied == "no"
            raise
        finally:
            self._out = None
            if not is_settled and self._is_held(partition, ownership):
                self._doubt(self._commits, plan)
            out.landed.set()

    def _settle(self, commits: Commits, reply: abc.PollReply) -> None:
        """The fetch is back: the log counts what it brought as read."""
        self._fetches.is_tried = False
        for target in reply.targets:
            self._fetches.settled(target.partition)
            if target.runs and self._is_held(target.partition, target.ownership):
                commits.took(target.partition, Offset(target.next - 1))

    def _doubt(self, commits: Commits, plan: Plan) -> None:
        """Nobody knows whether it was applied: nothing that is believed to be stored counts (C61)."""
        (partition,) = plan.partitions
        commits.unsettled(partition)
        if not self._stopped.is_stopped(partition):  # stopped while it was out: no other waits for it
            self._fetches.doubted(partition, plan)

    def _is_held(self, partition: TopicPartition, ownership: Ownership) -> bool:
        place = self._positions.get(partition)
        return place is not None and place.ownership == ownership

    # ------------------------------------------------------------------------------------------- ending one

    def is_out(self, partition: TopicPartition) -> bool:
        """A committing fetch of a partition is out."""
        return self._out is not None and self._out.partition == partition

    def limit(self, seconds: float) -> None:
        """The fetch that is out, if one is, has so long to come back."""
        if self._out is not None:
            self._out.scope.deadline = anyio.current_time() + seconds

    async def recall(self, partition: TopicPartition, deadline: float) -> None:
        """Wait for the committing fetch of a partition, if one is out; past `deadline` it is withdrawn."""
        out = self._out
        if out is not None and out.partition == partition:
            out.scope.deadline = min(out.scope.deadline, deadline)
            await out.landed.wait()

    # ------------------------------------------------------------------------------------------- bringing back

    def leave_unread(self, partition: TopicPartition) -> None:
        """Something of a partition was dropped; if it was committed, the log must not go on counting it as read."""
        if self.is_on:
            self._unread[partition] = True

    def forget(self, partition: TopicPartition) -> None:
        """What was dropped of a partition is read again, or is somebody else's."""
        self._unread.pop(partition, None)

    def unread(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Of which of these something committed was dropped, and is not brought back yet."""
        return [partition for partition in partitions if partition in self._unread]

    async def put_back_stranded(self) -> None:
        """Nothing more is committed while more than the batch in work would be lost with this process (K01, K48)."""
        while (partition := self._next_stranded()) is not None:
            place = self._positions[partition]
            try:
                await self._put_back(partition)
            except TarryError as error:
                await self._not_put_back(partition, error)
                continue
            self._refusals.reset()
            self._unread.pop(partition, None)
            again = self._fetches.strand(partition, self._positions.holds)
            if again is not None and self._positions.get(partition) is place:
                self._positions.fetch_again(partition, again)
                self._desk.again(partition)

    def _next_stranded(self) -> TopicPartition | None:
        """One that is paused, or of which something was dropped that had been committed."""
        tried = (partition for partition, is_tried in self._unread.items() if is_tried)
        return self._fetches.stranded(self._positions.holds) or next(tried, None)

    async def _not_put_back(self, partition: TopicPartition, error: TarryError) -> None:
        """It is tried again, or left if that is not expected to help; a `poll` that waits is over."""
        self._desk.refused(error, self._refusals)
        self._watching.end_asked()
        if not may_pass(error):
            self._unread.update(dict.fromkeys(self.unread([partition]), False))
            self._fetches.leave(partition)
        await self._watching.pause("fetching", self._refusals.pause())
