"""Whole consumers over the fault layer and the real pump, judged by I1-I9 under many seeds (design 13).

A failure names its seeds and the command that tells one of them: `make simulate SEED=n`.
"""

from __future__ import annotations

from functools import cache

import pytest

from tarry.testing import Backend
from tests.marks import rule
from tests.simulation.campaign import CHUNK, Tally, again, tally
from tests.simulation.coverage import REQUIRED

SEEDS: dict[Backend, int] = {"trio": 2000, "asyncio": 500}
CHUNKS: list[tuple[Backend, int]] = [
    (backend, first) for backend, seeds in SEEDS.items() for first in range(0, seeds, CHUNK)
]


@cache
def judged(backend: Backend, first: int) -> Tally:
    return tally(range(first, first + CHUNK), backend)


@pytest.mark.slow
@rule("I1", "I2", "I7")
@pytest.mark.parametrize(("backend", "first"), CHUNKS)
def test_no_history_is_wrong(backend: Backend, first: int) -> None:
    found = judged(backend, first)
    assert found.seeds == CHUNK
    assert not found.wrong, "".join(
        f"\nseed {seed} on {backend}: {wrong[0]}\n    again with: {again(seed, backend)}"
        for seed, wrong in found.wrong.items()
    )


@pytest.mark.slow
@pytest.mark.timeout(900)  # when it is run alone, it has to tell all histories first
def test_each_fault_and_each_pair_was_met_often() -> None:
    """At least 100 times in 2,000 histories, and there is none in which nothing happens."""
    total = Tally()
    for backend, first in CHUNKS:
        if backend == "trio":
            total.add(judged(backend, first))
    rare = {name: total.met[name] for name in REQUIRED if total.met[name] * 2000 < 100 * total.seeds}
    assert (rare, total.idle) == ({}, 0)
