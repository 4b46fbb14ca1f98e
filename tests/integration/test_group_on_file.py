"""Groups of three over one host and a real file, stopped and started at random: everything is finished exactly once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import anyio
import pytest

import tarry
from tarry import AutoCommit, PollOptions
from tests.marks import rule

PARTITIONS = 4
MESSAGES = 400
ON_POLL = AutoCommit.on_poll()


class Round:
    """One run: three members, each with a client of its own, that live many short lives."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = str(path)
        self.dice = random.Random(seed)
        self.finished: Counter[tuple[int, int]] = Counter()
        self.lives = 0

    async def run(self) -> None:
        async with tarry.connect(self.path) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer("t") as producer:
                await producer.send_many([str(number).encode() for number in range(MESSAGES)])
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(self._live)

    async def _live(self) -> None:
        async with tarry.connect(self.path) as client:
            while self.finished.total() < MESSAGES:
                self.lives += 1
                options = PollOptions(count=self.dice.randint(1, 30))
                consumer = client.consumer("t", group="g", commit=ON_POLL, poll=options)
                async with consumer, anyio.create_task_group() as tasks:
                    leaves_after = self.dice.choice([None, self.dice.randint(1, 40)])
                    tasks.start_soon(self._work, consumer, leaves_after)
                    await anyio.sleep(self.dice.random() * 0.05)
                    await consumer.shutdown()

    async def _work(self, consumer: tarry.Consumer, leaves_after: int | None) -> None:
        """What was handed out is finished when the loop asks again or a shutdown ends it; not after a `return`."""
        held: tuple[int, int] | None = None
        left = leaves_after
        async for message in consumer:
            if held is not None:
                self.finished[held] += 1
            held = (message.partition, message.offset)
            await anyio.sleep(self.dice.choice([0, 0, 0.001]))
            if left is not None:
                left -= 1
                if left == 0:
                    return
        if held is not None:
            self.finished[held] += 1


async def _rounds(folder: Path, count: int, seed: int) -> None:
    for number in range(count):
        once = Round(folder / f"{number}.db", seed + number)
        with anyio.fail_after(50):
            await once.run()
        doubled = {place: times for place, times in once.finished.items() if times != 1}
        assert not doubled, f"round {number} of seed {seed}"
        assert len(once.finished) == MESSAGES, f"round {number} of seed {seed}"
        assert once.lives >= 3


@rule("I1", "K01")
@pytest.mark.anyio
async def test_the_union_of_what_was_finished_is_every_message_once(tmp_path: Path) -> None:
    await _rounds(tmp_path, 5, random.SystemRandom().randrange(1 << 32))


@pytest.mark.soak
@pytest.mark.anyio
async def test_a_hundred_rounds(tmp_path: Path) -> None:
    await _rounds(tmp_path, 100, random.SystemRandom().randrange(1 << 32))
