"""Top-k of a chunk by magnitude.

Guarantees the k elements of largest |x|, of equal magnitudes the ones at lower indices, in index
order; so equal input gives equal output on every machine. Magnitudes are compared as the integers
that their bits are, so that zeros of both signs and subnormal numbers need no special case. Does not
look for NaN or infinity.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import kernel

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.int32]

# Lanes for each kept element: more lanes let fewer small elements through, but cost more to rank.
LANES_PER_KEPT = 4
# A chunk has at most 2^12 elements, so magnitude and index fit into one integer.
INDEX_BITS = 12
INDEX_MASK = (1 << INDEX_BITS) - 1
MAGNITUDE_MASK = 0x7FFFFFFF


@kernel
def kth_largest(values: Ints, count: int, k: int) -> int:
    """The k-th largest of values[:count], k = 1 being the largest; reorders them (quickselect)."""
    low, high, target = 0, count - 1, k - 1
    while low < high:
        middle = (low + high) >> 1
        a, b, c = values[low], values[middle], values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break
    return values[target]


@kernel
def lane_maxima(bits: Bits, start: int, length: int, num_lanes: int, maxima: Bits) -> None:
    """Write into `maxima` the largest magnitude of each lane; lane l holds elements l mod lanes."""
    for lane in range(num_lanes):
        maxima[lane] = bits[start + lane] & np.int32(MAGNITUDE_MASK)
    for row in range(num_lanes, length, num_lanes):
        for lane in range(min(num_lanes, length - row)):
            magnitude = bits[start + row + lane] & np.int32(MAGNITUDE_MASK)
            maxima[lane] = max(maxima[lane], magnitude)


@kernel
def select_chunk(
    bits: Bits,
    start: int,
    length: int,
    kept: int,
    maxima: Bits,
    lanes: Ints,
    keys: Ints,
    order: Ints,
    indices: Ints,
) -> None:
    """Write the sorted indices of the `kept` largest of bits[start : start + length].

    At least `kept` elements reach the kept-th largest lane maximum, and only lanes whose maximum
    reaches it hold such elements: few elements are ever ranked, and the result is exact.

    Args:
        bits: float32 numbers seen as int32.
        start: first element of the chunk.
        length: elements in the chunk.
        kept: elements to keep, 1..length.
        maxima: scratch, length or more.
        lanes: scratch, length or more.
        keys: scratch, length or more.
        order: scratch, length or more.
        indices: output, kept or more.
    """
    num_lanes = min(length, LANES_PER_KEPT * kept)
    lane_maxima(bits, start, length, num_lanes, maxima)
    for lane in range(num_lanes):
        order[lane] = maxima[lane]
    floor = kth_largest(order, num_lanes, kept)
    num_candidate_lanes = 0
    for lane in range(num_lanes):
        lanes[num_candidate_lanes] = lane
        num_candidate_lanes += np.int64(maxima[lane] >= floor)
    count = 0
    for row in range(0, length, num_lanes):
        for c in range(num_candidate_lanes):
            index = row + lanes[c]
            if index < length:
                magnitude = np.int64(bits[start + index] & np.int32(MAGNITUDE_MASK))
                keys[count] = (magnitude << INDEX_BITS) | (INDEX_MASK - index)
                count += np.int64(magnitude >= floor)
    order[:count] = keys[:count]
    smallest = kth_largest(order, count, kept)
    position = 0
    for c in range(count):
        if keys[c] >= smallest:
            indices[position] = INDEX_MASK - (keys[c] & INDEX_MASK)
            position += 1
