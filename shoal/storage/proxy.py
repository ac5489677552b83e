"""An HTTP proxy that stands between this machine and all others.

Guarantees: only a scheme, a host and a port name a proxy; a tunnel is there when the proxy has said
so, with nothing sent behind its answer; the answer has at most 8 KiB and comes before the deadline.

Does not do: take a proxy from the environment, tell a proxy a user or a password, or encrypt: who
needs TLS speaks it through the tunnel with the server's own name.
"""

import ipaddress
import re
import socket
import time
from typing import Final
from urllib.parse import urlsplit

from shoal.storage.errors import StorageUnavailableError

_URL: Final = re.compile(
    r"http://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([1-9][0-9]{0,4})/?", re.ASCII
)
_MAX_ANSWER_BYTES: Final = 8 << 10
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([\x20-\x7e]*))?\r?\n")


def is_proxy_url(text: str) -> bool:
    """Whether a text names a proxy: `http://HOST:PORT`, an IPv6 address in brackets.

    Args:
        text: From a configuration.

    Returns:
        True if it does.
    """
    found = _URL.fullmatch(text)
    return found is not None and int(found[1]) < 1 << 16


def proxy_address(url: str) -> tuple[str, int]:
    """Take a proxy's URL apart.

    Args:
        url: One that `is_proxy_url` lets pass.

    Returns:
        Host, without brackets, and port.

    Raises:
        ValueError: It is none.
    """
    if not is_proxy_url(url):
        raise ValueError(f"proxy: http://HOST:PORT expected, found {url!r}")
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def open_tunnel(sock: socket.socket, host: str, port: int, ends_at_s: float) -> None:
    """Ask a proxy for a tunnel (CONNECT). Blocks.

    Args:
        sock: A connection to the proxy; what is sent on it afterwards goes to the target.
        host: The target's name or address.
        port: The target's port.
        ends_at_s: When the answer must be there, by the monotonic clock.

    Raises:
        StorageUnavailableError: The proxy refuses, or does not answer in time or as a proxy does.
        OSError: The connection broke.
    """
    target = f"{_bracketed(host)}:{port}"
    sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("ascii"))
    head = bytearray()
    while b"\r\n\r\n" not in head:
        left_s = ends_at_s - time.monotonic()
        if left_s <= 0:
            raise _failed("does not answer in time")
        sock.settimeout(left_s)
        block = sock.recv(4096)
        head += block
        if not block or len(head) > _MAX_ANSWER_BYTES:
            raise _failed("does not answer as a proxy does")
    status = _STATUS.match(head)
    if status is None:
        raise _failed("does not answer as a proxy does")
    if not status[1].startswith(b"2"):
        said = b" ".join(part for part in status.groups() if part).decode("ascii")[:80]
        raise _failed(f"refuses a tunnel to {target}: {said}")
    if not head.endswith(b"\r\n\r\n") or head.count(b"\r\n\r\n") != 1:
        # The target speaks second; what comes before it was asked is not from there.
        raise _failed("sent something behind its answer")


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def _failed(what: str) -> StorageUnavailableError:
    return StorageUnavailableError(f"the proxy {what}", "")
