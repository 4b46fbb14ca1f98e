"""How long a member may count on its session, while the log has heard of it lately (K18, design 4.1).

The log ends a session that was not heard of for its `session_timeout`. A member whose event loop was blocked, or whose
process stood still, finds a gap that long between two of its own signs of life. From then on it does not know whether
the partitions are still its own: nothing may be delivered or stored before the log has said.

Time: `now`, monotonic seconds of the member's own clock. A clock that stands still while the machine sleeps shows no
gap; then the log's answers say what happened.

Not here: signs of life and asking the log (`consumer.membership`), who waits meanwhile (`consumer.standing`).
"""

from __future__ import annotations


class Lease:
    """From the last sign of life on.

    Args:
        timeout_s: seconds without one after which the log may end the session; None: it never does.
        every_s: seconds after which another one is due.
    """

    def __init__(self, timeout_s: float | None, every_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._every_s = every_s
        self._since = now
        self._is_told = False

    def is_over(self, now: float) -> bool:
        """The last sign of life is so long ago that the log may have ended the session."""
        return self._timeout_s is not None and now - self._since >= self._timeout_s

    def is_due(self, now: float) -> bool:
        """The next sign of life is due, and still in time."""
        return now - self._since >= self._every_s and not self.is_over(now)

    def beat(self, now: float) -> float | None:
        """A sign of life goes out, at `now` or a little later; it keeps a lease that is not over.

        Returns:
            For how long there was none, when the lease is over; once, until it is renewed.
        """
        if not self.is_over(now):
            self._since = now
            return None
        if self._is_told:
            return None
        self._is_told = True
        return now - self._since

    def renew(self, now: float) -> None:
        """It is known where the session stands."""
        self._since = now
        self._is_told = False
