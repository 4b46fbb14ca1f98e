"""`tarry.run`: an event loop for a program, which SIGINT and SIGTERM end in order.

Not here: how signals are heard (`_runtime.signals`), what a shutdown does (`consumer`).
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Literal, TypeVar

import anyio
import anyio.abc

from tarry._runtime.signals import CutShort, Drain, draining, is_main_thread, until_signalled
from tarry.config import check_seconds
from tarry.errors import ConfigError, ConfigTypeError, MissingExtra, UsageError

Result = TypeVar("Result")


def run(
    main: Callable[[], Awaitable[Result]],
    *,
    backend: Literal["asyncio", "trio"] = "asyncio",
    drain_timeout: float | timedelta = 10.0,
) -> Result:
    """Run an async function to its end, as `anyio.run` does, and let SIGINT and SIGTERM end it in order (K15).

    The first signal shuts down every consumer that is open: each loop ends by itself behind the message in work, and
    `main` goes on after its loop and returns. Consumers opened later are shut down at once. When none is open, `main`
    is cancelled. The second signal cancels `main`: messages in work are unfinished, and what was finished is still
    stored, and what was stored ahead of it brought back. The third ends the process at once, as a kill does, even while
    a handler blocks the event loop.

    Args:
        main: called without arguments.
        drain_timeout: seconds (or a timedelta) after the first signal until `main` is cancelled as by a second one; the
            `drain_timeout` of each consumer holds too.

    Returns:
        What `main` returns, also after a first signal.

    Raises:
        SystemExit: `main` was cancelled; the code is 130 for SIGINT and 143 for SIGTERM.
        UsageError: called outside of the main thread.
        ConfigError, MissingExtra: an option that cannot work; trio is not installed.
    """
    limit_s = _check(main, backend, drain_timeout)
    ended = anyio.run(_run, main, limit_s, backend=backend)
    if isinstance(ended, CutShort):
        raise SystemExit(128 + ended.by)
    return ended


def _check(main: object, backend: str, drain_timeout: float | timedelta) -> float:
    if not callable(main):
        raise ConfigTypeError(f"run({main!r}) needs an async function; pass it without calling it: tarry.run(main)")
    if backend not in ("asyncio", "trio"):
        raise ConfigError(f"backend={backend!r}: use 'asyncio' or 'trio'")
    if backend == "trio" and find_spec("trio") is None:
        raise MissingExtra("backend='trio' needs the package trio: pip install trio")
    if not is_main_thread():
        raise UsageError("tarry.run takes signals, and those arrive in the main thread only; use anyio.run here")
    return check_seconds("drain_timeout", drain_timeout, 3600)


async def _run(main: Callable[[], Awaitable[Result]], limit_s: float) -> Result | CutShort:
    drain: Drain | None = None

    async def work(tasks: anyio.abc.TaskGroup) -> Result:
        nonlocal drain
        drain = Drain(tasks.start_soon)
        with draining(drain):
            return await main()

    def at_first(_: signal.Signals) -> bool:
        return drain is not None and drain.begin()

    return await until_signalled(work, at_first, limit_s)
