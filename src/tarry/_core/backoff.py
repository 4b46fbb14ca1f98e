"""How long to wait before asking again after a refusal, and when to speak of it (C91, C92)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

LINE_S = 10.0
"""Of what keeps happening the first one is logged, and then at most one in so many seconds, with the number of all."""

QUIET_S = 60.0
"""Refusals so far apart are no series: with a wait of 30 s, the 10 s it may be late and a pause they come closer."""


class Backoff:
    """Doubling delays with full jitter: 50 ms, 100 ms ... 2 s; success resets.

    Args:
        random: a number in [0, 1); None gives the upper end each time (pacing, where nobody else has to be avoided).
    """

    def __init__(self, *, first_s: float = 0.05, max_s: float = 2.0, random: Callable[[], float] | None = None) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._random = random
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """Refusals since the last success."""
        return self._attempts

    def next(self, at_least: float = 0.0) -> float:
        """The next delay in seconds; `at_least` is a hint of the other side and the minimum."""
        ceiling = min(self._first_s * 2.0 ** min(self._attempts, 32), self._max_s)
        self._attempts += 1
        delay = ceiling if self._random is None else ceiling * self._random()
        return max(delay, at_least)

    def reset(self) -> None:
        """It worked."""
        self._attempts = 0


class Lines:
    """When to write a line about things of one kind."""

    def __init__(self) -> None:
        self._logged_at: float | None = None
        self._unlogged = 0

    def note(self, now: float) -> int | None:
        """One more has happened.

        Returns:
            For how many a line is to be written: all since the last line; None: no line now.
        """
        self._unlogged += 1
        if self._logged_at is not None and now - self._logged_at < LINE_S:
            return None
        count, self._unlogged, self._logged_at = self._unlogged, 0, now
        return count


class Noted(NamedTuple):
    """What a refusal asks for.

    Args:
        line: so many refusals are to be logged in one line; None: no line now.
        is_overdue: the reader has to know.
    """

    line: int | None
    is_overdue: bool


class Refusals:
    """A series of refusals of one kind of request; a success ends it, and so does a refusal about something else.

    So does a time without any: then there was nothing to ask for, and nobody to be told of a success.

    Args:
        limit_s: seconds for which refusals are nobody's business; from then on the reader is told of each.
        random: as for `Backoff`.
    """

    def __init__(self, *, limit_s: float, random: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._backoff = Backoff(random=random)
        self._about: object = None
        self._since: float | None = None
        self._last = -inf
        self._lines = Lines()

    @property
    def count(self) -> int:
        """Refusals since the last success."""
        return self._backoff.attempts

    def note(self, now: float, about: object = None) -> Noted:
        """The request was refused; `about`: what has to change before it can succeed, compared by equality."""
        if now - self._last >= QUIET_S:
            self.reset()
        self._last = now
        if about != self._about:
            self._about, self._since = about, None
        since = self._since = now if self._since is None else self._since
        return Noted(self._lines.note(now), now - since >= self._limit_s)

    def pause(self) -> float:
        """Seconds to wait before the request is made again."""
        return self._backoff.next()

    def reset(self) -> None:
        """It worked."""
        self._backoff.reset()
        self._since = None
        self._lines = Lines()
