"""Kill a consumer with SIGKILL in the middle of its work, and start it again: nothing is skipped.

`AutoCommit.finished` stores what is finished, twenty times a second here. What was finished after the last store comes
again: at least once, and no offset arithmetic in the program.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio

import tarry

ORDERS = 100


async def produce(log: str) -> None:
    async with tarry.connect(log) as client:
        await client.create_topic("orders")
        async with client.producer("orders") as producer:
            await producer.send_many([b"order %d" % number for number in range(ORDERS)])


async def work(log: str) -> None:
    """The child: it says what it does, one order each 5 ms."""
    async with tarry.connect(log) as client:
        commit = tarry.AutoCommit.finished(interval=0.05)
        async with client.consumer("orders", name="billing", commit=commit) as consumer:
            async for message in consumer:
                await anyio.sleep(0.005)
                print(message.offset, flush=True)
                if message.offset == ORDERS - 1:
                    await consumer.store_offset(message)
                    return


def offsets_of(child: subprocess.Popen[str]) -> Iterator[int]:
    assert child.stdout is not None
    return (int(line) for line in child.stdout)


def main(log: str) -> None:
    anyio.run(produce, log)
    command = [sys.executable, __file__, log]
    done: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for offset in offsets_of(child):
            done.append(offset)
            if offset == ORDERS // 2:
                child.kill()
    print(f"killed after order {done[-1]}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        again = list(offsets_of(child))
    print(f"started again, went on at order {again[0]}")
    assert again[0] <= done[-1] + 1, "an order was skipped"
    assert sorted({*done, *again}) == list(range(ORDERS))
    print(f"all {ORDERS} orders were worked on, {len(done) + len(again) - ORDERS} of them twice")


if len(sys.argv) > 1:
    anyio.run(work, sys.argv[1])
else:
    with tempfile.TemporaryDirectory() as folder:
        main(str(Path(folder) / "orders.db"))
