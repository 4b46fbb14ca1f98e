"""Topics: created, described, listed, deleted, and created again as something else."""

from __future__ import annotations

from tarry.errors import ConfigError, TopicExists, TopicNotFound
from tarry.testing.conformance.rig import LONG, Rig, offsets, only, refused
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import UNFENCED, Offset, Start, TopicInfo, TopicPartition


class Topics(Suite):
    """See the module."""

    @rests_on("design 3")
    async def test_a_new_topic_is_empty_and_as_it_was_asked_for(self, rig: Rig) -> None:
        info = await rig.create("t", partitions=3, retention_age=60.0, retention_bytes=1 << 30, max_record_bytes=5000)
        assert info.name == rig.name("t")
        assert [(part.partition, part.log_start, part.log_end, part.size) for part in info.partitions] == [
            (number, 0, 0, 0) for number in range(3)
        ]
        assert len({part.history for part in info.partitions}) == 3
        assert (info.retention_age, info.retention_bytes, info.max_record_bytes) == (60.0, 1 << 30, 5000)
        assert await rig.broker.describe_topic(info.name) == info
        plain = await rig.create("plain")
        assert (plain.retention_age, plain.retention_bytes) == (None, None)

    @rests_on("design 3")
    async def test_a_topic_is_created_once(self, rig: Rig) -> None:
        made = await rig.create("t", partitions=2)
        with refused(TopicExists):
            await rig.create("t")
        assert await rig.create("t", partitions=5, exist_ok=True) == made

    @rests_on("design 3")
    async def test_of_many_who_create_a_topic_one_succeeds(self, rig: Rig) -> None:
        asked = [rig.ask(rig.create, "t", partitions=count) for count in range(1, 6)]
        made: list[TopicInfo] = []
        for each in asked:
            try:
                made.append(await each.answer())
            except TopicExists:
                continue
        assert made == [await rig.broker.describe_topic(rig.name("t"))]
        again = [rig.ask(rig.create, "t", exist_ok=True) for _ in range(5)]
        assert [await each.answer() for each in again] == made * 5

    @rests_on("C15")
    async def test_what_does_not_exist_is_not_found(self, rig: Rig) -> None:
        with refused(TopicNotFound):
            await rig.broker.describe_topic(rig.name("t"))
        with refused(TopicNotFound):
            await rig.broker.delete_topic(rig.name("t"))
        await rig.topic(label="t")
        await rig.broker.delete_topic(rig.name("t"))
        with refused(TopicNotFound):
            await rig.broker.describe_topic(rig.name("t"))

    @rests_on("design 3")
    async def test_topics_are_listed_by_name(self, rig: Rig) -> None:
        made = {label: await rig.create(label) for label in ("b", "c", "a", "B")}
        await rig.broker.delete_topic(made.pop("c").name)
        listed = await rig.broker.list_topics()
        assert [info.name for info in listed] == sorted(info.name for info in listed)
        assert [info for info in listed if info.name.startswith(rig.name(""))] == [made["B"], made["a"], made["b"]]

    @rests_on("S18")
    async def test_a_description_counts_what_is_there(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        await rig.fill(p0, 3, size=100)
        await rig.fill(p0, 2, size=1000)
        first, second = (await rig.broker.describe_topic(p0.topic)).partitions
        assert (first.log_start, first.log_end, first.size) == (0, 5, 2300)
        assert (second.partition, second.log_end, second.size) == (p1.partition, 0, 0)

    @rests_on("K104")
    async def test_names_come_back_byte_for_byte(self, rig: Rig) -> None:
        labels = ["løp-日本", "e\u0301", "\u00e9", "a b.c"]
        names = [(await rig.create(label)).name for label in labels]
        assert names == [rig.name(label) for label in labels]
        for index, name in enumerate(names):
            receipt = await rig.append(TopicPartition(name, 0), *[b"x"] * (index + 1))
            assert receipt.topic == name
        assert [await rig.log_end(TopicPartition(name, 0)) for name in names] == [1, 2, 3, 4]
        longest = rig.name("n" * (255 - len(rig.name(""))))
        assert (await rig.create(longest.removeprefix(rig.name("")))).name == longest

    @rests_on("K56", "design 3")
    async def test_a_topic_gains_partitions_and_keeps_those_it_has(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t", max_record_bytes=5000)
        await rig.append(at, b"a", b"b")
        before = await rig.broker.describe_topic(at.topic)
        grown = await rig.broker.grow_topic(at.topic, 3)
        assert grown.partitions[0] == before.partitions[0]
        assert [(part.partition, part.log_start, part.log_end, part.size) for part in grown.partitions[1:]] == [
            (1, 0, 0, 0),
            (2, 0, 0, 0),
        ]
        assert len({part.history for part in grown.partitions}) == 3
        assert grown.max_record_bytes == 5000
        assert await rig.broker.describe_topic(at.topic) == grown
        assert await rig.broker.grow_topic(at.topic, 3) == grown
        new = TopicPartition(at.topic, 2)
        assert (await rig.append(new, b"c")).offset == 0
        assert offsets(only(await rig.poll(await rig.reader(new), (new, 0)))) == [0]

    @rests_on("K56")
    async def test_partitions_are_never_taken_away(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        await rig.append(p1, b"a")
        before = await rig.broker.describe_topic(p0.topic)
        with refused(ConfigError) as caught:
            await rig.broker.grow_topic(p0.topic, 1)
        assert p0.topic in str(caught.value)
        assert await rig.broker.describe_topic(p0.topic) == before
        with refused(TopicNotFound):
            await rig.broker.grow_topic(rig.name("no"), 1)

    @rests_on("K56", "S24")
    async def test_growth_disturbs_nothing_that_waits(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        reader = await rig.reader(p0, p1)
        poll = rig.ask(rig.poll, await rig.reader(p0), (p0, 0), max_wait=LONG)
        wait = rig.ask(rig.wait, reader, (p0, 0), (p1, 0))
        await rig.settle()
        await rig.broker.grow_topic(p0.topic, 4)
        await rig.settle()
        assert poll.is_out
        assert wait.is_out
        await rig.append(p0, b"a")
        assert offsets(only(await poll.answer())) == [0]
        assert list(await wait.answer()) == [p0]

    @rests_on("K40", "S74")
    async def test_a_topic_created_again_is_another_one(self, rig: Rig) -> None:
        (at,) = await rig.topic(label="t")
        await rig.append(at, b"a", b"b")
        reader = await rig.reader(at, name="reader")
        await reader.store_offset(at, Offset(1), ownership=UNFENCED)
        before = await rig.broker.describe_topic(at.topic)
        await rig.broker.delete_topic(at.topic)
        after = await rig.create("t")
        assert (after.partitions[0].log_start, after.partitions[0].log_end) == (0, 0)
        assert after.partitions[0].history != before.partitions[0].history
        reader = await rig.reader(at, name="reader")
        assert await reader.stored_offset(at) is None
        found = only(await rig.poll(reader, (at, Start.next())))
        assert (offsets(found), found.position, found.head) == ([], 0, None)

    @rests_on("S24")
    async def test_deleting_a_topic_ends_what_waits_for_it(self, rig: Rig) -> None:
        gone, kept = await rig.topic(label="gone"), await rig.topic(label="kept")
        reader, other = await rig.reader(*gone), await rig.reader(*kept)
        poll = rig.ask(rig.poll, reader, (gone[0], 0), max_wait=LONG)
        stays = rig.ask(rig.poll, other, (kept[0], 0), max_wait=LONG)
        await rig.settle()
        await rig.broker.delete_topic(gone[0].topic)
        with refused(TopicNotFound):
            await poll.answer()
        with refused(TopicNotFound):
            await rig.poll(reader, (gone[0], 0))
        assert stays.is_out
