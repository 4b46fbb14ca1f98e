"""Cases from practice with their own figures, over three leaders: one that moves, falls silent, crashes, is slow."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tarry import AutoCommit, PollOptions
from tarry.errors import CapacityExceeded, TarryError
from tarry.testing import Call, CarryOut, Faults, run_virtual
from tarry.types import Message
from tests.marks import rule
from tests.unit.consumer.leaders_rig import P, Rig, at, named, opened
from tests.unit.consumer.rig import offsets, settled, start, take
from tests.virtual import virtual

HALF_MIB = 512 * 1024


async def deliver(rig: Rig, seen: list[tuple[float, int, int]], **options: Any) -> None:
    """Read for ever; notes when, partition and offset. An error on the way is passed over."""
    async with rig.consumer(**options) as consumer:
        while True:
            try:
                message = await anext(consumer)
            except TarryError:
                continue
            seen.append((anyio.current_time(), message.partition, message.offset))


class TestABrokenConnection:
    """K08: a request that waits dies with the connection, and must be sent again."""

    @rule("K08")
    @virtual(seeds=5)
    async def test_it_waits_again_within_a_second_and_everything_comes_once(self) -> None:
        seen: list[tuple[float, int, int]] = []
        async with opened(3) as rig, anyio.create_task_group() as tasks:
            reading = start(tasks, lambda: deliver(rig, seen, poll=PollOptions(max_wait=30.0)))
            await anyio.sleep(1)
            rig.layer.split()
            await anyio.sleep(1)
            for number in range(3):
                await rig.append(number, 5)
            await anyio.sleep(1)
            rig.layer.heal()
            await anyio.sleep(1)
            assert sorted(where[1:] for where in seen) == [(p, offset) for p in range(3) for offset in range(5)]
            assert rig.waits() == {f"leader-{number}": [number] for number in range(3)}
            await reading.cancel()

    @rule("K08")
    @virtual(seeds=10)
    async def test_with_the_answer_on_its_way_too(self) -> None:
        seen: list[tuple[float, int, int]] = []
        async with opened(3) as rig, anyio.create_task_group() as tasks:
            rig.log.faults = Faults(delay=1.0, latency=0.3)
            reading = start(tasks, lambda: deliver(rig, seen, poll=PollOptions(max_wait=30.0)))
            await anyio.sleep(2)
            for number in range(3):
                await rig.append(number, 5)
            await anyio.sleep(0.3)
            rig.layer.split()
            await anyio.sleep(2)
            rig.layer.heal()
            await anyio.sleep(3)
            for number in range(3):
                assert [offset for _, partition, offset in seen if partition == number] == list(range(5))
            await reading.cancel()

    @rule("K08")
    @virtual(seeds=5)
    async def test_a_leader_that_crashed_and_is_back_is_asked_again(self) -> None:
        """The longest pause between two tries is 2 s (C92)."""
        seen: list[tuple[float, int, int]] = []
        async with opened(3) as rig, anyio.create_task_group() as tasks:
            reading = start(tasks, lambda: deliver(rig, seen, poll=PollOptions(max_wait=30.0)))
            await anyio.sleep(1)
            rig.leaders.crash(1)
            await anyio.sleep(1)
            await rig.append(1, 5)
            await anyio.sleep(1)
            assert seen == []
            rig.leaders.come(1)
            await anyio.sleep(2.1)
            assert [where[1:] for where in seen] == [(1, offset) for offset in range(5)]
            await reading.cancel()


class TestALeaderThatMoved:
    """K21: p1's leader goes at t=1, the next one leads from t=1.2, a message comes at t=1.5."""

    @rule("K21", "C85")
    @pytest.mark.parametrize("way", ["not leader", "crash"])
    @virtual(seeds=5)
    async def test_its_partition_is_read_at_the_new_one_and_no_other_has_a_gap(self, way: str) -> None:
        seen: list[tuple[float, int, int]] = []
        async with opened(3) as rig, anyio.create_task_group() as tasks:

            async def produce(number: int) -> None:
                while True:
                    await rig.append(number)
                    await anyio.sleep(0.1)

            reading = start(tasks, lambda: deliver(rig, seen))
            others = [start(tasks, lambda number=number: produce(number)) for number in (0, 2)]  # type: ignore[misc]
            await anyio.sleep(1)
            if way == "crash":
                rig.leaders.crash(1)
            await anyio.sleep(0.2)
            rig.leaders.move(P(1), 2)
            await anyio.sleep(0.3)
            await rig.append(1)
            await anyio.sleep(8.5)
            rig.leaders.come(1)
            came_back = len(rig.script.calls)
            await anyio.sleep(5)
            assert [(partition, offset) for at, partition, offset in seen if partition == 1 and at < 3.5] == [(1, 0)]
            for number in (0, 2):
                times = [at for at, partition, _ in seen if partition == number]
                assert len(times) >= 149
                assert max(later - earlier for earlier, later in pairwise(times)) < 0.3
            asked = [call for call in rig.script.calls[came_back:] if call.operation in {"poll", "wait_ready"}]
            assert not any(call.arguments["leader"] == "leader-1" for call in asked)
            for background in (reading, *others):
                await background.cancel()

    @rule("K21", "C83")
    @virtual(seeds=3)
    async def test_a_silent_one_is_given_up_when_its_answer_is_overdue(self) -> None:
        """Nobody can tell silence from a wait before 10 s behind its end (C4): here that of a wait of 5 s at t=15."""
        seen: list[tuple[float, int, int]] = []
        async with opened(3) as rig, anyio.create_task_group() as tasks:
            reading = start(tasks, lambda: deliver(rig, seen))
            await anyio.sleep(1)
            rig.leaders.go(1)
            await anyio.sleep(0.2)
            rig.leaders.move(P(1), 2)
            await rig.append(1)
            await anyio.sleep(13.7)
            assert seen == []
            await anyio.sleep(0.5)
            assert [where[1:] for where in seen] == [(1, 0)]
            await reading.cancel()


class TestHealth:
    """K19: heartbeats every 0.5 s, a quiet topic."""

    @rule("K19")
    @pytest.mark.parametrize("way", ["silent", "crash", "refuses"])
    @virtual(seeds=3)
    async def test_one_leader_that_is_gone_is_noticed_while_the_others_answer(self, way: str) -> None:
        async with opened(3, grace=1.0) as rig:
            options = PollOptions(max_wait=0.5)
            async with rig.consumer(poll=options, heartbeat_interval=0.5) as consumer:
                await anyio.sleep(1.9)
                assert consumer.health().ok
                full = rig.script.every("wait_ready", do=_refuse_full, where=at(1)) if way == "refuses" else None
                if way == "silent":
                    rig.leaders.go(1)
                elif way == "crash":
                    rig.leaders.crash(1)
                for _ in range(20):
                    await anyio.sleep(0.1)
                assert not consumer.health().ok
                since = consumer.health().silent_s
                await anyio.sleep(10)
                assert consumer.health().silent_s == pytest.approx(since + 10)
                if full is not None:
                    rig.script.remove(full)
                rig.leaders.come(1)
                await anyio.sleep(4)
                assert consumer.health().ok

    @rule("K19", "C83")
    @virtual(seeds=2)
    async def test_a_move_is_no_illness(self) -> None:
        async with opened(4, 2) as rig, rig.consumer(poll=PollOptions(max_wait=30.0)) as consumer:
            await consumer.ready()
            await anyio.sleep(1)
            rig.leaders.move(P(0), 1)  # refuses the wait; the next ones are parked for long
            for _ in range(60):
                await anyio.sleep(1)
                assert consumer.health().ok, consumer.health().silent_s

    @rule("K19")
    @virtual(seeds=3)
    async def test_a_leader_that_leads_nothing_any_more_is_not_missed(self) -> None:
        async with opened(3) as rig:
            options = PollOptions(max_wait=0.5)
            async with rig.consumer(poll=options, heartbeat_interval=0.5) as consumer:
                await anyio.sleep(1)
                rig.leaders.crash(1)
                await anyio.sleep(3)
                assert not consumer.health().ok
                rig.leaders.move(P(1), 2)
                await anyio.sleep(3)
                assert consumer.health().ok


async def _refuse_full(_: Call, __: CarryOut) -> Any:
    await anyio.lowlevel.checkpoint()
    raise CapacityExceeded("full")


class TestMemory:
    @rule("K23")
    @pytest.mark.slow
    def test_in_full(self) -> None:
        """On one backend: the traffic of 200 MB takes seconds of work."""
        run_virtual(self._slow_handlers_keep_to_the_buffer_and_every_partition_gets_on, backend="asyncio")

    async def _slow_handlers_keep_to_the_buffer_and_every_partition_gets_on(self) -> None:
        """K23: 100 partitions with 20 messages of 100 KiB each, a handler of 5 ms, fetches of 200 KB."""
        size, buffer = 100 * 1024, 8 * 1024 * 1024
        async with opened(100) as rig:
            for number in range(100):
                for _ in range(10):
                    await rig.append(number, 2, size)
            peak = 0
            done: Counter[int] = Counter()

            async def handle(message: Message) -> None:
                nonlocal peak
                await anyio.sleep(0.005)
                done[message.partition] += 1
                peak = max(peak, consumer._fetches.size)
                if anyio.current_time() >= 5:
                    halfway.update(done if not halfway else {})

            halfway: Counter[int] = Counter()
            async with rig.consumer(poll=PollOptions(max_bytes=200_000), buffer_bytes=buffer) as consumer:
                with anyio.move_on_after(11):
                    await consumer.consume(handle)
            assert done == Counter(dict.fromkeys(range(100), 20))
            assert len(halfway) == 100
            assert HALF_MIB < peak <= buffer + size + 100


class TestStores:
    @rule("K44", "C114")
    @virtual(seeds=3)
    async def test_a_store_at_a_silent_leader_ends_in_time_and_holds_up_nobody(self) -> None:
        """K44: silent from t=1 to t=31; the store is given 2 s, and at t=33 the next one works at once."""
        seen: list[tuple[float, int, int]] = []
        async with opened(3) as rig, anyio.create_task_group() as tasks:
            await rig.append(0, 100)
            reading = start(tasks, lambda: deliver(rig, seen, name="other", partitions=[1, 2]))

            async def produce() -> None:
                while True:
                    await rig.append(1)
                    await anyio.sleep(0.5)

            producing = start(tasks, produce)
            async with rig.consumer(partitions=[0]) as consumer:
                messages = await take(consumer, 5)
                await anyio.sleep(1)
                rig.leaders.go(0)
                with pytest.raises(TimeoutError), anyio.fail_after(2):
                    await consumer.store_offset(messages[3])
                assert anyio.current_time() == pytest.approx(3.0, abs=0.01)
                await anyio.sleep(28)
                rig.leaders.come(0)
                await anyio.sleep(2)
                with anyio.fail_after(0.5):
                    await consumer.store_offset(messages[4])
                assert consumer.last_stored(0) == 4
                assert rig.log.pump.view.find(P(0)).stored["name:billing"] == 4
            assert max(later[0] - earlier[0] for earlier, later in pairwise(seen)) < 0.6
            await reading.cancel()
            await producing.cancel()

    @rule("C114")
    @virtual(seeds=2)
    async def test_stores_and_deletes_go_to_the_leader_of_their_partition(self) -> None:
        async with opened(3) as rig, rig.consumer() as consumer:
            for number in range(3):
                await rig.append(number, 2)
            first, *_ = sorted(await take(consumer, 6), key=lambda message: (message.partition, message.offset))
            rig.leaders.go(0)
            with anyio.fail_after(0.1):
                await consumer.store_offset(P(1), 1)
                await consumer.delete_offset(P(2))
            for ask in consumer.store_offset(first), consumer.delete_offset(P(0)):
                with pytest.raises(TimeoutError), anyio.fail_after(1):
                    await ask
            rig.leaders.move(P(0), 1)
            with anyio.fail_after(0.1):
                await consumer.store_offset(first)
                await consumer.delete_offset(P(0))
            assert (consumer.last_stored(0), consumer.last_stored(1)) == (None, 1)


class TestFairness:
    """K73: p0 has a backlog of 100,000, p1 to p3 have 10 messages each; a poll has room for 50."""

    @rule("K73")
    @pytest.mark.parametrize("leaders", [1, 3])
    @pytest.mark.parametrize("limit", ["count", "bytes"])
    @virtual(seeds=2)
    async def test_all_of_the_others_comes_with_the_first_five_polls(self, limit: str, leaders: int) -> None:
        async with opened(4, leaders) as rig:
            for _ in range(100):
                await rig.append(0, 1000, 100)
            for number in range(1, 4):
                await rig.append(number, 10, 100)
            options = PollOptions(count=50) if limit == "count" else PollOptions(max_bytes=50 * 110)
            async with rig.consumer(poll=options) as consumer:
                await consumer.ready()
                batches = [await consumer.poll() for _ in range(5)]
            assert all(0 < len(batch) <= 50 for batch in batches)
            others = [message.partition for batch in batches for message in batch if message.partition]
            assert Counter(others) == {1: 10, 2: 10, 3: 10}

    @rule("K73")
    @pytest.mark.parametrize("leaders", [1, 3])
    @pytest.mark.parametrize("limit", ["count", "bytes"])
    @virtual()
    async def test_a_message_a_second_is_not_late_behind_one_at_full_speed(self, limit: str, leaders: int) -> None:
        """A reader of 1,000 messages a second; p0 always has more."""
        options = PollOptions(count=50) if limit == "count" else PollOptions(max_bytes=50 * 110)
        late: list[float] = []
        async with opened(4, leaders) as rig, anyio.create_task_group() as tasks:
            await rig.append(0, 1000, 100)
            sent: list[float] = []

            async def produce() -> None:
                for second in range(6):
                    await rig.append(0, 1000, 100)
                    sent.append(anyio.current_time())
                    await rig.append(1)
                    await anyio.sleep_until(second + 1)

            producing = start(tasks, produce)
            async with rig.consumer(poll=options, buffer_bytes=64 * 1024) as consumer:
                while anyio.current_time() < 5.5:
                    message = await anext(consumer)
                    if message.partition == 1:
                        late.append(anyio.current_time() - sent[message.offset])
                    await anyio.sleep(0.001)
            await producing.cancel()
        assert len(late) == 6
        assert max(late) < 0.2


class Deferred:
    """How many requests are out that may stay so; each takes one of the places of its client."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.now = self.most = 0
        self._limit = limit

    async def take(self, call: Call, carry_out: CarryOut) -> Any:
        """An action for a script: beyond the limit a request is refused (90)."""
        if not call.arguments["max_wait"]:
            return await carry_out()
        if self.now >= self._limit:
            return await _refuse_full(call, carry_out)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await carry_out()
        finally:
            self.now -= 1


class TestDeferredRequests:
    """C100: only readiness waits are deferred; a consumer has one per leader, however many partitions it reads."""

    @rule("C100", "I5")
    @virtual()
    async def test_twenty_one_consumers_of_a_client_keep_below_its_64(self) -> None:
        """Fetches are sent while waits are out, and take none of the places."""
        deferred = Deferred()
        async with opened(12) as rig, anyio.create_task_group() as tasks:
            rig.script.every("wait_ready", do=deferred.take)
            rig.script.every("poll", do=deferred.take)
            everything = [(number, offset) for number in range(12) for offset in range(3)]

            async def read(name: str) -> None:
                async with rig.consumer(name=name) as consumer:
                    found = [await anext(consumer) for _ in everything]
                assert sorted((message.partition, message.offset) for message in found) == everything

            readers = [start(tasks, lambda name=f"reader {n}": read(name)) for n in range(21)]  # type: ignore[misc]
            for _ in range(3):
                await anyio.sleep(1)
                for number in range(12):
                    await rig.append(number)
            for reader in readers:
                await reader.done.wait()
            assert [reader.outcome for reader in readers] == ["returned"] * 21
            assert deferred.most == 63
            assert not any(call.arguments["max_wait"] for call in rig.calls("poll"))
            assert all(len(named(call)) == 4 for call in rig.calls("wait_ready")[:63])

    @rule("C100", "C84")
    @virtual(seeds=3)
    async def test_who_reads_one_partition_has_one_request_out_too(self) -> None:
        deferred = Deferred()
        async with opened(3) as rig, rig.consumer(partitions=[1]) as consumer:
            rig.script.every("wait_ready", do=deferred.take)
            rig.script.every("poll", do=deferred.take)
            await consumer.ready()
            for _ in range(10):
                await anyio.sleep(1)
                await rig.append(1)
                await anext(consumer)
            assert deferred.most == 1

    @rule("C100", "C91")
    @virtual()
    async def test_beyond_what_a_log_takes_nobody_is_forgotten_in_silence(self) -> None:
        """A log that parks 64 requests of a client: who is refused (90) asks again, and is told after a while."""
        deferred = Deferred(limit=64)
        told: Counter[int] = Counter()
        seen: Counter[int] = Counter()
        async with opened(3) as rig, anyio.create_task_group() as tasks:
            rig.script.every("wait_ready", do=deferred.take)

            async def read(number: int) -> None:
                async with rig.consumer(name=f"reader {number}", poll=PollOptions(max_wait=1.0)) as consumer:
                    while True:
                        try:
                            await anext(consumer)
                        except CapacityExceeded:
                            told[number] += 1
                        else:
                            seen[number] += 1

            readers = [start(tasks, lambda n=n: read(n)) for n in range(25)]  # type: ignore[misc]
            await anyio.sleep(1)
            await rig.append(1)
            await anyio.sleep(20)
            assert deferred.most == 64
            assert told
            assert set(told) | set(seen) == set(range(25))
            for reader in readers[:10]:
                await reader.cancel()
            await anyio.sleep(5)
            assert {number: seen[number] for number in range(10, 25)} == dict.fromkeys(range(10, 25), 1)
            for reader in readers[10:]:
                await reader.cancel()


@rule("K12")
@virtual(seeds=3)
async def test_a_slow_handler_of_one_leader_s_partition_keeps_the_membership() -> None:
    """K12 with 4 s of work: the leader of its partition even falls silent meanwhile."""
    async with opened(3, grace=1.0) as rig:
        await rig.append(1, 3)
        options: dict[str, Any] = {"heartbeat_interval": 0.5, "max_processing_time": 5.0}
        async with rig.client.consumer("t", group="crew", commit=AutoCommit.finished(0.2), **options) as consumer:
            (message,) = await take(consumer, 1)
            generation = consumer.generation
            rig.leaders.go(1)
            await anyio.sleep(4.0)
            rig.leaders.come(1)
            assert (message.partition, message.offset) == (1, 0)
            assert offsets(await take(consumer, 2)) == [1, 2]
            assert consumer.generation == generation
            await settled()
            assert len(rig.calls("open_session")) == 1
