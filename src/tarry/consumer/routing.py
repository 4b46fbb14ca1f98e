"""Looks routes up: who leads the partitions that a consumer holds (C86, C88, C113).

Whoever knows the routes is asked over the session, apart from the leaders; a leader that is lost takes nothing with it
but its own partitions. While a route is looked up nothing is asked about its partition, and all others go on.

Not here: which routes are in doubt, and what follows from the answers (`_core.routes`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import anyio
import anyio.abc

from tarry import abc
from tarry._core.backoff import Refusals
from tarry._core.routes import Routes
from tarry._core.stopped import is_lasting
from tarry.consumer.bell import Bell
from tarry.consumer.standing import Standing
from tarry.errors import LogUnavailable, TarryError
from tarry.types import TopicPartition

T = TypeVar("T")

LOOKUPS_MAX = 16
"""So many lookups are out at a time (C86)."""
EARLY_S = 0.1
"""So long the first answers of a round wait for the others, to make one change of them."""


class Routing:
    """Keeps `routes` up to date.

    Args:
        held: the partitions of the consumer, in order.
        rests: nothing may be asked about a partition now.
        changed: called when waits have to be replaced, or may begin.
        refused: told of the first lookup that failed, in the order of the partitions.
        unknown: told of each that asking again is not expected to cure; from then on its partition rests.
    """

    def __init__(
        self,
        standing: Standing,
        routes: Routes,
        *,
        held: Iterable[TopicPartition],
        rests: Callable[[TopicPartition], bool],
        bell: Bell,
        changed: Callable[[], None],
        refused: Callable[[TarryError, Refusals], None],
        unknown: Callable[[TopicPartition, TarryError], None],
        random: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._routes = routes
        self._held = held
        self._bell = bell
        self._changed = changed
        self._rests = rests
        self._refused = refused
        self._unknown = unknown
        self._refusals = Refusals(limit_s=abc.REQUEST_GRACE, random=random)
        self._asked: set[TopicPartition] = set()  # in this round, and not answered yet
        self.first_round = anyio.Event()

    async def run(self) -> None:
        """Look up whatever is stale, until cancelled."""
        while True:
            if self._routes.assign(self._held):
                self._changed()
            stale = self._stale()
            if not stale:
                self.first_round.set()
                await self._bell.heard("routing")
                continue
            self._asked = set(stale)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._take_in, tasks)
                failures = await self._look_up(stale)
                self.first_round.set()
                failure = self._sort_out(failures)
                if failure is None:
                    self._refusals.reset()
                else:
                    self._refused(failure, self._refusals)
                    await anyio.sleep(self._refusals.pause())
                tasks.cancel_scope.cancel()

    async def _take_in(self, tasks: anyio.abc.TaskGroup) -> None:
        """What comes during a round is looked up once beside it, since something in the round may hang."""
        while True:
            if self._routes.assign(self._held):
                self._changed()
            come = [partition for partition in self._stale() if partition not in self._asked]
            if come:
                self._asked.update(come)
                tasks.start_soon(self._look_up, come)
            await self._bell.heard("routing")

    def _stale(self) -> list[TopicPartition]:
        return [partition for partition in self._routes.stale() if not self._rests(partition)]

    def _sort_out(self, failures: Mapping[TopicPartition, TarryError]) -> TarryError | None:
        """The first failure that may pass; partitions with others rest."""
        for partition, error in failures.items():
            if is_lasting(error):
                self._unknown(partition, error)
        return next((error for error in failures.values() if not is_lasting(error)), None)

    async def _look_up(self, stale: Sequence[TopicPartition]) -> dict[TopicPartition, TarryError]:
        """One round; what failed, in the order of the partitions, whenever that was (C88)."""
        found: dict[TopicPartition, str] = {}
        failures: dict[TopicPartition, TarryError] = {}

        async def look_up(partition: TopicPartition) -> None:
            try:
                with anyio.fail_after(abc.REQUEST_GRACE):
                    found[partition] = await self._standing.session.route(partition)
            except TimeoutError:
                failures[partition] = LogUnavailable(f"{partition}: nobody says who leads it")
            except TarryError as error:
                failures[partition] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_early, found)
            await side_by_side(look_up, stale, LOOKUPS_MAX)
            tasks.cancel_scope.cancel()
        self._take(found)
        return {partition: failures[partition] for partition in stale if partition in failures}

    async def _take_early(self, found: dict[TopicPartition, str]) -> None:
        """A lookup that hangs keeps nobody else waiting."""
        while True:
            await anyio.sleep(EARLY_S)
            self._take(found)

    def _take(self, found: dict[TopicPartition, str]) -> None:
        """Empty `found` into the routes."""
        if found:
            self._routes.found(found)
            self._asked.difference_update(found)
            found.clear()
            self._changed()


async def side_by_side(work: Callable[[T], Awaitable[None]], items: Iterable[T], limit: int) -> None:
    """Do something for each item, in their order, with so many under way at a time."""
    left = iter(items)
    async with anyio.create_task_group() as tasks:
        for _, first in zip(range(limit), left, strict=False):
            tasks.start_soon(_one_after_another, work, first, left)


async def _one_after_another(work: Callable[[T], Awaitable[None]], first: T, left: Iterator[T]) -> None:
    await work(first)
    for item in left:
        await work(item)
