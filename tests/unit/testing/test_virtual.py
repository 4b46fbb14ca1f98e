"""The decorator `@virtual` of our own suite."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.virtual import virtual

pytest_plugins = ["pytester"]

FAILING = """
from tests.virtual import virtual

@virtual(seeds=2)
async def test_fails(tmp_path):
    assert not tmp_path.exists()
"""


@virtual()
async def test_runs_under_virtual_time_on_the_named_loop(backend: str) -> None:
    assert type(anyio.lowlevel.current_token().native_token).__module__.startswith(("trio", "tarry.testing"))
    await anyio.sleep(3600)
    assert anyio.current_time() == 3600
    assert backend in {"trio", "asyncio"}


@virtual(seeds=2)
async def test_takes_fixtures_and_the_seed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tmp_path.name.startswith("test_takes_fixtures")
    assert seed in {0, 1}


class TestInAClass:
    @pytest.mark.parametrize("number", [1, 2])
    @virtual(seeds=2)
    async def test_goes_with_parameters(self, number: int, tmp_path: Path) -> None:
        assert number in {1, 2}


def test_a_failure_says_how_to_repeat_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FAILING)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(failed=3)  # Two seeds on trio, and asyncio once.
    result.stdout.fnmatch_lines(
        ['*under virtual time on trio, seed 1; again with: python -m pytest "test_it.py::test_fails?trio-1?"*']
    )
