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
