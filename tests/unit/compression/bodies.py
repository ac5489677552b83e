"""Tensors and bodies for the tests of the codec."""

import math
import struct

import numpy as np
import numpy.typing as npt

from shoal.compression import BodyLayout, CodecSpec, CorruptBodyError, ErrorFeedback, check_body

# Ties, both zeros, subnormal numbers, the edges of the scales, and numbers beyond all scales.
PALETTE = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 2.0**-15, -(2.0**-14), 0.25, -0.25, 0.5, 1.0, -1.0, 3e38],
    dtype=np.float32,
)


def random_tensors(sizes, seed, *, palette_ratio=0.3):
    rng = np.random.default_rng(seed)
    tensors = []
    for size in sizes:
        values = (rng.standard_normal(size) * 0.1).astype(np.float32)
        from_palette = rng.random(size) < palette_ratio
        values[from_palette] = rng.choice(PALETTE, size)[from_palette]
        tensors.append(values)
    return tensors


def formula_tensors(sizes):
    """Numbers that depend on no generator, for golden bytes."""
    numbers = (np.arange(size, dtype=np.uint64) * 2654435761 % 2**32 for size in sizes)
    return [((n.astype(np.float64) - 2**31) / 2**35).astype(np.float32) for n in numbers]


def body_of(layout: BodyLayout, tensors) -> bytes:
    return ErrorFeedback(layout, 0.0).stage(tensors).body


def packed_chunk(
    spec: CodecSpec,
    chunk_len: int,
    *,
    number: int = 0,
    codes: int = 0,
    scales: tuple[int, ...] = (0x3800,),
) -> bytes:
    """A chunk from its fields, valid or not."""
    return (
        number.to_bytes(spec.index_bytes(chunk_len), "little")
        + codes.to_bytes(spec.value_bytes(chunk_len), "little")
        + struct.pack(f"<{spec.value_bits}H", *scales)
    )


def random_chunk(spec: CodecSpec, chunk_len: int, rng: np.random.Generator) -> bytes:
    """A valid chunk, any of them: empty ones, one scale, two scales."""
    kept = spec.kept(chunk_len)
    number = int.from_bytes(rng.bytes(512), "little") % math.comb(chunk_len, kept)
    low, high = sorted(int(x) for x in rng.integers(0x0400, spec.max_scale_bits + 1, size=2))
    kind = rng.integers(0, 3)
    if kind == 0:
        return bytes(spec.chunk_bytes(chunk_len))
    signs = int.from_bytes(rng.bytes(64), "little") % 2**kept
    if spec.value_bits == 1:
        return packed_chunk(spec, chunk_len, number=number, codes=signs, scales=(low,))
    levels = 0
    if kind == 2 and kept > 1 and low < high:
        levels = 1 + int.from_bytes(rng.bytes(128), "little") % (2**kept - 2)
    else:
        high = low
    codes = sum(((signs >> j & 1) | (levels >> j & 1) << 1) << (2 * j) for j in range(kept))
    return packed_chunk(spec, chunk_len, number=number, codes=codes, scales=(low, high))


def random_body(layout: BodyLayout, seed: int) -> bytes:
    """A valid body whose chunks are anything, or all zero if the draw makes every chunk empty."""
    rng = np.random.default_rng(seed)
    return b"".join(
        random_chunk(layout.spec, tensor.chunk_len(c), rng)
        for tensor in layout.tensors
        for c in range(tensor.num_chunks)
    )


def full_caps(layout: BodyLayout) -> npt.NDArray[np.int64]:
    return np.full(layout.num_chunks, 2**41, dtype=np.int64)


def broken_rule(body: bytes, layout: BodyLayout) -> str | None:
    """The code with which a body is refused, None if it is not."""
    try:
        check_body(body, layout)
    except CorruptBodyError as error:
        return error.code
    return None
