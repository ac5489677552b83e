"""Ed25519 identities: peer ids, key files, signing and strict verification.

A peer is its public key. `PeerId` can hold nothing but a key that passed the checks below, so a
function that takes a `PeerId` need not ask again:

1. exactly 32 bytes;
2. canonical: the y coordinate is below p = 2^255 - 19;
3. not of small order: under such a key one signature is valid for every message, and a proof of
   two conflicting signatures would prove nothing. The library verifies under these keys.

A signature must have S below the group order L, and R is compared as bytes; both leave one
encoding per signature value. A signer can still make several signatures of one message, therefore
signatures never identify content.

Not done here: domain separation (`signing`), and the test that a key lies on the curve, because
under one that does not no signature verifies. This is the only module that imports `cryptography`,
and the only one of the package that touches files (a node's own key).

Ed25519: RFC 8032. Peer ids: https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PEER_TEXT_CHARS: Final = 52

_FIELD_PRIME: Final = 2**255 - 19
_GROUP_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_SIGN_BIT: Final = 1 << 255
# y of the eight points whose order divides 8: 0 (order 4), 1 (identity), -1 (order 2), and the
# two values of order 8. x is not looked at: either sign is of small order.
_Y_ORDER_8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER_Y: Final = frozenset(
    {0, 1, _FIELD_PRIME - 1, _Y_ORDER_8, _FIELD_PRIME - _Y_ORDER_8},
)
# libp2p: identity multihash (0x00, 36 bytes) of the protobuf {type: Ed25519, data: 32 bytes}.
_PEER_TEXT_PREFIX: Final = bytes.fromhex("002408011220")
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_KEY_FILE_MODE: Final = 0o600
_MAX_KEY_FILE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, order=True)
class PeerId:
    """A checked Ed25519 public key; ordered and hashed by its 32 bytes."""

    key: bytes

    def __post_init__(self) -> None:
        _check_key(self.key)

    @property
    def text(self) -> str:
        """The libp2p peer id, 52 characters beginning with 12D3KooW."""
        return _base58_encode(_PEER_TEXT_PREFIX + self.key)

    @property
    def short(self) -> str:
        """The last six characters of `text`, for logs and tables."""
        return self.text[-6:]

    def __str__(self) -> str:
        return self.text


class Identity:
    """A private key and the peer id that goes with it; its repr shows the peer id only."""

    __slots__ = ("_private", "peer")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.peer = parse_peer_key(private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Sign `message` as it stands; callers use `signing.sign`, which adds the domain.

        Args:
            message: Any bytes.

        Returns:
            The 64-byte signature.
        """
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"Identity(peer={self.peer.text}, private=***)"


def parse_peer_key(raw: bytes | memoryview) -> PeerId:
    """Check a 32-byte public key from the wire; nobody is trusted.

    Args:
        raw: The encoded point, 32 bytes: y as a little-endian integer, top bit = sign of x.

    Returns:
        The checked key.

    Raises:
        RemoteProtocolError: E_LEN for another length; E_KEY_WEAK for a key of small order (with
            either sign bit) or with y >= p.
    """
    return PeerId(bytes(raw))


def parse_peer_text(text: str) -> PeerId:
    """Check a libp2p peer id of an Ed25519 key; nobody is trusted.

    Args:
        text: 52 characters of base58btc.

    Returns:
        The checked key.

    Raises:
        RemoteProtocolError: E_LEN for another length; E_KEY_WEAK where the text is not base58, not
            the id of an Ed25519 key, or where `parse_peer_key` refuses the key.
    """
    if len(text) != PEER_TEXT_CHARS:
        detail = f"peer id has {len(text)} characters, expected {PEER_TEXT_CHARS}"
        raise RemoteProtocolError(ErrorCode.E_LEN, detail)
    if not set(text) <= set(_BASE58):
        raise RemoteProtocolError(ErrorCode.E_KEY_WEAK, "peer id is not base58 text")
    raw = _base58_decode(text)
    if len(raw) != len(_PEER_TEXT_PREFIX) + KEY_BYTES or not raw.startswith(_PEER_TEXT_PREFIX):
        raise RemoteProtocolError(ErrorCode.E_KEY_WEAK, "peer id is not that of an Ed25519 key")
    return parse_peer_key(raw[len(_PEER_TEXT_PREFIX) :])


def verify(peer: PeerId, message: bytes, signature: bytes | memoryview) -> None:
    """Verify an Ed25519 signature over `message` as it stands.

    Args:
        peer: The key; checked by its type.
        message: The signed bytes, domain included.
        signature: R (32 bytes), then S (32 bytes, little-endian, below L).

    Raises:
        RemoteProtocolError: E_SIG for another length, S >= L, or a signature that does not verify.
    """
    raw = bytes(signature)
    if len(raw) != SIGNATURE_BYTES:
        detail = f"signature has {len(raw)} bytes, expected {SIGNATURE_BYTES}"
        raise RemoteProtocolError(ErrorCode.E_SIG, detail)
    if int.from_bytes(raw[32:], "little") >= _GROUP_ORDER:
        raise RemoteProtocolError(ErrorCode.E_SIG, "the scalar of the signature is not reduced")
    try:
        Ed25519PublicKey.from_public_bytes(peer.key).verify(raw, message)
    except InvalidSignature as error:
        detail = f"signature does not verify under key {peer.short}"
        raise RemoteProtocolError(ErrorCode.E_SIG, detail) from error


def generate() -> Identity:
    """Make a new identity from the system's randomness.

    Returns:
        The identity, in memory only.
    """
    return Identity(Ed25519PrivateKey.generate())


def from_seed(seed: bytes) -> Identity:
    """Make the identity of a known seed, for tests and simulations.

    Args:
        seed: 32 bytes, the RFC 8032 private key.

    Returns:
        The identity; equal seeds give equal keys.

    Raises:
        LocalProtocolError: The seed has another length.
    """
    if len(seed) != KEY_BYTES:
        raise LocalProtocolError(f"a key seed has {KEY_BYTES} bytes, found {len(seed)}")
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


def save_key(path: Path, identity: Identity) -> None:
    """Write a key file once: PKCS8 PEM, mode 0600, never over an existing file.

    Args:
        path: Where; the folder must exist.
        identity: Whose private key.

    Raises:
        LocalProtocolError: Something is already there, or the file cannot be written; then no
            partial file is left.
    """
    pem = identity._private.private_bytes(  # noqa: SLF001 - this module owns the private key
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(path, flags, _KEY_FILE_MODE)
    except FileExistsError as error:
        message = f"{path} already exists; a key is never overwritten, move it away first"
        raise LocalProtocolError(message) from error
    except OSError as error:
        raise LocalProtocolError(f"cannot create key file {path}: {error.strerror}") from error
    try:
        _write_all(descriptor, pem)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LocalProtocolError(f"cannot write key file {path}: {error.strerror}") from error


def load_key(path: Path) -> Identity:
    """Read a key file; one that others may read is refused.

    Args:
        path: A PEM file with an unencrypted Ed25519 private key, mode 0600 or narrower.

    Returns:
        The identity.

    Raises:
        LocalProtocolError: The file is missing, unreadable, not a regular file, readable by others
            (the message has the chmod command), too large, not a key or a key of another type.
            The message is one line, names the file and never shows its content.
    """
    raw = _read_key_file(path)
    try:
        private = load_pem_private_key(raw, password=None)
    except TypeError as error:
        message = f"key file {path} is encrypted with a password; a node needs a plain one"
        raise LocalProtocolError(message) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise LocalProtocolError(f"key file {path} is not a PEM private key") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise LocalProtocolError(f"key file {path} holds a key of another type than Ed25519")
    return Identity(private)


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        detail = f"public key has {len(key)} bytes, expected {KEY_BYTES}"
        raise RemoteProtocolError(ErrorCode.E_LEN, detail)
    y = int.from_bytes(key, "little") & ~_SIGN_BIT
    if y >= _FIELD_PRIME:
        raise RemoteProtocolError(ErrorCode.E_KEY_WEAK, "public key is not canonical (y >= p)")
    if y in _SMALL_ORDER_Y:
        raise RemoteProtocolError(ErrorCode.E_KEY_WEAK, "public key is a point of small order")


def _base58_encode(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    text = ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


def _base58_decode(text: str) -> bytes:
    number = 0
    for character in text:
        number = number * 58 + _BASE58.index(character)
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _write_all(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, _KEY_FILE_MODE)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _read_key_file(path: Path) -> bytes:
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise LocalProtocolError(f"key file {path} does not exist") from error
    except OSError as error:
        raise LocalProtocolError(f"cannot read key file {path}: {error.strerror}") from error
    try:
        _check_key_file(path, os.fstat(descriptor))
        return os.read(descriptor, _MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise LocalProtocolError(f"cannot read key file {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _check_key_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise LocalProtocolError(f"key file {path} is not a regular file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~_KEY_FILE_MODE:
        fix = f"run: chmod 600 {path}"
        raise LocalProtocolError(f"key file {path} has mode {mode:04o}, expected 0600; {fix}")
    if status.st_size > _MAX_KEY_FILE_BYTES:
        raise LocalProtocolError(f"key file {path} is too large to be one key")
