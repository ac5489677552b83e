"""What a validator serves over HTTP, and the inbox of peers without bucket or reachable address.

    GET, HEAD /objects/<key>         everything of the run: manifest, blobs, records, copies, ...
    GET       /keys?prefix=...       one key per line, bounded pages
    GET       /manifest              which run this is
    PUT       /sink                  read and thrown away, at most a payload's length
    PUT       /objects/<key>         attending and published announcements and payloads of the open
                                     round, create-once, each only where its own signer may put it

Guarantees: the length is known and right before a byte of a body is read (exactly the manifest's
payload length, at most 1 KiB for an announcement); a body that comes too slowly is dropped; what is
stored was verified like everything a validator gathers; keys are parsed, not used as they come, and
lie under this run's prefix; a round takes three objects of each peer that counted lately and of so
many newcomers as `familiar` says; one client's fault is that client's answer and never the server's
end; what is moved here keeps to the node's caps and quotas.

Does not do: authenticate readers (everything here is public), overwrite, delete, or serve pages.
aiohttp's server enters here, in `listening` and in `web`.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from shoal.node.errors import ConfigError
from shoal.node.familiar import NewcomerLimit
from shoal.node.inbox_bodies import drop_body, paid, read_blocks, read_body, send_body
from shoal.node.listening import listening
from shoal.node.run_context import BodyChecker, RunContext
from shoal.protocol.announcement import MAX_ANNOUNCEMENT_BYTES, AnnouncementType, read_announcement
from shoal.protocol.chain import ChainHead
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.identity import PeerId, parse_peer_key
from shoal.protocol.payload import PayloadContext, validate
from shoal.storage.allowance import check_quota, spend
from shoal.storage.errors import (
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from shoal.storage.object_store import ObjectStore
from shoal.storage.waits import excused_timeout

logger = logging.getLogger(__name__)

_MAX_PAGE_KEYS = 1000
_MAX_UPLOADS = 16
"""Payloads that come in at the same time; announcements do not wait for them."""
_CROWDED = "this round has no room for more newcomers, try again in the next one"
_BODY_S = 10.0
_MIN_BYTES_PER_S = 65536.0
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")
_INBOX_KEY = re.compile(
    r"(?P<run>[0-9a-f]{64})/(?:"
    r"rounds/(?P<round>\d{8})/(?P<kind>attending|published)/(?P<signer>[0-9a-f]{64})|"
    r"peers/(?P<author>[0-9a-f]{64})/payloads/(?P<payload_round>\d{8}))"
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where something may be put, from its key."""

    key: str
    peer: PeerId
    round_id: int
    kind: str
    """attending, published or payload."""


class Inbox:
    """The handlers; `head` gives the chain head of the open round."""

    def __init__(self, run: RunContext, store: ObjectStore, head: Callable[[], ChainHead]) -> None:
        self._run = run
        self._store = store
        self._head = head
        self._uploads = asyncio.Semaphore(_MAX_UPLOADS)
        self._newcomers = NewcomerLimit(run.familiar)

    def application(self) -> web.Application:
        """The aiohttp application."""
        largest = max(self._run.manifest.payload_bytes, MAX_ANNOUNCEMENT_BYTES)
        app = web.Application(middlewares=[_answer_errors], client_max_size=largest + 1)
        app.router.add_get("/objects/{key:.+}", self.get)  # also answers HEAD
        app.router.add_get("/keys", self.list)
        app.router.add_put("/objects/{key:.+}", self.put)
        app.router.add_put("/sink", self.sink)
        app.router.add_get("/manifest", self.manifest)
        return app

    async def get(self, request: web.Request) -> web.StreamResponse:
        """An object or a range of it."""
        key = self._own_key(request.match_info["key"])
        info = await self._store.head(key)
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Modified-At": repr(info.modified_at_s),
            "X-Content-Type-Options": "nosniff",
        }
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(info.num_bytes)})
        start, length, status = 0, info.num_bytes, 200
        wanted = _RANGE.fullmatch(request.headers.get("Range", ""))
        if wanted is not None:
            start, end = int(wanted[1]), int(wanted[2])
            length, status = end - start + 1, 206
            if not 0 <= start <= end < info.num_bytes:
                return web.Response(status=416)
        headers["Content-Length"] = str(length)
        with paid(self._run.meter, info.num_bytes):
            check_quota("up", key)
            blocks = read_blocks(self._store, key, start, length)
            # What is not there, or cannot be read, has its status; later it is too late for one.
            first = await anext(blocks, b"")
            answer = web.StreamResponse(status=status, headers=headers)
            await answer.prepare(request)
            await send_body(request, answer, first, blocks, self._run.meter)
        return answer

    async def list(self, request: web.Request) -> web.StreamResponse:
        """One page of keys."""
        prefix = self._own_key(request.query.get("prefix", ""))
        limit = request.query.get("limit", str(_MAX_PAGE_KEYS))
        count = int(limit) if re.fullmatch(r"\d{1,6}", limit) else 0
        if not count:
            return web.Response(status=400, text="limit: expected a whole number from 1")
        page = await self._store.list(
            prefix, after=request.query.get("after"), limit=min(count, _MAX_PAGE_KEYS)
        )
        headers = {} if page.next_after is None else {"X-Next-After": page.next_after}
        text = "\n".join(page.keys)
        with paid(self._run.meter, 0):
            await spend("up", len(text))
        return web.Response(text=text, headers=headers)

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Takes an announcement or a payload of the open round."""
        slot = self._slot(request.match_info["key"])
        self._check_length(slot, request.content_length)
        name = slot.peer.key.hex()
        if not self._newcomers.has_room(slot.round_id, name):
            return _refuse(request, 503, _CROWDED)
        deadline_s = _BODY_S + (request.content_length or 0) / _MIN_BYTES_PER_S
        with paid(self._run.meter, request.content_length or 0):
            check_quota("down", slot.key)
            # An announcement is small: it never waits until payloads have come.
            is_bulk = slot.kind == "payload"
            async with (
                self._uploads if is_bulk else contextlib.nullcontext(),
                excused_timeout(deadline_s),
            ):
                raw = await read_body(request)
        await asyncio.to_thread(self._verify, slot, raw)
        if not self._newcomers.admit(slot.round_id, name):
            return _refuse(request, 503, _CROWDED)
        await self._store.put(slot.key, raw)
        return web.Response(status=201)

    async def manifest(self, _: web.Request) -> web.StreamResponse:
        """The manifest's byte form, for those who know only the address."""
        body = self._run.manifest.to_bytes()
        return web.Response(body=body, content_type="application/json")

    async def sink(self, request: web.Request) -> web.StreamResponse:
        """Reads a body of at most a payload's length and forgets it."""
        num_bytes = request.content_length
        if num_bytes is None or num_bytes > self._run.manifest.payload_bytes:
            raise RemoteProtocolError(ErrorCode.E_LEN, f"{num_bytes} bytes, at most a payload's")
        with paid(self._run.meter, self._run.manifest.payload_bytes):
            check_quota("down", "sink")
            limit_s = _BODY_S + num_bytes / _MIN_BYTES_PER_S
            async with self._uploads, excused_timeout(limit_s):
                await drop_body(request)
        return web.Response(status=204)

    def _own_key(self, key: str) -> str:
        if not key.startswith(self._run.manifest.run_id.hex() + "/"):
            raise RemoteProtocolError(ErrorCode.E_RUN, "the key is not one of this run")
        return key

    def _slot(self, key: str) -> Slot:
        match = _INBOX_KEY.fullmatch(self._own_key(key))
        if match is None:
            raise RemoteProtocolError(ErrorCode.E_OBJECT_KEY, "nothing may be put here")
        round_id = int(match["round"] or match["payload_round"])
        current = self._head().round_id + 1
        if round_id != current:
            code = ErrorCode.E_ROUND_OLD if round_id < current else ErrorCode.E_ROUND_FUTURE
            raise RemoteProtocolError(code, f"round {round_id}, open is round {current}")
        peer = parse_peer_key(bytes.fromhex(match["signer"] or match["author"]))
        roster = self._run.payload_rules.roster
        if roster is not None and peer not in roster:
            raise RemoteProtocolError(ErrorCode.E_PEER_UNKNOWN, "the key is not in the roster")
        return Slot(key, peer, round_id, match["kind"] or "payload")

    def _check_length(self, slot: Slot, num_bytes: int | None) -> None:
        exact = self._run.manifest.payload_bytes
        shortest, longest = (
            (exact, exact) if slot.kind == "payload" else (1, MAX_ANNOUNCEMENT_BYTES)
        )
        if num_bytes is None or not shortest <= num_bytes <= longest:
            detail = f"{num_bytes} bytes, expected {shortest} to {longest}"
            raise RemoteProtocolError(ErrorCode.E_LEN, detail)

    def _verify(self, slot: Slot, raw: bytes) -> None:
        head = self._head()
        if slot.kind == "payload":
            context = PayloadContext(
                round_id=head.round_id + 1,
                base_state=head.state,
                seen={},
                check_body=BodyChecker(self._run.layout),
            )
            peer = validate(raw, self._run.payload_rules, context).peer
        else:
            read = read_announcement(raw, self._run.payload_rules, head.round_id + 1)
            peer = read.peer
            if read.announcement.type is not AnnouncementType(slot.kind):
                raise RemoteProtocolError(ErrorCode.E_OBJECT_KEY, "another kind of announcement")
        if peer != slot.peer:
            raise RemoteProtocolError(ErrorCode.E_OBJECT_KEY, "signed by another peer")


@asynccontextmanager
async def serving(
    run: RunContext, store: ObjectStore, head: Callable[[], ChainHead], listen: str
) -> AsyncIterator[str]:
    """Serves the inbox while the context is open; gives its base URL, empty if it is off.

    Args:
        run: shared.
        store: the run's objects, uncounted: what is served is counted here.
        head: gives the chain head of the open round.
        listen: host:port, or empty.

    Raises:
        ConfigError: the address is not host:port, or cannot be listened on.
    """
    if not listen:
        yield ""
        return
    host, colon, port = listen.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError("node.toml", "serve.listen", "host:port", listen)
    async with AsyncExitStack() as held:
        app = Inbox(run, store, head).application()
        try:
            url, _ = await held.enter_async_context(listening(app, host.strip("[]"), int(port)))
        except OSError as error:
            raise ConfigError(
                "node.toml", "serve.listen", "a free address", f"{listen} ({error.strerror})"
            ) from error
        yield url


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure has its status and a short text; none is a traceback.

    A failure after an answer has begun ends the connection: there is no other way left to say it.
    """
    try:
        return await handler(request)
    except RemoteProtocolError as error:
        status = 413 if error.code is ErrorCode.E_LEN else 422
        return _refuse(request, status, f"{error.code}: {error.detail}")
    except (InvalidKeyError, ValueError):
        return _refuse(request, 422, f"{ErrorCode.E_OBJECT_KEY}: not a key of this run")
    except ObjectNotFoundError:
        return _refuse(request, 404, "no such object")
    except ObjectExistsError:
        return _refuse(request, 409, "exists")
    except StorageFullError as error:
        logger.warning("the store is full: %s", error)
        return _refuse(request, 507, "full")
    except (StorageError, TimeoutError) as error:
        logger.warning("inbox: %s %s: %s", request.method, request.path, error)
        return _refuse(request, 503, "not now")
    except ConnectionError:
        # Normal weather: the client went away. Nobody reads this answer.
        return _refuse(request, 400, "gone")


def _refuse(request: web.Request, status: int, text: str) -> web.Response:
    answer = web.Response(status=status, text=text)
    if request.can_read_body:
        # The body was not read: the connection cannot be used for another request.
        answer.force_close()
    return answer
