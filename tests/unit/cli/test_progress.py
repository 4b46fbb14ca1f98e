"""The bar: only on a terminal, only for long work, and it leaves nothing behind."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable

import pytest

from tarry.cli import progress
from tarry.cli.progress import Bar

pytestmark = pytest.mark.anyio


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Make stderr a terminal, let a bar count up to its end, and give what was written to it."""

    def show(*, patience_s: float, term: str = "xterm", wanted: bool = True) -> bytes:
        ours, theirs = pty.openpty()
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
        isatty = os.isatty
        monkeypatch.setattr(os, "isatty", lambda descriptor: isatty(theirs if descriptor == 2 else descriptor))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            with Bar("sending stdin", 3, wanted=wanted) as bar:
                for _ in range(3):
                    bar.advance(1)
            terminal.write("|")
            terminal.flush()
            shown = b""
            while not shown.endswith(b"|"):  # A terminal hands over in pieces.
                shown += os.read(ours, 100_000)
            return shown

    return show


async def test_long_work_on_a_terminal_gets_a_bar_that_goes_away(on_terminal: Callable[..., bytes]) -> None:
    shown = on_terminal(patience_s=-1.0)
    assert b"sending stdin" in shown
    assert shown.endswith(b"\x1b[2K|"), "the line is not empty again"


@pytest.mark.parametrize(
    "kind", [{"patience_s": 60.0}, {"patience_s": -1.0, "term": "dumb"}, {"patience_s": -1.0, "wanted": False}]
)
async def test_short_work_and_plain_terminals_get_none(
    on_terminal: Callable[..., bytes], kind: dict[str, object]
) -> None:
    assert on_terminal(**kind) == b"|"


async def test_without_a_terminal_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", -1.0)
    with Bar("sending stdin", None) as bar:
        bar.advance(1)
        bar.advance(1)
    assert capfd.readouterr() == ("", "")
