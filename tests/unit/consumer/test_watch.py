"""What waits name, and what of it changed: against a log that remembers."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tarry import abc
from tarry.consumer.watch import Watch
from tarry.types import Position, TopicPartition
from tests.marks import rule as proves
from tests.unit.machines import HALF

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
P0, P1, *_ = PARTITIONS


def at(partition: TopicPartition, place: int = 0) -> abc.FetchTarget:
    return abc.FetchTarget(partition, Position(place))


def is_lacking(watch: Watch) -> bool:
    return watch.has_more


@proves("C73")
def test_a_change_says_what_is_named_anew_or_elsewhere_and_what_is_dropped():
    watch = Watch(7)
    watch.put(P0, at(P0))
    watch.put(P1, at(P1))
    assert watch.send() == ((at(P0), at(P1)), abc.WatchChange(7, 0, (at(P0), at(P1)), ()))
    assert not is_lacking(watch)
    watch.put(P0, at(P0))
    watch.put(P1, None)
    watch.put(P1, None)
    assert not is_lacking(watch), "what was sent names too much, which does no harm"
    assert watch.send() == ((at(P0),), abc.WatchChange(7, 1, (), (P1,)))
    watch.put(P0, at(P0, 5))
    watch.put(P1, at(P1, 6))
    assert is_lacking(watch)
    assert watch.send()[1] == abc.WatchChange(7, 2, (at(P0, 5), at(P1, 6)), ())


@proves("C73")
def test_what_is_named_elsewhere_and_then_dropped_is_dropped_at_the_log_too():
    watch = Watch(7)
    watch.put(P0, at(P0))
    watch.send()
    watch.put(P0, at(P0, 1))
    watch.put(P0, None)
    assert watch.send()[1].dropped == (P0,)


@proves("C73")
def test_what_is_named_again_where_it_was_sent_has_not_changed():
    watch = Watch(7)
    watch.put(P0, at(P0))
    watch.send()
    watch.put(P0, None)
    watch.put(P0, at(P0))
    assert not watch.has_more
    assert watch.send() == ((at(P0),), abc.WatchChange(7, 1, (), ()))
    watch.put(P0, at(P0, 1))
    watch.put(P0, None)
    watch.put(P0, at(P0, 1))
    assert watch.has_more, "that was not sent yet"


def test_what_was_sent_may_name_what_was_dropped_since():
    watch = Watch(7)
    watch.put(P0, at(P0))
    assert not watch.may_name(P1)
    watch.send()
    watch.put(P0, None)
    assert watch.may_name(P0)
    watch.send()
    assert not watch.may_name(P0)


class WatchMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch(0)
        self.wanted: dict[TopicPartition, abc.FetchTarget] = {}
        self.known: dict[TopicPartition, abc.FetchTarget] = {}

    @rule(partition=st.sampled_from(PARTITIONS), place=st.integers(0, 2))
    def name(self, partition: TopicPartition, place: int) -> None:
        self.wanted[partition] = at(partition, place)
        self.watch.put(partition, at(partition, place))

    @rule(partition=st.sampled_from(PARTITIONS))
    def drop(self, partition: TopicPartition) -> None:
        self.wanted.pop(partition, None)
        self.watch.put(partition, None)

    @rule()
    def send(self) -> None:
        targets, change = self.watch.send()
        for partition in change.dropped:
            self.known.pop(partition, None)
        self.known.update((target.partition, target) for target in change.named)
        assert {target.partition: target for target in targets} == self.known == self.wanted

    @invariant()
    def says_whether_something_is_missing(self) -> None:
        assert self.watch.targets == self.wanted
        is_missing = any(self.known.get(partition) != target for partition, target in self.wanted.items())
        assert self.watch.has_more or not is_missing
        assert all(self.watch.may_name(partition) for partition in {**self.known, **self.wanted})


@pytest.mark.slow
@proves("C73")
def test_a_log_that_follows_the_changes_knows_the_targets():
    run_state_machine_as_test(WatchMachine, settings=HALF)
