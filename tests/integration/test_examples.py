"""Every file of examples/ runs to its end in an empty folder and shows what it is there for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHOWS = {
    "01_quickstart.py": "charged for a cup",
    "02_kill_and_resume.py": "all 100 orders were worked on",
    "03_accumulating_poll.py": "because of 'count'",
    "04_virtual_time.py": "101 readings (count)",
    "05_group.py": "all 600 trips were counted once",
    "07_typed.py": "3 cups, 1 message put aside: '3 cups of tea'",
    "06_signals.py": "orders[0]: committed 2, rewound 0, unfinished 0",
}


def test_every_example_is_run_and_listed() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SHOWS)
    assert [name for name in SHOWS if f"[`{name}`]({name})" not in readme] == []


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, check=False, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert SHOWS[name] in done.stdout


def test_the_quickstart_goes_on_where_it_stopped(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "01_quickstart.py")]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True, timeout=20)
        assert done.stdout == "charged for a cup\n"
