"""Judges of a simulated history: each walks over what happened and names what must not have.

One class or function per promise (spec I1-I9, design 1.2). They know what applications and the log saw, and nothing of
how a consumer works. What is excused, is excused exactly: by the process that was killed, by the store that was
reported to have failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarry.testing import Call
from tarry.types import TopicPartition
from tests.simulation.history import (
    Answered,
    Asked,
    Broken,
    Closed,
    Closing,
    Delivered,
    Event,
    Finished,
    Gave,
    History,
    Killed,
    Opened,
    Quiet,
    Reported,
    Run,
    Span,
    Stalled,
    Stored,
    shown,
)
from tests.simulation.members import TOPIC
from tests.simulation.world import GRACE

TICK = 1.0
"""How much later than its deadline a request may end (I4)."""
IDLE_REQUESTS_MAX = 40
"""Requests within a second of one member that bring nothing."""
CHECKERS: list[Callable[[History], Iterator[str]]] = []


def judge(history: History) -> list[str]:
    """Everything that is wrong with a history, each with its time."""
    return [wrong for check in CHECKERS for wrong in check(history)]


def checker(check: Callable[[History], Iterator[str]]) -> Callable[[History], Iterator[str]]:
    """Make a function one of the judges."""
    CHECKERS.append(check)
    return check


# ---------------------------------------------------------------------------------------------------------- I1


@dataclass(slots=True)
class Account:
    """What is known of one partition.

    Args:
        stored: the stored offset, as the log has it; -1: none.
        done: finished by the application in any run, or given to `store_offset`.
        delivered: in any run.
        lost: excused.
        safe: up to here nothing may be delivered again.
        owner: the run that reads it, or that did last; `is_over` when that has ended, `is_clean` when it ended well.
        begin: what was stored when that run began.
        last: the last offset that it has finished, or stored for sure; `perhaps`: others that it may have.
    """

    stored: int = -1
    done: set[int] = field(default_factory=set[int])
    delivered: set[int] = field(default_factory=set[int])
    lost: set[int] = field(default_factory=set[int])
    safe: int = -1
    owner: Run | None = None
    is_over: bool = False
    is_clean: bool = False
    begin: int = -1
    last: int | None = None
    perhaps: set[int] = field(default_factory=set[int])

    def taken_over(self, run: Run) -> None:
        """A run begins to read it."""
        self.owner, self.is_over, self.is_clean = run, False, False
        self.begin, self.last, self.perhaps = self.stored, None, set()

    def skipped(self, done: set[int]) -> list[int]:
        """What is stored past, and neither done nor excused."""
        return [offset for offset in range(self.stored + 1) if offset not in done and offset not in self.lost]

    def expected(self) -> set[int]:
        """Where a clean end leaves the stored offset."""
        last = self.begin if self.last is None else max(self.last, self.begin)
        return {last} | {offset for offset in self.perhaps if offset > last}


class Books:
    """I1 and the promises of design 1.2: nothing is skipped, nothing finished is repeated after a clean end."""

    def __init__(self) -> None:
        self.accounts: dict[int, Account] = defaultdict(Account)
        self.failed: dict[str, set[int | None]] = defaultdict(set)

    def judge(self, event: Event) -> Iterator[str]:
        match event:
            case Opened():
                for number in event.run.partitions:
                    self.accounts[number].taken_over(event.run)
            case Delivered():
                yield from self._delivered(event)
            case Finished():
                self._finished(event)
            case Gave():
                self._gave(event)
            case Stored():
                yield from self._stored(event)
            case Closing():
                self.failed[event.run.member] = set()
            case Reported(name="store_failed" | "drain_timeout"):
                partition = event.fields.get("partition")
                self.failed[event.member].add(partition.partition if isinstance(partition, TopicPartition) else None)
            case Closed():
                yield from self._closed(event)
            case Killed():
                yield from self._cut_off(event.run, event.run.partitions)
            case Quiet():
                yield from self._all(event)
            case _:
                pass

    def _delivered(self, event: Delivered) -> Iterator[str]:
        account = self.accounts[event.partition]
        again = [offset for offset in event.offsets if offset <= account.safe]
        if again:
            yield f"{event.run} gets {event.partition}:{again[0]}-{again[-1]} again, which was stored up to {account.safe}"
        account.delivered.update(event.offsets)

    def _finished(self, event: Finished) -> None:
        for number, first, last in event.spans:
            account = self.accounts[number]
            account.done.update(range(first, last + 1))
            if event.late:
                account.perhaps.add(last)
            else:
                account.last = last

    def _gave(self, event: Gave) -> None:
        for number, _, last in event.spans:
            account = self.accounts[number]
            account.done.update(range(last + 1))
            account.perhaps.add(last)
            if event.sure:
                account.safe = max(account.safe, last)
                account.last = max(last, -1 if account.last is None else account.last)

    def _stored(self, event: Stored) -> Iterator[str]:
        """No mode stores what the application did not get; only those that say so store what it did not finish."""
        account = self.accounts[event.partition]
        account.stored = -1 if event.after is None else event.after
        run = account.owner
        assert run is not None
        may = {"disabled": account.done, "finished": account.done, "interval": account.done | account.delivered}
        if run.mode in may and (skipped := account.skipped(may[run.mode])):
            yield f"{run} ({run.mode}) has stored {event.partition}:{account.stored}, but {skipped} were not its to store"
        if account.is_over and account.is_clean:
            yield f"{run}: {event.partition} is stored at {account.stored} after it has ended"
        if account.is_over and not account.is_clean:
            yield from self._cut_off(run, [event.partition])
        if account.stored < account.safe:
            account.safe = account.stored
            yield f"{run}: {event.partition} is lowered to {account.stored}, below what was stored for good"

    def _closed(self, event: Closed) -> Iterator[str]:
        run, failed = event.run, self.failed[event.run.member]
        left: dict[int, int] = defaultdict(int)
        for number, first, last in event.hand:
            left[number] += last - first + 1
        for number in run.partitions:
            account = self.accounts[number]
            yield from self._compared(event, number, left[number])
            if None in failed or number in failed:
                yield from self._cut_off(run, [number])
                continue
            account.is_over = account.is_clean = True
            if run.mode == "disabled":
                continue
            if account.stored not in account.expected():
                yield (
                    f"{run} has ended well and left {number} stored at {account.stored}; "
                    f"the last finished is {sorted(account.expected())}"
                )
            account.safe = max(account.safe, account.stored)

    def _compared(self, event: Closed, number: int, in_hand: int) -> Iterator[str]:
        """The report says what is."""
        at = TopicPartition(TOPIC, number)
        if at in event.report.committed:
            committed = event.report.committed[at]
            if committed != (None if self.accounts[number].stored < 0 else self.accounts[number].stored):
                yield f"{event.run} reports {number} committed at {committed}, not {self.accounts[number].stored}"
        unfinished = event.report.unfinished.get(at, 0)
        if unfinished != in_hand and not self.accounts[number].perhaps:
            yield f"{event.run} reports {unfinished} unfinished of {number}, not {in_hand}"

    def _cut_off(self, run: Run, partitions: Sequence[int]) -> Iterator[str]:
        """A run has ended without its last word: what is lost by that, and whether it may be."""
        for number in partitions:
            account = self.accounts[number]
            account.is_over, account.is_clean = True, False
            account.lost.update(account.skipped(account.done))
        spans = [(number, min(lost), max(lost)) for number in run.partitions if (lost := self._lost_by(run, number))]
        count = sum(last - first + 1 for _, first, last in spans)
        if run.mode == "interval" and not all(_within(span, run.hand) for span in spans):
            yield f"{run} was cut off and {shown(spans)} are lost; in hand were {shown(run.hand)}"
        if run.mode == "on_poll" and count > run.count:
            yield f"{run} was cut off and {shown(spans)} are lost, more than one batch of {run.count}"

    def _lost_by(self, run: Run, number: int) -> list[int]:
        """What was lost of a partition since the run began."""
        account = self.accounts[number]
        return [offset for offset in account.lost if account.owner is run and offset > account.begin]

    def _all(self, event: Quiet) -> Iterator[str]:
        for number, end in enumerate(event.ends):
            account = self.accounts[number]
            missing = sorted(set(range(end)) - account.done - account.lost)
            if missing:
                yield f"{number}:{missing} were skipped: nobody has finished them"
            if account.done and max(account.done) >= end:
                yield f"{number}: {max(account.done)} was finished, but the log ends at {end}"


def _within(span: Span, spans: Sequence[Span]) -> bool:
    return any(span[0] == other[0] and other[1] <= span[1] and span[2] <= other[2] for other in spans)


@checker
def nothing_is_skipped_or_repeated(history: History) -> Iterator[str]:
    """I1."""
    books = Books()
    for event in history.events:
        for wrong in books.judge(event):
            yield f"{event.at:.4f} {wrong}"


# ---------------------------------------------------------------------------------------------------------- I2


@checker
def partitions_are_delivered_in_order(history: History) -> Iterator[str]:
    """I2: in one ownership from where the start rule lies, without a gap and without a repeat; what the log holds."""
    starts: dict[tuple[str, int], int] = {}
    last: dict[tuple[Run, int, int], int] = {}
    seen: list[Delivered] = []
    for event in history.events:
        if isinstance(event, Answered) and event.call.operation == "resolve" and event.call.outcome == "answered":
            result: Any = event.call.result
            starts[event.member, event.call.arguments["partition"].partition] = result.position
        if not isinstance(event, Delivered):
            continue
        seen.append(event)
        key = (event.run, event.partition, event.ownership)
        begin = last[key] + 1 if key in last else starts[event.run.member, event.partition]
        if event.offsets != list(range(begin, begin + len(event.offsets))):
            yield f"{event.at:.4f} {event.run} gets {event.partition}:{event.offsets} where {begin} is next"
        last[key] = event.offsets[-1]
    for quiet in history.of(Quiet):
        for event in seen:
            values = [quiet.values[event.partition][offset] for offset in event.offsets]
            if values != event.values:
                yield f"{event.at:.4f} {event.run} gets {event.partition}:{event.offsets} as {event.values}, not {values}"
        sent = [value for values in quiet.values for value in values]
        if len(set(sent)) < len(sent):
            yield f"the log holds a message twice: {sorted(value for value in set(sent) if sent.count(value) > 1)}"


# ---------------------------------------------------------------------------------------------------------- I4, I5


@checker
def every_request_ends_in_time(history: History) -> Iterator[str]:
    """I4."""
    out: dict[int, Asked] = {}
    for event in history.events:
        if isinstance(event, Asked):
            out[id(event.call)] = event
        elif isinstance(event, Answered):
            del out[id(event.call)]
            call = event.call
            deadline = call.at + (call.arguments.get("max_wait") or 0.0) + GRACE
            if event.at > deadline + TICK:
                yield f"{event.at:.4f} {event.member}: {call.operation} of {call.at:.4f} ends {event.at - deadline:.4f} late"
    for event in out.values():
        yield f"{event.member}: {event.call.operation} of {event.at:.4f} never ends"


@checker
def few_requests_are_out_at_once(history: History) -> Iterator[str]:
    """I5, and one committing fetch at a time."""
    out: dict[str, list[Call]] = defaultdict(list)
    limits: list[tuple[str, Callable[[Call], bool], int]] = [
        ("readiness waits", lambda call: call.operation == "wait_ready", 1),
        ("fetches", lambda call: call.operation == "poll", 1),
        ("deferred requests", lambda call: bool(call.arguments.get("max_wait")), 64),
    ]
    for event in history.events:
        if isinstance(event, Answered):
            out[event.member] = [call for call in out[event.member] if call is not event.call]
        elif isinstance(event, Asked):
            calls = out[event.member]
            calls.append(event.call)
            for name, counts, limit in limits:
                if counts(event.call) and (found := sum(map(counts, calls))) > limit:
                    yield f"{event.at:.4f} {event.member} has {found} {name} out"


@checker
def nobody_asks_in_circles(history: History) -> Iterator[str]:
    """No storm: few requests a second that bring nothing."""
    idle: dict[str, list[float]] = defaultdict(list)
    for event in history.events:
        if isinstance(event, Answered) and _is_idle(event.call):
            times = idle[event.member]
            times.append(event.at)
            while times[0] < event.at - 1.0:
                times.pop(0)
            if len(times) > IDLE_REQUESTS_MAX:
                times.clear()
                yield f"{event.at:.4f} {event.member} has asked more than {IDLE_REQUESTS_MAX} times a second for nothing"


def _is_idle(call: Call) -> bool:
    result: Any = call.result
    if call.outcome == "failed":
        return True
    if call.operation == "poll" and call.outcome == "answered":
        return not any(target.runs for target in result.targets)
    return call.operation == "wait_ready" and call.outcome == "answered" and not result


# ---------------------------------------------------------------------------------------------------------- I7, ends


@checker
def only_the_last_word_lowers(history: History) -> Iterator[str]:
    """I7: while a consumer reads, nothing stored goes down."""
    owners: dict[int, Run] = {}
    for event in history.events:
        if isinstance(event, Opened):
            owners.update((number, event.run) for number in event.run.partitions)
        elif isinstance(event, Stored) and (-1 if event.after is None else event.after) < (event.before or 0):
            run = owners[event.partition]
            if run.mode == "disabled" or run.closing_at is None or event.at < run.closing_at:
                yield f"{event.at:.4f} {run} lowers {event.partition} from {event.before} to {event.after} while it reads"


@checker
def it_comes_to_an_end(history: History) -> Iterator[str]:
    """No stall, and nothing is left behind."""
    for event in history.events:
        if isinstance(event, Stalled | Broken):
            yield f"{event.at:.4f} {event}"
        elif isinstance(event, Quiet) and (event.parked or event.tasks):
            yield f"{event.at:.4f} {event.parked} requests are parked at the log and {event.tasks} tasks run, for nobody"
