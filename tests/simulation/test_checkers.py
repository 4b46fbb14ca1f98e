"""The judges see what they are there for: each mistake that is put into the framework or the log is found soon.

A checker that finds nothing proves nothing. A mistake is one that a hurried change could make.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from tarry._core.arrivals import Arrivals
from tarry._core.autocommit import Commits
from tarry._core.backoff import Backoff
from tarry._core.fetches import Fetches, Plan
from tarry._core.groups import Group, Member
from tarry._core.hand import Hand
from tarry._core.positions import Positions
from tarry._core.stopped import Stopped
from tarry._core.waiters import Parked, Waiters
from tarry.abc import FetchTarget, PartitionId, StoreOffset
from tarry.brokers.local.broker import LocalSession
from tarry.brokers.local.polls import Polls
from tarry.consumer.membership import Membership
from tarry.consumer.resolving import Resolving
from tarry.consumer.storing import LastWord, Storing
from tarry.consumer.watching import Watching
from tarry.consumer.worker import Worker
from tarry.errors import UndecodableMessage
from tarry.testing import Call
from tarry.types import HistoryId, Offset, Ownership, Position, Start, TopicPartition
from tests.simulation.checkers import every_request_ends_in_time, judge, only_the_last_word_lowers
from tests.simulation.history import Answered, Asked, History, Led, Opened, Run, Stored, Undecoded
from tests.simulation.world import simulate

SEEDS = 150
"""So many histories are told at most until a mistake has to be found."""

Patch = Callable[[pytest.MonkeyPatch], None]


def nothing(*_: object, **__: object) -> None:
    """Instead of what should be done."""


def no_last_word(patch: pytest.MonkeyPatch) -> None:
    async def finish(*_: Any) -> LastWord:
        await anyio.lowlevel.checkpoint()
        return LastWord({}, [], {})

    patch.setattr(Storing, "finish", finish)


def no_last_word_at_a_hand_over(patch: pytest.MonkeyPatch) -> None:
    async def store(*_: Any) -> LastWord:
        await anyio.lowlevel.checkpoint()
        return LastWord({}, [], {})

    patch.setattr(Membership, "_store", store)


def what_is_not_brought_back_is_not_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "ahead", nothing)


def a_hand_over_dies(patch: pytest.MonkeyPatch) -> None:
    async def store(*_: Any) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(Membership, "_store", store)


def delivered_is_taken_for_finished(patch: pytest.MonkeyPatch) -> None:
    delivered = Commits.delivered

    def wrong(self: Commits, partition: Any, offset: Offset) -> None:
        delivered(self, partition, offset)
        self.finished(partition, offset)

    patch.setattr(Commits, "delivered", wrong)


def a_message_of_each_fetch_is_left_out(patch: pytest.MonkeyPatch) -> None:
    fetched = Positions.fetched

    def wrong(self: Positions, partition: Any, epoch: int, end: Position) -> Position | None:
        new_from = fetched(self, partition, epoch, end)
        return None if new_from is None else Position(new_from + 1)

    patch.setattr(Positions, "fetched", wrong)


def the_rest_of_a_list_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fetches, "put_first", nothing)


def a_batch_is_buffered_twice(patch: pytest.MonkeyPatch) -> None:
    put = Fetches.put

    def wrong(self: Fetches, segment: Any) -> None:
        put(self, segment)
        put(self, segment)

    patch.setattr(Fetches, "put", wrong)


def nobody_waits_before_asking_again(patch: pytest.MonkeyPatch) -> None:
    def hasty(*_: object) -> float:
        return 0.001

    patch.setattr(Backoff, "next", hasty)


def two_watch_the_same_partitions(patch: pytest.MonkeyPatch) -> None:
    watch_group = Watching._watch_group

    async def twice(self: Watching, group: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_group, self, group)
            tasks.start_soon(watch_group, self, group)

    patch.setattr(Watching, "_watch_group", twice)


def the_log_forgets_who_waits(patch: pytest.MonkeyPatch) -> None:
    expire = Waiters.expire

    def wrong(self: Waiters, now: float) -> list[Parked]:
        expire(self, now)
        return []

    patch.setattr(Waiters, "expire", wrong)


def who_was_evicted_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "fence", nothing)
    patch.setattr(Polls, "check_member", nothing)


def ownerships_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    give = Group._give

    def wrong(self: Group, partition: HistoryId, member: Member) -> None:
        give(self, partition, member)
        member.owned[partition] = Ownership(partition)
        self._ownership = Ownership(1000)

    patch.setattr(Group, "_give", wrong)


def nobody_leaves(patch: pytest.MonkeyPatch) -> None:
    async def leave(_: object) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(LocalSession, "leave", leave)


def nothing_waits_for_the_hook(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Positions, "close", nothing)


def a_pause_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fetches, "set_aside", nothing)


def what_goes_on_is_fetched_at_once(patch: pytest.MonkeyPatch) -> None:
    bring_back = Fetches.bring_back

    def wrong(self: Fetches, partition: Any) -> None:
        bring_back(self, partition)
        self.ready(partition)

    patch.setattr(Fetches, "bring_back", wrong)


def a_failed_handler_has_finished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hand, "fail", nothing)


def every_return_is_the_nth(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Commits, partition: Any, offset: Offset, head: Offset) -> bool:
        return self._queue(partition, offset)

    patch.setattr(Commits, "returned", wrong)


def one_that_is_stopped_stops_all(patch: pytest.MonkeyPatch) -> None:
    free_lane = Worker._free_lane

    def wrong(self: Worker, partition: TopicPartition) -> str | None:
        return None if self.stopped else free_lane(self, partition)

    patch.setattr(Worker, "_free_lane", wrong)


def what_is_refused_does_not_rest(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Stopped, *_: object) -> float:
        return 0.01

    patch.setattr(Stopped, "_longer", wrong)


def what_is_refused_together_is_asked_for_together(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Worker, refused: Plan, _: object) -> bool:
        for partition in refused.partitions:
            self._fetches.ready(partition)
        await anyio.sleep(0.005)
        return True

    patch.setattr(Worker, "_fetch_singly", wrong)


def what_comes_late_begins_by_the_start_rule(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Resolving, _: TopicPartition) -> Start:
        return self._start

    patch.setattr(Resolving, "_start_of", wrong)


def a_crash_makes_a_group_forget_what_it_has_seen(patch: pytest.MonkeyPatch) -> None:
    resume = Arrivals.resume

    def wrong(self: Arrivals, partitions: Any, late: Any, _: object) -> bool:
        return resume(self, partitions, late, None)

    patch.setattr(Arrivals, "resume", wrong)


def an_error_has_other_bytes(patch: pytest.MonkeyPatch) -> None:
    init = UndecodableMessage.__init__

    def wrong(self: UndecodableMessage, message: str, *, topic: str, partition: int, offset: int, raw: bytes) -> None:
        init(self, message, topic=topic, partition=partition, offset=offset, raw=raw[1:])

    patch.setattr(UndecodableMessage, "__init__", wrong)


def nobody_looks_at_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watching, "touch", nothing)


def what_was_fetched_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    def wrong(_: Fetches) -> list[TopicPartition]:
        return []

    patch.setattr(Fetches, "touched", wrong)


MISTAKES: list[tuple[Patch, int, str]] = [
    (no_last_word, 90, r"has ended well and left \d stored at"),
    (no_last_word_at_a_hand_over, 8, r"has ended well and left \d stored at"),
    (what_is_not_brought_back_is_not_named, 8, r"nobody has got or named"),
    (a_hand_over_dies, 0, r"died: an internal task"),
    (delivered_is_taken_for_finished, 0, r"has ended well and left|not its to store"),
    (a_message_of_each_fetch_is_left_out, 0, r"where \d+ is next"),
    (the_rest_of_a_list_is_dropped, 5, r"where \d+ is next"),
    (a_batch_is_buffered_twice, 0, r"where \d+ is next"),
    (nobody_waits_before_asking_again, 1, r"times a second for nothing|goes in circles"),
    (two_watch_the_same_partitions, 0, r"has 2 readiness waits out"),
    (the_log_forgets_who_waits, 3, r"got no answer, though nothing kept it"),
    (who_was_evicted_goes_on, 209, r"below what was stored for good|again, which was stored|though nobody reads it"),
    (ownerships_do_not_grow, 1, r"goes to"),
    (nobody_leaves, 6, r"is still a member"),
    (nothing_waits_for_the_hook, 6, r"was not told of"),
    (a_pause_is_forgotten, 59, r"gets \d, which is paused"),
    (what_goes_on_is_fetched_at_once, 33, r"does not know where it begins"),
    (a_failed_handler_has_finished, 5, r"where \d+ is next|were skipped"),
    (every_return_is_the_nth, 64, r"while it reads"),
    (one_that_is_stopped_stops_all, 35, r"stalled"),
    (what_comes_late_begins_by_the_start_rule, 6, r"has ended well and left|were not its to store"),
    (a_crash_makes_a_group_forget_what_it_has_seen, 38, r"stalled|were not its to store"),
    (an_error_has_other_bytes, 20, r"cannot decode b'\d*', which was"),
    (what_is_refused_does_not_rest, 5, r"was lastingly refused too often"),
    (nobody_looks_at_everything, 0, r"watches .* and not"),
    (what_was_fetched_is_not_looked_at, 0, r"watches .* and not"),
    (what_is_refused_together_is_asked_for_together, 71, r"was lastingly refused too often"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "soonest", "words"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_is_found(mistake: Patch, soonest: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`soonest`: a seed that showed it when this was written; where it does not any more, another one has to."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # thousands of warnings, as it should be
    mistake(monkeypatch)
    found: list[str] = []
    for seed in (soonest, *range(SEEDS)):
        found += judge(simulate(seed, "trio"))
        if any(re.search(words, line) for line in found):
            return
    kinds = Counter(re.sub(r"[\d.]+", "n", line)[:60] for line in found)
    pytest.fail(f"other findings: {kinds.most_common(5)}")


@pytest.mark.parametrize(("ends_at", "is_found"), [(1.5, False), (2.5, True)])
def test_a_wait_that_stays_where_its_partition_was_is_found(ends_at: float, is_found: bool) -> None:
    """In whole histories something else ends such a wait soon."""
    targets = [FetchTarget(TopicPartition("t", 0), Position(0), Ownership(1), None)]
    call = Call("wait_ready", {"leader": "a", "targets": targets, "max_wait": 5.0}, None, None, at=0.0)
    history = History()
    history.events += [Led(0.0, ["a"], set()), Asked(0.0, "m0", call), Led(1.0, ["b"], set())]
    call.outcome = "cancelled"
    history.events.append(Answered(ends_at, "m0", call))
    assert any("which has moved" in line for line in every_request_ends_in_time(history)) == is_found


@pytest.mark.parametrize(("at", "is_found"), [(1.0, False), (3.0, False), (9.0, True)])
def test_what_does_not_decode_excuses_its_run_alone(at: float, is_found: bool) -> None:
    first, second = (Run("m0", number, "on_poll", [0], 10, 1.0, is_slow=False) for number in (1, 2))
    lower = Stored(at, 0, 5, 1, StoreOffset(PartitionId(0), "name:billing", Offset(1), lower=True))
    history = History()
    history.events += [Opened(0.0, first), Undecoded(0.5, first, 0, 0, 2, b"x"), Opened(2.0, second), lower]
    history.events.sort(key=lambda event: event.at)
    assert any("is lowered" in line for line in only_the_last_word_lowers(history)) == is_found
