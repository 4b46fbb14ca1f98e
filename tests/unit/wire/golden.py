"""The pinned bytes in tests/golden: one `name: hex` per line, comments begin with #."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden"


def golden(name: str) -> dict[str, bytes]:
    """The bytes of one file by their name."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":", 1) for line in lines if line and not line.startswith("#"))
    return {key: bytes.fromhex(value) for key, value in pairs}
