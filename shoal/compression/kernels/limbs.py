# ruff: noqa: PLR0917 - compiled functions are called by position.
"""Index sets as numbers of many 64-bit limbs.

The sorted set i_1 < ... < i_k is the number N = sum_j C(i_j, j) (combinatorial number system).
Guarantees exact results for every k and chunk length that the binomial table covers: decoding
guesses in float64, then compares whole numbers. Does not check that a number is below C(n, k).

Everything that is used as an index is unsigned here: numba then leaves out the code for negative
indices, which would cost more than the arithmetic. Signed and unsigned must not meet, for numba
makes a float64 of them.
"""

import math
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
) -> None:
    """Subtract the table entry at `row` from the number at `base`, in place; it is not larger."""
    borrow = ZERO
    for w in range(width):
        entry = words[row + w]
        value = numbers[base + w]
        partial = value - entry
        numbers[base + w] = partial - borrow
        borrow = np.uint64(value < entry) | np.uint64(partial < borrow)


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
def log2_of(numbers: Words, base: np.uint64, width: np.uint64) -> float:
    """log2 of the number at `base` to within 2e-5, or -1 for zero."""
    w = width
    while w > ZERO:
        w -= ONE
        if numbers[base + w] != ZERO:
            leading = np.float64(numbers[base + w])
            if w > ZERO:
                leading += np.float64(numbers[base + w - ONE]) * 2.0**-64
            bits = np.float64(leading).view(np.int64)
            m = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
            fraction = 0.0439286 * m - 0.4094756
            fraction = fraction * m + 1.6101775
            fraction = fraction * m - 3.5202188
            fraction = fraction * m + 5.0697563
            fraction = fraction * m - 2.7941537
            return fraction + np.float64((bits >> 52) - 1023) + 64.0 * np.float64(w)
    return -1.0


@kernel
def exp2_of(y: float) -> float:
    """2^y for 0 <= y < 1000, to within a factor of 1 +- 5e-6."""
    whole = np.int64(y)
    f = y - np.float64(whole)
    fraction = 0.013684 * f + 0.0517177
    fraction = fraction * f + 0.2416213
    fraction = fraction * f + 0.6929696
    fraction = fraction * f + 1.0000036
    return fraction * np.int64((whole + 1023) << 52).view(np.float64)


@kernel
def find_index(
    numbers: Words, base: np.uint64, j: Int, limit: np.uint64, table: BinomialTable
) -> np.uint64:
    """The largest i < limit with C(i, j) <= the number at `base`, which is below C(limit, j)."""
    words, start, width = table.words, table.starts[j], table.limbs[j]
    log2_number = log2_of(numbers, base, width)
    if log2_number < 0.0:
        return np.uint64(j - 1)
    # j! C(i, j) = i (i - 1) ... (i - j + 1), about m^j with m^2 = (i - (j-1)/2)^2 - (j^2-1)/12.
    m = exp2_of((log2_number + table.log2_factorials[j]) * (1.0 / j))
    guess = math.sqrt(m * m + (j * j - 1) * (1.0 / 12.0)) + 0.5 * (j - 1)
    i = min(np.uint64(max(np.int64(guess), j - 1)), limit - ONE)
    while entry_exceeds(words, start + i * width, numbers, base, width):
        i -= ONE
    while i + ONE < limit and not entry_exceeds(
        words, start + (i + ONE) * width, numbers, base, width
    ):
        i += ONE
    return i


@kernel
def decode_set(
    number: Words, kept: Int, chunk_len: Int, table: BinomialTable, indices: Ints
) -> None:
    """Write the sorted set of a number below C(chunk_len, kept) into `indices`, using it up."""
    limit = np.uint64(chunk_len)
    for j in range(kept, 0, -1):
        limit = find_index(number, ZERO, j, limit, table)
        row = table.starts[j] + limit * table.limbs[j]
        subtract_entry(number, ZERO, table.words, row, table.limbs[j])
        indices[j - 1] = np.int64(limit)


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
