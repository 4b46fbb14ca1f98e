"""A producer takes over that its topic has more partitions (K56), or is another one (K57)."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from tarry.config import TopicOptions
from tarry.errors import CapacityExceeded, ConfigError, LogUnavailable, OutcomeUnknown, SendFailed, TopicNotFound
from tarry.producer.producer import Outgoing
from tarry.producer.sharding import partition_of
from tarry.testing import Action, delay, lose_reply, refuse
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Rig, T, opened
from tests.virtual import virtual

KEYS = [str(number).encode() for number in range(40)]
CHOICES: dict[tuple[int, bytes | None], int] = {(5, b"0"): 0, (5, b"4"): 4}
"""What a partitioner chooses that knows topics of 5 partitions alone."""


@rule("K56")
@virtual()
async def test_keys_and_turns_reach_the_new_partitions_a_short_time_later() -> None:
    async with opened(2) as rig, rig.client.producer(T, refresh_interval=5.0) as producer:
        await rig.client.grow_topic(T, 5)
        await anyio.sleep(5)
        receipts = await producer.send_many([Outgoing(b"v", key=key) for key in KEYS])
        assert [receipt.partition for receipt in receipts] == [partition_of(key, 5) for key in KEYS]
        turns = {(await producer.send(b"v")).partition for _ in range(5)}
        assert turns == set(range(5))


@rule("K56")
@virtual()
async def test_a_partition_that_is_named_is_looked_for_at_once() -> None:
    async with opened(2) as rig, rig.client.producer(T) as producer:
        await rig.client.grow_topic(T, 5)
        assert (await producer.send(b"v", partition=4)).partition == 4
        await rig.client.grow_topic(T, 6)
        assert (await producer.send_many([Outgoing(b"v", partition=5)]))[0].partition == 5
        with pytest.raises(ConfigError, match="has 6 partitions, numbered 0 to 5"):
            await producer.send(b"v", partition=6)


@rule("K56")
@virtual()
async def test_many_sends_ask_once_in_a_while() -> None:
    async with opened(2) as rig, rig.client.producer(T, refresh_interval=5.0) as producer:
        rig.script.calls.clear()
        for _ in range(10):
            await anyio.sleep(1.2)
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(producer.send, b"v")
        assert rig.script.count("describe_topic") == 2


@rule("K56")
@virtual()
async def test_a_log_that_does_not_say_costs_no_send() -> None:
    async with opened(2) as rig, rig.client.producer(T, refresh_interval=1.0) as producer:
        rig.script.every("describe_topic", do=refuse(LogUnavailable("away")))
        await anyio.sleep(2)
        await producer.send(b"v")
        await rig.log.delete_topic(T)
        await anyio.sleep(2)
        with pytest.raises(TopicNotFound):
            await producer.send(b"v")


@rule("K56", "P11")
@pytest.mark.parametrize("does", [refuse(CapacityExceeded("not now")), delay(60.0)], ids=["refuses", "is silent"])
@virtual()
async def test_a_partition_that_may_be_there_by_now_is_no_mistake_of_the_user(does: Action) -> None:
    """What he named may be right: the log does not say, and he may try again."""
    async with opened(2) as rig, rig.client.producer(T) as producer:
        await rig.client.grow_topic(T, 3)
        asked = rig.script.every("describe_topic", do=does)
        with pytest.raises((CapacityExceeded, LogUnavailable)) as caught:
            await producer.send(b"v", partition=2)
        assert caught.value.applied == "no"
        assert caught.value.retry == "back off"
        rig.script.remove(asked)
        assert (await producer.send(b"v", partition=2)).partition == 2


@pytest.mark.parametrize("is_refused", [False, True])
@rule("K56")
@virtual()
async def test_sends_that_begin_while_one_looks_do_not_overtake_it(is_refused: bool) -> None:
    async with opened(1) as rig, rig.client.producer(T, refresh_interval=1.0) as producer:
        does = refuse(LogUnavailable("away")) if is_refused else delay(0.5)
        rig.script.every("describe_topic", do=does)
        await anyio.sleep(2)
        order: list[int] = []

        async def send(number: int) -> None:
            order.append(number)
            offsets[number] = (await producer.send(b"v")).offset

        offsets: dict[int, int] = {}
        rig.script.calls.clear()
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(send, number)
            await anyio.sleep(0.1)
            for number in range(5, 8):
                tasks.start_soon(send, number)
        assert [offsets[number] for number in order] == list(range(8))
        assert rig.script.count("describe_topic") == 1


@rule("K56")
@virtual()
async def test_a_look_that_is_cancelled_is_made_by_the_next_send() -> None:
    async with opened(2) as rig, rig.client.producer(T, refresh_interval=5.0) as producer:
        await rig.client.grow_topic(T, 5)
        await anyio.sleep(5)
        rig.script.every("describe_topic", do=delay(0.5))
        with anyio.move_on_after(0.1):
            await producer.send(b"v")
        receipts = await producer.send_many([Outgoing(b"v", key=key) for key in KEYS])
        assert [receipt.partition for receipt in receipts] == [partition_of(key, 5) for key in KEYS]


@rule("K56")
@virtual()
async def test_a_log_that_is_silent_about_it_holds_no_send_up_for_long() -> None:
    async with opened(2) as rig, rig.client.producer(T, refresh_interval=5.0) as producer:
        rig.script.every("describe_topic", do=delay(60.0))
        await anyio.sleep(6)
        with anyio.fail_after(1.1):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(producer.send, b"v")
        with anyio.fail_after(0.1):
            await producer.send(b"v")


class TestCreatedAgain:
    """The topic was deleted and created again with fewer partitions: what a producer knows of it is wrong (K57)."""

    @rule("K57")
    @virtual(seeds=2)
    async def test_keyed_sends_go_to_the_partitions_that_there_are_now(self) -> None:
        async with opened(5) as rig, rig.client.producer(T) as producer:
            await producer.send_many([Outgoing(b"old", key=key) for key in KEYS])
            await recreate(rig, 2)
            async with anyio.create_task_group() as tasks:
                for key in KEYS[:20]:
                    tasks.start_soon(partial(producer.send, b"v", key=key))
            receipts = await producer.send_many([Outgoing(b"v", key=key) for key in KEYS])
            assert [receipt.partition for receipt in receipts] == [partition_of(key, 2) for key in KEYS]
            assert rig.script.count("describe_topic") == 2, "at the start, and once for all of them"
            assert sum(rig.end(at) for at in (P0, P1)) == 60

    @rule("K57", "P11")
    @virtual(seeds=2)
    async def test_of_many_each_is_sent_once(self) -> None:
        async with opened(5) as rig, rig.client.producer(T) as producer:
            await recreate(rig, 2)
            receipts = await producer.send_many([Outgoing(b"v", key=key) for key in KEYS])
            assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 40
            assert sum(rig.end(at) for at in (P0, P1)) == 40

    @rule("K57")
    @virtual()
    async def test_a_partition_that_was_named_is_not_another_one(self) -> None:
        async with opened(5) as rig, rig.client.producer(T) as producer:
            await recreate(rig, 2)
            with pytest.raises(ConfigError, match="has 2 partitions"):
                await producer.send(b"v", partition=4)
            await recreate(rig, 1)
            with pytest.raises(SendFailed, match="has 1 partitions") as failed:
                await producer.send_many([Outgoing(b"v", partition=0), Outgoing(b"v", partition=1)])
            assert (len(failed.value.receipts), len(failed.value.unsent)) == (1, 1)

    @rule("K57", "P11")
    @virtual()
    async def test_what_was_written_is_told_when_the_partitioner_does_not_get_on(self) -> None:
        async with (
            opened(5) as rig,
            rig.client.producer(T, partitioner=lambda key, _, count: CHOICES[count, key]) as each,
        ):
            await recreate(rig, 2)
            with pytest.raises(SendFailed) as failed:
                await each.send_many([Outgoing(b"v", key=b"0"), Outgoing(b"v", key=b"4")])
            assert isinstance(failed.value.__cause__, KeyError)
            assert len(failed.value.receipts) == 1
            assert failed.value.unsent == [Outgoing(b"v", key=b"4")]

    @rule("K57")
    @virtual()
    async def test_a_topic_that_is_gone_is_not_found(self) -> None:
        async with opened(5) as rig, rig.client.producer(T) as producer:
            await rig.log.delete_topic(T)
            with pytest.raises(TopicNotFound):
                await producer.send(b"v", key=b"k")
            assert rig.script.count("append") == 1

    @rule("K57", "K74")
    @virtual()
    async def test_what_may_have_been_applied_is_not_sent_again(self) -> None:
        async with opened(5) as rig, rig.client.producer(T) as producer:
            rig.script.on("append", do=lose_reply())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(recreate_at, rig, 0.01)
                with pytest.raises(OutcomeUnknown, match="when it was tried again: topic 't' has no partition"):
                    await producer.send(b"v", partition=4)
            assert sum(rig.end(at) for at in (P0, P1)) == 0


async def recreate(rig: Rig, partitions: int) -> None:
    await rig.log.delete_topic(T)
    await rig.log.create_topic(T, TopicOptions(partitions=partitions), exist_ok=False)


async def recreate_at(rig: Rig, seconds: float) -> None:
    await anyio.sleep(seconds)
    await recreate(rig, 2)
