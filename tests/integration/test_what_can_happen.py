"""Every way in which the work on a message can end, in every commit mode: what comes twice, and what gets lost.

The expected cells are in `situations`, from which the table in docs/guarantees.md is made. Kills are done to real
processes on a real file; everything else happens in one process under virtual time, over the real log in memory.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import tarry
from tarry import AutoCommit, Consumer, Message, PollOptions
from tarry.errors import NotStarted, OutcomeUnknown, StaleAssignment
from tarry.testing import Script, ScriptedBroker, lose_reply
from tests.integration.situations import BATCH, IN_HAND, SITUATIONS, Fate, Mode, Situation
from tests.integration.zygote import Zygote, say
from tests.marks import rule
from tests.virtual import virtual

pytestmark = pytest.mark.slow
MESSAGES = 10
AT = 1
"""The partition with the messages; the other one is empty, so that a member that joins second gets this one."""
STRUCK_S = 1.0
"""Under virtual time: when every timer has struck."""
LATE_S = 10.0
"""Under virtual time: longer than anybody waits for the work."""


def commit_of(mode: Mode, timer_s: float | None) -> AutoCommit:
    period = 3600.0 if timer_s is None else timer_s
    return {
        "manual": AutoCommit.disabled(),
        "finished": AutoCommit.finished(period),
        "interval": AutoCommit.interval(period),
        "on_poll": AutoCommit.on_poll(),
    }[mode]


class Ledger:
    """On which messages work was begun and ended, over all runs and members."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    def fate(self) -> Fate:
        """What became of them."""
        offsets = range(MESSAGES)
        return Fate(
            again=tuple(at for at in offsets if self.begun[at] > 1 and self.ended[at] == 1),
            twice=tuple(at for at in offsets if self.ended[at] > 1),
            lost=tuple(at for at in offsets if self.ended[at] == 0),
        )


async def fill(client: tarry.Client) -> None:
    async with client.producer("t") as producer:
        await producer.send_many([tarry.Outgoing(b"%d" % number, partition=AT) for number in range(MESSAGES)])


def rows(*, killed: bool) -> pytest.MarkDecorator:
    cases = [
        pytest.param(row, mode, id=f"{row.name}-{mode}")
        for row in SITUATIONS
        if row.name.startswith("kill") == killed
        for mode in row.fates
    ]
    return pytest.mark.parametrize(("row", "mode"), cases)


# ------------------------------------------------------------------------------------------- in one process

Interlude = Callable[[], Awaitable[None]]


class Play:
    """One situation in one mode."""

    def __init__(self, client: tarry.Client, row: Situation, mode: Mode) -> None:
        self.client = client
        self.mode: Mode = mode
        self.commit = commit_of(mode, row.timer_s)
        self.ledger = Ledger()
        self.at_work = anyio.Event()

    def member(self, **options: Any) -> Consumer:
        given: dict[str, Any] = {"drain_timeout": 2.0, **options}
        return self.client.consumer("t", group="g", commit=self.commit, poll=PollOptions(count=BATCH), **given)

    async def work(self, consumer: Consumer, interlude: Interlude | None = None) -> None:
        """The loop of a member. The interlude comes in the middle of the work on the message in hand, once."""
        async for message in consumer:
            if interlude is not None and message.offset == IN_HAND:
                await self.work_on(consumer, message, interlude)
                interlude = None
            else:
                await self.work_on(consumer, message)

    async def work_on(self, consumer: Consumer, message: Message, interlude: Interlude | None = None) -> None:
        self.ledger.begun[message.offset] += 1
        if interlude is not None:
            await anyio.sleep(STRUCK_S)
            self.at_work.set()
            await interlude()
        self.ledger.ended[message.offset] += 1
        if self.mode == "manual":
            with contextlib.suppress(StaleAssignment, NotStarted, OutcomeUnknown):
                await consumer.store_offset(message)

    async def read_the_rest(self) -> None:
        """The next run."""
        async with self.member() as consumer:
            with anyio.move_on_after(2 * LATE_S):
                await self.work(consumer)

    @asynccontextmanager
    async def working(self, consumer: Consumer, interlude: Interlude) -> AsyncGenerator[None]:
        """A member at work on the message in hand, which goes on; at the end everything comes to rest."""
        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(self.work, consumer, interlude)
            await fill(self.client)
            await self.at_work.wait()
            yield
            await anyio.sleep(3 * LATE_S)
            await consumer.shutdown()


async def nap(seconds: float = 0.5) -> None:
    await anyio.sleep(seconds)


async def fail() -> None:
    raise ValueError("cannot do it")


async def stop(play: Play, *, late: bool) -> None:
    async with play.working(first := play.member(), partial(nap, LATE_S if late else 0.5)):
        await first.shutdown()
        await play.read_the_rest()


async def end_by_an_error(play: Play) -> None:
    await fill(play.client)
    with pytest.raises(ValueError, match="cannot do it"):
        async with play.member() as consumer:
            await play.work(consumer, fail)
    await play.read_the_rest()


async def end_by_a_break(play: Play) -> None:
    await fill(play.client)
    async with play.member() as consumer:
        async for message in consumer:
            if message.offset == IN_HAND:
                play.ledger.begun[message.offset] += 1
                await anyio.sleep(STRUCK_S)
                break
            await play.work_on(consumer, message)
    await play.read_the_rest()


async def end_by_a_cancel(play: Play) -> None:
    await fill(play.client)
    with anyio.CancelScope() as scope:

        async def be_cancelled() -> None:
            scope.cancel()
            await anyio.sleep_forever()

        async with play.member() as consumer:
            await play.work(consumer, be_cancelled)
    assert scope.cancelled_caught
    await play.read_the_rest()


async def lose_answers(play: Play) -> None:
    script = Script()
    script.on("store_offset", nth=1, do=lose_reply())
    script.on("poll", nth=1, do=lose_reply())
    log = play.client.broker

    async def open_broker(_: object) -> ScriptedBroker:
        return ScriptedBroker(log, script)

    async with tarry.Client(open_broker) as play.client:
        await end_by_an_error(play)
    assert "failed" in {call.outcome for call in script.calls if call.operation == "poll"}


async def hand_over(play: Play, *, late: bool = False) -> None:
    async with play.working(play.member(), partial(nap, LATE_S if late else 0.5)):
        await play.read_the_rest()


async def be_too_late(play: Play) -> None:
    async with play.working(play.member(drain_timeout=2 * LATE_S), partial(nap, LATE_S)):
        await play.read_the_rest()


async def evict(play: Play, then: Interlude = nap) -> None:
    """Three members for two partitions: who has none gets the one of who is evicted."""

    async def interlude() -> None:
        await anyio.sleep(LATE_S)  # no sign of life: the log's session_timeout is shorter
        await then()

    async def be_the_heir(member: Consumer) -> None:
        async with member:
            await play.work(member)

    async with play.member(), anyio.create_task_group() as tasks:
        heir = play.member()
        async with play.working(play.member(heartbeat_interval=3600.0), interlude):
            tasks.start_soon(be_the_heir, heir)
        await heir.shutdown()


async def evict_and_fail(play: Play) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await evict(play, fail)
    assert caught.group_contains(ValueError, match="cannot do it")


PLAYS: dict[str, Callable[[Play], Awaitable[None]]] = {
    "stop-in-time": partial(stop, late=False),
    "stop-late": partial(stop, late=True),
    "error": end_by_an_error,
    "break": end_by_a_break,
    "cancel": end_by_a_cancel,
    "lost-answers": lose_answers,
    "hand-over": hand_over,
    "hand-over-late": partial(hand_over, late=True),
    "taken": be_too_late,
    "evicted": evict,
    "evicted-before-timer": evict,
    "evicted-error": evict_and_fail,
}


@rule("I1", "K01", "K03")
@rows(killed=False)
@virtual(seeds=2)
async def test_what_can_happen_in_a_process_that_lives(row: Situation, mode: Mode) -> None:
    async with tarry.connect("memory:", session_timeout=5.0, rebalance_timeout=4.0) as client:
        await client.create_topic("t", partitions=2)
        play = Play(client, row, mode)
        await PLAYS[row.name](play)
        assert play.ledger.fate() == row.fates[mode]


# ----------------------------------------------------------------------------------------------- with kills


def work(path: str, situation: str, mode: Mode, timer_s: float | None) -> None:
    """A process that works, says what it does, and when it may be killed."""
    anyio.run(_work, path, situation, mode, timer_s)


async def _work(path: str, situation: str, mode: Mode, timer_s: float | None) -> None:
    async with (
        tarry.connect(path) as client,
        client.consumer("t", group="g", commit=commit_of(mode, timer_s), poll=PollOptions(count=BATCH)) as consumer,
        anyio.create_task_group() as tasks,
    ):
        if situation == "kill-idle":
            tasks.start_soon(_may_be_killed_when_idle, consumer)
        async for message in consumer:
            say("begun", message.offset)
            if message.offset == IN_HAND and situation != "kill-idle":
                if situation == "kill-behind":
                    say("ended", message.offset)
                await _may_be_killed(consumer, _stored_at_work(mode) if timer_s else None)
            say("ended", message.offset)
            if mode == "manual":
                await consumer.store_offset(message)


def _stored_at_work(mode: Mode) -> int:
    """What is stored while the message in hand is worked on, once the timer has struck."""
    return {"manual": IN_HAND - 1, "finished": IN_HAND - 1, "interval": IN_HAND, "on_poll": BATCH - 1}[mode]


async def _may_be_killed(consumer: Consumer, stored: int | None) -> None:
    while stored is not None and AT in _numbers(consumer) and consumer.last_stored(AT) != stored:  # noqa: ASYNC110
        await anyio.sleep(0.005)
    say("now")
    await anyio.sleep_forever()


async def _may_be_killed_when_idle(consumer: Consumer) -> None:
    """What a committing fetch brought is stored before anybody has it."""
    while AT not in _numbers(consumer) or consumer.last_delivered(AT) != MESSAGES - 1:  # noqa: ASYNC110
        await anyio.sleep(0.005)
    await _may_be_killed(consumer, MESSAGES - 1)


def _numbers(consumer: Consumer) -> set[int]:
    return {at.partition for at in consumer.assignment}


async def _furnish(path: str) -> None:
    async with tarry.connect(path) as client:
        await client.create_topic("t", partitions=2)
        await fill(client)


async def _read_the_rest(path: str, ledger: Ledger) -> None:
    async with tarry.connect(path) as client, client.consumer("t", group="g") as consumer:
        with anyio.fail_after(10):  # nobody waits for the session of the dead
            while AT not in _numbers(consumer):  # noqa: ASYNC110  # what a user can see
                await anyio.sleep(0.005)
        await consumer.ready()
        position = consumer.position(AT)
        assert position is not None
        for _ in range(position, MESSAGES):
            offset = (await anext(consumer)).offset
            ledger.begun[offset] += 1
            ledger.ended[offset] += 1


@pytest.fixture(scope="module")
def zygote() -> Generator[Zygote]:
    with Zygote() as helper:
        yield helper


@rule("K01", "C42", "I1")
@rows(killed=True)
def test_what_can_happen_to_a_process_that_is_killed(
    zygote: Zygote, tmp_path: Path, row: Situation, mode: Mode
) -> None:
    path = str(tmp_path / "t.db")
    anyio.run(_furnish, path)
    target = "tests.integration.test_what_can_happen:work"
    child = zygote.spawn(target, path, row.name, mode, row.timer_s, out=tmp_path / "out")
    while "now" not in child.lines:
        time.sleep(0.005)
    child.kill()
    ledger = Ledger()
    for line in child.lines:
        word, _, offset = line.partition(" ")
        if offset:
            getattr(ledger, word)[int(offset)] += 1
    anyio.run(_read_the_rest, path, ledger)
    assert ledger.fate() == row.fates[mode]
