"""A progress bar on stderr: only on a terminal, and only when the work takes longer than a moment."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0
"""Work that is over sooner gets no bar."""


class Bar:
    """Counts up to a total, or without end. Use it in `with`; it leaves nothing behind on the terminal."""

    def __init__(self, what: str, total: int | None, *, wanted: bool = True) -> None:
        self._what = what
        self._total = total
        self._wanted = wanted and _is_terminal()
        self._done = 0
        self._since: float | None = None
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def advance(self, count: int) -> None:
        """So much more is done."""
        self._done += count
        if not self._wanted:
            return
        now = anyio.current_time()
        if self._since is None:
            self._since = now
        elif self._shown is None and now - self._since > PATIENCE_S:
            self._shown = self._show()
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=self._done)

    def _show(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(show_speed=True),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = progress.add_task(self._what, total=self._total)
        progress.start()
        return progress, task


def _is_terminal() -> bool:
    return os.isatty(2) and os.environ.get("TERM") != "dumb"
