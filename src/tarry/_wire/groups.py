"""What is saved of a group, as bytes: one byte of format, then a msgpack array; new fields only ever go to the end.

Opaque to stores. Pinned by a golden file. Not here: what a group does (`_core.groups`). Times are not saved: whoever
takes a group over gives each session and each asking its whole timeout again (design 4.1).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tarry.errors import DataError
from tarry.types import HistoryId, Ownership

FORMAT = 1


class MemberState(msgspec.Struct, frozen=True, array_like=True):
    """One member: `owned` in the order in which partitions came, `revoking` in the order of the asking."""

    id: str
    static: str | None
    version: int
    owned: dict[HistoryId, Ownership]
    revoking: tuple[HistoryId, ...]


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """One group: `ownership` is the last one given; `members` in the order in which they joined.

    `late`: partitions that came while the group was there, and are read from their first message (K56).
    `seen`: up to which number the group has seen partitions of each topic; those above come late. None, as an older
    release wrote it: not known.
    """

    name: str
    topics: tuple[str, ...]
    generation: int
    ownership: Ownership
    members: tuple[MemberState, ...]
    late: tuple[HistoryId, ...] = ()
    seen: dict[str, int] | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GroupState)
_FIELDS_MIN = 5
"""All but those with a default."""
_NOT_A_STATE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_group(state: GroupState) -> bytes:
    """A group as bytes; fields at the end that say nothing are left out."""
    fields = list(msgspec.structs.astuple(state))
    while len(fields) > _FIELDS_MIN and fields[-1] in ((), None):
        fields.pop()
    return bytes((FORMAT,)) + _encoder.encode(fields)


def decode_group(raw: bytes) -> GroupState:
    """Inverse of `encode_group`, checked.

    Raises:
        DataError: says what does not fit.
    """
    if not raw:
        raise DataError("the state of a group is empty")
    if raw[0] != FORMAT:
        raise DataError(f"the state of a group has format {raw[0]}; this release reads format {FORMAT}")
    try:
        state = _decoder.decode(memoryview(raw)[1:])
    except _NOT_A_STATE as error:
        raise DataError(f"the state of a group is damaged: {error}") from error
    _check(state)
    return state


def _check(state: GroupState) -> None:
    """What one group can never look like.

    Raises:
        DataError: names group and value.
    """
    where = f"the state of group {state.name!r} is damaged"
    _check_once(where, "member", (member.id for member in state.members))
    _check_once(where, "static member", (member.static for member in state.members if member.static is not None))
    _check_once(where, "partition", (partition for member in state.members for partition in member.owned))
    _check_once(where, "ownership", (ownership for member in state.members for ownership in member.owned.values()))
    for member in state.members:
        if any(not 0 < ownership <= state.ownership for ownership in member.owned.values()):
            raise DataError(f"{where}: member {member.id!r} has an ownership outside 1 to {state.ownership}")
        if any(partition not in member.owned for partition in member.revoking):
            raise DataError(f"{where}: member {member.id!r} is asked for a partition that it does not own")


def _check_once(where: str, what: str, values: Iterable[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise DataError(f"{where}: {what} {value!r} is there twice")
        seen.add(value)
