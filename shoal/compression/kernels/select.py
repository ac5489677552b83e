"""Top-k of a chunk by magnitude.

Guarantees the k elements of largest |x|, of equal magnitudes the ones at lower indices, in index
order; so equal input gives equal output on every machine. Magnitudes are compared as the integers
that their bits are, so zeros of both signs and subnormal numbers need no special case. Does not
look for NaN or infinity.

Nearly all elements are dismissed by loops that the compiler turns into vector instructions: the
chunk is folded into lanes, and only lanes whose largest element is among the k largest such can
hold a selected one.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.int32]

# Lanes for each kept element: more lanes let fewer small elements through, but cost more to rank.
LANES_PER_KEPT = 8
MAGNITUDE_MASK = np.int32(0x7FFFFFFF)


@kernel
def fold(bits: Bits, maxima: Bits) -> None:
    """Write into maxima[l] the largest magnitude of the elements l, l + lanes, l + 2 lanes, ..."""
    for lane in range(maxima.size):
        maxima[lane] = bits[lane] & MAGNITUDE_MASK
    for row in range(maxima.size, bits.size, maxima.size):
        part = bits[row : row + maxima.size]
        for lane in range(part.size):
            maxima[lane] = max(maxima[lane], part[lane] & MAGNITUDE_MASK)


@kernel
def count_from(values: Bits, floor: Int) -> Int:
    """How many values are `floor` or more."""
    count = np.int64(0)
    for i in range(values.size):
        count += np.int64(values[i] >= floor)
    return count


@kernel
def floor_of_largest(values: Bits, kept: Int) -> Int:
    """A floor that exactly `kept` of the values reach; if ties forbid that, the kept-th largest.

    Bisects between the extremes: a dozen vectorised counts, with no branch that depends on data.
    """
    lowest = highest = values[0]
    for i in range(values.size):
        lowest, highest = min(lowest, values[i]), max(highest, values[i])
    low, above = np.int64(lowest), np.int64(highest) + 1
    while above - low > 1:
        middle = (low + above) >> 1
        count = count_from(values, middle)
        if count < kept:
            above = middle
        else:
            low = middle
            if count == kept:
                break
    return low


@kernel
def gather(
    bits: Bits, lanes: Ints, num_lanes: Int, floor: Int, magnitudes: Bits, indices: Ints
) -> Int:
    """Write the elements in the given lanes whose magnitude reaches `floor`, in index order.

    Args:
        bits: (n,) elements.
        lanes: which lanes, ascending.
        num_lanes: how many lanes there are in all.
        floor: smallest magnitude of interest.
        magnitudes: (n,) written.
        indices: (n,) written.

    Returns:
        number of elements written.
    """
    count = np.int64(0)
    for row in range(0, bits.size, num_lanes):
        part = bits[row : row + num_lanes]
        for c in range(lanes.size):
            if lanes[c] >= part.size:
                break
            magnitude = part[lanes[c]] & MAGNITUDE_MASK
            # Written always and counted sometimes: a mispredicted branch would cost more.
            magnitudes[count] = magnitude
            indices[count] = row + lanes[c]
            count += np.int64(magnitude >= floor)
    return count


@kernel
def select_chunk(
    bits: Bits,
    kept: Int,
    maxima: Bits,
    lanes: Ints,
    magnitudes: Bits,
    candidates: Ints,
    indices: Ints,
) -> None:
    """Write the sorted indices of the `kept` largest magnitudes.

    Args:
        bits: (n,) float32 elements seen as int32.
        kept: elements to keep, 1..n.
        maxima: (n,) scratch.
        lanes: (n,) scratch.
        magnitudes: (n,) scratch.
        candidates: (n,) scratch.
        indices: (kept,) written.
    """
    num_lanes = min(bits.size, LANES_PER_KEPT * kept)
    tops = maxima[:num_lanes]
    fold(bits, tops)
    floor = floor_of_largest(tops, kept)
    num_found = np.int64(0)
    for lane in range(num_lanes):
        lanes[num_found] = lane
        num_found += np.int64(tops[lane] >= floor)
    count = gather(bits, lanes[:num_found], num_lanes, floor, magnitudes, candidates)
    found = magnitudes[:count]
    floor = floor_of_largest(found, kept)
    ties_left = kept - count_from(found, floor + 1)
    position = 0
    for c in range(count):
        if found[c] > floor or (found[c] == floor and ties_left > 0):
            ties_left -= np.int64(found[c] == floor)
            indices[position] = candidates[c]
            position += 1
