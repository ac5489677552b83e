"""From sequence numbers to what a model is trained on.

Guarantees: labels are the inputs shifted by one position; a label is -100 (which the loss ignores)
exactly where the next token is <pad>. A batch without any label says so: its mean loss would be 0 /
0, and the trainer must skip it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.node.data.shards import TokenShards
from shoal.node.data.tokenizer import PAD_ID

IGNORED_LABEL: Final = -100


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Sequences to train on or to measure on.

    Attributes:
        inputs: (B, T) int64 token ids.
        labels: (B, T) int64 next token ids, -100 where there is none.
    """

    inputs: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    @property
    def num_labels(self) -> int:
        """Positions that count in the loss."""
        return int(np.count_nonzero(self.labels != IGNORED_LABEL))

    @property
    def is_trainable(self) -> bool:
        """False when no position counts: skip it."""
        return self.num_labels > 0


def batch_of(shards: TokenShards, numbers: Iterable[int] | npt.NDArray[np.int64]) -> Batch:
    """Read sequences as one batch.

    Args:
        shards: Where they are.
        numbers: Which ones, at least one; one row of `assigned_sequences`.

    Returns:
        The batch, rows in the order of the numbers.

    Raises:
        IndexError: A sequence does not exist.
        DataError: A token id is outside the vocabulary.
        ValueError: No numbers were given.
    """
    sequences = np.stack([shards.sequence(int(number)) for number in numbers])
    targets = sequences[:, 1:]
    return Batch(
        inputs=np.ascontiguousarray(sequences[:, :-1]),
        labels=np.where(targets == PAD_ID, np.int64(IGNORED_LABEL), targets),
    )
