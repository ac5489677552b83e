"""The interface that every store has: bytes by key.

Guarantees, for each store behind it, checked by one conformance suite:

* a write is all or nothing: whoever reads sees a whole object, the old or the new, or none;
* create-once: of any number of writers racing for one key exactly one succeeds;
* what `put` has written is there for every later call, and after a power cut;
* no call reads more bytes than its caller allowed;
* a key may also be the folder of other keys (`a` and `a/b` are two objects).

Does not know rounds, peers or signatures, does not retry, does not verify digests. A call that is
cancelled may or may not have had its effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.storage.errors import ObjectSizeError, ObjectTooLargeError

DEFAULT_PAGE_KEYS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What is known of an object without reading it.

    Attributes:
        key: The object's key.
        num_bytes: Its length in bytes.
        modified_at_s: When it was written, unix seconds by the store's own clock.
    """

    key: str
    num_bytes: int
    modified_at_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPage:
    """One page of keys.

    Attributes:
        keys: Keys in lexicographic order.
        next_after: Pass it as `after` for the next page; None when this page is the last.
    """

    keys: tuple[str, ...]
    next_after: str | None


class ObjectStore(Protocol):
    """Bytes by key; see the module for what every implementation guarantees."""

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Write an object, atomically and durably.

        Without `overwrite` the key must be free, and of racing writers exactly one succeeds.

        Args:
            key: Where to put it.
            data: The whole object; not to be changed until the call returns.
            overwrite: Replace what is there.

        Raises:
            ObjectExistsError: The key is taken and `overwrite` is false.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The store refuses the write.
            StorageFullError: There is no room; what was there before is untouched.
            StorageUnavailableError: The store did not answer; the write may have happened.
        """
        ...

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read an object or a range of it; never more than `max_bytes`.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take; more is refused before it is read.
            start: First byte of the range; may be the object's length, not more.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for.

        Raises:
            ObjectNotFoundError: No object has this key.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object, or bytes went missing on the way.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The store refuses the read.
            StorageUnavailableError: The store did not answer.
            ValueError: A number is negative.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object without reading it.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            ObjectNotFoundError: No object has this key.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The store refuses; this is not "not found".
            StorageUnavailableError: The store did not answer.
        """
        ...

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List keys in lexicographic order, a page at a time; whole objects only.

        Args:
            prefix: What the keys begin with; need not end at a slash; empty for all keys.
            after: Only keys that sort after this one.
            limit: The most keys on the page, at least 1.

        Returns:
            The page; its `next_after` is None exactly when no further key exists.

        Raises:
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            AccessDeniedError: The store refuses.
            StorageUnavailableError: The store did not answer.
            ValueError: `limit` is below 1.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; idempotent: a key that is not there is not an error.

        Args:
            key: Which object.

        Raises:
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The store refuses.
            StorageUnavailableError: The store did not answer.
        """
        ...


def range_num_bytes(
    key: str, num_bytes: int, *, max_bytes: int, start: int, length: int | None
) -> int:
    """Say how many bytes a `get` will read: the one rule for all stores.

    Args:
        key: For the message.
        num_bytes: Length of the whole object.
        max_bytes: The caller's limit.
        start: First byte of the range.
        length: Length of the range; None: up to the end.

    Returns:
        Length of the range in bytes.

    Raises:
        ObjectSizeError: The range leaves the object.
        ObjectTooLargeError: The range is longer than `max_bytes`.
        ValueError: A number is negative.
    """
    check_range(max_bytes=max_bytes, start=start, length=length)
    end = num_bytes if length is None else start + length
    if start > num_bytes or end > num_bytes:
        raise ObjectSizeError(
            f"object {key!r}: bytes {start} to {end} asked for, it has {num_bytes}", key
        )
    if end - start > max_bytes:
        raise ObjectTooLargeError(
            f"object {key!r}: {end - start} bytes to read, at most {max_bytes} allowed", key
        )
    return end - start


def check_range(*, max_bytes: int, start: int, length: int | None) -> None:
    """Let the numbers of possible reads pass.

    Args:
        max_bytes: The caller's limit.
        start: First byte of the range.
        length: Length of the range; None: up to the end.

    Raises:
        ValueError: A number is negative.
    """
    if max_bytes < 0 or start < 0 or (length is not None and length < 0):
        raise ValueError(
            f"max_bytes={max_bytes}, start={start}, length={length}: none may be negative"
        )


def check_limit(limit: int) -> None:
    """Let possible page sizes pass.

    Args:
        limit: The most keys on a page.

    Raises:
        ValueError: The limit is below 1.
    """
    if limit < 1:
        raise ValueError(f"a page has at least 1 key, limit={limit}")


def page_of(keys: list[str], limit: int) -> ListPage:
    """Make a page from the first `limit` keys, knowing whether more exist.

    Args:
        keys: Sorted keys; one more than `limit` is enough.
        limit: The most keys on the page.

    Returns:
        The page.
    """
    shown = tuple(keys[:limit])
    return ListPage(keys=shown, next_after=shown[-1] if len(keys) > limit else None)


def union_of(pages: Sequence[ListPage], limit: int) -> ListPage:
    """Join pages of several stores.

    Args:
        pages: All of the same prefix and beginning.
        limit: The most keys on the page.

    Returns:
        The keys that all pages have got to, in order.
    """
    ends = [page.next_after for page in pages if page.next_after is not None]
    keys = sorted({key for page in pages for key in page.keys})
    if ends:
        keys = [key for key in keys if key <= min(ends)]
    shown = tuple(keys[:limit])
    more = bool(ends) or len(keys) > limit
    return ListPage(keys=shown, next_after=shown[-1] if more and shown else None)
