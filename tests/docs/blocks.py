"""The code blocks of a page, and how they run: each page in a folder of its own, block after block.

What a fence says decides what happens to its block:

- ```` ```python ````: runs on asyncio, with top-level `await` as in `python -m asyncio`; its names stay for the page.
- ```` ```python title="billing.py" ````: is saved under that name; a later command must use the file.
- ```` ```console ````: each line that begins with `$ ` is run by bash, the lines below it are what must come out (both
  streams). Where a line says `^C`, the program gets SIGINT once all output above it has appeared, and must then end by
  itself; where it says `Killed`, it gets SIGKILL. A command that fails must be followed by `$ echo $?`.
- ```` ```text title="output" ````: what the Python block above it must print. Without one it must print nothing.
- ```` ```text ````, without or with another title: a drawing or a message; test_blocks.py pins how many there are.
- `title="not run: ..."` with the reason: is left alone; test_blocks.py pins how many there are.

In expected output `...` stands for anything within a line, alone on a line for any lines. Everything else is an error.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sybil import Document
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

LIMIT_S = 10.0
"""For one command; a program that got a signal has half of it to end."""

_FENCE = RawFencedCodeBlockLexer(info_pattern=re.compile(r"(?P<info>[^\n]*)\n"))
_INFO = re.compile(r'(?P<language>[a-z]+)(?: title="(?P<title>[^"]+)")?')
_SIGNALS = {"^C": signal.SIGINT, "Killed": signal.SIGKILL}


class WrongBlock(AssertionError):
    """A block is malformed, or did not do what its page says."""


class Kind(Enum):
    """What happens to a block."""

    FRAGMENT = "runs in the page's namespace"
    FILE = "is saved"
    CONSOLE = "is run by bash"
    OUTPUT = "is compared"
    DRAWING = "is text"
    LEFT_ALONE = "is not run"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: where its first line of source is, and what its fence says."""

    page: Path
    line: int
    language: str
    title: str
    source: str

    @property
    def kind(self) -> Kind:
        """What happens to it.

        Raises:
            WrongBlock: nothing would.
        """
        if self.title.startswith("not run: "):
            return Kind.LEFT_ALONE
        match self.language, self.title:
            case "python", "":
                return Kind.FRAGMENT
            case "python", title if re.fullmatch(r"[\w/]+\.py", title):
                return Kind.FILE
            case "console", "":
                return Kind.CONSOLE
            case "text", "output":
                return Kind.OUTPUT
            case "text", _:
                return Kind.DRAWING
            case _:
                raise self.wrong(f"nothing is known about a block {self.language!r} with the title {self.title!r}")

    def wrong(self, what: str, line: int | None = None) -> WrongBlock:
        """An error that says where."""
        return WrongBlock(f"{self.page.name}:{self.line if line is None else line}: {what}")


def blocks(page: Path) -> list[Block]:
    """All blocks of a page in order; also what looks like code but has no fence is an error."""
    text = page.read_text(encoding="utf-8")
    document = Document(text, str(page))
    found: list[Block] = []
    outside: list[str] = []
    end = 0
    for region in sorted(_FENCE(document), key=lambda region: region.start):
        line = text.count("\n", 0, region.start) + 2
        info = _INFO.fullmatch(region.lexemes["info"].strip())
        if info is None:
            raise WrongBlock(f"{page.name}:{line - 1}: cannot read the fence {region.lexemes['info']!r}")
        if region.start < end or not text[: region.end].endswith("```"):
            raise WrongBlock(f"{page.name}:{line - 1}: the fence is not closed, or inside another one")
        found.append(Block(page, line, info["language"], info["title"] or "", str(region.lexemes["source"])))
        outside.append(text[end : region.start])
        end = region.end
    outside.append(text[end:])
    for part in outside:
        if indented := re.search(r"\n\n((?: {4}|\t).*)", part):
            raise WrongBlock(f"{page.name}: this indented block is never run, fence it: {indented[1].strip()!r}")
    return found


# ------------------------------------------------------------------------------------------------------- running


def run_page(page: Path, folder: Path) -> None:
    """Run all blocks of a page in `folder`.

    Raises:
        WrongBlock: a block failed, or its output is not what the page says.
    """
    todo = blocks(page)
    shell = Shell(folder)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    with asyncio.Runner() as runner, chdir(folder):
        for block in todo:
            if block.kind is Kind.OUTPUT:
                if printed is None:
                    raise block.wrong("there is no Python block above this output")
                _compare(block, block.line, block.source, printed)
                printed = None
                continue
            _expect_nothing(block, printed)
            printed = None
            if block.kind is Kind.FRAGMENT:
                printed = _run_fragment(block, namespace, runner)
            elif block.kind is Kind.FILE:
                shell.save(block)
            elif block.kind is Kind.CONSOLE:
                shell.run(block)
    _expect_nothing(todo[-1] if todo else None, printed)
    if shell.unused:
        raise WrongBlock(f"{page.name}: no command runs {', '.join(sorted(shell.unused))}")


def _expect_nothing(block: Block | None, printed: str | None) -> None:
    if printed and block is not None:
        raise block.wrong(f"the block above printed what the page does not show:\n{printed}")


def _run_fragment(block: Block, namespace: dict[str, Any], runner: asyncio.Runner) -> str:
    """Run a Python block; lines in tracebacks are those of the page."""
    code = compile(
        "\n" * (block.line - 1) + block.source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, namespace))
        else:
            exec(code, namespace)
    return out.getvalue()


def _compare(block: Block, line: int, expected: str, found: str) -> None:
    if not _pattern(expected).fullmatch(_tidy(found)):
        raise block.wrong(f"expected:\n{expected.rstrip()}\nfound:\n{found.rstrip()}", line)


def _tidy(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.rstrip().splitlines())


def _pattern(expected: str) -> re.Pattern[str]:
    lines = (
        "(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(re.escape("..."), ".*") + "\n"
        for line in _tidy(expected).splitlines()
    )
    return re.compile("".join(lines))


# --------------------------------------------------------------------------------------------------------- shell


@dataclass(slots=True)
class Command:
    """One command of a console block with the lines that must come out; `^C` and `Killed` are among them."""

    line: int
    source: str
    expected: list[str]


def commands(block: Block) -> list[Command]:
    """What a console block types, and what it sees."""
    found: list[Command] = []
    for number, line in enumerate(block.source.splitlines(), block.line):
        if line.startswith("$ "):
            found.append(Command(number, line[2:], []))
        elif not found:
            raise block.wrong("a console block begins with a command: `$ ...`", number)
        elif found[-1].source.endswith("\\") and not found[-1].expected:
            found[-1].source += "\n" + line
        else:
            found[-1].expected.append(line)
    return found


class Shell:
    """Runs the console blocks of one page, in the environment that a user has who installed tarry."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = _environment(folder)
        self.unused: set[str] = set()

    def save(self, block: Block) -> None:
        """Save a file block."""
        compile(block.source, block.title, "exec")
        path = self._folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.source, encoding="utf-8")
        self.unused.add(block.title)

    def run(self, block: Block) -> None:
        """Run the commands of a console block and compare what comes out."""
        found, status, signalled = "", 0, False
        for command in commands(block):
            self.unused -= {name for name in self.unused if name in command.source}
            if command.source == "echo $?":
                found, status = f"{status}\n", 0
            elif status and not signalled:
                break
            else:
                found, status, signalled = self._run(block, command)
            expected = [line for line in command.expected if line not in _SIGNALS]
            _compare(block, command.line, "\n".join(expected), found)
        if status and not signalled:
            raise block.wrong(f"a command ended with {status}; show that by `$ echo $?`. Its output:\n{found}")

    def _run(self, block: Block, command: Command) -> tuple[str, int, bool]:
        """The output of a command, its exit status, and whether it got a signal, to which any status is an answer."""
        with subprocess.Popen(
            ["bash", "-c", command.source],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        ) as process:
            try:
                found, signalled = _converse(block, command, process)
                status = process.wait(LIMIT_S)
            finally:
                _kill(process)
        return found, status if status >= 0 else 128 - status, signalled


def _converse(block: Block, command: Command, process: subprocess.Popen[bytes]) -> tuple[str, bool]:
    """Read what comes out, send signals where the page says so; the output, and whether there was a signal."""
    found = ""
    seen: list[str] = []
    reader = _Reader(process)
    signalled = False
    for line in command.expected:
        if line not in _SIGNALS:
            seen.append(line)
            continue
        pattern = _pattern("\n".join(seen))
        while not (found.endswith("\n") and pattern.fullmatch(_tidy(found))):
            more = reader.read(LIMIT_S)
            if not more:
                raise block.wrong(f"did not get as far as {line}; found:\n{found}", command.line)
            found += more
        os.killpg(process.pid, _SIGNALS[line])
        signalled = True
    deadline = time.monotonic() + (LIMIT_S / 2 if signalled else LIMIT_S)
    while more := reader.read(deadline - time.monotonic()):
        found += more
    if not reader.ended:
        raise block.wrong(f"{command.source!r} did not end by itself; found:\n{found}", command.line)
    return found, signalled


class _Reader:
    """The output of a process, by a deadline."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._stream = process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stream, selectors.EVENT_READ)
        self.ended = False

    def read(self, limit_s: float) -> str:
        """What comes next; empty at the end (`ended`) and when the time is over."""
        if self.ended or not self._selector.select(max(limit_s, 0)):
            return ""
        data = os.read(self._stream.fileno(), 65536)
        if not data:
            self.ended = True
            self._selector.close()
        return data.decode()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Nothing that a page started survives it; the group may be gone already."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(folder: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TARRY_", "PYTHON", "PYTEST"))}
    scripts = str(Path(sys.executable).parent)
    return kept | {
        "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath))),
        "HOME": str(folder),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "default",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def pages(root: Path) -> Iterator[Path]:
    """README.md and every page of the documentation."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))
