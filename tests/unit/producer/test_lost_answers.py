"""Writes whose answers get lost: each message is in the log once and in order, or the caller is told of the doubt."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from tarry.brokers.local.broker import LocalBroker
from tarry.errors import LogBusy, LogFull, LogUnavailable, OutcomeUnknown, TarryError
from tarry.testing import lose_reply, lose_request, refuse
from tests.marks import rule
from tests.unit.consumer.rig import P0, Rig, opened
from tests.virtual import virtual


async def values(rig: Rig) -> list[int]:
    async with rig.consumer(name=None) as consumer:
        batch = await consumer.poll(count=10_000, max_wait=1.0, min_count=10_000)
        return [int(message.value or b"") for message in batch]


@rule("K74", "P7")
@virtual()
async def test_a_tenth_of_the_answers_is_lost_and_nothing_is_stored_twice() -> None:
    async with opened() as rig, rig.client.producer("t", retry_spacing=0.01) as producer:
        rig.script.rate("append", 0.05, do=lose_reply(), seed=1)
        rig.script.rate("append", 0.05, do=lose_request(), seed=2)
        offsets = [(await producer.send(b"%d" % number)).offset for number in range(2000)]
        assert offsets == list(range(2000))
        assert rig.end(P0) == 2000
        assert len(rig.calls("append")) > 2100
        assert await values(rig) == list(range(2000))


@rule("K74")
@virtual(seeds=3)
async def test_nor_with_many_senders_at_once(seed: int) -> None:
    async with opened() as rig, rig.client.producer("t", retry_spacing=0.01, retries=10) as producer:
        rig.script.rate("append", 0.1, do=lose_reply(after=0.003), seed=seed)
        async with anyio.create_task_group() as tasks:

            async def send(first: int) -> None:
                for number in range(first, 500, 10):
                    await producer.send(b"%d" % number)

            for first in range(10):
                tasks.start_soon(send, first)
        stored = await values(rig)
        assert sorted(stored) == list(range(500))
        for first in range(10):  # what one sender sent one after another is in that order
            assert [number for number in stored if number % 10 == first] == list(range(first, 500, 10))


@rule("K74")
@virtual()
async def test_another_producer_is_another_one() -> None:
    """The same configuration begins with the same sequences, under another id: nothing is taken for a repeat."""
    async with opened() as rig:
        for number in range(3):
            async with rig.client.producer("t") as producer:
                receipts = [await producer.send(b"%d" % number) for _ in range(5)]
                assert not any(receipt.duplicate for receipt in receipts)
        assert await values(rig) == [0] * 5 + [1] * 5 + [2] * 5


@rule("K74", "P7")
@virtual()
async def test_a_log_that_does_not_know_repeats_leaves_no_doubt_about_the_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = replace(LocalBroker.capabilities, idempotent_append=False)
    monkeypatch.setattr(LocalBroker, "capabilities", plain)
    async with opened() as rig, rig.client.producer("t", retry_spacing=0.01) as producer:
        rig.script.rate("append", 0.1, do=lose_reply(), seed=1)
        unknown: list[int] = []
        for number in range(500):
            try:
                await producer.send(b"%d" % number)
            except OutcomeUnknown:
                unknown.append(number)
        assert 20 < len(unknown) < 100
        assert await values(rig) == list(range(500))  # none was sent again


@rule("K74", "P7")
@pytest.mark.parametrize("error", [LogFull("no space"), LogUnavailable("closed"), LogBusy("locked")], ids=repr)
@virtual()
async def test_what_the_last_attempt_met_says_nothing_of_the_one_before(error: TarryError) -> None:
    """Its message was stored, though the next attempt was refused: "not written" would be a lie."""
    async with opened() as rig, rig.client.producer("t", retry_spacing=0.01, retries=2) as producer:
        rig.script.on("append", do=lose_reply())
        rig.script.on("append", do=refuse(error), nth=range(2, 4))
        with pytest.raises(OutcomeUnknown, match="when it was tried again"):
            await producer.send(b"0")
        assert await values(rig) == [0]
