"""Value codecs: what a `value_type` makes of bytes, and bytes of it. Besides `config` the only importer of pydantic.

pydantic and msgspec write and read JSON. Not here: where codecs are called, and what becomes of a value that does not
decode (`consumer.typed`) or encode (`producer`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import FunctionType
from typing import Any, Literal, cast, get_origin

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from tarry.errors import ConfigTypeError, NotOfType

DecodeValue = Callable[[bytes], object]
EncodeValue = Callable[[Any], bytes]

_NO_TYPE = (PydanticUserError, PydanticUndefinedAnnotation, TypeError, NameError, AttributeError)


def decoder_of(value_type: object) -> DecodeValue | None:
    """What decodes values of a type; None: nothing has to, they are bytes.

    Raises:
        ConfigTypeError: it is no type that pydantic or msgspec knows, and has no `decode`, or one that is async.
    """
    if value_type is bytes:
        return None
    method = _method(value_type, "decode")
    if method is not None:
        return method
    try:
        if _is_struct(value_type):
            return msgspec.json.Decoder(cast("type[object]", value_type)).decode
        return _adapter(value_type).validate_json
    except _NO_TYPE as error:
        raise _refusal(value_type, "decode(bytes)") from error


def encoder_of(value_type: object) -> EncodeValue | None:
    """What encodes values of a type, or raises `NotOfType` or its own error; None: nothing has to, they are bytes.

    Raises:
        ConfigTypeError: it is no type that pydantic or msgspec knows, and has no `encode`, or one that is async.
    """
    if value_type is bytes:
        return None
    method = _method(value_type, "encode")
    if method is not None:
        return method
    try:
        if _is_struct(value_type):
            msgspec.json.Decoder(cast("type[object]", value_type))  # refuses what could never be read
            return partial(_encode_struct, cast("type[object]", value_type), msgspec.json.Encoder())
        return partial(_encode_json, _adapter(value_type))
    except _NO_TYPE as error:
        raise _refusal(value_type, "encode(value)") from error


def _encode_struct(kind: type[object], encoder: msgspec.json.Encoder, value: object) -> bytes:
    if not isinstance(value, kind):
        raise NotOfType(TypeError(f"it is no {kind.__name__}"))
    return encoder.encode(value)


def _encode_json(adapter: TypeAdapter[object], value: object) -> bytes:
    """Only what the type itself reads back: by its aliases, and nothing that is of another type."""
    try:
        checked = adapter.validate_python(value, strict=True)
    except ValidationError as error:
        raise NotOfType(error) from error
    return adapter.dump_json(checked, by_alias=True, round_trip=True, warnings="error")


def _method(codec: object, name: Literal["decode", "encode"]) -> Callable[[Any], Any] | None:
    """A method of an object; a type and a text, which have such methods too, are no codecs."""
    if isinstance(codec, (type, str, bytes, bytearray)) or get_origin(codec) is not None:
        return None
    method: object = getattr(codec, name, None)
    if not callable(method):
        return None
    if any(is_later(method) for is_later in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)):
        raise ConfigTypeError(
            f"value_type={codec!r}: its {name} has to return its result at once, for nothing waits for it; make it a "
            "plain function, without `async` and `yield`"
        )
    return method


def _is_struct(value_type: object) -> bool:
    return isinstance(value_type, type) and issubclass(value_type, msgspec.Struct)


def _adapter(value_type: object) -> TypeAdapter[object]:
    is_instance = not isinstance(value_type, type) and hasattr(type(value_type), "__pydantic_core_schema__")
    if value_type is None or is_instance or isinstance(value_type, (str, bytes, dict, FunctionType)):
        raise TypeError("it is a value, not a type")  # pydantic takes these for annotations
    return TypeAdapter[object](cast("type[object]", value_type))


def _refusal(value_type: object, method: str) -> ConfigTypeError:
    return ConfigTypeError(
        f"value_type={value_type!r}: pass bytes, a pydantic model or another type that pydantic's TypeAdapter takes, "
        f"a msgspec Struct, or an object with {method} (tarry.abc.Codec)"
    )
