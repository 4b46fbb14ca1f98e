"""A topic that has grown has grown for who reads it too, wherever the process that grew it is killed (K56)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from unittest.mock import patch

import anyio
import pytest

import tarry
from tarry.brokers.local.coordinator import Coordinator
from tests.integration.zygote import Zygote, say
from tests.marks import rule

KILLS = 5


def work(path: str, run: str) -> None:
    """Grow the topic by one partition after the other, and say each time what it has now."""
    anyio.run(_grow, path, int(run))


async def _grow(path: str, run: int) -> None:
    async with tarry.connect(path) as client:
        info = await client.create_topic("t", exist_ok=True)
        count = len(info.partitions)
        while True:
            count += 1
            await client.grow_topic("t", count)
            async with client.producer("t") as producer:
                await producer.send(str(run).encode(), partition=count - 1)
            say("grown", count)


async def _look(path: Path) -> list[int]:
    async with tarry.connect(str(path)) as client:
        return [part.log_end for part in (await client.topic("t")).partitions]


@rule("K56")
@pytest.mark.timeout(60)
def test_what_was_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    told: set[int] = set()
    with Zygote() as zygote:
        for run in range(KILLS):
            out = tmp_path / f"out-{run}"
            child = zygote.spawn("tests.integration.test_kill_growth:work", str(path), str(run), out=out)
            while len(child.lines) < 3:
                time.sleep(0.005)
            child.kill()
            told.update(int(line.split()[1]) for line in child.lines)
            found = anyio.run(_look, path)
            assert len(found) >= max(told)
            assert {count: found[count - 1] for count in told} == dict.fromkeys(told, 1), "each holds what it was sent"


def die(path: str) -> None:
    """Grow a topic that a group reads, and be killed before the group is told."""
    anyio.run(_die, path)


async def _die(path: str) -> None:
    async with tarry.connect(path) as client:
        await client.create_topic("t")
        async with client.consumer("t", group="g", start=tarry.Start.next(tarry.Start.end())) as consumer:
            await consumer.ready()
            say("ready")
            with patch.object(Coordinator, "topic_changed", _kill):
                await client.grow_topic("t", 2)
    say("alive")


def _kill(_: Coordinator, __: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _write_and_read(path: Path) -> list[bytes | None]:
    async with tarry.connect(str(path)) as client:
        async with client.producer("t") as producer:
            for value in b"abc":
                await producer.send(bytes([value]), partition=1)
        async with client.consumer("t", group="g", start=tarry.Start.next(tarry.Start.end())) as consumer:
            with anyio.fail_after(10):
                return [(await anext(consumer)).value for _ in range(3)]


@rule("K56")
@pytest.mark.timeout(60)
def test_a_group_skips_nothing_when_the_log_dies_between_the_growth_and_the_group(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Zygote() as zygote:
        child = zygote.spawn("tests.integration.test_kill_growth:die", str(path), out=tmp_path / "out")
        assert os.WTERMSIG(child.wait()) == signal.SIGKILL
        assert child.lines == ["ready"]
    assert anyio.run(_write_and_read, path) == [b"a", b"b", b"c"]
