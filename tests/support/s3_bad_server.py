"""A loopback HTTP server that misbehaves as a test tells it, and remembers every request.

A behaviour is a coroutine that gets one `Exchange` and answers it, badly or well. `Bucket` is the
good one: a small S3 server in memory, with a place to put faults.
"""

import asyncio
import base64
import hashlib
import random
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlsplit

BLOCK = 65_536


@dataclass
class Seen:
    """One request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        return found[0] if found else None

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def range(self) -> tuple[int, int] | None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.header("range") or "")
        return (int(found[1]), int(found[2])) if found else None


class Exchange:
    """A request that waits for its answer."""

    def __init__(self, server: "BadServer", seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.seen = seen
        self.number = len(server.seen) - 1
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self.server.num_bytes_sent += len(data)

    async def answer(self, status: int, headers: dict[str, object] | None = None, body=b"") -> None:
        all_headers = {"Content-Length": len(body), **(headers or {})}
        lines = [f"HTTP/1.1 {status} Whatever"]
        lines += [f"{name}: {value}" for name, value in all_headers.items() if value is not None]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if self.seen.method != "HEAD":
            await self.raw(body)

    def reset(self) -> None:
        """End the connection as a crash does."""
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


Behaviour = Callable[[Exchange], Awaitable[None]]


class BadServer:
    """Answers by its behaviour; use it as an async context manager."""

    def __init__(self, behaviour: Behaviour, *, tls: ssl.SSLContext | None = None) -> None:
        self._behaviour = behaviour
        self._tls = tls
        self.seen: list[Seen] = []
        self.num_connections = 0
        self.num_bytes_sent = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.num_connections += 1
        try:
            # asyncio wants its own callbacks of connections to end well, a cancelled one too.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    seen = await read_request(reader)
                    self.seen.append(seen)
                    await self._behaviour(Exchange(self, seen, writer))
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    seen = Seen(method=method, target=target, headers=headers, body=b"")
    seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
    return seen


@dataclass
class Stored:
    data: bytes
    metadata: dict[str, str]

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'  # noqa: S324 - what S3 does


async def no_fault(_: Exchange) -> bool:
    return False


@dataclass
class Bucket:
    """A small S3 server in memory.

    Attributes:
        before: Called before a request is carried out; True if it has answered, or lost, it.
        after: Called when a request has been carried out and not been answered yet; the same.
        keeps_metadata: Whether it gives back what a writer has said about an object.
        lacks: What it cannot do: once, match, md5, join-once, abort, pages, order, delete, range.
        strangers: The methods that it allows without a signature.
    """

    before: Callable[[Exchange], Awaitable[bool]] = no_fault
    after: Callable[[Exchange], Awaitable[bool]] = no_fault
    keeps_metadata: bool = True
    lacks: frozenset[str] = frozenset()
    strangers: frozenset[str] = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)

    async def __call__(self, exchange: Exchange) -> None:
        if await self.before(exchange):
            return
        status, headers, body = self._carry_out(exchange.seen)
        if not await self.after(exchange):
            await exchange.answer(status, headers, body)

    def _carry_out(self, seen: Seen) -> tuple[int, dict[str, object], bytes]:
        query = seen.query
        if seen.header("authorization") is None and seen.method not in self.strangers:
            return 403, {}, error_body("AccessDenied")
        if "list-type" in query:
            return 200, {}, self._list(query)
        if "uploads" in query:
            name = f"upload-{len(self.uploads)}"
            self.uploads[name] = {}
            return 200, {}, _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        if "uploadId" in query:
            return self._multipart(seen, query["uploadId"][0], query)
        if seen.method == "PUT":
            return self._store(seen, seen.body)
        if seen.method == "DELETE":
            if "delete" not in self.lacks:
                self.objects.pop(seen.path, None)
            return 204, {}, b""
        if "range" in self.lacks:
            seen.headers = [header for header in seen.headers if header[0].lower() != "range"]
        return serve(seen, self.objects.get(seen.path), keeps_metadata=self.keeps_metadata)

    def _multipart(
        self, seen: Seen, name: str, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, object], bytes]:
        if name not in self.uploads:
            return 404, {}, error_body("NoSuchUpload")
        if seen.method == "PUT":
            self.uploads[name][int(query["partNumber"][0])] = seen.body
            return 200, {"ETag": Stored(seen.body, {}).etag}, b""
        if seen.method == "DELETE":
            self.aborted.append(name)
            if "abort" not in self.lacks:
                del self.uploads[name]
            return 204, {}, b""
        numbers = [int(found) for found in re.findall(rb"<PartNumber>(\d+)<", seen.body)]
        parts = self.uploads[name]
        status, headers, _ = self._store(seen, b"".join(parts[number] for number in numbers))
        if status != 200:
            return status, headers, error_body("PreconditionFailed")
        del self.uploads[name]
        return 200, {}, _xml("CompleteMultipartUploadResult", "<Key>a</Key>")

    def _list(self, query: dict[str, list[str]]) -> bytes:
        prefix, after = query["prefix"][0], query.get("continuation-token", [""])[0]
        keys = sorted(path.split("/", 2)[2] for path in self.objects)
        if "order" in self.lacks:
            keys.sort(key=lambda key: key.replace("/", "\0"))
        keys = [key for key in keys if key.startswith(prefix)]
        keys = keys[keys.index(after) + 1 if after in keys else 0 :]
        page = keys[: int(query["max-keys"][0])]
        is_cut = len(page) < len(keys) and "pages" not in self.lacks
        inner = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        inner += f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if is_cut else ""
        inner += "".join(f"<Contents><Key>{key}</Key></Contents>" for key in page)
        return _xml("ListBucketResult", inner)

    def _is_met(self, seen: Seen) -> bool:
        is_join = seen.method == "POST"
        if seen.header("if-none-match") == "*" and seen.path in self.objects:
            return ("join-once" if is_join else "once") in self.lacks
        wanted = seen.header("if-match")
        if wanted is None or "match" in self.lacks:
            return True
        return seen.path in self.objects and self.objects[seen.path].etag == wanted

    def _store(self, seen: Seen, data: bytes) -> tuple[int, dict[str, object], bytes]:
        if not self._is_met(seen):
            return 412, {}, error_body("PreconditionFailed")
        md5 = base64.b64encode(hashlib.md5(seen.body).digest()).decode()  # noqa: S324 - what S3 does
        if seen.header("content-md5") not in (None, md5) and "md5" not in self.lacks:
            return 400, {}, error_body("BadDigest")
        metadata = {k.lower(): v for k, v in seen.headers if k.lower().startswith("x-amz-meta-")}
        self.objects[seen.path] = Stored(data, metadata)
        return 200, {"ETag": self.objects[seen.path].etag}, b""


def serve(
    seen: Seen, stored: Stored | None, *, keeps_metadata: bool = True
) -> tuple[int, dict[str, object], bytes]:
    """Answer a GET or HEAD as S3 does."""
    if stored is None:
        return 404, {}, error_body("NoSuchKey")
    headers: dict[str, object] = {
        "ETag": stored.etag,
        "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT",
        **(stored.metadata if keeps_metadata else {}),
    }
    if seen.header("if-match") not in (None, stored.etag):
        return 412, {}, error_body("PreconditionFailed")
    if seen.method == "HEAD":
        return 200, {**headers, "Content-Length": len(stored.data)}, b""
    wanted = seen.range
    if wanted is None:
        return 200, headers, stored.data
    first, last = wanted
    if first >= len(stored.data):
        return 416, {}, error_body("InvalidRange")
    part = stored.data[first : last + 1]
    headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(stored.data)}"
    return 206, headers, part


def noise(seed: int, num_bytes: int) -> bytes:
    """Bytes that repeat nowhere and are the same in every run."""
    return random.Random(seed).randbytes(num_bytes)  # noqa: S311 - no secret


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or task does; the test's time limit ends it."""
    while not condition():  # noqa: ASYNC110 - servers and threads have no events to wait for
        await asyncio.sleep(0.01)


def error_body(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()


def _xml(name: str, inner: str) -> bytes:
    return f"<?xml version='1.0'?><{name}>{inner}</{name}>".encode()
