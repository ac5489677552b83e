"""Checked chunks back to positions and values, and integer sums of many payloads.

Guarantees what every machine agrees on: values are integers in units of 2^-24, and sums are int64,
so neither the order of payloads nor of chunks can matter. Does not check bytes: an index code that
is out of range would be decoded into nonsense, which is why only checked bodies come here.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import kernel
from shoal.compression.kernels.fit import scale_units
from shoal.compression.kernels.limbs import decode_set, find_index, load_number, subtract_entry

Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

UNIT = 2.0**-24


@kernel
def read_scales(body: Bytes, scales: int, value_bits: int) -> tuple[int, int]:
    """Low and high scale at an offset, in units of 2^-24; both the same if there is one."""
    low = scale_units(np.int64(body[scales]) | np.int64(body[scales + 1]) << 8)
    if value_bits == 1:
        return low, low
    return low, scale_units(np.int64(body[scales + 2]) | np.int64(body[scales + 3]) << 8)


@kernel
def read_code(body: Bytes, codes: int, value_bits: int, j: int) -> int:
    """Code of the j-th kept value: bit 0 the sign, bit 1 the level."""
    bit = value_bits * j
    return (np.int64(body[codes + (bit >> 3)]) >> (bit & 7)) & ((1 << value_bits) - 1)


@kernel
def decode_chunks(
    body: Bytes,
    geometry: Ints,
    num_chunks: int,
    first: int,
    last: int,
    value_bits: int,
    words: Words,
    starts: Ints,
    limbs: Ints,
    log2_factorials: Floats,
    positions: Positions,
    values: Singles,
    filled: int,
) -> int:
    """Write the kept positions and values of chunks first..last - 1, from output index `filled` on.

    Args:
        body: packed bytes of the tensor, checked.
        geometry: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        words: see `BinomialTable`.
        starts: see `BinomialTable`.
        limbs: see `BinomialTable`.
        log2_factorials: see `BinomialTable`.
        positions: written: flat positions in the tensor.
        values: written: exact values of the scales, with their signs.
        filled: first output index to write.

    Returns:
        the output index after the last written.
    """
    width = limbs.max()
    number = np.empty(width, np.uint64)
    indices = np.empty(geometry[0, 1], np.int64)
    for chunk in range(first, last):
        row = np.int64(chunk == num_chunks - 1)
        kept, index_bytes = geometry[row, 1], geometry[row, 2]
        offset = chunk * geometry[0, 4]
        codes = offset + index_bytes
        low, high = read_scales(body, codes + geometry[row, 3], value_bits)
        if low == 0:
            continue
        load_number(body, offset, index_bytes, number, 0, width)
        decode_set(number, kept, geometry[row, 0], words, starts, limbs, log2_factorials, indices)
        for j in range(kept):
            code = read_code(body, codes, value_bits, j)
            magnitude = high if code & 2 else low
            positions[filled] = chunk * geometry[0, 0] + indices[j]
            values[filled] = np.float32((-magnitude if code & 1 else magnitude) * UNIT)
            filled += 1
    return filled


@kernel
def subtract_chunks(
    residual: Singles,
    body: Bytes,
    geometry: Ints,
    num_chunks: int,
    first: int,
    last: int,
    value_bits: int,
    words: Words,
    starts: Ints,
    limbs: Ints,
    log2_factorials: Floats,
) -> None:
    """residual <- residual - decoded values, in place, in chunks first..last - 1.

    Args:
        residual: (size,) float32, changed.
        body: packed bytes of the tensor, checked.
        geometry: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        words: see `BinomialTable`.
        starts: see `BinomialTable`.
        limbs: see `BinomialTable`.
        log2_factorials: see `BinomialTable`.
    """
    positions = np.empty(geometry[0, 1], np.uint32)
    values = np.empty(geometry[0, 1], np.float32)
    for chunk in range(first, last):
        count = decode_chunks(
            body, geometry, num_chunks, chunk, chunk + 1, value_bits,
            words, starts, limbs, log2_factorials, positions, values, 0,
        )  # fmt: skip
        for j in range(count):
            residual[positions[j]] -= values[j]


@kernel
def sum_chunks(
    bodies: npt.NDArray[np.uint8],
    weights: Ints,
    caps: Ints,
    geometry: Ints,
    num_chunks: int,
    first: int,
    last: int,
    value_bits: int,
    words: Words,
    starts: Ints,
    limbs: Ints,
    log2_factorials: Floats,
    positions: Positions,
    sums: Ints,
    counts: Bytes,
    filled: int,
) -> int:
    """Add up chunks first..last - 1 of many payloads, writing from output index `filled` on.

    All payloads of one chunk are decoded together, column of the binomial table by column, so that
    the column and the sums stay in the first-level cache.

    Args:
        bodies: (num_bodies, bytes) packed bytes of these chunks, checked.
        weights: (num_bodies,) Q15.
        caps: (num_chunks,) upper bound on each scale, in units of 2^-24.
        geometry: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        words: see `BinomialTable`.
        starts: see `BinomialTable`.
        limbs: see `BinomialTable`.
        log2_factorials: see `BinomialTable`.
        positions: written: flat positions in the tensor, strictly increasing.
        sums: written: sum of weight * sign * min(scale, cap).
        counts: written: payloads that touched the position.
        filled: first output index to write.

    Returns:
        the output index after the last written.
    """
    num_bodies = weights.size
    width = limbs.max()
    numbers = np.empty(num_bodies * width, np.uint64)
    limits = np.empty(num_bodies, np.int64)
    steps = np.empty((num_bodies, 2), np.int64)
    active = np.empty(num_bodies, np.int64)
    sum_of = np.zeros(geometry[0, 0], np.int64)
    count_of = np.zeros(geometry[0, 0], np.uint8)
    for chunk in range(first, last):
        row = np.int64(chunk == num_chunks - 1)
        length, kept, index_bytes = geometry[row, 0], geometry[row, 1], geometry[row, 2]
        offset = (chunk - first) * geometry[0, 4]
        codes = offset + index_bytes
        num_active = 0
        for p in range(num_bodies):
            body = bodies[p]
            low, high = read_scales(body, codes + geometry[row, 3], value_bits)
            if low == 0:
                continue
            load_number(body, offset, index_bytes, numbers, p * width, width)
            limits[p] = length
            steps[p, 0] = weights[p] * min(low, caps[chunk])
            steps[p, 1] = weights[p] * min(high, caps[chunk])
            active[num_active] = p
            num_active += 1
        for j in range(kept, 0, -1):
            start, column_width, log2_factorial = starts[j], limbs[j], log2_factorials[j]
            for a in range(num_active):
                p = active[a]
                index = find_index(
                    numbers, p * width, j, limits[p], words, start, column_width, log2_factorial
                )
                subtract_entry(
                    numbers, p * width, words, start + index * column_width, column_width
                )
                limits[p] = index
                code = read_code(bodies[p], codes, value_bits, j - 1)
                step = steps[p, code >> 1]
                sum_of[index] += -step if code & 1 else step
                count_of[index] += np.uint8(1)
        for i in range(length):
            if count_of[i]:
                positions[filled] = chunk * geometry[0, 0] + i
                sums[filled] = sum_of[i]
                counts[filled] = count_of[i]
                filled += 1
                sum_of[i] = 0
                count_of[i] = 0
    return filled
