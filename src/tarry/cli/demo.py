"""`tarry demo`: real data through the embedded log, read by a group whose members are stopped and cancelled on the way.

Everything it prints is counted from messages whose work was done. Not here: the file and the sums (`weather`).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
import anyio.lowlevel
import typer

import tarry
from tarry._runtime.clock import cpu_s
from tarry.brokers.local.broker import LocalBroker
from tarry.cli.draining import Stop, run
from tarry.cli.failures import CommandError
from tarry.cli.logs import Log, choose_log
from tarry.cli.options import Db, Url, examples
from tarry.cli.weather import Observation, Tally, own_file, read

EXAMPLES = examples("tarry demo", "tarry demo --data my-weather.csv --db weather.db")
TOPIC = "weather"
GROUP = "gauges"
PARTITIONS = 4
BATCH = 50
"""Messages of one committing fetch."""
PARK_S = 2.0


def demo(
    *,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV with date, precipitation, temp_max; default: Seattle's.")
    ] = None,
    url: Url = None,
    db: Db = None,
) -> None:
    """Send real data through a log, and wait at it.

    Four years of Seattle's weather go into four partitions. A group of two
    shares them, and the log commits what it serves; one member is stopped in
    the middle, the other is cancelled at work, and both start again.
    Uses a temporary log unless --db keeps it.
    """
    path = own_file() if data is None else data
    observations = read(path)
    log = choose_log(url, db) if url or db else None

    async def work(_: Stop) -> None:
        async with _open(log) as client:
            await _create_topic(client, log)
            print(f"{len(observations):,} daily observations of {path.name}")
            sent = await _produce(client, observations)
            await _consume(client, sent)
            await _park(client)

    run(work)


@asynccontextmanager
async def _open(log: Log | None) -> AsyncGenerator[tarry.Client]:
    if log is not None:
        async with log.open(create=True) as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="tarry-demo-") as folder:
        async with tarry.connect(str(Path(folder) / "weather.db")) as client:
            yield client


async def _create_topic(client: tarry.Client, log: Log | None) -> None:
    try:
        await client.create_topic(TOPIC, partitions=PARTITIONS)
    except tarry.TopicExists:
        where = "" if log is None else f" in {log.url}"
        raise CommandError(f"topic {TOPIC!r} exists already{where}; the demo wants it new: use another --db") from None


async def _produce(client: tarry.Client, observations: Iterable[Observation]) -> Counter[int]:
    """Send all rows; how many messages each partition has."""
    async with client.producer(TOPIC) as producer:
        receipts = await producer.send_many([tarry.Outgoing(row.value, row.key) for row in observations])
    sent = Counter(receipt.partition for receipt in receipts)
    _title(f"Produced into topic {TOPIC!r}, keyed by year and month")
    for partition in range(PARTITIONS):
        print(f"  partition {partition}  {sent[partition]:7,} messages")
    return sent


class _Seen:
    """Every message whose work was done, and what the values add up to."""

    def __init__(self, expected: int) -> None:
        self.tally = Tally()
        self.done: Counter[tuple[int, int]] = Counter()
        self.expected = expected
        self.complete = anyio.Event()

    def add(self, message: tarry.Message) -> None:
        """Note one message."""
        assert message.value is not None
        self.done[message.partition, message.offset] += 1
        self.tally.add(message.value)
        if len(self.done) >= self.expected:
            self.complete.set()


class _Member:
    """A member of the group, over all its lives."""

    def __init__(self, client: tarry.Client, name: str, seen: _Seen) -> None:
        self.client = client
        self.name = name
        self.seen = seen
        self.counted = 0
        self.reports: list[tuple[str, tarry.ShutdownReport]] = []
        self._in_work: tarry.Message | None = None

    async def live_until_stopped(self, quota: int) -> None:
        """Work until so many messages are counted; then be shut down from outside, as by a signal."""
        enough = anyio.Event()
        async with self._consumer() as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(self._work, consumer, quota, enough.set)
            await _first_of(enough, self.seen.complete)
            self.reports.append(("stopped in the middle", await consumer.shutdown()))

    async def live_until_cancelled(self, quota: int) -> tarry.Message | None:
        """Work until so many messages are counted; then be cancelled at work on the next one, which is returned."""
        scope = anyio.CancelScope()
        consumer = self._consumer()
        with scope:
            async with consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(self._work, consumer, quota, scope.cancel)
                await self.seen.complete.wait()
                await consumer.shutdown()
        self.reports.append(("cancelled in its loop body", await consumer.shutdown()))
        return self._in_work if scope.cancelled_caught else None

    async def live_to_the_end(self) -> None:
        """Work until every message is counted."""
        async with self._consumer() as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(self._work, consumer, -1, lambda: None)
            await self.seen.complete.wait()
            self.reports.append(("started again", await consumer.shutdown()))

    def _consumer(self) -> tarry.Consumer:
        return self.client.consumer(
            TOPIC, group=GROUP, member=self.name, commit=tarry.AutoCommit.on_poll(), poll=tarry.PollOptions(count=BATCH)
        )

    async def _work(self, consumer: tarry.Consumer, quota: int, reached: Callable[[], None]) -> None:
        counted = 0
        async for message in consumer:
            self._in_work = message
            if counted == quota:
                reached()
            await anyio.lowlevel.checkpoint()  # where the work would be, and where a cancel strikes
            self.seen.add(message)
            counted += 1
            self.counted += 1


async def _first_of(*events: anyio.Event) -> None:
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


async def _consume(client: tarry.Client, sent: Counter[int]) -> None:
    seen = _Seen(sent.total())
    first, second = _Member(client, "gauge-a", seen), _Member(client, "gauge-b", seen)
    quota = sent.total() // 5
    in_work: list[tarry.Message | None] = []

    async def be_cancelled() -> None:
        in_work.append(await second.live_until_cancelled(quota))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.live_until_stopped, quota)
        tasks.start_soon(be_cancelled)
    between = (first.counted, second.counted)
    async with anyio.create_task_group() as tasks:
        for member in (first, second):
            tasks.start_soon(member.live_to_the_end)
    _title(f"Consumed by group {GROUP!r} of two members, in commit-on-poll mode")
    for member, before in zip((first, second), between, strict=True):
        ends = member.reports[0][0]
        print(f"  {member.name} counted {before:,} messages and was {ends};")
        print(f"  started again it counted {member.counted - before:,} more")
    for message in in_work:
        if message is not None:
            times = seen.done[message.partition, message.offset]
            print(f"  at work was offset {message.offset} of partition {message.partition}, counted {times} time")
    _print_years(seen.tally)
    twice = sum(count - 1 for count in seen.done.values())
    print(f"  counted {len(seen.done):,} messages, {twice} of them twice; missing {sent.total() - len(seen.done)}")
    _title("Shutdown reports")
    for member in (first, second):
        for life, report in member.reports:
            print(f"  {member.name}, {life}")
            print("".join(f"    {line}\n" for line in str(report).splitlines()), end="")


def _print_years(tally: Tally) -> None:
    print()
    print("  year   days  precipitation  warmest day")
    for number, year in sorted(tally.years.items()):
        assert year.warmest is not None
        warmth, day = year.warmest
        print(f"  {number}  {year.days:5,}  {year.precipitation_mm:10.1f} mm  {day}, {warmth} °C")
    days = sum(year.days for year in tally.years.values())
    total = sum(year.precipitation_mm for year in tally.years.values())
    print(f"  all   {days:5,}  {total:10.1f} mm")
    print()


async def _park(client: tarry.Client) -> None:
    """Let a consumer wait where nothing comes any more, and say what that cost."""
    broker = client.broker
    assert isinstance(broker, LocalBroker)
    requests, cpu = broker.pump.requests, cpu_s()
    async with client.consumer(TOPIC, start=tarry.Start.end()) as consumer:
        batch = await consumer.poll(max_wait=PARK_S)
    requests, cpu = broker.pump.requests - requests, cpu_s() - cpu
    _title(f"Parked a consumer at the drained topic for {PARK_S:g} s")
    print(f"  {len(batch)} messages, {requests} requests, {cpu * 1000:.1f} ms of CPU")


def _title(text: str) -> None:
    print()
    is_styled = os.isatty(1) and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    print(f"\x1b[1m{text}\x1b[0m" if is_styled else text)
