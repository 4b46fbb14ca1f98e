"""How fast messages come out of the embedded log (part `read`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

import tarry
from bench.clocks import Stopwatch
from bench.records import BATCH, TOPIC, VALUE, key
from tarry.consumer.consumer import Consumer
from tarry.producer.producer import Outgoing

ALL_IN_MEMORY = 1 << 30


def fill(path: str, messages: int, senders: int) -> dict[str, int]:
    """Write a log; `senders` 0: whole batches of 1,000, else that many tasks that send one message at a time."""
    anyio.run(_fill, path, messages, senders)
    return {"messages": messages - messages % max(senders, 1)}


def iterate(path: str, messages: int, backend: str, *, fields: bool = False, passes: int = 1) -> dict[str, float]:
    """`async for`, from the file (which the system has in memory)."""
    return anyio.run(partial(_read, path, messages, passes, _iterate_fields if fields else _iterate), backend=backend)


def iterate_resident(folder: str, messages: int, backend: str) -> dict[str, float]:
    """`async for`, from what the log keeps in memory of its newest batches."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(_iterate_resident, str(Path(place) / "log.db"), messages, backend=backend)


def poll(path: str, messages: int, backend: str, what: str) -> dict[str, float]:
    """`poll`, and what is done with the messages of each batch: `pass`, `value` or `fields`."""
    return anyio.run(partial(_read, path, messages, 1, partial(_poll, looks=LOOKS[what])), backend=backend)


async def _fill(path: str, messages: int, senders: int) -> None:
    async with tarry.connect(path, durability="memory") as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            if not senders:
                for first in range(0, messages, BATCH):
                    await producer.send_many([Outgoing(VALUE, key(first + index)) for index in range(BATCH)])
                return

            async def send(count: int) -> None:
                for number in range(count):
                    await producer.send(VALUE, key=key(number))

            async with anyio.create_task_group() as tasks:
                for _ in range(senders):
                    tasks.start_soon(send, messages // senders)


async def _read(path: str, messages: int, passes: int, read: Callable[[Consumer, int], Any]) -> dict[str, float]:
    async with tarry.connect(path) as client, client.consumer(TOPIC, start=tarry.Start.first()) as consumer:
        await read(consumer, BATCH)
        watch = Stopwatch()
        await read(consumer, messages - BATCH)
        for _ in range(passes - 1):
            await consumer.seek(0, 0)
            await read(consumer, messages)
        return watch.per_message(messages * passes - BATCH)


async def _iterate_resident(path: str, messages: int) -> dict[str, float]:
    async with tarry.connect(path, durability="memory", resident_bytes=ALL_IN_MEMORY) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            for first in range(0, messages, BATCH):
                await producer.send_many([Outgoing(VALUE, key(first + index)) for index in range(BATCH)])
        async with client.consumer(TOPIC) as consumer:
            await _iterate(consumer, BATCH)
            watch = Stopwatch()
            await _iterate(consumer, messages - BATCH)
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


async def _poll(consumer: Consumer, count: int, looks: Callable[[Iterable[tarry.Message]], None]) -> None:
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


LOOKS: dict[str, Callable[[Iterable[tarry.Message]], None]] = {"pass": _pass, "value": _value, "fields": _fields}
