"""Trying again, through tenacity; nobody else imports it.

Attempts and waits come from tenacity, sleeping from anyio; a bound in time is an anyio deadline of the caller, since
tenacity's own reads the wall's clock and knows no virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import tenacity

from tarry.errors import TarryError

T = TypeVar("T")

INSIST_FIRST_S = 0.05
INSIST_MAX_S = 2.0


async def attempt(
    action: Callable[[], Awaitable[T]], *, again: Callable[[BaseException], bool], retries: int, spacing_s: float
) -> T:
    """Run `action` until it works: at most `retries` more times, `spacing_s` seconds apart with jitter (P6).

    Raises:
        What the last attempt raised, or at once what `again` does not accept.
    """
    try:
        return await action()  # the usual case pays nothing for the machinery below
    except Exception as error:
        if not retries or not again(error):
            raise
    loop = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(again),
        stop=tenacity.stop_after_attempt(retries),
        wait=tenacity.wait_random(spacing_s / 2, spacing_s),
        sleep=anyio.sleep,
        reraise=True,
    )

    async def run() -> T:
        return await action()

    await anyio.sleep(spacing_s / 2)
    return await loop(run)


async def insist(action: Callable[[], Awaitable[T]], *, again: Callable[[BaseException], bool]) -> T:
    """Run `action` until it works or fails in a way that `again` does not accept; the caller bounds the time (C91).

    Between two attempts it waits 50 ms, doubled up to 2 s, with full jitter (C92).
    """
    try:
        return await action()
    except Exception as error:
        if not again(error):
            raise
    loop = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(again),
        wait=tenacity.wait_random_exponential(multiplier=INSIST_FIRST_S, max=INSIST_MAX_S),
        sleep=anyio.sleep,
        reraise=True,
    )

    async def run() -> T:
        return await action()

    await anyio.sleep(INSIST_FIRST_S / 2)
    return await loop(run)


def may_pass(error: BaseException) -> bool:
    """The same request may work later: it was refused for now, its answer was lost, or the log does not answer."""
    return isinstance(error, TarryError) and (error.retry == "back off" or error.applied == "maybe")
