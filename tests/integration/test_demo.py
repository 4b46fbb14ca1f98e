"""`tarry demo`: what it shows is counted from delivered messages, each once; and it ends parked at almost no cost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.cli import demo as command
from tarry.cli import main
from tarry.cli.weather import own_file

pytestmark = pytest.mark.slow
YEAR = re.compile(r"^  (\d{4}|all) +([\d,]+) +([\d.]+) mm(?:  (\S+), (\S+) °C)?$", re.MULTILINE)
Demo = Callable[..., str]


@pytest.fixture
def demo(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Run it without the long wait, and give what it prints."""
    monkeypatch.setattr(command, "PARK_S", 0.01)

    def run(*arguments: str) -> str:
        assert main(["demo", *arguments]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return out

    return run


def test_the_demo_as_people_run_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tarry", "demo"], cwd=tmp_path, capture_output=True, check=True, text=True, timeout=20
    )
    assert done.stderr == ""
    assert YEAR.findall(done.stdout) == [
        ("2012", "366", "1226.0", "2012-08-16", "34.4"),
        ("2013", "365", "828.0", "2013-06-30", "33.9"),
        ("2014", "365", "1232.8", "2014-08-11", "35.6"),
        ("2015", "365", "1139.2", "2015-07-19", "35.0"),
        ("all", "1,461", "4426.0", "", ""),
    ]
    assert "counted 1,461 messages, 0 of them twice; missing 0" in done.stdout
    requests = re.search(r"for 2 s\n  0 messages, (\d+) requests, [\d.]+ ms of CPU\n", done.stdout)
    assert requests is not None
    assert int(requests[1]) <= 6, "one place to find for each partition, one wait"
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_month_that_is_there_twice_counts_twice(demo: Demo, tmp_path: Path) -> None:
    """It does not print what it ought to find."""
    rows = own_file().read_text(encoding="utf-8").splitlines(keepends=True)
    march = [row for row in rows if row.startswith("2013/03/")]
    rain = sum(round(float(row.split(",")[1]) * 10) for row in march)
    file = tmp_path / "twice.csv"
    file.write_text("".join(rows + march), encoding="utf-8")
    out = demo("--data", str(file))
    found = {year: (days, rain_mm) for year, days, rain_mm, _, _ in YEAR.findall(out)}
    assert rain > 0
    assert found == {
        "2012": ("366", "1226.0"),
        "2013": ("396", f"{(8280 + rain) / 10:.1f}"),
        "2014": ("365", "1232.8"),
        "2015": ("365", "1139.2"),
        "all": ("1,492", f"{(44260 + rain) / 10:.1f}"),
    }
    assert "counted 1,492 messages, 0 of them twice; missing 0" in out


LIFE = re.compile(
    r"^  (gauge-.) counted ([\d,]+) messages and was (.+);\n  started again it counted ([\d,]+) more$", re.MULTILINE
)
REPORT = re.compile(r"^    weather\[(\d)\]: committed (\S+), rewound (\d+), unfinished (\d+)$", re.MULTILINE)


def test_one_member_is_stopped_in_the_middle_and_the_other_is_cancelled_at_work(demo: Demo) -> None:
    out = demo()
    lives = LIFE.findall(out)
    assert [(name, end) for name, _, end, _ in lives] == [
        ("gauge-a", "stopped in the middle"),
        ("gauge-b", "cancelled in its loop body"),
    ]
    counts = [(int(before.replace(",", "")), int(after.replace(",", ""))) for _, before, _, after in lives]
    assert min(before for before, _ in counts) > 0
    assert sum(before + after for before, after in counts) == 1461
    assert len(re.findall(r"at work was offset \d+ of partition \d, counted 1 time$", out, re.MULTILINE)) == 1
    reports = out.partition("Shutdown reports")[2].partition("Parked")[0]
    stopped, again, cancelled, _ = (
        REPORT.findall(life) for life in re.split(r"^  gauge-., ", reports, flags=re.MULTILINE)[1:]
    )
    assert stopped
    assert sum(int(unfinished) for *_, unfinished in stopped + again) == 0
    assert sum(int(unfinished) for *_, unfinished in cancelled) == 1
    committed: dict[str, int] = {}
    for partition, offset, _, _ in REPORT.findall(reports):
        committed[partition] = max(committed.get(partition, -1), -1 if offset == "nothing" else int(offset))
    assert sum(offset + 1 for offset in committed.values()) == 1461


@pytest.mark.parametrize("days", [1, 2, 3])
def test_a_tiny_file_is_enough(demo: Demo, tmp_path: Path, days: int) -> None:
    file = tmp_path / "tiny.csv"
    file.write_text("".join(own_file().read_text(encoding="utf-8").splitlines(keepends=True)[: days + 1]))
    assert f"counted {days} messages, 0 of them twice; missing 0" in demo("--data", str(file))


def test_a_log_of_its_own_keeps_the_messages(
    demo: Demo, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARRY_URL", "other.db")  # The demo fills no log that nobody named.
    demo()
    assert os.listdir() == []  # noqa: PTH208  # the names say it all
    demo("--db", "kept.db")
    assert main(["consume", "--db", "kept.db", "weather", "-e"]) == 0
    assert capfd.readouterr().out.count("\n") == 1461


def test_a_wrong_row_is_named_and_nothing_is_sent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text("date,precipitation,temp_max\n2012/01/01,0.0,cold\n")
    log = tmp_path / "t.db"
    assert main(["demo", "--data", str(file), "--db", str(log)]) == 2
    assert capfd.readouterr().err == f"tarry: {file} line 2: temp_max 'cold' is no number; write one like 12.8\n"
    assert not log.exists()
