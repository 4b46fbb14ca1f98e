"""`tarry topic create|list|describe|grow|delete`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tarry.cli.draining import Stop, run
from tarry.cli.failures import CommandError
from tarry.cli.logs import choose_log, find_topic, say
from tarry.cli.options import Db, Output, Url, duration, examples, size
from tarry.cli.tables import As, counted, print_json, print_table
from tarry.config import MIB
from tarry.errors import TopicExists
from tarry.types import TopicInfo

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("tarry topic create --db orders.db orders --partitions 4", "tarry topic list --db orders.db"),
)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name, or stream/name.", show_default=False)]


@app.callback()
def topic() -> None:
    """Create, list, describe, grow and delete topics."""


@app.command(
    epilog=examples(
        "tarry topic create --db orders.db orders --partitions 4",
        "tarry topic create --db orders.db audit --retention-age 7d --exist-ok",
    )
)
def create(
    name: Name,
    *,
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", help="1 to 10,000.")] = 1,
    retention_age: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Messages older than this may go, as 7d."),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Per partition; above it the oldest go, as 1GiB."),
    ] = None,
    max_record_bytes: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Largest message; default 1MiB, at most 16MiB."),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Fine if it is there already.")] = False,
    url: Url = None,
    db: Db = None,
) -> None:
    """Create a topic; the log's file is made when it is missing."""
    log = choose_log(url, db)

    async def work(_: Stop) -> None:
        async with log.open(create=True) as client:
            try:
                info = await client.create_topic(
                    name,
                    partitions,
                    retention_age=retention_age,
                    retention_bytes=retention_bytes,
                    max_record_bytes=MIB if max_record_bytes is None else max_record_bytes,
                    exist_ok=exist_ok,
                )
            except TopicExists:
                raise CommandError(f"topic {name!r} exists already; add --exist-ok to take it as it is") from None
        say(f"topic {info.name!r} has {counted(len(info.partitions), 'partition')}")

    run(work)


@app.command("list", epilog=examples("tarry topic list --db orders.db", "tarry topic list --db orders.db -o jsonl"))
def list_topics(output: As = Output.TEXT, url: Url = None, db: Db = None) -> None:
    """Print all topics, by name."""
    log = choose_log(url, db)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            topics = await client.topics()
        if output is Output.JSONL:
            print_json([_summary(info) for info in topics])
        elif not topics:
            say(f"no topics yet in {log.url}; create one with `tarry topic create NAME`")
        else:
            print_table([_summary(info) for info in topics])

    run(work)


@app.command(
    epilog=examples("tarry topic describe --db orders.db orders", "tarry topic describe --db orders.db orders -o jsonl")
)
def describe(name: Name, output: As = Output.TEXT, url: Url = None, db: Db = None) -> None:
    """Print the partitions of a topic: retained offsets and bytes."""
    log = choose_log(url, db)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            info = await find_topic(client, name, log)
        if output is Output.JSONL:
            print_json(_partitions(info))
            return
        print(f"topic             {info.name}")
        print(f"retention age     {'unlimited' if info.retention_age is None else f'{info.retention_age:g} s'}")
        print(f"retention bytes   {'unlimited' if info.retention_bytes is None else info.retention_bytes}")
        print(f"max record bytes  {info.max_record_bytes}")
        print()
        print_table(_partitions(info))

    run(work)


@app.command(epilog=examples("tarry topic grow --db orders.db orders --partitions 8"))
def grow(
    name: Name,
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="How many it is to have in all.", show_default=False)
    ],
    url: Url = None,
    db: Db = None,
) -> None:
    """Give a topic more partitions.

    Consumers and groups read them from their first message. Equal keys may go to another partition from then on.
    """
    log = choose_log(url, db)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            before = await find_topic(client, name, log)
            info = await client.grow_topic(before.name, partitions)
        added = len(info.partitions) - len(before.partitions)
        say(f"topic {info.name!r} has {counted(len(info.partitions), 'partition')}, {added} of them new")

    run(work)


@app.command(
    epilog=examples("tarry topic delete --db orders.db orders", "tarry topic delete --db orders.db orders --yes")
)
def delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    db: Db = None,
) -> None:
    """Delete a topic with its messages and stored offsets.

    Asks first on a terminal; elsewhere it needs --yes.
    """
    log = choose_log(url, db)

    async def look(_: Stop) -> TopicInfo:
        async with log.open() as client:
            return await find_topic(client, name, log)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            info = await find_topic(client, name, log)
            await client.delete_topic(info.name)
        say(f"deleted topic {info.name!r} with {counted(_messages(info), 'message')}")

    if not yes:
        _ask(run(look))  # Outside of the event loop, so that Ctrl-C is heard.
    run(work)


def _ask(info: TopicInfo) -> None:
    what = f"topic {info.name!r} with {counted(_messages(info), 'message')}"
    if not os.isatty(0):
        raise CommandError(f"{what} was not deleted; add --yes to delete it without being asked")
    typer.confirm(f"Delete {what}?", abort=True, err=True)


def _messages(info: TopicInfo) -> int:
    return sum(part.log_end - part.log_start for part in info.partitions)


def _summary(info: TopicInfo) -> dict[str, str | int]:
    return {
        "topic": info.name,
        "partitions": len(info.partitions),
        "messages": _messages(info),
        "bytes": sum(part.size for part in info.partitions),
    }


def _partitions(info: TopicInfo) -> list[dict[str, str | int]]:
    return [
        {
            "partition": part.partition,
            "log_start": part.log_start,
            "log_end": part.log_end,
            "messages": part.log_end - part.log_start,
            "bytes": part.size,
        }
        for part in info.partitions
    ]
