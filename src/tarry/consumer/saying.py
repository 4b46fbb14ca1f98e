"""Warnings about what may happen again and again: an event each time, a line in the log now and then, with a count.

Not here: when there is to be a line (`_core.backoff.Lines`).
"""

from __future__ import annotations

from collections import defaultdict

import anyio

from tarry._core.backoff import Lines
from tarry.instruments import Instruments


class Saying:
    """The warnings of one part of a consumer; each kind of event has its own count."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._lines: defaultdict[str, Lines] = defaultdict(Lines)

    def warn(self, event: str, message: str, *, cause: BaseException | None = None, **fields: object) -> None:
        """Emit an event; log it the first time, and then once in 10 s with the number of those since.

        Args:
            cause: its traceback goes into the log.
        """
        count = self._lines[event].note(anyio.current_time())
        if count is None:
            self._instruments.emit(event, **fields)
            return
        message += f" (the last of {count} since the line before)" if count > 1 else ""
        self._instruments.warn("consumer", event, message, cause=cause, **fields)
