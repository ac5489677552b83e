"""Which S3 servers may be connected to, when somebody else has named them.

A peer never supplies a URL: it names a provider of the manifest, an account and a bucket, and the
URL is made from the manifest's template.

Guarantees: what comes out is https on port 443 without user, path, query or fragment (a template of
a local run may say http and another port); an account or a bucket cannot change the host that the
template means; an address passes only if it is on the public internet, also when it is an IPv4
address in the clothes of an IPv6 one.

Pure; `resolving` asks the system's resolver.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from shoal.storage.errors import RefusedError

E_ADDR_NOT_PUBLIC: Final = "E_ADDR_NOT_PUBLIC"
E_HOST_NOT_ALLOWED: Final = "E_HOST_NOT_ALLOWED"
E_URL_EXTRA: Final = "E_URL_EXTRA"
E_URL_SCHEME: Final = "E_URL_SCHEME"

HTTPS_PORT: Final = 443
_MAX_HOST_CHARS: Final = 253
_SHOWN_CHARS: Final = 80

_ACCOUNT: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# The names that every provider takes; no dots, which would need certificates of their own.
_BUCKET: Final = re.compile(r"(?=.{3,63}\Z)[a-z0-9](-?[a-z0-9])*", re.ASCII)
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# The system's resolver takes a last label of digits, or of 0x and hex digits, for an address.
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)

# What the standard library calls global on some of the Python versions that we run on, although it
# is not, or hides an IPv4 address; and, for completeness, what it refuses anyway.
_DENIED: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' own networks
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, metadata services of clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "::/8",  # unspecified, loopback, IPv4-mapped and -compatible
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # local NAT64
        "100::/64",  # discard
        "100:0:0:1::/64",  # dummy
        "2001::/23",  # Teredo, ORCHID, benchmarks, other protocol assignments
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fc00::/7",  # unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local
        "ff00::/8",  # multicast
    )
)
# An interface id of 0:5efe or 200:5efe, then an IPv4 address: a tunnel to that one (ISATAP).
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
# Of IPv6 only this block is given out.
_IPV6_GLOBAL: Final = ipaddress.ip_network("2000::/3")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointTemplate:
    """How a provider's endpoint is made; comes from the manifest.

    Attributes:
        url: Scheme, host and perhaps port, with `{account}` where the account goes, and `{port}`
            for `port`; for example https://{account}.r2.cloudflarestorage.com.
        port: What `{port}` stands for; None where the URL has none.
        allow_loopback: A run on one machine: http, another port and 127.0.0.1 are allowed.
    """

    url: str
    port: int | None = None
    allow_loopback: bool = False


def endpoint_for(
    provider: str, account: str, bucket: str, templates: Mapping[str, EndpointTemplate]
) -> str:
    """Make the endpoint's URL from what a peer has announced.

    Args:
        provider: Which template.
        account: What fills `{account}`; empty where the template has none.
        bucket: The bucket's name; checked, not part of the URL.
        templates: The manifest's providers.

    Returns:
        The URL: scheme, host and perhaps port.

    Raises:
        RefusedError: E_HOST_NOT_ALLOWED: no such provider, or an account or bucket that could
            change the host; E_URL_SCHEME, E_URL_EXTRA: what the template makes is not allowed.
    """
    if _PROVIDER.fullmatch(provider) is None or provider not in templates:
        raise _host_error(f"provider {_shown(provider)} is not in the manifest")
    template = templates[provider]
    wants_account = "{account}" in template.url
    if wants_account and _ACCOUNT.fullmatch(account) is None:
        raise _host_error(
            f"account {_shown(account)}: 1 to 63 of a-z 0-9 - expected, no dash at an end"
        )
    if not wants_account and account:
        raise _host_error(f"account {_shown(account)}: provider {provider} has no accounts")
    check_bucket_name(bucket)
    # Not str.format: a template must not reach into objects.
    url = template.url.replace("{account}", account)
    if template.port is not None:
        url = url.replace("{port}", str(template.port))
    local = template.allow_loopback
    check_url(url, allow_http=local, allow_port=local)
    check_hostname(urlsplit(url).hostname or "", allow_address=local)
    return url


def check_bucket_name(bucket: str) -> None:
    """Let names pass that every provider takes and that cannot change a URL.

    Args:
        bucket: A bucket's name.

    Raises:
        RefusedError: E_HOST_NOT_ALLOWED.
    """
    if _BUCKET.fullmatch(bucket) is None:
        raise _host_error(
            f"bucket {_shown(bucket)}: 3 to 63 of a-z 0-9 and single dashes between them expected"
        )


def check_url(url: str, *, allow_http: bool, allow_port: bool) -> None:
    """Let an endpoint pass that is a scheme and a host, perhaps with a port, and nothing else.

    Args:
        url: The endpoint.
        allow_http: Without TLS as well.
        allow_port: Another port than 443 as well.

    Raises:
        RefusedError: E_URL_SCHEME, or E_URL_EXTRA for a user, a port, a path, a query, a fragment
            or characters that do not belong into a URL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in (("https", "http") if allow_http else ("https",)):
        raise RefusedError(f"endpoint {_shown(url)}: https:// expected", "", E_URL_SCHEME)
    host, colon, port = rest.rpartition(":") if re.search(r":[^\]]*\Z", rest) else (rest, "", "")
    if re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", host, re.ASCII) is None:
        raise RefusedError(
            f"endpoint {_shown(url)}: only a scheme and a host expected", "", E_URL_EXTRA
        )
    if not colon:
        return
    good = re.fullmatch(r"[1-9][0-9]{0,4}", port, re.ASCII) is not None and int(port) < 1 << 16
    if not good or (not allow_port and int(port) != HTTPS_PORT):
        raise RefusedError(
            f"endpoint {_shown(url)}: port {HTTPS_PORT} expected, found {_shown(port)}",
            "",
            E_URL_EXTRA,
        )


def check_hostname(host: str, *, allow_address: bool = False) -> None:
    """Let names pass that are a registered name in full, and nothing that reads as an address.

    Decimal, octal and hexadecimal addresses, which the resolver would take, are refused with them.

    Args:
        host: A host name in lower case.
        allow_address: A plain IPv4 or IPv6 address, and a name of one label, pass too.

    Raises:
        RefusedError: E_HOST_NOT_ALLOWED.
    """
    if allow_address and is_address(host):
        return
    labels = host.split(".")
    good = len(host) <= _MAX_HOST_CHARS and all(_LABEL.fullmatch(label) for label in labels)
    if not good or _NUMERIC_LABEL.fullmatch(labels[-1]) or (len(labels) == 1 and not allow_address):
        raise _host_error(f"host {_shown(host)}: a full host name in lower case expected")


def check_address(ip: str, *, allow_loopback: bool) -> None:
    """Let addresses on the public internet pass.

    Args:
        ip: An IPv4 or IPv6 address in its usual spelling.
        allow_loopback: 127.0.0.0/8 and ::1 pass too: a run on one machine.

    Raises:
        RefusedError: E_ADDR_NOT_PUBLIC.
    """
    try:
        address = ipaddress.ip_address(ip)
    except ValueError as error:
        raise _address_error(ip) from error
    # Newer Pythons call an IPv4-mapped address what the address inside it is.
    is_mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    if allow_loopback and address.is_loopback and not is_mapped:
        return
    is_denied = any(address in network for network in _DENIED if network.version == address.version)
    is_outside = address.version == 6 and (
        address not in _IPV6_GLOBAL or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    )
    if is_denied or is_outside or not address.is_global or "%" in ip:
        raise _address_error(ip)


def is_address(host: str) -> bool:
    """Say whether a host is an address and not a name.

    Args:
        host: A host without brackets.

    Returns:
        True if it is an IPv4 or IPv6 address in its usual spelling.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_error(message: str) -> RefusedError:
    return RefusedError(message, "", E_HOST_NOT_ALLOWED)


def _address_error(ip: str) -> RefusedError:
    return RefusedError(
        f"address {_shown(ip)}: only addresses on the public internet are connected to",
        "",
        E_ADDR_NOT_PUBLIC,
    )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
