"""Members of a group: joining, being refused, being evicted and coming back; who reads what."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import anyio
import pytest

import tarry
from tarry import AutoCommit, PollOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import (
    CapacityExceeded,
    ConfigError,
    LogBusy,
    LogUnavailable,
    NotAccepted,
    NotAMember,
    StaleAssignment,
    TopicNotFound,
)
from tarry.testing import delay, hold, lose_reply, refuse
from tarry.types import Message, Ownership, Position, TopicPartition
from tests.marks import rule
from tests.unit.consumer.rig import (
    P0,
    P1,
    P2,
    T,
    offsets,
    opened,
    owns,
    places,
    settled,
    start,
    take,
    take_all,
)
from tests.virtual import virtual

ON_POLL = AutoCommit.on_poll()
ALL_MODES = pytest.mark.parametrize(
    "commit", [ON_POLL, AutoCommit.finished(0.2), AutoCommit.interval(0.2), AutoCommit.disabled()]
)


def silence(consumer: Consumer) -> None:
    """A member that dies without a word: its loops are gone, nothing is stored, nobody leaves."""
    worker = consumer._worker
    worker._scope.cancel()
    if worker.committing._out is not None:
        worker.committing._out.scope.cancel()


class TestMisuse:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"group": "g", "name": "n"}, r"name='n' and group='g' contradict"),
            ({"member": "m"}, r"member='m' names a member of a group"),
            ({"on_assigned": print}, r"belong to a group"),
            ({"name": "n", "on_revoked": print}, r"belong to a group"),
            ({"commit": ON_POLL}, r"no name= or group="),
            ({"group": "g", "commit": AutoCommit.finished(), "hook_timeout": 0}, r"hook_timeout"),
        ],
    )
    def test_options_that_contradict_each_other_are_named(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            tarry.connect("memory:").consumer(T, **options)

    @rule("C18")
    @virtual()
    async def test_a_chosen_partition_is_dropped_with_a_warning_and_the_assignment_decides(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.clear()
        async with opened(3) as rig:
            async with rig.member(partitions=[1]) as consumer:
                assert await owns(consumer, 3) == {P0, P1, P2}
            assert "partitions= is ignored in group 'crew'" in caplog.text

    @virtual()
    async def test_another_set_of_topics_is_refused_while_members_live(self) -> None:
        async with opened({"a": 1, "b": 1}) as rig:
            async with rig.member("a"):
                with pytest.raises(NotAccepted, match="'crew'"):
                    await rig.member("a", "b").__aenter__()
            async with rig.member("a", "b") as consumer:
                await owns(consumer, 2)

    @virtual()
    async def test_a_second_static_member_of_one_name_is_refused_while_the_first_lives(self) -> None:
        async with opened(2, session_timeout=2.0) as rig:
            first = await rig.member(member="a", heartbeat_interval=0.5).__aenter__()
            with pytest.raises(NotAccepted, match="'a'"):
                await rig.member(member="a").__aenter__()
            await anyio.sleep(10)
            with pytest.raises(NotAccepted):
                await rig.member(member="a").__aenter__()
            silence(first)
            await anyio.sleep(3)
            async with rig.member(member="a") as second:
                await owns(second, 2)

    @virtual()
    async def test_a_missing_topic_is_named(self) -> None:
        async with opened() as rig:
            with pytest.raises(TopicNotFound, match="'nowhere'"):
                await rig.member("nowhere").__aenter__()

    @virtual()
    async def test_stores_for_partitions_of_others_are_stale(self) -> None:
        async with opened(2) as rig:
            await rig.fill(P0, 3)
            await rig.fill(P1, 3)
            async with rig.member() as first, rig.member() as second:
                (mine,) = await owns(first, 1)
                (theirs,) = await owns(second, 1)
                with pytest.raises(StaleAssignment, match="is not read by this consumer"):
                    await first.store_offset(theirs, 0, force=True)
                with pytest.raises(StaleAssignment):
                    await first.store_offset(await anext(second))
                assert mine != theirs
            assert rig.calls("store_offset") == []


class TestSharing:
    @ALL_MODES
    @virtual(seeds=2)
    async def test_members_share_the_partitions_and_every_message_comes_once(self, commit: AutoCommit) -> None:
        async with opened(4) as rig, anyio.create_task_group() as tasks:
            found: Counter[tuple[int, int]] = Counter()

            async def read(member: Consumer) -> None:
                async for message in member:
                    found[message.partition, message.offset] += 1
                    if commit.mode == "disabled":
                        await member.store_offset(message)

            members = [await rig.member(commit=commit).__aenter__() for _ in range(3)]
            for member in members:
                tasks.start_soon(read, member)
            for number in range(4):
                await rig.fill(TopicPartition(T, number), 50)
            await anyio.sleep(3)
            for member in members:
                await member.shutdown()
            assert found == Counter({(number, offset): 1 for number in range(4) for offset in range(50)})
            assert [rig.group_stored(TopicPartition(T, number)) for number in range(4)] == [49] * 4

    @rule("K68", "C20")
    @virtual(seeds=2)
    async def test_members_without_a_partition_wait_quietly_and_take_over(self) -> None:
        async with opened(1, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 100)
            options: dict[str, Any] = {"commit": AutoCommit.finished(0.1), "heartbeat_interval": 0.5}
            members = [await rig.member(**options).__aenter__() for _ in range(3)]
            seen: list[list[int]] = [[], [], []]

            async def read(index: int) -> None:
                async for message in members[index]:
                    seen[index].append(message.offset)

            reading = [start(tasks, partial(read, index)) for index in range(3)]
            await anyio.sleep(1)
            assert seen == [list(range(100)), [], []]
            calls = len(rig.script.calls)
            generation = members[0].generation
            await anyio.sleep(10)
            spare = [call for call in rig.script.calls[calls:] if call.session is not members[0]._standing.session]
            assert len(spare) < 20
            assert members[0].generation == generation
            silence(members[0])
            await rig.fill(P0, 10)
            before = anyio.current_time()
            with anyio.fail_after(5):
                while not seen[1] and not seen[2]:  # noqa: ASYNC110  # what a user can see
                    await anyio.sleep(0.05)
            assert anyio.current_time() - before < 3
            await anyio.sleep(1)
            (heir,) = [index for index in (1, 2) if seen[index]]
            assert seen[heir] == list(range(100, 110))
            for index in (1, 2):
                await members[index].shutdown()
            await reading[0].cancel()

    @rule("C19", "C25")
    @virtual()
    async def test_the_assignment_and_generation_can_be_looked_at(self) -> None:
        async with opened(2) as rig:
            first = rig.member()
            assert (first.assignment, first.generation) == (frozenset(), 0)
            async with first:
                assert await owns(first, 2) == {P0, P1}
                before = first.generation
                async with rig.member() as second:
                    await owns(second, 1)
                    await owns(first, 1)
                    assert first.generation == second.generation > before
                await owns(first, 2)
                assert first.generation > before + 1

    @rule("K104")
    @virtual()
    async def test_names_of_groups_and_members_come_back_byte_for_byte(self) -> None:
        group, member = "グループ " + "é" * 100, "член-1"
        async with opened({"løp-日本": 1}) as rig:
            at = TopicPartition("løp-日本", 0)
            await rig.fill(at, 3)
            async with rig.client.consumer("løp-日本", group=group, member=member, commit=ON_POLL) as consumer:
                await take(consumer, 3)
                info = await rig.client.group(group)
                assert (info.name, info.members[0].member) == (group, member)
            async with rig.client.consumer("løp-日本", group=group) as consumer:
                assert (await anext(consumer)).offset == 2
            assert [info.name for info in await rig.client.groups()] == [group]

    @rule("K45")
    @virtual()
    async def test_an_idle_member_keeps_its_membership_and_its_position(self) -> None:
        async with opened(1) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 500)
            async with rig.member(commit=AutoCommit.finished()) as consumer:
                await take_all(consumer)
                reading = start(tasks, lambda: anext(consumer))
                generation = consumer.generation
                await anyio.sleep(600)
                assert consumer.generation == generation
                await reading.cancel()
            async with rig.member() as consumer:
                await consumer.ready()
                assert consumer.position(0) == 500

    @rule("K41")
    @virtual()
    async def test_an_idle_group_asks_about_once_per_wait_and_member(self) -> None:
        async with opened(4) as rig, anyio.create_task_group() as tasks:
            members = [await rig.member(commit=ON_POLL).__aenter__() for _ in range(2)]
            readings = [start(tasks, partial(anext, member)) for member in members]
            await owns(members[0], 2)
            await anyio.sleep(1)
            before = len(rig.calls("wait_ready", "poll"))
            await anyio.sleep(60)
            assert len(rig.calls("wait_ready", "poll")) - before <= 26 * rig.leaders(2)
            assert [len(member.assignment) for member in members] == [2, 2]
            for reading in readings:
                await reading.cancel()


class TestEviction:
    @rule("C21", "C30", "C22")
    @ALL_MODES
    @virtual(seeds=2)
    async def test_an_evicted_member_joins_again_by_itself(self, commit: AutoCommit) -> None:
        async with opened(2, session_timeout=2.0) as rig:
            await rig.fill(P0, 20)
            await rig.fill(P1, 20)
            async with rig.member(commit=commit, heartbeat_interval=1e3, poll=PollOptions(count=5)) as consumer:
                first = await take(consumer, 3)
                old = consumer._standing.session
                await anyio.sleep(2.5)  # no heartbeat: the log gives it up
                await consumer.ready(5.0)
                assert consumer._standing.session is not old
                assert await owns(consumer, 2) == {P0, P1}
                assert len(rig.reported("evicted")) == 1
                with pytest.raises(StaleAssignment):
                    await consumer.store_offset(first[0])
                assert await anext(consumer) is not None

    @rule("C21", "K57")
    @virtual(seeds=2)
    async def test_an_evicted_member_outlasts_its_topic_as_one_does_that_stayed(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            rig.script.on("open_session", nth=2, do=delay(1.0))
            async with rig.member(heartbeat_interval=1e3) as consumer:
                await consumer.ready()
                await anyio.sleep(2.5)
                assert rig.reported("evicted")
                await rig.client.delete_topic(T)
                await anyio.sleep(1.5)
                assert consumer.health().missing_topics == (T,)
                await rig.client.create_topic(T, 1)
                await rig.fill(P0, 1)
                with anyio.fail_after(5.0):
                    assert offsets(await take(consumer, 1)) == [0]
                assert consumer.health().is_member

    @rule("C36", "K01")
    @virtual(seeds=3)
    async def test_a_committed_batch_is_delivered_also_when_the_partition_was_lost_meanwhile(self) -> None:
        """The log counts it as read: nobody else will deliver it."""
        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 20)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3, poll=PollOptions(count=10)) as consumer:
                assert (await anext(consumer)).offset == 0
                await anyio.sleep(2.5)
                assert rig.reported("evicted")
                assert offsets(await take(consumer, 19)) == list(range(1, 20))
            assert rig.group_stored(P0) == 18

    @rule("C36")
    @virtual(seeds=3)
    async def test_a_batch_that_is_buffered_survives_a_change_of_the_assignment(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 10)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as consumer:
                rig.script.every("poll", do=delay(0.5, reply=True))
                with anyio.move_on_after(0.1):
                    await anext(consumer)
                await anyio.sleep(1.0)
                assert consumer._fetches.messages == 10
                other = rig.member(commit=ON_POLL)
                await anyio.sleep(2.0)
                await other.__aenter__()
                assert offsets(await take(consumer, 10)) == list(range(10))
                await other.shutdown()

    @rule("C37")
    @virtual(seeds=3)
    async def test_a_batch_whose_reply_comes_after_the_loss_is_delivered(self) -> None:
        async with opened(1, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 10)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as consumer:
                rig.script.on("poll", do=delay(4.0, reply=True))
                reading = start(tasks, lambda: anext(consumer))
                await anyio.sleep(0.5)
                assert rig.group_stored(P0) == 9
                await reading.done.wait()
                assert anyio.current_time() >= 4.0
                assert reading.result.offset == 0
                assert offsets(await take(consumer, 9)) == list(range(1, 10))

    @virtual(seeds=2)
    async def test_a_poll_whose_wait_ends_while_only_a_fetch_of_a_lost_partition_is_out_waits_without_spinning(
        self,
    ) -> None:
        async with opened(1, session_timeout=1.0) as rig:
            await rig.fill(P0, 10)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as consumer:
                await consumer.ready()
                rig.script.every("open_session", do=refuse(LogUnavailable("away")))
                rig.script.on("poll", do=delay(4.0, reply=True))
                assert (await consumer.poll(max_wait=2.0)).reason == "rebalance"
                assert rig.reported("evicted")
                batch = await consumer.poll(max_wait=0.5)
                assert offsets(batch or await consumer.poll()) == list(range(10))

    @rule("C35")
    @virtual(seeds=3)
    async def test_without_a_commit_what_was_fetched_before_the_loss_is_void(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 20)
            async with rig.member(heartbeat_interval=1e3, poll=PollOptions(count=10)) as consumer:
                await consumer.store_offset((await take(consumer, 3))[-1])
                await anyio.sleep(2.5)
                message = await anext(consumer)
                assert message.offset == 3
                assert message.ownership > 0
                assert offsets(await take(consumer, 16)) == list(range(4, 20))

    @rule("C36", "K10")
    @virtual(seeds=2)
    async def test_what_a_handler_failed_on_comes_again_also_when_the_partition_was_lost(self) -> None:
        """Nobody else will deliver it, and nothing may pass it."""
        seen: list[int] = []

        async def fail_once(message: Message) -> None:
            seen.append(message.offset)
            if seen == [0, 1]:
                await anyio.sleep(2.5)
                raise ValueError(message.offset)

        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 10)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as consumer:
                with pytest.raises(ValueError, match="1"):
                    await consumer.consume(fail_once)
                assert rig.reported("evicted")
                assert offsets(await take(consumer, 9)) == list(range(1, 10))

    @virtual(seeds=2)
    async def test_what_nobody_may_have_read_is_named_at_shutdown(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 10)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as consumer:
                await take(consumer, 3)
                await anyio.sleep(2.5)
                await consumer.shutdown()
            assert [(event["first"], event["last"]) for event in rig.reported("possibly_lost")] == [(2, 9)]

    @rule("C36")
    @virtual(seeds=2)
    async def test_what_a_hand_over_cut_is_named_when_the_partition_is_lost_before_its_last_store(self) -> None:
        """It was dropped, to be brought back by that store; with the member evicted, nobody would ever get it."""
        async with opened(2, session_timeout=2.0) as rig:
            for at in P0, P1:
                await rig.fill(at, 5)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as first:
                handed = await take(first, 7)
                rig.script.on("store_offset", nth=range(1, 100), do=refuse(CapacityExceeded("not now")))
                async with rig.member(heartbeat_interval=0.5):
                    await anyio.sleep(3)
                    assert rig.reported("evicted")
                named = [(event["partition"], event["first"], event["last"]) for event in rig.reported("possibly_lost")]
                assert named == [(handed[-1].topic_partition, 1, 4)]

    @rule("C36")
    @pytest.mark.parametrize("is_buffered", [False, True])
    @virtual(seeds=2)
    async def test_what_was_kept_of_an_earlier_ownership_outlasts_the_hand_over_of_a_later_one(
        self, is_buffered: bool
    ) -> None:
        """No store brings it back: it was committed for an ownership that is gone."""
        async with opened(2, session_timeout=2.0) as rig:
            for at in P0, P1:
                await rig.fill(at, 5)
            async with rig.member(commit=ON_POLL, heartbeat_interval=1e3) as first:
                kept = (await take(first, 7))[-1].topic_partition
                if is_buffered:
                    assert offsets(await first.poll(count=1)) == [2]  # the rest of the list goes back
                await anyio.sleep(2.5)
                assert rig.reported("evicted")
                assert await owns(first, 2) == {P0, P1}
                async with rig.member(heartbeat_interval=0.5) as second:
                    assert await owns(second, 1) == {kept}
                    later = await take(first, 2 if is_buffered else 3)
                rest = (3, 4) if is_buffered else (2, 3, 4)
                assert [(m.topic_partition, m.offset) for m in later] == [(kept, offset) for offset in rest]

    @rule("C36")
    @virtual(seeds=2)
    async def test_what_nobody_got_is_named_also_when_the_message_in_hand_is_finished_while_draining(self) -> None:
        async with opened(1, session_timeout=2.0) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 5)

            async def slow(_: object) -> None:
                await anyio.sleep(2)

            consumer = await rig.member(commit=ON_POLL, heartbeat_interval=1e3, on_revoked=slow).__aenter__()

            async def read() -> None:
                async for _ in consumer:
                    await anyio.sleep(3)

            start(tasks, read)
            await anyio.sleep(2.5)
            assert rig.reported("evicted")
            await consumer.shutdown()
            assert [(event["first"], event["last"]) for event in rig.reported("possibly_lost")] == [(1, 4)]

    @rule("C21")
    @virtual(seeds=3)
    async def test_who_was_evicted_while_it_gave_a_partition_up_releases_nothing(self) -> None:
        """The session that the partition was asked back from is over, and there is no other one yet."""
        async with opened(2, session_timeout=2.0) as rig:
            await rig.fill(P0, 1)
            await rig.fill(P1, 1)
            async with rig.member(heartbeat_interval=1e3) as first:
                assert len(await first.poll(min_count=2)) == 2
                second = await rig.member(heartbeat_interval=0.5).__aenter__()
                assert len(first.assignment) == 2  # its batch is in hand
                away = rig.script.every("open_session", do=refuse(LogBusy("locked")))
                await anyio.sleep(8.0)
                assert rig.reported("evicted")
                assert await owns(second, 2) == {P0, P1}
                assert rig.calls("release") == []
                rig.script.remove(away)
                await owns(first, 1)
                await second.shutdown()

    @rule("I7")
    @virtual(seeds=2)
    async def test_a_store_that_comes_back_under_a_later_ownership_says_nothing_about_it(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 10)
            options: dict[str, Any] = {"commit": AutoCommit.interval(0.5), "heartbeat_interval": 1e3}
            async with rig.member(**options) as consumer:
                rig.script.on("store_offset", do=lose_reply(after=3.0))
                await take(consumer, 5)
                await anyio.sleep(2.2)
                assert rig.reported("evicted")
                rig.script.every("stored_offset", do=hold(anyio.Event()))
                await anyio.sleep(2.0)
            assert rig.group_stored(P0) == 4

    @virtual(seeds=2)
    async def test_joining_again_is_tried_until_it_works(self) -> None:
        async with opened(1, session_timeout=2.0) as rig:
            await rig.fill(P0, 3)
            async with rig.member(heartbeat_interval=1e3) as consumer:
                await take(consumer, 3)
                rig.script.on("open_session", nth=range(1, 4), do=refuse(LogUnavailable("away")))
                await anyio.sleep(10)
                assert rig.script.count("open_session") >= 5
                assert (await anext(consumer)).offset == 0

    @rule("K41", "K50")
    @virtual()
    async def test_who_is_evicted_while_it_gives_up_does_not_ask_in_circles(self) -> None:
        """The release is refused, and joining again takes its time: what the old session knew counts for nothing."""
        async with opened(2, session_timeout=0.5) as rig:
            async with rig.member(heartbeat_interval=100.0) as first:
                rig.script.on("release", do=delay(1.0))
                rig.script.on(
                    "release", nth=range(20, 1000), do=hold(anyio.Event())
                )  # where circles end, in virtual time
                async with rig.member(heartbeat_interval=0.1) as second:
                    rig.script.every("open_session", do=delay(2.0))
                    await anyio.sleep(2.0)
                    assert len(rig.calls("release")) == 1
                    assert await owns(second, 2) == {P0, P1}
            assert first.assignment == frozenset()

    @rule("C21", "C30")
    @virtual()
    async def test_who_is_evicted_after_a_release_holds_nothing_of_before_while_it_joins_again(self) -> None:
        """The release was applied and its answer came late: what the dead session says of the rest is not true."""
        async with opened(2, session_timeout=0.5) as rig, rig.member(heartbeat_interval=100.0) as first:
            rig.script.on("release", do=delay(1.0, reply=True))
            async with rig.member(heartbeat_interval=0.1):
                rig.script.every("open_session", do=delay(2.0))
                await anyio.sleep(1.5)
                assert rig.reported("evicted")
                assert first.assignment == frozenset()
                await owns(first, 1)

    @rule("C21", "C30")
    @virtual()
    async def test_who_joins_again_gives_no_sign_of_life_for_its_dead_session(self) -> None:
        """A log that restarts may have forgotten an eviction; it would keep the dead member, and its static name."""
        async with opened(1) as rig, rig.member(member="east", heartbeat_interval=0.1) as consumer:
            await consumer.ready()
            dead, touched = consumer._standing.session, 0

            def touch() -> None:
                nonlocal touched
                touched += 1

            vars(dead)["touch"] = touch
            rig.script.every("changed", do=refuse(NotAMember("evicted")))
            away = rig.script.every("open_session", do=refuse(LogUnavailable("away")))
            await rig.log.grow_topic(T, 2)  # the news bring it
            await anyio.sleep(1.0)
            assert rig.reported("evicted")
            before = touched
            await anyio.sleep(5.0)
            assert touched == before
            rig.script.remove(away)

    @rule("C21", "C30")
    @virtual()
    async def test_a_hand_over_that_outlasts_its_session_releases_nothing_of_the_next_one(self) -> None:
        async with opened(1, session_timeout=0.5) as rig:
            await rig.fill(P0, 3)
            async with rig.member(commit=ON_POLL, heartbeat_interval=100.0) as consumer:
                membership, gate = consumer._membership, anyio.Event()
                assert membership is not None
                await take(consumer, 2)
                rig.script.on("store_offset", do=hold(gate))
                membership._begin_giving_up([P0], {P0: consumer._positions[P0].ownership}, wait_s=5.0)
                await anyio.sleep(0.7)
                assert rig.reported("evicted")
                await owns(consumer, 1)
                gate.set()
                await anyio.sleep(0.1)
                assert not rig.calls("release")
                assert consumer.assignment == {P0}


class TestStoresInARebalance:
    @rule("K06", "C30")
    @virtual()
    async def test_a_store_that_waited_while_its_partition_was_lost_and_came_back_is_none_of_the_new_ownership(
        self,
    ) -> None:
        """One of a hand-over closed the marks of the new ownership: its mode stored nothing any more."""
        async with opened(1) as rig, rig.member(commit=AutoCommit.interval(0.2)) as consumer:
            await rig.fill(P0, 5)
            first, second, *_ = await take(consumer, 3)
            storing, membership = consumer._storing, consumer._membership
            assert membership is not None
            gate = anyio.Event()
            rig.script.on("store_offset", do=hold(gate))
            async with anyio.create_task_group() as tasks:
                start(tasks, partial(consumer.store_offset, first))
                await settled()
                by_hand = start(tasks, partial(consumer.store_offset, second))
                final = start(tasks, partial(storing.finish, [P0], 5.0))
                await settled()
                membership._lose([P0])
                membership._hold({P0: Ownership(7)})
                gate.set()
                await final.done.wait()
                assert isinstance(by_hand.error, StaleAssignment)
                assert final.error is None
                assert not consumer._commits[P0].is_over
                assert consumer._commits[P0].explicit is None

    @rule("K06")
    @virtual()
    async def test_what_is_lost_while_a_batch_is_stored_is_not_stored_under_the_next_ownership(self) -> None:
        async with opened(2) as rig, rig.member() as consumer:
            await rig.fill(P0, 1)
            await rig.fill(P1, 1)
            batch = await consumer.poll(min_count=2)
            membership = consumer._membership
            assert membership is not None
            gate = anyio.Event()
            rig.script.on("store_offset", do=hold(gate))
            async with anyio.create_task_group() as tasks:
                storing = start(tasks, partial(consumer.store_offset, batch))
                await settled()
                first, second = [segment.origin.partition for segment in batch.segments]
                before = consumer._positions[second]
                assert before.history is not None
                consumer._positions.drop(second)
                membership._hold({second: Ownership(before.ownership + 1)})
                epoch = consumer._positions[second].epoch
                assert consumer._positions.resolved(second, epoch, Position(0), before.history)
                gate.set()
                await storing.done.wait()
                assert isinstance(storing.error, StaleAssignment)
                assert [call.arguments["partition"] for call in rig.calls("store_offset")] == [first]
                assert rig.stored(second) is None

    @rule("K17")
    @virtual(seeds=3)
    async def test_a_store_that_meets_a_rebalance_ends_no_loop(self) -> None:
        async with opened(2) as rig, anyio.create_task_group() as tasks:
            await rig.fill(P0, 21)
            await rig.fill(P1, 31)
            async with rig.member(commit=AutoCommit.finished(0.5), drain_timeout=0.5) as first:
                reading = start(tasks, lambda: take(first, 53))
                await settled()
                rig.script.on("store_offset", nth=(1, 2), do=delay(0.2))
                rig.script.on("store_offset", nth=(1, 2), do=refuse(StaleAssignment("generation over")))
                await anyio.sleep(0.45)
                second = await rig.member(commit=AutoCommit.finished(0.5)).__aenter__()
                await owns(first, 1)
                (kept,) = first.assignment
                await anyio.sleep(1.5)
                assert reading.outcome == "running"
                assert rig.group_stored(kept) == (20 if kept == P0 else 30)
                await second.ready()
                (moved,) = second.assignment
                stored = rig.group_stored(moved)
                assert second.position(moved) == (0 if stored is None else stored + 1)
                await reading.cancel()
                await second.shutdown()

    @rule("K33")
    @virtual(seeds=3)
    async def test_whatever_a_store_gets_each_owned_partition_is_fetched_again(self, seed: int) -> None:
        async with opened(4) as rig, anyio.create_task_group() as tasks:
            dice = random.Random(seed)
            finished: set[tuple[int, int]] = set()
            rig.script.rate("store_offset", 0.2, do=refuse(NotAccepted), seed=seed)
            first = await rig.member(commit=AutoCommit.finished(0.05)).__aenter__()

            async def read(member: Consumer) -> None:
                async for message in member:
                    await anyio.sleep(0.005)
                    finished.add((message.partition, message.offset))

            start(tasks, partial(read, first))
            for _ in range(20):
                await anyio.sleep(dice.random())
                async with rig.member(commit=AutoCommit.finished(0.05)) as second, anyio.create_task_group() as inner:
                    inner.start_soon(read, second)
                    await anyio.sleep(dice.random())
                    await second.shutdown()
            before = {number: rig.end(TopicPartition(T, number)) for number in range(4)}
            for number in range(4):
                await rig.fill(TopicPartition(T, number), 100)
            await anyio.sleep(4.0)
            assert {(number, before[number] + offset) for number in range(4) for offset in range(100)} <= finished
            await first.shutdown()


class TestFromOneToTwo:
    @rule("C73", "C84")
    @virtual(seeds=3)
    async def test_a_second_partition_does_not_wait_for_the_end_of_the_first_ones_poll(self) -> None:
        async with opened(2) as rig, rig.member() as first, rig.member() as second:
            await owns(first, 1)
            (mine,) = await owns(second, 1)
            await settled()
            assert [call.outcome for call in rig.calls("poll")][-2:] == ["open", "open"]
            await first.shutdown()
            await owns(second, 2)
            began = anyio.current_time()
            (other,) = {P0, P1} - {mine}
            await rig.append(other, b"a")
            assert places([await anext(second)]) == [(other.partition, 0)]
            assert anyio.current_time() == began


class TestTheUnion:
    @rule("I1", "I2", "C32")
    @pytest.mark.parametrize("commit", [ON_POLL, AutoCommit.finished(0.05), AutoCommit.interval(0.05)])
    @virtual(seeds=12)
    async def test_with_clean_stops_at_any_moment_everything_is_finished_exactly_once(
        self, commit: AutoCommit, seed: int
    ) -> None:
        """Three members of one group; each is stopped and started again at random, also from its own body."""
        async with opened(5) as rig:
            dice = random.Random(seed)
            finished: Counter[tuple[int, int]] = Counter()
            total = 5 * 60
            for number in range(5):
                await rig.fill(TopicPartition(T, number), 60)

            async def live() -> None:
                while sum(finished.values()) < total:
                    consumer = rig.member(commit=commit, poll=PollOptions(count=dice.randint(1, 20)))
                    async with consumer, anyio.create_task_group() as tasks:
                        own = dice.random() < 0.5
                        tasks.start_soon(work, consumer, dice.randint(0, 30) if own else None)
                        await anyio.sleep(dice.random() * 0.3)
                        await consumer.shutdown()

            async def work(consumer: Consumer, until: int | None) -> None:
                """A message is finished when the loop asks for the next one, or the loop ends because of a shutdown."""
                held: tuple[int, int] | None = None
                async for message in consumer:
                    if held is not None:
                        finished[held] += 1
                    held = (message.partition, message.offset)
                    await anyio.sleep(dice.choice((0.0, 0.001, 0.02)))
                    if until is not None:
                        until -= 1
                        if until < 0:
                            return  # in hand and unfinished
                if held is not None:
                    finished[held] += 1

            with anyio.fail_after(600):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(live)
            assert finished == Counter({(number, offset): 1 for number in range(5) for offset in range(60)})
