"""Integer sums of many payloads, chunk by chunk.

Guarantees what every machine agrees on: a contribution is weight * sign * min(scale, cap) in int64,
exact, so the order of payloads cannot matter. Does not check bytes: only checked bodies come here.

All payloads of one chunk are decoded together, so that the columns of the binomial table and the
chunk's sums stay in the nearest caches.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel
from shoal.compression.kernels.decode import read_code, read_scales
from shoal.compression.kernels.limbs import BinomialTable, load_number
from shoal.compression.kernels.sets import decode_sets

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
    numbers: Words,
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
        numbers: (num_bodies, limbs) written: index codes.
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
            load_number(bodies[p, offset:], geometry[2], numbers[num_active])
            steps[num_active, 0] = weights[p] * min(low, cap)
            steps[num_active, 1] = weights[p] * min(high, cap)
            active[num_active] = p
            num_active += 1
    return num_active


@kernel
def add_body(
    codes: Bytes, value_bits: Int, step: Ints, indices: Ints, sum_of: Ints, count_of: Bytes
) -> None:
    """Add one body's kept values to the chunk's sums and counts.

    Args:
        codes: the chunk's value codes.
        value_bits: 1 or 2.
        step: (2,) weighted low and high scale.
        indices: (k,) kept positions in the chunk.
        sum_of: (chunk_size,) changed.
        count_of: (chunk_size,) changed.
    """
    for j in range(indices.size):
        code = read_code(codes, 0, value_bits, j)
        contribution = step[code >> 1]
        sum_of[indices[j]] += -contribution if code & 1 else contribution
        count_of[indices[j]] += np.uint8(1)


@kernel
def collect(
    base: Int,
    sum_of: Ints,
    count_of: Bytes,
    positions: Positions,
    sums: Ints,
    counts: Bytes,
    filled: Int,
) -> Int:
    """Append what is touched in one chunk to the outputs, and zero it for the next chunk."""
    for i in range(count_of.size):
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
    num_bodies, chunk_size, width = weights.size, geometry[0, 0], np.int64(table.limbs.max())
    numbers = np.empty((num_bodies, width), np.uint64)
    scratch = (
        np.empty(num_bodies, np.uint64),
        np.empty(num_bodies, np.uint64),
        np.empty(num_bodies * width, np.uint64),
    )
    steps, active = np.empty((num_bodies, 2), np.int64), np.empty(num_bodies, np.int64)
    indices = np.empty((num_bodies, geometry[0, 1]), np.int64)
    sum_of, count_of = np.zeros(chunk_size, np.int64), np.zeros(chunk_size, np.uint8)
    for chunk in range(first, last):
        shape = geometry[np.int64(chunk == num_chunks - 1)]
        offset = (chunk - first) * geometry[0, 4]
        num_active = load_chunk(
            bodies, offset, shape, value_bits, weights, caps[chunk], numbers, steps, active
        )
        kept = indices[:, : shape[1]]
        decode_sets(numbers, num_active, shape[0], table, scratch, kept)
        for a in range(num_active):
            codes = bodies[active[a], offset + shape[2] :]
            add_body(codes, value_bits, steps[a], kept[a], sum_of, count_of)
        filled = collect(
            chunk * chunk_size, sum_of[: shape[0]], count_of[: shape[0]],
            positions, sums, counts, filled,
        )  # fmt: skip
    return filled
