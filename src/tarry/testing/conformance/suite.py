"""How the tests of this suite run: on which loops, by which clock, and which of them a broker may skip.

Here: `Suite`, the base of all areas; `rests_on`, which turns an async method into a test for pytest; `SKIPS`, the one
table of what a capability allows to skip. Not here: what is tested (the areas), the words it is told with (`rig`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Literal

import anyio
import pytest

from tarry import abc
from tarry.testing.conformance.rig import Rig, Timeouts
from tarry.testing.virtual_time import Backend, run_virtual

Need = Literal["groups", "timestamps", "idempotent_append", "commit_on_poll", "commit_on_poll='atomic'"]
"""A capability that a test needs."""

SKIPS: Mapping[Need, tuple[str, ...]] = {
    "groups": ("Groups", "Eviction", "Fences", "GroupOffsets", "ClosingGroups"),
    "timestamps": (
        "Resolving.test_a_time_is_the_first_message_at_or_after_it",
        "Resolving.test_a_position_says_how_old_what_lies_there_is",
    ),
    "idempotent_append": ("Repeats",),
    "commit_on_poll": (
        "Committing",
        "Fences.test_a_committing_poll_is_fenced_and_stores_nothing",
        "Fences.test_a_parked_committing_poll_ends_when_its_partition_is_wanted_back",
    ),
    "commit_on_poll='atomic'": (
        "Committing.test_a_store_ahead_ends_a_parked_next_poll",
        "Committing.test_a_rewind_ends_a_parked_next_poll",
        "Committing.test_a_rewind_is_noticed_at_the_end_of_the_wait_too",
        "Committing.test_two_parked_next_polls_of_one_name_never_get_the_same_message",
    ),
}
"""The tests that a broker may skip which lacks a capability: areas, or single tests of them. No other test is ever
skipped."""

LIMIT = 60.0
"""Seconds of real time after which a test has failed."""
VIRTUAL_LIMIT = 3600.0

Test = Callable[[Any, Rig], Coroutine[Any, Any, None]]


class Suite:
    """Inherit from `BrokerConformance` (or from single areas) and say how a broker is opened.

    Each test opens a broker of its own. It creates topics, groups and consumers under names of its own and looks at
    nothing else, so the log behind the broker may outlive it.
    """

    backends: ClassVar[tuple[Backend, ...]] = ("asyncio", "trio")
    """The loops on which every test runs."""
    is_virtual: ClassVar[bool] = False
    """Run under virtual time: for brokers that live in the loop that uses them and have no threads or sockets."""
    prefix: ClassVar[str] = "conformance"
    """Of all names; make it another one in each run when the log outlives even that."""

    def open_broker(self, timeouts: Timeouts) -> AbstractAsyncContextManager[abc.Broker]:
        """Open a broker for one test and close it afterwards.

        Where the timeouts of groups belong to the broker and cannot be chosen, see `timeouts`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a broker is opened")

    def timeouts(self, lapsing: Literal["session", "rebalance"] | None) -> Timeouts:
        """With which timeouts a broker is opened: long ones, but for a test that waits for one to pass."""
        short = 5.0 if self.is_virtual else 0.5
        match lapsing:
            case "session":
                return Timeouts(session=short)
            case "rebalance":
                return Timeouts(rebalance=short)
            case None:
                return Timeouts()

    def parked(self, broker: abc.Broker) -> int | None:
        """How many requests wait at the log, where that can be looked at: what was withdrawn has to be gone there."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test on each loop."""
        if "backend" in metafunc.fixturenames:
            metafunc.parametrize("backend", self.backends)

    # -------------------------------------------------------------------------------------------- running

    def run_test(self, test: Test, backend: Backend, lapsing: Literal["session", "rebalance"] | None) -> None:
        """Run one test, or skip it, as `SKIPS` says."""
        timeouts = self.timeouts(lapsing)

        async def main() -> Need | BaseException | None:
            with anyio.fail_after(VIRTUAL_LIMIT if self.is_virtual else LIMIT):
                async with self.open_broker(timeouts) as broker:
                    missing = self._missing(test.__name__, broker.capabilities)
                    if missing is not None:
                        return missing
                    return await self._judge(test, backend, broker, timeouts)

        outcome = run_virtual(main, backend=backend) if self.is_virtual else anyio.run(main, backend=backend)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            pytest.skip(f"the broker lacks the capability {outcome}")

    async def _judge(
        self, test: Test, backend: Backend, broker: abc.Broker, timeouts: Timeouts
    ) -> BaseException | None:
        """The failure of a test, free of the exception groups that task groups would wrap it into."""
        failure: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            rig = Rig(
                broker,
                tasks,
                prefix=f"{self.prefix}-{test.__name__.removeprefix('test_')}-{backend}",
                timeouts=timeouts,
                is_virtual=self.is_virtual,
                parked=lambda: self.parked(broker),
            )
            try:
                await test(self, rig)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # raised again outside of the loop
                failure = error
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await rig.clear()
        return failure

    @classmethod
    def _missing(cls, test: str, capabilities: abc.Capabilities) -> Need | None:
        area = next(each.__name__ for each in cls.__mro__ if test in vars(each))
        names = {area, f"{area}.{test}"}
        lacking: Iterator[Need] = (
            need for need, row in SKIPS.items() if names & set(row) and not _has(capabilities, need)
        )
        return next(lacking, None)

    @classmethod
    def skips(cls, capabilities: abc.Capabilities) -> dict[str, Need]:
        """The tests that are skipped for a broker of such capabilities, each with what it needs."""
        tests = sorted(name for name in dir(cls) if name.startswith("test_"))
        found: dict[str, Need | None] = {test: cls._missing(test, capabilities) for test in tests}
        return {test: need for test, need in found.items() if need is not None}


def _has(capabilities: abc.Capabilities, need: Need) -> bool:
    match need:
        case "groups":
            return capabilities.groups
        case "timestamps":
            return capabilities.timestamps
        case "idempotent_append":
            return capabilities.idempotent_append
        case "commit_on_poll":
            return capabilities.commit_on_poll != "none"
        case "commit_on_poll='atomic'":
            return capabilities.commit_on_poll == "atomic"


def rests_on(
    *rules: str, lapsing: Literal["session", "rebalance"] | None = None
) -> Callable[[Test], Callable[[Any, Backend], None]]:
    """Make an async method a test; `rules` are the numbers of the rules that it holds a broker to.

    Args:
        lapsing: which timeout the test waits for; the broker is then opened with a short one.
    """

    def decorate(test: Test) -> Callable[[Any, Backend], None]:
        @functools.wraps(test)
        def run(self: Suite, backend: Backend) -> None:
            try:
                self.run_test(test, backend, lapsing)
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"on {backend}; the rules: {', '.join(rules)}")
                raise

        own = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "backend")]
        run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pytest reads it
        return run

    return decorate
