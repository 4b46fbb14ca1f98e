"""What a readiness wait over many partitions has gathered (S52-S57, design 4.2).

A wait is satisfied when its targets together have `min_count` messages or `min_bytes` bytes. With `min_count` 1 a
single entry `start + 1` per partition in `waiters` is enough; a wait for more is told of each growth of its partitions,
which costs one addition (`Gatherers`). Moves no messages and reads nothing: it works on running counts of what is
there, never on differences of offsets across holes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

Partition = Hashable


@dataclass(slots=True, eq=False)
class Wait:
    """One readiness wait.

    Args:
        starts: first position of interest of each target.
        min_count, min_bytes: either ends the wait; None: bytes do not matter.
        record: belongs to the caller.
    """

    starts: dict[Partition, int]
    min_count: int
    min_bytes: int | None
    record: object
    have: dict[Partition, tuple[int, int]] = field(default_factory=dict[Partition, tuple[int, int]])
    messages: int = 0
    size: int = 0

    def see(self, partition: Partition, messages: int, size: int) -> None:
        """Take note of what a target has now: messages and bytes from its start on."""
        before, before_size = self.have.get(partition, (0, 0))
        if messages > 0:
            self.have[partition] = (messages, size)
        else:
            self.have.pop(partition, None)
        self.messages += max(messages, 0) - before
        self.size += (size if messages > 0 else 0) - before_size

    def knows(self, partition: Partition, visible: int) -> bool:
        """Whether a target was last seen with this many messages visible in all."""
        return self.have.get(partition, (0, 0))[0] == max(visible - self.starts[partition], 0)

    @property
    def satisfied(self) -> bool:
        """Enough is there to end the wait."""
        return self.messages >= self.min_count or (self.min_bytes is not None and self.size >= self.min_bytes)

    @property
    def accumulates(self) -> bool:
        """One message somewhere is not enough, so that growth has to be added up."""
        return self.min_count > 1


class Gatherers:
    """The accumulating waits of one pump, by partition."""

    def __init__(self) -> None:
        self._waits: dict[Partition, dict[Wait, None]] = {}

    def add(self, wait: Wait) -> None:
        """Tell `wait` of the growth of its partitions from now on."""
        for partition in wait.starts:
            self._waits.setdefault(partition, {})[wait] = None

    def remove(self, wait: Wait) -> None:
        """Forget a wait; without effect when it is not here."""
        for partition in wait.starts:
            waits = self._waits.get(partition)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._waits[partition]

    def grown(self, partition: Partition, visible: int, size: int) -> list[Wait]:
        """A partition grew by `size` bytes to `visible` messages in all; return the waits that are satisfied now."""
        waits = self._waits.get(partition)
        if not waits:
            return []
        for wait in waits:
            messages, before = visible - wait.starts[partition], wait.have.get(partition, (0, 0))[1]
            wait.see(partition, messages, before + size)
        return [wait for wait in waits if wait.satisfied]

    def trimmed(self, partition: Partition, log_start: int, visible: int, size: int) -> None:
        """What lies below `log_start` is gone; `size` bytes are left up to `visible`."""
        for wait in self._waits.get(partition, ()):
            if wait.starts[partition] < log_start:
                wait.starts[partition] = log_start
                wait.see(partition, visible - log_start, size)
