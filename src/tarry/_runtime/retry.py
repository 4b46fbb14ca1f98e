"""Trying again, through tenacity; nobody else imports it.

Attempts and waits come from tenacity, sleeping from anyio; a bound in time is an anyio deadline of the caller, since
tenacity's own reads the wall's clock and knows no virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import tenacity

T = TypeVar("T")


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
