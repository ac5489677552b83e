"""What the network process does about the DHT, over a host in memory."""

import asyncio
from typing import Any

import pytest

from shoal.node.network import dht_desk, messages, signed_records
from shoal.node.network.dht_desk import DhtDesk
from shoal.node.network.dht_records import POINTER_KIND, location, record_key
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.libp2p import FoundRecord
from shoal.node.network.signed_records import RecordPointer
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import from_seed

ME = from_seed(b"\x01" * 32)
RUN_ID = bytes(range(32))
SOURCE = ("/ip4/127.0.0.1/tcp/1/p2p/QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK",)
KEY = record_key(RUN_ID, ME.peer, POINTER_KIND)


class Host:
    """Takes what it is given; one connected peer is no DHT node."""

    def __init__(self) -> None:
        self.stored: dict[bytes, FoundRecord] = {}
        self.given: list[str] = []
        self.joined: list[str] = []
        self.takes = True
        self.num_refreshed = 0

    async def put(self, key: bytes, value: bytes, expires_at_s: float) -> bool:
        self.stored[key] = FoundRecord(value, expires_at_s)
        return self.takes

    async def get(self, key: bytes) -> FoundRecord | None:
        return self.stored.get(key)

    async def dial(self, libp2p_id: str, addresses: Any) -> None:
        self.given.append(f"{libp2p_id} at {len(addresses)}")

    async def give(self, libp2p_id: str, key: bytes, value: bytes, expires_at_s: float) -> bool:
        return self.takes

    async def strangers(self) -> tuple[str, ...]:
        return ("lost", "client")

    async def join(self, libp2p_id: str) -> bool:
        self.joined.append(libp2p_id)
        return libp2p_id == "lost"

    async def refresh(self) -> None:
        self.num_refreshed += 1
        raise OSError("nobody answers")


def desk_of(host: Host) -> DhtDesk:
    options = messages.Start(folder="f", run_id=RUN_ID, round_ms=60_000, allow_private=True)
    desk = DhtDesk(options)
    desk.host = host  # type: ignore[assignment] # the part that is used
    return desk


def pointer(expires_at_s: int) -> bytes:
    return signed_records.build(
        ME,
        RecordPointer(
            run_id=RUN_ID,
            peer_key=ME.peer.key,
            sequence=1,
            expires_at_s=expires_at_s,
            round_id=1,
            record_sha256=bytes(32),
            num_bytes=1,
        ),
    )


def test_records_are_put_found_given_and_their_peers_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr("shoal.node.network.dht_desk.time.time", lambda: 1000.0)
        host = Host()
        desk, value = desk_of(host), pointer(1060)
        put = messages.DhtPut(key=KEY, value=value, expires_at_s=1060)
        assert await desk.do(messages.DhtGet(key=KEY)) == messages.Found()
        assert await desk.do(put) == messages.Done()
        found = await desk.do(messages.DhtGet(key=KEY))
        assert found == messages.Found(value=value, expires_at_s=1060)
        assert await desk.do(messages.AskPeers()) == messages.Peers(keys=ME.peer.key)
        give = messages.DhtGive(addresses=SOURCE, key=KEY, value=value, expires_at_s=1060)
        assert await desk.do(give) == messages.Done()
        assert len(host.given) == 1
        host.takes = False
        for request in (put, give):
            with pytest.raises(PeerUnavailableError):
                await desk.do(request)

    asyncio.run(run())


def test_what_breaks_a_rule_is_not_put_and_counted_when_others_store_it() -> None:
    host = Host()
    desk = desk_of(host)
    value = pointer(2**40)
    with pytest.raises(RemoteProtocolError, match="E_DHT_EXPIRY_FAR"):
        asyncio.run(desk.do(messages.DhtPut(key=KEY, value=value, expires_at_s=2**40)))
    assert host.stored == {}
    assert not desk.may_store(location(KEY), value, 2.0**40)
    assert desk.refused == {"E_DHT_EXPIRY_FAR": 1}


def test_connected_peers_that_the_dht_has_dropped_are_taken_back_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr(dht_desk, "_REJOIN_S", 0.0)
        host = Host()
        working = asyncio.create_task(desk_of(host).refresh_for_ever())
        async with asyncio.timeout(10):
            while host.num_refreshed < 2:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0)
        working.cancel()
        assert host.joined.count("lost") == host.joined.count("client") >= 12

    asyncio.run(run())
