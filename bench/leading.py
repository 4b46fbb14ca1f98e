"""What several leaders cost: a quiet minute, a busy partition, a trickle, a leader that is gone (part `leaders`).

In virtual time, over the fault layer: requests are counted as they leave the consumer, a minute takes as long as its
work, and CPU is that of consumer and log together.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio

from bench.grouping import MODES
from bench.records import TOPIC, VALUE
from tarry.client import Client
from tarry.consumer.consumer import Consumer
from tarry.errors import TarryError
from tarry.producer.producer import Producer
from tarry.testing import FaultLayer, FaultyLog, Script, run_virtual

MINUTE_S = 60.0
MESSAGES = 100
GONE = "gone"
SENT = frozenset(("wait_ready", "poll", "resolve", "stored_offset", "store_offset"))
"""What a consumer asks the log for; appends and topics are the bench's own, and lookups of routes are counted apart."""


@dataclass
class _Place:
    log: FaultyLog
    client: Client
    producer: Producer
    script: Script

    def requests(self) -> int:
        return sum(call.operation in SENT for call in self.script.calls)

    def lookups(self) -> int:
        return sum(call.operation == "route" for call in self.script.calls)


def minute(partitions: int, leaders: int, busy: str) -> dict[str, float]:
    """A minute of one consumer: quiet, with `busy` (a number) partitions that get 100 messages, or a leader `gone`."""
    return run_virtual(partial(_minute, partitions, leaders, busy))


async def _minute(partitions: int, leaders: int, busy: str) -> dict[str, float]:
    async with _opened(partitions, leaders) as place, place.client.consumer(TOPIC) as consumer:
        await consumer.ready()
        await anyio.sleep(1)
        before, looked, began = place.requests(), place.lookups(), time.process_time()
        if busy == GONE:
            await _lose_a_leader(place, consumer)
        else:
            await _trickle(place, consumer, int(busy))
        cpu = time.process_time() - began
        requests, lookups = place.requests() - before, place.lookups() - looked
        return {"requests": requests, "lookups": lookups, "cpu_ms": cpu * 1e3}


async def _trickle(place: _Place, consumer: Consumer, busy: int) -> None:
    for _ in range(MESSAGES):
        for number in range(busy):
            await place.producer.send(VALUE, partition=number)
        for _ in range(busy):
            await anext(consumer)
        await anyio.sleep(MINUTE_S / MESSAGES)


async def _lose_a_leader(place: _Place, consumer: Consumer) -> None:
    assert place.log.leaders is not None
    place.log.leaders.crash(0)
    with anyio.move_on_after(MINUTE_S):
        while True:
            try:
                await anext(consumer)
            except TarryError:
                continue


def gather(mode: str, partitions: int, leaders: int) -> dict[str, float]:
    """Requests of one `poll(min_count=n)` while one message trickles into each of n partitions."""
    return run_virtual(partial(_gather, mode, partitions, leaders))


async def _gather(mode: str, partitions: int, leaders: int) -> dict[str, float]:
    async with (
        _opened(partitions, leaders) as place,
        place.client.consumer(TOPIC, group="bench", commit=MODES[mode]) as consumer,
    ):
        await consumer.ready()
        await anyio.sleep(1)
        before = place.requests()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(consumer.poll, min_count=partitions, max_wait=30.0))
            await anyio.sleep(0.05)
            for number in range(partitions):
                await place.producer.send(VALUE, partition=number)
                await anyio.sleep(0.1)
        return {"requests": place.requests() - before}


@asynccontextmanager
async def _opened(partitions: int, leaders: int) -> AsyncGenerator[_Place]:
    script = Script()
    async with FaultyLog(leaders=leaders) as log, FaultLayer(log, script).client() as client:
        await client.create_topic(TOPIC, partitions)
        async with client.producer(TOPIC) as producer:
            yield _Place(log, client, producer, script)
