"""What a consumer's requests to the log came to: a session that passes every call on and counts.

Not here: what is asked, and what becomes of an answer (`worker`, `membership`, `storing`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import anyio

from tarry import abc
from tarry.consumer.watching import LOG_WAIT_MAX
from tarry.errors import LogUnavailable, TarryError, UncertainError
from tarry.types import HistoryId, Offset, Ownership, Position, Start, TopicPartition

ASKED_S = LOG_WAIT_MAX + abc.REQUEST_GRACE
"""What is asked about is answered, or refused again, within so many seconds."""
PARKED_S = 1.0
"""Who refuses what it is asked does so within this time; what is out for longer is parked."""


@dataclass(slots=True)
class Refused:
    """Nothing but refusals: since when, and the last one.

    `is_answer`: that came from who was asked. `asked`: since when a request that may wait is out; None: none is.
    """

    since: float
    last: float
    is_answer: bool
    asked: float | None = None

    def is_going_on(self, now: float) -> bool:
        """It was asked about again since, and that is not parked where the last one was refused."""
        is_parked = self.is_answer and self.asked is not None and now - self.asked >= PARKED_S
        return now - self.last < ASKED_S and not is_parked


class Traffic:
    """The requests of one consumer over all its sessions."""

    def __init__(self) -> None:
        self.polls = 0
        self.waits = 0
        self.refusals = 0
        self.rebalances = 0
        self.last_error: TarryError | None = None
        self._due: dict[object, float] = {}
        self._refused: dict[TopicPartition | None, Refused] = {}

    def observe(self, session: abc.Session) -> abc.Session:
        """The session, with what goes through it counted here; of the one before nothing is owed any more."""
        self._refused.clear()
        return _Observed(session, self)

    def silent_s(self, partitions: Iterable[TopicPartition]) -> float:
        """Seconds for which the log has owed an answer: one is overdue, or none but refusals came about one of these.

        A leader that answers says nothing about the partitions of another one. Where nothing was asked since a refusal
        (it was paused, or lost, or nobody reads) nothing is owed.
        """
        now = anyio.current_time()
        refused = [self._refused[at] for at in (None, *partitions) if at in self._refused]
        since = [*self._due.values(), *(row.since for row in refused if row.is_going_on(now))]
        return max(now - min(since), 0.0) if since else 0.0

    @contextmanager
    def request(
        self, partitions: Sequence[TopicPartition | None], wait_s: float = 0.0
    ) -> Generator[set[TopicPartition | None]]:
        """A request is out that the log may answer after `wait_s`.

        Args:
            partitions: what it is about; None: the session itself.

        Yields:
            A set for those about which its answer is no progress: it is the prelude to another request.
        """
        token, preludes = object(), set[TopicPartition | None]()
        began = anyio.current_time()
        due = self._due[token] = began + wait_s
        refused = [self._refused[at] for at in partitions if at in self._refused] if wait_s and self._refused else []
        for row in refused:
            row.asked = began
        try:
            yield preludes
        except TarryError as error:
            self.refusals += 1
            self.last_error = error
            for partition in partitions:
                self._note_refused(partition, error, due, anyio.current_time())
            raise
        else:
            for partition in partitions if self._refused else ():
                if partition not in preludes:
                    self._refused.pop(partition, None)
        finally:
            del self._due[token]
            for row in refused:
                if not row.is_going_on(anyio.current_time()):
                    row.last = -inf  # that is over, also when this is withdrawn
                row.asked = None

    def _note_refused(self, partition: TopicPartition | None, error: TarryError, due: float, now: float) -> None:
        row, is_answer = self._refused.get(partition), not isinstance(error, (LogUnavailable, UncertainError))
        since = row.since if row is not None and row.is_going_on(now) else min(due, now)
        self._refused[partition] = Refused(since, now, is_answer)


def aside(session: abc.Session) -> abc.Session:
    """The session for what the application asks beside its reading: that says nothing about how reading gets on."""
    return session.unobserved if isinstance(session, _Observed) else session


class _Observed(abc.Session):
    def __init__(self, session: abc.Session, traffic: Traffic) -> None:
        self._session = session
        self._traffic = traffic

    @property
    def unobserved(self) -> abc.Session:
        return self._session

    @property
    def assignment(self) -> abc.Assignment:
        return self._session.assignment

    @property
    def session_timeout(self) -> float | None:
        return self._session.session_timeout

    async def changed(self, version: int) -> abc.Assignment:
        with self._traffic.request((), inf):
            assignment = await self._session.changed(version)
        self._traffic.rebalances += 1
        return assignment

    async def route(self, partition: TopicPartition) -> abc.Leader:
        with self._traffic.request([partition]) as preludes:
            preludes.add(partition)
            return await self._session.route(partition)

    async def resolve(self, partition: TopicPartition, start: Position | Start) -> abc.Resolved:
        with self._traffic.request([partition]):
            return await self._session.resolve(partition, start)

    async def wait_ready(
        self,
        leader: abc.Leader,
        targets: Sequence[abc.FetchTarget],
        *,
        min_count: int = 1,
        min_bytes: int | None = None,
        max_wait: float,
        change: abc.WatchChange | None = None,
    ) -> Sequence[abc.Ready]:
        self._traffic.waits += 1
        with self._traffic.request([target.partition for target in targets], max_wait) as preludes:
            ready = await self._session.wait_ready(
                leader, targets, min_count=min_count, min_bytes=min_bytes, max_wait=max_wait, change=change
            )
            preludes.update(item.partition for item in ready)  # a leader may refuse what it is asked for then
            return ready

    async def poll(
        self,
        leader: abc.Leader,
        targets: Sequence[abc.FetchTarget],
        *,
        count: int,
        max_bytes: int,
        min_count: int = 1,
        max_wait: float = 0.0,
        commit: bool = False,
    ) -> abc.PollReply:
        self._traffic.polls += 1
        with self._traffic.request([target.partition for target in targets], max_wait):
            return await self._session.poll(
                leader,
                targets,
                count=count,
                max_bytes=max_bytes,
                min_count=min_count,
                max_wait=max_wait,
                commit=commit,
            )

    async def stored_offset(self, partition: TopicPartition) -> Offset | None:
        with self._traffic.request([partition]) as preludes:
            preludes.add(partition)
            return await self._session.stored_offset(partition)

    async def store_offset(
        self,
        partition: TopicPartition,
        offset: Offset | None,
        *,
        ownership: Ownership,
        history: HistoryId | None = None,
        lower: bool = False,
    ) -> Offset | None:
        with self._traffic.request([partition]):
            return await self._session.store_offset(
                partition, offset, ownership=ownership, history=history, lower=lower
            )

    async def release(self, partitions: Sequence[TopicPartition]) -> None:
        with self._traffic.request(partitions or [None]):
            await self._session.release(partitions)

    def touch(self) -> None:
        self._session.touch()

    async def leave(self) -> None:
        await self._session.leave()
