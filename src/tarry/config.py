"""Options that users set: frozen pydantic models that forbid unknown fields and name the allowed range.

Only this module (and value codecs) imports pydantic. Not here: names and starts (`types`), fixed limits of the log
(`abc.Limits`).
"""

from __future__ import annotations

import math
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Never, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from tarry.errors import ConfigError, ConfigTypeError
from tarry.types import CommitMode

KIB = 1024
MIB = 1024 * KIB
WIRE_WAIT_MAX = 600.0
"""Longest wait that may be asked for (C3); the log itself parks at most 30 s at a time (S3) and is asked again."""
COUNT_MAX = 10_000
RECORD_BYTES_MAX = 16 * MIB
STORED_MAX = 2**63 - 1
"""The largest whole number that the file of a log can hold."""

BESIDE = {
    "ConsumerOptions": (
        *("group", "member", "name", "partitions", "poll", "start", "commit"),
        *("on_assigned", "on_revoked", "value_type"),
    ),
    "ProducerOptions": ("partitioner", "value_type"),
    "LogOptions": ("instruments",),
}
"""What else the methods take that take these options."""

_TYPE_ERRORS = frozenset(("_type", "_parsing", "is_instance_of", "int_from_float", "literal_error_type"))


def _seconds(value: object) -> object:
    """Durations are float seconds or a timedelta; a bool or a text is neither."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def _as_seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value


def check_seconds(option: str, given: float | timedelta, most: float = math.inf) -> float:
    """Return a duration that is given as a plain argument in seconds.

    Raises:
        ConfigError: it is none, below 0 or above `most`; names the option, the value and the range.
    """
    seconds = _as_seconds(given)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigTypeError(f"{option}={given!r}: seconds as a number, or a timedelta")
    if not 0 <= seconds <= most:
        limits = "0 or more" if most == math.inf else f"0 to {most:,.10g}"
        raise ConfigError(f"{option}={given!r}: {limits} seconds")
    return float(seconds)


Seconds = Annotated[float, BeforeValidator(_seconds), Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True)]


class Options(BaseModel):
    """Base of all option models: raises `ConfigError` instead of pydantic's error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, *unnamed: Never, **values: Any) -> None:
        if unnamed:
            raise _unnamed(type(self), unnamed)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(type(self), error) from None


def _unnamed(options: type[Options], given: tuple[object, ...]) -> ConfigTypeError:
    """Options have no order that anybody would know."""
    name, first = options.__name__, next(iter(options.model_fields))
    example = "AutoCommit.finished()" if options is AutoCommit else f"{name}({first}={given[0]!r})"
    return ConfigTypeError(f"{name}({', '.join(map(repr, given))}): options are given by name, for example {example}")


def config_error(options: type[Options], error: ValidationError) -> ConfigError:
    """Translate pydantic's error: field, value, allowed range; a wrong type gives a `ConfigTypeError` (design 10)."""
    name = options.__name__
    problems: list[str] = []
    wrong_type = False
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or name
        if item["type"] == "extra_forbidden":
            problems.append(_unknown_option(options, where, item["input"]))
            continue
        if item["type"] == "value_error":
            problems.append(str(item["ctx"]["error"]) if "ctx" in item else item["msg"])
            continue
        wrong_type = wrong_type or any(item["type"].endswith(end) for end in _TYPE_ERRORS)
        problems.append(
            f"{name}.{where}={item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}{_allowed(options, where)}"
        )
    kind = ConfigTypeError if wrong_type and len(problems) == 1 else ConfigError
    return kind("; ".join(problems))


def _unknown_option(options: type[Options], option: str, value: object) -> str:
    name = options.__name__
    if _is_poll_interval(option):
        return (
            f"{option}={value!r}: there is no option {option!r}; a consumer waits at the log instead of "
            "asking again and again: use max_wait and min_count (of PollOptions, or of poll())"
        )
    hint = _place_of(name, option) or _likely(options, option)
    if not hint and options is PollOptions:
        return f"{name} has the options {', '.join(options.model_fields)}, and no option {option!r}"
    return f"{name} has no option {option!r}{hint}"


def _likely(options: type[Options], option: str) -> str:
    """What may have been meant."""
    found = get_close_matches(option, [*options.model_fields, *BESIDE.get(options.__name__, ())], n=1, cutoff=0.7)
    return f"; did you mean {found[0]!r}?" if found else ""


def _place_of(name: str, option: str) -> str:
    """Where an option is given that stands elsewhere."""
    if name == ConsumerOptions.__name__ and option in PollOptions.model_fields:
        return "; it belongs to poll=PollOptions(...), or to poll()"
    if name in (ConsumerOptions.__name__, ProducerOptions.__name__) and option in LogOptions.model_fields:
        return "; it belongs to tarry.connect(...)"
    return ""


def _is_poll_interval(option: str) -> bool:
    """In any spelling, with or without a unit: `pollInterval`, `poll-interval`, `poll_interval_ms` (C12)."""
    return "".join(filter(str.isalnum, option)).casefold().startswith(("pollinterval", "pollinginterval"))


def _allowed(options: type[Options], name: str) -> str:
    """The whole range of a number, where it has one."""
    field = options.model_fields.get(name)
    limits = {} if field is None else {kind: _figure(limit) for kind, limit in bounds(field).items()}
    match limits:
        case {"gt": above, "le": most}:
            text = f"above {above}, up to {most}"
        case {"ge": least, "le": most}:
            text = f"{least} to {most}"
        case {"gt": above}:
            text = f"above {above}"
        case {"ge": least}:
            text = f"{least} or more"
        case _:
            return ""
    return f" (allowed: {text})"


def _figure(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,.10g}"


def bounds(field: FieldInfo) -> dict[str, float]:
    """The limits `gt`, `ge`, `le`, which pydantic keeps beside the field, or inside its type where that may be None."""
    parts: list[Any] = [*field.metadata, *(part for kind in get_args(field.annotation) for part in get_args(kind))]
    parts += [inner for part in parts if isinstance(part, FieldInfo) for inner in part.metadata]
    found: dict[str, float] = {}
    for part in parts:
        for name in ("gt", "ge", "le"):
            if (limit := getattr(part, name, None)) is not None:
                found[name] = limit
    return found


class PollOptions(Options):
    """How a poll waits and how much it may bring (C1-C7)."""

    count: Annotated[Count, Field(ge=1, le=COUNT_MAX)] = 1000
    """Most messages of one poll; 1 to 10,000."""
    min_count: Annotated[Count, Field(ge=1, le=COUNT_MAX)] = 1
    """Messages that end the wait early; 1 to `count`."""
    max_wait: Annotated[Seconds, Field(ge=0, le=WIRE_WAIT_MAX)] = 5.0
    """Longest wait in seconds, 0 to 600; 0 answers at once with what is there."""
    max_bytes: Annotated[Count, Field(ge=1, le=1024 * MIB)] = MIB
    """Byte budget of one reply, metadata included; a first message above it still comes, alone (C7)."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.min_count > self.count:
            raise ValueError(
                f"min_count={self.min_count} is above count={self.count}; a poll never holds more than count messages"
            )
        return self


_PERIOD_NEEDED: frozenset[CommitMode] = frozenset(("finished", "interval"))
_PERIOD_REFUSED: frozenset[CommitMode] = frozenset(("disabled", "on_poll"))
_N_NEEDED: frozenset[CommitMode] = frozenset(("every_nth", "after_nth"))


class AutoCommit(Options):
    """Who stores offsets, and when; make one with the class methods (C40-C50, design 1.1).

    `AutoCommit.interval(5.0) | AutoCommit.after_each()` has both: what was delivered is stored every 5 seconds, besides
    what the other one stores (C50).
    """

    mode: CommitMode = "disabled"
    """Which event stores an offset without `store_offset`; the names are those of the class methods."""
    period: Annotated[Seconds, Field(gt=0, le=86_400)] | None = None
    """Seconds between two stores; above 0 (C13). Beside a mode that has no timer: what was delivered is stored too."""
    n: Annotated[Count, Field(ge=1)] | None = None
    """Of `every_nth` and `after_nth`: offsets that it divides are stored; 1 or more (C45, C47)."""

    @model_validator(mode="after")
    def _check_period(self) -> Self:
        is_wrong = self.mode in (_PERIOD_NEEDED if self.period is None else _PERIOD_REFUSED)
        if is_wrong:
            needs = "takes no period" if self.period is not None else "needs a period"
            raise ValueError(
                f"mode={self.mode!r} {needs}; use AutoCommit.disabled(), .finished(1.0), .interval(5.0) or .on_poll()"
            )
        return self

    @model_validator(mode="after")
    def _check_n(self) -> Self:
        if (self.n is not None) != (self.mode in _N_NEEDED):
            needs = "takes no n" if self.n is not None else "needs an n"
            raise ValueError(f"mode={self.mode!r} {needs}; use AutoCommit.every_nth(100) or .after_nth(100)")
        return self

    def __or__(self, other: AutoCommit) -> AutoCommit:
        """An interval together with a mode that stores at hand-over or behind the handler (C50).

        Raises:
            ConfigError: of two others; one of them would have no effect.
        """
        if not isinstance(other, AutoCommit):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        timers = [one for one in (self, other) if one.mode == "interval"]
        others = [one for one in (self, other) if one.mode not in _PERIOD_NEEDED | _PERIOD_REFUSED]
        if len(timers) != 1 or len(others) != 1 or others[0].period is not None:
            raise ConfigError(
                f"{self} | {other}: only an interval can be combined, and with one mode that stores at hand-over or "
                "behind the handler, for example AutoCommit.interval(5.0) | AutoCommit.after_each()"
            )
        return AutoCommit(mode=others[0].mode, period=timers[0].period, n=others[0].n)

    def __str__(self) -> str:
        name = f"AutoCommit.{self.mode}"
        if self.mode in _PERIOD_NEEDED:
            return f"{name}({self.period:g})"
        whole = f"{name}({'' if self.n is None else self.n})"
        return whole if self.period is None else f"AutoCommit.interval({self.period:g}) | {whole}"

    @classmethod
    def disabled(cls) -> Self:
        """Nothing is stored but what `store_offset` is given, at shutdown neither (C40)."""
        return cls(mode="disabled")

    @classmethod
    def finished(cls, interval: float | timedelta = 1.0) -> Self:
        """Store what is finished every `interval` seconds and at shutdown: at least once, no offset arithmetic."""
        return cls(mode="finished", period=_as_seconds(interval))

    @classmethod
    def interval(cls, seconds: float | timedelta) -> Self:
        """Store what was *delivered* every `seconds`: a crash may lose the message in work (C41), a clean end not."""
        return cls(mode="interval", period=_as_seconds(seconds))

    @classmethod
    def on_poll(cls) -> Self:
        """The log stores a batch in the step that serves it; a clean end brings back what was not finished.

        No store costs a request, but a hard kill loses at most the one batch that was being served (C42, K01).
        """
        return cls(mode="on_poll")

    @classmethod
    def each_message(cls) -> Self:
        """Store each message when it is handed over, before any work on it: a crash may lose it (C43)."""
        return cls(mode="each_message")

    @classmethod
    def each_batch(cls) -> Self:
        """Store when the last message of a fetched list, or a whole batch of `poll`, is handed over (C44)."""
        return cls(mode="each_batch")

    @classmethod
    def every_nth(cls, n: int) -> Self:
        """Store a message whose *offset* is divisible by `n` when it is handed over (C45)."""
        return cls(mode="every_nth", n=n)

    @classmethod
    def after_each(cls) -> Self:
        """Store each message when the handler of `consume` has returned (C46); a plain loop stores at its end only."""
        return cls(mode="after_each")

    @classmethod
    def after_nth(cls, n: int) -> Self:
        """Like `after_each`, of messages whose *offset* is divisible by `n` (C47)."""
        return cls(mode="after_nth", n=n)

    @classmethod
    def after_head(cls) -> Self:
        """Like `after_each`, of a message that was the newest one when it was served: when caught up (C48)."""
        return cls(mode="after_head")


class ConsumerOptions(Options):
    """Everything about a consumer but what it reads and how it polls."""

    drain_timeout: Annotated[Seconds, Field(ge=0, le=3600)] = 5.0
    """Longest time that a shutdown or hand-over waits for the message in hand, in seconds; then again for stores."""
    buffer_messages: Annotated[Count, Field(ge=1, le=1_000_000)] | None = None
    """Most messages read ahead over all partitions; default twice the poll's `count` (Q19)."""
    buffer_bytes: Annotated[Count, Field(ge=1, le=1024 * MIB)] = 8 * MIB
    """Most bytes read ahead over all partitions, plus at most one oversized message."""
    heartbeat_interval: Annotated[Seconds, Field(gt=0, le=3600)] = 5.0
    """Seconds between two signs of life of a group's member; keep it well below the log's `session_timeout`."""
    hook_timeout: Annotated[Seconds, Field(gt=0, le=3600)] = 10.0
    """Seconds after which `on_assigned` or `on_revoked` is cut off with a warning (K55)."""
    max_processing_time: Annotated[Seconds, Field(gt=0, le=86_400)] = 300.0
    """Seconds that a member of a group may have a message or batch in hand; then it gives the partition up (K12)."""
    cool_down: Annotated[Seconds, Field(ge=0.1, le=3600)] = 1.0
    """Seconds after which a stopped partition is tried again; doubled up to 60 s each time in vain (C110)."""


class ProducerOptions(Options):
    """How a direct producer treats failures."""

    retries: Annotated[Count, Field(ge=0, le=1000)] = 3
    """Further attempts after the first one; 0: exactly one attempt (P6)."""
    retry_spacing: Annotated[Seconds, Field(gt=0, le=3600)] = 1.0
    """Seconds between two attempts, shortened by jitter to half at most; above 0 (C13)."""
    refresh_interval: Annotated[Seconds, Field(gt=0, le=3600)] = 5.0
    """Seconds after which a send looks again how many partitions the topic has (K56)."""


class TopicOptions(Options):
    """How a topic keeps its messages."""

    partitions: Annotated[Count, Field(ge=1, le=10_000)] = 1
    """Number of partitions; 1 to 10,000."""
    retention_age: Annotated[Seconds, Field(gt=0)] | None = None
    """Seconds after which a message may go; None keeps it."""
    retention_bytes: Annotated[Count, Field(ge=1, le=STORED_MAX)] | None = None
    """Bytes per partition above which the oldest messages go, the newest too if alone above it; None: no limit."""
    max_record_bytes: Annotated[Count, Field(ge=1, le=RECORD_BYTES_MAX)] = MIB
    """Largest encoded record; 1 byte to 16 MiB."""


class LogOptions(Options):
    """How the embedded log writes and caches."""

    durability: Literal["full", "normal", "memory"] = "full"
    """`full`: receipts survive a power cut; `normal`: the newest may be lost; `memory`: a crash may lose the file."""
    busy_timeout: Annotated[Seconds, Field(ge=0, le=3600)] = 10.0
    """How long a foreign write lock is waited for, in seconds, before `LogBusy` (K14)."""
    resident_bytes: Annotated[Count, Field(ge=0, le=1024 * MIB)] = 64 * MIB
    """Memory for recent batches; polls they satisfy never touch the disk."""
    queue_bytes: Annotated[Count, Field(ge=1, le=1024 * MIB)] = 32 * MIB
    """Appends that may queue before callers wait (W4)."""
    wal_warn_bytes: Annotated[Count, Field(ge=64 * KIB)] = 32 * MIB
    """Size of the write-ahead file above which one warning is logged (K26)."""
    retention_interval: Annotated[Seconds, Field(gt=0, le=86_400)] = 30.0
    """Seconds between two retention passes."""
    max_wait: Annotated[Seconds, Field(gt=0, le=WIRE_WAIT_MAX)] = 30.0
    """Longest time the log parks one request; longer waits are asked again (S3)."""
    session_timeout: Annotated[Seconds, Field(gt=0, le=3600)] = 30.0
    """Seconds without a sign of life after which a member of a group is evicted."""
    rebalance_timeout: Annotated[Seconds, Field(gt=0, le=3600)] = 30.0
    """Seconds that a member has to give up a partition that is wanted back; then it is taken (S68)."""
