"""Put known mistakes into a copy of src/ and see the suite notice: `python -m tests.tools.mutate [RULE ...]`.

Each entry of tests/mutations.toml replaces one text in one file. Only the tests it names are run, against the copy. A
mutation is *caught* when a test fails, has *survived* when all pass, and is *broken* when it says nothing: its text is
not there exactly once, the mutant cannot be imported, no test was run. Exit code 1 unless all are caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from pathlib import Path
from typing import Any

from tests.tools.rules import ROOT, Rule, Status, load_rules

JOBS = 2
RUN_SECONDS_MAX = 300
"""A run that takes longer is broken."""
TEST_SECONDS_MAX = 20
"""A test that takes longer has failed: some mutants hang. Without a mutation all tests must be quicker."""

_PYTEST_PASSED = 0
_PYTEST_FAILED = 1
_FIELDS = {"rule", "file", "old", "new", "tests"}


class MutationsError(Exception):
    """mutations.toml does not hold what it should; the text has one line per problem."""


class Outcome(StrEnum):
    """What became of a mutation."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake, and the tests that must notice it."""

    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one mutation; `detail` says why it is broken."""

    mutation: Mutation
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        new = self.mutation.new.strip() or "(nothing)"
        lines = [f"{self.outcome:<9} {self.mutation.rule} {self.mutation.file}: {new}"]
        if self.outcome is not Outcome.CAUGHT:
            lines += [f"    instead of: {self.mutation.old.strip()}", f"    run: {' '.join(self.mutation.tests)}"]
            lines += [f"    {line}" for line in self.detail.splitlines()]
        return "\n".join(lines)


def load_mutations(path: Path) -> list[Mutation]:
    """Return the entries in the order of the file; a file without any is fine.

    Raises:
        MutationsError: an entry lacks a field, has an unknown one, changes nothing or names no test.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutation", [])
    problems: list[str] = []
    for number, entry in enumerate(entries, 1):
        if set(entry) != _FIELDS:
            problems.append(f"mutation {number}: has {sorted(entry)}, needs {sorted(_FIELDS)}")
        elif entry["old"] == entry["new"] or not entry["old"]:
            problems.append(f"mutation {number} ({entry['rule']}): changes nothing")
        elif not entry["tests"]:
            problems.append(f"mutation {number} ({entry['rule']}): names no test")
    if problems:
        raise MutationsError("\n".join(problems))
    return [_mutation(entry) for entry in entries]


def _mutation(entry: dict[str, Any]) -> Mutation:
    return Mutation(entry["rule"], entry["file"], entry["old"], entry["new"], tuple(entry["tests"]))


def mutate(root: Path, mutation: Mutation, copy: Path) -> str:
    """Change the copied file; return what is wrong with the mutation, or nothing."""
    target = copy.parent / mutation.file
    if not mutation.file.startswith("src/") or not target.is_file():
        return f"there is no {mutation.file} below src/"
    text = target.read_text(encoding="utf-8")
    if (count := text.count(mutation.old)) != 1:
        return f"the old text occurs {count} times, not once"
    missing = [test for test in mutation.tests if not (root / test.partition("::")[0]).exists()]
    if missing:
        return f"there is no {missing[0]}"
    target.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return ""


def run_tests(root: Path, copy: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run pytest on `tests` with the copy first on the path; return its exit code and the end of its output.

    PYTHONPATH comes before site-packages, so the copy also wins over an editable install; child processes of the tests
    inherit it. Hypothesis runs the profile that repeats the same examples, so that an outcome does not depend on luck.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += [f"--timeout={TEST_SECONDS_MAX}", "--hypothesis-profile=ci"]
    return _run([*command, *tests], root, copy)


def package_origin(root: Path, copy: Path, package: str) -> Path:
    """Where a child process imports `package` from when the copy is first on the path."""
    code, output = _run([sys.executable, "-c", f"import {package}; print({package}.__path__[0])"], root, copy)
    if code:
        raise MutationsError(output)
    return Path(output.strip().splitlines()[-1])


def _run(command: Sequence[str], root: Path, copy: Path) -> tuple[int, str]:
    path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    storage = str(copy.parent / "hypothesis")
    environment = {**os.environ, "PYTHONPATH": path, "HYPOTHESIS_STORAGE_DIRECTORY": storage}
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that what the tests started ends with them
    )
    try:
        output, _ = process.communicate(timeout=RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return -signal.SIGKILL, f"{output}\nran out of time ({RUN_SECONDS_MAX} s)"
    return process.returncode, output


def _copy_source(root: Path, into: Path) -> Path:
    """With what is compiled: that stays true for every file but the one that is changed."""
    return Path(shutil.copytree(root / "src", into / "src"))


def try_mutation(root: Path, mutation: Mutation) -> Result:
    """Put one mistake into a fresh copy and run its tests."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = _copy_source(root, Path(folder))
        if problem := mutate(root, mutation, copy):
            return Result(mutation, Outcome.BROKEN, problem)
        code, output = run_tests(root, copy, mutation.tests)
    if code == _PYTEST_PASSED:
        return Result(mutation, Outcome.SURVIVED)
    if code == _PYTEST_FAILED:
        return Result(mutation, Outcome.CAUGHT)
    return Result(mutation, Outcome.BROKEN, _tail(output))


def check_baseline(root: Path, mutations: Sequence[Mutation]) -> str:
    """Run all named tests on an unchanged copy; return what is wrong, or nothing.

    Without this a test that fails anyway would seem to catch everything.
    """
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    packages = sorted({Path(mutation.file).parts[1] for mutation in mutations if Path(mutation.file).parts[0] == "src"})
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = _copy_source(root, Path(folder))
        for package in packages:
            if not (origin := package_origin(root, copy, package)).is_relative_to(copy):
                return f"the copy does not win: {package} comes from {origin}"
        known = [test for test in tests if (root / test.partition("::")[0]).exists()]
        code, output = run_tests(root, copy, known)
    return "" if code == _PYTEST_PASSED or not known else f"the tests fail without any mutation:\n{_tail(output)}"


def _tail(output: str) -> str:
    return "\n".join(output.rstrip().splitlines()[-15:])


def unmutated(rules: Iterable[Rule], mutations: Iterable[Mutation]) -> list[Rule]:
    """The built rules that have neither a mutation nor an exemption."""
    covered = {mutation.rule for mutation in mutations}
    return [rule for rule in rules if rule.status is Status.BUILT and not rule.exempt and rule.id not in covered]


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Try the mutations of the named rules, or all; print one line each and a summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.mutate", description="Does the suite notice mistakes?")
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only the mutations of these rules")
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many to try at once (%(default)s)")
    parser.add_argument("--missing", action="store_true", help="name the built rules without mutation or exemption")
    options = parser.parse_args(arguments)
    rules = load_rules(root / "tests" / "rules.toml")
    try:
        mutations = load_mutations(root / "tests" / "mutations.toml")
    except MutationsError as error:
        print(error, file=sys.stderr)
        return 1
    bare = unmutated(rules.values(), mutations)
    if options.missing:
        print("\n".join(f"no mutation: {rule.id} {rule.about}" for rule in bare))
    chosen = [mutation for mutation in mutations if not options.rules or mutation.rule in options.rules]
    if unknown := sorted({mutation.rule for mutation in chosen} - set(rules)):
        print(f"rules.toml does not have {', '.join(unknown)}", file=sys.stderr)
        return 1
    if chosen and (problem := check_baseline(root, chosen)):
        print(problem, file=sys.stderr)
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        counts = Counter[Outcome]()
        for result in pool.map(try_mutation, repeat(root), chosen):
            counts[result.outcome] += 1
            print(result, flush=True)
    figures = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome)
    print(f"{len(chosen)} mutations: {figures}; built rules with neither mutation nor exemption: {len(bare)}")
    return 0 if counts[Outcome.CAUGHT] == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
