"""What a history has been through, so that a simulation in which nothing happens is noticed.

Here: each fault, each thing that the world does, and the pairs that are hard: what happens *while* something else is
under way. `coverage` names those that a history has met; how many histories have met each of them is what counts.
Not here: any opinion on the outcome (`checkers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tarry.brokers.local.broker import GroupSession
from tarry.testing import Call
from tests.simulation.history import (
    Abandoned,
    Acted,
    Answered,
    Asked,
    Closed,
    Closing,
    Delivered,
    Event,
    Failed,
    Fault,
    Finished,
    Grown,
    History,
    Hooked,
    Killed,
    Led,
    Reported,
    Run,
    Shared,
    Span,
    Undecoded,
)

REFUSALS = ("not_accepted", "capacity", "damage")
FAULTS = ("delay", "slow_sync", "lose_request", "lose_reply", *REFUSALS, "split", "kill", "crash")
ACTS = ("stop", "cancel", "fail", "storm", "pause", "move", "shuffle", "silence", "forget", "faint")
PAIRS = (
    "cancel during accumulation",
    "cancel during committing fetch",
    "cancel during join",
    "stop during committing fetch",
    "stop during release",
    "stop with work in hand",
    "kill during committing fetch",
    "kill with work in hand",
    "split during committing fetch",
    "crash during committing fetch",
    "crash during store",
    "crash during change of group",
    "rebalance during committing fetch",
    "rebalance with work in hand",
    "rebalance during start",
    "refusal during rebalance",
    "lost reply of a committing fetch",
    "lost reply of a store",
    "lost reply of a release",
    "lost reply of a join",
    "eviction",
    "evictions in a row",
    "forget during committing fetch",
    "forget during store",
    "forget during hook",
    "forget with work in hand",
    "a handler fails",
    "what a handler failed on comes again",
    "pause with work in hand",
    "committed batch delivered after a loss",
    "body outlasts a shutdown",
    "body outlasts a hand-over",
    "move during committing fetch",
    "move during readiness wait",
    "move with work in hand",
    "move of a silent leader",
    "silence during committing fetch",
    "silence with work in hand",
    "damage of poll",
    "damage of wait_ready",
    "damage of resolve",
    "damage of store_offset",
    "damage of route",
    "a partition stops",
    "a partition resumes",
    "others go on beside a stopped partition",
    "rebalance of a stopped partition",
    "shutdown with a stopped partition",
    "growth",
    "growth with work in hand",
    "growth during readiness wait",
    "crash right after growth",
    "crash before a group has saved a growth",
    "what came late is read in a group",
    "what came late is read by who follows the topic",
    "rebalance of what came late",
    "a value does not decode",
    "others go on beside what does not decode",
    "what did not decode is read as bytes",
    "rebalance of what does not decode",
)
REQUIRED = (*FAULTS, *ACTS, *PAIRS)
RIGHT_AFTER_S = 0.1
GROUP_CHANGES = ("open_session", "release", "leave")


def coverage(history: History) -> set[str]:
    """The names of what a history has met."""
    watch = Watch()
    return {name for event in history.events for name in watch.look(event)}


class Watch:
    """What is under way at a moment of a history: requests, work in hand, partitions that are wanted back."""

    def __init__(self) -> None:
        self.out: dict[str, list[Call]] = defaultdict(list)
        self.hands: dict[str, set[int]] = defaultdict(set)
        self.shared = Shared(0.0, {}, set(), [])
        self.led = Led(0.0, [], set())
        self.evicted: dict[str, float] = {}
        self.hooks: set[str] = set()
        self.failed: set[Span] = set()
        self.stopped: dict[str, set[int]] = defaultdict(set)
        self.late: set[int] = set()
        self.undecoded: dict[tuple[int, int], Run] = {}
        self.grown_at = -1.0
        self.is_unsaved = False

    def look(self, event: Event) -> Iterator[str]:
        """What this event means at this moment; then it is taken in."""
        match event:
            case Acted():
                yield from self._acted(event)
            case Fault():
                yield from self._fault(event)
            case Shared():
                yield from self._rebalance(event)
                self.shared, self.is_unsaved = event, False
            case Led():
                yield from self._leading(event)
                self.led = event
            case Undecoded():
                yield "a value does not decode"
                self.undecoded[event.partition, event.offset] = event.run
            case Grown():
                yield from self._growth(event)
            case Abandoned():
                if event.min_count > 1:
                    yield "cancel during accumulation"
                yield from self._during("cancel", event.run.member)
            case Closing():
                if event.why in ("stopped", "the world is over"):
                    yield from self._during("stop", event.run.member)
                if self.stopped.pop(event.run.member, None):
                    yield "shutdown with a stopped partition"
            case Reported(name="partition_stopped" | "partition_resumed" | "partitions_lost"):
                yield from self._stopping(event)
            case Closed():
                if event.hand and event.at >= (event.run.closing_at or 0.0) + event.run.drain_timeout:
                    yield "body outlasts a shutdown"
            case Reported(name="evicted"):
                yield "eviction"
                if event.at < self.evicted.get(event.member, -1.0) + 1.0:
                    yield "evictions in a row"
                self.evicted[event.member] = event.at
            case _:
                yield from self._note(event)

    def _note(self, event: Event) -> Iterator[str]:
        match event:
            case Asked():
                self.out[event.member].append(event.call)
                if event.call.operation == "release" and self._holds(event.member, event.call):
                    yield "body outlasts a hand-over"
            case Answered():
                self.out[event.member] = [call for call in self.out[event.member] if call is not event.call]
            case Hooked(hook="inside" | "outside"):
                (self.hooks.add if event.hook == "inside" else self.hooks.discard)(event.run.member)
            case Failed():
                yield "a handler fails"
                self.failed.update(event.spans)
            case Delivered():
                if Span(event.partition, event.offsets[0], event.offsets[0], event.ownership) in self.failed:
                    yield "what a handler failed on comes again"
                self.hands[event.run.member].add(event.partition)
                if any(run is event.run for run in self.undecoded.values()):
                    yield "others go on beside what does not decode"
                if any((event.partition, offset) in self.undecoded for offset in event.offsets):
                    yield "what did not decode is read as bytes"
                if event.partition in self.late:
                    yield f"what came late is read {'in a group' if event.ownership else 'by who follows the topic'}"
                if self.stopped[event.run.member] - {event.partition}:
                    yield "others go on beside a stopped partition"
                _, ownership = self.shared.owners.get(event.partition, ("", 0))
                if event.ownership not in (0, ownership):
                    yield "committed batch delivered after a loss"
            case Finished() | Killed():
                self.hands[event.run.member].clear()
            case _:
                pass

    def _growth(self, event: Grown) -> Iterator[str]:
        yield "growth"
        self.late.update(event.partitions)
        self.grown_at, self.is_unsaved = event.at, bool(self.shared.members)
        if any(self.hands.values()):
            yield "growth with work in hand"
        if any(call.operation == "wait_ready" for calls in self.out.values() for call in calls):
            yield "growth during readiness wait"

    def _stopping(self, event: Reported) -> Iterator[str]:
        stopped = self.stopped[event.member]
        if event.name == "partitions_lost":
            stopped.clear()
            return
        at: Any = event.fields["partition"]
        (stopped.add if event.name == "partition_stopped" else stopped.discard)(at.partition)
        yield "a partition stops" if event.name == "partition_stopped" else "a partition resumes"

    def _holds(self, member: str, release: Call) -> bool:
        return any(at.partition in self.hands[member] for at in release.arguments["partitions"])

    def _during(self, what: str, member: str) -> Iterator[str]:
        calls = self.out[member]
        if any(map(_commits, calls)):
            yield f"{what} during committing fetch"
        for operation, name in (("release", "release"), ("open_session", "join"), ("store_offset", "store")):
            if any(call.operation == operation for call in calls):
                yield f"{what} during {name}"
        if self.hands[member]:
            yield f"{what} with work in hand"
        if member in self.hooks:
            yield f"{what} during hook"

    def _acted(self, event: Acted) -> Iterator[str]:
        yield event.action
        if event.member is not None:
            yield from self._during(event.action, event.member)

    def _fault(self, event: Fault) -> Iterator[str]:
        kind, call = event.kind, event.call
        yield kind
        if kind == "crash" and event.at <= self.grown_at + RIGHT_AFTER_S:
            yield "crash right after growth"
            if self.is_unsaved:
                yield "crash before a group has saved a growth"
        if kind == "crash":
            calls = [call for calls in self.out.values() for call in calls]
            names = {"store_offset": "store"} | dict.fromkeys(GROUP_CHANGES, "change of group")
            yield from (f"crash during {names[call.operation]}" for call in calls if call.operation in names)
            if any(map(_commits, calls)):
                yield "crash during committing fetch"
        if kind == "damage" and call is not None:
            yield f"damage of {call.operation}"
        if kind in ("not_accepted", "capacity") and self.shared.revoking:
            yield "refusal during rebalance"
        if kind == "lose_reply" and call is not None:
            names = {"store_offset": "store", "release": "release", "open_session": "join"}
            name = "committing fetch" if _commits(call) else names.get(call.operation, call.operation)
            yield f"lost reply of a {name}"

    def _leading(self, event: Led) -> Iterator[str]:
        before = self.led.leaders or event.leaders
        moved = {number for number, name in enumerate(event.leaders) if before[number] != name}
        hushed = {number for number, name in enumerate(before) if name in event.silent - self.led.silent}
        if any(before[number] in event.silent for number in moved):
            yield "move of a silent leader"
        for what, which in (("move", moved), ("silence", hushed)):
            calls = [call for calls in self.out.values() for call in calls if _names(call) & which]
            if any(map(_commits, calls)):
                yield f"{what} during committing fetch"
            if any(call.operation == "wait_ready" for call in calls):
                yield f"{what} during readiness wait"
            if any(which & hand for hand in self.hands.values()):
                yield f"{what} with work in hand"

    def _rebalance(self, event: Shared) -> Iterator[str]:
        before = self.shared
        moving = {
            number
            for number, owner in before.owners.items()
            if event.owners.get(number) != owner or number in event.revoking - before.revoking
        }
        losers = {before.owners[number][0] for number in moving}
        for calls in self.out.values():
            for call in calls:
                if _commits(call) and isinstance(call.session, GroupSession) and call.session.id in losers:
                    yield "rebalance during committing fetch"
                if call.operation in ("stored_offset", "resolve") and call.arguments["partition"].partition in moving:
                    yield "rebalance during start"
        if any(moving & hand for hand in self.hands.values()):
            yield "rebalance with work in hand"
        if any(at in moving for at, _ in self.undecoded):
            yield "rebalance of what does not decode"
        if moving & self.late:
            yield "rebalance of what came late"
        for stopped in self.stopped.values():
            if moving & stopped:
                yield "rebalance of a stopped partition"
                stopped -= moving


def _names(call: Call) -> set[int]:
    return {target.partition.partition for target in call.arguments.get("targets", ())}


def _commits(call: Call) -> bool:
    return bool(call.arguments.get("commit"))
