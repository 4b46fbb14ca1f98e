"""Orders as objects: pydantic models on both sides, and one message that is none.

The consumer hands out what decodes. What does not is raised in its place, with its bytes; here it is kept aside.
"""

import anyio
from pydantic import BaseModel, PositiveInt

import tarry


class Order(BaseModel):
    """What is in a message."""

    item: str
    cups: PositiveInt


async def produce(client: tarry.Client) -> None:
    async with client.producer("orders", value_type=Order) as producer:
        await producer.send(Order(item="tea", cups=2))
        async with client.producer("orders") as older_program:
            await older_program.send(b"3 cups of tea")
        await producer.send(Order(item="coffee", cups=1))
        try:
            await producer.send(Order.model_construct(item="milk", cups="many"))
        except tarry.UnencodableValue as error:
            print(f"refused before it was sent: {type(error.value).__name__} for topic {error.topic!r}")


async def work(client: tarry.Client) -> None:
    aside: list[bytes] = []
    cups = 0
    finished = tarry.AutoCommit.finished()
    async with client.consumer("orders", name="kitchen", commit=finished, value_type=Order) as consumer:
        while cups < 3:
            try:
                order = (await anext(consumer)).value
            except tarry.UndecodableMessage as error:
                aside.append(error.raw)
                await consumer.seek(error.partition, error.offset + 1)
                continue
            if order is not None:  # no delete marker
                cups += order.cups
                print(f"{order.cups} x {order.item}")
    print(f"{cups} cups, {len(aside)} message put aside: {aside[0].decode()!r}")


async def main() -> None:
    async with tarry.connect("memory:") as client:
        await client.create_topic("orders")
        await produce(client)
        await work(client)


anyio.run(main)
