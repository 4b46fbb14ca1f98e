"""Partitions that the log lastingly refuses are stopped, and go on by themselves (C109-C112)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    CapacityExceeded,
    DataError,
    FeatureUnavailable,
    LogUnavailable,
    NotAccepted,
    OffsetOutOfRange,
    TarryError,
    TopicNotFound,
    UndecodableMessage,
)
from tarry.testing import Call, CarryOut, Operation, Rule, delay, hold, refuse
from tarry.types import Message, Start, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, Rig, T, items, offsets, opened, owns, places, take
from tests.unit.consumer.test_topics import make
from tests.virtual import virtual

BAD = DataError("cannot be read")
BEYOND = OffsetOutOfRange("beyond", asked=9, log_start=0, log_end=3)
SIX_S = 1.6
"""Six refusals in a row take less: the five pauses between them are 1.55 s at most."""


def names_p0(call: Call) -> bool:
    return P0 in [target.partition for target in call.arguments["targets"]]


def by_number(is_refused: Callable[[int], bool]) -> Callable[[Call], bool]:
    """Polls that name partition 0, by number; counted are immediate ones of it alone, whose refusal is its own."""
    seen = 0

    def chosen(call: Call) -> bool:
        nonlocal seen
        if not names_p0(call):
            return False
        if call.arguments["max_wait"] == 0 and len(call.arguments["targets"]) == 1:
            seen += 1
            return is_refused(seen)
        return is_refused(seen + 1)

    return chosen


def refuse_all(rig: Rig, error: TarryError) -> list[Rule]:
    return [rig.script.every(operation, do=refuse(error)) for operation in ("wait_ready", "poll")]


class TestStopping:
    @rule("C109", "C111")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual()
    async def test_five_refusals_are_told_once_at_once_and_stop_nothing(
        self, partitions: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 3)
            rig.script.every("poll", do=refuse(BAD), where=by_number(lambda number: number < 6))
            async with rig.consumer() as consumer:
                with pytest.raises(DataError), anyio.fail_after(0.1):
                    await anext(consumer)
                await anyio.sleep(SIX_S)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
                assert not rig.reported("partition_stopped")
            assert caplog.messages.count("a request was refused: cannot be read; asking again") == 1

    @rule("C111")
    @virtual()
    async def test_waits_that_are_refused_for_the_sake_of_one_keep_nothing_of_the_others_back(self) -> None:
        """Also where no fetch finds out for which: then everything is asked for at the pace of the refusals."""
        async with opened(2) as rig:
            rig.script.every("wait_ready", do=refuse(BAD), where=names_p0)
            async with rig.consumer() as consumer:
                assert await items(consumer, 1, patience=9.0) == [BAD]  # refused so often that the reader is told
                await rig.fill(P1, 3)
                found = await items(consumer, 6, patience=9.0)
                assert places([each for each in found if isinstance(each, Message)]) == [(1, 0), (1, 1), (1, 2)]

    @rule("C109", "K52")
    @pytest.mark.parametrize("error", [BAD, FeatureUnavailable("not here"), TopicNotFound("gone")])
    @pytest.mark.parametrize("commit", [AutoCommit.on_poll(), AutoCommit.finished()])
    @virtual(seeds=2)
    async def test_who_waits_is_told_at_once_and_where_nothing_else_is_read_each_time(
        self, commit: AutoCommit, error: TarryError
    ) -> None:
        """An error that no repeat is expected to cure is no reason to let anybody wait (C91)."""
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            refusing = refuse_all(rig, error)
            async with rig.consumer(commit=commit) as consumer:
                await consumer.ready()
                before = anyio.current_time()
                for _ in range(5):
                    with pytest.raises(type(error)):
                        await anext(consumer)
                    with pytest.raises(type(error)):
                        await consumer.poll()
                assert anyio.current_time() - before < 0.25
                await anyio.sleep(SIX_S * 2)
                assert consumer.health().stopped.keys() == {P0, P1}
                for _ in range(5):
                    with pytest.raises(type(error)):
                        await consumer.poll()
                for scripted in refusing:
                    rig.script.remove(scripted)
                await anyio.sleep(5)
                assert len(await take(consumer, 6)) == 6
                assert consumer.health().ok

    @rule("C109", "C111")
    @virtual(seeds=2)
    async def test_a_stop_is_one_error_one_event_and_no_harm_to_the_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            rig.script.every("poll", do=refuse(BAD), where=names_p0)
            async with rig.consumer() as consumer:
                found = await items(consumer, 4)
                assert [item for item in found if isinstance(item, DataError)] == [BAD]
                await anyio.sleep(SIX_S)
                assert consumer.health().stopped == {P0: BAD}
                await anyio.sleep(200)
                await rig.fill(P1, 2)
                with anyio.fail_after(1):
                    assert places(await take(consumer, 2)) == [(1, 3), (1, 4)]
            (event,) = rig.reported("partition_stopped")
            assert event == {"partition": P0, "error": "cannot be read"}
            assert sum("t[0] is stopped: cannot be read" in line for line in caplog.messages) == 1

    @rule("C110", "C111")
    @pytest.mark.parametrize("partitions", [1, 2])
    @virtual(seeds=2)
    async def test_it_goes_on_by_itself(self, partitions: int, caplog: pytest.LogCaptureFixture) -> None:
        async with opened(partitions) as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every("poll", do=refuse(BAD), where=names_p0)
            async with rig.consumer() as consumer:
                assert await items(consumer, 1) == [BAD]
                await anyio.sleep(SIX_S)
                assert consumer.health().stopped == {P0: BAD}
                rig.script.remove(refusing)
                await anyio.sleep(1.1)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]
                assert consumer.health().ok
            assert rig.reported("partition_resumed") == [{"partition": P0}]
            assert "t[0] is read again" in caplog.messages

    @rule("C110", "C112")
    @virtual(seeds=2)
    async def test_a_probe_that_is_refused_in_passing_is_made_again(self) -> None:
        async with opened(2) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await anyio.sleep(1)
            refusing = refuse_all(rig, TopicNotFound("not loaded yet"))
            assert [type(error) for error in await items(consumer, 2, patience=10)] == [TopicNotFound] * 2
            for scripted in refusing:
                rig.script.remove(scripted)
            rig.script.on("poll", do=refuse(NotAccepted("not here")), nth=range(1, 3))  # the probe of each
            await anyio.sleep(60)
            assert consumer.health().stopped == {}
            assert await consumer.poll(max_wait=1.0) == []

    @rule("C110")
    @virtual()
    async def test_one_probe_goes_out_after_each_cool_down(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            polls = rig.script.every("poll", do=refuse(BAD))
            async with rig.consumer(cool_down=10.0) as consumer:
                assert await items(consumer, 1) == [BAD]
                await anyio.sleep(SIX_S)
                hits = polls.hits
                for seconds in (10, 20, 40, 60, 60):
                    await anyio.sleep(seconds - SIX_S)
                    assert polls.hits == hits
                    await anyio.sleep(SIX_S)
                    hits += 1
                    assert polls.hits == hits

    @rule("C110")
    @virtual(seeds=2)
    async def test_an_empty_topic_that_comes_back_is_found_again(self) -> None:
        async with opened({T: 1, "other": 1}) as rig, rig.consumer(T, "other") as consumer:
            await consumer.ready()
            await rig.log.delete_topic(T)
            (error,) = await items(consumer, 1)
            assert isinstance(error, TopicNotFound)
            await rig.client.create_topic(T)
            await rig.fill(P0, 2)
            with anyio.fail_after(3):
                assert offsets(await take(consumer, 2)) == [0, 1]
            assert consumer.health().ok

    @rule("C110")
    @virtual()
    async def test_a_seek_resumes_at_once(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every("poll", do=refuse(BAD))
            async with rig.consumer(cool_down=3600.0) as consumer:
                assert await items(consumer, 1) == [BAD]
                await anyio.sleep(SIX_S)
                rig.script.remove(refusing)
                await consumer.seek(0, 1)
                with anyio.fail_after(1):
                    assert offsets(await take(consumer, 2)) == [1, 2]
                assert rig.reported("partition_resumed") == [{"partition": P0}]

    @rule("C112")
    @pytest.mark.parametrize("operation", ["poll", "resolve", "route"])
    @virtual()
    async def test_what_passes_stops_nothing(self, operation: Operation) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every(operation, do=refuse(NotAccepted("not here")))
            async with rig.consumer() as consumer:
                await anyio.sleep(60)
                rig.script.remove(refusing)
                assert consumer.health().stopped == {}
                assert NotAccepted in {type(item) for item in await items(consumer, 4)}
                assert not rig.reported("partition_stopped")

    @rule("C109")
    @virtual()
    async def test_a_start_that_is_lastingly_refused_stops_its_partition_after_six(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            asked = rig.script.every("resolve", do=refuse(BAD))
            async with rig.consumer(cool_down=5.0) as consumer:
                assert await items(consumer, 1) == [BAD]
                await anyio.sleep(SIX_S)
                assert asked.hits == 6
                assert consumer.health().stopped == {P0: BAD}
                rig.script.remove(asked)
                await anyio.sleep(5.1)
                assert offsets(await take(consumer, 3)) == [0, 1, 2]


class TestDeadEnd:
    @rule("K41", "K52")
    @virtual(seeds=2)
    async def test_reads_that_are_told_so_at_once_do_not_cost_a_request_each(self) -> None:
        """Both were refused lastingly, and are watched again since the next fetch was only refused for now."""
        async with opened(2) as rig:
            await rig.fill(P0, 1)
            await rig.fill(P1, 1)
            rig.script.on("poll", nth=range(1, 4), do=refuse(BAD))
            rig.script.on("poll", nth=range(4, 1000), do=refuse(CapacityExceeded("not now")))
            async with rig.consumer() as consumer:
                assert await items(consumer, 1) == [BAD]
                rig.script.every("wait_ready", do=hold(anyio.Event()))
                await anyio.sleep(1.0)
                rig.script.calls.clear()
                reads = 0
                with anyio.move_on_after(5.0):
                    while True:
                        with suppress(DataError, CapacityExceeded):
                            await consumer.poll()
                        reads += 1
                assert reads > 200
                assert len(rig.calls("poll", "wait_ready")) <= 100


class TestCommitOnPoll:
    @rule("C110", "C59", "K01")
    @pytest.mark.parametrize("way", ["anext", "poll"])
    @virtual(seeds=2)
    async def test_where_every_read_raises_one_message_is_asked_for_all_the_same(self, way: str) -> None:
        """No reader waits, and without a request nothing would ever resume; a hard kill costs that message at most."""
        async with opened() as rig:
            await rig.fill(P0, 10)
            refusing = refuse_all(rig, BAD)
            async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
                for _ in range(2):
                    with pytest.raises(DataError):
                        await (anext(consumer) if way == "anext" else consumer.poll())
                await anyio.sleep(SIX_S)
                assert consumer.health().stopped == {P0: BAD}
                for scripted in refusing:
                    rig.script.remove(scripted)
                await anyio.sleep(5)
                assert consumer.health().ok
                assert rig.stored(P0) == 0
                assert offsets(await take(consumer, 10)) == list(range(10))

    @rule("C59", "K01")
    @virtual(seeds=2)
    async def test_what_a_dead_end_asked_for_is_all_once_something_was_handed_out(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            refusing = refuse_all(rig, BAD)
            async with rig.consumer(commit=AutoCommit.on_poll(), poll=PollOptions(count=2)) as consumer:
                assert await items(consumer, 1) == [BAD]
                for scripted in refusing:
                    rig.script.remove(scripted)
                with pytest.raises(DataError):
                    await anext(consumer)
                await anyio.sleep(5)
                assert (await anext(consumer)).offset == 0
                await anyio.sleep(5)
                assert rig.stored(P0) == 0
                assert (await anext(consumer)).offset == 1
                await anyio.sleep(5)
                assert rig.stored(P0) == 2


class TestLookups:
    @rule("C109", "C110", "C111")
    @virtual(seeds=2)
    async def test_a_partition_of_which_nobody_knows_the_leader_is_stopped_and_looked_up_again(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            lookups = rig.script.every(
                "route", do=refuse(TopicNotFound("gone")), where=lambda call: call.arguments["partition"] == P0
            )
            async with rig.consumer() as consumer:
                found = await items(consumer, 4)
                assert [type(item) for item in found].count(TopicNotFound) == 1
                await anyio.sleep(200)
                await rig.fill(P1, 2)
                with anyio.fail_after(1):
                    assert places(await take(consumer, 2)) == [(1, 3), (1, 4)]
                assert lookups.hits <= 9  # after 0, 1, 3, 7, 15, 31, 63, 123 and 183 s
                rig.script.remove(lookups)
                await anyio.sleep(61)
                assert places(await take(consumer, 3)) == [(0, 0), (0, 1), (0, 2)]


class TestAlone:
    @rule("C84", "C110")
    @pytest.mark.parametrize("operation", ["resolve", "route", "stored_offset"])
    @virtual(seeds=2)
    async def test_the_poll_of_the_only_one_that_can_be_read_outlasts_what_the_others_are_refused(
        self, operation: Operation
    ) -> None:
        """Each try of one that has no place or no leader ended it, only to have it sent again."""
        async with opened(4) as rig:
            rig.script.every(operation, do=refuse(BAD), where=lambda call: call.arguments["partition"] != P0)
            async with rig.consumer() as consumer:
                assert await items(consumer, 1) == [BAD]
                await anyio.sleep(SIX_S)
                assert len(consumer.health().stopped) == 3
                assert len(rig.calls("poll")) <= 4
                await rig.append(P0, b"a")
                found = await items(consumer, 3)
                assert offsets([each for each in found if isinstance(each, Message)]) == [0]


class TestLogAway:
    @rule("C92", "K57")
    @virtual(seeds=3)
    async def test_what_is_stopped_is_looked_for_at_one_pace(self) -> None:
        """Each time that no news come, and each time that a look-up is refused, is not one more beginning."""
        async with opened(2) as rig:
            refuse_all(rig, BAD)
            async with make(rig, "standalone")() as consumer:
                await consumer.ready()
                await anyio.sleep(SIX_S)
                away = LogUnavailable("nobody listens")
                for operation in ("wait_ready", "poll", "resolve", "changed"):
                    rig.script.every(operation, do=refuse(away))
                before = len(rig.calls("resolve"))
                await rig.client.grow_topic(T, 3)  # these are the last news
                await anyio.sleep(1)
                asked = [call.arguments["partition"] for call in rig.calls("resolve")[before:]]
                assert max(asked.count(P0), asked.count(P1)) <= 12, asked

    @rule("C92", "K57")
    @virtual(seeds=3)
    async def test_and_not_each_of_many_at_its_own(self) -> None:
        """A log that is away is asked for each of them once, and then as seldom as for one or two."""
        partitions = 12
        async with opened(partitions) as rig:
            refuse_all(rig, BAD)
            async with make(rig, "standalone")() as consumer:
                await consumer.ready()
                await anyio.sleep(2 * SIX_S)
                assert len(consumer.health().stopped) == partitions
                before = len(rig.calls("resolve"))
                for operation in ("wait_ready", "poll", "resolve", "changed"):
                    rig.script.every(operation, do=refuse(LogUnavailable("nobody listens")))
                await rig.client.grow_topic(T, partitions + 1)
                await anyio.sleep(1)
                asked = [call for call in rig.calls("resolve")[before:] if call.arguments["start"] == Start.first()]
                assert partitions <= len(asked) <= 2.5 * partitions


class TestBounds:
    @rule("C110", "C111")
    @virtual(seeds=2)
    async def test_one_that_stops_again_and_again_is_no_storm(self, caplog: pytest.LogCaptureFixture) -> None:
        """One answer in seven: each success begins anew, and the shortest cool-down bounds the requests."""
        async with opened(2) as rig:
            rig.script.every("poll", do=refuse(BAD), where=by_number(lambda number: number % 7 > 0))
            await rig.fill(P0, 1000)
            async with rig.consumer(poll=PollOptions(count=1)) as consumer:
                for _ in range(60):
                    with anyio.move_on_after(1):
                        await items(consumer, 1000, patience=1000)
                cycles = len(rig.reported("partition_stopped"))
                assert 20 < cycles <= 60  # each takes a second at least
                assert len(rig.calls("poll", "wait_ready")) <= cycles * 25
                assert len(caplog.messages) <= cycles * 3 + 3

    @rule("C110", "K41")
    @pytest.mark.parametrize("way", ["anext", "poll"])
    @pytest.mark.parametrize("commit", [AutoCommit.on_poll(), AutoCommit.disabled()])
    @virtual(seeds=2)
    async def test_who_reads_on_after_each_error_does_not_spin_and_gets_what_comes(
        self, commit: AutoCommit, way: str
    ) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            rig.script.every("poll", do=refuse(BAD), where=by_number(lambda number: number < 9))
            async with rig.consumer(commit=commit) as consumer:
                with anyio.fail_after(15):  # six refusals, and cool-downs of 1, 2 and 4 s
                    found, errors = await read_on(consumer, 3, way)
                assert offsets(found) == [0, 1, 2]
                assert errors < 15 / 0.02

    @rule("C24")
    @virtual()
    async def test_a_read_that_is_cancelled_at_a_dead_end_loses_nothing(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 3)
            refusing = rig.script.every("poll", do=refuse(BAD))
            async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
                assert await items(consumer, 1) == [BAD]
                for read in (lambda: anext(consumer), lambda: consumer.poll(count=1)):
                    with anyio.move_on_after(0.01) as limit:
                        await read()
                    assert limit.cancelled_caught
                rig.script.remove(refusing)
                found, _ = await read_on(consumer, 3, "anext")
                assert offsets(found) == [0, 1, 2]


class TestNewOwnership:
    @rule("C110")
    @pytest.mark.parametrize("error", [BAD, BEYOND])
    @virtual(seeds=2)
    async def test_a_stopped_partition_that_comes_back_is_read_at_once_and_one_that_stayed_is_not(
        self, error: TarryError
    ) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            async with rig.member(cool_down=3600.0) as consumer:
                await stop_both(rig, consumer, error)
                async with rig.member() as other:
                    (moved,) = await owns(other, 1)
                    (kept,) = await owns(consumer, 1)
                    assert consumer.health().stopped.keys() == {kept}
                await owns(consumer, 2)
                with anyio.fail_after(1):
                    assert places(await take(consumer, 3)) == [(moved.partition, offset) for offset in range(3)]
                assert consumer.health().stopped.keys() == {kept}
                await consumer.seek(kept, 1)
                with anyio.fail_after(1):
                    assert places(await take(consumer, 2)) == [(kept.partition, 1), (kept.partition, 2)]
                assert consumer.health().ok
            assert rig.reported("partition_resumed") == [{"partition": kept}]

    @rule("C110", "C30")
    @pytest.mark.parametrize("error", [BAD, BEYOND])
    @virtual(seeds=2)
    async def test_a_new_session_reads_all_that_was_stopped(self, error: TarryError) -> None:
        async with opened(2, session_timeout=2.0) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            async with rig.member(cool_down=3600.0, heartbeat_interval=1e3) as consumer:
                await stop_both(rig, consumer, error, within=1.0)
                await anyio.sleep(2.5)  # no heartbeat: the log gives it up
                assert len(rig.reported("evicted")) == 1
                await owns(consumer, 2)
                with anyio.fail_after(1):
                    assert len(await take(consumer, 6)) == 6
                assert consumer.health().stopped == {}


class TestHandOver:
    """What is about to be handed over is fetched no more, whatever was refused of it before."""

    @rule("C110", "S67")
    @virtual(seeds=2)
    async def test_it_is_not_probed(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            second = rig.member()
            async with rig.member(cool_down=1.0, drain_timeout=30.0) as consumer:
                assert len(await consumer.poll(min_count=6)) == 6
                tasks.start_soon(second.__aenter__)
                await anyio.sleep(1.0)
                (leaving,) = [at for at in (P0, P1) if not consumer._positions[at].is_open]
                consumer._worker._unknown(leaving, TopicNotFound("gone"))  # a look-up of its leader was still out
                before = len(rig.calls("poll"))
                await anyio.sleep(4.0)
                await rig.append(P0 if leaving == P1 else P1, b"")  # ends the poll of the only one that is read
                await anyio.sleep(1.0)
                assert leaving not in named(rig.calls("poll")[before:])
            await owns(second, 2)
            await second.shutdown()

    @rule("C23", "S67")
    @virtual(seeds=2)
    async def test_nor_asked_alone_when_a_fetch_that_named_it_is_refused(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            second = rig.member()
            async with rig.member(drain_timeout=30.0) as consumer:
                assert len(await consumer.poll(min_count=6)) == 6
                rig.script.on("poll", do=late)
                await rig.append(P0, b"")
                await rig.append(P1, b"")
                await anyio.sleep(0.1)
                tasks.start_soon(second.__aenter__)
                await anyio.sleep(0.5)
                (leaving,) = [at for at in (P0, P1) if not consumer._positions[at].is_open]
                before = len(rig.calls("poll"))
                await anyio.sleep(5.0)
                assert leaving not in named(rig.calls("poll")[before:])
            await owns(second, 2)
            await second.shutdown()


async def late(_: Call, __: CarryOut) -> None:
    """Refuse after a second."""
    await anyio.sleep(1.0)
    raise BAD


def named(calls: Sequence[Call]) -> set[TopicPartition]:
    return {target.partition for call in calls for target in call.arguments["targets"]}


async def read_on(consumer: Consumer, count: int, way: str) -> tuple[list[Message], int]:
    """The next messages, and how many errors came before them, as a reader gets them who tries again at once."""
    found: list[Message] = []
    errors = 0
    while len(found) < count:
        try:
            found += [await anext(consumer)] if way == "anext" else await consumer.poll(max_wait=0.1)
        except DataError:
            errors += 1
    return found, errors


async def stop_both(rig: Rig, consumer: Consumer, error: TarryError, *, within: float = SIX_S) -> None:
    """Both partitions are stopped for an hour, and nothing refuses any more."""
    refusing = rig.script.every("poll", do=refuse(error))
    await anyio.sleep(within)
    rig.script.remove(refusing)
    assert consumer.health().stopped == {P0: error, P1: error}
    with pytest.raises(type(error)):
        await anext(consumer)
    with pytest.raises(type(error)):
        await anext(consumer)


class TestLate:
    """Answers to what was asked before something changed."""

    @rule("C33", "C73")
    @virtual(seeds=2)
    async def test_a_fetch_that_is_refused_behind_a_seek_keeps_nobody_from_waiting_for_the_partition(self) -> None:
        async with opened(2) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await anyio.sleep(1)
            rig.script.on("poll", do=delay(1))
            rig.script.on("poll", do=refuse(BAD))
            await rig.append(P0, b"0")
            await anyio.sleep(0.5)
            await consumer.seek(P0, 1)
            await anyio.sleep(1)
            await rig.append(P0, b"1")
            with anyio.fail_after(0.2):
                assert places(await take(consumer, 1)) == [(0, 1)]

    @rule("C111")
    @virtual(seeds=2)
    async def test_a_fetch_that_is_refused_behind_a_stop_holds_up_nobody_else(self) -> None:
        async with opened(2) as rig, rig.typed(int) as consumer:
            await rig.append(P0, b"no number")
            await anyio.sleep(1.0)
            consumer.pause([P0, P1], cause="so that one fetch names both")
            await rig.append(P0, b"0")
            await rig.append(P1, b"0")
            rig.script.on("poll", do=late)
            consumer.resume([P0, P1])
            await anyio.sleep(0.5)
            with pytest.raises(UndecodableMessage):
                await anext(consumer)
            assert places([await anext(consumer)]) == [(1, 0)]
            await anyio.sleep(1.0)
            await rig.append(P1, b"1")
            with anyio.fail_after(0.2):
                assert places([await anext(consumer)]) == [(1, 1)]

    @rule("C111")
    @virtual(seeds=2)
    async def test_a_start_that_is_found_behind_a_seek_resumes_nothing(self) -> None:
        async with opened({T: 1, "u": 1}) as rig:
            rig.script.on("resolve", do=delay(1, reply=True), where=lambda call: call.arguments["partition"] == P0)
            async with rig.consumer(T, "u") as consumer:
                await anyio.sleep(0.1)
                await consumer.seek(P0, 0)
                await rig.client.delete_topic(T)
                await anyio.sleep(2)
                assert list(consumer.health().stopped) == [P0]
                assert rig.reported("partition_resumed") == []
