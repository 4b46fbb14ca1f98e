"""The members of a log's groups, and what each of them owns (design 4.1; S66-S72, C20-C22 on the log's side).

Decisions are made by the machine (`_core.groups`). Here they take effect, always in this order: who loses something is
fenced at once, the state of the group goes to the store, and when that is durable those who gain something are told. So
nobody acts on an ownership that a crash could take back and give to somebody else. What changes while a save is out
goes with the next one. A save that fails ends the joins it was for; everything else it held stays decided, is tried
again every second, and is shown to nobody until it is saved.

When a store has read its file again memory leads: it holds all that was ever shown, and what the file lost is saved
anew. To take the older state over would give the same ownership out twice.

Which partitions came late follows from those that a group had seen when it was last saved, so no crash between the
growth of a topic and the next save of its groups can make them skip anything (K56).

Synchronous and callback style, like the pump: it runs on the loop that owns the store and never blocks it. Not here:
who owns what (`_core.groups`), requests that wait for messages (`polls`), how groups are described (`describing`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tarry import abc
from tarry._core import groups
from tarry._core.arrivals import Arrivals
from tarry._core.groups import Change, Group, Saved
from tarry._runtime.clock import random_bytes
from tarry._wire.groups import GroupState, MemberState, decode_group, encode_group
from tarry.brokers.local.describing import stored_groups
from tarry.brokers.local.probes import Member, Reply
from tarry.brokers.local.view import View, own
from tarry.errors import ConfigError, DataError, LogUnavailable, TarryError, TopicNotFound
from tarry.types import HistoryId, Ownership, TopicPartition

RETRY_PERIOD = 1.0
"""Seconds after which a save that failed is tried again."""

_logger = logging.getLogger("tarry.log")
_NOTHING = abc.Assignment(0, 0, {}, frozenset(), {})

Told = Callable[["TarryError | None"], None]
"""Called when a decision is saved, or with the reason why it could not be saved."""


@dataclass(slots=True, eq=False)
class Seat(Member):
    """A session that is a member of a group.

    Args:
        touched: when its worker was last heard of; the only thing here that another thread may write.
        shown: the newest assignment that is saved; version 0 while the join is not saved yet.
        waiting: who waits for another version of it.
        join: the request that it came with.
    """

    id: str = ""
    touched: float = 0.0
    shown: abc.Assignment = _NOTHING
    waiting: dict[Reply, None] = field(default_factory=dict[Reply, None])
    join: Reply | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    """A group, those of its members that have a session here, and what there is to save.

    Args:
        arrivals: which of its partitions came while the group was there.
        told: who waits for the next save.
        out: who waits for the save that is out; None: there is none.
        retry_at: when a save that failed is tried again.
    """

    group: Group
    arrivals: Arrivals = field(default_factory=Arrivals)
    seats: dict[str, Seat] = field(default_factory=dict[str, Seat])
    is_dirty: bool = False
    is_failing: bool = False
    told: list[Told] = field(default_factory=list[Told])
    out: list[Told] | None = None
    retry_at: float | None = None


class Readers(Protocol):
    """Where the requests of members wait (`polls`)."""

    def look_again(self, member: Member, partitions: Collection[TopicPartition]) -> None:
        """A member may read partitions no more."""
        ...

    def leave(self, member: Member) -> None:
        """A member is gone."""
        ...


class Coordinator:
    """See the module.

    Args:
        readers: asked for when they are needed.
        alarm: called with a deadline when it may be earlier than those before.
    """

    def __init__(
        self,
        store: abc.LogStore,
        clock: abc.Clock,
        view: View,
        *,
        readers: Callable[[], Readers],
        session_timeout: float,
        rebalance_timeout: float,
        alarm: Callable[[float], None],
        new_id: Callable[[], str] = lambda: random_bytes(8).hex(),
    ) -> None:
        self._store = store
        self._clock = clock
        self._view = view
        self._readers = readers
        self.session_timeout = session_timeout
        self._rebalance_timeout = rebalance_timeout
        self._alarm = alarm
        self._new_id = new_id
        self._entries: dict[str, _Entry] = {}
        self._joins: dict[Reply, Seat] = {}
        self._waiting: dict[Reply, Seat] = {}
        self._is_closed = False
        self.requests = 0

    # -------------------------------------------------------------------------------------------- life

    def open(self) -> None:
        """Take over what the store holds; a group without members and stored offsets is forgotten.

        Only here: while a log is open the count of ownerships of every group that ever had a member goes on.

        Raises:
            DataError: a state is damaged; names the group.
        """
        states = self._store.groups()
        stored = stored_groups(self._view)
        for name in sorted(states):
            state = _decoded(name, states[name])
            if not state.members and name not in stored:
                self._store.submit(abc.SaveGroup(name, None), partial(self._forgotten, name))
                continue
            entry = self._entries[name] = self._new_entry(name)
            partitions = self._partitions_of(state.topics)
            entry.is_dirty = entry.arrivals.resume(partitions, state.late, state.seen)
            self._take_effect(entry, entry.group.resume(_saved_of(state), partitions, self._clock.now()))
            self._save(entry)

    def bury(self) -> None:
        """Members without a session here leave: the process that had their sessions is gone, and nobody resumes them.

        Else a program that was killed would wait `session_timeout` for its own ghost.
        """
        now = self._clock.now()
        for entry in self._entries.values():
            for member in entry.group.members:
                if member.id not in entry.seats:
                    self._take_effect(entry, entry.group.leave(member.id, now))
            self._save(entry)

    def close(self) -> None:
        """End every request that waits for a change; what was decided and not saved yet is handed to the store."""
        self._is_closed = True
        self._end_waiting(LogUnavailable("the log was closed while this request waited"))
        for entry in self._entries.values():
            if entry.is_dirty:
                self._hand_over(entry)

    def failed(self, error: TarryError) -> None:
        """The store is gone for good: nothing changes any more."""
        self._end_waiting(error)

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        deadlines = [each for entry in self._entries.values() for each in (entry.group.next_deadline(), entry.retry_at)]
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: float) -> None:
        """Evict who was not heard of, take what was not given up in time, try failed saves again."""
        for entry in self._entries.values():
            if entry.retry_at is not None and now >= entry.retry_at:
                self._save(entry)
            self._expire(entry, now)

    def topic_changed(self, name: str) -> None:
        """A topic was created or deleted, or has other partitions."""
        for entry in self._entries.values():
            if name in entry.group.topics:
                partitions = self._partitions_of(entry.group.topics)
                entry.is_dirty = entry.arrivals.follow(partitions) or entry.is_dirty
                self._take_effect(entry, entry.group.repartition(partitions, self._clock.now()))
                self._save(entry)

    def reopened(self) -> None:
        """The store read everything again: what it lost is saved anew."""
        states = self._store.groups()
        for name, entry in self._entries.items():
            if states.get(name) != _encoded(entry):
                entry.is_dirty = True
                self._save(entry)

    # -------------------------------------------------------------------------------------------- requests

    def join(self, call: Reply, identity: abc.ConsumerIdentity, topics: Sequence[str]) -> None:
        """Answer a `Seat` and its assignment once they are saved; see `abc.Broker.open_session`.

        A join that is withdrawn, even after its answer, leaves again: nobody has got the session.
        """
        self.requests += 1
        now = self._clock.now()
        seat = Seat(identity, id=self._new_id(), touched=now, join=call)
        try:
            self._check_store()
            if not identity.name or not topics:
                raise ConfigError(
                    f"a member of a group needs the name of the group and topics, not {identity.name!r}, {topics!r}"
                )
            entry = self._entry_for(identity.name)
            self._expire(entry, now)
            member = groups.Member(seat.id, identity.member, touched=now)
            before, partitions = entry.group.topics, self._partitions_of(topics)
            joined = entry.group.join(member, topics, partitions)
        except TarryError as error:
            call.reply(error)
            return
        if entry.group.topics != before:
            entry.arrivals.begin(partitions, entry.arrivals.late)  # those of a topic that it reads on stay late
        self._entries[entry.group.name] = entry
        entry.seats[seat.id] = self._joins[call] = seat
        self._take_effect(entry, joined)
        self._when_saved(entry, partial(self._joined, call, seat))

    def resume(self, call: Reply, identity: abc.ConsumerIdentity, member_id: str) -> None:
        """Answer like `join` for a member that had its session before this log was opened: it goes on (design 4.1).

        A member that was evicted or has left gets `NotAMember`.
        """
        self.requests += 1
        now = self._clock.now()
        try:
            self._check_store()
            entry = self._entry_for(identity.name)
            self._expire(entry, now)
            shown = _assignment(entry, member_id)
        except TarryError as error:
            call.reply(error)
            return
        seat = entry.seats.setdefault(member_id, Seat(identity, id=member_id, shown=shown))
        seat.touched = now
        self._when_saved(entry, lambda error: call.reply((seat, seat.shown) if error is None else error))

    def leave(self, call: Reply | None, seat: Seat) -> None:
        """End a session: it is over at once and what it owned moves; answered when that was saved, or could not be."""
        self.requests += 1
        entry = self._entry_of(seat)
        if seat.open:
            self._take_effect(entry, entry.group.leave(seat.id, self._clock.now()))
        self._when_saved(entry, lambda _: None if call is None else call.reply(None))

    def touch(self, seat: Seat) -> None:
        """The worker of a session lives. May be called from any thread."""
        seat.touched = self._clock.now()

    def release(self, call: Reply, seat: Seat, partitions: Iterable[TopicPartition]) -> None:
        """A member gives partitions up: they are gone at once; answered when that is saved."""
        try:
            self._admit(seat)
        except TarryError as error:
            call.reply(error)
            return
        entry = self._entry_of(seat)
        self._take_effect(entry, entry.group.release(seat.id, self._histories_of(partitions), self._clock.now()))
        self._when_saved(entry, call.reply)

    def changed(self, call: Reply, seat: Seat, version: int) -> None:
        """Answer the assignment of a member once its version differs from `version`."""
        try:
            self._admit(seat)
        except TarryError as error:
            call.reply(error)
            return
        if seat.shown.version != version:
            call.reply(seat.shown)
            return
        self._waiting[call] = seat
        seat.waiting[call] = None

    def cancel(self, call: Reply) -> None:
        """Withdraw a `changed` or a join."""
        self._withdraw(call)
        seat = self._joins.get(call)
        if seat is not None:
            self.leave(None, seat)

    def fence(self, member: Member, at: TopicPartition, ownership: Ownership, *, storing: bool) -> None:
        """See `probes.Fence`. What is decided counts, saved or not."""
        assert isinstance(member, Seat), "only members of groups are fenced"
        self._entry_of(member).group.fence(member.id, self._view.find(at).history, ownership, storing=storing)

    def groups(self) -> Mapping[str, Group]:
        """All groups that ever had a member, as they are now."""
        now = self._clock.now()
        for entry in self._entries.values():
            self._expire(entry, now)
            _note_touches(entry, now)
        return {name: entry.group for name, entry in self._entries.items()}

    # -------------------------------------------------------------------------------------------- changes

    def _expire(self, entry: _Entry, now: float) -> None:
        deadline = entry.group.next_deadline()
        if deadline is None or now < deadline:
            return
        _note_touches(entry, now)
        self._take_effect(entry, entry.group.expire(now))
        self._save(entry)

    def _take_effect(self, entry: _Entry, change: Change) -> None:
        """What is lost is lost at once; the rest is for the next save."""
        for member in change.gone:
            self._end(entry, member.id)
        lost: dict[Seat, dict[TopicPartition, None]] = {}
        for member_id, history in change.stopped:
            seat, at = entry.seats.get(member_id), entry.group.partitions.get(history)
            if seat is not None and at is not None:
                lost.setdefault(seat, {})[at] = None
        for seat, partitions in lost.items():
            self._readers().look_again(seat, partitions)
        entry.is_dirty = entry.is_dirty or bool(change)
        deadline = entry.group.next_deadline()
        if deadline is not None:
            self._alarm(deadline)

    def _end(self, entry: _Entry, member_id: str) -> None:
        """A member left or was evicted: its session here, if it has one, is over."""
        seat = entry.seats.pop(member_id, None)
        if seat is None:
            return
        seat.open, seat.why = False, str(entry.group.stranger(member_id))
        if seat.join is not None:
            del self._joins[seat.join]
        for call in list(seat.waiting):
            self._withdraw(call)
            call.reply(seat.refusal())
        self._readers().leave(seat)

    def _withdraw(self, call: Reply) -> None:
        seat = self._waiting.pop(call, None)
        if seat is not None:
            del seat.waiting[call]

    def _end_waiting(self, error: TarryError) -> None:
        for call in list(self._waiting):
            self._withdraw(call)
            call.reply(own(error))

    # -------------------------------------------------------------------------------------------- saving

    def _when_saved(self, entry: _Entry, told: Told) -> None:
        """Call `told` once everything that is decided by now is saved."""
        if entry.is_dirty:
            entry.told.append(told)
            self._save(entry)
        elif entry.out is not None:
            entry.out.append(told)
        else:
            told(None)

    def _save(self, entry: _Entry) -> None:
        """Save what changed, when no save is out."""
        if entry.is_dirty and entry.out is None:
            self._hand_over(entry)

    def _hand_over(self, entry: _Entry) -> None:
        group = entry.group
        seats = ((entry.seats.get(member.id), member.version) for member in group.members)
        fresh = {
            seat: _assignment(entry, seat.id)
            for seat, version in seats
            if seat is not None and seat.shown.version != version
        }
        told, entry.told = entry.told, []
        entry.is_dirty, entry.out, entry.retry_at = False, told, None
        done = partial(self._saved, entry, told, fresh)
        if self._view.failure is None:
            self._store.submit(abc.SaveGroup(group.name, _encoded(entry)), done)
        else:
            done(self._view.failure)

    def _saved(
        self,
        entry: _Entry,
        told: list[Told],
        fresh: Mapping[Seat, abc.Assignment],
        result: abc.JobResult | TarryError,
    ) -> None:
        """The store answered: show what is saved, tell who waited for it, go on with what changed meanwhile."""
        if entry.out is told:
            entry.out = None
        if isinstance(result, TarryError):
            self._not_saved(entry, told, result)
            return
        entry.is_failing = False
        for seat, assignment in fresh.items():
            seat.shown = assignment
            for call in list(seat.waiting):
                self._withdraw(call)
                call.reply(assignment)
        for each in told:
            each(None)
        self._save(entry)

    def _not_saved(self, entry: _Entry, told: Sequence[Told], error: TarryError) -> None:
        entry.is_dirty = True
        for each in told:
            each(own(error))
        if self._is_closed or self._view.failure is not None:
            return
        if not entry.is_failing:
            _logger.warning("group %r could not be saved and is tried again: %s", entry.group.name, error)
        entry.is_failing = True
        entry.retry_at = self._clock.now() + RETRY_PERIOD
        self._alarm(entry.retry_at)

    def _joined(self, call: Reply, seat: Seat, error: TarryError | None) -> None:
        """A join is saved, or could not be; then the member is none. One that was withdrawn gets no answer."""
        if not seat.open:
            return
        if error is None:
            call.reply((seat, seat.shown))
            return
        entry = self._entry_of(seat)
        self._take_effect(entry, entry.group.leave(seat.id, self._clock.now()))
        call.reply(error)

    def _forgotten(self, name: str, result: abc.JobResult | TarryError) -> None:
        if isinstance(result, TarryError):
            _logger.warning("group %r has no members and no stored offsets, but stays: %s", name, result)

    # -------------------------------------------------------------------------------------------- helpers

    def _admit(self, seat: Seat) -> None:
        self.requests += 1
        self._check_store()
        if not seat.open:
            raise seat.refusal()

    def _check_store(self) -> None:
        if self._view.failure is not None:
            raise own(self._view.failure)

    def _entry_of(self, seat: Seat) -> _Entry:
        return self._entries[seat.identity.name or ""]

    def _entry_for(self, name: str | None) -> _Entry:
        """The group of that name, a new one if need be; it is known once somebody has joined."""
        return self._entries.get(name or "") or self._new_entry(name or "")

    def _new_entry(self, name: str) -> _Entry:
        return _Entry(Group(name, session_timeout=self.session_timeout, rebalance_timeout=self._rebalance_timeout))

    def _partitions_of(self, topics: Iterable[str]) -> dict[HistoryId, TopicPartition]:
        """What there is to distribute; a topic that does not exist has nothing."""
        known = (self._view.topics.get(name) for name in topics)
        return {part.history: part.at for topic in known if topic is not None for part in topic.partitions}

    def _histories_of(self, partitions: Iterable[TopicPartition]) -> list[HistoryId]:
        found: list[HistoryId] = []
        for at in partitions:
            try:
                found.append(self._view.find(at).history)
            except TopicNotFound:
                continue  # it went, and with it whoever owned it
        return found


def _note_touches(entry: _Entry, now: float) -> None:
    """Take over who was heard of; who waits for its join to be saved counts as that."""
    for seat in entry.seats.values():
        entry.group.touch(seat.id, seat.touched if seat.shown.version else now)


def _assignment(entry: _Entry, member_id: str) -> abc.Assignment:
    """What a member owns, and what of it came late."""
    assigned, late = entry.group.assignment(member_id), entry.arrivals.late
    if not late:
        return abc.Assignment(*assigned)
    names = entry.group.partitions
    return abc.Assignment(*assigned, late=frozenset(map(names.__getitem__, late)) & assigned.owned.keys())


def _encoded(entry: _Entry) -> bytes:
    group, saved, arrivals = entry.group, entry.group.saved(), entry.arrivals
    members = tuple(
        MemberState(member.id, member.static, member.version, member.owned, tuple(member.revoking))
        for member in saved.members
    )
    return encode_group(
        GroupState(group.name, saved.topics, saved.generation, saved.ownership, members, arrivals.late, arrivals.seen)
    )


def _decoded(name: str, raw: bytes) -> GroupState:
    """A group as it was saved.

    Raises:
        DataError: names the group.
    """
    try:
        state = decode_group(raw)
    except DataError as error:
        raise DataError(f"the saved state of group {name!r} cannot be used: {error}") from error
    if state.name != name:
        raise DataError(f"the saved state of group {name!r} cannot be used: it is the one of {state.name!r}")
    return state


def _saved_of(state: GroupState) -> Saved:
    members = [
        groups.Member(
            member.id,
            member.static,
            version=member.version,
            owned=member.owned,
            revoking=dict.fromkeys(member.revoking, 0.0),
        )
        for member in state.members
    ]
    return Saved(state.topics, state.generation, state.ownership, members)
