"""What the readiness waits over many partitions have gathered (S52-S57, design 4.2).

A *watch* is what one wait after the other names. It is remembered between them, so that each costs what has changed
and not what it names. While a wait is on, the watch is told of each growth of its partitions, which costs one addition;
the wait is satisfied when they have `min_count` messages or `min_bytes` bytes together. Between waits a watch is told
of the first growth of a partition only; what came behind that is counted when the next wait begins.

Moves no messages and reads nothing: it works on running counts of what is there, never on differences of offsets across
holes. How many partitions may be named in all is up to the caller (`entries`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

Partition = Hashable
Counts = tuple[int, int]
"""Messages and bytes."""
Count = Callable[[Partition, int], tuple[int, Counts]]
"""What a partition has now from a position on, or from its start, if that lies behind it; and from where."""


@dataclass(slots=True, eq=False)
class Watch:
    """What waits name. `record` belongs to the caller.

    `starts` holds the first position of interest of each target. `min_count` and `min_bytes` are those of the wait that
    is on (either ends it; None: bytes do not matter); a `min_count` of 0: none is on.
    """

    record: object
    starts: dict[Partition, int] = field(default_factory=dict[Partition, int])
    have: dict[Partition, Counts] = field(default_factory=dict[Partition, Counts])
    messages: int = 0
    size: int = 0
    min_count: int = 0
    min_bytes: int | None = None

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
    def is_waiting(self) -> bool:
        """A wait is on."""
        return self.min_count > 0

    @property
    def satisfied(self) -> bool:
        """Enough is there to end the wait."""
        return self.messages >= self.min_count or (self.min_bytes is not None and self.size >= self.min_bytes)


class Readiness:
    """The watches of one pump, by partition. `entries`: partitions that they name, all together."""

    def __init__(self) -> None:
        self._listening: dict[Partition, dict[Watch, None]] = {}
        self._watches: dict[Watch, None] = {}
        self.entries = 0

    def __iter__(self) -> Iterator[Watch]:
        """All watches; it may be changed meanwhile."""
        return iter(list(self._watches))

    # -- what is named

    def name(self, watch: Watch, partition: Partition, start: int, counts: Counts) -> None:
        """A watch names a partition from a position on, where it has so many messages and bytes."""
        self.entries += partition not in watch.starts
        self._watches.setdefault(watch)
        watch.starts[partition] = start
        watch.see(partition, *counts)
        self._listen(watch, partition)

    def drop(self, watch: Watch, partition: Partition) -> None:
        """A watch does not name a partition any more, if it did."""
        if watch.starts.pop(partition, None) is not None:
            watch.see(partition, 0, 0)
            self._ignore(watch, partition)
            self.entries -= 1

    def forget(self, watch: Watch) -> None:
        """A watch is over; without effect when it is not here."""
        for partition in list(watch.starts):
            self.drop(watch, partition)
        self._watches.pop(watch, None)

    # -- waits

    def begin(self, watch: Watch, min_count: int, min_bytes: int | None, count: Count) -> None:
        """A wait is on. Where the watch has not listened any more it is counted anew."""
        watch.min_count, watch.min_bytes = min_count, min_bytes
        for partition in [at for at in watch.have if watch not in self._listening.get(at, ())]:
            watch.starts[partition], counts = count(partition, watch.starts[partition])
            watch.see(partition, *counts)
            self._listen(watch, partition)

    def end(self, watch: Watch) -> None:
        """No wait is on."""
        watch.min_count, watch.min_bytes = 0, None

    # -- what happens

    def grown(self, partition: Partition, visible: int, size: int) -> list[Watch]:
        """A partition grew by `size` bytes to `visible` messages in all; return the watches whose wait that ends."""
        ended: list[Watch] = []
        for watch in list(self._listening.get(partition, ())):
            messages, before = visible - watch.starts[partition], watch.have.get(partition, (0, 0))[1]
            watch.see(partition, messages, before + size)
            if not watch.is_waiting:
                self._ignore(watch, partition)
            elif watch.satisfied:
                ended.append(watch)
        return ended

    def trimmed(self, partition: Partition, log_start: int, visible: int, size: int) -> None:
        """What lies below `log_start` is gone; `size` bytes are left up to `visible`."""
        for watch in self._listening.get(partition, ()):
            if watch.starts[partition] < log_start:
                watch.starts[partition] = log_start
                watch.see(partition, visible - log_start, size)

    # -- details

    def _listen(self, watch: Watch, partition: Partition) -> None:
        self._listening.setdefault(partition, {})[watch] = None

    def _ignore(self, watch: Watch, partition: Partition) -> None:
        watches = self._listening.get(partition)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._listening[partition]
