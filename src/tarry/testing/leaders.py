"""Several leaders over one log: who leads which partition, moves, and leaders that are away.

The log itself stays one; a leader is a name that a request has to carry. Who asks one that does not lead what the
request names is told so, a request that waits ends when its partition moves, and what a leader that is away is asked
for is lost. Coordination (sessions, groups, topics, appends) has no leader here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from tarry.abc import Leader
from tarry.errors import LogUnavailable, NotAccepted
from tarry.testing.arguments import check_int
from tarry.testing.scripted import Call, CarryOut, SessionOperation
from tarry.testing.unanswered import given_up
from tarry.types import TopicPartition, named_partition

LEADERS_MAX = 12
OF_A_PARTITION: frozenset[SessionOperation] = frozenset(("resolve", "stored_offset", "store_offset"))
"""Requests that a session takes to the leader of their partition by itself."""


@dataclass(slots=True, eq=False)
class _Stay:
    """A request that a leader has and has not answered."""

    leader: Leader
    call: Call
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def waits_for(self, partition: TopicPartition) -> bool:
        """It is parked, and names this one."""
        return bool(self.call.arguments.get("max_wait")) and partition in named(self.call)


class Leaders:
    """Who leads what: partition n is led by leader n modulo their number, until it moves."""

    def __init__(self, count: int) -> None:
        check_int("leaders", count, 1, LEADERS_MAX)
        self.names = tuple(Leader(f"leader-{number}") for number in range(count))
        self._moved: dict[TopicPartition, Leader] = {}
        self._away: dict[Leader, None] = {}
        self._crashed: dict[Leader, None] = {}
        self._stays: dict[_Stay, None] = {}

    def of(self, partition: TopicPartition) -> Leader:
        """Who leads a partition now."""
        return self._of(named_partition(partition, ()))

    def _of(self, partition: TopicPartition) -> Leader:
        """As `of`, of what is one for sure: each request asks."""
        return self._moved.get(partition) or self.names[partition.partition % len(self.names)]

    def move(self, partition: TopicPartition, to: int) -> None:
        """Another one leads it from now on; what waits for it at the former one is refused (58)."""
        leader, moved = self._named(to), named_partition(partition, ())
        if leader != self._of(moved):
            self._moved[moved] = leader
            self._end(lambda stay: stay.waits_for(moved))

    def go(self, number: int) -> None:
        """A leader is away until `come`: nothing that it has been asked or will be asked for is answered."""
        leader = self._named(number)
        self._away[leader] = None
        self._end(lambda stay: stay.leader == leader)

    def crash(self, number: int) -> None:
        """As `go`, and its connections end: who waits for an answer, or asks until `come`, is told so at once."""
        self._crashed[self._named(number)] = None
        self.go(number)

    def come(self, number: int) -> None:
        """It is back; what was lost stays lost."""
        self._away.pop(self._named(number), None)
        self._crashed.pop(self._named(number), None)

    def is_away(self, number: int) -> bool:
        """It answers nothing now."""
        return self._named(number) in self._away

    def _named(self, number: int) -> Leader:
        check_int("leader", number, 0, len(self.names) - 1)
        return self.names[number]

    async def serve(self, call: Call, carry_out: CarryOut) -> Any:
        """Carry out a request that has arrived, if its leader is there and leads what it names."""
        leader = self._asked(call)
        if leader is None:
            return await self._answer(call, carry_out)
        if leader in self._crashed:
            await anyio.lowlevel.checkpoint()
            raise LogUnavailable(f"{leader}: nobody listens; nothing was applied")
        if leader in self._away:
            await anyio.sleep_forever()
        if any(self._of(partition) != leader for partition in self._doubtful(call)):
            await anyio.lowlevel.checkpoint()
            names = ", ".join(map(str, named(call)))
            raise NotAccepted(f"{leader} does not lead all of {names}; nothing was applied")
        stay = _Stay(leader, call)
        self._stays[stay] = None
        try:
            with stay.scope:
                return await carry_out()
        finally:
            del self._stays[stay]
        if leader in self._crashed:
            raise given_up(call)
        if leader in self._away:
            await anyio.sleep_forever()
        raise NotAccepted(f"{leader} does not lead {named(call)[0]} or another one any more; nothing was applied")

    def _doubtful(self, call: Call) -> Sequence[TopicPartition]:
        """Those of a request that might be led by another one: where none has moved, those that it names anew."""
        change = call.arguments.get("change")
        if change is None or change.version == 0 or self._moved:
            return named(call)
        return [target.partition for target in change.named]

    async def _answer(self, call: Call, carry_out: CarryOut) -> Any:
        if call.operation != "route":
            return await carry_out()
        await anyio.lowlevel.checkpoint()
        return self._of(call.arguments["partition"])

    def _asked(self, call: Call) -> Leader | None:
        """Whom a request goes to; None: no leader."""
        if call.operation in OF_A_PARTITION:
            return self._of(call.arguments["partition"])
        leader: Leader | None = call.arguments.get("leader")
        return leader

    def _end(self, chosen: Callable[[_Stay], bool]) -> None:
        for stay in self._stays:
            if chosen(stay):
                stay.scope.cancel()


def named(call: Call) -> list[TopicPartition]:
    """The partitions that a request is about."""
    if call.operation in OF_A_PARTITION or call.operation == "route":
        return [call.arguments["partition"]]
    return [target.partition for target in call.arguments.get("targets", ())]
