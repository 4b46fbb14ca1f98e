"""Whether consumers watch what they should: every idle partition, each time anybody looks (C73, C74).

A consumer looks only at what may have changed; what it would find if it looked at everything is compared with that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from tarry._core.routes import Group
from tarry.consumer.watch import Watch
from tarry.consumer.watching import Watching


@contextmanager
def watched(wrong: Callable[[str], None]) -> Generator[None]:
    """Compare while this lasts, and tell what is wrong."""
    look = Watching._idle

    def compared(self: Watching, group: Group) -> Watch | None:
        found = look(self, group)
        for each, watch in self._watches.items():
            idle = [at for at in each.partitions if self._fetches.is_idle(at) and self._desk.is_active(at)]
            wanted = {at: self._desk.target(at) for at in idle}
            if watch.targets != wanted:
                wrong(f"watches {list(watch.targets.values())} and not {list(wanted.values())}")
        return found

    Watching._idle = compared  # type: ignore[method-assign]
    try:
        yield
    finally:
        Watching._idle = look  # type: ignore[method-assign]
