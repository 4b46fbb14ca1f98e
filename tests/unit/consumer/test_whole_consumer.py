"""Whole consumers under random histories: appends, faults, cancels, timeouts, stops and restarts under one name.

A reader keeps its own books of what it was given and what it finished, by the definition of *finished* alone. Judged:
within a run every partition is delivered without a gap and without a repeat (I2); a clean stop leaves exactly the last
finished message stored, so that the next run begins at the first unfinished one (I1); no stop, clean or not, skips what
is not finished (but the interval mode, when its last word is refused); while a consumer runs, nothing stored goes down
(I7); in the end everything was delivered.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.abc
import pytest

from tarry import AutoCommit, Batch, Message, PollOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import CapacityExceeded, LogBusy, LogUnavailable, NotAccepted, NotStarted, TarryError
from tarry.testing import Action, Call, Operation, answer_empty, delay, hook, lose_reply, lose_request, refuse
from tarry.types import TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import Background, Rig, opened
from tests.virtual import virtual

Mode = Literal["finished", "interval", "disabled"]
MODES: list[Mode] = ["finished", "interval", "disabled"]
MESSAGES = 60


@dataclass
class Books:
    """What the application knows of one partition.

    `sure`: stored by it, and confirmed; `perhaps`: given to `store_offset`, whatever came of it.
    """

    next: int = 0
    finished: int = -1
    sure: int = -1
    perhaps: int = -1


@dataclass
class Story:
    """One random history."""

    rig: Rig
    chance: random.Random
    mode: Mode
    partitions: int
    books: list[Books] = field(default_factory=list[Books])
    hand: list[Message] = field(default_factory=list[Message])
    run_begins: set[int] = field(default_factory=set[int])
    is_over: bool = False

    # ---- the reader and its books

    def note(self, messages: list[Message]) -> None:
        """The application got these."""
        for message in messages:
            book = self.books[message.partition]
            if message.partition in self.run_begins:
                self.run_begins.discard(message.partition)
                self.begin(message)
            assert message.offset == book.next, f"partition {message.partition}: {message.offset} after {book.next - 1}"
            assert message.value == str(message.offset).encode()
            book.next += 1
        self.hand = messages

    def begin(self, message: Message) -> None:
        """The first message of a partition in a run: where the runs before have left it."""
        book = self.books[message.partition]
        done = max(book.perhaps, book.finished if self.mode != "disabled" else -1)
        assert message.offset <= done + 1, f"skipped {done + 1} to {message.offset - 1}"
        assert message.offset > book.sure, f"{message.offset} comes again though it was stored"
        book.next = message.offset

    def finish_hand(self) -> None:
        """A read call is being made: what was handed out is finished by that."""
        if self.is_over:
            return
        for message in self.hand:
            book = self.books[message.partition]
            book.finished = max(book.finished, message.offset)
        self.hand = []

    async def read_once(self, consumer: Consumer) -> Message | Batch:
        self.finish_hand()
        if self.chance.random() < 0.6:
            return await anext(consumer)
        count = self.chance.randint(1, 12)
        return await consumer.poll(
            count=count,
            min_count=self.chance.randint(1, count),
            max_wait=self.chance.choice([0.0, 0.05, 0.5]),
            max_bytes=self.chance.choice([80, 300, 100_000]),
        )

    async def read_for(self, consumer: Consumer, tasks: anyio.abc.TaskGroup) -> list[Message] | None:
        """One read, perhaps given up; None when the consumer has ended."""
        got: list[Message | Batch] = []
        limit = self.chance.choice([0.001, 0.01, 0.1, 1.0, 3.0])
        try:
            with anyio.move_on_after(limit):
                got.append(await self.read_once(consumer))
        except StopAsyncIteration:
            return None
        except (NotAccepted, CapacityExceeded, LogUnavailable):
            return []
        (item,) = got or [Batch((), "wait", lambda _: [])]
        if isinstance(item, Message):
            return [item]
        return None if item.reason == "drain" else list(item)

    async def work(self, consumer: Consumer) -> None:
        """The body: takes its time, stores now and then; with mode disabled it stores all that it finishes."""
        await anyio.sleep(self.chance.choice([0.0, 0.0, 0.02, 0.3]))
        if not self.hand:
            return
        if self.mode == "disabled" or self.chance.random() < 0.1:
            await self.store(consumer, self.chance.choice(self.hand))

    async def store(self, consumer: Consumer, message: Message) -> None:
        book = self.books[message.partition]
        try:
            with anyio.move_on_after(self.chance.choice([0.05, 10.0])) as limit:
                book.perhaps = max(book.perhaps, message.offset)
                await consumer.store_offset(message)
            if not limit.cancelled_caught:
                book.sure = max(book.sure, message.offset)
        except NotStarted:
            return
        except TarryError:
            return

    async def loop(self, consumer: Consumer, tasks: anyio.abc.TaskGroup) -> None:
        for _ in range(self.chance.randint(3, 40)):
            messages = await self.read_for(consumer, tasks)
            if messages is None:
                return
            if messages:
                self.note(messages)
            await self.work(consumer)
        if self.chance.random() < 0.3:
            raise ValueError("the body fails")

    # ---- runs

    async def run(self) -> None:
        """Open, read, stop in one of many ways, judge."""
        commit = {
            "finished": AutoCommit.finished(self.chance.choice([0.03, 0.4, 100.0])),
            "interval": AutoCommit.interval(self.chance.choice([0.03, 0.4, 100.0])),
            "disabled": AutoCommit.disabled(),
        }[self.mode]
        options = PollOptions(
            count=self.chance.choice([1, 3, 20, 1000]), max_wait=self.chance.choice([0.2, 5.0]), max_bytes=2000
        )
        self.run_begins = set(range(self.partitions))
        self.is_over = False
        consumer = self.rig.consumer(commit=commit, poll=options, drain_timeout=20.0)
        try:
            await consumer.__aenter__()
        except TarryError:
            return
        async with anyio.create_task_group() as tasks:
            reader = Background()
            tasks.start_soon(reader.run, lambda: self.loop(consumer, tasks))
            if self.chance.random() < 0.5:
                await reader.done.wait()
            else:
                await anyio.sleep(self.chance.choice([0.0, 0.01, 0.2, 1.5]))
                if self.chance.random() < 0.5:
                    await reader.cancel()
            await self.stop(consumer)
            reader.scope.cancel()

    async def stop(self, consumer: Consumer) -> None:
        failed = len(self.rig.reported("store_failed"))
        is_cut = self.chance.random() < 0.15
        with anyio.CancelScope(deadline=anyio.current_time() + (0.01 if is_cut else 1000.0)):
            await consumer.shutdown()
        self.is_over = True
        report = await consumer.shutdown()
        is_clean = len(self.rig.reported("store_failed")) == failed and not self.rig.reported("drain_timeout")
        for number, book in enumerate(self.books):
            at = TopicPartition("t", number)
            stored = self.rig.stored(at)
            where = -1 if stored is None else stored
            if self.mode == "disabled":
                assert book.sure <= where <= book.perhaps
                continue
            done = max(book.finished, book.perhaps)
            if is_clean or self.mode == "finished":
                assert where <= done, f"partition {number}: stored {where}, finished {done}"
            if is_clean and not is_cut:
                assert where >= book.finished, f"partition {number}: stored {where}, finished {book.finished}"
            if at in report.committed and is_clean:
                assert report.committed[at] == stored
            book.finished = where  # what is not stored comes again
        self.hand = []

    # ---- the world around it

    async def write(self) -> None:
        """Messages trickle in; each one's value is its offset."""
        for _ in range(MESSAGES // 4):
            await anyio.sleep(self.chance.choice([0.0, 0.01, 0.3]))
            at = TopicPartition("t", self.chance.randrange(self.partitions))
            await self.rig.fill(at, self.chance.randint(1, 7))

    def add_faults(self) -> None:
        """Delays, refusals, lost requests and replies, empty answers; some of them in each history."""
        reads: list[Operation] = ["poll", "wait_ready"]
        asks: list[Operation] = ["resolve", "stored_offset", "open_session", "leave"]
        faults: list[tuple[list[Operation], Callable[[], Action]]] = [
            (reads, lambda: delay(0.07)),
            (reads, lambda: delay(0.07, reply=True)),
            (reads, lambda: refuse(lambda: NotAccepted("not here"))),
            (reads, lambda: refuse(lambda: CapacityExceeded("busy"))),
            (reads, lambda: lose_reply(after=0.02)),
            (reads, lambda: lose_request(after=0.02)),
            (reads, lambda: lose_request(lambda: LogUnavailable("no answer"), after=1.0)),
            (reads, answer_empty),
            (asks, lambda: delay(0.05)),
            (asks, lambda: refuse(lambda: NotAccepted("not here"))),
            (["store_offset"], lambda: delay(0.1)),
            (["store_offset"], lambda: delay(0.1, reply=True)),
            (["store_offset"], lambda: refuse(lambda: LogBusy("locked"))),
            (["store_offset"], lambda: lose_reply(after=0.02)),
            (["store_offset"], lambda: lose_request(after=0.02)),
        ]
        for operations, make in self.chance.sample(faults, self.chance.randint(1, 6)):
            for operation in operations:
                share, seed = self.chance.choice([0.02, 0.15, 0.4]), self.chance.randrange(1 << 30)
                self.rig.script.rate(operation, share, do=make(), seed=seed)
        self.rig.script.every("store_offset", do=hook(self.watch_store))

    def watch_store(self, call: Call) -> None:
        """While a consumer runs nothing is lowered; only the last word may."""
        if call.arguments["lower"]:
            (consumer,) = self.rig.client._consumers
            assert "shutting down" in repr(consumer)
            assert self.mode != "disabled"

    async def tell(self) -> None:
        self.add_faults()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.write)
            for _ in range(self.chance.randint(2, 5)):
                await self.run()
        await self.read_to_the_end()

    async def read_to_the_end(self) -> None:
        """Without faults: what was not finished comes, and that is all."""
        self.rig.script._rules.clear()
        ends = [self.rig.end(TopicPartition("t", number)) for number in range(self.partitions)]
        self.run_begins = set(range(self.partitions))
        self.is_over = False
        async with self.rig.consumer(commit=AutoCommit.finished()) as consumer:
            while True:
                self.finish_hand()
                batch = await consumer.poll(max_wait=1.0)
                if not batch:
                    break
                self.note(list(batch))
        for number, end in enumerate(ends):
            left = self.rig.stored(TopicPartition("t", number))
            assert (-1 if left is None else left) == end - 1
            if number not in self.run_begins:
                assert self.books[number].next == end
        assert self.rig.pump.parked == 0


async def tell(seed: int, mode: Mode) -> None:
    chance = random.Random(seed)
    partitions = chance.randint(1, 3)
    async with opened(partitions) as rig:
        work: Callable[[], Awaitable[None]] = Story(
            rig, chance, mode, partitions, [Books() for _ in range(partitions)]
        ).tell
        with anyio.fail_after(2000):
            await work()


@rule("I1", "I2", "I7")
@pytest.mark.parametrize("mode", MODES)
@virtual(seeds=40)
async def test_random_histories(seed: int, mode: Mode) -> None:
    await tell(seed, mode)


@rule("I1", "I2", "I7")
@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@virtual(seeds=100)
async def test_many_random_histories(seed: int, mode: Mode) -> None:
    await tell(seed + 10_000, mode)
