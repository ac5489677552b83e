"""Names behind seeds, sources of seeds, dialling back, and noticing that the machine slept."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.network.addresses import Address, best_place, parse_address
from shoal.node.network.dial_back import (
    ANSWER_BYTES,
    MAX_KNOWN_PEERS,
    MAX_OPEN,
    MAX_OPEN_PER_PEER,
    MIN_PAUSE_S,
    PEER_PAUSE_S,
    REQUEST_BYTES,
    DialBackServer,
    DialBackStatus,
    Port,
    ask,
    pack_answer,
    pack_request,
    parse_request,
    ports_of,
)
from shoal.node.network.dnsaddr import (
    MAX_FOUND,
    MAX_LOOKUPS,
    is_dnsaddr,
    read_answer,
    resolve_dnsaddr,
    resolve_host,
)
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.reaching import Seed, SeedSource, Ways, reach
from shoal.node.network.streams import Limits, Pace
from shoal.node.network.waking import GapDetector
from shoal.protocol.seed_addresses import is_seed
from tests.support.fake_clock import FakeClock
from tests.unit.node.test_network_seeds import (
    ID,
    OTHER_ID,
    FakeHost,
    id_of,
    keeper_of,
    listens,
    seed,
)

PUBLIC = f"/ip4/1.1.1.1/tcp/4001/p2p/{ID}"


class Zone:
    """TXT records by name; counts the questions."""

    def __init__(self, **records: list[str]) -> None:
        self.records = records
        self.asked: list[str] = []

    async def look_up(self, name: str) -> list[str]:
        self.asked.append(name)
        found = self.records.get(name.removeprefix("_dnsaddr."))
        if found is None:
            raise OSError(f"{name} is not known")
        return found


def resolved(zone: Zone, text: str) -> list[str]:
    return [one.text for one in asyncio.run(resolve_dnsaddr(text, zone.look_up))]


# Names


def test_a_name_gives_the_addresses_that_have_ids_and_nothing_else() -> None:
    zone = Zone(
        run=[
            f"dnsaddr={PUBLIC}",
            "v=spf1 -all",
            "dnsaddr=/ip4/1.1.1.1/tcp/1",
            PUBLIC,
            f"dnsaddr=/ip4/1.1.1.1/tcp/1/ws/p2p/{ID}",
            f"dnsaddr={PUBLIC}",
            f"dnsaddr=/ip6/2606:4700::1/tcp/1/p2p/{OTHER_ID}",
        ]
    )
    assert resolved(zone, "/dnsaddr/run") == [PUBLIC, f"/ip6/2606:4700::1/tcp/1/p2p/{OTHER_ID}"]
    assert resolved(zone, f"/dnsaddr/run/p2p/{ID}") == [PUBLIC]
    assert zone.asked == ["_dnsaddr.run"] * 2


def test_names_lead_to_names_but_not_far_and_not_round() -> None:
    zone = Zone(
        a=["dnsaddr=/dnsaddr/b", "dnsaddr=/dnsaddr/gone", "dnsaddr=/dnsaddr/a"],
        b=["dnsaddr=/dnsaddr/c", "dnsaddr=/dnsaddr/a"],
        c=[f"dnsaddr={PUBLIC}", "dnsaddr=/dnsaddr/d"],
        d=[f"dnsaddr=/ip4/1.1.1.2/tcp/1/p2p/{ID}"],
    )
    assert resolved(zone, "/dnsaddr/a") == [PUBLIC]
    assert zone.asked == [f"_dnsaddr.{name}" for name in ("a", "b", "gone", "c")]


def test_an_id_holds_for_the_names_behind_the_name() -> None:
    other = f"/ip4/1.1.1.1/tcp/4001/p2p/{OTHER_ID}"
    zone = Zone(a=["dnsaddr=/dnsaddr/b", f"dnsaddr=/dnsaddr/c/p2p/{OTHER_ID}"], b=[], c=[])
    zone.records["b"] = [f"dnsaddr={PUBLIC}", f"dnsaddr={other}"]
    zone.records["c"] = [f"dnsaddr={other}"]
    assert resolved(zone, f"/dnsaddr/a/p2p/{ID}") == [PUBLIC]
    assert "_dnsaddr.c" not in zone.asked


def test_a_large_answer_is_cut_and_a_maze_is_left() -> None:
    many = [f"dnsaddr=/ip4/1.1.1.1/tcp/{port}/p2p/{ID}" for port in range(1, 200)]
    assert len(resolved(Zone(run=many), "/dnsaddr/run")) == MAX_FOUND
    maze = Zone(
        **{f"n{i}": [f"dnsaddr=/dnsaddr/n{j}" for j in range(i, i + 60)] for i in range(100)}
    )
    with pytest.raises(OSError, match="no TXT record"):
        resolved(maze, "/dnsaddr/n0")
    assert len(maze.asked) == MAX_LOOKUPS


def test_a_name_that_nobody_knows_says_so() -> None:
    with pytest.raises(OSError, match="is not known"):
        resolved(Zone(), "/dnsaddr/run")


@given(st.lists(st.text(max_size=80) | st.from_regex(r"dnsaddr=/(ip4|dnsaddr)/.*", fullmatch=True)))
def test_any_answer_gives_addresses_with_ids_or_names(texts: list[str]) -> None:
    addresses, names = read_answer(texts, "")
    assert all(one.libp2p_id for one in addresses)
    assert all(is_dnsaddr(name) for name in names)
    assert len(addresses) <= MAX_FOUND
    assert len(names) <= MAX_LOOKUPS


@given(
    st.from_regex(
        r"/(ip4|ip6|dns4|dns6|dnsaddr)/[0-9a-z.:-]{1,20}(/(tcp/[0-9]{1,5}|udp/[0-9]{1,5}/quic-v1))?"
        r"(/p2p/[1-9A-HJ-NP-Za-km-z]{40,50})?",
        fullmatch=True,
    )
)
def test_every_seed_that_a_manifest_may_name_can_be_used(text: str) -> None:
    if is_seed(text) and not is_dnsaddr(text):
        assert parse_address(text).text == text
        assert parse_address(text).libp2p_id


def test_host_names_become_numbers_of_their_family() -> None:
    [found] = asyncio.run(resolve_host(parse_address(f"/dns4/localhost/tcp/7/p2p/{ID}")))
    assert found.text == f"/ip4/127.0.0.1/tcp/7/p2p/{ID}"
    number = parse_address(PUBLIC)
    assert asyncio.run(resolve_host(number)) == (number,)


def test_the_best_place_is_a_public_one_then_a_name() -> None:
    private, name, public = "/ip4/10.0.0.1/tcp/1", "/dns4/a/tcp/1", "/ip6/2606:4700::1/tcp/1"
    assert best_place((private, name, public)) == public
    assert best_place((private, name)) == name
    assert best_place(("nonsense", private)) == private
    assert best_place(()) == ""


# Sources


async def to_loopback(address: Address) -> tuple[Address, ...]:
    host = "127.0.0.1" if address.is_name else address.host
    return (Address(family="ip4", host=host, transport="tcp", port=1, libp2p_id=ID),)


def test_strangers_name_public_addresses_only_also_behind_names() -> None:
    ways = Ways(look_up=Zone().look_up, probe=listens, resolve=to_loopback)
    for text in (f"/ip4/10.0.0.1/tcp/1/p2p/{ID}", f"/dns4/inside.example/tcp/1/p2p/{ID}"):
        for source in (SeedSource.MANIFEST, SeedSource.DNS, SeedSource.BUCKET):
            with pytest.raises(OSError, match="E_ADDR_NOT_PUBLIC"):
                asyncio.run(reach(Seed(source, parse_address(text)), ways))
        for source in (SeedSource.FLAG, SeedSource.CACHE):
            assert asyncio.run(reach(Seed(source, parse_address(text)), ways))


def test_every_source_is_tried_and_named(tmp_path: Path) -> None:
    host = FakeHost({id_of(seed(number)) for number in range(1, 5)})
    zone = Zone(run=[f"dnsaddr={seed(3)}"])
    keeper = keeper_of(
        host,
        tmp_path / "peers",
        seed(1),
        "/dnsaddr/run",
        manifest=(seed(1), seed(2)),
        look_up=zone.look_up,
    )
    keeper.add(SeedSource.BUCKET, (seed(4),))
    assert asyncio.run(keeper.try_once()) is True
    assert keeper.lines == {
        f"flag {seed(1)}": "connected",
        f"dns {seed(3)}": "connected",
        f"manifest {seed(2)}": "connected",
        f"bucket {seed(4)}": "connected",
    }
    # Later starts know them without any source, and say so.
    host = FakeHost(host.up)
    later = keeper_of(host, tmp_path / "peers")
    asyncio.run(later.try_once())
    assert set(later.lines) == {f"cache {seed(number)}" for number in range(1, 5)}


def test_a_name_that_does_not_answer_is_trouble_and_asked_again(tmp_path: Path) -> None:
    zone = Zone()
    host = FakeHost({id_of(seed(1))})
    keeper = keeper_of(host, tmp_path / "peers", "/dnsaddr/run", look_up=zone.look_up)
    assert asyncio.run(keeper.try_once()) is False
    assert keeper.lines == {"flag /dnsaddr/run": "_dnsaddr.run is not known"}
    assert keeper.trouble == "none of 1 seeds answered, trying again"
    zone.records["run"] = [f"dnsaddr={seed(1)}"]
    assert asyncio.run(keeper.try_once()) is True
    assert (keeper.lines, keeper.trouble) == ({f"dns {seed(1)}": "connected"}, "")


def test_nothing_is_looked_up_without_such_a_seed(tmp_path: Path) -> None:
    zone = Zone()
    keeper = keeper_of(FakeHost(set()), tmp_path / "peers", seed(1), look_up=zone.look_up)
    asyncio.run(keeper.try_once())
    assert zone.asked == []


# Sleeping


@pytest.mark.parametrize(
    ("later_s", "is_gap"),
    [(1.0, False), (0.0, False), (9.0, False), (3600.0, True), (-3600.0, True), (20.0, True)],
)
def test_a_gap_is_noticed_in_both_directions(later_s: float, *, is_gap: bool) -> None:
    detector = GapDetector()
    assert not detector.look(5000.0)
    assert detector.look(5000.0 + later_s) is is_gap
    assert not detector.look(5000.0 + later_s + 1.0)


def test_after_a_sleep_dead_connections_are_closed_and_dialled_at_once(tmp_path: Path) -> None:
    host = FakeHost({id_of(seed(1)), id_of(seed(2))})
    keeper = keeper_of(host, tmp_path / "peers", seed(1), seed(2))

    async def run() -> None:
        task = asyncio.create_task(keeper.run())
        await until(lambda: len(host.there) == 2)
        # Seed 2 went away during the sleep; p2pd has not noticed yet.
        host.up.discard(id_of(seed(2)))
        host.dialled.clear()
        keeper.wake()
        await until(lambda: host.dialled == [id_of(seed(2))])
        assert host.there == {id_of(seed(1))}
        host.up.add(id_of(seed(2)))
        keeper.wake()
        await until(lambda: len(host.there) == 2)
        task.cancel()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not within a thousand turns of the loop")


# Dialling back


class Pipe:
    """One direction of a stream, in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    async def read(self, n: int = -1) -> bytes:
        found = bytes(self.data[:n])
        del self.data[:n]
        return found

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """Nothing waits."""


class Dialler:
    """Where peers are seen, and whom it could dial."""

    def __init__(self, *seen: str) -> None:
        self.seen = seen
        self.reachable: set[str] = set()
        self.dialled: list[tuple[str, tuple[str, ...]]] = []

    async def observed(self, peer: str) -> tuple[str, ...]:
        return self.seen

    async def dial(self, peer: str, addresses: tuple[Address, ...]) -> None:
        self.dialled.append((peer, tuple(one.place for one in addresses)))
        if peer not in self.reachable:
            raise OSError("nobody there")


def server_of(dialler: Dialler, clock: FakeClock, *, allow_private: bool = False) -> DialBackServer:
    return DialBackServer(
        observed=dialler.observed,
        dial=dialler.dial,
        allow_private=allow_private,
        now_s=clock.now_s,
    )


def answer_of(server: DialBackServer, peer: str, request: bytes) -> tuple[DialBackStatus, str]:
    async def run() -> tuple[DialBackStatus, str]:
        answered, unused = Pipe(), Pipe()
        await server.answer(peer, Pipe(request), answered)
        pace = Pace(Limits(timeout_s=1.0, min_bytes_per_s=0.0), lambda: 0.0)
        return await ask(answered, unused, (Port("tcp", 1),), pace)

    return asyncio.run(run())


SEEN = "/ip4/1.1.1.1/tcp/55555"
REQUEST = pack_request((Port("tcp", 4001), Port("udp", 4002)))


def test_only_the_asker_is_dialled_where_it_was_seen() -> None:
    dialler, clock = Dialler(SEEN), FakeClock()
    server = server_of(dialler, clock)
    assert answer_of(server, ID, REQUEST) == (DialBackStatus.NOT_REACHED, "/ip4/1.1.1.1")
    assert dialler.dialled == [(ID, ("/ip4/1.1.1.1/tcp/4001", "/ip4/1.1.1.1/udp/4002/quic-v1"))]
    dialler.reachable.add(ID)
    clock.advance(PEER_PAUSE_S)
    assert answer_of(server, ID, REQUEST) == (DialBackStatus.REACHED, "/ip4/1.1.1.1")


def test_dials_are_rare_for_one_peer_and_for_all() -> None:
    dialler, clock = Dialler(SEEN), FakeClock()
    server = server_of(dialler, clock)
    answer_of(server, ID, REQUEST)
    assert answer_of(server, OTHER_ID, REQUEST)[0] is DialBackStatus.BUSY
    clock.advance(MIN_PAUSE_S)
    assert answer_of(server, ID, REQUEST)[0] is DialBackStatus.BUSY
    assert answer_of(server, OTHER_ID, REQUEST)[0] is DialBackStatus.NOT_REACHED
    clock.advance(PEER_PAUSE_S)
    assert answer_of(server, ID, REQUEST)[0] is DialBackStatus.NOT_REACHED
    assert len(dialler.dialled) == 3


def test_a_flood_of_askers_gets_one_dial_in_a_while_and_little_memory() -> None:
    dialler, clock = Dialler(SEEN), FakeClock()
    server = server_of(dialler, clock)
    for number in range(MAX_KNOWN_PEERS + 200):
        answer_of(server, f"peer-{number}", REQUEST)
        clock.advance(MIN_PAUSE_S / 2)
    assert len(dialler.dialled) <= (MAX_KNOWN_PEERS + 200) // 2 + 1
    assert len(server._peer_free_at_s) <= MAX_KNOWN_PEERS


def test_two_at_once_are_one_too_many() -> None:
    dialler = Dialler(SEEN)
    going = asyncio.Event()

    async def dial(peer: str, addresses: tuple[Address, ...]) -> None:
        going.set()
        await asyncio.sleep(3600)

    server = DialBackServer(
        observed=dialler.observed, dial=dial, allow_private=False, now_s=FakeClock().now_s
    )

    async def run() -> bytes:
        first = asyncio.create_task(server.answer(ID, Pipe(REQUEST), Pipe()))
        await going.wait()
        second = Pipe()
        await server.answer(OTHER_ID, Pipe(REQUEST), second)
        first.cancel()
        return bytes(second.data)

    assert asyncio.run(run()) == pack_answer(DialBackStatus.BUSY, "/ip4/1.1.1.1")


def test_streams_that_ask_for_nothing_are_few_for_one_peer_and_for_all() -> None:
    server = server_of(Dialler(SEEN), FakeClock())

    async def num_held(peers: list[str]) -> int:
        held = [
            asyncio.create_task(server.answer(peer, asyncio.StreamReader(), Pipe()))
            for peer in peers
        ]
        await asyncio.sleep(0)
        num = sum(not task.done() for task in held)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        return num

    assert asyncio.run(num_held([ID] * 100)) == MAX_OPEN_PER_PEER
    assert asyncio.run(num_held([str(number) for number in range(100)])) == MAX_OPEN
    # All of them have left room again.
    assert answer_of(server, OTHER_ID, REQUEST)[0] is DialBackStatus.NOT_REACHED


@pytest.mark.parametrize(
    "seen",
    [
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/192.168.1.9/tcp/1",
        "/ip6/::1/tcp/1",
        "/ip6/::ffff:10.0.0.1/tcp/1",
        f"/ip4/1.1.1.1/tcp/1/p2p/{ID}/p2p-circuit",
        "/dns4/inside.example/tcp/1",
        "nonsense",
    ],
)
def test_what_is_not_public_or_comes_through_a_relay_is_never_dialled(seen: str) -> None:
    dialler = Dialler(seen)
    status, _ = answer_of(server_of(dialler, FakeClock()), ID, REQUEST)
    assert (status, dialler.dialled) == (DialBackStatus.NOT_ALLOWED, [])


def test_a_local_run_dials_its_own_machine() -> None:
    dialler = Dialler("/ip6/::1/tcp/9")
    server = server_of(dialler, FakeClock(), allow_private=True)
    assert answer_of(server, ID, REQUEST) == (DialBackStatus.NOT_REACHED, "/ip6/::1")


@given(st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES))
def test_any_request_names_one_to_four_ports_or_nothing(raw: bytes) -> None:
    ports = parse_request(raw)
    assert ports is None or pack_request(ports) == raw


@given(
    st.lists(
        st.builds(Port, st.sampled_from(["tcp", "udp"]), st.integers(1, 65535)),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
def test_requests_come_back_as_they_were(ports: list[Port]) -> None:
    assert parse_request(pack_request(tuple(ports))) == tuple(ports)


def test_the_request_has_these_bytes() -> None:
    assert (
        b"SHOALDIA\x01\x00\x02\x00" + b"\x01\x00\xa1\x0f" + b"\x02\x00\xa2\x0f" + bytes(8)
    ) == REQUEST
    assert pack_answer(DialBackStatus.REACHED, "/ip4/1.1.1.1") == (
        b"SHOALDBK\x00\x00\x0c\x00" + b"/ip4/1.1.1.1" + bytes(52)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: b"X" + raw[1:],
        lambda raw: raw[:8] + b"\x02" + raw[9:],
        lambda raw: raw[:10] + b"\x00" + raw[11:],
        lambda raw: raw[:10] + b"\x05" + raw[11:],
        lambda raw: raw[:10] + b"\x01" + raw[11:],
        lambda raw: raw[:12] + b"\x03" + raw[13:],
        lambda raw: raw[:14] + b"\x00\x00" + raw[16:],
        lambda raw: raw[:-1] + b"\x01",
    ],
)
def test_another_request_is_refused_without_a_dial(change: Callable[[bytes], bytes]) -> None:
    dialler = Dialler(SEEN)
    status, _ = answer_of(server_of(dialler, FakeClock()), ID, change(REQUEST))
    assert (status, dialler.dialled) == (DialBackStatus.BAD_REQUEST, [])


@given(st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES) | st.binary(max_size=20))
def test_any_answer_is_a_status_or_a_peer_that_does_not_count(raw: bytes) -> None:
    pace = Pace(Limits(timeout_s=1.0, min_bytes_per_s=0.0), lambda: 0.0)

    async def run() -> None:
        try:
            status, seen = await ask(Pipe(raw), Pipe(), (Port("tcp", 1),), pace)
        except PeerUnavailableError:
            return
        assert pack_answer(status, seen) == raw

    asyncio.run(run())


def test_a_stream_that_ends_early_costs_itself_only() -> None:
    server = server_of(Dialler(SEEN), FakeClock())
    awaitable: Awaitable[None] = server.answer(ID, Pipe(REQUEST[:5]), Pipe())
    with pytest.raises(PeerUnavailableError):
        asyncio.run(_await(awaitable))


async def _await(awaitable: Awaitable[None]) -> None:
    await awaitable


def test_ports_are_those_of_the_addresses() -> None:
    texts = ("/ip4/10.0.0.1/tcp/5", "/ip6/::1/udp/6/quic-v1", "nonsense", "/ip4/127.0.0.1/tcp/5")
    assert ports_of(texts) == (Port("tcp", 5), Port("udp", 6))
    assert [port.text for port in ports_of(texts)] == ["tcp/5", "quic/6"]
    assert ports_of(("/ip4/0.0.0.0/tcp/0",)) == ()
