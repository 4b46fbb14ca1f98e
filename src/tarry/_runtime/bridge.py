"""Between two loops: post a call into a loop without waiting, and carry one answer back.

Nothing here knows what is asked. A post never blocks behind a busy loop (design 5): `call_soon_threadsafe` on asyncio,
`run_sync_soon` on trio.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import anyio

from tarry.errors import LogUnavailable, TarryError

Post = Callable[..., object]
"""Run a function with arguments on one loop, soon; may be called from any thread. RuntimeError: the loop is gone."""

T = TypeVar("T")


def backend() -> str:
    """`"asyncio"` or `"trio"`: the loop that runs the calling task."""
    return _backend()


def _backend() -> str:
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            return "asyncio"
        return "trio"
    return "asyncio"


def loop_post() -> Post:
    """The `Post` into the loop that is running."""
    if _backend() == "trio":
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def loop_now() -> Callable[[], float]:
    """The monotonic clock of the loop that is running, callable from its callbacks too."""
    if _backend() == "trio":
        import trio

        return trio.current_time
    return asyncio.get_running_loop().time


def inline(function: Callable[..., object], *args: Any) -> None:
    """A `Post` for one loop: call at once."""
    function(*args)


class Call(Generic[T]):
    """One request on its way, and its answer. Made by the asking task; answered once, on the answering loop.

    Cancellation: the asking task withdraws the request by posting a cancel with this call as its key; an answer that
    was on its way is dropped.
    """

    __slots__ = ("_answer", "_event", "_home")

    def __init__(self, home: Post) -> None:
        self._home = home
        self._event = anyio.Event()
        self._answer: T | BaseException | None = None

    def reply(self, answer: T | BaseException) -> None:
        """Answer (on the answering loop). An asking loop that is gone by now does not need the answer."""
        try:
            self._home(self._arrive, answer)
        except RuntimeError:
            return

    def _arrive(self, answer: T | BaseException) -> None:
        self._answer = answer
        self._event.set()

    async def wait(self) -> T:
        """Wait for the answer; an exception is raised here."""
        await self._event.wait()
        answer = self._answer
        if isinstance(answer, TarryError):
            raise answer.with_traceback(None)
        if isinstance(answer, BaseException):
            raise answer
        return cast("T", answer)  # None is an answer like any other


class Port:
    """Where requests are posted to: `there` runs the answering side, `home` the asking one.

    With one loop for both every request is admitted before `ask` first waits, and a cancel has taken effect when it
    raises.
    """

    def __init__(self, there: Post, home: Post, cancel: Callable[[Call[Any]], None]) -> None:
        self._there = there
        self._home = home
        self._cancel = cancel

    async def ask(self, request: Callable[..., None], *args: Any) -> Any:
        """Post `request(call, *args)` and wait for the answer.

        Cancellation: the request is withdrawn; posts keep their order, so a cancel never overtakes its request (C79).

        Raises:
            LogUnavailable: the answering loop is gone; nothing was asked.
        """
        call: Call[Any] = Call(self._home)
        try:
            self._there(_guarded, request, call, *args)
        except RuntimeError as error:
            raise LogUnavailable("the log is closed; connect again") from error
        try:
            return await call.wait()
        except BaseException:
            self.tell(self._cancel, call)
            raise

    def tell(self, function: Callable[..., None], *args: Any) -> None:
        """Post without an answer; nothing happens when the other loop is gone."""
        try:
            self._there(function, *args)
        except RuntimeError:
            return


def _guarded(request: Callable[..., None], call: Call[Any], *args: Any) -> None:
    """An error of the answering side belongs to the one who asked, not to a loop's exception handler."""
    try:
        request(call, *args)
    except Exception as error:  # noqa: BLE001  # whatever it is, the asking task must get it and not wait for ever
        call.reply(error)
