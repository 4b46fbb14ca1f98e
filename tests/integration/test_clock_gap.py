"""Members of a group that stand still by the real clock: a handler that blocks its loop, a process that is stopped.

The log runs in a thread of its own and goes on while a handler blocks; a stopped process stops it as well. What is
waited for is what happens, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

import tarry
from tarry import AutoCommit, PollOptions
from tarry.errors import StaleAssignment
from tarry.types import Message
from tests.marks import rule

pytestmark = pytest.mark.slow
LIMIT_S = 60.0
MESSAGES = 50
MEMBER: dict[str, Any] = {"group": "g", "commit": AutoCommit.finished(0.05), "heartbeat_interval": 0.1}


@dataclass
class Other:
    """The second member, in a thread with a loop of its own: what it got, and until when it reads."""

    path: str
    got: list[int] = field(default_factory=list[int])
    has_the_message: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    async def live(self) -> None:
        client = tarry.connect(self.path, session_timeout=1.0)
        async with client, client.consumer("t", **MEMBER) as me:
            while not self.is_over.is_set():
                for message in await me.poll(max_wait=0.1):
                    self.got.append(message.offset)
                    if message.offset == 5:
                        self.has_the_message.set()


@rule("K18", "K06")
@pytest.mark.parametrize("way", ["async for", "consume"])
@pytest.mark.anyio
async def test_a_handler_that_blocks_for_three_seconds(tmp_path: Path, way: str) -> None:
    path = str(tmp_path / "log.db")
    events: list[tuple[str, dict[str, object]]] = []
    seen: list[Message] = []
    refused: list[int] = []
    other = Other(path)
    thread = threading.Thread(target=lambda: anyio.run(other.live))
    client = tarry.connect(
        path, session_timeout=1.0, instruments=[lambda event, fields: events.append((event, dict(fields)))]
    )
    async with client:
        await client.create_topic("t")
        async with client.producer("t") as producer:
            await producer.send_many([b"%d" % number for number in range(MESSAGES)])
        async with client.consumer("t", poll=PollOptions(count=MESSAGES), **MEMBER) as member:
            await member.ready(LIMIT_S)
            thread.start()

            async def work(message: Message) -> None:
                seen.append(message)
                if message.offset == 5 and not refused:
                    while member.last_stored(0) != 4:  # noqa: ASYNC110  # what a user can see
                        await anyio.sleep(0.01)
                    time.sleep(3.0)  # noqa: ASYNC251  # the mistake
                    assert other.has_the_message.wait(LIMIT_S), "the log goes on in its own thread"
                    with pytest.raises(StaleAssignment):
                        await member.store_offset(message)
                    refused.append(message.offset)
                elif refused and message.offset == MESSAGES:
                    await member.shutdown()

            async def read() -> None:
                if way == "consume":
                    await member.consume(work)
                else:
                    async for message in member:
                        await work(message)

            with anyio.fail_after(LIMIT_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read)
                    while not refused or not member.health().is_member:  # noqa: ASYNC110  # it joins again by itself
                        await anyio.sleep(0.01)
                    other.is_over.set()
                    await anyio.to_thread.run_sync(thread.join)
                    async with client.producer("t") as producer:
                        await producer.send(b"the last one")
    offsets = [int(message.offset) for message in seen]
    old = seen[: offsets.index(5) + 1]
    assert [message.offset for message in old] == list(range(6)), "nothing more of the old ownership"
    again = {message.origin.ownership for message in seen[len(old) :]}
    assert again.isdisjoint({message.origin.ownership for message in old})
    assert sorted({*offsets, *other.got}) == list(range(MESSAGES + 1))
    assert min(other.got) == 5, "what was finished does not come again"
    gaps = [float(str(fields["seconds"])) for event, fields in events if event == "clock_gap"]
    assert len([gap for gap in gaps if gap >= 2.9]) == 1
    assert refused == [5]


STOPPED = """
import logging, sys
import anyio, tarry

logging.basicConfig()

async def main():
    async with tarry.connect("log.db", session_timeout=1.0, durability="normal") as client:
        await client.create_topic("t")
        consumer = client.consumer(
            "t", group="g", commit=tarry.AutoCommit.finished(0.05), heartbeat_interval=0.1,
            poll=tarry.PollOptions(count=10),
        )
        async with client.producer("t") as producer, consumer:
            await producer.send_many([b"x"] * 300)
            async for message in consumer:
                print(message.offset, flush=True)
                if message.offset == 299:
                    break
                await anyio.sleep(0.01)
    print("statistics", consumer.statistics().evictions, flush=True)

anyio.run(main, backend=sys.argv[1])
"""


@rule("K18")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process by a signal")
def test_a_process_that_is_stopped_goes_on_where_it_was(tmp_path: Path, backend: str) -> None:
    """The log stands still as well. Whichever of the two is awake first, nothing is lost and nothing is skipped."""
    (tmp_path / "program.py").write_text(STOPPED, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "program.py", backend],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            assert child.stdout is not None
            seen: list[str] = []
            while "20" not in seen:
                seen.append(child.stdout.readline().strip())
                assert seen[-1], child.communicate()[1]
            child.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            child.send_signal(signal.SIGCONT)
            out, err = child.communicate(timeout=LIMIT_S)
        finally:
            child.kill()
    assert child.returncode == 0, err
    *rest, last = out.splitlines()
    offsets = [int(line) for line in [*seen, *rest]]
    word, evictions = last.split()
    assert word == "statistics"
    assert sorted(set(offsets)) == list(range(300))
    steps = [after - before for before, after in pairwise(offsets)]
    back = [step for step in steps if step != 1]
    assert all(-20 < step <= 0 for step in back), "only what was not stored yet comes again, in order"
    assert len(back) <= int(evictions)
    gaps = [float(gap) for gap in re.findall(r"no sign of life for ([0-9.]+) s", err)]
    assert len([gap for gap in gaps if gap >= 2.5]) == 1, err
