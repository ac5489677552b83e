"""In which order candidates are tried: a weighted draw without replacement from the round seed.

Guarantees: a pure function of (seed, weights), in integers, so that every node on every machine
tries the same candidates first; a candidate of weight 2w comes first twice as often as one of
weight w; weight 0 is never drawn.

Does not do: decide weights (ratings come from records) or who is a candidate.
"""

from collections.abc import Mapping

from shoal.protocol.identity import PeerId
from shoal.protocol.signing import Domain, digest


def draw_order(round_seed: bytes, weights: Mapping[PeerId, int], limit: int) -> tuple[PeerId, ...]:
    """The first `limit` candidates of the draw.

    Args:
        round_seed: 32 bytes that nobody knew before the previous record was signed.
        weights: non-negative integer weight of every candidate.
        limit: how many to draw at most.
    """
    # Sorted by key: the order in which candidates were heard of must not matter.
    remaining = sorted((peer, weight) for peer, weight in weights.items() if weight > 0)
    drawn: list[PeerId] = []
    while remaining and len(drawn) < limit:
        total = sum(weight for _, weight in remaining)
        # 256 random bits against a total far below 2^64: the modulo's bias is below 2^-190.
        word = digest(Domain.DRAW, round_seed, len(drawn).to_bytes(8, "little"))
        ticket = int.from_bytes(word, "little") % total
        index = _owner_of(ticket, [weight for _, weight in remaining])
        drawn.append(remaining.pop(index)[0])
    return tuple(drawn)


def _owner_of(ticket: int, weights: list[int]) -> int:
    for index, weight in enumerate(weights):
        if ticket < weight:
            return index
        ticket -= weight
    raise AssertionError("a ticket below the total has an owner")
