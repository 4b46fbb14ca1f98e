"""One request that may wait at the log: who asks, what for, how far it was read, and the reply made of that.

Not here: when it is looked at again, and what it then gets (`polls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tarry import abc
from tarry._core.readiness import Wait
from tarry._core.waiters import Parked
from tarry._wire.batch import RUN_OVERHEAD
from tarry.brokers.local.view import Partition
from tarry.config import COUNT_MAX, WIRE_WAIT_MAX
from tarry.errors import ConfigError, NotAMember
from tarry.types import Position, Run


class Reply(Protocol):
    """Where an answer goes (`_runtime.bridge.Call`)."""

    def reply(self, answer: Any) -> None:
        """Answer once."""
        ...


@dataclass(slots=True, eq=False)
class Member:
    """One open session: who it is, and its requests that are not answered yet. `why`: what to say once it is over."""

    identity: abc.ConsumerIdentity
    open: bool = True
    why: str = "the session has left; open a new consumer"
    calls: dict[Reply, None] = field(default_factory=dict[Reply, None])

    def check(self) -> None:
        """Refuse a session that is over."""
        if not self.open:
            raise self.refusal()

    def refusal(self) -> NotAMember:
        """What its requests get once it is over."""
        return NotAMember(self.why)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request asks for."""

    count: int
    max_bytes: int
    min_count: int
    max_wait: float


@dataclass(slots=True, eq=False)
class Target:
    """One target of a probe: where it stands, and what was read for it so far.

    `seen_end` and `seen_bytes` are what was visible when its read began: a read that ends in front of `seen_end` was
    ended by a limit; what came later belongs to the next look (S27).
    """

    spec: abc.FetchTarget
    part: Partition
    asked: Position
    fresh_history: bool
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
        return not self.fresh_history and self.part.messages_from(self.asked) > 0

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
        part, at = self.part, self.asked if self.fresh_history else self.begin
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
class Probe:
    """A request that wants an answer: a poll (`targets`) or a readiness wait (`wait`)."""

    call: Reply
    member: Member
    limits: Limits
    wait_until: float
    specs: Sequence[abc.FetchTarget]
    targets: list[Target] = field(default_factory=list[Target])
    wait: Wait | None = None
    parked: Parked | None = None

    def check(self) -> None:
        """Refuse what a decoder would refuse (S4)."""
        limits = self.limits
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

    def reply(self) -> abc.PollReply:
        """What was read."""
        return abc.PollReply(tuple(target.reply() for target in self.targets))
