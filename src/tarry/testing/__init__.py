"""Tools to test code that uses tarry, and tarry itself. Nothing in `tarry` imports this package.

Virtual time (`run_virtual`): hours in milliseconds, the same way again for the same seed. A scripted log
(`ScriptedBroker`): a real one that is slow, refuses, or loses requests and replies when the test wants it to.
"""

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
from tarry.testing.virtual_time import Backend, Deadlock, VirtualClock, run_virtual

__all__ = [
    "Action",
    "Backend",
    "Call",
    "CarryOut",
    "Deadlock",
    "Operation",
    "Rule",
    "Script",
    "ScriptedBroker",
    "ScriptedSession",
    "VirtualClock",
    "answer_empty",
    "delay",
    "hold",
    "hook",
    "lose_reply",
    "lose_request",
    "refuse",
    "run_virtual",
]
