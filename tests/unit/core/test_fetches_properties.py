"""The read-ahead against a model that keeps single messages in lists and cuts them one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tarry._core.fetches import RUN_OVERHEAD, Demand, Fetches, Plan
from tarry._wire.batch import seal
from tarry.types import Offset, Origin, Position, Run, Segment, TopicPartition
from tests.marks import rule as proves

PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
PARTITION = st.sampled_from(PARTITIONS)
SIZES = st.lists(st.sampled_from([1, 40, 100, 700]), min_size=1, max_size=5)
COUNTS = st.integers(min_value=1, max_value=12)
BYTES = st.sampled_from([1, RUN_OVERHEAD, RUN_OVERHEAD + 41, RUN_OVERHEAD + 250, 2 * RUN_OVERHEAD + 500, 5000])

Messages = list[tuple[int, int]]
"""Offsets with sizes."""


@dataclass
class Model:
    """Rows of segments per partition, in the order in which the partitions are served."""

    rows: dict[TopicPartition, list[Messages]] = field(default_factory=dict[TopicPartition, list[Messages]])

    def put(self, partition: TopicPartition, messages: Messages) -> None:
        self.rows.setdefault(partition, []).append(messages)

    def put_first(self, partition: TopicPartition, messages: Messages) -> None:
        row = [messages, *self.rows.pop(partition, [])]
        self.rows = {partition: row, **self.rows}

    def take(self) -> tuple[TopicPartition, Messages] | None:
        """The first segment of the partition whose turn it is; that one is served last from now on."""
        if not self.rows:
            return None
        partition, row = next(iter(self.rows.items()))
        messages = row.pop(0)
        del self.rows[partition]
        if row:
            self.rows[partition] = row
        return partition, messages

    def gather(self, count: int, max_bytes: int) -> list[tuple[TopicPartition, Messages]]:
        found: list[tuple[TopicPartition, Messages]] = []
        charged = 0
        left = count
        while left and (segment := self.take()) is not None:
            partition, messages = segment
            overhead = 0 if partition in {served for served, _ in found} else RUN_OVERHEAD
            took: Messages = []
            for message in messages:
                alone = not found and not took
                if left and (alone or charged + overhead + message[1] <= max_bytes):
                    charged, overhead, left = charged + overhead + message[1], 0, left - 1
                    took.append(message)
                else:
                    break
            rest = messages[len(took) :]
            if took:
                found.append((partition, took))
            if not took:
                self.put_first(partition, rest)
                break
            if rest:
                row = [rest, *self.rows.pop(partition, [])]
                self.rows[partition] = row
                break
        return found

    def void(self, partition: TopicPartition) -> None:
        self.rows.pop(partition, None)

    @property
    def messages(self) -> list[tuple[int, int]]:
        return [message for row in self.rows.values() for segment in row for message in segment]

    @property
    def count(self) -> int:
        return len(self.messages)

    @property
    def size(self) -> int:
        return sum(size for _, size in self.messages)


def unpack(segment: Segment) -> tuple[TopicPartition, Messages]:
    """A segment as the model writes it."""
    messages: Messages = []
    for run in segment.runs:
        for index in range(run.lo, run.hi):
            size = run.batch.start_of(index + 1) - run.batch.start_of(index)
            messages.append((run.base + index - run.lo, size))
    return segment.origin.partition, messages


class FetchesMachine(RuleBasedStateMachine):
    """Partitions with endless logs; fetches bring what the plan allows; a reader takes, gives back, polls and seeks."""

    @initialize(
        count=st.integers(2, 8), max_bytes=st.sampled_from([200, 1000]), factor=st.integers(1, 3), tight=st.booleans()
    )
    def begin(self, count: int, max_bytes: int, factor: int, tight: bool) -> None:
        self.count, self.max_bytes = count, max_bytes
        self.messages_max = count * factor - (1 if tight else 0)
        self.bytes_max = max_bytes * factor - (30 if tight else 0)
        self.fetches = Fetches(
            count=count, max_bytes=max_bytes, messages_max=self.messages_max, bytes_max=self.bytes_max
        )
        self.model = Model()
        self.idle = list(PARTITIONS)
        self.ready: list[TopicPartition] = []
        self.flying: Plan | None = None
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.taken: tuple[Segment, Messages] | None = None

    # ---- what is known

    @rule(partition=PARTITION)
    def is_ready(self, partition: TopicPartition) -> None:
        if self.flying is not None and partition in self.flying.partitions:
            return
        self.fetches.ready(partition)
        if partition not in self.ready:
            self.ready.append(partition)

    @rule(partition=PARTITION)
    def is_drained(self, partition: TopicPartition) -> None:
        self.fetches.drained(partition)
        self.ready = [other for other in self.ready if other != partition]

    @rule(count=COUNTS, min_share=st.integers(1, 3), max_bytes=BYTES)
    def poll_comes(self, count: int, min_share: int, max_bytes: int) -> None:
        self.fetches.demand = Demand(count, max(count // min_share, 1), max_bytes, deadline=0.0)

    @rule()
    def poll_goes(self) -> None:
        self.fetches.demand = None

    # ---- fetching

    @precondition(lambda self: self.flying is None)
    @rule()
    def fetch(self) -> None:
        plan = self.fetches.plan(targets_max=2)
        demand = self.fetches.demand
        if not self.ready:
            assert plan is None
            return
        room_count = max(self.messages_max, demand.count if demand else 0) - self.model.count
        room_bytes = max(self.bytes_max, demand.max_bytes if demand else 0) - self.model.size
        if not self.model.count:
            assert plan is not None
        elif demand is not None and not self.fetches.enough(demand):
            assert plan is not None  # or the poll would never end
        if plan is None:
            return
        assert plan.partitions == tuple(self.ready[:2])
        assert 1 <= plan.count <= min(self.count, max(room_count, 1))
        assert 1 <= plan.max_bytes <= min(self.max_bytes, max(room_bytes, 1))
        assert self.fetches.room() == (plan.count, plan.max_bytes)
        self.fetches.started(plan)
        self.ready = self.ready[len(plan.partitions) :]
        self.flying = plan

    @precondition(lambda self: self.flying is not None)
    @rule(data=st.data())
    def fetch_returns(self, data: st.DataObject) -> None:
        """It brings at most what was asked for; a first record above the limit alone."""
        plan = self.flying
        assert plan is not None
        self.flying = None
        self.fetches.landed(plan.partitions)
        count, room, alone = plan.count, plan.max_bytes, True
        for partition in plan.partitions:
            wanted = data.draw(SIZES)
            brought: list[int] = []
            for size in wanted:
                if count and (alone or size <= room):
                    brought.append(size)
                    count, room, alone = count - 1, room - size, False
                else:
                    break
            if brought:
                self.put(partition, brought)

    def put(self, partition: TopicPartition, sizes: list[int]) -> None:
        first = self.ends[partition]
        self.ends[partition] += len(sizes)
        batch = seal([bytes(size) for size in sizes], [0] * len(sizes))
        middle = len(sizes) // 2
        runs = Run(Offset(first), batch, 0, batch.count).split(middle)
        origin = Origin(partition, Offset(10_000))
        self.fetches.put(Segment(origin, tuple(run for run in runs if run.count)))
        self.model.put(partition, [(first + index, size) for index, size in enumerate(sizes)])

    @precondition(lambda self: self.flying is None)
    @rule(partition=PARTITION)
    def seek(self, partition: TopicPartition) -> None:
        self.fetches.void(partition)
        self.model.void(partition)
        self.ready = [other for other in self.ready if other != partition]
        if self.taken is not None and self.taken[0].origin.partition == partition:
            self.taken = None

    # ---- reading

    @rule()
    def take(self) -> None:
        segment, expected = self.fetches.take(), self.model.take()
        assert (None if segment is None else unpack(segment)) == expected
        self.taken = None if segment is None or expected is None else (segment, expected[1])

    @precondition(lambda self: self.taken is not None)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """The reader stops in the middle of a list and polls instead."""
        assert self.taken is not None
        segment, messages = self.taken
        self.taken = None
        read = data.draw(st.integers(0, len(messages) - 1))
        rest = segment if not read else Segment(segment.origin, tuple(_after(segment, messages[read][0])))
        assert rest.count == len(messages) - read
        self.fetches.put_first(rest)
        self.model.put_first(segment.origin.partition, messages[read:])

    @rule(count=COUNTS, max_bytes=BYTES)
    def gather(self, count: int, max_bytes: int) -> None:
        self.taken = None
        before = self.model.count
        demand = Demand(count, count, max_bytes, deadline=0.0)
        enough = self.fetches.enough(demand)
        waiting = self.fetches.segments
        preview = self.fetches.preview(count, max_bytes)
        assert self.fetches.segments == waiting
        segments = self.fetches.gather(count, max_bytes)
        assert segments == preview
        assert [unpack(segment) for segment in segments] == self.model.gather(count, max_bytes)
        found = sum(segment.count for segment in segments)
        charged = sum(segment.size for segment in segments)
        charged += RUN_OVERHEAD * len({segment.origin.partition for segment in segments})
        assert found <= count
        assert charged <= max_bytes or found == 1
        assert bool(segments) == bool(before)
        if not enough:
            assert found == before  # nothing was held back that a poll could have had

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.fetches.messages == self.model.count
        assert self.fetches.size == self.model.size
        assert self.fetches.busy() == bool(self.ready or self.flying)
        flying = self.flying.partitions if self.flying else ()
        idle = [partition for partition in PARTITIONS if partition not in self.ready and partition not in flying]
        assert [*filter(self.fetches.is_idle, PARTITIONS)] == idle
        touched = self.fetches.touched()
        assert {at for at in PARTITIONS if (at in idle) != (at in self.idle)} <= set(touched)
        self.idle = idle


def _after(segment: Segment, offset: int) -> list[Run]:
    return [part for run in segment.runs if (part := run.after(Position(offset))).count]


@proves("C33", "C108", "K89")
def test_the_read_ahead_follows_the_model() -> None:
    run_state_machine_as_test(FetchesMachine)


def test_the_read_ahead_is_bounded_and_fair() -> None:
    """Without polls that ask for more: bounds hold after every fetch, and every backlog gets its turn."""
    fetches = Fetches(count=10, max_bytes=1000, messages_max=20, bytes_max=2000)
    ends = dict.fromkeys(PARTITIONS, 0)
    served: list[TopicPartition] = []
    for partition in PARTITIONS:
        fetches.ready(partition)
    for _ in range(200):
        while (plan := fetches.plan()) is not None:
            fetches.started(plan)
            fetches.landed(plan.partitions)
            hungry, *others = plan.partitions  # the first one takes all there is room for, as a log serves it
            count = min(plan.count, max(plan.max_bytes // 97, 1))
            batch = seal([bytes(97)] * count, [0] * count)
            fetches.put(Segment(Origin(hungry, Offset(9)), (Run(Offset(ends[hungry]), batch, 0, count),)))
            ends[hungry] += count
            for partition in [*others, hungry]:
                fetches.ready(partition)
            assert fetches.messages <= 20
            assert fetches.size <= 2000
        segment = fetches.take()
        assert segment is not None
        served.append(segment.origin.partition)
    for first in range(0, 198, 3):
        assert set(served[first : first + 3]) == set(PARTITIONS)
