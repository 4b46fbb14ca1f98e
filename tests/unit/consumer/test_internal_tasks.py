"""An internal task that dies is the reader's error within a second, never a silent wait (K07)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tarry.config import AutoCommit
from tarry.consumer.consumer import Consumer
from tarry.errors import ConsumerFailed
from tarry.testing import Operation, refuse
from tests.marks import rule
from tests.unit.consumer.rig import P0, Rig, opened, settled, start, take
from tests.virtual import virtual

READS: dict[str, Callable[[Consumer], Awaitable[Any]]] = {
    "anext": anext,
    "poll": lambda consumer: consumer.poll(max_wait=600.0),
    "consume": lambda consumer: consumer.consume(lambda _: None),
}
BUG = RuntimeError("x")


def loops(rig: Rig, mode: str) -> Consumer:
    """A consumer of two partitions that has every loop there is in its mode."""
    match mode:
        case "group":
            return rig.member(commit=AutoCommit.finished(0.1), heartbeat_interval=0.1)
        case "after_each":
            return rig.consumer(commit=AutoCommit.after_each())
        case "each_message":
            return rig.consumer(commit=AutoCommit.each_message())
        case "on_poll":
            return rig.consumer(commit=AutoCommit.on_poll())
        case _:
            return rig.consumer(commit=AutoCommit.finished(0.1))


async def told(consumer: Consumer, read: str) -> ConsumerFailed:
    """What a reader gets, within a second."""
    with pytest.raises(ConsumerFailed, match=r"an internal task.*open a new consumer") as caught, anyio.fail_after(1):
        while True:
            await READS[read](consumer)
    return caught.value


class TestBeforeTheFirstMessage:
    @rule("K07")
    @pytest.mark.parametrize("read", READS)
    @pytest.mark.parametrize(
        ("mode", "operation"),
        [
            ("finished", "stored_offset"),
            ("finished", "resolve"),
            ("finished", "route"),
            ("finished", "poll"),
            ("finished", "wait_ready"),
            ("on_poll", "poll"),
            ("group", "changed"),
            ("group", "resolve"),
        ],
    )
    @virtual()
    async def test_who_asks_the_log(self, mode: str, operation: Operation, read: str) -> None:
        async with opened(2) as rig:
            rig.script.on(operation, do=refuse(BUG))
            if operation == "poll":
                await rig.fill(P0, 1)
            consumer = loops(rig, mode)
            async with consumer:
                error = await told(consumer, read)
                assert error.__cause__ is BUG
                assert not consumer.health().ok
                assert consumer.health().last_error is error

    @rule("K07")
    @virtual()
    async def test_one_partition_alone(self) -> None:
        async with opened() as rig:
            rig.script.on("poll", do=refuse(BUG))
            async with rig.consumer() as consumer:
                assert (await told(consumer, "anext")).__cause__ is BUG


class TestWhileItRuns:
    @rule("K07")
    @pytest.mark.parametrize("mode", ["finished", "each_message", "after_each", "group"])
    @virtual(seeds=2)
    async def test_the_committer(self, mode: str) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            rig.script.on("store_offset", do=refuse(BUG))
            consumer = loops(rig, mode)
            async with consumer:
                if mode == "after_each":
                    assert (await told(consumer, "consume")).__cause__ is BUG
                    return
                await take(consumer, 3)
                assert (await told(consumer, "anext")).__cause__ is BUG

    @rule("K07")
    @virtual(seeds=2)
    async def test_the_heartbeat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def touch(_: object) -> None:
            raise BUG

        async with opened(2) as rig, loops(rig, "group") as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            reader = start(tasks, lambda: anext(consumer))
            await settled()
            monkeypatch.setattr("tarry.testing.scripted.ScriptedSession.touch", touch)
            with anyio.fail_after(1):
                await reader.done.wait()
            assert isinstance(reader.error, ConsumerFailed)
            assert reader.error.__cause__ is BUG

    @rule("K07")
    @virtual(seeds=2)
    async def test_the_heartbeat_of_one_that_shuts_down_ends_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def touch(_: object) -> None:
            raise BUG

        async with opened() as rig:
            await rig.fill(P0, 3)
            async with rig.member(commit=AutoCommit.finished(60.0)) as consumer:
                await take(consumer, 3)
                monkeypatch.setattr("tarry.testing.scripted.ScriptedSession.touch", touch)
                assert (await consumer.shutdown()).committed == {P0: 1}
            assert rig.reported("heartbeat_failed")
            assert (await rig.client.group("crew")).members == ()

    @rule("K07")
    @virtual(seeds=2)
    async def test_who_was_parked_at_the_log(self) -> None:
        async with opened(2) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            reader = start(tasks, lambda: anext(consumer))
            await settled()
            rig.script.every("poll", do=refuse(BUG))
            await rig.fill(P0, 1)  # ends the wait; the poll that follows dies
            with anyio.fail_after(1):
                await reader.done.wait()
            assert isinstance(reader.error, ConsumerFailed)
            await settled()
            assert rig.pump.parked == 0
            with anyio.fail_after(1), pytest.raises(ConsumerFailed):
                await consumer.ready()

    @rule("K07")
    @virtual(seeds=2)
    async def test_it_ends_in_order_all_the_same(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.finished(1.0)) as consumer:
                await take(consumer, 3)
                rig.script.every("wait_ready", do=refuse(BUG))
                consumer.pause(P0, cause="to have the wait replaced")
                consumer.resume(P0)
                await anyio.sleep(6)
                error = await told(consumer, "anext")
                assert error.__cause__ is BUG
                report = await consumer.shutdown()
                assert report.committed[P0] == 2
            assert rig.stored(P0) == 2
