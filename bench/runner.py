"""Runs cases, each in a child process of its own, so that no measurement disturbs another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.model import Case, Fixture, Options, Outcome, Part

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120.0
"""A child that runs longer is ended and reported."""


class Failed(Exception):
    """A child ended without a result; the text says why."""


def command(measure: str, options: Options) -> list[str]:
    """How to run a measuring function in a child."""
    return [sys.executable, "-m", "bench.child", measure, json.dumps(dict(options))]


def call(measure: str, options: Options) -> dict[str, Any]:
    """Run a measuring function in a child and return what it answers.

    Raises:
        Failed: it raised (the last line of its traceback), answered nothing, or took longer than `LIMIT_S`.
    """
    try:
        ended = subprocess.run(
            command(measure, options), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not finished after {LIMIT_S:g} s") from None
    if ended.returncode or not ended.stdout.strip():
        raise Failed((ended.stderr.strip().splitlines() or [f"ended with status {ended.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


@contextmanager
def serving(measure: str, options: Options) -> Generator[dict[str, Any]]:
    """Keep a child that serves something; yields its first line. It ends when its standard input is closed."""
    with subprocess.Popen(
        command(measure, options),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout
        assert child.stderr
        line = child.stdout.readline()
        if not line:
            raise Failed((child.stderr.read().strip().splitlines() or ["it ended at once"])[-1])
        try:
            yield json.loads(line)
        finally:
            child.kill()


class Runner:
    """Runs parts; what cases share is made on first use and kept until `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._fixtures: dict[str, Options | str] = {}

    def run(self, part: Part) -> dict[str, Outcome]:
        """All rounds of a part: each round runs every case once, in order."""
        outcomes = {case.name: Outcome(case) for case in part.cases}
        for number in range(1, part.rounds + 1):
            for case in part.cases:
                print(f"  round {number} of {part.rounds}: {case.name}", file=sys.stderr, flush=True)
                outcomes[case.name].rounds.append(self._measure(case))
        return outcomes

    def close(self) -> None:
        """Take down what cases shared."""
        self._stack.close()

    def _measure(self, case: Case) -> dict[str, float] | str:
        shared: Options | str = {} if case.fixture is None else self._opened(case.fixture)
        if isinstance(shared, str):
            return shared
        try:
            return call(case.measure, {**shared, **case.options})
        except Failed as failure:
            return str(failure)

    def _opened(self, fixture: Fixture) -> Options | str:
        if fixture.name not in self._fixtures:
            try:
                self._fixtures[fixture.name] = self._stack.enter_context(fixture.open(self._folder))
            except Failed as failure:
                self._fixtures[fixture.name] = f"{fixture.name}: {failure}"
        return self._fixtures[fixture.name]


def chosen(parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts named, in their own order; all of them when none is."""
    unknown = sorted(set(names) - {part.name for part in parts})
    if unknown:
        known = ", ".join(part.name for part in parts)
        raise SystemExit(f"no part is called {', '.join(unknown)}; there are {known}")
    return [part for part in parts if not names or part.name in names]
