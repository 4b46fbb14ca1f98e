"""Virtual time on asyncio: a selector that jumps instead of waiting, and sets that keep their order. Private."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableSet
from contextvars import Context
from importlib import import_module
from typing import TypeVar, TypeVarTuple
from unittest import mock

import anyio

from tarry.errors import UsageError
from tarry.testing._deadlock import Deadlock, deadlock

T = TypeVar("T")
Args = TypeVarTuple("Args")


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on a virtual loop.

    anyio keeps the tasks and child scopes of a cancel scope in sets, so that those cancelled together would end in the
    order of their addresses; for the time of the run its backend gets sets that keep the order of insertion.
    """
    anyio_backend = import_module("anyio._backends._asyncio")
    with mock.patch.object(anyio_backend, "set", OrderedSet, create=True):
        return anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualLoop})


def block(seconds: float) -> None:
    """See `virtual_time.block`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise UsageError("block() moves virtual time; this loop runs on real time (use run_virtual)")
    loop.jump(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and moves only when nobody can go on."""

    def __init__(self) -> None:
        self._jumps = JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumps.now

    def jump(self, seconds: float) -> None:
        """Move the clock."""
        self._jumps.now += seconds

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer. One at infinity, as `anyio.sleep_forever` sets it, is none and hides no deadlock."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)


class JumpingSelector(selectors.DefaultSelector):
    """A selector that never blocks: instead of waiting for the next timer it moves the clock there.

    Real file descriptors, the loop's self-pipe among them, are looked at before each jump and go first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._deadlock: Deadlock | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; with nothing ready jump by `timeout`, and with no timer raise `Deadlock`."""
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            self._deadlock = self._deadlock or deadlock((t.get_name(), t.get_coro()) for t in asyncio.all_tasks())
            raise self._deadlock  # Again the first one when the clean-up after it waits for ever, too.
        self.now += timeout
        return ready


class OrderedSet(MutableSet[T]):
    """A set that iterates in the order of insertion."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: T) -> None:
        """Put `value` at the end, unless it is there."""
        self._items[value] = None

    def discard(self, value: T) -> None:
        """Take `value` out, if it is there."""
        self._items.pop(value, None)
