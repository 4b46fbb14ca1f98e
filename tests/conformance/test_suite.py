"""The shipped suite itself: nothing of it is hidden, tests name rules that exist, and only its table skips.

Not here: the brokers that it runs against (test_brokers.py), whether it notices what is wrong (test_lies.py).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tarry.testing.conformance import SKIPS, BrokerConformance
from tests.tools.rules import ROOT, RULES_MAX, Status, is_rule_id, load_rules

SOURCE = ROOT / "src" / "tarry" / "testing" / "conformance"


class Written(NamedTuple):
    """A test as it stands in the source, with what its decorator says."""

    area: str
    name: str
    rules: list[str]


def written() -> Iterator[Written]:
    for path in sorted(SOURCE.glob("*.py")):
        for area in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(area, ast.ClassDef):
                continue
            for node in area.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    yield Written(area.name, node.name, list(_rules(node)))


def _rules(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "rests_on":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def test_no_test_hides_another_one() -> None:
    names = Counter(test.name for test in written())
    assert [name for name, count in names.items() if count > 1] == []
    assert {name for name in dir(BrokerConformance) if name.startswith("test_")} == set(names)


def test_every_test_states_rules_that_exist() -> None:
    known = {rule.id for rule in load_rules().values() if rule.status is not Status.NOT_APPLICABLE}
    wrong = [
        test
        for test in written()
        if not 1 <= len(test.rules) <= RULES_MAX or not all(_exists(rule, known) for rule in test.rules)
    ]
    assert wrong == []


def _exists(rule: str, known: set[str]) -> bool:
    """A rule or case, an answered question (Q12) or mended defect (D2) of the spec, a section of the design."""
    return rule in known if is_rule_id(rule) else bool(re.fullmatch(r"Q\d+|D\d+|design \d+(\.\d+)?", rule))


def test_every_entry_of_the_table_of_skips_names_tests() -> None:
    tests = {f"{test.area}.{test.name}" for test in written()}
    entries = [entry for row in SKIPS.values() for entry in row]
    assert [entry for entry in entries if not any(entry in {test, test.partition(".")[0]} for test in tests)] == []


def test_only_the_table_skips() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCE.glob("*.py"))
    assert re.findall(r"pytest\.(skip|xfail|importorskip|mark)\b", sources) == ["skip"]


def test_the_page_shows_the_table_of_skips() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| a broker without | skips |")
    assert re.findall(r"^\| `(.+?)` \|", table, flags=re.MULTILINE) == list(SKIPS)


@pytest.mark.slow
def test_only_the_suite_needs_pytest() -> None:
    code = """
import sys
import tarry.testing
assert "pytest" not in sys.modules
sys.modules["pytest"] = None
try:
    import tarry.testing.conformance
except tarry.MissingExtra as error:
    sys.exit(str(error))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr == "the conformance suite needs the package pytest: pip install pytest\n"
