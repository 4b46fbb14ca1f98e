"""Threads that belong to somebody: a worker with a queue, a small first-come-first-served pool, one for one call.

Results come back through a `Post`, a thread-safe "run this on the loop" (`bridge`). Not here: what the threads do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, Generic, TypeVar

import anyio

from tarry._runtime.bridge import Post, loop_post

Item = TypeVar("Item")
Result = TypeVar("Result")

_logger = logging.getLogger("tarry.threads")


def deliver(post: Post, fn: Callable[..., None], *args: object) -> bool:
    """Post from a thread; False when the loop is gone: nobody is left to hear the result, so it is dropped."""
    try:
        post(fn, *args)
    except RuntimeError:
        return False
    return True


def attempts(limit_s: float) -> Iterator[None]:
    """Yield at once, then again after growing pauses (1 to 50 ms), until `limit_s` seconds have passed.

    For a worker thread that has to ask again; at least one attempt.
    Time: reads the monotonic clock and sleeps.
    """
    deadline = time.monotonic() + limit_s
    pause = 0.001
    yield
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.05)
        yield


def now() -> float:
    """Monotonic seconds for code inside a thread, which has no loop to ask."""
    return time.monotonic()


class _End:
    """What ends the thread of a worker, behind everything that was put before."""


_END: Final = _End()


class Worker(Generic[Item]):
    """One owned thread that handles items in the order they were put.

    A daemon, so that a program that ends without closing can end; `close` joins it. While nothing is queued it sleeps:
    for ever, or as long as the last `handle` or `idle` said, and then calls `idle`.

    Args:
        handle: runs in the thread for each item; returns the seconds after which `idle` should run, None for never.
        ended: called on the loop, once, when the thread has ended; with the error that killed it, None after `close`.
        idle: runs in the thread when that pause has passed without an item; returns the next pause.
        finish: runs in the thread as its last act, whatever ended it.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Item], float | None],
        *,
        post: Post,
        ended: Callable[[BaseException | None], None],
        idle: Callable[[], float | None] = lambda: None,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue: SimpleQueue[Item | _End] = SimpleQueue()
        self._handle = handle
        self._idle = idle
        self._finish = finish
        self._post = post
        self._ended = ended
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue an item. What is put after `close`, or to a dead thread, is never handled; `ended` tells."""
        self._queue.put(item)

    def close(self) -> None:
        """End the thread behind everything that was put; `ended` follows. Idempotent."""
        self._queue.put(_END)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as caught:  # noqa: BLE001  # reported through `ended`; nobody could catch it here
            error = caught
        try:
            self._finish()
        except BaseException as caught:  # noqa: BLE001  # as above
            error = error or caught
        if not deliver(self._post, self._join, error) and error is not None:
            _logger.error("thread %s died and its loop is gone", self._thread.name, exc_info=error)

    def _work(self) -> None:
        pause: float | None = None
        while True:
            try:
                item = self._queue.get(timeout=pause)
            except Empty:
                pause = self._idle()
                continue
            if isinstance(item, _End):
                return
            pause = self._handle(item)

    def _join(self, error: BaseException | None) -> None:
        self._thread.join()  # Posting this was the last thing it did.
        self._ended(error)


class Pool:
    """At most `size` threads; calls start in the order they were made, and each answers on the loop.

    `run` and `close` belong to the loop. A call that has started always ends and always answers, also when nobody
    waits for it any more.
    """

    def __init__(self, name: str, size: int, post: Post) -> None:
        self._executor = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._post = post
        self._open = 0
        self._closed: Callable[[], None] | None = None

    def run(self, fn: Callable[[], Result], done: Callable[[Result | Exception], None]) -> None:
        """Call `fn` in a thread; `done` gets its result, or what it raised, on the loop."""
        self._open += 1
        self._executor.submit(self._call, fn, done)

    def close(self, closed: Callable[[], None]) -> None:
        """End the threads once every call has answered, then call `closed` (at once when none is out). Call it once."""
        self._closed = closed
        self._end_when_idle()

    def _call(self, fn: Callable[[], Result], done: Callable[[Result | Exception], None]) -> None:
        try:
            result = fn()
        except Exception as error:  # noqa: BLE001  # the caller's `done` gets it
            deliver(self._post, self._answer, done, error)
        else:
            deliver(self._post, self._answer, done, result)

    def _answer(self, done: Callable[[Result | Exception], None], result: Result | Exception) -> None:
        self._open -= 1
        try:
            done(result)
        finally:
            self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self._closed is None or self._open:
            return
        closed, self._closed = self._closed, None
        self._executor.shutdown(wait=True)  # All threads are idle: this waits for them to leave, not for work.
        closed()


class Errand(Generic[Result]):
    """One blocking call in a thread of its own; it begins at once, and ends whoever waits for it or does not.

    `anyio.to_thread` promises neither: asyncio's own cancel keeps a call from beginning, or drops what it returned.
    """

    def __init__(self, name: str, fn: Callable[..., Result], *args: object) -> None:
        self._future: Future[Result] = Future()
        self._thread = Thread(target=self._run, args=(fn, *args), name=name, daemon=True)
        self._thread.start()

    def result(self) -> Result:
        """What it returned, or raise what it raised. Blocks until it has ended."""
        return self._future.result()

    def error(self) -> BaseException | None:
        """What it raised, if it did. Blocks until it has ended."""
        return self._future.exception()

    async def wait(self) -> Result:
        """The same without blocking the loop.

        Cancellation: waited for to the end; asyncio's own cancel, which no scope holds back, ends the wait alone.
        """
        ended, post = anyio.Event(), loop_post()
        self._future.add_done_callback(lambda _: deliver(post, ended.set))
        with anyio.CancelScope(shield=True):
            await ended.wait()
        self._thread.join()  # Posting this was the last thing it did.
        return self.result()

    def _run(self, fn: Callable[..., Result], *args: object) -> None:
        try:
            result = fn(*args)
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self._future.set_exception(error)
        else:
            self._future.set_result(result)
