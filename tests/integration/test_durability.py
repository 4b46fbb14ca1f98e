"""What is answered is on the disk: syncs are counted; and processes that die or live with the file open.

That a killed process loses nothing is in test_kill.py; it would not notice a missing sync.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tarry import abc
from tarry.config import LogOptions
from tarry.errors import LogInUse
from tests.integration.zygote import Child, Zygote, say
from tests.marks import rule
from tests.unit.brokers.local.store_rig import WallClock, make_sqlite, opened, values_of

pytestmark = pytest.mark.slow
APPENDS = 6


# --- what children do ---


def hold(path: str) -> None:
    """Have the log open until killed."""

    async def main() -> None:
        async with opened(make_sqlite, Path(path)):
            say("open")
            await anyio.sleep_forever()

    anyio.run(main)


def empty_and_wait(path: str) -> None:
    """Append 0 to 9, let retention remove everything, wait to be killed."""

    async def main() -> None:
        clock = WallClock()
        async with opened(make_sqlite, Path(path), clock=clock) as rig:
            (part,) = await rig.topic(retention_age=1.0)
            await rig.append(part, *[b"v"] * 10)
            clock.wall += 1000
            await rig.do(abc.Retain())
            say("trimmed", rig.listener.trims[-1].log_start)
            await anyio.sleep_forever()

    anyio.run(main)


def append_one_by_one(path: str, durability: str) -> None:
    """Say when an append is asked for and when its receipt is there."""

    async def main() -> None:
        options = LogOptions(durability=durability)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async with opened(make_sqlite, Path(path), options) as rig:
            (part,) = await rig.topic()
            for number in range(APPENDS):
                say("ask", number)
                await rig.append(part, b"v" * 200)
                say("receipt", number)

    anyio.run(main)


# --- the tests ---


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


def first_line(child: Child) -> str:
    deadline = time.monotonic() + 15
    while not child.lines:
        assert time.monotonic() < deadline, "the child says nothing"
        time.sleep(0.005)
    return child.lines[0]


@rule("K90")
def test_a_log_that_another_process_has_open_names_it_until_it_dies(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    child = zygote.spawn("tests.integration.test_durability:hold", str(path), out=tmp_path / "out")
    try:
        assert first_line(child) == "open"
        with pytest.raises(LogInUse, match=f"process {child.pid}") as caught:
            anyio.run(_open_and_close, path)
        assert caught.value.pid == child.pid
    finally:
        child.kill()
    anyio.run(_open_and_close, path)


async def _open_and_close(path: Path) -> None:
    async with opened(make_sqlite, path):
        pass


@rule("K40")
def test_offsets_go_on_after_a_kill_between_deletion_and_append(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    child = zygote.spawn("tests.integration.test_durability:empty_and_wait", str(path), out=tmp_path / "out")
    try:
        assert first_line(child) == "trimmed 10"
    finally:
        child.kill()

    async def look() -> tuple[int, list[bytes | None]]:
        async with opened(make_sqlite, path) as rig:
            ((state,),) = [topic.partitions for topic in rig.topics]
            base = (await rig.append(state.id, b"new")).base
            return base, values_of(await rig.read(state.id, 10))

    assert anyio.run(look) == (10, [b"new"])


@rule("W5")
@pytest.mark.parametrize(("durability", "syncs"), [("full", 1), ("normal", 0)])
def test_a_receipt_costs_one_sync_between_the_write_and_the_answer(tmp_path: Path, durability: str, syncs: int) -> None:
    strace = shutil.which("strace")
    if strace is None and not os.environ.get("TARRY_REQUIRE_ENGINES"):
        pytest.skip("strace is not installed")
    assert strace is not None, "strace is not installed, and TARRY_REQUIRE_ENGINES is set"
    program = "import sys; from tests.integration.test_durability import append_one_by_one as run; run(*sys.argv[1:])"
    trace = tmp_path / "trace"
    subprocess.run(
        [
            *(strace, "-f", "-qq", "-y", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o", str(trace)),
            *(sys.executable, "-c", program, str(tmp_path / "a.db"), durability),
        ],
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
    )
    calls = [_call(line) for line in trace.read_text().splitlines()]
    for number in range(1, APPENDS):  # The first one after opening may have to write the head of the file, too.
        between = calls[calls.index(f"ask {number}") + 1 : calls.index(f"receipt {number}")]
        assert between.count("sync") == syncs, between
        assert "write" in between
        assert between[-syncs:] == ["sync"] * syncs or not syncs, between  # Nothing is written behind the sync.


def _call(line: str) -> str | None:
    """`ask 3`, `receipt 3`, a write to the write-ahead file, or a sync of it."""
    for word in ("ask", "receipt"):
        if f'"{word} ' in line and "write(1<" in line:
            return line.split('"')[1].removesuffix("\\n")
    if "a.db-wal>" not in line:
        return None
    return "sync" if "sync(" in line else "write"
