"""Lets partitions rest that are lastingly refused, asks about them again, and says what stops and resumes (C109-C112).

Not here: what stops one, and how long it rests (`_core.stopped`); what is done to its requests (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from tarry._core.backoff import Backoff
from tarry._core.stopped import Counted, Stopped
from tarry.errors import TarryError
from tarry.instruments import Instruments
from tarry.types import TopicPartition


class Stopping:
    """The refused partitions of a running consumer.

    Args:
        probed: called for each partition that may be asked about again.
    """

    def __init__(
        self,
        cool_down_s: float,
        *,
        instruments: Instruments,
        random: Callable[[], float],
        probed: Callable[[TopicPartition], None],
    ) -> None:
        self.machine = Stopped(cool_down_s, lambda: Backoff(random=random).next)
        self._instruments = instruments
        self._probed = probed
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Ask about what is due, until cancelled."""
        while True:
            with anyio.CancelScope(deadline=self.machine.next_due):
                await self._changed.wait()
            self._changed = anyio.Event()
            for partition in self.machine.probe(anyio.current_time()):
                self._probed(partition)

    def refused(self, partition: TopicPartition, error: TarryError) -> Counted:
        """A lasting refusal; a stop is said here, the first refusal of a row is the caller's to tell."""
        counted = self.machine.refused(partition, error, anyio.current_time())
        if counted.stops:
            self._say_stopped(partition, error, is_told=counted.is_first)
        self._changed.set()
        return counted

    def halt(self, partition: TopicPartition, error: TarryError) -> None:
        """Stop it until it is sought or owned anew; the caller tells the reader. Of what was stopped all is said."""
        was_stopped = self.machine.is_stopped(partition)
        self.machine.halt(partition, error)
        if not was_stopped:
            self._say_stopped(partition, error, is_told=True)

    def succeeded(self, partition: TopicPartition) -> None:
        """It was read or sought: if it was stopped it is not any more."""
        if self.machine.succeeded(partition):
            self._instruments.warn("consumer", "partition_resumed", f"{partition} is read again", partition=partition)

    def _say_stopped(self, partition: TopicPartition, error: TarryError, *, is_told: bool) -> None:
        """An event; and a line for people, unless the reader gets the error itself right now."""
        seconds = self.machine.cool_down(partition)
        then = "it waits for a seek" if seconds is None else f"it is tried again in {seconds:g} s"
        if is_told:
            self._instruments.emit("partition_stopped", partition=partition, error=str(error))
            return
        self._instruments.warn(
            "consumer",
            "partition_stopped",
            f"{partition} is stopped: {error}; {then}, the other partitions go on",
            partition=partition,
            error=str(error),
        )
