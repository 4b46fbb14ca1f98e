"""What happened in one simulated history, in order: written down by everybody, judged afterwards by the checkers.

Here: the kinds of events, the list of them, and what is open at a moment (requests that are out), which the coverage
counters need. Not here: any opinion on what should have happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import format_exception
from typing import Literal, NamedTuple, TypeVar, cast

import anyio

from tarry.abc import FetchTarget, PollReply, Ready, StoreOffset
from tarry.errors import ConsumerFailed
from tarry.testing import Call, FaultKind
from tarry.types import CommitMode, ShutdownReport, TopicPartition

Mode = CommitMode
EVENTS_MAX = 20_000


class Span(NamedTuple):
    """Messages of one partition, from the first to the last offset, as they were delivered."""

    partition: int
    first: int
    last: int
    ownership: int = 0

    @property
    def offsets(self) -> range:
        return range(self.first, self.last + 1)


@dataclass(slots=True, eq=False)
class Run:
    """One consumer from its start to its end. `names` says whose it is in a trace: member, and number of the run.

    `partitions` are those of a standalone consumer, None for a member of a group. `count` is the most that one poll may
    bring; `drain_timeout` what a shutdown waits for the application, whose body takes its time when `is_slow`. With
    `period` a timer stores what was delivered, besides what the mode stores; `n` is that of the mode.
    """

    member: str
    number: int
    mode: Mode
    partitions: Sequence[int] | None
    count: int
    drain_timeout: float
    is_slow: bool
    has_hooks: bool = False
    period: float | None = None
    n: int | None = None
    has_failed: bool = False
    hand: list[Span] = field(default_factory=list[Span])
    closing_at: float | None = None
    is_closed: bool = False

    def __str__(self) -> str:
        return f"{self.member}.{self.number}"


@dataclass(slots=True, eq=False)
class Event:
    """Base: when it happened."""

    at: float

    def __str__(self) -> str:
        shown = [f"{getattr(self, name)}" for name in self.__slots__]
        return " ".join([type(self).__name__.lower(), *shown])


@dataclass(slots=True, eq=False)
class Opened(Event):
    """A consumer was entered."""

    run: Run


@dataclass(slots=True, eq=False)
class Delivered(Event):
    """The application got messages of one partition, in one read call."""

    run: Run
    partition: int
    ownership: int
    offsets: list[int]
    values: list[bytes | None] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.run} delivered {self.partition}:{self.offsets[0]}-{self.offsets[-1]} (owner {self.ownership})"


@dataclass(slots=True, eq=False)
class Finished(Event):
    """The application has finished messages. `late`: when the consumer did not wait for that any more."""

    run: Run
    spans: list[Span]
    late: bool

    def __str__(self) -> str:
        return f"{self.run} finished {shown(self.spans)}{' late' if self.late else ''}"


@dataclass(slots=True, eq=False)
class Failed(Event):
    """A handler failed on what is in hand, or was cancelled: that is unfinished and comes again."""

    run: Run
    spans: list[Span]

    def __str__(self) -> str:
        return f"{self.run} fails on {shown(self.spans)}"


@dataclass(slots=True, eq=False)
class Paused(Event):
    """The application paused partitions, each under an ownership; or has them go on."""

    run: Run
    partitions: dict[int, int]
    goes_on: bool = False

    def __str__(self) -> str:
        return f"{self.run} {'resumes' if self.goes_on else 'pauses'} {sorted(self.partitions)}"


@dataclass(slots=True, eq=False)
class Gave(Event):
    """The application gave messages to `store_offset`; `sure` when that came back without an error."""

    run: Run
    spans: list[Span]
    sure: bool

    def __str__(self) -> str:
        return f"{self.run} {'stored' if self.sure else 'stores'} {shown(self.spans)}"


@dataclass(slots=True, eq=False)
class Raised(Event):
    """A read call raised."""

    run: Run
    error: BaseException

    def __str__(self) -> str:
        return f"{self.run} got {type(self.error).__name__}: {self.error}"


@dataclass(slots=True, eq=False)
class Died(Event):
    """An internal task of a consumer ended with an error that no rule covers."""

    run: Run
    error: ConsumerFailed

    def __str__(self) -> str:
        return f"{self.run} died: {self.error}"


@dataclass(slots=True, eq=False)
class Undecoded(Event):
    """A read call raised since a value does not decode; `ownership` is None where nobody can tell any more."""

    run: Run
    partition: int
    ownership: int | None
    offset: int
    raw: bytes

    def __str__(self) -> str:
        return f"{self.run} cannot decode {self.partition}:{self.offset} {self.raw!r}"


@dataclass(slots=True, eq=False)
class Abandoned(Event):
    """A read call was given up; `min_count` is what it waited for."""

    run: Run
    min_count: int

    def __str__(self) -> str:
        return f"{self.run} gives up a read of at least {self.min_count}"


@dataclass(slots=True, eq=False)
class Closing(Event):
    """A shutdown begins, for a reason."""

    run: Run
    why: str

    def __str__(self) -> str:
        return f"{self.run} closing ({self.why}), in hand {shown(self.run.hand)}"


@dataclass(slots=True, eq=False)
class Closed(Event):
    """A shutdown has come to its end; `hand` was not finished."""

    run: Run
    report: ShutdownReport
    hand: list[Span]

    def __str__(self) -> str:
        return f"{self.run} closed, unfinished {shown(self.hand)}; {'; '.join(str(self.report).splitlines())}"


@dataclass(slots=True, eq=False)
class Killed(Event):
    """A process is gone, with what its application had in hand."""

    run: Run
    hand: list[Span]

    def __str__(self) -> str:
        return f"{self.run} killed, in hand {shown(self.hand)}"


@dataclass(slots=True, eq=False)
class Stored(Event):
    """The stored offset of a partition was changed at the log, durably."""

    partition: int
    before: int | None
    after: int | None
    job: StoreOffset = field(repr=False)

    def __str__(self) -> str:
        return f"log    stored {self.partition}: {self.before} -> {self.after}{' (lower)' if self.job.lower else ''}"


@dataclass(slots=True, eq=False)
class Shared(Event):
    """The group was saved: who owns which partition under which ownership, and what is wanted back of whom."""

    owners: dict[int, tuple[str, int]]
    revoking: set[int]
    members: list[str]

    def __str__(self) -> str:
        marked = {number: f"{'-' if number in self.revoking else ''}" for number in self.owners}
        held = (f"{number}{marked[number]}:{owner[:4]}/{own}" for number, (owner, own) in sorted(self.owners.items()))
        return f"log    shares {' '.join(held)} among {[member[:4] for member in self.members]}"


@dataclass(slots=True, eq=False)
class Grown(Event):
    """The topic has gained partitions, durably."""

    partitions: range

    def __str__(self) -> str:
        return f"log    gains {list(self.partitions)}"


@dataclass(slots=True, eq=False)
class Led(Event):
    """Who leads each partition from now on, and which leaders are silent."""

    leaders: list[str]
    silent: set[str]

    def __str__(self) -> str:
        led = " ".join(f"{number}:{name[-1]}" for number, name in enumerate(self.leaders))
        return f"log    led {led}{f', silent: {sorted(self.silent)}' if self.silent else ''}"


@dataclass(slots=True, eq=False)
class Hooked(Event):
    """A hook of the application was called, or one for new partitions has ended; `inside` where it only begins."""

    run: Run
    hook: Literal["assigned", "revoked", "inside", "outside"]
    partitions: list[int]

    def __str__(self) -> str:
        return f"{self.run} {self.hook} {self.partitions}"


@dataclass(slots=True, eq=False)
class Asked(Event):
    """A request was sent."""

    member: str
    call: Call

    def __str__(self) -> str:
        return f"{self.member} asks {_request(self.call)}"


@dataclass(slots=True, eq=False)
class Answered(Event):
    """A request has ended."""

    member: str
    call: Call

    def __str__(self) -> str:
        what = f"{self.call.error!r}" if self.call.error else f"{_reply(self.call.result)}"
        return f"{self.member} {self.call.operation} {self.call.outcome}: {what}"


@dataclass(slots=True, eq=False)
class Reported(Event):
    """The framework emitted an event."""

    member: str
    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return f"{self.member} reports {self.name} {dict(self.fields)}"


@dataclass(slots=True, eq=False)
class Fault(Event):
    """Something went wrong on purpose."""

    kind: FaultKind
    call: Call | None

    def __str__(self) -> str:
        return f"fault  {self.kind}{f' of {self.call.operation}' if self.call else ''}"


@dataclass(slots=True, eq=False)
class Acted(Event):
    """The world did something, to a member if one is named."""

    action: str
    member: str | None = None

    def __str__(self) -> str:
        return f"world  {self.action} {self.member or ''}"


@dataclass(slots=True, eq=False)
class Stalled(Event):
    """Nothing has gone on for longer than anything may take."""

    missing: list[Span]

    def __str__(self) -> str:
        return f"world  stalled; never finished: {shown(self.missing)}"


@dataclass(slots=True, eq=False)
class Broken(Event):
    """The simulation itself has failed: a deadlock, or an error that nobody caught."""

    error: Exception

    def __str__(self) -> str:
        return "world  broken:\n" + "".join(format_exception(self.error))


@dataclass(slots=True, eq=False)
class Quiet(Event):
    """Everybody has left.

    Args:
        parked, tasks: requests that still wait at the log, and tasks that still run though nobody needs them.
        members: whom the log still takes for members of the group.
        ends: where each partition ends.
        values: all messages that the log holds.
    """

    parked: int
    tasks: int
    members: list[str]
    ends: list[int]
    values: list[list[bytes | None]] = field(repr=False)

    def __str__(self) -> str:
        return f"world  quiet; ends {self.ends}, parked {self.parked}"


E = TypeVar("E", bound=Event)


class History:
    """All events, and the requests that are out now."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.out: dict[int, tuple[str, Call]] = {}

    def add(self, event: Event) -> None:
        """Write an event down."""
        self.events.append(event)
        if len(self.events) > EVENTS_MAX:
            raise RuntimeError(f"more than {EVENTS_MAX} events: somebody goes in circles")

    def asked(self, member: str, call: Call) -> None:
        """A request goes out."""
        self.out[id(call)] = (member, call)
        self.add(Asked(call.at, member, call))

    def answered(self, member: str, call: Call) -> None:
        """A request has ended, whatever way."""
        del self.out[id(call)]
        self.add(Answered(anyio.current_time(), member, call))

    def of(self, kind: type[E]) -> Iterator[E]:
        """Events of one kind."""
        return (event for event in self.events if isinstance(event, kind))

    def trace(self) -> Iterator[str]:
        """A line per event."""
        return (f"{event.at:9.4f}  {event}" for event in self.events)


def shown(spans: list[Span]) -> str:
    """Spans for people."""
    return ", ".join(f"{span.partition}:{span.first}-{span.last}" for span in spans) or "nothing"


def _request(call: Call) -> str:
    arguments = {name: _argument(value) for name, value in call.arguments.items() if value is not None}
    return f"{call.operation} " + " ".join(f"{name}={value}" for name, value in arguments.items())


def _argument(value: object) -> object:
    if isinstance(value, TopicPartition):
        return value.partition
    if isinstance(value, (list, tuple)):
        return [_target(each) for each in cast("Sequence[object]", value)]
    return value


def _target(value: object) -> object:
    return f"{value.partition.partition}@{value.at}" if isinstance(value, FetchTarget) else value


def _reply(result: object) -> object:
    if isinstance(result, PollReply):
        targets = [target for target in result.targets if target.runs]
        return [f"{target.partition.partition}:{target.runs[0].base}-{target.next - 1}" for target in targets]
    if isinstance(result, (list, tuple)):
        return [_ready(each) for each in cast("Sequence[object]", result)]
    return result


def _ready(value: object) -> object:
    return f"{value.partition.partition}+{value.messages}" if isinstance(value, Ready) else value
