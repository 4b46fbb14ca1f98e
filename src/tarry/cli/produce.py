"""`tarry produce`: lines become messages.

What is there to read goes out together, in batches; a line that comes alone goes out alone, at once. At most one piece
of input is held in memory. Not here: what a JSON line means (`records`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Annotated

import anyio
import typer

import tarry
from tarry.cli.draining import Stop, run
from tarry.cli.failures import CommandError, code_of
from tarry.cli.logs import choose_log, say, similar
from tarry.cli.options import Db, Url, examples
from tarry.cli.pipes import Lines, Source
from tarry.cli.progress import Bar
from tarry.cli.records import Format, reader

EXAMPLES = examples(
    "printf 'a\\nb\\n' | tarry produce --db t.db lines",
    """echo '{"key": "k", "value": "v"}' | tarry produce --db t.db -f jsonl lines""",
)
JSON_GROWTH = 8
"""A JSON line is at most so many times longer than its message: six for `\\u0000`, and the names of the fields."""


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the messages go.", show_default=False)],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Lines; - is stdin.")] = "-",
    *,
    form: Annotated[Format, typer.Option("--format", "-f", help="What a line is.")] = Format.TEXT,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of each message that has none.")
    ] = None,
    url: Url = None,
    db: Db = None,
) -> None:
    """Append lines of stdin or a file to a topic, each as one message.

    Of a text line only the line end is taken off. A JSON line is an object with
    value (null: a delete marker), key, headers, partition, timestamp_ms; bytes
    that are no UTF-8 are value_base64, key_base64. A topic that is missing is
    created with one partition.
    """
    log = choose_log(url, db)
    source = _open(file)

    async def work(stop: Stop) -> None:
        async with log.open(create=True) as client:
            info = await _topic(client, topic)
            bytes_max = info.max_record_bytes * (1 if form is Format.TEXT else JSON_GROWTH)
            async with client.producer(info.name) as producer:
                parse = reader(form, None if key is None else os.fsencode(key))
                sending = _Sending(producer, source, Lines(bytes_max), parse)
                try:
                    await sending.run(stop)
                finally:
                    sending.tell(info.name, stop)

    run(work, drains=True)


def _open(file: str) -> Source:
    """Before the event loop starts, since opening a named pipe waits for the other end."""
    name = "stdin" if file == "-" else file
    try:
        descriptor = 0 if file == "-" else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        source = Source(descriptor, name)
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}; name a file, or leave it out for stdin") from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise CommandError(f"{file} is a directory; name a file with one message a line")
    if source.is_terminal:
        say("reading lines from the terminal; Ctrl-D ends")
    return source


async def _topic(client: tarry.Client, name: str) -> tarry.TopicInfo:
    """The topic, made with one partition when it is missing (design 1.3, P1)."""
    try:
        return await client.topic(name)
    except tarry.TopicNotFound:
        known = similar(name, [topic.name for topic in await client.topics()])
        info = await client.create_topic(name, exist_ok=True)
        say(f"created topic {info.name!r} with 1 partition" + (f" (there is also {known!r})" if known else ""))
        return info


class _Sending:
    """The lines on their way, and how far they got."""

    def __init__(
        self, producer: tarry.Producer, source: Source, lines: Lines, parse: Callable[[bytes], tarry.Outgoing | None]
    ) -> None:
        self._producer = producer
        self._source = source
        self._lines = lines
        self._parse = parse
        self._sent = 0

    async def run(self, stop: Stop) -> None:
        """Until the input ends, or somebody asks to stop; what was read is sent."""
        with Bar(f"sending {self._source.name}", self._source.size, wanted=not self._source.is_terminal) as bar:
            while not stop.requested:
                data = await self._read(stop)
                if data is None:
                    break
                await self._send(data)
                bar.advance(len(data))
                if not data:
                    break

    async def _read(self, stop: Stop) -> bytes | None:
        """The next piece, empty at the end; None when somebody asks to stop instead."""
        with stop.interruptible():
            return await self._source.read()
        return None

    def tell(self, topic: str, stop: Stop) -> None:
        """How much was sent, and what was left out."""
        why = f"stopped by {stop.signal.name}; " if stop.signal is not None else ""
        say(f"{why}sent {self._sent} message{'' if self._sent == 1 else 's'} to {topic!r}")
        if stop.requested and self._lines.rest:
            say(f"left out the last {len(self._lines.rest)} bytes, which no line end follows yet")

    async def _send(self, data: bytes) -> None:
        """Send the lines that `data` completes; those in front of a bad one are sent before it is refused."""
        numbers: list[int] = []
        messages: list[tarry.Outgoing] = []
        refusal: CommandError | None = None
        for number, line in self._lines.feed(data):
            try:
                message = self._parse(line)
            except CommandError as error:
                refusal = CommandError(self._place(number, error), error.code)
                break
            if message is not None:
                numbers.append(number)
                messages.append(message)
        await self._append(numbers, messages)
        if refusal is not None:
            raise refusal
        if self._lines.is_too_long:
            raise CommandError(
                f"{self._source.name} line {self._lines.number + 1} has no end within {self._lines.bytes_max} bytes, "
                "more than this topic takes as one message; is it the right file? "
                "`tarry topic create --max-record-bytes` sets the limit"
            )

    async def _append(self, numbers: list[int], messages: list[tarry.Outgoing]) -> None:
        try:
            self._sent += len(await self._producer.send_many(messages))
        except tarry.SendFailed as error:
            self._sent += len(error.receipts)
            raise
        except tarry.UsageError:  # One of them cannot be sent, and nothing was: find it.
            for number, message in zip(numbers, messages, strict=True):
                await self._append_one(number, message)

    async def _append_one(self, number: int, message: tarry.Outgoing) -> None:
        try:
            await self._producer.send_many([message])
        except tarry.UsageError as error:
            raise CommandError(self._place(number, error), code_of(error)) from None
        self._sent += 1
        await anyio.lowlevel.checkpoint()

    def _place(self, number: int, error: Exception) -> str:
        return f"{self._source.name} line {number}: {error}"
