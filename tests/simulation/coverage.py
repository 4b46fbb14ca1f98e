"""What a history has been through: counted, so that a simulation that injects nothing is noticed.

Each fault, each thing that the world does to a member, and the pairs that are hard: what happens *while* something else
is under way. A number says in how many histories it was there. Not here: what is right or wrong (`checkers`).
"""

from __future__ import annotations

from tarry.testing import Call
from tests.simulation.history import (
    Abandoned,
    Acted,
    Answered,
    Asked,
    Closing,
    Event,
    Fault,
    History,
    Killed,
    Reported,
    Shared,
)

FAULTS = (
    "delay",
    "slow_sync",
    "lose_request",
    "lose_reply",
    "not_accepted",
    "capacity",
    "split",
    "kill",
    "crash",
)
ACTIONS = ("stop", "cancel", "fail")
PAIRS = (
    "rebalance during committing fetch",
    "cancel during accumulation",
    "stop during release",
    "stop during committing fetch",
    "lost reply of a committing fetch",
    "refusal during rebalance",
    "crash during committing fetch",
    "crash during rebalance",
    "kill with messages in hand",
    "cut off during rebalance",
)
REQUIRED = (*FAULTS, *ACTIONS, *PAIRS)
"""Each at least a hundred times in two thousand histories."""


def coverage(history: History) -> set[str]:
    """What was there in one history; empty when nothing was injected."""
    walk = _Walk()
    for event in history.events:
        walk.see(event)
    return walk.found


class _Walk:
    """A history from its beginning, with what is under way: requests that are out, partitions that are wanted back."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.out: dict[int, tuple[str, Call]] = {}
        self.is_moving = False

    def see(self, event: Event) -> None:
        match event:
            case Asked():
                self.out[id(event.call)] = (event.member, event.call)
            case Answered():
                self.out.pop(id(event.call), None)
            case Shared():
                self.is_moving = bool(event.revoking)
                self._note(self.is_moving and self._commits(), "rebalance during committing fetch")
            case Fault():
                self._fault(event)
            case Acted() if event.action in ACTIONS:
                self.found.add(event.action)
            case Abandoned():
                self._note(event.min_count > 1, "cancel during accumulation")
            case Closing():
                self._note(self._is_out("release", event.run.member), "stop during release")
                self._note(self._commits(event.run.member), "stop during committing fetch")
            case Killed():
                self._note(bool(event.hand), "kill with messages in hand")
            case Reported():
                self._note(event.name == "evicted", "eviction")
            case _:
                pass

    def _fault(self, event: Fault) -> None:
        self.found.add(event.kind)
        self._note(event.kind == "lose_reply" and _is_committing(event.call), "lost reply of a committing fetch")
        self._note(event.kind in ("not_accepted", "capacity") and self.is_moving, "refusal during rebalance")
        self._note(event.kind == "crash" and self._commits(), "crash during committing fetch")
        self._note(event.kind == "crash" and self.is_moving, "crash during rebalance")
        self._note(event.kind == "split" and self.is_moving, "cut off during rebalance")

    def _note(self, is_there: bool, what: str) -> None:  # the condition, where it is short
        if is_there:
            self.found.add(what)

    def _commits(self, member: str | None = None) -> bool:
        return any(_is_committing(call) and member in (None, whose) for whose, call in self.out.values())

    def _is_out(self, operation: str, member: str) -> bool:
        return any(call.operation == operation and member == whose for whose, call in self.out.values())


def _is_committing(call: Call | None) -> bool:
    return call is not None and call.operation == "poll" and bool(call.arguments["commit"])
