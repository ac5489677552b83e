"""Accumulator to packed bytes, chunk by chunk.

Guarantees the canonical bytes of every chunk in its range and touches no others. Does not look for
NaN or infinity: `all_finite` runs over all tensors before anything is changed.

Source: SparseLoCo, arXiv 2508.15706: e <- b * e + D, then top-k of e in each chunk.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel, reordering_kernel
from shoal.compression.kernels.fit import fit_chunk, scale_units
from shoal.compression.kernels.limbs import BinomialTable, encode_set, store_number
from shoal.compression.kernels.select import select_chunk

Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LARGEST_SINGLE = np.float32(3.4028234663852886e38)
UNIT = 2.0**-24


@kernel
def all_finite(residual: Singles, gradient: Singles, decay: np.float32) -> bool:
    """Whether decay * residual + gradient is finite in every element."""
    num_finite = np.int64(0)
    for i in range(residual.size):
        value = decay * residual[i] + gradient[i]
        # Every comparison with NaN is false.
        num_finite += np.int64(abs(value) <= LARGEST_SINGLE)
    return bool(num_finite == residual.size)


@kernel
def accumulate(residual: Singles, gradient: Singles, decay: np.float32) -> None:
    """Set residual <- decay * residual + gradient, in place."""
    for i in range(residual.size):
        residual[i] = decay * residual[i] + gradient[i]


@reordering_kernel
def square_sum(values: Singles) -> float:
    """Sum of squares in float64."""
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@kernel
def pack_values(
    values: Singles, indices: Ints, value_bits: Int, high_from: float, codes: Bytes
) -> None:
    """Set the code bits of the kept values in zeroed bytes: sign in bit 0, level in bit 1."""
    for j in range(indices.size):
        value = values[indices[j]]
        code = np.int64(value < 0)
        if value_bits == 2:
            code |= np.int64(abs(np.float64(value)) >= high_from) << 1
        bit = value_bits * j
        codes[bit >> 3] |= np.uint8(code << (bit & 7))


@kernel
def measure(magnitudes: Floats, low: float, high: float, high_from: float, stats: Floats) -> None:
    """Write sum (v - q)^2, sum v^2, sum q v and the number kept into stats[:4]."""
    error, square, product = 0.0, 0.0, 0.0
    for j in range(magnitudes.size):
        v = magnitudes[j]
        q = high if v >= high_from else low
        error += (v - q) * (v - q)
        square += v * v
        product += q * v
    stats[0], stats[1], stats[2], stats[3] = error, square, product, np.float64(magnitudes.size)


@kernel
def pack_chunk(
    values: Singles,
    indices: Ints,
    magnitudes: Floats,
    geometry: Ints,
    value_bits: Int,
    max_scale_bits: Int,
    table: BinomialTable,
    scratch: tuple[npt.NDArray[np.uint64], Ints, Floats],
    packed: Bytes,
    stats: Floats,
) -> None:
    """Fit the scales of one chunk and write its bytes, or leave them zero if it is empty.

    Args:
        values: (n,) the chunk's elements.
        indices: (k,) the selected ones.
        magnitudes: (k,) their magnitudes.
        geometry: (5,) int64, of this chunk.
        value_bits: 1 or 2.
        max_scale_bits: largest scale, as fp16 bits.
        table: see `BinomialTable`.
        scratch: the largest number, (k,) and (k,).
        packed: the chunk's bytes, zeroed, written.
        stats: (4 or more,) zeroed, written: see `measure`.
    """
    number, keys, ascending = scratch
    low, high, high_from = fit_chunk(magnitudes, value_bits, max_scale_bits, keys, ascending)
    if high == 0:
        return
    encode_set(indices, indices.size, table, number)
    store_number(number, geometry[2], packed)
    scales = packed[geometry[2] + geometry[3] :]
    pack_values(values, indices, value_bits, high_from, packed[geometry[2] :])
    scales[0], scales[1] = low & 255, low >> 8
    if value_bits == 2:
        scales[2], scales[3] = high & 255, high >> 8
    measure(magnitudes, scale_units(low) * UNIT, scale_units(high) * UNIT, high_from, stats)


@kernel
def stage_chunks(
    residual: Singles,
    bits: Bits,
    gradient: Singles,
    decay: np.float32,
    geometry: Ints,
    num_chunks: Int,
    first: Int,
    last: Int,
    value_bits: Int,
    max_scale_bits: Int,
    table: BinomialTable,
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
        table: see `BinomialTable`.
        body: packed bytes of the tensor, zeroed, written.
        stats: (num_chunks, 5) zeroed, written: what `measure` says, and the chunk's sum of squares.
    """
    chunk_size, most_kept = geometry[0, 0], geometry[0, 1]
    maxima, magnitudes = np.empty(chunk_size, np.int32), np.empty(chunk_size, np.int32)
    lanes, candidates = np.empty(chunk_size, np.int64), np.empty(chunk_size, np.int64)
    indices, keys = np.empty(most_kept, np.int64), np.empty(most_kept, np.int64)
    kept_magnitudes, ascending = np.empty(most_kept), np.empty(most_kept)
    number = np.empty(np.int64(table.limbs.max()), np.uint64)
    for chunk in range(first, last):
        shape = geometry[np.int64(chunk == num_chunks - 1)]
        start, kept = chunk * chunk_size, shape[1]
        values, selected = residual[start : start + shape[0]], indices[:kept]
        accumulate(values, gradient[start : start + shape[0]], decay)
        stats[chunk, 4] = square_sum(values)
        select_chunk(
            bits[start : start + shape[0]], kept, maxima, lanes, magnitudes, candidates, selected
        )
        for j in range(kept):
            kept_magnitudes[j] = abs(np.float64(values[selected[j]]))
        offset = chunk * geometry[0, 4]
        pack_chunk(
            values, selected, kept_magnitudes[:kept], shape, value_bits, max_scale_bits, table,
            (number, keys[:kept], ascending[:kept]), body[offset : offset + shape[4]], stats[chunk],
        )  # fmt: skip
