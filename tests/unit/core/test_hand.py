"""What the application has in hand: what is finished, what goes back, what is somebody else's."""

from __future__ import annotations

import pytest

from tarry._core.hand import Hand, Reached, Settled, Span
from tarry._wire.batch import seal
from tarry.types import HistoryId, Offset, Origin, Ownership, Position, Run, Segment, TopicPartition
from tests.marks import rule

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BYTES = 10


def segment(partition: TopicPartition, first: int, count: int, *, head: int = 99) -> Segment:
    batch = seal([bytes(BYTES)] * count, [0] * count)
    origin = Origin(partition, Offset(head), Ownership(0), HistoryId(1))
    return Segment(origin, (Run(Offset(first), batch, 0, count),))


class Table:
    """A hand, and a list that the test moves on; all is held and nothing stored by hand, unless the test says so."""

    def __init__(self) -> None:
        self.left = 0
        self.stored: dict[TopicPartition, int] = {}
        self.lost: set[TopicPartition] = set()
        self.hand = Hand(self.from_where)

    def from_where(self, origin: Origin) -> Position | None:
        return None if origin.partition in self.lost else Position(self.stored.get(origin.partition, -1) + 1)

    def give(self, given: Segment, count: int = 1) -> Segment:
        """Give a list, and so many messages of it."""
        self.left = given.count - count
        self.hand.give_list(given, lambda: self.left)
        return given

    def rest(self) -> list[int]:
        """What goes back when the reader asks again."""
        return offsets(self.hand.settle().rest)


def offsets(part: Segment | None) -> list[int]:
    return [] if part is None else list(range(part.first, part.last + 1))


def reached(given: Segment, delivered: int, finished: int | None) -> Reached:
    return Reached(given.origin, Offset(delivered), None if finished is None else Offset(finished))


def span(given: Segment, first: int, last: int) -> Span:
    return Span(given.origin, Offset(first), Offset(last))


class TestLists:
    def test_an_empty_hand(self) -> None:
        hand = Table().hand
        assert (hand.reached, hand.rest, hand.messages, hand.size) == (None, None, 0, 0)
        assert (hand.unfinished(), hand.in_work(), hand.lost([])) == ({}, {}, [])
        assert hand.settle() == Settled([], None)

    @rule("C24")
    def test_the_message_given_last_is_in_hand_and_those_before_it_are_finished(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4))
        assert table.hand.reached == reached(given, 5, None)
        table.left -= 2
        assert table.hand.reached == reached(given, 7, 6)
        assert (table.hand.unfinished(), table.hand.in_work()) == ({P0: 1}, {P0: 7})
        assert (table.hand.messages, table.hand.size) == (3, 3 * BYTES)
        assert offsets(table.hand.rest) == [8]

    @rule("C24", "K05")
    def test_whoever_reads_again_has_finished_it_and_the_rest_goes_back(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4), 2)
        settled = table.hand.settle()
        assert (settled.reached, offsets(settled.rest)) == ([reached(given, 6, 6)], [7, 8])
        assert (table.hand.reached, table.hand.unfinished(), table.hand.messages) == (None, {}, 2)

    def test_of_a_list_that_was_given_whole_nothing_goes_back(self) -> None:
        table = Table()
        table.give(segment(P0, 5, 4), 4)
        assert table.hand.rest is None
        assert table.rest() == []

    @rule("K69")
    def test_what_was_stored_by_hand_is_finished(self) -> None:
        table = Table()
        table.give(segment(P0, 5, 4), 2)
        table.stored[P0] = 5
        assert table.hand.unfinished() == {P0: 1}
        table.stored[P0] = 6
        assert (table.hand.unfinished(), table.hand.in_work()) == ({}, {})


class TestBatches:
    @rule("K77")
    def test_a_batch_is_in_hand_as_a_whole(self) -> None:
        table = Table()
        first, other, second = segment(P0, 5, 2), segment(P1, 0, 3), segment(P0, 7, 1)
        for part in (first, other, second):
            table.hand.give_batch(part)
        assert table.hand.reached is None
        assert (table.hand.unfinished(), table.hand.in_work()) == ({P0: 3, P1: 3}, {P0: 5, P1: 0})
        assert (table.hand.messages, table.hand.size) == (6, 6 * BYTES)
        settled = table.hand.settle()
        assert settled == Settled([reached(first, 7, 7), reached(other, 2, 2)], None)
        assert table.hand.unfinished() == {}

    def test_fetches_of_one_partition_count_together(self) -> None:
        table = Table()
        table.hand.give_batch(segment(P0, 5, 2))
        table.hand.give_batch(segment(P0, 7, 2, head=100))
        assert (table.hand.unfinished(), table.hand.in_work()) == ({P0: 4}, {P0: 5})

    def test_of_a_batch_only_what_is_behind_the_stored_offset_is_in_hand(self) -> None:
        table = Table()
        table.hand.give_batch(segment(P0, 5, 4))
        table.stored[P0] = 6
        assert (table.hand.unfinished(), table.hand.in_work()) == ({P0: 2}, {P0: 7})


class TestFailures:
    @rule("K10", "C97")
    def test_what_a_handler_failed_on_comes_again_and_nobody_works_on_it(self) -> None:
        table = Table()
        table.give(segment(P0, 5, 4), 2)
        table.hand.fail()
        assert (table.hand.unfinished(), table.hand.in_work()) == ({P0: 1}, {})
        settled = table.hand.settle()
        assert (settled.reached, offsets(settled.rest)) == ([], [6, 7, 8])

    @rule("K10")
    def test_unless_it_was_stored_by_hand(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4), 2)
        table.stored[P0] = 6
        table.hand.fail()
        settled = table.hand.settle()
        assert (settled.reached, offsets(settled.rest)) == ([reached(given, 6, 6)], [7, 8])

    def test_a_failure_is_that_of_one_message(self) -> None:
        table = Table()
        table.hand.fail()
        table.give(segment(P0, 5, 4))
        assert table.hand.in_work() == {P0: 5}
        table.hand.fail()
        table.hand.settle()
        table.give(segment(P0, 5, 4))
        assert table.rest() == [6, 7, 8]

    @rule("C36")
    @pytest.mark.parametrize("is_given_up", [False, True])
    def test_of_a_lost_partition_it_comes_again_unless_that_was_given_up(self, is_given_up: bool) -> None:
        """What was given up is fetched by the next owner; what was lost with its commit by nobody."""
        table = Table()
        table.give(segment(P0, 5, 4), 2)
        if is_given_up:
            assert table.hand.give_up({P0})
        table.lost.add(P0)
        table.hand.fail()
        assert table.rest() == ([] if is_given_up else [6, 7, 8])


class TestCutting:
    @rule("C32")
    def test_nothing_more_is_given_of_what_is_given_up(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4), 2)
        assert not table.hand.give_up({P1})
        assert offsets(table.hand.rest) == [7, 8]
        assert table.hand.give_up({P0, P1})
        assert (table.hand.rest, table.hand.messages, table.hand.size) == (None, 2, 2 * BYTES)
        assert table.hand.reached == reached(given, 6, 5)
        assert table.hand.in_work() == {P0: 6}
        assert table.hand.settle() == Settled([reached(given, 6, 6)], None)

    @rule("C36")
    def test_what_is_not_held_any_more_is_not_given_up(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4), 2)
        table.lost.add(P0)
        assert not table.hand.give_up({P0})
        assert table.hand.lost([]) == [span(given, 6, 8)]

    @rule("K48")
    def test_a_pause_takes_the_rest_and_leaves_the_message_in_hand(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4), 2)
        assert table.hand.cut(P1) is None
        assert offsets(table.hand.cut(P0)) == [7, 8]
        assert table.hand.cut(P0) is None
        assert table.hand.settle() == Settled([reached(given, 6, 6)], None)

    @rule("K10", "K48")
    def test_a_failed_message_of_a_paused_partition_comes_again_alone(self) -> None:
        table = Table()
        table.give(segment(P0, 5, 4), 2)
        table.hand.cut(P0)
        table.hand.fail()
        assert table.rest() == [6]

    @rule("C33")
    def test_what_is_dropped_is_neither_finished_nor_unfinished(self) -> None:
        table = Table()
        table.give(segment(P0, 5, 4), 2)
        assert not table.hand.drop(P1)
        assert table.hand.drop(P0)
        assert (table.hand.unfinished(), table.hand.messages, table.hand.size) == ({}, 2, 2 * BYTES)
        assert table.hand.settle() == Settled([], None)

    @rule("C33")
    def test_of_a_batch_the_other_partitions_stay_in_hand(self) -> None:
        table = Table()
        table.hand.give_batch(segment(P0, 5, 2))
        table.hand.give_batch(segment(P1, 0, 3))
        assert not table.hand.drop(P0)
        assert table.hand.unfinished() == {P1: 3}


class TestLost:
    """Committed for a member that lost the partition before it finished them."""

    @rule("C36")
    def test_what_is_in_hand_left_and_fetched_is_one(self) -> None:
        table = Table()
        given = table.give(segment(P0, 5, 4), 2)
        fetched = segment(P0, 9, 3), segment(P0, 20, 1), segment(P1, 12, 2)
        assert table.hand.lost(fetched) == []
        table.lost = {P0, P1}
        assert table.hand.lost(fetched) == [span(given, 6, 11), span(given, 20, 20), span(fetched[2], 12, 13)]

    @rule("C36")
    def test_a_batch_too(self) -> None:
        table = Table()
        given = segment(P0, 5, 4)
        table.hand.give_batch(given)
        table.lost.add(P0)
        assert table.hand.lost([segment(P0, 9, 1)]) == [span(given, 5, 9)]
        assert (table.hand.unfinished(), table.hand.in_work()) == ({}, {})

    @rule("C36")
    def test_but_not_what_was_given_up_until_the_reader_asks_again(self) -> None:
        table = Table()
        given = segment(P0, 5, 4)
        table.hand.give_batch(given)
        assert not table.hand.give_up({P0})  # there is no list that was cut
        table.lost.add(P0)
        assert table.hand.lost([given]) == []
        table.hand.settle()
        assert table.hand.lost([given]) == [span(given, 5, 8)]
