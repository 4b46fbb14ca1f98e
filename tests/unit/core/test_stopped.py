"""When a partition is stopped, and when it is tried again (C109-C112)."""

from __future__ import annotations

from math import inf

import pytest

from tarry._core.stopped import LASTING_MAX, Stopped, is_lasting
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


def stop(machine: Stopped, partition: TopicPartition = P0, now: float = 0.0) -> None:
    for _ in range(LASTING_MAX):
        machine.refused(partition, BAD, now)


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
    machine = Stopped(1.0)
    machine.refused(P1, BAD, 0.0)
    assert [machine.refused(P0, BAD, 0.0) for _ in range(6)] == [False] * 5 + [True]
    assert (list(machine), machine.holds(P0), machine.holds(P1)) == ([P0], True, False)
    assert machine.errors == {P0: BAD}


@rule("C109")
def test_a_success_begins_the_count_anew() -> None:
    machine = Stopped(1.0)
    for _ in range(5):
        machine.refused(P0, BAD, 0.0)
    assert not machine.succeeded(P0)
    assert [machine.refused(P0, BAD, 0.0) for _ in range(6)] == [False] * 5 + [True]


@rule("C109")
def test_a_topic_that_is_gone_stops_at_once_and_is_looked_for_again() -> None:
    machine = Stopped(1.0)
    assert machine.refused(P0, TopicNotFound("gone"), 5.0)
    assert machine.next_due == 6.0


@rule("C110", "K09")
def test_a_position_that_does_not_exist_waits_for_a_seek() -> None:
    machine = Stopped(1.0)
    assert machine.refused(P0, BEYOND, 5.0)
    assert (machine.next_due, machine.waits_for_seek(P0)) == (inf, True)
    assert machine.probe(1e9) == []
    assert machine.succeeded(P0)
    assert not machine.holds(P0)


@rule("C110")
def test_the_cool_down_doubles_up_to_a_minute_and_one_probe_goes_out_each_time() -> None:
    machine, now, pauses = Stopped(1.0), 0.0, list[float]()
    stop(machine)
    for _ in range(9):
        pauses.append(machine.next_due - now)
        now = machine.next_due
        assert machine.probe(now - 0.001) == []
        assert machine.probe(now) == [P0]
        assert (machine.probe(now), machine.holds(P0), P0 in machine) == ([], False, True)
        assert not machine.refused(P0, BAD, now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@rule("C110")
def test_a_probe_that_succeeds_clears_everything() -> None:
    machine = Stopped(1.0)
    stop(machine)
    machine.probe(1.0)
    assert machine.succeeded(P0)
    assert (len(machine), machine.next_due) == (0, inf)
    stop(machine, now=10.0)
    assert machine.next_due == 11.0


@rule("C110")
def test_a_cool_down_above_the_ceiling_stays_where_it_is() -> None:
    machine = Stopped(300.0)
    stop(machine)
    machine.probe(300.0)
    machine.refused(P0, BAD, 300.0)
    assert machine.next_due == 600.0
