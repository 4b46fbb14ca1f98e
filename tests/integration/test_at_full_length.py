"""Cases that the suite scales down or runs under virtual time, at full length on a real file (`make soak`)."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import cast

import anyio
import pytest

import tarry
from tarry import AutoCommit, LogBusy
from tarry.brokers.local.broker import LocalBroker
from tests.marks import rule

pytestmark = [pytest.mark.soak, pytest.mark.anyio, pytest.mark.timeout(300)]


@rule("K14")
async def test_a_foreign_write_lock_is_waited_for_up_to_the_limit(tmp_path: Path) -> None:
    """Held for 3 s: the append waits and succeeds. Held for 20 s: LogBusy after 10 s, nothing half-written."""
    path = tmp_path / "t.db"
    async with tarry.connect(str(path), busy_timeout=10) as client:
        await client.create_topic("t")
        async with client.producer("t", retries=0) as producer:
            with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
                foreign.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(producer.send, b"waits")
                    await anyio.sleep(3)
                    foreign.execute("ROLLBACK")
                assert time.monotonic() - began >= 3
                foreign.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                with pytest.raises(LogBusy, match="10 s"):
                    await producer.send(b"gives up")
                assert time.monotonic() - began >= 10
                await anyio.sleep(10)
                foreign.execute("ROLLBACK")
            assert (await producer.send(b"after")).offset == 1
        assert (await client.topic("t")).partitions[0].log_end == 2


@rule("K26")
async def test_the_write_ahead_file_stays_small_under_a_minute_of_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1 MB/s, three consumers that always wait or work; then a foreign reader that pins the file: one warning."""
    path, wal = tmp_path / "t.db", tmp_path / "t.db-wal"
    caplog.set_level(logging.WARNING, "tarry")
    async with tarry.connect(str(path), wal_warn_bytes=16 * 1024 * 1024) as client, anyio.create_task_group() as tasks:
        await client.create_topic("t")
        for name in ("a", "b", "c"):
            tasks.start_soon(_consume, client, name)
        await _load(client, wal, seconds=60, limit=64 * 1024 * 1024)
        await anyio.sleep(5)
        assert _size(wal) < 8 * 1024 * 1024
        assert not caplog.records
        with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN")
            foreign.execute("SELECT count(*) FROM topic").fetchall()
            await _load(client, wal, seconds=30, limit=None)
            foreign.execute("ROLLBACK")
        assert len([record for record in caplog.records if "has grown" in record.getMessage()]) == 1
        await _load(client, wal, seconds=5, limit=None)
        await anyio.sleep(5)
        assert _size(wal) < 8 * 1024 * 1024
        tasks.cancel_scope.cancel()


def _size(file: Path) -> int:
    return file.stat().st_size


async def _load(client: tarry.Client, wal: Path, *, seconds: float, limit: int | None) -> None:
    async with client.producer("t") as producer:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await producer.send(b"x" * 100_000)
            await anyio.sleep(0.1)
            assert limit is None or _size(wal) < limit


async def _consume(client: tarry.Client, name: str) -> None:
    async with client.consumer("t", name=name, commit=AutoCommit.finished()) as consumer:
        async for _ in consumer:
            await anyio.sleep(2 if name == "c" else 0.01)


@rule("K41")
async def test_an_idle_minute_costs_almost_nothing(tmp_path: Path) -> None:
    """Four empty partitions for 60 s: at most 13 requests, under 1 % of a core."""
    async with tarry.connect(str(tmp_path / "t.db")) as client:
        await client.create_topic("t", 4)
        async with client.consumer("t") as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            tasks.start_soon(anext, consumer)
            await anyio.sleep(1)
            pump = cast(LocalBroker, client.broker).pump
            requests, cpu = pump.requests, time.process_time()
            await anyio.sleep(60)
            assert pump.requests - requests <= 13
            assert time.process_time() - cpu < 0.6
            tasks.cancel_scope.cancel()
