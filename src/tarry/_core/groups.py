"""Who reads which partition of a group, and under which ownership (design 4.1; S66-S69 as overruled, S71).

Assignment is sticky and cooperative. Everybody has a quota; a partition without owner goes to a member below its quota
at once. Of a member above its quota only the excess is *asked back* (`revoking`): it still owns it and may store, but
reads nothing more of it. The partition moves when its owner releases it, leaves, is evicted, or `rebalance_timeout`
after the asking. Quotas differ by at most one and are set when members or partitions come or go, the larger ones where
most is owned; so a release costs one move and no new calculation.

Each change of owner gives a partition a new `Ownership` from one growing counter of the group: whoever held it before,
the same member included, is fenced (S71). The generation counts changes of the members, for people.

Partitions are known by their history, which is never used twice: a topic that was created again has new ones.
Nothing depends on the order of a set or a hash. Not here: time (`now` is handed in), saving and telling (the
coordinator).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import cycle
from math import inf
from typing import NamedTuple

from tarry.errors import NotAccepted, NotAMember, StaleAssignment
from tarry.types import HistoryId, Ownership, TopicPartition


class Assigned(NamedTuple):
    """What a member owns; the fields are the first of `abc.Assignment`."""

    version: int
    generation: int
    owned: dict[TopicPartition, Ownership]
    revoking: frozenset[TopicPartition]
    topics: dict[str, int]


@dataclass(slots=True, eq=False)
class Member:
    """One member. Once it has joined only its group changes it.

    Args:
        static: the name of a static member.
        touched: when it was last heard of.
        version: moves whenever its assignment looks different to it.
        owned: in the order in which they came.
        revoking: those of `owned` that were asked back, and when they are taken; in the order of the asking.
        quota: how many it is to own.
    """

    id: str
    static: str | None
    touched: float = -inf
    version: int = 1
    owned: dict[HistoryId, Ownership] = field(default_factory=dict[HistoryId, Ownership])
    revoking: dict[HistoryId, float] = field(default_factory=dict[HistoryId, float])
    quota: int = 0


@dataclass(frozen=True, slots=True)
class Saved:
    """All of a group that outlives a restart: times do not. `ownership` is the last one given."""

    topics: tuple[str, ...]
    generation: int
    ownership: Ownership
    members: Sequence[Member]


@dataclass(slots=True)
class Change:
    """What one step did; false when it did nothing.

    Args:
        members: whose assignment looks different now.
        stopped: member and partition of which it may read no more from now on; those of `gone` are among them.
        gone: who left or was evicted.
    """

    members: dict[Member, None] = field(default_factory=dict[Member, None])
    stopped: list[tuple[str, HistoryId]] = field(default_factory=list[tuple[str, HistoryId]])
    gone: list[Member] = field(default_factory=list[Member])

    def __bool__(self) -> bool:
        return bool(self.members or self.gone)


def _owned_count(member: Member) -> int:
    return len(member.owned)


def _counts_of(partitions: Mapping[HistoryId, TopicPartition]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for topic, _ in partitions.values():
        counts[topic] = counts.get(topic, 0) + 1
    return counts


class Group:
    """The members of one group and what each of them owns.

    Args:
        session_timeout: seconds without a sign of life after which a member is evicted.
        rebalance_timeout: seconds after which a partition that was asked back is taken.
    """

    def __init__(self, name: str, *, session_timeout: float, rebalance_timeout: float) -> None:
        self.name = name
        self.topics: tuple[str, ...] = ()
        self.generation = 0
        self._ownership = Ownership(0)
        self._session_timeout = session_timeout
        self._rebalance_timeout = rebalance_timeout
        self._members: dict[str, Member] = {}
        self._partitions: dict[HistoryId, TopicPartition] = {}
        self._counts: dict[str, int] = {}
        self._owners: dict[HistoryId, Member] = {}
        self._free: dict[HistoryId, None] = {}
        self._needy: dict[Member, None] = {}
        self._look_at = inf
        self._change = Change()

    # -------------------------------------------------------------------------------------------- members

    def join(self, member: Member, topics: Iterable[str], partitions: Mapping[HistoryId, TopicPartition]) -> Change:
        """Let a new member in; it was touched now. `partitions` are those of its topics, as for `repartition`.

        Raises:
            NotAccepted: the members read other topics, or a member of that static name lives; nothing has changed.
        """
        wanted = tuple(sorted(set(topics)))
        self._check_join(member.static, wanted)
        assert member.id not in self._members, "member ids are used once"
        self.topics = wanted
        self._follow(partitions)
        self._members[member.id] = member
        self._look_at = min(self._look_at, member.touched + self._session_timeout)
        self._change.members[member] = None
        self.generation += 1
        self._balance(member.touched)
        return self._done()

    def leave(self, member_id: str, now: float) -> Change:
        """A member goes; what it owned moves at once.

        Raises:
            NotAMember: there is no such member.
        """
        self._remove([self._member(member_id)], now)
        return self._done()

    def touch(self, member_id: str, now: float) -> None:
        """A member lives.

        Raises:
            NotAMember: it was evicted, or it left.
        """
        member = self._member(member_id)
        member.touched = max(member.touched, now)

    def expire(self, now: float) -> Change:
        """Evict who was not heard of, then take what was not given up in time."""
        if now < self._look_at:
            return self._done()
        lapsed = [member for member in self._members.values() if member.touched + self._session_timeout <= now]
        if lapsed:
            self._remove(lapsed, now)
        for member in self._members.values():
            for partition in [key for key, deadline in member.revoking.items() if deadline <= now]:
                self._take(partition)
        self._give_free()
        self._plan()
        return self._done()

    def next_deadline(self) -> float | None:
        """When `expire` may have something to do, None without members. It moves back only when `expire` looks."""
        return self._look_at if self._members else None

    # ----------------------------------------------------------------------------------------- partitions

    def release(self, member_id: str, partitions: Iterable[HistoryId], now: float) -> Change:
        """A member gives partitions up; what it does not own is left out.

        What was asked back goes to whom it was asked for. What it gives up unasked goes to another member, if there is
        one, even if that member is asked for some other partition in return.

        Raises:
            NotAMember: there is no such member.
        """
        member = self._member(member_id)
        owned = [partition for partition in dict.fromkeys(partitions) if partition in member.owned]
        unasked = [partition for partition in owned if partition not in member.revoking]
        for partition in owned:
            self._take(partition)
        if unasked:
            others = sorted((each for each in self._members.values() if each is not member), key=_owned_count)
            for partition, other in zip(unasked, cycle(others), strict=False):
                self._give(partition, other)
            self._balance(now, spared=frozenset(unasked))
        else:
            self._give_free()
        return self._done()

    def repartition(self, partitions: Mapping[HistoryId, TopicPartition], now: float) -> Change:
        """These are the partitions of the group's topics now."""
        if self._follow(partitions):
            self._balance(now)
        return self._done()

    # --------------------------------------------------------------------------------------------- restart

    def saved(self) -> Saved:
        """What is to be saved; to be used before the group changes again."""
        return Saved(self.topics, self.generation, self._ownership, self.members)

    def resume(self, saved: Saved, partitions: Mapping[HistoryId, TopicPartition], now: float) -> Change:
        """Take over what was saved: each session has one session timeout of grace, each asking one rebalance timeout.

        Returns what differs from what was saved, because partitions came or went.
        """
        self.topics, self.generation, self._ownership = saved.topics, saved.generation, saved.ownership
        for member in saved.members:
            self._members[member.id] = member
            self._owners.update(dict.fromkeys(member.owned, member))
            member.touched = now
            member.revoking = dict.fromkeys(member.revoking, now + self._rebalance_timeout)
        self._counts = _counts_of(partitions)
        if self._follow(partitions):
            self._balance(now)
        else:
            self._set_quotas()
        self._plan()
        return self._done()

    # -------------------------------------------------------------------------------------------- queries

    @property
    def members(self) -> Sequence[Member]:
        """In the order in which they joined."""
        return tuple(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    @property
    def partitions(self) -> Mapping[HistoryId, TopicPartition]:
        """All that is distributed."""
        return self._partitions

    def assignment(self, member_id: str) -> Assigned:
        """What a member owns.

        Raises:
            NotAMember: it was evicted, or it left.
        """
        member = self._member(member_id)
        names = self._partitions
        return Assigned(
            member.version,
            self.generation,
            {names[partition]: ownership for partition, ownership in member.owned.items()},
            frozenset(names[partition] for partition in member.revoking),
            dict(self._counts),
        )

    def owner(self, partition: HistoryId) -> Member | None:
        """Who owns a partition."""
        return self._owners.get(partition)

    def stranger(self, member_id: str) -> NotAMember:
        """What to say to somebody who is no member any more."""
        return NotAMember(
            f"group {self.name!r} has no member {member_id!r}: it left, or was not heard of for "
            f"{self._session_timeout:g} s; nothing was applied, join again"
        )

    def fence(self, member_id: str, partition: HistoryId, ownership: Ownership, *, storing: bool) -> None:
        """Let a member read a partition, or store for it, under an ownership; what is asked back may be stored (S67).

        Raises:
            NotAMember: it was evicted, or it left.
            StaleAssignment: it does not own the partition, or under another ownership, or has to give it up.
        """
        member = self._member(member_id)
        held = member.owned.get(partition)
        if held == ownership and (storing or partition not in member.revoking):
            return
        where = self._partitions.get(partition, f"a partition of {', '.join(self.topics)}")
        under = f"group {self.name!r} member {member_id!r}: {where} under ownership {ownership}"
        if held is None:
            raise StaleAssignment(
                f"{under}: {self._whereabouts(partition)}; nothing was applied. "
                "Drop what was read of it; its new owner goes on behind the stored offset"
            )
        if held != ownership:
            raise StaleAssignment(
                f"{under}: this member owns it under {held} by now; nothing was applied. "
                "Drop what was read before and go on behind the stored offset"
            )
        raise StaleAssignment(
            f"{under}: it was asked back; nothing was read. Finish what is in hand, store its offset and release it"
        )

    def _whereabouts(self, partition: HistoryId) -> str:
        owner = self._owners.get(partition)
        if owner is None:
            return "nobody owns it" if partition in self._free else "it is not one of the group's partitions"
        return f"it is owned by {owner.id!r} under {owner.owned[partition]}"

    # -------------------------------------------------------------------------------------------- balance

    def _balance(self, now: float, spared: AbstractSet[HistoryId] = frozenset()) -> None:
        """After members or partitions came or went: new quotas, ask back what is above, hand out what is free.

        `spared` partitions are not asked back; no member has so many of them that something would be missing.
        """
        self._set_quotas()
        for member in self._members.values():
            self._ask(member, now, spared)
        self._give_free()

    def _set_quotas(self) -> None:
        """The larger quotas go where most is owned, so that as little as possible moves."""
        members = sorted(self._members.values(), key=_owned_count, reverse=True)
        share, larger = divmod(len(self._partitions), max(len(members), 1))
        for index, member in enumerate(members):
            member.quota = share + (index < larger)
        self._needy = dict.fromkeys(member for member in reversed(members) if len(member.owned) < member.quota)

    def _ask(self, member: Member, now: float, spared: AbstractSet[HistoryId]) -> None:
        """Ask a member for its excess, what came last first; or let it keep what it was asked for too much."""
        missing = max(len(member.owned) - member.quota, 0) - len(member.revoking)
        if not missing:
            return
        self._change.members[member] = None
        for _ in range(-missing):
            member.revoking.popitem()
        if missing > 0:
            kept = [key for key in reversed(member.owned) if key not in member.revoking and key not in spared]
            deadline = now + self._rebalance_timeout
            self._look_at = min(self._look_at, deadline)
            for partition in kept[:missing]:
                member.revoking[partition] = deadline
                self._change.stopped.append((member.id, partition))

    def _give_free(self) -> None:
        """Hand out what nobody owns, one each in turn, to those who own least first."""
        if not self._free or not self._needy:
            return
        for partition in sorted(self._free, key=self._partitions.__getitem__):
            member = next(iter(self._needy))
            del self._needy[member]
            self._give(partition, member)
            if len(member.owned) < member.quota:
                self._needy[member] = None

    def _give(self, partition: HistoryId, member: Member) -> None:
        del self._free[partition]
        self._ownership = Ownership(self._ownership + 1)
        member.owned[partition] = self._ownership
        self._owners[partition] = member
        self._change.members[member] = None

    def _take(self, partition: HistoryId) -> None:
        member = self._owners.pop(partition)
        del member.owned[partition]
        if member.revoking.pop(partition, None) is None:
            self._change.stopped.append((member.id, partition))
        self._free[partition] = None
        self._change.members[member] = None

    # -------------------------------------------------------------------------------------------- helpers

    def _check_join(self, static: str | None, topics: tuple[str, ...]) -> None:
        if self._members and topics != self.topics:
            raise NotAccepted(
                f"group {self.name!r} reads {', '.join(self.topics)}, this member asks for {', '.join(topics)}: all "
                f"members of a group read the same topics. Use another group, or stop its {len(self._members)} members"
            )
        if static is not None and any(member.static == static for member in self._members.values()):
            raise NotAccepted(
                f"group {self.name!r} has a living member named {static!r}; stop that one first. If it is dead, its "
                f"name is free {self._session_timeout:g} s after it was last heard of"
            )

    def _member(self, member_id: str) -> Member:
        member = self._members.get(member_id)
        if member is None:
            raise self.stranger(member_id)
        return member

    def _remove(self, members: Iterable[Member], now: float) -> None:
        for member in members:
            del self._members[member.id]
            for partition in list(member.owned):
                self._take(partition)
            self._change.gone.append(member)
        self.generation += 1
        self._balance(now)

    def _follow(self, partitions: Mapping[HistoryId, TopicPartition]) -> bool:
        """Take over what there is to distribute; True when partitions came or went. Everybody sees the counts."""
        gone = [partition for partition in (*self._owners, *self._free) if partition not in partitions]
        come = [partition for partition in partitions if partition not in self._owners and partition not in self._free]
        for partition in gone:
            if partition in self._owners:
                self._take(partition)
            del self._free[partition]
        self._free.update(dict.fromkeys(come))
        counts = _counts_of(partitions)
        if counts != self._counts:
            self._change.members.update(dict.fromkeys(self._members.values()))
        self._partitions, self._counts = dict(partitions), counts
        return bool(gone or come)

    def _plan(self) -> None:
        """Find the next deadline; the deadlines of one member's askings never decrease."""
        sessions = (member.touched + self._session_timeout for member in self._members.values())
        askings = (next(iter(member.revoking.values()), inf) for member in self._members.values())
        self._look_at = min(min(sessions, default=inf), min(askings, default=inf))

    def _done(self) -> Change:
        change, self._change = self._change, Change()
        for member in change.gone:
            change.members.pop(member, None)
        for member in change.members:
            member.version += 1
        return change
