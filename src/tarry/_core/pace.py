"""How many messages a reader gets before the event loop has its turn (K18).

A body that never awaits keeps the loop to itself until its list is done. So the longer it takes for a message, the
shorter its lists are: it gets what it has lately done in `TURN_S`, at least one message. Then heartbeats go out and
timers fire while it works, and after a block there is little left that was given out before. A fast one gets whole
lists: it pays nothing for this.

Time: `now`, monotonic seconds, read after the loop's turn: some loops move their clock only then.
"""

from __future__ import annotations

TURN_S = 0.05
"""About as long a body may keep the loop to itself, if a single message does not take longer."""
TICK_S = 1e-9
"""No list takes less."""
MOST = 1 << 20
"""So many messages are no limit any more."""


class Pace:
    """One reader's pace: one message first, then at most twice as many each time."""

    def __init__(self) -> None:
        self.count = 1
        self._given = 0
        self._since = 0.0

    def gave(self, count: int, now: float) -> None:
        """So many messages were given out."""
        self._given, self._since = count, now

    def done(self, now: float) -> None:
        """What was given is done with; `count` says how many come next."""
        if not self._given:
            return
        seconds = max(now - self._since, TICK_S)
        fair = int(self._given * TURN_S / seconds)
        self.count = max(1, min(fair, 2 * self.count, MOST))
        self._given = 0
