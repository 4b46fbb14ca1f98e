"""Events of tarry, and where they go: the standard log, counters, and whatever an application registers.

An event is a short constant name with fields. Payloads never appear in one. Prometheus and OpenTelemetry come with a
later part; they are instruments like any other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from tarry.abc import Instrument

logging.getLogger("tarry").addHandler(logging.NullHandler())


class Instruments:
    """Fans events out. One per client; loggers are named after the emitting part (`tarry.consumer`, ...)."""

    def __init__(self, *instruments: Instrument) -> None:
        self._instruments = list(instruments)
        self.counts: Counter[str] = Counter()

    def emit(self, event: str, **fields: object) -> None:
        """Count an event and pass it on; an instrument that raises is logged once and dropped."""
        self.counts[event] += 1
        for instrument in list(self._instruments):
            _call(self._instruments, instrument, event, fields)

    def part(self) -> Instruments:
        """Instruments of one part: it counts its own events, and passes them on to these."""
        return Instruments(lambda event, fields: self.emit(event, **fields))

    def warn(
        self, logger: str, event: str, message: str, *, cause: BaseException | None = None, **fields: object
    ) -> None:
        """Emit an event and log it as a warning for people, with the traceback of a `cause`."""
        logging.getLogger(f"tarry.{logger}").warning("%s", message, exc_info=cause)
        self.emit(event, **fields)


def _call(instruments: list[Instrument], instrument: Instrument, event: str, fields: Mapping[str, object]) -> None:
    try:
        instrument(event, fields)
    except Exception:
        instruments.remove(instrument)
        logging.getLogger("tarry.instruments").exception("instrument %r failed on %s and is dropped", instrument, event)
