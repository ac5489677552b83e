"""The proxy that makes links bad is itself as bad as it says, and no worse."""

import asyncio
import time

import pytest

from tests.support.s3_bad_server import BadServer, Exchange
from tests.support.shaping_proxy import Link, ShapingProxy

DATA = bytes(range(256)) * 2000


async def answer(exchange: Exchange) -> None:
    await exchange.answer(200, {}, DATA)


async def fetch(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(len(DATA))
    finally:
        writer.close()


def through(link: Link) -> tuple[list[object], float, ShapingProxy]:
    async def scenario() -> tuple[list[object], float, ShapingProxy]:
        async with (
            BadServer(answer) as server,
            ShapingProxy("127.0.0.1", server.port, link) as proxy,
        ):
            started_at_s = time.monotonic()
            calls = [asyncio.wait_for(fetch(proxy.port), 2.0) for _ in range(2)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            return list(found), time.monotonic() - started_at_s, proxy

    return asyncio.run(scenario())


def test_a_good_link_changes_nothing():
    found, _, proxy = through(Link())
    assert found == [DATA, DATA]
    assert (proxy.num_connections, proxy.num_dropped, proxy.num_stalled) == (2, 0, 0)
    assert proxy.num_bytes_down > 2 * len(DATA)


def test_the_rate_is_shared_by_all_connections():
    found, total_s, _ = through(Link(bytes_per_s=2_000_000))
    assert found == [DATA, DATA]
    assert total_s > 0.5


def test_latency_is_added_both_ways():
    found, total_s, _ = through(Link(latency_s=0.2))
    assert found == [DATA, DATA]
    assert 0.4 < total_s < 1.5


def test_connections_are_dropped_and_counted():
    found, _, proxy = through(Link(drop_after_bytes=100_000, num_drops=1))
    assert DATA in found
    assert any(isinstance(outcome, ConnectionError | EOFError) for outcome in found)
    assert proxy.num_dropped == 1
    _, _, proxy = through(Link(drop_after_bytes=100_000))
    assert proxy.num_dropped == 2


def test_connections_stand_still_and_are_counted():
    found, _, proxy = through(Link(stall_after_bytes=100_000, num_stalls=1))
    assert DATA in found
    assert any(isinstance(outcome, TimeoutError) for outcome in found)
    assert proxy.num_stalled == 1


def test_a_cut_link_lets_nothing_through():
    found, _, proxy = through(Link(is_cut=True))
    assert all(isinstance(outcome, ConnectionError | EOFError) for outcome in found)
    assert (proxy.num_dropped, proxy.num_bytes_down) == (2, 0)


def test_an_upload_can_be_dropped():
    with pytest.raises(ConnectionError):
        asyncio.run(upload())


async def upload() -> None:
    async with (
        BadServer(answer) as server,
        ShapingProxy("127.0.0.1", server.port, Link(drop_up_after_bytes=1000)) as proxy,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"PUT /a HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
        if await reader.read(1) == b"":
            raise ConnectionResetError


def test_a_proxy_can_lead_elsewhere_and_end_what_is_open() -> None:
    asyncio.run(lead_elsewhere())


async def lead_elsewhere() -> None:
    async with BadServer(answer) as server, ShapingProxy("127.0.0.1", 1) as proxy:
        # Nobody listens there: the client is told so at once.
        with pytest.raises((ConnectionError, EOFError)):
            await asyncio.wait_for(fetch(proxy.port), 5.0)
        proxy.lead_to("127.0.0.1", server.port)
        assert await fetch(proxy.port) == DATA
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        await reader.readexactly(1)
        before = proxy.num_open
        proxy.drop_all()
        with pytest.raises((ConnectionError, EOFError)):
            await asyncio.wait_for(reader.readexactly(10 * len(DATA)), 5.0)
        writer.close()
        assert before >= 1
        assert (proxy.num_dropped, proxy.num_open) == (before, 0)
