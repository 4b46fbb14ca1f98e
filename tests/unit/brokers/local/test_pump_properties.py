"""The pump against a model that looks at everything after each step and knows no heaps, thresholds or wakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tarry import abc
from tarry._wire.batch import RUN_OVERHEAD, seal
from tarry.brokers.local.probes import Limits, Member, Probe
from tarry.brokers.local.view import Partition
from tarry.errors import (
    CapacityExceeded,
    NotAccepted,
    NotAMember,
    OutcomeUnknown,
    StaleAssignment,
    TarryError,
    TopicNotFound,
)
from tarry.types import HistoryId, Offset, Ownership, Position, Start, TopicPartition
from tests.marks import rule as proves
from tests.unit.brokers.local.pump_rig import P0, P1, TOPIC, Ask, Owners, PumpRig
from tests.unit.machines import HALF

SIZES = st.lists(st.sampled_from([1, 50, 100, 300, 1000]), min_size=1, max_size=4)
COUNTS = st.integers(min_value=1, max_value=6)
MAX_BYTES = st.sampled_from([1, RUN_OVERHEAD + 1, RUN_OVERHEAD + 150, RUN_OVERHEAD + 400, 1_000_000])
WAITS = st.sampled_from([0.0, 0.5, 3.0, 40.0])
TOPICS = {"kept": 1, "trimmed": 1}
PARTITIONS = tuple(TopicPartition(topic, number) for topic, count in TOPICS.items() for number in range(count))
TRIM_BYTES = 700


@dataclass
class Log:
    """One partition: every size ever appended, the rows that are left, and what retention took."""

    history: HistoryId
    trim: bool
    sizes: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.sizes)

    def there(self, position: int) -> list[int]:
        """Sizes of what can be read from a position on."""
        return self.sizes[max(position, self.start) :]

    def retain(self) -> None:
        while self.trim and sum(self.sizes[self.start :]) > TRIM_BYTES:
            self.start += self.rows.pop(0)


def select(there: Sequence[int], count: int, limit: int) -> list[int]:
    """What one target gets: whole records from the front while they fit, the first one in any case."""
    taken: list[int] = []
    for size in there:
        if len(taken) == count or (taken and sum(taken) + size > limit):
            break
        taken.append(size)
        if sum(taken) >= limit:
            break
    return taken


@dataclass(eq=False)
class Request:
    """A poll or wait, as the model sees it."""

    ask: Ask
    member: Member
    targets: list[tuple[TopicPartition, int]]
    logs: list[Log]
    min_count: int
    deadline: float
    expected: Any = None

    def gone(self, logs: dict[TopicPartition, Log]) -> list[TopicPartition]:
        pairs = zip(self.targets, self.logs, strict=True)
        return [partition for (partition, _), log in pairs if logs[partition] is not log]


@dataclass(eq=False)
class Poll(Request):
    count: int = 1
    max_bytes: int = 1
    waits: bool = False

    def selection(self) -> list[list[int]]:
        room, count, empty = self.max_bytes, self.count, True
        found: list[list[int]] = []
        for (_, position), log in zip(self.targets, self.logs, strict=True):
            limit = room - RUN_OVERHEAD
            taken = select(log.there(position), count, max(limit, 1)) if count and (limit > 0 or empty) else []
            if not empty and sum(taken) > limit:
                taken = []
            found.append(taken)
            if taken:
                room, count, empty = limit - sum(taken), count - len(taken), False
        return found

    def complete(self) -> bool:
        if not self.waits:
            return True
        (taken,), ((_, position),), (log,) = self.selection(), self.targets, self.logs
        limit = max(self.max_bytes - RUN_OVERHEAD, 1)
        there = log.there(position)
        full = sum(taken) >= limit or len(taken) < min(len(there), self.count)
        return len(taken) >= self.min_count or full

    def answer(self) -> Any:
        begins = [max(position, log.start) for (_, position), log in zip(self.targets, self.logs, strict=True)]
        return [(begin, taken) for begin, taken in zip(begins, self.selection(), strict=True)]

    def given(self) -> Any:
        """What the pump answered, in the form of `answer`."""
        found: list[tuple[int, list[int]]] = []
        for target, log in zip(self.ask.poll.targets, self.logs, strict=True):
            assert target.history == log.history
            found.append((target.position, [size for run in target.runs for size in sizes(run)]))
            expected = int(target.position)
            for run in target.runs:
                assert run.base == expected, "nothing is missing between runs"
                expected = run.end
            assert target.next == expected
        return found


@dataclass(eq=False)
class Wait(Request):
    min_bytes: int | None = None

    def there(self) -> dict[TopicPartition, list[int]]:
        pairs = zip(self.targets, self.logs, strict=True)
        return {partition: found for (partition, position), log in pairs if (found := log.there(position))}

    def complete(self) -> bool:
        found = [size for there in self.there().values() for size in there]
        return len(found) >= self.min_count or (self.min_bytes is not None and sum(found) >= self.min_bytes)

    def answer(self) -> Any:
        return {partition: (len(found), sum(found)) for partition, found in self.there().items()}

    def given(self) -> Any:
        return self.ask.ready


def sizes(run: Any) -> list[int]:
    return [run.batch.start_of(index + 1) - run.batch.start_of(index) for index in range(run.lo, run.hi)]


class PumpMachine(RuleBasedStateMachine):
    """With `cold` each read takes until some later step, and answers are judged when no read is out."""

    cold = False
    early = False

    def __init__(self) -> None:
        super().__init__()
        self.rig = PumpRig(cold=self.cold, early=self.early)
        self.logs: dict[TopicPartition, Log] = {}
        self.pending: list[Poll | Wait] = []
        self.member = self.rig.member

    @initialize()
    def create(self) -> None:
        for topic in TOPICS:
            self.create_topic(topic)

    def create_topic(self, topic: str) -> None:
        trim = topic == "trimmed"
        info = self.rig.create(topic, TOPICS[topic], **({"retention_bytes": TRIM_BYTES} if trim else {}))
        for part in info.partitions:
            self.logs[TopicPartition(topic, part.partition)] = Log(part.history, trim)

    # -- steps

    @rule(partition=st.sampled_from(PARTITIONS), sizes=SIZES)
    def append(self, partition: TopicPartition, sizes: list[int]) -> None:
        log = self.logs[partition]
        log.sizes += sizes
        log.rows.append(len(sizes))
        reads = self.rig.store.reads
        self.judge()
        log.retain()
        assert self.rig.append_sizes(sizes, partition).offset == log.end - len(sizes)
        polls = sum(isinstance(request, Poll) and not request.ask.pending for request in self.pending)
        if not log.trim and not self.cold:
            assert self.rig.store.reads - reads == polls, "one read for each poll that ends, none for the others"

    @rule(partition=st.sampled_from(PARTITIONS), size=st.sampled_from([1, 50, 100, 150]))
    def append_one(self, partition: TopicPartition, size: int) -> None:
        self.append(partition, [size])

    @rule(partition=st.sampled_from(PARTITIONS), sizes=st.lists(st.sampled_from([50, 100]), min_size=1, max_size=3))
    def append_few(self, partition: TopicPartition, sizes: list[int]) -> None:
        self.append(partition, sizes)

    @rule(
        partition=st.sampled_from(PARTITIONS),
        back=st.integers(min_value=0, max_value=8),
        count=COUNTS,
        min_count=COUNTS,
        max_bytes=MAX_BYTES,
        max_wait=WAITS,
    )
    def poll(
        self, partition: TopicPartition, back: int, count: int, min_count: int, max_bytes: int, max_wait: float
    ) -> None:
        self.ask_poll([(partition, self.position(partition, back))], count, min_count, max_bytes, max_wait)

    @rule(
        partition=st.sampled_from(PARTITIONS),
        back=st.integers(min_value=0, max_value=3),
        min_count=st.integers(min_value=3, max_value=6),
        max_bytes=MAX_BYTES,
    )
    def park(self, partition: TopicPartition, back: int, min_count: int, max_bytes: int) -> None:
        self.ask_poll([(partition, self.position(partition, back))], 6, min_count, max_bytes, 40.0)

    @rule(partition=st.sampled_from(PARTITIONS), max_bytes=st.sampled_from([RUN_OVERHEAD + 150, RUN_OVERHEAD + 400]))
    def park_behind_a_message(self, partition: TopicPartition, max_bytes: int) -> None:
        self.append(partition, [100])
        self.answers_are_right()
        self.ask_poll([(partition, self.position(partition, 1))], 9, 9, max_bytes, 40.0)

    @rule(
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=2, unique=True),
        back=st.integers(min_value=0, max_value=8),
        count=st.integers(min_value=1, max_value=20),
        max_bytes=MAX_BYTES,
    )
    def poll_several(self, partitions: list[TopicPartition], back: int, count: int, max_bytes: int) -> None:
        targets = [(partition, self.position(partition, back)) for partition in partitions]
        self.ask_poll(targets, count, 1, max_bytes, 0)

    def ask_poll(
        self, targets: list[tuple[TopicPartition, int]], count: int, min_count: int, max_bytes: int, max_wait: float
    ) -> None:
        min_count = min(count, min_count)
        logs = [self.logs[partition] for partition, _ in targets]
        deadline = self.rig.clock.at + min(max_wait, 30.0)
        specs = [
            abc.FetchTarget(partition, Position(position), history=self.logs[partition].history)
            for partition, position in targets
        ]
        ask = self.rig.poll(
            *specs, count=count, min_count=min_count, max_bytes=max_bytes, max_wait=max_wait, member=self.member
        )
        request = Poll(ask, self.member, targets, logs, min_count, deadline, None, count, max_bytes, max_wait > 0)
        self.pending.append(request)
        self.judge()

    @rule(
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True),
        back=st.integers(min_value=0, max_value=2),
        min_count=st.integers(min_value=1, max_value=8),
        min_bytes=st.none() | st.sampled_from([1, 500, 1500]),
        max_wait=WAITS,
    )
    def wait(
        self, partitions: list[TopicPartition], back: int, min_count: int, min_bytes: int | None, max_wait: float
    ) -> None:
        targets = [(partition, self.position(partition, back)) for partition in partitions]
        logs = [self.logs[partition] for partition in partitions]
        deadline = self.rig.clock.at + min(max_wait, 30.0)
        ask = self.rig.wait(*targets, min_count=min_count, min_bytes=min_bytes, max_wait=max_wait, member=self.member)
        self.pending.append(Wait(ask, self.member, targets, logs, min_count, deadline, None, min_bytes))
        self.judge()

    def position(self, partition: TopicPartition, back: int) -> int:
        return max(self.logs[partition].end - back, 0)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.pending))
        self.rig.pump.cancel(request.ask)
        assert request.ask.pending
        self.pending.remove(request)

    @rule(seconds=st.sampled_from([0.25, 0.25, 0.5, 2.5, 11.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        for request in self.pending:
            if request.deadline <= self.rig.clock.at + seconds:
                self.expect(request, request.answer())
        self.rig.advance(seconds)

    @rule(topic=st.sampled_from(list(TOPICS)))
    def delete(self, topic: str) -> None:
        self.rig.delete(topic)
        self.create_topic(topic)
        for request in self.pending:
            if gone := request.gone(self.logs):
                is_poll = isinstance(request, Poll)
                self.expect(request, TopicNotFound if is_poll else request.answer() | dict.fromkeys(gone, (0, 0)))

    @rule()
    def leave(self) -> None:
        self.rig.pump.leave(None, self.member)
        self.member = self.rig.open("billing")
        for request in self.pending:
            self.expect(request, NotAMember)

    # -- judging

    def expect(self, request: Poll | Wait, answer: Any) -> None:
        if request.expected is None:
            request.expected = answer

    def judge(self) -> None:
        """Which requests must be answered by now, and with what."""
        for request in self.pending:
            if request.deadline <= self.rig.clock.at or request.complete():
                self.expect(request, request.answer())

    @invariant()
    def answers_are_right(self) -> None:
        for request in list(self.pending):
            if request.expected is None:
                assert request.ask.pending, "answered too early"
                continue
            self.pending.remove(request)
            if isinstance(request.expected, type):
                assert type(request.ask.error) is request.expected
            else:
                assert request.given() == request.expected

    @invariant()
    def nothing_is_left_behind(self) -> None:
        self.rig.waiters.check()
        assert self.rig.pump.parked == len(self.pending)
        assert self.rig.pump.polls._probes.keys() == {request.ask for request in self.pending}
        assert self.rig.member.calls.keys() | self.member.calls.keys() == {request.ask for request in self.pending}


class ColdPumpMachine(PumpMachine):
    """Every read takes until a later step; what happens meanwhile must not be missed, and nothing may be read twice."""

    cold = True

    @precondition(lambda self: self.rig.store.disk)
    @rule()
    def a_read_ends(self) -> None:
        self.rig.store.end_read()

    @precondition(lambda self: self.rig.store.disk)
    @rule()
    def all_reads_end(self) -> None:
        for _ in range(50):
            if not self.rig.store.disk:
                return
            self.rig.store.end_read()
        raise AssertionError("reads without end")

    @precondition(lambda self: self.rig.store.disk)
    @rule(topic=st.sampled_from(list(TOPICS)))
    def a_topic_goes_while_it_is_read(self, topic: str) -> None:
        self.delete(topic)
        self.all_reads_end()

    def expect(self, request: Poll | Wait, answer: Any) -> None:
        """Judged when it comes: a poll's answer is what was there at some moment of its read."""

    @invariant()
    def answers_are_right(self) -> None:
        for request in list(self.pending):
            if not request.ask.pending:
                self.pending.remove(request)
                self.check_answer(request)
                continue
            assert request.member.open
            late = self.rig.clock.at - request.deadline
            assert late < abc.REQUEST_GRACE
            if not self.rig.store.disk or isinstance(request, Wait):
                assert late < 0
                assert not request.gone(self.logs)
                assert not request.complete()

    def check_answer(self, request: Poll | Wait) -> None:
        answer = request.ask.answer
        if isinstance(answer, NotAMember):
            assert not request.member.open
        elif isinstance(answer, TopicNotFound):
            assert request.gone(self.logs)
        elif isinstance(answer, CapacityExceeded):
            assert isinstance(request, Poll)
            assert self.rig.clock.at >= request.deadline + abc.REQUEST_GRACE
        elif isinstance(request, Poll):
            self.check_poll(request)

    def check_poll(self, poll: Poll) -> None:
        given = poll.given()
        for (begin, taken), log, (_, position) in zip(given, poll.logs, poll.targets, strict=True):
            assert position <= begin or not taken
            assert log.sizes[begin : begin + len(taken)] == taken
        counts = [len(taken) for _, taken in given]
        parts = [sum(taken) + RUN_OVERHEAD for _, taken in given if taken]
        assert sum(counts) <= poll.count
        assert sum(parts) <= poll.max_bytes or sum(counts) == 1, "over the limit only one record, alone"
        if not poll.waits or self.rig.clock.at >= poll.deadline or sum(counts) >= poll.min_count:
            return
        ((begin, taken),), (log,) = given, poll.logs
        following = log.sizes[begin + len(taken) : begin + len(taken) + 1]
        assert sum(taken) + sum(following) >= max(poll.max_bytes - RUN_OVERHEAD, 1), "it ended early without a reason"


class EarlyColdPumpMachine(ColdPumpMachine):
    """As above; a read sees the log as it was when it began."""

    early = True


class Answer(Ask):
    """Tells the model at once: in one step several commits may be applied, and answered in between."""

    def __init__(self, told: Callable[[Any], None]) -> None:
        super().__init__()
        self.told = told

    def reply(self, answer: Any) -> None:
        super().reply(answer)
        self.told(answer)


@dataclass(eq=False)
class Commit:
    """A committing poll, as the model sees it; `job` is what it gave to the store."""

    member: Member
    part: Partition
    is_next: bool
    ownership: int
    deadline: float
    job: abc.StoreOffset | None = None


class CommitMachine(RuleBasedStateMachine):
    """Polls that commit, among stores, rewinds, cancels, crashes, hand-overs and deletions; jobs wait for a sync.

    The model knows of every offset store when it is applied, and by whom it was asked for.
    """

    cold = False

    def __init__(self) -> None:
        super().__init__()
        self.owners = Owners()
        self.rig = PumpRig(cold=self.cold, fence=self.owners)
        self.members = [self.rig.open("billing"), self.rig.open("billing"), self.rig.open("billing", "group")]
        self.group = self.members[2]
        self.ownership = 1
        self.owners.give(self.group, P0, P1)
        self.pending: dict[Ask, Commit] = {}
        self.commits: dict[int, Commit] = {}
        self.fates: dict[int, tuple[Offset | None, Offset | None]] = {}
        self.jobs: list[abc.StoreOffset] = []  # kept, so that no id comes twice
        self.given: dict[tuple[abc.PartitionId, str], set[int]] = {}
        self.is_crashing = False
        self.watch()
        self.rig.store.hold()

    def watch(self) -> None:
        """See each offset store when it is handed in, and when it is applied."""
        submit, store = self.rig.store.submit, self.rig.store._store

        def submitted(job: abc.Job, done: abc.JobDone) -> object:
            if isinstance(job, abc.StoreOffset):
                self.jobs.append(job)
                (probe, *_) = getattr(done, "args", (None,))
                if isinstance(probe, Probe):  # the commit of a poll
                    commit = self.commits[id(job)] = self.pending[cast(Ask, probe.call)]
                    assert commit.job is None, "committed twice"
                    commit.job = job
            return submit(job, done)

        def stored(job: abc.StoreOffset) -> abc.Stored:
            before = self.rig.store._partition(job.partition).stored.get(job.identity)
            result = store(job)
            self.applied(job, before, result.offset)
            return result

        self.rig.store.submit = submitted  # type: ignore[method-assign]
        self.rig.store._store = stored  # type: ignore[method-assign]

    # -- judging

    def applied(self, job: abc.StoreOffset, before: Offset | None, after: Offset | None) -> None:
        assert id(job) not in self.fates, "applied twice"
        self.fates[id(job)] = (before, after)
        given = self.given.setdefault((job.partition, job.identity), set())
        commit = self.commits.get(id(job))
        if commit is None and (job.offset is None or job.lower):
            given.intersection_update(range(0 if after is None else after + 1))
            return
        assert after is not None
        assert before is None or before <= after, "only an explicit store lowers"
        if commit is not None and commit.is_next:
            covered = covers(before, after)
            assert given.isdisjoint(covered), "nothing is served twice without a rewind"
            given.update(covered)

    def answered(self, commit: Commit, answer: Any) -> None:
        (ask,) = [ask for ask, other in self.pending.items() if other is commit]
        del self.pending[ask]
        if isinstance(answer, abc.PollReply):
            self.check_reply(commit, answer.targets[0])
            return
        assert isinstance(answer, TarryError)
        self.check_error(commit, answer)
        if answer.applied == "no" and commit.job is not None:
            assert id(commit.job) not in self.fates
            self.fates[id(commit.job)] = (None, None)  # and never will be

    def check_reply(self, commit: Commit, target: abc.TargetReply) -> None:
        offsets = [run.base + index for run in target.runs for index in range(run.count)]
        if not offsets:
            assert commit.job is None
            return
        assert commit.job is not None
        before, after = self.fates[id(commit.job)]
        assert after is not None
        assert commit.job.offset == offsets[-1] <= after == commit.part.stored[commit.member.key]
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
        if commit.is_next:
            assert offsets == list(covers(before, after))

    def check_error(self, commit: Commit, error: TarryError) -> None:
        is_late = self.rig.clock.at >= commit.deadline + abc.REQUEST_GRACE - 1e-6
        has_left = not commit.member.open
        owned = self.owners.owned.get((commit.member, commit.part.at)) == commit.ownership
        reasons: dict[type[TarryError], bool] = {
            NotAccepted: commit.is_next,
            TopicNotFound: self.rig.pump.view.is_gone(commit.part),
            NotAMember: has_left,
            StaleAssignment: commit.member.fenced and not owned,
            CapacityExceeded: is_late,
            OutcomeUnknown: self.is_crashing or (self.rig.store.taken and (is_late or has_left)),
        }
        assert reasons.get(type(error), False), repr(error)

    # -- steps

    @rule(partition=st.sampled_from([P0, P1]), count=st.integers(1, 4), durable=st.booleans())
    def append(self, partition: TopicPartition, count: int, durable: bool) -> None:
        self.rig.ask_append(seal([b"v" * 100] * count, [0] * count), partition)
        if durable:
            self.sync()

    @rule(
        partition=st.sampled_from([P0, P1]),
        who=st.integers(0, 2),
        back=st.none() | st.integers(0, 4),
        count=COUNTS,
        min_count=COUNTS,
        max_wait=WAITS,
    )
    def poll(
        self, partition: TopicPartition, who: int, back: int | None, count: int, min_count: int, max_wait: float
    ) -> None:
        member, part = self.members[who], self.rig.part(partition)
        place = Start.next() if back is None else Position(max(part.log_end - back, 0))
        ownership = self.ownership if member.fenced else 0
        deadline = self.rig.clock.at + min(max_wait, 30.0)
        commit = Commit(member, part, back is None, ownership, deadline)
        ask = Answer(partial(self.answered, commit))
        self.pending[ask] = commit
        limits = Limits(count, 1_000_000, min(count, min_count), max_wait, commit=True)
        self.rig.pump.poll(ask, member, [abc.FetchTarget(partition, place, Ownership(ownership))], limits)

    @rule(partition=st.sampled_from([P0, P1]), who=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def several_at_one_next(self, partition: TopicPartition, who: list[int]) -> None:
        self.append(partition, 3, durable=True)
        for one in who:
            self.poll(partition, one, None, 2, 1, 5.0)

    @rule(partition=st.sampled_from([P0, P1]), who=st.integers(0, 2), back=st.none() | st.integers(0, 4))
    def serve(self, partition: TopicPartition, who: int, back: int | None) -> None:
        self.append(partition, 3, durable=True)
        self.poll(partition, who, back, 2, 1, 5.0)
        self.rig.store.end_reads()
        self.sync()

    @rule(partition=st.sampled_from([P0, P1]), who=st.integers(0, 2), ahead=st.booleans(), back=st.integers(1, 4))
    def a_store_comes_between(self, partition: TopicPartition, who: int, ahead: bool, back: int) -> None:
        self.append(partition, 3, durable=True)
        self.poll(partition, who, None, 2, 1, 5.0)
        if ahead:
            self.rig.store.end_reads()
        self.store(partition, who, back, lower=True)
        self.rig.store.end_reads()
        self.sync()

    @rule(
        partition=st.sampled_from([P0, P1]),
        who=st.integers(0, 2),
        back=st.none() | st.integers(1, 6),
        lower=st.booleans(),
    )
    def store(self, partition: TopicPartition, who: int, back: int | None, lower: bool) -> None:
        offset = None if back is None else max(self.rig.part(partition).log_end - back, 0)
        member = self.members[who]
        ownership = self.ownership if member.fenced else 0
        self.rig.store_offset(offset, partition, lower=lower, ownership=ownership, member=member)

    @rule()
    def sync(self) -> None:
        self.rig.store.taken = False
        self.rig.store.sync()

    @rule()
    def the_writer_has_it(self) -> None:
        self.rig.store.taken = True

    @rule()
    def crash(self) -> None:
        self.is_crashing = True
        self.rig.store.crash()
        self.is_crashing = False
        self.rig.store.taken = False
        self.rig.pump.reopened(self.rig.store.open(self.rig.pump))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(list(self.pending)))
        commit = self.pending.pop(ask)
        self.rig.pump.cancel(ask)
        assert ask.pending
        if commit.job is not None and not self.rig.store.taken:
            self.fates[id(commit.job)] = (None, None)

    @precondition(lambda self: self.rig.store.disk)
    @rule(all_of_them=st.booleans())
    def reads_end(self, all_of_them: bool) -> None:
        self.rig.store.end_reads() if all_of_them else self.rig.store.end_read()

    @rule(seconds=st.sampled_from([0.25, 0.5, 3.0, 11.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.rig.advance(seconds)

    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        self.rig.pump.leave(None, self.members[who])
        self.members[who] = self.rig.open("billing")

    @rule(partition=st.sampled_from([P0, P1]))
    def partitions_move_away_and_back(self, partition: TopicPartition) -> None:
        self.owners.give(self.group, P0, P1, ownership=self.ownership + 1)
        self.rig.pump.polls.look_again(self.group, {P0, P1})
        self.ownership += 1

    @rule(ahead=st.booleans())
    def delete(self, ahead: bool) -> None:
        self.rig.delete()
        if ahead:
            self.rig.store.end_reads()
        self.sync()
        self.rig.store.hold(False)
        self.rig.create(TOPIC, 2)
        self.rig.store.hold()

    def teardown(self) -> None:
        """Whatever happened, each request ends, and only once (`Ask`)."""
        self.rig.store.end_reads()
        self.sync()
        self.rig.advance(30.0)
        self.rig.store.end_reads()
        self.sync()
        assert self.pending == {}
        self.nothing_is_left_behind()

    @invariant()
    def nothing_is_left_behind(self) -> None:
        self.rig.waiters.check()
        assert self.rig.pump.polls._probes.keys() == self.pending.keys()
        assert self.rig.pump.parked == len(self.pending)

    @invariant()
    def who_waits_still_may(self) -> None:
        for ask, commit in self.pending.items():
            late = self.rig.clock.at - commit.deadline
            assert late < abc.REQUEST_GRACE
            assert commit.member.open
            if commit.job is None and not self.rig.store.disk:
                assert late < 0
                assert not self.rig.pump.view.is_gone(commit.part)
                assert ask.pending

    @invariant()
    def memory_follows_the_store(self) -> None:
        for part in (self.rig.part(P0), self.rig.part(P1)):
            assert part.stored == self.rig.store._partition(part.id).stored


def covers(before: Offset | None, after: Offset) -> range:
    """What a commit at Next covers, when nothing was ever removed."""
    return range(0 if before is None else before + 1, after + 1)


class ColdCommitMachine(CommitMachine):
    """Every read takes until a later step."""

    cold = True


@pytest.mark.slow
@proves("S47", "S50", "I7")
def test_a_commit_covers_what_its_reply_brings_and_never_lowers():
    run_state_machine_as_test(CommitMachine)


@pytest.mark.slow
@proves("S49", "S74", "I4")
def test_commits_behind_reads_that_take_time_cover_what_their_replies_bring():
    run_state_machine_as_test(ColdCommitMachine)


@pytest.mark.slow
@proves("S17", "S20", "S23")
def test_answers_at_the_right_moment_with_the_right_messages():
    run_state_machine_as_test(PumpMachine, settings=HALF)


@pytest.mark.slow
@proves("S27", "S29")
def test_reads_that_take_time_lose_nothing():
    run_state_machine_as_test(ColdPumpMachine, settings=HALF)


@pytest.mark.slow
@proves("S27", "S24")
def test_reads_of_an_older_state_lose_nothing():
    run_state_machine_as_test(EarlyColdPumpMachine, settings=HALF)
