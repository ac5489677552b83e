"""The one place where numba is configured.

Guarantees that what peers must agree on is compiled with IEEE arithmetic (no fast-math, so no fused
multiply-add and no reordering); that kernels run without the GIL; and that a compiled kernel is
kept on disk only for exactly these sources. The last is not what numba does: it looks at the file
of the outermost function alone, and would go on using old versions of what that calls.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numba import config, njit

# Inside a kernel both are one 64-bit signed integer.
Int: TypeAlias = int | np.int64
Kernel = TypeVar("Kernel", bound=Callable[..., object])

_HERE = Path(__file__).parent


def sources_digest(sources: Iterable[Path]) -> str:
    """Names the version of all sources together, in any order."""
    digests = sorted(hashlib.sha256(path.read_bytes()).digest() for path in sources)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _cache_directory() -> str:
    if config.CACHE_DIR:
        base = Path(config.CACHE_DIR)
    elif os.access(_HERE, os.W_OK):
        base = _HERE / "__pycache__"
    else:
        # Not a shared folder: whoever can write there decides what runs here.
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
    return str(base / f"kernels-{sources_digest(_HERE.glob('*.py'))}")


_CACHE_DIRECTORY = _cache_directory()


def kernel(function: Kernel) -> Kernel:
    """Compile a function on its first call."""
    return _compile(function, reorder=False)


def reordering_kernel(function: Kernel) -> Kernel:
    """Compile likewise, but let sums be reordered, which is quicker; for telemetry only."""
    return _compile(function, reorder=True)


def _compile(function: Kernel, *, reorder: bool) -> Kernel:
    before = config.CACHE_DIR
    # numba reads this setting when it decorates; others in this process keep theirs.
    config.CACHE_DIR = _CACHE_DIRECTORY
    try:
        fastmath = {"reassoc"} if reorder else False
        compiled: Kernel = njit(nogil=True, cache=True, fastmath=fastmath)(function)
    finally:
        config.CACHE_DIR = before
    return compiled
