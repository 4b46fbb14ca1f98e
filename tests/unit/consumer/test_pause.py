"""`pause` and `resume`: nothing of a paused partition is delivered, and nothing of it is lost or comes twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions, StaleAssignment
from tarry.consumer.consumer import Consumer
from tarry.errors import ConfigTypeError, FeatureUnavailable, LogUnavailable, NotAccepted, UndecodableMessage
from tarry.testing import delay, lose_reply, refuse
from tarry.types import Message
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, P2, Rig, offsets, opened, owns, settled, start, take
from tests.virtual import virtual

MODES = pytest.mark.parametrize(
    "commit", [AutoCommit.disabled(), AutoCommit.each_batch(), AutoCommit.on_poll()], ids=str
)
POLL = PollOptions(count=25)


def of(messages: list[Message], number: int) -> list[int]:
    """The offsets of one partition, in the order in which they came."""
    return [message.offset for message in messages if message.partition == number]


@asynccontextmanager
async def five_behind_the_hand() -> AsyncGenerator[tuple[Rig, Consumer]]:
    """Commit-on-poll: of ten messages eight were fetched, and so committed; the third is in hand."""
    async with opened(2) as rig:
        await rig.fill(P0, 10)
        async with rig.consumer(commit=AutoCommit.on_poll(), poll=PollOptions(count=8)) as consumer:
            await take(consumer, 3)
            yield rig, consumer


async def read_some(consumer: Consumer, until: int) -> list[Message]:
    """Read on until each of two partitions has brought so many messages."""
    messages: list[Message] = []
    while min(len(of(messages, 0)), len(of(messages, 1))) < until:
        messages.append(await anext(consumer))
    return messages


@rule("K48")
@MODES
@virtual(seeds=2)
async def test_a_paused_partition_keeps_its_messages_and_goes_on_where_it_was(commit: AutoCommit) -> None:
    async with opened(2) as rig:
        await rig.fill(P0, 100)
        await rig.fill(P1, 100)
        async with rig.consumer(commit=commit, poll=POLL) as consumer:
            before = await read_some(consumer, 10)
            consumer.pause(0, cause="the database is full")
            assert consumer.paused == {P0: "the database is full"}
            during = await take(consumer, 20)
            assert of(during, 0) == []
            consumer.resume(0)
            assert consumer.paused == {}
            after = await take(consumer, 200 - len(before) - 20)
            everything = before + during + after
            assert of(everything, 0) == list(range(100))
            assert of(everything, 1) == list(range(100))


@rule("K48")
@MODES
@virtual(seeds=2)
async def test_a_fetch_that_is_out_at_the_pause_is_kept_for_later(commit: AutoCommit) -> None:
    async with opened(1) as rig, anyio.create_task_group() as tasks:
        await rig.fill(P0, 30)
        async with rig.consumer(commit=commit, poll=POLL) as consumer:
            await consumer.ready()
            slow = rig.script.every("poll", do=delay(2.0, reply=True))
            reading = start(tasks, partial(anext, consumer))
            await anyio.sleep(1.0)
            consumer.pause([P0], cause="full")
            await anyio.sleep(60)
            assert reading.outcome == "running"
            rig.script.remove(slow)
            consumer.resume([P0])
            await anyio.sleep(5)
            assert reading.result.offset == 0
            assert offsets(await take(consumer, 29)) == list(range(1, 30))


@rule("K48")
@virtual(seeds=2)
async def test_with_all_paused_a_poll_waits_and_asks_for_nothing() -> None:
    async with opened(2) as rig:
        await rig.fill(P0, 100)
        await rig.fill(P1, 100)
        async with rig.consumer(poll=POLL) as consumer:
            await settled()
            consumer.pause((0, 1), cause="full")
            await settled()
            asked, began = len(rig.calls("poll", "wait_ready")), anyio.current_time()
            batch = await consumer.poll(max_wait=7.0)
            assert (len(batch), batch.reason) == (0, "wait")
            assert anyio.current_time() - began == pytest.approx(7.0)
            await anyio.sleep(600)
            assert len(rig.calls("poll", "wait_ready")) == asked
            assert consumer.health().ok
            consumer.resume((0, 1))
            assert len(await consumer.poll(count=200, min_count=200)) == 200


@virtual()
async def test_what_is_paused_satisfies_no_poll() -> None:
    async with opened(2) as rig:
        await rig.fill(P0, 20)
        await rig.fill(P1, 5)
        async with rig.consumer(poll=POLL) as consumer:
            await settled()
            consumer.pause(0, cause="full")
            batch = await consumer.poll(min_count=10, max_wait=1.0)
            assert (offsets(batch), batch.reason) == ([0, 1, 2, 3, 4], "wait")
            assert {message.topic_partition for message in batch} == {P1}
            assert consumer.statistics().buffered_messages == 20


@rule("C33")
@virtual()
async def test_a_seek_of_a_paused_partition_leaves_it_paused() -> None:
    async with opened(2) as rig:
        await rig.fill(P0, 20)
        async with rig.consumer(poll=POLL) as consumer:
            await take(consumer, 3)
            consumer.pause(0, cause="full")
            await consumer.seek(0, 10)
            assert len(await consumer.poll(max_wait=3.0)) == 0
            assert consumer.paused == {P0: "full"}
            consumer.resume(0)
            assert offsets(await take(consumer, 10)) == list(range(10, 20))


@virtual(seeds=2)
async def test_the_message_in_hand_may_be_finished_and_the_rest_is_not_counted_as_read() -> None:
    async with opened() as rig:
        await rig.fill(P0, 20)
        async with rig.consumer(commit=AutoCommit.finished(), poll=POLL) as consumer:
            await take(consumer, 3)
            consumer.pause(0, cause="full")
            assert len(await consumer.poll(max_wait=1.0)) == 0
            assert consumer.position(0) == 3
        assert rig.stored(P0) == 2
        async with rig.consumer() as consumer:
            assert (await anext(consumer)).offset == 3


@rule("K06")
@MODES
@virtual(seeds=2)
async def test_a_partition_that_was_lost_is_not_paused_when_it_comes_back(commit: AutoCommit) -> None:
    async with opened(2) as rig:
        await rig.fill(P0, 30)
        await rig.fill(P1, 30)
        async with rig.member(commit=commit, poll=POLL) as first:
            assert await owns(first, 2) == {P0, P1}
            await first.ready()
            first.pause([0, 1], cause="full")
            async with rig.member(poll=POLL) as second:
                (gone,) = await owns(second, 1)
                assert list(first.paused) == [at for at in (P0, P1) if at != gone]
            assert await owns(first, 2) == {P0, P1}
            assert list(first.paused) == [at for at in (P0, P1) if at != gone]
            assert {message.topic_partition for message in await take(first, 30)} == {gone}


@pytest.mark.parametrize("cause", ["", None, 3])
@virtual()
async def test_a_pause_needs_a_cause_and_partitions_of_ours(cause: Any) -> None:
    async with opened(2) as rig, rig.consumer() as consumer:
        with pytest.raises(ConfigTypeError, match="say why, as a text"):
            consumer.pause(0, cause=cause)
        with pytest.raises(StaleAssignment, match="t\\[2\\] is not read by this consumer"):
            consumer.pause([P0, P2], cause="full")
        consumer.resume(0)
        assert consumer.paused == {}


@pytest.mark.parametrize("given", ["t", ["t"], None, 1.5, [P0, None], ("t", 0), True, [False]])
@virtual()
async def test_what_names_no_partition_is_refused_as_that(given: Any) -> None:
    async with opened() as rig, rig.consumer() as consumer:
        for call in partial(consumer.pause, cause="full"), consumer.resume:
            with pytest.raises(ConfigTypeError, match="a partition is an int or a TopicPartition, not "):
                call(given)
        assert consumer.paused == {}


@pytest.mark.parametrize("given", [("t",), ("t", 0, 1), (0, "t"), ("t", "0"), True, None])
@virtual()
async def test_nor_is_it_sought(given: Any) -> None:
    async with opened() as rig, rig.consumer() as consumer:
        with pytest.raises(ConfigTypeError, match="partition is an int"):
            await consumer.seek(given, 0)


@rule("K48", "C27")
@MODES
@virtual(seeds=2)
async def test_a_partition_that_goes_on_before_it_has_a_position_is_not_fetched_without_one(commit: AutoCommit) -> None:
    """A fetch from the first message on would commit what was never delivered."""
    async with opened(2) as rig:
        await rig.fill(P0, 5)
        await rig.fill(P1, 5)
        rig.script.every("resolve", do=delay(3.0))
        async with rig.consumer(commit=commit, poll=POLL) as consumer, anyio.create_task_group() as tasks:
            reading = start(tasks, partial(take, consumer, 10))
            consumer.pause([0, 1], cause="full")
            await anyio.sleep(1.0)
            consumer.resume([0, 1])
            await anyio.sleep(1.0)
            assert rig.calls("poll") == []
            await anyio.sleep(8.0)
            assert of(reading.result, 1) == list(range(5))


@rule("K01", "K48")
@virtual(seeds=2)
async def test_what_was_committed_of_a_paused_partition_is_brought_back_before_the_next_batch() -> None:
    """Or a hard kill would lose both."""
    async with five_behind_the_hand() as (rig, consumer):
        assert rig.stored(P0) == 7
        consumer.pause(0, cause="full")
        await rig.fill(P1, 4)
        assert (await anext(consumer)).topic_partition == P1
        assert rig.stored(P0) in (1, 2)
        assert rig.stored(P1) == 3
        late = [call.operation for call in rig.script.calls if call.operation in ("poll", "store_offset")]
        assert late == ["poll", "store_offset", "poll"]
        consumer.resume(0)
        rest = await take(consumer, 10)
        assert of(rest, 0) == list(range(3, 10))


@rule("K01", "K48", "C91")
@virtual(seeds=2)
async def test_while_it_cannot_be_brought_back_nothing_more_is_committed() -> None:
    async with five_behind_the_hand() as (rig, consumer):
        refused = rig.script.every("store_offset", do=refuse(NotAccepted("not now")))
        consumer.pause(0, cause="full")
        await rig.fill(P1, 4)
        with anyio.move_on_after(2.0):
            await anext(consumer)
            pytest.fail("a second batch was committed")
        assert rig.stored(P1) is None
        assert 3 <= len(rig.calls("store_offset")) <= 40
        rig.script.remove(refused)
        assert (await anext(consumer)).topic_partition == P1
        assert rig.stored(P0) == 2


@rule("K48")
@virtual(seeds=2)
async def test_what_can_never_be_brought_back_stays_and_the_reader_is_told() -> None:
    async with five_behind_the_hand() as (rig, consumer):
        rig.script.on("store_offset", do=refuse(FeatureUnavailable("read only")))
        consumer.pause(0, cause="full")
        await rig.fill(P1, 4)
        with pytest.raises(FeatureUnavailable):
            await anext(consumer)
        assert (await anext(consumer)).topic_partition == P1
        consumer.resume(0)
        assert of(await take(consumer, 10), 0) == list(range(3, 10))


@rule("K48", "C61")
@virtual(seeds=2)
async def test_a_committing_fetch_of_unknown_fate_is_brought_back_too() -> None:
    async with opened(2) as rig, anyio.create_task_group() as tasks:
        await rig.fill(P0, 10)
        async with rig.consumer(commit=AutoCommit.on_poll(), poll=PollOptions(count=4)) as consumer:
            rig.script.on("poll", nth=2, do=lose_reply(after=0.5))
            reading = start(tasks, partial(take, consumer, 14))
            await anyio.sleep(0.2)
            consumer.pause(0, cause="full")
            await rig.fill(P1, 4)
            await anyio.sleep(20.0)
            assert (rig.stored(P0), rig.stored(P1)) == (3, 3)
            consumer.resume(0)
            await anyio.sleep(5.0)
            assert of(reading.result, 0) == list(range(10))
            assert of(reading.result[4:8], 1) == list(range(4))


@rule("K48", "C91")
@virtual(seeds=2)
async def test_a_poll_ends_in_time_while_it_cannot_be_brought_back() -> None:
    async with five_behind_the_hand() as (rig, consumer):
        refused = rig.script.every("store_offset", do=refuse(NotAccepted("not now")))
        consumer.pause(0, cause="full")
        await rig.fill(P1, 4)
        with anyio.fail_after(5.0):
            batch = await consumer.poll(max_wait=1.0)
        assert (len(batch), batch.reason) == (0, "wait")
        assert len(rig.calls("store_offset")) <= 20
        rig.script.remove(refused)


@rule("C73")
@virtual(seeds=2)
async def test_a_short_pause_of_a_quiet_partition_leaves_the_wait_that_names_it() -> None:
    async with opened(2) as rig, rig.consumer() as consumer:
        await consumer.ready()
        await anyio.sleep(1)
        (wait,) = rig.calls("wait_ready")
        consumer.pause(0, cause="test")
        await settled()
        consumer.resume(0)
        await anyio.sleep(1)
        assert rig.calls("wait_ready") == [wait]
        await rig.fill(P0, 1)
        with anyio.fail_after(0.1):
            assert offsets(await take(consumer, 1)) == [0]


@rule("K48", "C6")
@virtual(seeds=2)
async def test_a_poll_ends_in_time_when_a_pause_ends_while_nobody_is_known_to_lead() -> None:
    async with opened(2) as rig, rig.consumer(poll=PollOptions(max_wait=0.5)) as consumer:
        await consumer.ready()
        for operation in ("wait_ready", "poll", "route"):
            rig.script.every(operation, do=refuse(LogUnavailable("away")))
        await anyio.sleep(1.0)
        consumer.pause(0, cause="full")
        consumer.resume(0)
        begun = anyio.current_time()
        assert list(await consumer.poll()) == []
        assert anyio.current_time() - begun <= 0.6


@rule("K48", "C111")
@virtual()
async def test_a_resume_of_what_is_stopped_holds_up_nobody() -> None:
    async with opened(2) as rig:
        await rig.append(P0, b"no number")
        async with rig.typed(int) as consumer:
            with pytest.raises(UndecodableMessage):
                await anext(consumer)
            consumer.resume([P0, P1])
            assert await consumer.poll(max_wait=1.0) == []
            assert anyio.current_time() == pytest.approx(1.0, abs=0.5)
            await rig.append(P1, b"7")
            with anyio.fail_after(5.0):
                assert (await anext(consumer)).value == 7
            assert consumer.health().stopped.keys() == {P0}


@rule("K89", "K101")
@virtual(seeds=10)
async def test_a_poll_behind_a_pause_ends_in_time_while_a_request_is_being_withdrawn() -> None:
    """In some orders of the same turns the poll learns that nothing more comes while the request is still out."""
    async with opened() as rig, rig.consumer() as consumer:
        await consumer.ready()
        await anyio.sleep(1.0)
        await rig.fill(P0, 3)
        batch = await consumer.poll(count=50, min_count=46, max_bytes=100, max_wait=0.0)
        assert batch.reason == "bytes"
        consumer.pause(0, cause="full")
        began = anyio.current_time()
        assert await consumer.poll(max_wait=0.0) == []
        assert anyio.current_time() == pytest.approx(began, abs=0.01)
