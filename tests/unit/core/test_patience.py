"""When something is in hand for too long, found out by looking now and then."""

from __future__ import annotations

from tarry._core.patience import InHand, Patience
from tarry.types import Offset, TopicPartition
from tests.marks import rule

AT = TopicPartition("orders", 0)


def hand(given: int, first: int | None = None) -> InHand:
    return InHand(given, {} if first is None else {AT: Offset(first)})


@rule("K12")
def test_the_age_counts_from_the_first_look():
    patience = Patience(5.0)
    assert patience.look(hand(1, 0), 2.0) is None
    assert patience.look(hand(1, 0), 6.9) is None
    assert patience.look(hand(1, 0), 7.0) == 5.0
    assert patience.look(hand(1, 0), 8.0) == 6.0


@rule("K12")
def test_what_was_given_since_begins_anew():
    patience = Patience(5.0)
    patience.look(hand(1, 0), 0.0)
    assert patience.look(hand(2, 0), 6.0) is None, "the same offset again, after a seek"
    assert patience.look(hand(2, 0), 10.9) is None
    assert patience.look(hand(2, 0), 11.0) == 5.0


@rule("K12")
def test_nothing_in_hand_is_never_too_old():
    patience = Patience(5.0)
    assert patience.look(hand(0), 0.0) is None
    assert patience.look(hand(0), 100.0) is None
    patience.look(hand(3, 2), 100.0)
    assert patience.look(hand(3), 200.0) is None
