"""What every log has to do to stand behind tarry: tests for `abc.Broker` and `abc.Session`, to be run by pytest.

Whoever writes a broker names a factory for it and gets the whole suite:

    from contextlib import asynccontextmanager
    from tarry.testing.conformance import BrokerConformance

    class TestMyBroker(BrokerConformance):
        @asynccontextmanager
        async def open_broker(self, timeouts):
            async with MyBroker(session_timeout=timeouts.session, rebalance_timeout=timeouts.rebalance) as broker:
                yield broker

The tests know nothing but the port; each states the rules that it rests on. `SKIPS` is the one table of what a broker
may skip that lacks a capability. It needs pytest, and trio unless `backends` says otherwise; no plug-in.
"""

from __future__ import annotations

from tarry.errors import MissingExtra

try:
    import pytest
except ImportError as error:
    raise MissingExtra("the conformance suite needs the package pytest: pip install pytest") from error

_AREAS = (
    "topics",
    "appends",
    "sessions",
    "polls",
    "readiness",
    "offsets",
    "committing",
    "groups",
    "fences",
    "closing",
    "refusals",
    "rig",
    "suite",
)
pytest.register_assert_rewrite(*(f"{__name__}.{area}" for area in _AREAS))

from tarry.testing.conformance.appends import Appends, Repeats  # noqa: E402
from tarry.testing.conformance.closing import Closing, ClosingGroups  # noqa: E402
from tarry.testing.conformance.committing import Committing  # noqa: E402
from tarry.testing.conformance.fences import Fences, GroupOffsets  # noqa: E402
from tarry.testing.conformance.groups import Eviction, Groups  # noqa: E402
from tarry.testing.conformance.offsets import StoredOffsets  # noqa: E402
from tarry.testing.conformance.polls import Polls, WaitingPolls  # noqa: E402
from tarry.testing.conformance.readiness import Readiness  # noqa: E402
from tarry.testing.conformance.refusals import Refusals  # noqa: E402
from tarry.testing.conformance.rig import Timeouts  # noqa: E402
from tarry.testing.conformance.sessions import Resolving, Sessions  # noqa: E402
from tarry.testing.conformance.suite import SKIPS, Need, Suite  # noqa: E402
from tarry.testing.conformance.topics import Topics  # noqa: E402


class BrokerConformance(
    Topics,
    Appends,
    Repeats,
    Sessions,
    Resolving,
    Polls,
    WaitingPolls,
    Readiness,
    StoredOffsets,
    Committing,
    Groups,
    Eviction,
    Fences,
    GroupOffsets,
    Closing,
    ClosingGroups,
    Refusals,
):
    """The whole suite; see `Suite` for what may be said about a broker."""


__all__ = ["SKIPS", "BrokerConformance", "Need", "Suite", "Timeouts"]
