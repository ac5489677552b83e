"""What a soak is asked to do, and the bounds that it is held to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SAMPLE_S: Final = 5.0
PSS_EVERY: Final = 6
"""Proportional sizes take the kernel a walk over all pages: every sixth sample."""
WARM_UP_S: Final = 300.0
"""A process's first minutes, in which caches, pools and arenas fill, say nothing of leaks."""
MIN_SPAN_S: Final = 600.0
"""A shorter rest of a process's life has no slope."""
MAX_MEMORY_MIB_PER_H: Final = 24.0
MAX_FDS_PER_H: Final = 12.0
MAX_THREADS_PER_H: Final = 8.0
MAX_FDS: Final = 200
"""Of any process at any time; a node with 12 peers in undisturbed operation has well below 100."""
MIN_ROUNDS_OF_A_PEER: Final = 20
"""In fewer rounds one fault may cost a peer nearly all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakSettings:
    """One soak; durations in seconds."""

    duration_s: float
    """With faults; starting, catching up and ending come on top."""
    num_s3: int
    num_p2p: int
    seed: int
    out: Path
    fault_every_s: float
    hold_s: float
    """How long a cut, slow or resetting link stays so; a frozen process is let go after 2/3."""
    round_seconds: float
    inner_steps: int
    p2p_over_http: bool
    """Peers on libp2p serve their payloads so, and use the validator's HTTP service for the rest;
    else the network is all that they have."""
    min_goodput: float
    """Least share of possible payloads that must have counted."""
    min_rounds_goodput: float
    """Least number of rounds, as a share of what undisturbed ones would have been."""
    start_s: float = 300.0
    """Within this time every peer must have counted once, and at the end caught up."""

    @property
    def num_peers(self) -> int:
        """Without the validator."""
        return self.num_s3 + self.num_p2p

    @property
    def target_peers(self) -> int:
        """A round does not wait for one peer that is missing."""
        return max(1, self.num_peers - 1)
