"""The one place where numba is configured.

Guarantees that what peers must agree on is compiled with IEEE arithmetic (no fast-math, so no fused
multiply-add and no reordering); that kernels run without the GIL and stay in numba's cache on disk.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
from numba import njit

# Inside a kernel both are one 64-bit signed integer.
Int: TypeAlias = int | np.int64
Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compile a function on its first call."""
    compiled: Kernel = njit(nogil=True, cache=True)(function)
    return compiled


def reordering_kernel(function: Kernel) -> Kernel:
    """Compile likewise, but let sums be reordered, which is quicker; for telemetry only."""
    compiled: Kernel = njit(nogil=True, cache=True, fastmath={"reassoc"})(function)
    return compiled
