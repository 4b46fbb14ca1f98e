"""The consumer as users know it: reading, storing, seeking, pausing, looking at it, shutting down.

It decides little; machines and loops do.

Not here: fetching (`worker`), lists of messages (`lists`), stores on their way (`storing`), rebalances (`membership`);
what is in hand, marks and positions (`_core`).
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from functools import partial
from inspect import isawaitable
from operator import length_hint
from types import TracebackType
from typing import Any, Generic, Literal, Never, Self

import anyio
import anyio.lowlevel

from tarry import abc
from tarry._core.autocommit import AFTER_HANDLER, AT_HAND_OVER, Commits
from tarry._core.fetches import Demand, Fetches
from tarry._core.pace import Pace
from tarry._core.positions import Positions
from tarry._runtime.bridge import Bound, Home
from tarry._runtime.tasks import NOBODY, Task, current_task, ended, returned
from tarry.config import AutoCommit, ConsumerOptions, PollOptions, check_seconds
from tarry.consumer.advice import Advice
from tarry.consumer.arguments import Arguments, check_cause, check_handler, poll_options, start_of
from tarry.consumer.gathering import Gathering
from tarry.consumer.handing import READER_LOOK_S, Handing
from tarry.consumer.lists import Lists
from tarry.consumer.looking import Looking
from tarry.consumer.membership import Hooks, Membership, Reader, warn_possibly_lost
from tarry.consumer.reads import Reads, fill_count
from tarry.consumer.resolving import gap_at
from tarry.consumer.standing import Standing
from tarry.consumer.storing import STORE_S_MIN, Storing
from tarry.consumer.topics import Following, Topics
from tarry.consumer.traffic import Traffic
from tarry.consumer.typed import DecodeValue, Typed
from tarry.consumer.worker import Loop, Worker
from tarry.errors import (
    ConcurrentRead,
    DataError,
    NotAMember,
    NotReady,
    NotStarted,
    StaleAssignment,
    TarryError,
    UsageError,
)
from tarry.instruments import Instruments
from tarry.types import (
    Batch,
    Health,
    Lag,
    Message,
    Offset,
    Position,
    Segment,
    ShutdownReport,
    Start,
    StartKind,
    Statistics,
    T,
    TopicPartition,
)

Handler = Callable[[Message[T]], object]
"""Does the work on one message; may be async."""


class State(Enum):
    """Life of a consumer."""

    NEW = "not entered yet"
    OPENING = "being entered"
    FAILED = "its start failed"
    OPEN = "open"
    DRAINING = "shutting down"
    CLOSED = "shut down"


class Consumer(Bound, Generic[T]):
    """Reads partitions of one or several topics, waiting at the log while there is nothing.

    Use it as `async with client.consumer(...) as consumer: async for message in consumer: ...`. One task reads at a
    time (`ConcurrentRead`); offsets may be stored from any task.

    A message is *finished* when the loop asks for the next one, when the next read call is made (for a batch), when the
    handler of `consume` returned, or when it is given to `store_offset`. Order within a partition is kept; partitions
    are served in turn.

    Cancellation: a cancelled or timed-out read loses nothing, the same message comes with the next read (C24, K05); a
    cancelled store may still be applied.
    """

    def __init__(
        self,
        reads: Reads,
        *,
        open_session: Callable[[], Awaitable[abc.Session]],
        start_soon: Callable[[Callable[[], Any]], None],
        poll: PollOptions,
        commit: AutoCommit,
        options: ConsumerOptions,
        decode_value: DecodeValue | None,
        hooks: Hooks,
        instruments: Instruments,
        random: Callable[[], float],
        opened: Callable[[Consumer[Any]], None],
        closed: Callable[[Consumer[Any]], None],
    ) -> None:
        self._reads = reads
        self._opened = opened
        self._left = closed
        self._ask_for_session = open_session
        self._start_soon = start_soon
        self._poll = poll
        self._commit = commit
        self._commits_on_poll = commit.mode == "on_poll"
        self._options = options
        self._end_s = max(options.drain_timeout, STORE_S_MIN)
        self._hooks = hooks
        self._instruments = instruments.part()
        self._advice = Advice(reads, commit, self._instruments)
        self._traffic = Traffic()
        self._random = random
        self._state = State.NEW
        self._cause: TarryError | None = None
        self._positions = Positions()
        self._commits = Commits(commit.mode, n=commit.n)
        self._fetches = Fetches(
            count=poll.count,
            max_bytes=poll.max_bytes,
            messages_max=options.buffer_messages or 2 * poll.count,
            bytes_max=options.buffer_bytes,
        )
        self._handing = Handing(
            self._positions,
            self._commits,
            self._fetches,
            keeps=self._commits_on_poll,
            is_open=self._is_open,
            is_gone=lambda: ended(self._holder),
            stop=self._stop_cursor,
        )
        self._hand = self._handing.machine
        self._lists = Lists[T](
            self._fetches,
            typed=None if decode_value is None else Typed(decode_value),
            pace=Pace() if reads.identity.kind == "group" else None,
            stop=self._stop_at,
        )
        self._cursor: Iterator[Message[T]] = iter(())
        self._topics = Topics(reads.all_topics, self._instruments, self._arrived)
        self._arguments = Arguments(self._topics.wanted, self._positions, note=self._handing.note)
        # Made when it is entered.
        self._home: Home
        self._standing: Standing
        self._storing: Storing
        self._following: Following
        self._membership: Membership | None = None
        self._worker: Worker
        self._gathering: Gathering[T]
        self._looking: Looking
        # Who reads.
        self._current_task: Callable[[], Task] = self._not_started
        self._reader: Task = NOBODY
        self._owner: Task = NOBODY  # which entered it
        self._reading = False
        self._is_told = False  # the reader knows of the shutdown
        self._is_consuming = False
        self._stop: anyio.Event | None = None
        self._arrival = anyio.Event()
        self._hurry = anyio.Event()
        self._closed = anyio.Event()
        self._report = ShutdownReport({}, {}, {})
        self._exit: BaseException | None = None  # by which the last hook ends the program

    def __repr__(self) -> str:
        return f"<tarry {self._reads}, {self._state.value}>"

    def __del__(self) -> None:
        """What was committed for a consumer that nobody shut down, and not finished, is lost to the next run (C68)."""
        if getattr(self, "_state", State.NEW) is State.OPEN:
            warnings.warn(f"{self!r} was never shut down; use `async with`", ResourceWarning, stacklevel=2)

    # --------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        """Open the session (the only I/O of the start, C15).

        Raises:
            TopicNotFound: none of the topics exists, or a chosen partition does not; the message names them. When only
                some topics are missing the others are read, and `ready` and `health` name those.
        """
        if self._state is not State.NEW:
            raise UsageError(f"{self!r} cannot be entered again; make a new one with client.consumer(...)")
        self._state = State.OPENING
        try:
            self._standing = Standing(await self._open_session())
        except TarryError as error:
            self._state, self._cause = State.FAILED, error
            raise
        except BaseException:
            self._state = State.NEW
            raise
        self._home = Home()
        self._make_parts()
        self._state = State.OPEN
        self._current_task = current_task()
        self._owner = self._current_task()
        self._opened(self)
        self._start_soon(self._worker.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down; a message in hand when the block is left by an error, a cancel or a `break` is unfinished."""
        await self.shutdown()

    async def shutdown(self) -> ShutdownReport:
        """Stop fetching, withdraw what is parked, wait for the message in hand, store the last word, leave.

        Called from another task it waits up to `drain_timeout` until the reader asks for its next message, which ends
        its loop. Called from the reading task itself, or when that has ended, it does not wait: the message in hand is
        unfinished and comes again. A second call returns the same report; on a consumer that never started it is empty.
        Called from a hook of this consumer it only begins, and the report is empty. That hook is cut short at its next
        wait, as any step of a rebalance is (K50), unless it is the last `on_revoked`, for which the end waits.

        Cancellation: stops waiting for the reader; offsets are stored and the session is left all the same, within
        `drain_timeout`.

        Returns:
            What is stored of each partition, by how many messages that was brought back, and how many are unfinished.

        Raises:
            UsageError: called in another thread or event loop.
            BaseException: the last `on_revoked` has raised it, and it is no `Exception` (`sys.exit`, Ctrl-C). Raised
                once, when all is done.
        """
        if not self._is_started():
            return self._report
        self._home.check(self)
        if self._state is State.OPEN:
            self._state = State.DRAINING
            self._handing.stop_short()
            self._arrived()
            self._start_soon(self._close)  # not in this task, so that no cancel cuts it short
        if self._holder is self._current_task():
            self._is_told = True
            self._hurry.set()
        if self._membership is not None and self._membership.is_in_hook:
            return self._report
        try:
            await self._closed.wait()
        except anyio.get_cancelled_exc_class():
            self._hurry.set()
            with anyio.CancelScope(shield=True):
                await self._closed.wait()
            raise
        if self._exit is not None:
            ends, self._exit = self._exit, None
            raise ends
        return self._report

    async def _close(self) -> None:
        rewound: Mapping[TopicPartition, int] = {}
        try:
            async with anyio.create_task_group() as tasks:
                if self._membership is not None:
                    tasks.start_soon(self._membership.stay)
                rewound = await self._finish()
                tasks.cancel_scope.cancel()
            await self._leave()
        finally:
            self._report = ShutdownReport(self._committed(), dict(rewound), self._hand.unfinished())
            self._state = State.CLOSED
            self._left(self)
            self._closed.set()
            self._arrived()

    def _committed(self) -> dict[TopicPartition, Offset | None]:
        """What is stored, for each partition of which that is known for sure."""
        named = self._reads.is_named
        marks = {partition: self._commits[partition] for partition in self._positions}
        return {at: mark.stored for at, mark in marks.items() if not named or (mark.is_known and not mark.in_doubt)}

    async def _wait_for_reader(self, deadline: float) -> None:
        """Until the reader asks again, ends, or shuts down itself."""
        with anyio.CancelScope(deadline=deadline):
            while self._hand.in_work() and not self._hurry.is_set() and not ended(self._holder):
                with anyio.move_on_after(READER_LOOK_S):
                    await self._hurry.wait()

    async def _finish(self) -> Mapping[TopicPartition, int]:
        """Come to an end, and store the last word; by how many messages stored offsets were brought back."""
        deadline = anyio.current_time() + self._options.drain_timeout
        await self._worker.stop(self._options.drain_timeout)
        await self._wait_for_reader(deadline)
        self._handing.note()
        if self._membership is not None:
            await self._say_farewell(self._membership)
        last = await self._storing.finish(list(self._positions), self._end_s)
        if last.cut_off:
            self._advice.ended_unstored(last.cut_off, self._end_s)
        if self._hand.messages and all(self._commits[partition].stored is None for partition in self._positions):
            self._advice.stored_nothing()
        for partition, span in last.skipped.items():
            warn_possibly_lost(self._instruments, partition, *span)
        if self._commits_on_poll:  # nobody else reads what was committed and lost (Q6)
            for lost in self._hand.lost(self._fetches.segments):
                warn_possibly_lost(self._instruments, lost.origin.partition, lost.first, lost.last)
        return last.rewound

    async def _say_farewell(self, membership: Membership) -> None:
        """A hook may end the program (`sys.exit`, Ctrl-C): that is raised when all the rest is done."""
        try:
            await membership.farewell()
        except (anyio.get_cancelled_exc_class(), GeneratorExit):  # this task is not to go on
            raise
        except BaseException as error:  # noqa: BLE001
            self._exit = error

    async def _leave(self) -> None:
        with anyio.move_on_after(self._end_s):
            try:
                await self._standing.session.leave()
            except TarryError as error:
                self._instruments.emit("leave_failed", error=str(error))

    # ------------------------------------------------------------------------------------------- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        """The next message; waits at the log while there is none.

        Raises:
            StopAsyncIteration: the consumer was shut down (C23: nothing else ends the loop).
            NotStarted, ConcurrentRead, ConsumerFailed, or an error of one partition; the consumer stays usable.
        """
        try:
            if self._current_task() is not self._reader:
                self._claim()
        except RuntimeError:  # no such task runs here; costs nothing where one does
            self._home.check(self)
            raise
        for message in self._cursor:
            return message
        return await self._refill()

    async def poll(
        self,
        *,
        count: int | None = None,
        min_count: int | None = None,
        max_wait: float | timedelta | None = None,
        max_bytes: int | None = None,
        **unknown: Never,
    ) -> Batch[T]:
        """Gather messages over all partitions, until there are `min_count`, or `max_bytes`, or `max_wait` is over.

        Then return all that fits into `count` and `max_bytes`. What is not given comes from the consumer's
        `PollOptions`. The batch says why it came (`reason`); an empty one is a normal answer (K89, K101). The call
        finishes what earlier read calls handed out.

        Cancellation: what was gathered stays with the consumer and comes with the next read.

        Args:
            count: most messages of the batch, 1 to 10,000.
            min_count: as many end the wait, 1 to `count`.
            max_wait: longest wait in seconds, 0 to 600 (or a timedelta); 0 answers at once.
            max_bytes: most bytes of the batch; a first message above it comes alone.

        Returns:
            The batch. Of a consumer that is being shut down, or was while its reader worked, one with the reason
            `"drain"`, once; then `NotStarted` is raised.

        Raises:
            ConfigError: a limit out of its range, or an option that does not exist, such as `poll_interval` (C12).
            NotStarted, ConcurrentRead, ConsumerFailed, or an error of one partition, as from a read.
        """
        given = {"count": count, "min_count": min_count, "max_wait": max_wait, "max_bytes": max_bytes}
        options = poll_options(self._poll, given, unknown)
        if self._state is State.CLOSED:
            return self._drained()
        if self._running_task() is not self._reader:
            self._claim()
        self._settle()
        if self._is_told and self._state is State.DRAINING:
            raise self._ended()
        demand = Demand(
            options.count, options.min_count, options.max_bytes, deadline=anyio.current_time() + options.max_wait
        )
        self._reading = True
        try:
            batch = await self._gathering.gather(demand)
        finally:
            self._reading = False
        self._is_told = batch.reason == "drain"
        return batch

    def _drained(self) -> Batch[T]:
        """Who worked longer than the shutdown waited is told of it like one who waited for messages, once."""
        if self._is_told or self._running_task() is not self._reader:
            raise self._ended()
        self._is_told = True
        return Batch((), "drain", self._lists.read)

    def _hand_out(self, segments: Sequence[Segment]) -> None:
        """A batch goes to the application."""
        self._advice.reads_plainly()
        for segment in segments:
            self._handing.give_batch(segment)
            origin, first, last = segment.origin, segment.first, segment.last
            if self._positions.holds(origin) and self._commits.handed_over(origin.partition, first, last, end=last):
                self._storing.queue(origin.partition)
        self._looking.given()
        self._worker.taken()

    async def _refill(self) -> Message[T]:
        """The slow path of a read: finish the list, take the next one; with one real checkpoint each (K16, K91)."""
        self._settle()
        self._reading = True
        try:
            await anyio.lowlevel.checkpoint()
            self._standing.keep()
            self._lists.done(self._standing.now())
            while True:
                if self._is_ending():
                    raise StopAsyncIteration
                self._worker.raise_pending()
                segment = None if self._standing.is_in_doubt() else self._fetches.take()
                if segment is not None:
                    self._gathering.is_interrupted = False
                    break
                if await self._worker.left_dead_end():
                    continue
                self._worker.awaited()
                await self._arrival.wait()
                await anyio.lowlevel.checkpoint_if_cancelled()
        finally:
            self._reading = False
            self._worker.served()
        self._load(segment)
        message = next(self._cursor)
        self._looking.given()
        self._worker.taken()
        return message

    def _load(self, segment: Segment) -> None:
        """Put the cursor at the beginning of a list."""
        part, messages, end = self._lists.next(segment, self._standing.now())
        self._advice.reads_plainly()
        cursor = iter(messages)
        self._hand.give_list(part, partial(length_hint, cursor))  # exact for a list
        self._cursor = cursor
        if self._commit.mode in AT_HAND_OVER:  # the others pay nothing for these
            self._cursor = map(partial(self._tell_handed, end), cursor)

    def _tell_handed(self, end: Offset, message: Message[T]) -> Message[T]:
        """A message of what was fetched up to `end` is handed over: the mode may store it right now (C43-C45)."""
        origin, offset = message.origin, message.offset
        if self._positions.holds(origin) and self._commits.handed_over(origin.partition, offset, offset, end=end):
            self._storing.queue(origin.partition)
        return message

    def _is_ending(self) -> bool:
        """Whoever waits for a single message gets none any more."""
        return self._state is not State.OPEN or (self._stop is not None and self._stop.is_set())

    # -- the handler loop

    async def consume(
        self, handler: Handler[T], *, stop: anyio.Event | None = None, on_error: Literal["raise", "skip"] = "raise"
    ) -> None:
        """Give each message to `handler`, one after the other, until the consumer is shut down or `stop` is set.

        A message is finished when the handler returned; with a mode such as `AutoCommit.after_each()` it is stored then
        (C46-C48). After `stop` the message in work comes to its end, and no further one is begun.

        Cancellation: the message in work is unfinished. It comes again, with the next read of this consumer or in the
        next run; nothing passes it.

        Args:
            handler: called with one message; may be async.
            stop: ends the loop when it is set; the consumer stays open.
            on_error: what an error of the handler does: `"raise"` it, with the message unfinished as after a cancel
                (C97, K10); or `"skip"`: log it and call the message finished. What is no `Exception` is always raised.

        Raises:
            ConcurrentRead: another task reads, or another `consume` runs; no other task may read while this one does.
            NotStarted, ConsumerFailed, or an error of one partition, as from a read; the consumer stays usable.
        """
        check_handler(handler, stop, on_error)
        if self._running_task() is not self._reader:
            self._claim()
        if self._is_consuming:
            raise ConcurrentRead(f"{self._reads} already runs a handler; open a consumer per handler")
        self._advice.begins_handling()
        self._settle()
        self._is_consuming, self._stop = True, stop
        watching = anyio.CancelScope()
        if stop is not None:
            self._start_soon(partial(self._watch, stop, watching))
        try:
            async for message in self:
                await self._handle(message, handler, skips=on_error == "skip")
                if self._is_ending():
                    break
                if self._standing.is_in_doubt():
                    self._handing.stop_short()
            self._settle()
        finally:
            self._is_consuming, self._stop = False, None
            watching.cancel()

    async def _watch(self, stop: anyio.Event, scope: anyio.CancelScope) -> None:
        """Whoever waits for a message looks again when `stop` is set."""
        with scope:
            await stop.wait()
            self._arrived()

    async def _handle(self, message: Message[T], handler: Handler[T], *, skips: bool) -> None:
        origin = message.origin
        place = self._positions.get(origin.partition)
        try:
            result = handler(message)
            if isawaitable(result):
                await result
        except BaseException as error:
            if not skips or not isinstance(error, Exception):
                self._hand.fail()
                self._handing.stop_short()
                raise
            self._advice.skipped(message, error)
        if self._positions.get(origin.partition) is not place or not self._positions.holds(origin):
            return  # it was sought or lost meanwhile: the message counts neither way any more
        if self._commits.returned(origin.partition, message.offset, origin.head):
            self._storing.queue(origin.partition)

    def _stop_at(self, bad: Segment, error: DataError) -> None:
        """These messages do not decode: their partition is stopped. Where it was lost, the rest goes on (C36)."""
        if self._positions.holds(bad.origin):
            self._worker.halt(bad.origin.partition, error)
        else:
            warn_possibly_lost(self._instruments, bad.origin.partition, bad.first, bad.last)

    def _settle(self) -> None:
        """Whoever reads again is done with what he has in hand."""
        self._handing.settle()
        if self._state is State.DRAINING:
            self._hurry.set()

    def _stop_cursor(self) -> None:
        self._cursor = iter(())

    # -- who reads, and who waits

    def _interrupt(self) -> None:
        """The `poll` that waits, or else the next one, returns what it has; whoever reads may hold a lock (K55)."""
        self._gathering.is_interrupted = True
        self._arrived()

    def _running_task(self) -> Task:
        """Of the home; a task elsewhere is refused, also by a loop that would say in words of its own that it is none.

        `__anext__` has this inline: it runs for each message.
        """
        try:
            return self._current_task()
        except RuntimeError:
            self._home.check(self)
            raise

    def _claim(self) -> None:
        """Another task than before reads: refused while that one still has to do with the consumer (K97)."""
        task = self._current_task()
        self._home.check(self)
        if self._reader is not NOBODY and not ended(self._reader) and (does := self._reader_does()):
            raise ConcurrentRead(
                f"{self._reads} is read by another task, which {does}; "
                "let one task read and hand messages on, or open a consumer per task"
            )
        self._reader = task

    @property
    def _holder(self) -> Task:
        """Whoever has what was handed out last.

        A task that has ended by returning it has passed it on; as far as anybody can know, to the one that entered this
        consumer: `asyncio.wait_for(anext(consumer), 1)` of Python 3.11 reads in a task of its own.
        """
        is_passed_on = isinstance(returned(self._reader), (Message, Batch))
        return self._owner if is_passed_on else self._reader

    def _reader_does(self) -> str | None:
        """What whoever reads is about; None: nothing that has to do with this consumer."""
        if self._reading:
            return "waits for a message"
        if self._is_consuming:
            return "runs a handler"
        return "still holds one" if self._hand.in_work() else None

    def _arrived(self) -> None:
        """Everybody who waits looks again."""
        self._arrival.set()
        self._arrival = anyio.Event()

    async def _next_arrival(self) -> None:
        await self._arrival.wait()

    def _not_started(self) -> Never:
        """Stands in for the current task before the start (C16, K90)."""
        message = f"{self._reads} is {self._state.value}; use it inside `async with client.consumer(...) as consumer:`"
        self._advice.not_started(message)
        raise NotStarted(message) from self._cause

    def _check_started(self) -> None:
        if not self._is_started():
            self._not_started()
        self._home.check(self)
        if self._state is State.CLOSED:
            raise self._ended()

    @contextmanager
    def _asks(self) -> Generator[None]:
        """The application asks the log for something; meanwhile the session may end, or be left at a shutdown."""
        try:
            yield
        except NotAMember as error:
            if self._state is not State.OPEN:
                raise self._ended() from error
            raise StaleAssignment(f"the log has ended the session of {self._reads}; nothing was done") from error

    def _ended(self) -> NotStarted:
        return NotStarted(f"{self._reads} is {self._state.value}; make a new one with client.consumer(...)")

    # ------------------------------------------------------------------------------------------- offsets

    async def store_offset(
        self,
        what: Message[Any] | Batch[Any] | TopicPartition | int,
        offset: Offset | int | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Say that a message, a batch, or everything up to an offset is finished; durable when it returns.

        Never lowers what is stored, except for the first store after a `seek` (K85).

        Args:
            what: a message, a batch (each of its partitions), or a partition together with `offset`.
            force: store an offset too that was not delivered yet; without it that is refused, since the messages up to
                there would be skipped. Behind a `seek` back, what was delivered before it is among those.

        Raises:
            ConfigError: the offset lies ahead of what was delivered, or stands beside a message or batch.
            StaleAssignment: the partition is not, or no longer, held under the ownership or history of the message. Of
                a batch nothing is stored then, unless the partition was lost during this call.
            UsageError: the consumer has no name to store under.
            OffsetOutOfRange: the log holds no such message yet.
        """
        self._check_started()
        self._check_named()
        for partition, last, origin in self._arguments.offsets(what, offset, force=force):
            if origin is not None:
                self._arguments.check_held(origin)  # again: a rebalance may have come with the store before this one
            await self._storing.store(partition, last, None if origin is None else origin.history)

    async def delete_offset(self, partition: TopicPartition | int) -> None:
        """Remove the stored offset, so that `Start.next()` begins anew (C55).

        An automatic mode goes on storing what is finished after this, also at shutdown.

        Cancellation: it may still be removed.

        Raises:
            UsageError: the consumer has no name to store under.
            StaleAssignment: the partition is not read by this consumer.
        """
        self._check_started()
        self._check_named()
        await self._storing.delete(self._owned(partition))

    async def seek(self, partition: TopicPartition | int, to: Start | Offset | Position | int) -> Position:
        """Read a partition from somewhere else, from the next message on; returns the position.

        What was fetched of it is void (C33). The message in hand counts neither as finished nor as unfinished any more.
        The next store may go below the stored offset (design 1.3).

        Cancellation: nothing has moved.

        Args:
            to: a `Start`, or the offset of the message to read next.

        Raises:
            OffsetOutOfRange: behind the end of the log; or below what is retained, when `to` or the `start=` of the
                consumer says `on_gap="fail"`.
            StaleAssignment: the partition is not read by this consumer.
        """
        self._check_started()
        owned = self._owned(partition)
        start = fill_count(start_of(to), self._poll.count)
        with self._asks():
            resolved = await self._standing.session.resolve(owned, start)
        self._owned(owned)  # again: it may have been lost meanwhile
        gap = gap_at(owned, resolved)
        if gap is not None and "fail" in (start.on_gap, self._reads.start.on_gap):
            raise gap.refusal()
        if self._positions[owned].history not in (None, resolved.history):
            self._worker.renew(owned)
        while self._reads.is_named and not self._commits[owned].is_known:  # again where it was lost meanwhile
            with self._asks():
                await self._storing.find(owned)  # nobody will, once there is a position
            self._owned(owned)
        self._handing.note()
        self._handing.drop(owned)
        self._positions.seek(owned, resolved.position, resolved.history)
        self._commits.sought(owned, resolved.position)
        self._worker.moved(owned)
        return resolved.position

    def pause(self, partitions: TopicPartition | int | Iterable[TopicPartition | int], *, cause: str) -> None:
        """Deliver nothing more of these partitions until `resume`; the others go on (K48).

        The message in hand may be finished. What was fetched is kept, beside the bounds of the buffer, and comes first
        after `resume`; nothing more is fetched. (Under commit-on-poll it is committed already: the stored offset is
        brought back before anything else is fetched, and it is fetched again after `resume`.) The pause ends with the
        ownership of the partition. With all partitions paused a read waits, and `poll` returns nothing at the end of
        its wait.

        Args:
            cause: why, for whoever looks at `paused`; a second pause of a partition replaces it.

        Raises:
            StaleAssignment: one of them is not read by this consumer; nothing was paused.
        """
        self._check_started()
        check_cause(cause)
        for partition in self._arguments.all_owned(partitions):
            self._positions.pause(partition, cause)
            self._fetches.set_aside(partition)
            self._handing.pause(partition)
        self._worker.kick()

    def resume(self, partitions: TopicPartition | int | Iterable[TopicPartition | int]) -> None:
        """Go on with paused partitions, with the first message of each that was not delivered before (K48).

        Raises:
            StaleAssignment: one of them is not read by this consumer; nothing was resumed.
        """
        self._check_started()
        for partition in self._arguments.all_owned(partitions):
            self._positions.pause(partition, None)
            self._fetches.bring_back(partition)
            if partition in self._positions.readable() and not self._worker.is_held_back(partition):
                self._fetches.ready(partition)
        self._worker.kick()
        self._arrived()

    def _began(self, partition: TopicPartition, position: Position) -> None:
        start = self._reads.start
        if start.kind is StartKind.NEXT and start.otherwise == "end":
            self._commits.began(partition, position)

    def _renewed(self, partition: TopicPartition) -> None:
        """What was known of a partition belongs to a topic that is gone."""
        self._handing.drop(partition)
        self._commits.forget(partition)

    def _check_named(self) -> None:
        if not self._reads.is_named:
            raise UsageError(f"the {self._reads} has no name to store offsets under; pass name= to client.consumer()")

    # ------------------------------------------------------------------------------------------- looking

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this consumer reads; in a group they come and go."""
        return frozenset(self._positions)

    @property
    def paused(self) -> dict[TopicPartition, str]:
        """The paused partitions, each with its cause."""
        return self._positions.paused()

    @property
    def generation(self) -> int:
        """Counts the changes of the group's members; constant without a group."""
        return 0 if not self._is_started() else self._standing.session.assignment.generation

    def position(self, partition: TopicPartition | int) -> Position | None:
        """The next message to be delivered, None while it is not known; never waits (C25).

        Like the other two it goes on telling after shutdown.

        Raises:
            StaleAssignment: the partition is not, or no longer, read by this consumer.
            NotStarted: the consumer was not entered.
            UsageError: called in another thread or event loop.
        """
        owned = self._owned(partition)
        self._handing.note()
        return self._positions[owned].next

    def last_delivered(self, partition: TopicPartition | int) -> Offset | None:
        """The last offset handed over, None when there is none (C25, C34, D2); raises as `position` does."""
        owned = self._owned(partition)
        self._handing.note()
        return self._positions[owned].delivered

    def last_stored(self, partition: TopicPartition | int) -> Offset | None:
        """The stored offset as far as this consumer knows it, None when there is none (C25); raises as `position`."""
        return self._commits[self._owned(partition)].stored

    def statistics(self) -> Statistics:
        """What this consumer has done so far; never waits, costs nothing per message, works after shutdown too."""
        return self._looking.statistics(is_open=self._state is State.OPEN) if self._is_started() else Statistics()

    def health(self) -> Health:
        """Whether this consumer gets on, for a liveness probe; never waits and asks nobody (K19).

        Messages are not timed one by one: `stalled_s` is exact for the first of each list that was fetched, and for the
        others may be too short by the time between two calls. `ok` becomes False when the log is silent for more than
        two `heartbeat_interval`.

        Raises:
            UsageError: called in another thread or event loop.
        """
        state, is_open = self._state.value, self._state is State.OPEN
        if self._is_started():
            self._home.check(self)
            return self._looking.health(state, is_open=is_open, is_reading=self._reading)
        return Health(
            ok=False,
            state=state,
            is_member=False,
            owned=frozenset(),
            missing={},
            stopped={},
            stalled_s=0.0,
            silent_s=0.0,
            last_error=self._cause,
        )

    async def ready(self, timeout: float | timedelta | None = None) -> None:
        """Wait until every topic exists, and every partition has a position.

        A partition gets none before `on_assigned` has run; called in that hook, this waits for the others only.

        Cancellation: ends the wait at once; nothing else changes.

        Args:
            timeout: longest wait in seconds, 0 or more (or a timedelta); None: without limit.

        Raises:
            NotReady: after `timeout`, or when nothing more can come of waiting; names what is missing (K72).
            ConfigError: a timeout that is none.
            NotStarted, ConsumerFailed: it is not open, was shut down meanwhile, or an internal task of it died.
        """
        self._check_started()
        limit_s = None if timeout is None else check_seconds("timeout", timeout)
        with anyio.move_on_after(limit_s) as limit:
            while self._state is State.OPEN and self._looking.is_hopeful():
                await self._arrival.wait()
        if self._state is not State.OPEN:
            raise self._ended()
        if self._worker.failure is not None:
            self._worker.raise_pending()
        if missing := self._looking.missing():
            after = f" after {limit_s:g} s" if limit.cancelled_caught else ""
            raise NotReady(f"{self._reads}: {', '.join(missing)}{after}")

    async def lag(self) -> dict[TopicPartition, Lag]:
        """How far each partition is behind its end, by what was delivered and by what is stored.

        In messages, and in seconds: the age of the oldest message that is left, by its timestamp and the log's clock.
        Asks the log once or twice for each partition; the figures are those of the moment at which it was asked. A
        partition whose topic is gone has no end, and is left out.

        Cancellation: nothing else changes.

        Raises:
            NotStarted: the consumer is not open, or was shut down meanwhile.
            StaleAssignment: the log has ended the session; a member joins again by itself.
            RefusedError, LogUnavailable: the log does not say; nothing is asked again.
        """
        self._check_started()
        self._handing.note()
        with self._asks():
            return await self._looking.lag()

    def _owned(self, partition: TopicPartition | int) -> TopicPartition:
        """The partition meant: with one topic, a plain int names one of it."""
        if not self._is_started():
            self._not_started()
        if self._state is not State.CLOSED:  # then nothing changes any more
            self._home.check(self)
        return self._arguments.owned(partition)

    def _is_started(self) -> bool:
        return self._state not in (State.NEW, State.OPENING, State.FAILED)

    def _is_open(self) -> bool:
        return self._state is State.OPEN

    # ------------------------------------------------------------------------------------------- its parts

    def _make_parts(self) -> None:
        """What reads and stores for this consumer; it runs from the start on."""
        self._storing = Storing(
            self._standing,
            self._commits,
            self._positions,
            period=self._commit.period,
            note=self._handing.note,
            instruments=self._instruments,
            random=self._random,
        )
        beside: list[Loop] = [self._storing.keep_time]
        if self._commit.mode in AT_HAND_OVER | AFTER_HANDLER:
            beside.append(self._storing.work_off)
        if self._reads.identity.kind == "group":
            self._membership = self._make_membership()
            self._membership.begin()
            beside.append(self._follow_group)
        else:
            self._following = Following(self._standing, self._topics, self._positions, self._random)
            self._following.begin()
            beside.append(self._follow_topics)
        self._worker = self._make_worker(beside)
        self._gathering = Gathering(
            self._standing,
            self._worker,
            self._fetches,
            self._lists,
            commits=self._commits_on_poll,
            is_open=self._is_open,
            arrival=self._next_arrival,
            hand_out=self._hand_out,
        )
        self._looking = Looking(
            self._standing,
            positions=self._positions,
            commits=self._commits,
            fetches=self._fetches,
            hand=self._hand,
            topics=self._topics,
            traffic=self._traffic,
            worker=self._worker,
            storing=self._storing,
            membership=self._membership,
            instruments=self._instruments,
            silent_max_s=2 * self._options.heartbeat_interval,
        )

    def _make_worker(self, beside: Sequence[Loop]) -> Worker:
        return Worker(
            self._standing,
            start=self._reads.start,
            poll=self._poll,
            positions=self._positions,
            fetches=self._fetches,
            commits=self._commits if self._commits_on_poll else None,
            find=self._storing.find if self._reads.is_named else None,
            put_back=self._storing.put_back,
            lanes=self._storing.lanes,
            began=self._began,
            beside=beside,
            arrived=self._arrived,
            renewed=self._renewed,
            instruments=self._instruments,
            random=self._random,
            cool_down_s=self._options.cool_down,
        )

    def _make_membership(self) -> Membership:
        return Membership(
            self._standing,
            name=str(self._reads),
            join=self._open_session,
            noted=self._topics.note,
            hooks=self._hooks,
            reader=Reader(
                cut=self._handing.cut_off,
                holds=self._handing.holds,
                settled=self._handing.settled,
                interrupt=self._interrupt,
                stop_short=self._handing.stop_short,
                wake=self._arrived,
                look=self._handing.look,
            ),
            keeps=self._commits_on_poll,
            positions=self._positions,
            commits=self._commits,
            storing=self._storing,
            options=self._options,
            instruments=self._instruments,
            random=self._random,
        )

    async def _open_session(self) -> abc.Session:
        return self._traffic.observe(await self._ask_for_session())

    async def _follow_group(self) -> None:
        assert self._membership is not None
        await self._membership.run(self._worker)

    async def _follow_topics(self) -> None:
        await self._following.run(self._worker)
