"""Stops partitions, probes them after their cool-down and says so (C109-C112).

Not here: what stops one, and when it is probed (`_core.stopped`); what is done to its requests (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from tarry._core.stopped import Stopped
from tarry.errors import TarryError
from tarry.instruments import Instruments
from tarry.types import TopicPartition


class Stopping:
    """The stopped partitions of a running consumer.

    Args:
        probed: called for each partition that may be asked about once.
    """

    def __init__(
        self, cool_down_s: float, *, instruments: Instruments, probed: Callable[[TopicPartition], None]
    ) -> None:
        self.machine = Stopped(cool_down_s)
        self._instruments = instruments
        self._probed = probed
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Probe what is due, until cancelled."""
        while True:
            with anyio.CancelScope(deadline=self.machine.next_due):
                await self._changed.wait()
            self._changed = anyio.Event()
            for partition in self.machine.probe(anyio.current_time()):
                self._probed(partition)

    def refused(self, partition: TopicPartition, error: TarryError) -> bool:
        """A lasting refusal; whether the partition has just been stopped."""
        is_new = self.machine.refused(partition, error, anyio.current_time())
        if is_new:
            self._say_stopped(partition, error)
        self._changed.set()
        return is_new

    def halt(self, partition: TopicPartition, error: TarryError) -> None:
        """Stop it until it is sought or owned anew."""
        self.machine.halt(partition, error)
        self._say_stopped(partition, error)

    def succeeded(self, partition: TopicPartition) -> None:
        """It was read or sought: if it was stopped it is not any more."""
        if self.machine.succeeded(partition):
            self._instruments.warn("consumer", "partition_resumed", f"{partition} is read again", partition=partition)

    def _say_stopped(self, partition: TopicPartition, error: TarryError) -> None:
        then = (
            "it waits for a seek" if self.machine.waits_for_seek(partition) else "it is tried again after a cool-down"
        )
        self._instruments.warn(
            "consumer",
            "partition_stopped",
            f"{partition} is stopped: {error}; {then}, the other partitions go on",
            partition=partition,
            error=str(error),
        )
