"""The public surface is what the snapshot says; `make api` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tools import public_api


def test_public_names_equal_the_snapshot() -> None:
    now, before = set(public_api.public_names()), set(public_api.read_snapshot())
    assert (sorted(now - before), sorted(before - now)) == ([], []), "added, removed; if meant, run `make api`"


def test_snapshot_is_sorted_and_says_nothing_twice() -> None:
    names = public_api.read_snapshot()
    by_module = [name for module in public_api.MODULES for name in names if name.rpartition(".")[0] == module]
    assert names == by_module
    assert len(set(names)) == len(names)


def test_snapshot_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "public_api.txt"
    public_api.write_snapshot(["tarry.Batch", "tarry.abc.Broker"], path)
    assert public_api.read_snapshot(path) == ["tarry.Batch", "tarry.abc.Broker"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("__all__ = ['x', 'x']\nx = 1", "twice"),
        ("__all__ = ['x']", "lists x, which it does not have"),
    ],
)
def test_a_module_that_contradicts_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "a_public_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_public_module", raising=False)
    with pytest.raises(public_api.PublicNamesError, match=message):
        public_api.names_of("a_public_module")


def test_without_all_the_names_that_the_module_defines_are_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from os import path\nB: int = 1\n_c = 2\nclass A: ...\ndef f(): ...\ndef _g(): ...\n"
    (tmp_path / "a_module_without_all.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert [name.rpartition(".")[2] for name in public_api.names_of("a_module_without_all")] == ["A", "B", "f"]
