"""Connections that go where they are told and read the head of an answer with care.

Guarantees: a connection never looks a name up itself, it asks `connect` for its socket, and says
whether TLS could be begun on it; TLS and the Host header keep the name. An answer's head, the
interim answers before it included, has at most 16 KiB and must be there before the call's time is
over, however slowly it trickles in, and a line is no slower than a body may be; so is it with the
lines between the chunks of a body and after them. An answer that announces two lengths, or one that
is no number, is refused.
"""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader
from typing import Any, Final, cast

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from shoal.storage.s3_clock import CallClock, Pace
from shoal.storage.s3_reach import Connected

MAX_HEAD_BYTES: Final = 16 << 10

Connect = Callable[[str, int, Any], Connected]

_clock: ContextVar[CallClock] = ContextVar("shoal_storage_s3_clock")


@contextmanager
def watched_by(clock: CallClock) -> Iterator[None]:
    """Let a call's time watch over the heads of answers that are read inside.

    Args:
        clock: The call's time.

    Yields:
        Nothing.
    """
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


class _LineReader:
    """Reads lines, one piece of the network at a time, and what is between them as the file does.

    At most `MAX_HEAD_BYTES` of lines in a row: a head, or what a chunk begins or a body ends with.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._num_left = MAX_HEAD_BYTES
        self._clock = _clock.get()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the file's own
        return getattr(self._file, name)

    def read1(self, num_bytes: int = -1) -> bytes:
        block = self._file.read1(num_bytes)
        self._num_left = MAX_HEAD_BYTES
        return block

    def readline(self, limit: int) -> bytes:
        line = bytearray()
        pace: Pace | None = None
        while not line.endswith(b"\n") and len(line) < limit:
            self._clock.check()
            seen = self._file.peek(1)
            if not seen:
                break
            piece = self._file.read(min(seen.find(b"\n") + 1 or len(seen), limit - len(line)))
            # A server may take its time to begin a line, but not to end it.
            pace = pace or Pace(self._clock)
            pace.moved(len(piece))
            line += piece
            self._num_left -= len(piece)
            if self._num_left < 0:
                raise http.client.HTTPException(f"the head exceeds {MAX_HEAD_BYTES} bytes")
        return bytes(line)


class _Response(http.client.HTTPResponse):
    def begin(self) -> None:
        file: Any = self.fp
        reader = cast("BufferedReader", _LineReader(file))
        self.fp = reader
        try:
            super().begin()
            self._check_length()
        finally:
            # It is None already after an answer that has no body.
            if self.fp is reader and not getattr(self, "chunked", False):
                self.fp = file

    def _read_status(self) -> tuple[str, int, str]:
        # http.client knows one interim answer, 100; there are others, and more may come.
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if found[1] == http.HTTPStatus.SWITCHING_PROTOCOLS:
                raise http.client.HTTPException("no other protocol was asked for")
            if not 100 < found[1] < 200:
                return found
            while self.fp.readline(MAX_HEAD_BYTES).strip():
                pass

    def _check_length(self) -> None:
        lengths = set(self.headers.get_all("Content-Length", ()))
        is_double = len(lengths) + ("Transfer-Encoding" in self.headers) > 1
        if is_double or not all(text.isascii() and text.isdigit() for text in lengths):
            raise http.client.HTTPException("one length or none expected")


class _Way:
    """The socket of one connection, and how its beginning went."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._opened: Connected | None = None

    def open(self, host: str, port: int, timeout_s: Any) -> socket.socket:  # noqa: ANN401 - urllib3's own
        self._opened = self._connect(host, port, timeout_s)
        return self._opened.sock

    @contextmanager
    def settled(self) -> Iterator[None]:
        is_good = False
        try:
            yield
            is_good = True
        finally:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.settle(is_good)


class _PlainConnection(HTTPConnection):
    response_class = _Response

    def __init__(self, *, connect: Connect, **options: Any) -> None:  # noqa: ANN401 - urllib3's own
        super().__init__(**options)
        self._way = _Way(connect)

    def _new_conn(self) -> socket.socket:
        return self._way.open(self.host, self.port, self.timeout)

    def connect(self) -> None:
        with self._way.settled():
            super().connect()


class _TlsConnection(HTTPSConnection):
    response_class = _Response

    def __init__(self, *, connect: Connect, **options: Any) -> None:  # noqa: ANN401 - urllib3's own
        super().__init__(**options)
        self._way = _Way(connect)

    def _new_conn(self) -> socket.socket:
        return self._way.open(self.host, self.port, self.timeout)

    def connect(self) -> None:
        with self._way.settled():
            super().connect()


class PlainPool(HTTPConnectionPool):
    """Connections without TLS; `connect` among its options makes their sockets."""

    ConnectionCls = _PlainConnection


class TlsPool(HTTPSConnectionPool):
    """Connections with TLS; `connect` among its options makes their sockets."""

    ConnectionCls = _TlsConnection
