"""`python -m bench [--quick] [--json FILE] [part ...]`: measure, print, write JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import report
from bench.clocks import load
from bench.plan import FULL, QUICK, parts
from bench.runner import Runner, chosen

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the parts asked for. A case that fails is reported and the run goes on; only bad usage gives a status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Throughput and latency of tarry and its peers."
    )
    parser.add_argument("parts", nargs="*", help="read, append, wake, park, group, leaders; default all")
    parser.add_argument("--quick", action="store_true", help="little work and one round: does it run at all")
    parser.add_argument("--rounds", type=int, help="rounds of each part but park")
    parser.add_argument("--json", type=Path, help="write the results here instead of into bench/results/")
    parser.add_argument("--folder", type=Path, help="where the logs are made; default bench/results/, on the same disk")
    args = parser.parse_args()
    scale = QUICK if args.quick else FULL
    plan = chosen(parts(dataclasses.replace(scale, rounds=args.rounds or scale.rounds)), args.parts)
    folder: Path = args.folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {**report.environment(quick=args.quick), "load_before": load(), "parts": []}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        runner = Runner(Path(place))
        try:
            for part in plan:
                began = time.perf_counter()
                outcomes = runner.run(part)
                results["parts"].append(report.to_json(part, outcomes, time.perf_counter() - began))
                print("\n".join(report.lines(part, outcomes)), end="\n\n", flush=True)
        finally:
            runner.close()
    results["load_after"] = load()
    file = args.json or folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(
        f"load {results['load_before']:.1f} before, {results['load_after']:.1f} after; written to {file}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
