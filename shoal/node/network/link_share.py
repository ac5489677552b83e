"""The network process's part of the node's link.

The node and its network process share one link and cannot ask each other for every block, so the
bulk part of a cap is cut once: three quarters for the process where this node's payloads are served
by it, half where it only fetches. Each side reserves for its own control plane.

Does not wait (see `storage.allowance`).
"""

import time
from typing import Final

from shoal.storage.pacing import RateLimit, reserved_rate

SERVING_RATIO: Final = 0.75
FETCHING_RATIO: Final = 0.5
_ROOM: Final = 4
"""A stream should get so many times the least rate, since others come and go."""


def network_part(bytes_per_s: int, control_ratio: float, *, serves: bool) -> int:
    """What of a cap goes to the network process.

    Args:
        bytes_per_s: The node's cap; 0: none.
        control_ratio: The share of the control plane, which stays with the node.
        serves: Whether this node's payloads are served by the process.

    Returns:
        Bytes per second; 0: no cap.
    """
    bulk_bytes_per_s = bytes_per_s - reserved_rate(bytes_per_s, control_ratio)
    return int(bulk_bytes_per_s * (SERVING_RATIO if serves else FETCHING_RATIO))


def rate_of(bytes_per_s: int) -> RateLimit | None:
    """The process's cap; None for 0."""
    return RateLimit(bytes_per_s, now_s=time.monotonic) if bytes_per_s else None


def num_streams(rate: RateLimit | None, min_bytes_per_s: float, usual: int) -> int:
    """How many streams a cap feeds, so that none is given up for being too slow.

    Args:
        rate: The cap; None: none.
        min_bytes_per_s: What the other side gives up below.
        usual: Without a cap.

    Returns:
        At least 1.
    """
    if rate is None or min_bytes_per_s <= 0:
        return usual
    return max(1, min(usual, int(rate.bytes_per_s / (_ROOM * min_bytes_per_s))))
