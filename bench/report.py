"""What a run says: lines for people, JSON for programs."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from typing import Any

from bench.model import UNITS, Judgement, Outcome, Part, Spread, judge

PACKAGES = ("tarry", "anyio", "trio", "msgspec", "aiokafka", "confluent-kafka")
VERDICTS = {True: "met", False: "MISSED", None: ""}


def environment(*, quick: bool) -> dict[str, Any]:
    """Where and when the figures were taken."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": cpu_count(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def to_json(part: Part, outcomes: Mapping[str, Outcome], seconds: float) -> dict[str, Any]:
    """A part as JSON: every case with all its values, every judgement with its verdict."""
    return {
        "name": part.name,
        "about": part.about,
        "seconds": round(seconds, 1),
        "cases": [
            {
                "name": name,
                "metrics": {metric: _spread(spread) for metric, spread in outcome.metrics().items()},
                "errors": outcome.errors(),
            }
            for name, outcome in outcomes.items()
        ],
        "judgements": [_judged(judgement, judge(judgement, outcomes)) for judgement in part.judgements],
    }


def _spread(spread: Spread) -> dict[str, Any]:
    return {"median": spread.median, "low": spread.low, "high": spread.high, "values": list(spread.values)}


def _judged(judgement: Judgement, found: Spread | None) -> dict[str, Any]:
    return {
        "text": judgement.text,
        "figure": None if found is None else _spread(found),
        "at_least": judgement.at_least,
        "at_most": judgement.at_most,
        "met": None if found is None else judgement.meets(found.median),
    }


def lines(part: Part, outcomes: Mapping[str, Outcome]) -> list[str]:
    """A part as text: medians with their spread, failures, then ratios and budgets."""
    text = [f"{part.name}: {part.about}"]
    for name, outcome in outcomes.items():
        for metric, spread in outcome.metrics().items():
            text.append(f"  {name:<38} {_numbers(spread)}  {UNITS.get(metric, metric)}")
            name = ""
        text += [f"  {name:<38} FAILED: {error}" for error in outcome.errors()]
    text.append("")
    for judgement in part.judgements:
        found = judge(judgement, outcomes)
        if found is None:
            text.append(f"  {judgement.text:<68} not measured")
            continue
        verdict = VERDICTS[judgement.meets(found.median)]
        text.append(f"  {judgement.text:<68} {_numbers(found)}  {judgement.budget} {verdict}".rstrip())
    return text


def _numbers(spread: Spread) -> str:
    return f"{_number(spread.median):>11}  [{_number(spread.low)} .. {_number(spread.high)}]".ljust(38)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
