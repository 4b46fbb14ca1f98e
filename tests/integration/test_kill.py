"""A process that appends and stores offsets is killed with SIGKILL at random moments; nothing it was told is lost.

SIGKILL proves no durability (the page cache survives); that is in test_durability.py.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import anyio
import pytest

import tarry
from tarry import Offset, Start, TopicPartition
from tests.integration.zygote import Child, Zygote, say
from tests.marks import rule

PARTITIONS = 3
KILLS = 50


def work(path: str, run: int) -> None:
    """Append from several tasks, store what is consumed, and print each receipt and store as it returns."""
    anyio.run(_work, path, run)


async def _work(path: str, run: int) -> None:
    async with tarry.connect(path) as client, anyio.create_task_group() as tasks:
        await client.create_topic("t", PARTITIONS, exist_ok=True)
        for sender in range(4):
            tasks.start_soon(_send, client, f"{run}-{sender}")
        tasks.start_soon(_store, client)


async def _send(client: tarry.Client, sender: str) -> None:
    async with client.producer("t") as producer:
        number = 0
        while True:
            value = f"{sender}-{number}"
            receipt = await producer.send(value.encode())
            say("sent", receipt.partition, receipt.offset, value)
            number += 1


async def _store(client: tarry.Client) -> None:
    async with client.consumer("t", name="w") as consumer:
        async for message in consumer:
            say("storing", message.partition, message.offset)
            await consumer.store_offset(message)
            say("stored", message.partition, message.offset)


class Ledger:
    """What all children printed: receipts, and per partition the highest offset stored and tried."""

    def __init__(self) -> None:
        self.receipts: dict[tuple[int, int], str] = {}
        self.stored: dict[int, int] = defaultdict(lambda: -1)
        self.tried: dict[int, int] = defaultdict(lambda: -1)

    def take(self, child: Child) -> None:
        """Add the lines of a child that is dead."""
        for line in child.lines:
            word, partition, offset, *value = line.split()
            place = (int(partition), int(offset))
            if word == "sent":
                assert place not in self.receipts, f"two receipts for {place}"
                self.receipts[place] = value[0]
            else:
                marks = self.stored if word == "stored" else self.tried
                marks[place[0]] = max(marks[place[0]], place[1])


async def _look(path: Path) -> tuple[dict[tuple[int, int], str], dict[int, Offset | None]]:
    """Everything in the log, and the stored offsets."""
    async with tarry.connect(str(path)) as client:
        info = await client.topic("t")
        total = sum(partition.log_end for partition in info.partitions)
        found: dict[tuple[int, int], str] = {}
        async with client.consumer("t", name="w", start=Start.first()) as consumer:
            await consumer.ready()
            stored = {number: consumer.last_stored(number) for number in range(PARTITIONS)}
            while len(found) < total:
                for message in await consumer.poll(count=10_000, max_wait=1):
                    assert message.value is not None
                    found[message.partition, message.offset] = message.value.decode()
        for number in range(PARTITIONS):
            offsets = sorted(offset for partition, offset in found if partition == number)
            assert offsets == list(range(len(offsets))), f"holes in {TopicPartition('t', number)}"
        return found, stored


def _kill_one(zygote: Zygote, path: Path, run: int, pause: float, out: Path) -> Child:
    """Run a child until it has printed something, then for `pause` seconds, then kill it."""
    child = zygote.spawn("tests.integration.test_kill:work", str(path), run, out=out)
    while not child.lines:
        time.sleep(0.005)
    time.sleep(pause)
    child.kill()
    return child


def _run(tmp_path: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    ledger = Ledger()
    path = tmp_path / "t.db"
    with Zygote() as zygote:
        for run in range(kills):
            ledger.take(_kill_one(zygote, path, run, moments.random() * 0.06, tmp_path / f"out-{run}"))
            found, stored = anyio.run(_look, path)
            lost = {place: value for place, value in ledger.receipts.items() if found.get(place) != value}
            assert not lost, f"after kill {run} (seed {seed}): receipts without their message {list(lost.items())[:3]}"
            assert len(set(found.values())) == len(found), f"after kill {run} (seed {seed}): something appears twice"
            for number in range(PARTITIONS):
                now = stored[number]
                known = -1 if now is None else now
                assert ledger.stored[number] <= known <= ledger.tried[number], f"after kill {run} (seed {seed})"


@rule("W5")
@pytest.mark.timeout(120)
def test_nothing_confirmed_is_lost_however_often_the_process_is_killed(tmp_path: Path) -> None:
    """50 kills: every printed receipt is there, no holes, nothing twice, no stored offset ahead of what was stored."""
    _run(tmp_path, KILLS, seed=random.SystemRandom().randrange(1 << 32))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kills_at_length(tmp_path: Path) -> None:
    """The same for many more kills."""
    _run(tmp_path, 500, seed=random.SystemRandom().randrange(1 << 32))
