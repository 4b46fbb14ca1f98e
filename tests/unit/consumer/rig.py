"""A client over a scripted log in memory, and what the tests of the consumer ask it.

Everything runs in one loop under virtual time. What goes around the script (appending, looking at stored offsets) is
written down nowhere; what the consumer sends is in `rig.calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import anyio

from tarry import abc
from tarry._runtime.bridge import backend
from tarry._wire.batch import encode_record, seal
from tarry.brokers.local.broker import LocalBroker
from tarry.brokers.local.host import open_store
from tarry.brokers.local.pump import Pump
from tarry.brokers.local.store_memory import MemoryStore
from tarry.client import Client
from tarry.config import LogOptions, TopicOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import TarryError
from tarry.testing import Call, CarryOut, FaultLayer, FaultyLog, Operation, Script, ScriptedBroker, VirtualClock
from tarry.types import Batch, Message, Receipt, TopicPartition
from tarry.types import T as Value

NAME = "billing"
GROUP = "crew"
T = "t"
P0, P1, P2, P3 = (TopicPartition(T, number) for number in range(4))
LEADERS: ContextVar[int] = ContextVar("LEADERS", default=1)
"""How many leaders the log has that `opened` opens; conftest.py repeats the cases with three."""


@dataclass
class Rig:
    """The open client, its log, and all that was reported."""

    client: Client
    script: Script
    broker: ScriptedBroker
    store: MemoryStore
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list[tuple[str, dict[str, object]]])

    @property
    def log(self) -> LocalBroker:
        """The log itself, without the script."""
        return cast(LocalBroker, self.broker.wrapped)

    @property
    def pump(self) -> Pump:
        return self.log.pump

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        """A consumer of topic `t`, named "billing", unless said otherwise."""
        named: dict[str, Any] = {"name": NAME, **options}
        return self.client.consumer(*topics or (T,), **named)

    def typed(self, value_type: object, **options: Any) -> Consumer[Any]:
        """A consumer as above, of values of a type."""
        return self.consumer(value_type=value_type, **options)

    def member(self, *topics: str, **options: Any) -> Consumer:
        """A member of group "crew", of topic `t` unless said otherwise."""
        given: dict[str, Any] = {"group": GROUP, **options}
        return self.client.consumer(*topics or (T,), **given)

    async def append(self, partition: TopicPartition, *values: bytes | None) -> Receipt:
        """Append messages as one batch."""
        now = VirtualClock().wall_ms()
        batch = seal([encode_record(value, None, (), now) for value in values], [now] * len(values))
        return await self.log.append(partition, batch)

    async def fill(self, partition: TopicPartition, count: int, size: int = 1) -> None:
        """Append so many messages whose values are their offsets as text, at least `size` bytes long."""
        begin = self.end(partition)
        for first in range(begin, begin + count, 100):
            last = min(first + 100, begin + count)
            await self.append(partition, *[str(offset).encode().rjust(size) for offset in range(first, last)])

    def end(self, partition: TopicPartition) -> int:
        return self.pump.view.find(partition).log_end

    def stored(self, partition: TopicPartition, name: str = NAME) -> int | None:
        """What the log holds."""
        return self.pump.view.find(partition).stored.get(f"name:{name}")

    def group_stored(self, partition: TopicPartition, group: str = GROUP) -> int | None:
        """What the log holds for a group."""
        return self.pump.view.find(partition).stored.get(f"group:{group}")

    def calls(self, *operations: Operation) -> list[Call]:
        """What the consumer has sent so far."""
        return [call for call in self.script.calls if call.operation in operations]

    def leaders(self, partitions: int) -> int:
        """How many leaders have any of the first so many partitions; each of them is asked for itself."""
        return min(partitions, LEADERS.get())

    def reported(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.events if name == event]


@asynccontextmanager
async def opened(topics: Mapping[str, int] | int = 1, **log_options: Any) -> AsyncGenerator[Rig]:
    """An open client over a log with these topics (name: partitions); or with topic `t` of so many partitions."""
    events: list[tuple[str, dict[str, object]]] = []

    def note(event: str, fields: Mapping[str, object]) -> None:
        events.append((event, dict(fields)))

    connect = _one_leader if LEADERS.get() == 1 else _several_leaders
    async with connect(LogOptions(**log_options), note) as (client, broker, store):
        rig = Rig(client, broker.script, broker, store, events)
        for name, partitions in ({T: topics} if isinstance(topics, int) else topics).items():
            await rig.log.create_topic(name, TopicOptions(partitions=partitions), exist_ok=False)
        yield rig


_Opened = tuple[Client, ScriptedBroker, MemoryStore]


@asynccontextmanager
async def _one_leader(options: LogOptions, note: abc.Instrument) -> AsyncGenerator[_Opened]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    made: list[ScriptedBroker] = []

    async def open_broker(start_soon: Callable[[Callable[[], Awaitable[None]]], None]) -> abc.Broker:
        made.append(ScriptedBroker(await open_store(start_soon, store, options, clock)))
        return made[0]

    async with Client(open_broker, name="memory:", instruments=[note]) as client:
        yield client, made[0], store


@asynccontextmanager
async def _several_leaders(options: LogOptions, note: abc.Instrument) -> AsyncGenerator[_Opened]:
    """The same log behind a network on which nothing goes wrong."""
    async with FaultyLog(options=options, leaders=LEADERS.get()) as log:
        layer = FaultLayer(log)
        async with layer.client(instruments=[note]) as client:
            yield client, layer, log.store


async def take(consumer: Consumer[Value], count: int) -> list[Message[Value]]:
    """The next messages, as a loop over the consumer gets them; the last one stays in hand."""
    return [await anext(consumer) for _ in range(count)]


async def items(consumer: Consumer[Value], count: int, *, patience: float = 3.0) -> list[Message[Value] | TarryError]:
    """The next messages and errors, as a reader gets them who goes on after an error."""
    found: list[Message[Value] | TarryError] = []
    while len(found) < count:
        with anyio.fail_after(patience):
            try:
                found.append(await anext(consumer))
            except TarryError as error:
                found.append(error)
    return found


async def take_all(consumer: Consumer, *, quiet: float = 6.0) -> list[Message]:
    """Read until nothing comes for a while."""
    found: list[Message] = []
    while True:
        with anyio.move_on_after(quiet) as limit:
            found.append(await anext(consumer))
        if limit.cancelled_caught:
            return found


async def owns(consumer: Consumer, count: int, *, within: float = 40.0) -> frozenset[TopicPartition]:
    """Wait until a member has so many partitions."""
    with anyio.fail_after(within):
        while len(consumer.assignment) != count:  # noqa: ASYNC110  # what is waited for is what a user can see
            await anyio.sleep(0.01)
    return consumer.assignment


def offsets(messages: Sequence[Message[Any]] | Batch[Any]) -> list[int]:
    return [message.offset for message in messages]


def places(messages: Sequence[Message[Any]] | Batch[Any]) -> list[tuple[int, int]]:
    """Partition and offset of each."""
    return [(message.partition, message.offset) for message in messages]


async def settled() -> None:
    """Let everything that is ready happen, without time passing."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


def count_tasks() -> int:
    """Tasks that live in this loop."""
    if backend() == "trio":
        import trio

        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


def answer(change: Callable[[Call, Any], Any]) -> Callable[[Call, CarryOut], Awaitable[Any]]:
    """An action for the script: carry the call out and change its answer."""

    async def act(call: Call, carry_out: CarryOut) -> Any:
        return change(call, await carry_out())

    return act


@dataclass
class Background:
    """A task that a test starts and ends; whatever way it ends, it is known how."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: BaseException | None = None

    @property
    def outcome(self) -> Literal["running", "returned", "raised", "cancelled"]:
        if not self.done.is_set():
            return "running"
        if self.error is None:
            return "returned"
        return "raised" if isinstance(self.error, Exception) else "cancelled"

    async def run(self, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            with self.scope:
                try:
                    self.result = await work()
                except BaseException as error:
                    self.error = error
                    if not isinstance(error, Exception):
                        raise
        finally:
            self.done.set()

    async def cancel(self) -> None:
        self.scope.cancel()
        await self.done.wait()


def start(tasks: anyio.abc.TaskGroup, work: Callable[[], Awaitable[Any]]) -> Background:
    background = Background()
    tasks.start_soon(background.run, work)
    return background
