"""Read tests/rules.toml: what becomes of every rule and case.

Here is the shape of a rule number and of an entry. Not here: who cites a rule (trace), who breaks it (mutate).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[2]
RULES_FILE = ROOT / "tests" / "rules.toml"

RULES_MAX = 3
"""Most rules that one test may cite; a test that claims more proves none of them well."""

_RULE_ID = re.compile(r"[CSPBWI][1-9][0-9]{0,2}|K(?:0[1-9]|[1-9][0-9]|1[0-9]{2})")
_FIELDS = frozenset({"status", "about", "part", "reason", "note", "exempt"})


class RulesError(Exception):
    """rules.toml does not hold what it should; the text has one line per problem."""


class Status(StrEnum):
    """What becomes of a rule."""

    BUILT = "built"
    LATER = "later"
    OVERRULED = "overruled"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of rules.toml."""

    id: str
    status: Status
    about: str
    part: int | None
    reason: str
    note: str
    exempt: str


def is_rule_id(text: str) -> bool:
    """Say whether `text` has the shape of a rule (`C59`) or a case (`K04`), whether or not it exists."""
    return _RULE_ID.fullmatch(text) is not None


def rule_order(rule_id: str) -> tuple[int, int]:
    """Sort key: the families in the order of the specification, then by number."""
    return "CSPBWIK".index(rule_id[0]), int(rule_id[1:])


def load_rules(path: Path = RULES_FILE) -> dict[str, Rule]:
    """Return all rules by their id, in the order of the file.

    Raises:
        RulesError: an entry is malformed.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    problems = [problem for rule_id, entry in entries.items() for problem in _problems(rule_id, entry)]
    if problems:
        raise RulesError("\n".join(problems))
    return {rule_id: _rule(rule_id, entry) for rule_id, entry in entries.items()}


def _rule(rule_id: str, entry: dict[str, Any]) -> Rule:
    return Rule(
        id=rule_id,
        status=Status(entry["status"]),
        about=entry["about"],
        part=entry.get("part"),
        reason=entry.get("reason", ""),
        note=entry.get("note", ""),
        exempt=entry.get("exempt", ""),
    )


def _problems(rule_id: str, entry: object) -> list[str]:
    if not is_rule_id(rule_id):
        return [f"{rule_id}: no rule id; rules look like C59, cases like K04"]
    if not isinstance(entry, dict):
        return [f"{rule_id}: not a table"]
    return [f"{rule_id}: {problem}" for problem in _entry_problems(cast("dict[str, Any]", entry))]


def _entry_problems(entry: dict[str, Any]) -> list[str]:
    found = [f"unknown field {name!r}" for name in sorted(set(entry) - _FIELDS)]
    found += [
        f"{name} must be a text that says something"
        for name in sorted(_FIELDS - {"part"})
        if name in entry and not (isinstance(entry[name], str) and entry[name].strip())
    ]
    if "about" not in entry:
        found.append("about is missing")
    status = entry.get("status")
    if status not in set(Status):
        return [*found, f"status {status!r} is none of {', '.join(Status)}"]
    dated = status in {Status.BUILT, Status.LATER}
    if dated != isinstance(entry.get("part"), int):
        found.append(f"{status} {'needs' if dated else 'has no'} part, a number")
    if not dated and "reason" not in entry:
        found.append(f"{status} needs a reason")
    return found
