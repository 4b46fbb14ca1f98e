"""The accumulating poll: it waits until there is enough over all partitions and leaders, and says why it came (4.2).

While it waits the loops fetch for it. A cancel loses nothing: what was gathered lies in the read-ahead until it is cut.

Not here: what is enough and what is fetched for it (`_core.fetches`), reading one by one (`consumer`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

import anyio
import anyio.lowlevel

from tarry import abc
from tarry._core.fetches import Demand, Fetches
from tarry.consumer.lists import Lists
from tarry.consumer.standing import Standing
from tarry.consumer.worker import Worker
from tarry.types import Batch, Reason, Segment, T


class Gathering(Generic[T]):
    """Gathers batches for one reader.

    `is_interrupted`: the `poll` that waits, or else the next one, returns what it has.

    Args:
        commits: what is fetched is committed, so that a batch takes all of it.
        is_open: messages are still delivered.
        arrival: waits until a reader should look again.
        hand_out: called with what a batch takes.
    """

    def __init__(
        self,
        standing: Standing,
        worker: Worker,
        fetches: Fetches,
        lists: Lists[T],
        *,
        commits: bool,
        is_open: Callable[[], bool],
        arrival: Callable[[], Awaitable[None]],
        hand_out: Callable[[Sequence[Segment]], None],
    ) -> None:
        self._standing = standing
        self._worker = worker
        self._fetches = fetches
        self._lists = lists
        self._commits = commits
        self._is_open = is_open
        self._arrival = arrival
        self._hand_out = hand_out
        self.is_interrupted = False

    async def gather(self, demand: Demand) -> Batch[T]:
        """Wait until a demand is satisfied, or its time is over; with one real checkpoint at least (K16)."""
        try:
            if self._is_open() and not self._fetches.enough(demand) and not self._worker.is_dead_end:
                self._ask(demand)  # before the checkpoint: the loops have not asked for anything else yet
            await anyio.lowlevel.checkpoint()
            self._standing.keep()
            return await self._wait(demand)
        finally:
            if self._fetches.demand is not None:
                self._worker.demand(None)

    def _ask(self, demand: Demand) -> None:
        """At a dead end nobody is asked: a read that is told so at once must not cost a request each time (K41)."""
        demand.takes_all = self._commits
        self._worker.demand(demand)

    async def _wait(self, demand: Demand) -> Batch[T]:
        while self._is_open():
            self._worker.raise_pending()
            in_doubt = self._standing.is_in_doubt()
            is_all = demand.over or (self._fetches.messages > 0 and self._worker.is_dead_end)  # that there will be
            if not in_doubt and (is_all or self._fetches.enough(demand) or self.is_interrupted):
                if not self._lists.decode_ahead(*self._room(demand)):
                    return self._cut(demand)
                await anyio.lowlevel.checkpoint()
                continue
            if in_doubt and demand.over:
                return Batch((), "rebalance", self._lists.read)
            if await self._worker.left_dead_end():
                continue
            await self._hear(demand)
        return Batch((), "drain", self._lists.read)

    async def _hear(self, demand: Demand) -> None:
        """Until there is news, or the time is over: with enough at hand only the end of a doubt is waited for."""
        grace_s = 0.0
        if not self._fetches.enough(demand):
            grace_s = abc.REQUEST_GRACE
            if self._fetches.demand is None:  # it began at a dead end
                self._ask(demand)
        with anyio.CancelScope(deadline=demand.deadline + grace_s) as limit:
            await self._arrival()
        await anyio.lowlevel.checkpoint_if_cancelled()
        if limit.cancelled_caught:
            demand.over = True

    def _cut(self, demand: Demand) -> Batch[T]:
        self.is_interrupted = False
        is_enough = self._fetches.enough(demand)
        segments, read, is_whole = self._lists.gather(*self._room(demand))
        self._hand_out(segments)
        reason: Reason
        if sum(segment.count for segment in segments) >= demand.min_count:
            reason = "count"
        elif is_enough:
            reason = "bytes" if is_whole else "error"
        elif demand.over:
            reason = "wait"
        else:
            reason = "error" if self._worker.is_dead_end else "rebalance"
        return Batch(segments, reason, read)

    def _room(self, demand: Demand) -> tuple[int, int]:
        """How many messages and bytes a poll takes at most."""
        return demand.count, demand.max_bytes + (self._fetches.size if demand.takes_all else 0)
