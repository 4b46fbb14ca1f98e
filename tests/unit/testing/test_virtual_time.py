"""Virtual time: fast, repeatable, without traces in the process, and no hang when nobody can go on."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

from tarry.errors import MissingExtra, UsageError
from tarry.testing import Backend, Deadlock, VirtualClock, block, run_virtual
from tests.unit.testing import mini_system

HOUR = 3600.0
BACKENDS: list[Backend] = ["trio", "asyncio"]
both = pytest.mark.parametrize("backend", BACKENDS)


async def _sleep_an_hour() -> float:
    for _ in range(60):
        await anyio.sleep(60)
    return anyio.current_time()


async def _order(after: float = 1) -> list[int]:
    """Order in which tasks run that are ready at the same moment."""
    order: list[int] = []

    async def note(number: int) -> None:
        await anyio.sleep(after)
        order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(note, number)
    return order


# ------------------------------------------------------------------------------------------------------------ time


@both
def test_an_hour_passes_in_milliseconds(backend: Backend) -> None:
    run_virtual(_sleep_an_hour, backend=backend)  # Loads trio.
    start = time.perf_counter()
    assert run_virtual(_sleep_an_hour, backend=backend) == HOUR
    assert time.perf_counter() - start < 0.5


@both
def test_timers_fire_in_order_at_their_exact_times(backend: Backend) -> None:
    async def main() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []

        async def note(name: str, after: float) -> None:
            await anyio.sleep(after)
            fired.append((name, anyio.current_time()))

        async with anyio.create_task_group() as group:
            group.start_soon(note, "late", 7.25)
            group.start_soon(note, "early", 0.125)
            with anyio.move_on_after(2.5):
                await anyio.sleep_forever()
            fired.append(("deadline", anyio.current_time()))
        return fired

    assert run_virtual(main, backend=backend) == [("early", 0.125), ("deadline", 2.5), ("late", 7.25)]


@both
def test_the_clock_stands_still_while_somebody_can_go_on(backend: Backend) -> None:
    async def main() -> float:
        async def busy() -> None:
            for _ in range(1000):
                await anyio.lowlevel.checkpoint()

        with anyio.move_on_after(0.001):
            await busy()
        return anyio.current_time()

    assert run_virtual(main, backend=backend) == 0.0


@both
def test_blocking_moves_the_clock_and_lets_nobody_run(backend: Backend) -> None:
    async def main() -> tuple[list[float], float]:
        ticks: list[float] = []
        blocked_until = 0.0

        async def tick() -> None:
            while True:
                await anyio.sleep(1.0)
                ticks.append(anyio.current_time())

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.sleep(1.5)
            block(2.25)
            blocked_until = anyio.current_time()
            await anyio.sleep(0.5)
            group.cancel_scope.cancel()
        return ticks, blocked_until

    assert run_virtual(main, backend=backend) == ([1.0, 3.75], 3.75)


@both
def test_time_is_not_blocked_backwards(backend: Backend) -> None:
    async def main() -> None:
        block(-1.0)

    with pytest.raises(UsageError, match=r"block\(seconds\)=-1.0: 0 to"):
        run_virtual(main, backend=backend)


@pytest.mark.anyio
async def test_real_time_is_not_moved() -> None:
    with pytest.raises(UsageError, match="run_virtual"):
        block(1.0)


@both
def test_arguments_result_and_errors_pass_through(backend: Backend) -> None:
    async def double(number: int) -> int:
        return 2 * number

    async def fail() -> None:
        raise LookupError("mine")

    assert run_virtual(double, 21, backend=backend) == 42
    with pytest.raises(LookupError, match="mine"):
        run_virtual(fail, backend=backend)


@both
def test_waking_the_loop_from_outside_works(backend: Backend) -> None:
    async def main() -> bool:
        event = anyio.Event()
        if backend == "trio":
            trio.lowlevel.current_trio_token().run_sync_soon(event.set)
        else:
            asyncio.get_running_loop().call_soon_threadsafe(event.set)
        await event.wait()
        return event.is_set()

    assert run_virtual(main, backend=backend)


@both
def test_bytes_on_the_way_go_before_a_jump(backend: Backend) -> None:
    async def main() -> float:
        here, there = socket.socketpair()
        with here, there, anyio.fail_after(HOUR):
            here.send(b"hello")
            await anyio.wait_readable(there)
        return anyio.current_time()

    assert run_virtual(main, backend=backend) == 0.0


@both
def test_the_virtual_clock_moves_with_the_loop(backend: Backend) -> None:
    async def main() -> tuple[float, int, float, int]:
        clock = VirtualClock(datetime(2012, 1, 1, tzinfo=UTC))
        before = clock.now(), clock.wall_ms()
        await anyio.sleep(1.5)
        return *before, clock.now(), clock.wall_ms()

    start = 1_325_376_000_000
    assert run_virtual(main, backend=backend) == (0.0, start, 1.5, start + 1500)


# ----------------------------------------------------------------------------------------------------- determinism


def test_on_trio_the_seed_decides_the_order_of_ready_tasks() -> None:
    orders = [tuple(run_virtual(_order, seed=seed)) for seed in range(20)]
    assert orders == [tuple(run_virtual(_order, seed=seed)) for seed in range(20)]
    assert len(set(orders)) > 15


def test_on_asyncio_ready_tasks_run_first_come_first_served() -> None:
    assert run_virtual(_order, 0, backend="asyncio", seed=5) == list(range(8))


@both
def test_tasks_cancelled_together_end_in_one_order(backend: Backend) -> None:
    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(number: int) -> None:
            try:
                with anyio.CancelScope():  # Scopes of tasks are kept apart from tasks.
                    await anyio.sleep_forever()
            finally:
                ended.append(number)

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        return ended

    ended = run_virtual(main, backend=backend, seed=3)
    assert sorted(ended) == list(range(50))
    assert ended == run_virtual(main, backend=backend, seed=3)
    assert backend == "trio" or ended == list(range(50))


@both
def test_random_is_seeded_for_the_run_only(backend: Backend) -> None:
    async def main() -> float:
        return random.random()

    random.seed(99)
    expected = random.random()
    random.seed(99)
    assert run_virtual(main, backend=backend, seed=1) == run_virtual(main, backend=backend, seed=1)
    assert run_virtual(main, backend=backend, seed=1) != run_virtual(main, backend=backend, seed=2)
    assert random.random() == expected


@pytest.mark.slow
@both
def test_equal_seeds_give_equal_traces_in_other_processes(backend: Backend) -> None:
    """Each process has its own addresses and hash seed, and no hypothesis that switches trio's hook on."""
    children = {seed: [_child(backend, seed) for _ in range(2)] for seed in (1, 2)}
    traces = {seed: {child.communicate()[0] for child in processes} for seed, processes in children.items()}
    assert [child.returncode for processes in children.values() for child in processes] == [0] * 4
    assert {seed: len(found) for seed, found in traces.items()} == {1: 1, 2: 1}
    one, two = (found.pop().splitlines() for found in traces.values())
    assert len(one) > 1000
    assert one != two


def _child(backend: Backend, seed: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", mini_system.__file__, backend, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "random"},
        stdout=subprocess.PIPE,
        text=True,
    )


# -------------------------------------------------------------------------------------------------------- deadlocks


async def _stuck(*, shielded: bool = False) -> None:
    async def wait_for_nobody() -> None:
        with anyio.CancelScope(shield=shielded):
            await anyio.Event().wait()

    async with anyio.create_task_group() as group:
        group.start_soon(wait_for_nobody, name="the child")
        await anyio.sleep(HOUR)


@both
def test_a_deadlock_is_found_at_once_and_named(backend: Backend) -> None:
    start = time.perf_counter()
    with pytest.raises(Deadlock, match=r"(?s)the child waits in .*wait_for_nobody .*test_virtual_time\.py:\d+\)"):
        run_virtual(_stuck, backend=backend)
    assert time.perf_counter() - start < 1


@both
def test_a_shielded_deadlock_ends_too(backend: Backend) -> None:
    async def main() -> None:
        await _stuck(shielded=True)

    with pytest.raises(Deadlock, match="the child"):
        run_virtual(main, backend=backend)


@both
def test_a_deadlock_cancels_the_program_so_that_it_cleans_up(backend: Backend) -> None:
    cleaned: list[float] = []

    async def main() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cleaned.append(anyio.current_time())
            raise

    with pytest.raises(Deadlock):
        run_virtual(main, backend=backend)
    assert cleaned == [0.0]


@both
def test_a_clean_up_that_waits_for_ever_does_not_hide_where_it_began(backend: Backend) -> None:
    async def work() -> None:
        await anyio.sleep_forever()

    async def stay() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()

    async def main() -> None:
        try:
            await work()
        finally:
            await stay()

    with pytest.raises(Deadlock, match="work") as caught:
        run_virtual(main, backend=backend)
    assert "stay" not in str(caught.value)


def test_a_program_that_swallows_its_cancellation_is_still_deadlocked() -> None:
    async def main() -> str:
        with pytest.raises(trio.Cancelled):
            await anyio.sleep_forever()
        return "all is well"

    with pytest.raises(Deadlock):
        run_virtual(main, backend="trio")


def test_an_error_in_the_clean_up_does_not_hide_the_deadlock() -> None:
    async def main() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("while cleaning up")

    with pytest.raises(Deadlock) as caught:
        run_virtual(main, backend="trio")
    assert isinstance(caught.value.__cause__, LookupError)


def test_waiting_for_idle_is_no_deadlock() -> None:
    async def main() -> int:
        rounds = 0
        for _ in range(100):
            await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked(0.0001)
            rounds += 1
        return rounds

    assert run_virtual(main, backend="trio") == 100


@both
def test_expired_deadlines_under_a_shield_are_no_deadlock(backend: Backend) -> None:
    async def main() -> float:
        with anyio.move_on_after(1), anyio.CancelScope(shield=True):
            await anyio.sleep(HOUR)
        return anyio.current_time()

    assert run_virtual(main, backend=backend) == HOUR


# ------------------------------------------------------------------------------------------------- what is left behind


def _state() -> tuple[object, ...]:
    scheduler = import_module("trio._core._run")
    backend = import_module("anyio._backends._asyncio")
    return (
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING,
        scheduler._r.getstate(),
        vars(backend).get("set"),
        random.getstate(),
    )


async def _fine() -> None:
    await anyio.sleep(1)


async def _failing() -> None:
    await anyio.sleep(1)
    raise LookupError


@both
@pytest.mark.parametrize("main", [_fine, _failing, _stuck])
def test_the_process_is_as_before(
    backend: Backend, main: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", False)  # hypothesis switches it on
    before = _state()
    with suppress(LookupError, Deadlock):
        run_virtual(main, backend=backend, seed=4)
    assert _state() == before


def test_trio_still_has_the_scheduling_hook() -> None:
    """When this fails, trio dropped its private hook: see `_virtual_trio.scheduled_by`."""
    scheduler = import_module("trio._core._run")
    assert isinstance(scheduler._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert isinstance(scheduler._r, random.Random)


def test_a_trio_without_the_hook_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(AttributeError, match="_ALLOW_DETERMINISTIC_SCHEDULING"):
        run_virtual(_fine, backend="trio")


def test_anyio_still_takes_ordered_sets() -> None:
    """When this fails, anyio keeps tasks or scopes in another way: see `_virtual_asyncio.run`."""

    async def main() -> list[str]:
        found: list[str] = []
        async with anyio.create_task_group() as group:
            for owner, name in (
                (group, "_tasks"),
                (group.cancel_scope, "_tasks"),
                (group.cancel_scope, "_child_scopes"),
            ):
                found.append(type(getattr(owner, name)).__name__)
        return found

    assert run_virtual(main, backend="asyncio") == ["OrderedSet"] * 3


def test_without_trio_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    monkeypatch.delitem(sys.modules, "tarry.testing._virtual_trio", raising=False)
    monkeypatch.delattr("tarry.testing._virtual_trio", raising=False)
    with pytest.raises(MissingExtra, match="pip install trio"):
        run_virtual(_fine, backend="trio")
    run_virtual(_fine, backend="asyncio")
