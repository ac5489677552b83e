"""Upload and announce: durable first, announced second.

Guarantees: the payload is created once and read back by length before anyone hears of it; after a
crash or a lost answer the same bytes may be published again, which is a success; other bytes under
this node's key are an alarm, never overwritten.

Does not do: make payloads.
"""

from dataclasses import replace

from shoal.node.run_context import RunContext
from shoal.protocol.announcement import (
    MAX_ANNOUNCEMENT_BYTES,
    Announcement,
    AnnouncementType,
    build_announcement,
    read_announcement,
)
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.storage.errors import (
    ObjectExistsError,
    ObjectTooLargeError,
    StorageUnavailableError,
)
from shoal.storage.object_store import ObjectStore

OWN = "own"


async def attend(run: RunContext, round_id: int) -> None:
    """Tells the validators that this node trains for the round.

    Raises:
        StorageError: the store did not take it.
    """
    raw = _announce(run, round_id, AnnouncementType.ATTENDING, b"")
    await _tell(run, round_id, run.keys.attending(round_id, run.me), raw)


async def publish(run: RunContext, round_id: int, payload_id: bytes, raw: bytes) -> None:
    """Uploads the payload, reads its length back, announces it.

    Raises:
        RemoteProtocolError: E_KEY_IN_USE, another payload of this key is there.
        StorageError: the store did not take it.
    """
    key = run.keys.payload_at(run.own_where.provider, round_id, run.me, payload_id)
    store = run.own.labelled(peer=OWN, kind="payload")
    await _put_once(run, store, key, raw)
    info = await store.head(key)
    if info.num_bytes != len(raw):
        raise StorageUnavailableError(
            f"read back {info.num_bytes} bytes of a payload of {len(raw)}", key
        )
    announcement = _announce(run, round_id, AnnouncementType.PUBLISHED, payload_id)
    await _tell(run, round_id, run.keys.published(round_id, run.me), announcement)


def _announce(run: RunContext, round_id: int, kind: AnnouncementType, payload_id: bytes) -> bytes:
    published = kind is AnnouncementType.PUBLISHED
    return build_announcement(
        run.identity,
        Announcement(
            run_id=run.manifest.run_id,
            round_id=round_id,
            peer_key=run.me.key,
            type=kind,
            payload_id=payload_id,
            num_bytes=run.manifest.payload_bytes if published else 0,
            # Higher with each of this peer's announcements, and the same again after a restart.
            sequence=2 * round_id + published,
            where=run.own_where,
        ),
    )


async def _tell(run: RunContext, round_id: int, key: str, raw: bytes) -> None:
    store = run.store.labelled(peer=OWN, kind="announcement")
    try:
        await store.put(key, raw)
    except ObjectExistsError as error:
        found = await _read_back(store, key, MAX_ANNOUNCEMENT_BYTES)
        if found is None or not _say_the_same(run, round_id, raw, found):
            raise _conflict(run, key) from error


def _say_the_same(run: RunContext, round_id: int, raw: bytes, found: bytes) -> bool:
    """Whether two announcements differ only in the address of a network process.

    It may have another one after a restart; the payload is found by its id all the same.
    """
    try:
        one, two = (
            read_announcement(each, run.payload_rules, round_id).announcement
            for each in (raw, found)
        )
    except RemoteProtocolError:
        return False
    same_place = replace(two.where, address=one.where.address) == one.where
    return same_place and replace(two, where=one.where) == one


async def _put_once(run: RunContext, store: ObjectStore, key: str, raw: bytes) -> None:
    try:
        await store.put(key, raw)
    except ObjectExistsError as error:
        if await _read_back(store, key, len(raw)) != raw:
            raise _conflict(run, key) from error


def _conflict(run: RunContext, key: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ErrorCode.E_KEY_IN_USE,
        f"{key} holds other bytes than this node's: another node uses the same key, or "
        "this node's state folder was lost within the round",
        run.me,
    )


async def _read_back(store: ObjectStore, key: str, num_bytes: int) -> bytes | None:
    """What is there; None if it is longer than what may be there."""
    try:
        return await store.get(key, max_bytes=num_bytes)
    except ObjectTooLargeError:
        return None
