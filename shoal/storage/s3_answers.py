"""What an S3 server's answers mean. Pure.

Guarantees: every failed attempt is either final, as a `StorageError`, or an `AttemptError`, which
says what a retry must know. Numbers in headers are read strictly. What a server writes reaches a
message only as a status and as an error code of plain letters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
    StorageError,
    StorageFullError,
)
from shoal.storage.header_values import retry_after_s

E_HTTP_ENCODING: Final = "E_HTTP_ENCODING"
E_HTTP_REDIRECT: Final = "E_HTTP_REDIRECT"

_CODE: Final = re.compile(rb"<Code>\s*([A-Za-z0-9._-]{1,64})\s*</Code>")
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.ASCII)
_DAMAGED: Final = frozenset({"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"})
_STATUS_OF: Final = {"PreconditionFailed": 412, "ConditionalRequestConflict": 409}
_FULL: Final = frozenset(
    {"QuotaExceeded", "StorageFull", "XMinioStorageFull", "InsufficientStorage"}
)
_BUSY: Final = frozenset({"SlowDown", "ServiceUnavailable", "TooManyRequests", "Throttling"})
_AGAIN: Final = frozenset({"RequestTimeout", "InternalError", "OperationAborted"}) | _DAMAGED


class AttemptError(Exception):
    """One attempt has failed and another one may succeed.

    Attributes:
        reason: What happened, in words.
        is_busy: The server asks for patience; such attempts are not counted.
        retry_after_s: How long the server asks to wait.
        has_progressed: The attempt has brought bytes that need not be moved again.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_busy: bool = False,
        retry_after_s: float = 0.0,
        has_progressed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_busy = is_busy
        self.retry_after_s = retry_after_s
        self.has_progressed = has_progressed


class GiveUpError(Exception):
    """The whole call ends: its time is over, it is too slow, or nobody waits for it any more.

    Attributes:
        reason: What happened, in words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer that is not what was asked for.

    Attributes:
        status: The HTTP status.
        code: S3's error code; empty if the answer has none.
        retry_after_s: How long the server asks to wait; 0 if it does not say.
    """

    status: int
    code: str
    retry_after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.status} {self.code}".strip()


class RefusalError(Exception):
    """The server has answered with a refusal; the caller says what it means.

    Attributes:
        refusal: The answer.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class ReplacedError(Exception):
    """Another object has taken the place of the one that is being read."""


def refusal_of(status: int, headers: Mapping[str, str], body: bytes, now_s: float) -> Refusal:
    """Read a refusal.

    Args:
        status: The HTTP status.
        headers: The answer's headers.
        body: The beginning of its body.
        now_s: Unix seconds, where the server does not say what its own clock shows.

    Returns:
        What it says.
    """
    found = _CODE.search(body)
    code = found.group(1).decode("ascii") if found else ""
    return Refusal(
        # Some operations answer 200 first and the refusal later, in the body.
        status=_STATUS_OF.get(code, status),
        code=code,
        retry_after_s=retry_after_s(headers, now_s),
    )


def meaning(refusal: Refusal, key: str, where: str) -> StorageError | AttemptError:
    """Say what a refusal means when nothing more is known.

    Args:
        refusal: What the server said.
        key: The key that was asked for; empty when the whole store is meant.
        where: The bucket in words.

    Returns:
        The error to raise.
    """
    what = f"object {key!r} in {where}" if key else where
    status, code = refusal.status, refusal.code
    if code in _FULL or status == 507:
        return StorageFullError(f"{what}: no room, the server answers {refusal}", key, where, 0)
    if code in _BUSY or status in {429, 503}:
        return AttemptError(
            f"the server answers {refusal}", is_busy=True, retry_after_s=refusal.retry_after_s
        )
    if code in _AGAIN or status in {408, 409} or (status >= 500 and status != 501):
        return AttemptError(f"the server answers {refusal}", retry_after_s=refusal.retry_after_s)
    if status == 404 and key and code in {"", "NoSuchKey", "NotFound"}:
        return ObjectNotFoundError(f"no {what}", key)
    if status in {304, 412}:
        return ObjectExistsError(
            f"{what}: a condition does not hold, the server says {refusal}", key
        )
    if status == 416:
        return ObjectSizeError(
            f"{what}: the range leaves the object, the server says {refusal}", key
        )
    return AccessDeniedError(f"{what}: the server answers {refusal}; {_advice(code)}", key)


def content_range(text: str | None) -> tuple[int, int, int] | None:
    """Read a Content-Range.

    Args:
        text: The header, or None.

    Returns:
        First byte, last byte and the object's length; None if it is anything else.
    """
    found = _CONTENT_RANGE.fullmatch(text or "")
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _advice(code: str) -> str:
    if code == "RequestTimeTooSkewed":
        return "set this machine's clock"
    if code == "NoSuchBucket":
        return "the bucket is not there"
    if code in {"InvalidAccessKeyId", "SignatureDoesNotMatch"}:
        return "the access key or its secret is wrong"
    return "the key needs access to it, or the server does not know the operation"
