"""From the counted payloads to one integer sum.

Rule (all quantities are integers; scales in units of 2^-24, weights in Q15):

1. Chunk cap: s'_ic = min(s_ic, floor(kappa * lower median of the larger scale s_ic)), over the
   payloads whose chunk c is not empty. An empty chunk takes no part in the median: otherwise a
   majority of peers that did not touch a chunk would silence those that did.
2. Norm clip: N_i = isqrt(sum of s'^2 over all kept values), M = lower median of N_i,
   w_i = min(2^15, floor(M 2^15 / max(N_i, 1))).
3. Sum: A_j = sum of w_i * sign_ij * s'_ij, with n_j = number of payloads that selected j.

Guarantees: integers all the way, so neither the order of payloads nor threads nor processes can
change a bit; `sum_hash` is equal exactly when positions, sums and counts are.

Does not do: the division by max(n_j, tau) and the step (see `outer_step`), or the choice of
payloads (the record's).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from shoal.compression import BodyLayout, CheckedBody, IntegerSum, sum_bodies
from shoal.protocol.manifest import OuterSection
from shoal.protocol.signing import Domain, digest

FULL_WEIGHT = 1 << 15
# Above any scale (fp16's largest is 65504 * 2^24 < 2^40): a cap that caps nothing.
_NO_CAP = 1 << 41
_HALF_BITS = 21
_BLOCK = 4096

Units = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate:
    """The agreed sum of one round."""

    sums: list[IntegerSum]
    weights: tuple[int, ...]
    """Q15 clip weight of every payload, in the order given."""
    norms: tuple[int, ...]
    """N_i, in units of 2^-24, in the order given."""
    sum_hash: bytes


def aggregate(
    bodies: Sequence[CheckedBody],
    layout: BodyLayout,
    outer: OuterSection,
    num_threads: int = 1,
) -> Aggregate:
    """Caps, clips and sums checked payload bodies.

    Args:
        bodies: at least one body of this layout.
        layout: tensor sizes and codec.
        outer: the manifest's rule.
        num_threads: of the summing kernel; does not change the result.
    """
    caps = chunk_caps(bodies, layout.num_chunks, outer)
    norms = [payload_norm(body, caps) for body in bodies]
    weights = clip_weights(norms) if outer.norm_clip else [FULL_WEIGHT] * len(bodies)
    sums = sum_bodies(bodies, weights, caps, layout, num_threads=num_threads)
    return Aggregate(
        sums=sums, weights=tuple(weights), norms=tuple(norms), sum_hash=hash_of_sum(sums)
    )


def chunk_caps(bodies: Sequence[CheckedBody], num_chunks: int, outer: OuterSection) -> Units:
    """The largest scale that counts in every chunk, (num_chunks,) int64, units of 2^-24."""
    if outer.cap_numerator == 0:
        return np.full(num_chunks, _NO_CAP, dtype=np.int64)
    scales = np.stack([body.scale_high for body in bodies])
    num_present = np.count_nonzero(scales, axis=0)
    # Zeros (empty chunks) sort first, so the present ones are the last num_present rows.
    scales.sort(axis=0)
    row = scales.shape[0] - num_present + np.maximum(num_present - 1, 0) // 2
    row = np.minimum(row, scales.shape[0] - 1)
    lower_median: Units = np.take_along_axis(scales, row[None, :], axis=0)[0]
    caps: Units = lower_median * outer.cap_numerator // outer.cap_denominator
    return caps


def payload_norm(body: CheckedBody, caps: Units) -> int:
    """N = isqrt(sum of squared capped scales over all kept values), units of 2^-24, exact."""
    high = np.minimum(body.scale_high, caps)
    low = np.minimum(body.scale_low, caps)
    num_low = (body.num_kept - body.num_high).astype(np.int64)
    squares = _weighted_squares(high, body.num_high.astype(np.int64))
    return isqrt(squares + _weighted_squares(low, num_low))


def _weighted_squares(scales: Units, counts: Units) -> int:
    """Sum of counts * scales^2 without overflow: scales are below 2^42, counts at most 512.

    With s = a 2^21 + b the three partial sums stay below 2^9 * 2^42 * 2^12 = 2^63 in a block of
    4,096 chunks; blocks are added as Python integers.
    """
    total = 0
    for start in range(0, len(scales), _BLOCK):
        s, n = scales[start : start + _BLOCK], counts[start : start + _BLOCK]
        a, b = s >> _HALF_BITS, s & ((1 << _HALF_BITS) - 1)
        total += int((n * a * a).sum()) << (2 * _HALF_BITS)
        total += int((n * a * b).sum()) << (_HALF_BITS + 1)
        total += int((n * b * b).sum())
    return total


def clip_weights(norms: Sequence[int]) -> list[int]:
    """w_i = min(2^15, floor(M 2^15 / max(N_i, 1))), M the lower median of the norms."""
    middle = sorted(norms)[(len(norms) - 1) // 2]
    return [min(FULL_WEIGHT, middle * FULL_WEIGHT // max(norm, 1)) for norm in norms]


def hash_of_sum(sums: Sequence[IntegerSum]) -> bytes:
    """32 bytes over positions, sums and counts of every tensor, little-endian."""
    leaves = []
    for part in sums:
        hasher = hashlib.sha256()
        hasher.update(np.ascontiguousarray(part.positions, dtype="<u4").data)
        hasher.update(np.ascontiguousarray(part.sums, dtype="<i8").data)
        hasher.update(np.ascontiguousarray(part.counts, dtype="<u2").data)
        leaves.append(hasher.digest())
    return digest(Domain.SUM, *leaves)
