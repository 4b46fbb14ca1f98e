"""Thousands of short histories with faults, on both loops; all are judged, and together they must have seen it all."""

from __future__ import annotations

import pytest

from tarry.testing import Backend
from tests.marks import rule
from tests.simulation.conftest import CHUNK, CHUNKS, SEEDS, Begun
from tests.simulation.coverage import REQUIRED
from tests.simulation.history import Asked, Closed, Delivered, History
from tests.simulation.running import Tally
from tests.simulation.world import simulate

COVERED_MIN = 100
"""Histories out of the 2,000 on trio that each fault and each pair must be in."""
RARE_MIN = 25
"""For those that need three things at once."""
RARE = (
    "cancel during join",
    "stop during release",
    "split during committing fetch",
    "crash during store",
    "committed batch delivered after a loss",
    "body outlasts a hand-over",
    "forget during committing fetch",
    "forget during hook",
    "forget during store",
    "silence during committing fetch",
    "move during committing fetch",
    "kill during committing fetch",
    "pause with work in hand",
    "damage of resolve",
    "damage of store_offset",
    "a partition resumes",
    "others go on beside a stopped partition",
    "rebalance of a stopped partition",
    "shutdown with a stopped partition",
    "crash right after growth",
    "crash before a group has saved a growth",
    "what came late is read by who follows the topic",
    "others go on beside what does not decode",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@rule("I1", "I2", "I4")
@pytest.mark.parametrize(("backend", "first"), CHUNKS)
def test_nothing_is_wrong_with_any_history(backend: Backend, first: int, begun: Begun) -> None:
    tally = begun.futures[backend, first].result()
    assert tally.seeds == CHUNK
    assert tally.wrong == []


def test_the_histories_have_been_through_everything(begun: Begun) -> None:
    """A simulation that injects nothing proves nothing."""
    total = Tally()
    for (backend, _), future in begun.futures.items():
        if backend == "trio":
            total.add(future.result())
    assert total.seeds == SEEDS["trio"]
    needed = {what: RARE_MIN if what in RARE else COVERED_MIN for what in REQUIRED}
    assert {what: total.covered[what] for what in REQUIRED if total.covered[what] < needed[what]} == {}
    assert total.injected >= 0.9 * total.seeds


def test_a_seed_is_the_same_history_again_and_another_one_is_another() -> None:
    def told(history: History) -> list[str]:
        kinds = (Asked, Delivered, Closed)
        return [f"{event.at:.6f} {type(event).__name__}" for event in history.events if isinstance(event, kinds)]

    first = told(simulate(7, "trio"))
    assert first == told(simulate(7, "trio"))
    assert first != told(simulate(8, "trio"))
