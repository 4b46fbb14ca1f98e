"""What commit modes cost, what a trickle over many partitions asks, and what a rebalance takes (part `group`)."""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio

import tarry
from bench.clocks import Stopwatch
from bench.records import BATCH, TOPIC, VALUE, key
from tarry.brokers.local.broker import LocalBroker
from tarry.brokers.local.pump import Pump
from tarry.client import Client
from tarry.consumer.consumer import Consumer
from tarry.producer.producer import Outgoing
from tarry.types import TopicPartition

MODES = {
    "disabled, nothing stored": tarry.AutoCommit.disabled(),
    "disabled, each batch stored": tarry.AutoCommit.disabled(),
    "finished": tarry.AutoCommit.finished(),
    "interval": tarry.AutoCommit.interval(1.0),
    "on_poll": tarry.AutoCommit.on_poll(),
}


def commit(folder: str, mode: str, messages: int, how: str) -> dict[str, float]:
    """Read messages in one commit mode, by `async for` or `poll`, as a member of a group."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(_commit, str(Path(place) / "log.db"), mode, messages, how)


async def _commit(path: str, mode: str, messages: int, how: str) -> dict[str, float]:
    async with tarry.connect(path) as client:
        await client.create_topic(TOPIC)
        await _fill(client, messages)
        async with client.consumer(TOPIC, group="bench", commit=MODES[mode]) as consumer:
            await consumer.poll(count=BATCH, min_count=BATCH)
            stores = mode == "disabled, each batch stored"
            watch = Stopwatch()
            await (_poll if how == "poll" else _iterate)(consumer, messages - BATCH, stores)
            return watch.per_message(messages - BATCH)


async def _fill(client: Client, messages: int) -> None:
    async with client.producer(TOPIC) as producer:
        for first in range(0, messages, BATCH):
            await producer.send_many([Outgoing(VALUE, key(first + index)) for index in range(BATCH)])


async def _iterate(consumer: Consumer, count: int, stores: bool) -> None:  # noqa: FBT001  # one of two readers
    async for message in consumer:
        _ = message.value
        count -= 1
        if stores and not count % BATCH:
            await consumer.store_offset(message)
        if not count:
            break


async def _poll(consumer: Consumer, count: int, stores: bool) -> None:  # noqa: FBT001  # one of two readers
    while count > 0:
        batch = await consumer.poll()
        for message in batch:
            _ = message.value
        if stores:
            await consumer.store_offset(batch)
        count -= len(batch)


def gather(folder: str, mode: str, partitions: int) -> dict[str, float]:
    """Requests of one `poll(min_count=n)` while one message trickles into each of n partitions."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(_gather, str(Path(place) / "log.db"), mode, partitions)


async def _gather(path: str, mode: str, partitions: int) -> dict[str, float]:
    async with tarry.connect(path, durability="normal") as client:
        await client.create_topic(TOPIC, partitions)
        async with client.consumer(TOPIC, group="bench", commit=MODES[mode]) as consumer:
            await consumer.ready()
            pump = _pump(client)
            before = pump.requests
            async with anyio.create_task_group() as tasks, client.producer(TOPIC) as producer:
                tasks.start_soon(partial(consumer.poll, min_count=partitions, max_wait=30.0))
                await anyio.sleep(0.05)
                for _ in range(partitions):
                    await producer.send(VALUE)
                    await anyio.sleep(0.002)
            return {"requests": pump.requests - before - partitions}


def rebalance(folder: str, partitions: int, members: int) -> dict[str, float]:
    """The last of the members joins, and leaves again: until everybody has what is due to him."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(_rebalance, str(Path(place) / "log.db"), partitions, members)


async def _rebalance(path: str, partitions: int, members: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(tarry.connect(path, durability="normal"))
        await client.create_topic(TOPIC, partitions)
        first = [await stack.enter_async_context(client.consumer(TOPIC, group="bench")) for _ in range(members - 1)]
        await _shared(first, partitions)
        watch, began = Stopwatch(), time.perf_counter()
        last = client.consumer(TOPIC, group="bench")
        async with last:
            await _shared([*first, last], partitions)
            joined = time.perf_counter()
        await _shared(first, partitions)
        left = time.perf_counter()
        return {
            "join_ms": (joined - began) * 1e3,
            "leave_ms": (left - joined) * 1e3,
            "cpu_percent": watch.cpu_percent(),
        }


async def _shared(members: list[Consumer], partitions: int) -> None:
    """Until the members own everything, in equal shares, each partition once."""
    share = partitions // len(members)
    while True:
        owned: list[TopicPartition] = [at for member in members for at in member.assignment]
        sizes = [len(member.assignment) for member in members]
        if len(owned) == len(set(owned)) == partitions and min(sizes) >= share and max(sizes) <= share + 1:
            return
        await anyio.sleep(0.001)


def _pump(client: Client) -> Pump:
    assert isinstance(client.broker, LocalBroker)
    return client.broker.pump
