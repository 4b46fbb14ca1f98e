"""Signals and the event loop of a command: the first ends it in order, the second cuts that short, the third at once.

Not here: what a command does about it; it asks `Stop.requested` and lets its waits be interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

import anyio
import anyio.abc
import typer

Result = TypeVar("Result")

DRAIN_S = 10.0
"""How long the work may go on after the first signal; the log itself closes after that in any case."""


class Stop:
    """Whether somebody asked this command to end, and how urgently."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, drains: bool) -> None:
        self._tasks = tasks
        self._drains = drains
        self._wait: anyio.CancelScope | None = None
        self._signals = 0
        self._over = False
        self.signal: signal.Signals | None = None
        self.work = anyio.CancelScope()

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

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Take signals until cancelled."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as arriving:
            task_status.started()
            async for number in arriving:
                self._take(number)

    def _take(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 2:
            os._exit(128 + number)
        if self._signals == 2 or not self._drains:
            self.work.cancel()
        self.signal = self.signal or number
        self.work.deadline = min(self.work.deadline, anyio.current_time() + DRAIN_S)
        self.end()


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
    if isinstance(ended, _CutShort):
        print(f"tarry: cut short by {ended.by.name}", file=sys.stderr)
        raise typer.Exit(128 + ended.by)
    return ended


@dataclass(frozen=True)
class _CutShort:
    """The work was cancelled because of this signal."""

    by: signal.Signals


async def _run(work: Callable[[Stop], Awaitable[Result]], drains: bool) -> Result | _CutShort:  # noqa: FBT001  # anyio.run passes by position
    ended: Result | _CutShort | Exception | None = None
    async with anyio.create_task_group() as tasks:
        stop = Stop(tasks, drains=drains)
        await tasks.start(stop.listen)
        with stop.work:
            try:
                ended = await work(stop)
            except Exception as error:  # noqa: BLE001  # raised below, outside of the group that would wrap it
                ended = error
        if stop.work.cancelled_caught:
            assert stop.signal is not None
            ended = _CutShort(stop.signal)
        tasks.cancel_scope.cancel()
    if isinstance(ended, Exception):
        raise ended
    return cast("Result | _CutShort", ended)
