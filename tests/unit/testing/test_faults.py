"""The fault layer: without faults it is transparent; each fault does what it says, to the log and to the sender."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry._wire.batch import encode_record, seal
from tarry.abc import Broker, ConsumerIdentity, FetchTarget, Leader, PollReply, Session
from tarry.brokers.local.host import open_store
from tarry.brokers.local.store_memory import MemoryStore
from tarry.client import Client
from tarry.config import LogOptions, TopicOptions
from tarry.errors import (
    CapacityExceeded,
    DataError,
    LogUnavailable,
    NotAccepted,
    NotAMember,
    OutcomeUnknown,
    TarryError,
    TopicNotFound,
)
from tarry.testing import (
    Backend,
    Damage,
    FaultLayer,
    Faults,
    FaultyLog,
    Script,
    VirtualClock,
    delay,
    lose_reply,
    run_virtual,
)
from tarry.testing.leaders import Leaders
from tarry.types import Offset, Ownership, Position, Receipt, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import places, settled, start
from tests.virtual import virtual

P0 = TopicPartition("t", 0)
LEADER = Leader("local")
IDENTITY = ConsumerIdentity("billing")
GRACE = 3.0


class Rig:
    """A log with one topic of one partition, one connection to it, and one session."""

    def __init__(self, log: FaultyLog, layer: FaultLayer, session: Session) -> None:
        self.log = log
        self.layer = layer
        self.session = session

    async def append(self, count: int = 1) -> Receipt:
        return await append(self.layer, count)

    async def poll(self, *, max_wait: float = 0.0, at: int = 0) -> PollReply:
        target = FetchTarget(P0, Position(at))
        return await self.session.poll(LEADER, [target], count=100, max_bytes=100_000, max_wait=max_wait)

    async def store(self, offset: int) -> Offset | None:
        return await self.session.store_offset(P0, Offset(offset), ownership=Ownership(0))

    async def stored(self) -> Offset | None:
        return await self.session.stored_offset(P0)

    @property
    def end(self) -> int:
        return self.log.pump.view.find(P0).log_end


async def append(broker: Broker, count: int = 1) -> Receipt:
    now = VirtualClock().wall_ms()
    values = [encode_record(b"%d" % number, None, (), now) for number in range(count)]
    return await broker.append(P0, seal(values, [now] * count))


@asynccontextmanager
async def opened(seed: int = 0) -> AsyncGenerator[Rig]:
    """Everything is set up without faults."""
    async with FaultyLog(seed=seed) as log:
        layer = FaultLayer(log)
        await layer.create_topic("t", TopicOptions(), exist_ok=False)
        yield Rig(log, layer, await layer.open_session(IDENTITY, ["t"], []))


async def ended(work: Callable[[], Awaitable[object]]) -> tuple[object, float]:
    """The answer of a call, or the class of its error, and how long it took."""
    began = anyio.current_time()
    answer: object
    try:
        answer = await work()
    except TarryError as error:
        answer = type(error)
    return answer, anyio.current_time() - began


# -------------------------------------------------------------------------------------------------- transparency


async def tell(client: Client) -> list[object]:
    """A short story with a client; everything that can be seen of it, but for wall time."""
    seen: list[object] = [await client.create_topic("t", 2)]
    async with client.producer("t") as producer:
        seen += [await producer.send(b"%d" % number, key=b"%d" % number) for number in range(20)]
    async with client.consumer("t", name="billing", commit=AutoCommit.finished(0.53), poll=PollOptions(count=3)) as one:
        for _ in range(7):
            seen += [places([await anext(one)]), anyio.current_time()]
            await anyio.sleep(0.2)
        seen += [places(await one.poll(max_wait=1.0)), await one.lag(), anyio.current_time()]
        with pytest.raises(TopicNotFound) as refused:
            await client.delete_topic("u")
        seen += [str(refused.value), await one.shutdown()]
    return seen


async def tell_plainly() -> list[object]:
    clock = VirtualClock()

    async def open_plain(start_soon: Callable[[Callable[[], Awaitable[None]]], None]) -> Broker:
        return await open_store(start_soon, MemoryStore(clock), LogOptions(), clock)

    async with Client(open_plain) as client:
        return await tell(client)


async def tell_through_a_layer(script: Script) -> list[object]:
    async with FaultyLog() as log:
        layer = FaultLayer(log, script)
        async with layer.client() as client:
            seen = await tell(client)
        assert not log.counts
    return seen


@pytest.mark.parametrize(("backend", "seed"), [("asyncio", 0), ("trio", 0), ("trio", 1), ("trio", 2)])
def test_without_faults_it_is_transparent(backend: Backend, seed: int) -> None:
    script = Script()
    plain = run_virtual(tell_plainly, backend=backend, seed=seed)
    assert run_virtual(tell_through_a_layer, script, backend=backend, seed=seed) == plain
    assert {call.operation for call in script.calls} > {"append", "open_session", "poll", "store_offset", "leave"}
    assert all(call.outcome != "open" for call in script.calls)


@virtual()
async def test_a_cancel_withdraws_what_is_parked_at_once():
    async with opened() as rig, anyio.create_task_group() as tasks:
        waiting = start(tasks, lambda: rig.poll(max_wait=30))
        await settled()
        assert rig.log.pump.parked == 1
        await waiting.cancel()
        assert rig.log.pump.parked == 0


# ---------------------------------------------------------------------------------------- late, lost and refused

Ask = Callable[[Rig], Awaitable[object]]
READS: dict[str, tuple[Ask, float]] = {
    "poll": (lambda rig: rig.poll(), 0.0),
    "deferred poll": (lambda rig: rig.poll(max_wait=5), 5.0),
    "wait_ready": (lambda rig: rig.session.wait_ready(LEADER, [FetchTarget(P0, Position(0))], max_wait=5), 5.0),
    "stored_offset": (lambda rig: rig.stored(), 0.0),
    "resolve": (lambda rig: rig.session.resolve(P0, Position(0)), 0.0),
    "describe_topic": (lambda rig: rig.layer.describe_topic("t"), 0.0),
}
CHANGES: dict[str, Ask] = {
    "append": lambda rig: rig.append(),
    "store_offset": lambda rig: rig.store(0),
    "create_topic": lambda rig: rig.layer.create_topic("u", TopicOptions(), exist_ok=True),
    "grow_topic": lambda rig: rig.layer.grow_topic("t", 9),
    "delete_topic": lambda rig: rig.layer.delete_topic("t"),
    "open_session": lambda rig: rig.layer.open_session(IDENTITY, ["t"], []),
    "leave": lambda rig: rig.session.leave(),
}
LOSSES = {"request": Faults(lose_request=1.0, grace=GRACE), "reply": Faults(lose_reply=1.0, grace=GRACE)}


@rule("C4")
@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("read", READS)
@virtual()
async def test_a_read_without_an_answer_ends_some_seconds_after_its_wait(read: str, lost: str):
    ask, wait = READS[read]
    async with opened() as rig:
        rig.log.faults = LOSSES[lost]
        assert await ended(lambda: ask(rig)) == (LogUnavailable, wait + GRACE)
        assert rig.log.counts == {f"lose_{lost}": 1}
        rig.log.faults = Faults()
        assert not isinstance((await ended(lambda: ask(rig)))[0], type)


@rule("C4")
@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("change", CHANGES)
@virtual()
async def test_a_change_without_an_answer_has_an_unknown_outcome(change: str, lost: str):
    async with opened() as rig:
        await rig.append()
        rig.log.faults = LOSSES[lost]
        assert await ended(lambda: CHANGES[change](rig)) == (OutcomeUnknown, GRACE)


@pytest.mark.parametrize(("lost", "applied"), [("request", False), ("reply", True)])
@virtual()
async def test_a_lost_request_changes_nothing_and_a_lost_reply_has_changed_it(lost: str, applied: bool):
    async with opened() as rig:
        rig.log.faults = LOSSES[lost]
        for change in (lambda: rig.append(3), lambda: rig.store(0)):
            with pytest.raises(OutcomeUnknown):
                await change()
        rig.log.faults = Faults()
        assert rig.end == (3 if applied else 0)
        assert await rig.stored() == (0 if applied else None)


@virtual()
async def test_a_mistake_of_the_caller_is_no_answer_and_never_lost():
    async with opened() as rig:
        rig.log.faults = LOSSES["reply"]
        with pytest.raises(ValueError, match="targets"):
            await rig.session.poll(LEADER, [], count=1, max_bytes=1)


@pytest.mark.parametrize(
    ("faults", "error"), [(Faults(not_accepted=1.0), NotAccepted), (Faults(capacity=1.0), CapacityExceeded)]
)
@virtual()
async def test_a_refused_request_is_answered_at_once_and_changes_nothing(faults: Faults, error: type[TarryError]):
    async with opened() as rig:
        rig.log.faults = faults
        for ask in (rig.append, lambda: rig.store(0), lambda: rig.poll(max_wait=5)):
            assert await ended(ask) == (error, 0.0)
        assert (rig.end, rig.log.pump.parked) == (0, 0)


@virtual()
async def test_what_is_damaged_is_refused_to_whoever_asks_about_it():
    async with opened() as rig:
        rig.log.faults = Faults(damage=Damage())
        for ask in (lambda: rig.store(0), lambda: rig.poll(max_wait=5), rig.stored, lambda: rig.session.route(P0)):
            assert await ended(ask) == (DataError, 0.0)
        assert await ended(lambda: rig.session.wait_ready(LEADER, [FetchTarget(P0, Position(0))], max_wait=5)) == (
            DataError,
            0.0,
        )
        await rig.append()
        assert rig.log.counts == {"damage": 5}
        rig.log.faults = Faults()
        assert (await rig.stored(), len((await rig.poll()).targets[0].runs)) == (None, 1)


@pytest.mark.parametrize(
    "damage",
    [Damage(partitions=frozenset({TopicPartition("t", 1)})), Damage(operations=frozenset({"poll"})), Damage(share=0.0)],
)
@virtual()
async def test_damage_keeps_to_its_partitions_operations_and_share(damage: Damage):
    async with opened() as rig:
        rig.log.faults = Faults(damage=damage)
        assert await rig.stored() is None
        assert not rig.log.counts


@virtual()
async def test_one_damaged_partition_is_enough_to_refuse_a_poll():
    async with opened() as rig:
        await rig.layer.grow_topic("t", 2)
        rig.log.faults = Faults(damage=Damage(partitions=frozenset({P0})))
        other = FetchTarget(TopicPartition("t", 1), Position(0))
        with pytest.raises(DataError):
            await rig.session.poll(LEADER, [other, FetchTarget(P0, Position(0))], count=1, max_bytes=1000)
        await rig.session.poll(LEADER, [other], count=1, max_bytes=1000)


@virtual()
async def test_a_log_that_is_down_refuses_nothing_for_its_damage():
    async with opened() as rig:
        rig.log.faults = Faults(damage=Damage())
        rig.log.crash()
        assert await ended(rig.stored) == (LogUnavailable, 0.0)
        assert rig.log.counts == {"crash": 1}


@pytest.mark.parametrize("wrong", [{"share": 1.1}, {"share": -0.1}, {"operations": frozenset({"release"})}])
def test_damage_that_cannot_be_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"between 0 and 1|\['release'\] name no partitions; .*'poll'"):
        Damage(**wrong)


@virtual(seeds=5)
async def test_requests_that_are_late_overtake_each_other(seed: int):
    async with opened(seed) as rig, anyio.create_task_group() as tasks:
        rig.log.faults = Faults(delay=1.0, latency=0.5)
        sent = [start(tasks, rig.append) for _ in range(10)]
        for append in sent:
            await append.done.wait()
        assert anyio.current_time() <= 1.0
        offsets = [append.result.offset for append in sent]
        assert sorted(offsets) == list(range(10)) != offsets
        assert rig.log.counts == {"delay": 20}


@virtual()
async def test_an_answer_that_comes_too_late_does_not_come():
    async with opened() as rig:
        rig.log.faults = Faults(delay=1.0, latency=100.0, grace=GRACE)
        lasted = [(await ended(rig.append)) for _ in range(20)]
        late = [time for answer, time in lasted if answer is OutcomeUnknown]
        assert late
        assert all(time == pytest.approx(GRACE) for time in late)


@virtual()
async def test_a_script_acts_before_the_network_does():
    async with opened() as rig:
        rig.layer.script.on("append", do=lose_reply(after=1.0))
        assert await ended(rig.append) == (OutcomeUnknown, 1.0)
        assert rig.end == 1
        assert not rig.log.counts


# ------------------------------------------------------------------------------------------------------------ cuts


@virtual()
async def test_a_split_swallows_what_is_out_and_what_is_sent_until_somebody_gives_up():
    async with opened() as rig, anyio.create_task_group() as tasks:
        rig.log.faults = Faults(grace=GRACE)
        waiting = start(tasks, lambda: ended(lambda: rig.poll(max_wait=5)))
        await settled()
        rig.layer.split()
        sent = start(tasks, lambda: ended(rig.append))
        other = FaultLayer(rig.log)
        await append(other)  # the log goes on alone; its answer to the poll goes nowhere
        await anyio.sleep(20)
        assert waiting.result == (LogUnavailable, 5 + GRACE)
        assert sent.result == (OutcomeUnknown, GRACE)
        assert rig.end == 1


@virtual()
async def test_who_waits_is_told_when_a_split_heals_and_what_the_log_kept_is_withdrawn():
    async with opened() as rig, anyio.create_task_group() as tasks:
        waiting = start(tasks, lambda: ended(lambda: rig.poll(max_wait=25)))
        given_up = start(tasks, lambda: rig.poll(max_wait=25))
        await settled()
        rig.layer.split()
        await given_up.cancel()
        assert rig.log.pump.parked == 2  # the log knows nothing of the cancel
        await anyio.sleep(2)
        rig.layer.heal()
        assert rig.log.pump.parked == 1
        await waiting.done.wait()
        assert waiting.result == (LogUnavailable, 2.0)
        assert rig.log.pump.parked == 0
        assert await ended(rig.append) == (Receipt("t", 0, Offset(0)), 0.0)


@virtual()
async def test_a_connection_that_is_cut_says_no_sign_of_life():
    touched: list[float] = []
    async with opened() as rig:
        session: Any = rig.session
        session.wrapped.touch = lambda: touched.append(anyio.current_time())
        rig.session.touch()
        rig.layer.split()
        rig.session.touch()
        rig.layer.heal()
        await anyio.sleep(1)
        rig.session.touch()
    assert touched == [0.0, 1.0]


@virtual()
async def test_of_a_killed_client_nothing_arrives_any_more():
    async with opened() as rig, anyio.create_task_group() as tasks:
        waiting = start(tasks, lambda: rig.poll(max_wait=25))
        await settled()
        rig.layer.kill()
        rig.layer.heal()
        for ask in (rig.append, rig.session.leave):
            assert await ended(ask) == (OutcomeUnknown, 0.0)
        await waiting.cancel()
        await rig.layer.aclose()
        assert (rig.end, rig.log.pump.parked) == (0, 0)
        assert rig.log.counts == {"kill": 1}


# --------------------------------------------------------------------------------------------------------- crashes


@virtual()
async def test_writes_become_durable_together_after_a_while():
    async with opened() as rig, anyio.create_task_group() as tasks:
        await rig.append()
        rig.log.faults = Faults(sync_latency=0.5)
        first = start(tasks, lambda: ended(rig.append))
        second = start(tasks, lambda: ended(lambda: rig.store(0)))
        await settled()
        assert (rig.end, await rig.stored()) == (1, None)
        await first.done.wait()
        await settled()
        assert 0 < first.result[1] <= 0.5
        assert second.result[1] == first.result[1]
        assert rig.log.counts == {"slow_sync": 1}


@virtual()
async def test_a_crash_drops_what_is_not_durable_and_its_senders_cannot_know():
    async with opened() as rig, anyio.create_task_group() as tasks:
        await rig.append(2)
        await rig.store(0)
        rig.log.faults = Faults(sync_latency=0.5)
        asks: list[Callable[[], Awaitable[object]]] = [
            rig.append,
            lambda: rig.store(1),
            lambda: rig.poll(max_wait=5, at=2),
        ]
        asked = [start(tasks, partial(ended, ask)) for ask in asks]
        await settled()
        rig.log.crash()
        await settled()
        assert [work.result for work in asked] == [(OutcomeUnknown, 0.0), (OutcomeUnknown, 0.0), (LogUnavailable, 0.0)]
        assert not rig.log.is_up
        for ask in (rig.append, rig.stored, rig.layer.list_topics):
            assert await ended(ask) == (LogUnavailable, 0.0)
        rig.log.restart()
        assert (rig.end, await rig.stored()) == (2, 0)
        assert rig.log.counts["crash"] == 1


@virtual()
async def test_a_session_goes_on_after_a_crash_and_wakes_there():
    async with opened() as rig, anyio.create_task_group() as tasks:
        rig.log.crash()
        rig.log.crash()
        rig.log.restart()
        rig.log.restart()
        waiting = start(tasks, lambda: rig.poll(max_wait=5))
        await settled()
        await rig.append()
        await waiting.done.wait()
        assert waiting.result.targets[0].runs[0].count == 1
        await rig.session.leave()
        rig.log.crash()
        rig.log.restart()
        with pytest.raises(TarryError):
            await rig.stored()


@virtual()
async def test_an_answer_on_its_way_is_lost_in_a_crash():
    async with opened() as rig, anyio.create_task_group() as tasks:
        rig.log.faults = Faults(delay=1.0, latency=0.9)
        sent = start(tasks, rig.append)
        await anyio.sleep(0.95)
        assert rig.end == 1
        rig.log.crash()
        rig.log.restart()
        await sent.done.wait()
        assert isinstance(sent.error, OutcomeUnknown)
        assert rig.end == 1


@virtual()
async def test_behind_a_cut_nobody_notices_a_crash_before_it_heals():
    async with opened() as rig, anyio.create_task_group() as tasks:
        waiting = start(tasks, lambda: ended(lambda: rig.poll(max_wait=25)))
        given_up = start(tasks, lambda: rig.poll(max_wait=25))
        await settled()
        rig.layer.split()
        await given_up.cancel()
        rig.log.crash()
        await anyio.sleep(1)
        rig.log.restart()
        await anyio.sleep(1)
        assert waiting.outcome == "running"
        rig.layer.heal()
        await waiting.done.wait()
        assert waiting.result == (LogUnavailable, 2.0)
        assert await ended(rig.append) == (Receipt("t", 0, Offset(0)), 0.0)


@virtual()
async def test_what_changed_behind_a_cut_is_told_after_it_also_when_the_log_was_started_again():
    async with opened() as rig:
        known = rig.session.assignment
        rig.layer.split()
        await FaultLayer(rig.log).grow_topic("t", 2)
        rig.log.crash()
        rig.log.restart()
        assert rig.session.assignment == known
        rig.layer.heal()
        with anyio.fail_after(1):
            found = await rig.session.changed(known.version)
        assert set(found.owned) == {P0, TopicPartition("t", 1)}


@virtual()
async def test_timers_of_the_log_go_on_after_a_crash():
    async with opened() as rig:
        rig.log.crash()
        rig.log.restart()
        reply, lasted = await ended(lambda: rig.poll(max_wait=5))
        assert isinstance(reply, PollReply)
        assert lasted == 5.0


# ------------------------------------------------------------------------------------------------ seeds and limits


async def history(seed: int) -> list[object]:
    """Answers and times of some requests under many faults."""
    seen: list[object] = []
    async with opened(seed) as rig:
        rig.log.faults = Faults(
            delay=0.5, lose_request=0.1, lose_reply=0.1, not_accepted=0.1, capacity=0.1, sync_latency=0.1, grace=1.0
        )
        for _ in range(30):
            seen += [*await ended(rig.append), *await ended(lambda: rig.poll(max_wait=1, at=rig.end))]
        seen.append(dict(rig.log.counts))
    return [item for item in seen if not isinstance(item, PollReply)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_equal_seeds_give_equal_histories(backend: Backend) -> None:
    first, again, other = (run_virtual(history, seed, backend=backend) for seed in (1, 1, 2))
    assert first == again != other


@virtual()
async def test_faults_are_reported_when_they_happen_with_the_call():
    seen: list[tuple[str, str | None]] = []
    async with FaultyLog(observe=lambda kind, call: seen.append((kind, call.operation if call else None))) as log:
        layer = FaultLayer(log)
        log.faults = Faults(not_accepted=1.0)
        with pytest.raises(NotAccepted):
            await layer.list_topics()
        log.crash()
    assert seen == [("not_accepted", "list_topics"), ("crash", None)]


@pytest.mark.parametrize(
    "wrong", [{"delay": 1.1}, {"lose_reply": -0.1}, {"lose_request": 0.6, "capacity": 0.5}, {"latency": -1.0}]
)
def test_shares_and_times_that_cannot_be_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"between 0 and 1|latency=-1.0: 0 to"):
        Faults(**wrong)


# ---------------------------------------------------------------------------------------------------------- groups

GROUP = ConsumerIdentity("billing", "group")


@asynccontextmanager
async def joined(**options: Any) -> AsyncGenerator[tuple[FaultyLog, FaultLayer, Session]]:
    """A log with one topic, and the first member of a group, which owns all of it."""
    async with FaultyLog(options=LogOptions(**options)) as log:
        layer = FaultLayer(log)
        await layer.create_topic("t", TopicOptions(partitions=2), exist_ok=False)
        yield log, layer, await layer.open_session(GROUP, ["t"], [])


@virtual()
async def test_a_member_goes_on_after_a_crash_with_all_it_owned():
    async with joined() as (log, _, session):
        before = session.assignment
        log.crash()
        with pytest.raises(LogUnavailable):
            await session.stored_offset(P0)
        log.restart()
        assert session.assignment == before
        await session.store_offset(P0, None, ownership=before.owned[P0])
        second = await FaultLayer(log).open_session(GROUP, ["t"], [])
        assert len((await session.changed(before.version)).revoking) == 1
        await session.release(list(session.assignment.revoking))
        assert len(session.assignment.owned) == len(second.assignment.owned) == 1


@virtual()
async def test_a_member_whose_time_was_over_does_not_go_on_after_a_crash():
    async with joined(session_timeout=5.0) as (log, layer, session):
        layer.split()
        await anyio.sleep(6)
        log.crash()
        log.restart()
        layer.heal()
        with pytest.raises(NotAMember):
            await session.stored_offset(P0)
        with pytest.raises(NotAMember):
            await session.changed(session.assignment.version)


@virtual()
async def test_news_of_the_group_do_not_get_through_a_cut():
    async with joined() as (log, layer, session), anyio.create_task_group() as tasks:
        before = session.assignment
        news = start(tasks, lambda: session.changed(before.version))
        await settled()
        layer.split()
        await FaultLayer(log).open_session(GROUP, ["t"], [])
        await anyio.sleep(1)
        assert news.outcome == "running"
        assert session.assignment is before
        layer.heal()
        await news.done.wait()
        assert session.assignment == news.result != before


@virtual()
async def test_a_member_behind_a_cut_is_evicted_and_learns_it_afterwards():
    async with joined(session_timeout=5.0) as (log, layer, session), anyio.create_task_group() as tasks:
        news = start(tasks, lambda: session.changed(session.assignment.version))
        second = await FaultLayer(log).open_session(GROUP, ["t"], [])
        layer.split()
        for _ in range(8):
            session.touch()
            second.touch()
            await anyio.sleep(1)
        assert len(second.assignment.owned) == 2
        layer.heal()
        await news.done.wait()
        with pytest.raises(NotAMember):
            await session.changed(session.assignment.version)


@virtual()
async def test_of_a_killed_member_the_group_learns_by_its_silence_only():
    async with joined(session_timeout=5.0) as (log, layer, session):
        second = await FaultLayer(log).open_session(GROUP, ["t"], [])
        layer.kill()
        with pytest.raises(OutcomeUnknown):
            await session.leave()
        await layer.aclose()
        for _ in range(6):
            assert not second.assignment.owned
            second.touch()
            await anyio.sleep(1)
        assert len(second.assignment.owned) == 2


# ------------------------------------------------------------------------------------------------------- leaders


@asynccontextmanager
async def led(count: int = 3) -> AsyncGenerator[tuple[Leaders, FaultyLog, Session]]:
    """A log with several leaders and a topic of six partitions, and one session."""
    async with FaultyLog(leaders=count, faults=Faults(grace=GRACE)) as log:
        layer = FaultLayer(log)
        await layer.create_topic("t", TopicOptions(partitions=6), exist_ok=False)
        assert log.leaders is not None
        yield log.leaders, log, await layer.open_session(IDENTITY, ["t"], [])


async def ask(session: Session, leader: Leader, number: int, *, max_wait: float = 0.0) -> object:
    target = FetchTarget(TopicPartition("t", number), Position(0))
    return await session.poll(leader, [target], count=100, max_bytes=100_000, max_wait=max_wait)


class TestLeaders:
    @virtual()
    async def test_the_route_says_who_leads(self) -> None:
        async with led() as (leaders, _, session):
            routes = [await session.route(TopicPartition("t", number)) for number in range(6)]
            assert routes == [f"leader-{number % 3}" for number in range(6)]
            leaders.move(P0, 2)
            assert await session.route(P0) == leaders.of(P0) == "leader-2"

    @virtual()
    async def test_who_does_not_lead_everything_that_is_named_refuses(self) -> None:
        async with led() as (leaders, log, session):
            assert isinstance(await ask(session, leaders.names[0], 0), PollReply)
            assert await ended(partial(ask, session, leaders.names[1], 0)) == (NotAccepted, 0.0)
            targets = [FetchTarget(TopicPartition("t", number), Position(0)) for number in (0, 3, 4)]
            with pytest.raises(NotAccepted, match="leader-0 does not lead all of"):
                await session.wait_ready(leaders.names[0], targets, max_wait=5.0)
            assert log.pump.parked == 0

    @rule("C83")
    @virtual(seeds=2)
    async def test_what_waits_for_a_partition_ends_when_it_moves(self) -> None:
        async with led() as (leaders, log, session), anyio.create_task_group() as tasks:
            moved = start(tasks, partial(ask, session, leaders.names[0], 0, max_wait=9.0))
            stays = start(tasks, partial(ask, session, leaders.names[0], 3, max_wait=9.0))
            await settled()
            leaders.move(P0, 0)  # nothing changes
            await settled()
            assert (moved.outcome, log.pump.parked) == ("running", 2)
            leaders.move(P0, 1)
            await settled()
            assert isinstance(moved.error, NotAccepted)
            assert (stays.outcome, log.pump.parked) == ("running", 1)
            tasks.cancel_scope.cancel()

    @virtual(seeds=2)
    async def test_a_leader_that_is_away_answers_nothing(self) -> None:
        async with led() as (leaders, log, session), anyio.create_task_group() as tasks:
            waits = start(tasks, partial(ended, partial(ask, session, leaders.names[0], 0, max_wait=4.0)))
            other = start(tasks, partial(ask, session, leaders.names[1], 1, max_wait=60.0))
            await anyio.sleep(1)
            leaders.go(0)
            await settled()
            assert log.pump.parked == 1
            assert await ended(partial(ask, session, leaders.names[0], 3)) == (LogUnavailable, GRACE)
            store = partial(session.store_offset, P0, Offset(0), ownership=Ownership(0))
            assert await ended(store) == (OutcomeUnknown, GRACE)
            await waits.done.wait()
            assert waits.result == (LogUnavailable, 4.0 + GRACE)
            leaders.come(0)
            assert isinstance(await ask(session, leaders.names[0], 0), PollReply)
            assert other.outcome == "running"
            tasks.cancel_scope.cancel()

    def test_there_are_twelve_at_most(self) -> None:
        with pytest.raises(ValueError, match="leaders=13: 1 to 12"):
            FaultyLog(leaders=13)


@virtual()
async def test_a_member_whose_answer_was_on_its_way_in_a_crash_goes_on_too():
    """It heard nothing any more: its session belonged to a log that was gone before it had it."""

    async with joined() as (log, _, first), anyio.create_task_group() as tasks:
        script = Script()
        script.every("open_session", do=delay(1.0, reply=True))
        entering = start(tasks, lambda: FaultLayer(log, script).open_session(GROUP, ["t"], []))
        await anyio.sleep(0.5)
        log.crash()
        log.restart()
        await entering.done.wait()
        second = entering.result
        await first.leave()
        with anyio.fail_after(1):
            while len(second.assignment.owned) < 2:
                await second.changed(second.assignment.version)
