"""Where the S3 store's connections go, whatever the resolver and the environment say."""

import asyncio
import datetime as dt
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.storage.dialling import begin_dial
from shoal.storage.errors import RefusedError, StorageUnavailableError
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from tests.support.s3_bad_server import BadServer, Bucket, Exchange, Stored

HOST = "account.storage.example.com"
BUCKET = {"/bucket/a": Stored(b"hello", {})}
FAST = S3Limits(deadline_s=20.0, connect_timeout_s=10.0, first_wait_s=0.01, num_attempts=2)


class Internet:
    """A resolver whose answers change, and a dialler that brings every address to one server."""

    def __init__(self, *ips: str) -> None:
        self._ips = list(ips)
        self.dialled: list[tuple[str, int]] = []
        self.port = 0

    def getaddrinfo(self, host: str, port: int, **_: object):
        assert host in {HOST, f"bucket.{HOST}"}
        ip = self._ips.pop(0) if len(self._ips) > 1 else self._ips[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    def dial(self, address: str, port: int) -> socket.socket:
        self.dialled.append((address, port))
        return begin_dial("127.0.0.1", self.port)

    def store(self, server: BadServer, *, tls=None, credentials=None, **config) -> S3Store:
        self.port = server.port
        return S3Store(
            S3Config(**{"endpoint_url": f"https://{HOST}", "bucket": "bucket", **config}),
            credentials,
            limits=FAST,
            tls=tls,
            getaddrinfo=self.getaddrinfo,
            dial=self.dial,
        )


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's side of TLS for one name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=file)


async def closing(exchange: Exchange) -> None:
    await Bucket(objects=dict(BUCKET))(exchange)
    exchange.close()


def test_a_second_answer_of_the_resolver_leads_nowhere(tmp_path):
    server_tls, tls = certificate(tmp_path, HOST)
    internet = Internet("1.1.1.1", "127.0.0.1")

    async def scenario() -> None:
        async with BadServer(closing, tls=server_tls) as server:
            store = internet.store(server, tls=tls)
            # One look-up for the check and the connection.
            assert await store.get("a", max_bytes=5) == b"hello"
            assert internet.dialled == [("1.1.1.1", 443)]
            # The connection is gone; the new look-up is checked as the first one was.
            with pytest.raises(RefusedError) as caught:
                await store.get("a", max_bytes=5)
            store.close()
            assert caught.value.code == "E_ADDR_NOT_PUBLIC"
            assert internet.dialled == [("1.1.1.1", 443)]
            assert len(server.seen) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("path_style", [True, False])
def test_tls_and_the_host_header_keep_the_name(tmp_path, path_style):
    name = HOST if path_style else f"bucket.{HOST}"
    server_tls, tls = certificate(tmp_path, name)
    asked_for: list[str | None] = []
    server_tls.sni_callback = lambda _, asked, __: asked_for.append(asked)
    internet = Internet("1.1.1.1")

    async def scenario() -> None:
        objects = {"/bucket/a" if path_style else "/a": Stored(b"hello", {})}
        async with BadServer(Bucket(objects=objects), tls=server_tls) as server:
            store = internet.store(server, tls=tls, path_style=path_style)
            assert await store.get("a", max_bytes=5) == b"hello"
            store.close()
            assert server.seen[0].header("host") == name

    asyncio.run(scenario())
    assert asked_for == [name]


def test_a_certificate_of_another_name_is_not_accepted(tmp_path):
    server_tls, tls = certificate(tmp_path, "other.example.com")
    internet = Internet("1.1.1.1")

    async def scenario() -> None:
        async with BadServer(Bucket(), tls=server_tls) as server:
            key = S3Credentials(access_key="AKIA", secret_key="canary")  # noqa: S106 - made up
            for credentials in (None, key):
                store = internet.store(server, tls=tls, credentials=credentials)
                with pytest.raises(StorageUnavailableError):
                    await store.get("a", max_bytes=5)
                store.close()
            assert server.seen == []

    asyncio.run(scenario())


def test_the_store_of_a_local_run_reaches_this_machine_and_no_other():
    async def scenario() -> None:
        async with BadServer(Bucket(objects=dict(BUCKET))) as server:
            url = f"http://{HOST}:{server.port}"
            for ip, allowed in (("127.0.0.1", True), ("10.0.0.1", False)):
                internet = Internet(ip)
                store = internet.store(server, endpoint_url=url, allow_loopback=True)
                if allowed:
                    assert await store.get("a", max_bytes=5) == b"hello"
                else:
                    with pytest.raises(RefusedError):
                        await store.get("a", max_bytes=5)
                    assert internet.dialled == []
                store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://account.storage.example.com", "E_URL_SCHEME"),
        ("file:///etc/passwd", "E_URL_SCHEME"),
        ("https://169.254.169.254", "E_HOST_NOT_ALLOWED"),
        ("https://127.0.0.1", "E_HOST_NOT_ALLOWED"),
        ("https://localhost", "E_HOST_NOT_ALLOWED"),
        ("https://user@example.com", "E_URL_EXTRA"),
        ("https://example.com/path", "E_URL_EXTRA"),
    ],
)
def test_a_public_store_has_a_name_and_tls(url, code):
    with pytest.raises(RefusedError) as caught:
        S3Config(endpoint_url=url, bucket="bucket")
    assert caught.value.code == code


def test_a_writer_knows_its_own_key_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token")
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("AWS_REGION", "mars-north-1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    bucket = Bucket()

    async def scenario() -> None:
        async with BadServer(bucket) as server:
            config = S3Config(endpoint_url=server.url, bucket="bucket", allow_loopback=True)
            key = S3Credentials(access_key="AKIAOWNER", secret_key="secret")  # noqa: S106 - made up
            store = S3Store(config, key, limits=FAST)
            await store.put("a", b"x")
            store.close()
            assert "canary" not in repr(server.seen).lower()
            assert "Credential=AKIAOWNER/" in str(server.seen[0].header("authorization"))
            assert "us-east-1" in str(server.seen[0].header("authorization"))
            assert server.seen[0].header("user-agent") == "shoal"

    asyncio.run(scenario())
