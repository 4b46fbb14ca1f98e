"""The command `tarry` as a process: pipes, signals, other processes, exit codes.

What one process can show is in tests/unit/cli. Nothing here depends on how fast the machine is: a child is waited for
by what it prints or stores.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import IO

import anyio
import pytest

from tarry import connect
from tarry.cli import main
from tests.marks import rule

pytestmark = pytest.mark.slow
TARRY = [sys.executable, "-m", "tarry"]
SCRIPT = str(Path(sys.executable).with_name("tarry"))
Left = Callable[..., bytes]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without a log in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("TARRY_URL", "TARRY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tarry(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run([*TARRY, *arguments], input=data, capture_output=True, check=False, timeout=20)


@contextmanager
def running(*arguments: str, stdout: int = subprocess.PIPE) -> Generator[subprocess.Popen[bytes]]:
    """A command that goes on; killed if the test leaves it so."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*TARRY, *arguments], stdin=pipe, stdout=stdout, stderr=pipe, bufsize=0) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def out_of(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def into(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdin is not None
    return child.stdin


def read_lines(child: subprocess.Popen[bytes], count: int) -> list[bytes]:
    """Exactly so many lines, and not a byte more."""
    return [out_of(child).readline() for _ in range(count)]


def fill(topic: str, count: int) -> None:
    """Numbered lines of a hundred bytes."""

    async def send() -> None:
        async with connect("t.db") as client:
            await client.create_topic(topic)
            async with client.producer(topic) as producer:
                await producer.send_many([b"%06d %s" % (number, b"x" * 92) for number in range(count)])

    anyio.run(send)


@pytest.fixture
def left(capfdbinary: pytest.CaptureFixture[bytes]) -> Left:
    """What a consumer still gets of a topic."""

    def consume(topic: str, *options: str) -> bytes:
        capfdbinary.readouterr()
        assert main(["consume", "--db", "t.db", topic, "--exit-at-end", *options]) == 0
        out, err = capfdbinary.readouterr()
        assert err == b""
        return out

    return consume


def numbers(lines: bytes) -> list[int]:
    return [int(line[:6]) for line in lines.splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():  # The ceiling is the test's own time limit.
        sleep(0.02)


def stored_records(db: str) -> int:
    """What a log holds durably, seen from outside."""
    if not Path(db).exists():
        return 0
    connection = sqlite3.connect(f"file:{db}?mode=ro", uri=True)
    try:
        (count,) = connection.execute("SELECT coalesce(sum(count), 0) FROM batch").fetchone()
        return int(count)
    except sqlite3.OperationalError:  # Its tables are not there yet.
        return 0
    finally:
        connection.close()


# --- in and out ---


@pytest.mark.parametrize("command", [TARRY, [SCRIPT]], ids=["module", "script"])
def test_two_lines_go_in_and_come_out(command: list[str]) -> None:
    produced = subprocess.run(
        [*command, "produce", "--db", "t.db", "lines"], input=b"a\nb\n", capture_output=True, check=False
    )
    assert (produced.returncode, produced.stdout) == (0, b"")
    consumed = subprocess.run(
        [*command, "consume", "--db", "t.db", "lines", "-n", "2"], capture_output=True, check=False
    )
    assert (consumed.returncode, consumed.stdout, consumed.stderr) == (0, b"a\nb\n", b"")


def test_text_comes_out_as_it_went_in(left: Left) -> None:
    text = "\ngröße\r\n\t{}\nno end".encode()
    assert tarry("produce", "--db", "t.db", "lines", data=text).returncode == 0
    assert left("lines") == text + b"\n"


def test_many_lines_through_a_pipe_of_two_commands() -> None:
    fill("one", 5_000)
    pipeline = f"{' '.join(TARRY)} consume --db t.db one -e -o jsonl | {' '.join(TARRY)} produce --db u.db -f jsonl two"
    assert subprocess.run(pipeline, shell=True, capture_output=True, check=True, timeout=20).stdout == b""
    assert numbers(tarry("consume", "--db", "u.db", "two", "-e").stdout) == list(range(5_000))


def test_a_line_that_trickles_in_is_sent_at_once() -> None:
    with running("produce", "--db", "t.db", "lines") as child:
        into(child).write(b"line\nthe next one has begu")
        wait_for(lambda: stored_records("t.db") == 1)
        into(child).write(b"n\n")
        wait_for(lambda: stored_records("t.db") == 2)
        _, err = child.communicate()
    assert child.returncode == 0
    assert b"sent 2 messages" in err


# --- signals ---


@rule("K15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting_drains_stores_and_reports(number: signal.Signals, left: Left) -> None:
    fill("lines", 3)
    with running("consume", "--db", "t.db", "lines", "--name", "audit") as child:
        assert len(read_lines(child, 3)) == 3
        child.send_signal(number)
        out, err = child.communicate()
    assert (child.returncode, out) == (0, b"")
    assert err.decode().splitlines() == [
        f"tarry: stopped by {number.name} after 3 messages",
        "lines[0]: committed 2, rewound 0, unfinished 0",
    ]
    assert left("lines", "--name", "audit") == b""


@rule("K03")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_long_list_skips_and_repeats_nothing(number: signal.Signals, left: Left) -> None:
    fill("lines", 5000)
    with running("consume", "--db", "t.db", "lines", "--name", "audit") as child:
        first = read_lines(child, 1)
        child.send_signal(number)
        out, err = child.communicate()
    printed = numbers(b"".join(first) + out)
    assert child.returncode == 0
    assert printed == list(range(len(printed)))
    assert len(printed) < 5000, "it was not stopped in the middle"
    assert f"committed {printed[-1]}, rewound 0".encode() in err
    rest = numbers(left("lines", "--name", "audit"))
    assert printed + rest == list(range(5000))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_cuts_short_and_still_stores_what_was_printed(
    number: signal.Signals, code: int, left: Left
) -> None:
    fill("lines", 5000)
    with running("consume", "--db", "t.db", "lines", "--name", "audit") as child:
        first = read_lines(child, 1)  # The pipe is full again and nobody reads it: the piece on its way cannot end.
        child.send_signal(number)
        sleep(0.3)
        child.send_signal(number)
        child.wait()
        _, err = child.communicate()
    assert child.returncode == code
    assert err == f"tarry: cut short by {number.name}\n".encode()
    again = numbers(left("lines", "--name", "audit"))
    assert numbers(first[0]) == [0]
    assert again == list(range(again[0], 5000))
    assert again[0] <= 1000


def test_a_signal_ends_produce_after_what_was_read(left: Left) -> None:
    with running("produce", "--db", "t.db", "lines") as child:
        into(child).write(b"a\nb\nhalf")
        wait_for(lambda: stored_records("t.db") == 2)
        child.send_signal(signal.SIGTERM)
        child.wait()
        _, err = child.communicate()
    assert child.returncode == 0
    assert err.decode().splitlines()[1:] == [
        "tarry: stopped by SIGTERM; sent 2 messages to 'lines'",
        "tarry: left out the last 4 bytes, which no line end follows yet",
    ]
    assert left("lines") == b"a\nb\n"


def test_a_signal_ends_a_consumer_whose_topic_is_empty() -> None:
    assert tarry("topic", "create", "--db", "t.db", "lines", "-p", "4").returncode == 0
    with running("consume", "--db", "t.db", "lines", "--name", "audit") as child:
        wait_for(lambda: Path("t.db.lock").read_bytes() != b"")
        child.send_signal(signal.SIGINT)
        child.wait()
        _, err = child.communicate()
    assert child.returncode in {0, 130}, err  # 130: Python had not come to the command yet
    assert b"Traceback" not in err or child.returncode == 130


# --- pipes that break ---


def test_head_ends_a_consumer_that_waits_and_one_that_prints() -> None:
    fill("few", 2)
    fill("many", 5000)
    for topic in ("few", "many"):
        with running("consume", "--db", "t.db", topic) as child:
            assert len(read_lines(child, 1)) == 1
            out_of(child).close()
            child.wait()
            assert child.stderr is not None
            assert child.stderr.read() == b""
        assert child.returncode == 0


def test_a_full_disk_behind_stdout_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    fill("lines", 2)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*TARRY, "consume", "--db", "t.db", "lines", "-e"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_closed_standard_streams_are_errors_and_not_tracebacks() -> None:
    fill("lines", 2)
    command = " ".join(TARRY)
    for arguments in ("produce --db t.db lines <&-", "consume --db t.db lines -e >&-"):
        done = subprocess.run(f"{command} {arguments}", shell=True, stderr=subprocess.PIPE, check=False, timeout=20)
        assert done.returncode in {1, 2}
        assert b"Bad file descriptor" in done.stderr
        assert b"Traceback" not in done.stderr


# --- other processes ---


@rule("K90")
def test_a_log_in_use_names_the_process_that_has_it() -> None:
    fill("lines", 1)
    with running("consume", "--db", "t.db", "lines") as child:
        read_lines(child, 1)
        refused = tarry("produce", "--db", "t.db", "lines", data=b"x\n")
        assert refused.returncode == 3
        assert f"t.db is open in process {child.pid}; close it there".encode() in refused.stderr
        assert refused.stderr.count(b"\n") == 1


def test_without_typer_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['typer'] = None; from tarry.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"tarry: the command line needs typer; pip install 'tarry[cli]'\n"
