"""What a sender is told that gets no answer (C4): a read was not made, a change may have been applied."""

from __future__ import annotations

from tarry.errors import LogUnavailable, OutcomeUnknown, TarryError
from tarry.testing.scripted import Call, Operation

CHANGING: frozenset[Operation] = frozenset(
    (
        "create_topic",
        "grow_topic",
        "delete_topic",
        "append",
        "open_session",
        "reset_group",
        "store_offset",
        "release",
        "leave",
    )
)
"""Requests that may have been applied when no answer comes; a poll that commits is one, too."""


def is_change(call: Call) -> bool:
    """It may have been applied."""
    return call.operation in CHANGING or bool(call.arguments.get("commit"))


def given_up(call: Call) -> TarryError:
    """What a sender knows that got no answer."""
    if is_change(call):
        return OutcomeUnknown(f"{call.operation}: no answer came; it may or may not have been applied")
    return LogUnavailable(f"{call.operation}: no answer came; nothing was applied")
