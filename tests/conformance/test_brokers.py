"""The shipped suite against every broker, and what each of them may skip.

Not here: whether the suite itself is whole (test_suite.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, cast

import anyio
import anyio.lowlevel
import pytest

import tarry
from tarry import abc
from tarry.brokers.local.broker import LocalBroker
from tarry.config import LogOptions
from tarry.errors import FeatureUnavailable
from tarry.testing import FaultLayer, FaultyLog, ScriptedBroker, ScriptedSession
from tarry.testing.conformance import BrokerConformance, Need, Suite, Timeouts
from tarry.types import (
    GroupInfo,
    Offset,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Start,
    StartKind,
    TopicPartition,
)


def memory(timeouts: Timeouts) -> tarry.Client:
    return tarry.connect("memory:", session_timeout=timeouts.session, rebalance_timeout=timeouts.rebalance)


def parked(broker: abc.Broker) -> int:
    return cast(LocalBroker, broker).pump.parked


class TestMemory(BrokerConformance):
    is_virtual = True

    @asynccontextmanager
    async def open_broker(self, timeouts: Timeouts) -> AsyncGenerator[abc.Broker]:
        async with memory(timeouts) as client:
            yield client.broker

    def parked(self, broker: abc.Broker) -> int:
        return parked(broker)


class TestFile(BrokerConformance):
    """One file for all of it: a test finds what those before it have left there."""

    folder: ClassVar[Path]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.folder = tmp_path_factory.mktemp("log")

    @asynccontextmanager
    async def open_broker(self, timeouts: Timeouts) -> AsyncGenerator[abc.Broker]:
        async with tarry.connect(
            str(self.folder / "log.db"), session_timeout=timeouts.session, rebalance_timeout=timeouts.rebalance
        ) as client:
            yield client.broker

    def parked(self, broker: abc.Broker) -> int:
        return parked(broker)


class TestScripted(BrokerConformance):
    """An empty script changes nothing; on trio the fault layer shows that, which follows one, too."""

    backends = ("asyncio",)
    is_virtual = True

    @asynccontextmanager
    async def open_broker(self, timeouts: Timeouts) -> AsyncGenerator[abc.Broker]:
        async with memory(timeouts) as client:
            yield ScriptedBroker(client.broker)

    def parked(self, broker: abc.Broker) -> int:
        return parked(cast(ScriptedBroker, broker).wrapped)


class TestFaultLayer(BrokerConformance):
    """Without faults it is a log like any other."""

    is_virtual = True

    @asynccontextmanager
    async def open_broker(self, timeouts: Timeouts) -> AsyncGenerator[abc.Broker]:
        options = LogOptions(session_timeout=timeouts.session, rebalance_timeout=timeouts.rebalance)
        async with FaultyLog(options=options) as log, FaultLayer(log).client() as client:
            yield client.broker
            assert not log.counts

    def parked(self, broker: abc.Broker) -> int:
        return cast(FaultLayer, broker).log.pump.parked


class LesserBroker(ScriptedBroker):
    """The real log, as it would be without anything that a broker may lack."""

    @property
    def capabilities(self) -> abc.Capabilities:
        return abc.Capabilities(groups=False, timestamps=False, idempotent_append=False, commit_on_poll="none")

    async def append(
        self, partition: TopicPartition, batch: RecordBatch, *, producer: ProducerStamp | None = None
    ) -> Receipt:
        await _refuse("repeats", producer is not None)
        return await super().append(partition, batch)

    async def open_session(
        self, identity: abc.ConsumerIdentity, topics: Sequence[str], partitions: Sequence[TopicPartition]
    ) -> ScriptedSession:
        await _refuse("groups", identity.kind == "group")
        session = await super().open_session(identity, topics, partitions)
        return LesserSession(session.wrapped, self.script, identity)

    async def describe_group(self, name: str) -> GroupInfo:
        await _refuse("groups")
        return await super().describe_group(name)

    async def list_groups(self) -> Sequence[GroupInfo]:
        await _refuse("groups")
        return await super().list_groups()

    async def reset_group(self, name: str, offsets: Mapping[TopicPartition, Offset | None]) -> None:
        await _refuse("groups")
        await super().reset_group(name, offsets)


class LesserSession(ScriptedSession):
    async def resolve(self, partition: TopicPartition, start: Position | Start) -> abc.Resolved:
        await _refuse("times", _is_time(start))
        return await super().resolve(partition, start)

    async def poll(
        self,
        leader: abc.Leader,
        targets: Sequence[abc.FetchTarget],
        *,
        count: int,
        max_bytes: int,
        min_count: int = 1,
        max_wait: float = 0.0,
        commit: bool = False,
    ) -> abc.PollReply:
        await _refuse("commit-on-poll", commit)
        await _refuse("times", any(_is_time(target.at) for target in targets))
        return await super().poll(
            leader, targets, count=count, max_bytes=max_bytes, min_count=min_count, max_wait=max_wait
        )


async def _refuse(what: str, wanted: bool = True) -> None:
    await anyio.lowlevel.checkpoint()
    if wanted:
        raise FeatureUnavailable(f"this log knows no {what}")


def _is_time(start: Position | Start) -> bool:
    return isinstance(start, Start) and start.kind is StartKind.TIMESTAMP


class TestLesser(BrokerConformance):
    """A broker that lacks everything it may lack passes what is left."""

    backends = ("asyncio",)
    is_virtual = True

    @asynccontextmanager
    async def open_broker(self, timeouts: Timeouts) -> AsyncGenerator[abc.Broker]:
        async with memory(timeouts) as client:
            yield LesserBroker(client.broker)


# ------------------------------------------------------------------------------------------------- skips

SKIPPED: dict[type[Suite], dict[Need, int]] = {
    TestMemory: {},
    TestFile: {},
    TestScripted: {},
    TestFaultLayer: {},
    TestLesser: {"groups": 40, "timestamps": 2, "idempotent_append": 4, "commit_on_poll": 17},
}
"""How many tests each broker skips, by what it lacks. One more is a decision, and shows here."""


@pytest.mark.parametrize("broker", SKIPPED, ids=lambda broker: broker.__name__)
def test_what_a_broker_skips_is_pinned(broker: type[Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TestFile, "folder", tmp_path, raising=False)

    async def capabilities() -> abc.Capabilities:
        async with broker().open_broker(Timeouts()) as opened:
            return opened.capabilities

    assert Counter(broker.skips(anyio.run(capabilities)).values()) == SKIPPED[broker]


def test_nobody_leaves_a_test_out_by_itself() -> None:
    assert [name for broker in SKIPPED for name in vars(broker) if name.startswith("test_")] == []
