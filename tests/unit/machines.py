"""How long a state machine is tried: a run of 50 steps is more than one example of a plain property."""

from __future__ import annotations

from hypothesis import settings

HALF = settings(max_examples=settings().max_examples // 2)
"""Half of the profile's examples."""
