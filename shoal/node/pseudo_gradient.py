"""Pseudo-gradient: base minus local.

Guarantees: the sign is "start minus end", a descent direction that the outer step subtracts
(DiLoCo, arXiv 2311.08105); fresh float32 arrays, one rounding each.

Does not do: clipping, or any decision.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

Flat = npt.NDArray[np.float32]


def pseudo_gradient(base: Sequence[Flat], local: Sequence[Tensor]) -> list[Flat]:
    """D = base - local.

    Args:
        base: flat float32 base parameters, one per tensor, payload order.
        local: the trained parameters, float32, same order, any shape.
    """
    return [
        flat - parameter.detach().cpu().numpy().reshape(-1)
        for flat, parameter in zip(base, local, strict=True)
    ]
