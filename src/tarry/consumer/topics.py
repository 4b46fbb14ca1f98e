"""How a consumer follows its topics: missing ones, those that gain partitions, those that are deleted and come again.

The log says what there is (`abc.Session.assignment`). A missing topic is reported once and read as soon as it exists
(K72); new partitions are read beside the others (K56). The partitions of a deleted topic stop with an error, the others
go on; when it is created again they are begun anew (K57).

In a group the assignment says all of that, and `membership` follows it; here is what a consumer without a group does.

Not here: where a partition begins (`resolving`), stopping and telling (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.abc

from tarry import abc
from tarry._core.backoff import Backoff
from tarry._core.positions import Positions
from tarry._runtime.retry import may_pass
from tarry.consumer.routing import LOOKUPS_MAX, side_by_side
from tarry.consumer.standing import Standing
from tarry.consumer.worker import Worker
from tarry.errors import TarryError
from tarry.instruments import Instruments
from tarry.types import HistoryId, Start, TopicPartition


class Topics:
    """The topics that a consumer wants, and which of them do not exist. `changed` is called when those change."""

    def __init__(self, wanted: Sequence[str], instruments: Instruments, changed: Callable[[], None]) -> None:
        self.wanted = tuple(dict.fromkeys(wanted))
        self.missing: tuple[str, ...] = ()
        self._instruments = instruments
        self._changed = changed

    def note(self, assignment: abc.Assignment) -> None:
        """Compare them with what an assignment says."""
        before, self.missing = self.missing, tuple(name for name in self.wanted if name not in assignment.topics)
        for name in self.missing:
            if name not in before:
                self._instruments.warn(
                    "consumer",
                    "topic_missing",
                    f"topic {name!r} does not exist; it is read as soon as it is created, and the others meanwhile",
                    topic=name,
                )
        for name in before:
            if name not in self.missing:
                self._instruments.emit("topic_found", topic=name)
        if before != self.missing:
            self._changed()


class Following:
    """Follows the assignment of a standalone session."""

    def __init__(
        self,
        standing: Standing,
        topics: Topics,
        positions: Positions,
        random: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._topics = topics
        self._positions = positions
        self._random = random
        self._gone: set[TopicPartition] = set()
        self._looking: anyio.CancelScope | None = None
        self._worker: Worker

    def begin(self) -> None:
        """Hold what the session came with."""
        assignment = self._standing.session.assignment
        self._topics.note(assignment)
        self._positions.assign(assignment.owned)

    async def run(self, worker: Worker) -> None:
        """Follow until cancelled."""
        self._worker = worker
        backoff = Backoff(random=self._random)
        version: int | None = None
        async with anyio.create_task_group() as tasks:
            while True:
                before, version = version, self._apply()
                self._look_again(tasks, are_news=version != before)
                try:
                    await self._standing.session.changed(version)
                except TarryError as error:
                    if not may_pass(error):
                        raise
                    await anyio.sleep(backoff.next())
                else:
                    backoff.reset()

    def _look_again(self, tasks: anyio.abc.TaskGroup, *, are_news: bool) -> None:
        """Look beside for what was created anew: that lasts while the leader of one is away.

        News begin it anew. Without them, when the log does not answer, what is under way asks again at its own pace.
        """
        if self._looking is not None and not are_news:
            return
        if self._looking is not None:
            self._looking.cancel()
        self._looking = anyio.CancelScope()
        tasks.start_soon(self._find_recreated, self._looking)

    async def _find_recreated(self, scope: anyio.CancelScope) -> None:
        """A topic may have gone and come before anybody saw it gone; of what is not read nobody else would find out."""
        backoff = Backoff(random=self._random)  # one for all: a log that is away is not asked for each of them

        async def look_up(partition: TopicPartition) -> None:
            history = await self._history_of(partition, backoff)
            place = self._positions.get(partition)
            is_other = place is not None and history is not None and place.history not in (None, history)
            if is_other and not scope.cancel_called:  # there is newer news then
                self._worker.back(partition)

        with scope:
            unread = [at for at in self._positions if at not in self._gone and self._worker.is_held_back(at)]
            await side_by_side(look_up, unread, LOOKUPS_MAX)
        if self._looking is scope:
            self._looking = None

    async def _history_of(self, partition: TopicPartition, backoff: Backoff) -> HistoryId | None:
        """Which partition of that name there is now, asked until the log says; None: lastingly refused, as before."""
        while True:
            try:
                found = await self._standing.session.resolve(partition, Start.first())
            except TarryError as error:
                if not may_pass(error):
                    return None  # the next change of a topic tells more
                await anyio.sleep(backoff.next())
            else:
                backoff.reset()
                return found.history

    def _apply(self) -> int:
        """Bring what is held to what the newest assignment says; returns its version."""
        assignment = self._standing.session.assignment
        self._topics.note(assignment)
        held = {partition: self._positions[partition].ownership for partition in self._positions}
        self._positions.assign({**held, **assignment.owned})
        for partition in self._gone.intersection(assignment.owned):
            self._worker.back(partition)
        gone = set(held).difference(assignment.owned)
        for partition in sorted(gone - self._gone):
            self._worker.gone(partition)
        self._gone = gone
        self._worker.kick()
        return assignment.version
