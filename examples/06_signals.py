"""Stop a worker with Ctrl-C or SIGTERM: the order in work is finished and stored, then the program ends by itself.

The program sends itself the signal, in the middle of order 2.
"""

import signal

import anyio

import tarry


async def work(order: tarry.Message) -> None:
    if order.offset == 2:
        signal.raise_signal(signal.SIGTERM)  # As `kill` would, or `docker stop`.
    await anyio.sleep(0.1)
    print(f"order {order.offset} is done")


async def main() -> None:
    async with tarry.connect("memory:") as client:
        await client.create_topic("orders")
        async with client.producer("orders") as producer:
            await producer.send_many([b"a cup"] * 10)
        consumer = client.consumer("orders", name="worker", commit=tarry.AutoCommit.after_each())
        async with consumer:
            await consumer.consume(work)
        print(await consumer.shutdown())


tarry.run(main)
