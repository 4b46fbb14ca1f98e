"""What can still happen twice or get lost: the table of docs/guarantees.md, as data.

In each situation a member of a group has finished messages 0 to 2 of a partition and has 3 in hand; 4 is of the same
batch, and more follow. Not here: how a situation is played (`test_what_can_happen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Mode = Literal["manual", "finished", "interval", "on_poll"]
MODES: Mapping[Mode, str] = {
    "manual": "manual",
    "finished": "`finished`",
    "interval": "`interval`",
    "on_poll": "`on_poll`",
}
BATCH = 5
IN_HAND = 3


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of messages in the end; all that are not named were worked on once, to the end.

    Args:
        again: the work was cut off, and the message came again.
        twice: the work was done twice.
        lost: the work was never done, and the message does not come again.
    """

    again: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = {"twice": self.twice, "cut off": self.again, "lost": self.lost}
        return ", ".join(f"{_offsets(offsets)} {word}" for word, offsets in parts.items() if offsets) or "-"


NOTHING = Fate()
AGAIN = Fate(again=(3,))
TWICE = Fate(twice=(3,))


@dataclass(frozen=True, slots=True)
class Situation:
    """A row: what happens, and what becomes of the messages in each mode.

    Args:
        timer_s: period of the timed modes, in seconds; None: the timer has not struck when it happens.
    """

    name: str
    text: str
    fates: Mapping[Mode, Fate]
    timer_s: float | None


def _row(
    name: str, text: str, manual: Fate, finished: Fate, interval: Fate, on_poll: Fate, *, struck: bool = True
) -> Situation:
    fates: dict[Mode, Fate] = {"manual": manual, "finished": finished, "interval": interval, "on_poll": on_poll}
    return Situation(name, text, fates, 0.1 if struck else None)


def _same(name: str, text: str, fate: Fate) -> Situation:
    return _row(name, text, fate, fate, fate, fate)


SITUATIONS = (
    _same("stop-in-time", "`shutdown()` from another task; the work ends within `drain_timeout`", NOTHING),
    _same("stop-late", "`shutdown()` from another task; the work outlasts `drain_timeout`, and ends later", TWICE),
    _same("error", "the work raises, and the error leaves `async with`", AGAIN),
    _same("break", "the loop is left by `break` or `return`", AGAIN),
    _same("cancel", "the task is cancelled at work", AGAIN),
    _same("lost-answers", "the log's answers to a store and to a fetch get lost; then the work raises", AGAIN),
    _row("kill", "`kill -9` at work", AGAIN, AGAIN, Fate(lost=(3,)), Fate(lost=(3, 4))),
    _row(
        "kill-before-timer",
        "`kill -9` at work, before the timer has struck",
        AGAIN,
        Fate(twice=(0, 1, 2), again=(3,)),
        Fate(twice=(0, 1, 2), again=(3,)),
        Fate(lost=(3, 4)),
        struck=False,
    ),
    _row("kill-behind", "`kill -9` behind the work, before the next store", TWICE, TWICE, NOTHING, Fate(lost=(4,))),
    _same("kill-idle", "`kill -9` while everything is finished and stored, and the loop waits for more", NOTHING),
    _same("hand-over", "another member joins and gets the partition; the work ends within `drain_timeout`", NOTHING),
    _same("hand-over-late", "the same; the work outlasts `drain_timeout`, and ends later", TWICE),
    _row(
        "taken",
        "the same; the work outlasts `rebalance_timeout`, because `drain_timeout` is longer",
        TWICE,
        TWICE,
        NOTHING,
        TWICE,
    ),
    _row(
        "evicted",
        "evicted at work, which ends later; another member gets the partition",
        TWICE,
        TWICE,
        NOTHING,
        NOTHING,
    ),
    _row(
        "evicted-before-timer",
        "the same, before the timer has struck",
        TWICE,
        Fate(twice=(0, 1, 2, 3)),
        Fate(twice=(0, 1, 2, 3)),
        NOTHING,
        struck=False,
    ),
    _row("evicted-error", "evicted at work, which then raises", AGAIN, AGAIN, Fate(lost=(3,)), Fate(lost=(3, 4))),
)


def table() -> str:
    """The rows as they stand in the documentation."""
    head = [f"| situation | {' | '.join(MODES.values())} |", f"|{' --- |' * (len(MODES) + 1)}"]
    rows = [f"| {row.text} | {' | '.join(str(row.fates[mode]) for mode in MODES)} |" for row in SITUATIONS]
    return "\n".join([*head, *rows])


def _offsets(offsets: tuple[int, ...]) -> str:
    if len(offsets) > 2 and offsets == tuple(range(offsets[0], offsets[-1] + 1)):
        return f"{offsets[0]} to {offsets[-1]}"
    return " and ".join(map(str, offsets))
