"""Runs the deadlines of one machine: asleep until the next one, woken only by an earlier one (S25 as overruled)."""

from __future__ import annotations

import math
from typing import Protocol

import anyio


class Timed(Protocol):
    """A machine with deadlines."""

    def next_deadline(self) -> float | None:
        """When it wants to be called next."""
        ...

    def tick(self, now: float) -> None:
        """Do what is due."""
        ...


class Driver:
    """One task, one timer."""

    def __init__(self, machine: Timed) -> None:
        self._machine = machine
        self._wake: anyio.Event | None = None
        self._asleep_until = -math.inf

    def alarm(self, deadline: float) -> None:
        """A deadline was added; wakes the task only when it is earlier than the one it sleeps for."""
        if deadline < self._asleep_until and self._wake is not None:
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            deadline = self._machine.next_deadline()
            self._asleep_until = math.inf if deadline is None else deadline
            self._wake = anyio.Event()
            with anyio.CancelScope(deadline=self._asleep_until):
                await self._wake.wait()
            self._asleep_until = -math.inf
            await anyio.lowlevel.checkpoint()
            self._machine.tick(anyio.current_time())
