"""A member in commit-on-poll mode is killed with SIGKILL in a loop body: at most the one batch in work is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

import tarry
from tarry import AutoCommit, PollOptions
from tests.integration.zygote import Child, Zygote, say
from tests.marks import rule

PARTITIONS = 3
BATCH = 5
MESSAGES = 4000


def work(path: str) -> None:
    """Read as a member of the group and print when the work on each message begins and ends."""
    anyio.run(_work, path)


async def _work(path: str) -> None:
    options = PollOptions(count=BATCH)
    async with (
        tarry.connect(path) as client,
        client.consumer("t", group="g", commit=AutoCommit.on_poll(), poll=options) as consumer,
    ):
        async for message in consumer:
            say("begin", message.partition, message.offset)
            await anyio.sleep(0.001)
            say("end", message.partition, message.offset)


async def _fill(path: str) -> None:
    async with tarry.connect(path) as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer("t") as producer:
            await producer.send_many([str(number).encode() for number in range(MESSAGES)])


async def _stored(path: str) -> dict[int, int]:
    """The next message of the group in each partition."""
    async with tarry.connect(path) as client:
        offsets = (await client.group("g")).offsets
    stored = {at.partition: found.stored + 1 for at, found in offsets.items() if found.stored is not None}
    return {number: stored.get(number, 0) for number in range(PARTITIONS)}


def _kill_one(zygote: Zygote, path: Path, pause: float, out: Path) -> Child:
    child = zygote.spawn("tests.integration.test_kill_on_poll:work", str(path), out=out)
    while not child.lines:
        time.sleep(0.005)
    time.sleep(pause)
    child.kill()
    return child


def _run(tmp_path: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    path = tmp_path / "t.db"
    anyio.run(_fill, str(path))
    begun: Counter[tuple[int, int]] = Counter()
    start = dict.fromkeys(range(PARTITIONS), 0)
    with Zygote() as zygote:
        for run in range(kills):
            child = _kill_one(zygote, path, moments.random() * 0.03, tmp_path / f"out-{run}")
            words = [line.split() for line in child.lines]
            began = [(int(partition), int(offset)) for word, partition, offset in words if word == "begin"]
            ended = {(int(partition), int(offset)) for word, partition, offset in words if word == "end"}
            begun.update(began)
            after = anyio.run(_stored, str(path))
            passed = {(number, offset) for number in after for offset in range(start[number], after[number])}
            assert set(began) <= passed, f"kill {run} (seed {seed}): begun without having been committed"
            lost = passed - ended
            assert len(lost) <= BATCH, f"kill {run} (seed {seed}): {sorted(lost)} is more than one batch"
            assert len({partition for partition, _ in lost}) <= 1, f"kill {run} (seed {seed})"
            start = after
    assert max(begun.values()) == 1, "what was committed never comes again"


@rule("K01", "C42")
@pytest.mark.timeout(120)
def test_a_kill_in_a_loop_body_loses_at_most_the_batch_in_work(tmp_path: Path) -> None:
    _run(tmp_path, 10, seed=random.SystemRandom().randrange(1 << 32))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kills_in_a_loop_body_at_length(tmp_path: Path) -> None:
    """50 kills."""
    _run(tmp_path, 50, seed=random.SystemRandom().randrange(1 << 32))
