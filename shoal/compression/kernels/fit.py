"""Scales of a chunk by least squares, and their fp16 bit patterns.

Guarantees the best split of the kept magnitudes into two groups, each represented by its mean, in
float64 sums in ascending order, so that every machine finds the same split. Does not choose by the
rounded scales: the split is fitted first, the means are rounded afterwards.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import kernel

Floats = npt.NDArray[np.float64]

EMPTY_BELOW = 2.0**-15
SMALLEST_NORMAL = 2.0**-14
SMALLEST_BITS = 0x0400


@kernel
def sort_ascending(values: Floats, count: int) -> None:
    """Sort values[:count] in place by shell sort: quicker than a library call for so few."""
    gap = 1
    while gap < count // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value = values[i]
            j = i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@kernel
def best_split(ascending: Floats, count: int) -> tuple[int, float, float]:
    """Split sorted magnitudes into two groups with the least squared error about their means.

    Minimising the error is maximising low^2 / m + high^2 / (count - m), m being the size of the
    lower group and low, high the groups' sums. Equal magnitudes are never parted; of equally good
    splits the smallest m wins.

    Returns:
        m (0 if all magnitudes are equal, and so form one group), mean of the lower group, mean of
        the upper group.
    """
    total = 0.0
    for i in range(count):
        total += ascending[i]
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
def half_bits(mean: float, max_scale_bits: int) -> int:
    """Round to the nearest fp16, halves to even, and clamp into [2^-14, largest scale]; bits of it."""
    clamped = max(mean, SMALLEST_NORMAL)
    double_bits = np.float64(clamped).view(np.int64)
    # The carry of rounding the 52-bit fraction to 10 bits runs into the exponent, as it should.
    rounded = (double_bits + (1 << 41) - 1 + ((double_bits >> 42) & 1)) >> 42
    return min(rounded - ((1023 - 15) << 10), max_scale_bits)


@kernel
def scale_units(scale_bits: int) -> int:
    """A normal fp16 bit pattern as an integer in units of 2^-24; 0 for the pattern 0."""
    if scale_bits == 0:
        return 0
    return (1024 + (scale_bits & 1023)) << ((scale_bits >> 10) - 1)


@kernel
def fit_scales_of(
    magnitudes: Floats, count: int, value_bits: int, max_scale_bits: int, ascending: Floats
) -> tuple[int, int, float]:
    """Fit the scales of one chunk.

    Args:
        magnitudes: (count,) kept magnitudes, in any order.
        count: number of them.
        value_bits: 1 for one scale, 2 for two.
        max_scale_bits: largest scale allowed, as fp16 bits.
        ascending: scratch, count or more.

    Returns:
        fp16 bits of the low scale, of the high scale (the same for one scale; both 0 for an empty
        chunk), and the smallest magnitude that belongs to the high scale.
    """
    for i in range(count):
        ascending[i] = magnitudes[i]
    sort_ascending(ascending, count)
    if value_bits == 1:
        total = 0.0
        for i in range(count):
            total += ascending[i]
        size, low, high = 0, total / count, total / count
    else:
        size, low, high = best_split(ascending, count)
    if high < EMPTY_BELOW:
        return 0, 0, 0.0
    low_bits = half_bits(low, max_scale_bits)
    return low_bits, half_bits(high, max_scale_bits), ascending[size]
