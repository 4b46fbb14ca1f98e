"""What a bench is made of: parts, their cases, and what is judged about them. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Options = Mapping[str, Any]
"""Keyword arguments of a measuring function, as JSON can carry them."""

UNITS = {
    "rate": "messages/s",
    "cpu_us": "us of CPU per message",
    "deliver_p50_us": "us from send to delivery, median",
    "deliver_p99_us": "us from send to delivery, 99 %",
    "answer_p50_us": "us from send to the answer of the wait, median",
    "answer_p99_us": "us from send to the answer of the wait, 99 %",
    "receipt_p50_us": "us from send to receipt, median",
    "receipt_p99_us": "us from send to receipt, 99 %",
    "cpu_percent": "% of a core, all consumers together",
    "consumer_kib": "KiB per consumer, log included",
    "requests_s": "requests/s at the log",
    "requests": "requests at the log",
    "lookups": "lookups of routes",
    "cpu_ms": "ms of CPU, consumer and log together",
    "join_ms": "ms until a new member and all others have their share",
    "leave_ms": "ms until the others have the share of one that leaves",
    "commit_alone_us": "us per commit elsewhere, nobody parked",
    "commit_parked_us": "us per commit elsewhere, all parked",
    "commit_reads": "reads that those commits caused",
}
"""What each metric counts."""


@dataclass(frozen=True, slots=True)
class Fixture:
    """Something that several cases share, made once per run; it yields further options for them."""

    name: str
    open: Callable[[Path], AbstractContextManager[Options]]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, repeated once a round, each time in a process of its own.

    Args:
        measure: `module:function` inside this package; it answers a dict from metric to number.
    """

    name: str
    measure: str
    options: Options = field(default_factory=dict[str, Any])
    fixture: Fixture | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A figure, or its ratio to another one of the same rounds, and the budget it has (if any)."""

    text: str
    of: tuple[str, str]
    against: tuple[str, str] | None = None
    at_least: float | None = None
    at_most: float | None = None

    def meets(self, value: float) -> bool | None:
        """Whether a value keeps the budget; None without one."""
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most

    @property
    def budget(self) -> str:
        """The budget as text."""
        limit = self.at_least if self.at_least is not None else self.at_most
        if limit is None:
            return ""
        return f"at {'least' if self.at_least is not None else 'most'} {limit:,g}"


@dataclass(frozen=True, slots=True)
class Part:
    """Cases that are measured in turn, so that a noisy moment hits all of them alike."""

    name: str
    about: str
    rounds: int
    cases: tuple[Case, ...]
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Several values of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    @property
    def low(self) -> float:
        """The smallest one."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest one."""
        return max(self.values)


@dataclass(slots=True)
class Outcome:
    """What the rounds of one case gave: a dict of metrics, or the error as text."""

    case: Case
    rounds: list[dict[str, float] | str] = field(default_factory=list[dict[str, float] | str])

    def metrics(self) -> dict[str, Spread]:
        """Each metric over the rounds that worked."""
        good = self._good()
        return {name: Spread(tuple(measured[name] for measured in good)) for name in (good[0] if good else ())}

    def errors(self) -> list[str]:
        """Why rounds failed; each reason once."""
        return list(dict.fromkeys(measured for measured in self.rounds if isinstance(measured, str)))

    def _good(self) -> list[dict[str, float]]:
        return [measured for measured in self.rounds if not isinstance(measured, str)]


def judge(judgement: Judgement, outcomes: Mapping[str, Outcome]) -> Spread | None:
    """The judged figure over the rounds; a ratio is taken round by round. None: a case it needs never worked."""
    name, metric = judgement.of
    if judgement.against is None:
        return outcomes[name].metrics().get(metric)
    other, other_metric = judgement.against
    pairs = zip(outcomes[name].rounds, outcomes[other].rounds, strict=True)
    ratios = [
        ours[metric] / theirs[other_metric]
        for ours, theirs in pairs
        if not isinstance(ours, str) and not isinstance(theirs, str)
    ]
    return Spread(tuple(ratios)) if ratios else None
