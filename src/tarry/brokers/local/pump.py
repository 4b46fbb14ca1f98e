"""The front of an embedded log: topics, appends, offset stores, sessions, and what the store reports (C26, C51-C56).

Synchronous and callback style: it runs on the loop that owns the store and never blocks it. Every request comes with a
`Call` (its key for a cancel, and where the answer goes) and is answered exactly once unless it is withdrawn.

Not here: loops and threads (`host`, `broker`), requests that wait (`polls`), members of groups (`coordinator`), what
memory knows (`view`), rows (`store_*`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tarry import abc
from tarry._core.waiters import Waiters
from tarry._wire.batch import first_timestamp
from tarry.brokers.local.coordinator import Coordinator, Seat
from tarry.brokers.local.describing import GroupDesk
from tarry.brokers.local.polls import Polls
from tarry.brokers.local.probes import Limits, Member, Reply, WaitTerms
from tarry.brokers.local.standings import Standing, Standings
from tarry.brokers.local.view import Partition, View, own
from tarry.config import TopicOptions
from tarry.errors import DataError, LogUnavailable, StaleAssignment, TarryError, TopicExists, TopicNotFound
from tarry.types import (
    HistoryId,
    Offset,
    Ownership,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Start,
    StartKind,
    TopicPartition,
)

WATCHED_MAX = 1_048_576
"""So many targets of readiness waits are watched at a log, all together."""


class Pump:
    """See the module. `alarm(deadline)` is called when an earlier deadline than before may have been added."""

    def __init__(
        self,
        store: abc.LogStore,
        clock: abc.Clock,
        *,
        max_wait: float = 30.0,
        retention_interval: float = 30.0,
        alarm: Callable[[float], None] = lambda _: None,
        session_timeout: float = 30.0,
        rebalance_timeout: float = 30.0,
        waiters: Waiters | None = None,
        watched_max: int = WATCHED_MAX,
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_interval = retention_interval
        self._retain_at: float | None = None
        self.alarm = alarm
        self.view = View()
        self.groups = Coordinator(
            store,
            clock,
            self.view,
            readers=lambda: self.polls,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            alarm=self._wake,
        )
        self.polls = Polls(
            store,
            clock,
            self.view,
            max_wait=max_wait,
            alarm=self._wake,
            waiters=Waiters() if waiters is None else waiters,
            watched_max=watched_max,
            fence=self.groups.fence,
        )
        self.standings = Standings(self.view, clock, self._wake)
        self.desk = GroupDesk(self.view, clock, self.groups.groups, partial(self._submit, None))
        self._jobs: dict[Reply, object] = {}
        self._requests = 0

    # -------------------------------------------------------------------------------------------- life

    def open(self) -> None:
        """Open the store and take over what it holds. May block."""
        for state in self._store.open(self):
            self._add_topic(state)
        self.groups.open()

    @property
    def parked(self) -> int:
        """Requests that wait at the log."""
        return len(self.polls)

    @property
    def reads(self) -> int:
        """Reads that polls asked the store for."""
        return self.polls.reads

    @property
    def requests(self) -> int:
        """Requests that wait or write, or are about groups."""
        return self.polls.requests + self.groups.requests + self._requests

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        rooms = (self.polls, self.groups, self.standings)
        deadlines = (*(room.next_deadline() for room in rooms), self._retain_at)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due: end waits, evict members, drop what nobody waits for, apply retention."""
        self.polls.tick(now)
        self.groups.tick(now)
        self.standings.tick(now)
        if self._retain_at is not None and now >= self._retain_at:
            self._retain_at = None
            self.retain()
            self._plan_retention()

    def close(self) -> None:
        """End every request that waits; the store is closed by who opened the pump."""
        self.polls.fail(LogUnavailable("the log was closed while this request waited"))
        self.standings.fail(LogUnavailable("the log was closed while this request waited"))
        self.groups.close()

    def cancel(self, call: Reply) -> None:
        """Withdraw a request (S6-S9): parked or reading, it is gone; a write that was handed over goes on (W17)."""
        self.polls.cancel(call)
        self.groups.cancel(call)
        self.standings.cancel(call)
        ticket = self._jobs.pop(call, None)
        if ticket is not None:
            self._store.withdraw(ticket)

    # ------------------------------------------------------------------------------------------- topics

    def create_topic(self, call: Reply, name: str, options: TopicOptions, exist_ok: bool) -> None:  # noqa: FBT001  # posted
        """See `abc.Broker`."""
        topics = self.view.topics
        if exist_ok and name in topics:
            call.reply(topics[name].info())
            return

        def done(result: Any) -> None:
            if isinstance(result, abc.TopicState):
                self._add_topic(result)
            if isinstance(result, TopicExists) and exist_ok and name in topics:
                result = abc.TopicState(name, options, ())
            self._answer_topic(call, result)

        self._submit(call, abc.CreateTopic(name, options), done)

    def grow_topic(self, call: Reply, name: str, partitions: int) -> None:
        """See `abc.Broker`."""

        def done(result: Any) -> None:
            if isinstance(result, abc.TopicState):
                self._extend_topic(result)
            self._answer_topic(call, result)

        self._submit(call, abc.GrowTopic(name, partitions), done)

    def delete_topic(self, call: Reply, name: str) -> None:
        """See `abc.Broker`. Parked requests on it end with `TopicNotFound` (S24, Q16)."""

        def done(result: Any) -> None:
            if result is None:
                self._drop_topic(name)
            self._answer(call, result)

        self._submit(call, abc.DeleteTopic(name), done)

    def describe_topic(self, call: Reply, name: str) -> None:
        """See `abc.Broker`."""
        try:
            call.reply(self.view.topic(name).info())
        except TopicNotFound as error:
            call.reply(error)

    def list_topics(self, call: Reply) -> None:
        """See `abc.Broker`."""
        call.reply(tuple(self.view.topics[name].info() for name in sorted(self.view.topics)))

    def retain(self, call: Reply | None = None) -> None:
        """Apply retention now."""
        self._submit(call, abc.Retain(), partial(self._answer, call))

    # ------------------------------------------------------------------------------------------- writing

    def append(self, call: Reply, at: TopicPartition, batch: RecordBatch, stamp: ProducerStamp | None) -> None:
        """See `abc.Broker`."""
        try:
            part = self.view.find(at)
        except TarryError as error:
            call.reply(error)
            return

        def done(result: Any) -> None:
            if isinstance(result, abc.Appended):
                result = Receipt(at.topic, at.partition, result.base, result.duplicate)
            self._answer(call, result)

        self._submit(call, abc.Append(part.id, batch, stamp), done)

    def store_offset(
        self,
        call: Reply,
        member: Member,
        at: TopicPartition,
        offset: Offset | None,
        ownership: Ownership,
        history: HistoryId | None,
        lower: bool,  # noqa: FBT001  # posted
    ) -> None:
        """See `abc.Session`. Never lowers unless told to (C52, C56, I7)."""
        try:
            part, identity = self._check_store(member, at, ownership, history)
            part.check_offset(offset)
        except TarryError as error:
            call.reply(error)
            return

        def done(result: Any) -> None:
            if isinstance(result, abc.Stored):
                part.note(identity, result)
                result = result.offset
            self._answer(call, result)

        self._submit(call, abc.StoreOffset(part.id, identity, offset, lower), done)

    def _check_store(
        self, member: Member, at: TopicPartition, ownership: Ownership, history: HistoryId | None
    ) -> tuple[Partition, str]:
        self.polls.check_member(member)
        part, identity = self.view.find(at), member.key
        if member.fenced:
            self.polls.fence(member, at, ownership, storing=True)
        if history is not None and history != part.history:
            raise StaleAssignment(f"{at} was deleted and created again; the offset belongs to the old history")
        return part, identity

    def stored_offset(self, call: Reply, member: Member, at: TopicPartition) -> None:
        """See `abc.Session`."""
        try:
            self.polls.check_member(member)
            part = self.view.find(at)
        except TarryError as error:
            call.reply(error)
            return
        call.reply(part.stored.get(member.identity.key or ""))

    # ------------------------------------------------------------------------------------------- sessions

    def open_session(
        self,
        call: Reply,
        identity: abc.ConsumerIdentity,
        topics: Sequence[str],
        partitions: Sequence[TopicPartition],
        *,
        seen: int = 0,
    ) -> None:
        """Answer a member and its `Assignment`; or `TopicNotFound` when there is nothing to read (C15, K72).

        What a member of a group reads is what it is assigned: `partitions` do not count for it (C18). `seen`: the
        version that a standalone session had come to when this log was opened again, and that it goes on behind.
        """
        try:
            self._check_topics(topics, () if identity.kind == "group" else partitions)
            if identity.kind == "group":
                self.groups.join(call, identity, topics)
                return
            standing = self.standings.open(identity, topics, partitions, seen)
        except TarryError as error:
            call.reply(error)
            return
        call.reply((standing, standing.shown))

    def _check_topics(self, topics: Sequence[str], partitions: Sequence[TopicPartition]) -> None:
        if topics and not partitions and not any(name in self.view.topics for name in topics):
            names = ", ".join(map(repr, topics))
            raise TopicNotFound(f"topic {names} does not exist; create it first (create_topic)")

    def changed(self, call: Reply, member: Standing | Seat, version: int) -> None:
        """See `abc.Session`."""
        if isinstance(member, Seat):
            self.groups.changed(call, member, version)
        else:
            self.standings.changed(call, member, version)

    def leave(self, call: Reply | None, member: Member) -> None:
        """End a session; its parked requests are withdrawn (S15)."""
        if isinstance(member, Seat):
            self.groups.leave(call, member)
            return
        member.open = False
        self.polls.leave(member)
        self.standings.leave(member)
        if call is not None:
            call.reply(None)

    def resolve(self, call: Reply, member: Member, at: TopicPartition, start: Position | Start) -> None:
        """Where a start lies now (C26), or how old what lies at a position is."""
        try:
            self.polls.check_member(member)
            part = self.view.find(at)
            asked = start
            if isinstance(start, Start) and start.kind is not StartKind.TIMESTAMP:
                start = part.place(start, member.identity)
        except TarryError as error:
            call.reply(error)
            return

        def done(position: Position | TarryError) -> None:
            if isinstance(position, TarryError):
                call.reply(position)
            else:
                call.reply(abc.Resolved(position, part.log_start, part.log_end, part.history))

        if isinstance(start, Start):
            assert start.value is not None
            self._store.find_time(part.id, start.value, done)
        elif asked is start:
            self._find_age(call, part, start)
        else:
            done(start)

    def _find_age(self, call: Reply, part: Partition, position: Position) -> None:
        """Answer how old the first message from a position on is; from memory, if it is there."""

        def done(found: abc.Selection | TarryError) -> None:
            if isinstance(found, TarryError) and not isinstance(found, DataError):
                call.reply(found)
                return
            call.reply(abc.Resolved(position, part.log_start, part.log_end, part.history, self._age_of(found)))

        query = abc.Query(part.id, max(position, part.log_start), count=1, limit=1)
        found = self._store.read(query)
        if found is None:
            self._store.read_disk(query, done)
        else:
            done(found)

    def _age_of(self, found: abc.Selection | DataError) -> float | None:
        if isinstance(found, DataError):
            return None
        if not found.runs:
            return 0.0
        try:
            return max(self._clock.wall_ms() - first_timestamp(found.runs[0]), 0) / 1000
        except DataError:
            return None

    # ------------------------------------------------------------------------------------------- reading

    def poll(self, call: Reply, member: Member, targets: Sequence[abc.FetchTarget], limits: Limits) -> None:
        """See `abc.Session`."""
        self.polls.poll(call, member, targets, limits)

    def wait_ready(self, call: Reply, member: Member, targets: Sequence[abc.FetchTarget], terms: WaitTerms) -> None:
        """See `abc.Session`."""
        self.polls.wait_ready(call, member, targets, terms)

    # ---------------------------------------------------------------------------------- what the store reports

    def committed(self, rows: Sequence[abc.Row]) -> None:
        """Rows became visible: count, then wake whoever they may complete (S20)."""
        for part, size in self.view.grow(rows).items():
            self.polls.grown(part, size)

    def trimmed(self, trims: Sequence[abc.Trimmed]) -> None:
        """Messages went."""
        for trim in trims:
            part = self.view.trim(trim)
            if part is not None:
                self.polls.trimmed(part)

    def reopened(self, topics: Sequence[abc.TopicState]) -> None:
        """The store read everything again: take it over, then everybody who waits looks again."""
        found = {state.name for state in topics}
        for name in [name for name in self.view.topics if name not in found]:
            self._drop_topic(name)
        for state in topics:
            known = self.view.refresh(state)
            if known is None:
                self._drop_topic(state.name)
                self._add_topic(state)
                continue
            self.polls.changed(known)
            self._extend_topic(state)
        self.groups.reopened()

    def failed(self, error: TarryError) -> None:
        """The store is gone for good."""
        self.view.failure = error
        self.polls.fail(error)
        self.standings.fail(error)
        self.groups.failed(error)

    # ------------------------------------------------------------------------------------------- helpers

    def _add_topic(self, state: abc.TopicState) -> None:
        self.view.add(state)
        self._topic_changed(state.name)
        self._plan_retention()

    def _extend_topic(self, state: abc.TopicState) -> None:
        if self.view.extend(state):
            self._topic_changed(state.name)

    def _drop_topic(self, name: str) -> None:
        self.polls.changed(self.view.drop(name))
        self._topic_changed(name)

    def _topic_changed(self, name: str) -> None:
        self.groups.topic_changed(name)
        self.standings.topic_changed(name)

    def _wake(self, deadline: float) -> None:
        self.alarm(deadline)  # the driver sets it later

    def _plan_retention(self) -> None:
        """Retention by age needs a clock: a pass every interval, while any topic asks for it."""
        if self._retain_at is None and any(topic.options.retention_age for topic in self.view.topics.values()):
            self._retain_at = self._clock.now() + self._retention_interval
            self.alarm(self._retain_at)

    def _submit(self, call: Reply | None, job: abc.Job, done: abc.JobDone) -> None:
        self._requests += 1
        if self.view.failure is not None:
            done(own(self.view.failure))
            return
        if call is None:
            self._store.submit(job, done)
            return
        self._jobs[call] = None
        ticket = self._store.submit(job, done)
        if call in self._jobs:  # else it was answered at once
            self._jobs[call] = ticket

    def _answer_topic(self, call: Reply, result: Any) -> None:
        """Answer what a topic is now."""
        self._answer(call, self.view.topics[result.name].info() if isinstance(result, abc.TopicState) else result)

    def _answer(self, call: Reply | None, result: Any) -> None:
        if call is not None:
            self._jobs.pop(call, None)
            call.reply(result)
