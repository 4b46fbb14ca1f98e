"""How many messages a reader gets before the event loop has its turn."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tarry._core.pace import MOST, TURN_S, Pace
from tests.marks import rule


def work(pace: Pace, per_message_s: float, lists: int, now: float = 0.0, most: int = 1000) -> list[int]:
    """How many messages each of so many lists has, for a body that takes so long for each."""
    sizes: list[int] = []
    for _ in range(lists):
        sizes.append(min(pace.count, most))
        pace.gave(sizes[-1], now)
        now += sizes[-1] * per_message_s
        pace.done(now)
    return sizes


@rule("K18")
def test_a_slow_body_gets_one_message_at_a_time():
    assert work(Pace(), 0.1, 5) == [1, 1, 1, 1, 1]


@rule("K18")
def test_a_fast_one_soon_gets_whole_lists():
    assert work(Pace(), 0.000001, 12) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]
    assert work(Pace(), 0.0, 12)[-1] == 1000


@rule("K18")
def test_one_in_between_gets_what_it_does_in_a_turn():
    assert work(Pace(), TURN_S / 50.5, 12)[-5:] == [50] * 5


@rule("K18")
def test_one_that_becomes_slow_is_noticed_with_its_next_list():
    pace = Pace()
    work(pace, 0.0, 10)
    assert work(pace, TURN_S / 5.5, 3, most=100) == [100, 5, 5]


@rule("K18")
def test_what_was_not_given_takes_no_time():
    pace = Pace()
    pace.done(5.0)
    assert pace.count == 1
    pace.gave(1, 5.0)
    pace.done(5.0)
    pace.done(100.0)
    assert pace.count == 2


@rule("K18")
@given(st.lists(st.floats(min_value=0, max_value=1000), min_size=1, max_size=60))
def test_it_is_never_less_than_one_and_at_most_doubles(times: list[float]) -> None:
    pace, now, counts = Pace(), 0.0, [1]
    for seconds in times:
        given_out = pace.count
        pace.gave(given_out, now)
        now += seconds
        pace.done(now)
        counts.append(pace.count)
        assert pace.count <= max(1, given_out * TURN_S / seconds * (1 + 1e-6)) if seconds > 1e-3 else True
    assert all(1 <= after <= min(2 * before, MOST) for before, after in pairwise(counts))
