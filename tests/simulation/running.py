"""Many seeds at once, one process per core: what went wrong in which, and what they have been through.

Not here: one history (`world`), the verdict on it (`checkers`).
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType

from tarry.testing import Backend
from tests.simulation.checkers import judge
from tests.simulation.coverage import coverage
from tests.simulation.history import Asked
from tests.simulation.world import simulate

CHUNK = 50
"""Seeds that a process takes at a time."""
SPIN = 60.0
"""Seconds of CPU after which a history is taken for one that turns in a circle; the longest take one."""


@dataclass(slots=True)
class Tally:
    """What several seeds came to."""

    seeds: int = 0
    injected: int = 0
    requests: int = 0
    covered: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    def add(self, other: Tally) -> None:
        """Take another one in."""
        self.seeds += other.seeds
        self.injected += other.injected
        self.requests += other.requests
        self.covered += other.covered
        self.wrong += other.wrong

    def __str__(self) -> str:
        lines = [f"{self.seeds} seeds, {self.injected} with faults, {self.requests} requests, {len(self.wrong)} wrong"]
        lines += [f"  {count:8} {what}" for what, count in sorted(self.covered.items(), key=lambda item: -item[1])]
        return "\n".join([*lines, *self.wrong])


def command(seed: int, backend: Backend) -> str:
    """How to see one history again."""
    return f"make simulate SEED={seed}" + ("" if backend == "trio" else f" BACKEND={backend}")


def run_one(seed: int, backend: Backend) -> Tally:
    """One seed, judged."""
    with _watched(seed, backend):
        history = simulate(seed, backend)
    wrong = judge(history)
    covered = coverage(history)
    tally = Tally(1, int(bool(covered)), sum(1 for _ in history.of(Asked)), Counter(covered))
    if wrong:
        tally.wrong.append(_verdict(seed, backend, wrong))
    return tally


def _verdict(seed: int, backend: Backend, wrong: list[str]) -> str:
    return f"seed {seed} on {backend}: {'; '.join(wrong[:3])} (again with: {command(seed, backend)})"


@contextmanager
def _watched(seed: int, backend: Backend) -> Generator[None]:
    """Virtual time that stands still would hang the whole run: end the process, say where and which seed."""

    def give_up(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame))
        verdict = _verdict(seed, backend, [f"spins: no end after {SPIN:g} s of CPU"])
        os.write(2, f"{where}\n{verdict}\n".encode())
        os._exit(1)

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, SPIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run_chunk(backend: Backend, seeds: range) -> Tally:
    """Several seeds, one after the other."""
    gc.set_threshold(20_000)  # histories are large and short-lived: a sixth of the time went there
    tally = Tally()
    for seed in seeds:
        tally.add(run_one(seed, backend))
    return tally


def run_many(backend: Backend, chunks: Iterable[range]) -> Iterator[Tally]:
    """Chunks as they get ready; no more are handed out than there are processes for."""
    todo = iter(chunks)
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        out: set[Future[Tally]] = {
            workers.submit(run_chunk, backend, c) for c in islice(todo, 2 * (os.cpu_count() or 1))
        }
        while out:
            done = next(as_completed(out))
            out.remove(done)
            yield done.result()
            out.update(workers.submit(run_chunk, backend, chunk) for chunk in islice(todo, 1))
