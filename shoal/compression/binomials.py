"""The table of binomials behind the index code.

Guarantees exact numbers: C(i, j) for every i < chunk_size and every j <= k, in 64-bit limbs, each
column j only as wide as its largest entry needs (10 MB for 64 of 4096, built in about 20 ms). A
table is built on first use, shared by all threads and never changed. Does not encode anything.
"""

import math
import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.limbs import fill_binomials

_build_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class BinomialTable:
    """Binomials in the form in which the kernels take them; all arrays are read-only.

    Attributes:
        words: uint64, C(i, j) at starts[j] + i * limbs[j], lowest limb first.
        starts: (k + 1,) int64, where column j begins.
        limbs: (k + 1,) int64, limbs in an entry of column j.
        log2_factorials: (k + 1,) float64, log2(j!).
    """

    words: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    limbs: npt.NDArray[np.int64]
    log2_factorials: npt.NDArray[np.float64]


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
    limbs = np.array([-(-b // 64) for b in bits], dtype=np.int64)
    starts = np.zeros(k + 1, dtype=np.int64)
    np.cumsum(limbs[:-1] * chunk_size, out=starts[1:])
    words = np.zeros(int(limbs.sum()) * chunk_size, dtype=np.uint64)
    fill_binomials(words, starts, limbs, chunk_size)
    log2_factorials = np.array([math.lgamma(j + 1) / math.log(2) for j in range(k + 1)])
    for array in (words, starts, limbs, log2_factorials):
        array.flags.writeable = False
    return BinomialTable(words, starts, limbs, log2_factorials)
