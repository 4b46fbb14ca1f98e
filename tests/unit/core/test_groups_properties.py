"""One group against a model that plans nothing: it looks at everything after each step.

The model does not say which partition moves. It says which ones may move, how many must be asked back, and what every
member, reader and deadline looks like afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry._core.groups import Assigned, Change, Group, Member
from tarry.errors import NotAccepted, NotAMember, StaleAssignment
from tarry.types import HistoryId, Ownership, TopicPartition
from tests.marks import rule as proves
from tests.unit.machines import HALF

SESSION, REBALANCE = 6.0, 4.0
TOPICS = ("orders", "users")


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.group = Group("billing", session_timeout=SESSION, rebalance_timeout=REBALANCE)
        self.group.join(Member("m0", None, 0.0), TOPICS, {})
        self.group.leave("m0", 0.0)
        self.generation = 2
        self.partitions: dict[HistoryId, TopicPartition] = {}
        self.ids = 0
        self.joins = 0
        self.statics: dict[str, str | None] = {}  # the members, in order
        self.touched: dict[str, float] = {}
        self.asked: dict[HistoryId, float] = {}  # and when it is taken
        self.highest = 0
        self.old: set[tuple[HistoryId, Ownership]] = set()  # ownerships of the past

    # -- what can be seen

    def held(self) -> dict[HistoryId, tuple[str, Ownership]]:
        owners = ((key, self.group.owner(key)) for key in self.partitions)
        return {key: (owner.id, owner.owned[key]) for key, owner in owners if owner is not None}

    def readable(self) -> set[tuple[str, HistoryId, Ownership]]:
        return {(owner, key, number) for key, (owner, number) in self.held().items() if key not in self.asked}

    def assignments(self) -> dict[str, Assigned]:
        return {name: self.group.assignment(name) for name in self.statics}

    # -- one step, and what must hold after it

    def step(self, act: Callable[[], Change], may_move: Iterable[HistoryId] = (), gone: Iterable[str] = ()) -> None:
        """Only `may_move`, and what nobody owned, may change hands."""
        held, readable, seen = self.held(), self.readable(), self.assignments()
        before = dict(self.asked)
        change = act()
        assert [member.id for member in change.gone] == list(gone)
        self.check_moves(held, set(may_move))
        self.check_asked(before)
        stopped = readable - self.readable()
        assert sorted(change.stopped) == sorted((name, key) for name, key, _ in stopped)
        self.check_seen(seen, change)
        assert bool(change) == bool(change.members or change.gone)

    def check_moves(self, before: dict[HistoryId, tuple[str, Ownership]], may_move: set[HistoryId]) -> None:
        """Nothing else changed hands, and each change has a number above all earlier ones."""
        now = self.held()
        fresh: list[int] = []
        for key, (owner, number) in now.items():
            if before.get(key) != (owner, number):
                assert key in may_move or key not in before
                fresh.append(number)
        assert len(set(fresh)) == len(fresh)
        assert all(number > self.highest for number in fresh)
        self.highest = max([self.highest, *fresh])
        self.old |= {(key, number) for key, (_, number) in before.items() if now.get(key, ("", 0))[1] != number}

    def check_asked(self, before: dict[HistoryId, float]) -> None:
        """As many are asked back as have to move, and no more; the others keep the time at which they were asked."""
        members = self.group.members
        asked = {key: deadline for member in members for key, deadline in member.revoking.items()}
        assert all(key in member.owned for member in members for key in member.revoking)
        assert asked == {key: before.get(key, self.now + REBALANCE) for key in asked}
        self.asked = asked
        sizes = sorted((len(member.owned) for member in members), reverse=True)
        share, larger = divmod(len(self.partitions), max(len(sizes), 1))
        assert len(asked) == sum(max(size - share - (place < larger), 0) for place, size in enumerate(sizes))
        assert all(len(member.owned) - len(member.revoking) <= share + (larger > 0) for member in members)

    def check_seen(self, before: dict[str, Assigned], change: Change) -> None:
        """Exactly those whose assignment looks different have a new version."""
        other: set[str] = set()
        for name, now in self.assignments().items():
            old = before.get(name)
            is_other = old is None or old[2:] != now[2:]
            assert old is None or now.version == old.version + is_other
            other |= {name} if is_other else set()
        assert {member.id for member in change.members} == other

    # -- members come and go

    @rule(static=st.sampled_from((None, None, "east", "west")))
    def join(self, static: str | None) -> None:
        self.joins += 1
        name = f"m{self.joins}"
        if static is not None and static in self.statics.values():
            with pytest.raises(NotAccepted, match=static):
                self.group.join(Member(name, static, self.now), TOPICS, self.partitions)
            return

        def act() -> Change:
            self.statics[name], self.touched[name] = static, self.now
            return self.group.join(Member(name, static, self.now), TOPICS, self.partitions)

        self.step(act)
        self.generation += 1

    @precondition(lambda self: self.statics)
    @rule()
    def join_for_other_topics(self) -> None:
        with pytest.raises(NotAccepted, match="reads orders, users"):
            self.group.join(Member("stranger", None, self.now), ("orders",), self.partitions)

    @precondition(lambda self: self.statics)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.statics)))
        owned = [key for key, (owner, _) in self.held().items() if owner == name]

        def act() -> Change:
            self.forget(name)
            return self.group.leave(name, self.now)

        self.step(act, owned, [name])
        self.generation += 1

    def forget(self, name: str) -> None:
        del self.statics[name], self.touched[name]

    @precondition(lambda self: self.statics)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        for name in data.draw(st.lists(st.sampled_from(list(self.statics)), max_size=6)):
            self.group.touch(name, self.now)
            self.touched[name] = self.now

    @rule(seconds=st.sampled_from((0.0, 1.0, 2.0, 3.0)), is_looking=st.booleans())
    def time_passes(self, seconds: float, is_looking: bool) -> None:
        self.now += seconds
        deadline = self.group.next_deadline()
        due = deadline is not None and deadline <= self.now
        if not (is_looking or due):
            return
        lapsed = [name for name, touched in self.touched.items() if touched + SESSION <= self.now]
        overdue = [key for key, deadline in self.asked.items() if deadline <= self.now]
        orphans = [key for key, (owner, _) in self.held().items() if owner in lapsed]

        def act() -> Change:
            for name in lapsed:
                self.forget(name)
            return self.group.expire(self.now)

        self.step(act, [*overdue, *orphans], lapsed)
        self.generation += bool(lapsed)
        assert all(deadline > self.now for deadline in self.asked.values())
        assert not (due and self.statics) or self.group.next_deadline() == self.first_deadline()

    def first_deadline(self) -> float:
        return min([*(touched + SESSION for touched in self.touched.values()), *self.asked.values()])

    # -- partitions come and go

    @precondition(lambda self: self.statics and self.partitions)
    @rule(data=st.data(), how=st.sampled_from(("asked", "asked", "some", "all")))
    def release(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(list(self.statics)))
        owned = [key for key, (owner, _) in self.held().items() if owner == name]
        given = {
            "asked": lambda: [key for key in owned if key in self.asked],
            "some": lambda: data.draw(st.lists(st.sampled_from(list(self.partitions)), max_size=6)),
            "all": lambda: owned,
        }[how]()
        self.step(lambda: self.group.release(name, given, self.now), set(given) & set(owned))
        if how == "asked":
            assert not set(given) & {key for key, (owner, _) in self.held().items() if owner == name}

    @rule(topic=st.sampled_from(TOPICS), number=st.integers(min_value=0, max_value=5))
    def topic_changes(self, topic: str, number: int) -> None:
        """It grows, or it is deleted and created again."""
        known = {key: place for key, place in self.partitions.items() if place.topic == topic}
        kept = known if number >= len(known) else {}
        come = range(len(kept), number)
        new = {HistoryId(self.ids + 1 + place): TopicPartition(topic, index) for place, index in enumerate(come)}
        self.ids += len(come)
        others = {key: place for key, place in self.partitions.items() if place.topic != topic}

        def act() -> Change:
            self.partitions = others | kept | new
            return self.group.repartition(self.partitions, self.now)

        self.step(act)

    # -- around

    @rule(seconds=st.sampled_from((0.0, 2.0, 100.0)))
    def restart(self, seconds: float) -> None:
        """The same again, with whole timeouts."""
        self.now += seconds
        before = self.assignments()
        again = Group("billing", session_timeout=SESSION, rebalance_timeout=REBALANCE)
        change = again.resume(self.group.saved(), self.partitions, self.now)
        self.group = again
        assert not change
        assert self.assignments() == before
        self.touched = dict.fromkeys(self.touched, self.now)
        self.asked = dict.fromkeys(self.asked, self.now + REBALANCE)

    @rule(data=st.data(), storing=st.booleans())
    def fence(self, data: st.DataObject, storing: bool) -> None:
        """Of all ownerships there ever were one may be read under, or stored under, or none."""
        held = self.held()
        stale = data.draw(st.lists(st.sampled_from(sorted(self.old)), max_size=3)) if self.old else []
        for name in [*self.statics, "m0"]:
            for key, number in [*stale, *((key, number) for key, (_, number) in held.items())]:
                is_owner = held.get(key) == (name, number)
                if is_owner and (storing or key not in self.asked):
                    self.group.fence(name, key, number, storing=storing)
                    continue
                with pytest.raises(NotAMember if name == "m0" else StaleAssignment):
                    self.group.fence(name, key, number, storing=storing)

    @invariant()
    def agrees(self) -> None:
        assert [(member.id, member.static) for member in self.group.members] == list(self.statics.items())
        assert self.group.generation == self.generation
        held = self.held()
        assert set(held) == (set(self.partitions) if self.statics else set())
        owned = [(member.id, key, number) for member in self.group.members for key, number in member.owned.items()]
        assert sorted(owned) == sorted((owner, key, number) for key, (owner, number) in held.items())

    @invariant()
    def is_due_in_time(self) -> None:
        deadline = self.group.next_deadline()
        assert (deadline is None) == (not self.statics)
        assert deadline is None or deadline <= self.first_deadline()

    @invariant()
    def shows_the_topics(self) -> None:
        counts: dict[str, int] = {}
        for topic, _ in self.partitions.values():
            counts[topic] = counts.get(topic, 0) + 1
        for name in self.statics:
            assert self.group.assignment(name).topics == counts

    @invariant()
    def settles_balanced(self) -> None:
        sizes = [len(member.owned) for member in self.group.members]
        assert self.asked or max(sizes, default=0) - min(sizes, default=0) <= 1


@pytest.mark.slow
@proves("S66", "S68", "S71")
def test_agrees_with_a_model_that_looks_at_everything():
    run_state_machine_as_test(GroupMachine, settings=HALF)
