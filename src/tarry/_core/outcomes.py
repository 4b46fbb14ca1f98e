"""What an error of a database proves about the transaction that it broke (W9-W11, W23).

An allow-list: only what is known to undo everything counts as a proof of that; anything else proves nothing. By
SQLite's primary result codes, which never change. Not here: what is done about it (the writers).
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Verdict(Enum):
    """What an error says about its transaction."""

    BUSY = "somebody else holds the write lock; nothing was applied"
    FULL = "no space; a rollback undoes all of it"
    REFUSED = "this statement is not possible; a rollback undoes all of it"
    BROKEN = "the connection can no longer be trusted; proves nothing"


ERROR, PERM, BUSY, LOCKED, READONLY, IOERR, CORRUPT, FULL, TOOBIG, CONSTRAINT, MISMATCH, AUTH, RANGE = (
    1, 3, 5, 6, 8, 10, 11, 13, 18, 19, 20, 23, 25
)  # fmt: skip

_VERDICTS: Final = {
    BUSY: Verdict.BUSY,
    LOCKED: Verdict.BUSY,
    FULL: Verdict.FULL,
    CONSTRAINT: Verdict.REFUSED,
    ERROR: Verdict.REFUSED,
    TOOBIG: Verdict.REFUSED,
    MISMATCH: Verdict.REFUSED,
    RANGE: Verdict.REFUSED,
    READONLY: Verdict.REFUSED,
    AUTH: Verdict.REFUSED,
    PERM: Verdict.REFUSED,
}


def verdict(code: int | None) -> Verdict:
    """The verdict on a result code, extended or primary; None: the error did not come from the database itself."""
    return Verdict.BROKEN if code is None else _VERDICTS.get(code & 0xFF, Verdict.BROKEN)
