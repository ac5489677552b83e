"""The one place where numba is configured.

Guarantees that what peers must agree on is compiled with IEEE arithmetic (no fast-math, so no fused
multiply-add and no reordering); that kernels run without the GIL; and that a compiled kernel is
kept on disk only for exactly these sources. The last is not what numba does: it looks at the file
of the outermost function alone, and would go on using old versions of what that calls. Where no
folder can be written, kernels are compiled at every start, which is said once.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numba import config, njit

# Inside a kernel both are one 64-bit signed integer.
Int: TypeAlias = int | np.int64
Kernel = TypeVar("Kernel", bound=Callable[..., object])

logger = logging.getLogger(__name__)

_HERE = Path(__file__).parent


def sources_digest(sources: Iterable[Path]) -> str:
    """Names the version of all sources together, in any order."""
    digests = sorted(hashlib.sha256(path.read_bytes()).digest() for path in sources)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _cache_base() -> Path:
    """Where caches go.

    Raises:
        RuntimeError: this user has no home folder.
    """
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    if os.access(_HERE, os.W_OK):
        return _HERE / "__pycache__"
    # Not a shared folder: whoever can write there decides what runs here.
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


def _cache_directory() -> str:
    """A folder that can be written; empty where there is none."""
    try:
        folder = _cache_base() / f"kernels-{sources_digest(_HERE.glob('*.py'))}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        trouble = str(error)
    else:
        if os.access(folder, os.W_OK):
            return str(folder)
        trouble = f"{folder} is not writable"
    logger.warning(
        "compiled kernels cannot be kept (%s): every start takes longer; "
        "set XDG_CACHE_HOME to a folder of your own",
        trouble,
    )
    return ""


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
        keeps = bool(_CACHE_DIRECTORY)
        compiled: Kernel = njit(nogil=True, cache=keeps, fastmath=fastmath)(function)
    finally:
        config.CACHE_DIR = before
    return compiled
