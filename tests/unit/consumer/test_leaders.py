"""Partitions with several leaders, that move and go away: a wait and a fetch for each, and none holds up another."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry._core.fetches import Demand
from tarry.errors import CapacityExceeded, LogUnavailable, NotAccepted
from tarry.testing import (
    Call,
    Operation,
    delay,
    hold,
    hook,
    refuse,
)
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import python_calls
from tests.unit.consumer.leaders_rig import P, at, named, next_of, opened
from tests.unit.consumer.rig import places, settled, start, take
from tests.virtual import virtual

READ_AHEAD = pytest.mark.parametrize(
    "commit",
    [AutoCommit.disabled(), AutoCommit.finished(), AutoCommit.interval(1.0), AutoCommit.each_message()],
    ids=["disabled", "finished", "interval", "each_message"],
)
"""Modes in which fetching needs no demand."""


class TestWaits:
    @rule("C72", "C80")
    @virtual(seeds=3)
    async def test_each_leader_has_one_wait_over_its_partitions(self) -> None:
        async with opened(7) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            assert rig.waits() == {"leader-0": [0, 3, 6], "leader-1": [1, 4], "leader-2": [2, 5]}
            assert len(rig.calls("wait_ready")) == 3

    @rule("C77")
    @virtual()
    async def test_a_wait_that_is_out_when_no_group_is_left_fits_no_more(self) -> None:
        """It compared itself with its part of what is asked, one of none: the consumer died of that."""
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            worker = consumer._worker
            waits = list(worker._watching._waits.values())
            assert len(waits) == 3
            worker._routes.assign([])
            worker._watching.look()
            assert all(wait.scope.cancel_called for wait in waits)

    @rule("C73", "C75")
    @virtual(seeds=3)
    async def test_a_drained_partition_restarts_the_wait_of_its_group_alone(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            await rig.append(1)
            assert places([await anext(consumer)]) == [(1, 0)]
            await settled()
            assert rig.waits() == {"leader-0": [0, 3], "leader-1": [1, 4], "leader-2": [2, 5]}
            asked = Counter(call.arguments["leader"] for call in rig.calls("wait_ready"))
            assert (asked["leader-0"], asked["leader-2"]) == (1, 1)
            assert {call.arguments["leader"] for call in rig.calls("poll")} == {"leader-1"}

    @rule("C77", "C79", "I5")
    @virtual(seeds=5)
    async def test_when_a_partition_has_moved_every_wait_is_replaced(self) -> None:
        """Each is withdrawn before the first new one begins."""
        async with opened(6) as rig:
            parked: list[int] = []
            rig.script.every("wait_ready", do=hook(lambda _: parked.append(rig.log.pump.parked)))
            async with rig.consumer() as consumer:
                await consumer.ready()
                await settled()
                parked.clear()
                rig.leaders.move(P(0), 1)
                await anyio.sleep(1)
                assert rig.waits() == {"leader-0": [3], "leader-1": [0, 1, 4], "leader-2": [2, 5]}
                assert len(rig.calls("wait_ready")) == 6
                assert sorted(parked) == [0, 1, 2]
                await rig.append(0)
                assert places([await anext(consumer)]) == [(0, 0)]
                assert rig.calls("poll")[-1].arguments["leader"] == "leader-1"

    @rule("C83", "C85")
    @virtual(seeds=3)
    async def test_a_wait_refused_for_routing_has_all_it_named_looked_up(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            rig.leaders.move(P(3), 2)
            await settled()
            assert sorted(call.arguments["partition"].partition for call in rig.calls("route")) == [0, 3]

    @rule("C85")
    @virtual(seeds=3)
    async def test_one_refused_for_capacity_has_none(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            rig.script.on("wait_ready", do=refuse(CapacityExceeded("full")), nth=range(1, 4))
            await anyio.sleep(10)
            assert sum(isinstance(call.error, CapacityExceeded) for call in rig.calls("wait_ready")) == 3
            assert rig.calls("route") == []

    @rule("C85")
    @virtual(seeds=3)
    async def test_a_fetch_refused_for_routing_has_its_own_partition_looked_up(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            rig.script.on("poll", do=refuse(NotAccepted("not here")))
            await rig.append(4)
            assert places([await anext(consumer)]) == [(4, 0)]
            assert [call.arguments["partition"] for call in rig.calls("route")] == [P(4)]

    @rule("C87")
    @virtual(seeds=3)
    async def test_a_refresh_that_changes_no_route_restarts_no_other_wait(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.on("wait_ready", do=refuse(NotAccepted("for now")), where=at(1))
            await rig.append(1)
            await anext(consumer)
            await anyio.sleep(3)
            asked = Counter(call.arguments["leader"] for call in rig.calls("wait_ready"))
            assert (asked["leader-0"], asked["leader-2"]) == (1, 1)
            assert asked["leader-1"] >= 3
            assert rig.waits()["leader-1"] == [1, 4]


class TestLookups:
    @rule("C86")
    @virtual(seeds=2)
    async def test_sixteen_are_out_at_a_time(self) -> None:
        async with opened(40) as rig:
            rig.script.every("route", do=delay(1.0))
            most = 0
            async with rig.consumer():
                for _ in range(8):
                    await anyio.sleep(0.5)
                    most = max(most, sum(call.outcome == "open" for call in rig.calls("route")))
                assert most == 16
                assert len(rig.calls("route")) == 40
                assert anyio.current_time() <= 4.5

    @rule("C88")
    @virtual(seeds=4)
    async def test_the_first_failure_in_the_order_of_the_partitions_is_told(self) -> None:
        """Partition 2 fails later than 4, and is told all the same."""

        async def late(call: Call, _: Any) -> Any:
            await anyio.sleep(1.0 if call.arguments["partition"] == P(2) else 0.1)
            raise LogUnavailable(f"nobody knows {call.arguments['partition']}")

        async with opened(6) as rig:
            rig.script.every("route", do=late, where=lambda call: call.arguments["partition"].partition in {2, 4})
            async with rig.consumer():
                await anyio.sleep(1.05)
                (line,) = [fields["error"] for event, fields in rig.events if event == "refused"]
                assert line == "nobody knows t[2]"

    @virtual(seeds=2)
    async def test_one_that_hangs_keeps_nobody_else_waiting(self) -> None:
        async with opened(6) as rig:
            rig.script.on("route", do=hold(anyio.Event()), where=lambda call: call.arguments["partition"] == P(2))
            async with rig.consumer() as consumer:
                await rig.append(1)
                with anyio.fail_after(1):
                    assert await next_of(consumer) == (1, 0)
                await rig.append(2)
                with anyio.fail_after(15):
                    assert await next_of(consumer) == (2, 0)


class TestLostLeaders:
    @rule("C83", "K08")
    @virtual(seeds=3)
    async def test_while_a_leader_is_away_the_others_go_on(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            await rig.append(0)
            rig.leaders.go(0)  # with the answer on its way, or the wait still there
            for offset in range(20):
                await rig.append(1 + offset % 2)
                with anyio.fail_after(0.5):
                    partition, _ = await next_of(consumer)
                    while partition == 0:
                        partition, _ = await next_of(consumer)
                await anyio.sleep(1)

    @rule("K08")
    @virtual(seeds=3)
    async def test_its_partitions_are_read_at_their_new_leader(self) -> None:
        async with opened(6, grace=1.0) as rig, rig.consumer(poll=PollOptions(max_wait=2.0)) as consumer:
            await consumer.ready()
            await settled()
            rig.leaders.go(0)
            for number in (0, 3):
                rig.leaders.move(P(number), 1)
            await rig.append(0, 5)
            with anyio.fail_after(4):
                assert [await next_of(consumer) for _ in range(5)] == [(0, offset) for offset in range(5)]

    @rule("K08")
    @virtual(seeds=3)
    async def test_or_at_the_old_one_when_it_has_come_back(self) -> None:
        async with opened(6, grace=1.0) as rig, rig.consumer(poll=PollOptions(max_wait=2.0)) as consumer:
            await consumer.ready()
            await settled()
            rig.leaders.go(0)
            await anyio.sleep(1)
            await rig.append(0, 5)
            await anyio.sleep(8)
            rig.leaders.come(0)
            with anyio.fail_after(6):
                assert [await next_of(consumer) for _ in range(5)] == [(0, offset) for offset in range(5)]

    @rule("C91")
    @virtual(seeds=2)
    async def test_a_reader_is_told_of_a_leader_that_stays_away_and_nobody_is_stormed(self) -> None:
        async with opened(6, grace=1.0) as rig, rig.consumer(poll=PollOptions(max_wait=2.0)) as consumer:
            await consumer.ready()
            rig.leaders.go(0)
            with anyio.fail_after(30), pytest.raises(LogUnavailable):
                await anext(consumer)
            await anyio.sleep(60)
            assert len(rig.calls("route", "wait_ready", "poll")) < 400

    @rule("C113")
    @virtual(seeds=2)
    async def test_a_member_of_a_group_stays_one_wherever_leaders_go(self) -> None:
        async with opened(6, grace=1.0) as rig:
            async with rig.client.consumer("t", group="crew") as consumer:
                await consumer.ready()
                generation = consumer.generation
                for number in range(6):
                    rig.leaders.move(P(number), 1)
                rig.leaders.go(0)
                await anyio.sleep(90)
                assert consumer.generation == generation
                assert len(consumer.assignment) == 6
                await rig.append(0)
                assert await next_of(consumer) == (0, 0)
            assert len(rig.calls("open_session")) == 1


class TestFetches:
    @rule("C82")
    @virtual(seeds=3)
    async def test_a_slow_leader_holds_up_nobody_else(self) -> None:
        async with opened(6) as rig, rig.consumer(poll=PollOptions(count=10)) as consumer:
            await consumer.ready()
            rig.script.on("poll", do=delay(5.0), where=at(0))
            await rig.append(0, 30)
            await settled()
            for number in (1, 2):
                await rig.append(number, 30)
            with anyio.fail_after(0.1):
                found = await take(consumer, 60)
            assert {message.partition for message in found} == {1, 2}
            assert {message.partition for message in await take(consumer, 30)} == {0}

    @rule("K73", "C82")
    @pytest.mark.parametrize("leaders", [1, 3, 12])
    @virtual()
    async def test_a_busy_partition_starves_nobody(self, leaders: int) -> None:
        async with opened(12, leaders) as rig:
            await rig.append(0, 1000)
            for number in range(1, 12):
                await rig.append(number, 10)
            async with rig.consumer(poll=PollOptions(count=50)) as consumer:
                found = await take(consumer, 600)
            others = [index for index, message in enumerate(found) if message.partition != 0]
            assert len(others) == 110
            assert others[-1] < 500

    @rule("K23")
    @pytest.mark.parametrize("leaders", [3, 12])
    @virtual()
    async def test_what_is_read_ahead_is_bounded_over_all_leaders(self, leaders: int) -> None:
        size = 100 * 1024
        async with opened(24, leaders) as rig:
            for number in range(24):
                for _ in range(5):
                    await rig.append(number, 2, size)
            peak = 0
            options = PollOptions(max_bytes=200_000)
            async with rig.consumer(poll=options, buffer_bytes=8 * 1024 * 1024) as consumer:
                seen: Counter[int] = Counter()
                for _ in range(240):
                    seen[(await anext(consumer)).partition] += 1
                    await anyio.sleep(0.005)
                    peak = max(peak, consumer._fetches.size)
            assert seen == Counter(dict.fromkeys(range(24), 10))
            assert 200_000 < peak <= 8 * 1024 * 1024 + size + 100

    @rule("C114", "C59")
    @virtual(seeds=3)
    async def test_committing_fetches_go_to_the_leader_of_their_partition_one_at_a_time(self) -> None:
        async with opened(6) as rig:
            for number in range(6):
                await rig.append(number, 3)
            out: list[int] = []
            rig.script.every(
                "poll",
                do=hook(lambda _: out.append(sum(call.outcome == "open" for call in rig.calls("poll")))),
            )
            async with rig.consumer(commit=AutoCommit.on_poll()) as consumer:
                await take(consumer, 9)
                rig.leaders.move(P(5), 0)
                await take(consumer, 9)
            polls = [call for call in rig.calls("poll") if call.outcome == "answered"]
            assert all(len(named(call)) == 1 for call in polls)
            assert set(out) == {1}
            led = {call.arguments["leader"] for call in polls}
            assert led == {"leader-0", "leader-1", "leader-2"}


class TestAccumulating:
    @rule("K89")
    @virtual(seeds=3)
    async def test_a_poll_asks_each_leader_for_its_part(self) -> None:
        async with opened(100) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            poll = start(tasks, lambda: consumer.poll(min_count=100, max_wait=20.0))
            await settled()
            first = rig.calls("wait_ready")
            assert {call.arguments["min_count"] for call in first} == {34}
            for number in range(100):
                await rig.append(number)
                await anyio.sleep(0.01)
            await settled()
            assert poll.outcome == "returned"
            assert len(poll.result) == 100
            assert poll.result.reason == "count"

    @rule("K89")
    @pytest.mark.parametrize("order", ["one leader after another", "any"])
    @READ_AHEAD
    @virtual()
    async def test_a_trickle_costs_a_dozen_requests(self, commit: AutoCommit, order: str, seed: int) -> None:
        """Asked for one at a time it were 202. In any order the last few come one by one, at three requests each."""
        numbers = list(range(100))
        if order == "any":
            random.Random(seed).shuffle(numbers)
        async with opened(100) as rig, rig.consumer(commit=commit) as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            poll = start(tasks, lambda: consumer.poll(min_count=100, max_wait=60.0))
            for number in numbers:
                await anyio.sleep(0.1)
                assert poll.outcome == "running"
                await rig.append(number)
            await settled()
            assert (poll.outcome, len(poll.result), poll.result.reason) == ("returned", 100, "count")
            assert len(rig.calls("wait_ready", "poll")) <= (12 if order != "any" else 36)

    @rule("C91", "C92")
    @virtual()
    async def test_a_pause_that_the_end_of_a_poll_cuts_short_still_takes_its_time(self) -> None:
        """While another leader has not been heard the poll goes on; without a pause it asked in a circle."""
        async with opened(2) as rig, rig.consumer() as consumer:
            await consumer.ready()
            now = anyio.current_time()
            consumer._fetches.demand = Demand(10, 1, 1000, deadline=now)
            await consumer._worker._watching.pause("resting", 1.0)
            assert anyio.current_time() == pytest.approx(now + 0.05)
            await consumer._worker._watching.pause("resting", 0.01)
            assert anyio.current_time() == pytest.approx(now + 0.06)
            consumer._fetches.demand = None

    @virtual(seeds=3)
    async def test_enough_at_one_leader_is_enough(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            poll = start(tasks, lambda: consumer.poll(min_count=100, max_wait=20.0))
            await settled()
            for _ in range(10):
                await rig.append(0, 10)
                await anyio.sleep(0.01)
            await settled()
            assert (poll.outcome, len(poll.result)) == ("returned", 100)

    @virtual(seeds=3)
    async def test_at_its_end_it_returns_what_there_is_at_all_of_them(self) -> None:
        async with opened(6) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
            await consumer.ready()
            poll = start(tasks, lambda: consumer.poll(min_count=100, max_wait=2.0))
            await settled()
            for number in range(6):
                await rig.append(number, 2)
            await anyio.sleep(1.9)
            assert poll.outcome == "running"
            await anyio.sleep(0.15)
            assert (poll.outcome, len(poll.result), poll.result.reason) == ("returned", 12, "wait")

    @virtual(seeds=3)
    async def test_it_ends_in_time_when_nobody_leads(self) -> None:
        async with opened(6) as rig:
            rig.script.every("route", do=refuse(LogUnavailable("nobody knows")))
            async with rig.consumer() as consumer:
                await anyio.sleep(1)
                began = anyio.current_time()
                assert await consumer.poll(max_wait=2.0) == []
                assert anyio.current_time() - began == pytest.approx(2.0)


class TestCost:
    """Requests grow with the leaders that are asked and the partitions that change, not with the partitions."""

    @rule("K41")
    @pytest.mark.parametrize(("partitions", "leaders"), [(1, 3), (100, 3), (1000, 3), (1000, 1), (1000, 12)])
    @virtual()
    async def test_quiet_partitions_cost_one_request_per_leader_and_wait(self, partitions: int, leaders: int) -> None:
        async with opened(partitions, leaders) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            await anyio.sleep(60)
            asked = Counter(call.arguments["leader"] for call in rig.script.calls)
            assert len(asked) == min(partitions, leaders)
            assert all(11 <= requests <= 13 for requests in asked.values())

    @pytest.mark.parametrize("partitions", [1, 100, 1000])
    @virtual()
    async def test_a_busy_partition_costs_requests_at_its_leader_only(self, partitions: int) -> None:
        """A wait, a fetch and a new wait for each message; the others are not disturbed."""
        async with opened(partitions) as rig, rig.consumer() as consumer:
            await consumer.ready()
            await settled()
            rig.script.calls.clear()
            for _ in range(40):
                await rig.append(0)
                await anext(consumer)
                await anyio.sleep(0.6)
            asked = Counter(call.arguments["leader"] for call in rig.script.calls)
            assert asked.pop("leader-0") <= 130
            assert all(requests <= 6 for requests in asked.values())

    @rule("C73", "S53")
    @pytest.mark.parametrize("busy", [0, 10])
    @virtual()
    async def test_work_grows_with_what_changes_and_not_with_the_partitions(self, busy: int) -> None:
        """Consumer, log, and what is between them, as a count of calls that is the same on every machine."""
        work: list[int] = []
        for partitions in (99, 999):
            async with opened(partitions) as rig, rig.consumer() as consumer:
                await consumer.ready()
                await settled()
                with python_calls() as calls:
                    for _ in range(5):
                        for number in range(busy):
                            await rig.append(number)
                        for _ in range(busy):
                            await anext(consumer)
                        await anyio.sleep(6)
                work.append(len(calls))
        assert work[1] <= 1.1 * work[0], "the safety net looks at up to 64 targets a second"


class TestMoving:
    @rule("C77", "C78", "I2")
    @pytest.mark.parametrize("leaders", [3, 12])
    @pytest.mark.parametrize("commit", [AutoCommit.on_poll(), AutoCommit.finished(0.5)], ids=["on_poll", "finished"])
    @virtual(seeds=3)
    async def test_leaders_that_move_and_go_lose_nothing_and_double_nothing(
        self, leaders: int, commit: AutoCommit, seed: int
    ) -> None:
        """Waits and fetches are out all the time; every partition is delivered in order, each message once."""
        dice = random.Random(seed)
        total = 300
        async with opened(12, leaders, grace=1.0) as rig, anyio.create_task_group() as tasks:

            async def produce() -> None:
                for _ in range(total):
                    await rig.append(dice.randrange(12))
                    await anyio.sleep(dice.random() * 0.1)

            async def shuffle() -> None:
                while True:
                    await anyio.sleep(dice.random() * 0.5)
                    rig.leaders.move(P(dice.randrange(12)), dice.randrange(leaders))
                    if dice.random() < 0.2:
                        gone = dice.randrange(leaders)
                        rig.leaders.go(gone)
                        await anyio.sleep(dice.random())
                        rig.leaders.come(gone)

            tasks.start_soon(produce)
            tasks.start_soon(shuffle)
            found: list[tuple[int, int]] = []
            options = PollOptions(count=5, max_wait=1.0)
            async with rig.consumer(commit=commit, poll=options) as consumer:
                with anyio.fail_after(120):
                    while len(found) < total:
                        found.append(await next_of(consumer))
            tasks.cancel_scope.cancel()
            for number in range(12):
                offsets = [offset for partition, offset in found if partition == number]
                assert offsets == list(range(len(offsets)))
            assert len(rig.calls("wait_ready", "poll", "route")) < 12_000


@rule("C85", "C91")
@virtual(seeds=2)
async def test_starts_at_a_leader_that_is_away_hold_up_those_of_no_other() -> None:
    async with opened(61, 2) as rig:
        for number in range(60):
            rig.leaders.move(P(number), 0)
        rig.leaders.move(P(60), 1)
        rig.leaders.go(0)
        await rig.append(60)
        async with rig.consumer() as consumer:
            with anyio.fail_after(30):  # two rounds
                assert await next_of(consumer) == (60, 0)
            await anyio.sleep(60)
            assert len(rig.calls("stored_offset")) <= 16 + 1 + 15, "one round, then a question at a time"


@rule("C84", "C92")
@virtual(seeds=8)
async def test_a_leader_that_refuses_the_only_one_holds_up_none_that_come() -> None:
    async with opened(1, 2) as rig:
        rig.leaders.move(P(0), 0)
        rig.leaders.move(P(1), 1)
        async with rig.consumer() as consumer:
            await consumer.ready()
            rig.script.every("poll", do=refuse(CapacityExceeded("full")), where=at(0))
            await anyio.sleep(30)
            await rig.client.grow_topic("t", 2)
            await rig.append(1)
            with anyio.fail_after(0.1):
                assert await next_of(consumer) == (1, 0)


@rule("C85", "C86")
@pytest.mark.parametrize("hangs", ["resolve", "route"])
@virtual(seeds=2)
async def test_what_comes_while_a_start_or_a_look_up_hangs_does_not_wait_for_it(hangs: Operation) -> None:
    async with opened(1, 2) as rig:
        rig.leaders.move(P(1), 1)
        rig.script.every(hangs, do=hold(anyio.Event()), where=lambda call: call.arguments["partition"] == P(0))
        async with rig.consumer() as consumer:
            await anyio.sleep(13)
            await rig.client.grow_topic("t", 2)
            await rig.append(1)
            with anyio.fail_after(0.1):
                assert await next_of(consumer) == (1, 0)
            assert len([call for call in rig.calls(hangs) if call.arguments["partition"] == P(1)]) == 1


@rule("C83", "C86")
@virtual(seeds=2)
async def test_a_leader_that_moves_while_a_look_up_hangs_is_found() -> None:
    async with opened(2, 2) as rig:
        rig.leaders.move(P(1), 0)
        rig.script.every("route", do=hold(anyio.Event()), where=lambda call: call.arguments["partition"] == P(0))
        async with rig.consumer() as consumer:
            for number, wait in enumerate((13, 2, 2)):
                await anyio.sleep(wait)
                rig.leaders.move(P(1), 1 - number % 2)
                await rig.append(1)
                with anyio.fail_after(1):
                    assert await next_of(consumer) == (1, number)


@rule("C91")
@virtual(seeds=2)
async def test_a_single_refusal_long_after_another_one_is_nobody_s_business() -> None:
    """The leader that refused led nothing meanwhile, and so could not answer anything."""
    async with opened(2, 2) as rig, rig.consumer() as consumer, anyio.create_task_group() as tasks:
        await consumer.ready()
        reading = start(tasks, lambda: take(consumer, 1))
        await anyio.sleep(1)
        for pause in 3600, 2:
            rig.leaders.move(P(0), 1)  # its wait is refused
            await anyio.sleep(pause)
            rig.leaders.move(P(0), 0)
            await anyio.sleep(2)
        assert reading.outcome == "running"
        await reading.cancel()


@pytest.mark.parametrize("bad", [0, 2, 4])
@pytest.mark.parametrize("operations", [("poll",), ("poll", "wait_ready")], ids=str)
@rule("C85", "C82")
@virtual(seeds=2)
async def test_one_partition_that_is_refused_in_passing_starves_no_other_of_its_leader(
    operations: tuple[Operation, ...], bad: int
) -> None:
    async with opened(6, 2) as rig, rig.consumer() as consumer:
        await consumer.ready()
        await anyio.sleep(1)
        for operation in operations:
            refusing = refuse(NotAccepted("it has no leader yet"))
            rig.script.every(operation, do=refusing, where=lambda call: bad in named(call))
        await rig.append(bad)
        good = [number for number in (0, 2, 4) if number != bad]
        for offset in range(3):
            for number in good:
                await rig.append(number)
            with anyio.fail_after(10):
                assert sorted([await next_of(consumer) for _ in good]) == [(number, offset) for number in good]
            await anyio.sleep(20)


@rule("C92", "C85")
@virtual(seeds=2)
async def test_a_leader_that_refuses_everything_is_asked_at_the_pace_of_refusals() -> None:
    async with opened(12, 2) as rig, rig.consumer() as consumer:
        await consumer.ready()
        for operation in "poll", "wait_ready":
            rig.script.every(operation, do=refuse(NotAccepted("not now")), where=at(0))
        for number in range(0, 12, 2):
            await rig.append(number)
        await anyio.sleep(100)
        assert len([call for call in rig.calls("poll", "wait_ready") if at(0)(call)]) < 250
