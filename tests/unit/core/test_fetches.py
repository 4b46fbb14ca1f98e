"""The read-ahead: what is fetched next, what is handed out next, where it is cut."""

from __future__ import annotations

from collections.abc import Sequence

import tarry._wire.batch
from tarry._core import fetches as module
from tarry._core.fetches import RUN_OVERHEAD, Demand, Fetches, Plan, cut, pieces
from tarry._wire.batch import seal
from tarry.types import Offset, Origin, Position, Run, Segment, TopicPartition
from tests.marks import rule

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))


def segment(partition: TopicPartition, first: int, *runs: Sequence[int]) -> Segment:
    """Consecutive messages from `first` on, one run per argument, each message with its size."""
    made: list[Run] = []
    for sizes in runs:
        batch = seal([bytes(size) for size in sizes], [0] * len(sizes))
        made.append(Run(Offset(first), batch, 0, batch.count))
        first += len(sizes)
    return Segment(Origin(partition, Offset(99)), tuple(made))


def fetches(
    *,
    count: int = 10,
    max_bytes: int = 1000,
    messages_max: int = 20,
    bytes_max: int = 10_000,
    demand: Demand | None = None,
) -> Fetches:
    machine = Fetches(count=count, max_bytes=max_bytes, messages_max=messages_max, bytes_max=bytes_max)
    machine.demand = demand
    return machine


def spans(segments: Sequence[Segment]) -> list[tuple[int, int, int]]:
    return [(part.origin.partition.partition, part.first, part.last) for part in segments]


def everything(_: Origin) -> bool:
    return True


def nothing(_: Origin) -> bool:
    return False


def taken(machine: Fetches) -> list[tuple[int, int, int]]:
    found: list[Segment] = []
    while (part := machine.take()) is not None:
        found.append(part)
    return spans(found)


@rule("C7")
def test_the_overhead_is_that_of_the_wire() -> None:
    assert module.RUN_OVERHEAD == tarry._wire.batch.RUN_OVERHEAD


def others(partition: TopicPartition) -> str | None:
    """Nobody can be asked for P0."""
    return None if partition == P0 else ""


class TestWhatIsFetched:
    def test_nothing_is_fetched_while_nothing_is_known_to_be_there(self) -> None:
        machine = fetches()
        assert machine.plan() is None
        machine.ready(P1)
        machine.ready(P0)
        machine.drained(P1)
        plan = machine.plan()
        assert plan is not None
        assert plan.partitions == (P0,)

    def test_one_fetch_at_a_time(self) -> None:
        machine = fetches()
        machine.ready(P0)
        machine.ready(P1)
        machine.started(Plan((P0,), 1, 1))
        assert machine.plan() is None
        assert machine.room() is None
        assert [*filter(machine.is_idle, (P0, P1, P2))] == [P2]
        assert set(machine.touched()) == {P0, P1}
        machine.landed([P0])
        assert machine.plan() is not None
        assert [*filter(machine.is_idle, (P0, P1, P2))] == [P0, P2]
        assert (machine.touched(), machine.touched()) == ([P0], [])
        machine.touch(P1)
        assert machine.touched() == [P1]

    def test_who_waits_longest_is_served_first(self) -> None:
        machine = fetches()
        for partition in (P2, P0, P1, P2):
            machine.ready(partition)
        plan = machine.plan(targets_max=2)
        assert plan is not None
        assert plan.partitions == (P2, P0)
        machine.started(plan)
        machine.landed(plan.partitions)
        machine.ready(P0)
        plan = machine.plan(targets_max=2)
        assert plan is not None
        assert plan.partitions == (P1, P0)

    def test_a_fetch_never_brings_more_than_there_is_room_for(self) -> None:
        machine = fetches(count=10, max_bytes=1000, messages_max=14, bytes_max=1900)
        machine.ready(P0)
        machine.put(segment(P0, 0, [100] * 9))
        plan = machine.plan()
        assert plan is not None
        assert (plan.count, plan.max_bytes) == (5, 1000)
        machine.put(segment(P1, 0, [500]))
        assert machine.plan() is None  # room for 4 messages or 500 bytes is not worth a request ...
        machine.take()
        plan = machine.plan()
        assert plan is not None  # ... but for 13 it is
        assert (plan.count, plan.max_bytes) == (10, 1000)

    def test_an_empty_read_ahead_always_has_room(self) -> None:
        machine = fetches(count=10, messages_max=1, max_bytes=1000, bytes_max=1)
        machine.ready(P0)
        plan = machine.plan()
        assert plan is not None
        assert (plan.count, plan.max_bytes) == (1, 1)

    def test_a_waiting_poll_raises_the_bounds_to_what_it_asks_for(self) -> None:
        machine = fetches(messages_max=10, bytes_max=1000)
        machine.ready(P0)
        machine.put(segment(P0, 0, [100] * 10))
        assert machine.plan() is None
        machine.demand = Demand(count=13, min_count=13, max_bytes=5000, deadline=0.0)
        plan = machine.plan()
        assert plan is not None
        assert (plan.count, plan.max_bytes) == (3, 1000)
        assert machine.missing(machine.demand) == (3, 4000)

    @rule("K89")
    def test_the_framing_of_each_partition_is_no_bytes_that_a_poll_misses(self) -> None:
        machine = fetches()
        demand = Demand(count=100, min_count=100, max_bytes=5000, deadline=0.0)
        assert machine.missing(demand) == (100, 5000)
        machine.put(segment(P0, 0, [1000]))
        assert machine.missing(demand) == (99, 4000)
        machine.put(segment(P1, 0, [1000]))
        machine.put(segment(P2, 0, [1000]))
        assert machine.missing(demand) == (97, 2000 - 2 * RUN_OVERHEAD)

    def test_what_is_void_is_neither_known_nor_kept(self) -> None:
        machine = fetches()
        machine.ready(P0)
        machine.put(segment(P0, 0, [10, 10]))
        machine.put(segment(P1, 0, [10]))
        machine.void(P0)
        machine.void(P2)
        assert (machine.messages, machine.size) == (1, 10)
        assert machine.plan() is None
        assert taken(machine) == [(1, 0, 0)]

    def test_it_is_busy_while_something_may_still_come(self) -> None:
        machine = fetches()
        seen = [machine.busy()]
        machine.ready(P0)
        seen.append(machine.busy())
        machine.started(Plan((P0,), 1, 1))
        seen.append(machine.busy())
        machine.landed([P0])
        seen.append(machine.busy())
        assert seen == [False, True, True, False]

    def test_what_is_ready_where_nobody_can_be_asked_is_not_on_its_way(self) -> None:
        machine = fetches()
        machine.ready(P0)
        assert not machine.busy(others)
        machine.ready(P1)
        assert machine.busy(others)
        machine.doubted(P0, Plan((P0,), 1, 1))
        assert not machine.busy(others), "it comes before all others, also while nobody can be asked for it"


class TestWhatIsHandedOut:
    def test_partitions_take_turns_segment_by_segment(self) -> None:
        machine = fetches()
        for first in (0, 2, 4):
            machine.put(segment(P0, first, [10, 10]))
        machine.put(segment(P1, 0, [10]))
        machine.put(segment(P1, 1, [10]))
        assert taken(machine) == [(0, 0, 1), (1, 0, 0), (0, 2, 3), (1, 1, 1), (0, 4, 5)]
        assert (machine.messages, machine.size) == (0, 0)

    def test_what_is_given_back_comes_next(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 0, [10, 10]))
        machine.put(segment(P0, 2, [10]))
        machine.put(segment(P1, 0, [10]))
        first = machine.take()
        assert first is not None
        rest = first.after(Position(1))
        assert rest is not None
        machine.put_first(rest)
        assert (machine.messages, machine.size) == (3, 30)
        assert taken(machine) == [(0, 1, 1), (1, 0, 0), (0, 2, 2)]

    def test_a_poll_takes_exactly_what_fits(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 0, [100, 100], [100, 100]))
        machine.put(segment(P1, 0, [100, 100, 100]))
        parts = machine.gather(count=100, max_bytes=2 * RUN_OVERHEAD + 600)
        assert spans(parts) == [(0, 0, 3), (1, 0, 1)]
        assert spans(machine.gather(count=100, max_bytes=10_000)) == [(1, 2, 2)]

    def test_a_preview_says_what_a_poll_would_take_and_takes_nothing(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 0, [100, 100], [100, 100]))
        machine.put(segment(P1, 0, [100, 100, 100]))
        for _ in range(2):
            assert spans(machine.preview(count=100, max_bytes=2 * RUN_OVERHEAD + 600)) == [(0, 0, 3), (1, 0, 1)]
            assert (machine.messages, machine.size) == (7, 700)
        assert spans(machine.gather(count=100, max_bytes=10_000)) == [(0, 0, 3), (1, 0, 2)]

    def test_who_takes_after_a_preview_gets_what_would_have_come(self) -> None:
        machine = fetches()
        machine.put(segment(P1, 0, [1, 700]))
        machine.put(segment(P0, 0, [1]))
        assert spans(machine.preview(count=2, max_bytes=300)) == [(1, 0, 0)]
        assert spans(machine.gather(count=2, max_bytes=300)) == [(1, 0, 0)]
        assert spans(machine.gather(count=2, max_bytes=300)) == [(0, 0, 0)]

    def test_a_poll_takes_at_most_its_count(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 0, [1, 1, 1]))
        machine.put(segment(P1, 0, [1, 1, 1]))
        assert spans(machine.gather(count=4, max_bytes=1000)) == [(0, 0, 2), (1, 0, 0)]
        assert spans(machine.gather(count=4, max_bytes=1000)) == [(1, 1, 2)]
        assert machine.gather(count=4, max_bytes=1000) == []

    def test_a_partition_pays_its_overhead_once(self) -> None:
        machine = fetches()
        for first in range(3):
            machine.put(segment(P0, first, [100]))
        assert spans(machine.gather(count=9, max_bytes=RUN_OVERHEAD + 300)) == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]

    @rule("C108", "K22")
    def test_a_larger_first_message_comes_alone_and_does_not_starve(self) -> None:
        machine = fetches()
        machine.put(segment(P1, 0, [100, 100]))
        machine.put(segment(P0, 0, [5000, 100]))
        machine.put(segment(P1, 2, [100]))
        assert spans(machine.gather(count=9, max_bytes=1000)) == [(1, 0, 1)]
        assert spans(machine.gather(count=9, max_bytes=1000)) == [(0, 0, 0)]  # it did not fit; now it is first, alone
        assert spans(machine.gather(count=9, max_bytes=1000)) == [(1, 2, 2), (0, 1, 1)]

    @rule("K89")
    def test_a_poll_is_satisfied_by_messages_or_by_bytes(self) -> None:
        machine = fetches()
        demand = Demand(count=100, min_count=3, max_bytes=RUN_OVERHEAD + 500, deadline=0.0)
        assert not machine.enough(demand)
        machine.put(segment(P0, 0, [100, 100]))
        assert not machine.enough(demand)
        machine.put(segment(P0, 2, [100]))
        assert machine.enough(demand)  # by messages
        machine.take()
        machine.put(segment(P0, 3, [400]))
        assert machine.messages == 2
        assert machine.enough(demand)  # by bytes


class TestCutting:
    def test_a_segment_is_cut_across_its_runs(self) -> None:
        whole = segment(P0, 5, [10, 10, 10], [10, 10])
        head, rest = cut(whole, 4, 1000, at_least=0)
        assert head is not None
        assert rest is not None
        assert (spans([head, rest]), len(head.runs), len(rest.runs)) == ([(0, 5, 8), (0, 9, 9)], 2, 1)
        assert cut(whole, 100, 50, at_least=0) == (whole, None)
        assert cut(whole, 100, 9, at_least=0) == (None, whole)
        assert cut(whole, 0, 1000, at_least=0) == (None, whole)

    def test_at_least_one_message_passes_whatever_its_size(self) -> None:
        head, rest = cut(segment(P0, 5, [10, 10]), 4, -3, at_least=1)
        assert head is not None
        assert rest is not None
        assert spans([head, rest]) == [(0, 5, 5), (0, 6, 6)]

    @rule("C38")
    def test_what_lies_in_front_of_a_position_is_left_out(self) -> None:
        whole = segment(P0, 5, [10, 10, 10], [10, 10])
        assert whole.after(Position(0)) is whole
        assert whole.after(Position(5)) is whole
        for position in range(6, 10):
            part = whole.after(Position(position))
            assert part is not None
            assert (part.first, part.last, part.size) == (position, 9, 10 * (10 - position))
        assert whole.after(Position(10)) is None

    @rule("K91")
    def test_pieces_are_fit_to_be_decoded_at_once(self) -> None:
        whole = segment(P0, 0, [100] * 7, [900], [100] * 3)
        parts = pieces(whole, 300)
        assert spans(parts) == [(0, 0, 2), (0, 3, 5), (0, 6, 6), (0, 7, 7), (0, 8, 10)]


class TestCommittingFetches:
    @rule("C59")
    def test_one_starts_only_while_a_reader_waits_and_nothing_is_here(self) -> None:
        machine = fetches()
        machine.ready(P0)
        assert machine.plan_committing() is None
        machine.is_awaited = True
        assert machine.plan_committing() == Plan((P0,), 10, 1000)
        machine.put(segment(P1, 0, [5]))
        assert machine.plan_committing() is None

    @rule("C110", "C59", "K01")
    def test_for_a_read_that_ended_at_a_dead_end_it_brings_one_message(self) -> None:
        machine = fetches()
        machine.ready(P0)
        machine.is_tried = True
        assert machine.plan_committing() == Plan((P0,), 1, 1000)
        machine.is_awaited = True
        assert machine.plan_committing() == Plan((P0,), 10, 1000)
        machine.is_awaited = False
        machine.put(segment(P1, 0, [5]))
        assert machine.plan_committing() is None

    @rule("C59", "C82")
    def test_one_is_out_at_a_time_and_names_the_longest_unserved_partition(self) -> None:
        machine = fetches()
        machine.is_awaited = True
        for partition in (P1, P0, P2):
            machine.ready(partition)
        plan = machine.plan_committing()
        assert plan is not None
        assert plan.partitions == (P1,)
        machine.started(Plan((P1,), 1, 1))
        assert machine.plan_committing() is None
        machine.landed([P1])
        machine.ready(P1)
        following = machine.plan_committing()
        assert following is not None
        assert following.partitions == (P0,)

    @rule("C59")
    def test_for_a_poll_it_brings_what_the_poll_still_takes(self) -> None:
        machine = fetches(demand=Demand(8, 6, 1000, deadline=1.0))
        machine.ready(P0)
        machine.put(segment(P1, 0, [100, 100]))
        assert machine.plan_committing() == Plan((P0,), 6, 1000 - 200 - RUN_OVERHEAD)
        machine.put(segment(P1, 2, [1, 1, 1, 1]))
        assert machine.plan_committing() is None  # enough messages
        machine.demand = Demand(20, 20, 200 + 4 + RUN_OVERHEAD, deadline=1.0)
        assert machine.plan_committing() is None  # enough bytes
        machine.demand = Demand(20, 20, 1000, deadline=1.0)
        assert machine.plan_committing() is not None
        machine.demand.over = True
        assert machine.plan_committing() is None

    @rule("K01", "C93")
    def test_after_a_fetch_of_unknown_fate_its_partition_comes_before_all_others(self) -> None:
        machine = fetches()
        machine.is_awaited = True
        machine.ready(P1)
        machine.doubted(P0, Plan((P0,), 5, 500))
        first = machine.plan_committing()
        assert first is not None
        assert first.partitions == (P0,)
        machine.settled(P0)
        following = machine.plan_committing()
        assert following is not None
        assert following.partitions == (P1,)
        machine.doubted(P2, Plan((P2,), 5, 500))
        machine.void(P2)
        last = machine.plan_committing()
        assert last is not None
        assert last.partitions == (P1,)

    @rule("K01", "C93")
    def test_a_fetch_of_unknown_fate_is_made_again_as_large_as_it_was(self) -> None:
        """A smaller one would leave something behind that the log counts as read, beside the batch that follows."""
        machine = fetches()
        machine.doubted(P0, Plan((P0,), 8, 800))
        machine.demand = Demand(2, 1, 200, deadline=1.0)
        assert machine.plan_committing() == Plan((P0,), 8, 800)
        machine.set_aside(P0)
        machine.bring_back(P0)
        assert machine.plan_committing() == Plan((P0,), 8, 800)
        machine.settled(P0)
        machine.ready(P0)
        assert machine.plan_committing() == Plan((P0,), 2, 200)

    def test_what_is_buffered_can_be_looked_at(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 0, [5]))
        machine.put(segment(P1, 3, [5, 5]))
        assert spans(machine.segments) == [(0, 0, 0), (1, 3, 4)]
        assert machine.messages == 3


@rule("C32")
def test_a_segment_is_cut_behind_the_message_in_hand() -> None:
    whole = segment(P0, 10, [1, 1, 1], [1, 1])
    assert [spans([whole.up_to(Offset(offset))]) for offset in (10, 12, 13, 14)] == [
        [(0, 10, 10)],
        [(0, 10, 12)],
        [(0, 10, 13)],
        [(0, 10, 14)],
    ]
    assert [run.count for run in whole.up_to(Offset(12)).runs] == [3]


def test_a_segment_is_split_after_so_many_messages() -> None:
    whole = segment(P0, 10, [1, 1, 1], [1, 1])
    for count in range(1, 5):
        head, rest = whole.split(count)
        assert rest is not None
        assert spans([head, rest]) == [(0, 10, 9 + count), (0, 10 + count, 14)]
    assert whole.split(5) == whole.split(1 << 20) == (whole, None)


class TestLeaders:
    """Lanes: partitions 0 and 2 are served by "a", 1 and 3 by "b"."""

    @staticmethod
    def lane(partition: TopicPartition) -> str:
        return "ab"[partition.partition % 2]

    @rule("C82")
    def test_each_is_asked_side_by_side_with_the_others(self) -> None:
        machine = fetches()
        for partition in (P1, P0, P2):
            machine.ready(partition)
        first = machine.plan(1000, self.lane, lanes=2)
        assert first is not None
        assert (first.lane, first.partitions) == ("b", (P1,))
        machine.started(first)
        second = machine.plan(1000, self.lane, lanes=2)
        assert second is not None
        assert (second.lane, second.partitions) == ("a", (P0, P2))
        machine.started(second)
        machine.ready(P3)
        assert machine.plan(1000, self.lane, lanes=2) is None  # one fetch at a time to each
        machine.landed(first.partitions)
        assert machine.flights == [second]
        third = machine.plan(1000, self.lane, lanes=2)
        assert third is not None
        assert third.partitions == (P3,)

    def test_who_cannot_be_asked_keeps_nobody_waiting(self) -> None:
        machine = fetches()
        machine.ready(P0)
        machine.ready(P1)
        plan = machine.plan(1000, lambda partition: None if partition == P0 else "b")
        assert plan is not None
        assert plan.partitions == (P1,)
        machine.is_awaited = True
        assert machine.plan_committing(lambda partition: None if partition == P0 else "b") == Plan((P1,), 10, 1000, "b")
        assert machine.plan_committing(lambda _: None) is None

    @rule("K23")
    def test_what_is_out_is_reserved_and_leaves_room_for_the_others(self) -> None:
        machine = fetches(count=10, max_bytes=1000, messages_max=20, bytes_max=2000)
        plans: list[Plan] = []
        for number in range(12):
            machine.ready(TopicPartition("t", number))
        while (plan := machine.plan(1, lambda partition: partition, lanes=12)) is not None:
            plans.append(plan)
            machine.started(plan)
        assert [plan.count for plan in plans] == [10, 5, 3, 1]
        assert [plan.max_bytes for plan in plans] == [1000, 500, 250, 125]  # less would not be worth a request

    def test_the_first_of_several_takes_half_at_most(self) -> None:
        machine = fetches(count=10, max_bytes=1000, messages_max=10, bytes_max=1000)
        machine.ready(P0)
        machine.ready(P1)
        first = machine.plan(1000, self.lane, lanes=2)
        assert first is not None
        assert (first.count, first.max_bytes) == (5, 500)
        machine.started(first)
        assert machine.plan(1000, self.lane, lanes=2) == Plan((P1,), 3, 250, "b")


class TestPausing:
    @rule("K48")
    def test_what_is_set_aside_is_not_taken_and_comes_back_in_order(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 0, [5, 5]))
        machine.put(segment(P1, 0, [5]))
        size = machine.size
        machine.set_aside(P0)
        machine.set_aside(P0)
        machine.put(segment(P0, 2, [5]))  # a fetch that was out
        assert machine.messages == 1
        assert spans(machine.segments) == [(1, 0, 0), (0, 0, 1), (0, 2, 2)]
        assert taken(machine) == [(1, 0, 0)]
        assert [machine.buffers(partition) for partition in (P0, P1, P2)] == [True, False, False]
        assert (machine.messages, machine.size) == (0, 0)
        machine.bring_back(P0)
        assert machine.messages == 3
        assert machine.size == size
        assert taken(machine) == [(0, 0, 1), (0, 2, 2)]

    @rule("K48")
    def test_what_is_given_back_of_it_comes_first(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 2, [5]))
        machine.set_aside(P0)
        machine.put_first(segment(P0, 1, [5]))
        assert taken(machine) == []
        machine.bring_back(P0)
        assert taken(machine) == [(0, 1, 1), (0, 2, 2)]

    @rule("K48")
    def test_nothing_more_is_fetched_until_it_goes_on(self) -> None:
        machine = fetches()
        machine.ready(P0)
        machine.set_aside(P0)
        machine.ready(P0)
        assert machine.plan() is None
        assert not machine.busy()
        machine.bring_back(P0)
        machine.ready(P0)
        plan = machine.plan()
        assert plan is not None
        assert plan.partitions == (P0,)

    @rule("K48", "C60")
    def test_a_doubt_waits_too(self) -> None:
        machine = fetches()
        machine.is_awaited = True
        machine.doubted(P0, Plan((P0,), 5, 500))
        machine.set_aside(P0)
        machine.ready(P1)
        assert machine.plan_committing() == Plan((P1,), 10, 1000)
        machine.bring_back(P0)
        assert machine.plan_committing() == Plan((P0,), 10, 1000)
        machine.set_aside(P0)
        machine.settled(P0)
        machine.bring_back(P0)
        assert machine.plan_committing() == Plan((P1,), 10, 1000)
        machine.set_aside(P0)
        machine.doubted(P0, Plan((P0,), 5, 500))
        machine.bring_back(P0)
        assert machine.plan_committing() == Plan((P0,), 10, 1000)

    @rule("K48", "C33")
    def test_what_was_committed_and_set_aside_is_dropped_once_it_was_brought_back(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 3, [1, 1]))
        machine.put(segment(P0, 5, [1]))
        assert machine.stranded(everything) is None
        machine.set_aside(P0)
        assert machine.stranded(everything) == P0
        assert machine.stranded(nothing) is None
        assert machine.strand(P0, nothing) is None
        assert machine.strand(P0, everything) == 3
        assert machine.stranded(everything) is None
        assert machine.segments == []
        machine.bring_back(P0)
        assert machine.strand(P0, everything) is None

    def test_a_doubt_that_is_set_aside_is_stranded_too(self) -> None:
        machine = fetches()
        machine.set_aside(P0)
        machine.doubted(P0, Plan((P0,), 2, 10))
        assert machine.stranded(everything) == P0
        assert machine.strand(P0, everything) is None
        assert machine.stranded(everything) is None

    def test_what_cannot_be_brought_back_stays(self) -> None:
        machine = fetches()
        machine.put(segment(P0, 3, [1]))
        machine.set_aside(P0)
        machine.leave(P0)
        machine.leave(P1)
        assert machine.stranded(everything) is None
        machine.bring_back(P0)
        assert [part.first for part in machine.segments] == [3]

    def test_a_seek_drops_what_is_set_aside_and_the_pause_goes_on(self) -> None:
        machine = fetches()
        machine.set_aside(P0)
        machine.put(segment(P0, 0, [5]))
        machine.void(P0)
        machine.put(segment(P0, 7, [5]))
        assert taken(machine) == []
        machine.bring_back(P0)
        assert taken(machine) == [(0, 7, 7)]

    def test_who_was_not_set_aside_is_not_brought_back(self) -> None:
        machine = fetches()
        machine.bring_back(P0)
        assert not machine.busy()
