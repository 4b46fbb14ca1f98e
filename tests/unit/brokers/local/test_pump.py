"""The pump over a memory store and a clock moved by hand: admission, wakes, deadlines, offsets, rule by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tarry import abc
from tarry._core.waiters import Parked, Waiters
from tarry._wire.batch import RUN_OVERHEAD, reply_limit, seal
from tarry.brokers.local.probes import Limits, Watched
from tarry.brokers.local.view import Partition
from tarry.config import TopicOptions
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    DataError,
    LogUnavailable,
    NotAMember,
    OffsetOutOfRange,
    StaleAssignment,
    TarryError,
    TopicExists,
    TopicNotFound,
    UsageError,
)
from tarry.types import HistoryId, Offset, Position, ProducerStamp, Start, TopicPartition
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import MIB, P0, P1, TOPIC, Ask, PumpRig, last, python_calls


def at(partition: TopicPartition, place: int | Start, history: HistoryId | None = None) -> abc.FetchTarget:
    return abc.FetchTarget(partition, place if isinstance(place, Start) else Position(place), history=history)


def room(*sizes: int) -> int:
    """The `max_bytes` that holds records of these sizes of one partition, and not a byte more."""
    return sum(sizes) + RUN_OVERHEAD


class TestAdmission:
    @rule("S12")
    def test_a_first_read_that_satisfies_answers_without_parking(self):
        rig = PumpRig()
        rig.append(5)
        poll = rig.poll(0, min_count=5, max_wait=5)
        assert poll.count == 5
        assert rig.alarms == []
        assert rig.pump.next_deadline() is None

    @rule("S12", "C6")
    def test_a_poll_that_does_not_wait_answers_with_what_there_is(self):
        rig = PumpRig()
        assert rig.poll(0).one.runs == ()
        rig.append(2)
        assert rig.poll(0, min_count=5).count == 2
        assert rig.pump.parked == 0

    @rule("S3", "C5")
    def test_the_log_caps_a_wait(self):
        rig = PumpRig(max_wait=30)
        long, short = rig.poll(0, max_wait=600), rig.poll(0, max_wait=29)
        rig.advance(28.999)
        assert short.pending
        rig.advance(0.001)
        assert short.count == 0
        rig.advance(0.999)
        assert long.pending
        rig.advance(0.001)
        assert long.count == 0

    @rule("S4")
    @pytest.mark.parametrize(
        "limits",
        [
            {"count": 0},
            {"count": -1},
            {"count": 10_001},
            {"min_count": 0},
            {"count": 5, "min_count": 6},
            {"max_wait": -0.001},
            {"max_wait": 600.001},
            {"max_wait": float("inf")},
            {"max_wait": float("nan")},
            {"max_bytes": 0},
            {"max_bytes": -5},
        ],
        ids=str,
    )
    def test_limits_out_of_range_are_refused_and_nothing_is_parked(self, limits: dict[str, Any]):
        rig = PumpRig()
        asked: dict[str, Any] = {"max_wait": 5.0, **limits}
        poll = rig.poll(0, **asked)
        assert isinstance(poll.error, ConfigError)
        ((name, value),) = [item for item in limits.items() if item[0] != "count" or len(limits) == 1]
        assert f"{name}={value}" in str(poll.error)
        assert (rig.pump.parked, rig.store.reads) == (0, 0)

    @rule("S4", "S52")
    def test_a_request_names_1_to_1000_targets(self):
        rig = PumpRig(partitions=1001)
        targets = [(TopicPartition(TOPIC, number), 0) for number in range(1001)]
        for refused in (rig.poll(), rig.poll(*targets), rig.wait(), rig.wait(*targets)):
            assert isinstance(refused.error, ConfigError)
            assert "1 to 1000" in str(refused.error)
        assert len(rig.poll(*targets[:1000]).poll.targets) == 1000
        assert rig.wait(*targets[:1000]).pending
        assert rig.pump.parked == 1

    @rule("S4")
    @pytest.mark.parametrize(("min_count", "min_bytes"), [(0, None), (1, 0), (1, -1)])
    def test_a_wait_for_nothing_is_refused(self, min_count: int, min_bytes: int | None):
        rig = PumpRig()
        assert isinstance(rig.wait(0, min_count=min_count, min_bytes=min_bytes).error, ConfigError)
        assert rig.pump.parked == 0

    @rule("S4")
    def test_a_poll_that_waits_takes_one_target(self):
        rig = PumpRig()
        assert "use wait_ready" in str(rig.poll((P0, 0), (P1, 0), max_wait=1).error)
        assert len(rig.poll((P0, 0), (P1, 0)).poll.targets) == 2

    @rule("S11")
    def test_admission_checks_partition_and_position(self):
        rig = PumpRig()
        rig.append(3)
        nowhere = rig.poll((TopicPartition("nowhere", 0), 0), max_wait=5)
        assert isinstance(nowhere.error, TopicNotFound)
        assert "'nowhere'" in str(nowhere.error)
        beyond = rig.poll((TopicPartition(TOPIC, 2), 0), max_wait=5)
        assert isinstance(beyond.error, TopicNotFound)
        assert "no partition 2" in str(beyond.error)
        assert "0 to 1" in str(beyond.error)
        behind = rig.poll(4, max_wait=5)
        assert isinstance(behind.error, OffsetOutOfRange)
        assert (behind.error.asked, behind.error.log_start, behind.error.log_end) == (4, 0, 3)
        assert rig.poll(3, max_wait=5).pending, "the end itself is a position"
        assert rig.pump.parked == 1

    @rule("S11")
    @pytest.mark.parametrize("request_name", ["poll", "wait", "resolve", "store_offset", "stored_offset"])
    def test_a_session_that_left_asks_for_nothing_any_more(self, request_name: str):
        rig = PumpRig()
        member = rig.open("other")
        rig.pump.leave(None, member)
        requests: dict[str, Callable[[], Ask]] = {
            "poll": lambda: rig.poll(0, max_wait=5, member=member),
            "wait": lambda: rig.wait(0, member=member),
            "resolve": lambda: rig.resolve(0, member=member),
            "store_offset": lambda: rig.store_offset(0, member=member),
            "stored_offset": lambda: rig.ask_stored(member=member),
        }
        rig.append(1)
        assert isinstance(requests[request_name]().error, NotAMember)
        assert rig.pump.parked == 0

    @rule("S11")
    def test_next_becomes_a_position_at_admission(self):
        rig = PumpRig()
        rig.append(5)
        rig.store_offset(4)
        parked = rig.poll(Start.next(), max_wait=5)
        assert rig.store_offset(1, lower=True).answer == 1
        assert parked.pending
        rig.append(1)
        assert (parked.one.asked, parked.one.position, parked.count) == (5, 5, 1)

    @rule("S11")
    def test_a_position_of_another_history_reads_nothing(self):
        rig = PumpRig()
        rig.append(5)
        old = rig.part().history
        rig.delete()
        rig.create(TOPIC, 2)
        rig.append(1)
        for ask in (rig.poll(at(P0, 4, old), max_wait=5), rig.poll(at(P0, 0, old))):
            assert (ask.one.runs, ask.one.history) == ((), rig.part().history)
            assert ask.one.history != old
        assert rig.store.reads == 0
        assert rig.wait(at(P0, 4, old), max_wait=5).ready == {P0: (0, 0)}

    @rule("S13")
    def test_a_full_registry_refuses_with_90(self):
        rig = PumpRig(waiters=Waiters(per_partition_max=2))
        rig.append(1)
        first, second = rig.poll(1, max_wait=5), rig.poll(1, max_wait=5)
        third = rig.poll(1, max_wait=5)
        assert isinstance(third.error, CapacityExceeded)
        assert third.error.code == 90
        assert "2 polls wait at this partition" in str(third.error)
        assert rig.pump.parked == 2
        assert rig.poll(0, max_wait=5).count == 1, "what needs no parking is answered"
        assert rig.poll((P1, 0), max_wait=5).pending, "other partitions have their own room"
        rig.pump.cancel(second)
        assert rig.poll(1, max_wait=5).pending, "a cancel makes room"
        rig.append(1)
        assert first.count == 1

    @rule("S13")
    def test_the_registry_is_bounded_as_a_whole(self):
        rig = PumpRig(waiters=Waiters(total_max=2))
        rig.poll((P0, 0), max_wait=5)
        kept = rig.wait((P1, 0))
        for ask in (rig.poll((P1, 0), max_wait=5), rig.wait((P0, 0)), rig.wait((P0, 0), min_count=5)):
            assert isinstance(ask.error, CapacityExceeded)
        assert rig.pump.parked == 2
        rig.append(1, P1)
        assert kept.ready == {P1: (1, 100)}
        assert rig.wait((P1, 1)).pending

    @rule("S13")
    def test_a_disk_read_without_room_is_refused_too(self):
        rig = PumpRig(cold=True, waiters=Waiters(total_max=1))
        rig.append(1)
        rig.poll(1, max_wait=5)
        refused = rig.poll(0)
        assert isinstance(refused.error, CapacityExceeded)
        assert rig.store.disk == []
        assert rig.pump.polls._probes.keys().isdisjoint([refused])

    @rule("S13")
    def test_a_wake_that_finds_no_room_for_its_disk_read_is_refused(self):
        rig = PumpRig(cold=True, waiters=Waiters(total_max=2))
        first, second = rig.poll(0, min_count=2, max_wait=5), rig.poll(0, min_count=2, max_wait=5)
        rig.append(1)
        rig.append(1)
        assert len(rig.store.disk) == 2
        third = rig.poll(2, max_wait=5)
        assert isinstance(third.error, CapacityExceeded)
        rig.store.end_reads()
        assert (first.count, second.count) == (2, 2)


class TestStarts:
    @rule("C26")
    def test_where_each_start_begins(self):
        rig = PumpRig()
        rig.append_times(1000, 2000, 2000, 4000)

        def begins(start: Start | int) -> int:
            resolved = rig.resolve(start).answer
            assert isinstance(resolved, abc.Resolved)
            assert (resolved.log_start, resolved.log_end, resolved.history) == (0, 4, rig.part().history)
            polled = rig.poll(at(P0, start)).one
            assert polled.position == resolved.position
            return resolved.position

        assert begins(2) == 2
        assert begins(Start.first()) == 0
        assert begins(Start.end()) == 4
        assert begins(Start.offset(3)) == 3
        assert begins(Start.offset(4)) == 4
        assert [begins(last(count)) for count in (1, 3, 4, 5, 1000)] == [3, 1, 0, 0, 0]
        assert begins(Start.last()) == 0
        assert begins(Start.next()) == 0
        assert begins(Start.next(otherwise=Start.end())) == 4
        rig.store_offset(0)
        assert begins(Start.next()) == 1
        assert begins(Start.next(otherwise="fail")) == 1
        rig.store_offset(3)
        assert begins(Start.next(otherwise=Start.end())) == 4

    @rule("C26")
    @pytest.mark.parametrize(("time", "position"), [(0, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 3), (4001, 4)])
    def test_a_time_is_the_first_message_at_or_after_it(self, time: int, position: int):
        rig = PumpRig()
        rig.append_times(1000, 2000)
        rig.append_times(2000, 4000)
        start = Start.timestamp(datetime.fromtimestamp(0, tz=UTC) + timedelta(milliseconds=time))
        assert rig.resolve(start).answer.position == position
        assert rig.poll(start).one.position == position

    @rule("K103")
    @pytest.mark.parametrize("zone", ["+02:00", "-05:00", "+05:30"])
    def test_the_same_instant_in_any_zone_is_the_same_place(self, zone: str):
        rig = PumpRig()
        ten = datetime(2024, 3, 10, 10, 0, tzinfo=UTC)
        stamps = [int((ten + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(3)]
        rig.append_times(*stamps)
        there = datetime.fromisoformat(f"2024-03-10T00:00:00{zone}").tzinfo

        def begins(time: datetime) -> int:
            position: int = rig.resolve(Start.timestamp(time.astimezone(there))).answer.position
            return position

        assert begins(ten + timedelta(minutes=1)) == 1
        assert begins(ten + timedelta(seconds=30)) == 1
        assert begins(ten + timedelta(hours=1)) == 3

    @rule("K19")
    @pytest.mark.parametrize("cold", [False, True])
    def test_a_position_tells_the_age_of_what_lies_there(self, cold: bool):
        rig = PumpRig(cold=cold)
        now = rig.clock.wall_ms()
        rig.append_times(now - 5000, now - 1500)
        rig.append_times(now + 60_000)

        def age(place: Start | int) -> float | None:
            ask = rig.resolve(place)
            rig.store.end_reads()
            assert (ask.answer.log_start, ask.answer.log_end, ask.answer.history) == (0, 3, rig.part().history)
            return cast("float | None", ask.answer.age_s)

        assert [age(place) for place in range(5)] == [5.0, 1.5, 0.0, 0.0, 0.0]
        assert age(Start.first()) is None
        assert age(Start.offset(1)) is None
        assert rig.store.disk == []
        rig.clock.at += 10.0
        assert [age(place) for place in range(4)] == [15.0, 11.5, 0.0, 0.0]

    @rule("K19")
    def test_the_age_of_what_retention_removed_is_that_of_the_oldest_left(self):
        rig = PumpRig(retention_bytes=1)
        now = rig.clock.wall_ms()
        rig.append_times(now - 5000)
        rig.append_times(now - 1000)
        begin = rig.part().log_start
        resolved = rig.resolve(0).answer
        assert begin > 0
        assert resolved.position == 0
        assert resolved.age_s == (1.0 if begin == 1 else 0.0)

    @rule("K19")
    def test_the_age_of_what_is_damaged_is_unknown_and_a_log_that_is_gone_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        rig = PumpRig()
        rig.append_batch(seal([b"no record"], [0]))
        assert rig.resolve(0).answer.age_s is None
        rig = PumpRig(cold=True)
        rig.append_times(1000)
        error: TarryError = DataError("the row is damaged")

        def fail(_: abc.Query, done: Callable[[TarryError], None]) -> None:
            done(error)

        monkeypatch.setattr(rig.store, "read_disk", fail)
        assert (rig.resolve(0).answer.age_s, rig.resolve(0).answer.log_end) == (None, 1)
        error = LogUnavailable("gone")
        assert rig.resolve(0).error is error

    @rule("C26")
    def test_a_start_that_does_not_exist_says_what_does(self):
        rig = PumpRig()
        rig.append(3)
        for start in (Start.offset(4), Start.next(otherwise="fail")):
            for ask in (rig.resolve(start), rig.poll(start, max_wait=5), rig.wait(start)):
                assert isinstance(ask.error, OffsetOutOfRange)
                assert (ask.error.log_start, ask.error.log_end) == (0, 3)
        assert "nothing is stored" in str(rig.resolve(Start.next(otherwise="fail")).error)

    @rule("C26")
    def test_starts_respect_what_retention_left(self):
        rig = PumpRig(retention_bytes=500)
        for _ in range(10):
            rig.append(1)
        assert (rig.part().log_start, rig.part().log_end) == (5, 10)
        assert rig.poll(Start.first()).one.position == 5
        assert rig.poll(Start.next()).one.position == 5
        assert rig.poll(last(7)).one.position == 5
        assert rig.poll(last(2)).one.position == 8
        gap = rig.poll(Start.offset(2)).one
        assert (gap.asked, gap.position, gap.runs[0].base) == (2, 5, 5)

    @rule("C26", "S29")
    def test_a_time_that_needs_the_disk_is_resolved_later_and_not_for_ever(self):
        rig = PumpRig(cold=True)
        rig.append_times(1000, 2000, 3000)
        start = Start.timestamp(datetime.fromtimestamp(2, tz=UTC))
        found, lost, cancelled = rig.poll(start, max_wait=5), rig.poll(start, max_wait=5), rig.poll(start, max_wait=5)
        assert rig.pump.parked == 3
        rig.pump.cancel(cancelled)
        rig.store.end_read()
        rig.store.disk.pop(0)
        rig.store.end_reads()
        assert (found.one.position, found.count) == (1, 2)
        rig.advance(14.999)
        assert lost.pending
        rig.advance(0.001)
        assert isinstance(lost.error, CapacityExceeded)
        assert cancelled.pending
        assert rig.pump.parked == 0


class TestWakes:
    @rule("S16", "I6")
    def test_a_commit_that_cannot_complete_reads_nothing(self):
        rig = PumpRig()
        rig.append(10)
        poll = rig.poll(0, min_count=15, max_wait=5)
        reads = rig.store.reads
        with python_calls("polls.py") as calls:
            for _ in range(4):
                rig.append(1)
        assert poll.pending
        assert rig.store.reads == reads
        assert "_validate" not in calls
        assert "check_member" not in calls
        rig.append(1)
        assert poll.count == 15
        assert rig.store.reads == reads + 1

    @rule("S17", "S11")
    @pytest.mark.parametrize(
        ("start", "position"),
        [
            (Start.offset(4), 4),
            (Start.next(), 3),
            (Start.first(), 0),
            (last(2), 8),
            (Start.end(), 10),
            (Start.timestamp(datetime.fromtimestamp(7, tz=UTC)), 7),
        ],
        ids=str,
    )
    def test_the_bound_holds_for_every_start(self, start: Start, position: int):
        rig = PumpRig()
        rig.append_times(*(1000 * second for second in range(10)))
        rig.store_offset(2)
        missing = 3
        poll = rig.poll(start, min_count=10 - position + missing, max_wait=5)
        reads = rig.store.reads
        for _ in range(missing - 1):
            rig.append(1)
        assert (poll.pending, rig.store.reads) == (True, reads)
        rig.append(1)
        assert (poll.one.position, poll.count, rig.store.reads) == (position, 10 - position + missing, reads + 1)

    @rule("S18", "S19")
    def test_few_large_messages_are_answered_early(self):
        rig = PumpRig()
        rig.append(2, size=100)
        poll = rig.poll(0, min_count=100, max_bytes=room(100, 100, 300, 300), max_wait=5)
        reads = rig.store.reads
        rig.append(1, size=300)
        rig.append(1, size=299)
        assert (poll.pending, rig.store.reads) == (True, reads)
        rig.append(1, size=1)
        assert (poll.count, rig.store.reads) == (5, reads + 1)

    @rule("S18", "S19", "S23")
    def test_a_message_that_does_not_fit_any_more_ends_the_wait(self):
        rig = PumpRig()
        poll = rig.poll(0, min_count=100, max_bytes=room(500), max_wait=5)
        rig.append(1, size=450)
        assert poll.pending
        rig.append(1, size=51)
        assert (poll.count, poll.one.next) == (1, 1)

    @rule("S18")
    def test_bytes_of_before_the_wait_count_only_from_its_position(self):
        rig = PumpRig()
        rig.append(20, size=1000)
        poll = rig.poll(19, min_count=100, max_bytes=room(3000), max_wait=5)
        reads = rig.store.reads
        rig.append(1, size=1000)
        assert (poll.pending, rig.store.reads) == (True, reads)
        rig.append(1, size=1000)
        assert poll.count == 3

    @rule("S20", "I6")
    def test_only_those_that_may_finish_are_probed(self):
        rig = PumpRig()
        polls = [rig.poll(0, min_count=need, max_wait=5) for need in (1, 5, 5, 6, 50)]
        elsewhere = rig.poll((P1, 0), max_wait=5)
        assert rig.store.reads == 0, "nothing is there, nothing is read"
        rig.append(5)
        assert [poll.pending for poll in polls] == [False, False, False, True, True]
        assert (rig.store.reads, elsewhere.pending) == (3, True)

    @rule("S21")
    def test_with_min_count_1_one_read_completes(self):
        rig = PumpRig()
        poll = rig.poll(0, max_wait=5)
        rig.append(3)
        assert (poll.count, rig.store.reads, rig.pump.reads) == (3, 1, 1)

    @rule("S26", "I6")
    def test_a_commit_costs_the_same_with_1_and_with_1000_waiters(self):
        work: list[int] = []
        for waiting in (1, 1000):
            rig = PumpRig()
            polls = [rig.poll(0, min_count=5000, count=5000, max_wait=5) for _ in range(waiting)]
            with python_calls() as calls:
                rig.append(1)
            work.append(len(calls))
            assert all(poll.pending for poll in polls)
        assert work[0] == work[1]

    @rule("S22")
    def test_a_wake_validates_the_session_again(self):
        rig = PumpRig()
        member = rig.open("other")
        poll, wait = rig.poll(0, max_wait=5, member=member), rig.wait(0, member=member)
        gathering = rig.wait(0, min_count=2, member=member)
        member.open = False  # as if its requests had not been withdrawn
        rig.append(2)
        for ask in (poll, wait, gathering):
            assert isinstance(ask.error, NotAMember)
        assert rig.store.reads == 0

    @rule("S22")
    def test_the_last_read_of_a_wait_validates_again(self):
        rig = PumpRig()
        member = rig.open("other")
        poll, wait = rig.poll(0, max_wait=5, member=member), rig.wait(0, max_wait=5, member=member)
        member.open = False
        rig.advance(5)
        assert isinstance(poll.error, NotAMember)
        assert isinstance(wait.error, NotAMember)

    @rule("S23", "C6")
    def test_a_poll_ends_by_count_by_bytes_or_by_time(self):
        rig = PumpRig()
        by_count = rig.poll(0, min_count=3, max_wait=5)
        by_bytes = rig.poll(0, min_count=1000, max_bytes=room(100, 100, 100), max_wait=5)
        by_time = rig.poll(0, min_count=4, max_wait=5)
        nothing = rig.poll((P1, 0), max_wait=5)
        rig.append(2)
        assert by_count.pending
        assert by_bytes.pending
        rig.append(1)
        assert (by_count.count, by_bytes.count) == (3, 3)
        rig.advance(4.999)
        assert by_time.pending
        assert nothing.pending
        rig.advance(0.001)
        assert (by_time.count, nothing.count) == (3, 0)
        assert rig.pump.parked == 0

    @rule("S24", "S22")
    def test_a_deleted_topic_ends_what_is_parked_on_it_at_once(self):
        rig = PumpRig()
        rig.create("stays")
        polls = [rig.poll((P0, 0), max_wait=5), rig.poll((P1, 0), min_count=7, max_wait=5)]
        stays = TopicPartition("stays", 0)
        waits = [rig.wait((P0, 0), (stays, 0)), rig.wait((stays, 0), (P1, 0), min_count=3)]
        other = rig.poll((stays, 0), max_wait=5)
        assert rig.delete().answer is None
        for poll in polls:
            assert isinstance(poll.error, TopicNotFound)
            assert f"'{TOPIC}' was deleted" in str(poll.error)
        assert waits[0].ready == {P0: (0, 0)}, "so that a poll reports it"
        assert waits[1].ready == {P1: (0, 0)}
        assert (other.pending, rig.pump.parked) == (True, 1)
        rig.append(1, stays)
        assert other.count == 1

    @rule("S24", "S22")
    @pytest.mark.parametrize("early", [True, False], ids=["read before", "read after"])
    @pytest.mark.parametrize("max_wait", [0, 5])
    def test_a_topic_deleted_during_a_disk_read_ends_the_poll(self, early: bool, max_wait: float):
        rig = PumpRig(cold=True, early=early)
        rig.append(2)
        poll = rig.poll(0, min_count=3, max_wait=max_wait)
        rig.delete()
        rig.create(TOPIC, 2)
        rig.store.end_read()
        assert isinstance(poll.error, TopicNotFound)
        assert (rig.pump.parked, rig.store.disk) == (0, [])

    @rule("S25")
    def test_the_sweep_finds_a_lost_wake(self):
        rig = PumpRig()
        poll, wait = rig.poll(0, min_count=2, max_wait=30), rig.wait(0, max_wait=30)
        gathering = rig.wait(0, min_count=2, max_wait=30)
        idle = rig.poll((P1, 0), max_wait=30)
        lose_wakes(rig, lambda: rig.append(2))
        assert poll.pending
        reads = rig.store.reads
        rig.advance(1)
        assert (poll.count, wait.ready, gathering.ready) == (2, {P0: (2, 200)}, {P0: (2, 200)})
        assert rig.store.reads == reads + 1, "who is not due is not probed"
        assert (idle.pending, rig.ticks) == (True, 1)

    @rule("S25")
    def test_the_sweep_looks_at_64_targets_a_second_in_rotation(self):
        rig = PumpRig()
        polls = [rig.poll(0, max_wait=30) for _ in range(150)]
        lose_wakes(rig, lambda: rig.append(1))
        answered: list[int] = []
        for _ in range(3):
            rig.advance(1)
            answered.append(sum(not poll.pending for poll in polls))
        assert answered == [64, 128, 150]

    @rule("S25")
    def test_the_sweep_goes_round_the_idle_ones_too(self):
        rig = PumpRig()
        idle = [rig.poll((P1, 0), max_wait=30) for _ in range(100)]
        lost = rig.poll((P0, 0), max_wait=30)
        lose_wakes(rig, lambda: rig.append(1))
        rig.advance(1)
        assert lost.pending
        rig.advance(1)
        assert (lost.count, all(poll.pending for poll in idle)) == (1, True)

    @rule("S54")
    def test_the_sweep_counts_targets_not_waits(self):
        rig = PumpRig(partitions=1000)
        targets = [(TopicPartition(TOPIC, number), 0) for number in range(1000)]
        for _ in range(10):
            rig.wait(*targets, max_wait=30)
        looks: list[float] = []
        watches = rig.pump.polls._watches
        is_wake_lost = watches._is_wake_lost

        def count(watched: Watched, part: Partition) -> bool:
            looks.append(rig.clock.at)
            return is_wake_lost(watched, part)

        watches._is_wake_lost = count  # type: ignore[method-assign]
        rig.advance(3)
        assert list(Counter(looks).values()) == [64, 64, 64]

    @rule("S25")
    def test_an_idle_pump_asks_for_no_ticks(self):
        rig = PumpRig()
        assert rig.pump.next_deadline() is None
        poll = rig.poll(0, max_wait=0.5)
        rig.append(1)
        assert poll.count == 1
        assert rig.pump.next_deadline() is None
        rig.poll(1, max_wait=0.5)
        assert rig.pump.next_deadline() == rig.clock.at + 0.5
        rig.advance(100)
        assert rig.ticks == 1

    @rule("S25")
    def test_the_alarm_names_the_earlier_of_deadline_and_sweep(self):
        rig = PumpRig()
        rig.poll(0, max_wait=20)
        rig.poll(0, max_wait=0.25)
        assert rig.alarms == [1001.0, 1000.25]

    def test_cancels_leave_nothing_behind(self):
        rig = PumpRig()
        asks = [rig.poll(0, max_wait=5), rig.wait(0, (P1, 0)), rig.wait(0, (P1, 0), min_count=5)]
        for ask in asks:
            rig.pump.cancel(ask)
            rig.pump.cancel(ask)
        assert (rig.pump.parked, rig.pump.polls._probes, rig.member.calls) == (0, {}, {})
        readiness = rig.pump.polls._watches._readiness
        assert (readiness.entries, list(readiness), readiness._listening, rig.member.watches) == (0, [], {}, {})
        rig.append(10)
        rig.advance(60)
        assert all(ask.pending for ask in asks)
        rig.pump.cancel(Ask())

    @pytest.mark.slow
    @rule("K20")
    def test_20000_polls_that_end_by_time_or_cancel_leave_nothing_behind(self):
        rig = PumpRig(waiters=Waiters())
        for turn in range(10_000):
            timed, cancelled = rig.poll(0, max_wait=0.001), rig.poll(0, max_wait=5)
            assert rig.pump.parked == 2
            rig.pump.cancel(cancelled)
            rig.advance(0.001)
            assert (timed.count, rig.pump.parked) == (0, 0)
            if turn % 100 == 0:
                assert rig.waiters.entries <= 4
        assert (rig.pump.polls._probes, rig.member.calls) == ({}, {})
        assert sum(len(heaps.messages) + len(heaps.bytes) for heaps in rig.waiters._heaps.values()) <= 4

    def test_waits_in_leave_are_told(self):
        rig = PumpRig()
        other = rig.open("other")
        mine, theirs = rig.poll(0, max_wait=5), rig.poll(0, max_wait=5, member=other)
        ask = Ask()
        rig.pump.leave(ask, rig.member)
        assert ask.answer is None
        assert isinstance(mine.error, NotAMember)
        assert (theirs.pending, rig.pump.parked) == (True, 1)
        rig.pump.leave(None, rig.member)

    def test_close_ends_every_request(self):
        rig = PumpRig(cold=True)
        rig.append(1)
        asks = [rig.poll(1, max_wait=5), rig.poll(0), rig.wait((P1, 0)), rig.wait((P1, 0), min_count=4)]
        rig.pump.close()
        assert all(isinstance(ask.error, LogUnavailable) for ask in asks)
        assert rig.pump.parked == 0
        rig.store.end_reads()

    def test_a_store_that_failed_ends_every_request_and_refuses_new_ones(self):
        rig = PumpRig()
        parked = rig.poll(0, max_wait=5)
        failure = LogUnavailable("the disk is gone")
        rig.pump.failed(failure)
        for ask in (parked, rig.poll(0), rig.wait(0), rig.store_offset(0), rig.ask_append(seal([b"x"], [0]))):
            assert isinstance(ask.error, LogUnavailable)
            assert str(ask.error) == "the disk is gone"
        assert rig.pump.parked == 0


def lose_wakes(rig: PumpRig, commit: Callable[[], object]) -> None:
    """Let something be committed without telling who waits for it, as a lost wake would."""

    def nobody(partition: object, visible: int, visible_bytes: int) -> list[Parked]:
        return []

    advanced, grown = rig.waiters.advanced, rig.pump.polls._watches._readiness.grown
    rig.waiters.advanced = nobody  # type: ignore[method-assign]
    rig.pump.polls._watches._readiness.grown = lambda partition, visible, size: []  # type: ignore[method-assign]
    commit()
    rig.waiters.advanced, rig.pump.polls._watches._readiness.grown = advanced, grown  # type: ignore[method-assign]


class TestDeadlines:
    @rule("S28")
    def test_at_the_end_of_a_wait_a_last_read_answers_with_what_there_is(self):
        rig = PumpRig()
        rig.append(2)
        poll, empty = rig.poll(0, min_count=10, max_wait=5), rig.poll((P1, 0), max_wait=5)
        rig.append(3)
        reads = rig.store.reads
        rig.advance(5)
        assert (poll.count, empty.count, rig.store.reads) == (5, 0, reads + 1)

    @rule("S28", "S29")
    def test_a_tick_that_comes_late_still_answers_with_what_there_is(self):
        rig = PumpRig()
        poll = rig.poll(0, min_count=10, max_wait=5)
        rig.append(3)
        rig.clock.at += 60
        rig.pump.tick(rig.clock.at)
        assert poll.count == 3

    @rule("S29")
    def test_a_disk_read_that_never_ends_fails_at_the_request_deadline(self):
        rig = PumpRig(cold=True)
        rig.append(1)
        waiting, immediate = rig.poll(0, max_wait=5), rig.poll(0)
        rig.advance(9.999)
        assert immediate.pending
        rig.advance(0.001)
        assert isinstance(immediate.error, CapacityExceeded)
        rig.advance(4.999)
        assert waiting.pending
        rig.advance(0.001)
        assert isinstance(waiting.error, CapacityExceeded)
        assert "disk read" in str(waiting.error)
        assert rig.pump.parked == 0
        rig.store.end_reads()
        assert len(waiting.answers) == 1

    @rule("S28")
    def test_a_disk_read_past_the_wait_answers_with_what_it_brings(self):
        rig = PumpRig(cold=True)
        rig.append(2)
        poll = rig.poll(0, min_count=5, max_wait=5)
        rig.advance(7)
        rig.store.end_read()
        assert poll.count == 2

    @rule("S31")
    def test_a_probe_never_extends_the_wait(self):
        rig = PumpRig(retention_bytes=250)
        poll = rig.poll(0, min_count=4, max_wait=5)
        reads = rig.store.reads
        for _ in range(9):
            rig.append(1)  # from the fourth on each wakes it, and retention has left only three to read
            rig.advance(0.5)
        assert poll.pending
        assert rig.store.reads > reads
        rig.advance(0.499)
        assert poll.pending
        rig.advance(0.001)
        assert (poll.count, poll.one.asked) == (2, 0)

    @rule("S31")
    def test_a_disk_read_never_extends_the_wait(self):
        rig = PumpRig(cold=True)
        rig.append(1)
        poll = rig.poll(0, min_count=5, max_wait=5)
        rig.advance(3)
        rig.store.end_read()
        rig.advance(1.999)
        assert (poll.pending, rig.store.disk) == (True, [])
        rig.advance(0.001)
        rig.store.end_read()
        assert poll.count == 1

    @rule("K101", "C6")
    def test_nothing_there_is_an_empty_reply_each_time(self):
        rig = PumpRig()
        for _ in range(100):
            poll = rig.poll(0, max_wait=0.2)
            rig.advance(0.199)
            assert poll.pending
            rig.advance(0.001)
            assert poll.count == 0
        rig.append(1)
        one = rig.poll(0, min_count=5, max_wait=0.2)
        rig.advance(0.2)
        assert one.count == 1
        assert rig.pump.parked == 0


class TestDisk:
    @rule("S27")
    @pytest.mark.parametrize("early", [True, False], ids=["read before", "read after"])
    def test_a_commit_during_a_disk_read_is_not_missed(self, early: bool):
        rig = PumpRig(cold=True, early=early)
        rig.append(2)
        poll = rig.poll(0, min_count=4, max_wait=5)
        rig.append(2)
        rig.store.end_reads()
        assert poll.count == 4

    @rule("S27", "S19")
    def test_a_commit_during_a_disk_read_that_cannot_complete_reads_nothing_again(self):
        rig = PumpRig(cold=True, early=True)
        rig.append(2)
        poll = rig.poll(0, min_count=5, max_wait=5)
        rig.append(2)
        rig.store.end_read()
        assert (poll.pending, rig.store.disk, rig.pump.parked) == (True, [], 1)
        rig.append(1)
        rig.store.end_read()
        assert (poll.count, rig.pump.reads) == (5, 2)

    @rule("S27", "S23")
    def test_bytes_that_come_during_a_disk_read_are_not_missed(self):
        rig = PumpRig(cold=True, early=True)
        rig.append(2)
        poll = rig.poll(0, min_count=100, max_bytes=room(100, 100, 300), max_wait=5)
        rig.append(1, size=300)
        rig.store.end_reads()
        assert (poll.count, rig.pump.reads) == (3, 2)

    @rule("K89", "S23")
    def test_a_full_reply_from_the_disk_answers_at_once(self):
        rig = PumpRig(cold=True)
        rig.append(100)
        poll = rig.poll(0, min_count=100, max_bytes=room(*[100] * 40) + 50, max_wait=10)
        rig.store.end_read()
        assert (poll.count, rig.pump.reads) == (40, 1)

    def test_a_cancel_during_a_disk_read_leaves_nothing_behind(self):
        rig = PumpRig(cold=True)
        rig.append(2)
        poll = rig.poll((P0, 0), (P1, 0))
        rig.pump.cancel(poll)
        assert (rig.pump.parked, rig.pump.polls._probes, rig.member.calls) == (0, {}, {})
        rig.store.end_reads()
        assert poll.pending

    def test_leaving_during_a_disk_read_is_told_once(self):
        rig = PumpRig(cold=True)
        rig.append(2)
        poll = rig.poll(0)
        rig.pump.leave(None, rig.member)
        rig.store.end_reads()
        assert isinstance(poll.error, NotAMember)

    def test_an_error_of_the_disk_reaches_the_poll(self):
        rig = PumpRig(cold=True)
        rig.append(1)
        poll = rig.poll(0, max_wait=5)
        error = LogUnavailable("no")
        probe = rig.pump.polls._probes[poll]
        rig.pump.polls._disk_read(probe, 0, (1, 1, True), error)
        assert poll.error is error
        assert rig.pump.parked == 0

    def test_a_read_that_found_nothing_where_something_is_looks_again(self):
        """A store may answer so when retention passed the position; what is there now comes with the next read."""
        rig = PumpRig(cold=True)
        rig.append(1)
        poll = rig.poll(0, max_wait=5)
        rig.store.disk.clear()
        rig.pump.polls._disk_read(rig.pump.polls._probes[poll], 0, (1000, MIB, True), abc.Selection(()))
        assert (poll.pending, len(rig.store.disk), rig.pump.parked) == (True, 1, 1)
        rig.store.end_reads()
        assert poll.count == 1

    def test_several_cold_targets_are_read_one_after_the_other_within_the_limits(self):
        rig = PumpRig(cold=True)
        rig.append(3, P0)
        rig.append(3, P1)
        poll = rig.poll((P0, 0), (P1, 0), count=5)
        rig.store.end_reads()
        assert [sum(run.count for run in target.runs) for target in poll.poll.targets] == [3, 2]

    @rule("S27")
    def test_retention_that_passes_the_position_during_the_read_is_read_again(self):
        rig = PumpRig(cold=True, retention_bytes=250)
        rig.append(2)
        poll = rig.poll(0, max_wait=5)
        rig.append(2)
        assert rig.part().log_start == 2
        rig.store.end_reads()
        assert (poll.one.asked, poll.one.position, poll.count) == (0, 2, 2)


class TestLimits:
    @rule("C7")
    @pytest.mark.parametrize(("short", "count"), [(0, 3), (1, 2)])
    def test_max_bytes_is_exact_with_its_overhead(self, short: int, count: int):
        rig = PumpRig()
        rig.append(5)
        poll = rig.poll(0, max_bytes=room(100, 100, 100) - short)
        assert poll.count == count
        assert reply_limit(room(100, 100, 100)) == 300

    @rule("C7", "S45", "C108")
    def test_a_first_message_above_the_limit_comes_alone_and_whole(self):
        rig = PumpRig()
        rig.append_sizes([5000, 100, 100])
        large = rig.poll(0, max_bytes=1000, max_wait=5)
        assert (large.count, large.one.runs[0].size) == (1, 5000)
        assert rig.poll(1, max_bytes=1000).count == 2

    @rule("S45")
    def test_a_later_message_that_does_not_fit_is_left(self):
        rig = PumpRig()
        rig.append_sizes([100, 5000, 100])
        assert rig.poll(0, max_bytes=1000, min_count=3, max_wait=5).count == 1

    @rule("S45", "C7")
    @pytest.mark.parametrize("cold", [False, True], ids=["memory", "disk"])
    def test_an_oversized_message_of_a_later_target_waits_for_its_turn(self, cold: bool):
        rig = PumpRig(partitions=3, cold=cold)
        p2 = TopicPartition(TOPIC, 2)
        rig.append(1, P0)
        rig.append(1, P1, size=5000)
        rig.append(1, p2)
        first = rig.poll((P0, 0), (P1, 0), (p2, 0), max_bytes=1000)
        rig.store.end_reads()
        assert [target.next for target in first.poll.targets] == [1, 0, 1]
        second = rig.poll((P1, 0), (P0, 0), max_bytes=1000)
        rig.store.end_reads()
        assert [target.next for target in second.poll.targets] == [1, 0], "alone"

    @rule("C7")
    def test_count_and_bytes_are_exact_over_all_targets(self):
        rig = PumpRig(partitions=4)
        parts = [TopicPartition(TOPIC, number) for number in range(4)]
        for part in parts:
            rig.append(10, part)

        def taken(*, count: int = 1000, max_bytes: int = MIB) -> list[int]:
            reply = rig.poll(*((part, 0) for part in parts), count=count, max_bytes=max_bytes).poll
            return [target.next for target in reply.targets]

        assert taken(count=25) == [10, 10, 5, 0]
        assert taken(max_bytes=room(*[100] * 10) + room(*[100] * 5)) == [10, 5, 0, 0]
        assert taken(max_bytes=room(*[100] * 10) + room(100) - 1) == [10, 0, 0, 0]
        reads = rig.store.reads
        assert taken(max_bytes=1) == [1, 0, 0, 0]
        assert rig.store.reads == reads + 1, "where nothing has room nothing is read"

    @rule("K22")
    def test_a_large_message_delays_nobody_and_needs_few_polls(self):
        rig = PumpRig()
        rig.append_sizes([100, 5000, 100], P0)
        rig.append(50, P1)
        positions, polls = {P0: 0, P1: 0}, 0
        order = [P0, P1]
        alone: list[int] = []
        while positions != {P0: 3, P1: 50}:
            polls += 1
            reply = rig.poll(*((part, positions[part]) for part in order), max_bytes=1000).poll
            taken = [run for target in reply.targets for run in target.runs]
            if any(run.size == 5000 for run in taken):
                alone.append(sum(run.count for run in taken))
            positions.update((target.partition, target.next) for target in reply.targets)
            order.reverse()
        assert polls <= 12
        assert alone == [1]

    @rule("K89")
    def test_a_batch_poll_waits_for_the_rest(self):
        rig = PumpRig()
        rig.append(73)
        poll = rig.poll(0, min_count=100, max_wait=10)
        rig.advance(5)
        rig.append(27)
        assert poll.count == 100
        rig = PumpRig()
        rig.append(73)
        poll = rig.poll(0, min_count=100, max_wait=10)
        rig.advance(9.999)
        assert poll.pending
        rig.advance(0.001)
        assert poll.count == 73
        rig = PumpRig()
        rig.append(100)
        poll = rig.poll(0, min_count=100, max_bytes=room(*[100] * 40) + 50, max_wait=10)
        assert (poll.count, rig.store.reads) == (40, 1)

    @rule("C34")
    def test_the_head_comes_with_each_target(self):
        rig = PumpRig()
        assert rig.poll(0).one.head is None
        rig.append(3)
        rig.append(2)
        assert rig.poll(0, count=1).one.head == 4


class TestRetention:
    def test_a_position_below_the_log_is_served_from_its_start(self):
        rig = PumpRig(retention_bytes=300)
        for _ in range(5):
            rig.append(1)
        target = rig.poll(0).one
        assert (target.asked, target.position, target.log_start, target.next) == (0, 2, 2, 5)

    def test_a_parked_poll_that_retention_passed_waits_for_its_count_from_there(self):
        rig = PumpRig(retention_bytes=250)
        poll = rig.poll(0, min_count=2, max_wait=5)
        rig.append(1)
        rig.append(1)
        assert (poll.one.position, poll.count) == (0, 2)
        late = rig.poll(2, min_count=4, max_wait=5)
        for _ in range(4):
            rig.append(1)
        assert late.pending
        rig.advance(5)
        assert (late.one.asked, late.one.position, late.count) == (2, 4, 2)

    def test_everything_gone_is_an_empty_answer_behind_the_end(self):
        rig = PumpRig(retention_age=10)
        rig.append(3)
        poll = rig.poll(0, min_count=5, max_wait=20)
        rig.advance(11)
        rig.pump.retain()
        assert (rig.part().log_start, rig.part().size) == (3, 0)
        rig.advance(9)
        assert (poll.one.asked, poll.one.position, poll.one.head, poll.count) == (0, 3, 2, 0)

    @rule("S52")
    def test_a_wait_does_not_count_what_retention_took(self):
        rig = PumpRig(retention_bytes=250)
        wait = rig.wait((P0, 0), (P1, 0), min_count=4, max_wait=30)
        for _ in range(6):
            rig.append(1, P0)
        assert wait.pending, "two of six are left"
        rig.append(1, P1)
        assert wait.pending
        rig.append(1, P1)
        assert wait.ready == {P0: (2, 200), P1: (2, 200)}

    @rule("S52")
    def test_a_wait_is_not_answered_by_messages_that_went_at_once(self):
        rig = PumpRig(retention_bytes=50)
        wait = rig.wait((P0, 0), max_wait=5)
        lose_wakes(rig, lambda: rig.append(1))
        assert (rig.part().log_start, rig.part().log_end) == (1, 1)
        rig.append(1, size=40)
        assert wait.ready == {P0: (1, 40)}


class TestReadiness:
    @rule("S52")
    def test_a_wait_over_1000_targets_names_the_ready_ones(self):
        rig = PumpRig(partitions=1000)
        targets = [(TopicPartition(TOPIC, number), 0) for number in range(1000)]
        wait = rig.wait(*targets)
        written = TopicPartition(TOPIC, 777)
        rig.append(3, written)
        assert wait.ready == {written: (3, 300)}
        assert rig.store.reads == 0, "it moves no messages and reads none"
        assert rig.pump.parked == 0

    @rule("S52", "S28")
    def test_a_wait_ends_with_nothing_when_its_time_is_over(self):
        rig = PumpRig()
        wait = rig.wait((P0, 0), (P1, 0), max_wait=5)
        some = rig.wait((P0, 0), (P1, 0), min_count=5, max_wait=5)
        rig.wait((P0, 0), max_wait=0.5)
        rig.advance(4.999)
        assert wait.pending
        rig.advance(0.001)
        assert (wait.ready, some.ready) == ({}, {})

    @rule("S52")
    def test_an_accumulating_wait_ends_with_what_it_gathered(self):
        rig = PumpRig()
        wait = rig.wait((P0, 0), (P1, 0), min_count=10, max_wait=5)
        rig.append(2, P0)
        rig.append(3, P1)
        rig.advance(5)
        assert wait.ready == {P0: (2, 200), P1: (3, 300)}

    @rule("S52", "K89")
    def test_a_wait_counts_over_all_its_targets(self):
        rig = PumpRig()
        rig.append(2, P0)
        by_count = rig.wait((P0, 0), (P1, 0), min_count=5)
        by_bytes = rig.wait((P0, 1), (P1, 0), min_count=100, min_bytes=400)
        rig.append(2, P1)
        assert by_count.pending
        assert by_bytes.pending
        rig.append(1, P1)
        assert by_count.ready == {P0: (2, 200), P1: (3, 300)}
        assert by_bytes.ready == {P0: (1, 100), P1: (3, 300)}

    @rule("S53")
    def test_a_commit_evaluates_only_its_own_partition(self):
        rig = PumpRig(partitions=1000)
        targets = [(TopicPartition(TOPIC, number), 0) for number in range(1000)]
        work: list[int] = []
        for count in (1, 1000):
            wait = rig.wait(*targets[:count], change=abc.WatchChange(count, 0, (), ()))
            gathering = rig.wait(*targets[:count], min_count=50)
            rig.store.counted = 0
            with python_calls("polls.py", "watches.py", "readiness.py") as calls:
                rig.append(1, TopicPartition(TOPIC, 0))
            assert (wait.ready[TopicPartition(TOPIC, 0)][0], gathering.pending) == (1, True)
            assert rig.store.counted == 0
            work.append(len(calls))
            rig.pump.cancel(gathering)
            rig.delete()
            rig.create(TOPIC, 1000)
        assert work[0] == work[1]

    @rule("S55")
    def test_the_caller_is_checked_once_per_request_and_probe(self):
        rig = PumpRig(partitions=1000)
        targets = [(TopicPartition(TOPIC, number), 0) for number in range(1000)]
        for ask in rig.poll, rig.wait:
            with python_calls("polls.py") as calls:
                ask(*targets)
            assert calls.count("check_member") == 2, "at admission and by its first probe"
        with python_calls("polls.py") as calls:
            rig.append(1, targets[5][0])
        assert calls.count("check_member") == 1, "by the probe of the wait"

    @rule("S56")
    def test_admission_evaluates_every_target(self):
        rig = PumpRig(partitions=1000)
        targets = [(TopicPartition(TOPIC, number), 0) for number in range(1000)]
        rig.append(2, targets[3][0])
        rig.append(1, targets[999][0])
        assert rig.wait(*targets).ready == {targets[3][0]: (2, 200), targets[999][0]: (1, 100)}
        assert rig.pump.parked == 0

    @rule("S57", "C81")
    def test_a_lowered_offset_is_seen_by_the_next_wait(self):
        rig = PumpRig()
        rig.append(5)
        rig.store_offset(4)
        wait = rig.wait(Start.next())
        rig.store_offset(1, lower=True)
        assert wait.pending, "the one permitted omission"
        assert rig.wait(Start.next()).ready == {P0: (3, 300)}

    def test_a_target_behind_the_end_is_refused(self):
        rig = PumpRig()
        assert isinstance(rig.wait((P0, 0), (P1, 1)).error, OffsetOutOfRange)
        assert rig.pump.parked == 0

    def test_a_missing_partition_counts_as_ready(self):
        rig = PumpRig()
        gone = TopicPartition("gone", 0)
        assert rig.wait((P0, 0), (gone, 0)).ready == {gone: (0, 0)}
        assert rig.pump.parked == 0

    def test_a_wait_that_does_not_wait_answers_at_once(self):
        rig = PumpRig()
        assert rig.wait((P0, 0), max_wait=0).ready == {}
        rig.append(1)
        assert rig.wait((P0, 0), max_wait=0, min_count=5).ready == {P0: (1, 100)}

    def test_the_same_partition_twice_is_one_target(self):
        rig = PumpRig()
        wait = rig.wait((P0, 0), (P0, 0), min_count=2)
        rig.append(1)
        assert wait.pending
        rig.append(1)
        assert wait.ready == {P0: (2, 200)}


class TestOffsets:
    @rule("C55")
    def test_a_deleted_offset_lets_next_begin_at_the_first_message(self):
        rig = PumpRig()
        rig.append(5)
        rig.store_offset(3)
        assert rig.poll(Start.next()).one.position == 4
        assert rig.store_offset(None).answer is None
        assert rig.stored() is None
        assert rig.poll(Start.next()).one.position == 0
        assert rig.store_offset(None).answer is None, "deleting nothing is no error"

    @rule("C56", "C52", "I7")
    def test_a_store_never_lowers_unless_told_to(self):
        rig = PumpRig()
        rig.append(5)
        assert rig.stored() is None
        assert rig.store_offset(2).answer == 2
        assert rig.store_offset(3).answer == 3
        assert rig.store_offset(1).answer == 3
        assert rig.store_offset(0).answer == 3
        assert rig.store_offset(3).answer == 3
        assert rig.stored() == 3
        assert rig.store_offset(1, lower=True).answer == 1
        assert rig.stored() == 1
        assert rig.store_offset(4, lower=True).answer == 4

    def test_offset_0_is_an_offset(self):
        rig = PumpRig()
        rig.append(1)
        assert rig.store_offset(0).answer == 0
        assert rig.stored() == 0
        assert rig.poll(Start.next()).one.position == 1

    @rule("C53")
    def test_a_refused_store_changes_nothing(self):
        rig = PumpRig()
        rig.append(5)
        rig.store_offset(2)
        for offset in (5, 6, -1):
            refused = rig.store_offset(offset)
            assert isinstance(refused.error, OffsetOutOfRange)
            assert (refused.error.asked, refused.error.log_end) == (offset, 5)
        assert rig.stored() == 2

    def test_offsets_belong_to_a_name_and_a_partition(self):
        rig = PumpRig()
        rig.append(5, P0)
        rig.append(5, P1)
        other = rig.open("other")
        rig.store_offset(3)
        rig.store_offset(1, member=other)
        assert (rig.stored(P0), rig.stored(P1)) == (3, None)
        assert rig.ask_stored(member=rig.open("billing")).answer == 3

    def test_without_a_name_nothing_can_be_stored(self):
        rig = PumpRig()
        rig.append(1)
        refused = rig.store_offset(0, member=rig.open(None))
        assert isinstance(refused.error, UsageError)
        assert "name=" in str(refused.error)

    def test_an_offset_of_a_deleted_topic_is_refused(self):
        rig = PumpRig()
        rig.append(5)
        history = rig.part().history
        assert rig.store_offset(1, history=history).answer == 1
        rig.delete()
        rig.create(TOPIC)
        rig.append(5)
        assert isinstance(rig.store_offset(4, history=history).error, StaleAssignment)
        assert rig.stored() is None

    def test_stores_below_the_log_start_are_taken(self):
        """What was finished before retention took it is finished."""
        rig = PumpRig(retention_bytes=150)
        rig.append(1)
        rig.append(1)
        assert rig.part().log_start == 1
        assert rig.store_offset(0).answer == 0


class TestTopics:
    def test_create_describe_list_delete(self):
        rig = PumpRig()
        ask = Ask()
        rig.create("a", 3, retention_bytes=10)
        rig.pump.list_topics(ask)
        assert [info.name for info in ask.answer] == ["a", TOPIC]
        ask = Ask()
        rig.pump.describe_topic(ask, "a")
        assert (len(ask.answer.partitions), ask.answer.retention_bytes) == (3, 10)
        assert rig.delete("a").answer is None
        assert isinstance(rig.delete("a").error, TopicNotFound)
        ask = Ask()
        rig.pump.describe_topic(ask, "a")
        assert isinstance(ask.error, TopicNotFound)

    @pytest.mark.parametrize("hold", [False, True])
    def test_an_existing_topic_is_taken_as_it_is_or_refused(self, hold: bool):
        rig = PumpRig(hold=hold)
        asks: list[Ask] = []
        for exist_ok in (False, True, True, False):
            asks.append(Ask())
            rig.pump.create_topic(asks[-1], "a", TopicOptions(partitions=len(asks)), exist_ok)
        rig.store.sync()
        assert [len(ask.answer.partitions) for ask in asks[:3]] == [1, 1, 1]
        assert isinstance(asks[3].error, TopicExists)

    def test_a_missing_topic_is_named_when_a_session_opens(self):
        rig = PumpRig()
        ask = Ask()
        rig.pump.open_session(ask, abc.ConsumerIdentity("x"), ("b", "c"), ())
        assert isinstance(ask.error, TopicNotFound)
        assert "'b', 'c'" in str(ask.error)
        ask = Ask()
        rig.pump.open_session(ask, abc.ConsumerIdentity("x"), (), (TopicPartition(TOPIC, 9),))
        assert "no partition 9" in str(ask.error)

    def test_a_session_owns_the_partitions_it_asked_for(self):
        rig = PumpRig()
        rig.create("b", 3)
        ask = Ask()
        rig.pump.open_session(ask, abc.ConsumerIdentity("x"), (TOPIC,), (TopicPartition("b", 2), P1))
        _, assignment = ask.answer
        assert list(assignment.owned) == [P0, P1, TopicPartition("b", 2)]
        assert assignment.topics == {TOPIC: 2, "b": 3}

    def test_a_topic_deleted_before_its_append_is_written_takes_nothing(self):
        rig = PumpRig(hold=True)
        deleted, appended = rig.delete(), rig.ask_append(seal([b"x"], [0]))
        rig.store.sync()
        assert deleted.answer is None
        assert isinstance(appended.error, TopicNotFound)


class TestWrites:
    def test_a_receipt_says_where(self):
        rig = PumpRig()
        rig.append(3)
        receipt = rig.append(2)
        assert (receipt.topic_partition, receipt.offset, receipt.duplicate) == (P0, 3, False)
        stamp = ProducerStamp(b"p" * 16, 1)
        first, again = (rig.ask_append(seal([b"x"], [0]), P0, stamp).answer for _ in range(2))
        assert (first.offset, again.offset, again.duplicate) == (5, 5, True)
        assert rig.part().log_end == 6

    @rule("W17")
    def test_a_write_is_taken_out_while_it_waits_and_applied_once_handed_over(self):
        rig = PumpRig(hold=True)
        waiting, kept = rig.ask_append(seal([b"x"], [0])), rig.ask_append(seal([b"y"], [0]))
        rig.pump.cancel(waiting)
        rig.store.sync()
        assert waiting.pending
        assert kept.answer.offset == 0
        rig.pump.cancel(kept)
        assert rig.part().log_end == 1

    def test_what_is_not_durable_wakes_nobody(self):
        rig = PumpRig(hold=True)
        poll = rig.poll(0, max_wait=5)
        appended = rig.ask_append(seal([b"x"], [0]))
        assert poll.pending
        assert appended.pending
        rig.store.sync()
        assert poll.count == 1
        assert appended.answer.offset == 0

    def test_a_waiter_is_woken_before_the_appender_is_answered(self):
        rig = PumpRig()
        order: list[str] = []

        class Noted(Ask):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            def reply(self, answer: Any) -> None:
                order.append(self.name)
                super().reply(answer)

        reader, writer = Noted("reader"), Noted("writer")
        rig.pump.poll(reader, rig.member, [abc.FetchTarget(P0, Position(0))], Limits(10, MIB, 1, 5))
        rig.pump.append(writer, P0, seal([b"x"], [0]), None)
        assert order == ["reader", "writer"]

    def test_waiters_of_one_commit_are_answered_oldest_first(self):
        rig = PumpRig()
        answered: list[int] = []

        class Noted(Ask):
            def reply(self, answer: Any) -> None:
                super().reply(answer)
                answered.append(noted.index(self))

        noted = [Noted() for _ in range(4)]
        for ask, need in zip(noted, (3, 1, 2, 3), strict=True):
            rig.pump.poll(ask, rig.member, [abc.FetchTarget(P0, Position(0))], Limits(10, MIB, need, 5))
        rig.append(3)
        assert answered == [0, 1, 2, 3]


class TestReopened:
    """A store that failed and read everything again may know more, or less, than was known before."""

    def test_who_waits_looks_again(self):
        rig = PumpRig()
        rig.append(2)
        poll, wait = rig.poll(0, min_count=3, max_wait=5), rig.wait((P0, 2))
        gathering, still = rig.wait((P0, 0), min_count=4), rig.poll(0, min_count=5, max_wait=5)
        lose_wakes(rig, lambda: rig.append(2))
        rig.pump.reopened(rig.store.open(rig.pump))
        assert (poll.count, wait.ready, gathering.ready) == (4, {P0: (2, 200)}, {P0: (4, 400)})
        assert (still.pending, rig.pump.parked) == (True, 1)
        rig.append(1)
        assert still.count == 5

    def test_a_position_that_is_gone_is_out_of_range(self):
        rig, other = PumpRig(), PumpRig()
        rig.append(2)
        other.append(1)
        poll = rig.poll(2, max_wait=5)
        rig.pump.reopened(other.store.open(other.pump))
        assert isinstance(poll.error, OffsetOutOfRange)
        assert rig.part().log_end == 1

    def test_topics_and_offsets_are_taken_over(self):
        rig, other = PumpRig(), PumpRig()
        rig.create("gone")
        other.append(3)
        other.store_offset(1)
        other.create("new")
        parked = rig.poll((TopicPartition("gone", 0), 0), max_wait=5)
        rig.pump.reopened(other.store.open(other.pump))
        assert isinstance(parked.error, TopicNotFound)
        assert (rig.stored(), sorted(rig.pump.view.topics)) == (1, ["new", TOPIC])


class TestErrors:
    def test_each_request_gets_an_error_of_its_own(self):
        """One exception raised in two tasks would carry the traceback of one into the other."""
        rig = PumpRig()
        asks = [rig.poll(0, max_wait=5), rig.poll(0, max_wait=5)]
        cause = OSError("gone")
        failure = LogUnavailable("the disk is gone")
        failure.__cause__ = cause
        rig.pump.failed(failure)
        asks += [rig.poll(0), rig.poll(0)]
        errors: list[TarryError] = [ask.error for ask in asks]
        assert len({id(error) for error in errors}) == 4
        assert all(error.__cause__ is cause for error in errors)


def test_offsets_are_plain_numbers():
    rig = PumpRig()
    assert rig.append(1).offset == Offset(0)
