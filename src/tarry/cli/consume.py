"""`tarry consume`: messages become lines on stdout.

A message counts as finished once its line was handed to stdout; under a name that is what is stored. Not here: how a
line looks (`records`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import anyio
import typer

import tarry
from tarry.cli.draining import Stop, run
from tarry.cli.failures import CommandError
from tarry.cli.logs import choose_log, find_topic, say
from tarry.cli.options import Db, Url, duration, examples, size, start
from tarry.cli.pipes import Sink
from tarry.cli.progress import Bar
from tarry.cli.records import Format, writer
from tarry.config import MIB
from tarry.types import StartKind

EXAMPLES = examples(
    "tarry consume --db t.db lines -n 2",
    "tarry consume --db t.db lines --name audit -o jsonl --exit-at-end",
)
READ_COUNT = 1000
"""Messages of one poll."""
CHUNK_BYTES = 64 * 1024
"""Lines are handed to stdout in pieces of about this size; between two of them a signal is heard."""


@dataclass(frozen=True)
class _Wanted:
    """What was asked for on the command line."""

    count: int | None
    min_count: int
    max_wait: float
    max_bytes: int
    exit_at_end: bool
    form: Format


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="What to read.", show_default=False)],
    *,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="End after N messages.")
    ] = None,
    where: Annotated[
        tarry.Start | None,
        typer.Option(
            "--from",
            parser=start,
            metavar="WHERE",
            help="start, end, an OFFSET, -100 (the newest 100 of each partition) or @2026-11-01T00:00Z. "
            "Default: start; with --name where that stopped.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Store under this name what was printed, and go on there."),
    ] = None,
    min_count: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=READ_COUNT, help="Wait until so many are there.")
    ] = None,
    max_wait: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Then print what is there, as 1500ms, 30s; default 5s."),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(parser=size, metavar="SIZE", help="Most bytes of one poll; default 1MiB.")
    ] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="Values, or whole messages.")] = Format.TEXT,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="End when nothing is left to read.")] = False,
    url: Url = None,
    db: Db = None,
) -> None:
    """Print messages, one a line; waits at the log for more.

    Ctrl-C ends it in order: what was printed is finished, and with --name
    stored. A second Ctrl-C cuts that short.
    """
    _check(count, min_count, max_wait, exit_at_end=exit_at_end)
    log = choose_log(url, db)
    wanted = _Wanted(
        count,
        min_count or 1,
        5.0 if max_wait is None else max_wait,
        MIB if max_bytes is None else max_bytes,
        exit_at_end,
        output,
    )
    begin = where or (tarry.Start.first() if name is None else tarry.Start.next())

    async def work(stop: Stop) -> None:
        async with log.open() as client:
            for topic in topics:
                await find_topic(client, topic, log)
            await _consume(_consumer(client, topics, name, begin, wanted), wanted, stop, is_named=name is not None)

    run(work, drains=True)


def _check(count: int | None, min_count: int | None, max_wait: float | None, *, exit_at_end: bool) -> None:
    if count is not None and min_count is not None and min_count > count:
        raise CommandError(f"--min-count {min_count} is above -n {count}, and would wait for ever; lower it")
    if exit_at_end and (min_count is not None or max_wait is not None):
        raise CommandError("--exit-at-end does not wait, so --min-count and --max-wait mean nothing with it; drop them")
    if max_wait == 0:
        raise CommandError("--max-wait 0 would ask again and again without a pause; give a time, or use --exit-at-end")


def _consumer(
    client: tarry.Client, topics: list[str], name: str | None, begin: tarry.Start, wanted: _Wanted
) -> tarry.Consumer:
    # Start.last() begins at the newest `PollOptions.count` messages; what one poll brings is said at each poll.
    newest = begin.value if begin.kind is StartKind.LAST else None
    return client.consumer(
        *topics,
        name=name,
        start=begin,
        poll=tarry.PollOptions(count=newest or READ_COUNT, max_wait=wanted.max_wait, max_bytes=wanted.max_bytes),
        commit=tarry.AutoCommit.disabled() if name is None else tarry.AutoCommit.finished(),
        buffer_messages=2 * READ_COUNT,
    )


async def _consume(consumer: tarry.Consumer, wanted: _Wanted, stop: Stop, *, is_named: bool) -> None:
    sink = Sink(1)
    stop.end_when(sink.abandoned)
    printing = _Printing(consumer, sink, wanted, stop)
    async with consumer:
        try:
            await printing.run()
        except BrokenPipeError:
            return  # Whoever read it has enough.
        finally:
            if is_named:
                await printing.store()
    if stop.signal is not None:
        say(f"stopped by {stop.signal.name} after {printing.count} message{'' if printing.count == 1 else 's'}")
        if is_named:
            print(await consumer.shutdown(), file=sys.stderr)


class _Printing:
    """The messages on their way to stdout, and how far they got."""

    def __init__(self, consumer: tarry.Consumer, sink: Sink, wanted: _Wanted, stop: Stop) -> None:
        self._consumer = consumer
        self._sink = sink
        self._wanted = wanted
        self._stop = stop
        self._line_of = writer(wanted.form)
        self._printed: dict[tarry.TopicPartition, tarry.Message] = {}
        self.count = 0

    @property
    def _left(self) -> int:
        """How many messages a poll may bring."""
        return READ_COUNT if self._wanted.count is None else min(READ_COUNT, self._wanted.count - self.count)

    async def run(self) -> None:
        """Until enough is printed, the end is reached, or somebody asks to stop."""
        with Bar("printing", self._wanted.count, wanted=not os.isatty(1)) as bar:
            while self._left > 0 and not self._stop.requested:
                before = self.count
                batch = await self._poll()
                if self._wanted.exit_at_end and not batch and await self._is_at_end():
                    break
                await self._print(batch)
                bar.advance(self.count - before)

    async def store(self) -> None:
        """Store what was printed of the newest batch; what came before it is finished by the poll that brought it."""
        with anyio.CancelScope(shield=True):
            for message in self._printed.values():
                await self._consumer.store_offset(message)

    async def _poll(self) -> Sequence[tarry.Message]:
        """The next batch, or nothing when a signal ends the wait."""
        batch: Sequence[tarry.Message] = ()
        with self._stop.interruptible():
            batch = await self._consumer.poll(
                count=self._left,
                min_count=min(self._wanted.min_count, self._left),
                max_wait=0.0 if self._wanted.exit_at_end else None,
            )
            self._printed = {}
        return batch

    async def _print(self, batch: Sequence[tarry.Message]) -> None:
        """Print a batch; a signal stops it at the next piece."""
        for piece in _pieces(batch, self._line_of):
            await self._sink.write(b"".join(line for line, _ in piece))
            self.count += len(piece)
            self._printed |= {message.topic_partition: message for _, message in piece}
            if self._stop.requested:
                return

    async def _is_at_end(self) -> bool:
        lags = (await self._consumer.lag()).values()
        return all(lag.position is not None and lag.delivered == 0 for lag in lags)


def _pieces(
    batch: Sequence[tarry.Message], line_of: Callable[[tarry.Message], bytes]
) -> Iterator[list[tuple[bytes, tarry.Message]]]:
    """Messages with their lines, in pieces of about `CHUNK_BYTES`."""
    piece: list[tuple[bytes, tarry.Message]] = []
    size = 0
    for message in batch:
        line = line_of(message)
        piece.append((line, message))
        size += len(line)
        if size >= CHUNK_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
