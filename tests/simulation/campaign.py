"""Many seeds: each simulated, judged and counted; in this process, or in one process per core.

Here: what a number of seeds comes to (`Tally`). Not here: what to do with it (`__main__`, `test_simulation`).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from time import monotonic, process_time

from tarry.testing import Backend
from tests.simulation.checkers import judge
from tests.simulation.coverage import ACTS, FAULTS, coverage
from tests.simulation.history import Asked
from tests.simulation.world import simulate

CHUNK = 50


@dataclass(slots=True)
class Tally:
    """What some seeds came to: how many, what was wrong with which of them, and in how many what has happened.

    In the `idle` ones nothing did.
    """

    seeds: int = 0
    idle: int = 0
    wrong: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    met: Counter[str] = field(default_factory=Counter[str])
    requests: int = 0
    cpu_s: float = 0.0

    def add(self, other: Tally) -> None:
        """Take another tally in."""
        self.seeds += other.seeds
        self.idle += other.idle
        self.wrong |= other.wrong
        self.met += other.met
        self.requests += other.requests
        self.cpu_s += other.cpu_s

    def __str__(self) -> str:
        each = max(self.seeds, 1)
        lines = [f"{count:8} x {name}" for name, count in sorted(self.met.items(), key=lambda item: -item[1])]
        lines.append(
            f"{self.seeds} histories, {self.requests / each:.0f} requests and {1000 * self.cpu_s / each:.1f} ms of CPU "
            f"on average; {len(self.wrong)} are wrong"
        )
        return "\n".join(lines)


def tally(seeds: Iterable[int], backend: Backend) -> Tally:
    """Simulate and judge."""
    total, began = Tally(), process_time()
    for seed in seeds:
        history = simulate(seed, backend)
        total.seeds += 1
        met = coverage(history)
        total.met.update(met)
        total.idle += met.isdisjoint((*FAULTS, *ACTS))
        total.requests += sum(isinstance(event, Asked) for event in history.events)
        wrong = judge(history)
        if wrong:
            total.wrong[seed] = wrong
    total.cpu_s = process_time() - began
    return total


def again(seed: int, backend: Backend) -> str:
    """The command that repeats a seed."""
    return f"make simulate SEED={seed}{'' if backend == 'trio' else f' BACKEND={backend}'}"


def campaign(
    backend: Backend, *, first: int, seeds: int | None, seconds: float | None, jobs: int | None = None
) -> Iterator[Tally]:
    """Tallies of chunks of seeds as they come, from one process per core, until so many are done or time is over."""
    until = None if seconds is None else monotonic() + seconds
    workers = jobs or os.cpu_count() or 1
    starts = count(first, CHUNK) if seeds is None else range(first, first + seeds, CHUNK)
    end = None if seeds is None else first + seeds
    chunks = takewhile(lambda _: until is None or monotonic() < until, starts)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Tally]] = set()
        while True:
            for start in islice(chunks, 2 * workers - len(running)):
                chunk = range(start, start + CHUNK if end is None else min(start + CHUNK, end))
                running.add(pool.submit(tally, chunk, backend))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
