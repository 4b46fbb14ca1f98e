"""`tarry group`: what it prints, what it sets, what it refuses; in this process, on a file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import tarry
from tarry.cli import main

Run = Callable[..., tuple[int, str, str]]
AT = ("--db", "t.db")
LINES = 6
STORED = 2
"""Group `billing` has read messages 0 to 2 of partition 0, and nothing of partition 1."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log in which a group has stored offsets, and no log in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("TARRY_URL", "TARRY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    anyio.run(_furnish)
    return tmp_path


async def _furnish() -> None:
    async with tarry.connect("t.db") as client:
        await client.create_topic("orders", partitions=2)
        await client.create_topic("other")
        async with client.producer("orders") as producer:
            await producer.send_many([tarry.Outgoing(b"%d" % number, partition=0) for number in range(LINES)])
        async with client.consumer("orders", group="billing") as consumer:
            await consumer.store_offset(await consumer.poll(count=STORED + 1, min_count=STORED + 1))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `tarry group ...`: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["group", *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def stored(run: Run, group: str = "billing") -> dict[tuple[str, int], int | None]:
    """What `describe` says is stored; a group without members and stored offsets is none."""
    code, out, _ = run("describe", *AT, group, "-o", "jsonl")
    assert code in {0, 5}
    rows = map(json.loads, out.splitlines())
    return {(row["topic"], row["partition"]): row["stored"] for row in rows}


BEFORE = {("orders", 0): STORED}


@contextmanager
def a_member(name: str) -> Generator[None]:
    """A living member of the group in this process, in a thread of its own; it owns both partitions."""
    has_joined, may_leave = threading.Event(), threading.Event()

    async def live() -> None:
        async with (
            tarry.connect("t.db") as client,
            client.consumer("orders", group="billing", member=name, on_assigned=lambda _: has_joined.set()),
        ):
            await anyio.to_thread.run_sync(may_leave.wait)

    thread = threading.Thread(target=anyio.run, args=(live,))
    thread.start()
    try:
        assert has_joined.wait(10)
        yield
    finally:
        may_leave.set()
        thread.join()


# --- looking ---


def test_groups_are_listed_by_name_with_their_lag(run: Run) -> None:
    code, out, err = run("list", *AT)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["group", "members", "generation", "partitions", "lag"],
        ["billing", "0", "2", "1", str(LINES - STORED - 1)],
    ]


def test_a_list_for_programs(run: Run) -> None:
    code, out, err = run("list", *AT, "-o", "jsonl")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"group": "billing", "members": 0, "generation": 2, "partitions": 1, "lag": 3}
    ]


def test_a_log_without_groups_says_so(run: Run) -> None:
    Path("empty.db").touch()
    assert run("list", "--db", "empty.db") == (
        0,
        "",
        "tarry: no groups yet in empty.db; a consumer with group= makes one\n",
    )


def test_a_group_is_described(run: Run) -> None:
    code, out, err = run("describe", *AT, "billing")
    assert (code, err) == (0, "")
    head, _, table = out.partition("\n\n")
    assert dict(line.split() for line in head.splitlines()) == {
        "group": "billing",
        "generation": "2",
        "members": "0",
        "lag": "3",
    }
    assert [line.split() for line in table.splitlines()] == [
        ["topic", "partition", "stored", "log_end", "lag", "member"],
        ["orders", "0", "2", "6", "3", "-"],
    ]


def test_members_are_shown_with_what_they_own(run: Run) -> None:
    with a_member("till-1"):
        code, out, err = run("describe", *AT, "billing")
    assert (code, err) == (0, "")
    *_, offsets, members = out.split("\n\n")
    member = members.splitlines()[1].split()
    assert members.splitlines()[0].split() == ["member", "name", "partitions", "asked", "back", "silent", "for"]
    assert member[1:4] == ["till-1", "2", "0"]
    assert [line.split()[-1] for line in offsets.splitlines()[1:]] == [member[0]] * 2


# --- setting ---


@pytest.mark.parametrize(
    ("to", "next_messages"),
    [
        (("start",), {0: 0, 1: 0}),
        (("end",), {0: LINES, 1: 0}),
        (("4", "-p", "0"), {0: 4}),
        (("0", "-p", "1", "-p", "0", "-p", "0"), {0: 0, 1: 0}),
        (("-2", "-p", "0"), {0: LINES - 2}),
        (("@2970-01-01T00:00Z", "-p", "0"), {0: LINES}),
    ],
)
def test_a_reset_sets_the_next_message_and_a_member_begins_there(
    run: Run, to: tuple[str, ...], next_messages: dict[int, int]
) -> None:
    code, out, err = run("reset", *AT, "billing", "orders", "--to", *to, "--yes")
    partitions = f"{len(next_messages)} partition{'s' if len(next_messages) > 1 else ''}"
    assert (code, err) == (0, f"tarry: group 'billing' was reset in {partitions} of topic 'orders'\n")
    assert {int(row[1]): int(row[-1]) for row in map(str.split, out.splitlines()[1:])} == next_messages
    now = stored(run)
    assert {number: -1 if (at := now.get(("orders", number))) is None else at for number in next_messages} == {
        number: upcoming - 1 for number, upcoming in next_messages.items()
    }
    assert anyio.run(_first_of, "billing") == min(next_messages[0], LINES)


async def _first_of(group: str) -> int:
    """Where a member begins to read partition 0."""
    has_joined = anyio.Event()
    async with (
        tarry.connect("t.db") as client,
        client.consumer("orders", group=group, on_assigned=lambda _: has_joined.set()) as consumer,
    ):
        await has_joined.wait()
        await consumer.ready()
        position = consumer.position(0)
        assert position is not None
        return position


def test_a_dry_run_shows_and_changes_nothing(run: Run) -> None:
    code, out, err = run("reset", *AT, "billing", "orders", "--to", "start", "--dry-run")
    assert (code, err) == (0, "tarry: nothing was changed (--dry-run)\n")
    assert [line.split() for line in out.splitlines()] == [
        ["topic", "partition", "stored", "new", "next"],
        ["orders", "0", "2", "-", "0"],
        ["orders", "1", "-", "-", "0"],
    ]
    assert stored(run) == BEFORE


def test_in_a_pipe_it_needs_yes(run: Run) -> None:
    code, _, err = run("reset", *AT, "billing", "orders", "--to", "end")
    assert code == 2
    assert err == (
        "tarry: group 'billing' in topic 'orders' was not reset; add --yes to do it without being asked, or --dry-run "
        "to look\n"
    )
    assert stored(run) == BEFORE


def test_a_group_with_members_is_not_reset(run: Run) -> None:
    with a_member("till-1"):
        code, _, err = run("reset", *AT, "billing", "orders", "--to", "end", "--yes")
    assert code == 3
    assert "group 'billing' has members that read on: " in err
    assert "Stop them first" in err
    assert err.count("\n") == 1
    assert stored(run) == BEFORE


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("describe", "billings"), 5, "group 'billings' has no members and no stored offsets"),
        (("reset", "billings", "orders", "--to", "end", "--yes"), 5, "group 'billings' has no members"),
        (("reset", "billing", "order", "--to", "end", "--yes"), 5, "there is no topic 'order' in t.db; did you mean"),
        (
            ("reset", "billing", "orders", "--to", "end", "-p", "7", "--yes"),
            5,
            "topic 'orders' has no partition 7; it has 2",
        ),
        (("reset", "billing", "orders", "--to", "99", "-p", "0", "--yes"), 2, "use an offset from 0 to 6"),
        (("reset", "billing", "orders", "--to", "99", "--dry-run"), 2, "use an offset from 0 to 6"),
        (("reset", "billing", "orders", "--to", "there", "--yes"), 2, "'there' is no place to start; write start, end"),
        (("reset", "billing", "orders", "--yes"), 2, "missing option '--to'"),
        (("reset", "billing", "--to", "end"), 2, "missing argument 'TOPIC'"),
        (("describe",), 2, "missing argument 'GROUP'"),
        (("describe", "a\tb"), 2, "control characters are not allowed"),
        (("descibe", "billing"), 2, "tarry group: no such command 'descibe'. Did you mean 'describe'?"),
    ],
)
def test_a_mistake_is_answered_with_one_line_and_changes_nothing(
    run: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    got, out, err = run(*arguments, *AT)
    assert (got, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1
    assert stored(run) == BEFORE


def test_the_log_must_be_there(run: Run) -> None:
    for command in (("list",), ("describe", "billing"), ("reset", "billing", "orders", "--to", "end", "--yes")):
        code, out, err = run(*command, "--db", "typo.db")
        assert (code, out) == (5, "")
        assert "there is no log at typo.db" in err
    assert not Path("typo.db").exists()
