"""Progress lanes: what reads or changes the stored offset of a partition goes one after another (C101).

These are stores, deletes, reading what is stored, and committing fetches. Of two that were out at once the answers
could come in the wrong order, and the consumer would believe something else than the log holds. Partitions do not wait
for each other, producers use no lane, and what is parked at the log holds none (C102): only immediate requests go
through here.

Not here: what is sent (`storing`, `committing`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from tarry.types import TopicPartition

OUT_MAX = 16
"""So many requests of one consumer are out at a time; who waits for a lane does not count."""


@dataclass(slots=True, eq=False)
class Lane:
    """One partition's, first come first served. `users`: who is on it or waits for it."""

    lock: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))
    users: int = 0


class ProgressLanes:
    """The lanes of one consumer. One exists as long as somebody uses it; then `freed` is called."""

    def __init__(self, out_max: int = OUT_MAX) -> None:
        self._lanes: dict[TopicPartition, Lane] = {}
        self._room = anyio.Semaphore(out_max, fast_acquire=True)  # a request yields anyway
        self.freed: Callable[[], None] = lambda: None

    def is_free(self, partition: TopicPartition) -> bool:
        """Nobody is on the lane of a partition, nor waits for it."""
        return partition not in self._lanes

    @asynccontextmanager
    async def turn(self, partition: TopicPartition) -> AsyncGenerator[None]:
        """Wait for those that came first, then for room; room last, so that who waits for a lane takes none.

        Cancellation: the place in the queue is given up; those behind move on.
        """
        with self._used(partition) as lane:
            async with lane.lock, self._room:
                yield

    @contextmanager
    def at_once(self, partition: TopicPartition) -> Generator[None]:
        """The turn of a committing fetch, on a lane that is free. It needs no room: a consumer has one out at most."""
        with self._used(partition) as lane:
            lane.lock.acquire_nowait()
            try:
                yield
            finally:
                lane.lock.release()

    async def passed(self, partition: TopicPartition) -> None:
        """Wait for those that use the lane now."""
        if not self.is_free(partition):
            with self._used(partition) as lane:
                async with lane.lock:
                    pass

    @contextmanager
    def _used(self, partition: TopicPartition) -> Generator[Lane]:
        lane = self._lanes.setdefault(partition, Lane())
        lane.users += 1
        try:
            yield lane
        finally:
            lane.users -= 1
            if not lane.users:
                del self._lanes[partition]
                self.freed()
