"""Work that SIGINT and SIGTERM end: the first signal in order, the second cuts it short, the third exits at once.

Not here: what a first signal does (`running` for programs, `cli.draining` for commands), exit codes but that of the
third.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar, cast

import anyio
import anyio.abc

Result = TypeVar("Result")
Shutdown = Callable[[], Coroutine[Any, Any, object]]

STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class CutShort:
    """The work was cancelled because of this signal."""

    by: signal.Signals


async def until_signalled(
    work: Callable[[anyio.abc.TaskGroup], Awaitable[Result]],
    at_first: Callable[[signal.Signals], bool],
    limit_s: float,
) -> Result | CutShort:
    """Do `work` and return what it returns, or that a signal cut it short. For the main thread only.

    Args:
        work: is given a task group for what runs beside it and is cancelled after it.
        at_first: called at the first signal; begins an orderly end. False: there is none, so the work is cancelled.
        limit_s: how many seconds after the first signal the work is cancelled.
    """
    ended: Result | CutShort | None = None
    failed: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        listening = _Listening(at_first, limit_s)
        await tasks.start(listening.run)
        with listening.work:
            try:
                ended = await work(tasks)
            except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # raised below: the group wraps it
                failed = error
        if listening.work.cancelled_caught:
            assert listening.first is not None
            ended = CutShort(listening.first)
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return cast("Result | CutShort", ended)


class _Listening:
    """Counts signals, and ends the work accordingly."""

    def __init__(self, at_first: Callable[[signal.Signals], bool], limit_s: float) -> None:
        self._at_first = at_first
        self._limit_s = limit_s
        self._count = 0
        self.first: signal.Signals | None = None
        self.work = anyio.CancelScope()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Take signals until cancelled."""
        with anyio.open_signal_receiver(*STOPPING) as arriving, _seen_at_once(self._note):
            task_status.started()
            async for number in arriving:
                self._take(number)

    def _note(self, number: int) -> None:
        """A signal was sent; the loop hears of it only when no handler blocks it, and may hear of two at once."""
        self._count += 1
        if self._count > 2:
            os._exit(128 + number)

    def _take(self, number: signal.Signals) -> None:
        if self.first is None:
            self.first = number
            self.work.deadline = min(self.work.deadline, anyio.current_time() + self._limit_s)
            if not self._at_first(number):
                self.work.cancel()
        if self._count > 1:
            self.work.cancel()


@contextmanager
def _seen_at_once(note: Callable[[int], None]) -> Generator[None]:
    """Call `note` for each signal, also while the loop is blocked; the loop's own handlers are called after it."""
    inner = {number: signal.getsignal(number) for number in STOPPING}

    def handle(number: int, frame: FrameType | None) -> None:
        note(number)
        handler = inner[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in STOPPING:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in inner.items():
            signal.signal(number, handler)


class Drain:
    """What a first signal shuts down in order; what opens after that is shut down at once.

    Args:
        start_soon: runs a shutdown beside the rest.
    """

    def __init__(self, start_soon: Callable[[Shutdown], object]) -> None:
        self._start_soon = start_soon
        self._open: dict[Shutdown, None] = {}
        self._begun = False

    def add(self, shutdown: Shutdown) -> None:
        """Something was opened that `shutdown` closes in order."""
        self._open[shutdown] = None
        if self._begun:
            self._start_soon(shutdown)

    def remove(self, shutdown: Shutdown) -> None:
        """It is closed."""
        self._open.pop(shutdown, None)

    def begin(self) -> bool:
        """Shut all down; False when nothing was open."""
        self._begun = True
        for shutdown in self._open:
            self._start_soon(shutdown)
        return bool(self._open)


_DRAIN: ContextVar[Drain | None] = ContextVar("tarry_drain", default=None)


@contextmanager
def draining(drain: Drain) -> Generator[None]:
    """Tasks inside, and those they start, register with `drain` what they open."""
    token = _DRAIN.set(drain)
    try:
        yield
    finally:
        _DRAIN.reset(token)


def current_drain() -> Drain | None:
    """The drain of the program this task belongs to. A loop in another thread has none: it takes no signals."""
    return _DRAIN.get() if is_main_thread() else None


def is_main_thread() -> bool:
    """Signals arrive in the main thread only."""
    return threading.current_thread() is threading.main_thread()
