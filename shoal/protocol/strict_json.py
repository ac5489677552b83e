r"""Canonical JSON: one byte string per value, and nothing else is read.

The form: one object at the top; keys sorted by code point and unique; no spaces; ASCII, everything
else as lower-case \u escapes; integers of magnitude below 2^53; no floats, no null, no lone
surrogates; nesting at most `max_depth`. Numbers that need a fraction travel as strings.

Order of the checks in `load`, cheapest first: length, ASCII, nesting depth (counted before the
recursive parser runs), then the parser (duplicate keys and numbers are refused while it runs; a
digit string is measured before it becomes an integer), shape, and last that re-encoding gives the
same bytes. Time and memory are linear in the length.

Not done here: what the keys mean (see `json_fields`).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn, TypeAlias

from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError

JsonValue: TypeAlias = "bool | int | str | list[JsonValue] | dict[str, JsonValue]"

MAX_DEPTH: Final = 8
INT_LIMIT: Final = 2**53

_MAX_DIGITS: Final = 16
# A whole string (so that brackets inside do not count) or one bracket.
_MARK: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def dump(value: Mapping[str, object], *, max_depth: int = MAX_DEPTH) -> bytes:
    """Encode an object in its one canonical form.

    Args:
        value: Dicts with text keys, lists or tuples, text, bools and integers only.
        max_depth: The deepest nesting that the reader will take.

    Returns:
        ASCII bytes that `load` accepts.

    Raises:
        LocalProtocolError: The value has no canonical form (float, null, other type, a key that is
            not text, an integer of 2^53 or more, a lone surrogate, too deep).
    """
    for code, fault in _faults(value, max_depth):
        raise LocalProtocolError(f"value has no canonical JSON form: {code}: {fault}")
    return _encode(value)


def load(
    raw: bytes | memoryview, max_bytes: int, max_depth: int = MAX_DEPTH
) -> dict[str, JsonValue]:
    """Decode canonical JSON from anybody; nobody is trusted.

    Args:
        raw: The bytes as received.
        max_bytes: Longest accepted input.
        max_depth: Deepest accepted nesting; the top object counts as 1.

    Returns:
        The object; its values are bools, integers, text, lists and dicts.

    Raises:
        RemoteProtocolError: E_LEN if longer than `max_bytes`; E_JSON_DEPTH if nested too deeply;
            E_JSON_DUPKEY for a repeated key; E_JSON_NUMBER for a float, an exponent, NaN, Infinity,
            -0 or an integer of 2^53 or more; E_JSON for everything else that is not the canonical
            form of an object.
    """
    if len(raw) > max_bytes:
        _refuse(ErrorCode.E_LEN, f"JSON text has {len(raw)} bytes, at most {max_bytes} allowed")
    try:
        text = bytes(raw).decode("ascii")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(ErrorCode.E_JSON, "JSON text is not ASCII") from error
    _check_depth(text, max_depth)
    value = _parse(text)
    if not isinstance(value, dict):
        _refuse(ErrorCode.E_JSON, f"the top of the JSON text is {_kind(value)}, expected an object")
    for code, fault in _faults(value, max_depth):
        _refuse(code, fault)
    if _encode(value) != bytes(raw):
        _refuse(ErrorCode.E_JSON, "JSON text is not in canonical form")
    return value


def _refuse(code: ErrorCode, detail: str) -> NoReturn:
    raise RemoteProtocolError(code, detail)


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _encode(value: Mapping[str, object]) -> bytes:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return text.encode("ascii")


def _check_depth(text: str, max_depth: int) -> None:
    depth = 0
    for match in _MARK.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        if depth > max_depth:
            _refuse(ErrorCode.E_JSON_DEPTH, f"JSON text is nested deeper than {max_depth}")


def _parse(text: str) -> object:
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_int=_small_int,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except json.JSONDecodeError as error:
        raise RemoteProtocolError(ErrorCode.E_JSON, f"not JSON at byte {error.pos}") from error
    return value


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        _refuse(ErrorCode.E_JSON_DUPKEY, "a JSON object has one key twice")
    return fields


def _small_int(digits: str) -> int:
    # Measured before int(), whose time grows faster than the length.
    if len(digits.lstrip("-")) > _MAX_DIGITS:
        _refuse(ErrorCode.E_JSON_NUMBER, f"integer of {len(digits)} characters")
    if digits == "-0":
        _refuse(ErrorCode.E_JSON_NUMBER, "negative zero")
    value = int(digits)
    if abs(value) >= INT_LIMIT:
        _refuse(ErrorCode.E_JSON_NUMBER, f"integer {value} is not below 2^53 in magnitude")
    return value


def _no_number(digits: str) -> NoReturn:
    _refuse(ErrorCode.E_JSON_NUMBER, f"number of {len(digits)} characters is not an integer")


def _faults(value: object, depth_left: int) -> Iterator[tuple[ErrorCode, str]]:
    """Yield what keeps `value` from having a canonical form; recursion stops at the depth."""
    match value:
        case bool():
            return
        case int():
            if abs(value) >= INT_LIMIT:
                yield ErrorCode.E_JSON_NUMBER, "an integer is not below 2^53 in magnitude"
        case str():
            if _SURROGATE.search(value):
                yield ErrorCode.E_JSON, "text with half of a surrogate pair"
        case dict() | list() | tuple() if depth_left == 0:
            yield ErrorCode.E_JSON_DEPTH, "nested too deeply"
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    yield ErrorCode.E_JSON, f"a key is {_kind(key)}, expected text"
                yield from _faults(key, depth_left)
                yield from _faults(item, depth_left - 1)
        case list() | tuple():
            for item in value:
                yield from _faults(item, depth_left - 1)
        case _:
            yield ErrorCode.E_JSON, f"a value is {_kind(value)}"
