"""How long it takes from `send` to whoever waits for the message, both in one process (part `wake`)."""

from __future__ import annotations

import struct
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

import tarry
from bench.clocks import percentile
from bench.records import TOPIC, VALUE
from tarry import abc
from tarry.brokers.local.broker import LocalBroker
from tarry.consumer.watch import Watch
from tarry.types import Position

STAMP = struct.Struct("<d")
GAP_S = 0.002
"""Between a receipt and the next send, so that the consumer is parked again."""
WARM_UP = 50

Durability = Literal["full", "normal", "memory"]


def deliver(
    folder: str, messages: int, durability: Durability, backend: str, *, partitions: int = 1
) -> dict[str, float]:
    """Send one message after another to the first of some partitions, all of which one consumer reads."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run = partial(_deliver, str(Path(place) / "log.db"), messages, durability, partitions)
        return anyio.run(run, backend=backend)


def answer(folder: str, messages: int, partitions: int, backend: str) -> dict[str, float]:
    """One readiness wait at the log over some partitions, of which the first is written; parking it is not counted."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(_answer, str(Path(place) / "log.db"), messages, partitions, backend=backend)


async def _deliver(path: str, messages: int, durability: Durability, partitions: int) -> dict[str, float]:
    delivered: list[float] = []
    received: list[float] = []
    async with tarry.connect(path, durability=durability) as client:
        await client.create_topic(TOPIC, partitions)
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
            await consumer.ready()

            async def follow() -> None:
                async for message in consumer:
                    assert message.value
                    delivered.append(time.perf_counter() - STAMP.unpack_from(message.value)[0])
                    if len(delivered) == messages + WARM_UP:
                        return

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                for _ in range(messages + WARM_UP):
                    await anyio.sleep(GAP_S)
                    began = time.perf_counter()
                    await producer.send(STAMP.pack(began) + VALUE[STAMP.size :], partition=0)
                    received.append(time.perf_counter() - began)
    return {**_percentiles("deliver", delivered), **_percentiles("receipt", received)}


async def _answer(path: str, messages: int, partitions: int) -> dict[str, float]:
    answered: list[float] = []
    async with tarry.connect(path, durability="normal") as client, AsyncExitStack() as stack:
        await client.create_topic(TOPIC, partitions)
        assert isinstance(client.broker, LocalBroker)
        pump = client.broker.pump
        session = await client.broker.open_session(abc.ConsumerIdentity(None), (TOPIC,), ())
        producer = await stack.enter_async_context(client.producer(TOPIC))
        watch = Watch(0)
        for partition in session.assignment.owned:
            watch.put(partition, abc.FetchTarget(partition, Position(0)))
        first = next(iter(watch.targets))
        leader = await session.route(first)

        async def wait() -> None:
            targets, change = watch.send()
            await session.wait_ready(leader, targets, max_wait=30.0, change=change)
            answered.append(time.perf_counter() - began)

        for offset in range(messages + WARM_UP):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                while not pump.parked:  # noqa: ASYNC110  # the pump runs in another loop and tells nobody
                    await anyio.sleep(GAP_S)
                began = time.perf_counter()
                await producer.send(VALUE, partition=0)
            watch.put(first, abc.FetchTarget(first, Position(offset + 1)))
    return _percentiles("answer", answered)


def _percentiles(what: str, seconds: list[float]) -> dict[str, float]:
    after = seconds[WARM_UP:]
    return {
        f"{what}_p50_us": percentile(after, 0.5) * 1e6,
        f"{what}_p99_us": percentile(after, 0.99) * 1e6,
    }
