"""Appends: offsets in order, contents unchanged, limits, and repeats that the log recognises."""

from __future__ import annotations

from tarry.errors import BatchTooLarge, MessageTooLarge, TopicNotFound
from tarry.testing.conformance.rig import (
    EPOCH_MS,
    MIB,
    Asked,
    Rig,
    batch,
    messages,
    offsets,
    only,
    records,
    refused,
    sized,
    values,
)
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import Header, Offset, ProducerStamp, Receipt, TopicPartition

PRODUCER = bytes(range(16))
OTHER = bytes(reversed(range(16)))


class Appends(Suite):
    """See the module."""

    @rests_on("P8")
    async def test_a_receipt_names_the_first_message_of_its_batch(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        assert await rig.append(p0, b"a", b"b", b"c") == Receipt(p0.topic, 0, Offset(0))
        assert await rig.append(p0, b"d") == Receipt(p0.topic, 0, Offset(3))
        assert await rig.append(p1, b"e") == Receipt(p1.topic, 1, Offset(0))
        assert await rig.append(p0, b"f", b"g") == Receipt(p0.topic, 0, Offset(4))

    @rests_on("W5")
    async def test_what_has_a_receipt_can_be_read(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        for number in range(5):
            receipt = await rig.append(p1, b"%d" % number)
            found = only(await rig.poll(reader, (p1, receipt.offset)))
            assert (values(found), found.head) == ([b"%d" % number], receipt.offset)
        assert offsets(only(await rig.poll(reader, (p0, 0)))) == []

    @rests_on("K76", "K103")
    async def test_messages_come_back_as_they_were_sent(self, rig: Rig) -> None:
        headers: tuple[Header, ...] = (("trace", b"1"), ("Trace", b""), ("trace", b"\xff" * 300), ("größe", b"2"))
        sent = [
            (None, b"a", (), EPOCH_MS),
            (b"", b"a", (), EPOCH_MS + 1),
            (None, None, (), 0),
            (b"x", b"", headers, -1),
            (bytes(range(256)) * 20, "ключ".encode(), (), EPOCH_MS - 5),
        ]
        (at,) = await rig.topic()
        await rig.broker.append(at, records(*sent))
        reader = await rig.reader(at)
        found = messages(only(await rig.poll(reader, (at, 0))))
        assert [(each.value, each.key, each.headers, each.timestamp_ms) for each in found] == sent
        assert [(each.topic_partition, each.offset, each.head) for each in found] == [
            (at, offset, 4) for offset in range(5)
        ]

    @rests_on("design 5.1", "design 5.6")
    async def test_a_batch_within_the_limits_is_taken(self, rig: Rig) -> None:
        (at,) = await rig.topic(max_record_bytes=MIB)
        assert (await rig.broker.append(at, sized(*[20] * 1000))).offset == 0
        assert (await rig.broker.append(at, sized(*[32 * 1024] * 8))).offset == 1000
        assert (await rig.broker.append(at, sized(MIB))).offset == 1008
        assert await rig.log_end(at) == 1009

    @rests_on("design 5.6", "W8")
    async def test_what_is_too_large_is_refused_alone(self, rig: Rig) -> None:
        (at,) = await rig.topic(max_record_bytes=5000)
        with refused(MessageTooLarge):
            await rig.broker.append(at, sized(100, 5001, 100))
        with refused(BatchTooLarge):
            await rig.broker.append(at, sized(*[20] * 1001))
        with refused(BatchTooLarge):
            await rig.broker.append(at, sized(*[5000] * 53))
        assert await rig.log_end(at) == 0
        assert (await rig.broker.append(at, sized(5000))).offset == 0

    @rests_on("P1")
    async def test_an_append_to_nowhere_is_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        for nowhere in TopicPartition(at.topic, 1), TopicPartition(at.topic, -1), TopicPartition(rig.name("no"), 0):
            with refused(TopicNotFound):
                await rig.append(nowhere, b"a")
        assert await rig.log_end(at) == 0

    @rests_on("W6", "design 5.2")
    async def test_appends_at_the_same_time_get_offsets_of_their_own(self, rig: Rig) -> None:
        partitions = await rig.topic(3)
        asked = [rig.ask(rig.append, partitions[each % 3], *[b"%d" % each] * (1 + each % 4)) for each in range(60)]
        reader = await rig.reader(*partitions)
        expected: dict[TopicPartition, dict[int, bytes]] = {at: {} for at in partitions}
        for each, one in enumerate(asked):
            receipt = await one.answer()
            assert receipt.topic_partition == partitions[each % 3]
            there = expected[receipt.topic_partition]
            there |= {receipt.offset + index: b"%d" % each for index in range(1 + each % 4)}
        for at, there in expected.items():
            found = messages(only(await rig.poll(reader, (at, 0))))
            assert {each.offset: each.value for each in found} == there
            assert len(found) == len(there)


class Repeats(Suite):
    """Batches that are sent again under the same stamp are there once."""

    @rests_on("design 5.4", "W7")
    async def test_a_repeat_gets_the_same_receipt_and_writes_nothing(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        first = await rig.append(p0, b"a", b"b", stamp=ProducerStamp(PRODUCER, 0))
        second = await rig.append(p0, b"c", stamp=ProducerStamp(PRODUCER, 1))
        assert (first.offset, first.duplicate, second.offset, second.duplicate) == (0, False, 2, False)
        for stamp, known in ((ProducerStamp(PRODUCER, 0), 0), (ProducerStamp(PRODUCER, 1), 2)):
            again = await rig.append(p0, b"x", stamp=stamp)
            assert (again.offset, again.duplicate) == (known, True)
        assert (await rig.append(p0, b"d", stamp=ProducerStamp(OTHER, 0))).offset == 3
        assert (await rig.append(p1, b"e", stamp=ProducerStamp(PRODUCER, 0))).duplicate is False
        assert (await rig.append(p0, b"f")).offset == 4
        reader = await rig.reader(p0)
        assert values(only(await rig.poll(reader, (p0, 0)))) == [b"a", b"b", b"c", b"d", b"f"]

    @rests_on("design 5.4")
    async def test_sequences_may_arrive_in_any_order(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        order = [3, 0, 7, 1, 6, 2]
        for place, sequence in enumerate(order):
            receipt = await rig.append(at, b"%d" % sequence, stamp=ProducerStamp(PRODUCER, sequence))
            assert (receipt.offset, receipt.duplicate) == (place, False)
        for place, sequence in enumerate(order):
            receipt = await rig.append(at, b"x", stamp=ProducerStamp(PRODUCER, sequence))
            assert (receipt.offset, receipt.duplicate) == (place, True)
        assert await rig.log_end(at) == len(order)

    @rests_on("design 5.4", "W7")
    async def test_repeats_at_the_same_time_write_once(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        stamp = ProducerStamp(PRODUCER, 5)
        asked = [rig.ask(rig.append, at, b"a", b"b", stamp=stamp) for _ in range(8)]
        receipts = [await each.answer() for each in asked]
        assert [receipt.offset for receipt in receipts] == [0] * 8
        assert sorted(receipt.duplicate for receipt in receipts) == [False] + [True] * 7
        assert await rig.log_end(at) == 2

    @rests_on("K05", "W17", "P7")
    async def test_an_append_whose_caller_went_away_may_be_sent_again(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        sent = batch(b"a", b"b")
        for sequence in range(10):
            stamp = ProducerStamp(PRODUCER, sequence)
            asked: Asked[Receipt] = rig.ask(rig.broker.append, at, sent, producer=stamp)
            await asked.abandon(turns=sequence)
            receipt = await rig.broker.append(at, sent, producer=stamp)
            assert receipt.offset == 2 * sequence
        assert await rig.log_end(at) == 20
