"""Every error tarry raises, in one tree; nothing here knows who raises it.

The family says who must act, the class attributes say what may be done next::

    TarryError
    |- UsageError            the caller's program is wrong; nothing was done
    |  |- NotStarted            used before it was entered, or after a failed start
    |  |- ConcurrentRead        a second task reads one consumer
    |  |- InvalidName           a topic, group or consumer name that is not allowed
    |  |- ConfigError           an option out of range (also a ValueError)
    |  |  `- ConfigTypeError    an option of the wrong type (also a TypeError)
    |  |- MissingExtra          an optional dependency is not installed
    |  |- MessageTooLarge       one record above the topic's limit
    |  |- BatchTooLarge         one append above the log's limit
    |  |- UnencodableValue      a value is none of the producer's `value_type`
    |  `- ProducerClosed        sending after shutdown
    |- RefusedError          refused, nothing was applied; may be tried again when the cause is gone
    |  |- TopicNotFound / TopicExists / GroupNotFound
    |  |- CapacityExceeded      too busy (90)
    |  |- NotAccepted           not here, not now (58)
    |  |- FeatureUnavailable    this broker or version cannot do it (5)
    |  |- NotReady              `ready()` ran out of time
    |  |- LogBusy               somebody else holds the database's write lock
    |  |- LogFull               the disk is full; rolled back
    |  `- LogInUse              another process has the file open
    |- UncertainError        may or may not have been applied; never replay it blindly
    |  `- OutcomeUnknown        (57)
    |- FencedError           made under a standing that no longer holds
    |  |- StaleAssignment       (5009)
    |  `- NotAMember            (5006)
    |- DataError             what is stored cannot be served as asked
    |  |- UndecodableMessage    a value is none of the consumer's `value_type`
    |  `- OffsetOutOfRange
    `- PeerError             the other side failed
       |- RebalanceHookError    `on_assigned` or `on_revoked` raised
       |- LogUnavailable        the log does not answer, or failed for good
       |- SendFailed            a send of several messages failed in the middle
       `- ConsumerFailed        an internal task of the consumer died
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

Retry = Literal["never", "back off", "re-sync"]
Applied = Literal["no", "maybe", "yes"]


class TarryError(Exception):
    """Base of all errors of this package.

    `code` is the wire's error number, `retry` what a caller may do, `applied` whether the operation took effect.
    """

    code: ClassVar[int] = 1
    retry: ClassVar[Retry] = "never"
    applied: ClassVar[Applied] = "no"

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors with fields of their own can be copied and pickled too, whatever their constructor asks for."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[TarryError], args: tuple[Any, ...], fields: dict[str, Any]) -> TarryError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UsageError(TarryError):
    """The caller's program is wrong; nothing was done and a retry will not help."""

    code = 2


class NotStarted(UsageError):
    """Used before it was entered with `async with`, after its start failed, or after it was closed (C16)."""


class ConcurrentRead(UsageError):
    """A second task reads a consumer while another one still reads it or still holds its message (K97)."""


class InvalidName(UsageError):
    """A name with a character or a length that is not allowed (K104)."""


class ConfigError(UsageError, ValueError):
    """An option out of its range, or options that contradict each other."""


class ConfigTypeError(ConfigError, TypeError):
    """An option of the wrong type."""


class MissingExtra(UsageError):
    """An optional dependency is not installed; the message names the extra to install."""


class MessageTooLarge(UsageError):
    """One record is larger than its topic allows; the message names both sizes."""

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class BatchTooLarge(UsageError):
    """One append is larger than the log takes at once."""


class UnencodableValue(UsageError, ValueError):
    """A value is none of the producer's `value_type`, or its encoder failed on it; the message says which.

    Nothing was sent. `value` is what was given, for `topic`; `__cause__` is what the encoder raised.
    """

    def __init__(self, message: str, *, topic: str, value: object) -> None:
        super().__init__(message)
        self.topic = topic
        self.value = value


class NotOfType(Exception):
    """What an encoder raises for a value that is none of its type, and for nothing else; `reason` says why it is none.

    The producer makes an `UnencodableValue` of it: no user ever meets it.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class ProducerClosed(UsageError):
    """A send after the producer was shut down."""


class RefusedError(TarryError):
    """Refused; nothing was applied."""

    retry: ClassVar[Retry] = "back off"


class TopicNotFound(RefusedError):
    """The topic, or the partition of it, does not exist."""

    code = 2010
    retry: ClassVar[Retry] = "never"


class TopicExists(RefusedError):
    """`create_topic` without `exist_ok=True` met a topic of that name."""

    code = 2012
    retry: ClassVar[Retry] = "never"


class GroupNotFound(RefusedError):
    """Nothing is known of a group of that name: no member, no stored offset."""

    code = 5000
    retry: ClassVar[Retry] = "never"


class CapacityExceeded(RefusedError):
    """Too busy, not the wrong place (90): back off and ask again."""

    code = 90


class NotAccepted(RefusedError):
    """Not accepted here or now (58): nothing was applied, ask again (elsewhere)."""

    code = 58


class FeatureUnavailable(RefusedError):
    """This broker, or this version, cannot do that."""

    code = 5
    retry: ClassVar[Retry] = "never"


class NotReady(RefusedError):
    """`ready()` ran out of time; the message names what is missing."""


class LogBusy(RefusedError):
    """Another connection held the database's write lock for the whole busy limit; nothing was written (K14)."""


class LogFull(RefusedError):
    """The disk, or the database's size limit, is full; the transaction was rolled back."""


class LogInUse(RefusedError):
    """Another process has the log file open; `pid` is its process id, None when it could not be read (K90)."""

    def __init__(self, message: str, *, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class UncertainError(TarryError):
    """May or may not have been applied."""

    code = 57
    applied = "maybe"


class OutcomeUnknown(UncertainError):
    """The answer was lost, or the commit failed in a way that proves nothing (57)."""


class FencedError(TarryError):
    """Made under an ownership or membership that no longer holds; nothing was applied."""

    retry: ClassVar[Retry] = "re-sync"


class StaleAssignment(FencedError):
    """The partition is no longer held, or is held under a newer ownership (5009)."""

    code = 5009


class NotAMember(FencedError):
    """The session is not, or no longer, known to the log (5006)."""

    code = 5006


class DataError(TarryError):
    """What is stored is damaged, foreign, or cannot be served as asked."""

    code = 4


class UndecodableMessage(DataError):
    """A value is none of the consumer's `value_type`; `raw` is its bytes, and `__cause__` says what the decoder said.

    The partition waits at this message until it is sought; `seek(partition, error.offset + 1)` skips it.
    """

    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str, *, topic: str, partition: int, offset: int, raw: bytes) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.raw = raw


class OffsetOutOfRange(DataError):
    """A start that does not exist: `asked`, and the valid half-open range `log_start`..`log_end`."""

    def __init__(self, message: str, *, asked: int | None, log_start: int, log_end: int) -> None:
        super().__init__(message)
        self.asked = asked
        self.log_start = log_start
        self.log_end = log_end


class PeerError(TarryError):
    """The other side failed."""

    retry: ClassVar[Retry] = "back off"


class LogUnavailable(PeerError):
    """The log cannot be opened, does not answer, or has failed for good; nothing of this request was applied."""

    code = 8


class SendFailed(PeerError):
    """A send of several messages failed in the middle (P11); `__cause__` says why, and if the failed part may be there.

    `unsent` are the messages that were not confirmed, those of the failed batch first among them, in the order given;
    `receipts` are the confirmations so far.
    """

    retry: ClassVar[Retry] = "never"
    applied = "maybe"

    def __init__(self, message: str, *, topic: str, unsent: Sequence[object], receipts: Sequence[object]) -> None:
        super().__init__(message)
        self.topic = topic
        self.unsent = unsent
        self.receipts = receipts


class ConsumerFailed(PeerError):
    """An internal task of the consumer died; `__cause__` is its error (K07)."""


class RebalanceHookError(PeerError):
    """`on_assigned` or `on_revoked` raised; `__cause__` is its error. The assignment is in its new state (K88)."""

    retry: ClassVar[Retry] = "never"
    applied = "yes"
