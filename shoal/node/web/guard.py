"""What holds for every request, before and after its handler.

Guarantees: only GET and HEAD; a foreign Host (DNS rebinding) or a request that another site's page
made is refused; every answer, errors included, carries the headers that keep a browser from
running or fetching anything that is not ours; a failure of a handler is that request's 500 and no
more. (Bytes that are no HTTP get aiohttp's own 400 before any of this.)

Does not do: know who asks: there are no accounts, cookies or secrets here, only figures to read.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from shoal.node.web.address import ListenAddress, is_allowed_host

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_guard(address: Callable[[], ListenAddress], names: Collection[str]) -> Middleware:
    """The middleware.

    Args:
        address: where we listen; known once the socket is open.
        names: further host names that are ours.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, address(), names)
        if refusal is not None:
            return refusal
        return await _answer(request, handler)

    return guard


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """A signal handler: runs before the headers of any answer are sent."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "shoal"


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return web.Response(status=error.status, text=f"{error.reason}\n", headers=allow)
    except ConnectionError:
        # The reader went away in the middle; nobody reads this answer.
        return web.Response(status=400, text="gone\n")
    except Exception:  # the per-request boundary: the page may fail, the training may not
        logger.exception("page: %s failed", request.path)
        return web.Response(status=500, text="this page failed; the node's log says why\n")


def _refusal(
    request: web.Request, address: ListenAddress, names: Collection[str]
) -> web.Response | None:
    if request.method not in ("GET", "HEAD"):
        return web.Response(status=405, text="only GET and HEAD\n", headers={"Allow": "GET, HEAD"})
    host = request.headers.get("Host", "")
    if not is_allowed_host(host, address, names):
        text = "this host name is not the node's; see [web] hosts in node.toml\n"
        return web.Response(status=421, text=text)
    if not _same_site(request, host):
        return web.Response(status=403, text="asked for by another site's page\n")
    return None


def _same_site(request: web.Request, host: str) -> bool:
    """A link to the page may be anywhere; its data may be asked for by the page only."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return False
    return request.path == "/" or request.headers.get("Sec-Fetch-Site", "none") in (
        "none",
        "same-origin",
    )
