import hashlib
from pathlib import Path

import numpy as np
import pytest

from shoal.node.data.batches import batch_of
from shoal.node.data.errors import DataError
from shoal.node.data.shards import TokenShards
from shoal.node.data.token_files import token_bytes_for, token_dtype


def open_shards(
    folder: Path, *shards: list[int], token_bytes=2, seq_len=3, vocab_size=1000, **changes
) -> TokenShards:
    paths, digests = [], []
    for number, ids in enumerate(shards):
        raw = np.array(ids, dtype=f"<u{token_bytes}").tobytes()
        path = folder / f"shard-{number:05d}.bin"
        path.write_bytes(raw)
        paths.append(path)
        digests.append(hashlib.sha256(raw).digest())
    given = {"paths": paths, "digests": digests, "num_tokens": [len(ids) for ids in shards]}
    return TokenShards.open(
        **{**given, **changes}, token_bytes=token_bytes, seq_len=seq_len, vocab_size=vocab_size
    )


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_every_number_is_a_complete_sequence_and_tails_are_dropped(tmp_path, token_bytes):
    shards = open_shards(
        tmp_path, list(range(11)), [1, 2, 3], list(range(100, 104)), token_bytes=token_bytes
    )
    found = [shards.sequence(number).tolist() for number in range(shards.num_sequences)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [100, 101, 102, 103]]
    assert shards.sequence(0).dtype == np.int64


@pytest.mark.parametrize("number", [-1, 2, 10**12])
def test_a_sequence_that_does_not_exist_is_refused(tmp_path, number):
    with pytest.raises(IndexError, match="there are 2"):
        open_shards(tmp_path, list(range(8))).sequence(number)


def test_a_wrong_digest_is_refused_and_named(tmp_path):
    with pytest.raises(DataError, match=r"shard-00001\.bin: expected 0707.*found [0-9a-f]{64}"):
        open_shards(
            tmp_path, [1] * 4, [2] * 4, digests=[hashlib.sha256(b"\1\0" * 4).digest(), b"\7" * 32]
        )


@pytest.mark.parametrize("claimed", [3, 5])
def test_a_wrong_length_is_refused(tmp_path, claimed):
    with pytest.raises(DataError, match=f"expected {2 * claimed} bytes, found 8"):
        open_shards(tmp_path, [1] * 4, num_tokens=[claimed])


def test_an_empty_shard_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"shard-00001\.bin.*an empty shard"):
        open_shards(tmp_path, [1] * 4, [])


def test_a_missing_shard_is_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        open_shards(tmp_path, [1] * 4, paths=[tmp_path / "none.bin"])


def test_shards_without_a_whole_sequence_are_refused(tmp_path):
    with pytest.raises(DataError, match="at least one sequence of 4 tokens, found 6 tokens"):
        open_shards(tmp_path, [1] * 3, [1] * 3)
    with pytest.raises(DataError, match="found 0 tokens in 0 shards"):
        open_shards(tmp_path)


def test_an_id_outside_the_vocabulary_is_refused_where_it_is_read(tmp_path):
    shards = open_shards(tmp_path, [1, 2, 3, 4, 5, 6, 7, 9, 8, 8, 8, 8], vocab_size=9)
    assert shards.sequence(0).tolist() == [1, 2, 3, 4]
    assert shards.sequence(2).tolist() == [8, 8, 8, 8]
    with pytest.raises(DataError, match="below 9, found id 9 in its sequence 1"):
        shards.sequence(1)


def test_ids_take_two_bytes_as_long_as_they_fit():
    assert [token_bytes_for(size) for size in (258, 65_536, 65_537)] == [2, 2, 4]
    with pytest.raises(ValueError, match="expected 2 or 4"):
        token_dtype(3)


def test_a_batch_is_shifted_by_one_and_padding_has_no_label(tmp_path):
    shards = open_shards(tmp_path, [5, 6, 7, 8, 9, 1, 0, 0])
    batch = batch_of(shards, np.array([1, 0, 1]))
    assert batch.inputs.tolist() == [[9, 1, 0], [5, 6, 7], [9, 1, 0]]
    assert batch.labels.tolist() == [[1, -100, -100], [6, 7, 8], [1, -100, -100]]
    assert batch.inputs.dtype == batch.labels.dtype == np.int64
    assert batch.inputs.flags.c_contiguous
    assert (batch.num_labels, batch.is_trainable) == (5, True)


def test_a_batch_without_labels_says_so(tmp_path):
    shards = open_shards(tmp_path, [7, 0, 0, 0, 0, 0, 0, 0])
    batch = batch_of(shards, [0, 1])
    assert (batch.num_labels, batch.is_trainable) == (0, False)
