"""The one timer: it ticks when something is due and is woken by an earlier deadline only."""

from __future__ import annotations

import anyio
import pytest

from tarry._runtime.driver import Driver
from tests.marks import rule
from tests.virtual import virtual


class Machine:
    """Deadlines, and the times at which it was called."""

    def __init__(self, *deadlines: float) -> None:
        self.deadlines = list(deadlines)
        self.ticks: list[float] = []
        self.looks = 0

    def next_deadline(self) -> float | None:
        self.looks += 1
        return min(self.deadlines, default=None)

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.deadlines = [deadline for deadline in self.deadlines if deadline > now]


@virtual(seeds=3)
@rule("S25")
async def test_ticks_at_each_deadline_and_at_no_other_time():
    machine = Machine(2.5, 1.0, 7.0, 7.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Driver(machine).run)
        await anyio.sleep(3600)
        tasks.cancel_scope.cancel()
    assert machine.ticks == [1.0, 2.5, 7.0]
    assert machine.looks == 4


@virtual()
@rule("S25")
async def test_an_idle_machine_costs_nothing():
    machine = Machine()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Driver(machine).run)
        await anyio.sleep(86_400)
        tasks.cancel_scope.cancel()
    assert (machine.ticks, machine.looks) == ([], 1)


@virtual(seeds=3)
@rule("S25")
async def test_only_an_earlier_deadline_wakes_it():
    machine = Machine(100.0)
    driver = Driver(machine)

    def add(deadline: float) -> None:
        machine.deadlines.append(deadline)
        driver.alarm(deadline)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(1)
        for later in (100.0, 101.0, 500.0):
            add(later)
        await anyio.sleep(1)
        assert (machine.ticks, machine.looks) == ([], 1)
        add(50.0)
        await anyio.sleep(1)
        assert machine.looks == 2
        add(60.0)
        await anyio.sleep(1)
        assert machine.looks == 2
        await anyio.sleep(1000)
        tasks.cancel_scope.cancel()
    assert [tick for tick in machine.ticks if tick > 10] == [50.0, 60.0, 100.0, 101.0, 500.0]


@virtual()
async def test_many_alarms_at_once_are_one_wake():
    machine = Machine(100.0)
    driver = Driver(machine)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(1)
        for deadline in range(99, 2, -1):
            machine.deadlines.append(deadline)
            driver.alarm(deadline)
        await anyio.sleep(1)
        assert machine.looks == 2
        tasks.cancel_scope.cancel()


@virtual(seeds=3)
async def test_a_deadline_that_is_added_during_a_tick_is_kept():
    class Chain(Machine):
        def tick(self, now: float) -> None:
            super().tick(now)
            if now < 5:
                self.deadlines.append(now + 1)
                driver.alarm(now + 1)

    machine = Chain(1.0)
    driver = Driver(machine)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(100)
        tasks.cancel_scope.cancel()
    assert machine.ticks == [1.0, 2.0, 3.0, 4.0, 5.0]


@virtual(seeds=3)
async def test_a_deadline_of_before_it_ran_is_ticked_at_once():
    machine = Machine(5.0)
    driver = Driver(machine)
    driver.alarm(5.0)
    await anyio.sleep(50)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(0.001)
        assert machine.ticks == [50.0]
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_machine_that_is_always_due_lets_others_run():
    class Greedy(Machine):
        def next_deadline(self) -> float | None:
            return 0.0

    machine = Greedy()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Driver(machine).run)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert machine.ticks


@virtual()
async def test_an_error_of_the_machine_ends_it_loudly():
    class Broken(Machine):
        def tick(self, now: float) -> None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Driver(Broken(1.0)).run)
            await anyio.sleep(100)
    assert caught.group_contains(ZeroDivisionError)
