# ruff: noqa: PLR0917 - compiled functions are called by position.
"""Integer sums of many payloads, chunk by chunk.

Guarantees what every machine agrees on: a contribution is weight * sign * min(scale, cap) in int64,
exact, so the order of payloads cannot matter. Does not check bytes: only checked bodies come here.

All payloads of one chunk are decoded together, one column of the binomial table after the other, so
that the column and the sums stay in the nearest cache and the payloads' steps overlap.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel
from shoal.compression.kernels.decode import read_code, read_scales
from shoal.compression.kernels.limbs import (
    BinomialTable,
    find_index,
    load_number,
    subtract_entry,
)

Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


@kernel
def load_chunk(
    bodies: Bytes,
    offset: Int,
    geometry: Ints,
    value_bits: Int,
    weights: Ints,
    cap: Int,
    width: Int,
    numbers: Words,
    limits: Words,
    steps: Ints,
    active: Ints,
) -> Int:
    """Read one chunk of every body and leave out the empty ones.

    Args:
        bodies: (num_bodies, bytes).
        offset: of the chunk in each body.
        geometry: (5,) int64, of this chunk.
        value_bits: 1 or 2.
        weights: (num_bodies,) Q15.
        cap: upper bound on each scale.
        width: limbs in a number.
        numbers: (num_bodies * width,) written: index codes.
        limits: (num_bodies,) written: exclusive upper bounds on the next index.
        steps: (num_bodies, 2) written: weighted low and high scale.
        active: (num_bodies,) written: which body it is.

    Returns:
        number of bodies whose chunk is not empty; the outputs hold so many entries.
    """
    num_active = 0
    scales = offset + geometry[2] + geometry[3]
    for p in range(weights.size):
        low, high = read_scales(bodies[p], scales, value_bits)
        if low != 0:
            slot = numbers[num_active * width : (num_active + 1) * width]
            load_number(bodies[p, offset:], geometry[2], slot)
            limits[num_active] = np.uint64(geometry[0])
            steps[num_active, 0] = weights[p] * min(low, cap)
            steps[num_active, 1] = weights[p] * min(high, cap)
            active[num_active] = p
            num_active += 1
    return num_active


@kernel
def collect(
    base: Int,
    length: Int,
    sum_of: Ints,
    count_of: Bytes,
    positions: Positions,
    sums: Ints,
    counts: Bytes,
    filled: Int,
) -> Int:
    """Append what is touched in one chunk to the outputs, and zero it for the next chunk."""
    for i in range(length):
        if count_of[i]:
            positions[filled] = base + i
            sums[filled] = sum_of[i]
            counts[filled] = count_of[i]
            filled += 1
            sum_of[i] = 0
            count_of[i] = 0
    return filled


@kernel
def sum_chunks(
    bodies: Bytes,
    weights: Ints,
    caps: Ints,
    geometry: Ints,
    num_chunks: Int,
    first: Int,
    last: Int,
    value_bits: Int,
    table: BinomialTable,
    positions: Positions,
    sums: Ints,
    counts: Bytes,
    filled: Int,
) -> Int:
    """Add up chunks first..last - 1 of many bodies, writing from output index `filled` on.

    Args:
        bodies: (num_bodies, bytes) packed bytes of these chunks, checked.
        weights: (num_bodies,) Q15.
        caps: (num_chunks,) upper bound on each scale, in units of 2^-24.
        geometry: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        table: see `BinomialTable`.
        positions: written: flat positions in the tensor, strictly increasing.
        sums: written: sum of weight * sign * min(scale, cap).
        counts: written: bodies that touched the position.
        filled: first output index to write.

    Returns:
        the output index after the last written.
    """
    chunk_size, stride, width = geometry[0, 0], geometry[0, 4], np.int64(table.limbs.max())
    numbers = np.empty(weights.size * width, np.uint64)
    limits = np.empty(weights.size, np.uint64)
    steps = np.empty((weights.size, 2), np.int64)
    active = np.empty(weights.size, np.int64)
    sum_of = np.zeros(chunk_size, np.int64)
    count_of = np.zeros(chunk_size, np.uint8)
    for chunk in range(first, last):
        shape = geometry[np.int64(chunk == num_chunks - 1)]
        offset = (chunk - first) * stride
        num_active = load_chunk(
            bodies, offset, shape, value_bits, weights, caps[chunk], width,
            numbers, limits, steps, active,
        )  # fmt: skip
        for j in range(shape[1], 0, -1):
            for a in range(num_active):
                base = np.uint64(a * width)
                index = find_index(numbers, base, j, limits[a], table)
                row = table.starts[j] + index * table.limbs[j]
                subtract_entry(numbers, base, table.words, row, table.limbs[j])
                limits[a] = index
                code = read_code(bodies[active[a]], offset + shape[2], value_bits, j - 1)
                step = steps[a, code >> 1]
                sum_of[index] += -step if code & 1 else step
                count_of[index] += np.uint8(1)
        filled = collect(
            chunk * chunk_size, shape[0], sum_of, count_of, positions, sums, counts, filled
        )
    return filled
