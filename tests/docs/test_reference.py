"""Pages that describe the code name by name: nothing is missing, nothing is left over, every value is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry import errors
from tests.tools import reference
from tests.tools.rules import ROOT

DOCS = ROOT / "docs"


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row whose first cell is code."""
    for line in re.findall(r"^\| (`.*) \|$", text, flags=re.MULTILINE):
        yield [cell.strip() for cell in line.split(" | ")]


def families() -> dict[str, set[type[errors.TarryError]]]:
    """Every error under the family that errors.md must show it in."""
    found: dict[str, set[type[errors.TarryError]]] = {
        family.__name__: {family} for family in errors.TarryError.__subclasses__()
    }
    for family in errors.TarryError.__subclasses__():
        todo = [family]
        while todo:
            kind = todo.pop()
            found[family.__name__].add(kind)
            todo += kind.__subclasses__()
    return found


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_what_is_made_from_the_code_is_up_to_date(page: Path):
    assert page.read_text(encoding="utf-8") == reference.updated(page), "python -m tests.tools.reference --update"


def test_each_error_is_described_in_its_family_and_with_its_attributes():
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    found = {section.partition("\n")[0]: list(rows(section)) for section in sections}
    attributes = found.pop("Attributes")
    assert all(len(row) == 3 and all(row) for table in found.values() for row in table)
    assert {family: sorted(row[0] for row in table) for family, table in found.items()} == {
        family: sorted(f"`{kind.__name__}`" for kind in kinds) for family, kinds in families().items()
    }
    kinds = {errors.TarryError}.union(*families().values())
    assert sorted(attributes) == sorted(
        [f"`{kind.__name__}`", str(kind.code), kind.retry, kind.applied] for kind in kinds
    )


def events() -> dict[str, set[str]]:
    """What src reports as an event, each with its fields."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "tarry").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            names = [part.value for part in call.args if isinstance(part, ast.Constant) and part.value != "consumer"]
            if call.func.attr in ("emit", "warn") and names and isinstance(names[0], str):
                fields = {keyword.arg for keyword in call.keywords if keyword.arg} - {"cause"}
                found.setdefault(names[0], set()).update(fields)
    return found


def test_each_event_is_described_with_its_fields():
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    _, _, behind = page.partition("## Events")
    section, _, _ = behind.partition("\n## ")
    described: dict[str, set[str]] = {}
    for line in re.findall(r"^\| (`.*) \|$", section, flags=re.MULTILINE):
        names, _, fields = line.split("|")
        described |= {name: set(re.findall(r"`(\w+)`", fields)) for name in re.findall(r"`(\w+)`", names)}
    assert described == events()


def test_the_file_map_names_every_file_once():
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    named = [cells[0].strip("`") for cells in rows(page.partition("## File map")[2])]
    source = ROOT / "src" / "tarry"
    files = [
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and (path.name != "__init__.py" or path.parent == source)
    ]
    assert len(named) == len(set(named))
    assert [name for name in named if not (source / name).exists()] == []
    assert [file for file in files if not _covered(file, named)] == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_beside_the_site_lead_somewhere(name: str):
    """`make docs` sees the pages of the site only."""
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def _covered(file: str, named: list[str]) -> bool:
    return file in named or any(f"{folder}/" in named for folder in map(str, Path(file).parents))
