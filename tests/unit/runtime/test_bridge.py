"""Requests between two loops, and within one: order, answers, cancels, and loops that are gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from tarry._runtime import bridge
from tarry._runtime.bridge import Call, Port, Post, inline, loop_now, loop_post
from tarry.errors import LogUnavailable, MessageTooLarge
from tests.marks import rule
from tests.virtual import virtual


class Answerer:
    """The answering side: notes in order what reaches it, and holds requests until it is told to answer."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.calls: list[Call[Any]] = []

    def hold(self, call: Call[Any], name: Any) -> None:
        self.log.append(("request", name))
        self.calls.append(call)

    def answer(self, call: Call[Any], value: Any) -> None:
        self.log.append(("request", value))
        call.reply(value)

    def fail(self, call: Call[Any]) -> None:
        raise ZeroDivisionError("the answering side broke")

    def cancel(self, call: Call[Any]) -> None:
        self.log.append(("cancel", self.calls.index(call) if call in self.calls else None))

    def note(self, what: Any) -> None:
        self.log.append(("told", what))


@contextmanager
def far_loop() -> Generator[asyncio.AbstractEventLoop]:
    """Another loop, in a thread of its own, as a host has it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def gone(function: Callable[..., object], *args: Any) -> None:
    raise RuntimeError("Event loop is closed")


class TestWithinOneLoop:
    @virtual()
    async def test_a_request_is_admitted_before_ask_waits(self):
        side = Answerer()
        port = Port(inline, inline, side.cancel)
        assert await port.ask(side.answer, 5) == 5
        assert await port.ask(side.answer, None) is None
        assert side.log == [("request", 5), ("request", None)]
        with anyio.CancelScope() as scope:
            scope.cancel()
            await port.ask(side.hold, "a")
        assert side.log[2:] == [("request", "a"), ("cancel", 0)], "though it never came to wait"

    @virtual(seeds=3)
    async def test_a_cancel_has_taken_effect_when_it_raises(self):
        side = Answerer()
        port = Port(inline, inline, side.cancel)
        with anyio.move_on_after(1) as scope:
            try:
                await port.ask(side.hold, "a")
            finally:
                assert side.log == [("request", "a"), ("cancel", 0)]
        assert scope.cancelled_caught
        side.calls[0].reply("too late")
        await anyio.sleep(1)

    @virtual()
    async def test_an_answer_that_was_on_its_way_is_dropped_by_the_cancel(self):
        side = Answerer()
        port = Port(inline, inline, side.cancel)
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                await port.ask(side.hold, "a")
                raise AssertionError("cancelled before it could go on")

            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            side.calls[0].reply("answer")


class TestAnswers:
    @virtual()
    async def test_an_error_is_raised_by_the_asking_task(self):
        side = Answerer()
        port = Port(inline, inline, side.cancel)
        for error in (MessageTooLarge("too large", size=2, limit=1), LogUnavailable("gone"), ValueError("any")):
            with pytest.raises(type(error)) as caught:
                await port.ask(side.answer, error)
            assert caught.value is error

    @virtual()
    async def test_an_error_of_the_answering_side_reaches_the_one_who_asked(self):
        side = Answerer()
        port = Port(inline, inline, side.cancel)
        with pytest.raises(ZeroDivisionError, match="the answering side broke"):
            await port.ask(side.fail)

    @pytest.mark.anyio
    async def test_an_error_of_a_host_reaches_the_one_who_asked(self):
        side = Answerer()
        with far_loop() as far:
            port = Port(far.call_soon_threadsafe, loop_post(), side.cancel)
            with pytest.raises(ZeroDivisionError, match="the answering side broke"):
                await port.ask(side.fail)
            assert await port.ask(side.answer, "still there") == "still there"


class TestBetweenLoops:
    @pytest.mark.anyio
    async def test_many_answers_reach_their_own_askers(self):
        side = Answerer()
        found: dict[int, Any] = {}
        with far_loop() as far:
            port = Port(far.call_soon_threadsafe, loop_post(), side.cancel)

            async def ask(number: int) -> None:
                found[number] = await port.ask(side.answer, number)

            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(ask, number)
        assert found == {number: number for number in range(100)}

    @pytest.mark.anyio
    @rule("C79")
    async def test_a_cancel_never_overtakes_its_request_nor_the_next_request_a_cancel(self):
        side = Answerer()
        rounds = 100
        with far_loop() as far:
            port = Port(far.call_soon_threadsafe, loop_post(), side.cancel)
            for number in range(rounds):
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await port.ask(side.hold, number)
            await port.ask(side.answer, "replacement")
        cancelled = [entry for number in range(rounds) for entry in (("request", number), ("cancel", number))]
        assert side.log == [*cancelled, ("request", "replacement")]

    @pytest.mark.anyio
    async def test_a_post_does_not_wait_for_a_busy_loop(self):
        side, busy = Answerer(), threading.Event()
        with far_loop() as far:
            port = Port(far.call_soon_threadsafe, loop_post(), side.cancel)
            far.call_soon_threadsafe(busy.wait)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(port.ask, side.answer, "a")
                await anyio.wait_all_tasks_blocked()
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await port.ask(side.hold, "b")
                port.tell(side.note, "c")
                assert side.log == []
                busy.set()
        assert side.log == [("request", "a"), ("request", "b"), ("cancel", 0), ("told", "c")]

    @pytest.mark.anyio
    async def test_an_answer_to_a_loop_that_is_gone_is_dropped(self):
        call: Call[Any] = Call(gone)
        call.reply("nobody is there")
        assert not call.is_wanted
        assert Call[Any](loop_post()).is_wanted

    def test_an_answer_to_a_loop_that_has_ended_is_dropped(self):
        for name in ("asyncio", "trio"):
            posts: list[Post] = []

            async def leave_post(posts: list[Post] = posts) -> None:
                posts.append(loop_post())

            anyio.run(leave_post, backend=name)
            with pytest.raises(RuntimeError):
                posts[0](print)
            call: Call[Any] = Call(posts[0])
            call.reply("nobody is there")
            assert not call.is_wanted

    @pytest.mark.anyio
    async def test_a_request_to_a_loop_that_is_gone_says_so(self):
        side = Answerer()
        port = Port(gone, inline, side.cancel)
        with pytest.raises(LogUnavailable, match="closed"):
            await port.ask(side.answer, 1)
        port.tell(side.note, 1)
        assert side.log == []


class TestLoops:
    @virtual()
    async def test_names_the_running_loop(self, backend: str):
        assert bridge.backend() == backend

    @virtual()
    async def test_posts_run_in_order_and_from_any_thread(self):
        done: list[int] = []
        post = loop_post()
        for number in range(10):
            post(done.append, number)
        thread = threading.Thread(target=post, args=(done.append, 10))
        thread.start()
        thread.join()
        await anyio.sleep(1)
        assert done == list(range(11))

    @virtual()
    async def test_the_clock_is_the_loop_s_own_also_outside_of_tasks(self):
        now, seen = loop_now(), list[float]()
        await anyio.sleep(100)
        loop_post()(lambda: seen.append(now()))
        await anyio.sleep(1)
        assert seen == [pytest.approx(100)]


class TestPostsTogether:
    @pytest.mark.anyio
    async def test_a_loop_is_woken_once_for_all_it_has_not_seen(self):
        done: list[int] = []
        wake, wakes = loop_post(), list[object]()

        def count_and_wake(run: Callable[[], None]) -> None:
            wakes.append(run)
            wake(run)

        post = bridge._Mailbox(count_and_wake, lambda: False)
        for turn in range(3):
            for number in range(100):
                post(done.append, 100 * turn + number)
            while len(done) < 100 * (turn + 1):
                await anyio.lowlevel.checkpoint()
        assert done == list(range(300))
        assert len(wakes) == 3

    @pytest.mark.anyio
    async def test_what_a_post_posts_is_for_the_next_turn(self):
        done: list[str] = []
        post = loop_post()

        def first() -> None:
            post(done.append, "third")
            done.append("first")

        post(first)
        post(done.append, "second")
        while len(done) < 3:
            await anyio.lowlevel.checkpoint()
        assert done == ["first", "second", "third"]

    def test_one_that_raises_does_not_take_those_behind_it_along(self):
        done, failures = list[int](), list[Any]()
        with far_loop() as far:
            far.set_exception_handler(lambda _, context: failures.append(context["exception"]))
            posts = asyncio.run_coroutine_threadsafe(_loop_post(), far)
            post = posts.result(5)
            held = threading.Event()
            far.call_soon_threadsafe(held.wait)
            for number in range(3):
                post(done.append, number)
                post(lambda: 1 / 0)
            held.set()
            ended = threading.Event()
            post(ended.set)
            assert ended.wait(5)
        assert done == [0, 1, 2]
        assert [type(failure) for failure in failures] == [ZeroDivisionError] * 3

    def test_many_threads_lose_no_post(self):
        done: list[int] = []
        with far_loop() as far:
            post = asyncio.run_coroutine_threadsafe(_loop_post(), far).result(5)
            threads = [
                threading.Thread(target=lambda: [post(done.append, number) for number in range(2000)]) for _ in "abcd"
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            ended = threading.Event()
            post(ended.set)
            assert ended.wait(5)
        assert sorted(done) == sorted(list(range(2000)) * 4)

    def test_a_loop_that_closed_before_it_looked_says_so(self):
        loop = asyncio.new_event_loop()
        post = loop.run_until_complete(_loop_post())
        post(print, "never")
        loop.close()
        with pytest.raises(RuntimeError, match="closed"):
            post(print, "never")


async def _loop_post() -> Post:
    return loop_post()
