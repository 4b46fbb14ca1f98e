"""Parked requests by threshold and deadline: examples that tell the story."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tarry._core import waiters as module
from tarry._core.waiters import Full, Parked, Threshold, Waiters
from tests.marks import rule


@contextmanager
def heap_operations(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Every push, pop and heapify meanwhile."""
    done: list[str] = []

    def counted(name: str) -> None:
        real = getattr(module, name)

        def operation(*args: Any) -> Any:
            done.append(name)
            return real(*args)

        patch.setattr(module, name, operation)

    with monkeypatch.context() as patch:
        for name in ("heappush", "heappop", "heapify"):
            counted(name)
        yield done


def park(waiters: Waiters, record: object, messages_at: int, *, deadline: float = 10.0, **more: Any) -> Parked:
    return waiters.park(record, deadline, Threshold(more.pop("partition", "p"), messages_at, **more))


def records(found: list[Parked]) -> list[object]:
    return [parked.record for parked in found]


@rule("S17")
def test_a_waiter_is_completed_by_its_number_of_messages():
    waiters = Waiters()
    park(waiters, "a", 5)
    assert waiters.advanced("p", 4, 1000) == []
    assert records(waiters.advanced("p", 5, 1000)) == ["a"]
    assert (len(waiters), waiters.advanced("p", 6, 1000)) == (0, [])


@rule("S17", "S19")
def test_a_waiter_is_completed_by_its_number_of_bytes():
    waiters = Waiters()
    park(waiters, "a", 5, bytes_at=300)
    assert waiters.advanced("p", 4, 299) == []
    assert records(waiters.advanced("p", 4, 300)) == ["a"]
    assert len(waiters) == 0


@rule("S20")
def test_both_bounds_at_once_wake_once_and_oldest_first():
    waiters = Waiters()
    for record, messages_at, bytes_at in (("a", 3, None), ("b", 1, 100), ("c", 9, 50), ("d", 2, 900), ("e", 9, None)):
        park(waiters, record, messages_at, bytes_at=bytes_at)
    assert records(waiters.advanced("p", 3, 100)) == ["a", "b", "c", "d"]
    assert len(waiters) == 1


@rule("S20")
@pytest.mark.parametrize("waiting", [1, 2, 3, 10, 100])
def test_all_of_a_partition_may_be_woken_at_once(waiting: int):
    """The heaps are rebuilt in the middle of it."""
    waiters = Waiters()
    for number in range(waiting):
        park(waiters, number, 5, bytes_at=7)
    assert records(waiters.advanced("p", 5, 7)) == list(range(waiting))
    assert (len(waiters), waiters.count_of("p")) == (0, 0)
    waiters.check()


@rule("S26", "I6")
@pytest.mark.parametrize("waiting", [1, 1000])
def test_a_commit_that_completes_nobody_touches_no_heap(waiting: int, monkeypatch: pytest.MonkeyPatch):
    waiters = Waiters()
    for number in range(waiting):
        park(waiters, number, 10 + number, bytes_at=1000 + number)
    with heap_operations(monkeypatch) as done:
        for visible in range(10):
            assert waiters.advanced("p", visible, visible * 100) == []
            assert waiters.advanced("elsewhere", 10**9, 10**9) == []
    assert done == []


@rule("S26")
def test_a_wake_costs_the_woken_not_the_parked(monkeypatch: pytest.MonkeyPatch):
    work: list[int] = []
    for waiting in (100, 10_000):
        waiters = Waiters(per_partition_max=waiting + 1)
        for number in range(waiting):
            park(waiters, number, 1000 + number)
        park(waiters, "woken", 5)
        with heap_operations(monkeypatch) as done:
            assert records(waiters.advanced("p", 5, 0)) == ["woken"]
        work.append(len(done))
    assert work == [1, 1]


@rule("S28")
def test_deadlines_end_waits_earliest_first():
    waiters = Waiters()
    for record, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 2.0), ("e", 4.0)):
        park(waiters, record, 99, deadline=deadline)
    assert waiters.next_deadline() == 1.0
    assert waiters.expire(0.999) == []
    assert records(waiters.expire(3.0)) == ["b", "c", "d", "a"]
    assert waiters.next_deadline() == 4.0
    assert records(waiters.expire(4.0)) == ["e"]
    assert waiters.next_deadline() is None


def test_a_removed_waiter_is_found_by_nobody():
    waiters = Waiters()
    parked = park(waiters, "a", 5, bytes_at=10)
    assert waiters.remove(parked)
    assert not waiters.remove(parked)
    assert waiters.next_deadline() is None
    assert waiters.advanced("p", 99, 99) == waiters.changed("p") == waiters.expire(99) == []
    assert list(waiters.sweep(64)) == []


@rule("S24")
def test_a_change_of_history_wakes_everybody_who_names_the_partition():
    waiters = Waiters()
    park(waiters, "a", 1 << 62)
    park(waiters, "elsewhere", 5, partition="q")
    park(waiters, "b", 9)
    waiters.park("disk", 10.0, None)
    assert records(waiters.changed("p")) == ["a", "b"]
    assert waiters.changed("p") == []
    assert records(waiters.advanced("q", 9, 0)) == ["elsewhere"]
    assert len(waiters) == 1


@rule("S13")
def test_each_bound_refuses_and_changes_nothing():
    waiters = Waiters(per_partition_max=2, total_max=4)
    first = park(waiters, "a", 1)
    park(waiters, "b", 1)
    with pytest.raises(Full, match="2 polls wait at this partition"):
        park(waiters, "c", 1)
    waiters.park("wait", 10.0, None)
    assert waiters.count_of("p") == 2, "who waits for time alone is no poll"
    park(waiters, "d", 1, partition="q")
    waiters.remove(first)
    park(waiters, "e", 1)
    with pytest.raises(Full, match="4 requests wait at this log") as refused:
        park(waiters, "f", 1, partition="r")
    assert (refused.value.limit, len(waiters)) == (4, 4)
    waiters.check()


@rule("S13")
def test_wakes_and_deadlines_make_room_too():
    waiters = Waiters(per_partition_max=1)
    park(waiters, "a", 1, deadline=1.0)
    waiters.advanced("p", 1, 0)
    park(waiters, "b", 9, deadline=1.0)
    waiters.expire(1.0)
    park(waiters, "c", 9)
    waiters.changed("p")
    park(waiters, "d", 9)
    assert waiters.count_of("p") == 1


def test_dead_entries_never_outnumber_the_living():
    waiters = Waiters()
    kept = [park(waiters, number, 10 + number, bytes_at=10 + number) for number in range(3)]
    for _ in range(10_000):
        waiters.remove(park(waiters, "gone", 5, deadline=5.0, bytes_at=5))
        assert waiters.entries <= 2 * 2 * (len(kept) + 1)
    heaps = waiters._heaps["p"]
    assert len(heaps.messages) + len(waiters._deadlines) <= 2 * 2 * (len(kept) + 1)
    assert len(heaps.bytes) <= len(heaps.messages)


def test_partitions_that_nobody_waits_for_are_forgotten():
    waiters = Waiters()
    for number in range(1000):
        waiters.remove(park(waiters, number, 5, partition=number))
    assert len(waiters._heaps) <= 1


def test_rebuilding_is_paid_for_by_what_went(monkeypatch: pytest.MonkeyPatch):
    """A hundred parked, then come and go: heapify runs once per about as many removals as there are entries."""
    waiters = Waiters()
    for number in range(100):
        park(waiters, number, 10**6)
    with heap_operations(monkeypatch) as done:
        for _ in range(10_000):
            waiters.remove(park(waiters, "gone", 5))
    assert done.count("heapify") <= 3 * 10_000 / 100 + 3


@rule("S25")
def test_the_sweep_goes_round():
    waiters = Waiters()
    for number in range(100):
        park(waiters, number, 1)
    windows = [records(list(waiters.sweep(64))) for _ in range(3)]
    assert windows == [[*range(64)], [*range(64, 100), *range(28)], [*range(28, 92)]]


@rule("S25")
def test_who_is_removed_during_a_sweep_is_left_out():
    waiters = Waiters()
    parked = [park(waiters, number, 1) for number in range(4)]
    seen: list[object] = []
    for found in waiters.sweep(64):
        seen.append(found.record)
        waiters.remove(found)
        waiters.remove(parked[2])
    assert seen == [0, 1, 3]


@rule("S25")
def test_a_sweep_of_few_looks_at_each_once():
    waiters = Waiters()
    park(waiters, "poll", 1)
    waiters.park("disk", 10.0, None)
    assert records(list(waiters.sweep(64))) == ["poll", "disk"]
