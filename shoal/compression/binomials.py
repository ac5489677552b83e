"""The table of binomials behind the index code.

Guarantees exact numbers: C(i, j) for every i < chunk_size and every j <= k, in 64-bit limbs, each
column j only as wide as its largest entry needs (10 MB for 64 of 4096, built in about 20 ms). A
table is built on first use, shared by all threads and never changed. Does not encode anything.
"""

import math
import threading
from functools import lru_cache

import numpy as np

from shoal.compression.kernels.limbs import BinomialTable, fill_binomials

_build_lock = threading.Lock()


def binomial_table(chunk_size: int, k: int) -> BinomialTable:
    """The shared table for index sets of up to k out of up to chunk_size elements.

    Args:
        chunk_size: largest chunk, in elements, 1 or more.
        k: largest number of kept elements, 1..chunk_size.
    """
    # Without the lock two threads that start together would both build, and hold, a table.
    with _build_lock:
        return _build(chunk_size, k)


@lru_cache(maxsize=4)
def _build(chunk_size: int, k: int) -> BinomialTable:
    bits = [math.comb(chunk_size, j).bit_length() for j in range(k + 1)]
    limbs = np.array([-(-b // 64) for b in bits], dtype=np.uint64)
    starts = np.zeros(k + 1, dtype=np.uint64)
    np.cumsum(limbs[:-1] * np.uint64(chunk_size), out=starts[1:])
    words = np.zeros(int(limbs.sum()) * chunk_size, dtype=np.uint64)
    fill_binomials(words, starts, limbs, np.uint64(chunk_size))
    log2_factorials = np.array([math.lgamma(j + 1) / math.log(2) for j in range(k + 1)])
    for array in (words, starts, limbs, log2_factorials):
        array.flags.writeable = False
    return BinomialTable(words, starts, limbs, log2_factorials)
