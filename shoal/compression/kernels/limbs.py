"""Index sets as numbers of many 64-bit limbs.

The sorted set i_1 < ... < i_k is the number N = sum_j C(i_j, j) (combinatorial number system).
Guarantees exact results for every k and chunk length that the binomial table covers: decoding
guesses in float64, then compares whole numbers. Does not check that a number is below C(n, k).
"""

import math

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import kernel

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@kernel
def fill_binomials(words: Words, starts: Ints, limbs: Ints, num_rows: int) -> None:
    """Fill a zeroed table by C(i, j) = C(i - 1, j) + C(i - 1, j - 1), modifying `words`."""
    for i in range(num_rows):
        words[i] = np.uint64(1)
    for j in range(1, limbs.size):
        width, left_width = limbs[j], limbs[j - 1]
        for i in range(1, num_rows):
            above = starts[j] + (i - 1) * width
            left = starts[j - 1] + (i - 1) * left_width
            carry = np.uint64(0)
            for w in range(width):
                addend = words[left + w] if w < left_width else np.uint64(0)
                partial = addend + carry
                total = words[above + w] + partial
                carry = np.uint64(partial < carry) + np.uint64(total < partial)
                words[above + width + w] = total


@kernel
def add_entry(number: Words, words: Words, row: int, width: int) -> None:
    """Add the table entry at `row` to `number`, in place; the sum fits into `width` limbs."""
    carry = np.uint64(0)
    for w in range(width):
        partial = words[row + w] + carry
        total = number[w] + partial
        carry = np.uint64(partial < carry) + np.uint64(total < partial)
        number[w] = total


@kernel
def subtract_entry(numbers: Words, base: int, words: Words, row: int, width: int) -> None:
    """Subtract the table entry at `row` from the number at `base`, in place; it is not larger."""
    borrow = np.uint64(0)
    for w in range(width):
        entry = words[row + w]
        value = numbers[base + w]
        partial = value - entry
        numbers[base + w] = partial - borrow
        borrow = np.uint64(value < entry) | np.uint64(partial < borrow)


@kernel
def entry_exceeds(words: Words, row: int, numbers: Words, base: int, width: int) -> bool:
    """Whether the table entry at `row` is larger than the number at `base`."""
    for w in range(width - 1, -1, -1):
        entry = words[row + w]
        if entry != numbers[base + w]:
            return entry > numbers[base + w]
    return False


@kernel
def encode_set(
    indices: Ints, kept: int, words: Words, starts: Ints, limbs: Ints, number: Words
) -> None:
    """Write the number of the sorted set indices[:kept] into `number`, all limbs of it."""
    number[:] = np.uint64(0)
    for j in range(1, kept + 1):
        width = limbs[j]
        add_entry(number, words, starts[j] + indices[j - 1] * width, width)


@kernel
def log2_of(numbers: Words, base: int, width: int) -> float:
    """log2 of the number at `base`, about to float32 precision, or -1 for zero."""
    for w in range(width - 1, -1, -1):
        if numbers[base + w] != np.uint64(0):
            leading = float(numbers[base + w])
            if w > 0:
                leading += float(numbers[base + w - 1]) * 2.0**-64
            return math.log2(leading) + 64.0 * w
    return -1.0


@kernel
def find_index(
    numbers: Words,
    base: int,
    j: int,
    limit: int,
    words: Words,
    start: int,
    width: int,
    log2_factorial: float,
) -> int:
    """The largest i < limit with C(i, j) <= the number at `base`, which is below C(limit, j)."""
    log2_number = log2_of(numbers, base, width)
    if log2_number < 0.0:
        return j - 1
    # j! C(i, j) = i (i - 1) ... (i - j + 1) is about m^j, m^2 = (i - (j - 1) / 2)^2 - (j^2 - 1) / 12
    m = 2.0 ** ((log2_number + log2_factorial) / j)
    guess = math.sqrt(m * m + (j * j - 1) / 12.0) + 0.5 * (j - 1)
    i = min(max(int(guess), j - 1), limit - 1)
    while entry_exceeds(words, start + i * width, numbers, base, width):
        i -= 1
    while i + 1 < limit and not entry_exceeds(words, start + (i + 1) * width, numbers, base, width):
        i += 1
    return i


@kernel
def decode_set(
    number: Words,
    kept: int,
    chunk_len: int,
    words: Words,
    starts: Ints,
    limbs: Ints,
    log2_factorials: Floats,
    indices: Ints,
) -> None:
    """Write the sorted set of a number below C(chunk_len, kept) into `indices`; uses up `number`."""
    limit = chunk_len
    for j in range(kept, 0, -1):
        width = limbs[j]
        limit = find_index(number, 0, j, limit, words, starts[j], width, log2_factorials[j])
        subtract_entry(number, 0, words, starts[j] + limit * width, width)
        indices[j - 1] = limit


@kernel
def store_number(number: Words, num_bytes: int, out: Bytes, offset: int) -> None:
    """Write the low bytes of a number, lowest first."""
    for b in range(num_bytes):
        out[offset + b] = np.uint8((number[b >> 3] >> np.uint64(8 * (b & 7))) & np.uint64(255))


@kernel
def load_number(
    raw: Bytes, offset: int, num_bytes: int, numbers: Words, base: int, width: int
) -> None:
    """Read a number of `num_bytes` bytes, lowest first, into the `width` limbs at `base`."""
    for w in range(width):
        numbers[base + w] = np.uint64(0)
    for b in range(num_bytes):
        numbers[base + (b >> 3)] |= np.uint64(raw[offset + b]) << np.uint64(8 * (b & 7))
