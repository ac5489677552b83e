"""Addresses, seeds, and what this peer publishes about itself."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.network import publishing, signed_records
from shoal.node.network.addresses import (
    Address,
    parse_address,
    parse_peer,
    to_reach,
    undialled,
)
from shoal.node.network.dht_records import PEER_KIND, record_key
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.messages import DhtPut, Start, Status
from shoal.node.network.publishing import LIFE_ROUNDS, Publisher
from shoal.node.network.reaching import SeedSource, Ways
from shoal.node.network.seeds import SeedKeeper
from shoal.node.network.signed_records import PeerRecord
from shoal.node.network.sockets import MAX_FOLDER_BYTES, sockets_folder
from shoal.protocol.identity import from_seed

ID = "QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK"
OTHER_ID = "QmTxW87qnHFhPpg7PSjrx98HXHK7o4EpboDn3Ux1pC3UyQ"


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/1.2.3.4/tcp/4001",
        "/ip4/1.2.3.4/udp/4001/quic-v1",
        "/ip6/2606:4700::1111/tcp/1",
        f"/dns4/seed.example.org/tcp/443/p2p/{ID}",
        f"/dns6/seed.example.org/udp/443/quic-v1/p2p/{ID}",
    ],
)
def test_addresses_come_back_as_they_were(text: str) -> None:
    assert parse_address(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "/ip4/1.2.3.4",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3/tcp/1",
        "/ip4/01.2.3.4/tcp/1",
        "/ip4/::1/tcp/1",
        "/ip6/1.2.3.4/tcp/1",
        "/ip4/1.2.3.4/udp/1",
        "/ip4/1.2.3.4/udp/1/quic",
        "/unix/tmp/socket",
        "/ip4/1.2.3.4/tcp/1/ws",
        f"/ip4/1.2.3.4/tcp/1/p2p/{ID}/p2p-circuit/p2p/{ID}",
        "/ip4/1.2.3.4/tcp/1/p2p/0OIl" + "a" * 40,
        "/ip4/1.2.3.4/tcp/1\n",
        "/dns4/" + "a" * 300 + "/tcp/1",
    ],
)
def test_no_other_address_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|Octet|Leading|permitted|IPv"):
        parse_address(text)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        parse_address(text)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("host", "is_public"),
    [
        ("ip4/1.1.1.1", True),
        ("ip6/2606:4700::1111", True),
        ("ip4/127.0.0.1", False),
        ("ip4/10.0.0.1", False),
        ("ip4/169.254.169.254", False),
        ("ip4/100.64.0.1", False),
        ("ip4/0.0.0.0", False),
        ("ip4/224.0.0.1", False),
        ("ip6/::1", False),
        ("ip6/fd00::1", False),
        ("ip6/::ffff:127.0.0.1", False),
        ("dns4/localhost", False),
    ],
)
def test_only_public_numbers_are_public(host: str, *, is_public: bool) -> None:
    assert parse_address(f"/{host}/tcp/1").is_public is is_public


def test_a_peers_addresses_have_one_id_and_one_that_may_be_dialled() -> None:
    private, public = f"/ip4/10.0.0.1/tcp/1/p2p/{ID}", f"/ip4/1.1.1.1/tcp/1/p2p/{ID}"
    assert [one.host for one in parse_peer((private, public), allow_private=False)[1]] == [
        "1.1.1.1"
    ]
    assert len(parse_peer((private, public), allow_private=True)[1]) == 2
    with pytest.raises(ValueError, match="E_ADDR_NOT_PUBLIC"):
        parse_peer((private,), allow_private=False)
    for texts in ((), ("/ip4/1.1.1.1/tcp/1",), (public, f"/ip4/1.1.1.1/tcp/1/p2p/{OTHER_ID}")):
        with pytest.raises(ValueError, match="one libp2p id"):
            parse_peer(texts, allow_private=True)


def test_a_peer_that_nobody_can_dial_is_named_by_its_id_alone() -> None:
    private, public = f"/ip4/10.0.0.1/tcp/1/p2p/{ID}", f"/ip4/1.1.1.1/tcp/1/p2p/{ID}"
    bare = undialled(ID)
    assert parse_peer((bare,), allow_private=False) == (ID, ())
    assert parse_peer((bare, private), allow_private=False) == (ID, ())
    assert len(parse_peer((bare, public), allow_private=False)[1]) == 1
    assert to_reach(public, allow_private=False) == public
    assert to_reach(private, allow_private=True) == private
    assert to_reach(private, allow_private=False) == to_reach(bare, allow_private=False) == bare
    for text in ("/p2p/", f"/p2p/{ID}/p2p/{ID}", f"/p2p/{ID}\n", "/ip4/1.1.1.1/tcp/1", "", "x"):
        with pytest.raises(ValueError, match=r"address|id"):
            to_reach(text, allow_private=True)
        with pytest.raises(ValueError, match=r"address|id"):
            parse_peer((text,), allow_private=True)
    with pytest.raises(ValueError, match="one libp2p id"):
        parse_peer((undialled(OTHER_ID), public), allow_private=True)


class FakeHost:
    """A host whose peers are in a set."""

    peer_id = "Qm" + "h" * 44

    def __init__(self, up: set[str]) -> None:
        self.up = up
        self.there: set[str] = set()
        self.dialled: list[str] = []

    async def connected(self) -> tuple[str, ...]:
        return tuple(self.there)

    async def dial(self, libp2p_id: str, addresses: tuple[Address, ...]) -> None:
        self.dialled.append(libp2p_id)
        if libp2p_id not in self.up:
            raise ConnectionRefusedError("nobody there")
        self.there.add(libp2p_id)

    async def join(self, libp2p_id: str) -> bool:
        return libp2p_id in self.there & self.up

    async def disconnect(self, libp2p_id: str) -> None:
        self.there.discard(libp2p_id)


async def listens(_: Address) -> None:
    """A probe that always succeeds."""


async def knows_no_name(name: str) -> list[str]:
    raise OSError(f"{name} is not known")


def keeper_of(
    host: FakeHost,
    file: Path,
    *seeds: str,
    manifest: tuple[str, ...] = (),
    **ways: object,
) -> SeedKeeper:
    """A keeper whose probes succeed and who may dial the addresses of documents."""
    chosen = {"look_up": knows_no_name, "probe": listens, "allow_private": True, **ways}
    sources = {SeedSource.FLAG: seeds, SeedSource.MANIFEST: manifest}
    return SeedKeeper(host, sources, file, Ways(**chosen))  # type: ignore[arg-type] # by name


def seed(number: int) -> str:
    return f"/ip4/192.0.2.{number}/tcp/4001/p2p/Qm{str(number) * 44}"


def id_of(text: str) -> str:
    return text.rsplit("/", maxsplit=1)[-1]


def test_all_seeds_are_tried_and_each_says_what_happened(tmp_path: Path) -> None:
    host = FakeHost({id_of(seed(1))})
    seeds = (seed(1), seed(2), "nonsense", "/ip4/192.0.2.1/tcp/1")
    keeper = keeper_of(host, tmp_path / "peers", *seeds)
    assert asyncio.run(keeper.try_once()) is False
    assert keeper.lines[f"flag {seed(1)}"] == "connected"
    assert keeper.lines[f"flag {seed(2)}"] == "nobody there"
    assert "is not an address" in keeper.lines["flag nonsense"]
    assert "does not end in" in keeper.lines["flag /ip4/192.0.2.1/tcp/1"]
    assert keeper.trouble == ""
    host.up.add(id_of(seed(2)))
    assert asyncio.run(keeper.try_once()) is True
    # The one that was there is not dialled again.
    assert host.dialled == [id_of(seed(1)), id_of(seed(2)), id_of(seed(2))]


def test_no_seed_is_trouble_until_one_answers(tmp_path: Path) -> None:
    host = FakeHost(set())
    keeper = keeper_of(host, tmp_path / "peers", seed(1), seed(2))
    asyncio.run(keeper.try_once())
    assert keeper.trouble == "none of 2 seeds answered, trying again"
    host.up.add(id_of(seed(2)))
    asyncio.run(keeper.try_once())
    assert keeper.trouble == ""


def test_the_first_node_has_no_seeds_and_no_trouble(tmp_path: Path) -> None:
    keeper = keeper_of(FakeHost(set()), tmp_path / "peers")
    assert asyncio.run(keeper.try_once()) is True
    assert keeper.trouble == ""


def test_a_dead_address_is_not_given_to_libp2p(tmp_path: Path) -> None:
    async def probe(address: Address) -> None:
        raise ConnectionRefusedError("refused")

    host = FakeHost({id_of(seed(1))})
    keeper = keeper_of(host, tmp_path / "peers", seed(1), probe=probe)
    asyncio.run(keeper.try_once())
    assert (host.dialled, keeper.lines[f"flag {seed(1)}"]) == ([], "refused")


def test_peers_that_answered_are_found_again_without_seeds(tmp_path: Path) -> None:
    file = tmp_path / "peers"
    first = keeper_of(FakeHost({id_of(seed(1))}), file, seed(1))
    asyncio.run(first.try_once())
    assert json.loads(file.read_text()) == {"peers": [seed(1)]}
    host = FakeHost({id_of(seed(1))})
    asyncio.run(keeper_of(host, file).try_once())
    assert host.there == {id_of(seed(1))}


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'{"peers":[1,{}]}', b"[" * 100_000])
def test_a_damaged_file_of_peers_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "peers"
    file.write_bytes(content)
    assert asyncio.run(keeper_of(FakeHost(set()), file).try_once()) is True


def test_the_own_address_as_a_seed_is_no_peer(tmp_path: Path) -> None:
    host = FakeHost(set())
    own = f"/ip4/192.0.2.1/tcp/1/p2p/{host.peer_id}"
    keeper = keeper_of(host, tmp_path / "peers", own)
    assert asyncio.run(keeper.try_once()) is True
    assert host.dialled == []


def test_sockets_lie_in_a_folder_of_ours_with_a_short_name(tmp_path: Path) -> None:
    short = tmp_path / "n"
    short.mkdir()
    folder = sockets_folder(str(short))
    (folder / "p2pd-left.sock").touch()
    assert list(sockets_folder(str(short)).iterdir()) == []
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    found = sockets_folder(str(deep))
    assert len(str(found)) <= MAX_FOLDER_BYTES
    assert found == sockets_folder(str(deep))
    found.chmod(0o755)
    try:
        with pytest.raises(PermissionError, match="0755"):
            sockets_folder(str(deep))
    finally:
        found.rmdir()


class Dht:
    """What a publisher has put, and what its process says."""

    def __init__(self, *places: str) -> None:
        self.puts: list[DhtPut] = []
        self.failures = 0
        self.status = Status(
            peer_id=ID, process_id=1, p2pd_process_id=2, addresses=places, routing_table_size=1
        )

    async def put(self, request: DhtPut) -> None:
        if self.failures:
            self.failures -= 1
            raise PeerUnavailableError("not now", "")
        self.puts.append(request)

    async def get_status(self) -> Status:
        return self.status


def publisher_of(dht: Dht, clock: Callable[[], float], *, allow_private: bool = False) -> Publisher:
    options = Start(folder="", run_id=bytes(32), round_ms=60_000, allow_private=allow_private)
    who = from_seed(bytes(32))
    return Publisher(options, who, put=dht.put, get_status=dht.get_status, now_s=clock)


async def run_until(publisher: Publisher, condition: Callable[[], bool]) -> None:
    task = asyncio.create_task(publisher.run())
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.001)
    task.cancel()


def records_of(dht: Dht) -> list[PeerRecord]:
    found = [signed_records.read(one.value).statement for one in dht.puts]
    return [one for one in found if isinstance(one, PeerRecord)]


def test_the_peer_record_grows_with_every_start() -> None:
    dht = Dht("/ip4/1.1.1.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/1.1.1.1/tcp/1/ws")
    publisher = publisher_of(dht, lambda: 1000.0)

    async def run() -> None:
        for number in range(1, 4):
            await run_until(publisher, lambda number=number: len(dht.puts) >= number)  # type: ignore[misc] # bound
            publisher.restart()

    asyncio.run(run())
    first, second, *_ = records_of(dht)
    assert first.addresses == ("/ip4/1.1.1.1/tcp/1",)
    assert first.libp2p_id == ID
    assert first.expires_at_s == 1000 + LIFE_ROUNDS * 60
    assert second.sequence > first.sequence
    # A store takes only what lives longer than what it has.
    assert second.expires_at_s > first.expires_at_s
    key = record_key(bytes(32), from_seed(bytes(32)).peer, PEER_KIND)
    assert {one.key for one in dht.puts} == {key}


def test_private_addresses_are_shown_in_local_runs_only() -> None:
    for allow_private in (True, False):
        dht = Dht("/ip4/127.0.0.1/tcp/1")
        publisher = publisher_of(dht, lambda: 1000.0, allow_private=allow_private)
        statement = signed_records.read(publisher._peer_record(dht.status)).statement
        assert isinstance(statement, PeerRecord)
        assert statement.addresses == (("/ip4/127.0.0.1/tcp/1",) if allow_private else ())


def test_other_records_come_back_after_a_restart_while_they_are_valid() -> None:
    dht = Dht()
    now_s = [1000.0]
    publisher = publisher_of(dht, lambda: now_s[0])
    request = DhtPut(key=b"k" * 32, value=b"v", expires_at_s=1050)
    publisher.remember(request)

    async def run() -> None:
        def num_puts() -> int:
            return dht.puts.count(request)

        await run_until(publisher, lambda: num_puts() == 1)
        publisher.restart()
        await run_until(publisher, lambda: num_puts() == 2)
        now_s[0] = 1051.0
        publisher.restart()
        # Its own peer record is put again, the one that has expired is not.
        num_before = len(dht.puts)
        await run_until(publisher, lambda: len(dht.puts) > num_before)
        assert num_puts() == 2

    asyncio.run(run())


def test_publishing_goes_on_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_POLL_S", 0.001)
    dht = Dht("/ip4/1.1.1.1/tcp/1")
    dht.failures = 2
    publisher = publisher_of(dht, lambda: 1000.0)
    asyncio.run(run_until(publisher, lambda: len(dht.puts) == 1))


def test_after_an_hours_sleep_the_record_is_published_at_once() -> None:
    dht = Dht("/ip4/1.1.1.1/tcp/1")
    now_s = [1000.0]
    publisher = publisher_of(dht, lambda: now_s[0])

    async def run() -> None:
        task = asyncio.create_task(publisher.run())
        async with asyncio.timeout(5):
            while not dht.puts:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.001)
            now_s[0] += 3600
            publisher.restart()
            while len(dht.puts) < 2:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(run())
    first, second = records_of(dht)
    assert second.expires_at_s == first.expires_at_s + 3600


def test_after_the_clock_was_set_back_records_live_no_longer_than_others_take() -> None:
    now_s = [10_000.0]
    publisher = publisher_of(Dht(), lambda: now_s[0])
    ahead_s = publisher._next_expiry_s(b"k")
    now_s[0] -= 3600
    assert publisher._next_expiry_s(b"k") == ahead_s - 3600
    # A little back, and it still lives longer than what it replaces.
    now_s[0] -= 10
    assert publisher._next_expiry_s(b"k") == ahead_s - 3600 + 1
