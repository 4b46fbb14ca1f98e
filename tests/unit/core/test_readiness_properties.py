"""Readiness waits against a model that adds up the whole log each time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry._core.readiness import Gatherers, Wait
from tests.marks import rule as proves
from tests.unit.machines import HALF

PARTITIONS: tuple[str, ...] = ("p", "q", "r")


@dataclass(eq=False)
class Model:
    """One wait, and where it began."""

    wait: Wait
    begins: dict[str, int]


class ReadinessMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.gatherers = Gatherers()
        self.sizes: dict[str, list[int]] = {partition: [] for partition in PARTITIONS}
        self.log_start = dict.fromkeys(PARTITIONS, 0)
        self.models: list[Model] = []

    def there(self, model: Model) -> dict[str, list[int]]:
        begins = {partition: max(at, self.log_start[partition]) for partition, at in model.begins.items()}
        return {partition: self.sizes[partition][at:] for partition, at in begins.items() if self.sizes[partition][at:]}

    def is_satisfied(self, model: Model) -> bool:
        found = [size for sizes in self.there(model).values() for size in sizes]
        enough_bytes = model.wait.min_bytes is not None and sum(found) >= model.wait.min_bytes
        return len(found) >= model.wait.min_count or enough_bytes

    @rule(
        backs=st.dictionaries(st.sampled_from(PARTITIONS), st.integers(min_value=0, max_value=2), min_size=1),
        min_count=st.integers(min_value=2, max_value=8),
        min_bytes=st.none() | st.integers(min_value=1, max_value=40),
    )
    def begin(self, backs: dict[str, int], min_count: int, min_bytes: int | None) -> None:
        begins = {partition: max(len(self.sizes[partition]) - back, 0) for partition, back in backs.items()}
        starts = {partition: max(at, self.log_start[partition]) for partition, at in begins.items()}
        model = Model(Wait(dict(starts.items()), min_count, min_bytes, record=None), begins)
        for partition, at in starts.items():
            model.wait.see(partition, len(self.sizes[partition]) - at, sum(self.sizes[partition][at:]))
        assert model.wait.satisfied == self.is_satisfied(model)
        if not model.wait.satisfied:
            self.gatherers.add(model.wait)
            self.models.append(model)

    @rule(partition=st.sampled_from(PARTITIONS), sizes=st.lists(st.integers(1, 10), min_size=1, max_size=3))
    def grow(self, partition: str, sizes: list[int]) -> None:
        self.sizes[partition] += sizes
        named = [model for model in self.models if partition in model.begins]
        assert not any(model.wait.knows(partition, len(self.sizes[partition])) for model in named)
        ended = [model for model in named if self.is_satisfied(model)]
        found = self.gatherers.grown(partition, len(self.sizes[partition]), sum(sizes))
        assert found == [model.wait for model in ended]
        for model in ended:
            self.gatherers.remove(model.wait)
            self.models.remove(model)

    @rule(partition=st.sampled_from(PARTITIONS), messages=st.integers(1, 4))
    def trim(self, partition: str, messages: int) -> None:
        start = min(self.log_start[partition] + messages, len(self.sizes[partition]))
        self.log_start[partition] = start
        self.gatherers.trimmed(partition, start, len(self.sizes[partition]), sum(self.sizes[partition][start:]))

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.models))
        self.gatherers.remove(model.wait)
        self.models.remove(model)

    @invariant()
    def agrees(self) -> None:
        for model in self.models:
            there = self.there(model)
            assert model.wait.have == {partition: (len(sizes), sum(sizes)) for partition, sizes in there.items()}
            assert model.wait.messages == sum(map(len, there.values()))
            assert model.wait.size == sum(map(sum, there.values()))
            assert all(model.wait.knows(partition, len(self.sizes[partition])) for partition in model.begins)
            assert not model.wait.satisfied

    @invariant()
    def holds_nobody_else(self) -> None:
        held = [wait for waits in self.gatherers._waits.values() for wait in waits]
        assert len(held) == sum(len(model.begins) for model in self.models)


@pytest.mark.slow
@proves("S52", "S53")
def test_agrees_with_adding_everything_up():
    run_state_machine_as_test(ReadinessMachine, settings=HALF)
