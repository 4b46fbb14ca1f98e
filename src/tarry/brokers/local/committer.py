"""Group commit: the loop's side of the one writer.

Jobs gather in a round while the writer is busy; the round becomes one transaction, and every caller gets its own result
when its fate is known. Here is also the port between the two sides. Not here: SQL (`writer`), what a round changes in
memory (`store_sqlite`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tarry._runtime.bridge import Post
from tarry._runtime.threads import Worker, deliver
from tarry.abc import Job, JobDone, JobResult, PartitionId, Row, TopicState, Trimmed
from tarry.errors import LogUnavailable, OutcomeUnknown, TarryError


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds, as far as memory keeps it: all topics, and the state of each group."""

    topics: Sequence[TopicState]
    groups: Mapping[str, bytes]


@dataclass(slots=True)
class Changes:
    """What committed transactions changed, for the memory of the loop.

    Args:
        created: topics with their new partitions: all of a new topic, those that were added to one that has grown.
        groups: the new state of each group that was saved, None when it was forgotten.
        reopened: the file had to be opened again, and this is all it holds; it replaces whatever was known.
    """

    created: list[TopicState] = field(default_factory=list[TopicState])
    rows: list[Row] = field(default_factory=list[Row])
    trims: list[Trimmed] = field(default_factory=list[Trimmed])
    deleted: list[PartitionId] = field(default_factory=list[PartitionId])
    groups: dict[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])
    reopened: Content | None = None

    def add(self, later: Changes) -> None:
        """Take in what a later transaction of the same round changed."""
        self.created += later.created
        self.rows += later.rows
        self.trims += later.trims
        self.deleted += later.deleted
        self.groups.update(later.groups)


@dataclass(slots=True)
class Outcome:
    """What became of a round: one result per job, in order; with `fatal` the writer stops for good."""

    results: Sequence[JobResult | TarryError]
    changes: Changes
    fatal: TarryError | None = None


class RoundWriter(Protocol):
    """What writes rounds, in a thread of its own (`writer.Writer`)."""

    def write(self, jobs: Sequence[Job]) -> Outcome:
        """Write a round; an exception out of here kills the thread (W15)."""
        ...

    def rest(self) -> float | None:
        """Do what must not wait for an idle moment; return the pause before `idle`, None for never."""
        ...

    def idle(self) -> float | None:
        """Nothing came for that long: tidy up. Returns the next pause."""
        ...

    def finish(self) -> None:
        """Close; the last call."""
        ...


class Ticket:
    """A job on its way to the writer."""

    __slots__ = ("done", "job", "size")

    def __init__(self, job: Job, done: JobDone) -> None:
        self.job = job
        self.done = done
        self.size = job.size


class Committer:
    """Collect jobs into rounds for one writer thread, at most one round out at a time.

    A round leaves at the end of the turn in which its first job came, or as soon as the one before is back; it never
    waits for more (W1). So a lone job has no added latency, and rounds grow only while a transaction runs. It takes
    jobs in order up to `queue_bytes` (at least one); those beyond stay with their callers, in order, until there is
    room (W4). Everything belongs to the loop; only `RoundWriter` runs in the thread.

    Bounds: one round by `queue_bytes`.

    Args:
        applied: called with the changes of a round before its callers are answered.
        failed: called once when the writer stopped for good; afterwards every job gets `LogUnavailable` (W15).
    """

    def __init__(
        self,
        writer: RoundWriter,
        *,
        applied: Callable[[Changes], None],
        failed: Callable[[TarryError], None],
        post: Post,
        queue_bytes: int,
        name: str,
    ) -> None:
        self._writer = writer
        self._applied = applied
        self._failed = failed
        self._post = post
        self._queue_bytes = queue_bytes
        self._queue: dict[Ticket, None] = {}
        self._queued_bytes = 0
        self._out: list[Ticket] | None = None
        self._is_handing_over = False
        self._refusal: TarryError | None = None
        self._on_closed: list[Callable[[], None]] = []
        self._is_closing = False
        self._is_ended = False
        self._worker: Worker[list[Ticket]] = Worker(
            name, self._handle, post=post, ended=self._ended, idle=writer.idle, finish=writer.finish
        )

    def submit(self, job: Job, done: JobDone) -> Ticket:
        """Queue a job; `done` is called exactly once, never from in here (W5), unless `withdraw` takes it back."""
        ticket = Ticket(job, done)
        if self._refusal is not None:
            self._post(done, self._refusal)
            return ticket
        self._queue[ticket] = None
        self._queued_bytes += ticket.size
        if self._out is None and not self._is_handing_over:
            self._is_handing_over = True
            self._post(self._hand_over)
        return ticket

    def withdraw(self, ticket: Ticket) -> bool:
        """Take a job out: True when the writer has not got it; nothing is applied, `done` is not called (W17)."""
        if ticket not in self._queue:
            return False
        del self._queue[ticket]
        self._queued_bytes -= ticket.size
        self._end_when_drained()
        return True

    def close(self, closed: Callable[[], None]) -> None:
        """Write what is queued, answer everybody, end the thread, then call `closed` (W16). May be called again."""
        if self._is_ended:
            self._post(closed)
            return
        self._on_closed.append(closed)
        self._refusal = self._refusal or LogUnavailable("the log is closed; nothing was applied")
        if not self._is_closing:
            self._is_closing = True
            self._end_when_drained()

    def _hand_over(self) -> None:
        """Give the writer the next round, if it is free and somebody is left in the queue."""
        self._is_handing_over = False
        if self._out is not None or not self._queue or self._is_ended:
            return
        self._out = self._take_round()
        self._worker.put(self._out)

    def _take_round(self) -> list[Ticket]:
        if self._queued_bytes <= self._queue_bytes:
            return self._take_all()
        taken: list[Ticket] = []
        room = self._queue_bytes
        for ticket in self._queue:
            room -= ticket.size
            if room < 0 and taken:
                break
            taken.append(ticket)
        for ticket in taken:
            del self._queue[ticket]
            self._queued_bytes -= ticket.size
        return taken

    def _take_all(self) -> list[Ticket]:
        taken = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return taken

    def _handle(self, taken: list[Ticket]) -> float | None:
        """In the thread: one round, then what may follow it while the loop answers."""
        outcome = self._writer.write([ticket.job for ticket in taken])
        deliver(self._post, self._back, outcome)
        return self._writer.rest()

    def _back(self, outcome: Outcome) -> None:
        """A round is back. The next one leaves first, so that the writer works while callers are answered."""
        taken, self._out = self._out or [], None
        try:
            self._applied(outcome.changes)
        finally:
            if outcome.fatal is not None:
                self._stop(outcome.fatal)
            self._hand_over()
            try:
                _answer(taken, outcome.results)
            finally:
                self._end_when_drained()

    def _stop(self, error: TarryError) -> None:
        """Nothing more will be written: fail what waits, and what comes."""
        self._refusal = _unavailable(error)
        self._failed(error)
        waiting = self._take_all()
        _answer(waiting, [self._refusal] * len(waiting))

    def _end_when_drained(self) -> None:
        if self._is_closing and self._out is None and not self._queue:
            self._worker.close()

    def _ended(self, error: BaseException | None) -> None:
        """The thread is gone: closed, or killed by an error with a round in its hands (W15)."""
        self._is_ended = True
        taken, self._out = self._out or [], None
        try:
            if error is not None:
                self._died(error, taken)
        finally:
            callbacks, self._on_closed = self._on_closed, []
            for closed in callbacks:
                closed()

    def _died(self, error: BaseException, taken: list[Ticket]) -> None:
        unknown = OutcomeUnknown(f"the writer of the log died ({error!r}) before it could say what became of this")
        unknown.__cause__ = error
        try:
            self._stop(_unavailable(error))
        finally:
            _answer(taken, [unknown] * len(taken))


def _unavailable(error: BaseException) -> LogUnavailable:
    if isinstance(error, LogUnavailable):
        return error
    text = str(error) if isinstance(error, TarryError) else f"the writer of the log died: {error!r}"
    unavailable = LogUnavailable(f"{text}; nothing of this request was applied")
    unavailable.__cause__ = error
    return unavailable


def _answer(tickets: Sequence[Ticket], results: Sequence[JobResult | TarryError]) -> None:
    """Call every `done`, also when one of them raises; the first error goes on to the loop."""
    failure: Exception | None = None
    for ticket, result in zip(tickets, results, strict=True):
        try:
            ticket.done(result)
        except Exception as error:  # noqa: BLE001  # raised below
            failure = failure or error
    if failure is not None:
        raise failure
