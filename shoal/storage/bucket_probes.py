"""What is done to a bucket to find out what it can do; `provider_check` says in which order.

Guarantees: touches no key but its own and remembers which; a finding says what was found and what
follows from it. Providers differ in the newer parts of S3: conditional writes came early to AWS and
R2, later to MinIO and Ceph, and not to all; SeaweedFS lists folder by folder, and several of those
who join parts at once succeed.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from itertools import compress
from typing import Any, Final, Literal

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
)
from shoal.storage.s3 import S3Config, S3Store
from shoal.storage.s3_parts import body_parameters

Level = Literal["ok", "warning", "failure"]
Finding = tuple[Level, str, str] | None
Purpose = Literal["run", "payloads"]

_NUM_RACERS: Final = 8
# Who asks only once may be lucky.
_NUM_RACES: Final = 3
_DATA: Final = bytes(range(256)) * 4
_KNOWS_CONDITIONS: Final = "AWS S3, R2, newer MinIO and Ceph, and SeaweedFS honour it"
# They tell the order of bytes from the order of folders.
_LISTED: Final = ("list/a", "list/a-b", "list/a/b", "list/a0", "list/b")


class Probes:
    """Everything that can be tried, each in one method.

    Args:
        config: The folder of the bucket in which it is tried.
        purpose: What the bucket is for.
        store: The writer's.
        reader: The read-only key's, if there is one.
        anybody: Without a key.
    """

    def __init__(
        self,
        config: S3Config,
        purpose: Purpose,
        *,
        store: S3Store,
        reader: S3Store | None,
        anybody: S3Store,
    ) -> None:
        self._is_said_to_order = config.lists_in_order
        self._is_said_to_join_once = config.joins_once
        self._is_for_run = purpose == "run"
        self._section = "[store]" if purpose == "run" else "[payloads]"
        self._store = store
        self._reader = reader
        self._anybody = anybody
        self._keys: set[str] = set()

    async def clean_up(self) -> None:
        """Remove what was written, as far as the bucket lets it."""
        for key in sorted(self._keys):
            # A bucket that cannot delete has been told so by its own line.
            with suppress(StorageError):
                await self._store.delete(key)

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

    async def write(self) -> Finding:
        """Create an object, as payloads and records are created."""
        try:
            # As a payload or a record is written; a run never does it otherwise.
            await self._put("object")
        except AccessDeniedError:
            # Raises again if it is the key that may not write.
            await self._put("object", overwrite=True)
            cause = "a write that may only create ('If-None-Match: *') is refused, another is not"
            return "failure", cause, f"use another provider: {_KNOWS_CONDITIONS}"
        return None

    async def read_after_write(self) -> Finding:
        """Overwrite and read again and again."""
        for number in range(5):
            await self._put("again", b"%d" % number, overwrite=True)
            if await self._store.get("again", max_bytes=16) != b"%d" % number:
                return (
                    "failure",
                    "an older version was read after a newer one had been written",
                    "switch off caches in front of the bucket, or use another provider",
                )
        return None

    async def create_once(self) -> Finding:
        """Let several writers create the same key at once, and one more later."""
        race = [self._put("once", b"%d" % number) for number in range(_NUM_RACERS)]
        outcomes = await asyncio.gather(*race, return_exceptions=True)
        num_won = outcomes.count(None)
        is_refused = await self._is_refused(self._put("once", b"late"))
        if num_won == 1 and is_refused:
            return None
        cause = f"of {_NUM_RACERS} racing writers {num_won} were told that they had created the key"
        cause += ": a record could be replaced after it was closed"
        fix = "keep the run's records in a folder, or in a bucket that honours 'If-None-Match: *' "
        return "failure", cause, f"{fix}({_KNOWS_CONDITIONS}); payloads may stay here"

    async def if_match(self) -> Finding:
        """Overwrite a version that is known, then one that is no longer there."""
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

    async def range(self) -> Finding:
        """Read from the beginning, the middle and the end."""
        for start, length in ((0, 1), (100, 300), (len(_DATA) - 1, 1)):
            found = await self._store.get("object", max_bytes=length, start=start, length=length)
            if found != _DATA[start : start + length]:
                cause = (
                    f"bytes {start} to {start + length} are not those of the object: large ones "
                )
                cause += "are fetched by ranges, and readers would refuse them"
                fix = "use another provider, or remove what changes answers on the way"
                return "failure", cause, fix
        return None

    async def multipart(self) -> Finding:
        """Join a part, give an upload up, and let several writers join at once."""
        if not self._is_said_to_join_once:
            # Then objects that are created travel whole, and runs overwrite nothing large.
            return None
        upload = await self._begin("parts")
        await self._join("parts", upload, await self._send_part("parts", upload))
        if await self._store.get("parts", max_bytes=len(_DATA)) != _DATA:
            fix = f"set joins_once = false in {self._section} of node.toml, or use another provider"
            return "failure", "the joined object is another one", fix
        upload = await self._begin("parts")
        await self._request("abort_multipart_upload", "parts", UploadId=upload)
        if not await self._is_refused(self._send_part("parts", upload)):
            return (
                "warning",
                "an upload that was given up still takes parts",
                "set the bucket's rule that removes incomplete uploads after a day",
            )
        for number in range(_NUM_RACES):
            found = await self._join_once(f"joined-{number}")
            if found is not None:
                return found
        return None

    async def _join_once(self, key: str) -> Finding:
        uploads = [await self._begin(key) for _ in range(_NUM_RACERS)]
        parts = [await self._send_part(key, upload) for upload in uploads]
        race = [
            self._is_refused(self._join(key, upload, part, IfNoneMatch="*"))
            for upload, part in zip(uploads, parts, strict=True)
        ]
        refused = await asyncio.gather(*race)
        for upload in compress(uploads, refused):
            await self._request("abort_multipart_upload", key, UploadId=upload)
        num_won = refused.count(False)
        if num_won == 1:
            return None
        cause = f"of {_NUM_RACERS} writers that joined parts at once {num_won} succeeded: a large "
        cause += "object could be replaced after it was written"
        return "failure", cause, f"set joins_once = false in {self._section} of node.toml"

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

    async def checksum(self) -> Finding:
        """Send bytes with the MD5 of others."""
        body = body_parameters(memoryview(_DATA))
        body["ContentMD5"] = body_parameters(memoryview(b"other bytes"))["ContentMD5"]
        # A refusal reads as damage on the way, which is sent again and then given up.
        with suppress(StorageError):
            await self._request("put_object", "damaged", **body)
        # "Denied" is what a key that may not list is told of an object that is not there.
        if await self._is_refused(self._store.head("damaged")):
            return None
        return (
            "warning",
            "bytes were stored that are not those of their MD5",
            "nothing for a run: readers compare digests; damage is noticed later and costs a round",
        )

    async def list(self) -> Finding:
        """List by pages of two."""
        for key in _LISTED:
            await self._put(key, b"", overwrite=True)
        found = await self._store.listed("list/", page_keys=2)
        if sorted(found) != sorted(_LISTED):
            cause = f"of {len(_LISTED)} keys {len(found)} are listed by pages of two"
            return "failure", f"{cause}: announcements would be missed", "use another provider"
        if found != list(_LISTED) and self._is_said_to_order:
            cause = (
                "keys are not listed in the order of their bytes: pages would miss announcements"
            )
            return "failure", cause, f"set lists_in_order = false in {self._section} of node.toml"
        return None

    async def others_read(self) -> Finding:
        """Read the object as those who do not own the bucket."""
        for store in (self._anybody, self._reader):
            with suppress(AccessDeniedError):
                if store and await store.get("object", max_bytes=len(_DATA)) == _DATA:
                    return None
        cause = "neither anybody nor the read-only key can read"
        if not self._is_for_run:
            fix = "allow anybody to read below payloads/ (a policy is in the README)"
            return "failure", f"{cause}: nobody could fetch this node's payloads", fix
        fix = "allow anybody to read, or let peers go through the validator's [serve] service"
        return "warning", f"{cause}: peers cannot use this bucket directly", fix

    async def others_list(self) -> Finding:
        """List as those who do not own the bucket."""
        for store in (self._anybody, self._reader):
            with suppress(AccessDeniedError):
                if store and "object" in await store.listed("obj"):
                    return None
        fix = "allow anybody to list, or let peers go through the validator's [serve] service"
        cause = "neither anybody nor the read-only key can list: peers would see no announcements"
        return "warning", cause, fix

    async def others_write(self) -> Finding:
        """Try to write as those who do not own the bucket."""
        for store, who in ((self._anybody, "anybody"), (self._reader, "the read-only key")):
            self._keys.add("foreign")
            if store and not await self._is_refused(store.put("foreign", b"", overwrite=True)):
                fix = "take that permission away before anything is stored there"
                return "failure", f"{who} can write into the bucket", fix
        return None

    async def delete(self) -> Finding:
        """Delete the object, twice."""
        await self._store.delete("object")
        await self._store.delete("object")
        if await self._is_refused(self._store.head("object")):
            return None
        return (
            "warning",
            "an object is still there after it was deleted",
            "remove old rounds by a rule of the bucket, or allow the key to delete",
        )
