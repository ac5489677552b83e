"""How the S3 store writes: in one request, or in parts that are joined at the end.

Guarantees: create-once is decided by the server (`If-None-Match: *` on the write, or on the joining
of the parts). Each write carries an id of its own as metadata, so that after a lost answer it can
be told whether the object that is now there is ours. Every request carries an MD5 that the server
compares. Parts that have arrived are never sent again within a call, and a write that is given up
removes its parts; what a killed process leaves goes by the bucket's own rule for old uploads.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from shoal.storage.s3_answers import AttemptError, GiveUpError, RefusalError, meaning
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_link import Link
from shoal.storage.s3_parts import body_parameters, in_parallel, part_size

WRITE_ID: Final = "shoal-write"

# 304 is what MinIO answered before the middle of 2024.
_TAKEN: Final = frozenset({304, 409, 412})


class Upload:
    """One `put`.

    Args:
        link: The way to the server.
        clock: The call's time.
        key: The object's key, for messages.
        name: Its name in the bucket.
        data: The whole object.
        overwrite: Replace what is there.
        may_join: The object may travel in parts.
    """

    def __init__(
        self,
        link: Link,
        clock: CallClock,
        key: str,
        name: str,
        data: memoryview,
        *,
        overwrite: bool,
        may_join: bool = True,
    ) -> None:
        self._link = link
        self._clock = clock
        self._key = key
        self._name = name
        self._data = data
        self._overwrite = overwrite
        self._may_join = may_join
        self._write_id = secrets.token_hex(16)
        # Whether an earlier attempt may have been carried out although no answer came.
        self._is_unsure = False

    async def run(self) -> None:
        """Write the object.

        Raises:
            StorageError: As `ObjectStore.put` says.
            GiveUpError: The time is over, or the transfer too slow.
        """
        try:
            if not self._may_join or self._data.nbytes <= self._link.limits.part_bytes:
                await self._decisive("put_object", self._metadata(), self._data)
            else:
                await self._in_parts()
        except ObjectNotFoundError as error:
            # To a writer only the bucket can be missing.
            raise AccessDeniedError(
                f"object {self._key!r} cannot be written: no {self._link.where}", self._key
            ) from error

    async def _in_parts(self) -> None:
        await self._check_free()
        upload_id = await self._begin()
        try:
            parts = await self._send_parts(upload_id)
            joined = {"UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
            await self._decisive("complete_multipart_upload", joined, None)
        except asyncio.CancelledError:
            self._link.leave(self._abort_now, upload_id)
            raise
        except (StorageError, GiveUpError):
            await self._link.run(self._abort_now, upload_id)
            raise

    async def _decisive(
        self, operation: str, parameters: Mapping[str, Any], data: memoryview | None
    ) -> None:
        """Make the request that makes the object appear."""
        condition = {} if self._overwrite else {"IfNoneMatch": "*"}

        async def attempt() -> None:
            body = {} if data is None else body_parameters(data)
            try:
                await self._link.ask(
                    self._clock, operation, Key=self._name, **parameters, **condition, **body
                )
            except AttemptError:
                self._is_unsure = True
                raise
            except RefusalError as error:
                await self._settle(error)

        await self._link.again(self._clock, self._key, attempt)

    async def _settle(self, error: RefusalError) -> None:
        """Return if the refused write has been carried out all the same; raise if not."""
        refusal = error.refusal
        # The parts have been joined already, or somebody has removed them.
        is_gone = refusal.code == "NoSuchUpload" and self._is_unsure
        if not is_gone and (self._overwrite or refusal.status not in _TAKEN):
            self._is_unsure |= isinstance(meaning(refusal, self._key, ""), AttemptError)
            raise error
        if refusal.status != 409 and not is_gone and not self._is_unsure:
            raise self._exists() from error
        try:
            is_ours = await self._is_ours()
        except ObjectNotFoundError:
            if is_gone:
                raise self._lost() from error
            # Another writer was under way and has failed, or the object went: try again.
            raise AttemptError(f"the server answers {refusal}") from error
        if not is_ours:
            raise (self._lost() if self._overwrite else self._exists()) from error

    async def _is_ours(self) -> bool:
        async def attempt() -> Mapping[str, Any]:
            return (await self._link.ask(self._clock, "head_object", Key=self._name)).values

        found = await self._link.again(self._clock, self._key, attempt)
        write_id = found.get("Metadata", {}).get(WRITE_ID)
        if write_id is not None:
            return bool(write_id == self._write_id)
        # A server that keeps no metadata: the same bytes are as good as ours.
        md5 = hashlib.md5(self._data, usedforsecurity=False).hexdigest()
        return found.get("ContentLength") == self._data.nbytes and found.get("ETag") == f'"{md5}"'

    async def _check_free(self) -> None:
        """Spare the sending if the key is taken; the joining is what decides."""
        if self._overwrite:
            return
        with suppress(ObjectNotFoundError):
            await self._is_ours()
            raise self._exists()

    async def _begin(self) -> str:
        async def attempt() -> str:
            reply = await self._link.ask(
                self._clock, "create_multipart_upload", Key=self._name, **self._metadata()
            )
            return reply.word("UploadId")

        return await self._link.again(self._clock, self._key, attempt)

    async def _send_parts(self, upload_id: str) -> list[dict[str, Any]]:
        part_bytes = part_size(self._data.nbytes, self._link.limits)
        starts = range(0, self._data.nbytes, part_bytes)
        clock = self._clock.child()

        async def send(number: int, start: int) -> dict[str, Any]:
            part = self._data[start : start + part_bytes]
            return await self._send_part(clock, upload_id, number, part)

        return await in_parallel(
            clock,
            [partial(send, number, start) for number, start in enumerate(starts, start=1)],
            self._link.limits.num_parallel,
        )

    async def _send_part(
        self, clock: CallClock, upload_id: str, number: int, part: memoryview
    ) -> dict[str, Any]:
        async def attempt() -> dict[str, Any]:
            reply = await self._link.ask(
                clock,
                "upload_part",
                Key=self._name,
                UploadId=upload_id,
                PartNumber=number,
                **body_parameters(part),
            )
            return {"PartNumber": number, "ETag": reply.word("ETag")}

        return await self._link.again(clock, self._key, attempt)

    def _abort_now(self, upload_id: str) -> None:
        # Best effort: the call has failed already, and buckets have rules for old uploads.
        with suppress(RefusalError, AttemptError, GiveUpError, StorageError):
            self._link.caller.call(
                self._link.short_clock(),
                "abort_multipart_upload",
                {"Key": self._name, "UploadId": upload_id},
            )

    def _metadata(self) -> dict[str, Any]:
        return {"Metadata": {WRITE_ID: self._write_id}}

    def _lost(self) -> StorageUnavailableError:
        return StorageUnavailableError(
            f"object {self._key!r} in {self._link.where}: the answer to the write was lost, and "
            "another object is there now",
            self._key,
        )

    def _exists(self) -> ObjectExistsError:
        return ObjectExistsError(
            f"object {self._key!r} exists in {self._link.where}, a create-once write was asked",
            self._key,
        )
