"""Readiness waits that go on with what the one before them named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from tarry import abc
from tarry.brokers.local.watches import WATCHES_MAX
from tarry.consumer.watch import Watch
from tarry.errors import CapacityExceeded, NotAMember, OffsetOutOfRange
from tarry.types import HistoryId, Ownership, Position, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import P0, P1, TOPIC, Ask, PumpRig, python_calls
from tests.unit.brokers.local.test_committing import FencedRig

NUMBERS = count()


class Watcher:
    """Whoever waits for one watch."""

    def __init__(self, rig: PumpRig, **places: int) -> None:
        self.rig = rig
        self.watch = Watch(next(NUMBERS))
        self.changes: list[abc.WatchChange] = []

    def name(self, place: int, *partitions: TopicPartition, ownership: int = 0, history: int | None = None) -> None:
        for at in partitions:
            past = None if history is None else HistoryId(history)
            self.watch.put(at, abc.FetchTarget(at, Position(place), Ownership(ownership), past))

    def drop(self, *partitions: TopicPartition) -> None:
        for at in partitions:
            self.watch.put(at, None)

    def wait(self, *, min_count: int = 1, max_wait: float = 5.0) -> Ask:
        targets, change = self.watch.send()
        self.changes.append(change)
        return self.rig.wait(*targets, min_count=min_count, max_wait=max_wait, change=change)

    def lose(self) -> None:
        """A wait that never arrives."""
        self.watch.send()


def watching(rig: PumpRig, *partitions: TopicPartition) -> Watcher:
    """With a wait that came to nothing."""
    watcher = Watcher(rig)
    watcher.name(0, *partitions)
    rig.pump.cancel(watcher.wait())
    return watcher


def remembered(rig: PumpRig) -> int:
    return rig.pump.polls._watches._readiness.entries


def all_of(rig: PumpRig) -> list[TopicPartition]:
    return [part.at for part in rig.pump.view.topic(TOPIC).partitions]


def work(do: Callable[[], object]) -> int:
    with python_calls() as calls:
        do()
    return len(calls)


class TestGoingOn:
    @rule("S53")
    def test_a_wait_costs_what_has_changed_and_not_what_it_names(self):
        """A message comes, is fetched, and is waited for again; or nothing comes at all."""
        busy: list[int] = []
        quiet: list[int] = []
        for partitions in (10, 1000):
            rig = PumpRig(partitions=partitions)
            watcher = watching(rig, *all_of(rig))

            def fetch(rig: PumpRig = rig, watcher: Watcher = watcher) -> None:
                wait = watcher.wait()
                rig.append(1)
                assert wait.ready == {P0: (1, 100)}
                watcher.drop(P0)
                rig.pump.cancel(watcher.wait())
                watcher.name(1, P0)

            def nothing(rig: PumpRig = rig, watcher: Watcher = watcher) -> None:
                rig.pump.tick(rig.clock.at)
                assert watcher.wait(max_wait=0).ready == {}

            busy.append(work(fetch))
            quiet.append(work(nothing))
        assert (busy[0], quiet[0]) == (busy[1], quiet[1])

    @rule("S53", "C73")
    def test_what_is_dropped_ends_nothing_and_what_is_named_again_stands_elsewhere(self):
        rig = PumpRig()
        watcher = watching(rig, P0, P1)
        watcher.drop(P0)
        wait = watcher.wait()
        rig.append(2)
        assert wait.pending
        watcher.name(2, P0)
        again = watcher.wait()
        assert wait.ready == {}, "nobody waits for it any more"
        assert again.pending
        rig.append(1)
        assert again.ready == {P0: (1, 100)}
        assert remembered(rig) == 2

    @rule("S27")
    def test_what_came_between_two_waits_ends_the_next_at_once(self):
        rig = PumpRig()
        watcher = watching(rig, P0, P1)
        rig.append(2)
        rig.append(3)
        assert watcher.wait().ready == {P0: (5, 500)}
        assert watcher.wait(min_count=6).pending
        rig.append(1, P1)
        assert watcher.wait(min_count=9, max_wait=0).ready == {P0: (5, 500), P1: (1, 100)}

    def test_what_retention_took_between_two_waits_counts_no_more(self):
        rig = PumpRig(retention_bytes=150)
        watcher = watching(rig, P0, P1)
        rig.append(1)
        rig.append(1)
        rig.pump.retain()
        assert rig.part().log_start == 1
        wait = watcher.wait(min_count=2)
        assert wait.pending
        rig.append(1, P1)
        assert wait.ready == {P0: (1, 100), P1: (1, 100)}


class TestNotRemembered:
    @rule("C4", "S53")
    def test_a_change_behind_one_that_never_came_goes_by_the_targets(self):
        rig = PumpRig()
        watcher = watching(rig, P0)
        watcher.name(0, P1)
        watcher.drop(P0)
        watcher.lose()
        wait = watcher.wait()
        assert watcher.changes[-1].named == ()
        rig.append(1, P0)
        assert wait.pending
        rig.append(1, P1)
        assert wait.ready == {P1: (1, 100)}

    def test_a_change_that_does_not_add_up_goes_by_the_targets(self):
        """However the two came to disagree, nobody waits for the wrong thing for ever."""
        rig = PumpRig()
        watcher = watching(rig, P0)
        watcher.watch.targets[P1] = abc.FetchTarget(P1, Position(0))
        wait = watcher.wait()
        rig.append(1, P1)
        assert wait.ready == {P1: (1, 100)}

    def test_what_does_not_add_up_is_not_gone_on_with_later(self):
        rig = PumpRig()
        watcher = watching(rig, P0)
        nobody = TopicPartition("nobody", 0)
        watcher.watch.targets = {nobody: abc.FetchTarget(nobody, Position(0)), P1: abc.FetchTarget(P1, Position(0))}
        assert watcher.wait().ready == {nobody: (0, 0)}
        del watcher.watch.targets[nobody]
        wait = watcher.wait()
        rig.append(1, P1)
        assert wait.ready == {P1: (1, 100)}

    def test_another_session_remembers_nothing_of_the_one_before(self):
        rig = PumpRig()
        watcher = watching(rig, P0, P1)
        rig.pump.leave(None, rig.member)
        assert remembered(rig) == 0
        rig.member = rig.open("billing")
        watcher.name(0, P1)
        wait = watcher.wait()
        rig.append(1)
        assert wait.ready == {P0: (1, 100)}

    def test_64_watches_of_a_session_are_remembered_the_ones_used_last(self):
        rig = PumpRig()
        watchers = [watching(rig, P0) for _ in range(WATCHES_MAX)]
        rig.pump.cancel(watchers[0].wait())
        assert remembered(rig) == WATCHES_MAX
        watchers.append(watching(rig, P0))
        assert remembered(rig) == len(rig.member.watches) == WATCHES_MAX
        assert watchers[1].watch._number not in rig.member.watches
        waits = [watcher.wait() for watcher in watchers]
        rig.append(1)
        assert all(wait.ready == {P0: (1, 100)} for wait in waits)

    def test_a_wait_without_a_change_leaves_nothing(self):
        rig = PumpRig()
        wait = rig.wait(0, (P1, 0))
        assert remembered(rig) == 2
        rig.append(1)
        assert wait.ready == {P0: (1, 100)}
        assert (remembered(rig), rig.member.watches) == (0, {})


class TestWhatEndsIt:
    @rule("S24")
    @pytest.mark.parametrize("waits", [False, True])
    def test_a_topic_that_was_deleted_counts_as_ready(self, waits: bool):
        rig = PumpRig()
        watcher = watching(rig, P0, P1)
        wait = watcher.wait() if waits else None
        rig.delete()
        answer = (wait or watcher.wait()).ready
        assert set(answer) <= {P0, P1}
        assert set(answer.values()) == {(0, 0)}

    @rule("S24")
    def test_so_does_one_that_was_created_again(self):
        rig = PumpRig()
        watcher = Watcher(rig)
        watcher.name(0, P0, history=rig.part().history)
        rig.pump.cancel(watcher.wait())
        rig.delete()
        rig.create(TOPIC, 2)
        assert watcher.wait().ready == {P0: (0, 0)}
        watcher.name(0, P0, history=rig.part().history)
        wait = watcher.wait()
        rig.append(1)
        assert wait.ready == {P0: (1, 100)}

    def test_a_partition_that_is_named_and_not_there_counts_as_ready(self):
        rig = PumpRig()
        watcher = watching(rig, P0)
        nobody = TopicPartition("nobody", 0)
        watcher.name(0, nobody)
        assert watcher.wait().ready == {nobody: (0, 0)}
        watcher.drop(nobody)
        assert watcher.wait().pending

    @rule("S24", "S53")
    def test_what_the_store_read_again_costs_each_wait_one_look(self):
        """It looked at all of its targets for each of them: with 1,000 the log stood still for seconds."""
        costs: list[int] = []
        for partitions in (10, 100):
            rig = PumpRig(partitions=partitions)
            watcher = Watcher(rig)
            watcher.name(0, *all_of(rig))
            wait = watcher.wait()
            states = rig.store.open(rig.pump)
            costs.append(work(partial(rig.pump.reopened, states)))
            assert wait.pending
        assert costs[1] < 12 * costs[0]

    @rule("S22", "C31")
    @pytest.mark.parametrize("waits", [False, True])
    def test_a_partition_that_is_owned_no_more_counts_as_ready(self, waits: bool):
        rig = FencedRig()
        watcher = Watcher(rig)
        watcher.name(0, P0, P1, ownership=1)
        wait = watcher.wait()
        if not waits:
            rig.pump.cancel(wait)
        rig.lose(P1)
        assert (wait if waits else watcher.wait()).ready == {P1: (0, 0)}
        rig.owners.give(rig.member, P1, ownership=2)
        watcher.name(0, P1, ownership=2)
        wait = watcher.wait()
        rig.append(1, P1)
        assert wait.ready == {P1: (1, 100)}

    @rule("S22", "C31")
    def test_what_counts_as_ready_is_looked_at_again_by_the_next_wait(self):
        """The partition was wanted back, and then it was not."""
        rig = FencedRig()
        watcher = Watcher(rig)
        watcher.name(0, P0, P1, ownership=1)
        wait = watcher.wait()
        rig.lose(P1)
        assert wait.ready == {P1: (0, 0)}
        rig.owners.give(rig.member, P1, ownership=1)
        again = watcher.wait()
        assert again.pending
        rig.append(1, P1)
        assert again.ready == {P1: (1, 100)}

    @rule("S25")
    def test_a_wait_that_is_refused_ends_the_one_that_is_on(self):
        """Nobody waits for that; the safety net stumbled over what was forgotten of it, and the log with it."""
        rig = PumpRig()
        watcher = Watcher(rig)
        watcher.name(0, P0)
        wait = watcher.wait()
        watcher.name(7, P1)
        assert isinstance(watcher.wait().error, OffsetOutOfRange)
        assert wait.ready == {}
        rig.advance(1)
        assert (remembered(rig), rig.pump.parked) == (0, 0)

    def test_a_place_behind_the_end_is_refused_and_the_next_wait_names_all_anew(self):
        rig = PumpRig()
        watcher = watching(rig, P0)
        watcher.name(7, P1)
        assert isinstance(watcher.wait().error, OffsetOutOfRange)
        assert (remembered(rig), rig.pump.parked) == (0, 0)
        watcher.name(0, P1)
        wait = watcher.wait()
        rig.append(1)
        assert wait.ready == {P0: (1, 100)}

    @rule("S13")
    def test_what_is_watched_at_a_log_is_bounded(self):
        rig = PumpRig(watched_max=3)
        watcher = watching(rig, P0, P1)
        assert watcher.wait().pending
        other = Watcher(rig)
        other.name(0, P0, P1)
        refusal = other.wait().error
        assert isinstance(refusal, CapacityExceeded)
        assert "3 targets of waits are watched at this log already" in str(refusal)
        assert remembered(rig) == 2
        watcher.drop(P1)
        assert watcher.wait().pending
        assert other.wait().pending

    @rule("S13")
    def test_what_is_remembered_between_waits_gives_way_to_what_is_waited_for(self):
        rig = PumpRig(watched_max=4)
        watching(rig).wait()
        rested, other = watching(rig, P0, P1), Watcher(rig)
        other.name(0, P0, P1)
        wait = other.wait()
        third = watching(rig, P0)
        assert (remembered(rig), wait.pending) == (3, True)
        rig.append(1, P1)
        assert wait.ready == {P1: (1, 100)}
        assert rested.wait().ready == third.wait(max_wait=0).ready | {P1: (1, 100)}

    @rule("S15")
    def test_a_session_that_leaves_takes_everything_along(self):
        rig = PumpRig()
        watching(rig, P0)
        wait = watching(rig, P0, P1).wait()
        rig.pump.leave(None, rig.member)
        assert isinstance(wait.error, NotAMember)
        assert (remembered(rig), rig.pump.parked, rig.member.watches) == (0, 0, {})

    @rule("S25")
    def test_the_safety_net_finds_who_was_not_told(self):
        rig = PumpRig()
        wait = watching(rig, P1, P0).wait(max_wait=30)
        rig.pump.view.find(P0).log_end = Position(1)
        rig.advance(1)
        assert P0 in wait.ready
