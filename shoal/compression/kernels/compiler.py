"""The one place where numba is configured.

Guarantees that every kernel is compiled with IEEE arithmetic (no fast-math, so no fused
multiply-add and no reordering), without the GIL, and is kept in numba's cache on disk.
"""

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compile a function on its first call."""
    compiled: Kernel = njit(nogil=True, cache=True, boundscheck=False)(function)
    return compiled
