"""Gather messages that trickle in over many partitions: one poll, at most so many messages, at most so long.

A poll says why it returned. While it waits it is parked at the log, and nothing is asked again for each message.
"""

import anyio

import tarry

SENT = 250


async def trickle(client: tarry.Client) -> None:
    """One message each 2 ms, over eight partitions in turn."""
    async with client.producer("clicks") as producer:
        for number in range(SENT):
            await producer.send(b"click %d" % number)
            await anyio.sleep(0.002)


async def gather(client: tarry.Client) -> None:
    got = 0
    async with client.consumer("clicks", name="counter") as consumer:
        while got < SENT:
            batch = await consumer.poll(count=100, min_count=100, max_wait=1.0)
            got += len(batch)
            print(f"{len(batch):3} messages of {len(batch.offsets)} partitions, because of {batch.reason!r}")
            await consumer.store_offset(batch)


async def main() -> None:
    async with tarry.connect("memory:") as client, anyio.create_task_group() as tasks:
        await client.create_topic("clicks", partitions=8)
        tasks.start_soon(trickle, client)
        await gather(client)


anyio.run(main)
