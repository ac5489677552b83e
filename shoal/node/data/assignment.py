"""Which sequences a peer trains on in a round: a pure function that anybody can check.

The stream of 8-byte little-endian words is SHAKE-256 of

    "shoal/assignment/1" || 0x00 || run id (32) || round seed (32) || peer key (32)

A word w gives the sequence w mod n if w < 2^64 - (2^64 mod n), else it is skipped, so that all
sequences are equally likely. Words are used in order: step 0 takes the first `batch_size` that
count, step 1 the next, and so on, with replacement.

Guarantees: equal on all machines; more steps only append; depends on nothing else, so a peer that
restarts anywhere trains on the same data. The round seed is the hash of the previous record: nobody
knows the assignment earlier.
"""

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

DOMAIN: Final = b"shoal/assignment/1"

_FIELD_BYTES: Final = 32
_WORDS: Final = 1 << 64


def assigned_sequences(
    run_id: bytes,
    round_seed: bytes,
    peer_key: bytes,
    *,
    num_steps: int,
    batch_size: int,
    num_sequences: int,
) -> npt.NDArray[np.int64]:
    """Draw a peer's sequences for one round.

    Args:
        run_id: 32 bytes.
        round_seed: 32 bytes, the hash of the previous record.
        peer_key: 32 bytes, the peer's Ed25519 key.
        num_steps: Inner steps, 0 or more.
        batch_size: Sequences per step, at least 1.
        num_sequences: n, at least 1 and below 2^63.

    Returns:
        (num_steps, batch_size) int64, each 0 to num_sequences - 1.

    Raises:
        ValueError: A field is not 32 bytes long, or a number is out of range.
    """
    fields = (run_id, round_seed, peer_key)
    if any(len(field) != _FIELD_BYTES for field in fields):
        raise ValueError(f"fields of {[len(field) for field in fields]} bytes, expected 32 each")
    if num_steps < 0 or batch_size < 1 or not 1 <= num_sequences < 1 << 63:
        raise ValueError(
            f"num_steps={num_steps}, batch_size={batch_size}, num_sequences={num_sequences}"
        )
    stream = hashlib.shake_256(DOMAIN + b"\0" + b"".join(fields))
    num_wanted = num_steps * batch_size
    num_words = num_wanted
    while True:
        accepted = _accepted(stream.digest(8 * num_words), num_sequences)
        if len(accepted) >= num_wanted:
            return accepted[:num_wanted].reshape(num_steps, batch_size)
        # Some words were skipped. SHAKE cannot continue, but a longer output begins the same.
        num_words *= 2


def _accepted(raw_words: bytes, num_sequences: int) -> npt.NDArray[np.int64]:
    words = np.frombuffer(raw_words, dtype="<u8").astype(np.uint64)
    last_accepted = np.uint64(_WORDS - _WORDS % num_sequences - 1)
    kept: npt.NDArray[np.int64] = (words[words <= last_accepted] % np.uint64(num_sequences)).astype(
        np.int64
    )
    return kept
