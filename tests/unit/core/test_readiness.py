"""What a readiness wait has gathered, and what is remembered of it: examples that tell the story."""

from __future__ import annotations

import sys
from types import FrameType

from tarry._core.readiness import Counts, Partition, Readiness, Watch
from tests.marks import rule


def watching(readiness: Readiness, *, min_count: int = 1, min_bytes: int | None = None, **starts: int) -> Watch:
    """A watch with a wait that is on."""
    watch = Watch(record=None)
    for partition, start in starts.items():
        readiness.name(watch, partition, start, (0, 0))
    readiness.begin(watch, min_count, min_bytes, nothing_there)
    return watch


def nothing_there(_: Partition, start: int) -> tuple[int, Counts]:
    return start, (0, 0)


@rule("S52")
def test_messages_of_all_targets_count_together():
    readiness = Readiness()
    one = watching(readiness, min_count=5, p=0, q=10)
    assert readiness.grown("p", 3, 300) == []
    assert readiness.grown("q", 11, 50) == []
    assert readiness.grown("q", 12, 50) == [one]
    assert one.have == {"p": (3, 300), "q": (2, 100)}
    assert (one.messages, one.size) == (5, 400)


@rule("S52")
def test_bytes_end_it_too():
    readiness = Readiness()
    one = watching(readiness, min_count=100, min_bytes=400, p=0, q=0)
    assert readiness.grown("p", 1, 399) == []
    assert readiness.grown("q", 1, 1) == [one]


@rule("S52")
def test_what_was_there_at_the_start_counts_and_looking_again_replaces_it():
    one = watching(Readiness(), min_count=4, min_bytes=1000, p=0, q=0)
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
    one = watching(Readiness(), p=5)
    one.see("p", -3, 0)
    assert (one.have, one.messages, one.size, one.satisfied) == ({}, 0, 0, False)


@rule("S53")
def test_growth_costs_one_addition_for_each_watch_of_that_partition_alone():
    work: list[int] = []
    for targets in (1, 1000):
        readiness = Readiness()
        one = Watch(record=None)
        for number in range(targets):
            readiness.name(one, number, 0, (0, 0))
        readiness.begin(one, 50, None, nothing_there)
        for _ in range(targets):
            watching(readiness, min_count=50, elsewhere=0)
        calls: list[str] = []

        def note(frame: FrameType, event: str, argument: object, calls: list[str] = calls) -> None:
            if event == "call":
                calls.append(frame.f_code.co_name)

        sys.setprofile(note)
        try:
            readiness.grown(0, 1, 100)
        finally:
            sys.setprofile(None)
        work.append(len(calls))
    assert work[0] == work[1]


@rule("S53")
def test_between_waits_a_watch_is_told_of_the_first_growth_only():
    """However much comes for a consumer that does not ask, it costs nothing."""
    readiness = Readiness()
    one = watching(readiness, p=0, q=0)
    assert readiness.grown("p", 1, 10) == [one]
    readiness.end(one)
    assert readiness.grown("p", 2, 10) == []
    seen = dict(one.have)
    assert readiness.grown("p", 3, 10) == []
    assert one.have == seen
    assert readiness.grown("q", 7, 70) == []
    assert set(one.have) == {"p", "q"}, "that there is something is known"


@rule("S27")
def test_what_came_between_waits_is_counted_when_the_next_begins():
    readiness = Readiness()
    one = watching(readiness, p=0, q=0, r=0)
    readiness.end(one)
    for visible in range(1, 5):
        readiness.grown("p", visible, 10)
    asked: list[Partition] = []

    def count(partition: Partition, start: int) -> tuple[int, Counts]:
        asked.append(partition)
        assert start == 0
        return 1, (3, 30)  # retention took the first one meanwhile

    readiness.begin(one, 6, None, count)
    assert asked == ["p"], "nothing else is looked at"
    assert (one.messages, one.size, one.satisfied) == (3, 30, False)
    assert readiness.grown("p", 5, 10) == []
    assert one.have["p"] == (4, 40)
    assert readiness.grown("r", 2, 1) == [one]


def test_what_is_dropped_counts_no_more_and_leaves_nothing():
    readiness = Readiness()
    one, other = watching(readiness, min_count=3, p=0, q=0), watching(readiness, min_count=2, p=0)
    readiness.grown("p", 1, 10)
    readiness.drop(one, "p")
    readiness.drop(one, "p")
    assert (one.messages, one.size) == (0, 0)
    assert readiness.grown("p", 2, 10) == [other]
    assert one.messages == 0
    readiness.forget(one)
    readiness.forget(one)
    assert list(readiness) == [other]
    readiness.forget(other)
    assert (list(readiness), readiness.entries, readiness._listening) == ([], 0, {})


def test_a_partition_that_is_named_again_stands_elsewhere_and_counts_once():
    readiness = Readiness()
    one = watching(readiness, min_count=3, p=0)
    readiness.grown("p", 2, 20)
    readiness.name(one, "p", 2, (0, 0))
    assert (one.messages, one.size, readiness.entries) == (0, 0, 1)
    assert readiness.grown("p", 4, 20) == []
    assert readiness.grown("p", 5, 10) == [one]


def test_what_retention_took_counts_no_more():
    readiness = Readiness()
    one, later = watching(readiness, min_count=5, p=0, q=0), watching(readiness, min_count=5, p=3)
    readiness.grown("p", 4, 400)
    readiness.grown("q", 1, 7)
    readiness.trimmed("p", 2, 4, 200)
    assert (one.have, one.messages, one.size) == ({"p": (2, 200), "q": (1, 7)}, 3, 207)
    assert later.have == {"p": (1, 400)}, "it starts behind what went"
    assert readiness.grown("p", 5, 100) == []
    assert readiness.grown("p", 6, 100) == [one]
    readiness.trimmed("nobody waits", 2, 4, 200)


@rule("S25")
def test_a_growth_that_was_not_told_is_noticed():
    readiness = Readiness()
    one = watching(readiness, min_count=5, p=2)
    assert one.knows("p", 2)
    assert not one.knows("p", 3)
    readiness.grown("p", 3, 10)
    assert one.knows("p", 3)
