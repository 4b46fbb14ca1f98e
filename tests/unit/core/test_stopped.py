"""When a partition is stopped, and when it is tried again (C109-C112)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from tarry._core.backoff import Backoff
from tarry._core.stopped import Counted, Stopped, is_lasting
from tarry.errors import (
    CapacityExceeded,
    DataError,
    FeatureUnavailable,
    LogUnavailable,
    NotAccepted,
    NotAMember,
    OffsetOutOfRange,
    OutcomeUnknown,
    StaleAssignment,
    TarryError,
    TopicNotFound,
)
from tarry.types import TopicPartition
from tests.marks import rule

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BAD = DataError("cannot be read")
BEYOND = OffsetOutOfRange("beyond", asked=9, log_start=0, log_end=3)


def pauses() -> Callable[[], float]:
    return Backoff().next


def refuse(machine: Stopped, times: int = 6, now: float = 0.0) -> list[Counted]:
    """Partition 0 is refused so many times more, each time after it has rested."""
    counted: list[Counted] = []
    for _ in range(times):
        machine.probe(1e9)
        counted.append(machine.refused(P0, BAD, now))
    return counted


@rule("C112")
@pytest.mark.parametrize(
    "error",
    [OutcomeUnknown("57"), NotAccepted("58"), CapacityExceeded("90"), StaleAssignment("f"), NotAMember("f"),
     LogUnavailable("away")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_passes_never_counts(error: TarryError) -> None:
    assert not is_lasting(error)


@rule("C109")
@pytest.mark.parametrize("error", [BAD, BEYOND, FeatureUnavailable("no"), TopicNotFound("gone")])
def test_what_counts(error: TarryError) -> None:
    assert is_lasting(error)


@rule("C109")
def test_the_sixth_in_a_row_stops_its_partition_and_no_other() -> None:
    machine = Stopped(1.0, pauses)
    machine.refused(P1, BAD, 0.0)
    assert refuse(machine) == [(True, False)] + [(False, False)] * 4 + [(False, True)]
    assert machine.errors == {P0: BAD}
    assert (machine.is_stopped(P0), machine.is_stopped(P1)) == (True, False)


@rule("C92", "C109")
def test_between_them_it_rests_a_little_longer_each_time() -> None:
    machine, now, rests = Stopped(1.0, pauses), 0.0, list[float]()
    for _ in range(5):
        machine.refused(P0, BAD, now)
        assert machine.holds(P0)
        assert machine.probe(machine.next_due - 0.001) == []
        rests.append(machine.next_due - now)
        now = machine.next_due
        assert machine.probe(now) == [P0]
        assert not machine.holds(P0)
    assert rests == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    assert machine.errors == {}


@rule("C109")
def test_a_success_begins_the_count_anew() -> None:
    machine = Stopped(1.0, pauses)
    refuse(machine, 5)
    assert not machine.succeeded(P0)
    assert refuse(machine) == [(True, False)] + [(False, False)] * 4 + [(False, True)]


@rule("C109")
def test_a_topic_that_is_gone_stops_at_once_and_is_looked_for_again() -> None:
    machine = Stopped(1.0, pauses)
    assert machine.refused(P0, TopicNotFound("gone"), 5.0) == (True, True)
    assert machine.next_due == 6.0


@rule("C110", "K09")
def test_a_position_that_does_not_exist_waits_for_a_seek() -> None:
    machine = Stopped(1.0, pauses)
    assert machine.refused(P0, BEYOND, 5.0).stops
    assert (machine.next_due, machine.cool_down(P0)) == (inf, None)
    assert machine.probe(1e9) == []
    assert machine.succeeded(P0)
    assert not machine.holds(P0)


@rule("C110")
def test_the_cool_down_doubles_up_to_a_minute_and_one_probe_goes_out_each_time() -> None:
    machine, now, rests = Stopped(1.0, pauses), 0.0, list[float]()
    refuse(machine)
    for _ in range(9):
        rests.append(machine.next_due - now)
        now = machine.next_due
        assert machine.probe(now - 0.001) == []
        assert machine.probe(now) == [P0]
        assert (machine.probe(now), machine.holds(P0), machine.is_stopped(P0)) == ([], False, True)
        assert machine.refused(P0, BAD, now) == (False, False)
        assert machine.cool_down(P0) == machine.next_due - now
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@rule("C110")
def test_a_probe_that_succeeds_clears_everything() -> None:
    machine = Stopped(1.0, pauses)
    refuse(machine)
    machine.probe(1.0)
    assert machine.succeeded(P0)
    assert (machine.errors, machine.is_stopped(P0), machine.next_due) == ({}, False, inf)
    refuse(machine, now=10.0)
    assert machine.next_due == 11.0


@rule("C110")
def test_a_cool_down_above_the_ceiling_stays_where_it_is() -> None:
    machine = Stopped(300.0, pauses)
    refuse(machine)
    machine.probe(300.0)
    machine.refused(P0, BAD, 300.0)
    assert machine.next_due == 600.0


@rule("C110")
def test_what_is_answered_after_the_stop_makes_the_cool_down_no_longer() -> None:
    machine = Stopped(1.0, pauses)
    refuse(machine)
    assert machine.refused(P0, TopicNotFound("gone"), 0.5) == (False, False)
    assert (machine.next_due, machine.errors) == (1.0, {P0: BAD})


@rule("C91", "K52")
def test_it_is_a_dead_end_as_long_as_each_is_refused_stopped_or_not() -> None:
    machine, gone = Stopped(1.0, pauses), TopicNotFound("gone")
    assert machine.dead_end([]) is machine.dead_end([P0]) is None
    machine.refused(P1, gone, 0.0)
    assert machine.dead_end([P0, P1]) is None
    machine.refused(P0, BAD, 0.0)
    assert (machine.dead_end([P0, P1]), machine.dead_end([P1, P0])) == (BAD, gone)
    machine.probe(1.0)
    assert machine.dead_end([P1]) is gone
    assert machine.dead_end([]) is None
    machine.succeeded(P1)
    assert machine.dead_end([P0, P1]) is None


@rule("K09")
def test_what_is_halted_waits_for_a_seek() -> None:
    machine = Stopped(1.0, pauses)
    machine.halt(P0, BAD)
    assert (machine.errors, machine.cool_down(P0), machine.probe(1e9)) == ({P0: BAD}, None, [])
    assert machine.succeeded(P0)
