"""A broker that lies is found out: each test of the shipped suite that is named here fails on such a one.

The lies are told by a script between the suite and the log in memory, which passes all of it (test_brokers.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

import tarry
from tarry import abc
from tarry.errors import TopicExists
from tarry.testing import Action, Call, CarryOut, Operation, ScriptedBroker, answer_empty, delay
from tarry.testing.conformance import BrokerConformance, Timeouts
from tarry.types import GroupInfo, Offset, Ownership, Position, Receipt, TopicInfo


class Liar(BrokerConformance):
    """The log in memory, which tells one lie."""

    is_virtual = True

    def __init__(self, operation: Operation, lie: Action) -> None:
        self._operation: Operation = operation
        self._lie = lie

    @asynccontextmanager
    async def open_broker(self, timeouts: Timeouts) -> AsyncGenerator[abc.Broker]:
        async with tarry.connect("memory:", session_timeout=timeouts.session) as client:
            broker = ScriptedBroker(client.broker)
            broker.script.every(self._operation, do=self._lie)
            yield broker


# -------------------------------------------------------------------------------------------------- lies


def telling(change: Callable[[Any, Call], Any]) -> Action:
    """Carry a call out and answer something else."""

    async def act(call: Call, carry_out: CarryOut) -> object:
        return change(await carry_out(), call)

    return act


def telling_of_targets(change: Callable[[abc.TargetReply], abc.TargetReply]) -> Action:
    return telling(lambda reply, _: abc.PollReply(tuple(map(change, reply.targets))))


def asking(**changes: Callable[[Call], object]) -> Action:
    """Carry a call out with other arguments."""

    async def act(call: Call, _: CarryOut) -> object:
        arguments = call.arguments | {name: change(call) for name, change in changes.items()}
        return await getattr(call.session, call.operation)(**arguments)

    return act


def nobody_late(assignment: abc.Assignment, _: Call) -> abc.Assignment:
    return replace(assignment, late=frozenset())


async def nothing(_: Call, __: CarryOut) -> None:
    """Say that it is done."""
    await anyio.lowlevel.checkpoint()


async def deaf(_: Call, carry_out: CarryOut) -> object:
    """Hear no cancel."""
    answers: list[object] = []
    with anyio.CancelScope(shield=True):
        answers.append(await carry_out())
    return answers[0]


async def mild(call: Call, carry_out: CarryOut) -> object:
    """Take a topic that exists for a new one."""
    try:
        return await carry_out()
    except TopicExists:
        return TopicInfo(call.arguments["name"], (), None, None, 1)


async def one_by_one(call: Call, carry_out: CarryOut) -> None:
    """Apply a reset until something is wrong."""
    wanted = dict(call.arguments["offsets"])
    for at, offset in wanted.items():
        call.arguments["offsets"] = {at: offset}
        await carry_out()


def backwards(found: Sequence[Any], _: Call) -> Sequence[Any]:
    return found[::-1]


def targets_backwards(reply: abc.PollReply, _: Call) -> abc.PollReply:
    return replace(reply, targets=reply.targets[::-1])


def without_histories(call: Call) -> list[abc.FetchTarget]:
    return [replace(target, history=None) for target in call.arguments["targets"]]


def without_gap(reply: abc.TargetReply) -> abc.TargetReply:
    return replace(reply, asked=reply.position)


def twice(argument: str) -> Callable[[Call], object]:
    return lambda call: 2 * call.arguments[argument]


def as_if_it_had_come(call: Call) -> abc.WatchChange:
    change: abc.WatchChange = call.arguments["change"]
    return replace(change, version=min(change.version, 1))


def first_member(info: GroupInfo, _: Call) -> GroupInfo:
    return replace(info, members=info.members[:1])


def shorter(reply: abc.TargetReply) -> abc.TargetReply:
    """Leave the last record out."""
    if not reply.runs:
        return reply
    return replace(reply, runs=(*reply.runs[:-1], reply.runs[-1].split(reply.runs[-1].count - 1)[0]))


def all_ready(_: object, call: Call) -> list[abc.Ready]:
    return [abc.Ready(target.partition, 1, 1) for target in call.arguments["targets"]]


def held(call: Call) -> Ownership:
    """The ownership that a member has, whatever it says."""
    assert call.session is not None
    return call.session.assignment.owned.get(call.arguments["partition"], Ownership(0))


def unlearned(receipt: Receipt, _: Call) -> Receipt:
    return msgspec.structs.replace(receipt, duplicate=False)


def at_the_beginning(receipt: Receipt, _: Call) -> Receipt:
    return msgspec.structs.replace(receipt, offset=Offset(0))


def without_size(info: TopicInfo, _: Call) -> TopicInfo:
    return replace(info, partitions=tuple(replace(part, size=0) for part in info.partitions))


def further(found: abc.Resolved, _: Call) -> abc.Resolved:
    return replace(found, position=Position(found.position + 1))


def of_the_newest(found: abc.Resolved, _: Call) -> abc.Resolved:
    return replace(found, age_s=0.0)


def kept(info: TopicInfo, _: Call) -> TopicInfo:
    """A growth that does not show."""
    return replace(info, partitions=info.partitions[:1])


LIES: list[tuple[str, Operation, Action]] = [
    ("a_topic_is_created_once", "create_topic", mild),
    ("topics_are_listed_by_name", "list_topics", telling(backwards)),
    ("a_description_counts_what_is_there", "describe_topic", telling(without_size)),
    ("a_topic_gains_partitions_and_keeps_those_it_has", "grow_topic", telling(kept)),
    ("a_session_on_a_whole_topic_gets_what_it_gains", "changed", telling(nobody_late)),
    ("deleting_a_topic_ends_what_waits_for_it", "delete_topic", nothing),
    ("a_receipt_names_the_first_message_of_its_batch", "append", telling(at_the_beginning)),
    ("a_repeat_gets_the_same_receipt_and_writes_nothing", "append", telling(unlearned)),
    ("an_assignment_that_stays_keeps_who_follows_it_waiting", "changed", asking(version=lambda _: -1)),
    ("leaving_ends_what_the_session_has_out", "leave", nothing),
    ("a_start_is_found_alike_by_resolve_and_by_a_poll", "resolve", telling(further)),
    ("a_position_says_how_old_what_lies_there_is", "resolve", telling(of_the_newest)),
    ("every_target_is_answered_in_the_order_asked", "poll", telling(targets_backwards)),
    ("count_is_exact_over_all_targets", "poll", telling_of_targets(shorter)),
    ("count_is_exact_over_all_targets", "poll", asking(count=twice("count"))),
    ("max_bytes_is_exact_over_all_targets", "poll", asking(max_bytes=twice("max_bytes"))),
    ("a_target_of_another_history_reads_nothing", "poll", asking(targets=without_histories)),
    ("what_retention_removed_is_skipped_and_the_gap_is_told", "poll", telling_of_targets(without_gap)),
    ("min_count_waits_for_so_many", "poll", asking(min_count=lambda _: 1)),
    ("a_waiting_poll_is_answered_by_the_append", "poll", answer_empty()),
    ("a_waiting_poll_is_answered_by_the_append", "poll", delay(1.0, reply=True)),
    ("the_end_of_the_wait_answers_with_what_there_is", "poll", asking(max_wait=twice("max_wait"))),
    ("a_withdrawn_poll_is_gone_and_the_session_goes_on", "poll", deaf),
    ("targets_that_have_something_are_named_at_once", "wait_ready", telling(all_ready)),
    ("an_append_to_one_of_many_answers_with_that_one", "wait_ready", answer_empty()),
    ("min_count_counts_over_all_targets_together", "wait_ready", asking(min_count=lambda _: 1)),
    ("min_bytes_counts_over_all_targets_together", "wait_ready", asking(min_bytes=lambda _: None)),
    ("a_target_that_is_gone_counts_as_ready", "wait_ready", asking(targets=lambda call: call.arguments["targets"][:1])),
    (
        "a_wait_that_goes_on_with_the_one_before_waits_for_all_its_targets",
        "wait_ready",
        asking(targets=lambda call: call.arguments["change"].named or call.arguments["targets"], change=lambda _: None),
    ),
    (
        "a_change_behind_a_wait_that_never_came_goes_by_the_targets",
        "wait_ready",
        asking(change=as_if_it_had_come),
    ),
    ("nothing_stored_is_none_and_not_the_first_offset", "stored_offset", telling(lambda found, _: found or Offset(0))),
    ("a_lower_offset_changes_nothing", "store_offset", asking(lower=lambda _: True)),
    ("lower_sets_it_in_either_direction", "store_offset", asking(lower=lambda _: False)),
    ("an_offset_of_another_history_is_refused", "store_offset", asking(history=lambda _: None)),
    ("the_last_offset_is_stored_when_the_reply_comes", "poll", asking(commit=lambda _: False)),
    ("a_withdrawn_one_stores_nothing", "poll", deaf),
    ("a_newcomer_gets_what_is_released_and_nothing_else_moves", "release", nothing),
    ("a_clean_leave_hands_over_at_once", "leave", nothing),
    ("another_ownership_is_refused", "store_offset", asking(ownership=held)),
    ("a_former_owner_stores_nothing_any_more", "store_offset", asking(ownership=held)),
    ("groups_are_listed_while_anything_is_known_of_them", "list_groups", telling(backwards)),
    ("a_group_is_described_as_it_is", "describe_group", telling(first_member)),
    ("a_reset_is_checked_as_a_whole_first", "reset_group", one_by_one),
    ("what_is_out_ends", "aclose", nothing),
    ("nothing_is_answered_afterwards", "aclose", nothing),
]  # fmt: skip


@pytest.mark.parametrize(("test", "operation", "lie"), LIES, ids=[f"{lie[0]}-{lie[1]}" for lie in LIES])
def test_a_lie_is_found_out(test: str, operation: Operation, lie: Action) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        getattr(Liar(operation, lie), f"test_{test}")("asyncio")
    assert isinstance(caught.value, AssertionError | TimeoutError | pytest.fail.Exception), repr(caught.value)
