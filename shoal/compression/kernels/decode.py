"""Checked chunks back to positions and values.

Guarantees the exact values of the scales, which float32 holds. Does not check bytes: an index code
out of range would be decoded into nonsense, which is why only checked bodies come here.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel
from shoal.compression.kernels.fit import scale_units
from shoal.compression.kernels.limbs import BinomialTable, load_number
from shoal.compression.kernels.sets import decode_sets

Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

UNIT = 2.0**-24
# Chunks that are decoded together: enough for their steps to overlap.
GROUP = 16


@kernel
def read_scales(body: Bytes, scales: Int, value_bits: Int) -> tuple[Int, Int]:
    """Low and high scale at an offset, in units of 2^-24; both the same if there is one."""
    low = scale_units(np.int64(body[scales]) | np.int64(body[scales + 1]) << 8)
    if value_bits == 1:
        return low, low
    return low, scale_units(np.int64(body[scales + 2]) | np.int64(body[scales + 3]) << 8)


@kernel
def read_code(body: Bytes, codes: Int, value_bits: Int, j: Int) -> Int:
    """Code of the j-th kept value: bit 0 the sign, bit 1 the level."""
    bit = value_bits * j
    return (np.int64(body[codes + (bit >> 3)]) >> (bit & 7)) & ((1 << value_bits) - 1)


@kernel
def write_values(
    packed: Bytes,
    geometry: Ints,
    value_bits: Int,
    base: Int,
    indices: Ints,
    positions: Positions,
    values: Singles,
    filled: Int,
) -> Int:
    """Write positions and values of one chunk, not empty, from output index `filled` on.

    Args:
        packed: the chunk's bytes.
        geometry: (5,) int64, of this chunk.
        value_bits: 1 or 2.
        base: the chunk's first element.
        indices: (k,) kept positions in the chunk.
        positions: written.
        values: written.
        filled: first output index to write.

    Returns:
        the output index after the last written.
    """
    low, high = read_scales(packed, geometry[2] + geometry[3], value_bits)
    for j in range(indices.size):
        code = read_code(packed, geometry[2], value_bits, j)
        magnitude = high if code & 2 else low
        positions[filled] = base + indices[j]
        values[filled] = np.float32((-magnitude if code & 1 else magnitude) * UNIT)
        filled += 1
    return filled


@kernel
def decode_alike(
    body: Bytes,
    geometry: Ints,
    shape: Ints,
    first: Int,
    last: Int,
    value_bits: Int,
    table: BinomialTable,
    positions: Positions,
    values: Singles,
    filled: Int,
) -> Int:
    """Do what `decode_chunks` does for chunks of one shape, (5,) int64."""
    width = np.int64(table.limbs.max())
    numbers, copies = np.empty((GROUP, width), np.uint64), np.empty(GROUP * width, np.uint64)
    scratch = np.empty(GROUP, np.uint64), np.empty(GROUP, np.uint64), copies
    indices, chunks = np.empty((GROUP, shape[1]), np.int64), np.empty(GROUP, np.int64)
    for begin in range(first, last, GROUP):
        count = 0
        for chunk in range(begin, min(begin + GROUP, last)):
            packed = body[chunk * geometry[0, 4] :]
            low, _ = read_scales(packed, shape[2] + shape[3], value_bits)
            if low != 0:
                load_number(packed, shape[2], numbers[count])
                chunks[count] = chunk
                count += 1
        decode_sets(numbers, count, shape[0], table, scratch, indices)
        for a in range(count):
            packed, base = body[chunks[a] * geometry[0, 4] :], chunks[a] * geometry[0, 0]
            filled = write_values(
                packed, shape, value_bits, base, indices[a], positions, values, filled
            )
    return filled


@kernel
def decode_chunks(
    body: Bytes,
    geometry: Ints,
    num_chunks: Int,
    first: Int,
    last: Int,
    value_bits: Int,
    table: BinomialTable,
    positions: Positions,
    values: Singles,
    filled: Int,
) -> Int:
    """Write the kept positions and values of chunks first..last - 1, from output index `filled` on.

    Args:
        body: packed bytes of the tensor, checked.
        geometry: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        table: see `BinomialTable`.
        positions: written: flat positions in the tensor.
        values: written: exact values of the scales, with their signs.
        filled: first output index to write.

    Returns:
        the output index after the last written.
    """
    # The last chunk of a tensor may have another shape.
    num_alike = min(last, num_chunks - 1)
    filled = decode_alike(
        body, geometry, geometry[0], first, num_alike, value_bits, table, positions, values, filled
    )
    return decode_alike(
        body, geometry, geometry[1], max(first, num_alike), last, value_bits, table,
        positions, values, filled,
    )  # fmt: skip
