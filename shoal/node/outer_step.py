"""The outer step: plain SGD on the base parameters, in two roundings.

    delta_j = fl32(fl64(A_j) * C[n_j])        C[n] = fl64(alpha / (max(n, tau) * 2^39))
    theta_j = fl32(theta_j - delta_j)

Guarantees: bit-identical on every machine: the sum is an integer, the table is computed in IEEE
doubles on the CPU, and the two floating point operations are two kernels, so no fused multiply-add
can appear (which rules out `alpha=`, `addcmul` and `torch.optim.SGD`). Untouched coordinates keep
their bits.

Does not do: momentum (SparseLoCo has none: arXiv 2508.15706), or decide what is summed.
2^39 = 2^24 (unit of scales) * 2^15 (unit of weights).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from shoal.compression import IntegerSum
from shoal.protocol.manifest import OuterSection

_UNIT = float(1 << 39)


def step_table(outer: OuterSection) -> npt.NDArray[np.float64]:
    """C[n] for n = 0 .. gather_limit; alpha is applied here and nowhere else."""
    return np.array(
        [outer.alpha / (max(n, outer.tau) * _UNIT) for n in range(outer.gather_limit + 1)],
        dtype=np.float64,
    )


def outer_step(
    base: Sequence[npt.NDArray[np.float32]], sums: Sequence[IntegerSum], outer: OuterSection
) -> float:
    """Moves the base parameters in place; returns the L2 norm of the update (for people).

    Args:
        base: flat float32 arrays, one per tensor, payload order; changed in place.
        sums: the integer sum of every tensor, same order.
        outer: alpha, tau and the gather limit.
    """
    table = torch.from_numpy(step_table(outer))
    squared = 0.0
    for flat, part in zip(base, sums, strict=True):
        theta = torch.from_numpy(flat)
        index = torch.from_numpy(part.positions.astype(np.int64))
        counts = torch.from_numpy(part.counts.astype(np.int64))
        exact = torch.from_numpy(part.sums).to(torch.float64)
        delta = torch.mul(exact, table[counts]).to(torch.float32)
        theta[index] = torch.sub(theta[index], delta)
        squared += float(torch.linalg.vector_norm(delta.double()) ** 2)
    return float(squared**0.5)
