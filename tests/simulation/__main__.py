"""`python -m tests.simulation`: one seed with everything that happened, or many until the time is over.

make simulate SEED=17              one history, event by event, and what is wrong with it
make simulate SECONDS=600          as many seeds as fit, a process per core; SEEDS=100000 for so many
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import cast

from tarry.testing import Backend
from tests.simulation.checkers import judge
from tests.simulation.running import CHUNK, Tally, run_many
from tests.simulation.world import Plan, simulate


def show(seed: int, backend: Backend) -> int:
    """Tell one history."""
    print(Plan.of(seed))
    history = simulate(seed, backend)
    for event in history.events:
        print(f"{event.at:9.3f} {event}")
    wrong = judge(history)
    print("\n".join(wrong) or "nothing is wrong")
    return int(bool(wrong))


def run(backend: Backend, first: int, seeds: int | None, seconds: float | None) -> int:
    """Run many; whether something was wrong."""
    until = None if seconds is None else time.monotonic() + seconds
    last = None if seeds is None else first + seeds

    def chunks() -> Iterator[range]:
        begin = first
        while (until is None or time.monotonic() < until) and (last is None or begin < last):
            end = begin + CHUNK if last is None else min(begin + CHUNK, last)
            yield range(begin, end)
            begin = end

    total, told = Tally(), 0
    for tally in run_many(backend, chunks()):
        total.add(tally)
        for wrong in tally.wrong:
            print(wrong, flush=True)
        if total.seeds >= told + 1000:
            told = total.seeds
            print(f"{total.seeds} seeds, {len(total.wrong)} wrong", flush=True)
    print(total)
    return int(bool(total.wrong))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Whole histories under a seed.")
    parser.add_argument("--seed", type=int, help="tell this one")
    parser.add_argument("--seconds", type=float, help="run for so long")
    parser.add_argument("--seeds", type=int, help="run so many")
    parser.add_argument("--first", type=int, default=0, help="begin with this one (%(default)s)")
    parser.add_argument("--backend", choices=("trio", "asyncio"), default="trio")
    options = parser.parse_args()
    backend = cast(Backend, options.backend)
    if options.seed is not None:
        return show(options.seed, backend)
    seconds = 60.0 if options.seconds is None and options.seeds is None else options.seconds
    return run(backend, options.first, options.seeds, seconds)


if __name__ == "__main__":
    sys.exit(main())
