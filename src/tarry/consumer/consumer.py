"""The consumer as users know it: reading, storing, seeking, pausing, looking at it, shutting down.

It decides little; machines and loops do.

Not here: fetching (`worker`), stores on their way (`storing`), rebalances (`membership`), the marks and positions
(`_core`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Any, Generic, Literal, Never, Self, cast

import anyio
import anyio.lowlevel

from tarry import abc
from tarry._core.autocommit import AFTER_HANDLER, AT_HAND_OVER, Commits
from tarry._core.fetches import Demand, Fetches, cut
from tarry._core.pace import Pace
from tarry._core.patience import InHand
from tarry._core.positions import Positions
from tarry._runtime.tasks import Task, current_task, ended
from tarry._wire.batch import decode
from tarry.config import AutoCommit, ConsumerOptions, PollOptions
from tarry.consumer.membership import Hooks, Membership, Reader, warn_possibly_lost
from tarry.consumer.saying import Saying
from tarry.consumer.standing import Standing
from tarry.consumer.storing import STORE_S_MIN, StoreCounts, Storing
from tarry.consumer.topics import Following, Topics
from tarry.consumer.traffic import Traffic
from tarry.consumer.typed import PART_MESSAGES, DecodeValue, Typed
from tarry.consumer.worker import Loop, Worker, gap_at
from tarry.errors import (
    ConcurrentRead,
    ConfigError,
    ConfigTypeError,
    DataError,
    NotReady,
    NotStarted,
    StaleAssignment,
    TarryError,
    UsageError,
)
from tarry.instruments import Instruments
from tarry.types import (
    Batch,
    Decode,
    Health,
    Lag,
    Message,
    Offset,
    Origin,
    Position,
    Segment,
    ShutdownReport,
    Start,
    StartKind,
    Statistics,
    T,
    TopicPartition,
    position_after,
)

READER_LOOK_S = 0.02
"""How often a shutdown looks whether the reader has asked again or ended; trio has no callback for the latter."""


Handler = Callable[[Message[T]], object]
"""Does the work on one message; may be async."""


class State(Enum):
    """Life of a consumer."""

    NEW = "not entered yet"
    FAILED = "its start failed"
    OPEN = "open"
    DRAINING = "shutting down"
    CLOSED = "shut down"


@dataclass(frozen=True, slots=True)
class Reads:
    """What a consumer reads and under which name; checked when the consumer is made."""

    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    identity: abc.ConsumerIdentity
    start: Start

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Those of the chosen partitions too."""
        return tuple(dict.fromkeys((*self.topics, *(partition.topic for partition in self.partitions))))

    def __str__(self) -> str:
        what = ", ".join([*self.topics, *map(str, self.partitions)])
        return f"consumer {self.identity.name!r} of {what}" if self.identity.name else f"unnamed consumer of {what}"


class Consumer(Generic[T]):
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
        self._typed = None if decode_value is None else Typed(decode_value)
        self._hooks = hooks
        self._instruments = instruments.part()
        self._saying = Saying(self._instruments)
        self._traffic = Traffic()
        self._random = random
        self._state = State.NEW
        self._cause: TarryError | None = None
        self._warned = False
        self._positions = Positions()
        self._commits = Commits(commit.mode, n=commit.n)
        self._fetches = Fetches(
            count=poll.count,
            max_bytes=poll.max_bytes,
            messages_max=options.buffer_messages or 2 * poll.count,
            bytes_max=options.buffer_bytes,
        )
        is_paced = reads.identity.kind == "group" and commit.mode != "each_batch"  # whose lists are what was fetched
        self._pace = Pace() if is_paced else None
        self._standing: Standing
        self._topics = Topics(reads.all_topics, self._instruments, self._arrived)
        self._following: Following
        self._membership: Membership | None = None
        self._worker: Worker
        self._storing: Storing
        # What the application has in hand: the current list with its cursor and the last message out of it, or a batch.
        self._cursor: Iterator[Message[T]] = iter(())
        self._segment: Segment | None = None
        self._hand: Message[T] | None = None
        self._failed: Message[T] | None = None  # in hand, but its handler did not come to its end
        self._batch: dict[Origin, tuple[Offset, Offset]] = {}
        self._given_up: set[Origin] = set()  # of these: what was stored for them was brought back
        # What was handed over out of lists that are done with; how many messages in all, and when that last grew.
        self._messages = 0
        self._bytes = 0
        self._seen = (0, 0.0)
        # Who reads.
        self._current_task: Callable[[], Task] = self._not_started
        self._reader: Task = None
        self._reading = False
        self._delivered_any = False
        self._is_interrupted = False
        self._is_consuming = False
        self._stop: anyio.Event | None = None
        self._knows_handlers = False
        self._arrival = anyio.Event()
        self._hurry = anyio.Event()
        self._settling: anyio.Event | None = None
        self._closed = anyio.Event()
        self._report = ShutdownReport({}, {}, {})

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
        try:
            self._standing = Standing(await self._open_session())
        except TarryError as error:
            self._state, self._cause = State.FAILED, error
            raise
        self._storing = Storing(
            self._standing,
            self._commits,
            self._positions,
            period=self._commit.period,
            note=self._note,
            instruments=self._instruments,
            random=self._random,
        )
        beside: list[Loop] = [self._storing.keep_time]
        if self._commit.mode in AT_HAND_OVER | AFTER_HANDLER:
            beside.append(self._storing.work_off)
        if self._reads.identity.kind == "group":
            self._membership = self._join_in()
            self._membership.begin()
            beside.append(self._follow_group)
        else:
            self._following = Following(self._standing, self._topics, self._positions, self._random)
            self._following.begin()
            beside.append(self._follow_topics)
        self._worker = Worker(
            self._standing,
            start=self._reads.start,
            poll=self._poll,
            positions=self._positions,
            fetches=self._fetches,
            commits=self._commits if self._commits_on_poll else None,
            find=self._storing.find if self._reads.identity.name is not None else None,
            put_back=self._storing.put_back,
            progress=self._storing.lanes,
            began=self._began,
            beside=beside,
            arrived=self._arrived,
            renewed=self._renewed,
            instruments=self._instruments,
            random=self._random,
            cool_down_s=self._options.cool_down,
        )
        self._state = State.OPEN
        self._seen = (0, anyio.current_time())
        self._current_task = current_task()
        self._opened(self)
        self._start_soon(self._worker.run)
        return self

    async def _open_session(self) -> abc.Session:
        return self._traffic.observe(await self._ask_for_session())

    async def _follow_group(self) -> None:
        assert self._membership is not None
        await self._membership.run(self._worker)

    async def _follow_topics(self) -> None:
        await self._following.run(self._worker)

    def _join_in(self) -> Membership:
        return Membership(
            self._standing,
            name=str(self._reads),
            join=self._open_session,
            noted=self._topics.note,
            hooks=self._hooks,
            reader=Reader(
                self._cut_off,
                self._holds,
                self._settled,
                self._interrupt,
                self._stop_short,
                self._arrived,
                self._look_at_hand,
            ),
            keeps=self._commits_on_poll,
            positions=self._positions,
            commits=self._commits,
            storing=self._storing,
            options=self._options,
            instruments=self._instruments,
            random=self._random,
        )

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

        Cancellation: stops waiting for the reader; offsets are stored and the session is left all the same, within
        `drain_timeout`.
        """
        if self._state in (State.NEW, State.FAILED):
            return self._report
        if self._state is State.OPEN:
            self._state = State.DRAINING
            self._note()
            self._cursor = iter(())
            self._arrived()
            self._start_soon(self._close)  # not in this task, so that no cancel cuts it short
        if self._reader is self._current_task():
            self._hurry.set()
        try:
            await self._closed.wait()
        except anyio.get_cancelled_exc_class():
            self._hurry.set()
            with anyio.CancelScope(shield=True):
                await self._closed.wait()
            raise
        return self._report

    async def _close(self) -> None:
        rewound: dict[TopicPartition, int] = {}
        try:
            deadline = anyio.current_time() + self._options.drain_timeout
            await self._worker.stop(self._options.drain_timeout)
            await self._wait_for_reader(deadline)
            self._note()
            if self._membership is not None:
                await self._membership.farewell()
            rewound = await self._finish()
        finally:
            self._report = ShutdownReport(self._committed(), rewound, self._unfinished())
            self._state = State.CLOSED
            self._left(self)
            self._closed.set()
            self._arrived()

    def _committed(self) -> dict[TopicPartition, Offset | None]:
        """What is stored, for each partition of which that is known for sure."""
        named = self._reads.identity.name is not None
        marks = {partition: self._commits[partition] for partition in self._positions}
        return {at: mark.stored for at, mark in marks.items() if not named or (mark.is_known and not mark.in_doubt)}

    async def _wait_for_reader(self, deadline: float) -> None:
        """Until the reader asks again, ends, or shuts down itself."""
        with anyio.CancelScope(deadline=deadline):
            while self._in_hand() and not self._hurry.is_set() and not ended(self._reader):
                with anyio.move_on_after(READER_LOOK_S):
                    await self._hurry.wait()

    async def _finish(self) -> dict[TopicPartition, int]:
        """Store the last word and leave; by how many messages stored offsets were brought back."""
        limit_s = max(self._options.drain_timeout, STORE_S_MIN)
        last = await self._storing.finish(list(self._positions), limit_s)
        if last.cut_off:
            self._instruments.warn(
                "consumer",
                "drain_timeout",
                f"{self._reads}: the final offsets of {', '.join(map(str, last.cut_off))} were not stored within "
                f"{limit_s:g} s",
                partitions=tuple(last.cut_off),
            )
        self._warn_nothing_stored()
        self._warn_lost()
        with anyio.move_on_after(limit_s):
            try:
                await self._standing.session.leave()
            except TarryError as error:
                self._instruments.emit("leave_failed", error=str(error))
        return dict(last.rewound)

    # ------------------------------------------------------------------------------------------- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        """The next message; waits at the log while there is none.

        Raises:
            StopAsyncIteration: the consumer was shut down (C23: nothing else ends the loop).
            NotStarted, ConcurrentRead, ConsumerFailed, or an error of one partition; the consumer stays usable.
        """
        if self._current_task() is not self._reader:
            self._claim()
        for message in self._cursor:
            self._hand = message
            return message
        return await self._refill()

    async def poll(
        self,
        *,
        count: int | None = None,
        min_count: int | None = None,
        max_wait: float | None = None,
        max_bytes: int | None = None,
        **unknown: Never,
    ) -> Batch[T]:
        """Gather messages over all partitions, until there are `min_count`, or `max_bytes`, or `max_wait` is over.

        Then return all that fits into `count` and `max_bytes`. What is not given comes from the consumer's
        `PollOptions`. The batch says why it came (`reason`); an empty one is a normal answer (K89, K101). The call
        finishes what earlier read calls handed out.

        Cancellation: what was gathered stays with the consumer and comes with the next read.

        Raises:
            ConfigError: a limit out of its range, or an option that does not exist, such as `poll_interval` (C12).
            NotStarted, ConcurrentRead, ConsumerFailed, or an error of one partition, as from a read.
        """
        options = self._poll_options(count, min_count, max_wait, max_bytes, unknown)
        if self._current_task() is not self._reader:
            self._claim()
        if self._state is State.CLOSED:
            raise self._ended()
        self._settle_hand()
        demand = Demand(
            options.count, options.min_count, options.max_bytes, deadline=anyio.current_time() + options.max_wait
        )
        self._reading = True
        try:
            if self._state is State.OPEN and not self._fetches.enough(demand):
                demand.takes_all = self._commits_on_poll
                self._worker.demand(demand)  # before the checkpoint: the loops have not asked for anything else yet
            await anyio.lowlevel.checkpoint()
            self._standing.keep()
            return await self._gather(demand)
        finally:
            self._reading = False
            if self._fetches.demand is not None:
                self._worker.demand(None)

    async def _gather(self, demand: Demand) -> Batch[T]:
        while self._state is State.OPEN:
            self._worker.raise_pending()
            in_doubt = self._standing.is_in_doubt()
            is_all = demand.over or (self._fetches.messages > 0 and self._worker.is_dead_end)  # that there will be
            if not in_doubt and (is_all or self._fetches.enough(demand) or self._is_interrupted):
                if self._typed is None or not self._typed.decode_ahead(self._fetches.preview(*self._room(demand))):
                    return self._cut(demand)
                await anyio.lowlevel.checkpoint()
                continue
            if in_doubt and demand.over:
                return Batch((), "rebalance", cast("Decode[T]", decode))
            if await self._worker.left_dead_end():
                continue
            with anyio.CancelScope(deadline=demand.deadline + abc.REQUEST_GRACE) as limit:
                await self._arrival.wait()
            await anyio.lowlevel.checkpoint_if_cancelled()
            if limit.cancelled_caught:
                demand.over = True
        return Batch((), "drain", cast("Decode[T]", decode))

    def _cut(self, demand: Demand) -> Batch[T]:
        self._warn_no_handler()
        self._is_interrupted = False
        is_enough = self._fetches.enough(demand)
        segments = self._fetches.gather(*self._room(demand))
        read, is_whole = cast("Decode[T]", decode), True
        if self._typed is not None:
            segments, read, is_whole = self._decode_typed(self._typed, segments)
        for segment in segments:
            self._hand_out(segment)
        self._seen = (self._messages, anyio.current_time())
        self._worker.taken()
        found = sum(segment.count for segment in segments)
        if found >= demand.min_count:
            return Batch(segments, "count", read)
        if is_enough:
            return Batch(segments, "bytes" if is_whole else "error", read)
        if self._worker.is_dead_end and not demand.over:
            return Batch(segments, "error", read)
        return Batch(segments, "wait" if demand.over else "rebalance", read)

    def _room(self, demand: Demand) -> tuple[int, int]:
        """How many messages and bytes a poll takes at most."""
        return demand.count, demand.max_bytes + (self._fetches.size if demand.takes_all else 0)

    def _hand_out(self, segment: Segment) -> None:
        self._messages += segment.count
        self._bytes += segment.size
        first, _ = self._batch.get(segment.origin, (segment.first, segment.last))
        self._batch[segment.origin] = (first, segment.last)
        self._handed(segment.origin, segment.last)
        partition = segment.origin.partition
        if self._is_held(segment.origin) and self._commits.handed_over(
            partition, segment.first, segment.last, end=segment.last
        ):
            self._storing.queue(partition)
        self._delivered_any = True

    def _handed(self, origin: Origin, offset: Offset) -> None:
        """Everything up to `offset` was delivered; the marks belong to one ownership (C38)."""
        if self._is_held(origin):
            self._positions.handed(origin.partition, offset)
            self._commits.delivered(origin.partition, offset)

    def _finished(self, origin: Origin, offset: Offset) -> None:
        if self._is_held(origin):
            self._commits.finished(origin.partition, offset)

    def _is_held(self, origin: Origin) -> bool:
        return self._positions.holds(origin)

    async def _refill(self) -> Message[T]:
        """The slow path of a read: finish the list, take the next one; with one real checkpoint each (K16, K91)."""
        self._settle_hand()
        self._reading = True
        try:
            await anyio.lowlevel.checkpoint()
            self._standing.keep()
            if self._pace is not None:
                self._pace.done(self._standing.now())
            while True:
                if self._is_ending():
                    raise StopAsyncIteration
                self._worker.raise_pending()
                segment = None if self._standing.is_in_doubt() else self._fetches.take()
                if segment is not None:
                    self._is_interrupted = False
                    break
                if await self._worker.left_dead_end():
                    continue
                self._worker.awaited()
                await self._arrival.wait()
                await anyio.lowlevel.checkpoint_if_cancelled()
        finally:
            self._reading = False
            self._worker.served()
        self._load(self._paced(segment))
        self._worker.taken()
        self._hand = next(self._cursor)
        self._seen = (self._messages + 1, anyio.current_time())
        return self._hand

    def _paced(self, segment: Segment) -> Segment:
        """As much of a list as the reader may have before the event loop has its turn; the rest comes next (K18)."""
        if self._pace is None:
            return segment
        head, rest = cut(segment, self._pace.count, segment.size, at_least=1)
        if head is None or rest is None:
            head = segment
        else:
            self._fetches.put_first(rest)
        self._pace.gave(head.count, self._standing.now())
        return head

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
            on_error: what an error of the handler does: `"raise"` it, with the message unfinished as after a cancel
                (C97, K10); or `"skip"`: log it and call the message finished. What is no `Exception` is always raised.

        Raises:
            ConcurrentRead: another task reads, or another `consume` runs.
            NotStarted, ConsumerFailed, or an error of one partition, as from a read; the consumer stays usable.
        """
        _check_handler(handler, stop, on_error)
        if self._current_task() is not self._reader:
            self._claim()
        if self._is_consuming:
            raise ConcurrentRead(f"{self._reads} already runs a handler; open a consumer per handler")
        self._warn_never_stored()
        self._settle_hand()
        self._is_consuming, self._knows_handlers, self._stop = True, True, stop
        watching = anyio.CancelScope()
        if stop is not None:
            self._start_soon(partial(self._watch, stop, watching))
        try:
            async for message in self:
                await self._handle(message, handler, skips=on_error == "skip")
                if self._is_ending():
                    break
                if self._standing.is_in_doubt():
                    self._stop_short()
            self._settle_hand()
        finally:
            self._is_consuming, self._stop = False, None
            watching.cancel()

    def _stop_short(self) -> None:
        """The next read takes the slow path; what is left of the list comes there."""
        self._note()
        self._cursor = iter(())

    async def _watch(self, stop: anyio.Event, scope: anyio.CancelScope) -> None:
        """Whoever waits for a message looks again when `stop` is set."""
        with scope:
            await stop.wait()
            self._arrived()

    async def _handle(self, message: Message[T], handler: Handler[T], *, skips: bool) -> None:
        try:
            result = handler(message)
            if isawaitable(result):
                await result
        except BaseException as error:
            if not skips or not isinstance(error, Exception):
                self._failed = self._hand
                self._stop_short()
                raise
            self._warn_skipped(message, error)
        origin = message.origin
        if self._is_held(origin) and self._commits.returned(origin.partition, message.offset, origin.head):
            self._storing.queue(origin.partition)

    def _load(self, segment: Segment) -> None:
        """Decode a list and put the cursor at its beginning; what does not decode stops its partition."""
        rest: Segment | None = None
        if self._typed is None:
            try:
                messages = cast("list[Message[T]]", decode(segment))
            except DataError as error:
                self._stop_at(segment, error)
                raise
        else:
            part, rest = cut(segment, PART_MESSAGES, segment.size, at_least=1)
            assert part is not None
            if rest is not None:
                self._fetches.put_first(rest)
            (segment,), read, _ = self._decode_typed(self._typed, [part])
            messages = read(segment)
        self._warn_no_handler()
        self._segment = segment
        self._cursor = iter(messages)
        if self._commit.mode in AT_HAND_OVER:  # the others pay nothing for these
            end = segment.last if rest is None else rest.last
            self._cursor = map(partial(self._tell_handed, end), messages)
        self._delivered_any = True

    def _decode_typed(self, typed: Typed, segments: list[Segment]) -> tuple[list[Segment], Decode[Any], bool]:
        """What comes before the first message that does not decode, and whether that is all.

        The rest is taken next; when it begins with that message, its partition is stopped and the error raised.
        """
        put_back = segments
        try:
            done = typed.take(segments)
            put_back = done.rest if done.bad is None or not done.segments else [done.bad, *done.rest]
        finally:
            for segment in reversed(put_back):
                self._fetches.put_first(segment)
        if done.error is not None and done.bad is not None and not done.segments:
            self._stop_at(done.bad, done.error)
            raise done.error
        return done.segments, done.messages, done.bad is None

    def _stop_at(self, bad: Segment, error: DataError) -> None:
        """These messages do not decode: their partition is stopped. Where it was lost, the rest goes on (C36)."""
        if self._is_held(bad.origin):
            self._worker.halt(bad.origin.partition, error)
        else:
            warn_possibly_lost(self._instruments, bad.origin.partition, bad.first, bad.last)

    def _tell_handed(self, end: Offset, message: Message[T]) -> Message[T]:
        """A message out of a list that ends at `end` is handed over: the mode may store it right now (C43-C45)."""
        origin, offset = message.origin, message.offset
        if self._is_held(origin) and self._commits.handed_over(origin.partition, offset, offset, end=end):
            self._storing.queue(origin.partition)
        return message

    def _settle_hand(self) -> None:
        """Whoever reads again has finished what was handed out, unless a handler failed on it; the rest goes back."""
        hand, segment = self._hand, self._segment
        comes_again = self._comes_again()
        self._tally()
        self._hand = self._segment = self._failed = None
        self._cursor = iter(())
        if hand is not None and segment is not None:
            if not comes_again:
                self._handed(segment.origin, hand.offset)
                self._finished(segment.origin, hand.offset)
            rest = segment.after(Position(hand.offset) if comes_again else position_after(hand.offset))
            if rest is not None and self._goes_on(segment.origin):
                self._fetches.put_first(rest)
        for origin, (_, last) in self._batch.items():
            self._finished(origin, last)
        self._batch = {}
        self._given_up.clear()
        if self._state is State.DRAINING:
            self._hurry.set()
        if self._settling is not None:
            self._settling.set()
            self._settling = None

    def _goes_on(self, origin: Origin) -> bool:
        """What is left of a list is to be delivered: not of a partition that is given up, or was lost (C35, C36)."""
        if self._is_held(origin):
            return self._state is State.OPEN and self._positions[origin.partition].is_open
        return self._commits_on_poll  # at the end too: what nobody got is named then

    def _note(self) -> None:
        """Bring the marks up to what the cursor says."""
        if self._hand is None or self._segment is None:
            return
        origin, offset = self._segment.origin, self._hand.offset
        self._handed(origin, offset)
        if offset > self._segment.first:
            self._finished(origin, Offset(offset - 1))

    def _in_hand(self) -> bool:
        """Somebody works on something that was handed out and is neither finished nor stored."""
        return not self._has_failed() and bool(self._unfinished())

    def _has_failed(self) -> bool:
        """A handler has failed on the message in hand: nobody works on it any more, and it comes again (K10)."""
        return self._hand is not None and self._hand is self._failed

    def _comes_again(self) -> bool:
        """A handler has failed on the message in hand, which was not stored by hand; nobody else gets it (K10, C36)."""
        if not self._has_failed() or self._segment is None:
            return False
        origin = self._segment.origin
        return bool(self._unfinished()) if self._is_held(origin) else origin not in self._given_up

    def _unfinished(self) -> dict[TopicPartition, int]:
        """How many messages of each partition are in hand."""
        left: Counter[TopicPartition] = Counter()
        for partition, first, last in self._spans():
            left[partition] += last - first + 1
        return dict(left)

    def _spans(self) -> Iterator[tuple[TopicPartition, Offset, Offset]]:
        """First and last message in hand, for each fetch of what is held; what was stored by hand is finished."""
        handed = dict(self._batch)
        if self._hand is not None and self._segment is not None:
            handed[self._segment.origin] = (self._hand.offset, self._hand.offset)
        for origin, (first, last) in handed.items():
            if not self._is_held(origin):
                continue  # somebody else's by now
            explicit = self._commits[origin.partition].explicit
            begin = first if explicit is None else max(first, Offset(explicit + 1))
            if begin <= last:
                yield origin.partition, begin, last

    # -- what a rebalance needs of the reader

    def _cut_off(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing more of these as they are held now; the message in hand may still be finished."""
        gone = set(partitions)
        self._given_up.update(origin for origin in self._batch if origin.partition in gone and self._is_held(origin))
        segment, hand = self._segment, self._hand
        if segment is None or hand is None:
            return
        if segment.origin.partition in gone and self._is_held(segment.origin):
            self._given_up.add(segment.origin)
            self._note()
            self._cursor = iter(())
            self._segment = segment.up_to(hand.offset)

    def _interrupt(self) -> None:
        """The `poll` that waits, or else the next one, returns what it has; whoever reads may hold a lock (K55)."""
        self._is_interrupted = True
        self._arrived()

    def _holds(self, partition: TopicPartition) -> bool:
        return self._in_hand() and partition in self._unfinished()

    def _look_at_hand(self) -> InHand:
        firsts: dict[TopicPartition, Offset] = {}
        for partition, first, _ in () if self._has_failed() else self._spans():
            firsts.setdefault(partition, first)
        return InHand(self._handed_over()[0], firsts)

    async def _settled(self, partition: TopicPartition, deadline: float) -> None:
        """Until what is in hand of a partition is finished or stored, or nobody reads any more."""
        with anyio.CancelScope(deadline=deadline):
            while self._holds(partition) and not ended(self._reader):
                settling = self._settling = self._settling or anyio.Event()
                with anyio.move_on_after(READER_LOOK_S):
                    await settling.wait()

    def _claim(self) -> None:
        """Another task than before reads: refused while that one, still running, reads or holds a message (K97)."""
        task = self._current_task()
        if self._reader is not None and not ended(self._reader) and (self._reading or self._in_hand()):
            raise ConcurrentRead(
                f"{self._reads} is read by another task, which "
                f"{'waits for a message' if self._reading else 'still holds one'}; "
                "let one task read and hand messages on, or open a consumer per task"
            )
        self._reader = task

    def _arrived(self) -> None:
        """Everybody who waits looks again."""
        self._arrival.set()
        self._arrival = anyio.Event()

    def _not_started(self) -> Never:
        """Stands in for the current task before the start (C16, K90)."""
        message = f"{self._reads} is {self._state.value}; use it inside `async with client.consumer(...) as consumer:`"
        if not self._warned:
            self._warned = True
            self._instruments.warn("consumer", "not_started", message)
        raise NotStarted(message) from self._cause

    def _check_started(self) -> None:
        if self._state in (State.NEW, State.FAILED):
            self._not_started()
        if self._state is State.CLOSED:
            raise self._ended()

    def _ended(self) -> NotStarted:
        return NotStarted(f"{self._reads} is {self._state.value}; make a new one with client.consumer(...)")

    def _poll_options(
        self, count: Any, min_count: Any, max_wait: Any, max_bytes: Any, unknown: Mapping[str, Any]
    ) -> PollOptions:
        given = {"count": count, "min_count": min_count, "max_wait": max_wait, "max_bytes": max_bytes}
        changed = {**{name: value for name, value in given.items() if value is not None}, **unknown}
        return PollOptions(**(self._poll.model_dump() | changed)) if changed else self._poll

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
                there would be skipped.

        Raises:
            ConfigError: the offset lies ahead of what was delivered.
            StaleAssignment: the partition is not, or no longer, held under the ownership or history of the message. Of
                a batch nothing is stored then, unless the partition was lost during this call.
            UsageError: the consumer has no name to store under.
            OffsetOutOfRange: the log holds no such message yet.
        """
        self._check_started()
        self._check_named()
        for partition, last, origin in self._offsets_of(what, offset, force=force):
            if origin is not None:
                self._check_origin(origin)  # again: a rebalance may have come with the store before this one
            await self._storing.store(partition, last, None if origin is None else origin.history)

    async def delete_offset(self, partition: TopicPartition | int) -> None:
        """Remove the stored offset, so that `Start.next()` begins anew (C55).

        An automatic mode goes on storing what is finished after this, also at shutdown.
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
        start = fill_count(to if isinstance(to, Start) else Start.offset(to), self._poll.count)
        resolved = await self._standing.session.resolve(owned, start)
        self._owned(owned)  # again: it may have been lost meanwhile
        gap = gap_at(owned, resolved)
        if gap is not None and "fail" in (start.on_gap, self._reads.start.on_gap):
            raise gap.refusal()
        if self._positions[owned].history not in (None, resolved.history):
            self._commits.forget(owned)
        if self._reads.identity.name is not None and not self._commits[owned].is_known:
            await self._storing.find(owned)  # nobody will, once there is a position
            self._owned(owned)
        self._note()
        self._drop_in_hand(owned)
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
        _check_cause(cause)
        for partition in self._all_owned(partitions):
            self._positions.pause(partition, cause)
            self._fetches.set_aside(partition)
            self._put_back_rest(partition)
        self._worker.kick()

    def resume(self, partitions: TopicPartition | int | Iterable[TopicPartition | int]) -> None:
        """Go on with paused partitions, with the first message of each that was not delivered before (K48).

        Raises:
            StaleAssignment: one of them is not read by this consumer; nothing was resumed.
        """
        self._check_started()
        for partition in self._all_owned(partitions):
            self._positions.pause(partition, None)
            self._fetches.bring_back(partition)
            if partition in self._positions.readable():
                self._fetches.ready(partition)
        self._worker.kick()
        self._arrived()

    def _put_back_rest(self, partition: TopicPartition) -> None:
        """The list in hand ends with the message in hand; the rest comes later."""
        segment, hand = self._segment, self._hand
        if segment is None or hand is None or segment.origin.partition != partition:
            return
        self._note()
        self._cursor = iter(())
        self._segment = segment.up_to(hand.offset)
        rest = segment.after(position_after(hand.offset))
        if rest is not None and self._goes_on(segment.origin):
            self._fetches.put_first(rest)

    def _all_owned(self, partitions: TopicPartition | int | Iterable[TopicPartition | int]) -> list[TopicPartition]:
        if isinstance(partitions, (TopicPartition, str)) or not isinstance(partitions, Iterable):
            return [self._owned(partitions)]
        return [self._owned(partition) for partition in partitions]

    def _began(self, partition: TopicPartition, position: Position) -> None:
        start = self._reads.start
        if start.kind is StartKind.NEXT and start.otherwise == "end":
            self._commits.began(partition, position)

    def _renewed(self, partition: TopicPartition) -> None:
        """What was known of a partition belongs to a topic that is gone."""
        self._drop_in_hand(partition)
        self._commits.forget(partition)

    def _drop_in_hand(self, partition: TopicPartition) -> None:
        if self._segment is not None and self._segment.origin.partition == partition:
            self._tally()
            self._cursor = iter(())
            self._hand = self._segment = self._failed = None
        self._batch = {origin: span for origin, span in self._batch.items() if origin.partition != partition}

    def _offsets_of(
        self, what: Message[Any] | Batch[Any] | TopicPartition | int, offset: Offset | int | None, *, force: bool
    ) -> list[tuple[TopicPartition, Offset, Origin | None]]:
        if isinstance(what, Message):
            return [(what.origin.partition, what.offset, what.origin)]
        if isinstance(what, Batch):
            for segment in what.segments:
                self._check_origin(segment.origin)
            last = {segment.origin.partition: segment for segment in what.segments}  # one request each
            return [(partition, segment.last, segment.origin) for partition, segment in last.items()]
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise ConfigTypeError(f"store_offset({what!r}, ...) needs the offset of a message, an int, not {offset!r}")
        if offset < 0:
            raise ConfigError(
                f"store_offset({what!r}, {offset}): offsets begin at 0; delete_offset removes what is stored"
            )
        partition = self._owned(what)
        if not force:
            self._check_delivered(partition, offset)
        return [(partition, Offset(offset), None)]

    def _check_delivered(self, partition: TopicPartition, offset: int) -> None:
        self._note()
        upcoming = self._positions[partition].next
        if upcoming is None or offset >= upcoming:
            where = "its position is not known yet" if upcoming is None else f"offset {upcoming} is delivered next"
            raise ConfigError(
                f"store_offset({partition}, {offset}) lies ahead of what was delivered ({where}): the messages up to "
                "there would be skipped; if that is meant, pass force=True"
            )

    def _check_origin(self, origin: Origin) -> None:
        if not self._is_held(origin):
            raise StaleAssignment(
                f"{origin.partition} is not held any more as it was when this message was delivered; nothing was stored"
            )

    def _check_named(self) -> None:
        if self._reads.identity.name is None:
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
        return 0 if self._state in (State.NEW, State.FAILED) else self._standing.session.assignment.generation

    def position(self, partition: TopicPartition | int) -> Position | None:
        """The next message to be delivered, None while it is not known; never waits (C25)."""
        self._note()
        return self._positions[self._owned(partition)].next

    def last_delivered(self, partition: TopicPartition | int) -> Offset | None:
        """The last offset handed over, None when there is none (C25, C34, D2)."""
        self._note()
        return self._positions[self._owned(partition)].delivered

    def last_stored(self, partition: TopicPartition | int) -> Offset | None:
        """The stored offset as far as this consumer knows it, None when there is none (C25)."""
        return self._commits[self._owned(partition)].stored

    def statistics(self) -> Statistics:
        """What this consumer has done so far; never waits, costs nothing per message, works after shutdown too."""
        is_started = self._state not in (State.NEW, State.FAILED)
        stores = self._storing.counts if is_started else StoreCounts()
        messages, size = self._handed_over()
        rest = self._rest_of_list()
        waiting = self._fetches.segments + ([] if rest is None else [rest])
        events = self._instruments.counts
        return Statistics(
            messages=messages,
            bytes=size,
            buffered_messages=sum(segment.count for segment in waiting),
            buffered_bytes=sum(segment.size for segment in waiting),
            polls=self._traffic.polls,
            waits=self._traffic.waits,
            refusals=self._traffic.refusals,
            stored=stores.stored,
            stores_failed=stores.failed,
            store_error=stores.last_error,
            rebalances=self._traffic.rebalances,
            evictions=events["evicted"],
            gaps=events["gap"],
        )

    def health(self) -> Health:
        """Whether this consumer gets on, for a liveness probe; never waits and asks nobody (K19).

        Messages are not timed one by one: `stalled_s` is exact for the first of each list that was fetched, and for the
        others may be too short by the time between two calls. `ok` becomes False when the log is silent for more than
        two `heartbeat_interval`.
        """
        is_started = self._state not in (State.NEW, State.FAILED)
        stopped = dict(self._worker.stopped) if is_started else {}
        failure = self._worker.failure if is_started else self._cause
        is_member = is_started and (self._membership is None or self._membership.is_member)
        silent_s = self._traffic.silent_s(self._asked_about(stopped)) if self._state is State.OPEN else 0.0
        patience_s = 2 * self._options.heartbeat_interval
        is_open = self._state is State.OPEN and failure is None
        return Health(
            ok=is_open and is_member and not stopped and silent_s <= patience_s,
            state=self._state.value,
            is_member=is_member,
            owned=self.assignment,
            missing=self._why_missing(stopped),
            missing_topics=self._topics.missing,
            stopped=stopped,
            stalled_s=self._stalled_s() if self._state is State.OPEN else 0.0,
            silent_s=silent_s,
            last_error=failure or self._traffic.last_error,
        )

    def _asked_about(self, stopped: Container[TopicPartition]) -> Iterator[TopicPartition]:
        """The partitions that the log is asked about again and again: neither paused nor stopped."""
        return (at for at in self._positions if self._positions[at].paused is None and at not in stopped)

    def _why_missing(self, stopped: Mapping[TopicPartition, TarryError]) -> dict[TopicPartition, str]:
        asking = "the log has not said yet where it begins"
        if self._traffic.last_error is not None:
            asking += f"; the last refusal: {self._traffic.last_error}"
        return {
            partition: str(stopped.get(partition, asking if place.is_open else "a rebalance is under way"))
            for partition in self._positions
            if (place := self._positions[partition]).next is None
        }

    def _stalled_s(self) -> float:
        messages, _ = self._handed_over()
        now = anyio.current_time()
        waiting = self._fetches.messages or self._rest_of_list()
        if self._reading or not waiting or messages != self._seen[0]:
            self._seen = (messages, now)
        return now - self._seen[1]

    def _handed_over(self) -> tuple[int, int]:
        """Messages and bytes, with those out of the list in hand."""
        if self._segment is None or self._hand is None:
            return self._messages, self._bytes
        done = self._segment.up_to(self._hand.offset)
        return self._messages + done.count, self._bytes + done.size

    def _rest_of_list(self) -> Segment | None:
        """What is decoded, and not handed over yet."""
        if self._segment is None or self._hand is None or self._state is not State.OPEN:
            return None
        return self._segment.after(position_after(self._hand.offset))

    def _tally(self) -> None:
        """The list in hand is about to be put away."""
        self._messages, self._bytes = self._handed_over()

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until every topic exists, and every partition has a position.

        Cancellation: ends the wait at once; nothing else changes.

        Raises:
            NotReady: after `timeout` seconds, or when nothing more can come of waiting; names what is missing (K72).
        """
        self._check_started()
        with anyio.move_on_after(timeout) as limit:
            while self._state is State.OPEN and self._is_hopeful():
                await self._arrival.wait()
        if self._state is not State.OPEN:
            raise self._ended()
        if self._worker.failure is not None:
            self._worker.raise_pending()
        if missing := self._missing():
            after = f" after {timeout:g} s" if limit.cancelled_caught else ""
            raise NotReady(f"{self._reads}: {', '.join(missing)}{after}")

    def _is_hopeful(self) -> bool:
        """Some partition has no position, but will get one; or a topic may still be created."""
        unresolved = self._positions.unresolved()
        may_come = bool(self._topics.missing) or not self._worker.stopped.keys() >= set(unresolved)
        return self._worker.failure is None and may_come

    def _missing(self) -> list[str]:
        stopped = self._worker.stopped
        partitions = [
            f"{partition} ({stopped[partition]})" if partition in stopped else str(partition)
            for partition in self._positions.unresolved()
        ]
        missing = [f"topic {name!r} does not exist" for name in self._topics.missing]
        return missing + ([f"no position yet for {', '.join(partitions)}"] if partitions else [])

    async def lag(self) -> dict[TopicPartition, Lag]:
        """How far each partition is behind its end, by what was delivered and by what is stored.

        In messages, and in seconds: the age of the oldest message that is left, by its timestamp and the log's clock.
        Asks the log once or twice for each partition; the figures are those of the moment at which it was asked.
        """
        self._check_started()
        self._note()
        found: dict[TopicPartition, Lag] = {}
        for partition in list(self._positions):
            place, stored = self._positions.get(partition), self._commits[partition].stored
            if place is None:
                continue  # it left meanwhile
            position = place.next
            upcoming, unstored = position or Position(0), Position(0) if stored is None else position_after(stored)
            ahead = behind = await self._standing.session.resolve(partition, upcoming)
            if unstored != upcoming:
                behind = await self._standing.session.resolve(partition, unstored)
            found[partition] = Lag(
                ahead.log_end,
                position,
                delivered=ahead.log_end - max(upcoming, ahead.log_start),
                stored=behind.log_end - max(unstored, behind.log_start),
                delivered_s=ahead.age_s,
                stored_s=behind.age_s,
            )
        return found

    def _owned(self, partition: TopicPartition | int) -> TopicPartition:
        """The partition meant: with one topic, a plain int names one of it."""
        if self._state in (State.NEW, State.FAILED):
            self._not_started()
        if not isinstance(partition, (int, tuple)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise ConfigTypeError(
                f"a partition is an int or a TopicPartition, not {type(partition).__name__} ({partition!r})"
            )
        if isinstance(partition, int):
            topics = self._topics.wanted
            if len(topics) != 1:
                raise ConfigError(
                    f"partition {partition} of which topic? This consumer reads {sorted(topics)}; pass a TopicPartition"
                )
            partition = TopicPartition(topics[0], partition)
        partition = TopicPartition(*partition)
        if partition not in self._positions:
            owned = ", ".join(map(str, sorted(self._positions)))
            raise StaleAssignment(f"{partition} is not read by this consumer; it reads {owned}")
        return partition

    def _warn_lost(self) -> None:
        """Committed batches of partitions that were lost without notice, and not finished: nobody reads them (Q6)."""
        segments = self._fetches.segments if self._commits_on_poll else []
        if self._segment is not None and self._hand is not None and self._commits_on_poll:
            rest = self._segment.after(Position(self._hand.offset))
            segments = [*segments, *([rest] if rest is not None else [])]
        spans = [(segment.origin, segment.first, segment.last) for segment in segments]
        spans += [(origin, *span) for origin, span in self._batch.items() if self._commits_on_poll]
        for origin, first, last in _joined(spans):
            if not self._is_held(origin) and origin not in self._given_up:
                warn_possibly_lost(self._instruments, origin.partition, first, last)

    def _warn_skipped(self, message: Message[T], error: Exception) -> None:
        self._saying.warn(
            "handler_failed",
            f"{self._reads}: the handler failed on message {message.offset} of {message.topic_partition} "
            f"({type(error).__name__}); it counts as finished, as on_error='skip' says",
            cause=error,
            partition=message.topic_partition,
            offset=message.offset,
        )

    def _warn_no_handler(self) -> None:
        """C49: a plain read cannot tell when the work is done. Said once."""
        if self._commit.mode in AFTER_HANDLER and not self._knows_handlers:
            self._knows_handlers = True
            self._instruments.warn(
                "consumer",
                "no_handler",
                f"{self._reads}: {self._commit} stores when the handler of consume() returns, and there is none: what "
                "is finished is stored at shutdown only; use consume(), or AutoCommit.finished()",
            )

    def _stores_by_itself(self) -> bool:
        """Or else begins somewhere that does not depend on what is stored."""
        return self._commit.mode != "disabled" or self._reads.start.kind is not StartKind.NEXT

    def _warn_never_stored(self) -> None:
        """C98: said when a handler loop begins."""
        if not self._stores_by_itself():
            self._instruments.warn(
                "consumer",
                "never_stored",
                f"{self._reads}: nothing is stored when the handler returns, so each start begins at the first message "
                "again unless the handler calls store_offset; pass name= and commit=AutoCommit.after_each()",
            )

    def _warn_nothing_stored(self) -> None:
        """C98: without any store each start begins at the first message again."""
        stored = any(self._commits[partition].stored is not None for partition in self._positions)
        if not self._stores_by_itself() and self._delivered_any and not stored:
            self._instruments.warn(
                "consumer",
                "nothing_stored",
                f"{self._reads}: messages were delivered but no offset was ever stored, so the next start begins at "
                "the first message again; call store_offset, or pass name= and commit=AutoCommit.finished()",
            )


def fill_count(start: Start, count: int) -> Start:
    """`Start.last()` means up to one poll's `count` of the newest messages (C26)."""
    return replace(start, value=count) if start.kind is StartKind.LAST else start


def _joined(spans: Iterable[tuple[Origin, Offset, Offset]]) -> list[tuple[Origin, Offset, Offset]]:
    """First and last message of spans, those that follow on one another as one."""
    found: list[tuple[Origin, Offset, Offset]] = []
    for origin, first, last in sorted(spans, key=lambda span: (span[0].partition, span[1])):
        if found and found[-1][0] == origin and found[-1][2] + 1 == first:
            origin, first, _ = found.pop()
        found.append((origin, first, last))
    return found


def _check_cause(cause: object) -> None:
    if not isinstance(cause, str) or not cause:
        raise ConfigTypeError(f"cause={cause!r}: say why, as a text")


def _check_handler(handler: object, stop: object, on_error: object) -> None:
    if not callable(handler):
        raise ConfigTypeError(f"consume({handler!r}) needs a function of one message")
    if stop is not None and not isinstance(stop, anyio.Event):
        raise ConfigTypeError(f"stop={stop!r} is a {type(stop).__name__}; it takes an anyio.Event")
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r}: use 'raise' or 'skip'")
