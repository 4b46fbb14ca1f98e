"""Which partition a message goes to (P4): by key as Kafka's Java client does it, without a key in turn."""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed, unsigned 32 bits: the same for equal bytes in every process and language (K63)."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for index in range(0, whole, 4):
        k = (int.from_bytes(data[index : index + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if length & 3:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Partition of a key: the hash without its sign bit, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
