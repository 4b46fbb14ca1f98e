"""Where partitions are read: one place each, explicit positions, epochs that void what was asked before."""

from __future__ import annotations

from tarry._core.positions import Positions
from tarry.types import HistoryId, Offset, Ownership, Position, TopicPartition
from tests.marks import rule

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
HISTORY = HistoryId(7)


def owning(*partitions: TopicPartition) -> Positions:
    positions = Positions()
    positions.assign(dict.fromkeys(partitions, Ownership(0)))
    return positions


def resolved(*partitions: TopicPartition, at: int = 0) -> Positions:
    positions = owning(*partitions)
    for partition in partitions:
        assert positions.resolved(partition, positions[partition].epoch, Position(at), HISTORY)
    return positions


@rule("K79")
def test_each_partition_has_a_position_of_its_own() -> None:
    positions = resolved(P0, P1)
    positions.fetched(P0, positions[P0].epoch, Position(100))
    positions.handed(P0, Offset(41))
    assert (positions[P0].fetch_at, positions[P0].next, positions[P0].delivered) == (100, 42, 41)
    assert (positions[P1].fetch_at, positions[P1].next, positions[P1].delivered) == (0, 0, None)


@rule("C27")
def test_a_start_is_asked_for_only_while_there_is_no_position() -> None:
    positions = owning(P0, P1)
    assert positions.unresolved() == [P0, P1]
    epoch = positions[P0].epoch
    assert positions.resolved(P0, epoch, Position(5), HISTORY)
    assert positions.unresolved() == [P1]
    assert not positions.resolved(P0, epoch, Position(9), HISTORY)  # a second answer of the same start rule
    assert positions[P0].fetch_at == 5


@rule("C33")
def test_a_seek_voids_what_is_out_and_resets_the_delivered_mark() -> None:
    positions = resolved(P0)
    before = positions[P0].epoch
    positions.handed(P0, Offset(9))
    positions.seek(P0, Position(2), HISTORY)
    place = positions[P0]
    assert (place.fetch_at, place.next, place.delivered, place.history) == (2, 2, None, HISTORY)
    assert positions.fetched(P0, before, Position(20)) is None
    assert positions[P0].fetch_at == 2
    assert positions.fetched(P0, place.epoch, Position(5)) == 2  # what was delivered before the seek may come again


@rule("C38", "C39")
def test_what_was_fetched_is_not_new_again_and_offset_0_is_deliverable() -> None:
    positions = resolved(P0)
    epoch = positions[P0].epoch
    assert positions.fetched(P0, epoch, Position(5)) == 0
    positions.handed(P0, Offset(0))
    assert positions[P0].delivered == 0
    assert positions.fetched(P0, epoch, Position(9)) == 5  # whatever it brought from below: 5 and later are new
    assert positions.fetched(P0, epoch, Position(9)) == 9


def test_a_position_never_goes_back_without_a_seek() -> None:
    positions = resolved(P0)
    epoch = positions[P0].epoch
    positions.fetched(P0, epoch, Position(50))
    assert positions.fetched(P0, epoch, Position(30)) == 50  # a late answer of a smaller fetch
    assert positions[P0].fetch_at == 50


def test_an_assignment_keeps_what_stayed_and_drops_what_left() -> None:
    positions = resolved(P0, P1, at=4)
    kept = positions[P0]
    positions.assign({P0: Ownership(0)})
    assert positions[P0] is kept
    assert P1 not in positions
    positions.assign({P0: Ownership(0), P1: Ownership(0)})
    assert positions.unresolved() == [P1]  # it came back: a new ownership, its start is resolved again
    positions.assign({P0: Ownership(1), P1: Ownership(0)})
    assert positions.unresolved() == [P0, P1]


def test_a_new_history_asks_the_start_rule_again() -> None:
    positions = resolved(P0, at=4)
    before = positions[P0].epoch
    positions.reset(P0)
    assert positions.unresolved() == [P0]
    assert positions[P0].history is None
    assert positions.fetched(P0, before, Position(9)) is None
    assert not positions.resolved(P0, before, Position(9), HISTORY)


def test_news_of_partitions_that_are_not_owned_are_ignored() -> None:
    positions = owning()
    positions.handed(P0, Offset(3))
    assert not positions.resolved(P0, 1, Position(0), HISTORY)
    assert positions.fetched(P0, 1, Position(0)) is None
    assert positions.get(P0) is None


@rule("C29", "C31")
def test_a_dropped_partition_comes_back_under_a_new_ownership_and_without_a_position() -> None:
    positions = resolved(P0, P1)
    before = positions[P0].epoch
    positions.drop(P0)
    assert list(positions) == [P1]
    positions.assign({P1: Ownership(0), P0: Ownership(5)})
    assert positions.unresolved() == [P0]
    assert positions.fetched(P0, before, Position(9)) is None
    positions.drop(TopicPartition("t", 9))


@rule("C32")
def test_a_kept_partition_keeps_its_position() -> None:
    positions = resolved(P0, P1, at=7)
    positions.assign({P0: Ownership(0)})
    assert (list(positions), positions[P0].fetch_at) == ([P0], 7)


@rule("C35")
def test_a_closed_place_is_neither_read_nor_resolved_and_what_is_out_for_it_is_void() -> None:
    positions = resolved(P0)
    positions.assign({P0: Ownership(0), P1: Ownership(3)})
    epoch = positions[P0].epoch
    positions.close(P0)
    positions.close(P1)
    assert (positions.readable(), positions.unresolved()) == ([], [])
    assert positions.fetched(P0, epoch, Position(9)) is None
    positions.seek(P1, Position(4), HISTORY)
    assert positions.readable() == []
    positions.reopen(P1, Ownership(2))  # for an ownership that is over
    assert positions.readable() == []
    positions.reopen(P1, Ownership(3))
    positions.reopen(TopicPartition("t", 9), Ownership(3))
    assert (positions.readable(), positions[P1].fetch_at) == ([P1], 4)


def test_a_history_that_changes_while_a_place_is_closed_leaves_it_closed() -> None:
    positions = resolved(P0)
    positions.close(P0)
    positions.reset(P0)
    assert (positions.unresolved(), positions.readable()) == ([], [])


@rule("K48")
def test_a_pause_voids_nothing_survives_a_seek_and_ends_with_the_ownership() -> None:
    positions = resolved(P0, P1)
    epoch = positions[P0].epoch
    positions.pause(P0, "full")
    assert positions.readable() == [P1]
    assert positions.paused() == {P0: "full"}
    assert positions.fetched(P0, epoch, Position(10)) == 0
    positions.seek(P0, Position(3), HISTORY)
    positions.reset(P1)
    assert positions.paused() == {P0: "full"}
    positions.reset(P0)
    assert positions.unresolved() == [P0, P1]
    assert positions.paused() == {P0: "full"}
    positions.assign({P0: Ownership(1)})
    assert positions.paused() == {}


@rule("K48")
def test_who_goes_on_is_readable_again() -> None:
    positions = resolved(P0)
    positions.pause(P0, "full")
    positions.pause(P0, None)
    assert positions.readable() == [P0]
    assert positions.paused() == {}
