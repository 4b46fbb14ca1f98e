"""`python -m tests.simulation`: one seed with its trace, or many with their counters. See `make simulate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tarry.testing import Backend
from tests.simulation.campaign import Tally, again, campaign
from tests.simulation.checkers import judge
from tests.simulation.history import History
from tests.simulation.world import Plan, simulate

SEEDS = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code says whether anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="tell this one, event by event")
    parser.add_argument("--seeds", type=int, help=f"judge so many; {SEEDS} unless there is a time")
    parser.add_argument("--seconds", type=float, help="judge as many as there is time for")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, help="processes; one per core unless said otherwise")
    parser.add_argument("--backend", choices=["trio", "asyncio"], default="trio")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _tell(options.seed, options.backend)
    seeds = options.seeds if options.seeds or options.seconds else SEEDS
    return _judge_many(options.backend, options.first, seeds, options.seconds, options.jobs)


def _tell(seed: int, backend: Backend) -> int:
    history = History()
    try:
        simulate(seed, backend, history)
    finally:  # also what was interrupted has a trace
        print(Plan.of(seed), *history.trace(), sep="\n")
    wrong = judge(history)
    print(*(f"WRONG {line}" for line in wrong), f"seed {seed} on {backend}: {len(wrong)} findings", sep="\n")
    return 1 if wrong else 0


def _judge_many(backend: Backend, first: int, seeds: int | None, seconds: float | None, jobs: int | None) -> int:
    total = Tally()
    for part in campaign(backend, first=first, seeds=seeds, seconds=seconds, jobs=jobs):
        total.add(part)
        for seed, wrong in part.wrong.items():
            print(f"seed {seed}: {wrong[0]}\n    again with: {again(seed, backend)}", flush=True)
    print(total)
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
