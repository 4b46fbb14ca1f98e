"""The tools around the suite do what the Makefile promises: trace, mutate, and the mark that both read."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests import marks
from tests.tools import mutate, rules, trace

RULES = """
C1 = { status = "built", part = 1, about = "first" }
C2 = { status = "built", part = 1, about = "second", note = "half of it" }
C3 = { status = "later", part = 2, about = "third" }
C4 = { status = "overruled", reason = "ours differs", about = "fourth" }
C5 = { status = "not applicable", reason = "no such thing", about = "fifth" }
K04 = { status = "built", part = 1, about = "a case", exempt = "a kill test" }
"""


# --- the mark ---


@pytest.mark.parametrize("ids", [("C59",), ("K04", "C1"), ("S74", "I6", "K101")])
def test_rule_accepts(ids: tuple[str, ...]) -> None:
    assert marks.rule(*ids).mark.args == ids


@pytest.mark.parametrize(
    "ids",
    [(), ("C1", "C2", "C3", "C4"), ("C1", "C1"), ("C0",), ("C01",), ("K4",), ("K00",), ("Q1",), ("c1",), ("C1 ",)],
)
def test_rule_refuses(ids: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"rule|cites"):
        marks.rule(*ids)


# --- rules.toml ---


def test_our_rules_have_every_number_of_each_family() -> None:
    """The numbering of the cases has gaps; the other families have none."""
    counts = {"C": 118, "S": 74, "P": 34, "B": 25, "W": 23, "I": 9}
    expected = [f"{family}{number}" for family, last in counts.items() for number in range(1, last + 1)]
    found = list(rules.load_rules())
    cases = [rule_id for rule_id in found if rule_id.startswith("K")]
    assert [rule_id for rule_id in found if rule_id not in cases] == expected
    assert cases == sorted(cases, key=rules.rule_order)
    assert (cases[0], cases[-1], len(cases)) == ("K01", "K105", 85)


def test_entry_of_a_rule(tmp_path: Path) -> None:
    loaded = rules.load_rules(_write(tmp_path / "rules.toml", RULES))
    assert list(loaded) == ["C1", "C2", "C3", "C4", "C5", "K04"]
    assert loaded["C2"] == rules.Rule("C2", rules.Status.BUILT, "second", 1, "", "half of it", "")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('Q1 = { status = "built", part = 1, about = "x" }', "no rule id"),
        ("C1 = 7", "not a table"),
        ('C1 = { status = "done", about = "x" }', "'done' is none of"),
        ('C1 = { status = "built", part = 1 }', "about is missing"),
        ('C1 = { status = "built", about = "x" }', "needs part"),
        ('C1 = { status = "later", part = "two", about = "x" }', "needs part"),
        ('C1 = { status = "overruled", part = 1, reason = "r", about = "x" }', "has no part"),
        ('C1 = { status = "not applicable", about = "x" }', "needs a reason"),
        ('C1 = { status = "built", part = 1, about = " " }', "says something"),
        ('C1 = { status = "built", part = 1, about = "x", why = "y" }', "unknown field 'why'"),
    ],
)
def test_malformed_entry_is_named(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(rules.RulesError, match=re.escape(message)):
        rules.load_rules(_write(tmp_path / "rules.toml", entry))


# --- trace ---


def _project(root: Path, tests: str) -> Path:
    _write(root / "tests" / "rules.toml", RULES)
    _write(root / "tests" / "unit" / "test_it.py", "from tests.marks import rule\n" + dedent(tests))
    return root


def test_trace_names_built_rules_without_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _project(tmp_path, '@rule("C1")\ndef test_one(): ...')
    assert trace.main([], root=root) == 1
    assert capsys.readouterr().out.splitlines() == [
        "no test: C2 second",
        "no test: K04 a case",
        "6 rules, 3 built, without a test: 2",
    ]


def test_trace_is_content_when_all_built_rules_are_cited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _project(tmp_path, '@rule("C1", "C2", "K04")\ndef test_one(): ...')
    assert trace.main([], root=root) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("without a test: 0")


def test_trace_lists_rules_with_their_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.main(["--list"], root=_project(tmp_path, '@rule("C1")\nasync def test_one(): ...'))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "C1    built, part 1   first",
        "      tests/unit/test_it.py::test_one",
        "C2    built, part 1   second",
    ]


@pytest.mark.parametrize(
    ("code", "cited"),
    [
        ('@rule("C1")\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('@rule("C1")\n@rule("C2")\nasync def test_a(): ...', {"C1": ["test_a"], "C2": ["test_a"]}),
        ('@pytest.mark.rule("C1")\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('from tests.marks import rule as proves\n@proves("C1")\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('from tests import marks\n@marks.rule("C1")\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('import tests.marks as m\n@m.rule("C1")\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('pytestmark = rule("C1")\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('pytestmark = [pytest.mark.slow, rule("C1")]\ndef test_a(): ...', {"C1": ["test_a"]}),
        ('@rule("C1")\nclass TestIt:\n  def test_a(self): ...', {"C1": ["TestIt::test_a"]}),
        ('class TestIt:\n  @rule("C2")\n  def test_a(self): ...', {"C2": ["TestIt::test_a"]}),
        ('class TestIt:\n  pytestmark = rule("C1")\n  def test_a(self): ...', {"C1": ["TestIt::test_a"]}),
        ('@rule("C1")\nclass TestIt(Machine.TestCase): ...', {"C1": ["TestIt"]}),
        ('TestIt = rule("C1")(Machine.TestCase)', {"C1": ["TestIt"]}),
        ('if sys.platform == "linux":\n  @rule("C1")\n  def test_a(): ...', {"C1": ["test_a"]}),
        ("class Machine:\n  @hypothesis_rule(x=1)\n  def step(self): ...", {}),
    ],
)  # fmt: skip
def test_trace_reads(tmp_path: Path, code: str, cited: dict[str, list[str]]) -> None:
    report = trace.read_tests(_project(tmp_path, code) / "tests", relative_to=tmp_path)
    found = {key: [test.partition("::")[2] for test in tests] for key, tests in report.tests_by_rule.items()}
    assert (found, report.problems) == (cited, [])


def test_a_decorator_of_the_same_name_from_elsewhere_is_not_ours(tmp_path: Path) -> None:
    code = 'from hypothesis.stateful import rule\nclass TestIt:\n  @rule("C1")\n  def test_a(self): ...'
    _write(tmp_path / "tests" / "test_it.py", code)
    assert trace.read_tests(tmp_path / "tests", relative_to=tmp_path).tests_by_rule == {}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('@rule("C99")\ndef test_a(): ...', "cites C99, which rules.toml does not have"),
        ('@rule("C5")\ndef test_a(): ...', "calls not applicable"),
        ('@rule("C1")\ndef helper(): ...', "helper is marked, but pytest does not collect it"),
        ('@rule("C1")\nclass Helper: ...', "Helper is marked, but pytest does not collect it"),
        ("@rule(NAME)\ndef test_a(): ...", "write the rule as a plain text"),
        ('@rule("C1", "C2")\nclass TestIt:\n  @rule("C3", "K04")\n  def test_a(self): ...', "cites 4 rules"),
    ],
)
def test_trace_complains(tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, message: str) -> None:
    assert trace.main([], root=_project(tmp_path, code)) == 1
    assert message in capsys.readouterr().out


# --- mutate ---

MACHINE = "def grow(x):\n    return x + 1\n"
MACHINE_TEST = """
    from tarry.machine import grow

    def test_grow():
        assert grow(1) == 2

    def test_type():
        assert isinstance(grow(1), int)
"""


def _mutable(root: Path, *entries: str) -> Path:
    """A project of its own, whose `tarry` is not the one that is installed here."""
    _write(root / "src" / "tarry" / "__init__.py", "")
    _write(root / "src" / "tarry" / "machine.py", MACHINE)
    _write(root / "pyproject.toml", '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    _write(root / "tests" / "rules.toml", RULES)
    _write(root / "tests" / "test_machine.py", dedent(MACHINE_TEST))
    _write(root / "tests" / "mutations.toml", "\n".join(entries))
    return root


def _entry(old: str, new: str, *, test: str = "tests/test_machine.py", file: str = "src/tarry/machine.py") -> str:
    return f'[[mutation]]\nrule = "C1"\nfile = "{file}"\nold = "{old}"\nnew = "{new}"\ntests = ["{test}"]\n'


def test_no_mutations_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main([], root=_mutable(tmp_path, "# none yet")) == 0
    assert capsys.readouterr().out == (
        "0 mutations: 0 caught, 0 survived, 0 broken; built rules with neither mutation nor exemption: 2\n"
    )


@pytest.mark.slow
def test_mutations_are_caught_survive_or_are_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That a mutation is caught also shows that the copy wins over whatever else is installed."""
    root = _mutable(
        tmp_path,
        _entry("x + 1", "x + 2"),
        _entry("x + 1", "x + 2", test="tests/test_machine.py::test_type"),
        _entry("x", "y"),
        _entry("return", "retrun"),
        _entry("x + 1", "x + 3", test="tests/test_gone.py"),
        _entry("x + 1", "x + 3", file="tests/test_machine.py"),
    )
    assert mutate.main([], root=root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        *("caught", "survived", "broken", "broken", "broken", "broken", "6")
    ]
    assert "    the old text occurs 2 times, not once" in lines
    assert "    there is no tests/test_gone.py" in lines
    assert lines[-1].startswith("6 mutations: 1 caught, 1 survived, 4 broken; ")
    assert (root / "src" / "tarry" / "machine.py").read_text() == MACHINE


@pytest.mark.slow
def test_only_the_named_rules_are_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _mutable(tmp_path, _entry("x + 1", "x + 2"), _entry("x + 1", "1 + x").replace("C1", "C2"))
    assert mutate.main(["C1"], root=root) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 mutations: 1 caught")


@pytest.mark.slow
def test_tests_that_fail_anyway_catch_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _mutable(tmp_path, _entry("x + 1", "x + 2"))
    (root / "src" / "tarry" / "machine.py").write_text(MACHINE.replace("x + 1", "0 + x + 1 + 1"))
    _write(root / "tests" / "mutations.toml", _entry("0 + x", "1 + x"))
    assert mutate.main([], root=root) == 1
    assert "the tests fail without any mutation" in capsys.readouterr().err


@pytest.mark.slow
def test_the_copy_wins_over_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a PYTHONPATH that the caller has set."""
    root = _mutable(tmp_path / "project")
    elsewhere = _mutable(tmp_path / "elsewhere") / "src"
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    copy = tmp_path / "copy" / "src"
    _write(copy / "tarry" / "__init__.py", "")
    assert mutate.package_origin(root, copy, "tarry") == copy / "tarry"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('[[mutation]]\nrule = "C1"', "needs"),
        (_entry("x", "x"), "changes nothing"),
        (_entry("", "x"), "changes nothing"),
        (_entry("x", "y").replace('["tests/test_machine.py"]', "[]"), "names no test"),
    ],
)
def test_malformed_mutation_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str, message: str
) -> None:
    assert mutate.main([], root=_mutable(tmp_path, entry)) == 1
    assert message in capsys.readouterr().err


def test_a_mutation_of_an_unknown_rule_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main([], root=_mutable(tmp_path, _entry("x + 1", "x").replace("C1", "C99"))) == 1
    assert "does not have C99" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
def test_a_run_that_hangs_is_ended_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _mutable(tmp_path, "")
    _write(root / "tests" / "test_machine.py", "import time\ndef test_hang():\n    time.sleep(60)\n")
    monkeypatch.setattr(mutate, "RUN_SECONDS_MAX", 1)
    code, output = mutate.run_tests(root, root / "src", ["tests/test_machine.py"])
    assert code < 0
    assert "ran out of time" in output


def test_our_mutations_are_well_formed() -> None:
    entries = mutate.load_mutations(rules.ROOT / "tests" / "mutations.toml")
    assert {entry.rule for entry in entries} <= set(rules.load_rules())


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_tests_of_tools_write_nothing_here() -> None:
    assert not (rules.ROOT / "tests" / "test_machine.py").exists()
    assert os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY") is None
