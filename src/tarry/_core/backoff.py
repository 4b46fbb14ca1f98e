"""How long to wait before asking again after a refusal (C92)."""

from __future__ import annotations

from collections.abc import Callable


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
