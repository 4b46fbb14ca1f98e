"""`tarry group list|describe|reset`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import tarry
from tarry import abc
from tarry.cli.draining import Stop, run
from tarry.cli.failures import CommandError
from tarry.cli.logs import choose_log, find_topic, say
from tarry.cli.options import Db, Output, Url, examples
from tarry.cli.options import start as parse_start
from tarry.cli.tables import As, Cell, counted, print_json, print_table
from tarry.types import GroupInfo, Offset, Start, TopicPartition, offset_before

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("tarry group list --db orders.db", "tarry group describe --db orders.db billing"),
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False)]


@app.callback()
def group() -> None:
    """List, describe and reset consumer groups."""


@app.command("list", epilog=examples("tarry group list --db orders.db", "tarry group list --db orders.db -o jsonl"))
def list_groups(output: As = Output.TEXT, url: Url = None, db: Db = None) -> None:
    """Print all groups that have members or stored offsets, by name."""
    log = choose_log(url, db)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            groups = await client.groups()
        if output is Output.JSONL:
            print_json([_summary(info) for info in groups])
        elif not groups:
            say(f"no groups yet in {log.url}; a consumer with group= makes one")
        else:
            print_table([_summary(info) for info in groups])

    run(work)


@app.command(
    epilog=examples(
        "tarry group describe --db orders.db billing", "tarry group describe --db orders.db billing -o jsonl"
    )
)
def describe(name: Name, output: As = Output.TEXT, url: Url = None, db: Db = None) -> None:
    """Print where a group stands in each partition, and its members."""
    log = choose_log(url, db)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            info = await client.group(name)
        if output is Output.JSONL:
            print_json(_offsets(info))
            return
        print(f"group       {info.name}")
        print(f"generation  {info.generation}")
        print(f"members     {len(info.members)}")
        print(f"lag         {info.lag}")
        print()
        print_table(_offsets(info))
        if info.members:
            print()
            print_table(_members(info))

    run(work)


@app.command(
    epilog=examples(
        "tarry group reset --db orders.db billing orders --to start --dry-run",
        "tarry group reset --db orders.db billing orders --to 42 -p 0 --yes",
    )
)
def reset(
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to set offsets of.", show_default=False)],
    *,
    to: Annotated[
        Start,
        typer.Option(
            parser=parse_start, metavar="PLACE", help="Next message: start, end, an offset, -100, @2026-11-01T00:00Z."
        ),
    ],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Only this one; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would change; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    db: Db = None,
) -> None:
    """Set where a group goes on; it must have no members.

    What is set is the next message to be read of a topic. Asks first on a terminal; elsewhere it needs --yes.
    """
    log = choose_log(url, db)

    async def look(_: Stop) -> dict[TopicPartition, tuple[Cell, Offset | None]]:
        async with log.open() as client:
            info = await find_topic(client, topic, log)
            chosen = sorted(set(partition)) if partition else range(len(info.partitions))
            return await _plan(client, name, [TopicPartition(info.name, number) for number in chosen], to)

    plan = run(look)
    print_table([_change(at, before, after) for at, (before, after) in plan.items()])
    if dry_run:
        say("nothing was changed (--dry-run)")
        return
    if not yes:
        _ask(name, topic)

    async def work(_: Stop) -> None:
        async with log.open() as client:
            await client.reset_group(name, {at: after for at, (_, after) in plan.items()})
        say(f"group {name!r} was reset in {counted(len(plan), 'partition')} of topic {topic!r}")

    run(work)


async def _plan(
    client: tarry.Client, name: str, partitions: list[TopicPartition], to: Start
) -> dict[TopicPartition, tuple[Cell, Offset | None]]:
    """What is stored now for each partition, and what would be."""
    known = (await client.group(name)).offsets
    session = await client.broker.open_session(abc.ConsumerIdentity(None), (), partitions)
    try:
        found = {at: (await session.resolve(at, to)).position for at in partitions}
    finally:
        await session.leave()
    return {at: (known[at].stored if at in known else None, offset_before(found[at])) for at in partitions}


def _ask(name: str, topic: str) -> None:
    what = f"group {name!r} in topic {topic!r}"
    if not os.isatty(0):
        raise CommandError(f"{what} was not reset; add --yes to do it without being asked, or --dry-run to look")
    typer.confirm(f"Reset {what}?", abort=True, err=True)


def _summary(info: GroupInfo) -> dict[str, Cell]:
    return {
        "group": info.name,
        "members": len(info.members),
        "generation": info.generation,
        "partitions": len(info.offsets),
        "lag": info.lag,
    }


def _offsets(info: GroupInfo) -> list[dict[str, Cell]]:
    return [
        {
            "topic": at.topic,
            "partition": at.partition,
            "stored": offset.stored,
            "log_end": offset.log_end,
            "lag": offset.lag,
            "member": offset.owner,
        }
        for at, offset in sorted(info.offsets.items())
    ]


def _members(info: GroupInfo) -> list[dict[str, Cell]]:
    return [
        {
            "member": member.id,
            "name": member.member,
            "partitions": len(member.owned),
            "asked back": len(member.revoking),
            "silent for": f"{member.idle:.1f} s",
        }
        for member in info.members
    ]


def _change(at: TopicPartition, before: Cell, after: Offset | None) -> dict[str, Cell]:
    return {
        "topic": at.topic,
        "partition": at.partition,
        "stored": before,
        "new": after,
        "next": 0 if after is None else after + 1,
    }
