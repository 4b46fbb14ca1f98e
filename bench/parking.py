"""What consumers cost that wait at the log with a deadline while nothing comes (part `park`)."""

from __future__ import annotations

import gc
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import anyio

import tarry
from bench.clocks import Stopwatch, resident_kib
from bench.records import VALUE
from tarry.brokers.local.broker import LocalBroker
from tarry.client import Client
from tarry.consumer.consumer import Consumer

QUIET, BUSY = "quiet", "busy"
COMMITS = 200


def wait(folder: str, consumers: int, max_wait: float, seconds: float, backend: str) -> dict[str, float]:
    """Consumers of one partition in `poll(max_wait=...)`; then commits on another topic, before and while they wait."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = str(Path(place) / "log.db")
        return anyio.run(_wait, path, consumers, max_wait, seconds, backend=backend)


async def _wait(path: str, consumers: int, max_wait: float, seconds: float) -> dict[str, float]:
    poll = tarry.PollOptions(max_wait=max_wait)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(tarry.connect(path, durability="normal"))
        assert isinstance(client.broker, LocalBroker)
        pump = client.broker.pump
        await client.create_topic(QUIET)
        await client.create_topic(BUSY)
        alone = await _commit(client)
        gc.collect()
        before = resident_kib()
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for _ in range(consumers):
            consumer = await stack.enter_async_context(client.consumer(QUIET, poll=poll))
            tasks.start_soon(_poll_for_ever, consumer)
        while pump.parked < consumers:  # noqa: ASYNC110  # the pump runs in another loop and tells nobody
            await anyio.sleep(0.01)
        gc.collect()
        memory = resident_kib() - before
        requests, watch = pump.requests, Stopwatch()
        await anyio.sleep(seconds)
        cpu, requests = watch.cpu_percent(), pump.requests - requests
        reads = pump.reads
        parked = await _commit(client)
        reads = pump.reads - reads
        tasks.cancel_scope.cancel()
    return {
        "cpu_percent": cpu,
        "consumer_kib": memory / consumers,
        "requests_s": requests / seconds,
        "commit_alone_us": alone * 1e6,
        "commit_parked_us": parked * 1e6,
        "commit_reads": reads,
    }


async def _poll_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.poll()


async def _commit(client: Client) -> float:
    """Seconds of one commit, the median of many."""
    took: list[float] = []
    async with client.producer(BUSY) as producer:
        for _ in range(COMMITS):
            began = time.perf_counter()
            await producer.send(VALUE)
            took.append(time.perf_counter() - began)
    return median(took)
