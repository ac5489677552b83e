"""The codec again, slow and obvious, with Python's integers: what the kernels are tested against.

Guarantees the same bytes, errors and sums as the rest of the package. Shares with it the numbers of
the spec and the names of the errors, but no code. Far too slow for anything but tests.
"""

import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.compression.errors import CorruptBodyError, CorruptionCode
from shoal.compression.spec import CodecSpec

Kept = list[tuple[int, int]]


def kept_of(spec: CodecSpec, n: int) -> int:
    """Kept elements of n: the density of a full chunk, rounded, halves up, but at least 1."""
    return max(1, math.floor(n * spec.k_per_chunk / spec.chunk_size + 0.5))


def chunk_lengths(spec: CodecSpec, size: int) -> list[int]:
    """Elements of each chunk of a tensor of `size` elements."""
    return [min(spec.chunk_size, size - start) for start in range(0, size, spec.chunk_size)]


def index_bytes(n: int, k: int) -> int:
    """Bytes of an index code: as many as the largest code needs."""
    return math.ceil((math.comb(n, k) - 1).bit_length() / 8)


def chunk_bytes(spec: CodecSpec, n: int) -> int:
    """Bytes of a packed chunk of n elements."""
    k = kept_of(spec, n)
    return index_bytes(n, k) + math.ceil(k * spec.value_bits / 8) + 2 * spec.value_bits


def select(values: Sequence[float], k: int) -> list[int]:
    """Sorted indices of the k largest magnitudes, ties to the lower index."""
    by_magnitude = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    return sorted(by_magnitude[:k])


def encode_set(indices: Sequence[int], n: int) -> bytes:
    """Sum of C(i_j, j), lowest byte first."""
    number = sum(math.comb(i, j) for j, i in enumerate(indices, start=1))
    return number.to_bytes(index_bytes(n, len(indices)), "little")


def decode_set(code: bytes, n: int, k: int) -> list[int]:
    """The set of a number below C(n, k), found from the largest index down."""
    number, indices, i = int.from_bytes(code, "little"), [], n
    for j in range(k, 0, -1):
        i -= 1
        while math.comb(i, j) > number:
            i -= 1
        number -= math.comb(i, j)
        indices.append(i)
    return indices[::-1]


def half_bits(mean: float, spec: CodecSpec) -> int:
    """Bit pattern of the fp16 number nearest to a mean, within 2^-14 and the largest scale."""
    (largest,) = struct.unpack("<e", struct.pack("<H", spec.max_scale_bits))
    packed = struct.pack("<e", min(max(mean, 2.0**-14), largest))
    return int.from_bytes(packed, "little")


def fit(magnitudes: Sequence[float], spec: CodecSpec) -> tuple[int, int, list[bool]]:
    """Bits of the low and of the high scale, and for each magnitude whether it is high."""
    ascending = sorted(magnitudes)
    k, total = len(ascending), 0.0
    for magnitude in ascending:
        total += magnitude
    best, low, high, high_from = -1.0, total / k, total / k, math.inf
    running = 0.0
    for m in range(1, k):
        running += ascending[m - 1]
        score = running * running / m + (total - running) * (total - running) / (k - m)
        if spec.value_bits == 2 and ascending[m - 1] < ascending[m] and score > best:
            best, low, high = score, running / m, (total - running) / (k - m)
            high_from = ascending[m]
    if high < 2.0**-15:
        return 0, 0, [False] * k
    low_bits, high_bits = half_bits(low, spec), half_bits(high, spec)
    return low_bits, high_bits, [low_bits < high_bits and x >= high_from for x in magnitudes]


def pack_chunk(values: Sequence[float], spec: CodecSpec) -> bytes:
    """Packed bytes of one chunk."""
    n = len(values)
    indices = select(values, kept_of(spec, n))
    low_bits, high_bits, is_high = fit([abs(values[i]) for i in indices], spec)
    if not high_bits:
        return bytes(chunk_bytes(spec, n))
    codes = 0
    for j, (i, high) in enumerate(zip(indices, is_high, strict=True)):
        codes |= (int(values[i] < 0) | int(high) << 1) << (spec.value_bits * j)
    scales = (low_bits, high_bits)[: spec.value_bits]
    num_code_bytes = math.ceil(len(indices) * spec.value_bits / 8)
    packed_scales = struct.pack(f"<{spec.value_bits}H", *scales)
    return encode_set(indices, n) + codes.to_bytes(num_code_bytes, "little") + packed_scales


def pack_body(tensors: Sequence[npt.NDArray[np.float32]], spec: CodecSpec) -> bytes:
    """Packed bytes of all tensors, each (size,) float32."""
    chunks = (
        tensor[start : start + spec.chunk_size].tolist()
        for tensor in tensors
        for start in range(0, tensor.size, spec.chunk_size)
    )
    return b"".join(pack_chunk(chunk, spec) for chunk in chunks)


def check_scales(low: int, high: int, spec: CodecSpec) -> CorruptionCode | None:
    """The first rule that two scale patterns break, or None."""
    if any(bits & 0x7C00 == 0x7C00 for bits in (low, high)):
        return "E_SCALE_NONFINITE"
    if any(bits & 0x8000 for bits in (low, high)):
        return "E_SCALE_SIGN"
    if any(bits != 0 and bits < 0x0400 for bits in (low, high)):
        return "E_SCALE_SUBNORMAL"
    if max(low, high) > spec.max_scale_bits:
        return "E_SCALE_RANGE"
    return "E_SCALE_ORDER" if low > high else None


def unpack_chunk(packed: bytes, n: int, spec: CodecSpec) -> Kept | CorruptionCode:
    """Index and signed units of 2^-24 of each kept value, or the rule that the bytes break."""
    k = kept_of(spec, n)
    num_index_bytes = index_bytes(n, k)
    num_scale_bytes = 2 * spec.value_bits
    scales = struct.unpack(f"<{spec.value_bits}H", packed[-num_scale_bytes:])
    low, high = scales[0], scales[-1]
    broken = check_scales(low, high, spec)
    if broken is not None:
        return broken
    if low == 0:
        return "E_EMPTY_CHUNK" if any(packed) else []
    codes = int.from_bytes(packed[num_index_bytes:-num_scale_bytes], "little")
    if codes >> (k * spec.value_bits):
        return "E_PADDING"
    if int.from_bytes(packed[:num_index_bytes], "little") >= math.comb(n, k):
        return "E_INDEX_RANGE"
    is_high = [spec.value_bits == 2 and bool(codes >> (2 * j + 1) & 1) for j in range(k)]
    if spec.value_bits == 2 and set(is_high) != ({False} if low == high else {False, True}):
        return "E_SCALE_ORDER"
    signs = [-1 if codes >> (spec.value_bits * j) & 1 else 1 for j in range(k)]
    units = [int(2**24 * struct.unpack("<e", struct.pack("<H", s))[0]) for s in (low, high)]
    indices = decode_set(packed[:num_index_bytes], n, k)
    return [(i, s * units[h]) for i, s, h in zip(indices, signs, is_high, strict=True)]


def unpack_body(body: bytes, sizes: Sequence[int], spec: CodecSpec) -> list[list[Kept]]:
    """For each tensor, for each chunk: flat positions and signed units of 2^-24.

    Args:
        body: the bytes.
        sizes: elements of each tensor.
        spec: the codec's numbers.

    Raises:
        CorruptBodyError: a rule is broken; the first of the first chunk.
    """
    lengths = [
        (t, c, n) for t, size in enumerate(sizes) for c, n in enumerate(chunk_lengths(spec, size))
    ]
    if len(body) != sum(chunk_bytes(spec, n) for _, _, n in lengths):
        raise CorruptBodyError("E_BODY_LEN")
    unpacked: list[list[Kept]] = [[] for _ in sizes]
    offset = 0
    for t, c, n in lengths:
        found = unpack_chunk(body[offset : offset + chunk_bytes(spec, n)], n, spec)
        if isinstance(found, str):
            raise CorruptBodyError(found, tensor_index=t, chunk_index=c)
        unpacked[t].append([(c * spec.chunk_size + i, units) for i, units in found])
        offset += chunk_bytes(spec, n)
    if not any(any(chunks) for chunks in unpacked):
        raise CorruptBodyError("E_ALL_ZERO")
    return unpacked


def sum_tensor(
    tensors: Sequence[list[Kept]], weights: Sequence[int], caps: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Position to sum and count, for one tensor of many bodies.

    Args:
        tensors: the tensor's chunks in each body, as `unpack_body` gives them.
        weights: one for each body.
        caps: one for each chunk of the tensor.
    """
    sums: dict[int, tuple[int, int]] = {}
    for chunks, weight in zip(tensors, weights, strict=True):
        for kept, cap in zip(chunks, caps, strict=True):
            for position, units in kept:
                total, count = sums.get(position, (0, 0))
                capped = min(abs(units), cap) * (1 if units > 0 else -1)
                sums[position] = (total + weight * capped, count + 1)
    return sums
