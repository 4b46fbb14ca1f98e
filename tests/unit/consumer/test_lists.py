"""How long the lists are that a reader gets, and what goes back."""

from __future__ import annotations

import pytest

from tarry._core.fetches import Fetches
from tarry._core.pace import TURN_S, Pace
from tarry._wire.batch import encode_record, seal
from tarry.consumer.lists import Lists
from tarry.consumer.typed import PART_MESSAGES, Typed
from tarry.errors import DataError
from tarry.types import Offset, Origin, Run, Segment, TopicPartition
from tests.marks import rule

COUNT = 4 * PART_MESSAGES


def segment(count: int = COUNT) -> Segment:
    batch = seal([encode_record(b"{}", None, (), 0)] * count, [0] * count)
    return Segment(Origin(TopicPartition("t", 0), Offset(count - 1)), (Run(Offset(0), batch, 0, count),))


def fetches() -> Fetches:
    return Fetches(count=COUNT, max_bytes=1 << 20, messages_max=COUNT, bytes_max=1 << 20)


def fast() -> Pace:
    """The pace of a reader that gets whole lists."""
    pace = Pace()
    while pace.count < COUNT:
        pace.gave(pace.count, 0.0)
        pace.done(0.0)
    return pace


def nobody(bad: Segment, error: DataError) -> None:
    raise AssertionError((bad, error))


@rule("K18", "K91")
@pytest.mark.parametrize(
    ("is_typed", "pace", "length"),
    [
        (False, None, COUNT),
        (False, Pace(), 1),
        (False, fast(), COUNT),
        (True, None, PART_MESSAGES),
        (True, Pace(), 1),
        (True, fast(), PART_MESSAGES),
    ],
    ids=["whole", "slow", "fast", "typed", "typed and slow", "typed and fast"],
)
def test_a_list_is_as_long_as_a_turn_may_take_and_the_rest_comes_next(
    is_typed: bool, pace: Pace | None, length: int
) -> None:
    read_ahead = fetches()
    lists = Lists[object](read_ahead, typed=Typed(bytes) if is_typed else None, pace=pace, stop=nobody)
    part, messages, end = lists.next(segment(), 0.0)
    assert [message.offset for message in messages] == list(range(length))
    assert (part.first, part.last, end) == (0, length - 1, COUNT - 1)
    rest = read_ahead.take()
    assert (rest is None) == (length == COUNT)
    assert rest is None or (rest.first, rest.last) == (length, COUNT - 1)


@rule("K18")
def test_the_pace_counts_what_was_given_and_not_what_was_cut_off_for_its_values() -> None:
    pace = fast()
    lists = Lists[object](fetches(), typed=Typed(bytes), pace=pace, stop=nobody)
    lists.next(segment(), 0.0)
    lists.done(TURN_S)
    assert pace.count == PART_MESSAGES
