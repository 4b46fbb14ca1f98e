"""Readiness waits against a model that adds up the whole log each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry._core.readiness import Counts, Partition, Readiness, Watch
from tests.marks import rule as proves
from tests.unit.machines import HALF

PARTITIONS: tuple[str, ...] = ("p", "q", "r")


@dataclass(eq=False)
class Model:
    """A watch, where it stands in each partition, and what the wait that is on asks for."""

    watch: Watch = field(default_factory=lambda: Watch(record=None))
    begins: dict[str, int] = field(default_factory=dict[str, int])
    terms: tuple[int, int | None] | None = None


class ReadinessMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.readiness = Readiness()
        self.sizes: dict[str, list[int]] = {partition: [] for partition in PARTITIONS}
        self.log_start = dict.fromkeys(PARTITIONS, 0)
        self.models: list[Model] = []

    def there(self, model: Model) -> dict[str, list[int]]:
        begins = {partition: max(at, self.log_start[partition]) for partition, at in model.begins.items()}
        return {partition: self.sizes[partition][at:] for partition, at in begins.items() if self.sizes[partition][at:]}

    def is_satisfied(self, model: Model) -> bool:
        assert model.terms is not None
        found = [size for sizes in self.there(model).values() for size in sizes]
        min_count, min_bytes = model.terms
        return len(found) >= min_count or (min_bytes is not None and sum(found) >= min_bytes)

    def count(self, partition: Partition, start: int) -> tuple[int, Counts]:
        assert isinstance(partition, str)
        begin = max(start, self.log_start[partition])
        sizes = self.sizes[partition][begin:]
        return begin, (len(sizes), sum(sizes))

    def settle(self, model: Model) -> None:
        """A wait that has enough is over."""
        if model.terms is not None and self.is_satisfied(model):
            self.readiness.end(model.watch)
            model.terms = None

    @rule()
    @precondition(lambda self: len(self.models) < 4)
    def watch(self) -> None:
        self.models.append(Model())

    @precondition(lambda self: self.models)
    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), back=st.integers(0, 2))
    def name(self, data: st.DataObject, partition: str, back: int) -> None:
        model = data.draw(st.sampled_from(self.models))
        model.begins[partition] = max(len(self.sizes[partition]) - back, 0)
        self.readiness.name(model.watch, partition, *self.count(partition, model.begins[partition]))
        self.settle(model)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS))
    def drop(self, data: st.DataObject, partition: str) -> None:
        model = data.draw(st.sampled_from(self.models))
        model.begins.pop(partition, None)
        self.readiness.drop(model.watch, partition)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), min_count=st.integers(1, 8), min_bytes=st.none() | st.integers(1, 40))
    def begin(self, data: st.DataObject, min_count: int, min_bytes: int | None) -> None:
        model = data.draw(st.sampled_from(self.models))
        model.terms = (min_count, min_bytes)
        self.readiness.begin(model.watch, min_count, min_bytes, self.count)
        assert model.watch.satisfied == self.is_satisfied(model)
        self.settle(model)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), is_over=st.booleans())
    def end(self, data: st.DataObject, is_over: bool) -> None:
        model = data.draw(st.sampled_from(self.models))
        model.terms = None
        self.readiness.end(model.watch)
        if is_over:
            self.readiness.forget(model.watch)
            self.models.remove(model)

    @rule(partition=st.sampled_from(PARTITIONS), sizes=st.lists(st.integers(1, 10), min_size=1, max_size=3))
    def grow(self, partition: str, sizes: list[int]) -> None:
        self.sizes[partition] += sizes
        waiting = [model for model in self.models if partition in model.begins and model.terms is not None]
        assert not any(model.watch.knows(partition, len(self.sizes[partition])) for model in waiting)
        ended = [model for model in waiting if self.is_satisfied(model)]
        found = self.readiness.grown(partition, len(self.sizes[partition]), sum(sizes))
        assert len(found) == len(ended)
        assert set(found) == {model.watch for model in ended}
        for model in ended:
            self.settle(model)

    @rule(partition=st.sampled_from(PARTITIONS), messages=st.integers(1, 4))
    def trim(self, partition: str, messages: int) -> None:
        start = min(self.log_start[partition] + messages, len(self.sizes[partition]))
        self.log_start[partition] = start
        self.readiness.trimmed(partition, start, len(self.sizes[partition]), sum(self.sizes[partition][start:]))

    @invariant()
    def a_wait_knows_exactly_what_is_there(self) -> None:
        for model in self.models:
            if model.terms is None:
                continue
            there = self.there(model)
            assert model.watch.have == {partition: (len(sizes), sum(sizes)) for partition, sizes in there.items()}
            assert model.watch.messages == sum(map(len, there.values()))
            assert model.watch.size == sum(map(sum, there.values()))
            assert all(model.watch.knows(partition, len(self.sizes[partition])) for partition in model.begins)
            assert not model.watch.satisfied

    @invariant()
    def between_waits_it_is_known_where_something_is(self) -> None:
        for model in self.models:
            assert set(self.there(model)) <= set(model.watch.have) <= set(model.begins)

    @invariant()
    def holds_nothing_else(self) -> None:
        assert self.readiness.entries == sum(len(model.begins) for model in self.models)
        listening = {(watch, at) for at, watches in self.readiness._listening.items() for watch in watches}
        assert listening <= {(model.watch, at) for model in self.models for at in model.begins}


@pytest.mark.slow
@proves("S52", "S53")
def test_agrees_with_adding_everything_up():
    run_state_machine_as_test(ReadinessMachine, settings=HALF)
