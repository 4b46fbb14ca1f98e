"""Back-off: doubling, cap, jitter, reset, a hint as the minimum. C92 as far as one client needs it now."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tarry._core.backoff import LINE_S, Backoff, Lines, Refusals
from tests.marks import rule


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff()
    assert [backoff.next() for _ in range(8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_success_starts_again() -> None:
    backoff = Backoff(first_s=1.0, max_s=10.0)
    assert [backoff.next() for _ in range(3)] == [1.0, 2.0, 4.0]
    assert backoff.attempts == 3
    backoff.reset()
    assert backoff.attempts == 0
    assert backoff.next() == 1.0


def test_a_hint_of_the_other_side_is_the_minimum() -> None:
    backoff = Backoff(random=lambda: 0.5)
    assert backoff.next(at_least=3.0) == 3.0
    assert backoff.next(at_least=0.01) == 0.05


def test_a_hundred_thousand_refusals_do_not_overflow() -> None:
    backoff = Backoff()
    for _ in range(100_000):
        backoff.next()
    assert backoff.next() == 2.0


@rule("C54")
def test_of_many_things_the_first_has_a_line_and_then_one_in_ten_seconds_with_the_number_of_all() -> None:
    lines = Lines()
    assert lines.note(100.0) == 1
    assert [lines.note(100.0 + each) for each in range(1, 10)] == [None] * 9
    assert lines.note(109.99) is None
    assert lines.note(110.0) == 11
    assert lines.note(110.1) is None
    assert lines.note(500.0) == 2


@rule("C54")
@given(st.lists(st.floats(min_value=0, max_value=5), min_size=1, max_size=50))
def test_lines_leave_nothing_uncounted_and_are_never_closer_than_that(gaps: list[float]) -> None:
    lines, counted, written = Lines(), 0, list[float]()
    for number, now in enumerate(accumulate(gaps), start=1):
        count = lines.note(now)
        if count is not None:
            written.append(now)
            counted += count
            assert counted == number
    assert written
    assert all(after - before >= LINE_S for before, after in pairwise(written))


@given(st.lists(st.floats(min_value=0, max_value=1, exclude_max=True), min_size=1, max_size=20))
def test_jitter_is_full_and_stays_below_the_ceiling(shares: list[float]) -> None:
    chances = iter(shares)
    backoff = Backoff(first_s=0.5, max_s=4.0, random=lambda: next(chances))
    for attempt, share in enumerate(shares):
        assert backoff.next() == min(0.5 * 2**attempt, 4.0) * share


class TestRefusals:
    @rule("C91")
    def test_the_reader_is_told_of_each_refusal_once_the_limit_is_over(self) -> None:
        refusals = Refusals(limit_s=10.0, random=lambda: 0.5)
        assert [refusals.note(now).is_overdue for now in (0.0, 5.0, 9.9, 10.0, 11.0)] == [
            False,
            False,
            False,
            True,
            True,
        ]
        refusals.reset()
        assert [refusals.note(now).is_overdue for now in (12.0, 21.9, 22.0)] == [False, False, True]

    @rule("C91")
    def test_a_refusal_about_something_else_begins_a_new_series(self) -> None:
        refusals = Refusals(limit_s=10.0, random=lambda: 0.5)
        notes = [(0.0, 1), (9.0, 1), (11.0, 2), (20.0, 2), (22.0, None), (31.0, None), (32.0, None)]
        assert [refusals.note(now, about).is_overdue for now, about in notes] == [False] * 6 + [True]

    @rule("C91", "C92")
    def test_a_refusal_long_after_another_one_begins_a_new_series(self) -> None:
        refusals = Refusals(limit_s=10.0, random=lambda: 1.0)
        notes = [refusals.note(now) for now in (0.0, 59.9, 3600.0, 3609.9, 3610.0)]
        assert [noted.is_overdue for noted in notes] == [False, True, False, False, True]
        refusals.pause()
        refusals.pause()
        refusals.note(7200.0)
        assert (refusals.count, refusals.pause()) == (0, 0.05)

    @rule("C92")
    def test_the_first_refusal_is_logged_and_then_one_line_in_ten_seconds_with_their_number(self) -> None:
        refusals = Refusals(limit_s=10.0, random=lambda: 0.5)
        lines = [refusals.note(now).line for now in (0.0, 0.1, 0.3, 9.0, 10.0, 12.0, 19.9, 20.0)]
        assert lines == [1, None, None, None, 4, None, None, 3]
        refusals.reset()
        assert refusals.note(21.0).line == 1

    @rule("C92")
    def test_pauses_double_and_start_over_after_a_success(self) -> None:
        refusals = Refusals(limit_s=10.0, random=lambda: 1.0)
        assert [refusals.pause() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
        assert refusals.count == 7
        refusals.reset()
        assert (refusals.pause(), refusals.count) == (0.05, 1)
