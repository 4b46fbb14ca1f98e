"""Judges of a simulated history: each walks over what happened and names what must not have.

One class or function per promise (spec I1-I9, design 1.2). They know what applications and the log saw, and nothing of
how a consumer works. What is excused, is excused exactly: by the process that was killed, by the store that was
reported to have failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

from tarry.abc import PollReply
from tarry.brokers.local.broker import GroupSession
from tarry.errors import DataError
from tarry.testing import Call
from tarry.testing.leaders import OF_A_PARTITION, named
from tarry.types import Start, StartKind, TopicPartition
from tests.simulation.history import (
    Abandoned,
    Acted,
    Answered,
    Asked,
    Broken,
    Closed,
    Closing,
    Delivered,
    Died,
    Event,
    Failed,
    Fault,
    Finished,
    Gave,
    Grown,
    History,
    Hooked,
    Killed,
    Led,
    Opened,
    Paused,
    Quiet,
    Reported,
    Run,
    Shared,
    Span,
    Stalled,
    Stored,
    Undecoded,
)
from tests.simulation.members import TOPIC
from tests.simulation.world import AT_LEAST_ONCE, GRACE

TICK = 1.0
"""How much later than its deadline a request may end (I4)."""
STAY_MAX = 0.71
"""Seconds that the longest way there and back may take: the network up to 0.2 each, an action that holds it up 0.3."""
IDLE_REQUESTS_MAX = 30
"""Requests of one member to one leader that bring nothing within a second in which nothing changes."""
LAST_WORD_TRIES = 7
"""So often one that backs off, by 50 ms at first and less by chance, may try within its first second."""
LASTING_REFUSALS_MAX = 25
"""Lasting refusals of the same partitions in a session within a second; an answer in between begins a new row."""
LIMITS: list[tuple[str, Callable[[Call], bool], int]] = [
    ("readiness waits", lambda call: call.operation == "wait_ready", 1),
    ("fetches", lambda call: call.operation == "poll", 1),
    ("committing fetches", lambda call: bool(call.arguments.get("commit")), 1),
    ("deferred requests", lambda call: bool(call.arguments.get("max_wait")), 64),
]
"""So many of a kind one member may have out at a leader."""
CHECKERS: list[Callable[[History], Iterator[str]]] = []


def judge(history: History) -> list[str]:
    """Everything that is wrong with a history, each with its time."""
    return [wrong for check in CHECKERS for wrong in check(history)]


def checker(check: Callable[[History], Iterator[str]]) -> Callable[[History], Iterator[str]]:
    """Make a function one of the judges."""
    CHECKERS.append(check)
    return check


# ---------------------------------------------------------------------------------------------------------- I1


@dataclass(slots=True, eq=False)
class Tenure:
    """One partition under one ownership: from the moment at which the log has given it to a session.

    Args:
        holder: the session, by its id; or the run of a standalone consumer, by its name.
        begin: what was stored then.
        last: the last offset that was finished under it, or stored for sure; `perhaps`: others that may have been.
        revoked_at: it was wanted back; what is finished later than that and `drain_timeout` may come again.
        is_failing: its last store has failed, or nobody knows.
        cut_at: it has ended without a last word; `ended_at`: with one.
        cut: what was stored past by then, and not done.
        is_taken: the log has given it to somebody else, or to nobody, without its release.
    """

    number: int
    holder: str
    ownership: int
    begin: int
    last: int | None = None
    perhaps: set[int] = field(default_factory=set[int])
    revoked_at: float = inf
    is_failing: bool = False
    ended_at: float | None = None
    cut_at: float | None = None
    cut: set[int] = field(default_factory=set[int])
    is_taken: bool = False

    @property
    def is_open(self) -> bool:
        """It has not ended in either way."""
        return self.ended_at is None and self.cut_at is None

    def expected(self) -> set[int]:
        """Where a last word leaves the stored offset."""
        last = self.begin if self.last is None else max(self.last, self.begin)
        return {last} | {offset for offset in self.perhaps if offset > last}


@dataclass(slots=True)
class Account:
    """What is known of one partition.

    Args:
        stored: the stored offset, as the log has it; -1: none.
        done: finished by the application in any run, or given to `store_offset`.
        delivered: in any run.
        lost: stored past when a tenure was cut.
        given: what `store_offset` was called with.
        safe: up to here nothing that is done may be delivered again.
    """

    stored: int = -1
    done: set[int] = field(default_factory=set[int])
    delivered: set[int] = field(default_factory=set[int])
    lost: set[int] = field(default_factory=set[int])
    given: set[int] = field(default_factory=set[int])
    safe: int = -1

    def skipped(self, done: set[int]) -> list[int]:
        """What is stored past, and neither done nor lost before."""
        return [offset for offset in range(self.stored + 1) if offset not in done and offset not in self.lost]


class Books:
    """I1 and the promises of design 1.2: nothing is skipped, nothing finished is repeated after a clean end."""

    def __init__(self) -> None:
        self.accounts: dict[int, Account] = defaultdict(Account)
        self.now: dict[int, Tenure] = {}
        self.tenures: list[Tenure] = []
        self.runs: dict[str, Run] = {}
        self.current: dict[str, Run] = {}
        self.joined: dict[str, str] = {}
        self.cut_short: set[Run] = set()
        self.given_up: set[Tenure] = set()
        self.unheard: set[Tenure] = set()
        self.killed: set[Run] = set()
        self.closing: set[Run] = set()
        self.ended: set[Run] = set()
        self.known: dict[Run, set[tuple[int, int]]] = defaultdict(set)
        self.named: dict[Run, set[tuple[int, int]]] = defaultdict(set)
        self.unstored: dict[Run, set[int]] = defaultdict(set)
        self.begun: dict[tuple[Run, int, int], set[int]] = defaultdict(set)

    def judge(self, event: Event) -> Iterator[str]:
        match event:
            case Opened():
                self._opened(event)
            case Shared():
                self._shared(event)
            case Grown():
                self._grown(event)
            case Delivered():
                yield from self._delivered(event)
            case Finished():
                self._finished(event)
            case Gave():
                self._gave(event)
            case Stored():
                yield from self._stored(event)
            case Asked() if event.call.operation == "release":
                yield from self._released(event)
            case Answered():
                self._answered(event)
            case Reported(name="drain_timeout"):
                self.cut_short.add(self.current[event.member])
            case Closing():
                self.closing.add(event.run)
            case Closed():
                self.ended.add(event.run)
                yield from self._closed(event)
            case Reported(name="released_unstored"):  # a store of it may still be out
                for tenure in self._held_by(self.current[event.member]):
                    tenure.is_failing |= tenure.number in _partitions_of(event)
            case Reported(name="partitions_lost"):
                self.given_up.update(self._held_by(self.current[event.member]))
            case Reported(name="possibly_lost"):
                self.named[self.current[event.member]].update(_named(event))
            case Reported(name="store_failed"):
                self.unstored[self.current[event.member]].add(_partition_of(event))
            case Killed():
                self.killed.add(event.run)
                self.ended.add(event.run)
                for tenure in self._held_by(event.run):
                    self._cut_off(tenure, event.at)
            case Quiet():
                yield from self._all(event)
            case _:
                pass

    # -- who holds what

    def _opened(self, event: Opened) -> None:
        run = event.run
        self.current[run.member] = run
        if run.partitions is None:
            self.runs[self.joined[run.member]] = run
            return
        self.runs[str(run)] = run
        for number in run.partitions:
            self._begin(number, str(run), 0)

    def _answered(self, event: Answered) -> None:
        call, result = event.call, event.call.result
        if call.operation == "open_session" and isinstance(result, GroupSession):
            self.joined[event.member] = result.id
            run = self.current.get(event.member)
            if run is not None and not self._is_over(run):
                self.runs[result.id] = run
        elif call.operation == "poll" and isinstance(result, PollReply):
            self.known[self.current[event.member]].update(
                (target.partition.partition, offset)
                for target in result.targets
                for offset in range(target.position, target.next)
            )
        elif call.operation == "store_offset":
            tenure = self.now.get(call.arguments["partition"].partition)
            if tenure is not None and self._run_of(tenure) is self.current.get(event.member):
                tenure.is_failing = call.outcome != "answered"

    def _shared(self, event: Shared) -> None:
        for number in sorted(self.now.keys() | event.owners.keys()):
            tenure, owner = self.now.get(number), event.owners.get(number)
            if owner == (None if tenure is None else (tenure.holder, tenure.ownership)):
                if tenure is not None and number in event.revoking:
                    tenure.revoked_at = min(tenure.revoked_at, event.at)
                continue
            if tenure is not None and tenure.is_open:
                self._cut_off(tenure, event.at)
                tenure.is_taken = True
            self.now.pop(number, None)
            if owner is not None:
                self._begin(number, *owner)
                if self._run_of(self.now[number]) in self.closing:  # who leaves does not follow what is shared any more
                    self.unheard.add(self.now[number])

    def _grown(self, event: Grown) -> None:
        """Who reads the whole topic without a group has what is new."""
        for run in self.current.values():
            for number in () if run.partitions is None or run in self.ended else event.partitions:
                self._begin(number, str(run), 0)

    def _begin(self, number: int, holder: str, ownership: int) -> None:
        self.now[number] = Tenure(number, holder, ownership, self.accounts[number].stored)
        self.tenures.append(self.now[number])

    def _run_of(self, tenure: Tenure) -> Run | None:
        return self.runs.get(tenure.holder)

    def _held_by(self, run: Run) -> list[Tenure]:
        return [tenure for tenure in self.now.values() if tenure.is_open and self._run_of(tenure) is run]

    def _is_over(self, run: Run) -> bool:
        return run.is_closed and self.current.get(run.member) is not run

    def _under(self, run: Run, span: Span) -> Tenure | None:
        """The tenure that messages were delivered under, while it lasts."""
        tenure = self.now.get(span.partition)
        is_his = tenure is not None and tenure.ownership == span.ownership and self._run_of(tenure) is run
        return tenure if is_his else None

    # -- what applications do

    def _delivered(self, event: Delivered) -> Iterator[str]:
        account = self.accounts[event.partition]
        tenure = self.now.get(event.partition)
        is_over = tenure is None or event.ownership < tenure.ownership  # cut off from the log, it cannot know
        again = [offset for offset in event.offsets if offset <= account.safe and offset in account.done]
        if again and not is_over:
            what = f"{event.partition}:{again[0]}-{again[-1]}"
            yield f"{event.run} gets {what} again, which was stored up to {account.safe}"
        account.delivered.update(event.offsets)
        self.begun[event.run, event.partition, event.ownership].update(event.offsets)

    def _finished(self, event: Finished) -> None:
        for span in event.spans:
            self.accounts[span.partition].done.update(span.offsets)
            tenure = self._under(event.run, span)
            if tenure is None:
                continue
            if event.late or event.at >= tenure.revoked_at + event.run.drain_timeout:
                tenure.perhaps.add(span.last)
            else:
                tenure.last = span.last

    def _gave(self, event: Gave) -> None:
        for span in event.spans:
            account = self.accounts[span.partition]
            account.done.update(range(span.last + 1))
            account.given.add(span.last)
            if event.sure:
                account.safe = max(account.safe, span.last)
            tenure = self._under(event.run, span)
            if tenure is not None:
                tenure.perhaps.add(span.last)
            if tenure is not None and event.sure:
                tenure.last = max(span.last, -1 if tenure.last is None else tenure.last)

    # -- what the log stores

    def _stored(self, event: Stored) -> Iterator[str]:
        """No mode stores what the application did not get; only those that say so store what it did not finish."""
        account, tenure = self.accounts[event.partition], self.now.get(event.partition)
        account.stored = -1 if event.after is None else event.after
        if tenure is None or (run := self._run_of(tenure)) is None:
            yield f"{event.partition} is stored at {event.after}, though nobody reads it"
            return
        may = account.done if _loses_nothing(run) else account.done | account.delivered
        if run.mode != "on_poll" and (skipped := account.skipped(may)):
            what = f"{event.partition}:{account.stored}"
            yield f"{run} ({run.mode}) has stored {what}, but {skipped} were not its to store"
        is_last_word = event.at >= tenure.revoked_at or run in self.closing or not tenure.is_open
        if run.n and not (run.period or is_last_word or account.stored % run.n == 0 or account.stored in account.given):
            yield f"{run} ({run.mode} {run.n}) has stored {event.partition}:{account.stored} while it reads"
        if tenure.ended_at is not None and run.mode != "disabled" and account.stored not in tenure.expected():
            yield f"{run}: {event.partition} is stored at {event.after} after it has ended"
        if tenure.cut_at is not None:
            self._cut_off(tenure, tenure.cut_at)
        if account.stored < account.safe:
            account.safe = account.stored
            yield f"{run}: {event.partition} is lowered to {event.after}, below what was stored for good"

    # -- how tenures end

    def _released(self, event: Asked) -> Iterator[str]:
        session = event.call.session
        holder = session.id if isinstance(session, GroupSession) else ""
        for at in event.call.arguments["partitions"]:
            tenure = self.now.get(at.partition)
            if tenure is not None and tenure.holder == holder and tenure.is_open:
                yield from self._ended(self.runs[holder], tenure, event.at)

    def _closed(self, event: Closed) -> Iterator[str]:
        run = event.run
        for tenure in self._held_by(run):
            if tenure in self.given_up:  # it was told that it is evicted; a crash has made the log forget that
                self._cut_off(tenure, event.at)
                continue
            left = sum(len(span.offsets) for span in event.hand if self._under(run, span) is tenure)
            if tenure not in self.unheard:
                yield from self._compared(event, tenure, left)
            if run in self.cut_short:
                self._cut_off(tenure, event.at)
            else:
                yield from self._ended(run, tenure, event.at)

    def _ended(self, run: Run, tenure: Tenure, at: float) -> Iterator[str]:
        account = self.accounts[tenure.number]
        if tenure.is_failing:
            self._cut_off(tenure, at)
            return
        tenure.ended_at = at
        if run.mode == "disabled":
            return
        if account.stored not in tenure.expected():
            yield (
                f"{run} has ended well and left {tenure.number} stored at {account.stored}; "
                f"the last finished is {sorted(tenure.expected())}"
            )
        account.safe = max(account.safe, account.stored)

    def _compared(self, event: Closed, tenure: Tenure, in_hand: int) -> Iterator[str]:
        """The report says what is."""
        at, stored = TopicPartition(TOPIC, tenure.number), self.accounts[tenure.number].stored
        if at in event.report.committed:
            committed = event.report.committed[at]
            if committed != (None if stored < 0 else stored):
                yield f"{event.run} reports {tenure.number} committed at {committed}, not {stored}"
        unfinished = event.report.unfinished.get(at, 0)
        if unfinished != in_hand and not tenure.perhaps:
            yield f"{event.run} reports {unfinished} unfinished of {tenure.number}, not {in_hand}"

    def _cut_off(self, tenure: Tenure, at: float) -> None:
        """It has ended without its last word: what is stored past by that may be lost."""
        account = self.accounts[tenure.number]
        tenure.cut_at = at
        tenure.cut.update(account.skipped(account.done))
        account.lost.update(tenure.cut)

    # -- what is left

    def _all(self, event: Quiet) -> Iterator[str]:
        for number, end in enumerate(event.ends):
            account = self.accounts[number]
            missing = sorted(set(range(end)) - account.done - account.lost)
            if missing:
                yield f"{number}:{missing} were skipped: nobody has finished them"
            if account.done and max(account.done) >= end:
                yield f"{number}: {max(account.done)} was finished, but the log ends at {end}"
        incidents: dict[tuple[str, float], list[Tenure]] = defaultdict(list)
        for tenure in self.tenures:
            tenure.cut -= self.accounts[tenure.number].done
            if tenure.cut and tenure.cut_at is not None:
                incidents[tenure.holder, tenure.cut_at].append(tenure)
        for (holder, at), tenures in incidents.items():
            yield from self._excused(self.runs.get(holder), at, tenures)

    def _excused(self, run: Run | None, at: float, tenures: Sequence[Tenure]) -> Iterator[str]:
        """Only what a mode is documented to lose may be lost, by those who did not end well."""
        lost = [f"{tenure.number}:{sorted(tenure.cut)}" for tenure in tenures]
        if run is None or _loses_nothing(run):
            yield f"{run} was cut off at {at:.4f} and {lost} are lost"
        elif run.mode != "on_poll" and not all(tenure.cut <= self._begun(run, tenure) for tenure in tenures):
            yield f"{run} was cut off at {at:.4f} and {lost} are lost, which the application never had"
        elif run.mode == "on_poll" and sum(len(tenure.cut) for tenure in tenures) > run.count:
            yield f"{run} was cut off at {at:.4f} and {lost} are lost, more than one batch of {run.count}"
        elif run.mode == "on_poll" and run not in self.killed:
            yield from self._unsaid(run, at, tenures)

    def _unsaid(self, run: Run, at: float, tenures: Sequence[Tenure]) -> Iterator[str]:
        """What had come before an ownership was lost without notice is delivered all the same, or named (C36, Q6)."""
        for tenure in tenures:
            here = {offset for offset in tenure.cut if (tenure.number, offset) in self.known[run] - self.named[run]}
            if here - self._begun(run, tenure):
                yield f"{run} lost {tenure.number} at {at:.4f}, and nobody has got or named {sorted(here)}"

    def _begun(self, run: Run, tenure: Tenure) -> set[int]:
        """What the application got under an ownership, in hand or finished; also where its handler has failed."""
        return self.begun[run, tenure.number, tenure.ownership]


def _loses_nothing(run: Run) -> bool:
    return run.mode in AT_LEAST_ONCE and (run.mode == "finished" or run.period is None)


def _named(event: Reported) -> set[tuple[int, int]]:
    first, last = event.fields["first"], event.fields["last"]
    assert isinstance(first, int)
    assert isinstance(last, int)
    return {(_partition_of(event), offset) for offset in range(first, last + 1)}


def _partition_of(event: Reported) -> int:
    at = event.fields["partition"]
    assert isinstance(at, TopicPartition)
    return at.partition


def _partitions_of(event: Reported) -> set[int]:
    return {at.partition for at in cast("tuple[TopicPartition, ...]", event.fields["partitions"])}


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
    resolved: dict[tuple[str, int], int] = {}
    starts: dict[tuple[str, int, int], int] = {}  # what was known when the first fetch under an ownership went out
    last: dict[tuple[Run, int, int], int] = {}
    given: dict[tuple[Run, int, int], bool] = {}
    doubtful: dict[tuple[Run, int, int], int] = {}  # may come again, or not
    seen: list[Delivered] = []
    undecoded: list[Undecoded] = []
    for event in history.events:
        if isinstance(event, Gave):
            given.update({(event.run, span.partition, span.last): event.sure for span in event.spans})
        if isinstance(event, Failed):  # it comes again, unless it was stored by hand
            for span in event.spans:
                key, is_stored = (event.run, span.partition, span.ownership), (event.run, span.partition, span.last)
                if is_stored in given and not given[is_stored]:
                    doubtful[key] = span.first
                elif is_stored not in given:
                    last[key] = span.first - 1
        if isinstance(event, Answered) and _tells_the_start(event.call):
            result: Any = event.call.result
            resolved[event.member, event.call.arguments["partition"].partition] = result.position
        if (
            isinstance(event, Undecoded)
            and not _is_of_what_was_lost(event, last, starts)
            and event.ownership is not None
        ):
            undecoded.append(event)
            key = (event.run, event.partition, event.ownership)
            begin = last[key] + 1 if key in last else starts.get((event.run.member, *key[1:]))
            if begin is not None and event.offset != begin:  # None: it is one of an ownership that is over
                yield f"{event.at:.4f} {event.run} cannot decode {event.partition}:{event.offset} where {begin} is next"
        if isinstance(event, Opened):
            starts = {key: start for key, start in starts.items() if key[0] != event.run.member}
            resolved = {key: start for key, start in resolved.items() if key[0] != event.run.member}
        if isinstance(event, Asked) and event.call.operation == "poll":
            for target in event.call.arguments["targets"]:
                number = target.partition.partition
                if (event.member, number) not in resolved:
                    yield f"{event.at:.4f} {event.member} fetches {number}, though it does not know where it begins"
                starts.setdefault((event.member, number, target.ownership), resolved.get((event.member, number), 0))
        if not isinstance(event, Delivered):
            continue
        seen.append(event)
        key = (event.run, event.partition, event.ownership)
        begin = last[key] + 1 if key in last else starts[event.run.member, event.partition, event.ownership]
        begin = begin if doubtful.pop(key, None) != event.offsets[0] else event.offsets[0]
        if event.offsets != list(range(begin, begin + len(event.offsets))):
            yield f"{event.at:.4f} {event.run} gets {event.partition}:{event.offsets} where {begin} is next"
        last[key] = event.offsets[-1]
    for quiet in history.of(Quiet):
        for event in seen:
            values = [quiet.values[event.partition][offset] for offset in event.offsets]
            if values != event.values:
                what = f"{event.partition}:{event.offsets}"
                yield f"{event.at:.4f} {event.run} gets {what} as {event.values}, not {values}"
        for event in undecoded:
            if (value := quiet.values[event.partition][event.offset]) != event.raw:
                yield f"{event.at:.4f} {event.run} cannot decode {event.raw!r}, which was {value!r}"
        sent = [value for values in quiet.values for value in values]
        if len(set(sent)) < len(sent):
            doubled = sorted(value for value in set(sent) if value is not None and sent.count(value) > 1)
            yield f"the log holds a message twice: {doubled}"


def _tells_the_start(call: Call) -> bool:
    """By the start rule; whether a topic was created again is asked with another one."""
    if call.operation != "resolve" or call.outcome != "answered":
        return False
    start = call.arguments["start"]
    return isinstance(start, Start) and start.kind is StartKind.NEXT


def _is_of_what_was_lost(
    event: Undecoded, last: dict[tuple[Run, int, int], int], starts: dict[tuple[str, int, int], int]
) -> bool:
    """It was next under an ownership that is over: what follows it is delivered all the same (C36)."""
    owned = {key[2] for key in last if key[:2] == (event.run, event.partition)}
    owned |= {key[2] for key in starts if key[:2] == (event.run.member, event.partition)}
    for ownership in owned - {event.ownership}:
        key = (event.run, event.partition, ownership)
        begin = last[key] + 1 if key in last else starts.get((event.run.member, *key[1:]))
        if begin == event.offset:
            last[key] = event.offset
            return True
    return False


# ---------------------------------------------------------------------------------------------------------- I4, I5


@checker
def every_request_ends_in_time(history: History) -> Iterator[str]:
    """I4: none outlives its deadline, and the log answers each that nothing keeps from it.

    And none waits at a leader for what that one does not lead any more (C83, C85).
    """
    out: dict[int, Asked] = {}
    kept: set[int] = set()  # requests that a fault has hit
    cuts: Counter[str] = Counter()  # of members' connections; a heal may be one of an earlier process
    dead: set[str] = set()  # those whose process is gone, until the next one
    led = Led(0.0, [], set())
    moved: dict[int, float] = {}
    for event in history.events:
        match event:
            case Asked():
                out[id(event.call)] = event
                is_kept = cuts[event.member] > 0 or event.member in dead or _may_be_unheard(event.call, led)
                kept.update([id(event.call)] if is_kept else [])
            case Led():
                before = led.leaders or event.leaders
                moved |= {at: event.at for at, name in enumerate(event.leaders) if name != before[at]}
                led = event
                kept.update(key for key, asked in out.items() if _may_be_unheard(asked.call, led))
            case Fault(kind="lose_request" | "lose_reply"):
                kept.add(id(event.call))
            case Fault(kind="crash" | "split" | "kill"):
                kept.update(out)
            case Acted(action="split"):
                cuts[event.member or ""] += 1
            case Acted(action="kill"):
                dead.add(event.member or "")
            case Acted(action="heal"):
                kept.update(out)
                cuts[event.member or ""] -= 1
            case Acted(action="peace"):
                kept.update(out)
                cuts.clear()
            case Opened():
                dead.discard(event.run.member)
            case Killed():  # also one that had only just opened
                dead.add(event.run.member)
            case Answered():
                yield from _late(event)
                asked, is_kept = out.pop(id(event.call)), id(event.call) in kept
                if "no answer came" in str(event.call.error) and not is_kept:
                    what = f"{event.call.operation} of {asked.at:.4f}"
                    yield f"{event.at:.4f} {event.member}: {what} got no answer, though nothing kept it"
                if event.call.arguments.get("max_wait") and not is_kept:
                    yield from _stays(event, led, moved)
                kept.discard(id(event.call))
            case _:
                pass
    for asked in out.values():
        yield f"{asked.member}: {asked.call.operation} of {asked.at:.4f} never ends"


def _stays(event: Answered, led: Led, moved: Mapping[int, float]) -> Iterator[str]:
    """Whether a deferred request that ends has waited at a former leader for longer than one request takes."""
    call = event.call
    for target in call.arguments["targets"]:
        number = target.partition.partition
        since = max(call.at, moved.get(number, inf))
        if event.at > since + STAY_MAX and led.leaders[number] != call.arguments["leader"]:
            leader = call.arguments["leader"]
            yield f"{event.at:.4f} {event.member} has waited at {leader} for {number}, which has moved"


def _may_be_unheard(call: Call, led: Led) -> bool:
    """It goes to a leader that is silent; who leads when it arrives, nobody knows where it names a partition only."""
    leader = call.arguments.get("leader")
    return leader in led.silent or (bool(led.silent) and call.operation in OF_A_PARTITION)


def _late(event: Answered) -> Iterator[str]:
    call = event.call
    deadline = call.at + (call.arguments.get("max_wait") or 0.0) + GRACE
    if event.at > deadline + TICK:
        yield f"{event.at:.4f} {event.member}: {call.operation} of {call.at:.4f} ends {event.at - deadline:.4f} late"


@checker
def few_requests_are_out_at_once(history: History) -> Iterator[str]:
    """I5, for each leader; and one committing fetch at a time, whoever leads (C114)."""
    out: dict[str, list[Call]] = defaultdict(list)
    for event in history.events:
        if isinstance(event, Answered):
            out[event.member] = [call for call in out[event.member] if call is not event.call]
        elif isinstance(event, Asked):
            calls, leader = out[event.member], event.call.arguments.get("leader")
            calls.append(event.call)
            same = [call for call in calls if call.arguments.get("leader") == leader]
            for name, counts, limit in LIMITS:
                at = calls if name == "committing fetches" else same
                if counts(event.call) and (found := sum(map(counts, at))) > limit:
                    yield f"{event.at:.4f} {event.member} has {found} {name} out"


@checker
def nobody_asks_in_circles(history: History) -> Iterator[str]:
    """No storm: of a member at a leader few requests a second bring nothing, and a few more for all that changes."""
    idle: dict[tuple[str, str], deque[float]] = defaultdict(deque)
    changes: dict[str, deque[float]] = defaultdict(deque)
    killed: set[str] = set()  # nothing of these reaches anybody
    read: dict[str, set[int]] = defaultdict(set)
    grown = 0
    for event in history.events:
        if isinstance(event, Grown):
            grown += len(event.partitions)  # each may have something out when the log goes away
        if isinstance(event, Opened):
            read[event.run.member].clear()
        elif isinstance(event, Delivered):
            read[event.run.member].add(event.partition)
        elif isinstance(event, Closing):  # each of these has a last word, tried again at a pace of its own
            changes[event.run.member].extend([event.at] * LAST_WORD_TRIES * len(read[event.run.member]))
        if isinstance(event, Killed):
            killed.add(event.run.member)
        elif isinstance(event, Opened):
            killed.discard(event.run.member)
        if isinstance(event, (Shared, Led, Acted)):
            changes[""].append(event.at)
        elif isinstance(event, (Opened, Delivered, Finished, Failed, Paused, Abandoned)):
            changes[event.run.member].append(event.at)
        elif isinstance(event, Answered) and event.member not in killed and _is_idle(event.call):
            times = idle[event.member, event.call.arguments.get("leader", "")]
            times.append(event.at)
            if event.call.operation == "poll" and isinstance(event.call.error, DataError):
                changes[event.member].extend(event.at for _ in named(event.call))  # each is asked for alone then
            for each in (times, changes[""], changes[event.member]):
                while each and each[0] < event.at - 1.0:
                    each.popleft()
            limit = IDLE_REQUESTS_MAX + grown + len(changes[""]) + len(changes[event.member])
            if len(times) > limit:
                times.clear()
                yield f"{event.at:.4f} {event.member} has asked a leader more than {limit} times a second for nothing"


@checker
def who_is_lastingly_refused_rests(history: History) -> Iterator[str]:
    """C109: of a partition six requests in a row are refused, and then one after each cool-down.

    Nor is the same fetch of several asked for again and again: after a refusal each is asked for alone.
    """
    refused: dict[tuple[int, frozenset[TopicPartition]], deque[float]] = defaultdict(deque)
    for event in history.of(Fault):
        if event.kind != "damage" or event.call is None or event.call.operation == "store_offset":
            continue
        times = refused[id(event.call.session), frozenset(named(event.call))]
        times.append(event.at)
        while times[0] < event.at - 1.0:
            times.popleft()
        if len(times) > LASTING_REFUSALS_MAX:
            times.clear()
            yield f"{event.at:.4f} {event.call.identity} was lastingly refused too often"


def _is_of_one(call: Call) -> bool:
    """Its refusal counts for a partition; those of stores are made when there is something to store."""
    return call.operation != "store_offset" and len(named(call)) == 1


def _is_idle(call: Call) -> bool:
    """It was refused, withdrawn, or had nothing to say. Lasting refusals of a partition are counted by themselves."""
    result: Any = call.result
    if isinstance(call.error, DataError) and _is_of_one(call):
        return False
    if call.outcome != "answered":
        return True
    if call.operation == "poll":
        return not any(target.runs for target in result.targets)
    return call.operation == "wait_ready" and not result


# ---------------------------------------------------------------------------------------------------------- I7, ends


@checker
def only_the_last_word_lowers(history: History) -> Iterator[str]:
    """I7: while a consumer reads, nothing stored goes down; it does when it shuts down, or gives the partition up.

    And under commit-on-poll when the partition is paused, or was a moment ago, or waits at what does not decode.
    """
    closing: dict[str, Run] = {}
    revoking: set[int] = set()
    paused: dict[int, tuple[int, float]] = {}  # the ownership, and until when
    for event in history.events:
        if isinstance(event, Closing):
            closing[event.run.member] = event.run
        elif isinstance(event, Opened):
            closing.pop(event.run.member, None)
            for number in event.run.partitions or ():
                if number in paused:  # by the run before; its last request may still be on its way
                    paused[number] = (paused[number][0], min(paused[number][1], event.at + GRACE + TICK))
        elif isinstance(event, Shared):
            revoking |= event.revoking
            owners = {number: ownership for number, (_, ownership) in event.owners.items()}
            paused = {number: pause for number, pause in paused.items() if owners.get(number) == pause[0]}
        elif isinstance(event, Paused) and event.run.mode == "on_poll":
            until = event.at + GRACE + TICK if event.goes_on else inf
            for number, ownership in event.partitions.items():
                paused[number] = (paused[number][0] if event.goes_on and number in paused else ownership, until)
        elif isinstance(event, Undecoded) and event.run.mode == "on_poll" and event.ownership is not None:
            paused[event.partition] = (event.ownership, inf)
        elif isinstance(event, Stored):
            is_lower = (-1 if event.after is None else event.after) < (event.before or 0)
            is_paused = event.partition in paused and event.at <= paused[event.partition][1]
            is_excused = (
                is_paused or event.partition in revoking or any(run.mode != "disabled" for run in closing.values())
            )
            if is_lower and not is_excused:
                down = f"from {event.before} to {event.after}"
                yield f"{event.at:.4f} {event.partition} is lowered {down} while it is read"


@checker
def partitions_have_one_owner(history: History) -> Iterator[str]:
    """Each ownership belongs to one session, and grows; messages are delivered under it to that session's run only."""
    given: dict[int, tuple[int, str]] = {}
    readers: dict[tuple[int, int], Run] = {}
    members: list[str] = []
    for event in history.events:
        if isinstance(event, Fault) and event.kind == "crash" and not members:
            given.clear()  # a group without members may be forgotten: no session is left that could mix it up
            readers.clear()
        elif isinstance(event, Shared):
            members = event.members
            for number, (owner, ownership) in event.owners.items():
                known, whose = given.get(number, (0, owner))
                if ownership < known or (ownership == known and owner != whose):
                    yield f"{event.at:.4f} {number} goes to {owner} under {ownership} after {whose} had {known}"
                given[number] = (ownership, owner)
        elif isinstance(event, Delivered) and event.ownership:
            reader = readers.setdefault((event.partition, event.ownership), event.run)
            if reader is not event.run:
                yield f"{event.at:.4f} {event.run} gets {event.partition} under {event.ownership}, as {reader} did"


@checker
def who_has_left_is_no_member(history: History) -> Iterator[str]:
    """A member that ended well is none any more, unless its leaving did not get through."""
    ids: dict[Run, str] = {}
    joined: dict[str, str] = {}
    current: dict[str, Run] = {}
    excused: set[str] = set()
    for event in history.events:
        match event:
            case Answered():
                if event.call.operation == "open_session" and isinstance(event.call.result, GroupSession):
                    joined[event.member] = event.call.result.id
                if event.call.operation == "leave" and event.call.outcome != "answered":
                    excused.add(joined.get(event.member, ""))
            case Opened():
                current[event.run.member] = event.run
            case Closed():
                ids[event.run] = joined.get(event.run.member, "")
            case Quiet():
                left = {ids[run] for run in ids} - excused
                yield from (f"{event.at:.4f} {name} is still a member" for name in event.members if name in left)
            case _:
                pass


@checker
def hooks_come_first_and_last(history: History) -> Iterator[str]:
    """Where an application has hooks, nothing of a partition comes before its `on_assigned`."""
    told: dict[Run, set[int]] = defaultdict(set)
    lost: dict[str, set[int]] = defaultdict(set)  # without notice: what was committed may still come
    owners: dict[int, tuple[str, int]] = {}
    for event in history.events:
        if isinstance(event, Shared):
            owners = event.owners
        elif isinstance(event, Reported) and event.name == "partitions_lost":
            partitions: Any = event.fields["partitions"]
            lost[event.member].update(at.partition for at in partitions)
        elif isinstance(event, Hooked) and event.hook in ("assigned", "revoked"):
            numbers = told[event.run]
            (numbers.update if event.hook == "assigned" else numbers.difference_update)(event.partitions)
            lost[event.run.member].difference_update(event.partitions if event.hook == "assigned" else ())
        elif isinstance(event, Delivered) and event.run.has_hooks and event.partition not in told[event.run]:
            _, ownership = owners.get(event.partition, ("", 0))
            is_kept = event.run.mode == "on_poll" and event.partition in lost[event.run.member]
            if ownership == event.ownership and not is_kept:  # the log shows a loss when it has saved it
                yield f"{event.at:.4f} {event.run} gets {event.partition}, which it was not told of"


@checker
def nothing_comes_of_what_is_paused(history: History) -> Iterator[str]:
    """K48: neither delivered nor asked for, as long as it is held under the ownership that it was paused under."""
    paused: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    owners: dict[int, tuple[str, int]] = {}
    for event in history.events:
        match event:
            case Shared():
                owners = event.owners
            case Opened():
                paused.pop(event.run.member, None)
            case Paused(goes_on=True):
                for number in event.partitions:
                    paused[event.run.member].pop(number, None)
            case Reported(name="partitions_lost"):  # a pause ends with the ownership; what was committed may still come
                partitions: Any = event.fields["partitions"]
                for at in partitions:
                    paused[event.member].pop(at.partition, None)
            case Paused():
                paused[event.run.member].update({at: (own, event.at) for at, own in event.partitions.items()})
            case Delivered():
                ownership, _ = paused[event.run.member].get(event.partition, (None, 0.0))
                if ownership == event.ownership == owners.get(event.partition, ("", 0))[1]:
                    yield f"{event.at:.4f} {event.run} gets {event.partition}, which is paused"
            case Asked():
                for target in event.call.arguments.get("targets", ()):
                    number = target.partition.partition
                    ownership, since = paused[event.member].get(number, (None, 0.0))
                    if ownership == target.ownership and event.at > since:
                        yield f"{event.at:.4f} {event.member} asks for {number}, which is paused"
            case _:
                pass


@checker
def it_comes_to_an_end(history: History) -> Iterator[str]:
    """No stall, nobody dies of an error of ours, and nothing is left behind."""
    for event in history.events:
        if isinstance(event, Stalled | Broken | Died):
            yield f"{event.at:.4f} {event}"
        elif isinstance(event, Quiet) and (event.parked or event.tasks):
            left = f"{event.parked} requests are parked at the log and {event.tasks} tasks run"
            yield f"{event.at:.4f} {left}, for nobody"
