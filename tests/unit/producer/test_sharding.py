"""Which partition a key goes to: the same everywhere, and as Kafka's Java client has it."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tarry.producer.sharding import murmur2, partition_of
from tests.marks import rule

UMLAUTS = "thingäöüÄÖÜ".encode()


@rule("K63", "P4")
@pytest.mark.parametrize(
    ("key", "partitions", "expected"),
    [(b"100:48069", 12, 9), (b"wu", 10, 0), (UMLAUTS, 10, 2), (b"TT0124", 15, 10)],
)
def test_a_key_goes_where_java_sends_it(key: bytes, partitions: int, expected: int) -> None:
    """The values of the Java client; the last one is 3 if the sign bit is not masked."""
    assert partition_of(key, partitions) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 275646681),
        (b"21", -973932308),
        (b"abc", 479470107),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)
def test_the_hash_is_murmur2_with_the_seed_of_kafka(data: bytes, expected: int) -> None:
    """Every length modulo 4, against the values of Kafka's own test."""
    assert murmur2(data) == expected % 2**32


@rule("K63")
def test_every_process_agrees_whatever_its_hash_seed() -> None:
    """Three processes with different seeds of Python's own hash put 1,004 keys into the same partitions."""
    program = (
        "import random; from tarry.producer.sharding import partition_of; chance = random.Random(5);"
        "keys = [b'100:48069', b'wu', 'thing\\u00e4\\u00f6\\u00fc\\u00c4\\u00d6\\u00dc'.encode(), b''];"
        "keys += [chance.randbytes(chance.randrange(40)) for _ in range(1000)];"
        "print([partition_of(key, 12) for key in keys])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    chance = random.Random(5)
    keys = [b"100:48069", b"wu", UMLAUTS, b"", *(chance.randbytes(chance.randrange(40)) for _ in range(1000))]
    assert answers == {f"{[partition_of(key, 12) for key in keys]}\n"}
