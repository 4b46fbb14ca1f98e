"""Time, CPU and memory of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path


class Stopwatch:
    """Wall time and CPU of all threads since it was made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def per_message(self, messages: int) -> dict[str, float]:
        """Rate and CPU for that many messages."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"rate": messages / wall, "cpu_us": cpu / messages * 1e6}

    def cpu_percent(self) -> float:
        """Share of one core."""
        return (time.process_time() - self._cpu) / (time.perf_counter() - self._wall) * 100


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def resident_kib() -> float:
    """Memory of this process that is in use; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except FileNotFoundError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]
