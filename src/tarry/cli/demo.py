"""`tarry demo`: real data through the embedded log, with a consumer that is stopped in the middle and goes on.

Everything it prints is counted from delivered messages. Not here: the file and the sums (`weather`).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
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
PARTITIONS = 4
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

    Four years of Seattle's weather go into four partitions. Two consumers read
    two each; one is stopped in the middle and started again under its name.
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


class _Gauge:
    """A named consumer with its partitions, over all its lives."""

    def __init__(self, name: str, partitions: tuple[int, ...], sent: Counter[int]) -> None:
        self.name = name
        self.partitions = partitions
        self.expected = sum(sent[partition] for partition in partitions)
        self.counted = 0
        self.reports: list[tuple[str, tarry.ShutdownReport]] = []

    def __str__(self) -> str:
        return f"{self.name} (partitions {' and '.join(map(str, self.partitions))})"

    async def live(self, client: tarry.Client, seen: _Seen, until: int, life: str) -> None:
        """Read until so many messages are counted; then be shut down from outside, as by a signal."""
        consumer = client.consumer(
            TOPIC, name=self.name, partitions=self.partitions, commit=tarry.AutoCommit.finished()
        )
        enough = anyio.Event()

        async def count() -> None:
            async for message in consumer:
                seen.add(message)
                self.counted += 1
                if self.counted >= until:
                    enough.set()
                    await anyio.lowlevel.checkpoint()

        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            if self.counted < until:
                await enough.wait()
            self.reports.append((life, await consumer.shutdown()))


class _Seen:
    """Every delivery, and what the values add up to."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.deliveries: Counter[tuple[int, int]] = Counter()

    def add(self, message: tarry.Message) -> None:
        """Note one delivery."""
        assert message.value is not None
        self.deliveries[message.partition, message.offset] += 1
        self.tally.add(message.value)


async def _consume(client: tarry.Client, sent: Counter[int]) -> None:
    first, second = _Gauge("gauge-a", (0, 1), sent), _Gauge("gauge-b", (2, 3), sent)
    stopped, other = (first, second) if first.expected >= second.expected else (second, first)
    seen = _Seen()
    middle = max(1, stopped.expected // 2)
    at = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.live, client, seen, other.expected, "")
        await stopped.live(client, seen, middle, ", stopped in the middle")
        at = stopped.counted
        await stopped.live(client, seen, stopped.expected, ", started again")
    _title("Consumed by two named consumers")
    print(f"  {stopped} counted {at:,} messages, was stopped,")
    print(f"  started again under its name and counted {stopped.counted - at:,} more")
    print(f"  {other} counted {other.counted:,} messages")
    _print_years(seen.tally)
    twice = sum(count - 1 for count in seen.deliveries.values())
    missing = sum(sent.values()) - len(seen.deliveries)
    print(f"  delivered {len(seen.deliveries):,} messages, {twice} of them twice; missing {missing}")
    _title("Shutdown reports")
    for gauge in (first, second):
        for life, report in gauge.reports:
            print(f"  {gauge.name}{life}")
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
