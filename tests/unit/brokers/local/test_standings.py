"""Who waits for a standalone session to change, and how long."""

from __future__ import annotations

import gc
import weakref

from tarry.brokers.local.standings import SWEEP_PERIOD, Standing
from tests.marks import rule
from tests.unit.brokers.local.pump_rig import TOPIC, Ask, PumpRig


def changed(rig: PumpRig) -> Ask:
    """Wait for the next change of a new session."""
    session, ask = rig.open(None), Ask()
    assert isinstance(session, Standing)
    rig.pump.changed(ask, session, session.shown.version)
    assert ask.pending
    return ask


@rule("S15")
def test_what_somebody_waits_for_whose_loop_has_gone_is_dropped_after_a_while() -> None:
    rig = PumpRig()
    lives, dies = changed(rig), changed(rig)
    dies.is_wanted = False
    known = weakref.ref(dies)
    del dies
    rig.advance(SWEEP_PERIOD)
    gc.collect()
    assert known() is None
    grow = Ask()
    rig.pump.grow_topic(grow, TOPIC, 3)
    assert len(lives.answer.owned) == 3


def test_it_is_looked_for_them_only_while_somebody_waits() -> None:
    rig = PumpRig()
    ask = changed(rig)
    assert rig.alarms[-1] == rig.pump.next_deadline() == rig.clock.at + SWEEP_PERIOD
    rig.advance(10 * SWEEP_PERIOD)
    assert rig.ticks == 10
    rig.pump.cancel(ask)
    rig.advance(10 * SWEEP_PERIOD)
    assert rig.ticks == 11
    assert rig.pump.next_deadline() is None
