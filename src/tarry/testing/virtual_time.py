"""Virtual time: run async code to its end without waiting, the same way again for the same seed, on both loops.

Here: `run_virtual`, the clock that fits it, `block`, and the error `Deadlock`. Not here: faults (`scripted`).

A virtual hour takes milliseconds: whenever every task waits, the clock jumps to the next timer. What does not mix with
that:

- Threads. The loop cannot see them work: it jumps ahead meanwhile, and reports a `Deadlock` when no timer is set.
  Waking the loop from a thread (`call_soon_threadsafe`, `trio.from_thread`) works as ever, but comes too late.
- freezegun, which also stops the clocks of the loops: a frozen trio hangs, and asyncio needs `real_asyncio=True`.
- Code that asks `time.monotonic` instead of the loop, such as tenacity's `stop_after_delay`: it never gets there.
- Two virtual runs in two threads of one process: they would share trio's scheduling and `random`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar, TypeVarTuple

import anyio

from tarry._runtime.bridge import backend as running_backend
from tarry._runtime.bridge import running_loop
from tarry.config import check_seconds
from tarry.errors import ConfigError, ConfigTypeError, MissingExtra, UsageError
from tarry.testing._deadlock import Deadlock
from tarry.testing.arguments import SECONDS_MAX, check_int, check_is

__all__ = ["Backend", "Deadlock", "VirtualClock", "block", "run_virtual"]

T = TypeVar("T")
Args = TypeVarTuple("Args")
Backend = Literal["asyncio", "trio"]


def run_virtual(main: Callable[[*Args], Awaitable[T]], *args: *Args, backend: Backend = "trio", seed: int = 0) -> T:
    """Run `main(*args)` to its end under virtual time and return its result.

    On trio each seed is another order of the tasks that are ready at the same moment; asyncio runs them first come
    first served, whatever the seed. The global `random` is seeded too and gets its state back afterwards. Equal seeds
    give equal runs, in another process as well.

    Time: the loop's clock starts at 0 and jumps to the next timer when nothing is ready.

    Raises:
        Deadlock: every task waits and no timer is set; found at once. The tasks were cancelled.
        MissingExtra: trio is not installed.
        ConfigError: an argument that cannot work; nothing was run.
    """
    if not callable(main):
        raise ConfigTypeError(f"run_virtual({main!r}) needs an async function; pass it without calling it")
    if backend not in ("asyncio", "trio"):
        raise ConfigError(f"backend={backend!r}: use 'asyncio' or 'trio'")
    check_int("seed", seed)

    async def program() -> T:
        return await main(*args)

    with _seeded(seed):
        if backend == "asyncio":
            from tarry.testing import _virtual_asyncio

            return _virtual_asyncio.run(program)
        try:
            from tarry.testing import _virtual_trio
        except ImportError as error:
            raise MissingExtra("virtual time on trio needs the package trio: pip install trio") from error
        return _virtual_trio.run(program, seed)


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def block(seconds: float | timedelta) -> None:
    """Let virtual time pass as `time.sleep` does with real time: nobody else runs meanwhile, timers come late.

    Raises:
        UsageError: the loop that runs is not one of `run_virtual`, or none runs.
        ConfigError: it is no time, or would go back.
    """
    passed = check_seconds("block(seconds)", seconds, SECONDS_MAX)
    if running_loop() is None:
        raise UsageError("block() moves virtual time; no loop runs here (use run_virtual)")
    if running_backend() == "asyncio":
        from tarry.testing import _virtual_asyncio

        _virtual_asyncio.block(passed)
    else:
        from tarry.testing import _virtual_trio

        _virtual_trio.block(passed)


class VirtualClock:
    """The clock (`tarry.abc.Clock`) for code that runs under virtual time: wall time moves with the loop's, too."""

    def __init__(self, start: datetime = datetime(2012, 1, 1, tzinfo=UTC)) -> None:
        check_is("start", start, datetime)
        if start.tzinfo is None or start.utcoffset() is None:
            raise ConfigError(f"start={start!r} has no time zone; use start.replace(tzinfo=UTC)")
        self._start_ms = int(start.timestamp() * 1000)

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return anyio.current_time()

    def wall_ms(self) -> int:
        """Milliseconds since 1970: the start, and what has passed in the run."""
        return self._start_ms + int(self.now() * 1000)
