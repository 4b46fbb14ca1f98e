"""How many durable appends the embedded log makes for senders of one message each (part `append`)."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

import anyio

import tarry
from bench.clocks import Stopwatch, percentile
from bench.records import TOPIC, VALUE, key
from tarry.producer.producer import Outgoing

WARM_UP = 20_000
"""Messages written first: from then on the write-ahead file is written over, which syncs faster than growing it."""


def concurrent(folder: str, senders: int, seconds: float, backend: str) -> dict[str, float]:
    """`senders` tasks that each send, wait for the receipt, and send again."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return anyio.run(_concurrent, str(Path(place) / "log.db"), senders, seconds, backend=backend)


async def _concurrent(path: str, senders: int, seconds: float) -> dict[str, float]:
    waits: list[float] = []
    async with tarry.connect(path) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:

            async def send(until: float) -> None:
                began = time.perf_counter()
                while began < until:
                    await producer.send(VALUE, key=key(len(waits)))
                    ended = time.perf_counter()
                    waits.append(ended - began)
                    began = ended

            async def send_together(duration: float) -> None:
                async with anyio.create_task_group() as tasks:
                    for _ in range(senders):
                        tasks.start_soon(send, time.perf_counter() + duration)

            await producer.send_many([Outgoing(VALUE, key(number)) for number in range(WARM_UP)])
            await send_together(seconds / 10)
            waits.clear()
            watch = Stopwatch()
            await send_together(seconds)
            figures = watch.per_message(len(waits))
    return {
        **figures,
        "receipt_p50_us": percentile(waits, 0.5) * 1e6,
        "receipt_p99_us": percentile(waits, 0.99) * 1e6,
    }


def commit_each(folder: str, seconds: float) -> dict[str, float]:
    """The baseline: the standard library's sqlite3 and one commit per message, with the same durability."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        db = sqlite3.connect(Path(place) / "plain.db", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, key BLOB, value BLOB, timestamp_ms INTEGER)")

        def write(until: float) -> int:
            count = 0
            while time.perf_counter() < until:
                row = (key(count), VALUE, time.time_ns() // 1_000_000)
                db.execute("INSERT INTO log (key, value, timestamp_ms) VALUES (?, ?, ?)", row)
                count += 1
            return count

        with db:
            db.execute("BEGIN")
            rows = [(key(number), VALUE, 0) for number in range(WARM_UP)]
            db.executemany("INSERT INTO log (key, value, timestamp_ms) VALUES (?, ?, ?)", rows)
        write(time.perf_counter() + seconds / 10)
        watch = Stopwatch()
        count = write(time.perf_counter() + seconds)
        figures = watch.per_message(count)
        db.close()
        return figures
