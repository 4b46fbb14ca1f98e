"""Mistakes in the use of the tools: each is named at once, so that no test passes because a fault never struck."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import anyio
import pytest

from tarry.errors import ConfigError, LogBusy, NotStarted, UsageError
from tarry.testing import (
    Backend,
    Damage,
    FaultLayer,
    Faults,
    FaultyLog,
    Script,
    ScriptedBroker,
    VirtualClock,
    block,
    delay,
    hold,
    hook,
    lose_reply,
    lose_request,
    refuse,
    run_virtual,
)
from tarry.types import TopicPartition
from tests.virtual import virtual

P0 = TopicPartition("t", 0)
NAN, INF = float("nan"), float("inf")
THIS: Any = None
"""Nothing of the types that the tools take; a test gives them what a program without type checks would."""


async def now() -> float:
    return anyio.current_time()


def loose(function: object) -> Any:
    """A function as a program without type checks calls it."""
    return function


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: loose(run_virtual)(now, backend="curio"), "backend='curio': use 'asyncio' or 'trio'"),
        (lambda: loose(run_virtual)(now, backend=None), "backend=None"),
        (lambda: loose(run_virtual)(now, seed=None), "seed=None: it takes an int, not NoneType"),
        (lambda: loose(run_virtual)(now, seed="7"), "seed='7'"),
        (lambda: loose(run_virtual)(None), r"run_virtual\(None\) needs an async function"),
        (lambda: loose(block)("1"), r"block\(seconds\)='1': seconds as a number"),
        (lambda: block(NAN), "nan: 0 to 1,000,000,000 seconds"),
        (lambda: block(1.0), "no loop runs here"),
        (lambda: loose(VirtualClock)(3), "start=3: it takes a datetime, not int"),
        (lambda: VirtualClock(datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)), "has no time zone"),
        (lambda: loose(Faults)(delay="x"), "delay='x': a share is a number between 0 and 1, not str"),
        (lambda: loose(Faults)(lose_reply=True), "lose_reply=True"),
        (lambda: Faults(delay=NAN), "delay=nan: a share lies between 0 and 1"),
        (lambda: Faults(latency=NAN), "latency=nan: 0 to"),
        (lambda: Faults(sync_latency=INF), "sync_latency=inf: 0 to"),
        (lambda: loose(Faults)(grace=None), "grace=None: seconds as a number, or a timedelta"),
        (lambda: Faults(lose_request=0.6, capacity=0.6), "0 and 1 together"),
        (lambda: loose(Faults)(damage=0.5), "damage=0.5: it takes a Damage, not float"),
        (lambda: loose(Damage)(share="x"), "share='x'"),
        (lambda: loose(Damage)(partitions=P0), "partitions=.*: it takes a set, not TopicPartition"),
        (lambda: loose(Damage)(partitions={0}), r"partition 0 of which topic\? Name it"),
        (lambda: loose(Damage)(operations="poll"), "operations='poll': it takes a set, not str"),
        (lambda: loose(Damage)(operations={"pol"}), r"\['pol'\] name no partitions"),
        (lambda: loose(FaultyLog)(seed=None), "seed=None"),
        (lambda: loose(FaultyLog)(faults={"delay": 1}), "faults=.*: it takes a Faults, not dict"),
        (lambda: loose(FaultyLog)(options={}), "options={}: it takes a LogOptions, not dict"),
        (lambda: loose(FaultyLog)(observe=None), "observe=None: it takes a function"),
        (lambda: FaultyLog(leaders=0), "leaders=0: 1 to 12"),
        (lambda: loose(FaultyLog)(leaders="3"), "leaders='3': it takes an int"),
        (lambda: loose(FaultyLog)(leaders=True), "leaders=True: it takes an int"),
        (lambda: loose(FaultLayer)(None), "log=None: it takes a FaultyLog"),
        (lambda: loose(ScriptedBroker)(None, Faults()), "script=.*: it takes a Script, not Faults"),
        (lambda: loose(Script().on)("append", do=None), "do=None: it takes a function"),
        (lambda: loose(Script().on)("append", do=delay), r"call it, for example do=delay\(0.5\)"),
        (lambda: Script().on("append", do=delay(1), nth=0), "nth=0: 1 or more"),
        (lambda: loose(Script().on)("append", do=delay(1), nth="1"), "nth='1': it takes an int"),
        (lambda: Script().on("append", do=delay(1), nth=True), "nth=True: it takes an int"),
        (lambda: loose(Script().every)("append", do=delay(1), where=None), "where=None: it takes a function"),
        (lambda: loose(Script().rate)("append", "x", do=delay(1)), "share='x'"),
        (lambda: loose(Script().count)("apend"), "'apend' is no operation"),
        (lambda: delay(-1), "seconds=-1: 0 or more seconds"),
        (lambda: loose(delay)("1"), "seconds='1'"),
        (lambda: loose(hold)(None), r"hold\(None\) needs an event, not NoneType"),
        (lambda: loose(refuse)(None), "error=None: it takes an exception"),
        (lambda: loose(refuse)("busy"), "error='busy'"),
        (lambda: loose(lose_reply)("busy"), "error='busy'"),
        (lambda: lose_request(after=-1), "after=-1"),
        (lambda: loose(hook)(None), "function=None: it takes a function"),
    ],
)
def test_a_mistake_is_named_with_its_value(mistake: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mistake()


def test_what_says_the_same_in_another_form_is_taken() -> None:
    assert Faults(latency=loose(timedelta)(seconds=2)).latency == 2.0
    assert Damage(partitions=loose(list)([P0]), operations=loose(list)(["poll"])).partitions == frozenset({P0})
    script = Script()
    script.on("append", do=refuse(LogBusy), nth=range(3, 6))
    script.on("append", do=delay(timedelta(milliseconds=1)), nth=[])


@virtual()
async def test_a_leader_and_a_partition_are_there_or_named() -> None:
    async with FaultyLog(leaders=3) as log:
        assert log.leaders is not None
        for mistake in (log.leaders.go, log.leaders.crash, log.leaders.come, log.leaders.is_away):
            for number in (-1, 3):
                with pytest.raises(ConfigError, match=f"leader={number}: 0 to 2"):
                    mistake(number)
        with pytest.raises(ConfigError, match="leader='leader-1': it takes an int"):
            log.leaders.move(P0, loose(str)("leader-1"))
        with pytest.raises(ConfigError, match="a partition is"):
            log.leaders.move(loose(str)("t"), 1)
        assert log.leaders.of(P0) == "leader-0"
        with pytest.raises(ConfigError, match=r"partition 0 of which topic\? Name it"):
            log.leaders.of(loose(int)(0))


@pytest.mark.parametrize("backend", get_args(Backend))
def test_a_log_is_made_anywhere_and_entered_once(backend: Backend) -> None:
    log = FaultyLog()  # no loop runs here

    async def use() -> None:
        async with log, FaultLayer(log).client() as client:
            await client.create_topic("t")
        with pytest.raises(UsageError, match="a FaultyLog cannot be entered again; make a new one"):
            await log.__aenter__()

    run_virtual(use, backend=backend)


@virtual()
async def test_a_log_takes_faults_and_is_started_before_it_is_reached() -> None:
    with pytest.raises(NotStarted, match=r"async with FaultyLog\(\) as log"):
        FaultLayer(FaultyLog())
    async with FaultyLog() as log:
        with pytest.raises(ConfigError, match="faults=None: it takes a Faults, not NoneType"):
            log.faults = THIS
        assert log.faults == Faults()
