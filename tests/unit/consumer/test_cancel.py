"""What is true after a cancel or a timeout: nothing lost, nothing doubled, no cancel swallowed, nothing left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import anyio
import pytest

from tarry import AutoCommit, Batch, Message, PollOptions
from tarry._runtime.bridge import backend
from tarry._wire.batch import encode_record, seal
from tarry.consumer.consumer import Consumer
from tarry.testing import delay
from tests.marks import rule
from tests.unit.consumer.rig import (
    P0,
    P1,
    Background,
    Rig,
    count_tasks,
    offsets,
    opened,
    settled,
    start,
    take,
)
from tests.virtual import virtual

T = TypeVar("T")
Way = Literal["timeout", "cancel"]
PARTITIONS = pytest.mark.parametrize("partitions", [1, 3])


class Nobody:
    """Who appends without waiting for the receipt."""

    is_wanted = False

    def reply(self, answer: object) -> None:
        assert not isinstance(answer, Exception)


def append_now(rig: Rig) -> None:
    """Append one message to partition 0 in this very step of the loop."""
    record = encode_record(b"x", None, (), 0)
    rig.pump.append(Nobody(), P0, seal([record], [0]), None)


@dataclass
class Ended:
    """A task that was cancelled natively, and how it ended."""

    was_cancelled: bool
    results: list[Any] = field(default_factory=list[Any])


async def cancelled_after(work: Callable[[], Awaitable[Any]], wait: Callable[[], Awaitable[object]]) -> Ended:
    """Run `work` in a task of its own and cancel it once `wait` is over: `task.cancel()`, on trio a cancel scope."""
    if backend() == "asyncio":

        async def run() -> Any:
            return await work()

        task = asyncio.create_task(run())
        await wait()
        task.cancel()
        await asyncio.wait([task])
        return Ended(task.cancelled(), [] if task.cancelled() else [task.result()])
    background = Background()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(background.run, work)
        await wait()
        await background.cancel()
    if isinstance(background.error, Exception):
        raise background.error
    return Ended(background.outcome == "cancelled", [background.result] if background.outcome == "returned" else [])


async def read_in_a_task(consumer: Consumer) -> Message:
    """The next message, read by a task that ends at once and holds nothing afterwards."""
    reader = Background()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run, lambda: anext(consumer))
        with anyio.fail_after(1):
            await reader.done.wait()
    message: Message = reader.result
    assert isinstance(message, Message)
    return message


async def read_for(consumer: Consumer, seconds: float, chance: random.Random, way: Way) -> list[Message]:
    """Read with one of both verbs, given up after a moment; what came."""

    async def read() -> Message | Batch:
        if chance.random() < 0.5:
            return await anext(consumer)
        return await consumer.poll(min_count=chance.randint(1, 3), max_wait=chance.choice([0.0, 0.001, 1.0]))

    got: list[Message | Batch] = []
    if way == "timeout":
        with anyio.move_on_after(seconds):
            got.append(await read())
    else:
        got += (await cancelled_after(read, lambda: anyio.sleep(seconds))).results
    return [message for item in got for message in ([item] if isinstance(item, Message) else item)]


async def timed_reads(partitions: int, seed: int, way: Way, count: int) -> None:
    """K05: messages trickle in; each read is given up after 2 ms; the loop begins anew until all are there."""
    chance = random.Random(seed)
    async with opened(partitions) as rig, anyio.create_task_group() as tasks:

        async def trickle() -> None:
            for _ in range(count):
                await anyio.sleep(chance.uniform(0, 0.003))
                await rig.append(P0, b"x")

        tasks.start_soon(trickle)
        found: list[int] = []
        async with rig.consumer(commit=AutoCommit.finished(0.05)) as consumer:
            while len(found) < count and anyio.current_time() < 20:
                found += offsets(await read_for(consumer, 0.002, chance, way))
            found += offsets(await read_for(consumer, 0.5, chance, way))
        assert found == list(range(count))
        assert rig.stored(P0) == count - 1
        assert rig.pump.parked == 0


class TestReads:
    @rule("K05", "C24")
    @pytest.mark.parametrize("way", ["timeout", "cancel"])
    @PARTITIONS
    @virtual(seeds=20)
    async def test_a_limit_around_each_read_loses_and_doubles_nothing(
        self, partitions: int, seed: int, way: Way
    ) -> None:
        await timed_reads(partitions, seed, way, 40)

    @rule("K05")
    @pytest.mark.soak
    @pytest.mark.parametrize("way", ["timeout", "cancel"])
    @PARTITIONS
    @virtual(seeds=20)
    async def test_nor_with_a_thousand_messages(self, partitions: int, seed: int, way: Way) -> None:
        await timed_reads(partitions, seed, way, 1000)

    @rule("K05")
    @pytest.mark.parametrize("verb", ["anext", "poll"])
    @virtual()
    async def test_with_the_usual_timeouts(self, verb: str) -> None:
        """`asyncio.wait_for` makes a task per read on Python 3.11; `anyio.fail_after` does not."""
        chance = random.Random(3)

        async def limited(work: Callable[[], Awaitable[T]]) -> T:
            if backend() == "asyncio":
                return await asyncio.wait_for(work(), 0.002)
            with anyio.fail_after(0.002):
                return await work()

        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:

            async def trickle() -> None:
                for _ in range(300):
                    await anyio.sleep(chance.uniform(0, 0.003))
                    await rig.append(P0, b"x")

            tasks.start_soon(trickle)
            found: list[int] = []
            while len(found) < 300:
                try:
                    if verb == "anext":
                        found.append((await limited(lambda: anext(consumer))).offset)
                    else:
                        found += offsets(await limited(lambda: consumer.poll(max_wait=1.0)))
                except TimeoutError:
                    continue
            assert found == list(range(300))

    @rule("K16")
    @PARTITIONS
    @virtual(seeds=2)
    async def test_a_cancel_in_the_step_of_the_arrival_is_a_cancel(self, partitions: int) -> None:
        """500 rounds for each number of partitions: the message comes to the next reader of that round."""
        async with opened(partitions) as rig, rig.consumer() as consumer:

            async def append_and_cancel() -> None:
                await settled()
                append_now(rig)

            lived: list[int] = []
            for number in range(500):
                ended = await cancelled_after(lambda: anext(consumer), append_and_cancel)
                assert ended.was_cancelled
                assert (await read_in_a_task(consumer)).offset == number
                lived.append(count_tasks())
            assert set(lived) == {lived[0]}

    @rule("K16")
    @PARTITIONS
    @pytest.mark.parametrize("verb", ["anext", "poll"])
    @virtual(seeds=3)
    async def test_a_cancel_between_the_arrival_and_the_readers_turn_is_a_cancel(
        self, partitions: int, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader has been woken for a message, and is cancelled before it goes on."""
        async with opened(partitions) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            reader = start(tasks, lambda: anext(consumer) if verb == "anext" else consumer.poll(max_wait=60.0))
            await settled()
            arrived = consumer._worker._arrived

            def arrive_and_cancel() -> None:
                arrived()
                if consumer._fetches.messages:
                    reader.scope.cancel()

            with monkeypatch.context() as patched:
                patched.setattr(consumer._worker, "_arrived", arrive_and_cancel)
                append_now(rig)
                await reader.done.wait()
            assert reader.outcome == "cancelled"
            assert (await read_in_a_task(consumer)).offset == 0

    @rule("K16")
    @PARTITIONS
    @virtual(seeds=5)
    async def test_a_cancel_some_turns_after_the_arrival(self, partitions: int) -> None:
        """However far the message has come: it is returned once, or it comes to the next reader; never both."""
        async with opened(partitions) as rig, rig.consumer() as consumer:
            ways: set[bool] = set()
            for number in range(60):

                async def append_and_wait(turns: int = number % 20) -> None:
                    await settled()
                    append_now(rig)
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()

                ended = await cancelled_after(lambda: anext(consumer), append_and_wait)
                ways.add(ended.was_cancelled)
                found = [] if ended.was_cancelled else [ended.results[0].offset]
                if not found:
                    found.append((await read_in_a_task(consumer)).offset)
                assert found == [number]
            assert ways == {True, False}

    @rule("C24")
    @virtual(seeds=3)
    async def test_a_cancelled_reader_leaves_its_message_in_hand_to_the_next_one(self) -> None:
        """Not lost: it was handed over; and finished when somebody reads on."""
        async with opened() as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)
            async with rig.consumer(commit=AutoCommit.finished(100.0)) as consumer:

                async def work() -> None:
                    await anext(consumer)
                    await anyio.sleep_forever()

                reader = start(tasks, work)
                await anyio.sleep(1)
                await reader.cancel()
                assert (await anext(consumer)).offset == 1
                report = await consumer.shutdown()
            assert report.committed == {P0: 0}
            assert report.unfinished == {P0: 1}


class TestOtherVerbs:
    @rule("C53")
    @pytest.mark.parametrize("reaches", [True, False])
    @virtual()
    async def test_a_cancelled_store_may_be_applied_and_the_next_one_finds_out(self, reaches: bool) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.fill(P0, 10)
            messages = await take(consumer, 5)
            rig.script.on("store_offset", do=delay(1.0, reply=reaches))
            with anyio.move_on_after(0.5) as limit:
                await consumer.store_offset(messages[3])
            assert limit.cancelled_caught
            assert rig.stored(P0) == (3 if reaches else None)
            assert consumer.last_stored(0) is None  # not known to be stored
            await consumer.store_offset(messages[1])
            assert consumer.last_stored(0) == (3 if reaches else 1)  # never lowered
            assert rig.stored(P0) == consumer.last_stored(0)

    @virtual()
    async def test_a_store_that_is_cancelled_while_it_waits_for_its_turn_does_not_happen(self) -> None:
        async with opened() as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            messages = await take(consumer, 5)
            rig.script.on("store_offset", do=delay(1.0))
            first = start(tasks, lambda: consumer.store_offset(messages[1]))
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.1):
                await consumer.store_offset(messages[4])
            await first.done.wait()
            await settled()
            assert rig.stored(P0) == consumer.last_stored(0) == 1
            assert len(rig.calls("store_offset")) == 1

    @virtual()
    async def test_a_cancelled_delete_may_be_applied(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.fill(P0, 10)
            await consumer.store_offset((await take(consumer, 5))[3])
            rig.script.on("store_offset", do=delay(1.0, reply=True))
            with anyio.move_on_after(0.5):
                await consumer.delete_offset(0)
            assert rig.stored(P0) is None
            await consumer.store_offset(0, 2)  # below what was believed to be stored, and stored all the same
            assert rig.stored(P0) == consumer.last_stored(0) == 2

    @virtual()
    async def test_a_cancelled_seek_has_moved_nothing(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.fill(P0, 10)
            await take(consumer, 3)
            rig.script.on("resolve", do=delay(1.0))
            with anyio.move_on_after(0.5):
                await consumer.seek(0, 7)
            assert consumer.position(0) == 3
            assert offsets(await take(consumer, 3)) == [3, 4, 5]

    @pytest.mark.parametrize("verb", ["ready", "lag"])
    @virtual()
    async def test_looking_may_be_cancelled(self, verb: str) -> None:
        async with opened(2) as rig:
            slow = rig.script.every("resolve", do=delay(5.0), where=lambda call: call.arguments["partition"] == P1)
            async with rig.consumer() as consumer:
                with anyio.move_on_after(0.5) as limit:
                    await getattr(consumer, verb)()
                assert limit.cancelled_caught
                rig.script.remove(slow)
                await rig.fill(P0, 3)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]

    @rule("K16")
    @virtual(seeds=5)
    async def test_cancelled_at_every_turn_every_verb_ends_and_the_consumer_works_on(self) -> None:
        options = PollOptions(count=3)
        async with opened(2) as rig, rig.consumer(poll=options, commit=AutoCommit.finished(0.01)) as consumer:
            await settled()
            before = count_tasks()
            verbs: list[Callable[[], Awaitable[object]]] = [
                lambda: consumer.store_offset(0, 0, force=True),
                lambda: consumer.delete_offset(0),
                lambda: consumer.seek(0, 0),
                consumer.lag,
                consumer.ready,
                lambda: consumer.poll(max_wait=0.001),
            ]
            await rig.fill(P0, 20)
            for turns in range(12):
                for verb in verbs:

                    async def wait(turns: int = turns) -> None:
                        for _ in range(turns):
                            await anyio.lowlevel.checkpoint()

                    await cancelled_after(verb, wait)
            await consumer.seek(0, 0)
            assert offsets(await take(consumer, 20)) == list(range(20))
            assert count_tasks() == before
