"""The network as a store of objects that are named by content.

A key's last segment is the object's id, 64 hex digits, as in `<run>/copies/<id>`. What this peer
serves is read from its own files; everything else from peers, and reading does not make it served:
whoever has checked the bytes says so.

Guarantees: those of `object_store`, with these differences. A put only begins to serve: nothing
moves until somebody fetches, so it adds no bytes to a transfer's progress (what peers took is in
`Status.num_bytes_up`), and it ends with this node. A range of an object that is not here is
refused, because only the whole can be checked. A peer that is silent is not waited for while others
may have the object. `list` shows what is here. Create-once needs no
referee where bytes under one id can only be the same bytes.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from shoal.node.network.client import NetworkClient
from shoal.node.network.downloads import Copies, Source
from shoal.node.network.errors import WrongBytesError
from shoal.node.network.hedging import first_answer
from shoal.node.network.kept_objects import KeptObject
from shoal.storage.allowance import check_quota
from shoal.storage.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectExistsError,
    StorageUnavailableError,
)
from shoal.storage.filling import Arrived, require_length
from shoal.storage.keys import check_key, check_prefix
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    check_limit,
    page_of,
    range_num_bytes,
)
from shoal.storage.progress import note_moved

FindSources = Callable[[bytes], Awaitable[Sequence[Source]]]
"""Object id -> peers that may have it, the best first."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Who has an object, and how long it says that it is."""

    source: Source
    num_bytes: int


_ID: Final = re.compile(r"[0-9a-f]{64}")


class P2PStore:
    """Objects of this peer and of others.

    Args:
        network: A started client.
        find_sources: Says whom to ask.
        timeout_s: For one `get` or `head`.
        named_by_hash: Whether ids are the SHA-256 of the bytes; if not, callers check the bytes.
        find_more: Says whom to ask when those do not give it, or are silent.
        check: Whether what those others give is the object that has this id; None: they are
            believed like the first. The first answer for what they give, length and bytes.
    """

    def __init__(
        self,
        network: NetworkClient,
        find_sources: FindSources,
        *,
        timeout_s: float = 60.0,
        named_by_hash: bool = True,
        find_more: FindSources | None = None,
        check: Callable[[bytes, memoryview], bool] | None = None,
    ) -> None:
        self._network = network
        self._finders = (find_sources,) if find_more is None else (find_sources, find_more)
        self._timeout_s = timeout_s
        self._named_by_hash = named_by_hash
        self._check = check
        self._put_at_s: dict[str, float] = {}

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Serve an object.

        Args:
            key: Ends in its id.
            data: The whole object.
            overwrite: Whether it may be here already.

        Raises:
            ObjectExistsError: It is here already and `overwrite` is false.
            InvalidKeyError: The key has no id.
            WrongBytesError: The id is not the hash of the bytes.
            QuotaReachedError: This node's own quota is used up.
            StorageFullError: Larger than what may be kept.
            StorageUnavailableError: The network process is not there.
        """
        object_id = object_id_of(key)
        check_quota("up", key)
        if self._network.kept(object_id) is not None and not overwrite:
            raise ObjectExistsError(f"object {key!r} exists, a create-once write was asked", key)
        if self._named_by_hash and hashlib.sha256(data).digest() != object_id:
            raise WrongBytesError(f"object {key!r} is not named by the hash of its bytes", key)
        await self._network.serve(object_id, data)
        self._put_at_s[key] = time.time()

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read an object; never more than `max_bytes`.

        Args:
            key: Ends in its id.
            max_bytes: The most that the caller can take.
            start: First byte; other than 0 only for what is here.
            length: Length; other than the whole only for what is here.

        Returns:
            Exactly the bytes asked for.

        Raises:
            ObjectNotFoundError: No source has it.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object.
            InvalidKeyError: The key has no id.
            AccessDeniedError: A range of an object that is not here.
            WrongBytesError: The sources sent other bytes.
            QuotaReachedError: This node's own quota is used up.
            StorageUnavailableError: The sources do not answer.
            ValueError: A number is negative.
        """
        kept = self._network.kept(object_id_of(key))
        if kept is None:
            return await self._get_from_peers(key, max_bytes, start, length)
        num_bytes = range_num_bytes(
            key, kept.num_bytes, max_bytes=max_bytes, start=start, length=length
        )
        note_moved(num_bytes)
        return await asyncio.to_thread(_read, kept, start, num_bytes)

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """Read a whole object into room of exactly its length; see `storage.filling`.

        Args:
            key: Ends in its id.
            room: Where to put it.
            arrived: Told of the progress.

        Raises:
            ObjectTooLargeError: It is longer than the room.
            ObjectTooShortError: It is shorter.
            StorageError: As `get`.
        """
        kept = self._network.kept(object_id_of(key))
        if kept is not None:
            require_length(key, kept.num_bytes, room)
            await asyncio.to_thread(_read_into, kept, room)
            note_moved(room.nbytes)
            arrived(room.nbytes)
            return
        object_id = object_id_of(key)
        found = await self._look(object_id, room.nbytes)
        require_length(key, found.num_bytes, room)
        check_quota("down", key)
        arrived(0)
        await self._network.fetch_into(
            object_id,
            [found.source],
            room,
            arrived,
            timeout_s=self._timeout_s + self._network.queue_s(room.nbytes),
            named_by_hash=self._named_by_hash,
            more=partial(self._all_sources, object_id),
            copies=await self._copies(object_id),
        )

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object without reading it.

        Args:
            key: Ends in its id.

        Returns:
            Its length, which is a claim where it is not here, and when it came here.

        Raises:
            ObjectNotFoundError: No source has it.
            InvalidKeyError: The key has no id.
            StorageUnavailableError: The sources do not answer.
        """
        object_id = object_id_of(key)
        kept = self._network.kept(object_id)
        num_bytes = kept.num_bytes if kept else (await self._look(object_id)).num_bytes
        at_s = self._put_at_s.get(key, time.time())
        return ObjectInfo(key=key, num_bytes=num_bytes, modified_at_s=at_s)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List the keys that are here, in lexicographic order.

        Args:
            prefix: What the keys begin with.
            after: Only keys that sort after this one.
            limit: The most keys on the page.

        Returns:
            The page.

        Raises:
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            ValueError: `limit` is below 1.
        """
        check_prefix(prefix)
        check_prefix(after or "")
        check_limit(limit)
        here = (key for key in self._put_at_s if self._network.kept(object_id_of(key)) is not None)
        found = (key for key in here if key.startswith(prefix) and key > (after or ""))
        return page_of(sorted(found), limit)

    async def delete(self, key: str) -> None:
        """Serve it no longer; idempotent. Other peers may have it.

        Args:
            key: Ends in its id.

        Raises:
            InvalidKeyError: The key has no id.
            StorageUnavailableError: The network process is not there.
        """
        object_id = object_id_of(key)
        self._put_at_s.pop(key, None)
        await self._network.withdraw(object_id)

    async def _get_from_peers(
        self, key: str, max_bytes: int, start: int, length: int | None
    ) -> bytes:
        object_id = object_id_of(key)
        found = await self._look(object_id)
        num_bytes = range_num_bytes(
            key, found.num_bytes, max_bytes=max_bytes, start=start, length=length
        )
        if num_bytes != found.num_bytes:
            raise AccessDeniedError(f"object {key!r} is not here: only the whole of it", key)
        check_quota("down", key)
        return await self._network.fetch(
            object_id,
            [found.source],
            num_bytes=num_bytes,
            timeout_s=self._timeout_s + self._network.queue_s(num_bytes),
            named_by_hash=self._named_by_hash,
            more=partial(self._all_sources, object_id),
            copies=await self._copies(object_id),
        )

    async def _look(self, object_id: bytes, wanted_bytes: int | None = None) -> _Place:
        """Who answers first; "not found" only if nobody who may have it is away."""
        asks = [partial(self._ask, object_id, one, wanted_bytes) for one in self._finders]
        return await first_answer(asks)

    async def _ask(self, object_id: bytes, find: FindSources, wanted_bytes: int | None) -> _Place:
        is_believed = self._check is None or find is self._finders[0]

        async def ask(source: Source) -> _Place:
            num_bytes = await self._network.ask_size(object_id, source, self._timeout_s)
            if not is_believed and wanted_bytes not in (None, num_bytes):
                text = f"a copy of {num_bytes} bytes, expected {wanted_bytes}"
                raise WrongBytesError(text, object_id.hex())
            return _Place(source, num_bytes)

        return await first_answer([partial(ask, one) for one in await find(object_id)])

    async def _copies(self, object_id: bytes) -> Copies | None:
        if self._check is None:
            return None
        return Copies(authors=tuple(await self._finders[0](object_id)), check=self._check)

    async def _all_sources(self, object_id: bytes) -> Sequence[Source]:
        found = await asyncio.gather(*(find(object_id) for find in self._finders))
        return [source for some in found for source in some]


def object_id_of(key: str) -> bytes:
    """Read the id that a key ends in.

    Args:
        key: A store's key.

    Returns:
        32 bytes.

    Raises:
        InvalidKeyError: The key is not valid, or does not end in 64 hex digits.
    """
    check_key(key)
    name = key.rsplit("/", maxsplit=1)[-1]
    if _ID.fullmatch(name) is None:
        raise InvalidKeyError(f"object key {key!r} does not end in an id of 64 hex digits", key)
    return bytes.fromhex(name)


def _read_into(kept: KeptObject, room: memoryview) -> None:
    with kept.path.open("rb") as file:
        if file.readinto(room) != room.nbytes:
            raise StorageUnavailableError(f"{kept.path} is cut off", "")


def _read(kept: KeptObject, start: int, num_bytes: int) -> bytes:
    with kept.path.open("rb") as file:
        file.seek(start)
        return file.read(num_bytes)
