"""Owned threads: order, ends, and what happens when the loop or the thread is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from tarry._runtime.threads import Errand, Pool, Worker, attempts, deliver


class Loop:
    """The simplest loop: posted calls run when the test asks for them."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def post(self, fn: Callable[..., None], *args: object) -> None:
        self.calls.put(lambda: fn(*args))

    def run_until(self, is_done: Callable[[], object]) -> None:
        while not is_done():
            self.calls.get(timeout=10)()


def gone(fn: Callable[..., None], *args: object) -> None:
    raise RuntimeError("Event loop is closed")


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_a_worker_handles_in_order_and_ends_behind_everything() -> None:
    loop, handled, ended = Loop(), list[int](), list[BaseException | None]()
    worker = Worker[int]("w", handled.append, post=loop.post, ended=ended.append, finish=lambda: handled.append(-1))
    for number in range(5):
        worker.put(number)
    worker.close()
    worker.close()
    loop.run_until(lambda: ended)
    assert handled == [0, 1, 2, 3, 4, -1]
    assert ended == [None]


def test_what_kills_a_worker_is_reported_once_and_it_finishes_all_the_same() -> None:
    loop, ended, finished = Loop(), list[BaseException | None](), list[bool]()

    def handle(item: int) -> None:
        raise ZeroDivisionError

    worker = Worker[int]("w", handle, post=loop.post, ended=ended.append, finish=lambda: finished.append(True))
    worker.put(1)
    worker.put(2)
    loop.run_until(lambda: ended)
    assert [type(error) for error in ended] == [ZeroDivisionError]
    assert finished == [True]


def test_an_error_while_finishing_is_reported_too() -> None:
    loop, ended = Loop(), list[BaseException | None]()

    def finish() -> None:
        raise OSError("disk")

    worker = Worker[int]("w", lambda _: None, post=loop.post, ended=ended.append, finish=finish)
    worker.close()
    loop.run_until(lambda: ended)
    assert [type(error) for error in ended] == [OSError]


def test_idle_runs_only_when_the_last_answer_asked_for_it() -> None:
    loop, ended, idled = Loop(), list[BaseException | None](), SimpleQueue[str]()
    pauses: Iterator[float | None] = iter([0.001, 0.001, None])

    def idle() -> float | None:
        idled.put("idle")
        return next(pauses)

    worker = Worker[float | None]("w", lambda pause: pause, post=loop.post, ended=ended.append, idle=idle)
    worker.put(None)
    worker.put(0.001)
    assert [idled.get(timeout=10) for _ in range(3)] == ["idle"] * 3
    worker.close()
    loop.run_until(lambda: ended)
    assert idled.empty()


def test_a_worker_outlives_its_loop_without_crashing(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker[int]("w", lambda _: None, post=gone, ended=lambda _: None)
    worker.close()
    worker._thread.join(10)
    assert not caplog.records
    worker = Worker[int]("w", lambda _: 1 / 0, post=gone, ended=lambda _: None)
    worker.put(1)
    worker._thread.join(10)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_deliver_drops_what_nobody_can_hear() -> None:
    loop = Loop()
    assert deliver(loop.post, lambda: None)
    assert not deliver(gone, lambda: None)


@pytest.mark.parametrize("size", [1, 2])
def test_a_pool_runs_at_most_so_many_calls_at_once_and_closes_behind_the_last(size: int) -> None:
    loop, answers, closed = Loop(), list[int | Exception](), list[bool]()
    started, release = SimpleQueue[int](), threading.Event()
    pool = Pool("p", size, loop.post)

    def call(number: int) -> Callable[[], int]:
        def work() -> int:
            started.put(number)
            release.wait(10)
            return number

        return work

    for number in range(5):
        pool.run(call(number), answers.append)
    assert sorted(started.get(timeout=10) for _ in range(size)) == list(range(size))
    assert started.empty()
    pool.close(lambda: closed.append(True))
    assert not closed
    release.set()
    loop.run_until(lambda: closed)
    assert len(answers) == 5
    if size == 1:
        assert answers == [0, 1, 2, 3, 4]  # First come, first served (S36).


def test_a_pool_answers_with_what_was_raised() -> None:
    loop, answers, closed = Loop(), list[object](), list[bool]()
    pool = Pool("p", 1, loop.post)
    pool.run(lambda: 1 // 0, answers.append)
    loop.run_until(lambda: answers)
    assert isinstance(answers[0], ZeroDivisionError)
    pool.close(lambda: closed.append(True))
    assert closed == [True]


def test_a_pool_outlives_its_loop_without_crashing() -> None:
    pool = Pool("p", 1, gone)
    pool.run(lambda: 1, lambda _: None)
    pool._executor.shutdown(wait=True)


def test_attempts_end_and_there_is_at_least_one() -> None:
    assert sum(1 for _ in attempts(0)) == 1
    assert sum(1 for _ in attempts(0.02)) > 1


@pytest.mark.anyio
async def test_an_errand_answers_whoever_asks_and_however() -> None:
    done = Errand("e", divmod, 7, 2)
    assert [await done.wait(), await done.wait(), done.result()] == [(3, 1)] * 3
    assert done.error() is None
    failed = Errand("e", divmod, 7, 0)
    with pytest.raises(ZeroDivisionError):
        await failed.wait()
    assert isinstance(failed.error(), ZeroDivisionError)


def test_an_errand_whose_waiter_asyncio_cancelled_is_done_all_the_same() -> None:
    went_on, began = threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return went_on.wait(10)

    async def main() -> Errand[bool]:
        errand = Errand("e", work)
        waiter = asyncio.create_task(errand.wait())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return errand

    errand = asyncio.run(main())
    went_on.set()
    assert errand.result()
    assert began.is_set()
    errand._thread.join()
