"""How long a message takes from `send` to a consumer that waits for it, both in one process (part `wake`)."""

from __future__ import annotations

import struct
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

import tarry
from bench.clocks import percentile
from bench.records import TOPIC, VALUE

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
    return {
        "deliver_p50_us": percentile(delivered[WARM_UP:], 0.5) * 1e6,
        "deliver_p99_us": percentile(delivered[WARM_UP:], 0.99) * 1e6,
        "receipt_p50_us": percentile(received[WARM_UP:], 0.5) * 1e6,
        "receipt_p99_us": percentile(received[WARM_UP:], 0.99) * 1e6,
    }
