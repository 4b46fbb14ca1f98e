"""Groups as people see and set them, over a view and machines made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tarry import abc
from tarry._core.groups import Group, Member
from tarry.brokers.local.describing import GroupDesk
from tarry.brokers.local.view import Partition, View
from tarry.config import TopicOptions
from tarry.errors import GroupNotFound, LogFull, NotAccepted, OffsetOutOfRange, TopicNotFound
from tarry.types import GroupInfo, GroupOffset, MemberInfo, Offset, Position, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import Ask, ManualClock

P0, P1, U0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("users", 0)


class Rig:
    """Two partitions of `orders` with messages 10 to 99, one of `users` with none; jobs that wait for the test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.view = View()
        for name, ids, log_end in (("orders", (1, 2), 100), ("users", (3,), 0)):
            parts = tuple(
                abc.PartitionState(
                    abc.PartitionId(key), number, Position(min(10, log_end)), Position(log_end), log_end, {}
                )
                for number, key in enumerate(ids)
            )
            self.view.add(abc.TopicState(name, TopicOptions(partitions=len(ids)), parts))
        self.groups: dict[str, Group] = {}
        self.jobs: list[tuple[abc.Job, abc.JobDone]] = []
        self.desk = GroupDesk(self.view, self.clock, lambda: self.groups, self.submit)

    def submit(self, job: abc.Job, done: abc.JobDone) -> None:
        self.jobs.append((job, done))

    def part(self, at: TopicPartition) -> Partition:
        return self.view.find(at)

    def store(self, at: TopicPartition, offset: int, key: str = "group:billing") -> None:
        self.part(at).stored[key] = Offset(offset)

    def group(self, *members: str, name: str = "billing", static: str | None = None) -> Group:
        group = self.groups[name] = Group(name, session_timeout=30, rebalance_timeout=30)
        parts = {self.part(at).history: at for at in (P0, P1)}
        for member in members:
            group.join(Member(member, static, self.clock.at), ("orders",), parts)
        return group

    def list(self) -> tuple[GroupInfo, ...]:
        ask = Ask()
        self.desk.list(ask)
        found: tuple[GroupInfo, ...] = ask.answer
        return found

    def ask(self, name: str) -> Ask:
        ask = Ask()
        self.desk.describe(ask, name)
        return ask

    def describe(self, name: str = "billing") -> GroupInfo:
        info = self.ask(name).answer
        assert isinstance(info, GroupInfo), info
        return info

    def reset(self, offsets: Mapping[TopicPartition, int | None], name: str = "billing") -> Ask:
        ask = Ask()
        given = {at: None if offset is None else Offset(offset) for at, offset in offsets.items()}
        self.desk.reset(ask, name, given)
        return ask

    def answer(self, *results: abc.JobResult | LogFull) -> None:
        jobs, self.jobs = self.jobs, []
        for (_, done), result in zip(jobs, results, strict=True):
            done(result)


class TestDescribing:
    def test_members_say_what_they_own_and_give_up_and_when_they_were_heard_of(self):
        rig = Rig()
        group = rig.group("a", "b", static=None)
        rig.clock.at += 7
        group.touch("b", rig.clock.at - 2)
        info = rig.describe()
        assert (info.name, info.generation) == ("billing", 2)
        assert info.members == (
            MemberInfo("a", None, ("orders",), (P0, P1), (P1,), 7.0),
            MemberInfo("b", None, ("orders",), (), (), 2.0),
        )

    def test_offsets_say_how_far_the_group_is_behind(self):
        rig = Rig()
        rig.group("a", static="east")
        rig.store(P1, 97)
        info = rig.describe()
        assert info.offsets == {
            P0: GroupOffset(None, Position(100), 90, "a"),
            P1: GroupOffset(Offset(97), Position(100), 2, "a"),
        }
        assert (info.lag, info.members[0].member) == (92, "east")

    def test_messages_that_are_gone_are_no_lag(self):
        rig = Rig()
        rig.store(P0, 3)
        rig.store(P1, 99)
        assert [offset.lag for offset in rig.describe().offsets.values()] == [90, 0]

    def test_a_group_exists_while_it_has_members_or_stored_offsets(self):
        rig = Rig()
        assert (rig.list(), type(rig.ask("billing").error)) == ((), GroupNotFound)
        group = rig.group("a")
        assert [info.name for info in rig.list()] == ["billing"]
        group.leave("a", rig.clock.at)
        assert rig.list() == ()
        assert "'billing' has no members and no stored offsets" in str(rig.ask("billing").error)
        rig.store(U0, 5)
        assert rig.describe() == GroupInfo("billing", 2, (), {U0: GroupOffset(Offset(5), Position(0), 0, None)})
        del rig.groups["billing"]
        assert rig.describe().generation == 0

    def test_groups_are_listed_by_name_and_names_of_consumers_are_none(self):
        rig = Rig()
        rig.group("a", name="shipping")
        rig.store(P0, 1)
        rig.store(P1, 1, "group:archive")
        rig.store(P0, 1, "name:billing-too")
        assert [(info.name, list(info.offsets)) for info in rig.list()] == [
            ("archive", [P1]),
            ("billing", [P0]),
            ("shipping", [P0, P1]),
        ]


class TestResetting:
    def test_all_offsets_are_set_in_either_direction_before_the_answer(self):
        rig = Rig()
        rig.store(P0, 50)
        rig.store(P1, 50)
        reset = rig.reset({P0: 20, P1: None})
        assert [job for job, _ in rig.jobs] == [
            abc.StoreOffset(rig.part(P0).id, "group:billing", Offset(20), lower=True),
            abc.StoreOffset(rig.part(P1).id, "group:billing", None, lower=True),
        ]
        assert reset.pending
        rig.answer(abc.Stored(Offset(20)), abc.Stored(None))
        assert reset.answer is None
        assert (rig.part(P0).stored, rig.part(P1).stored) == ({"group:billing": 20}, {})

    @rule("C56")
    def test_a_group_with_members_is_refused_and_they_are_named(self):
        rig = Rig()
        rig.group("a", static="east")
        reset = rig.reset({P0: 20})
        assert isinstance(reset.error, NotAccepted)
        assert "a (east)" in str(reset.error)
        assert rig.jobs == []

    @pytest.mark.parametrize(
        ("at", "offset", "error"),
        [(P1, 100, OffsetOutOfRange), (P1, -1, OffsetOutOfRange), (TopicPartition("orders", 2), 5, TopicNotFound)],
    )
    def test_one_offset_that_does_not_exist_refuses_all(self, at: TopicPartition, offset: int, error: type[Exception]):
        rig = Rig()
        rig.store(P0, 50)
        assert isinstance(rig.reset({P0: 20, at: offset}).error, error)
        assert rig.jobs == []

    def test_a_group_that_nobody_knows_is_refused(self):
        rig = Rig()
        assert isinstance(rig.reset({P0: 20}).error, GroupNotFound)
        assert rig.jobs == []

    def test_nothing_to_set_is_answered_at_once(self):
        rig = Rig()
        rig.store(P0, 50)
        assert rig.reset({}).answer is None

    def test_a_store_that_fails_is_the_answer_once_all_are_known(self):
        rig = Rig()
        rig.store(P0, 50)
        reset = rig.reset({P0: 20, P1: 30})
        error = LogFull("the disk is full")
        rig.answer(error, abc.Stored(Offset(30)))
        assert reset.error is error
        both = rig.reset({P0: 20, P1: 30})
        rig.answer(error, LogFull("later"))
        assert both.error is error
        assert (rig.part(P0).stored, rig.part(P1).stored) == ({"group:billing": 50}, {"group:billing": 30})
