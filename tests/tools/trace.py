"""Compare the rules that are built with the tests that cite them: `python -m tests.tools.trace [--list]`.

It reads the tests as text and runs none of them. A test cites rules by `@rule("C59")` on itself, by the same on its
class, or by `pytestmark` in its class or module. Exit code 1 and a line each: a built rule without a test, a rule that
does not exist, a mark on something that pytest does not collect.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools.rules import ROOT, RULES_MAX, Rule, RulesError, Status, load_rules, rule_order

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True)
class Report:
    """What the tests cite, and what is wrong with it."""

    tests_by_rule: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    problems: list[str] = field(default_factory=list[str])

    def cite(self, test: str, ids: Sequence[str]) -> None:
        """Note that `test` cites `ids`."""
        distinct = sorted(set(ids), key=rule_order)
        if len(distinct) > RULES_MAX:
            self.problems.append(f"{test}: cites {len(distinct)} rules ({', '.join(distinct)}), at most {RULES_MAX}")
        for rule_id in distinct:
            self.tests_by_rule.setdefault(rule_id, []).append(test)


class _File:
    """One test file: finds the citations of its tests.

    State: `marked` holds the definitions whose marks reached a test; what else carries a mark is a mistake.
    """

    def __init__(self, name: str, source: str, report: Report) -> None:
        self.name = name
        self.tree = ast.parse(source, filename=name)
        self.report = report
        self.spellings = _spellings(self.tree)
        self.marked: set[_Definition] = set()

    def read(self) -> None:
        self._body(self.tree.body, self.name, self._pytestmark(self.tree.body))
        for node in ast.walk(self.tree):
            if isinstance(node, _Definition) and node not in self.marked and self._decorators(node):
                self._problem(node, f"{node.name} is marked, but pytest does not collect it")

    def _body(self, body: Sequence[ast.stmt], owner: str, inherited: list[str]) -> None:
        for node in _flat(body):
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                self._class(node, owner, inherited)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                self.marked.add(node)
                self.report.cite(f"{owner}::{node.name}", [*inherited, *self._decorators(node)])
            elif isinstance(node, ast.Assign):
                self._machine(node, owner, inherited)

    def _class(self, node: ast.ClassDef, owner: str, inherited: list[str]) -> None:
        self.marked.add(node)
        name = f"{owner}::{node.name}"
        ids = [*inherited, *self._decorators(node), *self._pytestmark(node.body)]
        if any(isinstance(base, ast.Attribute) and base.attr == "TestCase" for base in node.bases):
            self.report.cite(name, ids)  # a state machine: its one test is made by hypothesis
        self._body(node.body, name, ids)

    def _machine(self, node: ast.Assign, owner: str, inherited: list[str]) -> None:
        """`TestWaiters = rule("S16")(WaitersMachine.TestCase)`, or the same without a mark of its own."""
        target = node.targets[0]
        if not (isinstance(target, ast.Name) and target.id.startswith("Test")):
            return
        ids = self._ids(node.value.func) if isinstance(node.value, ast.Call) else []
        self.report.cite(f"{owner}::{target.id}", [*inherited, *ids])

    def _decorators(self, node: _Definition) -> list[str]:
        return [rule_id for decorator in node.decorator_list for rule_id in self._ids(decorator)]

    def _pytestmark(self, body: Sequence[ast.stmt]) -> list[str]:
        ids: list[str] = []
        for node in body:
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets):
                marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
                ids += [rule_id for mark in marks for rule_id in self._ids(mark)]
        return ids

    def _ids(self, mark: ast.expr) -> list[str]:
        """The rules in `rule("C59", "K04")`; none when `mark` is something else."""
        if not isinstance(mark, ast.Call) or ast.unparse(mark.func) not in self.spellings:
            return []
        ids: list[str] = []
        for argument in mark.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                ids.append(argument.value)
            else:
                self._problem(mark, f"write the rule as a plain text, not {ast.unparse(argument)}")
        return ids

    def _problem(self, node: ast.stmt | ast.expr, text: str) -> None:
        problem = f"{self.name}:{node.lineno}: {text}"
        if problem not in self.report.problems:
            self.report.problems.append(problem)


def _spellings(tree: ast.Module) -> set[str]:
    """Every way in which a module may spell our mark; hypothesis has a decorator of the same name."""
    spellings = {"pytest.mark.rule"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tests.marks":
            spellings |= {name.asname or name.name for name in node.names if name.name == "rule"}
        elif isinstance(node, ast.ImportFrom) and node.module == "tests":
            spellings |= {f"{name.asname or name.name}.rule" for name in node.names if name.name == "marks"}
        elif isinstance(node, ast.Import):
            spellings |= {f"{name.asname or name.name}.rule" for name in node.names if name.name == "tests.marks"}
    return spellings


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those under `if` and `try` included."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _flat([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _flat([*node.body, *node.orelse, *node.finalbody])
        else:
            yield node


def read_tests(tests: Path, *, relative_to: Path = ROOT) -> Report:
    """Collect the citations of every `test_*.py` below `tests`."""
    report = Report()
    for path in sorted(tests.rglob("test_*.py")):
        _File(path.relative_to(relative_to).as_posix(), path.read_text(encoding="utf-8"), report).read()
    return report


def check(rules: dict[str, Rule], report: Report) -> tuple[list[str], list[Rule]]:
    """Return the problems of the citations, and the built rules that no test cites."""
    problems = list(report.problems)
    for rule_id, tests in report.tests_by_rule.items():
        rule = rules.get(rule_id)
        if rule is None:
            problems.append(f"{tests[0]}: cites {rule_id}, which rules.toml does not have")
        elif rule.status is Status.NOT_APPLICABLE:
            problems.append(f"{tests[0]}: cites {rule_id}, which rules.toml calls not applicable: {rule.reason}")
    built = (rule for rule in rules.values() if rule.status is Status.BUILT)
    return problems, [rule for rule in built if rule.id not in report.tests_by_rule]


def table(rules: dict[str, Rule], report: Report) -> list[str]:
    """One line per rule, and one per test that cites it."""
    lines: list[str] = []
    for rule in sorted(rules.values(), key=lambda rule: rule_order(rule.id)):
        status = rule.status if rule.part is None else f"{rule.status}, part {rule.part}"
        lines.append(f"{rule.id:<5} {status:<15} {rule.about}")
        lines += [f"      {test}" for test in sorted(report.tests_by_rule.get(rule.id, []))]
    return lines


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Print what is missing; the last line ends in `without a test: N`."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.trace", description="Which built rules have no test?")
    parser.add_argument("--list", action="store_true", help="print every rule with the tests that cite it")
    options = parser.parse_args(arguments)
    try:
        rules = load_rules(root / "tests" / "rules.toml")
    except RulesError as error:
        print(error, file=sys.stderr)
        return 1
    report = read_tests(root / "tests", relative_to=root)
    problems, missing = check(rules, report)
    if options.list:
        print("\n".join(table(rules, report)))
    for problem in problems:
        print(problem)
    for rule in missing:
        print(f"no test: {rule.id} {rule.about}")
    built = sum(rule.status is Status.BUILT for rule in rules.values())
    wrong = f"{len(problems)} wrong citations, " if problems else ""
    print(f"{len(rules)} rules, {built} built, {wrong}without a test: {len(missing)}")
    return 1 if problems or missing else 0


if __name__ == "__main__":
    sys.exit(main())
