"""The marks by which tests say what they prove.

Here are `rule` and the names of parameters. Not here: which rules exist (tests/rules.toml) and whether each has a test
(tests/tools/trace.py). In a module that also uses hypothesis state machines, whose decorator is called `rule` as well,
import this one as `proves`: `from tests.marks import rule as proves`.
"""

from __future__ import annotations

import re

import pytest

from tests.tools.rules import RULES_MAX, is_rule_id

ADDRESS = re.compile(" at 0x[0-9a-f]+")


def rule(*ids: str) -> pytest.MarkDecorator:
    """Mark a test, a class or (as `pytestmark`) a module with the one to three rules it proves.

    Raises:
        ValueError: no id, more than three, a repeated or a malformed one.
    """
    if not 1 <= len(ids) <= RULES_MAX:
        raise ValueError(f"a test cites 1 to {RULES_MAX} rules, not {len(ids)}")
    if len(set(ids)) < len(ids):
        raise ValueError(f"a rule is cited twice: {', '.join(ids)}")
    for rule_id in ids:
        if not is_rule_id(rule_id):
            raise ValueError(f"{rule_id!r} is no rule id; write C59 for a rule, K04 for a case")
    return pytest.mark.rule(*ids)


def named(value: object) -> str:
    """The id of a parameter, the same in every process: without an address."""
    return ADDRESS.sub("", str(value))
