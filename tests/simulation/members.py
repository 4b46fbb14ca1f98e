"""The processes of a simulated history: each runs one consumer after another, and keeps books of what it does.

A member reads with `async for`, with `anext` under timeouts, or with `poll`; its body takes its time, stores, or fails.
From outside it is stopped, cancelled, or killed with its connection. What it writes down is what an application can
know: what it was given, and what it has finished, by the definition of *finished* alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import anyio

from tarry import AutoCommit, Batch, Message, PollOptions
from tarry._core.autocommit import AFTER_HANDLER
from tarry.client import Client
from tarry.consumer.consumer import Consumer
from tarry.errors import ConsumerFailed, NotStarted, TarryError, UndecodableMessage
from tarry.testing import Call, CarryOut, FaultLayer, Script
from tarry.testing.faults import LOCAL
from tarry.types import Start, TopicPartition
from tests.simulation.history import (
    Abandoned,
    Closed,
    Closing,
    Delivered,
    Died,
    Failed,
    Finished,
    Gave,
    History,
    Hooked,
    Killed,
    Opened,
    Paused,
    Raised,
    Reported,
    Run,
    Span,
    Undecoded,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

SLOW_BODIES = (*[0.4] * 9, 2.5)
"""Some outlast the log's patience with a member that has to give a partition up."""
Style = Literal["loop", "anext", "poll", "consume"]
BAD = b"\xff"
"""Values that begin like this are no `Text`."""
TOPIC = "t"
NAME = "billing"


class BodyFailed(Exception):
    """The application's own error."""


class HookFailed(Exception):
    """An error of the application's hook."""


class HandlerFailed(Exception):
    """An error of a handler, after which the same consumer reads on."""


class Text:
    """Decodes values, but for the bad ones."""

    def decode(self, raw: bytes) -> str:
        return raw.decode()


class Recording(Script):
    """A script that does nothing but write each call of a member down."""

    def __init__(self, history: History, member: str) -> None:
        super().__init__()
        self._history = history
        self._member = member

    async def run(self, call: Call, carry_out: CarryOut) -> Any:
        if call.operation in LOCAL:
            return await super().run(call, carry_out)
        self._history.asked(self._member, call)
        try:
            return await super().run(call, carry_out)
        finally:
            self._history.answered(self._member, call)


class Member:
    """One member: a line of processes, each with a connection of its own and one consumer after another."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"m{number}"
        self.partitions = world.plan.partitions_of(number)
        self.static = self.name if world.plan.is_static else None
        self.chance = random.Random(world.plan.seed * 10 + number)
        self.layer = FaultLayer(world.log)
        self.run: Run | None = None
        self.consumer: Consumer | None = None
        self.fails_next = False
        self.took = anyio.Event()
        self.hooked = anyio.Event()
        self._history = world.history
        self._scope = anyio.CancelScope()
        self._runs = 0
        self._is_dead = False
        self._reads_bytes = not world.plan.is_typed

    # -------------------------------------------------------------------------------------------- life

    async def live(self) -> None:
        """Start a process after another until the world is over."""
        while not self.world.is_over:
            await self._process()

    async def _process(self) -> None:
        self.layer = FaultLayer(self.world.log, Recording(self._history, self.name))
        self._is_dead = False
        async with self.layer.client(instruments=[self._reported]) as client:
            while not (self._is_dead or self.world.is_over):
                await self._read_once(client)
                await self.world.pause(self.chance.choice([0.0, 0.05, 0.4]))

    def _reported(self, name: str, fields: Mapping[str, object]) -> None:
        self._history.add(Reported(anyio.current_time(), self.name, name, dict(fields)))

    async def _read_once(self, client: Client) -> None:
        """One consumer, left in one of many ways."""
        consumer, run = self._new_run(client)
        with anyio.CancelScope() as self._scope:
            try:
                async with consumer:
                    self.run, self.consumer = run, consumer
                    if self.world.plan.follows:
                        run.partitions = self.world.partitions
                    self._history.add(Opened(anyio.current_time(), run))
                    why = "cancelled"
                    try:
                        why = await self._read(run, consumer)
                    except BodyFailed:
                        why = "the body failed"
                        raise
                    finally:
                        self._closing(run, why)
            except BodyFailed:
                pass
            except TarryError as error:
                self._history.add(Raised(anyio.current_time(), run, error))
                await self.world.pause(0.1)
        if self.run is run:
            await self._close(run, consumer)
            self.run = self.consumer = None

    def _new_run(self, client: Client) -> tuple[Consumer, Run]:
        chance, plan = self.chance, self.world.plan
        self._runs += 1
        count = chance.choice([1, 4, 8, 30])
        partitions = None if plan.is_group else self.partitions
        drain_timeout, is_slow = chance.choice([0.15, 2.0]), chance.random() < 0.45
        run = Run(self.name, self._runs, plan.mode, partitions, count, drain_timeout, is_slow)
        run.period = chance.choice([0.2, 1.0]) if plan.mode in ("finished", "interval") or plan.has_timer else None
        run.n = chance.choice([2, 3]) if plan.mode in ("every_nth", "after_nth") else None
        options: dict[str, Any] = {
            "poll": PollOptions(
                count=count, max_wait=chance.choice([0.5, 2.0]), max_bytes=chance.choice([150, 10_000])
            ),
            "commit": AutoCommit(mode=plan.mode, period=run.period, n=run.n),
            "drain_timeout": run.drain_timeout,
        }
        if not self._reads_bytes and chance.random() < 0.8:
            options["value_type"] = Text()
        if not plan.is_group:
            of_it = None if plan.follows else self.partitions
            return client.consumer(TOPIC, name=NAME, partitions=of_it, **options), run
        if plan.grows:
            options["start"] = Start.next(Start.end())  # what comes late is read from its first message all the same
        options["heartbeat_interval"] = 0.5
        run.has_hooks = chance.random() < 0.5
        if run.has_hooks:
            options["on_assigned"] = partial(self._hook, run, "assigned")
            options["on_revoked"] = partial(self._hook, run, "revoked")
        return client.consumer(TOPIC, group=NAME, member=self.static, **options), run

    async def _hook(
        self, run: Run, hook: Literal["assigned", "revoked"], partitions: frozenset[TopicPartition]
    ) -> None:
        told = Hooked(anyio.current_time(), run, hook, sorted(at.partition for at in partitions))
        if hook == "revoked":
            self._history.add(told)
        self._history.add(Hooked(told.at, run, "inside", told.partitions))
        self.hooked.set()
        self.hooked = anyio.Event()
        try:
            await anyio.sleep(self.chance.choice([0.0, 0.1]))
        finally:
            self._history.add(Hooked(anyio.current_time(), run, "outside", told.partitions))
        if hook == "assigned":
            told.at = anyio.current_time()
            self._history.add(told)  # nothing of them may come before its end
        if self.chance.random() < 0.1:
            raise HookFailed

    async def read_the_rest(self) -> None:
        """Read everything that is left, finish it, and end."""
        async with FaultLayer(self.world.log, Recording(self._history, self.name)).client() as client:
            is_group = self.world.plan.is_group
            run = Run(self.name, 1, "finished", None if is_group else self.partitions, 100, 1.0, is_slow=False)
            group, name = (NAME, None) if is_group else (None, NAME)
            consumer = client.consumer(TOPIC, commit=AutoCommit.finished(0.2), group=group, name=name)
            async with consumer:
                self.run, self.consumer = run, consumer
                self._history.add(Opened(anyio.current_time(), run))
                while not self.world.is_read(consumer):
                    self._finish(run)
                    self._took(run, await consumer.poll(max_wait=0.5))
                self._finish(run)
                batch = await consumer.poll(max_wait=0.0)
                assert not batch
                self._closing(run, "all is read")
            await self._close(run, consumer)

    # -------------------------------------------------------------------------------------------- from outside

    async def stop(self, why: str) -> None:
        """Shut the consumer down from another task, as a service does that has to end."""
        if self.run is not None and self.consumer is not None:
            run, consumer = self.run, self.consumer
            self._closing(run, why)
            await self._close(run, consumer)

    def cancel(self) -> None:
        """Cancel the task that reads, wherever it is."""
        self._scope.cancel()

    def kill(self) -> None:
        """End the process: nothing of it reaches the log any more, and nothing it has in hand is finished."""
        self.layer.kill()
        self._is_dead = True
        if self.run is not None and not self.run.is_closed:
            self.run.is_closed = True
            self._history.add(Killed(anyio.current_time(), self.run, list(self.run.hand)))
        self._scope.cancel()

    def faint(self, *, wakes: bool) -> None:
        """Its heart stops beating, or beats again; whoever joins anew meanwhile is well."""
        for session in self.layer.sessions:
            if wakes:
                vars(session).pop("touch", None)
            else:
                vars(session)["touch"] = _nothing

    def stop_some(self) -> list[int]:
        """Pause partitions; returns which."""
        run, consumer = self.run, self.consumer
        if run is None or consumer is None or run.closing_at is not None or not consumer.assignment:
            return []
        held = sorted(at.partition for at in consumer.assignment)
        chosen = self.chance.sample(held, self.chance.choice([1, (len(held) + 1) // 2, len(held)]))
        places: Any = consumer._positions
        owned = {number: int(places[TopicPartition(TOPIC, number)].ownership) for number in chosen}
        try:
            consumer.pause(chosen, cause="the world says so")
        except NotStarted:  # it has just been shut down, and nobody has noticed yet
            return []
        self._history.add(Paused(anyio.current_time(), run, owned))
        return chosen

    def go_on(self, partitions: Sequence[int]) -> None:
        """Resume them, as far as they are paused in this run."""
        run, consumer = self.run, self.consumer
        if run is None or consumer is None or run.closing_at is not None:
            return
        paused = {at.partition for at in consumer.paused}.intersection(partitions)
        consumer.resume(sorted(paused))
        self._history.add(Paused(anyio.current_time(), run, dict.fromkeys(sorted(paused), 0), goes_on=True))

    def _closing(self, run: Run, why: str) -> None:
        if run.closing_at is None and not run.is_closed:
            run.closing_at = anyio.current_time()
            self._history.add(Closing(run.closing_at, run, why))

    async def _close(self, run: Run, consumer: Consumer) -> None:
        report = await consumer.shutdown()
        if not run.is_closed:
            run.is_closed = True
            worker: Any = consumer._worker
            if worker.failure is not None:
                self._history.add(Died(anyio.current_time(), run, worker.failure))
            self._history.add(Closed(anyio.current_time(), run, report, list(run.hand)))

    # -------------------------------------------------------------------------------------------- reading

    async def _read(self, run: Run, consumer: Consumer) -> str:
        styles: list[Style] = ["loop", "anext", "poll", "consume"]
        if run.mode in AFTER_HANDLER and self.chance.random() < 0.75:
            styles = ["consume"]
        style = self.chance.choice(styles)
        reads = {"loop": self._loop, "anext": self._next, "poll": self._poll, "consume": self._consume}
        left = self.chance.choice([10, 1000, 1000])
        patience = inf
        while left > 0 and not self.world.is_over:
            try:
                with anyio.CancelScope(deadline=patience) as limit:
                    left -= await reads[style](run, consumer)
                if limit.cancelled_caught:
                    return "somebody is to come who reads bytes"
            except StopAsyncIteration:
                return "it has ended"
            except (NotStarted, ConsumerFailed) as error:
                self._history.add(Raised(anyio.current_time(), run, error))
                return "it has failed"
            except UndecodableMessage as error:
                self._history.add(self._undecoded(run, consumer, error))
                patience = min(patience, anyio.current_time() + self.chance.choice([0.0, 1.0, 4.0]))  # the others go on
                self._reads_bytes = True
            except TarryError as error:
                self._history.add(Raised(anyio.current_time(), run, error))
        return "enough read"

    def _undecoded(self, run: Run, consumer: Consumer[Any], error: UndecodableMessage) -> Undecoded:
        places: Any = consumer._positions
        place = places.get(TopicPartition(TOPIC, error.partition))
        ownership = None if place is None else int(place.ownership)
        return Undecoded(anyio.current_time(), run, error.partition, ownership, error.offset, error.raw)

    async def _loop(self, run: Run, consumer: Consumer) -> int:
        """`async for`, left with a `break`: then the next read finishes what is in hand, if there is one."""
        self._finish(run)
        left = count = self.chance.choice([1, 5, 50])
        async for message in consumer:
            self._took(run, [message])
            await self._work(run, consumer, message)
            left -= 1
            if not left:
                return count
            self._finish(run)
        raise StopAsyncIteration

    async def _consume(self, run: Run, consumer: Consumer) -> int:
        """`consume`, ended by an error of its handler, a stop, or a timeout; then the next read goes on."""
        self._finish(run)
        skips, stop, left = self.chance.random() < 0.3, anyio.Event(), self.chance.choice([2, 10, 50])
        fails = self.chance.random() < 0.3
        calls = 0

        async def handle(message: Message) -> None:
            nonlocal calls
            calls += 1
            self._took(run, [message])
            try:
                await self._work(run, consumer, message)
                if fails and calls % 5 == 0:
                    raise HandlerFailed
            except BaseException as error:
                if not (skips and isinstance(error, Exception)):
                    self._fail(run)
                    raise
            self._finish(run)
            if calls == left:
                stop.set()

        with anyio.move_on_after(self.chance.choice([0.3, 5.0, 5.0])) as limit:
            try:
                await consumer.consume(handle, stop=stop, on_error="skip" if skips else "raise")
            except HandlerFailed:
                return calls
        if limit.cancelled_caught:
            self._history.add(Abandoned(anyio.current_time(), run, 1))
        elif not stop.is_set():
            raise StopAsyncIteration
        return calls

    def _fail(self, run: Run) -> None:
        """What is in hand is unfinished, and in nobody's hands from the next read on."""
        if run.hand and not run.is_closed:
            run.has_failed = True
            self._history.add(Failed(anyio.current_time(), run, list(run.hand)))

    async def _next(self, run: Run, consumer: Consumer) -> int:
        """`anext`, given up after a while."""
        self._finish(run)
        message: Message | None = None
        with anyio.move_on_after(self.chance.choice([0.05, 5.0, 5.0])) as limit:
            message = await anext(consumer)
        if message is None:
            assert limit.cancelled_caught
            self._history.add(Abandoned(anyio.current_time(), run, 1))
            return 0
        self._took(run, [message])
        await self._work(run, consumer, message)
        return 1

    async def _poll(self, run: Run, consumer: Consumer) -> int:
        """`poll`, sometimes given up while it gathers."""
        self._finish(run)
        count = self.chance.randint(1, run.count)
        min_count = self.chance.choice([1, (count + 1) // 2, count])
        batch: Batch | None = None
        with anyio.move_on_after(self.chance.choice([0.1, 5.0, 5.0])) as limit:
            batch = await consumer.poll(count=count, min_count=min_count, max_wait=self.chance.choice([0.0, 0.3, 1.0]))
        if batch is None:
            assert limit.cancelled_caught
            self._history.add(Abandoned(anyio.current_time(), run, min_count))
            return 0
        if batch.reason == "drain":
            raise StopAsyncIteration
        self._took(run, batch)
        if batch:
            await self._work(run, consumer, batch)
        return max(len(batch), 1)

    def _took(self, run: Run, messages: Sequence[Message]) -> None:
        """The application was given these; of a killed process nobody knows."""
        if run.is_closed and self._is_dead:
            return
        now = anyio.current_time()
        run.hand = []
        for (partition, ownership), group in groupby(messages, lambda message: (message.partition, message.ownership)):
            part = list(group)
            offsets = [message.offset for message in part]
            self._history.add(
                Delivered(now, run, partition, ownership, list(offsets), [_raw(message) for message in part])
            )
            run.hand.append(Span(partition, offsets[0], offsets[-1], ownership))
        if run.hand:
            self.took.set()
            self.took = anyio.Event()

    def _finish(self, run: Run) -> None:
        """A read call is made: it finishes what was handed out, unless the consumer waits for nobody any more."""
        if not run.hand or run.is_closed:
            return
        if run.has_failed and run.closing_at is not None:  # no read has it again: it stays unfinished
            return
        now, spans, run.hand = anyio.current_time(), run.hand, []
        if run.has_failed:
            run.has_failed = False
            return
        is_late = run.closing_at is not None and now >= run.closing_at + run.drain_timeout
        self._history.add(Finished(now, run, spans, is_late))
        self.world.finished(spans)

    async def _work(self, run: Run, consumer: Consumer, what: Message | Batch) -> None:
        """The body."""
        roll = self.chance.random()
        if run.is_slow:
            await anyio.sleep(self.chance.choice(SLOW_BODIES))
        elif roll < 0.2:
            await anyio.sleep(self.chance.choice([0.01, 0.1, 0.1, 0.5]))
        if self.fails_next:
            self.fails_next = False
            raise BodyFailed
        if roll < 0.05 or (run.mode == "disabled" and roll > 0.4):
            await self._store(run, consumer, what)

    async def _store(self, run: Run, consumer: Consumer, what: Message | Batch) -> None:
        spans: list[Span] = list(run.hand)
        if run.is_closed:
            return
        self._history.add(Gave(anyio.current_time(), run, spans, sure=False))
        self.world.finished(spans)
        try:
            with anyio.fail_after(self.chance.choice([0.05, 10.0])):
                await consumer.store_offset(what)
        except (TarryError, TimeoutError) as error:
            self._history.add(Raised(anyio.current_time(), run, error))
        else:
            if not self._is_gone(run):
                self._history.add(Gave(anyio.current_time(), run, spans, sure=True))

    def _is_gone(self, run: Run) -> bool:
        """It was killed; whatever came back later, nobody has heard it."""
        return run.is_closed and self._is_dead


def _raw(message: Message[Any]) -> bytes | None:
    """The value as the log has it."""
    return message.value.encode() if isinstance(message.value, str) else message.value


def _nothing() -> None:
    """Instead of a heartbeat."""
