"""Value codecs: from `value_type=` to a function of bytes. Besides `config` the only importer of pydantic.

Not here: where decoders are called, and what becomes of a value that does not decode (`consumer.typed`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import cast

import msgspec
from pydantic import TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from tarry.errors import ConfigTypeError

_NO_TYPE = (PydanticUserError, PydanticUndefinedAnnotation, TypeError, NameError, AttributeError)


def decoder_of(value_type: object) -> Callable[[bytes], object] | None:
    """What decodes values of a type; None: nothing has to, they are bytes. msgspec and pydantic read JSON.

    Raises:
        ConfigTypeError: it is no type, no msgspec Struct, and has no `decode`.
    """
    if value_type is bytes:
        return None
    if isinstance(value_type, type) and issubclass(value_type, msgspec.Struct):
        return msgspec.json.Decoder(value_type).decode
    decode = None if isinstance(value_type, type) else getattr(value_type, "decode", None)
    if callable(decode):
        return decode
    try:
        if value_type is None or isinstance(
            value_type, (str, bytes, FunctionType)
        ):  # pydantic takes these for annotations
            raise TypeError("it is a value, not a type")
        return TypeAdapter[object](cast("type[object]", value_type)).validate_json
    except _NO_TYPE as error:
        raise ConfigTypeError(
            f"value_type={value_type!r}: pass bytes, a pydantic model or another type that pydantic's TypeAdapter "
            "takes, a msgspec Struct, or an object with decode(bytes)"
        ) from error
