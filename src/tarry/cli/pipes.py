"""Bytes from stdin and to stdout without blocking the event loop, so that a signal is heard while the other end sleeps.

No threads: a thread that sits in `read` keeps the process from ending. Not here: what the bytes mean (`records`).
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator

import anyio
import anyio.lowlevel

from tarry.cli.failures import CommandError, Exit

READ_BYTES = 256 * 1024
"""Most bytes of one piece: what fits into one batch of the log."""
WRITE_BYTES = 4096
"""What a pipe that says it is writable takes without blocking (PIPE_BUF)."""


def guard_standard_streams() -> None:
    """Fill descriptors 0 to 2 where they are closed, so that no file that is opened later gets their number.

    Else a log could become what stdout is written to. The stand-ins refuse to be read and written.
    """
    for descriptor, refuses in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, refuses)  # The lowest free number is this one.


class Source:
    """Reads a descriptor: what is there at once, or waits for the first byte."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name
        status = os.fstat(descriptor)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def is_terminal(self) -> bool:
        """A person types."""
        return os.isatty(self._descriptor)

    async def read(self) -> bytes:
        """The next piece, empty at the end.

        Cancellation: nothing was read.
        """
        while True:
            await self._readable()
            try:
                return self._read_now()
            except BlockingIOError:  # Somebody made it non-blocking, and somebody else was quicker.
                await anyio.wait_readable(self._descriptor)
            except OSError as error:
                raise CommandError(f"cannot read {self.name}: {error.strerror}", Exit.UNEXPECTED) from error

    async def _readable(self) -> None:
        if _ready(self._descriptor, select.POLLIN):
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.wait_readable(self._descriptor)

    def _read_now(self) -> bytes:
        """All that can be read without waiting, up to the size of a piece."""
        found = os.read(self._descriptor, READ_BYTES)
        while found and len(found) < READ_BYTES and not self.is_terminal and _ready(self._descriptor, select.POLLIN):
            try:
                more = os.read(self._descriptor, READ_BYTES - len(found))
            except BlockingIOError:
                break
            if not more:  # The end; it is still there at the next call. (A terminal says it once.)
                break
            found += more
        return found


class Sink:
    """Writes a descriptor to the last byte."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def write(self, data: bytes) -> None:
        """Write all of it; waits while the other end takes nothing.

        Cancellation: a part may have been written.

        Raises:
            BrokenPipeError: nobody reads the other end any more.
        """
        rest = memoryview(data)
        while rest:
            if not _ready(self._descriptor, select.POLLOUT):
                await anyio.wait_writable(self._descriptor)
            try:
                rest = rest[os.write(self._descriptor, rest[:WRITE_BYTES]) :]
            except BlockingIOError:
                await anyio.wait_writable(self._descriptor)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise CommandError(f"cannot write to stdout: {error.strerror}", Exit.UNEXPECTED) from error
        await anyio.lowlevel.checkpoint()

    async def abandoned(self) -> None:
        """Wait until nobody reads the other end any more; for ever when this is no pipe."""
        if not stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            await anyio.sleep_forever()
        # The writing end of a pipe is never readable; the kernel reports it when the last reader has gone.
        await anyio.wait_readable(self._descriptor)


def _ready(descriptor: int, event: int) -> bool:
    """The descriptor would not block now; broken ones count, so that the operation itself says what is wrong."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(0))


class Lines:
    r"""Cuts a stream of bytes into lines; only the line end `\n` goes. A last line without one counts too."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._rest = b""
        self.number = 0

    @property
    def rest(self) -> bytes:
        """The beginning of a line that has not ended yet."""
        return self._rest

    @property
    def is_too_long(self) -> bool:
        """The line that has not ended yet is longer than any that could be used."""
        return len(self._rest) > self.bytes_max

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that `data` completes, numbered from 1; no data is the end of the stream."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            complete, self._rest = [self._rest], b""
        for line in complete:
            self.number += 1
            yield self.number, line
