"""Tools to test code that uses tarry, and tarry itself: virtual time. Nothing in `tarry` imports this package."""

from tarry.testing.virtual_time import Backend, Deadlock, VirtualClock, run_virtual

__all__ = ["Backend", "Deadlock", "VirtualClock", "run_virtual"]
