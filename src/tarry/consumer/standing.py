"""Which session a consumer has now: it changes when a member of a group was evicted and has joined again.

Not here: joining (`membership`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry import abc


@dataclass(slots=True, eq=False)
class Standing:
    """A consumer's standing with the log; to be asked anew for each request."""

    session: abc.Session
