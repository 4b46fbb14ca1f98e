"""A small system with everything that could go in another order next time; prints its trace.

Run by `test_virtual_time` in new processes: `python mini_system.py BACKEND SEED`.
"""

from __future__ import annotations

import random
import sys
from typing import cast

import anyio

from tarry.testing import Backend, run_virtual

PARTITIONS = 4
CONSUMERS = 3
END = 20.0


class Log:
    """Partitions with parked readers; every wake wakes all of them."""

    def __init__(self) -> None:
        self.ends = [0] * PARTITIONS
        self.parked: list[list[anyio.Event]] = [[] for _ in range(PARTITIONS)]

    def append(self, partition: int) -> None:
        self.ends[partition] += 1
        for event in self.parked[partition]:
            event.set()
        self.parked[partition].clear()

    async def wait(self, partition: int) -> None:
        event = anyio.Event()
        self.parked[partition].append(event)
        await event.wait()


async def main(seed: int) -> None:
    dice, log = random.Random(seed), Log()

    def note(*what: object) -> None:
        print(f"{anyio.current_time():.9f}", *what)  # noqa: T201  # the trace

    async def produce(number: int) -> None:
        while True:
            await anyio.sleep(dice.choice([0.05, 0.1, 0.2]))
            partition = dice.randrange(PARTITIONS)
            log.append(partition)
            note("append", number, partition)

    async def read(number: int, partition: int) -> None:
        try:
            while True:
                with anyio.move_on_after(0.5) as scope:
                    await log.wait(partition)
                note("timeout" if scope.cancelled_caught else "read", number, partition, log.ends[partition])
        finally:
            note("cancelled", number, partition)

    async def consume(number: int) -> None:
        while True:
            with anyio.move_on_after(dice.choice([1, 2, 3])):
                async with anyio.create_task_group() as readers:
                    for partition in range(PARTITIONS):
                        readers.start_soon(read, number, partition)
            note("again", number)

    with anyio.move_on_after(END):
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(produce, number)
            for number in range(CONSUMERS):
                group.start_soon(consume, number)


if __name__ == "__main__":
    run_virtual(main, int(sys.argv[2]), backend=cast("Backend", sys.argv[1]), seed=int(sys.argv[2]))
