"""Whatever becomes of a server's addresses: who wins, how soon, and what is left open."""

import errno
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.storage.address_order import AddressOrder
from shoal.storage.dialling import MAX_TRIED, STAGGER_S
from tests.unit.storage.test_dialling import Network

LIMIT_S = 10.0
MILLISECOND = 0.001

# After how many milliseconds, None: never; and with which error, 0: connected.
after_ms = st.none() | st.integers(0, 3000)
fates = st.tuples(after_ms, st.sampled_from([0, errno.ECONNREFUSED, errno.ENETUNREACH]))
addresses = st.sampled_from(
    [f"1.1.1.{n}" for n in range(6)] + [f"2606:4700::{n}" for n in range(6)]
)


@settings(deadline=None)
@given(st.lists(fates, min_size=1, max_size=MAX_TRIED + 4))
def test_no_address_holds_another_up_for_long_and_nothing_stays_open(found):
    network = Network(
        {
            f"1.1.1.{number}": (None if after is None else after / 1000, code)
            for number, (after, code) in enumerate(found)
        }
    )
    tried = list(network.fates)[:MAX_TRIED]
    good = [address for address in tried if network.fates[address][1] == 0]
    answering = [address for address in good if network.fates[address][0] is not None]
    winner = None
    with suppress(OSError):
        winner = network.connect(*network.fates, limit_s=LIMIT_S)
    assert [address for address, _ in network.dialled] == tried[: len(network.dialled)]
    if winner is None:
        assert not answering
        assert network.left_open == []
        assert network.elapsed_s <= LIMIT_S + MILLISECOND
    else:
        assert winner in answering
        latest_s = min(
            tried.index(address) * STAGGER_S + (network.fates[address][0] or 0.0)
            for address in answering
        )
        assert network.elapsed_s <= latest_s + MILLISECOND


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), addresses), max_size=20), st.lists(addresses, max_size=12))
def test_no_history_loses_or_adds_an_address(history, asked):
    order = AddressOrder()
    for has_worked, address in history:
        (order.worked if has_worked else order.failed)(address)
    found = order.ordered(asked)
    assert sorted(found) == sorted(set(asked))
    if history and history[-1][1] in asked:
        has_worked, address = history[-1]
        # What worked last comes first; what failed last does not, unless there is nothing else.
        assert (found[0] == address) == (has_worked or len(found) == 1)
