"""`statistics()` and `health()`: what they count, what they call healthy, and that they ask nobody."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from tarry import AutoCommit, Health, PollOptions, Start, Statistics
from tarry.consumer.consumer import Consumer
from tarry.errors import LogBusy, LogUnavailable, NotStarted
from tarry.testing import block, hold, refuse
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, T, items, opened, owns, settled, start, take
from tests.virtual import virtual

FIVE = PollOptions(count=5)


def flow(consumer: Consumer) -> tuple[int, int]:
    """Messages handed over and waiting."""
    counted = consumer.statistics()
    return counted.messages, counted.buffered_messages


class TestStatistics:
    @virtual(seeds=2)
    async def test_messages_are_counted_one_by_one_out_of_a_list(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 12, size=100)
            async with rig.consumer(poll=FIVE) as consumer:
                await settled()
                assert flow(consumer) == (0, 10)
                sizes: list[int] = []
                for count in range(1, 13):
                    await take(consumer, 1)
                    await settled()
                    assert consumer.statistics().messages == count
                    assert 10 <= sum(flow(consumer)) <= 12
                    sizes.append(consumer.statistics().bytes)
                assert flow(consumer) == (12, 0)
                assert consumer.statistics().buffered_bytes == 0
                assert sizes == sorted(set(sizes))
                assert sizes[0] > 100
                assert 1200 < sizes[-1] < 2400
            assert consumer.statistics().messages == 12

    @virtual(seeds=2)
    async def test_a_batch_counts_whole_and_a_list_that_is_left_counts_what_was_read(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 20)
            async with rig.consumer(poll=FIVE) as consumer:
                await take(consumer, 3)
                assert len(await consumer.poll(count=4, min_count=4)) == 4
                assert consumer.statistics().messages == 7
                await take(consumer, 2)
                await consumer.seek(0, 0)
                await take(consumer, 1)
                assert consumer.statistics().messages == 10

    @virtual()
    async def test_requests_and_refusals_are_those_that_went_out(self) -> None:
        async with opened(2) as rig:
            rig.script.on("resolve", nth=1, do=refuse(LogUnavailable("away")))
            await rig.fill(P0, 3)
            async with rig.consumer(commit=AutoCommit.each_message()) as consumer:
                await take(consumer, 3)
                await anyio.sleep(20)
                counted = consumer.statistics()
                assert (counted.polls, counted.waits) == (len(rig.calls("poll")), len(rig.calls("wait_ready")))
                assert counted.waits > 2
                assert counted.refusals == 1
                assert counted.stored == len(rig.calls("store_offset")) > 0
                assert (counted.stores_failed, counted.store_error) == (0, None)

    @virtual()
    async def test_each_consumer_counts_its_own_gaps(self) -> None:
        async with opened({}) as rig:
            await rig.client.create_topic(T, 1, retention_bytes=2000)
            async with rig.consumer() as early:
                await rig.fill(P0, 1)
                await early.store_offset(await anext(early))
            await rig.fill(P0, 400, size=100)
            async with rig.consumer() as consumer, rig.consumer(name="other", start=Start.end()) as other:
                await other.ready()
                await anyio.sleep(20)
                assert (consumer.statistics().gaps, other.statistics().gaps, rig.client.counts["gap"]) == (1, 0, 1)

    @virtual()
    async def test_before_the_start_there_is_nothing(self) -> None:
        async with opened() as rig:
            assert rig.consumer().statistics() == Statistics()


class TestHealth:
    @virtual()
    async def test_a_consumer_with_nothing_to_do_is_well(self) -> None:
        async with opened(2) as rig:
            consumer = rig.consumer()
            assert not consumer.health().ok
            async with consumer:
                await anyio.sleep(3600)
                assert consumer.health() == Health(
                    ok=True,
                    state="open",
                    is_member=True,
                    owned=frozenset({P0, P1}),
                    missing={},
                    stopped={},
                    stalled_s=0.0,
                    silent_s=0.0,
                    last_error=None,
                )
            assert (consumer.health().ok, consumer.health().state) == (False, "shut down")

    @rule("K19")
    @virtual(seeds=2)
    async def test_a_log_that_stops_answering_is_noticed_and_one_that_answers_again_too(self) -> None:
        async with opened() as rig:
            answers = anyio.Event()
            options = PollOptions(max_wait=0.5)
            async with rig.consumer(poll=options, heartbeat_interval=0.5) as consumer:
                await anyio.sleep(2.0)
                rig.script.every("poll", do=hold(answers))
                assert consumer.health().ok
                await anyio.sleep(0.9)
                assert consumer.health().ok
                await anyio.sleep(1.2)
                assert not consumer.health().ok
                assert consumer.health().silent_s > 1.0
                answers.set()
                await anyio.sleep(1.0)
                assert consumer.health().ok

    @rule("K19")
    @virtual(seeds=2)
    async def test_what_the_application_asks_beside_does_not_hide_that_reading_is_refused(self) -> None:
        async with opened() as rig, rig.consumer(heartbeat_interval=0.5) as consumer:
            await consumer.ready()
            rig.script.every("poll", do=refuse(LogUnavailable("away")))
            await rig.fill(P0, 1)
            for _ in range(8):
                await anyio.sleep(1.0)
                await consumer.lag()
            assert not consumer.health().ok
            assert consumer.health().silent_s > 5.0

    @rule("K19")
    @virtual()
    async def test_slow_work_is_seen_and_is_not_ill(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 10)
            async with rig.consumer(poll=FIVE, heartbeat_interval=0.5) as consumer:
                await take(consumer, 1)
                await anyio.sleep(4)
                assert consumer.health().stalled_s == pytest.approx(4)
                assert consumer.health().ok
                await take(consumer, 1)
                assert consumer.health().stalled_s == 0
                await anyio.sleep(3)
                assert consumer.health().stalled_s == pytest.approx(3)
                await take(consumer, 8)
                await anyio.sleep(5)
                assert consumer.health().stalled_s == 0, "nothing waits"

    @rule("K72")
    @virtual()
    async def test_partitions_without_a_position_say_why(self) -> None:
        async with opened() as rig:
            rig.script.every("resolve", do=refuse(LogUnavailable("away")))
            async with rig.consumer() as consumer:
                await anyio.sleep(60)
                health = consumer.health()
                assert health.missing == {
                    P0: "the log has not said yet where it begins; the last refusal: away",
                }
                assert not health.ok
                assert health.silent_s > 50
                assert isinstance(health.last_error, LogUnavailable)

    @rule("K19")
    @pytest.mark.parametrize("commit", [AutoCommit.disabled(), AutoCommit.on_poll()], ids=str)
    @virtual(seeds=2)
    async def test_partitions_that_are_ready_and_never_fetched_are_not_well(self, commit: AutoCommit) -> None:
        async with opened(2) as rig, rig.consumer(commit=commit) as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            refusing = rig.script.every("poll", do=refuse(LogBusy("later")))
            start(tasks, partial(items, consumer, 1_000_000, patience=60.0))
            await rig.fill(P0, 1)
            await anyio.sleep(30)
            assert len(rig.calls("wait_ready")) > 15, "its leader goes on saying that there is something"
            assert not consumer.health().ok
            rig.script.remove(refusing)
            await anyio.sleep(3)
            assert consumer.health().ok
            tasks.cancel_scope.cancel()

    @rule("K19", "C59")
    @virtual()
    async def test_refusals_are_no_illness_while_nobody_asks(self) -> None:
        async with opened(2) as rig, rig.consumer(commit=AutoCommit.on_poll()) as consumer:
            await consumer.ready()
            refusing = rig.script.every("poll", do=refuse(LogBusy("later")))
            await rig.fill(P0, 1)
            await items(consumer, 1, patience=60.0)
            assert not consumer.health().ok
            rig.script.remove(refusing)
            await anyio.sleep(60)
            assert consumer.health().ok, "the reader takes his time"

    @rule("K19", "K48")
    @virtual()
    async def test_a_refusal_before_a_pause_is_none_that_lasted_as_long_as_the_pause(self) -> None:
        async with opened(2) as rig, rig.consumer() as consumer:
            await consumer.ready()
            rig.script.on("wait_ready", nth=range(1, 3), do=refuse(LogBusy("later")))
            while not consumer.statistics().refusals:  # noqa: ASYNC110  # the wait before is out for some seconds
                await anyio.sleep(0.01)
            consumer.pause([0, 1], cause="full")
            await anyio.sleep(600)
            rig.script.on("wait_ready", do=refuse(LogBusy("later")))
            rig.script.on("poll", do=refuse(LogBusy("later")))
            consumer.resume([0, 1])
            assert consumer.health().ok
            refused = consumer.statistics().refusals
            while consumer.statistics().refusals == refused:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert consumer.health().ok

    @rule("K19")
    @virtual(seeds=2)
    async def test_a_single_refusal_before_a_long_wait_is_no_illness(self) -> None:
        options = PollOptions(max_wait=30.0)
        async with opened() as rig, rig.consumer(poll=options) as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            rig.script.on("poll", nth=1, do=refuse(LogBusy("later")))
            for _ in range(20):
                await anyio.sleep(1)
                assert consumer.health().ok, consumer.health().silent_s
            start(tasks, lambda: consumer.poll(min_count=2, max_wait=20.0))  # which replaces it
            for _ in range(40):
                await anyio.sleep(0.5)
                assert consumer.health().ok, consumer.health().silent_s

    @rule("K18", "K19")
    @virtual()
    async def test_a_log_that_does_not_say_whether_a_member_still_stands_is_noticed(self) -> None:
        async with opened(1, session_timeout=2.0) as rig, rig.member(heartbeat_interval=0.5) as consumer:
            await consumer.ready()
            refusing = rig.script.every("release", do=refuse(LogBusy("later")))
            block(3.0)
            consumer._standing.session.touch()  # the log stood still as well
            await anyio.sleep(30)
            assert consumer.health().is_member
            assert not consumer.health().ok, "nothing is delivered or stored"
            rig.script.remove(refusing)
            await anyio.sleep(3)
            assert consumer.health().ok

    @rule("K19")
    @virtual()
    async def test_a_coordinator_that_is_away_is_named(self) -> None:
        async with opened() as rig:
            rig.script.every("changed", do=refuse(LogUnavailable("the coordinator is away")))
            async with rig.member() as consumer:
                await rig.fill(P0, 1)
                await take(consumer, 1)
                await anyio.sleep(60)
                assert isinstance(consumer.health().last_error, LogUnavailable)
                assert consumer.statistics().refusals > 20
                assert consumer.health().ok, "members go on reading and storing"

    @virtual()
    async def test_a_stopped_partition_is_not_well(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await consumer.ready()
            await rig.log.delete_topic(T)
            await anyio.sleep(10)
            health = consumer.health()
            assert list(health.stopped) == [P0]
            assert not health.ok

    @rule("C21")
    @virtual(seeds=2)
    async def test_a_member_that_was_evicted_is_ill_until_it_is_back(self) -> None:
        async with opened(2, session_timeout=2.0) as rig, rig.member(heartbeat_interval=1e3) as consumer:
            await consumer.ready()
            assert consumer.health().is_member
            refusing = rig.script.every("open_session", do=refuse(LogUnavailable("away")))
            await anyio.sleep(2.5)
            assert (consumer.health().is_member, consumer.health().ok) == (False, False)
            rig.script.remove(refusing)
            await owns(consumer, 2)
            assert consumer.health().is_member
            assert consumer.health().owned == {P0, P1}
            assert consumer.statistics().evictions >= 1

    @virtual()
    async def test_reading_is_refused_before_the_start_and_looking_is_not(self) -> None:
        async with opened() as rig:
            consumer = rig.consumer()
            with pytest.raises(NotStarted):
                await anext(consumer)
            assert consumer.health().state == "not entered yet"
