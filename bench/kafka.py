"""The peers: Kafka clients against the mock cluster inside librdkafka, which runs in a process of its own.

That cluster keeps 5 MB of a partition and makes topics of four partitions when they are first named, so the messages
are spread over as many topics as they need. Both clients are driven the way their documentation does it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from bench.clocks import Stopwatch
from bench.model import Fixture, Options
from bench.records import BATCH, VALUE, key
from bench.runner import call, serving

PARTITIONS = 4
PARTITION_MESSAGES = 20_000


def cluster(messages: int) -> Fixture:
    """A mock cluster with that many messages in batches of 1,000."""

    @contextmanager
    def opened(_folder: Path) -> Generator[Options]:
        with serving("kafka:serve", {}) as served:
            yield {**served, **call("kafka:fill", {**served, "messages": messages})}

    return Fixture("mock cluster", opened)


def serve() -> None:
    """Hold the cluster open until standard input ends."""
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": "ignored:1", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(holder.list_topics(timeout=10).brokers.values()))
    print(json.dumps({"address": f"{broker.host}:{broker.port}"}), flush=True)
    sys.stdin.read()


def fill(address: str, messages: int) -> dict[str, Any]:
    """Write the messages; answers how they are spread."""
    from confluent_kafka import Producer

    topics = [f"bench{number}" for number in range(-(-messages // (PARTITIONS * PARTITION_MESSAGES)))]
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 100,
            "batch.num.messages": BATCH,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2 * messages,
            "log_level": 0,
        }
    )
    for topic in topics:
        producer.list_topics(topic, timeout=10)
    places = list(product(topics, range(PARTITIONS)))
    for number in range(messages):
        topic, partition = places[number // BATCH % len(places)]
        producer.produce(topic, VALUE, key=key(number), partition=partition)
        if not number % BATCH:
            producer.poll(0)
    left = producer.flush(60)
    if left:
        raise RuntimeError(f"{left} of {messages} messages were not written")
    return {"topics": topics, "messages": messages}


# ------------------------------------------------------------------------------------------- confluent-kafka


def confluent_consume(address: str, topics: list[str], messages: int, *, fields: bool = False) -> dict[str, float]:
    """`consume(500)`."""
    consumer = _confluent(address, topics)
    look = _confluent_fields if fields else _confluent_values

    def read(count: int) -> None:
        while count > 0:
            batch = consumer.consume(500, 5.0)
            if not batch:
                raise TimeoutError(f"{count} messages missing")
            look(batch)
            count -= len(batch)

    return _timed(read, messages)


def confluent_poll(address: str, topics: list[str], messages: int) -> dict[str, float]:
    """`poll`, a message at a time."""
    consumer = _confluent(address, topics)

    def read(count: int) -> None:
        while count > 0:
            message = consumer.poll(5.0)
            if message is None:
                raise TimeoutError(f"{count} messages missing")
            _ = message.value()
            count -= 1

    return _timed(read, messages)


def _confluent(address: str, topics: list[str]) -> Any:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": address, "group.id": f"bench-{time.time_ns()}", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign(
        [TopicPartition(topic, part, OFFSET_BEGINNING) for topic, part in product(topics, range(PARTITIONS))]
    )
    return consumer


def _confluent_values(batch: Iterable[Any]) -> None:
    for message in batch:
        _ = message.value()


def _confluent_fields(batch: Iterable[Any]) -> None:
    for message in batch:
        _ = (message.value(), message.key(), message.headers(), message.offset(), message.timestamp())


def _timed(read: Callable[[int], None], messages: int) -> dict[str, float]:
    """The first batch is not counted: joining takes longer than reading."""
    read(BATCH)
    watch = Stopwatch()
    read(messages - BATCH)
    return watch.per_message(messages - BATCH)


# ------------------------------------------------------------------------------------------- aiokafka


def aiokafka_iterate(address: str, topics: list[str], messages: int) -> dict[str, float]:
    """`async for`."""
    return asyncio.run(_aiokafka_iterate(address, topics, messages))


def aiokafka_getmany(address: str, topics: list[str], messages: int, *, fields: bool = False) -> dict[str, float]:
    """`getmany(max_records=500)`."""
    return asyncio.run(_aiokafka_getmany(address, topics, messages, _aiokafka_fields if fields else _aiokafka_values))


async def _aiokafka_iterate(address: str, topics: list[str], messages: int) -> dict[str, float]:
    consumer: AsyncIterator[Any] = await _aiokafka(address, topics)

    async def read(count: int) -> None:
        async for message in consumer:
            _ = message.value
            count -= 1
            if not count:
                break

    await read(BATCH)
    watch = Stopwatch()
    await read(messages - BATCH)
    return watch.per_message(messages - BATCH)


async def _aiokafka_getmany(
    address: str, topics: list[str], messages: int, look: Callable[[Iterable[Any]], None]
) -> dict[str, float]:
    consumer = await _aiokafka(address, topics)

    async def read(count: int) -> None:
        while count > 0:
            for batch in (await consumer.getmany(timeout_ms=5000, max_records=500)).values():
                look(batch)
                count -= len(batch)

    await read(BATCH)
    watch = Stopwatch()
    await read(messages - BATCH)
    return watch.per_message(messages - BATCH)


async def _aiokafka(address: str, topics: list[str]) -> Any:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition(topic, part) for topic, part in product(topics, range(PARTITIONS))])
    return consumer


def _aiokafka_values(batch: Iterable[Any]) -> None:
    for message in batch:
        _ = message.value


def _aiokafka_fields(batch: Iterable[Any]) -> None:
    for message in batch:
        _ = (message.value, message.key, message.headers, message.offset, message.timestamp)
