"""Scales of a chunk by least squares, and their fp16 bit patterns.

Guarantees the best split of the kept magnitudes into two groups, each represented by its mean, in
float64 sums in ascending order, so that every machine finds the same split. Does not choose by the
rounded scales: the split is fitted first, the means are rounded afterwards.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EMPTY_BELOW = 2.0**-15
SMALLEST_NORMAL = 2.0**-14


@kernel
def sort_ascending(magnitudes: Floats, keys: Ints, ascending: Floats) -> None:
    """Sort by counting for each value how many are smaller: quickest for so few, as it vectorises.

    A float32 in a float64 leaves the low 29 bits zero; the index in them makes all keys different.

    Args:
        magnitudes: (k,) float32 magnitudes in float64.
        keys: (k,) scratch.
        ascending: (k,) written.
    """
    for i in range(keys.size):
        keys[i] = np.float64(magnitudes[i]).view(np.int64) | i
    for i in range(keys.size):
        key = keys[i]
        rank = np.int64(0)
        for other in range(keys.size):
            rank += np.int64(keys[other] < key)
        ascending[rank] = magnitudes[i]


@kernel
def ascending_sum(ascending: Floats) -> float:
    """Sum from the first to the last, in this order on every machine."""
    total = 0.0
    for i in range(ascending.size):
        total += ascending[i]
    return total


@kernel
def best_split(ascending: Floats) -> tuple[Int, float, float]:
    """Split sorted magnitudes into two groups with the least squared error about their means.

    Minimising the error is maximising low^2 / m + high^2 / (count - m), m being the size of the
    lower group and low, high the groups' sums. Equal magnitudes are never parted; of equally good
    splits the smallest m wins.

    Returns:
        m (0 if all magnitudes are equal, and so form one group), mean of the lower group, mean of
        the upper group.
    """
    count = ascending.size
    total = ascending_sum(ascending)
    best, best_size = -1.0, 0
    low = 0.0
    best_low = 0.0
    for m in range(1, count):
        low += ascending[m - 1]
        if ascending[m - 1] < ascending[m]:
            high = total - low
            score = low * low / m + high * high / (count - m)
            if score > best:
                best, best_size, best_low = score, m, low
    if best_size == 0:
        return 0, total / count, total / count
    return best_size, best_low / best_size, (total - best_low) / (count - best_size)


@kernel
def half_bits(mean: float, max_scale_bits: Int) -> Int:
    """Bits of the nearest fp16, halves to even, after clamping into [2^-14, largest scale]."""
    clamped = max(mean, SMALLEST_NORMAL)
    double_bits = np.float64(clamped).view(np.int64)
    # The carry of rounding the 52-bit fraction to 10 bits runs into the exponent, as it should.
    rounded = (double_bits + (1 << 41) - 1 + ((double_bits >> 42) & 1)) >> 42
    return min(rounded - ((1023 - 15) << 10), max_scale_bits)


@kernel
def scale_units(scale_bits: Int) -> Int:
    """A normal fp16 bit pattern as an integer in units of 2^-24; 0 for the pattern 0."""
    if scale_bits == 0:
        return 0
    return (1024 + (scale_bits & 1023)) << ((scale_bits >> 10) - 1)


@kernel
def fit_chunk(
    magnitudes: Floats, value_bits: Int, max_scale_bits: Int, keys: Ints, ascending: Floats
) -> tuple[Int, Int, float]:
    """Fit the scales of one chunk.

    Args:
        magnitudes: (k,) kept float32 magnitudes in float64, in any order.
        value_bits: 1 for one scale, 2 for two.
        max_scale_bits: largest scale allowed, as fp16 bits.
        keys: (k,) scratch.
        ascending: (k,) scratch.

    Returns:
        fp16 bits of the low and of the high scale (the same for one scale, both 0 for an empty
        chunk), and the smallest magnitude that is sent as the high one (infinity if none is).
    """
    sort_ascending(magnitudes, keys, ascending)
    if value_bits == 2:
        size, low, high = best_split(ascending)
    else:
        size = 0
        low = high = ascending_sum(ascending) / ascending.size
    if high < EMPTY_BELOW:
        return 0, 0, np.inf
    low_bits, high_bits = half_bits(low, max_scale_bits), half_bits(high, max_scale_bits)
    return low_bits, high_bits, ascending[size] if low_bits < high_bits else np.inf
