"""Finds out what a bucket can do: what `shoal doctor` runs against it.

Providers differ in the newer parts of S3. Every check does the thing itself, in a folder with a
random name, and says what follows where it is missing. Guarantees: touches no other key, removes
what it has written (as far as the bucket lets it), raises nothing that a bucket can cause, moves a
few kilobytes.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, Final, Literal

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
)
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from shoal.storage.s3_parts import body_parameters

Level = Literal["ok", "warning", "failure"]
Finding = tuple[Level, str, str] | None
OpenStore = Callable[[S3Config, S3Credentials | None], S3Store]

_NUM_RACERS: Final = 8
_DATA: Final = bytes(range(256)) * 4
_LIMITS: Final = S3Limits(deadline_s=30.0, num_attempts=2)
_NO_CREATE_ONCE: Final = (
    "keep a run's records in a folder, or in a bucket that honours 'If-None-Match: *', as AWS S3, "
    "R2, newer MinIO and SeaweedFS do; payloads may stay here"
)
# They tell the order of bytes from the order of folders.
_LISTED: Final = ("list/a", "list/a-b", "list/a/b", "list/a0", "list/b")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckLine:
    """One finding.

    Attributes:
        code: Which check, by a name that stays.
        level: "ok", "warning" if a run works all the same, "failure" if it does not.
        what: What was looked at.
        cause: What was found instead; empty if all is well.
        fix: What to do about it; empty if nothing.
    """

    code: str
    level: Level
    what: str
    cause: str = ""
    fix: str = ""


async def check_bucket(
    config: S3Config,
    writer: S3Credentials,
    *,
    reader: S3Credentials | None = None,
    opened_by: OpenStore = partial(S3Store, limits=_LIMITS),  # noqa: B008 - immutable
) -> list[CheckLine]:
    """Look at everything that a run needs of a bucket.

    Args:
        config: Which bucket.
        writer: The key that may write.
        reader: The key that is given to others; None if the bucket is public.
        opened_by: Makes the stores.

    Returns:
        One line per check; only the first if nothing can be written.
    """
    folder = f"shoal-check-{secrets.token_hex(8)}"
    inside = replace(config, prefix=f"{config.prefix}/{folder}" if config.prefix else folder)
    stores = [opened_by(inside, key) for key in (writer, reader, None)]
    check = _BucketCheck(config, stores[0], stores[1] if reader else None, stores[2])
    try:
        return await check.run()
    finally:
        await check.clean_up()
        for store in stores:
            store.close()


class _BucketCheck:
    def __init__(
        self, config: S3Config, store: S3Store, reader: S3Store | None, anybody: S3Store
    ) -> None:
        self._is_said_to_order = config.lists_in_order
        self._is_said_to_join_once = config.joins_once
        self._store = store
        self._reader = reader
        self._anybody = anybody
        self._keys: set[str] = set()

    async def run(self) -> list[CheckLine]:
        first = await self._guarded("BUCKET_WRITE", "write an object", self._write)
        if first.level == "failure":
            return [first]
        checks = (
            ("BUCKET_READ_AFTER_WRITE", "read what was just written", self._read_after_write),
            ("BUCKET_CREATE_ONCE", "refuse a second write of a key", self._create_once),
            ("BUCKET_IF_MATCH", "overwrite only a known version", self._if_match),
            ("BUCKET_RANGE", "read ranges exactly", self._range),
            ("BUCKET_MULTIPART", "write in parts, and give parts up", self._multipart),
            ("BUCKET_CHECKSUM", "refuse damaged bytes", self._checksum),
            ("BUCKET_LIST", "list keys by pages, in order", self._list),
            ("BUCKET_PUBLIC_READ", "others can read", self._others_read),
            ("BUCKET_PUBLIC_WRITE", "others cannot write", self._others_write),
            ("BUCKET_DELETE", "delete an object", self._delete),
        )
        # One after the other: a slow line is not to be mistaken for a missing feature.
        return [first, *[await self._guarded(*check) for check in checks]]

    async def clean_up(self) -> None:
        for key in sorted(self._keys):
            # A bucket that cannot delete has been told so by its own line.
            with suppress(StorageError):
                await self._store.delete(key)

    async def _guarded(
        self, code: str, what: str, check: Callable[[], Awaitable[Finding]]
    ) -> CheckLine:
        try:
            found = await check()
        except StorageError as error:
            fix = "look at the address, the bucket's name, the region and the key's permissions"
            found = ("failure", error.message, fix)
        level, cause, fix = found or ("ok", "", "")
        return CheckLine(code=code, level=level, what=what, cause=cause, fix=fix)

    async def _put(self, key: str, data: bytes = _DATA, *, overwrite: bool = False) -> None:
        self._keys.add(key)
        await self._store.put(key, data, overwrite=overwrite)

    async def _request(self, operation: str, key: str, **parameters: object) -> Mapping[str, Any]:
        self._keys.add(key)
        return await self._store.request(operation, key, **parameters)

    async def _is_refused(self, work: Awaitable[object]) -> bool:
        try:
            await work
        except (ObjectExistsError, ObjectNotFoundError, AccessDeniedError):
            return True
        return False

    async def _write(self) -> None:
        await self._put("object", overwrite=True)

    async def _read_after_write(self) -> Finding:
        for number in range(5):
            await self._put("again", b"%d" % number, overwrite=True)
            if await self._store.get("again", max_bytes=16) != b"%d" % number:
                return (
                    "failure",
                    "an older version was read after a newer one had been written",
                    "switch off caches in front of the bucket, or use another provider",
                )
        return None

    async def _create_once(self) -> Finding:
        race = [self._put("once", b"%d" % number) for number in range(_NUM_RACERS)]
        outcomes = await asyncio.gather(*race, return_exceptions=True)
        num_won = outcomes.count(None)
        is_refused = await self._is_refused(self._put("once", b"late"))
        if num_won == 1 and is_refused:
            return None
        cause = f"of {_NUM_RACERS} racing writers {num_won} were told that they had created the key"
        return "failure", cause, _NO_CREATE_ONCE

    async def _if_match(self) -> Finding:
        await self._put("version", b"1", overwrite=True)
        etag = (await self._request("head_object", "version")).get("ETag", "")
        body = body_parameters(memoryview(b"2"))
        await self._request("put_object", "version", IfMatch=etag, **body)
        body = body_parameters(memoryview(b"3"))
        if await self._is_refused(self._request("put_object", "version", IfMatch=etag, **body)):
            return None
        return (
            "warning",
            "a write that asked for an older version has replaced a newer one",
            "nothing for a run; let no two programs overwrite the same key in this bucket",
        )

    async def _range(self) -> Finding:
        for start, length in ((0, 1), (100, 300), (len(_DATA) - 1, 1)):
            found = await self._store.get("object", max_bytes=length, start=start, length=length)
            if found != _DATA[start : start + length]:
                return (
                    "failure",
                    f"bytes {start} to {start + length} are not those of the object",
                    "use another provider, or remove what changes answers on the way",
                )
        return None

    async def _multipart(self) -> Finding:
        upload = await self._begin("parts")
        await self._join("parts", upload, await self._send_part("parts", upload))
        if await self._store.get("parts", max_bytes=len(_DATA)) != _DATA:
            return "failure", "the joined object is another one", "use another provider"
        upload = await self._begin("parts")
        await self._request("abort_multipart_upload", "parts", UploadId=upload)
        if not await self._is_refused(self._send_part("parts", upload)):
            return (
                "warning",
                "an upload that was given up still takes parts",
                "set the bucket's rule that removes incomplete uploads after a day",
            )
        return await self._join_once()

    async def _join_once(self) -> Finding:
        uploads = [await self._begin("joined") for _ in range(_NUM_RACERS)]
        parts = [await self._send_part("joined", upload) for upload in uploads]
        race = [
            self._is_refused(self._join("joined", upload, part, IfNoneMatch="*"))
            for upload, part in zip(uploads, parts, strict=True)
        ]
        refused = await asyncio.gather(*race)
        for upload in compress(uploads, refused):
            await self._request("abort_multipart_upload", "joined", UploadId=upload)
        num_won = refused.count(False)
        if num_won == 1 or not self._is_said_to_join_once:
            return None
        cause = f"of {_NUM_RACERS} writers that joined parts at once {num_won} succeeded"
        return "warning", cause, "set joins_once = false for this bucket"

    async def _begin(self, key: str) -> str:
        return str((await self._request("create_multipart_upload", key))["UploadId"])

    async def _send_part(self, key: str, upload: str) -> dict[str, object]:
        body = body_parameters(memoryview(_DATA))
        values = await self._request("upload_part", key, UploadId=upload, PartNumber=1, **body)
        return {"Parts": [{"PartNumber": 1, "ETag": values["ETag"]}]}

    async def _join(self, key: str, upload: str, parts: object, **condition: str) -> None:
        await self._request(
            "complete_multipart_upload", key, UploadId=upload, MultipartUpload=parts, **condition
        )

    async def _checksum(self) -> Finding:
        body = body_parameters(memoryview(_DATA))
        body["ContentMD5"] = body_parameters(memoryview(b"other bytes"))["ContentMD5"]
        # A refusal reads as damage on the way, which is sent again and then given up.
        with suppress(StorageError):
            await self._request("put_object", "damaged", **body)
        try:
            await self._store.head("damaged")
        except ObjectNotFoundError:
            return None
        return (
            "warning",
            "bytes were stored that are not those of their MD5",
            "nothing for a run: readers compare digests; damage is noticed later and costs a round",
        )

    async def _list(self) -> Finding:
        for key in _LISTED:
            await self._put(key, b"", overwrite=True)
        found = await self._store.listed("list/", page_keys=2)
        if sorted(found) != sorted(_LISTED):
            cause = f"of {len(_LISTED)} keys {len(found)} are listed by pages of two"
            return "failure", cause, "use another provider"
        if found != list(_LISTED) and self._is_said_to_order:
            cause = "keys are not listed in the order of their bytes"
            return "warning", cause, "set lists_in_order = false for this bucket"
        return None

    async def _others_read(self) -> Finding:
        for store in (self._anybody, self._reader):
            with suppress(AccessDeniedError):
                if store and await store.get("object", max_bytes=len(_DATA)) == _DATA:
                    return None
        fix = "make the bucket public for reading, or give others a read-only key"
        return "warning", "neither anybody nor the read-only key can read", fix

    async def _others_write(self) -> Finding:
        for store, who in ((self._anybody, "anybody"), (self._reader, "the read-only key")):
            self._keys.add("foreign")
            if store and not await self._is_refused(store.put("foreign", b"", overwrite=True)):
                fix = "take that permission away before anything is stored there"
                return "failure", f"{who} can write into the bucket", fix
        return None

    async def _delete(self) -> Finding:
        await self._store.delete("object")
        await self._store.delete("object")
        if await self._is_refused(self._store.head("object")):
            return None
        return (
            "warning",
            "an object is still there after it was deleted",
            "remove old rounds by a rule of the bucket, or allow the key to delete",
        )
