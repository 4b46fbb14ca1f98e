"""Which task runs, whether it was cancelled, and whether one that ran before has ended; on asyncio and on trio."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from tarry._runtime.bridge import backend

Task = Any
"""A task of the running loop, compared by identity only."""
NOBODY: Task = object()
"""No task at all; not None, which a loop in which no task runs at the moment may say."""


def current_task() -> Callable[[], Task]:
    """A cheap function that returns the running task of the loop in which this is called."""
    if backend() == "trio":
        import trio

        return trio.lowlevel.current_task
    if sys.version_info >= (3, 12):
        return asyncio.current_task
    # In 3.11, which will not change any more, it is written in Python and takes six times as long as this part of it.
    running: dict[object, Task] = vars(asyncio.tasks)["_current_tasks"]
    return partial(running.get, asyncio.get_running_loop())


def ended(task: Task) -> bool:
    """The task has finished, whatever way."""
    if isinstance(task, asyncio.Task):
        return task.done()
    return inspect.getcoroutinestate(task.coro) == inspect.CORO_CLOSED


def returned(task: Task) -> object:
    """What a task of asyncio has returned, None where it has not; those of trio return nothing."""
    if not isinstance(task, asyncio.Task):
        return None
    ran = cast("asyncio.Task[object]", task)
    failed = getattr(ran, "_exception", None)  # to ask for it would tell asyncio that somebody has seen it
    return ran.result() if ran.done() and not ran.cancelled() and failed is None else None


def is_cancelled() -> bool:
    """The running task is asked to end; if not, a cancel that it meets is that of something it waits for (asyncio)."""
    task = asyncio.current_task() if backend() == "asyncio" else None
    return task is None or task.cancelling() > 0
