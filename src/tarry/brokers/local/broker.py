"""The embedded log behind the port: `abc.Broker` and `abc.Session` over a pump, in this loop or in a host's.

Thin: every method posts one request and waits for its answer. What is decided is decided by the pump.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import anyio

from tarry import abc
from tarry._runtime.bridge import Port
from tarry.brokers.local.coordinator import Seat
from tarry.brokers.local.probes import Limits, WaitTerms
from tarry.brokers.local.pump import Pump
from tarry.brokers.local.standings import Standing
from tarry.config import TopicOptions
from tarry.errors import LogUnavailable, NotAMember, OutcomeUnknown
from tarry.types import (
    GroupInfo,
    HistoryId,
    Offset,
    Ownership,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Start,
    TopicInfo,
    TopicPartition,
)

LEADER = abc.Leader("local")


class LocalBroker:
    """See `abc.Broker`. `close` gives back what the pump runs in."""

    capabilities = abc.Capabilities(groups=True, timestamps=True, idempotent_append=True, commit_on_poll="atomic")

    def __init__(self, pump: Pump, port: Port, close: Callable[[], Awaitable[None]]) -> None:
        self._pump = pump
        self._port = port
        self._close = close
        self._sessions: dict[LocalSession, None] = {}
        self._closed = False

    @property
    def pump(self) -> Pump:
        """The pump, for counters in tests and benches."""
        return self._pump

    async def create_topic(self, name: str, options: TopicOptions, *, exist_ok: bool) -> TopicInfo:
        """See `abc.Broker`."""
        return cast(TopicInfo, await self._ask(self._pump.create_topic, name, options, exist_ok))

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """See `abc.Broker`."""
        return cast(TopicInfo, await self._ask(self._pump.grow_topic, name, partitions))

    async def delete_topic(self, name: str) -> None:
        """See `abc.Broker`."""
        await self._ask(self._pump.delete_topic, name)

    async def describe_topic(self, name: str) -> TopicInfo:
        """See `abc.Broker`."""
        return cast(TopicInfo, await self._ask(self._pump.describe_topic, name))

    async def list_topics(self) -> Sequence[TopicInfo]:
        """See `abc.Broker`."""
        return cast("Sequence[TopicInfo]", await self._ask(self._pump.list_topics))

    async def append(
        self, partition: TopicPartition, batch: RecordBatch, *, producer: ProducerStamp | None = None
    ) -> Receipt:
        """See `abc.Broker`."""
        return cast(Receipt, await self._ask(self._pump.append, partition, batch, producer))

    async def open_session(
        self, identity: abc.ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> abc.Session:
        """See `abc.Broker`."""
        member, _ = await self._ask(self._pump.open_session, identity, tuple(topics), tuple(partitions))
        if isinstance(member, Seat):
            session: LocalSession = GroupSession(self._pump, self._port, member, self._forget)
        else:
            session = LocalSession(self._pump, self._port, member, self._forget)
        self._sessions[session] = None
        return session

    async def describe_group(self, name: str) -> GroupInfo:
        """See `abc.Broker`."""
        return cast(GroupInfo, await self._ask(self._pump.desk.describe, name))

    async def list_groups(self) -> Sequence[GroupInfo]:
        """See `abc.Broker`."""
        return cast("Sequence[GroupInfo]", await self._ask(self._pump.desk.list))

    async def reset_group(self, name: str, offsets: Mapping[TopicPartition, Offset | None]) -> None:
        """See `abc.Broker`."""
        await self._ask(self._pump.desk.reset, name, dict(offsets))

    async def aclose(self) -> None:
        """See `abc.Broker`."""
        if self._closed:
            return
        self._closed = True
        for session in self._sessions:
            session.tell_leave()
        await self._close()

    def _forget(self, session: LocalSession) -> None:
        self._sessions.pop(session, None)

    async def _ask(self, request: Callable[..., None], *args: Any) -> Any:
        if self._closed:
            raise LogUnavailable("this connection is closed; connect again")
        return await self._port.ask(request, *args)


class LocalSession:
    """See `abc.Session`: a standalone consumer's standing. `left` is called once it is over."""

    def __init__(
        self,
        pump: Pump,
        port: Port,
        member: Standing | Seat,
        left: Callable[[LocalSession], None] = lambda _: None,
    ) -> None:
        self._pump = pump
        self._port = port
        self._member = member
        self._left = left

    @property
    def assignment(self) -> abc.Assignment:
        """See `abc.Session`; another thread may replace it, never change it."""
        return self._member.shown

    @property
    def session_timeout(self) -> float | None:
        """See `abc.Session`; a standalone session does not lapse."""
        return None

    async def changed(self, version: int) -> abc.Assignment:
        """See `abc.Session`."""
        return cast(abc.Assignment, await self._port.ask(self._pump.changed, self._member, version))

    async def route(self, partition: TopicPartition) -> abc.Leader:
        """See `abc.Session`."""
        return LEADER

    async def resolve(self, partition: TopicPartition, start: Position | Start) -> abc.Resolved:
        """See `abc.Session`."""
        return cast(abc.Resolved, await self._port.ask(self._pump.resolve, self._member, partition, start))

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
        """See `abc.Session`."""
        with _given_up_after(max_wait):
            terms = WaitTerms(min_count, min_bytes, max_wait, change)
            answer = await self._port.ask(self._pump.wait_ready, self._member, targets, terms)
        return cast("Sequence[abc.Ready]", answer)

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
        """See `abc.Session`."""
        with _given_up_after(max_wait, commits=commit):
            limits = Limits(count, max_bytes, min_count, max_wait, commit)
            answer = await self._port.ask(self._pump.poll, self._member, targets, limits)
        return cast(abc.PollReply, answer)

    async def stored_offset(self, partition: TopicPartition) -> Offset | None:
        """See `abc.Session`."""
        return cast("Offset | None", await self._port.ask(self._pump.stored_offset, self._member, partition))

    async def store_offset(
        self,
        partition: TopicPartition,
        offset: Offset | None,
        *,
        ownership: Ownership,
        history: HistoryId | None = None,
        lower: bool = False,
    ) -> Offset | None:
        """See `abc.Session`."""
        answer = await self._port.ask(
            self._pump.store_offset, self._member, partition, offset, ownership, history, lower
        )
        return cast("Offset | None", answer)

    async def release(self, partitions: Sequence[TopicPartition]) -> None:
        """See `abc.Session`; a standalone consumer keeps what it chose."""

    def touch(self) -> None:
        """See `abc.Session`; a standalone session does not lapse."""

    async def leave(self) -> None:
        """See `abc.Session`."""
        self._left(self)
        await self._port.ask(self._pump.leave, self._member)

    def tell_leave(self) -> None:
        """Leave without waiting."""
        self._port.tell(self._pump.leave, None, self._member)


class GroupSession(LocalSession):
    """See `abc.Session`: a member of a group. What it owns changes, and it lapses when its worker is not heard of."""

    def __init__(self, pump: Pump, port: Port, seat: Seat, left: Callable[[LocalSession], None]) -> None:
        super().__init__(pump, port, seat, left)
        self._seat = seat

    @property
    def id(self) -> str:
        """By which the log knows this member; outlives a restart of the log."""
        return self._seat.id

    @property
    def session_timeout(self) -> float | None:
        """See `abc.Session`."""
        return self._pump.groups.session_timeout

    async def changed(self, version: int) -> abc.Assignment:
        """See `abc.Session`; a member that is told of its end joins anew, and does not leave what is over."""
        try:
            return await super().changed(version)
        except NotAMember:
            self._left(self)
            raise

    async def release(self, partitions: Sequence[TopicPartition]) -> None:
        """See `abc.Session`; they may be somebody else's before a cancel arrives."""
        await self._port.ask(self._pump.groups.release, self._seat, tuple(partitions))

    def touch(self) -> None:
        """See `abc.Session`."""
        self._pump.groups.touch(self._seat)


@contextmanager
def _given_up_after(max_wait: float, *, commits: bool = False) -> Generator[None]:
    """Raise when the log has not answered 10 s after the end of a wait (C4).

    `LogUnavailable`, or `OutcomeUnknown` for a request that commits.
    """
    limit = max_wait + abc.REQUEST_GRACE
    with anyio.move_on_after(limit) as scope:
        yield
    if scope.cancelled_caught:
        silence = f"the log did not answer within {limit:g} s (wait and {abc.REQUEST_GRACE:g} s)"
        if commits:
            raise OutcomeUnknown(f"{silence}; what it read may or may not have been stored as read")
        raise LogUnavailable(f"{silence}; nothing was read")
