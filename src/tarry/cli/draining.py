"""The event loop of a command, and how a signal ends it in order.

Not here: signals themselves (`_runtime.signals`); what a command does about one: it asks `Stop.requested` and lets its
waits be interrupted.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.abc
import typer

from tarry._runtime.signals import CutShort, until_signalled

Result = TypeVar("Result")

DRAIN_S = 10.0
"""How long the work may go on after the first signal; the log itself closes after that in any case."""


class Stop:
    """Whether somebody asked this command to end."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, drains: bool) -> None:
        self._tasks = tasks
        self._drains = drains
        self._wait: anyio.CancelScope | None = None
        self._over = False
        self.signal: signal.Signals | None = None

    @property
    def requested(self) -> bool:
        """Somebody asked this command to end, or nobody wants more from it."""
        return self._over

    def interruptible(self) -> anyio.CancelScope:
        """A scope for a wait that loses nothing when it is cancelled: the first signal ends it."""
        self._wait = anyio.CancelScope()
        if self.requested:
            self._wait.cancel()
        return self._wait

    def end(self) -> None:
        """End the work in order, as at the first signal."""
        self._over = True
        if self._wait is not None:
            self._wait.cancel()

    def end_when(self, happens: Callable[[], Awaitable[None]]) -> None:
        """End the work in order when `happens` returns; where the system cannot wait for that, it is left out."""

        async def watch() -> None:
            with suppress(OSError):
                await happens()
                self.end()

        self._tasks.start_soon(watch)

    def take(self, number: signal.Signals) -> bool:
        """The first signal; whether the work ends by itself now."""
        self.signal = number
        self.end()
        return self._drains


def run(work: Callable[[Stop], Awaitable[Result]], *, drains: bool = False) -> Result:
    """Run a command's work in an event loop of its own and return what it returns.

    Args:
        drains: the work ends by itself at the first signal (`Stop.requested`), and then the exit code is 0; otherwise
            the first signal cancels it.

    Raises:
        typer.Exit: with 130 or 143, when the work was cut short.
    """
    try:
        ended = anyio.run(_run, work, drains)
    except BrokenPipeError:  # Whoever reads stdout has enough. (typer would make it a 1.)
        raise typer.Exit from None
    if isinstance(ended, CutShort):
        print(f"tarry: cut short by {ended.by.name}", file=sys.stderr)
        raise typer.Exit(128 + ended.by)
    return ended


async def _run(work: Callable[[Stop], Awaitable[Result]], drains: bool) -> Result | CutShort:  # noqa: FBT001  # anyio.run passes by position
    stop: Stop | None = None

    async def stoppable(tasks: anyio.abc.TaskGroup) -> Result:
        nonlocal stop
        stop = Stop(tasks, drains=drains)
        return await work(stop)

    def at_first(number: signal.Signals) -> bool:
        return stop is not None and stop.take(number)

    return await until_signalled(stoppable, at_first, DRAIN_S)
