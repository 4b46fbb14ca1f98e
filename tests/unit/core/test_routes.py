"""Which partition is led by whom: groups, stale routes, and that a refresh without news changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tarry._core.routes import Routes
from tarry.errors import (
    CapacityExceeded,
    LogUnavailable,
    NotAccepted,
    StaleAssignment,
    TarryError,
    TopicNotFound,
)
from tarry.types import TopicPartition
from tests.marks import rule as proves
from tests.unit.machines import HALF

PARTITIONS = tuple(TopicPartition("t", number) for number in range(8))
P0, P1, P2, P3, *_ = PARTITIONS
LEADERS = ("a", "b", "c")


def grouped(routes: Routes) -> list[tuple[str, list[int]]]:
    return [(group.leader, [at.partition for at in group.partitions]) for group in routes.groups]


def routed(*leaders: str, targets_max: int = 1000) -> Routes:
    """Partitions 0, 1, 2... led by these."""
    routes = Routes(targets_max)
    held = [TopicPartition("t", number) for number in range(len(leaders))]
    routes.assign(held)
    routes.found(dict(zip(held, leaders, strict=True)))
    return routes


class TestGroups:
    def test_nothing_is_known_before_the_first_lookup(self) -> None:
        routes = Routes()
        assert not routes.assign([P0, P1])
        assert (routes.stale(), routes.groups, routes.leader(P0)) == ([P0, P1], (), None)

    @proves("C87")
    def test_partitions_are_grouped_by_leader_in_their_own_order(self) -> None:
        assert grouped(routed("b", "a", "b", "a")) == [("b", [0, 2]), ("a", [1, 3])]

    @proves("C80")
    def test_a_large_group_is_split(self) -> None:
        assert grouped(routed("a", "b", "a", "a", "a", "a", targets_max=2)) == [
            ("a", [0, 2]),
            ("a", [3, 4]),
            ("a", [5]),
            ("b", [1]),
        ]
        thousands = routed(*["a"] * 2001)
        assert [len(group.partitions) for group in thousands.groups] == [1000, 1000, 1]

    @proves("C77")
    def test_a_moved_partition_makes_every_group_anew_and_keeps_its_place_in_the_order(self) -> None:
        routes = routed("a", "b", "c", "b")
        before = routes.groups
        assert routes.found({P0: "b"})
        assert grouped(routes) == [("b", [0, 1, 3]), ("c", [2])]
        assert not set(before) & set(routes.groups)

    @proves("C77")
    def test_so_does_a_changed_assignment(self) -> None:
        routes = routed("a", "b")
        before = routes.groups
        assert routes.assign([P0])
        assert grouped(routes) == [("a", [0])]
        assert not set(before) & set(routes.groups)
        assert not routes.assign([P0, P3])  # its leader is not known yet
        assert routes.stale() == [P3]
        assert routes.found({P3: "a"})
        assert grouped(routes) == [("a", [0, 3])]

    @proves("C87")
    def test_a_refresh_that_changes_no_route_keeps_the_groups(self) -> None:
        routes = routed("a", "b", "a", "b")
        before = routes.groups
        routes.refused("b", [P3, P1], NotAccepted("no"))
        assert not routes.found({P3: "b"})
        assert not routes.found({P1: "b"})
        assert routes.groups is before
        assert routes.stale() == []


class TestDoubt:
    @proves("C85")
    @pytest.mark.parametrize("error", [NotAccepted("no"), LogUnavailable("gone")])
    def test_a_refusal_for_routing_makes_what_was_named_stale(self, error: TarryError) -> None:
        routes = routed("a", "a", "b", "a")
        assert routes.refused("a", [P3, P0], error) == [P3, P0]
        assert routes.stale() == [P0, P3]
        assert [routes.leader(at) for at in (P0, P1, P2, P3)] == [None, "a", "b", None]

    @proves("C85")
    @pytest.mark.parametrize("error", [CapacityExceeded("full"), StaleAssignment("fenced"), TopicNotFound("gone")])
    def test_no_other_refusal_does(self, error: TarryError) -> None:
        routes = routed("a", "a")
        assert routes.refused("a", [P0, P1], error) == []
        assert routes.stale() == []

    def test_a_former_leader_says_nothing_about_the_present_one(self) -> None:
        routes = routed("a")
        assert routes.refused("b", [P0], NotAccepted("no")) == []
        assert routes.leader(P0) == "a"

    def test_what_is_not_held_has_no_route(self) -> None:
        routes = routed("a")
        assert not routes.found({P1: "a"})
        assert routes.leader(P1) is None
        assert routes.refused("a", [P1], NotAccepted("no")) == []
        assert routes.stale() == []


class RoutesMachine(RuleBasedStateMachine):
    """Leaders move, partitions come and go; the model keeps a list of pairs and groups it from scratch."""

    @initialize(targets_max=st.integers(1, 3))
    def begin(self, targets_max: int) -> None:
        self.targets_max = targets_max
        self.routes = Routes(targets_max)
        self.known: list[tuple[TopicPartition, str | None]] = []
        self.doubted: set[TopicPartition] = set()
        self.before = self.routes.groups

    @rule(held=st.lists(st.sampled_from(PARTITIONS), unique=True))
    def assigned(self, held: list[TopicPartition]) -> None:
        old = dict(self.known)
        self.doubted = {at for at in held if at in self.doubted or at not in old}
        self.known = [(at, old.get(at)) for at in held]
        self.settle(self.routes.assign(held))

    @rule(answers=st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from(LEADERS)))
    def looked_up(self, answers: dict[TopicPartition, str]) -> None:
        self.known = [(at, answers.get(at, leader)) for at, leader in self.known]
        self.doubted -= set(answers)
        self.settle(self.routes.found(answers))

    @rule(
        leader=st.sampled_from(LEADERS),
        named=st.lists(st.sampled_from(PARTITIONS), unique=True),
        error=st.sampled_from([NotAccepted("no"), LogUnavailable("no"), CapacityExceeded("no")]),
    )
    def refused(self, leader: str, named: list[TopicPartition], error: TarryError) -> None:
        led = [at for at in named if (at, leader) in self.known and at not in self.doubted]
        expected = [] if isinstance(error, CapacityExceeded) else led
        assert self.routes.refused(leader, named, error) == expected
        self.doubted |= set(expected)

    def settle(self, has_changed: bool) -> None:
        """The groups are the same objects, or other ones altogether."""
        before, after = self.before, self.routes.groups
        self.before = after
        contents = [[(group.leader, group.partitions) for group in groups] for groups in (before, after)]
        assert has_changed == (contents[0] != contents[1])
        assert list(after) == list(before) if not has_changed else not set(before) & set(after)

    @invariant()
    def groups_are_those_of_the_model(self) -> None:
        rows: list[tuple[str, list[TopicPartition]]] = []
        for leader in dict.fromkeys(leader for _, leader in self.known if leader is not None):
            for at, led_by in self.known:
                if led_by != leader:
                    continue
                if not rows or rows[-1][0] != leader or len(rows[-1][1]) == self.targets_max:
                    rows.append((leader, []))
                rows[-1][1].append(at)
        assert [(group.leader, list(group.partitions)) for group in self.routes.groups] == rows

    @invariant()
    def doubts_are_those_of_the_model(self) -> None:
        assert self.routes.stale() == [at for at, _ in self.known if at in self.doubted]
        leaders = dict(self.known)
        for at in PARTITIONS:
            assert self.routes.leader(at) == (None if at in self.doubted else leaders.get(at))


@proves("C77", "C80", "C87")
def test_the_routes_follow_the_model() -> None:
    run_state_machine_as_test(RoutesMachine, settings=HALF)
