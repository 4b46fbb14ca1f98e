"""One request that may wait at the log: who asks, what for, how far it was read, and the reply made of that.

Not here: when it is looked at again, and what it then gets (`polls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tarry import abc
from tarry._core.readiness import Watch
from tarry._core.waiters import Parked
from tarry._wire.batch import RUN_OVERHEAD
from tarry.brokers.local.view import Partition
from tarry.config import COUNT_MAX, WIRE_WAIT_MAX
from tarry.errors import ConfigError, NotAMember, UsageError
from tarry.types import Ownership, Position, Run, TopicPartition


class Reply(Protocol):
    """Where an answer goes (`_runtime.bridge.Call`)."""

    def reply(self, answer: Any) -> None:
        """Answer once."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Whoever asked is still there to hear the answer."""
        ...


class Fence(Protocol):
    """Whether a member of a group still owns a partition; asked for members of groups only (`Member.fenced`)."""

    def __call__(self, member: Member, at: TopicPartition, ownership: Ownership, /, *, storing: bool) -> None:
        """Return when it does.

        Args:
            storing: an offset store of finished messages, which a partition that is wanted back still takes.

        Raises:
            StaleAssignment: not owned, or under another ownership, or wanted back.
            NotAMember: the session was evicted.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request asks for. `commit`: store the last offset of the reply before it is answered."""

    count: int
    max_bytes: int
    min_count: int
    max_wait: float
    commit: bool = False


@dataclass(frozen=True, slots=True)
class WaitTerms:
    """What a readiness wait asks for. `change`: how that differs from the wait before."""

    min_count: int
    min_bytes: int | None
    max_wait: float
    change: abc.WatchChange | None = None

    def check(self) -> None:
        """Refuse what can never be satisfied, or always is."""
        if self.min_count < 1 or (self.min_bytes is not None and self.min_bytes < 1):
            raise ConfigError(f"min_count={self.min_count}, min_bytes={self.min_bytes}: both must be at least 1")


@dataclass(slots=True, eq=False)
class Target:
    """One target of a probe: where it stands, and what was read for it so far.

    `is_void`: the position means nothing any more. A poll answers the history that there is now, without reading; in a
    wait the target counts as ready, so that a poll reports it.

    `expected` is what was stored when a committing poll at `Start.next()` was admitted; its start never moves (S47).

    `seen_end` and `seen_bytes` are what was visible when its read began: a read that ends in front of `seen_end` was
    ended by a limit; what came later belongs to the next look (S27).
    """

    spec: abc.FetchTarget
    part: Partition
    asked: Position
    is_void: bool = False
    expected: abc.Expected | None = None
    runs: tuple[Run, ...] = ()
    seen_end: int = 0
    seen_bytes: int = 0

    @property
    def begin(self) -> Position:
        """Where reading begins: what retention removed is skipped (Q9)."""
        return max(self.asked, self.part.log_start)

    @property
    def has_messages(self) -> bool:
        """Something is there to read."""
        return not self.is_void and self.part.messages_from(self.asked) > 0

    def take(self, selection: abc.Selection, count: int, room: int, *, empty: bool) -> tuple[int, int, bool]:
        """Take what was read; return what is left of count and room, and whether the reply is still empty.

        An oversized record comes alone, so behind other records it waits for its turn (S45).
        """
        left = room - selection.size - RUN_OVERHEAD
        if not selection.runs or (left < 0 and not empty):
            return count, room, empty
        self.runs = selection.runs
        return count - selection.count, left, False

    def reply(self) -> abc.TargetReply:
        """What the caller gets."""
        part, at = self.part, self.asked if self.is_void else self.begin
        return abc.TargetReply(
            partition=self.spec.partition,
            asked=self.asked,
            position=Position(self.runs[0].base) if self.runs else at,
            runs=self.runs,
            head=part.head,
            log_start=part.log_start,
            history=part.history,
            ownership=self.spec.ownership,
        )


@dataclass(slots=True, eq=False)
class Watched:
    """What the waits of a session name, from one to the next.

    Args:
        key: among the watches of the member; the number of a watch, or the call of a wait that is the only one.
        version: that of the last wait.
        targets: by partition; `void` ones are gone, or not this member's any more, and count as ready.
        counts: what they have (`_core.readiness`).
        probe: the wait that is on.
        swept: so many targets the safety net has looked at.
    """

    member: Member
    key: int | Reply
    version: int
    targets: dict[TopicPartition, Target] = field(default_factory=dict[TopicPartition, Target])
    void: dict[TopicPartition, None] = field(default_factory=dict[TopicPartition, None])
    counts: Watch = field(init=False)
    probe: Probe | None = None
    swept: int = 0

    def __post_init__(self) -> None:
        self.counts = Watch(self)


@dataclass(slots=True, eq=False)
class Member:
    """One open session: who it is, its requests that are not answered yet, and what its waits watch.

    `why`: what to say once it is over.
    """

    identity: abc.ConsumerIdentity
    open: bool = True
    why: str = "the session has left; open a new consumer"
    calls: dict[Reply, None] = field(default_factory=dict[Reply, None])
    watches: dict[int | Reply, Watched] = field(default_factory=dict[int | Reply, Watched])
    fenced: bool = field(init=False)

    def __post_init__(self) -> None:
        self.fenced = self.identity.kind == "group"

    def refusal(self) -> NotAMember:
        """What its requests get once it is over."""
        return NotAMember(self.why)

    @property
    def key(self) -> str:
        """What offsets are stored under; `UsageError` when there is nothing."""
        key = self.identity.key
        if key is None:
            raise UsageError("this consumer has no name to store offsets under; pass name= to consumer()")
        return key


@dataclass(slots=True, eq=False)
class Probe:
    """A request that wants an answer: a poll, or a readiness wait (`wait`), which is `watched` from its begin on.

    `ticket` is the commit of a committing poll once the store has it: the request then ends with it, or is ended as one
    whose outcome nobody knows.
    """

    call: Reply
    member: Member
    limits: Limits
    wait_until: float
    specs: Sequence[abc.FetchTarget]
    targets: list[Target] = field(default_factory=list[Target])
    wait: WaitTerms | None = None
    watched: Watched | None = None
    parked: Parked | None = None
    ticket: object | None = None

    def check(self) -> None:
        """Refuse what a decoder would refuse (S4)."""
        limits = self.limits
        if self.wait is not None:
            self.wait.check()
        if not 1 <= len(self.specs) <= abc.TARGETS_MAX:
            raise ConfigError(f"{len(self.specs)} targets in one request; 1 to {abc.TARGETS_MAX} are allowed")
        if not 1 <= limits.count <= COUNT_MAX:
            raise ConfigError(f"count={limits.count}; 1 to {COUNT_MAX} are allowed")
        if not 1 <= limits.min_count <= limits.count:
            raise ConfigError(f"min_count={limits.min_count}; 1 to count={limits.count} are allowed")
        if not 0 <= limits.max_wait <= WIRE_WAIT_MAX:
            raise ConfigError(f"max_wait={limits.max_wait}; 0 to {WIRE_WAIT_MAX:g} seconds are allowed")
        if limits.max_bytes < 1:
            raise ConfigError(f"max_bytes={limits.max_bytes}; at least 1 is needed")
        if self.wait is None and limits.max_wait > 0 and len(self.specs) != 1:
            raise ConfigError(f"a poll that waits takes one target, not {len(self.specs)}; use wait_ready for several")
        if limits.commit:
            if len(self.specs) != 1:
                raise ConfigError(f"a poll that commits takes one target, not {len(self.specs)}")
            _ = self.member.key  # refuses those who store nothing

    def reply(self) -> abc.PollReply:
        """What was read."""
        return abc.PollReply(tuple(target.reply() for target in self.targets))
