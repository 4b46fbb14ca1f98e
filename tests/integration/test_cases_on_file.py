"""Cases that are proved under virtual time in tests/unit/consumer: one round of each by the real clock, on a real file.

Here threads, the disk and the timers of the loops take part. Counts and contents are judged, never how fast it went.
"""

from __future__ import annotations

import gc
import random
import threading
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import tarry
from tarry import AutoCommit, PollOptions
from tarry.brokers.local.broker import LocalBroker
from tarry.brokers.local.pump import Pump
from tarry.client import Client
from tests.marks import rule

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@asynccontextmanager
async def opened(tmp_path: Path, partitions: int) -> AsyncGenerator[Client]:
    """A client with topic `t` in a new file; none of its threads outlives it."""
    async with tarry.connect(str(tmp_path / "log.db")) as client:
        await client.create_topic("t", partitions)
        assert _threads_of_ours()
        yield client
    assert not _threads_of_ours()


def _threads_of_ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tarry")]


def pump_of(client: Client) -> Pump:
    """What the host's thread works with; only counters are read from here."""
    assert isinstance(client.broker, LocalBroker)
    return client.broker.pump


@rule("K05")
@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_time_limit_around_each_read_loses_nothing(tmp_path: Path, partitions: int) -> None:
    chance = random.Random(11)
    async with opened(tmp_path, partitions) as client, client.producer("t") as producer:

        async def trickle() -> None:
            for number in range(100):
                await anyio.sleep(chance.uniform(0, 0.003))
                await producer.send(b"%d" % number, partition=0)

        found: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trickle)
            async with client.consumer("t", name="billing", commit=AutoCommit.finished(0.05)) as consumer:
                while len(found) < 100:
                    with anyio.move_on_after(0.002):
                        if chance.random() < 0.5:
                            found.append((await anext(consumer)).offset)
                        else:
                            found += [message.offset for message in await consumer.poll(max_wait=1.0)]
                assert found == list(range(100))
        assert pump_of(client).parked == 0


@rule("K20")
async def test_timed_out_and_cancelled_polls_leave_nothing(tmp_path: Path) -> None:
    """A fortieth of the case."""
    async with opened(tmp_path, 1) as client:
        async with client.consumer("t") as consumer:
            tracemalloc.start()
            used = 0
            for number in range(500):
                with anyio.move_on_after(0.0005 if number % 2 else 10.0):
                    assert await consumer.poll(max_wait=0.001) == []
                if number == 100:
                    gc.collect()
                    used = tracemalloc.get_traced_memory()[0]
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - used
            tracemalloc.stop()
            await anyio.sleep(0.05)  # the withdrawals are on their way to the host's thread
            assert pump_of(client).parked <= 1
        assert grown < 200 * 1024
        assert pump_of(client).parked == 0


@rule("K41")
@pytest.mark.parametrize("partitions", [1, 4])
async def test_an_idle_consumer_asks_once_per_wait(tmp_path: Path, partitions: int) -> None:
    """Waits of an eighth of a second, a dozen of them."""
    async with opened(tmp_path, partitions) as client:
        async with client.consumer("t", name="billing", poll=PollOptions(max_wait=0.125)) as consumer:
            await consumer.ready()
            before, began = pump_of(client).requests, anyio.current_time()
            with anyio.move_on_after(1.5):
                await anext(consumer)
            asked, took = pump_of(client).requests - before, anyio.current_time() - began
        assert asked <= took / 0.125 + 2


@rule("K89")
@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_poll_waits_for_the_rest(tmp_path: Path, partitions: int) -> None:
    """The case at a tenth of its length."""
    async with opened(tmp_path, partitions) as client, client.producer("t") as producer:
        await producer.send_many([b"x"] * 73)
        async with client.consumer("t") as consumer, anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.sleep(0.5)
                await producer.send_many([b"x"] * 27)

            tasks.start_soon(later)
            batch = await consumer.poll(min_count=100, max_wait=60.0)
            assert (len(batch), batch.reason) == (100, "count")
            await producer.send_many([b"x"] * 73)
            began = anyio.current_time()
            batch = await consumer.poll(min_count=100, max_wait=0.5)
            assert (len(batch), batch.reason) == (73, "wait")
            assert anyio.current_time() - began >= 0.49
            await producer.send_many([b"x" * 50] * 100)
            batch = await consumer.poll(min_count=100, max_wait=60.0, max_bytes=1000)
            assert (0 < len(batch) < 20, batch.reason) == (True, "bytes")


@rule("K101")
@pytest.mark.parametrize("partitions", [1, 3])
async def test_nothing_there_is_an_empty_batch_after_the_wait_each_time(tmp_path: Path, partitions: int) -> None:
    async with opened(tmp_path, partitions) as client, client.consumer("t") as consumer:
        for _ in range(20):
            began = anyio.current_time()
            batch = await consumer.poll(max_wait=0.02)
            assert (len(batch), batch.reason) == (0, "wait")
            assert anyio.current_time() - began >= 0.019
        async with client.producer("t") as producer:
            await producer.send(b"x")
        batch = await consumer.poll(min_count=5, max_wait=0.2)
        assert (len(batch), batch.reason) == (1, "wait")
