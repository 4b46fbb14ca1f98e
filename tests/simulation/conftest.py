"""The simulated histories are begun with the session, in processes of low priority, and waited for at its end.

Not here: what they are judged by.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tarry.testing import Backend
from tests.simulation.running import Tally, run_chunk

SEEDS: dict[Backend, int] = {"trio": 2000, "asyncio": 500}
CHUNK = 50
CHUNKS: list[tuple[Backend, int]] = [
    (backend, first) for backend, count in SEEDS.items() for first in range(0, count, CHUNK)
]
BEGUN = pytest.StashKey["Begun"]()
IS_ONE_OF_SEVERAL = "PYTEST_XDIST_WORKER" in os.environ


class Begun:
    """All chunks, under way."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), os.nice, (10,))
        self.futures: dict[tuple[Backend, int], Future[Tally]] = {
            (backend, first): self.pool.submit(run_chunk, backend, range(first, first + CHUNK))
            for backend, first in CHUNKS
        }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one process they come last, when most of their work is done; of several, one waits from the start."""
    items.sort(key=_is_simulated, reverse=IS_ONE_OF_SEVERAL)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, if anybody is going to wait for it; of several processes that is not known before."""
    is_wanted = any("begun" in getattr(item, "fixturenames", ()) for item in session.items)
    if is_wanted and not session.config.option.collectonly and not IS_ONE_OF_SEVERAL:
        session.config.stash[BEGUN] = Begun()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Whatever way the session ends, nothing goes on behind it."""
    begun = session.config.stash.get(BEGUN, None)
    if begun is not None:
        begun.pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def begun(request: pytest.FixtureRequest) -> Begun:
    """What was begun with the session, or is now."""
    if BEGUN not in request.config.stash:
        request.config.stash[BEGUN] = Begun()
    return request.config.stash[BEGUN]


def _is_simulated(item: pytest.Item) -> bool:
    return "tests/simulation/" in item.nodeid
