"""Numbers back to index sets.

N = sum_j C(i_j, j) is taken apart from the largest index down: i_j is the largest i with
C(i, j) <= what is left. Guarantees exact results for every number below C(n, k), within memory
bounds for any number at all. Two ways lead there:

* `decode_sets` computes each index in float64, for many sets at a time so that their steps overlap,
  and compares nothing. It then looks at what came out: strictly decreasing indices whose binomials
  add up to N are the set of N, for there is only one.
* `decode_set` compares whole numbers at every index. It is the way out for the sets, fewer than one
  random set in ten thousand, for which a float64 was not enough, and for those made to provoke it.

Unsigned as in `limbs`.
"""

import math

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel
from shoal.compression.kernels.limbs import ONE, ZERO, BinomialTable, subtract_entry

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

LIMB = 2.0**64
TWO = np.uint64(2)
THREE = np.uint64(3)
# An index this close to where the next one begins is compared; the errors of the polynomials and
# of the formula for the root move it by less in all but rare cases.
TOO_CLOSE = 0.02
LARGEST_ROOT = 65536.0


@kernel
def log2_of(x: float) -> float:
    """log2 of a positive number to within 2e-5; some large negative number for 0."""
    bits = np.float64(x).view(np.int64)
    m = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    # Chebyshev fit of log2 on 1..2.
    value = 0.0439286 * m - 0.4094756
    value = value * m + 1.6101775
    value = value * m - 3.5202188
    value = value * m + 5.0697563
    value = value * m - 2.7941537
    return value + np.float64((bits >> 52) - 1023)


@kernel
def exp2_of(y: float) -> float:
    """2^y for 0 <= y < 1000, to within a factor of 1 +- 5e-6."""
    whole = np.int64(y)
    f = y - np.float64(whole)
    # Chebyshev fit of 2^f on 0..1.
    value = 0.013684 * f + 0.0517177
    value = value * f + 0.2416213
    value = value * f + 0.6929696
    value = value * f + 1.0000036
    return value * np.int64((whole + 1023) << 52).view(np.float64)


@kernel
def root_of(log2_number: float, j: Int, log2_factorial: float) -> float:
    """The real i with C(i, j) = 2^log2_number, nearly.

    j! C(i, j) = i (i - 1) ... (i - j + 1) is about m^j, with m^2 = (i - (j-1)/2)^2 - (j^2-1)/12.
    """
    m = exp2_of(max((log2_number + log2_factorial) * (1.0 / j), 0.0))
    # What a wrong index leaves behind may be any number, whose root must still fit into an integer.
    return min(math.sqrt(m * m + (j * j - 1) * (1.0 / 12.0)) + 0.5 * (j - 1), LARGEST_ROOT)


@kernel
def exceeds(
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
def log2_of_number(numbers: Words, base: np.uint64, width: np.uint64) -> float:
    """log2 of the number at `base`, from its leading limbs."""
    w = width - ONE
    while w > ZERO and numbers[base + w] == ZERO:
        w -= ONE
    leading = np.float64(numbers[base + w])
    if w > ZERO:
        leading += np.float64(numbers[base + w - ONE]) / LIMB
    return log2_of(leading) + 64.0 * np.float64(w)


@kernel
def find_index(
    numbers: Words, base: np.uint64, j: Int, limit: np.uint64, table: BinomialTable
) -> np.uint64:
    """The largest i < limit with C(i, j) <= the number at `base`, or j - 1 if there is none."""
    words, start, width = table.words, table.starts[j], table.limbs[j]
    guess = root_of(log2_of_number(numbers, base, width), j, table.log2_factorials[j])
    lowest = np.uint64(j - 1)
    i = max(min(np.uint64(np.int64(guess)), limit - ONE), lowest)
    while i > lowest and exceeds(words, start + i * width, numbers, base, width):
        i -= ONE
    while i + ONE < limit and not exceeds(words, start + (i + ONE) * width, numbers, base, width):
        i += ONE
    return i


@kernel
def decode_set(
    numbers: Words, base: np.uint64, chunk_len: Int, table: BinomialTable, indices: Ints
) -> None:
    """Write the sorted set of the number at `base` into `indices`, using the number up."""
    limit = np.uint64(chunk_len)
    for j in range(indices.size, 0, -1):
        limit = find_index(numbers, base, j, limit, table)
        row = table.starts[j] + limit * table.limbs[j]
        subtract_entry(numbers, base, table.words, row, table.limbs[j])
        indices[j - 1] = np.int64(limit)


@kernel
def leading_limbs(numbers: Words, base: np.uint64, width: np.uint64) -> float:
    """The number at `base` in float64, divided by 2^(64 (width - 2)) if it has so many limbs."""
    if width > TWO:
        top = base + width - THREE
        low, middle = np.float64(numbers[top]), np.float64(numbers[top + ONE])
        return low / LIMB + middle + np.float64(numbers[top + TWO]) * LIMB
    if width == TWO:
        return np.float64(numbers[base]) + np.float64(numbers[base + ONE]) * LIMB
    return np.float64(numbers[base])


@kernel
def decode_column(
    numbers: Words,
    stride: Int,
    count: Int,
    j: Int,
    table: BinomialTable,
    limits: Words,
    failed: Words,
    indices: Ints,
) -> None:
    """Find i_j of `count` sets and subtract its binomial from each number.

    Args:
        numbers: what is left of each number, `stride` limbs apart.
        stride: limbs from one number to the next.
        count: number of sets.
        j: which index, 1..k.
        table: see `BinomialTable`.
        limits: (count,) exclusive upper bounds, replaced by the indices found.
        failed: (count,) set to 1 where a binomial was larger than what was left.
        indices: (count, k) column j - 1 is written.
    """
    start, width = table.starts[j], table.limbs[j]
    offset = table.log2_factorials[j] + (64.0 * np.float64(width - TWO) if width > TWO else 0.0)
    lowest = np.uint64(j - 1)
    for a in range(count):
        base = np.uint64(a * stride)
        root = root_of(log2_of(leading_limbs(numbers, base, width)), j, offset)
        i = np.uint64(np.int64(root))
        fraction = root - np.float64(i)
        i = max(min(i, limits[a] - ONE), lowest)
        if fraction < TOO_CLOSE or fraction > 1.0 - TOO_CLOSE:
            i = find_index(numbers, base, j, limits[a], table)
        failed[a] |= subtract_entry(numbers, base, table.words, start + i * width, width)
        limits[a] = i
        indices[a, j - 1] = np.int64(i)


@kernel
def decode_sets(
    numbers: Words,
    count: Int,
    chunk_len: Int,
    table: BinomialTable,
    scratch: tuple[Words, Words, Words],
    indices: Ints,
) -> None:
    """Write the sorted sets of many numbers.

    Args:
        numbers: (slots, limbs) the first `count` are decoded, and used up.
        count: number of sets.
        chunk_len: exclusive upper bound on all indices.
        table: see `BinomialTable`.
        scratch: (slots,), (slots,) and one as large as `numbers`.
        indices: (slots, k) the first `count` rows are written.
    """
    limits, failed, copies = scratch
    stride, flat = numbers.shape[1], numbers.reshape(-1)
    copies[: count * stride] = flat[: count * stride]
    limits[:count] = np.uint64(chunk_len)
    failed[:count] = ZERO
    for j in range(indices.shape[1], 0, -1):
        decode_column(flat, stride, count, j, table, limits, failed, indices)
    for a in range(count):
        # A remainder, like a borrow, says that some index was wrong.
        for w in range(stride):
            failed[a] |= numbers[a, w]
        if failed[a] != ZERO:
            decode_set(copies, np.uint64(a * stride), chunk_len, table, indices[a])
