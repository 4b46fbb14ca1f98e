"""From building to entering to the end: what is checked when, and what is refused with which words."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import tarry
from tarry import AutoCommit, Batch, PollOptions, Start
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    ConfigError,
    ConfigTypeError,
    InvalidName,
    LogUnavailable,
    NotReady,
    NotStarted,
    StaleAssignment,
    TopicNotFound,
    UsageError,
)
from tarry.testing import delay, lose_request, refuse
from tarry.types import Offset, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import P0, P1, T, count_tasks, offsets, opened, settled, start, take
from tests.virtual import virtual

VERBS: dict[str, Callable[[Consumer], Awaitable[Any]]] = {
    "anext": anext,
    "poll": lambda consumer: consumer.poll(max_wait=0.0),
    "store_offset": lambda consumer: consumer.store_offset(0, 0),
    "delete_offset": lambda consumer: consumer.delete_offset(0),
    "seek": lambda consumer: consumer.seek(0, 0),
    "ready": lambda consumer: consumer.ready(0.1),
    "lag": lambda consumer: consumer.lag(),
}
GETTERS: dict[str, Callable[[Consumer], object]] = {
    "position": lambda consumer: consumer.position(0),
    "last_delivered": lambda consumer: consumer.last_delivered(0),
    "last_stored": lambda consumer: consumer.last_stored(0),
}


class TestBuilding:
    @rule("C15")
    @virtual()
    async def test_building_asks_the_log_nothing(self) -> None:
        async with opened() as rig:
            consumer = rig.consumer("no such topic")
            await settled()
            assert rig.script.calls == []
            assert repr(consumer) == "<tarry consumer 'billing' of no such topic, not entered yet>"

    @rule("C9")
    @virtual()
    async def test_by_default_it_waits_stores_nothing_and_starts_at_next(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a", b"b")
            async with rig.consumer() as consumer:
                assert offsets(await take(consumer, 2)) == [0, 1]
                await anyio.sleep(12)  # 2 requests wait out their time
            waits = [call.arguments["max_wait"] for call in rig.calls("poll")]
            assert waits == [5.0] * len(waits)
            assert rig.calls("store_offset") == []
            async with rig.consumer() as consumer:  # without any store each start begins at the first message again
                assert offsets(await take(consumer, 2)) == [0, 1]

    @rule("C1")
    def test_defaults_of_the_poll_options(self) -> None:
        options = PollOptions()
        assert (options.count, options.min_count, options.max_wait, options.max_bytes) == (1000, 1, 5.0, 1_048_576)
        assert AutoCommit.disabled().mode == "disabled"

    @rule("C3")
    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ({"count": 0}, "greater than or equal to 1"),
            ({"count": 10_001}, "less than or equal to 10000"),
            ({"min_count": 0}, "greater than or equal to 1"),
            ({"count": 5, "min_count": 6}, "min_count=6 is above count=5"),
            ({"max_wait": -0.1}, "greater than or equal to 0"),
            ({"max_wait": 600.1}, "less than or equal to 600"),
            ({"max_wait": float("inf")}, "finite"),
            ({"max_wait": float("nan")}, "finite"),
            ({"max_bytes": 0}, "greater than or equal to 1"),
        ],
    )
    @virtual()
    async def test_values_that_no_log_would_take_are_refused_before_anything_is_sent(
        self, option: dict[str, Any], words: str
    ) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await settled()
            before = len(rig.script.calls)
            with pytest.raises(ConfigError, match=words):
                await consumer.poll(**option)
            assert len(rig.script.calls) == before
            with pytest.raises(ConfigError, match=words):
                PollOptions(**option)

    @pytest.mark.parametrize("option", [{"count": 1.0}, {"max_wait": "5"}, {"max_wait": True}, {"max_bytes": "1 MiB"}])
    @virtual()
    async def test_values_of_the_wrong_type_are_type_errors(self, option: dict[str, Any]) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            with pytest.raises(TypeError) as caught:
                await consumer.poll(**option)
            assert isinstance(caught.value, ConfigTypeError)

    @rule("C13")
    @pytest.mark.parametrize("seconds", [0, 0.0, -1.0, timedelta(0)])
    def test_intervals_of_zero_or_below_are_refused(self, seconds: float | timedelta) -> None:
        with pytest.raises(ConfigError, match="greater than 0"):
            AutoCommit.interval(seconds)
        with pytest.raises(ConfigError, match="greater than 0"):
            AutoCommit.finished(seconds)
        with pytest.raises(ConfigError, match="greater than 0"):
            tarry.connect("memory:").producer("t", retry_spacing=seconds)

    @pytest.mark.parametrize(
        ("topics", "options", "words"),
        [
            ((), {}, "needs a topic"),
            ((T,), {"partitions": []}, "names no partition"),
            ((T,), {"partitions": [True]}, "not bool"),
            ((T,), {"partitions": ["0"]}, "not str"),
            ((T,), {"partitions": b"01"}, "takes a list, not bytes"),
            ((T,), {"partitions": set[int]()}, r"partitions=set\(\) names no partition"),
            ((T,), {"partitions": [-1]}, "no partition -1; they are numbered from 0 on"),
            ((T,), {"partitions": [("t",)]}, r"not tuple \(\('t',\)\)"),
            ((T,), {"partitions": [(T, "0")]}, r"number of a partition is an int, not str \('0'\)"),
            ((T,), {"partitions": [(T, True)]}, "an int, not bool"),
            ((T,), {"group": "g", "on_assigned": 3}, "on_assigned=3: it takes a function, not int"),
            ((T,), {"group": "g", "on_revoked": "f"}, "on_revoked='f': it takes a function, not str"),
            ((T, "u"), {"partitions": [0]}, "of which topic"),
            ((T, "u"), {"partitions": [P0]}, "names none of topic 'u'"),
            ((T,), {"name": None, "commit": AutoCommit.finished()}, "has no name="),
            ((T,), {"poll": {"count": 1}}, "takes a PollOptions"),
            ((T,), {"start": "first"}, "takes a Start"),
            ((T,), {"commit": "finished"}, "takes an AutoCommit, not str"),
            ((T,), {"drain_timeout": -1.0}, "greater than or equal to 0"),
            ((T,), {"poll_interval": 1.0}, "use max_wait and min_count"),
        ],
    )
    def test_combinations_that_cannot_work_are_refused(
        self, topics: tuple[str, ...], options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ConfigError, match=words):
            tarry.connect("memory:").consumer(*topics, **options)

    @pytest.mark.parametrize("given", [print, None, "abc", [3]])
    def test_instruments_are_a_list_of_functions(self, given: Any) -> None:
        with pytest.raises(ConfigTypeError, match=r"^instruments=.*it takes a list of functions f\(event, fields\)$"):
            tarry.connect("memory:", instruments=given)

    def test_the_name_that_sqlite_has_for_memory_makes_no_file(self) -> None:
        with pytest.raises(ConfigError, match="a private log is 'memory:'"):
            tarry.connect(":memory:")

    def test_a_partitioner_is_a_function(self) -> None:
        partitioner: Any = "hash"
        with pytest.raises(ConfigTypeError, match="partitioner='hash': it takes a function, not str"):
            tarry.connect("memory:").producer(T, partitioner=partitioner)

    def test_a_function_of_the_user_is_none_whose_body_would_never_run(self) -> None:
        async def hook(partitions: object) -> AsyncGenerator[object]:
            yield partitions

        def partitioner(*_: object) -> Generator[int]:
            yield 0

        client: Any = tarry.connect("memory:")
        for make in (
            lambda: client.consumer(T, group="g", on_assigned=hook),
            lambda: client.consumer(T, group="g", on_revoked=partial(hook)),
            lambda: client.producer(T, partitioner=partitioner),
        ):
            with pytest.raises(ConfigTypeError, match=r"=.*: it contains `yield`.*pass a function without `yield`"):
                make()

    def test_what_belongs_to_a_loop_is_neither_copied_nor_pickled(self) -> None:
        client = tarry.connect("memory:")
        things: list[object] = [client, client.consumer(T), client.producer(T)]
        for thing in things:
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=r"^<tarry .*> cannot be copied or pickled; open another one where"):
                    make(thing)

    def test_names_are_checked_when_the_consumer_is_made(self) -> None:
        client = tarry.connect("memory:")
        for name in ("", "a\nb", "é" * 128):
            with pytest.raises(InvalidName):
                client.consumer(T, name=name)
        with pytest.raises(InvalidName, match="slashes"):
            client.consumer("a/b/c")
        with pytest.raises(InvalidName):
            client.consumer(T, group="")
        with pytest.raises(InvalidName):
            client.consumer(T, group="billing", member="a\nb")

    def test_a_list_in_the_place_of_topics_or_a_number_in_that_of_a_list_is_named(self) -> None:
        make: Any = tarry.connect("memory:").consumer
        with pytest.raises(ConfigTypeError, match=r"one by one, as in consumer\(\*topics\)"):
            make(["orders", "cups"])
        with pytest.raises(ConfigTypeError, match="partitions=3: it takes a list, not int"):
            make(T, partitions=3)


class TestAnotherLoop:
    """What belongs to one loop says so in another one, where it would wait for ever."""

    async def _use(self, client: tarry.Client, consumer: Consumer[bytes], producer: tarry.Producer[bytes]) -> None:
        uses: list[Callable[[], object]] = [
            client.topics,
            lambda: client.create_topic("u"),
            lambda: client.consumer(T).__aenter__(),
            lambda: client.producer(T).__aenter__(),
            lambda: producer.send(b"a"),
            lambda: anext(consumer),
            consumer.poll,
            lambda: consumer.consume(print),
            lambda: consumer.store_offset(0, 0),
            lambda: consumer.seek(0, 0),
            lambda: consumer.pause(0, cause="no cups"),
            lambda: consumer.resume(0),
            consumer.ready,
            consumer.lag,
            consumer.health,
            lambda: consumer.position(0),
            lambda: consumer.last_delivered(0),
            lambda: consumer.last_stored(0),
            consumer.shutdown,
        ]
        for use in uses:
            with pytest.raises(UsageError, match="belongs to the event loop in which it was opened"):
                with anyio.fail_after(2.0):
                    outcome = use()
                    if isawaitable(outcome):
                        await outcome
        assert consumer.assignment == {P0}
        assert consumer.paused == {}
        assert consumer.generation == 1
        assert consumer.statistics().messages == 0
        assert client.counts == {}

    @pytest.mark.parametrize("home", ["asyncio", "trio"])
    @pytest.mark.parametrize("other", ["asyncio", "trio"])
    @pytest.mark.parametrize("target", ["memory:", "log.db"])
    def test_of_a_thread_or_another_loop_is_refused(
        self, target: str, other: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        async def main() -> None:
            async with tarry.connect(target) as client:
                await client.create_topic(T)
                async with client.producer(T) as producer, client.consumer(T, name="billing") as consumer:
                    await consumer.ready()
                    use = partial(self._use, client, consumer, producer)
                    await anyio.to_thread.run_sync(lambda: anyio.run(use, backend=other))
                    with pytest.raises(UsageError, match="or thread"):
                        await anyio.to_thread.run_sync(consumer.resume, 0)
                    await producer.send(b"a")
                    assert (await anext(consumer)).value == b"a"

        anyio.run(main, backend=home)

    @rule("K97")
    def test_a_poll_behind_the_end_is_refused_there_in_words_of_ours(self) -> None:
        async def main() -> None:
            async with tarry.connect("memory:") as client:
                await client.create_topic(T)
                async with client.consumer(T, name="billing") as consumer, anyio.create_task_group() as tasks:
                    tasks.start_soon(partial(consumer.poll, max_wait=0.0))
                with pytest.raises(UsageError, match="belongs to the event loop in which it was opened"):
                    await anyio.to_thread.run_sync(lambda: anyio.run(consumer.poll, backend="asyncio"))

        anyio.run(main, backend="trio")

    @rule("C25")
    @pytest.mark.parametrize("home", ["asyncio", "trio"])
    def test_what_it_has_come_to_is_told_when_the_loop_has_ended(self, home: str) -> None:
        async def main() -> Consumer[bytes]:
            async with tarry.connect("memory:") as client:
                await client.create_topic(T)
                async with client.producer(T) as producer, client.consumer(T, name="billing") as consumer:
                    await producer.send(b"a")
                    await consumer.store_offset(await anext(consumer))
            return consumer

        consumer = anyio.run(main, backend=home)
        assert (consumer.position(0), consumer.last_delivered(0), consumer.last_stored(0)) == (1, 0, 0)


class TestEntering:
    @rule("C15")
    @virtual()
    async def test_a_missing_topic_is_named(self) -> None:
        async with opened({"orders": 1}) as rig:
            with pytest.raises(TopicNotFound, match="'cups', 'mugs'"):
                await rig.consumer("cups", "mugs").__aenter__()
            with pytest.raises(TopicNotFound, match="'cups'"):
                await rig.member("cups").__aenter__()

    @rule("C15")
    @virtual()
    async def test_a_partition_out_of_range_is_named_with_those_there_are(self) -> None:
        async with opened(2) as rig:
            with pytest.raises(TopicNotFound, match="no partition 2; it has 2, numbered 0 to 1"):
                await rig.consumer(partitions=[0, 2]).__aenter__()

    @virtual()
    async def test_a_consumer_is_entered_once(self) -> None:
        async with opened() as rig:
            consumer = rig.consumer()
            async with consumer:
                with pytest.raises(UsageError, match="cannot be entered again"):
                    await consumer.__aenter__()
            with pytest.raises(UsageError, match="cannot be entered again"):
                await consumer.__aenter__()

    @virtual()
    async def test_two_tasks_cannot_enter_it_at_once_but_a_cancelled_start_may_be_made_again(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            rig.script.on("open_session", do=delay(1.0), nth=range(1, 3))
            consumer = rig.member()
            entering = start(tasks, consumer.__aenter__)
            await settled()
            with pytest.raises(UsageError, match="being entered> cannot be entered again"):
                await consumer.__aenter__()
            with pytest.raises(NotStarted, match="is being entered; use it inside"):
                await anext(consumer)
            await entering.cancel()
            async with consumer:
                assert len(rig.calls("open_session")) == 2
                assert consumer.assignment == {P0}

    @virtual()
    async def test_a_failed_start_is_the_cause_of_every_later_refusal(self) -> None:
        async with opened() as rig:
            rig.script.on("open_session", do=refuse(LogUnavailable))
            consumer = rig.consumer()
            with pytest.raises(LogUnavailable):
                await consumer.__aenter__()
            with pytest.raises(NotStarted, match="its start failed") as caught:
                await anext(consumer)
            assert isinstance(caught.value.__cause__, LogUnavailable)
            assert (await consumer.shutdown()).committed == {}

    @virtual()
    async def test_a_client_that_is_not_open_is_named(self) -> None:
        consumer = tarry.connect("memory:").consumer(T)
        with pytest.raises(NotStarted, match=r"async with tarry.connect"):
            await consumer.__aenter__()

    @virtual()
    async def test_a_start_may_be_cancelled(self) -> None:
        async with opened() as rig:
            rig.script.on("open_session", do=delay(5))
            consumer = rig.consumer()
            with anyio.move_on_after(1) as limit:
                await consumer.__aenter__()
            assert limit.cancelled_caught
            with pytest.raises(NotStarted):
                await anext(consumer)
            async with consumer:  # and be made again
                pass


class TestUseBeforeAndAfter:
    @rule("C16")
    @pytest.mark.parametrize("verb", VERBS)
    @virtual()
    async def test_every_verb_fails_before_the_start(self, verb: str) -> None:
        async with opened() as rig:
            consumer = rig.consumer()
            for _ in range(2):
                with pytest.raises(NotStarted, match=r"async with client\.consumer"):
                    await VERBS[verb](consumer)

    @rule("C16")
    @virtual()
    async def test_one_warning_names_the_consumer(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.clear()
        async with opened() as rig:
            consumer = rig.consumer()
            for verb in VERBS.values():
                with pytest.raises(NotStarted):
                    await verb(consumer)
            assert len(rig.reported("not_started")) == 1
            (record,) = caplog.records
            assert record.levelname == "WARNING"
            assert "consumer 'billing' of t" in record.message

    @pytest.mark.parametrize("getter", GETTERS)
    @virtual()
    async def test_getters_have_nothing_to_say_before_the_start(self, getter: str) -> None:
        async with opened() as rig:
            consumer = rig.consumer()
            assert consumer.assignment == frozenset()
            assert consumer.generation == 0
            with pytest.raises(NotStarted):
                GETTERS[getter](consumer)

    @pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "anext"])
    @virtual()
    async def test_every_verb_fails_after_the_end(self, verb: str) -> None:
        async with opened() as rig:
            async with rig.consumer() as consumer:
                pass
            with pytest.raises(NotStarted, match="is shut down"):
                await VERBS[verb](consumer)

    @virtual()
    async def test_getters_go_on_telling_after_the_end(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a", b"b")
            async with rig.consumer() as consumer:
                await consumer.store_offset(await anext(consumer))
            assert (consumer.position(0), consumer.last_delivered(0), consumer.last_stored(0)) == (1, 0, 0)

    @rule("K52", "C23")
    @virtual()
    async def test_a_waiting_loop_ends_with_the_consumer(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            async with rig.consumer() as consumer:
                reader = start(tasks, lambda: anext(consumer))
                await anyio.sleep(1)
                await consumer.shutdown()
                assert anyio.current_time() < 1.1
            await reader.done.wait()
            assert isinstance(reader.error, StopAsyncIteration)
            assert anyio.current_time() < 1.1
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)

    @rule("K52")
    @virtual()
    async def test_what_was_buffered_does_not_come_out_after_the_end(self) -> None:
        async with opened() as rig:
            await rig.fill(P0, 5)
            async with rig.consumer() as consumer:
                await settled()
                assert consumer._fetches.messages == 5
                await consumer.shutdown()
                with pytest.raises(StopAsyncIteration):
                    await anext(consumer)

    @virtual()
    async def test_a_waiting_poll_returns_empty_at_the_end_and_says_why(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            async with rig.consumer() as consumer:
                await rig.fill(P0, 3)
                reader = start(tasks, lambda: consumer.poll(min_count=5, max_wait=60))
                await anyio.sleep(1)
            await reader.done.wait()
            batch: Batch = reader.result
            assert isinstance(batch, Batch)
            assert (len(batch), batch.reason) == (0, "drain")
            assert anyio.current_time() == 1


class TestNothingIsLeft:
    @rule("K20")
    @pytest.mark.parametrize("partitions", [1, 3])
    @virtual()
    async def test_tasks_threads_and_parked_requests_are_gone(self, partitions: int) -> None:
        threads = threading.active_count()
        async with opened(partitions) as rig:
            before = count_tasks()
            for _ in range(5):
                async with rig.consumer(commit=AutoCommit.finished()) as consumer:
                    await consumer.poll(max_wait=0.01)
                    await anyio.sleep(1)
                    assert rig.pump.parked == rig.leaders(partitions)
                await settled()
                assert rig.pump.parked == 0
                assert count_tasks() == before
            assert rig.client._consumers == {}
            assert not rig.pump.polls._probes
        assert threading.active_count() == threads

    @virtual()
    async def test_a_client_shuts_down_what_is_still_open(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a", b"b")
            consumer = await rig.consumer(commit=AutoCommit.finished()).__aenter__()
            await take(consumer, 2)
        assert repr(consumer).endswith("shut down>")
        assert (await consumer.shutdown()).committed == {P0: 0}

    @virtual()
    async def test_also_when_its_block_is_left_by_a_cancel(self) -> None:
        left: list[Consumer] = []
        with anyio.move_on_after(2):
            async with opened() as rig:
                await rig.append(P0, b"a", b"b")
                left.append(await rig.consumer(commit=AutoCommit.finished()).__aenter__())
                await take(left[0], 3)
        assert (await left[0].shutdown()).committed == {P0: 1}


class TestReady:
    @virtual()
    async def test_it_waits_until_every_partition_has_a_position(self) -> None:
        async with opened(2) as rig:
            rig.script.every("resolve", do=delay(3), where=lambda call: call.arguments["partition"] == P1)
            async with rig.consumer() as consumer:
                assert consumer.position(1) is None
                await consumer.ready(timeout=10)
                assert anyio.current_time() == 3
                assert (consumer.position(0), consumer.position(1)) == (0, 0)

    @virtual()
    async def test_it_names_what_is_missing(self) -> None:
        async with opened(2) as rig:
            rig.script.every("resolve", do=lose_request(), where=lambda call: call.arguments["partition"] == P1)
            async with rig.consumer() as consumer:
                with pytest.raises(NotReady, match=r"no position yet for t\[1\] after 2 s"):
                    await consumer.ready(timeout=2)
                assert anyio.current_time() == 2

    @virtual()
    async def test_it_does_not_wait_for_what_cannot_come(self) -> None:
        async with opened() as rig, rig.consumer(start=Start.next(otherwise="fail")) as consumer:
            with pytest.raises(NotReady, match=r"t\[0\] \(nothing is stored for t\[0\]"):
                await consumer.ready()

    @virtual()
    async def test_a_shutdown_ends_it(self) -> None:
        async with opened() as rig, anyio.create_task_group() as tasks:
            rig.script.every("resolve", do=delay(60))
            async with rig.consumer() as consumer:
                waiter = start(tasks, consumer.ready)
                await anyio.sleep(1)
            await waiter.done.wait()
            assert isinstance(waiter.error, NotStarted)
            assert anyio.current_time() < 1.1


class TestPartitionsAreNamed:
    @virtual()
    async def test_a_plain_number_needs_one_topic(self) -> None:
        async with opened({"a": 2, "b": 1}) as rig:
            async with rig.consumer("a", partitions=[1]) as consumer:
                assert consumer.assignment == {TopicPartition("a", 1)}
                await consumer.ready()
                assert consumer.position(1) == consumer.position(TopicPartition("a", 1)) == 0
                with pytest.raises(StaleAssignment, match=r"a\[0\] is not read by this consumer; it reads a\[1\]"):
                    consumer.position(0)
            async with rig.consumer("a", "b") as consumer:
                with pytest.raises(ConfigError, match="partition 0 of which topic"):
                    consumer.last_stored(0)

    @virtual()
    async def test_a_consumer_without_a_name_reads_but_stores_nothing(self) -> None:
        async with opened() as rig:
            await rig.append(P0, b"a")
            async with rig.consumer(name=None) as consumer:
                message = await anext(consumer)
                with pytest.raises(UsageError, match="no name to store offsets under"):
                    await consumer.store_offset(message)
                with pytest.raises(UsageError, match="no name to store offsets under"):
                    await consumer.delete_offset(0)
            assert rig.calls("store_offset", "stored_offset") == []
            assert (await consumer.shutdown()).committed == {P0: None}

    @virtual()
    async def test_a_partition_is_named_by_a_number_or_in_full(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.append(P0, b"a")
            message = await anext(consumer)
            wrong: list[Any] = [True, None, "t[0]", 0.0, (), (T,), (T, 0, 1), (T, "0"), message]
            for given in wrong:
                for verb in (consumer.position, consumer.last_delivered, consumer.last_stored):
                    with pytest.raises(ConfigTypeError, match="partition is an int"):
                        verb(given)
            with pytest.raises(ConfigTypeError, match="use its topic_partition"):
                consumer.position(wrong[-1])
            with pytest.raises(ConfigError, match="no partition -1"):
                consumer.position(-1)
            assert consumer.position(TopicPartition(f"default/{T}", 0)) == 1

    @virtual()
    async def test_a_reset_names_partitions_in_full_and_offsets_that_can_be(self) -> None:
        async with opened() as rig:
            wrong: list[tuple[Any, str]] = [
                (None, "takes a dict from TopicPartition to the last finished offset, not NoneType"),
                ([(P0, 1)], "not list"),
                ({0: 1}, r"partition 0 of which topic\? Name it"),
                ({"t": 1}, "not str"),
                ({("t",): None}, "not tuple"),
                ({P0: "1"}, r"reset_group of t\[0\] needs the offset of a message, an int, not '1'"),
                ({P0: -1}, "offsets begin at 0, not at -1; None removes what is stored"),
            ]
            for offsets, says in wrong:
                with pytest.raises(ConfigError, match=says):
                    await rig.client.reset_group("billing", offsets)
            assert rig.calls("reset_group") == []

    @virtual()
    async def test_a_timeout_of_ready_is_a_number_of_seconds(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            wrong: list[Any] = ["1", True, -1, float("nan"), timedelta(seconds=-1), [1]]
            for timeout in wrong:
                with pytest.raises(ConfigError, match=r"^timeout=.*seconds"):
                    await consumer.ready(timeout)
            for timeout in (None, 0, 0.5, timedelta(seconds=1), float("inf")):
                await consumer.ready(timeout)

    @virtual()
    async def test_a_list_of_messages_is_not_stored(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            await rig.append(P0, b"a", b"b")
            batch = await consumer.poll(min_count=2)
            several: Any = batch[:2]
            with pytest.raises(ConfigTypeError, match=r"not list .*give the last one of each partition"):
                await consumer.store_offset(several)
            assert rig.stored(P0) is None

    @virtual()
    async def test_what_is_stored_must_be_an_offset(self) -> None:
        async with opened() as rig, rig.consumer() as consumer:
            given: list[Any] = [None, "4", True, 1.5]
            for offset in given:
                with pytest.raises(ConfigTypeError, match="needs the offset of a message"):
                    await consumer.store_offset(0, offset)
            with pytest.raises(ConfigError, match="offsets begin at 0"):
                await consumer.store_offset(0, Offset(-1))

    @virtual()
    async def test_there_may_be_more_partitions_than_one_request_can_name(self) -> None:
        async with opened({"wide": 1001}) as rig, rig.consumer("wide") as consumer:
            await consumer.ready()
            await settled()
            waits = rig.calls("wait_ready")
            assert sorted(len(wait.arguments["targets"]) for wait in waits) == [1, 1000]
            for number in (1000, 0):
                await rig.append(TopicPartition("wide", number), b"a")
                assert (await anext(consumer)).partition == number
