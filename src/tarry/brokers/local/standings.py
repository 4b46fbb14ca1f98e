"""Standalone sessions: what they read follows the topics they named (C15, K56, K57, K72).

A session names whole topics and single partitions. Topics that are missing are left out until they are created;
partitions of a topic that was deleted go, those that a topic gains come. What changed is found out by looking again, so
nobody has to be told of anything twice. Of a session that was dropped without leaving only its parked `changed` is
known. It has no deadline at which an answer would find out that nobody is there to hear it, as other requests have; so
once in a while those that wait are looked through for askers whose loop is gone.

Synchronous and callback style, like the pump. Not here: groups (`coordinator`), requests for messages (`polls`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tarry import abc
from tarry._core.arrivals import Arrivals
from tarry.brokers.local.probes import Member, Reply
from tarry.brokers.local.view import View, own
from tarry.errors import TarryError, TopicNotFound
from tarry.types import UNFENCED, HistoryId, TopicPartition

SWEEP_PERIOD: Final = 60.0
"""Seconds between two looks for those who are gone."""

_NOTHING = abc.Assignment(0, 1, {}, frozenset(), {})


@dataclass(slots=True, eq=False)
class Standing(Member):
    """A standalone session.

    Args:
        topics: those of which it reads everything.
        partitions: single ones, of other topics.
        shown: the newest assignment; another thread may look at it.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    shown: abc.Assignment = _NOTHING
    held: dict[HistoryId, TopicPartition] = field(default_factory=dict[HistoryId, TopicPartition])
    arrivals: Arrivals = field(default_factory=Arrivals)


class Standings:
    """See the module. `alarm(deadline)` is called when an earlier deadline than before may have been added."""

    def __init__(self, view: View, clock: abc.Clock, alarm: Callable[[float], None]) -> None:
        self._view = view
        self._clock = clock
        self._alarm = alarm
        self._sweep_at: float | None = None
        self._waiting: dict[Reply, Standing] = {}

    def open(
        self,
        identity: abc.ConsumerIdentity,
        topics: Sequence[str],
        partitions: Sequence[TopicPartition],
        seen: int = 0,
    ) -> Standing:
        """A new session; some of `topics` may be missing. Its assignment has the version behind `seen`.

        Raises:
            TopicNotFound: one of `partitions` does not exist.
        """
        for at in partitions:
            self._view.find(at)
        standing = Standing(identity, topics=tuple(topics), partitions=tuple(partitions))
        standing.shown = replace(_NOTHING, version=seen)
        standing.held = self._find(standing)
        standing.arrivals.begin(standing.held)
        self._show(standing)
        return standing

    def changed(self, call: Reply, standing: Standing, version: int) -> None:
        """Answer the assignment once its version differs from `version`."""
        try:
            if self._view.failure is not None:
                raise own(self._view.failure)
            if not standing.open:
                raise standing.refusal()
        except TarryError as error:
            call.reply(error)
            return
        self._look(standing)
        if standing.shown.version != version:
            call.reply(standing.shown)
        else:
            self._waiting[call] = standing
            self._plan_sweep()

    def topic_changed(self, name: str) -> None:
        """A topic was created or deleted, or has other partitions."""
        for call, standing in list(self._waiting.items()):
            if _names(standing, name) and self._look(standing):
                del self._waiting[call]
                call.reply(standing.shown)

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        return self._sweep_at

    def tick(self, now: float) -> None:
        """Drop what nobody waits for any more."""
        if self._sweep_at is None or now < self._sweep_at:
            return
        self._waiting = {call: standing for call, standing in self._waiting.items() if call.is_wanted}
        self._sweep_at = None
        self._plan_sweep()

    def _plan_sweep(self) -> None:
        if self._sweep_at is None and self._waiting:
            self._sweep_at = self._clock.now() + SWEEP_PERIOD
            self._alarm(self._sweep_at)

    def leave(self, standing: Member) -> None:
        """A session is over."""
        for call in [call for call, waiting in self._waiting.items() if waiting is standing]:
            del self._waiting[call]
            call.reply(standing.refusal())

    def cancel(self, call: Reply) -> None:
        """Withdraw a `changed`."""
        self._waiting.pop(call, None)

    def fail(self, error: TarryError) -> None:
        """The log is closed, or gone: nothing changes any more."""
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.reply(own(error))

    def _look(self, standing: Standing) -> bool:
        """Take over what there is now; says whether it differs."""
        found = self._find(standing)
        if found == standing.held:
            return False
        standing.held = found
        standing.arrivals.follow(found)
        self._show(standing)
        return True

    def _find(self, standing: Standing) -> dict[HistoryId, TopicPartition]:
        known = (self._view.topics.get(name) for name in standing.topics)
        found = {part.history: part.at for topic in known if topic is not None for part in topic.partitions}
        for at in standing.partitions:
            try:
                found[self._view.find(at).history] = at
            except TopicNotFound:
                continue  # it went; it may come back under another history
        return found

    def _show(self, standing: Standing) -> None:
        held = standing.held
        topics = dict.fromkeys(at.topic for at in held.values())
        counts = {name: len(self._view.topics[name].partitions) for name in topics}
        standing.shown = abc.Assignment(
            standing.shown.version + 1,
            1,
            dict.fromkeys(held.values(), UNFENCED),
            frozenset(),
            counts,
            frozenset(held[history] for history in standing.arrivals.late),
        )


def _names(standing: Standing, topic: str) -> bool:
    return topic in standing.topics or any(at.topic == topic for at in standing.partitions)
