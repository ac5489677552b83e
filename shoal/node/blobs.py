"""Objects named by their content: genesis, token shards, tokenizer.

Guarantees: a file under the cache folder's blob name has been verified against its SHA-256 and
length when it was written; a damaged or missing one is fetched again; more bytes than the manifest
names are never read. Does not do: decide what is needed.
"""

import hashlib
from pathlib import Path

from shoal.node.checkpoint import write_atomically
from shoal.node.errors import ResourceError
from shoal.node.store_keys import StoreKeys
from shoal.protocol.manifest import BlobSection
from shoal.storage.errors import (
    ObjectExistsError,
    RefusedError,
    StorageError,
    StorageUnavailableError,
)
from shoal.storage.meter import MeteredStore


def describe(path: Path) -> BlobSection:
    """The manifest's entry for a file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").digest()
    return BlobSection(sha256=sha256, num_bytes=path.stat().st_size)


def describe_bytes(raw: bytes) -> BlobSection:
    """The manifest's entry for bytes in memory."""
    return BlobSection(sha256=hashlib.sha256(raw).digest(), num_bytes=len(raw))


async def upload(store: MeteredStore, keys: StoreKeys, raw: bytes) -> None:
    """Puts a blob under its own name; an equal one that is there already is fine.

    Raises:
        StorageError: the store did not take it.
    """
    key = keys.blob(hashlib.sha256(raw).digest())
    try:
        await store.labelled(peer="run", kind="blob").put(key, raw)
    except ObjectExistsError:
        return


class BlobCache:
    """Verified local copies of a run's blobs."""

    def __init__(self, folder: Path, store: MeteredStore, keys: StoreKeys) -> None:
        self._folder = folder
        self._store = store
        self._keys = keys

    def path(self, blob: BlobSection) -> Path:
        """Where the local copy is (or will be)."""
        return self._folder / blob.sha256.hex()

    async def fetch(self, blob: BlobSection) -> Path:
        """The local copy, downloaded if it is missing or not what its name says.

        Raises:
            StorageUnavailableError: the store does not answer now.
            ResourceError: the store does not give it, gives something else, or the disk is full.
        """
        path = self.path(blob)
        if path.is_file() and describe(path) == blob:
            return path
        key = self._keys.blob(blob.sha256)
        try:
            raw = await self._store.labelled(peer="run", kind="blob").get(
                key, max_bytes=blob.num_bytes
            )
        except StorageUnavailableError:
            raise
        except RefusedError as error:
            fix = "; use the manifest.json of the run that is served there"
            hint = fix if error.code == "E_RUN" else ""
            raise ResourceError(f"{error.code} cannot fetch a blob: {error}{hint}") from error
        except StorageError as error:
            raise ResourceError(f"cannot fetch {key}: {error}") from error
        found = hashlib.sha256(raw).hexdigest()
        if found != blob.sha256.hex() or len(raw) != blob.num_bytes:
            raise ResourceError(
                f"E_BODY_HASH {key}: expected SHA-256 {blob.sha256.hex()} and {blob.num_bytes} "
                f"bytes, found {found} and {len(raw)} bytes; put the right file into the store"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, raw)
        except OSError as error:
            raise ResourceError(f"cannot write {path}: {error.strerror}") from error
        return path
