"""How a running consumer gets on: its statistics, health and lag, and what it still lacks.

Counters and states of the other parts are put together here; only `lag` asks the log.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import anyio

from tarry._core.autocommit import Commits
from tarry._core.fetches import Fetches
from tarry._core.hand import Hand
from tarry._core.positions import Positions
from tarry.consumer.membership import Membership
from tarry.consumer.standing import Standing
from tarry.consumer.storing import Storing
from tarry.consumer.topics import Topics
from tarry.consumer.traffic import Traffic, aside
from tarry.consumer.worker import Worker
from tarry.errors import TarryError, TopicNotFound
from tarry.instruments import Instruments
from tarry.types import Health, HistoryId, Lag, Offset, Position, Statistics, TopicPartition, position_after


class Looking:
    """Looks at the parts of one consumer.

    Args:
        membership: None without a group.
        silent_max_s: a log that is silent for longer is not well.
    """

    def __init__(
        self,
        standing: Standing,
        *,
        positions: Positions,
        commits: Commits,
        fetches: Fetches,
        hand: Hand,
        topics: Topics,
        traffic: Traffic,
        worker: Worker,
        storing: Storing,
        membership: Membership | None,
        instruments: Instruments,
        silent_max_s: float,
    ) -> None:
        self._standing = standing
        self._positions = positions
        self._commits = commits
        self._fetches = fetches
        self._hand = hand
        self._topics = topics
        self._traffic = traffic
        self._worker = worker
        self._storing = storing
        self._membership = membership
        self._instruments = instruments
        self._silent_max_s = silent_max_s
        self._seen = (0, anyio.current_time())  # how many messages were given, and when that last grew

    def given(self) -> None:
        """The reader was given something right now."""
        self._seen = (self._hand.messages, anyio.current_time())

    def statistics(self, *, is_open: bool) -> Statistics:
        """What was done so far. What is left of a list is nobody's any more once the consumer is not open."""
        rest = self._hand.rest if is_open else None
        waiting = self._fetches.segments + ([] if rest is None else [rest])
        stores, events = self._storing.counts, self._instruments.counts
        return Statistics(
            messages=self._hand.messages,
            bytes=self._hand.size,
            buffered_messages=sum(segment.count for segment in waiting),
            buffered_bytes=sum(segment.size for segment in waiting),
            polls=self._traffic.polls,
            waits=self._traffic.waits,
            refusals=self._traffic.refusals,
            stored=stores.stored,
            stores_failed=stores.failed,
            store_error=stores.last_error,
            rebalances=self._traffic.rebalances,
            evictions=events["evicted"],
            gaps=events["gap"],
        )

    def health(self, state: str, *, is_open: bool, is_reading: bool) -> Health:
        """Whether it gets on. `is_reading`: somebody waits for messages."""
        stopped, failure = dict(self._worker.stopped), self._worker.failure
        is_member = self._membership is None or self._membership.is_member
        silent_s = self._traffic.silent_s(self._asked_about(stopped)) if is_open else 0.0
        is_well = failure is None and is_member and not stopped and silent_s <= self._silent_max_s
        return Health(
            ok=is_open and is_well,
            state=state,
            is_member=is_member,
            owned=frozenset(self._positions),
            missing=self._why_missing(stopped),
            missing_topics=self._topics.missing,
            stopped=stopped,
            stalled_s=self._stalled_s(is_reading=is_reading) if is_open else 0.0,
            silent_s=silent_s,
            last_error=failure or self._traffic.last_error,
        )

    def _asked_about(self, stopped: Container[TopicPartition]) -> Iterator[TopicPartition]:
        """The partitions that the log is asked about again and again: neither paused nor stopped."""
        return (at for at in self._positions if self._positions[at].paused is None and at not in stopped)

    def _why_missing(self, stopped: Mapping[TopicPartition, TarryError]) -> dict[TopicPartition, str]:
        asking = "the log has not said yet where it begins"
        if self._traffic.last_error is not None:
            asking += f"; the last refusal: {self._traffic.last_error}"
        moving = "a rebalance is under way"
        return {
            partition: str(stopped.get(partition, asking if self._positions[partition].is_open else moving))
            for partition in self._positions.unplaced()
        }

    def _stalled_s(self, *, is_reading: bool) -> float:
        messages, now = self._hand.messages, anyio.current_time()
        waiting = self._fetches.messages or self._hand.rest
        if is_reading or not waiting or messages != self._seen[0]:
            self._seen = (messages, now)
        return now - self._seen[1]

    def is_hopeful(self) -> bool:
        """Something is missing, and may still come: the position of a partition, or a topic."""
        may_come = bool(self._topics.missing) or not self._worker.stopped.keys() >= set(self._unplaced())
        return self._worker.failure is None and may_come

    def missing(self) -> list[str]:
        """What is missing: topics, and positions of partitions."""
        stopped = self._worker.stopped
        partitions = [
            f"{partition} ({stopped[partition]})" if partition in stopped else str(partition)
            for partition in self._unplaced()
        ]
        missing = [f"topic {name!r} does not exist" for name in self._topics.missing]
        return missing + ([f"no position yet for {', '.join(partitions)}"] if partitions else [])

    def _unplaced(self) -> list[TopicPartition]:
        """Partitions without a position; to a hook those are none that get theirs once it has run."""
        is_in_hook = self._membership is not None and self._membership.is_in_hook
        return self._positions.unresolved() if is_in_hook else self._positions.unplaced()

    async def lag(self) -> dict[TopicPartition, Lag]:
        """How far each partition is behind its end; asks the log."""
        found: dict[TopicPartition, Lag] = {}
        for partition in list(self._positions):
            place, stored = self._positions.get(partition), self._commits[partition].stored
            if place is None:
                continue  # it left meanwhile
            try:
                lag, history = await self._lag_behind(partition, place.next, stored)
                if place.history not in (None, history):  # nothing of this topic was read, but of one before it
                    lag, _ = await self._lag_behind(partition, None, None)
            except TopicNotFound:
                continue  # it has no end any more
            found[partition] = lag
        return found

    async def _lag_behind(
        self, partition: TopicPartition, position: Position | None, stored: Offset | None
    ) -> tuple[Lag, HistoryId]:
        """How far the end is behind a position and behind a stored offset, and whose end that is."""
        upcoming, unstored = position or Position(0), Position(0) if stored is None else position_after(stored)
        session = aside(self._standing.session)
        ahead = behind = await session.resolve(partition, upcoming)
        if unstored != upcoming:
            behind = await session.resolve(partition, unstored)
        lag = Lag(
            ahead.log_end,
            position,
            delivered=ahead.log_end - max(upcoming, ahead.log_start),
            stored=behind.log_end - max(unstored, behind.log_start),
            delivered_s=ahead.age_s,
            stored_s=behind.age_s,
        )
        return lag, behind.history
