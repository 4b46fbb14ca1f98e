"""What type checkers are told: never called, but checked by pyright and mypy like everything else (`make lint`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import msgspec
from pydantic import BaseModel

from tarry import Batch, Client, Consumer, Message, Outgoing, Producer, abc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Order(BaseModel):
    cups: int


class Parcel(msgspec.Struct):
    grams: int


class Words:
    """A codec."""

    def decode(self, data: bytes, /) -> list[str]:
        return data.decode().split()

    def encode(self, value: list[str], /) -> bytes:
        return " ".join(value).encode()


async def what_a_consumer_gives(client: Client) -> None:
    async with client.consumer("orders", group="billing", value_type=Order) as consumer:
        assert_type(consumer, Consumer[Order])
        async for message in consumer:
            assert_type(message, Message[Order])
            assert_type(message.value, Order | None)  # None: a delete marker
            assert_type(message.key, bytes | None)
        batch = await consumer.poll(count=10)
        assert_type(batch, Batch[Order])
        assert_type(batch[0].value, Order | None)
        assert_type(batch[:2], list[Message[Order]])
        for each in batch:
            assert_type(each.value, Order | None)
        await consumer.store_offset(batch)
        await consumer.store_offset(batch[0])

        async def handle(message: Message[Order]) -> None:
            assert_type(message.value, Order | None)

        await consumer.consume(handle)
        await consumer.consume(lambda message: message.value and message.value.cups)


async def what_a_consumer_gives_without_a_type(client: Client) -> None:
    async with client.consumer("orders", name="billing", drain_timeout=2.0) as consumer:
        assert_type(consumer, Consumer[bytes])
        async for message in consumer:
            assert_type(message.value, bytes | None)
        assert_type((await consumer.poll())[0].value, bytes | None)
        await consumer.consume(plain_handler)
    assert_type(client.consumer("orders", value_type=bytes), Consumer[bytes])


def plain_handler(message: Message) -> None:
    """Names without a parameter speak of bytes."""
    assert_type(message, Message[bytes])
    assert_type(message.value, bytes | None)


def what_each_kind_of_type_gives(client: Client, anything: object) -> None:
    assert_type(client.consumer("orders", value_type=Parcel), Consumer[Parcel])
    assert_type(client.consumer("orders", value_type=dict[str, int]), Consumer[dict[str, int]])
    assert_type(client.consumer("orders", value_type=Words()), Consumer[list[str]])
    assert_type(client.consumer("orders", value_type=msgspec.json.Decoder(Parcel)), Consumer[Parcel])
    assert_type(client.consumer("orders", value_type=Order | Parcel), Consumer[Any])
    assert_type(client.consumer("orders", value_type=anything), Consumer[Any])
    codec: abc.Codec[list[str]] = Words()
    assert_type(client.consumer("orders", value_type=codec), Consumer[list[str]])
    assert_type(client.producer("orders", value_type=codec), Producer[list[str]])


async def what_a_producer_takes(client: Client) -> None:
    async with client.producer("orders", value_type=Order, retries=5) as producer:
        assert_type(producer, Producer[Order])
        await producer.send(Order(cups=1), key=b"a")
        await producer.send(None)
        await producer.send_many([Order(cups=1), Outgoing(Order(cups=2), key=b"a"), Outgoing(None)])
        await producer.send(b"1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # refused
    async with client.producer("orders") as plain:
        assert_type(plain, Producer[bytes])
        await plain.send_many([b"a", Outgoing(b"b", key=b"k"), Outgoing(None)])
    assert_type(client.producer("orders", value_type=Words()), Producer[list[str]])
    assert_type(client.producer("orders", value_type=Parcel), Producer[Parcel])


async def what_is_refused(
    client: Client, consumer: Consumer[Order], handle: Callable[[Message], Awaitable[None]]
) -> None:
    client.consumer("orders", grop="billing")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await consumer.consume(handle)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await consumer.poll(poll_interval=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
