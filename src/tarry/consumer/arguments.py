"""What callers pass to the verbs of a consumer: checked, and brought into one form.

Errors say what was passed and what to pass instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction, isroutine
from typing import Any

import anyio

from tarry._core.positions import Positions
from tarry.config import PollOptions
from tarry.errors import ConfigError, ConfigTypeError, StaleAssignment
from tarry.types import Batch, Message, Offset, Origin, Start, TopicPartition, check_offset, named_partition

Named = TopicPartition | int
"""A partition as users name it: with one topic, a plain int names one of it."""


class Arguments:
    """Checks what is said about partitions and offsets of one consumer. `note` brings positions up to date."""

    def __init__(self, topics: Sequence[str], positions: Positions, *, note: Callable[[], None]) -> None:
        self._topics = topics
        self._positions = positions
        self._note = note

    def owned(self, given: Named) -> TopicPartition:
        """The partition meant.

        Raises:
            ConfigError: it names none.
            StaleAssignment: the consumer does not read it.
        """
        partition = named_partition(given, self._topics)
        if partition not in self._positions:
            owned = ", ".join(map(str, sorted(self._positions)))
            raise StaleAssignment(f"{partition} is not read by this consumer; it reads {owned}")
        return partition

    def all_owned(self, given: Named | Iterable[Named]) -> list[TopicPartition]:
        """The partitions meant; one is as good as a list of it."""
        if isinstance(given, (TopicPartition, str)) or not isinstance(given, Iterable):
            return [self.owned(given)]
        return [self.owned(each) for each in given]

    def offsets(
        self, what: Message[Any] | Batch[Any] | Named, offset: Offset | int | None, *, force: bool
    ) -> list[tuple[TopicPartition, Offset, Origin | None]]:
        """Which offsets are to be stored, and as what they were delivered; a batch has one for each partition.

        Raises:
            ConfigError: it is no offset, stands beside a message, or lies ahead of what was delivered, without `force`.
            StaleAssignment: it is not held as it was delivered, or not at all.
        """
        found: list[tuple[TopicPartition, Offset, Origin | None]]
        if isinstance(what, (Message, Batch)):
            found = [*self._given_out(what, offset)]
        elif isinstance(what, (int, tuple)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            given = check_offset(f"store_offset({what!r}, ...)", offset, "delete_offset")
            found = [(self.owned(what), given, None)]
        else:
            raise ConfigTypeError(
                f"store_offset takes a message, a batch, or a partition and an offset, not {type(what).__name__} "
                f"({what!r}); of a list of messages give the last one of each partition"
            )
        for partition, last, _ in found if not force else ():
            self._check_delivered(partition, last)
        return found

    def _given_out(
        self, what: Message[Any] | Batch[Any], offset: object
    ) -> Iterable[tuple[TopicPartition, Offset, Origin]]:
        """The last offset of each partition: one request each."""
        if offset is not None:
            raise ConfigTypeError(
                f"store_offset({what!r}, {offset!r}): a {type(what).__name__.lower()} has its own offset; pass its "
                "TopicPartition to store another one"
            )
        if isinstance(what, Message):
            ends = [(what.origin, what.offset)]
        else:
            ends = [(segment.origin, segment.last) for segment in what.segments]
        for origin, _ in ends:
            self.check_held(origin)
        return {origin.partition: (origin.partition, end, origin) for origin, end in ends}.values()

    def check_held(self, origin: Origin) -> None:
        """What was delivered is still held as it was then."""
        if not self._positions.holds(origin):
            raise StaleAssignment(
                f"{origin.partition} is not held any more as it was when this message was delivered; nothing was stored"
            )

    def _check_delivered(self, partition: TopicPartition, offset: Offset) -> None:
        self._note()
        upcoming = self._positions[partition].next
        if upcoming is None or offset >= upcoming:
            where = "its position is not known yet" if upcoming is None else f"offset {upcoming} is delivered next"
            raise ConfigError(
                f"store_offset({partition}, {offset}) lies ahead of what was delivered ({where}): the messages up to "
                "there would be skipped; if that is meant, pass force=True"
            )


def poll_options(usual: PollOptions, given: Mapping[str, Any], unknown: Mapping[str, Any]) -> PollOptions:
    """The options of one `poll`: what is given beside the usual ones; what is unknown is refused by its name (C12)."""
    changed = {**{name: value for name, value in given.items() if value is not None}, **unknown}
    return PollOptions(**(usual.model_dump() | changed)) if changed else usual


def start_of(to: object) -> Start:
    """Where `seek` is to go."""
    if isinstance(to, Start):
        return to
    if isinstance(to, bool) or not isinstance(to, int):
        raise ConfigTypeError(
            f"seek takes an offset or a Start, for example Start.first(), not {type(to).__name__} ({to!r})"
        )
    return Start.offset(to)


def check_cause(cause: object) -> None:
    """Why something is paused."""
    if not isinstance(cause, str) or not cause:
        raise ConfigTypeError(f"cause={cause!r}: say why, as a text")


def check_runs(what: str, function: object) -> None:
    """A call of it does its work, also behind a `partial` or as an object."""
    while isinstance(function, partial):
        function = function.func
    called: Any = function if isroutine(function) else type(function).__call__
    if isgeneratorfunction(called) or isasyncgenfunction(called):
        raise ConfigTypeError(
            f"{what}: it contains `yield`, so a call of it only makes a generator and none of its body runs; "
            "pass a function without `yield`"
        )


def check_handler(handler: object, stop: object, on_error: object) -> None:
    """What `consume` is called with."""
    if not callable(handler):
        raise ConfigTypeError(f"consume({handler!r}) needs a function of one message")
    check_runs(f"consume({handler!r})", handler)
    if stop is not None and not isinstance(stop, anyio.Event):
        raise ConfigTypeError(f"stop={stop!r} is a {type(stop).__name__}; it takes an anyio.Event")
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r}: use 'raise' or 'skip'")
