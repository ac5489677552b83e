"""What a node asks its network process about finding peers and being found.

Part of `messages`, and packed like all of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AddSeeds:
    """Peers that a source names from now on, instead of earlier ones. Answered by `Done`."""

    source: str
    """A `SeedSource`."""
    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSeed:
    """Try one seed step by step. Answered by `Probed`."""

    source: str
    address: str
    timeout_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AskReach:
    """Ask connected peers to dial this one. Answered by `Reach`."""

    timeout_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """How far a seed was reached."""

    took_ms: dict[str, int]
    """By step, those that succeeded: tcp, handshake, dht, run."""
    failed_step: str = ""
    """The step that did not succeed; empty: none."""
    detail: str = ""
    """Why it did not."""
    was_connected: bool = False
    """There was a connection before: the handshake was not made anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What other peers say about how this one is reached."""

    status: str
    """reached, not-reached, nobody (could say), or unasked (nothing listens here)."""
    observed: str = ""
    """Where others see this peer, as /ip4/ADDRESS; empty: not known."""
    ports: tuple[str, ...] = ()
    """What was tried, as tcp/PORT or quic/PORT."""
    answers: tuple[str, ...] = ()
    """One per peer that was asked."""
