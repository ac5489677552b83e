"""Checked chunks back to positions and values.

Guarantees the exact values of the scales, which float32 holds. Does not check bytes: an index code
out of range would be decoded into nonsense, which is why only checked bodies come here.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel
from shoal.compression.kernels.fit import scale_units
from shoal.compression.kernels.limbs import BinomialTable, decode_set, load_number

Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

UNIT = 2.0**-24


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
    number = np.empty(np.int64(table.limbs.max()), np.uint64)
    indices = np.empty(geometry[0, 1], np.int64)
    for chunk in range(first, last):
        row = np.int64(chunk == num_chunks - 1)
        kept, index_bytes = geometry[row, 1], geometry[row, 2]
        offset = chunk * geometry[0, 4]
        codes = offset + index_bytes
        low, high = read_scales(body, codes + geometry[row, 3], value_bits)
        if low == 0:
            continue
        load_number(body[offset:], index_bytes, number)
        decode_set(number, kept, geometry[row, 0], table, indices)
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
    num_chunks: Int,
    first: Int,
    last: Int,
    value_bits: Int,
    table: BinomialTable,
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
        table: see `BinomialTable`.
    """
    positions = np.empty(geometry[0, 1], np.uint32)
    values = np.empty(geometry[0, 1], np.float32)
    for chunk in range(first, last):
        count = decode_chunks(
            body, geometry, num_chunks, chunk, chunk + 1, value_bits,
            table, positions, values, 0,
        )  # fmt: skip
        for j in range(count):
            residual[positions[j]] -= values[j]
