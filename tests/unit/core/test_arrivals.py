"""Which partitions came while somebody was there."""

from __future__ import annotations

from tarry._core.arrivals import Arrivals
from tarry.types import HistoryId, TopicPartition
from tests.marks import rule


def parts(**numbers: int) -> dict[HistoryId, TopicPartition]:
    """Partitions by name and history: a0=1 is partition 0 of topic a with history 1."""
    return {HistoryId(history): TopicPartition(name[0], int(name[1:])) for name, history in numbers.items()}


@rule("K56")
def test_what_is_there_at_the_beginning_is_not_late_and_what_comes_afterwards_is() -> None:
    arrivals = Arrivals()
    arrivals.begin(parts(a0=1, a1=2))
    assert list(arrivals.late) == []
    assert arrivals.follow(parts(a0=1, a1=2, a2=3))
    assert list(arrivals.late) == [3]
    assert not arrivals.follow(parts(a0=1, a1=2, a2=3))
    arrivals.follow(parts(a0=1, a1=2, a2=3, b0=4))
    assert list(arrivals.late) == [3, 4]


@rule("K57")
def test_a_topic_that_was_created_again_is_not_late() -> None:
    arrivals = Arrivals()
    arrivals.begin(parts(a0=1))
    arrivals.follow({})
    arrivals.follow(parts(a0=2, a1=3))
    assert list(arrivals.late) == [3]
    arrivals.follow(parts(a0=4, a1=5))
    assert list(arrivals.late) == []


@rule("K56")
def test_what_came_late_stays_so_over_a_restart_and_goes_with_the_partition() -> None:
    arrivals = Arrivals()
    arrivals.begin(parts(a0=1, a1=2), late=[HistoryId(2), HistoryId(9)])
    assert list(arrivals.late) == [2]
    arrivals.follow(parts(a0=1, a1=2))
    assert list(arrivals.late) == [2]
    arrivals.follow(parts(a0=1))
    assert list(arrivals.late) == []


@rule("K57")
def test_fewer_partitions_for_a_while_are_no_new_ones_afterwards() -> None:
    arrivals = Arrivals()
    arrivals.begin(parts(a0=1, a1=2))
    arrivals.follow(parts(a0=3))
    arrivals.follow(parts(a0=4, a1=5))
    assert list(arrivals.late) == []


@rule("K56")
def test_what_came_while_nobody_could_follow_is_late_too() -> None:
    before, after = Arrivals(), Arrivals()
    before.begin(parts(a0=1, a1=2))
    assert before.follow(parts(a0=1, a1=2, a2=3))
    assert after.resume(parts(a0=1, a1=2, a2=3, a3=4, b0=5), before.late, before.seen)
    assert list(after.late) == [3, 4, 5]
    assert after.seen == {"a": 4, "b": 1}


@rule("K57")
def test_what_was_seen_before_is_not_new_when_its_topic_was_created_again_in_between() -> None:
    arrivals = Arrivals()
    assert not arrivals.resume(parts(a0=3, a1=4), [HistoryId(2)], {"a": 2})
    assert list(arrivals.late) == []


@rule("K56")
def test_without_what_was_seen_nothing_came_but_it_is_to_be_saved_now() -> None:
    arrivals = Arrivals()
    assert arrivals.resume(parts(a0=1, a1=2), [HistoryId(2)], None)
    assert (list(arrivals.late), arrivals.seen) == ([2], {"a": 2})
