"""What the head of an HTTP answer says, and what an answer means that is not the one asked for.

Guarantees: nothing that a server says is taken as it stands: lengths and times are in range,
a page of keys is in order, below its prefix and after where it was asked to begin, so that whoever
follows pages gets to an end; a server's words are fit for a log and a terminal.

Does not read bodies, and knows no HTTP library.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
    RefusedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from shoal.storage.header_values import date_in, number_in
from shoal.storage.keys import is_key
from shoal.storage.object_store import ListPage

_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999."""


def announced(headers: Mapping[str, str], key: str) -> int:
    """The length that the headers announce; without one nothing is read.

    Raises:
        ObjectSizeError: There is none.
    """
    length = number_in(headers.get("Content-Length"))
    if length is None:
        raise ObjectSizeError(f"object {key!r}: the server announces no length", key)
    return length


def modified_at_s(headers: Mapping[str, str]) -> float:
    """When the object was written, unix seconds; 0 if the server does not say."""
    try:
        found = float(headers.get("X-Modified-At", ""))
    except ValueError:
        found = math.nan
    if 0 <= found <= _LAST_SECOND:
        return found
    try:
        return date_s(headers, "Last-Modified")
    except StorageUnavailableError:
        return 0.0


def date_s(headers: Mapping[str, str], name: str) -> float:
    """A date, unix seconds.

    Raises:
        StorageUnavailableError: There is none.
    """
    found = date_in(headers.get(name))
    if found is None:
        raise StorageUnavailableError("the server's answer has no date", "")
    return found


def page_of(
    raw: bytes, headers: Mapping[str, str], *, prefix: str, after: str | None, limit: int
) -> ListPage:
    """A page of keys, one on each line.

    Args:
        raw: The body.
        headers: Of the answer.
        prefix: What the keys have to begin with.
        after: What they have to come after.
        limit: The most that were asked for.

    Raises:
        StorageUnavailableError: It is none, or not the one that was asked for.
    """
    keys = tuple(raw.decode("ascii", "replace").split())
    next_after = headers.get("X-Next-After")
    is_page = (
        len(keys) <= limit
        and all(is_key(key) and key.startswith(prefix) for key in keys)
        and all(one < two for one, two in pairwise((after or "", *keys)))
        and (next_after is None or next_after == (keys or (None,))[-1])
    )
    if not is_page:
        raise StorageUnavailableError(f"{prefix!r}: the server's list is not one of these", prefix)
    return ListPage(keys=keys, next_after=next_after)


def require_plain(status: int, headers: Mapping[str, str], key: str) -> None:
    """Let an answer pass that may be an object or a list.

    Raises:
        RefusedError: A content encoding or a redirect.
        StorageUnavailableError: A web page: another server, or a portal that wants a login.
    """
    if headers.get("Content-Encoding", "identity") != "identity":
        raise RefusedError(f"object {key!r}: a content encoding", key, "E_HTTP_ENCODING")
    if 300 <= status < 400:
        raise RefusedError(f"object {key!r}: a redirect", key, "E_HTTP_REDIRECT")
    is_page = headers.get("Content-Type", "").lower().startswith("text/html")
    if 200 <= status < 300 and is_page:
        text = f"object {key!r}: a web page came; another server, or a portal that wants a login"
        raise StorageUnavailableError(text, key)


def error_of(status: int, body: bytes, key: str) -> StorageError:
    """What a status means that is none of the expected ones.

    Args:
        status: Of the answer.
        body: Its beginning.
        key: What was asked for.
    """
    said = _printable(body)
    code, _, detail = said.partition(":")
    match status:
        case 404:
            return ObjectNotFoundError(f"no object {key!r}", key)
        case 409 | 412:
            return ObjectExistsError(f"object {key!r} exists", key)
        case 401 | 403 | 405:
            return AccessDeniedError(f"object {key!r}: the server refuses: {said}", key)
        case 416:
            return ObjectSizeError(f"object {key!r}: the range leaves it", key)
        case 413 | 422:
            return RefusedError(f"object {key!r}: {detail.strip()}", key, code)
        case 507:
            return StorageFullError(f"object {key!r}: the server is full", key, "the server", 0)
        case _:
            text = f"object {key!r}: the server says {status} {said}".rstrip()
            return StorageUnavailableError(text, key)


def _printable(said: bytes) -> str:
    text = said.decode("ascii", "replace").strip()
    return "".join(one if one.isprintable() else "?" for one in text)
