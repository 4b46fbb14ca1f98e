"""What a history has been through: counted, so that a simulation that injects nothing is noticed.

Each fault, each thing that the world does to a member, and the pairs that are hard: what happens *while* something else
is under way. A number says in how many histories it was there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from tarry.testing import Call
from tests.simulation.history import Abandoned, Acted, Answered, Asked, Closing, Fault, Finished, History, Killed, Noted

REQUIRED = (
    *("delay", "slow_sync", "lose_request", "lose_reply", "not_accepted", "capacity", "split", "kill", "crash"),
    *("stop", "cancel", "fail", "storm"),
    "cancel during accumulation",
)
