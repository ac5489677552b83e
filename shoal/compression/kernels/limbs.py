"""Index sets to numbers of many 64-bit limbs, and numbers to and from bytes.

The sorted set i_1 < ... < i_k is the number N = sum_j C(i_j, j) (combinatorial number system).
Guarantees exact results for every k and chunk length that the binomial table covers. Does not check
that a number is below C(n, k).

Everything that is used as an index is unsigned here: numba then leaves out the code for negative
indices, which would cost more than the arithmetic. Signed and unsigned must not meet, for numba
makes a float64 of them.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

ZERO = np.uint64(0)
ONE = np.uint64(1)


class BinomialTable(NamedTuple):
    """C(i, j) for all i < chunk_size and j <= k; a tuple, because the kernels take it whole.

    Attributes:
        words: uint64, C(i, j) at starts[j] + i * limbs[j], lowest limb first.
        starts: (k + 1,) uint64, where column j begins.
        limbs: (k + 1,) uint64, limbs in an entry of column j.
        log2_factorials: (k + 1,) float64, log2(j!).
    """

    words: Words
    starts: Words
    limbs: Words
    log2_factorials: Floats


@kernel
def fill_binomials(words: Words, starts: Words, limbs: Words, num_rows: np.uint64) -> None:
    """Fill a zeroed table by C(i, j) = C(i - 1, j) + C(i - 1, j - 1), modifying `words`."""
    for i in range(num_rows):
        words[i] = ONE
    for j in range(1, limbs.size):
        width, left_width = limbs[j], limbs[j - 1]
        for i in range(ONE, num_rows):
            above = starts[j] + (i - ONE) * width
            left = starts[j - 1] + (i - ONE) * left_width
            carry = ZERO
            for w in range(width):
                addend = words[left + w] if w < left_width else ZERO
                partial = addend + carry
                total = words[above + w] + partial
                carry = np.uint64(partial < carry) + np.uint64(total < partial)
                words[above + width + w] = total


@kernel
def encode_set(indices: Ints, kept: Int, table: BinomialTable, number: Words) -> None:
    """Write the number of the sorted set indices[:kept] into `number`, all limbs of it."""
    number[:] = ZERO
    for j in range(1, kept + 1):
        width = table.limbs[j]
        row = table.starts[j] + np.uint64(indices[j - 1]) * width
        carry = ZERO
        for w in range(width):
            partial = table.words[row + w] + carry
            total = number[w] + partial
            carry = np.uint64(partial < carry) + np.uint64(total < partial)
            number[w] = total


@kernel
def subtract_entry(
    numbers: Words, base: np.uint64, words: Words, row: np.uint64, width: np.uint64
) -> np.uint64:
    """Subtract the table entry at `row` from the number at `base`, in place; 1 if it is larger."""
    borrow = ZERO
    for w in range(width):
        entry = words[row + w]
        value = numbers[base + w]
        partial = value - entry
        numbers[base + w] = partial - borrow
        borrow = np.uint64(value < entry) | np.uint64(partial < borrow)
    return borrow


@kernel
def entry_exceeds(
    words: Words, row: np.uint64, numbers: Words, base: np.uint64, width: np.uint64
) -> bool:
    """Whether the table entry at `row` is larger than the number at `base`."""
    w = width
    while w > ZERO:
        w -= ONE
        entry, value = words[row + w], numbers[base + w]
        if entry != value:
            return bool(entry > value)
    return False


@kernel
def store_number(number: Words, num_bytes: Int, out: Bytes) -> None:
    """Write the low bytes of a number to the beginning of `out`, lowest first."""
    for b in range(num_bytes):
        out[b] = np.uint8((number[b >> 3] >> np.uint64(8 * (b & 7))) & np.uint64(255))


@kernel
def load_number(raw: Bytes, num_bytes: Int, number: Words) -> None:
    """Read a number from the beginning of `raw`, lowest byte first, into all limbs of `number`."""
    for w in range(number.size):
        limb = ZERO
        for b in range(8 * w, min(8 * w + 8, num_bytes)):
            limb |= np.uint64(raw[b]) << np.uint64(8 * (b & 7))
        number[w] = limb
