"""How the loops of a consumer are woken: a wake says "look again" and carries nothing (S22).

Not here: what they look at.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel


class Bell:
    """Rung when something changed."""

    def __init__(self) -> None:
        self._listening: dict[anyio.Event, str] = {}

    def ring(self, *who: str) -> None:
        """Wake everybody who listens now, or those of some kinds."""
        for event, kind in self._listening.items():
            if not who or kind in who:
                event.set()

    async def heard(self, who: str) -> None:
        """Wait for the next ring."""
        event = anyio.Event()
        self._listening[event] = who
        try:
            await event.wait()
        finally:
            del self._listening[event]

    async def quiet_until(self, who: str, end: Callable[[], float]) -> None:
        """Wait until a time that every ring may bring forward."""
        await anyio.lowlevel.checkpoint()  # whoever waits for what was just found out comes first
        while anyio.current_time() < (at := end()):
            with anyio.CancelScope(deadline=at):
                await self.heard(who)
