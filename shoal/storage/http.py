"""A store behind plain HTTP: what a validator serves to browsers, firewalled and bucketless peers.

    GET, HEAD <base>/objects/<key>          the object; `Range` for a part of it
    GET <base>/keys?prefix=&after=&limit=   one key per line; header `X-Next-After` if more follow
    PUT <base>/objects/<key>                create-once; the server decides what it takes
    GET <base>/manifest                     the run's manifest
    PUT <base>/sink                         read and thrown away, for measuring the link

Guarantees: no redirect is followed, no content encoding accepted, no proxy or credential taken from
the environment; no more than 64 payloads are under way at a time, while announcements, records and
lists never wait for a connection; the announced length is compared with the caller's limit before a
byte of the body is read, and no more than that is ever read; a transfer that is slower than the
minimum rate or than its deadline, waits for this node's own cap left out, ends as
`StorageUnavailableError`. A refusal by the server is `RefusedError` with the server's code. While a
server that has said Retry-After wants quiet, every call fails at once and nothing is sent.

Does not do: overwrite or delete (the server offers neither), retry, or verify content. aiohttp's
client enters here and nowhere else.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

import aiohttp

from shoal.storage.allowance import block_bytes, check_quota, is_control, spend
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectSizeError,
    ObjectTooLargeError,
    StorageError,
    StorageUnavailableError,
)
from shoal.storage.filling import Arrived, require_length
from shoal.storage.header_values import retry_after_s
from shoal.storage.http_answers import (
    announced,
    date_s,
    error_of,
    modified_at_s,
    page_of,
    require_plain,
)
from shoal.storage.keys import check_key, check_prefix
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    check_limit,
    range_num_bytes,
)
from shoal.storage.progress import note_moved
from shoal.storage.waits import excused_timeout

_BLOCK_BYTES = 1 << 20
_SENT_BYTES = 256 << 10
_MAX_REFUSAL_BYTES = 512
_MAX_BULK = 64
"""Payloads, copies and blobs under way at the same time."""
_MAX_LIST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    """How long a call may take."""

    connect_s: float = 10.0
    total_s: float = 120.0
    min_bytes_per_s: float = 65536.0
    """A body slower than this over `rate_window_s` is given up."""
    rate_window_s: float = 10.0


class HttpStore:
    """The objects that one server offers; close it, or use it as a context manager.

    Args:
        base_url: without a slash at its end.
        limits: time limits of every call.
        proxy: http://HOST:PORT that requests go through; empty: none.
    """

    def __init__(
        self, base_url: str, limits: HttpLimits = HttpLimits(), *, proxy: str = ""
    ) -> None:  # frozen
        self._base_url = base_url.rstrip("/")
        self._limits = limits
        self._proxy = proxy or None
        self._session: aiohttp.ClientSession | None = None
        self._bulk = asyncio.Semaphore(_MAX_BULK)
        self._quiet_until_s = 0.0
        """The server has asked not to be asked before; on the monotonic clock."""

    async def __aenter__(self) -> "HttpStore":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Offers an object to the server, create-once.

        Args:
            key: Where to put it.
            data: The whole object.
            overwrite: Must be false: no server takes it.

        Raises:
            ObjectExistsError: The key is taken.
            RefusedError: The server does not want this object here; has its code.
            AccessDeniedError: The server refuses, or `overwrite` was asked.
            StorageFullError: The server has no room.
            StorageUnavailableError: The server did not answer; the write may have happened.
            QuotaReachedError: This node's own quota is used up.
            InvalidKeyError: The key breaks the rules in `keys`.
        """
        check_key(key)
        check_quota("up", key)
        if overwrite:
            raise AccessDeniedError(f"object {key!r}: this store never overwrites", key)
        view = memoryview(data).cast("B")
        headers = {
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
            "Content-Length": str(view.nbytes),
        }
        async with self._call("PUT", key, headers=headers, data=_in_blocks(view)) as answer:
            await _require(answer, key, (200, 201))

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Reads an object or a range of it; never more than `max_bytes`.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take.
            start: First byte of the range.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for.

        Raises:
            ObjectNotFoundError: No object has this key.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object, or bytes went missing on the way.
            RefusedError: A redirect or a content encoding, which are never accepted.
            AccessDeniedError: The server refuses.
            StorageUnavailableError: The server did not answer, or too slowly.
            QuotaReachedError: This node's own quota is used up.
            InvalidKeyError: The key breaks the rules in `keys`.
            ValueError: A number is negative.
        """
        check_key(key)
        check_quota("down", key)
        if start == 0 and length is None:
            async with self._call("GET", key) as answer:
                await _require(answer, key, (200,))
                return await self._read(answer, key, _announced(answer, key), max_bytes)
        size = (await self.head(key)).num_bytes
        wanted = range_num_bytes(key, size, max_bytes=max_bytes, start=start, length=length)
        if wanted == 0:
            return b""
        headers = {"Range": f"bytes={start}-{start + wanted - 1}"}
        async with self._call("GET", key, headers=headers) as answer:
            await _require(answer, key, (206,))
            if _announced(answer, key) != wanted:
                raise ObjectSizeError(f"object {key!r}: the range has another length", key)
            return await self._read(answer, key, wanted, max_bytes)

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """Reads a whole object into room of exactly its length; see `filling`.

        Args:
            key: Which object.
            room: Where to put it.
            arrived: Told of the progress.

        Raises:
            ObjectTooLargeError: The object is longer than the room.
            ObjectTooShortError: It is shorter.
            StorageError: As `get`.
        """
        check_key(key)
        check_quota("down", key)
        async with self._call("GET", key) as answer:
            await _require(answer, key, (200,))
            require_length(key, _announced(answer, key), room)
            arrived(0)
            await self._fill(answer, key, room, arrived)

    async def head(self, key: str) -> ObjectInfo:
        """Looks at an object without reading it.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            ObjectNotFoundError: No object has this key.
            AccessDeniedError: The server refuses.
            StorageUnavailableError: The server did not answer properly.
            InvalidKeyError: The key breaks the rules in `keys`.
        """
        check_key(key)
        async with self._call("HEAD", key) as answer:
            await _require(answer, key, (200,))
            return ObjectInfo(
                key=key,
                num_bytes=_announced(answer, key),
                modified_at_s=modified_at_s(answer.headers),
            )

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """Lists keys in lexicographic order, a page at a time.

        Args:
            prefix: What the keys begin with.
            after: Only keys that sort after this one.
            limit: The most keys on the page, at least 1.

        Returns:
            The page.

        Raises:
            AccessDeniedError: The server refuses.
            StorageUnavailableError: The server did not answer properly.
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            ValueError: `limit` is below 1.
        """
        check_prefix(prefix)
        check_limit(limit)
        query = {"prefix": prefix, "limit": str(limit)} | ({"after": after} if after else {})
        async with self._call("GET", "", path="keys", params=query) as answer:
            await _require(answer, prefix, (200,))
            raw = await self._read(answer, prefix, _announced(answer, prefix), _MAX_LIST_BYTES)
            return page_of(raw, answer.headers, prefix=prefix, after=after, limit=limit)

    async def read_page(self, path: str, max_bytes: int) -> bytes:
        """Reads something else that the server offers, by its path.

        Args:
            path: Below the base URL.
            max_bytes: The most that the caller can take.

        Returns:
            The whole body.

        Raises:
            ObjectNotFoundError: The server has no such page.
            ObjectTooLargeError: It is longer.
            RefusedError: A redirect or a content encoding.
            AccessDeniedError: The server refuses.
            StorageUnavailableError: The server did not answer, or too slowly.
        """
        async with self._call("GET", path, path=path) as answer:
            await _require(answer, path, (200,))
            return await self._read(answer, path, _announced(answer, path), max_bytes)

    async def put_to_sink(self, data: bytes) -> None:
        """Sends bytes that the server throws away, for measuring the link.

        Args:
            data: Up to the length of a payload.

        Raises:
            RefusedError: The server does not take so many.
            StorageUnavailableError: The server did not answer.
        """
        async with self._call("PUT", "", path="sink", data=data) as answer:
            await _require(answer, "sink", (200, 201, 204))

    async def server_time_s(self) -> float:
        """The server's clock, unix seconds (whole ones), from the `Date` of an answer.

        Returns:
            Seconds.

        Raises:
            StorageUnavailableError: The server did not answer, or without a date.
        """
        async with self._call(
            "GET", "", path="keys", params={"prefix": "", "limit": "1"}
        ) as answer:
            return date_s(answer.headers, "Date")

    async def delete(self, key: str) -> None:
        """Refuses: the server offers no deleting.

        Args:
            key: Which object.

        Raises:
            AccessDeniedError: Always.
        """
        raise AccessDeniedError(f"object {key!r}: this store never deletes", key)

    @asynccontextmanager
    async def _call(
        self,
        method: str,
        key: str,
        *,
        path: str | None = None,
        headers: dict[str, str] | None = None,
        data: bytes | AsyncIterator[memoryview] | None = None,
        params: dict[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        self._check_quiet(key)
        url = f"{self._base_url}/{path or f'objects/{key}'}"
        wanted = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            async with (
                # Bulk waits for bulk; the control plane finds a connection at any time.
                contextlib.nullcontext() if is_control() else self._bulk,
                excused_timeout(self._limits.total_s),
                self._client().request(
                    method, url, headers=wanted, data=data, params=params, allow_redirects=False
                ) as answer,
            ):
                self._note_request_for_quiet(answer)
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, StorageError):
                raise
            words = _in_words(error, self._proxy)
            raise StorageUnavailableError(f"{self._base_url}: {words}", key) from error

    def _check_quiet(self, key: str) -> None:
        wait_s = self._quiet_until_s - time.monotonic()
        if wait_s > 0:
            text = f"{self._base_url}: it has asked for {wait_s:.0f} s more without requests"
            raise StorageUnavailableError(text, key)

    def _note_request_for_quiet(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status in (429, 503):
            # One that asks for days gets the length of one call.
            wanted_s = min(retry_after_s(answer.headers, time.time()), self._limits.total_s)
            self._quiet_until_s = max(self._quiet_until_s, time.monotonic() + wanted_s)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                trust_env=False,
                proxy=self._proxy,
                cookie_jar=aiohttp.DummyCookieJar(),
                # Large objects: fewer wake-ups for each megabyte.
                read_bufsize=block_bytes("down", _BLOCK_BYTES),
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
                max_line_size=8190,
                max_field_size=8190,
            )
        return self._session

    async def _read(
        self, answer: aiohttp.ClientResponse, key: str, num_bytes: int, max_bytes: int
    ) -> bytes:
        if num_bytes > max_bytes:
            raise ObjectTooLargeError(
                f"object {key!r}: {num_bytes} bytes announced, at most {max_bytes} allowed", key
            )
        # Its final size at once: growing would copy a large body again and again.
        body = memoryview(bytearray(num_bytes))
        await self._fill(answer, key, body, lambda _: None)
        return bytes(body)

    async def _fill(
        self, answer: aiohttp.ClientResponse, key: str, body: memoryview, arrived: Arrived
    ) -> None:
        filled, num_bytes = 0, body.nbytes
        window_at_s, window_bytes = time.monotonic(), 0
        while filled < num_bytes:
            async with asyncio.timeout(self._limits.rate_window_s):
                block = await answer.content.read(min(_BLOCK_BYTES, num_bytes - filled))
            if not block:
                raise ObjectSizeError(
                    f"object {key!r}: {num_bytes} bytes announced, {filled} came", key
                )
            body[filled : filled + len(block)] = block
            filled += len(block)
            note_moved(len(block))
            arrived(filled)
            # Time that we take because of our own cap is not the server's.
            window_at_s += await spend("down", len(block))
            age_s = time.monotonic() - window_at_s
            if age_s >= self._limits.rate_window_s:
                if filled - window_bytes < self._limits.min_bytes_per_s * age_s:
                    raise StorageUnavailableError(f"object {key!r}: slower than allowed", key)
                window_at_s, window_bytes = time.monotonic(), filled


def _in_words(error: Exception, proxy: str | None) -> str:
    """What went wrong with a connection, for whoever reads the log."""
    match error:
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {proxy} cannot be reached: {_reason(error.os_error)}"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} cannot be looked up: {_reason(error.os_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"no TLS there ({_reason(error.os_error)}); is it http:// and not https://?"
        case aiohttp.ClientConnectorError():
            return f"nobody can be reached there: {_reason(error.os_error)}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy {proxy} refuses: {error.status}"
        case TimeoutError():
            return "no answer in time"
        case _:
            return f"{type(error).__name__}: {error}"


def _reason(error: OSError) -> str:
    """Short: Python's text repeats the address."""
    is_call = error.errno is not None and "Connect call failed" in str(error)
    return os.strerror(error.errno or 0) if is_call else error.strerror or str(error)


async def _in_blocks(data: memoryview) -> AsyncIterator[memoryview]:
    """The body, block by block, each as soon as our own cap lets it go."""
    size = block_bytes("up", _SENT_BYTES)
    for start in range(0, data.nbytes, size):
        block = data[start : start + size]
        await spend("up", block.nbytes)
        yield block
        # Asked for the next one: this one is on its way.
        note_moved(block.nbytes)


def _announced(answer: aiohttp.ClientResponse, key: str) -> int:
    return announced(answer.headers, key)


async def _require(answer: aiohttp.ClientResponse, key: str, statuses: tuple[int, ...]) -> None:
    """Turns every other answer into the error that it means."""
    require_plain(answer.status, answer.headers, key)
    if answer.status in statuses:
        return
    raise error_of(answer.status, await answer.content.read(_MAX_REFUSAL_BYTES), key)
