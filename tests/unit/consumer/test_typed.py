"""Typed values: what is decoded, and what a message that does not decode leaves of everything around it."""

from __future__ import annotations

import copy
import json
import pickle
from array import array
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from pydantic import BaseModel

from tarry import AutoCommit, Batch, ConfigTypeError, Consumer, DataError, Message, PollOptions, UndecodableMessage
from tarry.consumer.typed import PART_MESSAGES
from tarry.errors import NotAccepted, NotAMember, StaleAssignment, TarryError
from tarry.testing import delay, refuse
from tarry.types import RecordBatch, TopicPartition
from tests.marks import named, rule
from tests.unit.consumer.rig import P0, P1, Rig, items, offsets, opened, places, start, take
from tests.virtual import virtual

MODES = pytest.mark.parametrize("commit", [AutoCommit.finished(0.1), AutoCommit.on_poll()], ids=str)


class Model(BaseModel):
    n: int


class Record(msgspec.Struct):
    n: int


class Upper:
    """A codec that notes its calls, and raises what it is told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[bytes] = []
        self.error = error

    def decode(self, data: bytes) -> str:
        self.calls.append(data)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return data.decode().upper()


class Later:
    """No codec: what it returns is no value."""

    async def decode(self, data: bytes) -> bytes:
        return data


class LaterStill:
    """Nor is this one."""

    def decode(self, data: bytes) -> Generator[bytes]:
        yield data


async def damage(rig: Rig) -> None:
    """Append what is no record."""
    await rig.log.append(P0, RecordBatch(array("I", [3]), b"\x93\xc1\xc1", 0, 0))


Brought = tuple[list[tuple[int, int]], str]


async def polls(consumer: Consumer[Any], times: int) -> list[Brought | DataError]:
    """What so many polls bring: places and the reason, or an error."""
    found: list[Brought | DataError] = []
    for _ in range(times):
        try:
            batch = await consumer.poll()
        except DataError as error:
            found.append(error)
        else:
            found.append((places(batch), batch.reason))
    return found


class TestValues:
    @pytest.mark.parametrize(
        ("value_type", "value"), [(Model, Model(n=1)), (Record, Record(n=1)), (dict[str, int], {"n": 1})], ids=str
    )
    @virtual()
    async def test_they_are_decoded_for_loops_and_polls(self, value_type: object, value: object) -> None:
        async with opened() as rig:
            await rig.append(P0, b'{"n": 1}', None, b'{"n": 1}')
            async with rig.typed(value_type) as consumer:
                assert [message.value for message in await take(consumer, 2)] == [value, None]
                batch = await consumer.poll()
                assert [message.value for message in batch] == [batch[0].value] == [value]
                assert batch[0] is batch[0]

    @virtual()
    async def test_bytes_are_what_a_consumer_gives_anyway(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"\xff", None)
            async with rig.typed(bytes) as consumer:
                assert [message.value for message in await take(consumer, 2)] == [b"\xff", None]

    @rule("K76")
    @virtual()
    async def test_a_decoder_gets_no_call_for_none_but_one_for_empty_bytes(self) -> None:
        async with opened() as rig:
            await rig.append(P0, None, b"", None, b"x")
            codec = Upper()
            async with rig.typed(codec) as consumer:
                assert [message.value for message in await take(consumer, 4)] == [None, "", None, "X"]
            assert codec.calls == [b"", b"x"]

    @virtual()
    async def test_a_message_shows_its_value_whatever_it_is(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b'{"n": 1}')
            async with rig.typed(Model) as consumer:
                assert repr(await anext(consumer)) == "<Message t[0]:0 value=Model(n=1)>"

    @rule("K103")
    @pytest.mark.parametrize(
        "value_type",
        [None, 3, "int", b"x", json, lambda: 3, {}, [int], Model(n=1), Record(n=1), Upper, list[Record]],
        ids=named,
    )
    @virtual()
    async def test_what_is_no_type_is_refused(self, value_type: Any) -> None:
        async with opened() as rig:
            with pytest.raises(ConfigTypeError) as refused:
                rig.typed(value_type)
            assert f"value_type={value_type!r}: pass bytes, a pydantic model" in str(refused.value)

    @rule("K103")
    @virtual()
    async def test_nor_a_codec_that_does_not_decode_at_once(self) -> None:
        async with opened() as rig:
            for codec in (Later(), LaterStill()):
                with pytest.raises(ConfigTypeError) as refused:
                    rig.typed(codec)
                assert f"value_type={codec!r}: its decode has to return its result at once" in str(refused.value)


class TestWhatDoesNotDecode:
    @rule("C23")
    @virtual()
    async def test_it_is_one_error_in_its_place_and_is_skipped_by_a_seek(self) -> None:
        async with opened(2) as rig:
            await rig.append(P0, b"0", b"1", b"oops", b"3")
            async with rig.typed(int, commit=AutoCommit.finished(0.1)) as consumer:
                found = await items(consumer, 3)
                error = found[2]
                assert [getattr(item, "value", None) for item in found[:2]] == [0, 1]
                assert isinstance(error, UndecodableMessage)
                assert (error.topic, error.partition, error.offset, error.raw) == ("t", 0, 2, b"oops")
                assert "t[0] offset 2: a value of 4 bytes does not decode (ValidationError: 1 validation" in str(error)
                assert "seek(TopicPartition('t', 0), 3)" in str(error)
                assert isinstance(error.__cause__, ValueError)
                assert consumer.position(P0) == 2
                assert consumer.health().stopped == {P0: error}
                await rig.append(P1, b"7")
                assert (await anext(consumer)).value == 7  # the other partition goes on; the error is not said again
                await consumer.seek(0, error.offset + 1)
                assert (await anext(consumer)).value == 3
                assert consumer.health().ok

    @virtual()
    async def test_it_keeps_the_raw_bytes_when_it_is_copied_and_pickled(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"oops")
            async with rig.typed(int) as consumer:
                with pytest.raises(UndecodableMessage) as raised:
                    await anext(consumer)
        for again in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
            assert (again.raw, again.offset, str(again)) == (b"oops", 0, str(raised.value))

    @virtual()
    async def test_a_long_complaint_of_the_decoder_is_cut(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"x")
            async with rig.typed(Upper(ValueError("no\n" * 1000))) as consumer:
                with pytest.raises(UndecodableMessage) as raised:
                    await anext(consumer)
        assert len(str(raised.value)) < 400
        assert len(str(raised.value.__cause__)) == 3000

    @pytest.mark.parametrize(
        "commit", [AutoCommit.finished(0.1), AutoCommit.on_poll(), AutoCommit.after_each()], ids=str
    )
    @virtual()
    async def test_nothing_stored_covers_it(self, commit: AutoCommit) -> None:
        async with opened() as rig:
            await rig.append(P0, b"0", b"1", b"oops", b"3")
            async with rig.typed(int, commit=commit) as consumer:
                for _ in range(2):  # every partition is stopped: said each time
                    with pytest.raises(UndecodableMessage):
                        await consumer.consume(lambda _: None, on_error="skip")
                assert (await consumer.shutdown()).committed == {P0: 1}
            assert rig.stored(P0) == 1

    @MODES
    @virtual()
    async def test_a_poll_delivers_what_comes_before_it_first(self, commit: AutoCommit) -> None:
        async with opened(2) as rig:
            await rig.append(P0, b"0", b"oops", b"2")
            await rig.append(P1, b"0", b"1")
            async with rig.typed(int, commit=commit, poll=PollOptions(max_wait=1)) as consumer:
                seen: list[tuple[int, int]] = []
                errors = 0
                for _ in range(4):
                    try:
                        batch = await consumer.poll()
                    except UndecodableMessage as error:
                        errors += 1
                        assert (error.partition, error.offset) == (0, 1)  # noqa: PT017
                        assert (0, 0) in seen
                    else:
                        seen += places(batch)
                assert (sorted(seen), errors) == ([(0, 0), (1, 0), (1, 1)], 1)
                await consumer.seek(0, 2)
                assert offsets(await consumer.poll()) == [2]

    @pytest.mark.parametrize("read", ["anext", "poll"])
    @virtual()
    async def test_what_is_no_exception_passes_and_loses_nothing(self, read: str) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a", b"b")
            async with rig.typed(Upper(KeyboardInterrupt())) as consumer:
                with pytest.raises(KeyboardInterrupt):
                    await (anext(consumer) if read == "anext" else consumer.poll())
                assert [message.value for message in await take(consumer, 2)] == ["A", "B"]

    @virtual()
    async def test_a_cancelled_poll_in_front_of_it_loses_nothing(self) -> None:
        async with opened() as rig, rig.typed(int) as consumer:
            await rig.append(P0, b"0", b"oops")
            with anyio.move_on_after(1) as limit:
                await consumer.poll(min_count=5, max_wait=60)
            assert limit.cancelled_caught
            assert await polls(consumer, 1) == [([(0, 0)], "count")]
            assert [type(item) for item in await items(consumer, 1)] == [UndecodableMessage]

    @rule("C33", "I1")
    @virtual()
    async def test_from_one_to_another_by_a_seek_what_was_in_hand_comes_again(self) -> None:
        async with opened() as rig:
            for value in (b"0", b"1", b"2", b"bad", b"4", b"5", b"bad"):
                await rig.append(P0, value)
            async with rig.consumer(value_type=int, commit=AutoCommit.on_poll()) as consumer:
                await take(consumer, 3)
                await consumer.seek(0, 6)
                with pytest.raises(UndecodableMessage):
                    await anext(consumer)
                await anyio.sleep(1)
            assert rig.stored(P0) == 1


class TestDamagedRecords:
    @rule("C23")
    @pytest.mark.parametrize("value_type", [bytes, int])
    @virtual()
    async def test_in_a_loop_one_stops_its_partition_and_nobody_elses(self, value_type: object) -> None:
        async with opened(2) as rig:
            await rig.append(P0, b"0")
            await damage(rig)
            await rig.append(P0, b"2")
            await rig.append(P1, b"0", b"1", b"2")
            async with rig.typed(value_type, poll=PollOptions(count=1)) as consumer:
                found = await items(consumer, 5)
                assert sorted(places([item for item in found if isinstance(item, Message)])) == [
                    (0, 0),
                    *[(1, offset) for offset in range(3)],
                ]
                (error,) = [item for item in found if isinstance(item, DataError)]
                assert "t[0] offsets 1 to 1: not valid records" in str(error)
                await consumer.seek(0, 2)
                assert places([await anext(consumer)]) == [(0, 2)]

    @rule("C23")
    @MODES
    @virtual()
    async def test_in_a_poll_one_stops_its_partition_and_nobody_elses(self, commit: AutoCommit) -> None:
        async with opened(2) as rig:
            await damage(rig)
            await rig.append(P0, b"1")
            await rig.append(P1, b"0", b"1", b"2")
            async with rig.typed(int, commit=commit, poll=PollOptions(max_wait=1)) as consumer:
                found = await polls(consumer, 5)
                brought = [place for item in found if isinstance(item, tuple) for place in item[0]]
                assert brought == [(1, 0), (1, 1), (1, 2)]  # nothing lost, nothing twice
                (error,) = [item for item in found if isinstance(item, DataError)]  # once
                assert "t[0] offsets 0 to " in str(error)
                assert "not valid records" in str(error)
                assert list(consumer.health().stopped) == [P0]
                assert found[-1] == ([], "wait")
                await rig.append(P1, b"3")
                assert await polls(consumer, 1) == [([(1, 3)], "count")]
                await consumer.seek(0, 1)
                assert await polls(consumer, 1) == [([(0, 1)], "count")]

    @virtual()
    async def test_behind_others_in_a_poll_it_waits_for_its_turn(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"0")
            async with rig.typed(int, poll=PollOptions(count=1)) as consumer:
                await damage(rig)
                await anyio.sleep(1)
                batch = await consumer.poll(count=10, min_count=2)
                assert (places(batch), batch.reason) == ([(0, 0)], "error")
                with pytest.raises(DataError, match="offsets 1 to 1"):
                    await consumer.poll()
                with pytest.raises(DataError, match="offsets 1 to 1"):  # every partition is stopped: said each time
                    await consumer.poll()
                await rig.append(P0, b"2")
                await consumer.seek(0, 2)
                assert (await consumer.poll())[0].value == 2


class TestLostPartitions:
    @rule("C36")
    @pytest.mark.parametrize(("bad", "value_type"), [("value", int), ("record", int), ("record", bytes)])
    @virtual(seeds=2)
    async def test_what_does_not_decode_of_a_lost_partition_is_named_and_the_rest_is_delivered(
        self, bad: str, value_type: object
    ) -> None:
        """It was committed for this member and nobody else reads it; and there is nothing that could be sought."""
        async with opened(1, session_timeout=2.0) as rig:
            await rig.append(P0, b"0")
            if bad == "value":
                await rig.append(P0, b"oops")
            else:
                await damage(rig)
            await rig.append(P0, b"2")
            typed: Consumer[Any] = rig.member(
                value_type=value_type, commit=AutoCommit.on_poll(), heartbeat_interval=1e3, buffer_messages=3
            )
            async with typed as consumer:
                found = await self.read_after_the_loss(rig, consumer)
                assert rig.reported("evicted")
                if bad == "value":
                    assert [getattr(item, "offset", None) for item in found] == [0, 1, 2]
                    assert isinstance(found[1], UndecodableMessage)
                else:
                    assert [type(item) for item in found] == [Message, DataError]
                lost = [(event["first"], event["last"]) for event in rig.reported("possibly_lost")]
                assert lost == ([(1, 1)] if bad == "value" else [(1, 2)])
                assert consumer.health().stopped == {}

    @rule("C36")
    @pytest.mark.parametrize("refusal", [NotAccepted, NotAMember, StaleAssignment, DataError])
    @virtual(seeds=2)
    async def test_what_was_dropped_behind_it_and_not_brought_back_is_named(self, refusal: type[TarryError]) -> None:
        """The store that should bring it back does not come through before the partition is lost without notice."""
        async with opened(1, session_timeout=2.0) as rig:
            for value in (b"0", b"oops", b"2", b"3"):
                await rig.append(P0, value)
            typed: Consumer[Any] = rig.member(
                value_type=int, commit=AutoCommit.on_poll(), heartbeat_interval=1e3, buffer_messages=4
            )
            async with typed as consumer:
                rig.script.every("store_offset", do=refuse(refusal("not now")))
                assert (await anext(consumer)).value == 0
                with pytest.raises(UndecodableMessage):
                    await anext(consumer)
                await anyio.sleep(4.0)
                assert rig.reported("evicted")
                lost = [(event["first"], event["last"]) for event in rig.reported("possibly_lost")]
                assert lost == [(1, 3)]

    @staticmethod
    async def read_after_the_loss(rig: Rig, consumer: Consumer[Any]) -> list[Any]:
        rig.script.on("poll", do=delay(1.0, reply=True))
        with anyio.move_on_after(0.5):
            await anext(consumer)
        await anyio.sleep(4.0)
        assert consumer._fetches.messages == 3
        found: list[Any] = []
        with anyio.move_on_after(0.4):
            while True:
                try:
                    found.append(await anext(consumer))
                except DataError as error:
                    found.append(error)
        return found


class TestReasons:
    @rule("K89", "K101")
    @pytest.mark.parametrize(
        ("min_count", "reason", "seconds"),
        [
            (2, "count", 0),  # so many came
            (5, "error", 0),  # so many would have, but for the one that does not decode
            (9, "wait", 3),  # the time was over, and the message behind these is none of this poll's business
        ],
    )
    @pytest.mark.parametrize("partitions", [1, 3])
    @virtual()
    async def test_a_batch_that_is_cut_short_says_what_ended_the_wait(
        self, partitions: int, min_count: int, reason: str, seconds: int
    ) -> None:
        async with opened(partitions) as rig, rig.typed(int) as consumer:
            await rig.append(P0, b"0", b"1", b"2", b"oops", b"4")
            batch = await consumer.poll(min_count=min_count, max_wait=3)
            assert (offsets(batch), batch.reason) == ([0, 1, 2], reason)
            assert seconds <= anyio.current_time() < seconds + 0.5
            with pytest.raises(UndecodableMessage):
                await consumer.poll(max_wait=3)

    @rule("K89")
    @virtual()
    async def test_reached_bytes_are_the_reason_when_nothing_was_cut(self) -> None:
        async with opened() as rig, rig.typed(Upper()) as consumer:
            await rig.append(P0, *[b"x" * 100] * 50)
            batch = await consumer.poll(min_count=50, max_bytes=1000)
            assert (0 < len(batch) < 10, batch.reason) == (True, "bytes")

    @rule("K101")
    @virtual()
    async def test_reached_bytes_are_not_when_something_was(self) -> None:
        async with opened() as rig, rig.typed(int) as consumer:
            await rig.append(P0, b"0", b"oops", *[b"1" * 100] * 50)
            batch = await consumer.poll(min_count=50, max_bytes=1000)
            assert (offsets(batch), batch.reason) == ([0], "error")


class TestDecodingInTurns:
    """10,000 small messages: no turn of the loop decodes more than a part, and other tasks run between any two."""

    @rule("K91")
    @pytest.mark.parametrize("partitions", [1, 3])
    @pytest.mark.parametrize("read", ["loop", "poll"])
    @virtual()
    async def test_a_large_backlog_is_decoded_a_little_in_each_turn(self, partitions: int, read: str) -> None:
        codec = Upper()
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                ticks.append(len(codec.calls))

        async with opened(partitions) as rig:
            for number in range(partitions):
                await rig.fill(TopicPartition("t", number), 9_000 // partitions)
            options = PollOptions(count=10_000, max_bytes=16_000_000)
            async with rig.typed(codec, poll=options) as consumer, anyio.create_task_group() as tasks:
                await anyio.sleep(1)
                tasks.start_soon(tick)
                if read == "poll":
                    batch = await consumer.poll(min_count=9_000)
                    assert (len(batch), batch.reason) == (9_000, "count")
                else:
                    assert len(await take(consumer, 9_000)) == 9_000
                tasks.cancel_scope.cancel()
        assert len(codec.calls) == 9_000
        # Trio shuffles the tasks of a turn, so that two turns of the reader may lie between two of the ticker.
        assert max(after - before for before, after in pairwise([0, *ticks])) <= 2 * PART_MESSAGES

    @rule("K91", "C24")
    @virtual()
    async def test_polls_that_are_cancelled_meanwhile_lose_nothing_and_get_on(self) -> None:
        codec = Upper()
        async with opened() as rig:
            await rig.fill(P0, 9_000)
            options = PollOptions(count=10_000, max_bytes=16_000_000)
            async with rig.typed(codec, poll=options) as consumer:
                await anyio.sleep(1)
                cancelled = 0
                batch: Batch[Any] | None = None
                while batch is None and cancelled < 100:
                    with anyio.CancelScope() as scope:
                        async with anyio.create_task_group() as tasks:
                            tasks.start_soon(cancel_soon, scope)
                            batch = await consumer.poll(min_count=9_000)
                            tasks.cancel_scope.cancel()
                    cancelled += batch is None
                assert batch is not None
                assert offsets(batch) == list(range(9_000))
                assert cancelled > 2
                assert len(codec.calls) == 9_000  # nothing was decoded twice

    @virtual(seeds=5)
    async def test_a_seek_while_a_poll_decodes_is_obeyed(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 9_000)
            options = PollOptions(count=10_000, max_bytes=16_000_000)
            async with rig.typed(int, poll=options) as consumer, anyio.create_task_group() as tasks:
                await anyio.sleep(1)
                reader = start(tasks, lambda: consumer.poll(min_count=100))
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                await consumer.seek(0, 8_500)
                await reader.done.wait()
                assert offsets(reader.result) == list(range(8_500, 9_000))


async def cancel_soon(scope: anyio.CancelScope) -> None:
    for _ in range(4):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


@rule("C44", "K91")
@virtual()
async def test_a_list_that_is_decoded_in_parts_is_stored_with_its_last_message() -> None:
    count = 2 * PART_MESSAGES + 10
    async with opened() as rig:
        await rig.fill(P0, count)
        poll = PollOptions(count=count)
        async with rig.consumer(value_type=int, commit=AutoCommit.each_batch(), poll=poll) as consumer:
            await take(consumer, count - 1)
            await anyio.sleep(1.0)
            assert rig.calls("store_offset") == []
            await take(consumer, 1)
            await anyio.sleep(1.0)
            assert rig.stored(P0) == count - 1


@rule("K01")
@virtual(seeds=2)
async def test_what_was_committed_behind_a_bad_message_is_brought_back_before_the_next_batch() -> None:
    """Or a hard kill, however much later, would skip it and what follows it."""
    async with opened(2) as rig:
        await rig.append(P0, b"1", b"2", b"x", b"4", b"5")
        async with rig.typed(int, commit=AutoCommit.on_poll()) as consumer:
            found = await items(consumer, 3)
            assert [type(item) for item in found] == [Message, Message, UndecodableMessage]
            await rig.fill(P1, 3)
            assert places(await take(consumer, 1)) == [(1, 0)]
            assert (rig.stored(P0), rig.stored(P1)) == (1, 2)
            await consumer.seek(P0, 3)
            assert sorted(places(await take(consumer, 4))) == [(0, 3), (0, 4), (1, 1), (1, 2)]


@rule("C44")
@virtual()
async def test_a_list_in_front_of_what_does_not_decode_is_stored_with_its_last_message() -> None:
    async with opened() as rig:
        await rig.append(P0, b"1", b"2", b"x", b"4")
        async with rig.typed(int, commit=AutoCommit.each_batch()) as consumer:
            await take(consumer, 2)
            await anyio.sleep(1.0)
            assert rig.stored(P0) == 1
