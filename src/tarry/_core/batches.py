"""Where records are cut into batches (P8, P9, P14 as overruled): by count and by bytes, a larger record alone."""

from __future__ import annotations

from collections.abc import Sequence


def cut_batches(sizes: Sequence[int], *, count_max: int, bytes_max: int) -> list[range]:
    """Index ranges of consecutive records that fit into one batch each.

    Args:
        sizes: encoded bytes of each record.
        count_max, bytes_max: limits of a batch, at least 1; a record above `bytes_max` makes a batch by itself.
    """
    ranges: list[range] = []
    first = size = 0
    for index, record in enumerate(sizes):
        if index > first and (index - first >= count_max or size + record > bytes_max):
            ranges.append(range(first, index))
            first, size = index, 0
        size += record
    if first < len(sizes):
        ranges.append(range(first, len(sizes)))
    return ranges
