"""What a node leaves in the run's store for others, and what it takes from there."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.network import signed_records
from shoal.node.network.reaching import SeedSource
from shoal.node.network.signed_records import PeerRecord, RecordPointer
from shoal.node.rendezvous import Rendezvous, join_argument, read_seeds, sources_in
from shoal.node.store_keys import StoreKeys
from shoal.protocol.errors import RemoteProtocolError
from shoal.storage.memory import MemoryStore
from tests.support.manifests import VALIDATOR, peer, tiny_manifest

MANIFEST = tiny_manifest()
KEYS = StoreKeys(MANIFEST.run_id)
ID = "QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK"
PLACE = f"/ip4/1.1.1.1/tcp/4001/p2p/{ID}"


def record(who=VALIDATOR, run_id=MANIFEST.run_id, addresses=("/ip4/1.1.1.1/tcp/4001",)):
    statement = PeerRecord(
        run_id=run_id,
        peer_key=who.peer.key,
        sequence=1,
        expires_at_s=1,
        libp2p_id=ID,
        addresses=addresses,
    )
    return signed_records.build(who, statement)


class FakeNetwork:
    """What a rendezvous uses of the network client."""

    def __init__(self, own=None):
        self.own_record = own
        self.seeds = []

    async def add_seeds(self, source, texts):
        self.seeds.append((source, texts))


def meet(network, store, who):
    return Rendezvous(MANIFEST, network, store, who)


def step(rendezvous, num_connected):
    status = SimpleNamespace(num_connected=num_connected, seeds=())
    asyncio.run(rendezvous.step(status))


def stored(store):
    return asyncio.run(store.get(KEYS.seeds(VALIDATOR.peer), max_bytes=1024))


def test_a_validator_writes_its_record_when_its_addresses_are_new():
    store, network = MemoryStore(), FakeNetwork()
    rendezvous = meet(network, store, VALIDATOR.peer)
    step(rendezvous, 1)
    assert asyncio.run(read_seeds(MANIFEST, store)) == ()
    network.own_record = record()
    step(rendezvous, 1)
    assert stored(store) == network.own_record
    assert asyncio.run(read_seeds(MANIFEST, store)) == (PLACE,)
    asyncio.run(store.delete(KEYS.seeds(VALIDATOR.peer)))
    step(rendezvous, 1)
    assert asyncio.run(read_seeds(MANIFEST, store)) == ()
    network.own_record = record(addresses=("/ip4/1.1.1.2/tcp/1",))
    step(rendezvous, 1)
    assert stored(store) == network.own_record


def test_a_peer_writes_nothing_and_reads_again_only_while_it_is_alone():
    store, network = MemoryStore(), FakeNetwork(record(peer(1)))
    asyncio.run(store.put(KEYS.seeds(VALIDATOR.peer), record()))
    rendezvous = meet(network, store, peer(1).peer)
    for num_connected in (3, 3, 0, 1):
        step(rendezvous, num_connected)
    assert network.seeds == [(SeedSource.BUCKET, (PLACE,))] * 2
    keys = asyncio.run(store.list(f"{MANIFEST.run_id.hex()}/")).keys
    assert list(keys) == [KEYS.seeds(VALIDATOR.peer)]


def test_without_a_store_there_is_nothing_to_read():
    network = FakeNetwork(record())
    step(meet(network, None, VALIDATOR.peer), 0)
    assert network.seeds == []


@pytest.mark.parametrize(
    "raw",
    [
        record(peer(1)),
        record(run_id=bytes(32)),
        record()[:-1],
        record()[:50] + b"\0" + record()[51:],
        b"",
        bytes(5000),
        PLACE.encode(),
        signed_records.build(
            VALIDATOR,
            RecordPointer(
                run_id=MANIFEST.run_id,
                peer_key=VALIDATOR.peer.key,
                sequence=1,
                expires_at_s=1,
                round_id=1,
                record_sha256=bytes(32),
                num_bytes=9,
            ),
        ),
    ],
)
def test_what_the_validator_has_not_signed_for_this_run_is_no_seed(raw):
    store = MemoryStore()
    asyncio.run(store.put(KEYS.seeds(VALIDATOR.peer), raw))
    assert asyncio.run(read_seeds(MANIFEST, store)) == ()


@given(st.binary(max_size=300))
def test_any_bytes_are_seeds_or_a_refusal(raw):
    with pytest.raises(RemoteProtocolError):
        sources_in(raw, MANIFEST.run_id, VALIDATOR.peer)


def test_the_line_to_give_to_others_has_the_best_address_and_the_run():
    private = f"/ip4/192.168.1.2/tcp/4001/p2p/{ID}"
    assert join_argument((private, PLACE), MANIFEST) == f"{PLACE}#{MANIFEST.run_id.hex()}"
