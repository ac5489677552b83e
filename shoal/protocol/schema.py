"""Frozen dataclasses to and from plain dictionaries, strictly.

Guarantees: every key of the input belongs to a field (unknown keys are errors), every field has the
type and the range that its class names, and an error says which dotted field was wrong, what was
expected and what was found. One schema serves two notations: `NATIVE` for TOML, which people write,
and `CANONICAL` for strict JSON, which is hashed: there a float is its hexadecimal form, so that one
value has one spelling, and bytes are hex.

Does not do: unions, defaults that depend on other fields, or coercion (the string "3" is no int;
the only widening is an int written where a float is meant in `NATIVE`).
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, TypeVar, cast

from shoal.protocol.errors import InvalidManifestError

T = TypeVar("T")
Scalar = bool | int | float | str

_MAX_INT = 2**53 - 1


class Notation(enum.Enum):
    """How floats and bytes are spelled."""

    NATIVE = "native"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class Settings:
    """A small table of scalars whose keys only the reader of a section knows (a model's options).

    `items` is sorted by key, so that equal tables are equal values.
    """

    items: tuple[tuple[str, Scalar], ...] = ()

    def as_dict(self) -> dict[str, Scalar]:
        """The table as a new dictionary."""
        return dict(self.items)


def bounded(minimum: float, maximum: float, *, default: object = MISSING) -> Any:  # noqa: ANN401  # dataclasses.field is untyped in the same way
    """A dataclass field whose number lies in [minimum, maximum], both included."""
    metadata = {"minimum": minimum, "maximum": maximum}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def one_of(*choices: str | int, default: object = MISSING) -> Any:  # noqa: ANN401  # as above
    """A dataclass field that holds one of `choices`."""
    if default is MISSING:
        return field(metadata={"choices": choices})
    return field(default=default, metadata={"choices": choices})


def from_plain(cls: type[T], value: object, notation: Notation, path: str = "") -> T:
    """Builds a `cls` from nested dictionaries, lists and scalars.

    Raises:
        InvalidManifestError: a key is unknown or missing, a type is wrong, a number out of range.
    """
    if not isinstance(value, dict):
        raise InvalidManifestError(path or "the whole file", "a table", _describe(value))
    fields = {f.name: f for f in dataclasses.fields(cast("Any", cls))}
    for key in value:
        if key not in fields:
            raise InvalidManifestError(
                _join(path, str(key)), f"one of {', '.join(sorted(fields))}", "an unknown key"
            )
    hints = typing.get_type_hints(cls)
    arguments = {}
    for name, spec in fields.items():
        where = _join(path, name)
        if name in value:
            arguments[name] = _read(hints[name], value[name], notation, where)
            _check_range(spec, arguments[name], where)
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise InvalidManifestError(
                where, _type_name(hints[name]), "nothing (the key is missing)"
            )
    return cls(**arguments)


def to_plain(value: object, notation: Notation) -> Any:  # noqa: ANN401  # the plain form is any JSON or TOML value
    """The plain form of a dataclass that `from_plain` reads back to an equal value."""
    if isinstance(value, Settings):
        return {key: _setting_to_plain(item, notation) for key, item in value.items}
    if dataclasses.is_dataclass(value):
        return {
            f.name: to_plain(getattr(value, f.name), notation) for f in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [to_plain(item, notation) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and notation is Notation.CANONICAL:
        return value.hex()
    return value


def _setting_to_plain(value: Scalar, notation: Notation) -> Any:  # noqa: ANN401  # as above
    if isinstance(value, float) and notation is Notation.CANONICAL:
        # A bare string would be read back as a string: a setting's type is not known beforehand.
        return {"float": value.hex()}
    return value


def _read(hint: Any, value: object, notation: Notation, path: str) -> object:  # noqa: ANN401  # a type hint
    if hint is Settings:
        return _read_settings(value, notation, path)
    if dataclasses.is_dataclass(hint):
        return from_plain(cast("type[object]", hint), value, notation, path)
    if typing.get_origin(hint) is tuple:
        return _read_tuple(hint, value, notation, path)
    if isinstance(hint, types.UnionType):
        return _read_optional(hint, value, notation, path)
    return _read_scalar(hint, value, notation, path)


def _read_optional(hint: types.UnionType, value: object, notation: Notation, path: str) -> object:
    (inner,) = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    return _read(inner, value, notation, path)


def _read_tuple(hint: Any, value: object, notation: Notation, path: str) -> object:  # noqa: ANN401  # a type hint
    if not isinstance(value, list):
        raise InvalidManifestError(path, "a list", _describe(value))
    item_hint = typing.get_args(hint)[0]
    return tuple(_read(item_hint, v, notation, f"{path}[{i}]") for i, v in enumerate(value))


def _read_scalar(hint: Any, value: object, notation: Notation, path: str) -> object:  # noqa: ANN401  # a type hint
    if hint is bytes and isinstance(value, str):
        return _read_hex(value, path)
    if hint is float:
        return _read_float(value, notation, path)
    if hint is int and type(value) is int and abs(value) <= _MAX_INT:
        return value
    if hint in (str, bool) and type(value) is hint:
        return value
    raise InvalidManifestError(path, _type_name(hint), _describe(value))


def _read_hex(value: str, path: str) -> bytes:
    try:
        raw = bytes.fromhex(value)
    except ValueError as error:
        raise InvalidManifestError(path, "lower-case hex digits", _describe(value)) from error
    if raw.hex() != value:
        raise InvalidManifestError(path, "lower-case hex digits", _describe(value))
    return raw


def _read_float(value: object, notation: Notation, path: str) -> float:
    if notation is Notation.NATIVE and type(value) in (int, float):
        number = _to_float(cast("float", value))
    elif notation is Notation.CANONICAL and isinstance(value, str):
        number = _hex_float(value, path)
    else:
        raise InvalidManifestError(path, "a number", _describe(value))
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124  # NaN test
        raise InvalidManifestError(path, "a finite number", _describe(value))
    return number


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # A whole number beyond all floats: no more finite than infinity.
        return float("inf")


def _hex_float(value: str, path: str) -> float:
    try:
        number = float.fromhex(value)
    except (ValueError, OverflowError) as error:
        raise InvalidManifestError(path, "a hexadecimal float", _describe(value)) from error
    if number.hex() != value:
        raise InvalidManifestError(path, f"the form {number.hex()}", _describe(value))
    return number


def _read_settings(value: object, notation: Notation, path: str) -> Settings:
    if not isinstance(value, dict):
        raise InvalidManifestError(path, "a table", _describe(value))
    items = [(k, _read_setting(v, notation, _join(path, k))) for k, v in sorted(value.items())]
    return Settings(tuple(items))


def _read_setting(value: object, notation: Notation, path: str) -> Scalar:
    if isinstance(value, dict) and set(value) == {"float"} and notation is Notation.CANONICAL:
        return _read_float(value["float"], notation, path)
    if isinstance(value, float) and notation is Notation.NATIVE:
        return _read_float(value, notation, path)
    if type(value) is int and abs(value) > _MAX_INT:
        raise InvalidManifestError(path, "a whole number below 2^53", _describe(value))
    if type(value) in (bool, int, str):
        return cast("Scalar", value)
    raise InvalidManifestError(path, "a number, a string or a boolean", _describe(value))


def _check_range(spec: "dataclasses.Field[Any]", value: object, path: str) -> None:
    choices = spec.metadata.get("choices")
    if choices is not None and value not in choices:
        wanted = "one of " + ", ".join(str(c) for c in choices)
        raise InvalidManifestError(path, wanted, _describe(value))
    if "minimum" in spec.metadata and isinstance(value, int | float):
        low, high = spec.metadata["minimum"], spec.metadata["maximum"]
        if not low <= value <= high:
            raise InvalidManifestError(path, f"a number from {low} to {high}", _describe(value))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type_name(hint: Any) -> str:  # noqa: ANN401  # a type hint
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if hint is bytes:
        return "a string of hex digits"
    if typing.get_origin(hint) is tuple:
        return "a list"
    return names.get(hint, "a table")


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
