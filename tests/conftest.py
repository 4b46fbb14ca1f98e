"""What every test gets: the two backends, and hypothesis profiles. Not here: anything about logs or consumers."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that interrupt one need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Deadlines per example are off everywhere: they measure the machine. The ceiling per test is pytest's `timeout`.
settings.register_profile("dev", max_examples=50, deadline=None)
# CI repeats the same examples, so that a change never fails for another one's luck; dev and deep look for new ones.
settings.register_profile("ci", max_examples=300, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "deep", max_examples=5000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dev" if os.environ.get("CI", "").lower() in {"", "0", "false"} else "ci")

Backend = tuple[str, dict[str, Any]]
BACKENDS: list[Backend] = [("asyncio", {"use_uvloop": False}), ("trio", {})]


@pytest.fixture(scope="module", params=BACKENDS, ids=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Run each `@pytest.mark.anyio` test on asyncio and on trio, by the real clock.

    A test that needs one backend only, or virtual time, overrides this fixture in its module or class.
    """
    backend: Backend = request.param
    return backend


def pytest_collection_finish() -> None:
    """Thousands of collected tests live to the end: not to be looked at again by each collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
