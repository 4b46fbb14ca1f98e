"""Typed values: what is decoded, and what a value that does not decode leaves of everything around it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from tarry import AutoCommit, ConfigTypeError, PollOptions, Start, UndecodableMessage
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, items, offsets, opened, take
from tests.virtual import virtual


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


@pytest.mark.parametrize(
    ("value_type", "value"), [(Model, Model(n=1)), (Record, Record(n=1)), (dict[str, int], {"n": 1})], ids=str
)
@virtual()
async def test_values_are_decoded_for_loops_and_polls(value_type: object, value: object) -> None:
    async with opened() as rig:
        await rig.append(P0, b'{"n": 1}', None, b'{"n": 1}')
        async with rig.consumer(value_type=value_type) as consumer:
            assert [message.value for message in await take(consumer, 2)] == [value, None]
            assert [message.value for message in await consumer.poll()] == [value]


@rule("K76")
@virtual()
async def test_a_decoder_gets_no_call_for_none_but_one_for_empty_bytes() -> None:
    async with opened() as rig:
        await rig.append(P0, None, b"", None, b"x")
        codec = Upper()
        async with rig.consumer(value_type=codec) as consumer:
            assert [message.value for message in await take(consumer, 4)] == [None, "", None, "X"]
        assert codec.calls == [b"", b"x"]


@virtual()
async def test_an_undecodable_value_is_one_error_in_its_place_and_is_skipped_by_a_seek() -> None:
    async with opened(2) as rig:
        await rig.append(P0, b"0", b"1", b"oops", b"3")
        async with rig.consumer(value_type=int, commit=AutoCommit.finished(0.1)) as consumer:
            found = await items(consumer, 3)
            error = found[2]
            assert [getattr(item, "value", None) for item in found[:2]] == [0, 1]
            assert isinstance(error, UndecodableMessage)
            assert (error.topic, error.partition, error.offset, error.raw) == ("t", 0, 2, b"oops")
            assert isinstance(error.__cause__, ValueError)
            assert consumer.position(P0) == 2
            await rig.append(P1, b"7")
            assert (await anext(consumer)).value == 7  # the other partition goes on; the error is not said again
            await consumer.seek(0, error.offset + 1)
            assert (await anext(consumer)).value == 3


@pytest.mark.parametrize("commit", [AutoCommit.finished(0.1), AutoCommit.on_poll(), AutoCommit.after_each()], ids=str)
@virtual()
async def test_nothing_stored_covers_it(commit: AutoCommit) -> None:
    async with opened() as rig:
        await rig.append(P0, b"0", b"1", b"oops", b"3")
        async with rig.consumer(value_type=int, commit=commit) as consumer:
            for _ in range(2):  # every partition is stopped: said each time
                with pytest.raises(UndecodableMessage):
                    await consumer.consume(lambda _: None, on_error="skip")
            assert (await consumer.shutdown()).committed == {P0: 1}


@pytest.mark.parametrize("commit", [AutoCommit.finished(0.1), AutoCommit.on_poll()], ids=str)
@virtual()
async def test_a_poll_delivers_what_comes_before_it_first(commit: AutoCommit) -> None:
    async with opened(2) as rig:
        await rig.append(P0, b"0", b"oops", b"2")
        await rig.append(P1, b"0", b"1")
        polls = PollOptions(max_wait=1)
        async with rig.consumer(value_type=int, commit=commit, poll=polls) as consumer:
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
                    seen += [(message.partition, message.offset) for message in batch]
            assert (sorted(seen), errors) == ([(0, 0), (1, 0), (1, 1)], 1)
            await consumer.seek(0, 2)
            assert offsets(await consumer.poll()) == [2]


@pytest.mark.parametrize("read", ["anext", "poll"])
@virtual()
async def test_what_is_no_exception_passes_and_loses_nothing(read: str) -> None:
    async with opened() as rig:
        await rig.append(P0, b"a", b"b")
        async with rig.consumer(value_type=Upper(KeyboardInterrupt())) as consumer:
            with pytest.raises(KeyboardInterrupt):
                await (anext(consumer) if read == "anext" else consumer.poll())
            assert [message.value for message in await take(consumer, 2)] == ["A", "B"]


@rule("K103")
@pytest.mark.parametrize("value_type", [None, 3, "int", json, lambda: 3], ids=str)
@virtual()
async def test_what_is_no_type_is_refused(value_type: Any) -> None:
    async with opened() as rig:
        with pytest.raises(ConfigTypeError, match="value_type="):
            rig.consumer(value_type=value_type, start=Start.first())
