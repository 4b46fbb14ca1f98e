"""Children that can be killed at once: forked from a helper process that has imported everything and opened nothing.

`Zygote` is the test's side, `main` the helper's. A child runs `module:function(*args)` with its standard output in a
file that survives it. Not here: what the children do.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Zygote:
    """Forks children on request; kill them with `Child.kill`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def spawn(self, target: str, *args: Any, out: Path) -> Child:
        """Fork a child that runs `target` (`module:function`)."""
        pid = self._ask({"do": "spawn", "target": target, "args": args, "out": str(out)})
        return Child(self, pid, out)

    def wait(self, pid: int) -> int:
        """Wait for a child's end; its wait status."""
        return self._ask({"do": "wait", "pid": pid})

    def _ask(self, command: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Child:
    """One forked process and what it printed."""

    def __init__(self, zygote: Zygote, pid: int, out: Path) -> None:
        self.pid = pid
        self._zygote = zygote
        self._out = out

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; no error when it had ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait for its end; its wait status."""
        return self._zygote.wait(self.pid)

    @property
    def lines(self) -> list[str]:
        """The whole lines printed so far."""
        if not self._out.exists():
            return []
        text = self._out.read_text()
        return text[: text.rfind("\n") + 1].splitlines()


def say(*words: object) -> None:
    """Print one line at once; for children."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _child(target: str, args: list[Any], out: str) -> None:
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    module, _, name = target.partition(":")
    getattr(importlib.import_module(module), name)(*args)


def main() -> None:
    """Serve commands, one JSON object a line, until standard input ends."""
    for module in ("tarry.cli", "tarry.testing", "tarry.brokers.local.store_sqlite"):
        importlib.import_module(module)  # once, for all children
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "wait":
            say(os.waitpid(command["pid"], 0)[1])
            continue
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _child(command["target"], command["args"], command["out"])
                status = 0
            finally:
                os._exit(status)
        say(pid)


if __name__ == "__main__":
    main()
