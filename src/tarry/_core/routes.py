"""Which partition is led by whom, and which partitions one readiness wait may name (C77, C80, C85, C87).

A route that was never looked up, or that a refusal has put in doubt, is *stale*: nothing is asked about its partition
until it was looked up again. The partitions of one leader form a *group*, or several of at most 1,000. Groups are made
anew, all of them, when a route or the assignment has changed, and stay the same objects as long as nothing has; so who
holds a group that is not among `groups` any more knows that its wait has to be replaced.

Not here: looking up, waiting, fetching; which of the partitions are idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tarry.errors import LogUnavailable, NotAccepted, TarryError
from tarry.types import TopicPartition

ROUTING = (NotAccepted, LogUnavailable)
"""Refusals that put a route in doubt: the other side does not lead, or is not there."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Partitions that one readiness wait may name; told apart by identity."""

    leader: str
    partitions: tuple[TopicPartition, ...]


class Routes:
    """The routes of the partitions that one consumer holds. `targets_max` bounds a group."""

    def __init__(self, targets_max: int = 1000) -> None:
        self._targets_max = targets_max
        self._leaders: dict[TopicPartition, str | None] = {}
        self._stale: dict[TopicPartition, None] = {}
        self._groups: tuple[Group, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """Every partition whose leader is known, or was; leaders and partitions in the order of the partitions."""
        return self._groups

    def leader(self, partition: TopicPartition) -> str | None:
        """Who leads a partition; None while its route is stale."""
        return None if partition in self._stale else self._leaders.get(partition)

    def stale(self) -> list[TopicPartition]:
        """What has to be looked up, in the order of the partitions."""
        return [partition for partition in self._leaders if partition in self._stale]

    def assign(self, partitions: Iterable[TopicPartition]) -> bool:
        """These are held now, in this order; says whether the groups have changed."""
        held = list(partitions)
        if held == list(self._leaders):
            return False
        self._stale = {at: None for at in held if at in self._stale or at not in self._leaders}
        self._leaders = {at: self._leaders.get(at) for at in held}
        return self._regroup()

    def found(self, leaders: Mapping[TopicPartition, str]) -> bool:
        """Lookups were answered; says whether the groups have changed. What is not held any more is left out."""
        for partition, leader in leaders.items():
            if partition in self._leaders:
                self._stale.pop(partition, None)
                self._leaders[partition] = leader
        return self._regroup()

    def refused(self, leader: str, partitions: Iterable[TopicPartition], error: TarryError) -> list[TopicPartition]:
        """A request to `leader` that named these was refused; returns those whose route became stale by that (C85).

        A refusal by who is not the leader any more says nothing about the present one.
        """
        if not isinstance(error, ROUTING):
            return []
        doubtful = [at for at in partitions if self.leader(at) == leader]
        self._stale.update(dict.fromkeys(doubtful))
        return doubtful

    def _regroup(self) -> bool:
        led: dict[str, list[TopicPartition]] = {}
        for partition, leader in self._leaders.items():
            if leader is not None:
                led.setdefault(leader, []).append(partition)
        wanted = [(leader, tuple(part)) for leader, all_ in led.items() for part in self._parts(all_)]
        if wanted == [(group.leader, group.partitions) for group in self._groups]:
            return False
        self._groups = tuple(Group(leader, partitions) for leader, partitions in wanted)
        return True

    def _parts(self, partitions: list[TopicPartition]) -> Iterable[list[TopicPartition]]:
        return (partitions[at : at + self._targets_max] for at in range(0, len(partitions), self._targets_max))
