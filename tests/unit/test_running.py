"""`tarry.run` inside one process: what it returns, raises and refuses, and that it leaves nothing behind."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import tarry
from tarry._runtime.signals import Drain, current_drain
from tests.marks import rule

BACKENDS: list[Any] = ["asyncio", "trio"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_returns_what_main_returns_and_leaves_signals_as_they_were(backend: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def main() -> str:
        await anyio.lowlevel.checkpoint()
        return "done"

    assert tarry.run(main, backend=backend, drain_timeout=timedelta(seconds=1)) == "done"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert current_drain() is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_error_of_main_comes_out_as_it_is(backend: Any, error: BaseException) -> None:
    async def main() -> None:
        async with tarry.connect("memory:") as client:
            await client.create_topic("jobs")
            async with client.consumer("jobs"):
                raise error

    with pytest.raises(type(error)) as raised:
        tarry.run(main, backend=backend)
    assert raised.value is error


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_that_main_returns_is_not_raised(backend: Any) -> None:
    error = ValueError("wrong")

    async def main() -> ValueError:
        await anyio.lowlevel.checkpoint()
        return error

    assert tarry.run(main, backend=backend) is error


@rule("K15")
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_signal_shuts_down_the_consumers_of_every_client(backend: Any) -> None:
    async def read(ready: anyio.Event) -> None:
        async with tarry.connect("memory:") as client:
            await client.create_topic("jobs")
            async with client.consumer("jobs") as first, client.consumer("jobs"):
                ready.set()
                async for _ in first:
                    raise AssertionError("there is nothing to read")

    async def main() -> str:
        async with anyio.create_task_group() as tasks:
            ready = [anyio.Event(), anyio.Event()]
            for event in ready:
                tasks.start_soon(read, event)
            for event in ready:
                await event.wait()
            signal.raise_signal(signal.SIGTERM)
        return "all ended"

    assert tarry.run(main, backend=backend) == "all ended"


def test_a_closed_consumer_does_not_hold_up_the_end() -> None:
    async def main() -> None:
        async with tarry.connect("memory:") as client:
            await client.create_topic("jobs")
            async with client.consumer("jobs"):
                pass
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()

    with pytest.raises(SystemExit) as ended:
        tarry.run(main, drain_timeout=3600)
    assert ended.value.code == 130


def test_a_loop_in_another_thread_takes_no_part() -> None:
    drains: list[Drain | None] = []

    async def main() -> None:
        await anyio.to_thread.run_sync(lambda: drains.append(current_drain()))
        drains.append(current_drain())

    tarry.run(main)
    assert drains[0] is None
    assert drains[1] is not None


def test_only_the_main_thread_may_run() -> None:
    async def main() -> None:
        await anyio.to_thread.run_sync(tarry.run, main)

    with pytest.raises(tarry.UsageError, match=r"main thread only; use anyio\.run here"):
        tarry.run(main)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "curio"}, tarry.ConfigError, "backend='curio': use 'asyncio' or 'trio'"),
        ({"drain_timeout": -1}, tarry.ConfigError, "drain_timeout=-1: 0 to 3,600 seconds"),
        ({"drain_timeout": float("nan")}, tarry.ConfigError, "drain_timeout=nan: 0 to 3,600 seconds"),
        ({"drain_timeout": True}, tarry.ConfigTypeError, "drain_timeout=True: seconds as a number, or a timedelta"),
        ({"drain_timeout": "5 s"}, tarry.ConfigTypeError, "drain_timeout='5 s': seconds as a number, or a timedelta"),
    ],
)
def test_options_that_cannot_work_are_refused(options: Any, error: type[Exception], message: str) -> None:
    async def main() -> None:
        raise AssertionError("it must not run")

    with pytest.raises(error) as refused:
        tarry.run(main, **options)
    assert str(refused.value) == message


def test_a_coroutine_is_no_main() -> None:
    given: Any = object()
    with pytest.raises(tarry.ConfigTypeError, match=r"pass it without calling it: tarry\.run\(main\)"):
        tarry.run(given)


def test_trio_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(_: str) -> None:
        return None

    monkeypatch.setattr("tarry.running.find_spec", find_nothing)

    async def main() -> None:
        raise AssertionError("it must not run")

    with pytest.raises(tarry.MissingExtra, match="pip install trio"):
        tarry.run(main, backend="trio")
