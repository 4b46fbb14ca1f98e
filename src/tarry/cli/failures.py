"""What went wrong, as one line on stderr and an exit code. Not here: who prints it (`app`)."""

from __future__ import annotations

from enum import IntEnum
from typing import cast

from tarry import errors


class Exit(IntEnum):
    """How a command ends. After a second signal it is 128 and the signal's number, 130 or 143."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 5


class CommandError(Exception):
    """A command cannot go on; the message says what, which value, the limit, and what to do next."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[errors.TarryError], Exit], ...] = (
    (errors.TopicNotFound, Exit.NOT_FOUND),
    (errors.GroupNotFound, Exit.NOT_FOUND),
    (errors.TopicExists, Exit.USAGE),
    (errors.FeatureUnavailable, Exit.USAGE),
    (errors.OffsetOutOfRange, Exit.USAGE),
    (errors.UsageError, Exit.USAGE),
    (errors.LogInUse, Exit.UNREACHABLE),
    (errors.LogBusy, Exit.UNREACHABLE),
    (errors.LogUnavailable, Exit.UNREACHABLE),
    (errors.NotReady, Exit.UNREACHABLE),
    (errors.CapacityExceeded, Exit.UNREACHABLE),
    (errors.NotAccepted, Exit.UNREACHABLE),
    (errors.OutcomeUnknown, Exit.UNREACHABLE),
)


def root_of(error: Exception) -> Exception:
    """The error itself, out of the groups that task groups put around it; the first one of several."""
    while (inner := _first_of(error)) is not None:
        error = inner
    return error


def _first_of(error: Exception) -> Exception | None:
    if isinstance(error, ExceptionGroup):
        return cast("ExceptionGroup[Exception]", error).exceptions[0]
    return None


def code_of(error: BaseException | None) -> Exit:
    """The exit code for an error; a send that failed in the middle has the code of its cause."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, errors.SendFailed):
        return code_of(error.__cause__)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return Exit.UNEXPECTED


def one_line(error: BaseException) -> str:
    """The error's own sentence without line breaks; the class too when it is none that tarry words for people."""
    text = " ".join(str(error).split())
    if isinstance(error, CommandError | errors.TarryError | OSError):
        return text
    return f"{type(error).__name__}: {text} (TARRY_DEBUG=1 shows where)"
