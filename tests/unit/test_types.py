"""Names, starts, messages and batches as values."""

from __future__ import annotations

import os
import pickle
import time
import unicodedata
from collections.abc import Generator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry._wire.batch import decode, encode_record, seal
from tarry.errors import ConfigError, ConfigTypeError, InvalidName
from tarry.types import (
    NAME_BYTES_MAX,
    Batch,
    HistoryId,
    Message,
    Offset,
    Origin,
    Ownership,
    Position,
    Receipt,
    Run,
    Segment,
    ShutdownReport,
    Start,
    StartKind,
    TopicPartition,
    check_name,
    check_topic,
    offset_before,
    position_after,
)
from tests.marks import rule

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class TestNames:
    @rule("K104")
    @pytest.mark.parametrize("name", ["løp-日本", "グループ", "a b.c:d*>", "😀", "x", "é" * 127])
    def test_any_text_without_control_characters_is_a_name_and_stays_as_it_is(self, name: str):
        assert check_name("topic name", name) == name
        assert check_topic(name) == name

    @rule("K104")
    @pytest.mark.parametrize(("name", "size"), [("a" * 255, 255), ("é" * 127 + "a", 255), ("日" * 85, 255)])
    def test_lengths_count_bytes(self, name: str, size: int):
        assert len(name.encode()) == size == NAME_BYTES_MAX
        assert check_topic(name) == name
        with pytest.raises(InvalidName, match=r"256 bytes of UTF-8 long; at most 255"):
            check_topic(name + "a")
        with pytest.raises(InvalidName, match=r"257 bytes"):
            check_name("consumer name", name + "é")

    @rule("K104")
    def test_composed_and_decomposed_letters_are_two_names(self):
        composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
        assert check_topic(composed) == composed
        assert check_topic(decomposed) == decomposed
        assert check_topic(composed) != check_topic(decomposed)

    @rule("K104")
    @pytest.mark.parametrize("code", [0x00, 0x09, 0x0A, 0x0D, 0x1F, 0x7F, 0x80, 0x9F, 0xD800, 0xDFFF])
    def test_a_control_character_is_named(self, code: int):
        with pytest.raises(InvalidName, match=rf"^consumer name .* U\+{code:04X}; control characters"):
            check_name("consumer name", f"a{chr(code)}b")

    @pytest.mark.parametrize("code", [0x20, 0x7E, 0xA0, 0xD7FF, 0xE000, 0x10FFFF])
    def test_what_lies_beside_the_control_characters_is_allowed(self, code: int):
        assert check_name("topic name", chr(code)) == chr(code)

    def test_nothing_is_no_name(self):
        with pytest.raises(InvalidName, match="topic name must not be empty"):
            check_topic("")

    @pytest.mark.parametrize("name", [b"orders", None, 7, ["orders"], True])
    def test_a_name_is_a_str(self, name: object):
        with pytest.raises(InvalidName, match=f"must be a str, not {type(name).__name__}"):
            check_topic(name)

    def test_one_slash_parts_stream_and_topic(self):
        assert check_topic("shop/orders") == "shop/orders"
        assert check_topic("default/orders") == check_topic("orders") == "orders"
        assert check_topic("defaults/orders") == "defaults/orders"
        with pytest.raises(InvalidName, match="holds 2 slashes; at most one"):
            check_topic("a/b/c")
        for name in ("/", "/orders", "shop/", "default/"):
            with pytest.raises(InvalidName, match="must not be empty"):
                check_topic(name)

    @given(st.text())
    def test_whatever_is_accepted_is_valid_utf8_within_the_limit(self, name: str):
        try:
            checked = check_name("topic name", name)
        except InvalidName:
            assert not name or len(name.encode(errors="surrogatepass")) > NAME_BYTES_MAX or _has_control(name)
        else:
            assert checked == name
            assert 1 <= len(name.encode()) <= NAME_BYTES_MAX


def _has_control(name: str) -> bool:
    return any(unicodedata.category(character) in {"Cc", "Cs"} for character in name)


class TestPositions:
    def test_between_offsets_and_positions(self):
        assert position_after(Offset(0)) == 1
        assert offset_before(Position(1)) == 0
        assert offset_before(Position(0)) is None, "unknown is None, never 0"


@pytest.fixture
def zone(request: pytest.FixtureRequest) -> Generator[str]:
    """Run with this time zone as the machine's own."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


class TestStart:
    def test_each_form(self):
        assert (Start.first().kind, Start.end().kind, Start.last().kind) == (
            StartKind.FIRST,
            StartKind.END,
            StartKind.LAST,
        )
        assert (Start.offset(7).kind, Start.offset(7).value) == (StartKind.OFFSET, 7)
        assert Start.offset(0).value == 0
        assert [str(start) for start in (Start.next(), Start.offset(3))] == ["Start.next()", "Start.offset(3)"]

    def test_next_says_what_happens_without_a_stored_offset(self):
        assert Start.next().otherwise == Start.next(otherwise=Start.first()).otherwise == "first"
        assert Start.next(otherwise=Start.end()).otherwise == "end"
        assert Start.next(otherwise="fail").otherwise == "fail"
        assert str(Start.next(otherwise=Start.first())) == "Start.next()"
        assert str(Start.next(otherwise=Start.end())) == "Start.next(otherwise=Start.end())"
        assert str(Start.next(otherwise="fail")) == "Start.next(otherwise='fail')"
        for wrong in (Start.last(), Start.offset(0), Start.next(), "first", 0):
            with pytest.raises(ConfigError, match=r"use Start\.first\(\), Start\.end\(\) or 'fail'"):
                Start.next(otherwise=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("offset", [True, 1.0, "1", None])
    def test_an_offset_is_an_int(self, offset: Any):
        with pytest.raises(TypeError, match=r"Start\.offset takes an int, not"):
            Start.offset(offset)

    def test_an_offset_is_not_negative(self):
        with pytest.raises(ConfigError, match=r"below 0; for the newest messages use Start\.last"):
            Start.offset(-1)

    @rule("K103")
    @pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"], indirect=True)
    def test_a_time_is_the_same_instant_wherever_the_machine_stands(self, zone: str):
        ten_oh_one = 1_710_064_860_000
        assert Start.timestamp(datetime(2024, 3, 10, 10, 1, tzinfo=UTC)).value == ten_oh_one
        there = datetime(2024, 3, 10, 12, 1, tzinfo=timezone(timedelta(hours=2)))
        assert Start.timestamp(there).value == ten_oh_one
        assert Start.timestamp(there.astimezone()).value == ten_oh_one
        message = Message(b"", None, (), ten_oh_one)
        assert message.timestamp == there
        assert message.timestamp.tzinfo is UTC

    @rule("K103")
    def test_both_hours_of_a_clock_change_are_told_apart(self):
        new_york = ZoneInfo("America/New_York")
        first, second = (datetime(2024, 11, 3, 1, 30, tzinfo=new_york, fold=fold) for fold in (0, 1))
        values = [Start.timestamp(moment).value for moment in (first, second)]
        assert values == [1_730_611_800_000, 1_730_615_400_000]
        spring = datetime(2024, 3, 10, 1, 59, 59, tzinfo=new_york), datetime(2024, 3, 10, 3, 0, tzinfo=new_york)
        before, after = (Start.timestamp(moment).value for moment in spring)
        assert before is not None
        assert after == before + 1000

    @rule("K103")
    def test_a_time_without_a_zone_raises(self):
        with pytest.raises(ValueError, match="has no time zone; use"):
            Start.timestamp(datetime(2024, 3, 10, 10, 1))  # noqa: DTZ001  # what is refused

    @rule("K103")
    @pytest.mark.parametrize("moment", [1_710_064_860, 1_710_064_860.5, "2024-03-10T10:01Z", date(2024, 3, 10), None])
    def test_a_number_does_not_say_its_unit(self, moment: Any):
        with pytest.raises(TypeError, match="takes an aware datetime, not") as refused:
            Start.timestamp(moment)
        assert isinstance(refused.value, ConfigTypeError)
        assert repr(moment) in str(refused.value)

    @given(st.datetimes(timezones=st.timezones(), min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)))  # noqa: DTZ001
    def test_a_time_begins_at_the_first_millisecond_that_is_not_before_it(self, moment: datetime):
        value = Start.timestamp(moment).value
        assert value is not None
        begin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
        assert timedelta(0) <= begin - moment.astimezone(UTC) < timedelta(milliseconds=1)


def segment(
    partition: TopicPartition, base: int, *values: bytes | None, head: int = 99, ownership: int = 0, history: int = 5
) -> Segment:
    batch = seal([encode_record(value, None, (), 1000) for value in values], [1000] * len(values))
    origin = Origin(partition, Offset(head), Ownership(ownership), HistoryId(history))
    return Segment(origin, (Run(Offset(base), batch, 0, len(values)),))


class TestMessage:
    def test_where_it_comes_from(self):
        (message,) = decode(segment(P1, 7, b"v", head=20, ownership=3))
        assert (message.topic, message.partition, message.topic_partition) == ("orders", 1, P1)
        assert (message.offset, message.head, message.ownership, message.value) == (7, 20, 3, b"v")

    def test_is_frozen(self):
        (message,) = decode(segment(P0, 0, b"v"))
        with pytest.raises(AttributeError):
            message.offset = Offset(8)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    def test_goes_to_another_process(self):
        (message,) = decode(segment(P1, 7, b"v", head=20, ownership=3))
        copied = pickle.loads(pickle.dumps(message))
        assert copied == message
        assert copied.topic_partition == P1

    @rule("K103")
    def test_times_are_aware_and_exact(self):
        assert Message(b"", None, (), 0).timestamp == datetime(1970, 1, 1, tzinfo=UTC)
        assert Message(b"", None, (), -1).timestamp == datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
        assert Message(b"", None, (), 1_710_064_860_001).timestamp.microsecond == 1000


class TestBatch:
    def make(self) -> tuple[Batch, list[Segment]]:
        """A batch of three segments, and the segments decoded so far."""
        decoded: list[Segment] = []

        def note(one: Segment) -> list[Message]:
            decoded.append(one)
            return decode(one)

        segments = (segment(P0, 10, b"a", b"b"), segment(P1, 0, b"c"), segment(P0, 12, b"d"))
        return Batch(segments, "count", note), decoded

    def test_costs_nothing_until_it_is_looked_at(self):
        batch, decoded = self.make()
        assert len(batch) == 4
        assert batch.offsets == {P0: (10, 12), P1: (0, 0)}
        assert repr(batch) == "<Batch of 4 (count): orders[0]:10-12, orders[1]:0-0>"
        assert batch
        assert (batch.reason, [one.count for one in batch.segments]) == ("count", [2, 1, 1])
        assert decoded == []

    def test_iterating_decodes_a_segment_when_it_is_reached(self):
        batch, decoded = self.make()
        messages = iter(batch)
        assert next(messages).value == b"a"
        assert len(decoded) == 1
        assert [message.value for message in messages] == [b"b", b"c", b"d"]
        assert [(message.partition, message.offset) for message in batch] == [(0, 10), (0, 11), (1, 0), (0, 12)]

    def test_is_a_sequence(self):
        batch, decoded = self.make()
        assert (batch[0].value, batch[-1].value) == (b"a", b"d")
        assert [message.value for message in batch[1:3]] == [b"b", b"c"]
        assert len(decoded) == 3, "decoded once"
        with pytest.raises(IndexError):
            batch[4]
        assert batch[2] in batch
        assert batch.index(batch[3]) == 3
        assert [message.value for message in reversed(batch)] == [b"d", b"c", b"b", b"a"]
        assert len(decoded) == 3

    @rule("K101")
    def test_nothing_is_an_empty_sequence(self):
        empty = Batch((), "wait", decode)
        assert empty == []
        assert empty == ()
        assert empty == []
        assert (len(empty), list(empty), bool(empty), empty.offsets) == (0, [], False, {})
        assert repr(empty) == "<Batch of 0 (wait)>"

    def test_compares_with_any_sequence_of_messages(self):
        batch, _ = self.make()
        again, _ = self.make()
        assert batch == again
        assert batch == list(again)
        assert batch != list(again)[1:]
        assert batch != "text"
        with pytest.raises(TypeError):
            hash(batch)


class TestReports:
    def test_a_receipt_names_its_partition(self):
        assert Receipt("orders", 1, Offset(5)).topic_partition == P1

    def test_a_shutdown_report_reads_as_lines(self):
        report = ShutdownReport({P1: None, P0: Offset(4)}, {P0: 2}, {P1: 1})
        assert str(report).splitlines() == [
            "orders[0]: committed 4, rewound 2, unfinished 0",
            "orders[1]: committed nothing, rewound 0, unfinished 1",
        ]
        assert str(ShutdownReport({}, {}, {})) == "no partitions"


def test_a_message_shows_what_people_look_for() -> None:
    """Place, value and key, long ones cut; nothing of the machinery."""
    origin = Origin(TopicPartition("orders", 1), Offset(9))
    assert repr(Message(b"a cup", b"k", (), 0, Offset(5), origin)) == "<Message orders[1]:5 value=b'a cup' key=b'k'>"
    long = repr(Message(b"x" * 100, None, (("h", b""),), 0, Offset(6), origin))
    assert long == f"<Message orders[1]:6 value={b'x' * 40!r}... (100 bytes) headers=(('h', b''),)>"
    assert repr(Message(None, None, (), 0, Offset(7), origin)) == "<Message orders[1]:7 value=None>"
