"""How fast messages come out of the embedded log (part `read`)."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import anyio

import tarry
from bench.clocks import Stopwatch
from bench.records import BATCH, TOPIC, VALUE, key
from tarry.client import Client
from tarry.consumer.consumer import Consumer
from tarry.producer.producer import Outgoing

ALL_IN_MEMORY = 1 << 30

Read = Callable[[Consumer, int], Awaitable[None]]


def fill(path: str, messages: int, senders: int) -> dict[str, int]:
    """Write a log; `senders` 0: whole batches of 1,000, else that many tasks that send one message at a time."""
    anyio.run(_fill, path, messages, senders)
    return {"messages": messages - messages % max(senders, 1)}


def from_file(path: str, messages: int, how: str, backend: str, *, passes: int = 1) -> dict[str, float]:
    """From a file that the system has in memory and the log has not; `how` as in `READS`."""
    return anyio.run(partial(_from_file, path, messages, READS[how], passes), backend=backend)


def from_memory(folder: str, messages: int, how: str, backend: str) -> dict[str, float]:
    """From what the log keeps in memory of its newest batches."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(partial(_from_memory, str(Path(place) / "log.db"), messages, READS[how]), backend=backend)


async def _fill(path: str, messages: int, senders: int) -> None:
    async with tarry.connect(path, durability="memory") as client:
        await client.create_topic(TOPIC)
        if not senders:
            await _send_batches(client, messages)
            return
        async with client.producer(TOPIC) as producer, anyio.create_task_group() as tasks:

            async def send(count: int) -> None:
                for number in range(count):
                    await producer.send(VALUE, key=key(number))

            for _ in range(senders):
                tasks.start_soon(send, messages // senders)


async def _send_batches(client: Client, messages: int) -> None:
    async with client.producer(TOPIC) as producer:
        for first in range(0, messages, BATCH):
            await producer.send_many([Outgoing(VALUE, key(first + index)) for index in range(BATCH)])


async def _from_file(path: str, messages: int, read: Read, passes: int) -> dict[str, float]:
    async with tarry.connect(path) as client, client.consumer(TOPIC) as consumer:
        await read(consumer, BATCH)
        watch = Stopwatch()
        await read(consumer, messages - BATCH)
        for _ in range(passes - 1):
            await consumer.seek(0, 0)
            await read(consumer, messages)
        return watch.per_message(messages * passes - BATCH)


async def _from_memory(path: str, messages: int, read: Read) -> dict[str, float]:
    async with tarry.connect(path, durability="memory", resident_bytes=ALL_IN_MEMORY) as client:
        await client.create_topic(TOPIC)
        await _send_batches(client, messages)
        async with client.consumer(TOPIC) as consumer:
            await read(consumer, BATCH)
            watch = Stopwatch()
            await read(consumer, messages - BATCH)
            return watch.per_message(messages - BATCH)


async def _iterate(consumer: Consumer, count: int) -> None:
    async for message in consumer:
        _ = message.value
        count -= 1
        if not count:
            break


async def _iterate_fields(consumer: Consumer, count: int) -> None:
    async for message in consumer:
        _ = (message.value, message.key, message.headers, message.offset, message.timestamp_ms)
        count -= 1
        if not count:
            break


async def _poll(consumer: Consumer, count: int, *, looks: Callable[[Iterable[tarry.Message]], None]) -> None:
    while count > 0:
        batch = await consumer.poll()
        looks(batch)
        count -= len(batch)


def _pass(batch: Iterable[tarry.Message]) -> None:
    for _ in batch:
        pass


def _value(batch: Iterable[tarry.Message]) -> None:
    for message in batch:
        _ = message.value


def _fields(batch: Iterable[tarry.Message]) -> None:
    for message in batch:
        _ = (message.value, message.key, message.headers, message.offset, message.timestamp_ms)


READS: dict[str, Read] = {
    "async for": _iterate,
    "async for, five fields": _iterate_fields,
    "poll": partial(_poll, looks=_pass),
    "poll, values": partial(_poll, looks=_value),
    "poll, five fields": partial(_poll, looks=_fields),
}
"""Read that many messages: how, and what is done with each."""
