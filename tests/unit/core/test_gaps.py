"""Gaps: which are told to whom and when."""

from __future__ import annotations

from tarry._core.gaps import Gap, Gaps
from tarry.types import Position, TopicPartition
from tests.marks import rule

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def gap(partition: TopicPartition = A) -> Gap:
    return Gap(partition, Position(100), Position(400), Position(1000))


@rule("K09")
def test_reading_goes_on_behind_a_gap_unless_it_shall_fail() -> None:
    resuming, failing = Gaps("resume"), Gaps("fail")
    assert resuming.met(gap())
    assert A not in resuming
    assert resuming.due(lambda _: False) == []
    assert not failing.met(gap())
    assert A in failing
    assert B not in failing


@rule("K09")
def test_a_gap_is_due_once_nothing_is_left_in_front_of_it_and_then_only_once() -> None:
    gaps = Gaps("fail")
    gaps.met(gap(A))
    gaps.met(gap(B))
    assert gaps.due(lambda partition: partition == A) == [gap(B)]
    assert A in gaps
    assert B not in gaps
    assert gaps.due(lambda _: False) == [gap(A)]
    assert gaps.due(lambda _: False) == []


@rule("K09")
def test_a_gap_that_is_forgotten_is_never_due() -> None:
    gaps = Gaps("fail")
    gaps.met(gap())
    gaps.forget(A)
    gaps.forget(B)
    assert A not in gaps
    assert gaps.due(lambda _: False) == []


@rule("K09")
def test_the_error_names_the_partition_the_bounds_and_what_to_do() -> None:
    error = gap().error()
    assert (error.asked, error.log_start, error.log_end) == (100, 400, 1000)
    for word in ("t[0]", "100 to 399", "on_gap='fail'", "seek to 400"):
        assert word in str(error)
