"""How requests to one S3 server travel: HTTP/1.1 over sockets dialled to checked addresses.

Guarantees: connections go to checked addresses only, whatever a second answer of the resolver says
(`s3_reach`); TLS still asks for and verifies the name. No redirect is followed and no content
encoding accepted; no netrc or cookie is used, and no proxy but the configured one. That is told the
checked addresses too, and a name only for one's own server, whose addresses are not checked; TLS
goes through it end to end. A body is read only as far as the caller asks. Every wait has a time
limit, also when bytes trickle in one by one.

Does not sign and does not retry.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import urllib3
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.response import BaseHTTPResponse

from shoal.storage.allowance import block_bytes, spend_in_thread
from shoal.storage.dialling import Dial, begin_dial
from shoal.storage.errors import RefusedError, StorageUnavailableError
from shoal.storage.progress import note_moved
from shoal.storage.resolving import GetAddrInfo
from shoal.storage.s3_answers import E_HTTP_ENCODING, E_HTTP_REDIRECT, AttemptError
from shoal.storage.s3_clock import CallClock, Pace
from shoal.storage.s3_config import S3Config, S3Limits
from shoal.storage.s3_connection import PlainPool, TlsPool, watched_by
from shoal.storage.s3_reach import Reach

BLOCK_BYTES: Final = 256 << 10
# A block goes out within one time limit of the socket, on the slowest of lines too.
_SENT_BYTES: Final = 64 << 10


class Body(Protocol):
    """What is sent: read from its beginning."""

    def read(self, num_bytes: int = -1, /) -> bytes | memoryview:
        """Give the next bytes; none at the end."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One signed request.

    Attributes:
        method: The HTTP method.
        url: Where to; its host is the endpoint's.
        headers: All headers but Host.
        body: What is sent; None for nothing.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Body | bytes | None = field(repr=False)


class Answer:
    """A server's answer whose body has not been read yet; close it.

    Attributes:
        status: The HTTP status.
        headers: The headers, by any case.
    """

    def __init__(self, response: BaseHTTPResponse, clock: CallClock) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._clock = clock

    def blocks(self, max_bytes: int) -> Iterator[bytes]:
        """Read the body as it comes, up to a limit.

        Args:
            max_bytes: Where reading ends, although the server may send more.

        Yields:
            What has arrived; at least a byte.

        Raises:
            AttemptError: The connection broke.
            GiveUpError: Too slow, too late, or no longer wanted.
        """
        pace = Pace(self._clock)
        num_missing = max_bytes
        most_bytes = block_bytes("down", BLOCK_BYTES)
        while num_missing:
            with _link_errors():
                block = self._response.read1(min(num_missing, most_bytes))
            pace.excuse(spend_in_thread("down", len(block), self._clock.check))
            pace.moved(len(block))
            if not block:
                return
            num_missing -= len(block)
            yield block

    def finish(self) -> None:
        """Say that the whole body has been read: the connection may serve another request."""
        self._response.drain_conn()
        self._response.release_conn()

    def close(self) -> None:
        """End the connection unless `finish` gave it back."""
        self._response.close()


class Transport:
    """The connections to one server.

    Args:
        config: Which server, and which of its addresses are allowed.
        limits: Time limits.
        tls: How TLS verifies; None: by the system's certificates.
        getaddrinfo: The system's resolver.
        dial: Begins to connect to an address.
    """

    def __init__(
        self,
        config: S3Config,
        limits: S3Limits,
        *,
        tls: ssl.SSLContext | None = None,
        getaddrinfo: GetAddrInfo = socket.getaddrinfo,
        dial: Dial = begin_dial,
    ) -> None:
        self._limits = limits
        self._reach = Reach(config, limits.connect_timeout_s, getaddrinfo, dial)
        parts = urlsplit(config.endpoint_url)
        host = parts.hostname or ""
        self._host = host if config.path_style else f"{config.bucket}.{host}"
        self._pool = self._make_pool(parts.scheme, parts.port, tls)

    def send(self, request: Request, clock: CallClock) -> Answer:
        """Send one request and wait for the head of its answer.

        Args:
            request: What to send.
            clock: The call's time.

        Returns:
            The answer; its body is still to be read.

        Raises:
            AttemptError: No connection, or it broke.
            GiveUpError: Too slow, too late, or no longer wanted.
            RefusedError: An address that is not allowed, a redirect, a content encoding.
        """
        url = urlsplit(request.url)
        if url.hostname != self._host:
            raise RefusedError(f"host {self._host} expected in a request", "", "E_HOST_NOT_ALLOWED")
        target = f"{url.path}?{url.query}" if url.query else url.path
        with watched_by(clock), _link_errors():
            response = self._urlopen(request, target, clock)
        answer = Answer(response, clock)
        try:
            _check_answer(answer)
        except RefusedError:
            answer.close()
            raise
        return answer

    def close(self) -> None:
        """Close the connections that are not in use; the others end with their requests."""
        self._pool.close()

    def _urlopen(self, request: Request, target: str, clock: CallClock) -> BaseHTTPResponse:
        body = request.body
        remaining_s = clock.remaining_s()
        return self._pool.urlopen(
            request.method,
            target,
            body=body if body is None or isinstance(body, bytes) else _sending(body, clock),
            headers={**request.headers, "Accept-Encoding": "identity"},
            retries=False,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
            enforce_content_length=False,
            timeout=urllib3.Timeout(
                connect=min(self._limits.connect_timeout_s, remaining_s),
                read=min(self._limits.read_timeout_s, remaining_s),
            ),
        )

    def _make_pool(
        self, scheme: str, port: int | None, tls: ssl.SSLContext | None
    ) -> HTTPConnectionPool:
        shared: dict[str, Any] = {
            "host": self._host,
            "port": port,
            "maxsize": self._limits.num_threads + self._limits.num_control_threads,
            "blocksize": BLOCK_BYTES,
            "connect": self._reach.connect,
        }
        if scheme == "http":
            return PlainPool(**shared)
        return TlsPool(**shared, ssl_context=tls or ssl.create_default_context())


def _sending(body: Body, clock: CallClock) -> Iterator[bytes]:
    pace = Pace(clock)
    most_bytes = block_bytes("up", _SENT_BYTES)
    while block := body.read(most_bytes):
        pace.excuse(spend_in_thread("up", len(block), clock.check))
        # Sockets take memory as it is; only the annotation of urllib3 asks for bytes.
        yield cast("bytes", block)
        # Asked for the next one: this one is on its way.
        note_moved(len(block))
        pace.moved(len(block))


@contextmanager
def _link_errors() -> Iterator[None]:
    try:
        yield
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        # urllib3 wraps what the system said: refused, reset, no route.
        cause = next((part for part in error.args if isinstance(part, OSError)), error)
        raise AttemptError(f"the connection broke ({type(cause).__name__})") from error
    except StorageUnavailableError as error:
        raise AttemptError(error.message) from error


def _check_answer(answer: Answer) -> None:
    if 300 <= answer.status < 400 and answer.status != 304:
        raise RefusedError(
            f"the server answers with a redirect ({answer.status}), which is never followed",
            "",
            E_HTTP_REDIRECT,
        )
    if "Content-Encoding" in answer.headers:
        raise RefusedError(
            "the server answers with a content encoding, although none was accepted",
            "",
            E_HTTP_ENCODING,
        )
