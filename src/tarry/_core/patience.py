"""How long the application has had the same thing in hand (K12, `max_processing_time`).

It has one thing in hand at a time: whoever reads again has finished all that he was given before. So the number of
messages that were given in all tells one thing from the next, and nothing has to be noted per message. The age counts
from the first look, never from earlier: it may be too short by the time between two looks, never too long.

Not here: looking (`consumer.membership`), what is in hand (`hand`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from tarry.types import Offset, TopicPartition


class InHand(NamedTuple):
    """What the application works on.

    Args:
        given: how many messages it was given in all.
        firsts: the first message of each partition that is neither finished nor stored.
    """

    given: int
    firsts: Mapping[TopicPartition, Offset]


class Patience:
    """Says when something is in hand for longer than `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._given = 0
        self._since = inf

    def look(self, hand: InHand, now: float) -> float | None:
        """How long it is in hand, if that is too long."""
        if hand.given != self._given:
            self._given, self._since = hand.given, now
        age = now - self._since
        return age if hand.firsts and age >= self._limit_s else None
