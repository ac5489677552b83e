"""The ids of objects that are found without being told of: computable, none taken from a peer.

    record of a round   SHA-256(b"shoal/record-object/1" || 0x00 || run id || round u64)
    known peers         SHA-256(b"shoal/known-peers/1" || 0x00 || run id)
    clock               SHA-256(b"shoal/clock/1" || 0x00 || run id)
    manifest            the run's id
    any manifest        SHA-256(b"shoal/any-manifest/1" || 0x00), for those who know no run id yet

A record is the object that a validator wrote. Known peers are public keys of 32 bytes each, at most
`MAX_KNOWN_PEERS`, as one validator sees them. The clock is an object without bytes whose length is
the server's unix time in milliseconds.

Such an id is no hash of the bytes: whoever fetches checks them by what they say (a record by its
validators' signatures), or takes them as hints (known peers, clock).
"""

import contextlib
import hashlib
from typing import Final

from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import KEY_BYTES, PeerId, parse_peer_key

MAX_KNOWN_PEERS: Final = 1024
ANY_MANIFEST_ID: Final = hashlib.sha256(b"shoal/any-manifest/1\0").digest()


def record_object_id(run_id: bytes, round_id: int) -> bytes:
    """The id of a round's record.

    Args:
        run_id: 32 bytes.
        round_id: From 1.

    Returns:
        32 bytes.
    """
    return _object_id(b"shoal/record-object/1", run_id + round_id.to_bytes(8, "little"))


def known_peers_id(run_id: bytes) -> bytes:
    """The id of the list of peers that a validator knows."""
    return _object_id(b"shoal/known-peers/1", run_id)


def clock_id(run_id: bytes) -> bytes:
    """The id of the object whose length is the time."""
    return _object_id(b"shoal/clock/1", run_id)


def read_peer_keys(raw: bytes) -> tuple[PeerId, ...]:
    """Read a list of public keys; nobody is trusted, and what is no key is left out.

    Args:
        raw: Keys of 32 bytes each.

    Returns:
        At most `MAX_KNOWN_PEERS` peers, none twice.
    """
    found: dict[PeerId, None] = {}
    for at in range(0, min(len(raw), KEY_BYTES * MAX_KNOWN_PEERS), KEY_BYTES):
        with contextlib.suppress(RemoteProtocolError):
            found[parse_peer_key(raw[at : at + KEY_BYTES])] = None
    return tuple(found)


def _object_id(domain: bytes, rest: bytes) -> bytes:
    return hashlib.sha256(domain + b"\0" + rest).digest()
