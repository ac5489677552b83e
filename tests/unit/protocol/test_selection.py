import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol.selection import draw_order
from shoal.protocol.signing import Domain, digest
from tests.support.manifests import peer

PEERS = [peer(i).peer for i in range(8)]
SEEDS = st.binary(min_size=32, max_size=32)
WEIGHTS = st.dictionaries(st.sampled_from(PEERS), st.integers(0, 9))


def seed(number):
    return hashlib.sha256(str(number).encode()).digest()


@settings(deadline=None)
@given(seed=SEEDS, weights=WEIGHTS, order=st.randoms())
def test_the_order_in_which_candidates_were_heard_of_does_not_matter(seed, weights, order):
    items = list(weights.items())
    order.shuffle(items)
    assert draw_order(seed, dict(items), 20) == draw_order(seed, weights, 20)


@settings(deadline=None)
@given(seed=SEEDS, weights=WEIGHTS, limit=st.integers(0, 10))
def test_nobody_is_drawn_twice_nor_with_weight_zero_nor_beyond_the_limit(seed, weights, limit):
    drawn = draw_order(seed, weights, limit)
    eligible = {p for p, w in weights.items() if w > 0}
    assert len(set(drawn)) == len(drawn) == min(limit, len(eligible))
    assert set(drawn) <= eligible
    assert draw_order(seed, weights, limit + 1)[:limit] == drawn


def test_a_weight_of_two_comes_first_twice_as_often():
    first = Counter(draw_order(seed(i), {PEERS[0]: 1, PEERS[1]: 2}, 1)[0] for i in range(3000))
    assert 1900 < first[PEERS[1]] < 2100


def test_the_seed_decides():
    weights = dict.fromkeys(PEERS, 1)
    assert len({draw_order(seed(i), weights, 8) for i in range(50)}) > 45
    first = Counter(draw_order(seed(i), weights, 1)[0] for i in range(1600))
    assert all(140 < first[p] < 260 for p in PEERS)


def test_the_draw_is_the_documented_one():
    ordered = sorted(PEERS[:3])
    word = digest(Domain.DRAW, seed(1), (0).to_bytes(8, "little"))
    ticket = int.from_bytes(word, "little") % 6
    owner = ordered[0] if ticket < 1 else ordered[1] if ticket < 3 else ordered[2]
    weights = dict(zip(ordered, (1, 2, 3), strict=True))
    assert draw_order(seed(1), weights, 1) == (owner,)


@pytest.mark.parametrize("weights", [{}, {PEERS[0]: 0}])
def test_nobody_to_draw_is_an_empty_draw(weights):
    assert draw_order(seed(1), weights, 5) == ()
