"""The direct producer over a scripted log in memory, under virtual time on both loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import tarry
from tarry import (
    ConfigError,
    ConfigTypeError,
    LogBusy,
    LogFull,
    MessageTooLarge,
    NotStarted,
    OutcomeUnknown,
    Outgoing,
    ProducerClosed,
    Receipt,
    SendFailed,
    Start,
    TopicNotFound,
    UsageError,
)
from tarry.brokers.local.broker import LocalBroker
from tarry.testing import lose_reply, lose_request, refuse
from tarry.types import BATCH_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX
from tests.marks import rule
from tests.unit.consumer.rig import Rig, opened
from tests.virtual import virtual


def _last(_key: bytes | None, _value: bytes | None, count: int) -> int:
    return count - 1


def _below(_key: bytes | None, _value: bytes | None, count: int) -> int:
    return -count


LOST = OutcomeUnknown("the answer was lost")


async def _read(rig: Rig, topic: str = "t") -> list[tarry.Message]:
    """Everything in the topic, partition by partition."""
    async with rig.client.consumer(topic, start=Start.first()) as consumer:
        await consumer.ready()
        found = [message async for message in _until_empty(consumer)]
    return sorted(found, key=lambda message: (message.partition, message.offset))


async def _until_empty(consumer: tarry.Consumer) -> AsyncIterator[tarry.Message]:
    while batch := await consumer.poll(max_wait=0, count=10_000):
        for message in batch:
            yield message


@rule("P1")
@virtual()
async def test_a_missing_topic_is_an_error_and_is_not_created() -> None:
    """Entering raises TopicNotFound; afterwards the producer says that it is not started, and why."""
    async with opened() as rig:
        producer = rig.client.producer("nowhere")
        with pytest.raises(TopicNotFound, match="nowhere"):
            await producer.__aenter__()
        with pytest.raises(NotStarted) as caught:
            await producer.send(b"x")
        assert isinstance(caught.value.__cause__, TopicNotFound)
        assert [topic.name for topic in await rig.client.topics()] == ["t"]


@rule("P2", "P8")
@virtual()
async def test_a_send_returns_where_the_message_lies() -> None:
    """One receipt per message, in the order given, each naming the place of its message."""
    async with opened(3) as rig, rig.client.producer("t") as producer:
        one = await producer.send(b"x", key=b"k")
        many = await producer.send_many([Outgoing(f"{n}".encode(), f"{n % 5}".encode()) for n in range(50)])
        found = {(m.partition, m.offset): m.value for m in await _read(rig)}
        assert found[one.partition, one.offset] == b"x"
        assert [found[receipt.partition, receipt.offset] for receipt in many] == [f"{n}".encode() for n in range(50)]
        assert len(found) == 51


@rule("P3")
@virtual()
async def test_an_empty_send_does_nothing() -> None:
    """No request, no receipt."""
    async with opened() as rig, rig.client.producer("t") as producer:
        assert await producer.send_many([]) == []
        assert rig.broker.count("append") == 0


@rule("P4", "K63")
@virtual()
async def test_who_chooses_the_partition() -> None:
    """A partitioner wins over everything, then the call's partition, then the key, then the next partition in turn."""
    async with opened(4) as rig:
        async with rig.client.producer("t", partitioner=_last) as producer:
            assert (await producer.send(b"x", key=b"k", partition=0)).partition == 3
        async with rig.client.producer("t") as producer:
            assert (await producer.send(b"x", key=b"wu", partition=2)).partition == 2
            assert len({(await producer.send(b"x", key=b"same")).partition for _ in range(9)}) == 1
            turns = [(await producer.send(b"x")).partition for _ in range(8)]
            assert Counter(turns) == {0: 2, 1: 2, 2: 2, 3: 2}
            many = Counter(receipt.partition for receipt in await producer.send_many([b"x"] * 1000))
            assert all(many[partition] >= 50 for partition in range(4))


@virtual()
async def test_a_partition_that_does_not_exist_is_refused() -> None:
    """The error names the partition and the range, and nothing is sent."""
    async with opened(2) as rig, rig.client.producer("t") as producer:
        with pytest.raises(ConfigError, match=r"partition=2; the topic has 2 partitions, numbered 0 to 1"):
            await producer.send(b"x", partition=2)
        with pytest.raises(ConfigTypeError, match="not an int"):
            await producer.send(b"x", partition="0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match="the partitioner chose -2"):
            async with rig.client.producer("t", partitioner=_below) as wrong:
                await wrong.send(b"x")
        assert rig.broker.count("append") == 0


@rule("P6")
@virtual()
async def test_retries_are_counted_and_spaced() -> None:
    """Three more attempts, half a second to a second apart; with retries=0 exactly one attempt."""
    async with opened() as rig:
        rig.script.every("append", do=refuse(LogBusy("locked")))
        for retries, attempts in ((3, 4), (0, 1)):
            before, began = rig.broker.count("append"), anyio.current_time()
            async with rig.client.producer("t", retries=retries) as producer:
                with pytest.raises(LogBusy):
                    await producer.send(b"x")
            assert rig.broker.count("append") - before == attempts
            took = anyio.current_time() - began
            assert 0.5 * retries <= took <= 1.0 * retries


@rule("P7", "K74")
@virtual()
async def test_an_unknown_outcome_is_retried_only_where_the_log_knows_repeats() -> None:
    """The same sequence again, one message in the log; without de-duplication the caller is told at once."""
    async with opened() as rig, rig.client.producer("t", retry_spacing=0.1) as producer:
        rig.script.on("append", nth=1, do=lose_reply(LOST))
        receipt = await producer.send(b"once")
        assert (receipt.offset, receipt.duplicate) == (0, True)
        rig.script.on("append", nth=1, do=lose_request(LOST))
        assert (await producer.send(b"twice")).duplicate is False
        assert [message.value for message in await _read(rig)] == [b"once", b"twice"]
        stamps = [call.arguments["producer"] for call in rig.broker.calls if call.operation == "append"]
        assert stamps[0] == stamps[1] != stamps[2] == stamps[3]


@rule("P7", "K74")
@virtual()
async def test_without_deduplication_an_unknown_outcome_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt, no stamp, OutcomeUnknown."""
    plain = replace(LocalBroker.capabilities, idempotent_append=False)
    monkeypatch.setattr(LocalBroker, "capabilities", plain)
    async with opened() as rig, rig.client.producer("t") as producer:
        rig.script.every("append", do=lose_reply(LOST))
        with pytest.raises(OutcomeUnknown):
            await producer.send(b"x")
        assert [call.arguments["producer"] for call in _appends(rig)] == [None]


@rule("P7")
@virtual()
async def test_an_error_that_proves_failure_is_not_retried() -> None:
    """A full disk is full a second later too: one attempt."""
    async with opened() as rig, rig.client.producer("t") as producer:
        rig.script.every("append", do=refuse(LogFull("full")))
        with pytest.raises(LogFull):
            await producer.send(b"x")
        assert rig.broker.count("append") == 1


@rule("P9")
@virtual()
async def test_a_large_send_goes_in_batches_one_after_another() -> None:
    """At most 1,000 records and 256 KiB each, in order, never two at once."""
    async with opened() as rig, rig.client.producer("t") as producer:
        await producer.send_many([b"%d" % number for number in range(2500)])
        assert [call.arguments["batch"].count for call in _appends(rig)] == [1000, 1000, 500]
        await producer.send_many([b"x" * 100_000] * 5)
        batches = [call.arguments["batch"] for call in _appends(rig)[3:]]
        assert [batch.count for batch in batches] == [2, 2, 1]
        assert all(batch.size <= BATCH_BYTES_MAX for batch in batches)
        await producer.send_many([b"y", b"x" * (BATCH_BYTES_MAX + 1), b"z"])
        assert [call.arguments["batch"].count for call in _appends(rig)[6:]] == [1, 1, 1]
        assert len(await _read(rig)) == 2508


def _appends(rig: Rig) -> list[Any]:
    return [call for call in rig.broker.calls if call.operation == "append"]


@rule("P11", "P8")
@virtual()
async def test_a_send_that_fails_in_the_middle_says_what_is_left() -> None:
    """The cause, the messages from the failed batch on, the receipts of those before, the topic."""
    messages: list[bytes | Outgoing] = [b"%d" % number for number in range(2500)]
    async with opened() as rig, rig.client.producer("t") as producer:
        rig.script.on("append", nth=2, do=refuse(LogFull("full")))
        with pytest.raises(SendFailed, match="1500 of 2500 messages for 't'") as caught:
            await producer.send_many(messages)
        error = caught.value
        assert isinstance(error.__cause__, LogFull)
        assert error.topic == "t"
        assert [receipt.offset for receipt in error.receipts if isinstance(receipt, Receipt)] == list(range(1000))
        assert error.unsent == [Outgoing(b"%d" % number) for number in range(1000, 2500)]
        assert _appends(rig)[-1].arguments["batch"].count == 1000  # nothing went after the failed one
        unsent: list[Outgoing] = [message for message in error.unsent if isinstance(message, Outgoing)]
        await producer.send_many(unsent)
        assert [message.value for message in await _read(rig)] == messages


@rule("P2")
@virtual()
async def test_what_a_message_may_be() -> None:
    """Each wrong type or size is refused before anything is sent, naming value, limit and the way out."""
    async with opened() as rig, rig.client.producer("t") as producer:
        wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
            (
                {"value": "text"},
                ConfigTypeError,
                r"value must be bytes, not str \('text'\); use text.encode",
            ),
            ({"value": b"x", "key": "k"}, ConfigTypeError, "key must be bytes, not str"),
            ({"value": 7}, ConfigTypeError, "value must be bytes or None, not int"),
            (
                {"value": b"x", "headers": [("h", "text")]},
                ConfigTypeError,
                "value of header 'h' must be bytes, not str",
            ),
            ({"value": b"x", "headers": [("h", None)]}, ConfigTypeError, "must be bytes, not None"),
            ({"value": b"x", "headers": ["h"]}, ConfigTypeError, "a header must be a pair"),
            ({"value": b"x", "headers": [("\ud800", b"")]}, ConfigError, "cannot be written as UTF-8"),
            ({"value": Outgoing(b"x")}, ConfigTypeError, "not Outgoing; give it to send_many"),
            ({"value": b"x", "headers": [("h", b"")] * (HEADERS_MAX + 1)}, ConfigError, "65 headers; at most 64"),
            ({"value": b"x", "timestamp_ms": 1.5}, ConfigTypeError, "timestamp_ms=1.5 is not an int"),
            ({"value": b"x", "timestamp_ms": 2**63}, ConfigError, "outside of the years 1 to 9999"),
            ({"value": b"x", "timestamp_ms": -(2**63)}, ConfigError, "outside of the years 1 to 9999"),
        ]
        for message, error, text in wrong:
            with pytest.raises(error, match=text):
                await producer.send(**message)
        no_headers: list[Any] = [None, 0, False, "", b"", {}, {"h": b"x"}, (header for header in [("h", b"x")])]
        for headers in no_headers:
            with pytest.raises(ConfigTypeError, match=r"must be a list of pairs \(str, bytes\), not"):
                await producer.send(b"x", headers=headers)
        no_messages: list[Any] = [None, 5, "abc", b"abc", {b"a": 1}, Outgoing(b"a")]
        for messages in no_messages:
            with pytest.raises(ConfigTypeError, match="send_many takes a list of messages, not"):
                await producer.send_many(messages)
        sizes: list[tuple[dict[str, Any], int]] = [
            ({"value": b"x", "key": b"k" * (KEY_BYTES_MAX + 1)}, KEY_BYTES_MAX),
            ({"value": b"x", "headers": [("h", b"x" * HEADERS_BYTES_MAX)]}, HEADERS_BYTES_MAX),
            ({"value": b"x" * (1024 * 1024)}, 1024 * 1024),
        ]
        for message, limit in sizes:
            with pytest.raises(MessageTooLarge, match=f"{limit}") as caught:
                await producer.send(**message)
            assert caught.value.size > caught.value.limit == limit
        assert rig.broker.count("append") == 0
        assert (await producer.send(b"x" * (1024 * 1024 - 32))).offset == 0


@rule("K76", "K104")
@pytest.mark.anyio
@pytest.mark.parametrize("target", ["memory:", "file"])
async def test_nothing_is_not_empty(target: str, tmp_path: Path) -> None:
    """None and b"" stay what they are, as key and as value; so do names and keys beyond ASCII, across a restart."""
    url = target if target == "memory:" else str(tmp_path / "log.db")
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"a", None), (b"a", b""), (None, None), (b"", b"x")]
    topic, name, key = "løp-日本", "グループ", "ключ".encode()
    async with tarry.connect(url) as client:
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            for at, value in pairs:
                await producer.send(value, key=at)
            await producer.send(b"last", key=key, headers=[("größe", b"\x00"), ("größe", b"")])
        async with client.consumer(topic, name=name) as consumer:
            batch = await consumer.poll(min_count=5, max_wait=5)
            assert [(message.key, message.value) for message in batch] == [*pairs, (key, b"last")]
            assert batch[4].headers == (("größe", b"\x00"), ("größe", b""))
            await consumer.store_offset(batch)
        if target == "memory:":
            return
    async with tarry.connect(url) as client, client.consumer(topic, name=name) as consumer:
        await consumer.ready()
        assert [info.name for info in await client.topics()] == [topic]
        assert consumer.last_stored(0) == 4


@virtual()
async def test_after_shutdown_nothing_is_sent() -> None:
    """ProducerClosed, also through the end of the block; a second shutdown is fine."""
    async with opened() as rig:
        async with rig.client.producer("t") as producer:
            await producer.flush()
        await producer.shutdown()
        with pytest.raises(ProducerClosed, match="shut down"):
            await producer.send(b"x")
        with pytest.raises(NotStarted, match="async with"):
            await rig.client.producer("t").send(b"x")


@virtual()
async def test_a_cancelled_send_leaves_the_producer_usable() -> None:
    """The cancel reaches the log's writer or not; the next send works and nothing appears twice."""
    async with opened() as rig, rig.client.producer("t") as producer:
        rig.script.on("append", nth=1, do=lose_request(LOST, after=5))
        with anyio.move_on_after(1) as scope:
            await producer.send(b"gone")
        assert scope.cancelled_caught
        await producer.send(b"here")
        assert [message.value for message in await _read(rig)] == [b"here"]


@virtual()
async def test_a_producer_is_entered_once() -> None:
    async with opened() as rig:
        producer = rig.client.producer("t")
        assert repr(producer) == "<tarry producer of t, not entered yet>"
        async with producer:
            assert repr(producer) == "<tarry producer of t, open>"
            with pytest.raises(UsageError, match="cannot be entered again"):
                await producer.__aenter__()
        with pytest.raises(UsageError, match="producer of t, shut down> cannot be entered again"):
            await producer.__aenter__()
