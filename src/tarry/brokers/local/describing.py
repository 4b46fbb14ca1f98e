"""Groups as people see and set them: list, describe, bring offsets elsewhere.

A group exists while it has members or stored offsets. Not here: who owns what (`_core.groups`), joining and leaving
(`coordinator`), rows (`store_*`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from tarry import abc
from tarry._core.groups import Group, Member
from tarry.brokers.local.probes import Reply
from tarry.brokers.local.view import Partition, View
from tarry.errors import GroupNotFound, NotAccepted, TarryError
from tarry.types import GroupInfo, GroupOffset, MemberInfo, Offset, Position, TopicPartition

PREFIX = "group:"
"""What the identities of groups begin with (`abc.ConsumerIdentity.key`)."""


class GroupDesk:
    """Answers requests about groups.

    Args:
        groups: all that ever had a member, as they are now.
        submit: hand a job to the store.
    """

    def __init__(
        self,
        view: View,
        clock: abc.Clock,
        groups: Callable[[], Mapping[str, Group]],
        submit: Callable[[abc.Job, abc.JobDone], None],
    ) -> None:
        self._view = view
        self._clock = clock
        self._groups = groups
        self._submit = submit

    def list(self, call: Reply) -> None:
        """See `abc.Broker.list_groups`."""
        groups, stored = self._groups(), stored_groups(self._view)
        names = {name for name, group in groups.items() if group.members} | set(stored)
        call.reply(tuple(self._info(name, groups.get(name), stored.get(name, ())) for name in sorted(names)))

    def describe(self, call: Reply, name: str) -> None:
        """See `abc.Broker.describe_group`."""
        try:
            call.reply(self._info(name, *self._known(name)))
        except GroupNotFound as error:
            call.reply(error)

    def reset(self, call: Reply, name: str, offsets: Mapping[TopicPartition, Offset | None]) -> None:
        """See `abc.Broker.reset_group`. When a store fails its error is the answer; others may have been applied."""
        try:
            group, _ = self._known(name)
            if group is not None and group.members:
                raise _has_members(group)
            parts = {self._view.find(at): offset for at, offset in offsets.items()}
            for part, offset in parts.items():
                part.check_offset(offset)
        except TarryError as error:
            call.reply(error)
            return
        stores = _Stores(call, len(parts))
        for part, offset in parts.items():
            job = abc.StoreOffset(part.id, PREFIX + name, offset, lower=True)
            self._submit(job, partial(stores.done, part, PREFIX + name))

    def _known(self, name: str) -> tuple[Group | None, Iterable[Partition]]:
        group, stored = self._groups().get(name), stored_groups(self._view).get(name, ())
        if not stored and (group is None or not group.members):
            raise GroupNotFound(f"group {name!r} has no members and no stored offsets")
        return group, stored

    def _info(self, name: str, group: Group | None, stored: Iterable[Partition]) -> GroupInfo:
        members = () if group is None else group.members
        read = [self._view.find(at) for at in group.partitions.values()] if group is not None and members else []
        parts = sorted({*read, *stored}, key=lambda part: part.at)
        return GroupInfo(
            name,
            0 if group is None else group.generation,
            tuple(self._member_info(group, member) for member in members) if group is not None else (),
            {part.at: _offset(part, PREFIX + name, group) for part in parts},
        )

    def _member_info(self, group: Group, member: Member) -> MemberInfo:
        names = group.partitions
        return MemberInfo(
            member.id,
            member.static,
            group.topics,
            tuple(sorted(names[key] for key in member.owned)),
            tuple(sorted(names[key] for key in member.revoking)),
            max(self._clock.now() - member.touched, 0.0),
        )


class _Stores:
    """Several offset stores with one answer: the first error, or None once all are applied."""

    def __init__(self, call: Reply, count: int) -> None:
        self._call = call
        self._left = count
        self._error: TarryError | None = None
        if not count:
            call.reply(None)

    def done(self, part: Partition, identity: str, result: Any) -> None:
        """One of them is decided."""
        if isinstance(result, abc.Stored):
            part.note(identity, result)
        elif self._error is None:
            self._error = result
        self._left -= 1
        if not self._left:
            self._call.reply(self._error)


def stored_groups(view: View) -> dict[str, list[Partition]]:
    """Every group that has stored offsets, and where."""
    found: dict[str, list[Partition]] = {}
    for topic in view.topics.values():
        for part in topic.partitions:
            for key in part.stored:
                if key.startswith(PREFIX):
                    found.setdefault(key.removeprefix(PREFIX), []).append(part)
    return found


def _offset(part: Partition, key: str, group: Group | None) -> GroupOffset:
    stored = part.stored.get(key)
    owner = None if group is None else group.owner(part.history)
    lag = part.messages_from(Position(0 if stored is None else stored + 1))
    return GroupOffset(stored, part.log_end, lag, None if owner is None else owner.id)


def _has_members(group: Group) -> NotAccepted:
    names = ", ".join(
        member.id if member.static is None else f"{member.id} ({member.static})" for member in group.members
    )
    return NotAccepted(
        f"group {group.name!r} has members that read on: {names}; nothing was applied. "
        "Stop them first, then set the offsets"
    )
