"""The one place that reads clocks and draws random numbers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from tarry._runtime.bridge import loop_now


def wall_ms() -> int:
    """Milliseconds since 1970 UTC, read at call time, so that freezegun and clock changes are seen."""
    return time.time_ns() // 1_000_000


def cpu_s() -> float:
    """Seconds of processor time that this process has used, all threads together."""
    return time.process_time()


def random_share() -> float:
    """A random number in [0, 1), for jitter."""
    return random.random()


def random_bytes(count: int) -> bytes:
    """Random bytes that no other process draws, for producer ids."""
    return os.urandom(count)


class SystemClock:
    """Monotonic time of the loop it was made in (virtual under a virtual loop) and the machine's wall clock."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = loop_now()

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return wall_ms()
