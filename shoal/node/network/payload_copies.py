"""Whether the copy of a payload that somebody else serves is what its author signed.

A payload's id is the hash of its header, so whoever serves it could change everything behind the
header, and the author would be blamed. Guarantees: a copy that passes has the header of this id, a
signature by the key in it, and the body that it names. Whether it is valid in its round is for
`protocol.payload`.
"""

import hashlib

from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import parse_peer_key
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES, check_signature, peek


def is_authentic(object_id: bytes, data: memoryview) -> bool:
    """Judge a copy.

    Args:
        object_id: The payload's id.
        data: The whole copy.

    Returns:
        Whether its author stands behind every byte.
    """
    try:
        found = peek(data)
        author = parse_peer_key(found.header.peer_key)
        check_signature(author, bytes(data[:PAYLOAD_PREFIX_BYTES]))
    except RemoteProtocolError:
        return False
    body_sha256 = hashlib.sha256(data[PAYLOAD_PREFIX_BYTES:]).digest()
    return found.payload_id == object_id and found.header.body_sha256 == body_sha256
