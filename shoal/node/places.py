"""Where a node finds the run's objects, and where its own payloads go.

Guarantees: the run's objects (manifest, records, announcements, copies) come from one store; a
peer's payload is read from where its verified announcement says, and only if that is a place that
the manifest or this node's configuration knows: a peer never supplies an address that is used as it
stands.

Does not do: move bytes (the stores do) or count them (the meter does).
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.node.config import StoreConfig
from shoal.node.errors import ResourceError
from shoal.node.publisher import RUN_STORE
from shoal.node.store_keys import StoreKeys
from shoal.protocol.announcement import Where
from shoal.protocol.errors import ErrorCode, PayloadError
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import StorageError
from shoal.storage.http import HttpStore
from shoal.storage.object_store import ObjectStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The stores of one node."""

    run: ObjectStore
    """The run's objects."""
    time_s: Callable[[str], Awaitable[float]]
    """The store's clock, unix seconds; the key is one that this node may write to find out."""
    probe_upload: Callable[[StoreKeys, bytes], Awaitable[None]]
    """Sends bytes where payloads go, for measuring; nothing of them stays."""
    close: Callable[[], Awaitable[None]]

    def reader(self, where: Where) -> ObjectStore:
        """The store that holds a payload announced as being at `where`.

        Raises:
            PayloadError: E_HOST_NOT_ALLOWED, no such place is known.
        """
        if where.provider == RUN_STORE:
            return self.run
        raise PayloadError(
            ErrorCode.E_HOST_NOT_ALLOWED, f"no provider {where.provider!r} is known in this run"
        )


def open_places(config: StoreConfig) -> Places:
    """Opens what the configuration names.

    Raises:
        ResourceError: it cannot be used.
    """
    if config.kind == "http":
        store = HttpStore(config.url)
        return Places(
            run=store,
            time_s=lambda _: store.server_time_s(),
            probe_upload=lambda _, data: store.put_to_sink(data),
            close=store.close,
        )
    try:
        folder = DirectoryStore(Path(config.path))
    except StorageError as error:
        raise ResourceError(str(error)) from error
    return Places(
        run=folder,
        time_s=lambda key: _time_of_a_write(folder, key),
        probe_upload=lambda keys, data: _write_and_delete(folder, keys, data),
        close=_nothing,
    )


async def _time_of_a_write(store: ObjectStore, key: str) -> float:
    """The store's clock as it stamps a small object; shows too that this node may write."""
    await store.put(key, b"hello", overwrite=True)
    return (await store.head(key)).modified_at_s


async def _write_and_delete(store: ObjectStore, keys: StoreKeys, data: bytes) -> None:
    key = keys.probe(secrets.token_hex(16))
    await store.put(key, data)
    await store.delete(key)


async def _nothing() -> None:
    """A folder needs no closing."""
