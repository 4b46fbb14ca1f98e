"""`tarry.run` as a process that gets SIGINT and SIGTERM: once, twice, three times; waiting, at work, blocked.

Nothing here depends on how fast the machine is: the child is waited for by what it prints, and a work that a signal
must cut short would outlast the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest

from tests.marks import rule

pytestmark = pytest.mark.slow
WAYS = [("asyncio", signal.SIGINT, 130), ("trio", signal.SIGTERM, 143)]
each_way = pytest.mark.parametrize(("backend", "number", "code"), WAYS)
LIMIT_S = 30.0

WORKER = """
import sys, time
from contextlib import asynccontextmanager
import anyio, tarry
from tarry.testing import FaultLayer, FaultyLog

backend, kind, drain_timeout, leaders = sys.argv[1:]

@asynccontextmanager
async def connected():
    if leaders == "1":
        async with tarry.connect("jobs.db", durability="normal") as client:
            yield client
    else:
        async with FaultyLog(leaders=int(leaders)) as log, FaultLayer(log).client() as client:
            yield client

def say(text):
    print(text, flush=True)

async def work(message, consumer):
    while message.offset == 1 and consumer.last_stored(0) != 1:
        await anyio.sleep(0.01)
    say(f"begin {message.offset}")
    if message.offset == 1:
        if kind == "blocks":
            time.sleep(3600)
        if kind == "blocks until told":
            sys.stdin.readline()
        if kind in ("sleeps", "hangs"):
            while "shutting down" not in repr(consumer):
                await anyio.sleep(0.01)
            say("draining")
        if kind == "hangs":
            await anyio.sleep_forever()
    say(f"done {message.offset}")

async def main():
    async with connected() as client:
        await client.create_topic("jobs", partitions=int(leaders))
        if kind == "has no consumer":
            say("open")
            await anyio.sleep_forever()
        if kind not in ("idles", "opens another"):
            async with client.producer("jobs") as producer:
                await producer.send_many([tarry.Outgoing(b"%d" % at, partition=0) for at in range(3)])
        consumer = client.consumer("jobs", name="worker", commit=tarry.AutoCommit.each_message())
        try:
            async with consumer:
                await consumer.ready()
                say("open")
                async for message in consumer:
                    await work(message, consumer)
            say("loop ended")
            if kind == "opens another":
                async with client.consumer("jobs") as late:
                    async for message in late:
                        pass
        finally:
            with anyio.CancelScope(shield=True):
                say(await consumer.shutdown())
    return "returned"

say(tarry.run(main, backend=backend, drain_timeout=float(drain_timeout)))
"""


@contextmanager
def worker(
    folder: Path, backend: str, kind: str, *, drain_timeout: float = 600.0, leaders: int = 1
) -> Generator[subprocess.Popen[str]]:
    """A worker of three jobs that is stuck in job 1, the way that `kind` says; killed if the test leaves it so."""
    program, pipe = folder / "worker.py", subprocess.PIPE
    program.write_text(WORKER, encoding="utf-8")
    command = [sys.executable, str(program), backend, kind, str(drain_timeout), str(leaders)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def until(child: subprocess.Popen[str], line: str) -> None:
    """Read what it prints up to a line."""
    assert child.stdout is not None
    while (said := child.stdout.readline()) != f"{line}\n":
        assert said, f"it ended before {line!r}: {child.communicate()[1]}"


def rest(child: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = child.communicate(timeout=LIMIT_S)
    return child.returncode, out.splitlines(), err


@rule("K15")
@pytest.mark.parametrize(("backend", "number"), [way[:2] for way in WAYS])
@pytest.mark.parametrize("kind", ["idles", "opens another"])
def test_a_signal_ends_a_wait_in_order(tmp_path: Path, backend: str, number: signal.Signals, kind: str) -> None:
    with worker(tmp_path, backend, kind) as child:
        until(child, "open")
        child.send_signal(number)
        assert rest(child) == (0, ["loop ended", "jobs[0]: committed nothing, rewound 0, unfinished 0", "returned"], "")


@rule("K15", "K03")
@pytest.mark.parametrize(("backend", "number"), [way[:2] for way in WAYS])
def test_a_signal_lets_the_message_in_work_come_to_its_end(
    tmp_path: Path, backend: str, number: signal.Signals
) -> None:
    with worker(tmp_path, backend, "sleeps") as child:
        until(child, "begin 1")
        child.send_signal(number)
        report = "jobs[0]: committed 1, rewound 0, unfinished 0"
        assert rest(child) == (0, ["draining", "done 1", "loop ended", report, "returned"], "")


@rule("K15", "K03")
@each_way
def test_a_second_signal_cancels_the_work_and_brings_its_offset_back(
    tmp_path: Path, backend: str, number: signal.Signals, code: int
) -> None:
    with worker(tmp_path, backend, "hangs") as child:
        until(child, "begin 1")
        child.send_signal(number)
        until(child, "draining")
        child.send_signal(signal.SIGINT)
        assert rest(child) == (code, ["jobs[0]: committed 0, rewound 1, unfinished 1"], "")


@rule("K15")
@each_way
def test_work_that_outlasts_the_drain_timeout_is_cancelled(
    tmp_path: Path, backend: str, number: signal.Signals, code: int
) -> None:
    with worker(tmp_path, backend, "hangs", drain_timeout=0.5) as child:
        until(child, "begin 1")
        child.send_signal(number)
        assert rest(child) == (code, ["draining", "jobs[0]: committed 0, rewound 1, unfinished 1"], "")


@each_way
def test_a_program_without_a_consumer_is_cancelled_at_once(
    tmp_path: Path, backend: str, number: signal.Signals, code: int
) -> None:
    with worker(tmp_path, backend, "has no consumer") as child:
        until(child, "open")
        child.send_signal(number)
        assert rest(child) == (code, [], "")


@rule("K15")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_signals_while_a_handler_blocks_are_obeyed_when_it_returns(
    tmp_path: Path, backend: str, numbers: tuple[signal.Signals, ...]
) -> None:
    with worker(tmp_path, backend, "blocks until told") as child:
        until(child, "begin 1")
        for number in numbers:
            child.send_signal(number)
        assert child.stdin is not None
        child.stdin.write("go on\n")
        child.stdin.flush()
        code, said, err = rest(child)
    done = max(int(line.removeprefix("done ")) for line in said if line.startswith("done "))
    assert err == ""
    assert code in ({0} if len(numbers) == 1 else {130, 143})  # whichever the system delivered first
    assert f"jobs[0]: committed {done}, rewound 0, unfinished 0" in said


@rule("K15")
@each_way
def test_a_third_signal_ends_a_handler_that_blocks(
    tmp_path: Path, backend: str, number: signal.Signals, code: int
) -> None:
    with worker(tmp_path, backend, "blocks") as child:
        until(child, "begin 1")
        while child.poll() is None:
            child.send_signal(number)
            sleep(0.05)
        assert rest(child) == (code, [], "")


@rule("K15", "K03")
@pytest.mark.parametrize("kind", ["idles", "hangs"])
@each_way
def test_it_is_the_same_with_three_leaders(
    tmp_path: Path, backend: str, number: signal.Signals, code: int, kind: str
) -> None:
    """A wait is out at each of them; in the end the work is cancelled and its offset brought back."""
    with worker(tmp_path, backend, kind, drain_timeout=0.5, leaders=3) as child:
        until(child, "open" if kind == "idles" else "begin 1")
        child.send_signal(number)
        untouched = [f"jobs[{at}]: committed nothing, rewound 0, unfinished 0" for at in range(3)]
        if kind == "idles":
            assert rest(child) == (0, ["loop ended", *untouched, "returned"], "")
        else:
            cut = "jobs[0]: committed 0, rewound 1, unfinished 1"
            assert rest(child) == (code, ["draining", cut, *untouched[1:]], "")
