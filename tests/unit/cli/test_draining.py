"""Signals: the first ends the work in order, the second cuts it short."""

from __future__ import annotations

import signal

import anyio
import anyio.lowlevel
import pytest
import typer

from tarry.cli.draining import Stop, run

FIRST_AND_SECOND = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def test_work_without_a_signal_returns_what_it_returns() -> None:
    async def work(stop: Stop) -> str:
        await anyio.lowlevel.checkpoint()
        assert not stop.requested
        return "done"

    assert run(work) == "done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_a_wait_and_nothing_else(number: signal.Signals) -> None:
    async def work(stop: Stop) -> tuple[bool, signal.Signals | None]:
        signal.raise_signal(number)
        with stop.interruptible():
            await anyio.sleep_forever()
        await anyio.sleep(0.01)
        with stop.interruptible() as later:
            await anyio.sleep_forever()
        return later.cancelled_caught, stop.signal

    assert run(work, drains=True) == (True, number)


@pytest.mark.parametrize(("number", "code"), FIRST_AND_SECOND)
def test_the_second_signal_cancels_the_work(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[bool] = []

    async def work(stop: Stop) -> None:
        try:
            with stop.interruptible():
                signal.raise_signal(number)
                await anyio.sleep_forever()
            signal.raise_signal(number)
            await anyio.sleep_forever()
        finally:
            closed.append(stop.requested)

    with pytest.raises(typer.Exit) as ended:
        run(work, drains=True)
    assert ended.value.exit_code == code
    assert closed == [True]
    assert capsys.readouterr().err == f"tarry: cut short by {number.name}\n"


@pytest.mark.parametrize(("number", "code"), FIRST_AND_SECOND)
def test_work_that_does_not_drain_is_cut_short_at_once(number: signal.Signals, code: int) -> None:
    async def work(_: Stop) -> None:
        signal.raise_signal(number)
        await anyio.sleep_forever()

    with pytest.raises(typer.Exit) as ended:
        run(work)
    assert ended.value.exit_code == code


def test_a_drain_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.cli.draining.DRAIN_S", 0.01)

    async def work(_: Stop) -> None:
        signal.raise_signal(signal.SIGTERM)
        await anyio.sleep_forever()

    with pytest.raises(typer.Exit) as ended:
        run(work, drains=True)
    assert ended.value.exit_code == 143


def test_an_error_comes_out_as_it_is() -> None:
    async def work(_: Stop) -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run(work)


def test_a_watch_ends_the_work_in_order_and_may_be_impossible() -> None:
    async def happens() -> None:
        await anyio.lowlevel.checkpoint()

    async def impossible() -> None:
        await anyio.lowlevel.checkpoint()
        raise OSError("not on this system")

    async def work(stop: Stop) -> bool:
        stop.end_when(impossible)
        await anyio.sleep(0.01)
        assert not stop.requested
        stop.end_when(happens)
        with stop.interruptible():
            await anyio.sleep_forever()
        return stop.requested

    assert run(work, drains=True)


def test_a_broken_pipe_is_a_quiet_end() -> None:
    async def work(_: Stop) -> None:
        await anyio.lowlevel.checkpoint()
        raise BrokenPipeError

    with pytest.raises(typer.Exit) as ended:
        run(work)
    assert ended.value.exit_code == 0
