"""An application that does anything in any order, from two tasks, over a log that fails: every mode, every verb.

One task reads, in any of the four ways; another seeks, pauses, stores, deletes, asks, and moves leaders; both give up
now and then. Then the consumer is shut down, in the middle of that or once it has read everything; the next run has
its name.
Judged by what an application can know:

- what comes next of a partition is what came before it plus one, what the last seek said, or lies behind a gap that was
  reported (I2, C33, K09); what does not decode is an error in its place, and is waited at until it is sought (K76);
- what a run does not get again is finished, stored, sought over, or was named as a gap or as possibly lost (I1, Q6);
- what was stored for sure does not come again (C53); nothing comes of what is paused (K48);
- every verb ends in time, with nothing but the errors that it is documented to raise (I4);
- when the faults are over everything comes, up to the end, and after the shutdown nothing is left.

Not here: several members and processes that die (`tests.simulation`).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import anyio
import pytest

from tarry import AutoCommit, Message, PollOptions, Start
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    LogBusy,
    LogUnavailable,
    NotAccepted,
    NotReady,
    NotStarted,
    OffsetOutOfRange,
    OutcomeUnknown,
    RebalanceHookError,
    StaleAssignment,
    UndecodableMessage,
)
from tarry.testing import Action, FaultLayer, Operation, answer_empty, delay, lose_reply, lose_request, refuse
from tarry.types import TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import LEADERS, Background, Rig, opened, owns
from tests.virtual import virtual

MODES = [
    AutoCommit.disabled(),
    AutoCommit.finished(0.4),
    AutoCommit.interval(0.3),
    AutoCommit.on_poll(),
    AutoCommit.each_message(),
    AutoCommit.each_batch(),
    AutoCommit.every_nth(3),
    AutoCommit.after_each(),
    AutoCommit.after_nth(3),
    AutoCommit.after_head(),
]
PASSING = (NotAccepted, CapacityExceeded, LogUnavailable, LogBusy, OutcomeUnknown)
"""What a log that fails may make any verb raise."""
VERB_S_MAX = 60.0
"""Longest that a verb may take beside its own wait: a few requests, each with its patience and its place in a line."""
ROOM = 70_000
"""Bytes of a partition: six batches of a hundred messages of a flood."""
QUIET_S_MAX = 120.0
"""Longest until everything has come, once the faults are over."""


Verb = Callable[[Consumer, TopicPartition], Awaitable[None]]


class HandlerFailed(Exception):
    """The application's own error."""


class HookFailed(Exception):
    """The application's own error, in a hook."""


class SomeAreBad:
    """Decodes text; one offset in seven is none."""

    def decode(self, raw: bytes) -> str:
        if int(raw) % 7 == 3:
            raise ValueError("no text")
        return raw.decode().strip()


@dataclass
class Book:
    """What the application knows of one partition.

    Args:
        next: the offsets of which one comes next; None: any, since this run got nothing of it and sought nowhere.
        done: finished, stored by hand, sought over, or named as a gap or as lost.
        gone: what was reported as a gap.
        sure: stored by hand, and confirmed; a seek or a delete makes it void.
        seeks: how many there were.
        is_paused: and nothing must come.
        comes_again: a handler has failed on the last message that came.
    """

    next: set[int] | None = None
    done: set[int] = field(default_factory=set[int])
    gone: set[int] = field(default_factory=set[int])
    sure: int = -1
    seeks: int = 0
    is_paused: bool = False
    comes_again: bool = False

    def follows(self, begin: int, offset: int) -> bool:
        """It is the next one from there on, or there is a gap in front of it."""
        return begin <= offset and set(range(begin, offset)) <= self.gone


class Story:
    """One random history of one consumer name."""

    def __init__(self, rig: Rig, chance: random.Random, commit: AutoCommit, partitions: int) -> None:
        self.rig = rig
        self.chance = chance
        self.commit = commit
        self.is_group = chance.random() < 0.3
        self.is_typed = chance.random() < 0.3
        self.partitions = [TopicPartition("t", number) for number in range(partitions)]
        self.books = {partition: Book() for partition in self.partitions}
        self.hand: list[tuple[Message[Any], int]] = []  # each with the seeks of its partition
        self.begun = partitions
        self.unstored: set[TopicPartition] = set()
        self.writing = anyio.Lock()
        self.heard = 0
        self.is_ending = self.is_closed = False

    async def tell(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self.add_faults()
            await self.run()
        self.rig.script._rules.clear()
        await self.run(is_last=True)
        assert self.rig.pump.parked == 0

    def add_faults(self) -> None:
        reads: list[Operation] = ["poll", "wait_ready"]
        others: list[Operation] = ["resolve", "stored_offset", "store_offset", "leave"]
        faults: list[Callable[[], Action]] = [
            lambda: delay(self.chance.choice([0.05, 0.5])),
            lambda: delay(self.chance.choice([0.05, 0.5]), reply=True),
            lambda: refuse(lambda: NotAccepted("not here")),
            lambda: refuse(lambda: CapacityExceeded("busy")),
            lambda: lose_request(after=0.02),
            lambda: lose_reply(after=0.02),
        ]
        operations: list[Operation] = [*reads, *others]
        for operation in self.chance.sample(operations, self.chance.randint(0, 5)):
            choices = [*faults, answer_empty] if operation in reads else faults
            share, seed = self.chance.choice([0.05, 0.2, 0.5]), self.chance.randrange(1 << 30)
            self.rig.script.rate(operation, share, do=self.chance.choice(choices)(), seed=seed)

    # ---- one run

    async def run(self, *, is_last: bool = False) -> None:
        options = PollOptions(
            count=self.chance.choice([1, 3, 20, 1000]), max_wait=self.chance.choice([0.2, 5.0]), max_bytes=2000
        )
        open_one = self.rig.member if self.is_group else self.rig.consumer
        given: dict[str, Any] = {"commit": self.commit, "poll": options, "drain_timeout": 20.0, "cool_down": 1.0}
        consumer: Consumer[Any]

        async def be_told(_: object) -> None:
            await self.be_told(consumer, stops=not is_last)

        if self.is_group:
            given |= {"on_assigned": be_told, "on_revoked": be_told}
        consumer = open_one(value_type=SomeAreBad() if self.is_typed else bytes, **given)
        try:
            await consumer.__aenter__()
        except PASSING:
            return
        stored = self.rig.group_stored if self.is_group else self.rig.stored
        self.unstored = {at for at in self.partitions if stored(at) is None}
        self.begun = len(self.partitions)
        for book in self.books.values():
            book.next, book.is_paused = None, False
        self.is_ending = self.is_closed = False
        reading, meddling = Background(), Background()
        async with anyio.create_task_group() as tasks:
            reads = partial(self.read, consumer, self.chance.randint(3, 30), stops=not is_last)
            tasks.start_soon(reading.run, reads)
            tasks.start_soon(meddling.run, partial(self.meddle, consumer, self.chance.randint(0, 20)))
            if is_last or self.chance.random() < 0.6:
                await reading.done.wait()
                await meddling.done.wait()
                if not self.is_ending:
                    await self.come_to_the_end(consumer)
            else:
                await anyio.sleep(self.chance.choice([0.0, 0.1, 1.0, 4.0]))
            await self.stop(consumer)
            tasks.cancel_scope.cancel()
        for background in (reading, meddling):
            if background.error is not None and background.outcome == "raised":
                raise background.error
        self.listen()
        self.hand = []

    async def stop(self, consumer: Consumer) -> None:
        """Shut it down, or perhaps only begin to, and wait for the end."""
        self.is_ending = True
        with anyio.fail_after(VERB_S_MAX):
            with anyio.move_on_after(self.chance.choice([0.01, 1000.0])):
                await consumer.shutdown()
            await consumer.shutdown()
        self.is_closed = True

    async def come_to_the_end(self, consumer: Consumer) -> None:
        """The faults are over: everything comes."""
        self.rig.script._rules.clear()
        with anyio.fail_after(QUIET_S_MAX):
            await consumer.ready()
            await owns(consumer, len(self.partitions))  # where the session before could not leave
            consumer.resume(self.partitions)
            for book in self.books.values():
                book.is_paused = False
            while any(consumer.position(at) != self.rig.end(at) for at in self.partitions):
                self.finish()
                with suppress(RebalanceHookError, *PASSING):
                    try:
                        self.note(await consumer.poll(max_wait=1.0))
                    except UndecodableMessage as error:
                        self.note_bad(error)
                for at, why in consumer.health().stopped.items():
                    assert isinstance(why, UndecodableMessage)
                    await self.seek_to(consumer, at, why.offset + 1)

    # ---- the reader

    async def read(self, consumer: Consumer, times: int, *, stops: bool) -> None:
        """`stops`: it may shut the consumer down itself."""
        ways = [self.read_one, self.read_some, self.read_batch, self.handle]
        for _ in range(times):
            way = self.chance.choice(ways)
            limit = self.chance.choice([0.0, 0.02, 0.5, 5.0])
            try:
                with (
                    suppress(HandlerFailed, RebalanceHookError, *PASSING),
                    anyio.fail_after(VERB_S_MAX),
                    anyio.move_on_after(limit),
                ):
                    await way(consumer)
            except UndecodableMessage as error:
                self.note_bad(error)
            except (StopAsyncIteration, NotStarted):
                assert self.is_ending
                return
            await self.meddle(consumer, self.chance.choice([0, 0, 1]))
            await anyio.sleep(self.chance.choice([0.0, 0.0, 0.02, 0.3]))
        if stops and self.chance.random() < 0.2:
            await self.stop(consumer)

    async def read_one(self, consumer: Consumer) -> None:
        self.finish()
        self.note([await anext(consumer)])

    async def read_some(self, consumer: Consumer) -> None:
        left = self.chance.randint(1, 8)
        self.finish()
        async for message in consumer:
            self.note([message])
            left -= 1
            if not left:
                return
            await anyio.sleep(self.chance.choice([0.0, 0.0, 0.05]))
            self.finish()

    async def read_batch(self, consumer: Consumer) -> None:
        self.finish()
        count = self.chance.randint(1, 12)
        batch = await consumer.poll(
            count=count,
            min_count=self.chance.randint(1, count),
            max_wait=self.chance.choice([0.0, 0.05, 0.5]),
            max_bytes=self.chance.choice([80, 300, 100_000]),
        )
        self.note(batch)

    async def handle(self, consumer: Consumer) -> None:
        """A handler that fails, or is cancelled, has its message again."""
        stop = anyio.Event()
        left = self.chance.randint(1, 6)

        async def handler(message: Message[Any]) -> None:
            nonlocal left
            self.finish()
            self.note([message])
            left -= 1
            try:
                await self.meddle(consumer, self.chance.choice([0, 0, 0, 1]))
                await anyio.sleep(self.chance.choice([0.0, 0.0, 0.05]))
                if self.chance.random() < 0.1:
                    raise HandlerFailed
            except BaseException as error:
                if on_error == "raise" or not isinstance(error, Exception):
                    self.failed()
                raise
            finally:
                self.finish()
            if not left:
                stop.set()

        self.finish()
        on_error: Literal["raise", "skip"] = "skip" if self.chance.random() < 0.5 else "raise"
        await consumer.consume(handler, stop=stop, on_error=on_error)
        self.finish()

    async def be_told(self, consumer: Consumer[Any], *, stops: bool) -> None:
        """A hook."""
        await self.meddle(consumer, self.chance.choice([0, 0, 1]))
        if stops and self.chance.random() < 0.05:
            self.is_ending = True
            await consumer.shutdown()
        if self.chance.random() < 0.1:
            raise HookFailed

    # ---- what it knows

    def note(self, messages: Iterable[Message[Any]]) -> None:
        """These came."""
        messages = list(messages)
        for message in messages:
            at, offset = message.topic_partition, message.offset
            self.check_next(at, offset)
            assert not self.books[at].is_paused, f"{at} is paused, and {offset} comes"
            assert str(message.value).strip("b' ") == str(offset)
            self.books[at].next, self.books[at].comes_again = {offset + 1}, False
        self.hand = [(message, self.books[message.topic_partition].seeks) for message in messages]

    def note_bad(self, error: UndecodableMessage) -> None:
        """It is none; its partition waits there."""
        at = TopicPartition(error.topic, error.partition)
        assert int(error.raw) == error.offset
        self.check_next(at, error.offset)
        self.books[at].next, self.books[at].comes_again = {error.offset}, False

    def check_next(self, at: TopicPartition, offset: int) -> None:
        """A message comes, good or bad: nothing else should have."""
        self.listen()
        book = self.books[at]
        if book.next is None:
            if at in self.unstored:  # of what was removed by then nobody knows
                book.done.update(range(self.rig.pump.view.find(at).log_start))
            left = sorted(set(range(offset)) - book.done)
            assert not left, f"{at} begins at {offset}, but {left} are not done"
            assert offset > book.sure, f"{at} begins at {offset}, but {book.sure} was stored"
        else:
            is_next = any(book.follows(begin, offset) for begin in book.next)
            assert is_next, f"{at}: {offset} comes where {sorted(book.next)} is next"

    def finish(self) -> None:
        """Whoever reads again is done with what he has in hand."""
        for message, seeks in self.hand if not self.is_closed else ():
            book = self.books[message.topic_partition]
            if book.seeks == seeks:
                book.done.add(message.offset)
        self.hand = []

    def failed(self) -> None:
        """What is in hand comes again, unless it was sought, or perhaps stored by hand."""
        for message, seeks in self.hand:
            book = self.books[message.topic_partition]
            if book.seeks == seeks:
                book.next = {message.offset}
                if message.offset in book.done:
                    book.next.add(message.offset + 1)
                book.comes_again = True
        self.hand = []

    def listen(self) -> None:
        """What the consumer has reported as missing since."""
        for name, fields in self.rig.events[self.heard :]:
            if name not in ("gap", "possibly_lost"):
                continue
            at, first, last = fields["partition"], fields["first"], fields["last"]
            assert isinstance(at, TopicPartition)
            assert isinstance(first, int)
            assert isinstance(last, int)
            self.books[at].done.update(range(first, last + 1))
            if name == "gap":
                self.books[at].gone.update(range(first, last + 1))
        self.heard = len(self.rig.events)

    # ---- whoever meddles

    async def meddle(self, consumer: Consumer, times: int) -> None:
        verbs: list[Verb] = [
            self.seek,
            self.pause,
            self.resume,
            self.store,
            self.store_message,
            self.delete,
            self.look,
            partial(self.ask, consumer.lag),
            partial(self.ask, lambda: consumer.ready(self.chance.choice([0.0, 0.5, 5.0]))),
            self.write,
            self.write,
            self.write,
            self.move,
            self.flood,
            self.grow,
        ]
        for _ in range(times):
            verb = self.chance.choice(verbs)
            limit = self.chance.choice([0.0, 0.02, 0.5, 1000.0])
            try:
                with suppress(*PASSING), anyio.fail_after(VERB_S_MAX), anyio.move_on_after(limit):
                    await verb(consumer, self.chance.choice(self.partitions))
            except StaleAssignment:  # this session leaves, or the one before could not; or the partition is too new
                assert self.is_ending or self.is_group or len(self.partitions) > self.begun
            except NotStarted:
                assert self.is_ending
                return
            await anyio.sleep(self.chance.choice([0.0, 0.0, 0.02, 0.3]))

    async def seek(self, consumer: Consumer, at: TopicPartition) -> None:
        end = self.rig.end(at)
        places: list[Start | int] = [
            Start.first(),
            Start.end(),
            Start.last(),
            *(self.chance.randint(0, end + 2) for _ in range(5)),
        ]
        with suppress(OffsetOutOfRange):
            await self.seek_to(consumer, at, self.chance.choice(places))

    async def seek_to(self, consumer: Consumer[Any], at: TopicPartition, place: Start | int) -> None:
        to = await consumer.seek(at, place)
        book = self.books[at]
        book.next, book.comes_again = {to}, False
        book.seeks += 1
        book.sure = -1
        book.done.update(range(to))

    async def pause(self, consumer: Consumer, at: TopicPartition) -> None:
        consumer.pause(at, cause="so it is")
        self.books[at].is_paused = True

    async def resume(self, consumer: Consumer, at: TopicPartition) -> None:
        consumer.resume(at)
        self.books[at].is_paused = False

    async def store(self, consumer: Consumer, at: TopicPartition) -> None:
        delivered = consumer.last_delivered(at)
        if delivered is not None:
            await self.give(at, self.chance.randint(0, delivered), partial(consumer.store_offset, at))

    async def store_message(self, consumer: Consumer, _: TopicPartition) -> None:
        if not self.hand:
            return
        message, seeks = self.chance.choice(self.hand)
        try:
            await self.give(message.topic_partition, message.offset, lambda _: consumer.store_offset(message))
        except ConfigError:  # after a seek back it lies ahead
            assert seeks < self.books[message.topic_partition].seeks

    async def give(self, at: TopicPartition, offset: int, store: Callable[[int], Awaitable[None]]) -> None:
        book = self.books[at]
        seeks = book.seeks
        book.done.update(range(offset + 1))
        if book.comes_again and book.next is not None:  # not what is stored by hand (K10)
            book.next |= {failed + 1 for failed in book.next if failed <= offset}
        await store(offset)
        if book.seeks == seeks:
            book.sure = max(book.sure, offset)

    async def delete(self, consumer: Consumer, at: TopicPartition) -> None:
        self.books[at].sure = -1
        self.unstored.add(at)
        await consumer.delete_offset(at)

    async def look(self, consumer: Consumer, at: TopicPartition) -> None:
        assert consumer.health().is_member or self.is_ending
        assert consumer.statistics() is not None
        assert self.is_group or consumer.assignment >= frozenset(self.partitions[: self.begun])
        assert set(consumer.paused) == {at for at, book in self.books.items() if book.is_paused}
        position, book = consumer.position(at), self.books[at]
        if position is not None and book.next is not None and not self.hand and not book.comes_again:
            self.listen()
            assert any(book.follows(position, begin) for begin in book.next), (
                f"{at}: position {position}, next {book.next}"
            )

    async def ask(self, what: Callable[[], Awaitable[object]], _: Consumer, __: TopicPartition) -> None:
        with suppress(NotReady):
            await what()

    async def write(self, _: Consumer, at: TopicPartition) -> None:
        async with self.writing:
            await self.rig.fill(at, self.chance.randint(1, 7))

    async def flood(self, _: Consumer, at: TopicPartition) -> None:
        """Retention removes the oldest."""
        if self.chance.random() < 0.3:
            async with self.writing:
                await self.rig.fill(at, self.chance.choice([300, 900]), size=100)

    async def grow(self, _: Consumer, __: TopicPartition) -> None:
        """The topic gains a partition, of which nothing is skipped (K56)."""
        if len(self.partitions) < 4 and self.chance.random() < 0.3:
            new = TopicPartition("t", len(self.partitions))
            self.partitions.append(new)
            self.books[new] = Book()
            self.unstored.add(new)
            await self.rig.log.grow_topic("t", len(self.partitions))

    async def move(self, _: Consumer, at: TopicPartition) -> None:
        """Another leader has it."""
        if isinstance(self.rig.broker, FaultLayer) and self.rig.broker.log.leaders is not None:
            self.rig.broker.log.leaders.move(at, self.chance.randrange(3))


async def tell(seed: int, commit: AutoCommit) -> None:
    chance = random.Random(seed)
    partitions = chance.randint(1, 3)
    LEADERS.set(chance.choice([1, 3]))
    async with opened({}) as rig:
        await rig.client.create_topic("t", partitions, retention_bytes=ROOM)
        for number in range(partitions):
            await rig.fill(TopicPartition("t", number), chance.randint(0, 30))
        await Story(rig, chance, commit, partitions).tell()


@rule("I1", "I2", "I4")
@pytest.mark.parametrize("commit", MODES, ids=str)
@virtual(seeds=5)
async def test_any_verb_in_any_order(seed: int, commit: AutoCommit) -> None:
    await tell(seed, commit)


@rule("I1", "I2", "I4")
@pytest.mark.soak
@pytest.mark.parametrize("commit", MODES, ids=str)
@virtual(seeds=300)
async def test_any_verb_in_any_order_at_length(seed: int, commit: AutoCommit) -> None:
    await tell(seed + 10_000, commit)
