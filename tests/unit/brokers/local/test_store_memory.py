"""What only the memory store has: jobs that wait for `sync`, a crash that drops them, and its cost in a long log."""

from __future__ import annotations

import pytest

from tarry import abc
from tarry._wire.batch import seal
from tarry.brokers.local.store_memory import PRODUCERS_MAX
from tarry.errors import LogUnavailable, OutcomeUnknown
from tarry.types import ProducerStamp
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import P0, PumpRig, python_calls


def test_what_was_not_synced_is_lost_in_a_crash_and_nobody_was_told_otherwise():
    rig = PumpRig(hold=True)
    kept = rig.ask_append(seal([b"a"], [0]))
    rig.store.sync()
    lost, offset = rig.ask_append(seal([b"b"], [0])), rig.store_offset(0)
    rig.store.crash()
    assert kept.answer.offset == 0
    assert isinstance(lost.error, OutcomeUnknown)
    assert isinstance(offset.error, OutcomeUnknown)
    rig.pump.reopened(rig.store.open(rig.pump))
    assert (rig.part().log_end, rig.stored()) == (1, None)


def test_offsets_and_groups_that_were_not_synced_are_lost_too():
    rig = PumpRig(hold=True)
    results: list[object] = []
    rig.ask_append(seal([b"a", b"b"], [0, 0]))
    rig.store.submit(abc.SaveGroup("billing", b"1"), results.append)
    rig.store.sync()
    rig.store_offset(0)
    rig.store.sync()
    lost = [rig.store_offset(1), rig.store_offset(None)]
    rig.store.submit(abc.SaveGroup("billing", b"2"), results.append)
    rig.store.submit(abc.SaveGroup("new", b"1"), results.append)
    assert (rig.store.groups(), rig.stored()) == ({"billing": b"1"}, 0)
    rig.store.crash()
    assert [type(ask.error) for ask in lost] == [OutcomeUnknown] * 2
    assert [type(result) for result in results] == [type(None), OutcomeUnknown, OutcomeUnknown]
    rig.store.sync()
    rig.pump.reopened(rig.store.open(rig.pump))
    assert (rig.store.groups(), rig.stored()) == ({"billing": b"1"}, 0)


@rule("W7")
def test_of_many_producers_those_that_sent_last_are_remembered():
    """Else a log that stays open would grow with every producer that ever was."""
    rig = PumpRig()

    def is_known(number: int, sequence: int) -> bool:
        stamp = ProducerStamp(number.to_bytes(16), sequence)
        return bool(rig.ask_append(seal([b"a"], [0]), stamp=stamp).answer.duplicate)

    for number in range(PRODUCERS_MAX):
        assert not is_known(number, 0)
    assert not is_known(0, 1)
    assert not is_known(PRODUCERS_MAX, 0)
    assert [is_known(number, 0) for number in (0, 2, PRODUCERS_MAX)] == [True] * 3
    assert not is_known(1, 0)


@rule("W17")
def test_only_what_waits_can_be_withdrawn():
    rig = PumpRig(hold=True)
    ask = rig.ask_append(seal([b"a"], [0]))
    ticket = rig.pump._jobs[ask]
    assert rig.store.withdraw(ticket)
    assert not rig.store.withdraw(ticket)
    rig.store.sync()
    assert (ask.pending, rig.part().log_end) == (True, 0)


@pytest.mark.anyio
async def test_closed_it_refuses_and_what_was_held_is_written():
    rig = PumpRig(hold=True)
    held = rig.ask_append(seal([b"a"], [0]))
    await rig.store.aclose()
    await rig.store.aclose()
    assert held.answer.offset == 0
    assert isinstance(rig.ask_append(seal([b"b"], [0])).error, LogUnavailable)


def test_a_read_near_the_end_costs_the_same_in_a_long_log():
    work: list[tuple[int, int]] = []
    for rows in (10, 1000):
        rig = PumpRig()
        for _ in range(rows):
            rig.append(1)
        rig.append(3, P0)
        with python_calls() as read:
            assert rig.poll(rows).count == 3
        with python_calls() as counted:
            assert rig.wait(rows).ready == {P0: (3, 300)}
        bisection = 2 * (rows.bit_length() + 1)  # `end` of a row per step, and the key function around it
        work.append((len(read) - bisection, len(counted) - bisection))
    assert abs(work[0][0] - work[1][0]) <= 8
    assert abs(work[0][1] - work[1][1]) <= 8
