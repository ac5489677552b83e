"""An object store in a bucket, told in S3 operations; who makes the requests is told from outside.

Guarantees what `object_store` says, as far as the server keeps what S3 promises.
"""

import builtins
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from shoal.storage.allowance import check_quota
from shoal.storage.errors import ObjectNotFoundError, StorageUnavailableError
from shoal.storage.filling import Arrived
from shoal.storage.keys import check_key, check_prefix, is_key
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    check_limit,
    check_range,
    page_of,
)
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_config import S3Config
from shoal.storage.s3_download import Download
from shoal.storage.s3_filling import Filling
from shoal.storage.s3_link import Link, Reply
from shoal.storage.s3_upload import Upload


class BucketStore:
    """Objects in a bucket.

    Args:
        config: Which bucket.
        link: Makes the requests.
    """

    def __init__(self, config: S3Config, link: Link) -> None:
        self._config = config
        self._link = link

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Write an object: atomic, durable when it returns, create-once unless `overwrite`.

        When the call is cancelled the object may appear all the same.

        Args:
            key: Where to put it.
            data: The whole object; not to be changed until the write has ended.
            overwrite: Replace what is there.

        Raises:
            ObjectExistsError: The key is taken and `overwrite` is false.
            QuotaReachedError: This node's own quota is used up.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The server refuses the write.
            StorageFullError: The bucket is full.
            RefusedError: We refuse the server's address or its answer.
            StorageUnavailableError: No answer in time; the write may have happened.
        """
        check_key(key)
        check_quota("up", key)
        with self._link.calling(key) as clock:
            view = memoryview(data).cast("B")
            upload = Upload(
                self._link,
                clock,
                key,
                self._name(key),
                view,
                overwrite=overwrite,
                may_join=overwrite or self._config.joins_once,
            )
            await upload.run()

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read an object or a range of it; never more than `max_bytes`.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take; more is refused before it is read.
            start: First byte of the range.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for, all from one version of the object.

        Raises:
            ObjectNotFoundError: No object has this key.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object, the answer's length is not the one asked
                for, or the object was replaced again and again.
            QuotaReachedError: This node's own quota is used up.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The server refuses the read.
            RefusedError: We refuse the server's address or its answer.
            StorageUnavailableError: No answer in time, or too slow.
            ValueError: A number is negative.
        """
        check_key(key)
        check_range(max_bytes=max_bytes, start=start, length=length)
        check_quota("down", key)
        with self._link.calling(key) as clock:
            download = Download(
                self._link,
                clock,
                key,
                self._name(key),
                max_bytes=max_bytes,
                start=start,
                length=length,
            )
            return await download.run()

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """Read a whole object into room of exactly its length; see `filling`.

        Args:
            key: Which object.
            room: Where to put it.
            arrived: Told of the progress, in a thread of the store's.

        Raises:
            ObjectTooLargeError: The object is longer than the room.
            ObjectTooShortError: It is shorter.
            StorageError: As `get`.
        """
        check_key(key)
        check_quota("down", key)
        with self._link.calling(key) as clock:
            filling = Filling(room, arrived)
            await Download(
                self._link,
                clock,
                key,
                self._name(key),
                max_bytes=room.nbytes,
                start=0,
                length=None,
                filling=filling,
            ).fill()

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object without reading it.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            ObjectNotFoundError: No object has this key.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The server refuses; this is not "not found".
            RefusedError: We refuse the server's address or its answer.
            StorageUnavailableError: No answer in time.
        """
        check_key(key)
        values = await self.request("head_object", key)
        try:
            return ObjectInfo(
                key=key,
                num_bytes=values["ContentLength"],
                modified_at_s=values["LastModified"].timestamp(),
            )
        except (LookupError, ValueError, OverflowError) as error:
            raise StorageUnavailableError(
                f"object {key!r} in {self._config.where}: a length and a time expected", key
            ) from error

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List keys in lexicographic order, a page at a time; without keys that are not ours.

        Args:
            prefix: What the keys begin with; need not end at a slash.
            after: Only keys that sort after this one.
            limit: The most keys on the page, at least 1.

        Returns:
            The page.

        Raises:
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            AccessDeniedError: The server refuses.
            RefusedError: We refuse the server's address or its answer.
            StorageUnavailableError: No answer in time.
            ValueError: `limit` is below 1.
        """
        check_prefix(prefix)
        check_prefix(after or "")
        check_limit(limit)
        is_ordered = self._config.lists_in_order
        first = after or ""
        keys: builtins.list[str] = []
        with self._link.calling("") as clock:
            async for names in self._pages(clock, prefix, first if is_ordered else ""):
                ours = {key for key in names if key.startswith(prefix) and is_key(key)}
                # One more than asked for tells whether another page exists.
                keys = sorted({*keys, *(key for key in ours if key > first)})[: limit + 1]
                if is_ordered and len(keys) > limit:
                    break
        return page_of(keys, limit)

    async def listed(self, prefix: str, *, page_keys: int = 1000) -> builtins.list[str]:
        """List all keys as the server does: in its order, with those that are not ours.

        Args:
            prefix: What the keys begin with.
            page_keys: How many to ask for at a time, at most 1000.

        Returns:
            The keys.

        Raises:
            StorageError: As `list` says.
        """
        with self._link.calling("") as clock:
            pages = self._pages(clock, prefix, "", page_keys)
            return [name async for page in pages for name in page]

    async def _pages(
        self, clock: CallClock, prefix: str, after: str, page_keys: int = 1000
    ) -> AsyncIterator[builtins.list[str]]:
        place: dict[str, Any] = {"Prefix": self._name(prefix), "MaxKeys": page_keys}
        if after:
            place["StartAfter"] = self._name(after)
        while True:
            values = await self._request(clock, "list_objects_v2", "", place)
            found = [entry.get("Key") for entry in values.get("Contents", ())]
            if "IsTruncated" not in values or None in found:
                raise StorageUnavailableError(f"{self._config.where}: a listing expected", "")
            top = self._name("")
            yield [name.removeprefix(top) for name in map(str, found) if name.startswith(top)]
            token = values.get("NextContinuationToken")
            if not values["IsTruncated"] or not token or not found:
                return
            place["ContinuationToken"] = token

    async def delete(self, key: str) -> None:
        """Remove an object; idempotent.

        Args:
            key: Which object.

        Raises:
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: The server refuses.
            RefusedError: We refuse the server's address or its answer.
            StorageUnavailableError: No answer in time.
        """
        check_key(key)
        # Some servers say that what is to be deleted is not there.
        with suppress(ObjectNotFoundError):
            await self.request("delete_object", key)

    async def request(self, operation: str, key: str, **parameters: object) -> Mapping[str, Any]:
        """Make any S3 request, with this store's retries and deadline.

        Args:
            operation: The S3 operation, like head_object.
            key: The object; empty for the bucket.
            parameters: Its further parameters by their S3 names.

        Returns:
            The answer's fields by their S3 names, without a body.

        Raises:
            StorageError: What went wrong; a condition that does not hold is ObjectExistsError.
        """
        with self._link.calling(key) as clock:
            return await self._request(clock, operation, key, parameters)

    async def _request(
        self, clock: CallClock, operation: str, key: str, parameters: Mapping[str, object]
    ) -> Mapping[str, Any]:
        named = {"Key": self._name(key)} if key else {}

        async def attempt() -> Reply:
            return await self._link.ask(clock, operation, **parameters, **named)

        return (await self._link.again(clock, key, attempt)).values

    def _name(self, key: str) -> str:
        return f"{self._config.prefix}/{key}" if self._config.prefix else key
