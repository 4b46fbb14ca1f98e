"""Between two loops: post a call into a loop without waiting, and carry one answer back.

Nothing here knows what is asked. A post never blocks behind a busy loop (design 5): `call_soon_threadsafe` on asyncio,
`run_sync_soon` on trio, once for all posts that the other loop has not seen yet.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, Never, Protocol, SupportsIndex, TypeVar, cast

import anyio
import anyio.lowlevel

from tarry.errors import LogUnavailable, TarryError, UsageError

Post = Callable[..., object]
"""Run a function with arguments on one loop, soon; may be called from any thread. RuntimeError: the loop is gone."""

T = TypeVar("T")


def backend() -> Literal["asyncio", "trio"]:
    """The loop that runs in this thread; also callable from its callbacks.

    asyncio is asked first: another thread may be importing trio at this moment.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "trio"
    return "asyncio"


def running_loop() -> object:
    """The loop that runs in this thread, compared by identity only; None: none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    trio = sys.modules.get("trio")  # whoever runs it has imported it
    try:
        return None if trio is None else trio.lowlevel.current_trio_token()
    except (RuntimeError, AttributeError):  # the latter: another thread is importing it
        return None


class Home:
    """The loop in which something was opened, the only one that may use it: in another one a wait would not end."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop = running_loop()

    def check(self, what: object) -> None:
        """Refuse a caller from elsewhere.

        Raises:
            UsageError: another loop runs here, or none; nothing was done.
        """
        if running_loop() is not self._loop:
            raise UsageError(
                f"{what} belongs to the event loop in which it was opened, and is used from another loop or thread; "
                "use it there (anyio.from_thread.run), or open another client here with tarry.connect()"
            )


class Bound:
    """Belongs to one loop, so that a copy of it is none: not in another process, nor beside itself."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise TypeError(f"{self!r} cannot be copied or pickled; open another one where it is needed")


def loop_post() -> Post:
    """The `Post` into the loop that is running."""
    if backend() == "trio":
        import trio

        return _Mailbox(trio.lowlevel.current_trio_token().run_sync_soon, lambda: False)
    loop = asyncio.get_running_loop()
    return _Mailbox(loop.call_soon_threadsafe, loop.is_closed)


class _Mailbox:
    """A `Post` that wakes its loop once for everything posted until that loop looks: a wake-up costs a system call.

    A poster notes its call first and looks at `_is_due` then, the loop does it the other way round: no call is left.
    trio runs all that it took before it ends; asyncio may not, hence `is_gone`.
    """

    def __init__(self, post: Post, is_gone: Callable[[], bool]) -> None:
        self._post = post
        self._is_gone = is_gone
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_due = False

    def __call__(self, function: Callable[..., object], *args: Any) -> None:
        self._calls.append((function, args))
        if not self._is_due or self._is_gone():
            self._wake()

    def _wake(self) -> None:
        self._is_due = True
        try:
            self._post(self._run)
        except RuntimeError:
            self._is_due = False
            raise

    def _run(self) -> None:
        """Run what is there, in order. The next turn gets what is posted meanwhile, and the rest when one raises."""
        self._is_due = False
        calls = self._calls
        left = len(calls)
        try:
            while left:
                left -= 1
                function, args = calls.popleft()
                function(*args)
        finally:
            if left:
                self._wake()


def loop_now() -> Callable[[], float]:
    """The monotonic clock of the loop that is running, callable from its callbacks too."""
    if backend() == "trio":
        import trio

        return trio.current_time
    return asyncio.get_running_loop().time


def inline(function: Callable[..., object], *args: Any) -> None:
    """A `Post` for one loop: call at once."""
    function(*args)


class _Event(Protocol):
    """One task waits, once; `set` wakes it."""

    def set(self) -> object: ...

    async def wait(self) -> object: ...


class _Flag:
    """An `_Event` of asyncio at a quarter of the price of anyio's, which may have many waiters."""

    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()

    def set(self) -> None:
        if not self._future.done():  # The waiter may have been cancelled.
            self._future.set_result(None)

    async def wait(self) -> None:
        if self._future.done():
            await anyio.lowlevel.checkpoint()
        else:
            await self._future


def _event_maker() -> Callable[[], _Event]:
    """Makes events of the loop that is running."""
    if backend() == "trio":
        import trio

        return trio.Event
    return partial(_Flag, asyncio.get_running_loop())


class Call(Generic[T]):
    """One request on its way, and its answer. Made by the asking task; answered once, on the answering loop.

    Cancellation: the asking task withdraws the request by posting a cancel with this call as its key; an answer that
    was on its way is dropped.
    """

    __slots__ = ("_answer", "_event", "_home")

    def __init__(self, home: Post, event: _Event | None = None) -> None:
        self._home = home
        self._event = anyio.Event() if event is None else event
        self._answer: T | BaseException | None = None

    def reply(self, answer: T | BaseException) -> None:
        """Answer (on the answering loop). An asking loop that is gone by now does not need the answer."""
        try:
            self._home(self._arrive, answer)
        except RuntimeError:
            return

    @property
    def is_wanted(self) -> bool:
        """The asking loop is still there (on the answering loop). It is woken for that: not to be asked often."""
        try:
            self._home(_nothing)
        except RuntimeError:
            return False
        return True

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
        self._home_loop = Home()
        self._new_event = _event_maker()

    async def ask(self, request: Callable[..., None], *args: Any) -> Any:
        """Post `request(call, *args)` and wait for the answer.

        Cancellation: the request is withdrawn; posts keep their order, so a cancel never overtakes its request (C79).

        Raises:
            LogUnavailable: the answering loop is gone; nothing was asked.
            UsageError: it is called in another loop than the one that made it.
        """
        self._home_loop.check("a client")
        call: Call[Any] = Call(self._home, self._new_event())
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


def _nothing() -> None:
    """Posted to find out whether a loop is there."""


def _guarded(request: Callable[..., None], call: Call[Any], *args: Any) -> None:
    """An error of the answering side belongs to the one who asked, not to a loop's exception handler."""
    try:
        request(call, *args)
    except Exception as error:  # noqa: BLE001  # whatever it is, the asking task must get it and not wait for ever
        call.reply(error)
