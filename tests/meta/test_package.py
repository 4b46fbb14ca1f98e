"""What is shipped: typed, at the version that pyproject.toml says, with every file that is not Python."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_package_is_typed(project: dict[str, Any]) -> None:
    assert (SOURCE / "tarry" / "py.typed").is_file()
    assert "Typing :: Typed" in project["project"]["classifiers"]


def test_installed_version_equals_pyproject(project: dict[str, Any]) -> None:
    assert importlib.metadata.version("tarry") == project["project"]["version"]


def test_version_in_the_source_equals_pyproject(project: dict[str, Any]) -> None:
    init = SOURCE / "tarry" / "__init__.py"
    tree = ast.parse(init.read_text(encoding="utf-8") if init.is_file() else "")
    versions = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert versions == ([project["project"]["version"]] if init.is_file() else [])


def test_extras_pin_nothing_and_cap_nothing(project: dict[str, Any]) -> None:
    """A library leaves versions to its users; the exact ones of our own runs are in constraints.txt."""
    extras = project["project"]["optional-dependencies"].values()
    needs = [*project["project"]["dependencies"], *(need for extra in extras for need in extra)]
    assert [need for need in needs if "==" in need.partition(";")[0] or "<" in need.partition(";")[0]] == []


def test_constraints_are_exact_and_name_no_place() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if pin.count("==") != 1 or "/" in pin or "@" in pin] == []
    assert {pin.partition("==")[0] for pin in pins} >= {"pip", "hatchling", "editables", "pytest", "pyright"}


@pytest.mark.slow
def test_wheel_has_every_file_of_the_source(tmp_path: Path) -> None:
    """Also those that are not Python: py.typed, brokers/local/schema.sql, and the data of `tarry demo`."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert shipped == {path.relative_to(SOURCE).as_posix() for path in files} | {"tarry/cli/seattle-weather.csv"}
    assert "tarry/py.typed" in shipped
