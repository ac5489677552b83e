"""Through a proxy: what it is told, what it cannot do, and what is checked all the same."""

import asyncio
import socket
import time

import pytest

from shoal.storage.errors import RefusedError, StorageUnavailableError
from shoal.storage.http import HttpLimits, HttpStore
from shoal.storage.proxy import is_proxy_url, open_tunnel, proxy_address
from shoal.storage.s3 import S3Config, S3Credentials, S3Store
from tests.integration.test_s3_connection import BUCKET, FAST, HOST, certificate
from tests.support.http_proxy import HttpProxy
from tests.support.s3_bad_server import BadServer, Bucket, Exchange

KEY = S3Credentials(access_key="AKIAWRITER", secret_key="canary")  # noqa: S106 - made up
DATA = bytes(range(256)) * 1000


def resolver(*ips: str):
    def getaddrinfo(host: str, port: int, **_: object):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ips]

    return getaddrinfo


def unknown(host: str, port: int, **_: object):
    raise socket.gaierror(f"{host}: nobody knows")


@pytest.mark.parametrize(
    "text",
    ["http://proxy.example:3128", "http://10.0.0.1:8080/", "http://[::1]:1", "http://a:65535"],
)
def test_these_name_a_proxy(text):
    assert is_proxy_url(text)
    host, port = proxy_address(text)
    assert ":" not in host or host == "::1"
    assert 0 < port < 1 << 16


@pytest.mark.parametrize(
    "text",
    [
        "", "proxy:3128", "https://proxy:3128", "http://proxy", "http://proxy:0", "http://:80",
        "http://proxy:65536", "http://user:word@proxy:1", "http://proxy:1/path", "http://p:1 ",
        "socks5://proxy:1080", "http://::1:80",
    ],
)  # fmt: skip
def test_these_do_not(text):
    assert not is_proxy_url(text)
    with pytest.raises(ValueError, match="HOST:PORT expected"):
        proxy_address(text)


def test_an_announced_bucket_is_tunnelled_to_its_checked_address_and_tls_keeps_the_name(tmp_path):
    server_tls, tls = certificate(tmp_path, HOST)
    asked_for: list[str] = []
    server_tls.sni_callback = lambda _, asked, __: asked_for.append(asked)

    async def scenario() -> None:
        async with BadServer(Bucket(objects=dict(BUCKET)), tls=server_tls) as server:
            routes = {"1.1.1.1:443": ("127.0.0.1", server.port)}
            async with HttpProxy(routes) as proxy:
                config = S3Config(endpoint_url=f"https://{HOST}", bucket="bucket", proxy=proxy.url)
                store = S3Store(config, None, limits=FAST, tls=tls, getaddrinfo=resolver("1.1.1.1"))
                assert await store.get("a", max_bytes=5) == b"hello"
                store.close()
                assert proxy.tunnels == ["1.1.1.1:443"]
                assert proxy.num_bytes_down > 0
                assert asked_for == [HOST]
                # What the proxy has seen of it is TLS and nothing else.
                assert server.seen[0].header("host") == HOST

    asyncio.run(scenario())


def test_a_proxy_that_leads_elsewhere_is_found_out(tmp_path):
    server_tls, tls = certificate(tmp_path, "other.example.com")

    async def scenario() -> None:
        async with (
            BadServer(Bucket(objects=dict(BUCKET)), tls=server_tls) as server,
            HttpProxy({"1.1.1.1:443": ("127.0.0.1", server.port)}) as proxy,
        ):
            config = S3Config(endpoint_url=f"https://{HOST}", bucket="bucket", proxy=proxy.url)
            store = S3Store(config, None, limits=FAST, tls=tls, getaddrinfo=resolver("1.1.1.1"))
            with pytest.raises(StorageUnavailableError):
                await store.get("a", max_bytes=5)
            store.close()
            assert proxy.tunnels
            assert server.seen == []

    asyncio.run(scenario())


@pytest.mark.parametrize("ips", [["10.0.0.1"], ["127.0.0.1"], ["1.1.1.1", "169.254.169.254"]])
def test_a_proxy_is_not_asked_for_an_address_that_is_refused(ips):
    async def scenario() -> None:
        async with HttpProxy() as proxy:
            config = S3Config(endpoint_url=f"https://{HOST}", bucket="bucket", proxy=proxy.url)
            store = S3Store(config, None, limits=FAST, getaddrinfo=resolver(*ips))
            with pytest.raises(RefusedError) as caught:
                await store.get("a", max_bytes=5)
            store.close()
            assert caught.value.code == "E_ADDR_NOT_PUBLIC"
            assert proxy.tunnels == []

    asyncio.run(scenario())


def test_ones_own_server_may_have_a_name_that_only_the_proxy_knows():
    async def scenario() -> None:
        async with (
            BadServer(Bucket()) as server,
            HttpProxy({"storage.intern:80": ("127.0.0.1", server.port)}) as proxy,
        ):
            config = S3Config(
                endpoint_url="http://storage.intern",
                bucket="bucket",
                allow_private=True,
                proxy=proxy.url,
            )
            store = S3Store(config, KEY, limits=FAST, getaddrinfo=unknown)
            await store.put("a", DATA)
            assert await store.get("a", max_bytes=len(DATA)) == DATA
            store.close()
            assert set(proxy.tunnels) == {"storage.intern:80"}
            assert proxy.num_bytes_up > len(DATA)
            assert proxy.num_bytes_down > len(DATA)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "refuses a tunnel to 127.0.0.1:9: 403 Forbidden"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nA: b\r\n\r\n", "407 Proxy Authentication"),
        (b"HTTP/1.1 200 Ok\r\n\r\nmore", "sent something behind its answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer as a proxy does"),
        (b"HTTP/1.1 200 Ok\r\n" + b"A: b\r\n" * 4000, "does not answer as a proxy does"),
        (b"HTTP/1.1 200 \x00\xff\r\n\r\n", "does not answer as a proxy does"),
        (b"", "does not answer as a proxy does"),
    ],
)
def test_a_proxy_that_makes_no_tunnel_is_named(answer, words):
    async def scenario() -> None:
        async with HttpProxy(answer=answer) as proxy:
            config = S3Config(
                endpoint_url="http://127.0.0.1:9",
                bucket="bucket",
                allow_loopback=True,
                proxy=proxy.url,
            )
            store = S3Store(config, None, limits=FAST)
            with pytest.raises(StorageUnavailableError, match=words):
                await store.get("a", max_bytes=5)
            store.close()
            assert proxy.tunnels == ["127.0.0.1:9"] * FAST.num_attempts

    asyncio.run(scenario())


def test_a_proxy_that_is_not_there_is_named():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        config = S3Config(
            endpoint_url="http://127.0.0.1:9", bucket="bucket", allow_loopback=True, proxy=url
        )
        store = S3Store(config, None, limits=FAST)
        with pytest.raises(StorageUnavailableError, match=f"the proxy {url} cannot be reached"):
            asyncio.run(store.get("a", max_bytes=5))
        store.close()


def test_a_proxy_that_says_nothing_is_left_at_the_deadline():
    ours, proxys = socket.socketpair()
    with ours, proxys, pytest.raises((StorageUnavailableError, TimeoutError)):
        open_tunnel(ours, "::1", 443, time.monotonic() + 0.05)


def test_an_ipv6_target_is_bracketed():
    ours, proxys = socket.socketpair()
    with ours, proxys:
        proxys.sendall(b"HTTP/1.1 200 Ok\r\n\r\n")
        open_tunnel(ours, "2001:db8::1", 443, time.monotonic() + 5)
        assert proxys.recv(200).startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:")


async def hello(exchange: Exchange) -> None:
    await exchange.answer(200, {}, b"hello")


def test_http_goes_through_the_proxy_of_the_configuration_and_no_other(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario() -> None:
        async with BadServer(hello) as server:
            async with HttpStore(server.url) as direct:
                assert await direct.get("a", max_bytes=5) == b"hello"
            async with HttpProxy() as proxy:
                async with HttpStore(server.url, proxy=proxy.url) as store:
                    assert await store.get("a", max_bytes=5) == b"hello"
                assert proxy.requests == [f"GET {server.url}/objects/a"]
                assert proxy.num_bytes_down >= 5
            assert len(server.seen) == 2

    asyncio.run(scenario())


def test_https_goes_through_a_tunnel():
    async def scenario() -> None:
        async with HttpProxy(answer=b"HTTP/1.1 403 Forbidden\r\n\r\n") as proxy:
            limits = HttpLimits(connect_s=2.0, total_s=5.0)
            async with HttpStore("https://run.example", limits, proxy=proxy.url) as store:
                with pytest.raises(StorageUnavailableError, match="403"):
                    await store.get("a", max_bytes=5)
            assert proxy.tunnels == ["run.example:443"]

    asyncio.run(scenario())
