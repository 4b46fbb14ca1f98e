"""Which session a consumer has now, and whether it is known to stand.

The session changes when a member of a group was evicted and has joined again. It is in doubt after a gap that the log
may have ended it for; then whoever delivers or stores waits until the log was asked (K18).

Not here: joining and asking (`membership`), what a gap is (`_core.lease`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from tarry import abc
from tarry._runtime.bridge import loop_now
from tarry.errors import LogUnavailable

if TYPE_CHECKING:
    from tarry._core.lease import Lease


@dataclass(slots=True, eq=False)
class Standing:
    """A consumer's standing with the log; to be asked anew for each request.

    Args:
        is_over: the log has ended the session, and another one is being opened.
        lease: set while somebody keeps the session and finds out where it stands; None: nobody does.
        now: monotonic seconds of this loop.
    """

    session: abc.Session
    is_over: bool = False
    lease: Lease | None = None
    now: Callable[[], float] = field(default_factory=loop_now)  # anyio's costs twenty times as much
    _asked: anyio.Event = field(default_factory=anyio.Event)
    _settled: anyio.Event = field(default_factory=anyio.Event)

    def is_in_doubt(self) -> bool:
        """The session may be over, unheard; if so, whoever keeps it is made to find out now."""
        if self.lease is None or not self.lease.is_over(self.now()):
            return False
        self._asked.set()
        return True

    def keep(self) -> None:
        """Whoever reads is alive: it says so itself when that is due, for a body that leaves no time to others."""
        if self.lease is not None and self.lease.is_due(now := self.now()):
            self.lease.beat(now)
            self.touch()

    def touch(self) -> None:
        """A sign of life, for a session that is not over: a log that forgot how it ended would keep it for ever."""
        if not self.is_over:
            self.session.touch()

    async def sure(self) -> None:
        """Wait until the session is not in doubt; no time when it is not.

        Raises:
            LogUnavailable: the log has not said it for as long as a request may take.
        """
        if not self.is_in_doubt():
            return
        try:
            with anyio.fail_after(abc.REQUEST_GRACE):
                while self.is_in_doubt():
                    await self._settled.wait()
        except TimeoutError as error:
            raise LogUnavailable("the log does not say whether this member still stands; nothing was stored") from error

    async def doubted(self, within_s: float) -> None:
        """For who keeps the session: wait until somebody is in doubt, at most so long."""
        with anyio.move_on_after(within_s):
            await self._asked.wait()
        self._asked = anyio.Event()

    def settle(self) -> None:
        """Whoever waits looks again."""
        self._settled.set()
        self._settled = anyio.Event()
