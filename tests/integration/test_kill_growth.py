"""A topic that has grown has grown, also when the process is killed right after it was told so (K56)."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

import tarry
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
