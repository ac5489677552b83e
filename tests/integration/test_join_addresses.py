"""`shoal join URL` at addresses where no run is: one plain line says whose fault it is."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.ports import free_port
from tests.support.processes import Forge, run_command

pytestmark = pytest.mark.slow


class Html(BaseHTTPRequestHandler):
    """A server of pages, for all but /none."""

    def do_GET(self) -> None:
        body = b"<html><body>It works!</body></html>"
        self.send_response(404 if self.path.startswith("/none") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    """HOST:PORT of a server that is no validator."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Html)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


CLOSED = f"127.0.0.1:{free_port()}"
PAGES = "PAGES"
CASES = {
    "html": ([f"http://{PAGES}"], 2, ("E_JSON", "some other server answers there")),
    "404": ([f"http://{PAGES}/none"], 4, ("some other server answers there",)),
    "no-tls": ([f"https://{PAGES}"], 4, ("no TLS there", "is it http:// and not https://?")),
    "closed": ([f"http://{CLOSED}"], 4, ("nobody can be reached there: Connection refused",)),
    "no-name": (["http://no-such-name.invalid"], 4, ("no-such-name.invalid cannot be looked up",)),
    "proxy": (
        [f"http://{PAGES}", "--proxy", f"http://{CLOSED}"],
        4,
        (f"the proxy http://{CLOSED} cannot be reached: Connection refused",),
    ),
    "password": (["http://me:secret@validator.example"], 2, ("without user or query",)),
    "port": (["http://validator.example:99999"], 2, ("RUN: expected http://HOST:PORT",)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_address_without_a_run_is_one_line(
    forge: Forge, tmp_path: Path, pages: str, name: str
) -> None:
    words, code, expected = CASES[name]
    argv = [word.replace(PAGES, pages) for word in words]
    log = tmp_path / "output.txt"
    assert run_command(forge, log, "join", *argv, "--home", tmp_path / "home") == code
    (line,) = log.read_text().splitlines()
    assert line.startswith("shoal: ")
    for text in expected:
        assert text in line
    # Nobody's jargon, and nothing was made.
    assert "ssl:default" not in line
    assert "Client" not in line
    assert not (tmp_path / "home").exists()
