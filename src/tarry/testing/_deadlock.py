"""The error of a run in which nobody can go on, and where each task stands. Not here: how a loop finds out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType

_LOOPS = frozenset(("anyio", "asyncio", "outcome", "trio"))
_INNER = ("cr_await", "gi_yieldfrom")
_FRAME = ("cr_frame", "gi_frame")


class Deadlock(AssertionError):
    """Every task waits, and no timer is set that could wake one. The message says where each of them stands.

    It is a finding about the program under test, therefore no `TarryError`.
    """


def deadlock(tasks: Iterable[tuple[str, object]]) -> Deadlock:
    """Build the error out of the names and coroutines of all tasks."""
    lines = sorted(f"  {name} waits in {_place(coroutine)}" for name, coroutine in tasks)
    return Deadlock("\n".join(("nothing is ready and no timer is set:", *lines)))


def _place(coroutine: object) -> str:
    """Where a coroutine stands: its innermost frame that does not belong to the loop."""
    frames = list(_frames(coroutine))
    own = [frame for frame in frames if frame.f_globals.get("__name__", "").partition(".")[0] not in _LOOPS]
    if not frames:
        return "an unknown place"
    frame = (own or frames)[-1]
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _frames(coroutine: object) -> Iterator[FrameType]:
    """Frames of a suspended coroutine, outermost first."""
    while coroutine is not None:
        frame = _first(coroutine, _FRAME)
        if isinstance(frame, FrameType):
            yield frame
        coroutine = _first(coroutine, _INNER)


def _first(thing: object, names: Iterable[str]) -> object:
    found: list[object] = [getattr(thing, name) for name in names if hasattr(thing, name)]
    return found[0] if found else None
