"""Which log a command means, and what to say when it, or a topic in it, is not there. Not here: what a log does."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path

import tarry
from tarry.cli.failures import CommandError, Exit
from tarry.types import check_topic


class Log:
    """The log that a command works on, by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def file(self) -> Path | None:
        """The file behind the URL; None when it names something else."""
        if self.url.startswith("sqlite:///"):
            return Path(self.url.removeprefix("sqlite:///"))
        return None if "://" in self.url or self.url == "memory:" else Path(self.url)

    @asynccontextmanager
    async def open(self, *, create: bool = False) -> AsyncGenerator[tarry.Client]:
        """Open it for a while; without `create` a file that is not there is an error and stays away."""
        if self.file is not None and not create and not self.file.exists():
            raise CommandError(f"there is no log at {self.file}; {_other_file(self.file)}", Exit.NOT_FOUND)
        async with tarry.connect(self.url) as client:
            yield client


def choose_log(url: str | None, db: str | None) -> Log:
    """The log of `--url` or `--db`, or else of the environment's TARRY_URL."""
    if url and db and url != db:
        raise CommandError(f"--url {url} and --db {db} name two logs; give one of them")
    chosen = url if url is not None else db if db is not None else os.environ.get("TARRY_URL")
    if not chosen:
        raise CommandError("which log? Add --db PATH (or --url URL), or set TARRY_URL; for example --db orders.db")
    if chosen == "memory:":
        raise CommandError("a memory: log is private to one process and gone with it; give a file, like --db orders.db")
    return Log(chosen)


async def find_topic(client: tarry.Client, name: str, log: Log) -> tarry.TopicInfo:
    """The topic of that name, or an error that says which ones there are."""
    try:
        return await client.topic(name)
    except tarry.TopicNotFound:
        known = [topic.name for topic in await client.topics()]
        raise CommandError(
            f"there is no topic {check_topic(name)!r} in {log.url}; {_other_topic(name, known)}", Exit.NOT_FOUND
        ) from None


def similar(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    close = get_close_matches(name, list(known), 1)
    return close[0] if close else None


def say(text: str) -> None:
    """Tell a person something beside the data."""
    print(f"tarry: {text}", file=sys.stderr, flush=True)


def _other_topic(name: str, known: list[str]) -> str:
    if not known:
        return f"it has none yet: create one with `tarry topic create {name}`"
    close = similar(name, known)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"there is {', '.join(known[:5])}{' and more' if len(known) > 5 else ''}"


def _other_file(file: Path) -> str:
    if not file.parent.is_dir():
        return f"the directory {file.parent} does not exist either"
    close = similar(file.name, [other.name for other in file.parent.glob("*.db")])
    if close is not None:
        return f"did you mean {file.parent / close}?"
    return "`tarry topic create` and `tarry produce` make a new one"
