"""The network process's part of a cap: what it serves is paced, records go before payloads."""

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.bandwidth import has_network, make_bandwidth, network_caps
from shoal.node.config import (
    BandwidthConfig,
    NetworkConfig,
    NodeConfig,
    PayloadsConfig,
    StoreConfig,
)
from shoal.node.network import messages, packing
from shoal.node.network.link_share import network_part, num_streams, rate_of
from shoal.node.network.serving import CONTROL_OBJECT_BYTES, ObjectServer
from shoal.node.network.streams import ObjectRequest
from shoal.storage.pacing import MIN_CAP_BYTES_PER_S, RateLimit, reserved_rate
from tests.support.s3_bad_server import until
from tests.support.virtual_time import VirtualLoop, run_virtual
from tests.unit.node import test_network_streams as streams

CAP = 2_000_000.0


def request_of(object_id: bytes, num_bytes: int) -> ObjectRequest:
    return ObjectRequest(run_id=streams.RUN_ID, object_id=object_id, offset=0, num_bytes=num_bytes)


def server_of(folder: Path, sizes: dict[bytes, int], rate: RateLimit | None) -> ObjectServer:
    server = ObjectServer(
        run_id=streams.RUN_ID,
        max_streams=16,
        max_streams_per_peer=16,
        min_bytes_per_s=0.0,
        rate=rate,
    )
    for object_id, num_bytes in sizes.items():
        path = folder / object_id.hex()
        path.write_bytes(bytes(num_bytes))
        server.add(object_id, path, num_bytes)
    return server


async def take(server: ObjectServer, object_id: bytes, num_bytes: int, peer: str) -> int:
    """A receiver that only counts; gives the status."""
    there, here = asyncio.StreamReader(), asyncio.StreamReader()
    there.feed_data(request_of(object_id, num_bytes).pack() + b"\x06")
    there.feed_eof()
    await server.answer(peer, there, streams.Half(here))
    here.feed_eof()
    answer = await here.read()
    return int.from_bytes(answer[8:10], "little")


def test_streams_keep_to_the_cap_and_a_record_overtakes_them(tmp_path: Path) -> None:
    large, small = bytes(31) + b"\x01", bytes(31) + b"\x02"
    size = 600_000

    async def body(loop: VirtualLoop) -> None:
        rate = RateLimit(CAP, now_s=loop.time)
        server = server_of(tmp_path, {large: size, small: 1000}, rate)
        begun_at_s = loop.time()
        bulk = [asyncio.create_task(take(server, large, size, f"p{i}")) for i in range(4)]
        await until(lambda: server.num_bytes_up > 300_000)
        assert await take(server, small, 1000, "q") == 0
        assert not any(task.done() for task in bulk)
        assert await asyncio.gather(*bulk) == [0] * 4
        took_s = loop.time() - begun_at_s
        assert server.num_bytes_up == 4 * size + 1000
        assert server.num_bytes_up <= CAP * took_s + rate.burst_bytes

    run_virtual(body)


def test_without_uploads_records_are_still_given(tmp_path: Path) -> None:
    large, small = bytes(31) + b"\x01", bytes(31) + b"\x02"
    size = CONTROL_OBJECT_BYTES + 1
    server = server_of(tmp_path, {large: size, small: CONTROL_OBJECT_BYTES}, None)

    async def statuses() -> tuple[int, int]:
        return (
            await take(server, large, size, "p"),
            await take(server, small, CONTROL_OBJECT_BYTES, "p"),
        )

    assert asyncio.run(statuses()) == (0, 0)
    server.gives_bulk = False
    assert asyncio.run(statuses()) == (2, 0)
    server.gives_bulk = True
    assert asyncio.run(statuses()) == (0, 0)


def test_the_message_travels() -> None:
    for request in (
        messages.AllowUploads(allowed=False),
        messages.Start(folder="a", run_id=bytes(32), round_ms=1, upload_bytes_per_s=7),
    ):
        assert packing.unpack_request(packing.pack(request)) == request


def config_of(kind: str, up: int, ratio: float = 0.05, *, enabled: bool = False) -> NodeConfig:
    return NodeConfig(
        key_file="k",
        state_dir="/nonexistent",
        store=StoreConfig(path="s"),
        payloads=PayloadsConfig(kind=kind),
        network=NetworkConfig(enabled=enabled),
        bandwidth=BandwidthConfig(
            upload_bytes_per_s=up, download_bytes_per_s=up, control_ratio=ratio
        ),
    )


@given(
    st.integers(MIN_CAP_BYTES_PER_S, 1 << 40),
    st.floats(0.0, 0.5),
    st.sampled_from(["store", "p2p"]),
    st.booleans(),
)
def test_both_processes_together_never_have_more_than_the_cap(
    cap: int, ratio: float, kind: str, enabled: bool
) -> None:
    config = config_of(kind, cap, ratio, enabled=enabled)
    bandwidth, _ = make_bandwidth(config, time.time)
    for direction, part in zip(("up", "down"), network_caps(config), strict=True):
        rate = bandwidth.rate(direction)  # type: ignore[arg-type] # a literal
        assert rate is not None
        assert rate.bytes_per_s + part == pytest.approx(cap)
        assert rate.reserved_bytes_per_s == reserved_rate(cap, ratio)
        assert (part > 0) == has_network(config)
        # The process can make a bucket of its part.
        assert rate_of(part) is None or rate_of(part).bytes_per_s == part  # type: ignore[union-attr] # as said


def test_without_a_cap_there_is_none() -> None:
    bandwidth, _ = make_bandwidth(config_of("p2p", 0), time.time)
    assert (bandwidth.up, bandwidth.down) == (None, None)
    assert network_caps(config_of("p2p", 0)) == (0, 0)
    assert network_part(0, 0.05, serves=True) == 0
    assert rate_of(0) is None


def test_no_more_streams_than_the_cap_feeds() -> None:
    assert num_streams(None, 16_384, 16) == 16
    assert num_streams(rate_of(10_000_000), 16_384, 16) == 16
    assert num_streams(rate_of(200_000), 16_384, 16) == 3
    assert num_streams(rate_of(20_000), 16_384, 16) == 1
