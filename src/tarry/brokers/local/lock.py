"""Who has a log open: the lock file beside it (design 5.5). Not here: sharing a file between processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from typing import Final, Self

from tarry.errors import LogInUse, LogUnavailable

_HELD: Final = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


class FileLock:
    """The exclusive right to open one log, as a `flock` on `<real path>.lock`.

    A `flock` belongs to the open file: a second open is refused inside one process too, and it goes with the process
    that dies. (POSIX locks are granted twice within a process and lost when any descriptor of the file is closed.) The
    file is never unlinked: two processes could then hold a lock each. It names its holder as JSON, `{"pid": 4711}`.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: str) -> Self:
        """Lock the log at `path`, which has no symbolic links left; does not wait.

        Raises:
            LogInUse: somebody has it; `pid` says who, None when that cannot be read.
            LogUnavailable: the lock file cannot be made.
        """
        name = f"{path}.lock"
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LogUnavailable(_cannot_make(name, error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in _HELD:
                raise LogInUse(_in_use(path, holder), pid=holder) from None
            raise LogUnavailable(
                f"cannot lock {name}: {os.strerror(error.errno or 0)}; put the log on a local disk"
            ) from error
        lock = cls(descriptor)
        lock._name_holder()
        return lock

    def release(self) -> None:
        """Give the log up. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # a disk that fails: whoever reads a name there finds that it holds no lock
                os.ftruncate(descriptor, 0)
            with suppress(OSError):  # it complains about what was written; the descriptor is gone all the same
                os.close(descriptor)

    def _name_holder(self) -> None:
        assert self._descriptor is not None
        record = json.dumps({"pid": os.getpid()}).encode()
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, record, 0)
        except OSError as error:  # A full disk, for one.
            self.release()
            raise LogUnavailable(f"cannot write the lock file of the log: {os.strerror(error.errno or 0)}") from error


def _holder(descriptor: int) -> int | None:
    """Process id in the lock file; None while its holder has not written it yet."""
    try:
        record: object = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return None
    pid: object = record.get("pid") if isinstance(record, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return pid if isinstance(pid, int) else None


def _in_use(path: str, holder: int | None) -> str:
    if holder == os.getpid():
        return f"{path} is open already in this process (pid {holder}); use that client, or close it first"
    who = "another process" if holder is None else f"process {holder}"
    return f"{path} is open in {who}; close it there, or give this program a log of its own"


def _cannot_make(name: str, error: OSError) -> str:
    directory = os.path.dirname(name)
    if error.errno == errno.ENOENT:
        return f"the directory {directory} of the log does not exist; create it, or choose another path"
    reason = os.strerror(error.errno or 0)
    return f"cannot open {name}: {reason}; the directory must be writable, for the log keeps two files beside it"
