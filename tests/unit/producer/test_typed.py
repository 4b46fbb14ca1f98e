"""Typed producing: what is encoded, and what is refused before anything is sent."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer, field_validator

from tarry import ConfigTypeError, MessageTooLarge, Outgoing, Producer, Start, UnencodableValue
from tarry.producer.producer import PART_MESSAGES
from tarry.testing import delay
from tests.marks import named, rule
from tests.unit.consumer.rig import P0, Background, Rig, opened, start, take
from tests.virtual import virtual


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    n: int
    unit: str = Field(default="cup", alias="as")

    @computed_field
    def twice(self) -> int:
        return 2 * self.n


class Record(msgspec.Struct):
    n: int


@dataclass
class Plain:
    n: int


class Careless(BaseModel):
    """What it does with a 0 is a mistake of its own."""

    n: int

    @field_validator("n", mode="after")
    @classmethod
    def check(cls, n: int) -> int:
        return {1: 1}[n]

    @field_serializer("n")
    def write(self, n: int) -> int:
        return 1 // n


class Rot13:
    """A codec that notes its calls."""

    def __init__(self, encoded: Any = None) -> None:
        self.calls: list[object] = []
        self.encoded = encoded

    def encode(self, value: str) -> bytes:
        self.calls.append(value)
        if isinstance(self.encoded, BaseException):
            raise self.encoded
        return self.encoded or value.swapcase().encode()

    def decode(self, data: bytes) -> str:
        return data.decode().swapcase()


class Later:
    """No codec: what it returns are no bytes."""

    async def encode(self, value: str) -> bytes:
        return value.encode()


def typed(rig: Rig, value_type: object, **options: Any) -> Producer[Any]:
    return rig.client.producer("t", value_type=value_type, **options)


async def raw(rig: Rig, count: int) -> list[bytes | None]:
    async with rig.consumer(start=Start.first()) as consumer:
        return [message.value for message in await take(consumer, count)]


@pytest.mark.parametrize(
    ("value_type", "value", "stored"),
    [
        (Model, Model.model_validate({"n": 1, "as": "jug"}), b'{"n":1,"as":"jug"}'),
        (Record, Record(n=1), b'{"n":1}'),
        (Plain, Plain(n=1), b'{"n":1}'),
        (dict[str, int], {"n": 1}, b'{"n":1}'),
        (Rot13(), "Cup", b"cUP"),
        (bytes, b"\xff", b"\xff"),
    ],
    ids=lambda given: getattr(given, "__name__", type(given).__name__),
)
@virtual()
async def test_what_is_sent_as_a_type_is_read_as_that_type(value_type: object, value: object, stored: bytes) -> None:
    async with opened() as rig, typed(rig, value_type) as producer:
        await producer.send(value, key=b"k")
        await producer.send_many([value, Outgoing(value)])
        assert await raw(rig, 3) == [stored] * 3
        async with rig.typed(value_type, start=Start.first()) as consumer:
            assert [message.value for message in await take(consumer, 3)] == [value] * 3


@rule("K76")
@virtual()
async def test_an_encoder_gets_no_call_for_none_but_one_for_an_empty_value() -> None:
    codec = Rot13()
    async with opened() as rig, typed(rig, codec) as producer:
        await producer.send(None, key=b"a")
        await producer.send("")
        await producer.send_many([Outgoing(None, key=b"b"), Outgoing("a")])
        assert await raw(rig, 4) == [None, b"", None, b"A"]
    assert codec.calls == ["", "a"]


@pytest.mark.parametrize(
    ("value_type", "value", "says"),
    [
        (Model, {"n": "1"}, "of type dict, is none of value_type (ValidationError: 1 validation error for Model"),
        (Model, Record(n=1), "of type Record, is none of value_type (ValidationError: 1 validation error for Model"),
        (Model, b"{}", "of type bytes, is none of value_type (ValidationError: 1 validation error for Model"),
        (Record, Model(n=1), "of type Model, is none of value_type (TypeError: it is no Record)"),
        (int, "1", "of type str, is none of value_type (ValidationError: 1 validation error for int"),
        (Annotated[int, Field(gt=0)], -1, "of type int, is none of value_type (ValidationError: 1 validation error"),
        (Rot13(KeyError("x")), "a", "of type str, was not encoded, since its encoder failed (KeyError: 'x')"),
        (
            Rot13("text"),
            "a",
            "of type str, was not encoded, since its encoder failed (TypeError: the encoder returned str instead",
        ),
        (
            Careless,
            Careless.model_construct(n=0),
            "of type Careless, was not encoded, since its encoder failed (PydanticSerialization",
        ),
        (Careless, {"n": 0}, "of type dict, was not encoded, since its encoder failed (KeyError: 0)"),
        (
            Record,
            Record(n=2j),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            "of type Record, was not encoded, since its encoder failed (TypeError: Encoding objects",
        ),
    ],
    ids=named,
)
@virtual()
async def test_what_does_not_encode_is_refused_before_anything_is_sent(
    value_type: object, value: object, says: str
) -> None:
    async with opened() as rig, typed(rig, value_type) as producer:
        with pytest.raises(UnencodableValue) as refused:
            await producer.send(value)
        text = str(refused.value)
        assert text.startswith(f"message 0 of this call, for topic 't': its value, {says}")
        assert text.endswith("nothing was sent")
        assert (refused.value.topic, refused.value.value) == ("t", value)
        assert isinstance(refused.value, ValueError)
        assert refused.value.__cause__ is not None
        assert copy.copy(refused.value).topic == "t"
        assert rig.end(P0) == 0


@virtual()
async def test_of_many_nothing_is_sent_when_one_does_not_encode() -> None:
    async with opened() as rig, typed(rig, int) as producer:
        with pytest.raises(UnencodableValue, match="message 2 of this call, for topic 't'"):
            await producer.send_many([1, Outgoing(2), "3", 4])
        assert rig.calls("append") == []
        await producer.send_many([1, Outgoing(2)])
        assert await raw(rig, 2) == [b"1", b"2"]


@virtual()
async def test_a_model_that_was_changed_into_nonsense_is_refused() -> None:
    async with opened() as rig, typed(rig, Model) as producer:
        model = Model(n=1)
        model.n = "one"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # unchecked by pydantic
        with pytest.raises(UnencodableValue):
            await producer.send(model)
        assert rig.end(P0) == 0


@virtual()
async def test_what_is_no_exception_passes() -> None:
    async with opened() as rig, typed(rig, Rot13(KeyboardInterrupt())) as producer:
        with pytest.raises(KeyboardInterrupt):
            await producer.send("a")
        assert rig.end(P0) == 0


@virtual()
async def test_limits_and_partitioners_speak_of_the_encoded_value() -> None:
    seen: list[bytes | None] = []

    def choose(_key: bytes | None, value: bytes | None, _count: int) -> int:
        seen.append(value)
        return 1

    async with opened(2) as rig, typed(rig, str, partitioner=choose) as producer:
        assert (await producer.send("a")).partition == 1
        assert seen == [b'"a"']
        with pytest.raises(MessageTooLarge):
            await producer.send("a" * 1024 * 1024)


class TestEncodingInTurns:
    """Many values are encoded a part in each turn; nothing else about a call is other than in one turn."""

    @rule("K91")
    @virtual()
    async def test_others_have_their_turns_meanwhile(self) -> None:
        codec = Rot13()
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                ticks.append(len(codec.calls))

        async with opened() as rig, typed(rig, codec) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            receipts = await producer.send_many(["a"] * 9_000)
            tasks.cancel_scope.cancel()
            assert [receipt.offset for receipt in receipts] == list(range(9_000))
        # Trio shuffles the tasks of a turn, so that two turns of the sender may lie between two of the ticker.
        assert max(after - before for before, after in pairwise([0, *ticks])) <= 2 * PART_MESSAGES

    @rule("P9", "K91")
    @virtual(seeds=5)
    async def test_a_send_that_begins_later_does_not_overtake_it(self) -> None:
        codec = Rot13()
        async with opened() as rig, typed(rig, codec) as producer, anyio.create_task_group() as tasks:
            many = start(tasks, lambda: producer.send_many(["a"] * 3 * PART_MESSAGES))
            while not codec.calls:
                await anyio.lowlevel.checkpoint()
            assert (await producer.send("b")).offset > 0
            await many.done.wait()
            assert many.result[0].offset == 0

    @rule("P9", "K56")
    @virtual(seeds=5)
    async def test_nor_while_it_looks_for_new_partitions_or_waits_for_one_in_front_of_it(self) -> None:
        codec = Rot13()
        async with opened() as rig, typed(rig, codec) as producer:
            await anyio.sleep(5.0)
            rig.script.on("describe_topic", do=delay(0.1))
            ordered: list[Background] = []
            async with anyio.create_task_group() as tasks:
                for count in (2 * PART_MESSAGES, 1, 2 * PART_MESSAGES, 1):
                    ordered.append(start(tasks, partial(producer.send_many, ["a"] * count)))
                    await anyio.sleep(0.01)
            assert [each.result[0].offset for each in ordered] == [0, 1000, 1001, 2001]

    @rule("P9")
    @virtual()
    async def test_nothing_is_sent_when_the_last_one_does_not_encode_or_the_call_is_cancelled(self) -> None:
        codec = Rot13()
        async with opened() as rig, typed(rig, codec) as producer, anyio.create_task_group() as tasks:
            with pytest.raises(UnencodableValue, match=f"message {PART_MESSAGES} of this call"):
                await producer.send_many([*["a"] * PART_MESSAGES, 1])
            codec.calls.clear()
            many = start(tasks, lambda: producer.send_many(["a"] * 3 * PART_MESSAGES))
            while not codec.calls:
                await anyio.lowlevel.checkpoint()
            await many.cancel()
            assert len(codec.calls) < 3 * PART_MESSAGES
            assert rig.calls("append") == []
            assert (await producer.send("a")).offset == 0


@rule("K103")
@pytest.mark.parametrize(
    "value_type", [None, 3, "int", b"x", {}, Model(n=1), Record(n=1), Rot13, list[Record]], ids=str
)
@virtual()
async def test_what_is_no_type_is_refused(value_type: Any) -> None:
    async with opened() as rig:
        with pytest.raises(ConfigTypeError) as refused:
            typed(rig, value_type)
        assert f"value_type={value_type!r}: pass bytes, a pydantic model" in str(refused.value)
        assert "encode(value)" in str(refused.value)


@rule("K103")
@virtual()
async def test_nor_is_a_codec_that_does_not_encode_at_once() -> None:
    async with opened() as rig:
        codec = Later()
        with pytest.raises(ConfigTypeError) as refused:
            typed(rig, codec)
        assert f"value_type={codec!r}: its encode has to return its result at once" in str(refused.value)
