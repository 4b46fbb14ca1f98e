"""Imports go down only: every import in src/ is looked up in one table.

A new module below an existing row needs nothing; a new room of the house needs a row. An import that the table does not
allow is a question about the design: ask it before a row is changed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "tarry"
SOURCE = Path(__file__).resolve().parents[2] / "src"


class Row(NamedTuple):
    """What a room may import, besides itself and the standard library; names are separated by blanks."""

    ours: str
    outside: str = ""
    lazily: str = ""  # ours or outside, but only inside a function or for the type checker
    stdlib: str = ""  # when given, nothing else of the standard library


# What machines and codecs may use: they know no clock, no I/O, no randomness, no environment, no threads.
PURE = "__future__ array bisect collections dataclasses enum heapq itertools math struct typing zlib"

WORDS = "types errors config abc instruments"  # the vocabulary and the ports
FLOOR = f"{WORDS} _core _wire _runtime"  # what all who do I/O stand on

TABLE = {
    # room           of ours                            from outside              only lazily
    "errors":         Row(""),
    "types":          Row("errors",                     "msgspec",                "typing_extensions"),
    "config":         Row("types errors",               "pydantic"),
    "abc":            Row("types errors config"),
    "values":         Row("errors",                     "msgspec pydantic"),
    "instruments":    Row(WORDS,                        "",                       "prometheus_client opentelemetry"),
    "_core":          Row("types errors",               stdlib=PURE),
    "_wire":          Row("types errors",               "msgspec",                stdlib=f"{PURE} sys"),
    "_runtime":       Row(f"{WORDS} _core _wire",       "anyio tenacity",         "trio uvloop"),
    "brokers":        Row(""),
    "brokers.local":  Row(FLOOR,                        "anyio"),
    "brokers.remote": Row(FLOOR,                        "anyio"),
    "brokers.kafka":  Row(FLOOR,                        "anyio confluent_kafka"),
    "server":         Row(FLOOR,                        "anyio starlette uvicorn sse_starlette"),
    "consumer":       Row(FLOOR,                        "anyio"),
    "producer":       Row(FLOOR,                        "anyio"),
    "pipeline":       Row(f"{FLOOR} consumer producer", "anyio tenacity"),
    "writer":         Row(FLOOR,                        "anyio",                  "psycopg psycopg_pool"),
    "client":         Row(f"{FLOOR} values consumer producer", "anyio",           "brokers"),
    "running":        Row(FLOOR,                        "anyio"),
    "tarry":          Row(f"{WORDS} client running consumer producer pipeline writer"),
    "testing":        Row(f"{FLOOR} brokers server consumer producer pipeline writer client tarry",
                                                        "anyio trio outcome pytest hypothesis"),
    "cli":            Row(f"{FLOOR} brokers server consumer producer pipeline writer client tarry",
                                                        "anyio typer rich",       "uvloop"),
    "__main__":       Row("cli"),
}  # fmt: skip

APART = ("_core",)
"""Rooms whose modules do not even import each other."""


class Import(NamedTuple):
    """One import statement; `target` is the full dotted name."""

    target: str
    line: int
    is_lazy: bool


def imports_of(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """Every import of a module, wherever it stands; `from tarry import abc` counts as `tarry.abc`."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node, is_lazy in _walk(tree, is_lazy=False):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, is_lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(f"{start}.{alias.name}", node.lineno, is_lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"import_module", "importlib.import_module"}:
            yield Import(str(ast.literal_eval(node.args[0])), node.lineno, is_lazy)


def _walk(node: ast.AST, *, is_lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield child, is_lazy
        yield from _walk(child, is_lazy=is_lazy or inside or checking)


def room_of(module: str) -> str | None:
    """The row of a module of ours: its longest known prefix. The package itself has the row `tarry`."""
    if module == PACKAGE:
        return PACKAGE
    parts = module.removeprefix(f"{PACKAGE}.").split(".")
    known = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in known if name in TABLE), None)


def is_allowed(room: str, found: Import) -> bool:
    """Look one import up in the table."""
    row = TABLE[room]
    names = f"{row.ours} {row.outside} {row.lazily}" if found.is_lazy else f"{row.ours} {row.outside}"
    top = found.target.partition(".")[0]
    if top == PACKAGE:
        target = _our_room(found.target)
        own = target == room and room not in APART
        return own or target in names.split() or (target or "").partition(".")[0] in names.split()
    if top in sys.stdlib_module_names:
        return not row.stdlib or top in row.stdlib.split()
    return top in names.split()


def _our_room(target: str) -> str | None:
    """`tarry.abc` is the module; `tarry.connect` is a name of the package itself."""
    room = room_of(target)
    return PACKAGE if room is None and target.count(".") == 1 else room


def violations(source: Path) -> list[str]:
    """What the modules below `source` import against the table, one line each."""
    found: list[str] = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        name = path.relative_to(source).as_posix()
        module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        if (room := room_of(module)) is None:
            found.append(f"{name}: has no row in the table of tests/meta/test_layers.py")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
        found += [
            f"{name}:{each.line}: {room} must not import {each.target}"
            for each in imports_of(tree, module, is_package=path.name == "__init__.py")
            if not is_allowed(room, each)
        ]
    return found


def test_imports_go_down_only() -> None:
    assert violations(SOURCE) == []


def test_the_table_names_only_rows_that_it_has() -> None:
    named = {name for row in TABLE.values() for name in row.ours.split()}
    assert named <= set(TABLE)


def test_the_table_has_no_circle() -> None:
    below = {room: set(row.ours.split()) - {room} for room, row in TABLE.items()}
    while free := [room for room, targets in below.items() if not targets]:
        for room in free:
            del below[room]
        for targets in below.values():
            targets.difference_update(free)
    assert below == {}, "these rooms stand on each other"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("types.py", "import anyio"),
        ("types.py", "from tarry.config import PollOptions"),
        ("abc.py", "from pydantic import BaseModel"),
        ("_core/waiters.py", "import time"),
        ("_core/waiters.py", "import msgspec"),
        ("_core/waiters.py", "from tarry._core.readiness import Wait"),
        ("_core/waiters.py", "from . import readiness"),
        ("_core/__init__.py", "from tarry._core.readiness import Wait"),
        ("_wire/batch.py", "from tarry._core import waiters"),
        ("_wire/batch.py", "import os"),
        ("consumer/worker.py", "from tarry.brokers.local.pump import Pump"),
        ("consumer/worker.py", "from tarry import connect"),
        ("consumer/worker.py", "import tenacity"),
        ("consumer/worker.py", "def f():\n    from tarry.producer import Producer"),
        ("producer/producer.py", "from tarry.consumer import Consumer"),
        ("brokers/local/pump.py", "from ...consumer import worker"),
        ("brokers/local/pump.py", "from tarry.brokers import remote"),
        ("brokers/local/pump.py", "import tarry.client"),
        ("server/http.py", "from tarry.brokers.local import broker"),
        ("client.py", "from tarry.brokers.local import broker"),
        ("client.py", "import typer"),
        ("__init__.py", "from tarry.cli import main"),
        ("cli/demo.py", "from tarry import testing"),
        ("cli/demo.py", "import_module('tarry.testing')"),
        ("surprise.py", "x = 1"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, path: str, code: str) -> None:
    file = tmp_path / PACKAGE / path
    file.parent.mkdir(parents=True)
    file.write_text(code)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("types.py", "import msgspec\nfrom tarry.errors import InvalidName"),
        ("_core/waiters.py", "from collections.abc import Callable\nfrom tarry.types import Offset"),
        ("_wire/batch.py", "import msgspec.structs\nfrom tarry._wire import frames"),
        ("consumer/worker.py", "import os\nimport anyio.abc\nfrom tarry import abc\nfrom . import storing"),
        ("brokers/local/pump.py", "from tarry.brokers.local import store_memory\nfrom ... import abc"),
        ("client.py", "def f():\n    from tarry.brokers.local import broker"),
        ("client.py", "if TYPE_CHECKING:\n    from tarry.brokers.local import broker"),
        ("__main__.py", "from tarry.cli import main"),
        ("cli/demo.py", "import tarry\nfrom tarry import connect"),
    ],
)
def test_an_allowed_import_passes(tmp_path: Path, path: str, code: str) -> None:
    file = tmp_path / PACKAGE / path
    file.parent.mkdir(parents=True)
    file.write_text(code)
    assert violations(tmp_path) == []
