"""The public names of the package: `python -m tests.tools.public_api [--update]`.

Public is what `tarry`, `tarry.abc` and `tarry.testing` list in `__all__`; without one, what the module itself defines
and does not begin with an underscore. The snapshot beside test_public_api.py has one
name a line, so that a change of the public surface is a line in a diff and never an accident.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.tools.rules import ROOT

MODULES = ("tarry", "tarry.abc", "tarry.testing", "tarry.testing.conformance")
SNAPSHOT = ROOT / "tests" / "meta" / "public_api.txt"
_HEADER = "# The public names; written by `make api`. A change here belongs into CHANGELOG.md.\n"


class PublicNamesError(Exception):
    """A public module contradicts itself about what is public."""


def module_exists(name: str, source: Path = ROOT / "src") -> bool:
    """Say whether the module is there as a file of a package; a bare folder is no package yet."""
    path = source.joinpath(*name.split("."))
    is_file = (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()
    return is_file and (source / "tarry" / "__init__.py").is_file()


def names_of(module: str) -> list[str]:
    """Return the full public names of an importable module, sorted.

    Raises:
        PublicNamesError: `__all__` lists a name twice or one that the module does not have.
    """
    loaded = importlib.import_module(module)
    names: Sequence[str] | None = getattr(loaded, "__all__", None)
    if names is None:
        names = _defined(loaded)
    if len(set(names)) < len(names):
        raise PublicNamesError(f"{module}.__all__ lists a name twice")
    if missing := sorted(name for name in names if not hasattr(loaded, name)):
        raise PublicNamesError(f"{module}.__all__ lists {', '.join(missing)}, which it does not have")
    return sorted(f"{module}.{name}" for name in names)


def _defined(module: ModuleType) -> list[str]:
    """What the module's own text defines at its top level; imported names belong to somebody else."""
    names: dict[str, None] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = None
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: None for target in targets if isinstance(target, ast.Name)}
    return [name for name in names if not name.startswith("_")]


def public_names() -> list[str]:
    """Every public name of the package, as far as it is there."""
    return [name for module in MODULES if module_exists(module) for name in names_of(module)]


def read_snapshot(path: Path = SNAPSHOT) -> list[str]:
    """The names of the snapshot, without its comment."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def write_snapshot(names: Sequence[str], path: Path = SNAPSHOT) -> None:
    """Write the snapshot that `read_snapshot` reads."""
    path.write_text(_HEADER + "".join(f"{name}\n" for name in names), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the names, or write the snapshot."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.public_api", description="The public names")
    parser.add_argument("--update", action="store_true", help="write the snapshot")
    options = parser.parse_args(arguments)
    names = public_names()
    if options.update:
        write_snapshot(names)
        print(f"{SNAPSHOT.relative_to(ROOT)}: {len(names)} names")
    else:
        print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
