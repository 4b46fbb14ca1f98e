"""Group commit, the loop's side: who shares a round, who gets which answer; over a writer that obeys the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event

import pytest

from tarry import abc
from tarry.brokers.local.committer import Changes, Committer, Outcome, Ticket
from tarry.errors import DataError, LogUnavailable, OutcomeUnknown, TarryError
from tarry.types import Position
from tests.marks import rule


def job(name: str, size: int = 10) -> abc.DeleteTopic:
    return abc.DeleteTopic(name, size=size)


@dataclass
class ScriptedWriter:
    """Writes rounds when the test lets it, and answers each job with `answer`."""

    rounds: list[list[str]] = field(default_factory=list[list[str]])
    begun: SimpleQueue[list[str]] = field(default_factory=SimpleQueue[list[str]])
    gate: Event = field(default_factory=Event)
    answer: Callable[[str], TarryError | None] = lambda name: None
    error: BaseException | None = None
    fatal: TarryError | None = None
    rest_error: BaseException | None = None
    is_finished: bool = False

    def write(self, jobs: Sequence[abc.Job]) -> Outcome:
        names = [each.name for each in jobs if isinstance(each, abc.DeleteTopic)]
        self.rounds.append(names)
        self.begun.put(names)
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        trims = [abc.Trimmed(abc.PartitionId(len(self.rounds)), Position(0), 0)]
        return Outcome([self.answer(name) for name in names], Changes(trims=trims), self.fatal)

    def rest(self) -> float | None:
        if self.rest_error is not None:
            raise self.rest_error
        return None

    def idle(self) -> float | None:
        return None

    def finish(self) -> None:
        self.is_finished = True


class Rig:
    """A committer on a loop that turns when the test says so; `log` is what happened on that loop, in order."""

    def __init__(self, queue_bytes: int = 1000) -> None:
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.log: list[str] = []
        self.answers: dict[str, list[object]] = {}
        self.writer = ScriptedWriter()
        self.on_applied: Callable[[], object] = lambda: None
        self.committer = Committer(
            self.writer,
            applied=self.applied,
            failed=lambda error: self.log.append(f"failed {type(error).__name__}"),
            post=self.post,
            queue_bytes=queue_bytes,
            name="writer under test",
        )

    def applied(self, changes: Changes) -> None:
        self.log.append(f"applied {changes.trims[0].partition}")
        self.on_applied()

    def post(self, fn: Callable[..., None], *args: object) -> None:
        self.calls.put(lambda: fn(*args))

    def submit(self, name: str, size: int = 10) -> Ticket:
        self.answers.setdefault(name, [])

        def done(result: object) -> None:
            self.answers[name].append(result)
            self.log.append(f"done {name}")

        return self.committer.submit(job(name, size), done)

    def turn(self) -> None:
        """Run what is posted already."""
        while not self.calls.empty():
            self.calls.get()()

    def run_until(self, is_done: Callable[[], object]) -> None:
        while not is_done():
            self.calls.get(timeout=10)()

    def close(self) -> None:
        self.writer.gate.set()
        closed: list[bool] = []
        self.committer.close(lambda: closed.append(True))
        self.run_until(lambda: closed)

    def kinds(self) -> dict[str, list[str]]:
        return {name: [type(answer).__name__ for answer in answers] for name, answers in self.answers.items()}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()
    assert rig.writer.is_finished
    assert not rig.committer._worker._thread.is_alive()


@rule("W1")
def test_a_lone_job_leaves_at_the_end_of_its_turn_and_waits_for_nobody(rig: Rig) -> None:
    rig.submit("a")
    assert rig.writer.begun.empty()
    rig.turn()
    assert rig.writer.begun.get(timeout=10) == ["a"]


@rule("W1", "W6")
def test_a_round_is_what_came_while_the_one_before_was_out(rig: Rig) -> None:
    for name in "ab":
        rig.submit(name)
    rig.turn()
    assert rig.writer.begun.get(timeout=10) == ["a", "b"]
    for name in "cde":
        rig.submit(name)
        rig.turn()
    assert rig.writer.begun.empty()  # At most one round is out.
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["e"])
    assert rig.writer.rounds == [["a", "b"], ["c", "d", "e"]]
    assert rig.log == ["applied 1", "done a", "done b", "applied 2", "done c", "done d", "done e"]


@rule("W1")
def test_a_job_that_comes_while_memory_follows_a_round_sends_no_second_one(rig: Rig) -> None:
    later = iter("bd")
    rig.on_applied = lambda: rig.submit(next(later, "e"))
    rig.submit("a")
    rig.turn()
    rig.writer.begun.get(timeout=10)
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["a"])  # The round of b is out, and the turn that it asked for is still to come.
    rig.on_applied = lambda: None
    rig.writer.gate.clear()
    rig.submit("c")
    rig.turn()
    assert rig.committer._out is not None
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["c"])
    assert rig.writer.rounds == [["a"], ["b"], ["c"]]


@rule("W5")
def test_nobody_is_answered_before_the_round_is_back_and_memory_follows_it(rig: Rig) -> None:
    rig.submit("a")
    rig.turn()
    rig.writer.begun.get(timeout=10)
    rig.turn()
    assert rig.log == []
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["a"])
    assert rig.log == ["applied 1", "done a"]


@rule("W6")
def test_every_caller_gets_its_own_result(rig: Rig) -> None:
    errors = {"b": LogUnavailable("b"), "d": DataError("d")}
    rig.writer.answer = errors.get
    for name in "abcd":
        rig.submit(name)
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["d"])
    assert rig.answers == {"a": [None], "b": [errors["b"]], "c": [None], "d": [errors["d"]]}


@rule("W4")
def test_beyond_the_queue_jobs_wait_in_order_and_none_fails() -> None:
    rig = Rig(queue_bytes=30)
    tickets = {name: rig.submit(name, size) for name, size in [("a", 20), ("b", 10), ("c", 1), ("d", 99), ("e", 5)]}
    late = rig.submit("f", 5)
    assert rig.committer.withdraw(late)
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["e"])
    assert rig.writer.rounds == [["a", "b"], ["c"], ["d"], ["e"]]
    assert rig.kinds() == {name: ["NoneType"] for name in tickets} | {"f": []}
    rig.close()


@rule("W17")
def test_only_a_job_that_was_not_handed_over_can_be_withdrawn(rig: Rig) -> None:
    first, second = rig.submit("a"), rig.submit("b")
    assert rig.committer.withdraw(second)
    assert not rig.committer.withdraw(second)
    rig.turn()
    assert rig.writer.begun.get(timeout=10) == ["a"]
    assert not rig.committer.withdraw(first)
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["a"])
    assert not rig.committer.withdraw(first)
    assert rig.kinds() == {"a": ["NoneType"], "b": []}


def test_when_all_are_withdrawn_no_round_leaves(rig: Rig) -> None:
    ticket = rig.submit("a")
    assert rig.committer.withdraw(ticket)
    rig.turn()
    assert rig.writer.rounds == []


@rule("W15")
def test_a_thread_that_dies_leaves_nobody_hanging(rig: Rig) -> None:
    rig.writer.error = MemoryError("no more")
    rig.submit("taken")
    rig.turn()
    rig.writer.begun.get(timeout=10)
    rig.submit("waiting")
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["taken"])
    rig.submit("later")
    rig.run_until(lambda: rig.answers["later"])
    assert rig.kinds() == {"taken": ["OutcomeUnknown"], "waiting": ["LogUnavailable"], "later": ["LogUnavailable"]}
    unknown = rig.answers["taken"][0]
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.__cause__ is rig.writer.error
    assert rig.log.count("failed LogUnavailable") == 1


@rule("W15")
def test_a_thread_that_dies_after_its_answer_spoils_only_what_comes(rig: Rig) -> None:
    rig.writer.rest_error = LogUnavailable("the disk is gone")
    rig.writer.gate.set()
    rig.submit("a")
    rig.run_until(lambda: "failed LogUnavailable" in rig.log)
    rig.submit("b")
    rig.run_until(lambda: rig.answers["b"])
    assert rig.kinds() == {"a": ["NoneType"], "b": ["LogUnavailable"]}
    assert "the disk is gone" in str(rig.answers["b"][0])


@rule("W15")
def test_a_writer_that_stops_for_good_answers_its_round_and_refuses_the_rest(rig: Rig) -> None:
    rig.writer.fatal = DataError("written by another program")
    rig.submit("taken")
    rig.turn()
    rig.writer.begun.get(timeout=10)
    rig.submit("waiting")
    rig.writer.gate.set()
    rig.run_until(lambda: rig.answers["taken"])
    rig.submit("later")
    rig.run_until(lambda: rig.answers["later"])
    assert rig.kinds() == {"taken": ["NoneType"], "waiting": ["LogUnavailable"], "later": ["LogUnavailable"]}
    assert "written by another program" in str(rig.answers["later"][0])
    assert rig.log.count("failed DataError") == 1


@rule("W16")
def test_closing_writes_what_is_queued_and_answers_everybody(rig: Rig) -> None:
    rig.submit("out")
    rig.turn()
    rig.writer.begun.get(timeout=10)
    rig.submit("queued")
    closed: list[int] = []
    rig.committer.close(lambda: closed.append(1))
    rig.committer.close(lambda: closed.append(2))
    rig.submit("late")
    rig.writer.gate.set()
    rig.run_until(lambda: len(closed) == 2)
    rig.committer.close(lambda: closed.append(3))
    rig.run_until(lambda: len(closed) == 3)
    assert rig.kinds() == {"out": ["NoneType"], "queued": ["NoneType"], "late": ["LogUnavailable"]}
    assert closed == [1, 2, 3]


@rule("W16")
def test_closing_ends_when_the_last_queued_job_is_withdrawn(rig: Rig) -> None:
    ticket = rig.submit("a")
    closed: list[bool] = []
    rig.committer.close(lambda: closed.append(True))
    assert rig.committer.withdraw(ticket)
    rig.run_until(lambda: closed)
    assert rig.writer.rounds == []


@rule("W17")
def test_a_caller_that_fails_to_take_its_answer_costs_nobody_else_theirs(rig: Rig) -> None:
    def broken(result: object) -> None:
        raise KeyError("a caller")

    rig.committer.submit(job("x"), broken)
    rig.submit("a")
    rig.writer.gate.set()
    with pytest.raises(KeyError):
        rig.run_until(lambda: False)
    assert rig.kinds() == {"a": ["NoneType"]}
    rig.submit("b")
    rig.run_until(lambda: rig.answers["b"])
