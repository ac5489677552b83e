"""Validation of packed chunks, without decoding an index.

Guarantees to find the first chunk in its range that breaks a rule, and the first rule that it
breaks, in the order: scale bits (not finite, sign, subnormal, range, order), empty chunk, padding,
index range, levels. Reads only the bytes of those chunks.
"""

import numpy as np
import numpy.typing as npt

from shoal.compression.kernels.compiler import Int, kernel
from shoal.compression.kernels.fit import scale_units

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]

FINE = 0
SCALE_NONFINITE = 1
SCALE_SIGN = 2
SCALE_SUBNORMAL = 3
SCALE_RANGE = 4
SCALE_ORDER = 5
EMPTY_CHUNK = 6
PADDING = 7
INDEX_RANGE = 8


@kernel
def check_scales(low: Int, high: Int, max_scale_bits: Int) -> Int:
    """Check two fp16 bit patterns: each rule for both before the next rule."""
    if (low & 0x7C00) == 0x7C00 or (high & 0x7C00) == 0x7C00:
        return SCALE_NONFINITE
    if (low | high) & 0x8000:
        return SCALE_SIGN
    if 0 < low < 0x0400 or 0 < high < 0x0400:
        return SCALE_SUBNORMAL
    if low > max_scale_bits or high > max_scale_bits:
        return SCALE_RANGE
    if low > high:
        return SCALE_ORDER
    return FINE


@kernel
def all_zero(body: Bytes, offset: Int, count: Int) -> bool:
    """Whether `count` bytes from `offset` are zero."""
    combined = np.uint8(0)
    for b in range(offset, offset + count):
        combined |= body[b]
    return bool(combined == 0)


@kernel
def exceeds(body: Bytes, offset: Int, count: Int, largest: Bytes) -> bool:
    """Whether the little-endian number at `offset` is above `largest`."""
    for b in range(count - 1, -1, -1):
        if body[offset + b] != largest[b]:
            return bool(body[offset + b] > largest[b])
    return False


@kernel
def count_high(body: Bytes, offset: Int, kept: Int) -> Int:
    """Number of kept values of a 2-bit chunk whose level bit is set."""
    count = np.int64(0)
    for j in range(kept):
        count += (body[offset + (j >> 2)] >> (2 * (j & 3) + 1)) & 1
    return count


@kernel
def check_chunks(
    body: Bytes,
    geometry: Ints,
    largest_codes: Bytes,
    num_chunks: Int,
    first: Int,
    last: Int,
    value_bits: Int,
    max_scale_bits: Int,
    scale_low: Ints,
    scale_high: Ints,
    num_high: Counts,
    num_kept: Counts,
) -> tuple[Int, Int]:
    """Check chunks first..last - 1 of one tensor and read off their scales.

    Args:
        body: packed bytes of the tensor.
        geometry: see `TensorLayout`.
        largest_codes: see `TensorLayout`.
        num_chunks: chunks of the tensor.
        first: first chunk.
        last: chunk after the last.
        value_bits: 1 or 2.
        max_scale_bits: largest scale, as fp16 bits.
        scale_low: (num_chunks,) zeroed, written: units of 2^-24.
        scale_high: (num_chunks,) likewise; equal to the low one if value_bits is 1.
        num_high: (num_chunks,) zeroed, written: kept values at the high level.
        num_kept: (num_chunks,) zeroed, written: kept values, 0 for an empty chunk.

    Returns:
        the rule that was broken, FINE if none was, and the chunk that broke it.
    """
    for chunk in range(first, last):
        row = np.int64(chunk == num_chunks - 1)
        kept, index_bytes, value_bytes = geometry[row, 1], geometry[row, 2], geometry[row, 3]
        offset = chunk * geometry[0, 4]
        codes = offset + index_bytes
        scales = codes + value_bytes
        low = np.int64(body[scales]) | np.int64(body[scales + 1]) << 8
        high = low
        if value_bits == 2:
            high = np.int64(body[scales + 2]) | np.int64(body[scales + 3]) << 8
        rule = check_scales(low, high, max_scale_bits)
        if rule != FINE:
            return rule, chunk
        if low == 0:
            if not all_zero(body, offset, geometry[row, 4]):
                return EMPTY_CHUNK, chunk
            continue
        used_bits = value_bits * kept & 7
        if used_bits and body[scales - 1] >> used_bits:
            return PADDING, chunk
        if exceeds(body, offset, index_bytes, largest_codes[row]):
            return INDEX_RANGE, chunk
        if value_bits == 2:
            high_count = count_high(body, codes, kept)
            if (low == high) != (high_count == 0) or high_count == kept:
                return SCALE_ORDER, chunk
            num_high[chunk] = high_count
        num_kept[chunk] = kept
        scale_low[chunk], scale_high[chunk] = scale_units(low), scale_units(high)
    return FINE, 0
