"""What tests pass to the tools, checked before anything happens: a fault that never strikes makes a test worth nothing.

Errors say what was passed and what is allowed.
"""

from __future__ import annotations

from tarry.errors import ConfigError, ConfigTypeError

SECONDS_MAX = 1e9
"""Longest time that a tool of these takes, some thirty years; what is infinite is no time."""


def check_share(name: str, given: object) -> None:
    """Refuse what is no share of calls, from 0 to 1."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise ConfigTypeError(f"{name}={given!r}: a share is a number between 0 and 1, not {type(given).__name__}")
    if not 0 <= given <= 1:
        raise ConfigError(f"{name}={given!r}: a share lies between 0 and 1")


def check_int(name: str, given: object, low: int | None = None, high: int | None = None) -> None:
    """Refuse what is no whole number of a range."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigTypeError(f"{name}={given!r}: it takes an int, not {type(given).__name__}")
    if (low is not None and given < low) or (high is not None and given > high):
        raise ConfigError(f"{name}={given!r}: {low} {'or more' if high is None else f'to {high}'}")


def check_is(name: str, given: object, kind: type[object]) -> None:
    """Refuse what is not of a type."""
    if not isinstance(given, kind):
        raise ConfigTypeError(f"{name}={given!r}: it takes a {kind.__name__}, not {type(given).__name__}")


def check_function(name: str, given: object) -> None:
    """Refuse what cannot be called."""
    if not callable(given):
        raise ConfigTypeError(f"{name}={given!r}: it takes a function, not {type(given).__name__}")
