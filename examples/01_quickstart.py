"""Produce one order and bill it: the whole of tarry in a few lines.

Run it in an empty folder, as often as you like: it leaves `orders.db` there and goes on where it stopped.
"""

import anyio

import tarry


async def charge(order: bytes | None) -> None:
    print("charged for", (order or b"nothing").decode())


async def main() -> None:
    async with tarry.connect("orders.db") as client:  # A path: the embedded log.
        await client.create_topic("orders", partitions=4, exist_ok=True)
        async with client.producer("orders") as producer:
            await producer.send(b"a cup", key=b"customer-7")  # Returns a receipt once it is durable.
        async with client.consumer("orders", group="billing") as consumer:
            async for message in consumer:  # Parked at the log while there is nothing.
                await charge(message.value)
                await consumer.store_offset(message)  # This one is done.
                break  # A service leaves this line out, and waits for the next order.


anyio.run(main)
