"""What a broker cannot or will not do: it says so with the right error, and all is as it was before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tarry import abc
from tarry.errors import (
    BatchTooLarge,
    ConfigError,
    FeatureUnavailable,
    MessageTooLarge,
    OffsetOutOfRange,
    StaleAssignment,
    TarryError,
    TopicExists,
    TopicNotFound,
)
from tarry.testing.conformance.appends import PRODUCER
from tarry.testing.conformance.rig import LONG, Rig, offsets, only, refused, sized
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import EPOCH, UNFENCED, HistoryId, Offset, Position, ProducerStamp, Start, TopicPartition

Verb = Callable[[], Awaitable[object]]


class Refusals(Suite):
    """See the module."""

    @rests_on("design 10", "S65")
    async def test_a_refusal_says_why_and_changes_nothing(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t", max_record_bytes=2000)
        await rig.append(at, b"a", b"b", b"c")
        reader = await rig.reader(at, name="reader")
        await reader.store_offset(at, Offset(1), ownership=UNFENCED)
        before = await rig.broker.describe_topic(at.topic)
        no, nowhere = rig.name("no"), TopicPartition(at.topic, 7)
        other = abc.FetchTarget(at, Position(0), history=HistoryId(before.partitions[0].history + 1))
        refusals: list[tuple[type[TarryError], Verb]] = [
            (TopicExists, lambda: rig.create("t")),
            (TopicNotFound, lambda: rig.broker.describe_topic(no)),
            (TopicNotFound, lambda: rig.broker.delete_topic(no)),
            (TopicNotFound, lambda: rig.append(nowhere, b"d")),
            (TopicNotFound, lambda: rig.reader(at, nowhere, name="reader")),
            (MessageTooLarge, lambda: rig.broker.append(at, sized(2001))),
            (BatchTooLarge, lambda: rig.broker.append(at, sized(*[20] * 1001))),
            (ConfigError, lambda: rig.poll(reader, (at, 0), count=0)),
            (ConfigError, lambda: rig.poll(reader, (at, 0), (at, 1), max_wait=LONG)),
            (OffsetOutOfRange, lambda: rig.poll(reader, (at, 4), max_wait=LONG)),
            (OffsetOutOfRange, lambda: reader.resolve(at, Start.offset(4))),
            (OffsetOutOfRange, lambda: reader.store_offset(at, Offset(3), ownership=UNFENCED, lower=True)),
            (StaleAssignment, lambda: reader.store_offset(at, None, ownership=UNFENCED, history=other.history)),
        ]
        for kind, verb in refusals:
            with refused(kind) as caught:
                await verb()
            assert type(caught.value) is kind
            assert (await rig.broker.describe_topic(at.topic), await reader.stored_offset(at)) == (before, 1)
        assert offsets(only(await rig.poll(reader, (at, Start.next())))) == [2]

    @rests_on("design 3", "C14")
    async def test_it_can_what_it_says_and_refuses_the_rest(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        reader = await rig.reader(at, name="reader")
        able = rig.broker.capabilities
        time = Start.timestamp(EPOCH)
        claims: list[tuple[bool, Verb]] = [
            (able.groups, lambda: rig.member(at.topic)),
            (able.groups, rig.broker.list_groups),
            (able.timestamps, lambda: reader.resolve(at, time)),
            (able.timestamps, lambda: rig.poll(reader, (at, time))),
            (able.idempotent_append, lambda: rig.append(at, b"b", stamp=ProducerStamp(PRODUCER, 0))),
            (able.commit_on_poll != "none", lambda: rig.poll(reader, (at, 0), commit=True)),
        ]
        for is_able, verb in claims:
            if is_able:
                await verb()
                continue
            with refused(FeatureUnavailable):
                await verb()
        assert await rig.log_end(at) == 1 + able.idempotent_append
        assert await reader.stored_offset(at) == (None if able.commit_on_poll == "none" else 0 + able.idempotent_append)
