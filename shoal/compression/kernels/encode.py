"""Accumulator to packed bytes, chunk by chunk.

Guarantees the canonical bytes of every chunk in its range and touches no others. Does not look for
NaN or infinity: `count_non_finite` runs over all tensors before anything is changed.

Source: SparseLoCo, arXiv 2508.15706: e <- b * e + D, then top-k of e in each chunk.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import kernel
from shoal.compression.kernels.fit import fit_scales_of, scale_units
from shoal.compression.kernels.limbs import encode_set, store_number
from shoal.compression.kernels.select import select_chunk

Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

LARGEST_SINGLE = np.float32(3.4028234663852886e38)
UNIT = 2.0**-24


@kernel
def count_non_finite(
    residual: Singles, gradient: Singles, decay: np.float32, first: int, last: int
) -> int:
    """How many of decay * residual + gradient are NaN or infinite in elements first..last - 1."""
    count = 0
    for i in range(first, last):
        value = decay * residual[i] + gradient[i]
        # Every comparison with NaN is false.
        count += np.int64(not (abs(value) <= LARGEST_SINGLE))  # noqa: SIM300
    return count


@kernel
def accumulate(
    residual: Singles, gradient: Singles, decay: np.float32, first: int, last: int
) -> None:
    """residual <- decay * residual + gradient in elements first..last - 1, in place."""
    for i in range(first, last):
        residual[i] = decay * residual[i] + gradient[i]


@kernel
def square_sum(values: Singles, first: int, last: int) -> float:
    """Sum of squares in float64 of elements first..last - 1."""
    total = 0.0
    for i in range(first, last):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@kernel
def pack_values(
    values: Singles,
    start: int,
    indices: Ints,
    kept: int,
    value_bits: int,
    high_from: float,
    out: Bytes,
    offset: int,
) -> None:
    """Set the code bits of the kept values in zeroed bytes: sign in bit 0, level in bit 1."""
    for j in range(kept):
        value = values[start + indices[j]]
        code = np.int64(value < 0)
        if value_bits == 2 and abs(np.float64(value)) >= high_from:
            code |= 2
        bit = value_bits * j
        out[offset + (bit >> 3)] |= np.uint8(code << (bit & 7))


@kernel
def measure(
    magnitudes: Floats, kept: int, low: float, high: float, high_from: float, stats: Floats
) -> None:
    """Write sum (v - q)^2, sum v^2, sum q v and the number kept into stats[:4]."""
    error, square, product = 0.0, 0.0, 0.0
    for j in range(kept):
        v = magnitudes[j]
        q = high if v >= high_from else low
        error += (v - q) * (v - q)
        square += v * v
        product += q * v
    stats[0], stats[1], stats[2], stats[3] = error, square, product, float(kept)


@kernel
def stage_chunks(
    residual: Singles,
    bits: Bits,
    gradient: Singles,
    decay: np.float32,
    geometry: Ints,
    num_chunks: int,
    first: int,
    last: int,
    value_bits: int,
    max_scale_bits: int,
    words: Words,
    starts: Ints,
    limbs: Ints,
    body: Bytes,
    stats: Floats,
) -> None:
    """Accumulate, select, fit and pack chunks first..last - 1 of one tensor.

    Args:
        residual: (size,) the accumulator, changed in place.
        bits: (size,) the same memory seen as int32.
        gradient: (size,) pseudo-gradient.
        decay: factor on the residual.
        geometry: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        max_scale_bits: largest scale, as fp16 bits.
        words: see `BinomialTable`.
        starts: see `BinomialTable`.
        limbs: see `BinomialTable`.
        body: packed bytes of the tensor, zeroed, written.
        stats: (num_chunks, 5) zeroed, written: what `measure` says, and the chunk's sum of squares.
    """
    chunk_size = geometry[0, 0]
    maxima = np.empty(chunk_size, np.int32)
    lanes = np.empty(chunk_size, np.int64)
    keys = np.empty(chunk_size, np.int64)
    order = np.empty(chunk_size, np.int64)
    indices = np.empty(geometry[0, 1], np.int64)
    magnitudes = np.empty(geometry[0, 1], np.float64)
    ascending = np.empty(geometry[0, 1], np.float64)
    number = np.empty(limbs.max(), np.uint64)
    for chunk in range(first, last):
        row = np.int64(chunk == num_chunks - 1)
        length, kept, index_bytes = geometry[row, 0], geometry[row, 1], geometry[row, 2]
        start, offset = chunk * chunk_size, chunk * geometry[0, 4]
        accumulate(residual, gradient, decay, start, start + length)
        stats[chunk, 4] = square_sum(residual, start, start + length)
        select_chunk(bits, start, length, kept, maxima, lanes, keys, order, indices)
        for j in range(kept):
            magnitudes[j] = abs(np.float64(residual[start + indices[j]]))
        low, high, high_from = fit_scales_of(
            magnitudes, kept, value_bits, max_scale_bits, ascending
        )
        if high == 0:
            continue
        if low == high:
            high_from = np.inf
        encode_set(indices, kept, words, starts, limbs, number)
        store_number(number, index_bytes, body, offset)
        offset += index_bytes
        pack_values(residual, start, indices, kept, value_bits, high_from, body, offset)
        offset += geometry[row, 3]
        body[offset], body[offset + 1] = low & 255, low >> 8
        if value_bits == 2:
            body[offset + 2], body[offset + 3] = high & 255, high >> 8
        low_value, high_value = scale_units(low) * UNIT, scale_units(high) * UNIT
        measure(magnitudes, kept, low_value, high_value, high_from, stats[chunk])
