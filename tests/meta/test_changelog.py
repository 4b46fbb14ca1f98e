"""CHANGELOG.md keeps the shape of Keep a Changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("Security", "Removed", "Deprecated", "Added", "Changed", "Fixed")
"""In this order: what hurts comes first."""

_VERSION = re.compile(r"\[(?P<name>Unreleased|\d+\.\d+\.\d+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?")


def problems(text: str) -> list[str]:
    """What is wrong with a changelog, one line each."""
    found: list[str] = []
    if not text.startswith("# Changelog\n"):
        found.append("does not start with '# Changelog'")
    versions = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    names: list[str] = []
    for version in versions:
        title, _, body = version.partition("\n")
        match = _VERSION.fullmatch(title)
        if match is None or (match["name"] == "Unreleased") == bool(match["date"]):
            found.append(f"'## {title}' is neither [Unreleased] nor [1.2.3] - 2026-12-31")
            continue
        names.append(match["name"])
        found += _kinds(match["name"], body)
    if not names or names[0] != "Unreleased":
        found.append("the first section is not [Unreleased]")
    released = [tuple(map(int, name.split("."))) for name in names if name != "Unreleased"]
    if released != sorted(set(released), reverse=True):
        found.append("released versions are not in falling order")
    return found


def _kinds(version: str, body: str) -> list[str]:
    found: list[str] = []
    kinds: list[str] = []
    for kind in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
        title, _, entries = kind.partition("\n")
        kinds.append(title)
        if not re.search(r"^- \S", entries, flags=re.MULTILINE):
            found.append(f"{version}: '### {title}' has no entry")
    if kinds != [kind for kind in KINDS if kind in kinds]:
        found.append(f"{version}: sections are {', '.join(kinds)}; allowed, in this order: {', '.join(KINDS)}")
    return found


def test_changelog_has_the_agreed_shape() -> None:
    assert problems((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_a_released_version_of_the_package_is_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, flags=re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert not released or released[0] == version


GOOD = """\
# Changelog

## [Unreleased]

### Added

- x

## [0.2.0] - 2026-02-01

### Fixed

- y

## [0.1.0] - 2026-01-01
"""


def test_a_good_changelog_passes() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Changelog", "# Changes"),
        ("## [Unreleased]\n", ""),
        ("## [Unreleased]", "## [Unreleased] - 2026-01-01"),
        ("[0.2.0] - 2026-02-01", "[0.2.0]"),
        ("[0.2.0] - 2026-02-01", "0.2.0 - 2026-02-01"),
        ("0.2.0", "0.0.9"),
        ("### Added", "### News"),
        ("- x", "x"),
        ("### Fixed\n\n- y", "### Fixed\n\n- y\n\n### Added\n\n- z"),
    ],
)
def test_a_bad_changelog_is_noticed(old: str, new: str) -> None:
    assert old in GOOD
    assert problems(GOOD.replace(old, new, 1)) != []
