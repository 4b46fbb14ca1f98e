"""Virtual time on trio: its mock clock, its scheduling hook for hypothesis, and a watch for deadlocks. Private.

The only module that imports trio; `virtual_time` imports it when it is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TypeVar
from unittest import mock

import anyio
import outcome
import trio
import trio.testing

from tarry.errors import UsageError
from tarry.testing._deadlock import Deadlock, deadlock

T = TypeVar("T")
IDLE_TURNS_MAX = 3
"""A jump takes one or two turns of the loop in which no task runs; more of them without a deadline are a deadlock."""


def run(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run `main` under a mock clock; `seed` decides the order in which tasks that are ready together run."""
    watch = DeadlockWatch()
    options = {"clock": trio.testing.MockClock(autojump_threshold=0), "instruments": [watch]}
    try:
        with scheduled_by(seed):
            result = anyio.run(watch.guard, main, backend="trio", backend_options=options)
    except BaseException as error:
        if watch.found is None or watch.found is error:
            raise
        raise watch.found from error
    if watch.found is not None:  # The program swallowed its cancellation.
        raise watch.found
    return result


def block(seconds: float) -> None:
    """See `virtual_time.block`."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, trio.testing.MockClock):
        raise UsageError("block() moves virtual time; this loop runs on real time (use run_virtual)")
    clock.jump(seconds)


@contextmanager
def scheduled_by(seed: int) -> Generator[None]:
    """Make trio's order of ready tasks a function of `seed`, with the private hook that it keeps for hypothesis.

    Raises:
        AttributeError: this trio has no such hook any more; a test of ours guards that.
    """
    scheduler = import_module("trio._core._run")
    shuffle: random.Random = scheduler._r  # noqa: SLF001  # see above
    with mock.patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True):
        before = shuffle.getstate()
        shuffle.seed(seed)
        try:
            yield
        finally:
            shuffle.setstate(before)


class DeadlockWatch(trio.abc.Instrument):
    """Ends a run in which nobody can go on, where the mock clock alone would turn in circles for ever.

    The run is cancelled first, so that its clean-up happens. Tasks which a shield keeps from noticing that, get the
    error raised where they wait.
    """

    def __init__(self) -> None:
        self.found: Deadlock | None = None
        self._idle_turns = 0
        self._scope = trio.CancelScope()
        self._main: trio.lowlevel.Task | None = None

    async def guard(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run `main` where this watch can reach it."""
        self._main = trio.lowlevel.current_task()
        with self._scope:
            return await main()
        assert self.found is not None  # Nobody else cancels this scope.
        raise self.found

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Somebody goes on."""
        self._idle_turns = 0

    def before_io_wait(self, timeout: float) -> None:
        """Count a turn of the loop, and look closer when nobody has run for some."""
        self._idle_turns += 1
        if self._idle_turns <= IDLE_TURNS_MAX or self._main is None:
            return
        if trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf:
            self._idle_turns = 0
            self._end(self._main)

    def _end(self, main: trio.lowlevel.Task) -> None:
        tasks = list(_tasks(main))
        if self.found is None:
            self.found = deadlock((task.name, task.coro) for task in tasks)
            self._scope.cancel()
            return
        for task in tasks:
            if not any(nursery.child_tasks for nursery in task.child_nurseries):
                trio.lowlevel.reschedule(
                    task, outcome.Error(Deadlock("cancelled, but shielded while it waits for ever"))
                )


def _tasks(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """A task and all below it."""
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tasks(child)
