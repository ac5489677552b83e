"""Which servers may be connected to when somebody else names them."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.storage.endpoints import (
    EndpointTemplate,
    check_address,
    check_hostname,
    check_url,
    endpoint_for,
)
from shoal.storage.errors import RefusedError, StorageUnavailableError
from shoal.storage.resolving import resolve

TEMPLATES = {
    "r2": EndpointTemplate(url="https://{account}.r2.cloudflarestorage.com"),
    "b2": EndpointTemplate(url="https://s3.us-west-004.backblazeb2.com"),
    "local": EndpointTemplate(url="http://127.0.0.1:{port}", port=8333, allow_loopback=True),
    "plain": EndpointTemplate(url="http://{account}.example.com"),
    "odd-port": EndpointTemplate(url="https://{account}.example.com:8443"),
    "bare": EndpointTemplate(url="https://{account}"),
    "path": EndpointTemplate(url="https://example.com/{account}"),
    "file": EndpointTemplate(url="file:///etc/passwd"),
    "metadata": EndpointTemplate(url="https://169.254.169.254"),
    "user": EndpointTemplate(url="https://me@example.com"),
}


def code_of(call, *arguments, **options) -> str:
    with pytest.raises(RefusedError) as caught:
        call(*arguments, **options)
    assert str(caught.value).isascii()
    return caught.value.code


@pytest.mark.parametrize(
    ("provider", "account", "expected"),
    [
        (
            "r2",
            "0123456789abcdef" * 2,
            f"https://{'0123456789abcdef' * 2}.r2.cloudflarestorage.com",
        ),
        ("b2", "", "https://s3.us-west-004.backblazeb2.com"),
        ("local", "", "http://127.0.0.1:8333"),
    ],
)
def test_an_endpoint_is_made_from_the_manifests_template(provider, account, expected):
    assert endpoint_for(provider, account, "my-bucket", TEMPLATES) == expected


@pytest.mark.parametrize(
    ("provider", "account", "bucket"),
    [
        ("unknown", "a", "bucket"),
        ("", "a", "bucket"),
        ("R2", "a", "bucket"),
        ("r2\n", "a", "bucket"),
        ("r2", "", "bucket"),
        ("r2", "169.254.169.254/aaaaaaaaaaaaaaaa", "bucket"),
        ("r2", "a.evil.com/", "bucket"),
        ("r2", "evil.com#", "bucket"),
        ("r2", "evil.com?", "bucket"),
        ("r2", "user@evil", "bucket"),
        ("r2", "a\n", "bucket"),
        ("r2", "-a", "bucket"),
        ("r2", "a-", "bucket"),
        ("r2", "A", "bucket"),
        ("r2", "\uff41", "bucket"),
        ("r2", "\u0663", "bucket"),
        ("r2", "{port}", "bucket"),
        ("r2", "a" * 64, "bucket"),
        ("b2", "an-account", "bucket"),
        ("r2", "a", ""),
        ("r2", "a", "ab"),
        ("r2", "a", "a" * 64),
        ("r2", "a", "../other"),
        ("r2", "a", "my.bucket"),
        ("r2", "a", "my_bucket"),
        ("r2", "a", "Bucket"),
        ("r2", "a", "bucket/key"),
        ("r2", "a", "bucket\n"),
        ("r2", "a", "-bucket"),
        ("r2", "a", "bucket--x-s3"),
        ("bare", "localhost", "bucket"),
        ("bare", "2852039166", "bucket"),
        ("bare", "0xa9fea9fe", "bucket"),
        ("metadata", "", "bucket"),
    ],
)
def test_what_could_change_the_host_is_refused(provider, account, bucket):
    assert code_of(endpoint_for, provider, account, bucket, TEMPLATES) == "E_HOST_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("provider", "account", "code"),
    [
        ("plain", "a", "E_URL_SCHEME"),
        ("file", "", "E_URL_SCHEME"),
        ("odd-port", "a", "E_URL_EXTRA"),
        ("path", "a", "E_URL_EXTRA"),
        ("user", "", "E_URL_EXTRA"),
    ],
)
def test_a_template_of_a_public_run_is_https_and_a_host(provider, account, code):
    assert code_of(endpoint_for, provider, account, "bucket", TEMPLATES) == code


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", "E_URL_SCHEME"),
        ("http://example.com", "E_URL_SCHEME"),
        ("HTTPS://example.com", "E_URL_SCHEME"),
        ("ftp://example.com", "E_URL_SCHEME"),
        ("//example.com", "E_URL_SCHEME"),
        ("example.com", "E_URL_SCHEME"),
        ("", "E_URL_SCHEME"),
        (" https://example.com", "E_URL_SCHEME"),
        ("https://", "E_URL_EXTRA"),
        ("https://user@example.com", "E_URL_EXTRA"),
        ("https://user:pw@example.com", "E_URL_EXTRA"),
        ("https://example.com/", "E_URL_EXTRA"),
        ("https://example.com/path", "E_URL_EXTRA"),
        ("https://example.com?x", "E_URL_EXTRA"),
        ("https://example.com#x", "E_URL_EXTRA"),
        ("https://example.com\\@evil.com", "E_URL_EXTRA"),
        ("https://exa mple.com", "E_URL_EXTRA"),
        ("https://example.com\n", "E_URL_EXTRA"),
        ("https://example.com%2f", "E_URL_EXTRA"),
        ("https://\uff45xample.com", "E_URL_EXTRA"),
        ("https://example.com:80", "E_URL_EXTRA"),
        ("https://example.com:", "E_URL_EXTRA"),
        ("https://example.com:0443", "E_URL_EXTRA"),
        ("https://example.com:99999", "E_URL_EXTRA"),
        ("https://example.com:44\u0663", "E_URL_EXTRA"),
        ("https://[fe80::1%25eth0]", "E_URL_EXTRA"),
    ],
)
def test_a_url_is_a_scheme_and_a_host_and_nothing_else(url, code):
    assert code_of(check_url, url, allow_http=False, allow_port=False) == code


def test_a_local_run_may_use_http_and_another_port():
    check_url("http://127.0.0.1:8333", allow_http=True, allow_port=True)
    check_url("http://[::1]:8333", allow_http=True, allow_port=True)
    check_url("https://example.com:443", allow_http=False, allow_port=False)
    for url in ("http://127.0.0.1:0", "http://127.0.0.1:65536", "http://127.0.0.1:8333/"):
        assert code_of(check_url, url, allow_http=True, allow_port=True) == "E_URL_EXTRA"


@pytest.mark.parametrize(
    "host",
    [
        "",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "0x7f.1",
        "0251.0376.0251.0376",
        "127.1",
        "0",
        "1.2.3.4.5",
        "a.0x7f",
        "a.1",
        "localhost",
        "example.com.",
        ".example.com",
        "a..b",
        "a_b.com",
        "Example.com",
        "ex\u00e4mple.com",
        "-a.com",
        "a-.com",
        "a" * 64 + ".com",
        "a." * 127 + "com",
        "::1",
        "[::1]",
        "fe80::1%eth0",
    ],
)
def test_a_host_in_the_clothes_of_an_address_is_refused(host):
    assert code_of(check_hostname, host) == "E_HOST_NOT_ALLOWED"


@pytest.mark.parametrize("host", ["example.com", "a.b.c", "0a.com", "xn--exmple-cua.com", "a.x1"])
def test_full_names_pass(host):
    check_hostname(host)


@pytest.mark.parametrize(
    "ip",
    [
        "127.0.0.1",
        "127.255.255.254",
        "::1",
        "0.0.0.0",  # noqa: S104 - refused
        "0.1.2.3",
        "::",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.127.255.255",
        "169.254.169.254",
        "192.0.0.8",
        "192.0.0.170",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "2606:4700::5efe:10.0.0.1",  # ISATAP
        "2606:4700::200:5efe:8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:0:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:0:4136:e378::1",
        "2001:10::1",
        "2001:db8::1",
        "2002:a9fe:a9fe::1",
        "2002:808:808::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "2606:4700::1%eth0",
        "2852039166",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "",
        "example.com",
    ],
)
def test_an_address_that_is_not_public_is_refused(ip):
    assert code_of(check_address, ip, allow_loopback=False) == "E_ADDR_NOT_PUBLIC"


@pytest.mark.parametrize("ip", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450::1"])
def test_public_addresses_pass(ip):
    check_address(ip, allow_loopback=False)


def test_a_local_run_allows_this_machine_and_nothing_more():
    for ip in ("127.0.0.1", "127.9.9.9", "::1"):
        check_address(ip, allow_loopback=True)
    for ip in ("10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "0.1.2.3"):
        assert code_of(check_address, ip, allow_loopback=True) == "E_ADDR_NOT_PUBLIC"


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_ipv4_address_passes_in_the_clothes_of_an_ipv6_one(number):
    for base in ("::", "::ffff:0:0", "64:ff9b::"):
        value = int.from_bytes(socket.inet_pton(socket.AF_INET6, base)) + number
        text = socket.inet_ntop(socket.AF_INET6, value.to_bytes(16))
        assert code_of(check_address, text, allow_loopback=False) == "E_ADDR_NOT_PUBLIC"


def answers(*ips: str):
    calls: list[str] = []

    def getaddrinfo(host, port, **_):
        calls.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ips]

    return getaddrinfo, calls


def test_a_name_is_resolved_once_and_the_checked_addresses_returned():
    getaddrinfo, calls = answers("1.1.1.1", "2606:4700::1111", "8.8.8.8", "1.1.1.1")
    found = resolve("example.com", 443, allow_loopback=False, getaddrinfo=getaddrinfo)
    assert (found, calls) == (("1.1.1.1", "2606:4700::1111", "8.8.8.8"), ["example.com"])


@pytest.mark.parametrize("ips", [("127.0.0.1",), ("1.1.1.1", "10.0.0.1"), ("1.1.1.1", "::1")])
def test_one_address_that_is_not_public_spoils_the_name(ips):
    getaddrinfo, _ = answers(*ips)
    assert (
        code_of(resolve, "example.com", 443, allow_loopback=False, getaddrinfo=getaddrinfo)
        == "E_ADDR_NOT_PUBLIC"
    )


def test_the_resolver_is_not_asked_for_what_reads_as_an_address():
    getaddrinfo, calls = answers("1.1.1.1")
    for host in ("2852039166", "0x7f.1", "127.0.0.1"):
        code = code_of(resolve, host, 443, allow_loopback=False, getaddrinfo=getaddrinfo)
        assert code == "E_HOST_NOT_ALLOWED"
    assert calls == []
    found = resolve("127.0.0.1", 80, allow_loopback=True, getaddrinfo=answers("127.0.0.1")[0])
    assert found == ("127.0.0.1",)


def test_a_name_without_an_address_is_unavailable():
    def getaddrinfo(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    for resolver in (getaddrinfo, answers()[0]):
        with pytest.raises(StorageUnavailableError):
            resolve("example.com", 443, allow_loopback=False, getaddrinfo=resolver)


def test_ones_own_server_may_be_anywhere():
    getaddrinfo, _ = answers("10.0.0.1")
    found = resolve(
        "nas.example.com", 443, allow_loopback=False, allow_private=True, getaddrinfo=getaddrinfo
    )
    assert found == ("10.0.0.1",)
