"""Partitions that the log lastingly refuses are stopped, and go on by themselves (C109-C112)."""

from __future__ import annotations

import anyio
import pytest

from tarry.errors import DataError, NotAccepted, TopicNotFound
from tarry.testing import Call, refuse
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, T, items, offsets, opened, places, take
from tests.virtual import virtual

BAD = DataError("cannot be read")


def names_p0(call: Call) -> bool:
    return P0 in [target.partition for target in call.arguments["targets"]]


class TestStopping:
    @rule("C109", "C111")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual()
    async def test_five_refusals_are_nobodys_business(self, partitions: int) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 3)
            rig.script.on("poll", nth=range(1, 6), do=refuse(BAD), where=names_p0)
            async with rig.consumer() as consumer:
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
                assert not rig.reported("partition_stopped")

    @rule("C109", "C111")
    @virtual(seeds=2)
    async def test_a_stop_is_one_error_one_event_and_no_harm_to_the_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            rig.script.every("poll", do=refuse(BAD), where=names_p0)
            async with rig.consumer() as consumer:
                found = await items(consumer, 4, patience=15)
                assert [item for item in found if isinstance(item, DataError)] == [BAD]
                assert consumer.health().stopped == {P0: BAD}
                await anyio.sleep(200)
                await rig.fill(P1, 2)
                with anyio.fail_after(1):
                    assert places(await take(consumer, 2)) == [(1, 3), (1, 4)]
            (event,) = rig.reported("partition_stopped")
            assert event == {"partition": P0, "error": "cannot be read"}
            assert sum("t[0] is stopped: cannot be read" in line for line in caplog.messages) == 1

    @rule("C110", "C111")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual(seeds=2)
    async def test_it_goes_on_by_itself(self, partitions: int, caplog: pytest.LogCaptureFixture) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every("poll", do=refuse(BAD), where=names_p0)
            async with rig.consumer() as consumer:
                assert await items(consumer, 1, patience=15) == [BAD]
                rig.script.remove(refusing)
                await anyio.sleep(1.1)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
                assert consumer.health().ok
            assert rig.reported("partition_resumed") == [{"partition": P0}]
            assert "t[0] is read again" in caplog.messages

    @rule("C110")
    @virtual()
    async def test_one_probe_goes_out_after_each_cool_down(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            polls = rig.script.every("poll", do=refuse(BAD))
            async with rig.consumer(cool_down=10.0) as consumer:
                assert await items(consumer, 1, patience=15) == [BAD]
                hits = polls.hits
                for seconds in (9.9, 20, 40, 60):
                    assert polls.hits == hits
                    await anyio.sleep(seconds)
                    hits += seconds > 10
                await anyio.sleep(1)
                assert polls.hits - hits in (0, 1)

    @rule("C110")
    @virtual(seeds=2)
    async def test_an_empty_topic_that_comes_back_is_found_again(self) -> None:
        async with opened({T: 1, "other": 1}) as rig, rig.consumer(T, "other") as consumer:
            await consumer.ready()
            await rig.log.delete_topic(T)
            (error,) = await items(consumer, 1)
            assert isinstance(error, TopicNotFound)
            await rig.client.create_topic(T)
            await rig.fill(P0, 2)
            with anyio.fail_after(3):
                assert offsets(await take(consumer, 2)) == [0, 1]
            assert consumer.health().ok

    @rule("C110")
    @virtual()
    async def test_a_seek_resumes_at_once(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every("poll", do=refuse(BAD))
            async with rig.consumer(cool_down=3600.0) as consumer:
                assert await items(consumer, 1, patience=15) == [BAD]
                rig.script.remove(refusing)
                await consumer.seek(0, 1)
                with anyio.fail_after(1):
                    assert offsets(await take(consumer, 2)) == [1, 2]
                assert rig.reported("partition_resumed") == [{"partition": P0}]

    @rule("C112")
    @virtual()
    async def test_what_passes_stops_nothing(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every("poll", do=refuse(NotAccepted("not here")))
            async with rig.consumer() as consumer:
                await anyio.sleep(60)
                rig.script.remove(refusing)
                assert consumer.health().stopped == {}
                assert NotAccepted in {type(item) for item in await items(consumer, 4)}
                assert not rig.reported("partition_stopped")

    @rule("C109")
    @virtual()
    async def test_a_start_that_is_lastingly_refused_stops_its_partition_after_six(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            asked = rig.script.every("resolve", do=refuse(BAD))
            async with rig.consumer(cool_down=5.0) as consumer:
                assert await items(consumer, 1, patience=15) == [BAD]
                assert asked.hits == 6
                rig.script.remove(asked)
                await anyio.sleep(5.1)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
