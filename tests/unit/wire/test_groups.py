"""What is saved of a group, as bytes: the format, what a newer release may add, and what damage looks like."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry._wire.groups import FORMAT, GroupState, MemberState, decode_group, encode_group
from tarry.errors import DataError
from tarry.types import HistoryId, Ownership
from tests.marks import rule
from tests.unit.wire.golden import golden


def member(name: str, owned: dict[int, int], *revoking: int, static: str | None = None) -> MemberState:
    return MemberState(
        name,
        static,
        7,
        {HistoryId(partition): Ownership(ownership) for partition, ownership in owned.items()},
        tuple(HistoryId(partition) for partition in revoking),
    )


def group(*members: MemberState, ownership: int = 300) -> GroupState:
    return GroupState("billing", ("orders", "shop/users"), 12, Ownership(ownership), members)


SAMPLE = group(member("0f3a", {1: 5, 300: 299, 2: 300}, 2, 300), member("77be", {}, static="east"))


def test_what_is_written_is_pinned_and_read_again():
    pinned = golden("group-v1")
    assert encode_group(SAMPLE) == pinned["group"]
    assert decode_group(pinned["group"]) == SAMPLE
    assert encode_group(group(ownership=0)) == pinned["empty"]
    assert decode_group(pinned["empty"]) == group(ownership=0)


def test_the_layout_is_as_documented():
    """Taken apart without this package."""
    raw = golden("group-v1")["group"]
    assert raw[0] == 1
    members: list[Any] = [["0f3a", None, 7, {1: 5, 300: 299, 2: 300}, [2, 300]], ["77be", "east", 7, {}, []]]
    fields: list[Any] = ["billing", ["orders", "shop/users"], 12, 300, members]
    assert msgspec.msgpack.decode(raw[1:]) == fields


@rule("K56")
def test_late_partitions_are_written_if_there_are_any():
    state = msgspec.structs.replace(SAMPLE, late=(HistoryId(300), HistoryId(2)))
    assert decode_group(encode_group(state)) == state
    assert msgspec.msgpack.decode(encode_group(state)[1:])[5] == [300, 2]


@rule("K56")
@pytest.mark.parametrize("seen", [{}, {"orders": 3}])
@pytest.mark.parametrize("late", [(), (HistoryId(300),)])
def test_what_was_seen_is_written_if_it_is_known(seen: dict[str, int], late: tuple[HistoryId, ...]):
    state = msgspec.structs.replace(SAMPLE, late=late, seen=seen)
    assert decode_group(encode_group(state)) == state
    assert msgspec.msgpack.decode(encode_group(state)[1:])[5:] == [list(late), seen]


def test_orders_are_kept():
    """What came last is asked back first, also after a restart."""
    first, second = decode_group(encode_group(SAMPLE)).members
    assert (list(first.owned), first.revoking, second.owned) == ([1, 300, 2], (2, 300), {})


@pytest.mark.parametrize("more", [[5], ["text", None], [{"a": [1, [2]]}]], ids=str)
def test_fields_that_a_newer_release_appends_are_ignored(more: list[Any]):
    fields = msgspec.msgpack.decode(encode_group(SAMPLE)[1:])
    fields[4][0] += more
    fields += [[], None, *more]
    assert decode_group(bytes((FORMAT,)) + msgspec.msgpack.encode(fields)) == SAMPLE


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "is empty"),
        (b"\x02\x90", "format 2; this release reads format 1"),
        (b"\x01", "damaged: Input data was truncated"),
        (b"\x01\x90", "damaged: Expected `array`"),
        (b"\x01\x80", "damaged: Expected `array`, got `object`"),
        (encode_group(SAMPLE) + b"\x00", "trailing"),
        (b"\x01\x95\xa1\xff", "damaged"),
        (b"\x01" + encode_group(SAMPLE)[1:].replace(b"\xa4east", b"\xc4\x03abc"), r"damaged.*\$\[4\]\[1\]\[1\]"),
        (b"\x01\x96" + encode_group(SAMPLE)[2:] + b"\x91" * 100_000, "damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_named(raw: bytes, text: str):
    with pytest.raises(DataError, match=text):
        decode_group(raw)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (group(member("a", {1: 5}), member("a", {2: 6})), "group 'billing' is damaged: member 'a' is there twice"),
        (
            group(member("a", {}, static="x"), member("b", {}, static="x")),
            "static member 'x' is there twice",
        ),
        (group(member("a", {1: 5}), member("b", {1: 6})), "partition 1 is there twice"),
        (group(member("a", {1: 5}), member("b", {2: 5})), "ownership 5 is there twice"),
        (group(member("a", {1: 301})), "member 'a' has an ownership outside 1 to 300"),
        (group(member("a", {1: 0})), "outside 1 to 300"),
        (group(member("a", {1: 5}, 2)), "member 'a' is asked for a partition that it does not own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_one_group_can_never_look_like_is_refused(state: GroupState, text: str):
    with pytest.raises(DataError, match=text):
        decode_group(encode_group(state))


@given(st.data())
def test_no_damage_does_more_than_be_refused(data: st.DataObject):
    raw = bytearray(encode_group(SAMPLE))
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        raw[data.draw(st.integers(min_value=0, max_value=len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(min_value=0, max_value=len(raw)))])
    try:
        state = decode_group(cut)
    except DataError:
        return
    assert decode_group(encode_group(state)) == state
