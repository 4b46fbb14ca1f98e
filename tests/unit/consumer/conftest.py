"""Every case of the consumer is told twice: over a log with one leader, and over one with three.

A test that cites a case (`@rule("K05")`) and opens its log by `rig.opened` runs again with three leaders, once on each
backend: other seeds are other orders of the same turns, and those belong to the run with one leader.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.unit.consumer import rig

THREE = 3
NOT_ABOUT_LEADERS = {
    "K14": "about locks of the file",
    "K26": "about the size of the file",
    "K39": "about transactions in the file",
    "K40": "about row ids in the file",
    "K63": "about the hash of a key",
    "K103": "about times and zones",
    "K104": "about names",
}
"""Cases that are told once, and why."""


@pytest.fixture(autouse=True)
def log_leaders(request: pytest.FixtureRequest) -> Generator[None]:
    """How many leaders the log of this test has."""
    token = rig.LEADERS.set(getattr(request, "param", 1))
    yield
    rig.LEADERS.reset(token)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a case with one leader and with three."""
    cites = {name for mark in metafunc.definition.iter_markers("rule") for name in mark.args}
    cases = {name for name in cites if name.startswith("K")} - NOT_ABOUT_LEADERS.keys()
    if cases and _opens_by_the_rig(metafunc):
        metafunc.parametrize("log_leaders", [1, THREE], ids=[pytest.HIDDEN_PARAM, "three-leaders"], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the runs with three leaders, keep the first on each backend."""
    items[:] = [item for item in items if not _is_another_seed(item)]


def _opens_by_the_rig(metafunc: Any) -> bool:
    """`metafunc` is one of pytest, whose `module` has no type."""
    return getattr(metafunc.module, "opened", None) is rig.opened


def _is_another_seed(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    given: dict[str, Any] = item.callspec.params
    return given.get("log_leaders") == THREE and "virtual_run" in given and given["virtual_run"][1] > 0
