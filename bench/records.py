"""The record that every case writes and reads: a value of 200 bytes, a key of 10, no headers."""

from __future__ import annotations

TOPIC = "bench"
VALUE = bytes(range(97, 117)) * 10
BATCH = 1000


def key(number: int) -> bytes:
    """The key of a message."""
    return b"k%09d" % number
