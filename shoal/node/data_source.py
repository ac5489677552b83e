"""The batches of a run: which sequences a peer gets in a round, and those everybody is measured on.

Guarantees: batches are a pure function of (run, round seed, peer), so a restart anywhere in a round
gives the same data again and nothing has to be remembered; the held-out batch is the same on every
node. Does not do: fetch shards (see `blobs`).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.node.data.assignment import assigned_sequences
from shoal.node.data.batches import Batch, batch_of
from shoal.node.data.shards import TokenShards
from shoal.protocol.manifest import BlobSection, RunManifest

_HELD_OUT_SEQUENCES = 32

BatchSource = Callable[[int], Batch]


class DataSource:
    """Batches from verified shards."""

    def __init__(self, manifest: RunManifest, training: TokenShards, held_out: TokenShards) -> None:
        self._manifest = manifest
        self._training = training
        self._held_out = held_out

    def batches(self, round_seed: bytes, peer_key: bytes) -> BatchSource:
        """The batch of inner step 0, 1, ... of one peer in one round."""
        section = self._manifest.training
        numbers = assigned_sequences(
            self._manifest.run_id,
            round_seed,
            peer_key,
            num_steps=section.inner_steps,
            batch_size=section.batch_size,
            num_sequences=self._training.num_sequences,
        )
        return lambda step: batch_of(self._training, numbers[step])

    def held_out_batch(self) -> Batch:
        """Sequences that nobody trains on, evenly spaced over the held-out shard."""
        count = min(_HELD_OUT_SEQUENCES, self._held_out.num_sequences)
        numbers = np.linspace(0, self._held_out.num_sequences - 1, count).astype(np.int64)
        return batch_of(self._held_out, numbers)


def open_data(manifest: RunManifest, blob_path: Callable[[BlobSection], Path]) -> DataSource:
    """Verifies and maps the shards that the manifest names.

    Args:
        manifest: of the run.
        blob_path: where the file of a blob is.

    Raises:
        DataError: a file is missing, damaged or empty.
    """
    data = manifest.data
    return DataSource(
        manifest,
        _open(manifest, data.shards, blob_path),
        _open(manifest, (data.held_out,), blob_path),
    )


def _open(
    manifest: RunManifest,
    blobs: tuple[BlobSection, ...],
    blob_path: Callable[[BlobSection], Path],
) -> TokenShards:
    data = manifest.data
    return TokenShards.open(
        [blob_path(blob) for blob in blobs],
        [blob.sha256 for blob in blobs],
        [blob.num_bytes // data.token_bytes for blob in blobs],
        token_bytes=data.token_bytes,
        seq_len=data.seq_len,
        vocab_size=data.vocab_size,
    )
