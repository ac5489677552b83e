"""Messages to bytes and back.

On the wire a message is a msgpack map of its fields plus "type", its class's name. Field types:
bool, int (0 to 2^63 - 1), str, bytes, tuples of str, and counts by name.

Guarantees of `unpack`: any bytes give a message or a `FrameError`; no key twice, none missing, none
unknown; every value of the declared type. The caller has bounded the length, which bounds the rest.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, get_type_hints

import msgpack

from shoal.node.network.errors import FrameError
from shoal.node.network.messages import ANSWERS, REQUESTS, Answer, Message, Request

_INT_LIMIT: Final = 2**63
_BY_NAME: Final[dict[str, type[Message]]] = {kind.__name__: kind for kind in (*REQUESTS, *ANSWERS)}


def pack(message: Message) -> bytes:
    """Write a message.

    Args:
        message: The message.

    Returns:
        Bytes that `unpack` reads.
    """
    values = {one.name: getattr(message, one.name) for one in fields(message)}
    packed: bytes = msgpack.packb({"type": type(message).__name__, **values})
    return packed


def unpack(raw: bytes | memoryview) -> Message:
    """Read a message; the sender is trusted for nothing.

    Args:
        raw: The body of a frame.

    Returns:
        The message.

    Raises:
        FrameError: The bytes are no message.
    """
    values = _to_map(raw)
    name = values.pop("type", None)
    kind = _BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FrameError("a message of an unknown type")
    checks = _FIELDS[kind.__name__]
    if values.keys() != checks.keys():
        raise FrameError(f"{name} has other fields than {sorted(checks)}")
    for key, check in checks.items():
        if not check(values[key]):
            raise FrameError(f"{name}.{key} has another type")
    return kind(**values)


def unpack_request(raw: bytes | memoryview) -> Request:
    """Read a message that must be a request; as `unpack`."""
    message = unpack(raw)
    if not isinstance(message, REQUESTS):
        raise FrameError(f"{type(message).__name__} is no request")
    return message


def unpack_answer(raw: bytes | memoryview) -> Answer:
    """Read a message that must be an answer; as `unpack`."""
    message = unpack(raw)
    if not isinstance(message, ANSWERS):
        raise FrameError(f"{type(message).__name__} is no answer")
    return message


# Any: values come from msgpack, and `unpack` looks at each of them.
def _to_map(raw: bytes | memoryview) -> dict[str, Any]:
    try:
        value = msgpack.unpackb(
            raw, use_list=False, object_pairs_hook=_unique_keys, ext_hook=_no_extension
        )
    except FrameError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FrameError("a message that is no msgpack") from error
    if not isinstance(value, dict):
        raise FrameError("a message that is no map")
    return value


def _unique_keys(pairs: list[tuple[object, object]]) -> dict[object, object]:
    values = dict(pairs)
    if len(values) != len(pairs) or not all(isinstance(key, str) for key in values):
        raise FrameError("a map with a key twice or one that is no text")
    return values


def _no_extension(code: int, data: bytes) -> object:
    raise FrameError(f"msgpack extension {code} of {len(data)} bytes")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT_LIMIT


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_int(one) for one in value.values())


_CHECKS: Final[dict[object, Callable[[object], bool]]] = {
    bool: lambda value: isinstance(value, bool),
    int: _is_int,
    str: lambda value: isinstance(value, str),
    bytes: lambda value: isinstance(value, bytes),
    tuple[str, ...]: _is_texts,
    dict[str, int]: _is_counts,
}

_FIELDS: Final = {
    name: {field: _CHECKS[hint] for field, hint in get_type_hints(kind).items()}
    for name, kind in _BY_NAME.items()
}
