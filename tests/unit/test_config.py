"""Options: defaults, ranges, and errors that name field, value and range."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import tarry
from tarry import config
from tarry.client import ConsumerArguments, ProducerArguments
from tarry.config import AutoCommit, ConsumerOptions, LogOptions, Options, PollOptions, ProducerOptions, TopicOptions
from tarry.errors import ConfigError, ConfigTypeError, UsageError
from tests.marks import rule

MODELS: list[type[Options]] = [PollOptions, AutoCommit, ConsumerOptions, ProducerOptions, TopicOptions, LogOptions]


def make(model: type[Options], **values: Any) -> Any:
    """As a program without type checks would do it."""
    return model(**values)


@rule("C1")
def test_defaults_of_a_poll():
    options = PollOptions()
    assert (options.count, options.min_count, options.max_wait, options.max_bytes) == (1000, 1, 5.0, 1_048_576)


@rule("C9")
def test_a_consumer_waits_and_stores_nothing_by_default():
    assert PollOptions().max_wait > 0
    assert AutoCommit().mode == AutoCommit.disabled().mode == "disabled"


@rule("C3", "C1")
@pytest.mark.parametrize(
    ("field", "lowest", "highest"), [("count", 1, 10_000), ("max_wait", 0, 600), ("max_bytes", 1, 1024**3)]
)
def test_limits_of_a_poll(field: str, lowest: int, highest: int):
    for value in (lowest, highest):
        assert getattr(PollOptions(**{field: value}), field) == value
    for value, says in ((lowest - 1, f"greater than or equal to {lowest}"), (highest + 1, f"equal to {highest}")):
        with pytest.raises(ConfigError) as refused:
            PollOptions(**{field: value})
        assert f"PollOptions.{field}={value}" in str(refused.value)
        assert says in str(refused.value)
        assert not isinstance(refused.value, TypeError)


@rule("C3")
def test_a_poll_cannot_wait_for_more_than_it_may_hold():
    assert PollOptions(count=5, min_count=5).min_count == 5
    with pytest.raises(ConfigError, match=r"min_count=6 is above count=5"):
        PollOptions(count=5, min_count=6)
    with pytest.raises(ConfigError, match=r"PollOptions\.min_count=0: .*greater than or equal to 1"):
        PollOptions(min_count=0)
    with pytest.raises(ConfigError, match=r"min_count=1001 is above count=1000"):
        PollOptions(min_count=1001)


@rule("C2", "C3")
@pytest.mark.parametrize("wait", [0, 0.0, 0.001, 600, timedelta(0), timedelta(seconds=30)])
def test_a_wait_is_seconds_or_a_timedelta(wait: Any):
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    assert make(PollOptions, max_wait=wait).max_wait == seconds
    assert isinstance(make(PollOptions, max_wait=wait).max_wait, float)


@rule("C3")
@pytest.mark.parametrize(
    "wait", [float("nan"), float("inf"), -float("inf"), -1, timedelta(seconds=-1), timedelta(hours=1)]
)
def test_absurd_waits_are_refused(wait: Any):
    with pytest.raises(ConfigError, match=r"PollOptions\.max_wait="):
        make(PollOptions, max_wait=wait)


@rule("K103", "C3")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", True),
        ("count", "10"),
        ("count", 10.0),
        ("count", None),
        ("max_wait", True),
        ("max_wait", "5"),
        ("max_wait", None),
        ("max_bytes", timedelta(seconds=1)),
        ("min_count", [1]),
    ],
)
def test_a_wrong_type_is_a_type_error(field: str, value: Any):
    with pytest.raises(TypeError) as refused:
        PollOptions(**{field: value})
    assert isinstance(refused.value, ConfigTypeError)
    assert isinstance(refused.value, ValueError)
    assert f"PollOptions.{field}={value!r}" in str(refused.value)


def test_every_problem_is_named():
    with pytest.raises(ConfigError) as refused:
        make(PollOptions, count=0, max_wait="soon", max_byte=5)
    for says in ("PollOptions.count=0", "PollOptions.max_wait='soon'", "PollOptions has no option 'max_byte'"):
        assert says in str(refused.value)


def test_pydantic_is_not_what_a_user_meets():
    with pytest.raises(ConfigError) as refused:
        PollOptions(count=0)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert "pydantic" not in str(refused.value)
    assert isinstance(refused.value, UsageError)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_poll_interval_is_refused_loudly(model: type[Options]):
    for value in (5, None):
        with pytest.raises(ConfigError, match=r"no option 'poll_interval'.*max_wait and min_count"):
            model(poll_interval=value)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_options_are_frozen_closed_and_described(model: type[Options]):
    with pytest.raises(ConfigError, match=r"no option 'nonsense'$"):
        model(nonsense=1)
    for name, field in model.model_fields.items():
        assert field.description, name
        with pytest.raises(ValueError, match="frozen"):
            setattr(model(), name, 1)


@rule("C13")
@pytest.mark.parametrize("mode", [AutoCommit.interval, AutoCommit.finished])
def test_an_interval_is_above_zero(mode: Any):
    assert mode(0.001).period == 0.001
    assert mode(timedelta(minutes=1)).period == 60
    for period in (0, -1, 0.0, timedelta(0), timedelta(seconds=-5), 86_401, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"AutoCommit\.period="):
            mode(period)
    for wrong in (True, "5"):
        with pytest.raises(TypeError, match=r"AutoCommit\.period="):
            mode(wrong)


@rule("C13")
def test_modes_of_commit():
    assert (AutoCommit.interval(2).mode, AutoCommit.finished().mode) == ("interval", "finished")
    assert AutoCommit.finished().period == 1.0
    assert AutoCommit.disabled().period is None
    with pytest.raises(ConfigError, match="mode='sometimes'"):
        make(AutoCommit, mode="sometimes")


@rule("C13")
def test_a_mode_and_its_period_belong_together():
    for wrong in ({"mode": "interval"}, {"mode": "finished"}, {"mode": "disabled", "period": 1.0}):
        with pytest.raises(ConfigError, match=r"(needs a|takes no) period; use AutoCommit\."):
            make(AutoCommit, **wrong)


@pytest.mark.parametrize(
    ("model", "field", "wrong"),
    [
        (ConsumerOptions, "drain_timeout", -1),
        (ConsumerOptions, "buffer_bytes", 0),
        (ConsumerOptions, "buffer_messages", 0),
        (ProducerOptions, "retries", -1),
        (ProducerOptions, "retry_spacing", 0),
        (TopicOptions, "partitions", 0),
        (TopicOptions, "partitions", 10_001),
        (TopicOptions, "retention_age", 0),
        (TopicOptions, "retention_bytes", 0),
        (TopicOptions, "max_record_bytes", 16 * 1024 * 1024 + 1),
        (LogOptions, "busy_timeout", -0.5),
        (LogOptions, "queue_bytes", 0),
        (LogOptions, "resident_bytes", -1),
        (LogOptions, "max_wait", 0),
        (LogOptions, "max_wait", 601),
        (LogOptions, "wal_warn_bytes", 1),
        (LogOptions, "retention_interval", 0),
    ],
)
def test_limits_of_the_other_options(model: type[Options], field: str, wrong: float):
    with pytest.raises(ConfigError, match=rf"{model.__name__}\.{field}={wrong}: input should be (greater|less) than"):
        model(**{field: wrong})


def test_limits_of_the_design():
    topic, log = TopicOptions(), LogOptions()
    assert (topic.partitions, topic.max_record_bytes, topic.retention_age, topic.retention_bytes) == (
        1,
        1_048_576,
        None,
        None,
    )
    assert (log.durability, log.queue_bytes, log.max_wait, log.busy_timeout) == ("full", 32 * 1024 * 1024, 30.0, 10.0)
    assert make(TopicOptions, retention_age=timedelta(days=7)).retention_age == 604_800
    assert ConsumerOptions().drain_timeout == 5.0
    with pytest.raises(ConfigError, match=r"durability='none'.*'full', 'normal' or 'memory'"):
        make(LogOptions, durability="none")


@rule("C45", "C47")
@pytest.mark.parametrize("mode", [AutoCommit.every_nth, AutoCommit.after_nth])
def test_an_nth_is_1_or_more(mode: Any):
    assert mode(1).n == 1
    for n in (0, -3):
        with pytest.raises(ConfigError, match=rf"AutoCommit\.n={n}: .*greater than or equal to 1"):
            mode(n)
    for wrong in (True, "5", 2.0):
        with pytest.raises(TypeError, match=r"AutoCommit\.n="):
            mode(wrong)
    with pytest.raises(ConfigError, match=r"mode='each_message' takes no n; use AutoCommit\."):
        make(AutoCommit, mode="each_message", n=3)
    with pytest.raises(ConfigError, match=r"mode='every_nth' needs an n; use AutoCommit\."):
        make(AutoCommit, mode="every_nth")


PROMPT = [
    AutoCommit.each_message(),
    AutoCommit.each_batch(),
    AutoCommit.every_nth(10),
    AutoCommit.after_each(),
    AutoCommit.after_nth(10),
    AutoCommit.after_head(),
]


@rule("C50")
@pytest.mark.parametrize("prompt", PROMPT, ids=str)
def test_an_interval_may_stand_beside_a_mode_that_stores_at_an_event(prompt: AutoCommit):
    both = AutoCommit.interval(2.5) | prompt
    assert both == prompt | AutoCommit.interval(2.5)
    assert (both.mode, both.period, both.n) == (prompt.mode, 2.5, prompt.n)
    assert str(both) == f"AutoCommit.interval(2.5) | {prompt}"


OTHERS = [AutoCommit.disabled(), AutoCommit.finished(), AutoCommit.interval(1.0), AutoCommit.on_poll()]
NONSENSE = [
    *[(one, two) for one in OTHERS for two in OTHERS],
    *[(one, two) for one in PROMPT for two in PROMPT],
    *[(one, two) for one in OTHERS for two in PROMPT if one.mode != "interval"],
    *[(one | AutoCommit.interval(1.0), AutoCommit.interval(2.0)) for one in PROMPT],
]


@rule("C50")
@pytest.mark.parametrize(("one", "two"), NONSENSE, ids=str)
def test_other_combinations_are_refused_by_name(one: AutoCommit, two: AutoCommit):
    for left, right in ((one, two), (two, one)):
        with pytest.raises(ConfigError) as refused:
            operator.or_(left, right)
        assert str(refused.value).startswith(f"{left} | {right}: only an interval can be combined")


def test_a_mode_is_combined_with_nothing_but_a_mode():
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.or_(AutoCommit.interval(1.0), 5)


def test_a_mode_is_written_as_it_is_made():
    assert str(AutoCommit.finished(0.5)) == "AutoCommit.finished(0.5)"
    assert str(AutoCommit.on_poll()) == "AutoCommit.on_poll()"
    assert str(AutoCommit.every_nth(10)) == "AutoCommit.every_nth(10)"


@rule("C12")
@pytest.mark.parametrize(
    "name",
    [
        "poll_interval",
        "pollInterval",
        "PollInterval",
        "poll-interval",
        "POLL_INTERVAL",
        "poll_interval_ms",
        "pollIntervalSeconds",
        "polling_interval",
    ],
)
def test_a_poll_interval_is_refused_in_any_spelling_and_everywhere_alike(name: str):
    def refusal(call: Callable[..., object]) -> str:
        with pytest.raises(ConfigError) as refused:
            call(**{name: 250})
        return str(refused.value)

    def poll(**given: Any) -> object:
        return client.consumer("orders").poll(**given).send(None)

    client = tarry.connect("memory:")
    calls: list[Callable[..., object]] = [
        *MODELS,
        partial(client.consumer, "orders"),
        partial(client.producer, "orders"),
        partial(tarry.connect, "memory:"),
        poll,
    ]
    texts = {refusal(call) for call in calls}
    assert len(texts) == 1
    (text,) = texts
    assert text.startswith(f"{name}=250: there is no option {name!r}; a consumer waits at the log")
    assert text.endswith("use max_wait and min_count (of PollOptions, or of poll())")


@rule("C12")
def test_what_only_looks_like_a_poll_interval_is_an_unknown_option():
    with pytest.raises(ConfigError, match=r"ConsumerOptions has no option 'interval'$"):
        make(ConsumerOptions, interval=5)


@pytest.mark.parametrize(
    ("options", "option", "place"),
    [
        (ConsumerOptions, "max_wait", r"; it belongs to poll=PollOptions\(\.\.\.\), or to poll\(\)"),
        (ConsumerOptions, "session_timeout", r"; it belongs to tarry\.connect\(\.\.\.\)"),
        (ProducerOptions, "durability", r"; it belongs to tarry\.connect\(\.\.\.\)"),
        (ProducerOptions, "min_count", ""),
        (TopicOptions, "durability", ""),
    ],
)
def test_an_option_that_stands_elsewhere_is_sent_there(options: type[Options], option: str, place: str):
    with pytest.raises(ConfigError, match=rf"^{options.__name__} has no option '{option}'{place}$"):
        make(options, **{option: 5})


@pytest.mark.parametrize(
    ("options", "option", "meant"),
    [
        (PollOptions, "maxwait", "max_wait"),
        (LogOptions, "sesion_timeout", "session_timeout"),
        (LogOptions, "instrument", "instruments"),
        (ConsumerOptions, "group_id", "group"),
        (ConsumerOptions, "on_revoke", "on_revoked"),
        (ConsumerOptions, "auto_commit", "commit"),
        (ProducerOptions, "partitoner", "partitioner"),
    ],
)
def test_a_misspelt_option_is_told_what_may_have_been_meant(options: type[Options], option: str, meant: str):
    with pytest.raises(ConfigError, match=rf"^{options.__name__} has no option '{option}'; did you mean '{meant}'\?$"):
        make(options, **{option: 5})


@rule("C12")
@pytest.mark.parametrize("option", ["timeout", "max_records", "batch_size"])
def test_an_option_that_is_like_none_of_a_poll_is_told_which_there_are(option: str):
    with pytest.raises(ConfigError) as refused:
        make(PollOptions, **{option: 5})
    assert str(refused.value) == (
        f"PollOptions has the options count, min_count, max_wait, max_bytes, and no option {option!r}"
    )


@pytest.mark.parametrize(
    ("options", "given", "says"),
    [
        (
            AutoCommit,
            ("finished",),
            "AutoCommit('finished'): options are given by name, for example AutoCommit.finished()",
        ),
        (PollOptions, (5,), "PollOptions(5): options are given by name, for example PollOptions(count=5)"),
        (PollOptions, (5, 1), "PollOptions(5, 1): options are given by name, for example PollOptions(count=5)"),
    ],
)
def test_options_without_their_names_are_told_what_to_write(options: Any, given: tuple[object, ...], says: str):
    with pytest.raises(ConfigTypeError) as refused:
        options(*given)
    assert str(refused.value) == says


def test_what_may_have_been_meant_is_what_the_methods_take():
    taken: dict[str, set[str]] = {
        "ConsumerOptions": {*ConsumerArguments.__annotations__, "value_type"} - {*ConsumerOptions.model_fields},
        "ProducerOptions": {*ProducerArguments.__annotations__, "value_type"} - {*ProducerOptions.model_fields},
        "LogOptions": {"instruments"},
    }
    assert {name: set(beside) for name, beside in config.BESIDE.items()} == taken


HOUR, DAY, GIB = 3600, 86_400, 1024**3
RANGES: list[tuple[type[Options], str, str, tuple[float, ...]]] = [
    (PollOptions, "count", "1 to 10,000", (0, 10_001)),
    (PollOptions, "min_count", "1 to 10,000", (0, 10_001)),
    (PollOptions, "max_wait", "0 to 600", (-0.1, 600.1)),
    (PollOptions, "max_bytes", "1 to 1,073,741,824", (0, GIB + 1)),
    (AutoCommit, "period", "above 0, up to 86,400", (0, DAY + 1)),
    (AutoCommit, "n", "1 or more", (0,)),
    (ConsumerOptions, "drain_timeout", "0 to 3,600", (-1, HOUR + 1)),
    (ConsumerOptions, "buffer_messages", "1 to 1,000,000", (0, 1_000_001)),
    (ConsumerOptions, "buffer_bytes", "1 to 1,073,741,824", (0, GIB + 1)),
    (ConsumerOptions, "heartbeat_interval", "above 0, up to 3,600", (0, HOUR + 1)),
    (ConsumerOptions, "hook_timeout", "above 0, up to 3,600", (0, HOUR + 1)),
    (ConsumerOptions, "max_processing_time", "above 0, up to 86,400", (0, DAY + 1)),
    (ConsumerOptions, "cool_down", "0.1 to 3,600", (0, HOUR + 1)),
    (ProducerOptions, "retries", "0 to 1,000", (-1, 1001)),
    (ProducerOptions, "retry_spacing", "above 0, up to 3,600", (0, HOUR + 1)),
    (ProducerOptions, "refresh_interval", "above 0, up to 3,600", (0, HOUR + 1)),
    (TopicOptions, "partitions", "1 to 10,000", (0, 10_001)),
    (TopicOptions, "retention_age", "above 0", (0,)),
    (TopicOptions, "retention_bytes", "1 to 9,223,372,036,854,775,807", (0, 2**63)),
    (TopicOptions, "max_record_bytes", "1 to 16,777,216", (0, 16 * 1024**2 + 1)),
    (LogOptions, "busy_timeout", "0 to 3,600", (-1, HOUR + 1)),
    (LogOptions, "resident_bytes", "0 to 1,073,741,824", (-1, GIB + 1)),
    (LogOptions, "queue_bytes", "1 to 1,073,741,824", (0, GIB + 1)),
    (LogOptions, "wal_warn_bytes", "65,536 or more", (65_535,)),
    (LogOptions, "retention_interval", "above 0, up to 86,400", (0, DAY + 1)),
    (LogOptions, "max_wait", "above 0, up to 600", (0, 601)),
    (LogOptions, "session_timeout", "above 0, up to 3,600", (0, HOUR + 1)),
    (LogOptions, "rebalance_timeout", "above 0, up to 3,600", (0, HOUR + 1)),
]


@rule("C3", "C13")
@pytest.mark.parametrize(
    ("model", "name", "allowed", "value"),
    [(model, name, allowed, value) for model, name, allowed, values in RANGES for value in values],
)
def test_a_number_out_of_its_range_is_named_with_the_whole_range(
    model: type[Options], name: str, allowed: str, value: float
):
    with pytest.raises(ConfigError) as refused:
        make(model, **{name: value})
    text = str(refused.value)
    assert f"{model.__name__}.{name}={value!r}: input should be " in text
    assert text.endswith(f"(allowed: {allowed})")
    assert not isinstance(refused.value, TypeError)


def test_every_number_has_a_range():
    numbers = [
        (model, name)
        for model in MODELS
        for name, field in model.model_fields.items()
        if re.search(r"\b(int|float)\b", str(field.annotation))
    ]
    assert [(model, name) for model, name, _, _ in RANGES] == numbers


def test_the_verbs_name_them_too():
    client = tarry.connect("memory:")
    with pytest.raises(ConfigError, match=r"ConsumerOptions\.buffer_bytes=0: .* \(allowed: 1 to 1,073,741,824\)$"):
        client.consumer("orders", buffer_bytes=0)
    with pytest.raises(ConfigError, match=r"ProducerOptions\.retries=-1: .* \(allowed: 0 to 1,000\)$"):
        client.producer("orders", retries=-1)
    with pytest.raises(ConfigError, match=r"PollOptions\.count=0: .* \(allowed: 1 to 10,000\)$"):
        client.consumer("orders").poll(count=0).send(None)
    with pytest.raises(ConfigError, match=r"AutoCommit\.n=0: .* \(allowed: 1 or more\)$"):
        AutoCommit.every_nth(0)


@pytest.mark.parametrize(
    ("verb", "arguments", "options"),
    [
        (tarry.Client.consumer, ConsumerArguments, ConsumerOptions),
        (tarry.Client.producer, ProducerArguments, ProducerOptions),
    ],
    ids=["consumer", "producer"],
)
def test_type_checkers_are_told_every_argument(verb: Callable[..., Any], arguments: type, options: type[Options]):
    named = [*inspect.signature(verb).parameters, *options.model_fields]
    rest = {"self", "topic", "topics", "value_type", "options"}
    assert list(arguments.__annotations__) == [name for name in named if name not in rest]
