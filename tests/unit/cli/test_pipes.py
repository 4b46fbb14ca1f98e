"""Bytes in and out: nothing waits longer than it must, a cancel is heard, lines are cut the same however they come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.cli.pipes import READ_BYTES, Lines, Sink, Source

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


async def test_a_source_gives_what_is_there_without_waiting_for_more(pipe: tuple[int, int]) -> None:
    source = Source(pipe[0], "stdin")
    os.write(pipe[1], b"one\ntw")
    assert await source.read() == b"one\ntw"
    os.write(pipe[1], b"o\n")
    os.write(pipe[1], b"three")
    assert await source.read() == b"o\nthree"
    os.close(pipe[1])
    assert await source.read() == b""
    assert source.size is None


async def test_a_cancelled_read_has_read_nothing(pipe: tuple[int, int]) -> None:
    source = Source(pipe[0], "stdin")
    with anyio.move_on_after(0.01) as limit:
        await source.read()
    assert limit.cancelled_caught
    os.write(pipe[1], b"later")
    assert await source.read() == b"later"


async def test_a_source_reads_files_and_devices_in_pieces(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x" * (READ_BYTES + 5))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        source = Source(descriptor, "lines")
        assert source.size == READ_BYTES + 5
        assert [len(await source.read()) for _ in range(3)] == [READ_BYTES, 5, 0]
    finally:
        os.close(descriptor)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        assert await Source(descriptor, "null").read() == b""
    finally:
        os.close(descriptor)


async def test_somebody_was_quicker_at_a_shared_pipe(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    os.set_blocking(pipe[0], False)
    source = Source(pipe[0], "stdin")
    os.write(pipe[1], b"mine")
    read, stolen = os.read, [True]

    def read_after_somebody_else(descriptor: int, count: int) -> bytes:
        if stolen:
            stolen.clear()
            raise BlockingIOError
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", read_after_somebody_else)
    assert await source.read() == b"mine"


async def test_a_sink_waits_for_a_slow_reader_and_writes_all(pipe: tuple[int, int]) -> None:
    data = bytes(range(256)) * 2048
    got: list[bytes] = []

    async def read_slowly() -> None:
        while sum(map(len, got)) < len(data):
            await anyio.lowlevel.checkpoint()
            await anyio.wait_readable(pipe[0])
            got.append(os.read(pipe[0], 50_000))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_slowly)
        await Sink(pipe[1]).write(data)
    assert b"".join(got) == data


async def test_a_sink_that_nobody_reads_can_be_cancelled(pipe: tuple[int, int]) -> None:
    with anyio.move_on_after(0.02) as limit:
        await Sink(pipe[1]).write(b"x" * 1_000_000)
    assert limit.cancelled_caught


async def test_a_sink_says_when_its_reader_is_gone(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1])
    with anyio.move_on_after(0.01) as limit:
        await sink.abandoned()
    assert limit.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.abandoned)
        await anyio.lowlevel.checkpoint()
        os.close(pipe[0])
    with pytest.raises(BrokenPipeError):
        await sink.write(b"x")


async def test_a_file_has_no_reader_that_could_go(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file, anyio.move_on_after(0.01) as limit:
        await Sink(file.fileno()).write(b"lines\n")
        await Sink(file.fileno()).abandoned()
    assert limit.cancelled_caught
    assert (tmp_path / "out").read_bytes() == b"lines\n"


@given(st.lists(st.sampled_from([b"", b"\n", b"a", b"\r\n", b"\xff"]).flatmap(st.just), max_size=12), st.data())
def test_lines_are_cut_the_same_however_they_come(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if begin < end]
    lines = Lines(100)
    found = [line for piece in pieces for line in lines.feed(piece)] + list(lines.feed(b""))
    expected = text.split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    assert found == list(zip(accumulate([1] * len(expected)), expected, strict=True))
    assert lines.rest == b""


def test_a_line_without_end_is_noticed() -> None:
    lines = Lines(5)
    assert list(lines.feed(b"12345")) == []
    assert not lines.is_too_long
    assert list(lines.feed(b"6")) == []
    assert lines.is_too_long
