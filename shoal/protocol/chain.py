"""The hashes that chain rounds: state hash, record id, round seed.

The state hash of round r is a hash of the run, r, the state hash before, the ids of the counted
payloads in record order and the hash of their integer sum. It costs one hash of the sum, not of the
model: nodes with equal state hashes hold equal parameters. A void round chains too, with no
payloads and a fixed hash of the empty sum.

Not done here: the sum itself, and who may write a record (`record`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.protocol.errors import LocalProtocolError
from shoal.protocol.signing import DIGEST_BYTES, Domain, digest

EMPTY_SUM_HASH: Final = digest(Domain.SUM)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """The last record that a node holds; round 0 is the genesis."""

    round_id: int
    record_id: bytes
    state: bytes


def genesis_head(run_id: bytes, genesis_root: bytes) -> ChainHead:
    """Make the head before round 1.

    Args:
        run_id: 32 bytes; also the id of the record that never was.
        genesis_root: Root of the first parameters, from the manifest.

    Returns:
        Round 0 with the first state hash.
    """
    state = digest(Domain.STATE, run_id, genesis_root)
    return ChainHead(round_id=0, record_id=run_id, state=state)


def record_id(body: bytes) -> bytes:
    """Name a record by its body; signatures are not part of the name.

    Args:
        body: The canonical JSON.

    Returns:
        32 bytes.
    """
    return digest(Domain.RECORD_ID, body)


def round_seed(head: ChainHead) -> bytes:
    """Derive the seed of the round after `head`; nobody knew it before that record was signed.

    Args:
        head: The record before the round.

    Returns:
        32 bytes.
    """
    return digest(Domain.ROUND_SEED, head.record_id)


def next_state(
    run_id: bytes,
    round_id: int,
    previous_state: bytes,
    counted: Sequence[bytes],
    sum_hash: bytes,
) -> bytes:
    """Chain the state hash: equal state hashes mean equal parameters.

    Args:
        run_id: 32 bytes.
        round_id: The round that was closed.
        previous_state: The state hash that it began with.
        counted: Ids of the counted payloads, 32 bytes each, in record order.
        sum_hash: Hash of the round's integer sum, 32 bytes.

    Returns:
        32 bytes.

    Raises:
        LocalProtocolError: A value has not its 32 bytes.
    """
    if any(len(one) != DIGEST_BYTES for one in (run_id, previous_state, *counted, sum_hash)):
        raise LocalProtocolError(f"a state hash is made of values of {DIGEST_BYTES} bytes")
    number = round_id.to_bytes(8, "little")
    return digest(Domain.STATE, run_id, number, previous_state, b"".join(counted), sum_hash)


def void_state(run_id: bytes, round_id: int, previous_state: bytes) -> bytes:
    """Chain the state hash over a round in which nothing counted.

    Args:
        run_id: 32 bytes.
        round_id: The round that was closed.
        previous_state: The state hash that it began with.

    Returns:
        `next_state` of no payloads and `EMPTY_SUM_HASH`.

    Raises:
        LocalProtocolError: A value has not its 32 bytes.
    """
    return next_state(run_id, round_id, previous_state, (), EMPTY_SUM_HASH)
