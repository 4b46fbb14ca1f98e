"""`tarry topic grow`: what it says, and what it refuses; in this process, on a file."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import tarry
from tarry.cli import main
from tests.marks import rule

AT = ("--db", "t.db")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARRY_URL", raising=False)
    assert main(["topic", "create", *AT, "orders", "-p", "2"]) == 0
    return tmp_path


async def _count() -> int:
    async with tarry.connect("t.db") as client:
        return len((await client.topic("orders")).partitions)


@rule("K56")
def test_a_topic_gains_partitions(capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["topic", "grow", *AT, "orders", "-p", "5"]) == 0
    assert capfd.readouterr() == ("", "tarry: topic 'orders' has 5 partitions, 3 of them new\n")
    assert anyio.run(_count) == 5


@rule("K56")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("orders", "-p", "1"), 2, "cannot be cut down to 1"),
        (("orders", "-p", "0"), 2, "partitions"),
        (("order", "-p", "5"), 5, "did you mean 'orders'?"),
        (("orders",), 2, "--partitions"),
    ],
)
def test_what_cannot_be_is_said(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    capfd.readouterr()
    assert main(["topic", "grow", *AT, *arguments]) == code
    assert words in capfd.readouterr().err
    assert anyio.run(_count) == 2
