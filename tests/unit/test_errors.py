"""The tree of errors: as drawn, with a family that says who must act."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any, get_args

import pytest

from tarry import errors
from tarry.errors import Applied, Retry, TarryError
from tests.marks import rule

FAMILIES = {"UsageError", "RefusedError", "UncertainError", "FencedError", "DataError", "PeerError"}
FIELDS: dict[str, dict[str, Any]] = {
    "MessageTooLarge": {"size": 2, "limit": 1},
    "LogInUse": {"pid": 7},
    "UnencodableValue": {"topic": "t", "value": 5},
    "UndecodableMessage": {"topic": "t", "partition": 0, "offset": 5, "raw": b"x"},
    "OffsetOutOfRange": {"asked": 5, "log_start": 1, "log_end": 4},
    "SendFailed": {"topic": "orders", "unsent": ("m",), "receipts": ("r",)},
}
CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TarryError)]


def drawn() -> dict[str, str]:
    """Each error of the tree in the module's docstring, with its parent."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    path = ["TarryError"]
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([ |]*)[|`]- ([\w /]+?)(?:  .*)?$", line)
        if not found:
            continue
        depth = len(found[1]) // 3 + 1
        for name in found[2].split(" / "):
            parents[name.strip()] = path[depth - 1]
            path[depth:] = [name.strip()]
    return parents


def make(kind: type[TarryError]) -> TarryError:
    return kind("what happened", **FIELDS.get(kind.__name__, {}))


def pickled(error: TarryError) -> Any:
    return pickle.loads(pickle.dumps(error))


def test_the_tree_is_as_drawn():
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in CLASSES if kind is not TarryError}
    assert drawn() == real
    assert len(drawn()) > 20


def test_six_families_say_who_must_act():
    assert {kind.__name__ for kind in TarryError.__subclasses__()} == FAMILIES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_error_says_what_it_is(kind: type[TarryError]):
    assert kind.__doc__
    assert isinstance(kind.code, int)
    assert kind.retry in get_args(Retry)
    assert kind.applied in get_args(Applied)
    assert str(make(kind)) == "what happened"


def test_the_numbers_of_the_wire():
    numbers = {
        "UsageError": 2,
        "FeatureUnavailable": 5,
        "LogUnavailable": 8,
        "OutcomeUnknown": 57,
        "NotAccepted": 58,
        "CapacityExceeded": 90,
        "NotAMember": 5006,
        "StaleAssignment": 5009,
    }
    assert {name: getattr(errors, name).code for name in numbers} == numbers


def test_what_a_caller_may_do_next():
    for kind in CLASSES:
        if issubclass(kind, errors.UsageError):
            assert (kind.code, kind.retry, kind.applied) == (2, "never", "no"), kind
        if issubclass(kind, errors.RefusedError):
            assert kind.applied == "no", kind
        if issubclass(kind, errors.FencedError):
            assert (kind.retry, kind.applied) == ("re-sync", "no"), kind
        if issubclass(kind, errors.UncertainError):
            assert (kind.retry, kind.applied) == ("never", "maybe"), kind
    assert (errors.CapacityExceeded.retry, errors.NotAccepted.retry) == ("back off", "back off")
    assert errors.LogUnavailable.retry == "back off"
    assert errors.TopicNotFound.retry == errors.TopicExists.retry == errors.FeatureUnavailable.retry == "never"


@rule("K103")
def test_an_option_of_a_wrong_value_or_type_is_what_python_calls_it():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.ConfigTypeError, TypeError)
    assert issubclass(errors.ConfigTypeError, ValueError)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, pickled], ids=["copy", "deep", "pickle"])
def test_errors_can_be_copied_and_go_to_other_processes(kind: type[TarryError], through: Any):
    error = make(kind)
    error.add_note("a note")
    again = through(error)
    assert type(again) is kind
    assert again is not error
    assert str(again) == "what happened"
    assert again.args == error.args
    assert vars(again) == vars(error)
    assert {name: getattr(again, name) for name in FIELDS.get(kind.__name__, {})} == FIELDS.get(kind.__name__, {})


def test_no_error_with_fields_is_left_out_here():
    assert {kind.__name__ for kind in CLASSES if "__init__" in vars(kind)} == set(FIELDS)
