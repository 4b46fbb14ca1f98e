"""What src/ never does, whoever writes it: each ban with the rooms that are free of it and what to use instead.

Bans keep whole consumers testable: a clock, a random number or a set order that nobody handed in makes a simulation
differ from one run to the next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = "tarry"


class Ban(NamedTuple):
    """A name, with all names below it, that may be used only in some rooms (path prefixes below src/tarry)."""

    name: str
    allowed_in: tuple[str, ...]
    instead: str


CLOCK = "take `now`, or ask the Clock that was handed in"
CHANCE = "take a random function; `_runtime` makes it"
BANS = [
    Ban("time", ("_runtime/",), CLOCK),
    Ban("datetime.datetime.now", ("_runtime/",), CLOCK),
    Ban("datetime.datetime.today", ("_runtime/",), CLOCK),
    Ban("datetime.datetime.utcnow", ("_runtime/",), CLOCK),
    Ban("datetime.date.today", ("_runtime/",), CLOCK),
    Ban("random", ("_runtime/",), CHANCE),
    Ban("secrets", ("_runtime/",), CHANCE),
    Ban("os.urandom", ("_runtime/",), CHANCE),
    Ban("os.getrandom", ("_runtime/",), CHANCE),
    Ban("uuid.uuid1", ("_runtime/",), CHANCE),
    Ban("uuid.uuid4", ("_runtime/",), CHANCE),
    Ban("asyncio", ("_runtime/", "brokers/local/host.py", "testing/"), "use anyio, so that trio works too"),
    Ban("print", ("cli/",), "return the text, log it, or raise it"),
]
SEEDED_CHANCE = {"random.Random", "random.seed", "random.getstate", "random.setstate"}
SEEDED_CHANCE_IN = ("testing/",)
"""Where chance that begins with a given seed is fine, but not `random.Random()`."""


class Finding(NamedTuple):
    """One use of something banned."""

    line: int
    text: str


def findings(path: str, code: str) -> list[Finding]:
    """All that is banned in one file; `path` is relative to src/tarry."""
    tree = ast.parse(code, filename=path)
    names = _names(tree)
    banned = _banned_names(path, tree, names)
    return sorted({*banned, *_silent_handlers(tree), *_identity_order(tree), *_set_order(tree)})


# --- names: clocks, chance, asyncio, print ---


def _names(tree: ast.Module) -> dict[str, str]:
    """Local name -> what it was imported as: `from time import monotonic as m` gives m -> time.monotonic."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _banned_names(path: str, tree: ast.Module, names: dict[str, str]) -> Iterator[Finding]:
    bans = [ban for ban in BANS if not path.startswith(ban.allowed_in)]
    seeded = _seeded(tree, names) if path.startswith(SEEDED_CHANCE_IN) else set[ast.AST]()
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or id(node) in inner or node in seeded:
            continue
        used = _full_name(node, names)
        for ban in bans:
            if used == ban.name or used.startswith(f"{ban.name}."):
                yield Finding(node.lineno, f"{used}: {ban.instead}")


def _full_name(node: ast.Attribute | ast.Name, names: dict[str, str]) -> str:
    first, _, rest = ast.unparse(node).partition(".")
    known = names.get(first, first if first == "print" else f"<local> {first}")
    return f"{known}.{rest}" if rest else known


def _seeded(tree: ast.Module, names: dict[str, str]) -> set[ast.AST]:
    """Uses of seeded chance, but for calls without a seed."""
    bare = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and not (node.args or node.keywords)}
    return {
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
        and (name := _full_name(node, names)) in SEEDED_CHANCE
        and (node not in bare or name == "random.getstate")
    }


# --- errors that vanish ---


def _silent_handlers(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            is_silent = _is_broad(node.type) and all(map(_does_nothing, node.body))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
            is_silent = any(map(_is_broad, node.args))
        else:
            continue
        if is_silent:
            yield Finding(node.lineno, "an error vanishes here: let it out, or make it a status")


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return caught is None or ast.unparse(caught) in {"Exception", "BaseException"}


def _does_nothing(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Pass | ast.Continue)


# --- orders that differ from run to run ---


def _identity_order(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "key" and _uses_identity(node.value):
            yield Finding(node.value.lineno, "order by id() or hash() differs from run to run")


def _uses_identity(key: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id in {"id", "hash"} for node in ast.walk(key))


def _set_order(tree: ast.Module) -> Iterator[Finding]:
    sets_of_tasks = _sets_of_tasks(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            continue
        if _is_set(node.iter) or ast.unparse(_copied(node.iter)) in sets_of_tasks:
            yield Finding(node.iter.lineno, "a set has no order: keep tasks in a dict or a list, or sort")


def _copied(node: ast.expr) -> ast.expr:
    """`list(tasks)` and `tuple(tasks)` keep the order of the set they copy."""
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in {"list", "tuple", "iter"}:
        return node.args[0]
    return node


def _is_set(node: ast.expr) -> bool:
    node = _copied(node)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in {"set", "frozenset"}
    return isinstance(node, ast.Set | ast.SetComp)


def _sets_of_tasks(tree: ast.Module) -> set[str]:
    """Names and attributes annotated as a set of something that runs or waits."""
    annotated = (node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign))
    return {ast.unparse(node.target) for node in annotated if _SET_OF_TASKS.match(ast.unparse(node.annotation))}


_SET_OF_TASKS = re.compile(r"(\w+\.)*(set|frozenset|Set|MutableSet)\[.*(Task|Future|Event|CancelScope)\b")


def test_src_does_nothing_banned() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{finding.line}: {finding.text}"
        for path in sorted((SOURCE / PACKAGE).rglob("*.py"))
        for finding in findings(path.relative_to(SOURCE / PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("consumer/worker.py", "import time\ntime.monotonic()"),
        ("consumer/worker.py", "import time as t\nread = t.time"),
        ("consumer/worker.py", "from time import sleep\nsleep(1)"),
        ("consumer/worker.py", "import datetime\ndatetime.datetime.now()"),
        ("consumer/worker.py", "from datetime import datetime, UTC\ndatetime.now(UTC)"),
        ("consumer/worker.py", "from datetime import date as day\nday.today()"),
        ("_core/backoff.py", "import random\nrandom.random()"),
        ("_core/backoff.py", "import random\nrandom.Random(7)"),
        ("testing/faults.py", "import random\nrandom.Random()"),
        ("testing/faults.py", "import random\nrandom.seed()"),
        ("testing/faults.py", "import random\nrandom.shuffle([])"),
        ("testing/faults.py", "import time\ntime.sleep(1)"),
        ("producer/producer.py", "import os\nos.urandom(16)"),
        ("producer/producer.py", "import secrets\nsecrets.token_bytes(16)"),
        ("producer/producer.py", "from uuid import uuid4\nuuid4()"),
        ("consumer/worker.py", "import asyncio\nasyncio.sleep(1)"),
        ("brokers/local/pump.py", "from asyncio import Event\nEvent()"),
        ("consumer/worker.py", "print('x')"),
        ("consumer/worker.py", "try:\n    f()\nexcept Exception:\n    pass"),
        ("consumer/worker.py", "try:\n    f()\nexcept:\n    ..."),
        ("consumer/worker.py", "for x in y:\n try:\n  f()\n except (ValueError, BaseException):\n  continue"),
        ("consumer/worker.py", "from contextlib import suppress\nwith suppress(Exception):\n    f()"),
        ("consumer/worker.py", "sorted(tasks, key=id)"),
        ("consumer/worker.py", "tasks.sort(key=lambda task: (task.name, hash(task)))"),
        ("consumer/worker.py", "for task in {a, b}:\n    task.cancel()"),
        ("consumer/worker.py", "[task.cancel() for task in list(set(tasks))]"),
        ("_runtime/supervise.py", "tasks: set[Task] = set()\nfor task in tasks:\n    task.cancel()"),
        ("_runtime/supervise.py", "self.t: set[asyncio.Task[None]] = set()\nlist(x for x in tuple(self.t))"),
    ],
)
def test_a_ban_is_noticed(path: str, code: str) -> None:
    assert len(findings(path, code)) == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("_runtime/clock.py", "import time\ntime.monotonic()"),
        ("consumer/worker.py", "def f(time, random):\n    return time.now() + random()"),
        ("consumer/worker.py", "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)"),
        ("brokers/local/host.py", "import asyncio\nasyncio.run(f())"),
        ("testing/faults.py", "import random\nr: random.Random = random.Random(7)\nr.random()"),
        ("testing/faults.py", "import random\nstate = random.getstate()\nrandom.seed(7)\nrandom.setstate(state)"),
        ("cli/demo.py", "print('x')"),
        ("consumer/worker.py", "try:\n    f()\nexcept ValueError:\n    pass"),
        ("consumer/worker.py", "try:\n    f()\nexcept Exception:\n    log()\n    raise"),
        ("consumer/worker.py", "for name in sorted({a, b}):\n    f(name)"),
        ("consumer/worker.py", "names: set[str] = set()\nfor name in names:\n    f(name)"),
        ("consumer/worker.py", "sorted(x, key=lambda m: m.id)"),
    ],
)
def test_what_is_fine_passes(path: str, code: str) -> None:
    assert findings(path, code) == []
