"""Which task runs, and whether a task that ran before has ended; on asyncio and on trio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from tarry._runtime.bridge import backend

Task = Any
"""A task of the running loop, compared by identity only."""


def current_task() -> Callable[[], Task]:
    """A cheap function that returns the running task of the loop in which this is called."""
    if backend() == "trio":
        import trio

        return trio.lowlevel.current_task
    return partial(asyncio.current_task, asyncio.get_running_loop())  # looking for the loop takes longer than the rest


def ended(task: Task) -> bool:
    """The task has finished, whatever way."""
    if isinstance(task, asyncio.Task):
        return task.done()
    return inspect.getcoroutinestate(task.coro) == inspect.CORO_CLOSED
