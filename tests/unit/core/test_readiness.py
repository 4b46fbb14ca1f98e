"""What a readiness wait has gathered: examples that tell the story."""

from __future__ import annotations

import sys
from types import FrameType

from tarry._core.readiness import Gatherers, Wait
from tests.marks import rule


def wait(min_count: int = 1, min_bytes: int | None = None, **starts: int) -> Wait:
    return Wait(dict(starts.items()), min_count, min_bytes, record=None)


def gathering(*waits: Wait) -> Gatherers:
    gatherers = Gatherers()
    for one in waits:
        gatherers.add(one)
    return gatherers


@rule("S52")
def test_messages_of_all_targets_count_together():
    one = wait(5, p=0, q=10)
    gatherers = gathering(one)
    assert gatherers.grown("p", 3, 300) == []
    assert gatherers.grown("q", 11, 50) == []
    assert gatherers.grown("q", 12, 50) == [one]
    assert one.have == {"p": (3, 300), "q": (2, 100)}
    assert (one.messages, one.size) == (5, 400)


@rule("S52")
def test_bytes_end_it_too():
    one = wait(100, 400, p=0, q=0)
    gatherers = gathering(one)
    assert gatherers.grown("p", 1, 399) == []
    assert gatherers.grown("q", 1, 1) == [one]


@rule("S52")
def test_what_was_there_at_the_start_counts_and_looking_again_replaces_it():
    one = wait(4, 1000, p=0, q=0)
    one.see("p", 3, 300)
    assert not one.satisfied
    one.see("p", 2, 200)
    one.see("q", 1, 100)
    assert (one.messages, one.size, one.satisfied) == (3, 300, False)
    one.see("q", 0, 0)
    assert (one.have, one.messages, one.size) == ({"p": (2, 200)}, 2, 200)
    one.see("q", 2, 1)
    assert one.satisfied


def test_nothing_there_is_no_entry():
    one = wait(1, p=5)
    one.see("p", -3, 0)
    assert (one.have, one.messages, one.size, one.satisfied) == ({}, 0, 0, False)


def test_one_message_is_enough_for_a_wait_that_does_not_accumulate():
    assert not wait(1).accumulates
    assert not wait(1, 1000).accumulates
    assert wait(2).accumulates


@rule("S53")
def test_growth_costs_one_addition_for_each_wait_of_that_partition_alone():
    work: list[int] = []
    for targets in (1, 1000):
        one = Wait(dict.fromkeys(range(targets), 0), 50, None, record=None)
        elsewhere = [Wait({-1: 0}, 50, None, record=None) for _ in range(targets)]
        gatherers = gathering(one, *elsewhere)
        calls: list[str] = []

        def note(frame: FrameType, event: str, argument: object, calls: list[str] = calls) -> None:
            if event == "call":
                calls.append(frame.f_code.co_name)

        sys.setprofile(note)
        try:
            gatherers.grown(0, 1, 100)
        finally:
            sys.setprofile(None)
        work.append(len(calls))
    assert work[0] == work[1]


def test_a_removed_wait_is_told_nothing_and_leaves_nothing():
    one, other = wait(2, p=0, q=0), wait(2, p=0)
    gatherers = gathering(one, other)
    gatherers.remove(one)
    gatherers.remove(one)
    assert gatherers.grown("p", 2, 200) == [other]
    assert one.messages == 0
    gatherers.remove(other)
    assert gatherers._waits == {}


def test_what_retention_took_counts_no_more():
    one, later = wait(5, p=0, q=0), wait(5, p=3)
    gatherers = gathering(one, later)
    gatherers.grown("p", 4, 400)
    gatherers.grown("q", 1, 7)
    gatherers.trimmed("p", 2, 4, 200)
    assert (one.have, one.messages, one.size) == ({"p": (2, 200), "q": (1, 7)}, 3, 207)
    assert later.have == {"p": (1, 400)}, "it starts behind what went"
    assert gatherers.grown("p", 5, 100) == []
    assert gatherers.grown("p", 6, 100) == [one]
    gatherers.trimmed("nobody waits", 2, 4, 200)


@rule("S25")
def test_a_growth_that_was_not_told_is_noticed():
    one = wait(5, p=2)
    assert one.knows("p", 2)
    assert not one.knows("p", 3)
    gathering(one).grown("p", 3, 10)
    assert one.knows("p", 3)
