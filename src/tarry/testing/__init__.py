"""Tools to test code that uses tarry, and tarry itself. Nothing in `tarry` imports this package.

Virtual time (`run_virtual`): hours in milliseconds, the same way again for the same seed. A scripted log
(`ScriptedBroker`): a real one that is slow, refuses, or loses requests and replies when the test wants it to. A faulty
log (`FaultyLog`, `FaultLayer`): the same by chance, on a machine that crashes and a network that is cut.
"""

from tarry.testing.faults import Damage, FaultKind, FaultLayer, Faults, FaultyLog
from tarry.testing.scripted import (
    Action,
    Call,
    CarryOut,
    Operation,
    Rule,
    Script,
    ScriptedBroker,
    ScriptedSession,
    answer_empty,
    delay,
    hold,
    hook,
    lose_reply,
    lose_request,
    refuse,
)
from tarry.testing.virtual_time import Backend, Deadlock, VirtualClock, block, run_virtual

__all__ = [
    "Action",
    "Backend",
    "Call",
    "CarryOut",
    "Damage",
    "Deadlock",
    "FaultKind",
    "FaultLayer",
    "Faults",
    "FaultyLog",
    "Operation",
    "Rule",
    "Script",
    "ScriptedBroker",
    "ScriptedSession",
    "VirtualClock",
    "answer_empty",
    "block",
    "delay",
    "hold",
    "hook",
    "lose_reply",
    "lose_request",
    "refuse",
    "run_virtual",
]
