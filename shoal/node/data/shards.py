"""Token shards as numbered sequences.

Sequence i of a shard is its tokens i * (seq_len + 1) up to (i + 1) * (seq_len + 1): inputs and
labels of seq_len positions. A tail that does not fill a sequence is dropped, so that every number
below `num_sequences` is a complete sequence. Numbers go on from shard to shard in the order of the
manifest.

Guarantees: nothing is read as tokens before the file's length and SHA-256 have been checked; what
was checked is what is mapped (one open file); no token id at or above the vocabulary size gets out.
Shards are memory-mapped: memory is what is read. Safe to read from several threads.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.node.data.errors import DataError
from shoal.node.data.token_files import token_dtype

_FIX_FETCH = "remove the file so that it is fetched again"


class TokenShards:
    """Sequences of a data set. Made by `open`.

    Args:
        shards: Per shard its path and its tokens cut into sequences, (n, seq_len + 1).
        vocab_size: Number of token ids.
    """

    def __init__(
        self, shards: Sequence[tuple[Path, npt.NDArray[np.unsignedinteger]]], vocab_size: int
    ) -> None:
        self._shards = tuple(shards)
        self._vocab_size = vocab_size
        self._ends = np.cumsum([len(tokens) for _, tokens in self._shards])

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        digests: Sequence[bytes],
        num_tokens: Sequence[int],
        *,
        token_bytes: int,
        seq_len: int,
        vocab_size: int,
    ) -> "TokenShards":
        """Check the files and map them.

        Args:
            paths: The shards, in the manifest's order.
            digests: The SHA-256 that each must have, 32 bytes.
            num_tokens: How many tokens each must have.
            token_bytes: Width of a token id: 2 or 4.
            seq_len: Positions per sequence.
            vocab_size: Number of token ids.

        Returns:
            The sequences.

        Raises:
            DataError: A file is missing, empty, of another length or digest, or all of them
                together hold no sequence.
            ValueError: The three lists differ in length, or a width is neither 2 nor 4.
        """
        dtype = token_dtype(token_bytes)
        shards = [
            (path, _mapped(path, digest, count, dtype, seq_len + 1))
            for path, digest, count in zip(paths, digests, num_tokens, strict=True)
        ]
        if not any(len(tokens) for _, tokens in shards):
            raise DataError(
                ", ".join(map(str, paths)) or "shards",
                expected=f"at least one sequence of {seq_len + 1} tokens",
                found=f"{sum(num_tokens)} tokens in {len(paths)} shards",
                fix="lower seq_len or add text",
            )
        return cls(shards, vocab_size)

    @property
    def num_sequences(self) -> int:
        """Number of complete sequences; valid numbers are below it."""
        return int(self._ends[-1])

    def sequence(self, number: int) -> npt.NDArray[np.int64]:
        """Read one sequence.

        Args:
            number: 0 up to `num_sequences` - 1.

        Returns:
            (seq_len + 1,) int64 token ids.

        Raises:
            IndexError: No such sequence.
            DataError: A token id is outside the vocabulary.
        """
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number}, there are {self.num_sequences}")
        which = int(np.searchsorted(self._ends, number, side="right"))
        path, tokens = self._shards[which]
        row = number - (int(self._ends[which]) - len(tokens))
        ids: npt.NDArray[np.int64] = tokens[row].astype(np.int64)
        if ids.max() >= self._vocab_size:
            raise DataError(
                path,
                expected=f"token ids below {self._vocab_size}",
                found=f"id {ids.max()} in its sequence {row}",
                fix="the tokenizer and the shards are of different data sets: make them again",
            )
        return ids


def _mapped(
    path: Path,
    digest: bytes,
    num_tokens: int,
    dtype: np.dtype[np.unsignedinteger],
    sequence_tokens: int,
) -> npt.NDArray[np.unsignedinteger]:
    if num_tokens < 1:
        raise DataError(path, expected="tokens", found="an empty shard", fix="leave it out")
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            _check_equal(path, "bytes", num_tokens * dtype.itemsize, num_bytes)
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
            _check_equal(path, "as SHA-256", digest.hex(), found)
            tokens = np.memmap(file, dtype=dtype, mode="r", shape=(num_tokens,))
    except OSError as error:
        raise DataError(
            path,
            expected="a readable shard",
            found=error.strerror or str(error),
            fix="check the path and the disk",
        ) from error
    num_whole = num_tokens // sequence_tokens
    return tokens[: num_whole * sequence_tokens].reshape(num_whole, sequence_tokens)


def _check_equal(path: Path, what: str, expected: object, found: object) -> None:
    if expected != found:
        raise DataError(path, expected=f"{expected} {what}", found=str(found), fix=_FIX_FETCH)
