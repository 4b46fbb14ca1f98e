"""A client over a log with several leaders, that move and go away; and what the tests ask it.

Not here: the rig of one leader (`rig`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tarry._wire.batch import encode_record, seal
from tarry.client import Client
from tarry.config import TopicOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import TarryError
from tarry.testing import Call, FaultLayer, Faults, FaultyLog, Operation, Script, VirtualClock
from tarry.testing.leaders import Leaders
from tarry.types import TopicPartition


@dataclass
class Rig:
    """A log with one topic and several leaders, and a client of it."""

    log: FaultyLog
    script: Script
    client: Client
    layer: FaultLayer
    events: list[tuple[str, dict[str, object]]]

    @property
    def leaders(self) -> Leaders:
        assert self.log.leaders is not None
        return self.log.leaders

    def consumer(self, **options: Any) -> Consumer:
        given: dict[str, Any] = {"name": "billing", **options}
        return self.client.consumer("t", **given)

    async def append(self, number: int, count: int = 1, size: int = 1) -> None:
        """Messages whose values are so many bytes; appends know no leaders here."""
        now = VirtualClock().wall_ms()
        records = [encode_record(b"v" * size, None, (), now)] * count
        await self.layer.wrapped.append(P(number), seal(records, [now] * count))

    def calls(self, *operations: Operation) -> list[Call]:
        return [call for call in self.script.calls if call.operation in operations]

    def waits(self) -> dict[str, list[int]]:
        """What is out: leader and partitions named."""
        found: dict[str, list[int]] = {}
        for call in self.calls("wait_ready"):
            if call.outcome == "open":
                assert call.arguments["leader"] not in found, "two waits at one leader"
                found[call.arguments["leader"]] = sorted(named(call))
        return found


def P(number: int) -> TopicPartition:  # noqa: N802  # as P0 and P1 elsewhere
    return TopicPartition("t", number)


def named(call: Call) -> list[int]:
    return [target.partition.partition for target in call.arguments["targets"]]


def at(number: int) -> Callable[[Call], bool]:
    """Calls to a leader."""

    def chosen(call: Call) -> bool:
        return bool(call.arguments["leader"] == f"leader-{number}")

    return chosen


@asynccontextmanager
async def opened(partitions: int, leaders: int = 3, *, grace: float = 10.0) -> AsyncGenerator[Rig]:
    script = Script()
    events: list[tuple[str, dict[str, object]]] = []
    async with FaultyLog(leaders=leaders, faults=Faults(grace=grace)) as log:
        layer = FaultLayer(log, script)
        async with layer.client(instruments=[lambda event, fields: events.append((event, dict(fields)))]) as client:
            await layer.wrapped.create_topic("t", TopicOptions(partitions=partitions), exist_ok=False)
            yield Rig(log, script, client, layer, events)


async def next_of(consumer: Consumer) -> tuple[int, int]:
    """Partition and offset of the next message; errors on the way are passed over."""
    while True:
        try:
            message = await anext(consumer)
        except TarryError:
            continue
        return message.partition, message.offset
