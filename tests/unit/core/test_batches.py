"""Where records are cut into batches: by count, by bytes, a larger record alone."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tarry._core.batches import cut_batches
from tests.marks import rule

SIZES = st.lists(st.integers(min_value=1, max_value=30), max_size=40)


@rule("P9")
@given(SIZES, st.integers(min_value=1, max_value=8), st.integers(min_value=1, max_value=60))
def test_batches_are_as_large_as_the_limits_allow(sizes: list[int], count_max: int, bytes_max: int) -> None:
    ranges = cut_batches(sizes, count_max=count_max, bytes_max=bytes_max)
    assert [index for cut in ranges for index in cut] == list(range(len(sizes)))  # all, once, in order
    for cut in ranges:
        assert 1 <= len(cut) <= count_max
        assert len(cut) == 1 or sum(sizes[index] for index in cut) <= bytes_max
    for cut, after in pairwise(ranges):  # the next record had no room
        assert len(cut) == count_max or sum(sizes[index] for index in [*cut, after[0]]) > bytes_max


def test_a_record_above_the_limit_makes_a_batch_of_its_own() -> None:
    assert cut_batches([10, 500, 10, 10], count_max=10, bytes_max=100) == [range(1), range(1, 2), range(2, 4)]


def test_nothing_makes_no_batch() -> None:
    assert cut_batches([], count_max=1, bytes_max=1) == []
