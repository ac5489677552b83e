"""The aggregation rule and the outer step again, slow and obvious, for the tests.

Python integers up to the last two operations, one chunk and one coordinate at a time, nothing
shared with the node's own code; bodies are decoded by the codec's slow reference.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoal.compression import BodyLayout
from shoal.compression.reference import unpack_body
from shoal.protocol.manifest import OuterSection


class Reference(NamedTuple):
    """`tensors`: position -> (sum, number of senders), one dictionary a tensor."""

    caps: list[int]
    norms: list[int]
    weights: list[int]
    tensors: list[dict[int, tuple[int, int]]]


def lower_median(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def reference_aggregate(
    bodies: Sequence[bytes], layout: BodyLayout, outer: OuterSection
) -> Reference:
    """Capped, clipped and summed as threats and algorithm pages say."""
    # Per body a flat list of chunks; a chunk is [(tensor, position, signed units)].
    chunked = [
        [
            [(t, position, units) for position, units in chunk]
            for t, chunks in enumerate(unpack_body(body, layout.sizes, layout.spec))
            for chunk in chunks
        ]
        for body in bodies
    ]
    caps = [_cap([body[c] for body in chunked], outer) for c in range(len(chunked[0]))]
    capped = [
        [
            [(t, p, min(abs(u), cap) if u > 0 else -min(abs(u), cap)) for t, p, u in chunk]
            for chunk, cap in zip(body, caps, strict=True)
        ]
        for body in chunked
    ]
    norms = [math.isqrt(sum(u * u for chunk in body for _, _, u in chunk)) for body in capped]
    middle = lower_median(norms)
    weights = [
        min(2**15, middle * 2**15 // max(norm, 1)) if outer.norm_clip else 2**15 for norm in norms
    ]
    tensors: list[dict[int, tuple[int, int]]] = [{} for _ in layout.sizes]
    for body, weight in zip(capped, weights, strict=True):
        for chunk in body:
            for t, position, units in chunk:
                total, count = tensors[t].get(position, (0, 0))
                tensors[t][position] = (total + weight * units, count + 1)
    return Reference(caps, norms, weights, tensors)


def _cap(chunks: Sequence[Sequence[tuple[int, int, int]]], outer: OuterSection) -> int:
    present = [max(abs(units) for _, _, units in chunk) for chunk in chunks if chunk]
    if outer.cap_numerator == 0:
        return 2**62
    if not present:
        return 0
    return lower_median(present) * outer.cap_numerator // outer.cap_denominator


def reference_hash_parts(tensors: Sequence[dict[int, tuple[int, int]]]) -> list[bytes]:
    """One SHA-256 a tensor over positions, sums and counts, little-endian."""
    leaves = []
    for tensor in tensors:
        items = sorted(tensor.items())
        raw = b"".join(struct.pack("<I", p) for p, _ in items)
        raw += b"".join(struct.pack("<q", s) for _, (s, _) in items)
        raw += b"".join(struct.pack("<H", n) for _, (_, n) in items)
        leaves.append(hashlib.sha256(raw).digest())
    return leaves


def reference_step(
    base: Sequence[np.ndarray],
    tensors: Sequence[dict[int, tuple[int, int]]],
    outer: OuterSection,
) -> list[np.ndarray]:
    """New parameters: two roundings a touched coordinate, nothing else."""
    moved = [flat.copy() for flat in base]
    for flat, tensor in zip(moved, tensors, strict=True):
        for position, (total, count) in tensor.items():
            factor = outer.alpha / (max(count, outer.tau) * 2.0**39)
            delta = np.float32(float(total) * factor)
            flat[position] = np.float32(flat[position] - delta)
    return moved
