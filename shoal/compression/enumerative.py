"""The index code of one chunk, for inspection and tests; whole bodies go through the kernels.

The sorted set i_1 < ... < i_k of a chunk of n elements is the number N = sum_j C(i_j, j), in
ceil(bits(C(n, k) - 1) / 8) bytes, lowest first. Guarantees that every set has exactly one code and
that the only codes without a set are the numbers from C(n, k) on.

Source: combinatorial number system, Knuth, TAOCP 7.2.1.3, theorem L.
"""

import math

import numpy as np
import numpy.typing as npt

from shoal.compression.binomials import binomial_table
from shoal.compression.errors import CorruptBodyError, SpecMismatchError
from shoal.compression.kernels.limbs import encode_set, load_number, store_number
from shoal.compression.kernels.sets import decode_set
from shoal.compression.spec import MAX_CHUNK_SIZE, MAX_KEPT


def index_code_bytes(chunk_len: int, k: int) -> int:
    """Length in bytes of the code of k indices below chunk_len.

    Args:
        chunk_len: n, 1..4096.
        k: 1..min(512, chunk_len).

    Raises:
        SpecMismatchError: a number is out of range.
    """
    if not 1 <= chunk_len <= MAX_CHUNK_SIZE or not 1 <= k <= min(MAX_KEPT, chunk_len):
        raise SpecMismatchError(
            f"expected chunk_len in 1..{MAX_CHUNK_SIZE} and k in 1..{MAX_KEPT}, not above "
            f"chunk_len; got {chunk_len} and {k}"
        )
    return ((math.comb(chunk_len, k) - 1).bit_length() + 7) // 8


def encode_indices(indices: npt.NDArray[np.int64], chunk_len: int) -> bytes:
    """Encode an index set.

    Args:
        indices: (k,) int64, strictly increasing, 0..chunk_len - 1.
        chunk_len: n.

    Raises:
        SpecMismatchError: indices are not such a set, or k or chunk_len is out of range.
    """
    num_bytes = index_code_bytes(chunk_len, indices.size)
    is_set = indices.ndim == 1 and bool((np.diff(indices) > 0).all())
    if not is_set or indices[0] < 0 or indices[-1] >= chunk_len:
        raise SpecMismatchError(f"indices: expected a strictly increasing set below {chunk_len}")
    table = binomial_table(chunk_len, indices.size)
    number = np.zeros(int(table.limbs.max()), dtype=np.uint64)
    encode_set(indices.astype(np.int64), indices.size, table, number)
    code = np.empty(num_bytes, dtype=np.uint8)
    store_number(number, num_bytes, code)
    return code.tobytes()


def decode_indices(code: bytes, chunk_len: int, k: int) -> npt.NDArray[np.int64]:
    """Decode an index set.

    Args:
        code: what `encode_indices` gave.
        chunk_len: n.
        k: number of indices.

    Returns:
        (k,) int64, strictly increasing.

    Raises:
        SpecMismatchError: k or chunk_len is out of range.
        CorruptBodyError: E_BODY_LEN, the code has another length; E_INDEX_RANGE, it has no set.
    """
    num_bytes = index_code_bytes(chunk_len, k)
    if len(code) != num_bytes:
        raise CorruptBodyError("E_BODY_LEN", detail=f": expected {num_bytes}, got {len(code)}")
    if int.from_bytes(code, "little") >= math.comb(chunk_len, k):
        raise CorruptBodyError("E_INDEX_RANGE")
    table = binomial_table(chunk_len, k)
    number = np.zeros(int(table.limbs.max()), dtype=np.uint64)
    load_number(np.frombuffer(code, dtype=np.uint8), num_bytes, number)
    indices = np.empty(k, dtype=np.int64)
    decode_set(number, np.uint64(0), chunk_len, table, indices)
    return indices
