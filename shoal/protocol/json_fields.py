"""Fields of decoded JSON objects, each with its type and range.

`strict_json` says that the bytes are the one form of some object; these functions say that the
object is the expected one. Everything that is wrong here is E_JSON. Nobody is trusted.

Not done here: rules between fields, and those that have codes of their own.
"""

import re
from collections.abc import Mapping
from typing import NoReturn

from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.strict_json import JsonValue


def check_keys(
    fields: Mapping[str, JsonValue],
    required: frozenset[str],
    optional: frozenset[str] = frozenset(),
) -> None:
    """Check that an object has the required keys, and none but these and the optional ones.

    Args:
        fields: A decoded object.
        required: Keys that must be there.
        optional: Keys that may be there.

    Raises:
        RemoteProtocolError: E_JSON, naming the first missing or the number of unknown keys.
    """
    for key in sorted(required - fields.keys()):
        _refuse(f"key {key!r} is missing")
    unknown = fields.keys() - required - optional
    if unknown:
        _refuse(f"{len(unknown)} unknown keys")


def take_int(fields: Mapping[str, JsonValue], key: str, low: int, high: int) -> int:
    """Read an integer field.

    Args:
        fields: A decoded object that has the key.
        key: Which field.
        low: Smallest accepted value.
        high: Largest accepted value.

    Returns:
        The value.

    Raises:
        RemoteProtocolError: E_JSON if it is not an integer (a bool is none) or out of range.
    """
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(f"{key} is {_kind(value)}, expected an integer")
    if not low <= value <= high:
        _refuse(f"{key} is {value}, expected {low} to {high}")
    return value


def take_bool(fields: Mapping[str, JsonValue], key: str) -> bool:
    """Read a bool field.

    Args:
        fields: A decoded object that has the key.
        key: Which field.

    Returns:
        The value.

    Raises:
        RemoteProtocolError: E_JSON if it is not a bool.
    """
    value = fields[key]
    if not isinstance(value, bool):
        _refuse(f"{key} is {_kind(value)}, expected a bool")
    return value


def take_text(fields: Mapping[str, JsonValue], key: str, pattern: re.Pattern[str]) -> str:
    """Read a text field.

    Args:
        fields: A decoded object that has the key.
        key: Which field.
        pattern: What the whole text must match; it also bounds the length.

    Returns:
        The value.

    Raises:
        RemoteProtocolError: E_JSON if it is not text or does not match.
    """
    value = fields[key]
    if not isinstance(value, str):
        _refuse(f"{key} is {_kind(value)}, expected text")
    if pattern.fullmatch(value) is None:
        _refuse(f"{key} has {len(value)} characters or some that are not allowed")
    return value


def take_hex(
    fields: Mapping[str, JsonValue], key: str, num_bytes: int, *, empty: bool = False
) -> bytes:
    """Read a field of lower-case hexadecimal digits.

    Args:
        fields: A decoded object that has the key.
        key: Which field.
        num_bytes: Length of the value once decoded.
        empty: Whether the empty text is accepted too.

    Returns:
        The decoded bytes.

    Raises:
        RemoteProtocolError: E_JSON if it is not text, of another length or not lower-case hex.
    """
    value = fields[key]
    if not isinstance(value, str):
        _refuse(f"{key} is {_kind(value)}, expected text")
    if empty and not value:
        return b""
    if re.fullmatch(f"[0-9a-f]{{{2 * num_bytes}}}", value) is None:
        _refuse(f"{key} is not {num_bytes} bytes in lower-case hexadecimal")
    return bytes.fromhex(value)


def take_list(fields: Mapping[str, JsonValue], key: str) -> list[JsonValue]:
    """Read a list field.

    Args:
        fields: A decoded object that has the key.
        key: Which field.

    Returns:
        The list.

    Raises:
        RemoteProtocolError: E_JSON if it is not a list.
    """
    value = fields[key]
    if not isinstance(value, list):
        _refuse(f"{key} is {_kind(value)}, expected a list")
    return value


def as_object(value: JsonValue, name: str) -> dict[str, JsonValue]:
    """Read a value as an object.

    Args:
        value: A decoded value.
        name: What to call it in the error.

    Returns:
        The object.

    Raises:
        RemoteProtocolError: E_JSON if it is not an object.
    """
    if not isinstance(value, dict):
        _refuse(f"{name} is {_kind(value)}, expected an object")
    return value


def _refuse(detail: str) -> NoReturn:
    raise RemoteProtocolError(ErrorCode.E_JSON, detail)


def _kind(value: JsonValue) -> str:
    return type(value).__name__
