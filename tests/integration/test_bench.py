"""The bench runs and says what it measured. Its figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_quick_run_of_one_part_writes_every_case_and_every_judgement(tmp_path: Path):
    file = tmp_path / "made" / "bench.json"
    command = [sys.executable, "-m", "bench", "--quick", "--folder", str(tmp_path), "--json", str(file), "park"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=18, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(file.read_text())
    assert result["quick"] is True
    assert result["versions"]["tarry"]
    (part,) = result["parts"]
    assert part["name"] == "park"
    for case in part["cases"]:
        assert case["errors"] == []
        assert case["metrics"]["requests_s"].keys() == {"median", "low", "high", "values"}
    verdicts = {judgement["text"]: judgement["met"] for judgement in part["judgements"]}
    assert len(verdicts) == len(part["judgements"])
    assert None in verdicts.values()  # a figure without a budget is not judged
    assert "FAILED" not in ended.stdout


def test_an_unknown_part_is_refused_with_the_names_there_are():
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "reed"], cwd=ROOT, capture_output=True, text=True, timeout=18, check=False
    )
    assert ended.returncode != 0
    assert "reed" in ended.stderr
    assert "read, append, wake, park, group" in ended.stderr
