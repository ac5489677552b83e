"""Domain separation: a signature or a hash made for one purpose is void for every other.

Signed bytes are the domain in ASCII, one zero byte, then the message; the domain is not sent. No
domain contains a zero byte, so no two (domain, message) pairs give the same signed bytes. Hashes
are SHA-256 over the domain, one zero byte, and every field with its length in front, so no two
lists of fields give the same hashed bytes.

Not done here: Ed25519 itself and the checks of keys (`identity`).

The idea is that of https://github.com/libp2p/specs/blob/master/RFC/0002-signed-envelopes.md.
"""

import hashlib
from enum import StrEnum
from typing import Final

from shoal.protocol import identity as ed25519
from shoal.protocol.identity import Identity, PeerId

DIGEST_BYTES: Final = 32


class Domain(StrEnum):
    """One name per purpose; the number at the end changes when the meaning of the bytes does."""

    ANNOUNCEMENT = "shoal/announcement/1"
    """Signs an announcement's JSON body."""
    CHECKPOINT = "shoal/checkpoint/1"
    """Hashes of checkpoints: roots of the parameters."""
    DATA = "shoal/data/1"
    """Which data a peer trains on in a round."""
    DRAW = "shoal/draw/1"
    """The weighted draw of candidates."""
    MANIFEST = "shoal/manifest/1"
    """Hash of a run manifest, and the signature of one."""
    PAYLOAD = "shoal/payload/1"
    """Signs a payload header."""
    PAYLOAD_ID = "shoal/payload-id/1"
    """Hash of a payload header: the payload's name."""
    PROBE = "shoal/probe/1"
    """Which data a validator scores a payload with."""
    RECORD = "shoal/record/1"
    """Signs a round record's JSON body."""
    RECORD_ID = "shoal/record-id/1"
    """Hash of a record's JSON body: the record's name."""
    ROUND_SEED = "shoal/round-seed/1"
    """The seed of a round, from the record before it."""
    STATE = "shoal/state/1"
    """The chained state hash."""
    SUM = "shoal/sum/1"
    """Hash of a round's integer sum."""
    VOTE = "shoal/vote/1"
    """Signs a validator's vote."""


def sign(identity: Identity, domain: Domain, message: bytes) -> bytes:
    """Sign `message` for one purpose.

    Args:
        identity: Who signs.
        domain: What for.
        message: Any bytes.

    Returns:
        The 64-byte signature of domain || 0x00 || message.
    """
    return identity.sign(_prefix(domain) + message)


def verify(peer: PeerId, domain: Domain, message: bytes, signature: bytes | memoryview) -> None:
    """Verify a signature made for one purpose; the signer is trusted for nothing but having signed.

    Args:
        peer: Whose signature it should be.
        domain: What it should have been made for.
        message: The message, without the domain.
        signature: 64 bytes.

    Raises:
        RemoteProtocolError: E_SIG if it does not verify under this key, domain and message.
    """
    ed25519.verify(peer, _prefix(domain) + message, signature)


def digest(domain: Domain, *fields: bytes) -> bytes:
    """Hash a list of fields for one purpose.

    Args:
        domain: What for.
        fields: Any bytes; each is preceded by its length as u64, little-endian.

    Returns:
        SHA-256, 32 bytes, of domain || 0x00 || (length || field) for each field.
    """
    hasher = hashlib.sha256(_prefix(domain))
    for field in fields:
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher.digest()


def _prefix(domain: Domain) -> bytes:
    return domain.encode("ascii") + b"\0"
