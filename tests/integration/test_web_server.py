import asyncio
import json
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest
from yarl import URL

from shoal.node.config import WebConfig
from shoal.node.errors import ConfigError
from shoal.node.telemetry.event_log import EventLog
from shoal.node.telemetry.names import EventName
from shoal.node.web import pages
from shoal.node.web.address import ListenAddress
from shoal.node.web.board import Board
from shoal.node.web.history import NodeHistory, RunFacts
from shoal.node.web.server import NODE_NAME, WebServer, node_page
from shoal.node.web.stream import MAX_CLIENTS
from tests.support.web_events import log_events, report

LOOPBACK = ListenAddress("127.0.0.1", 0)


@asynccontextmanager
async def served(events=()):
    history = NodeHistory(NODE_NAME)
    for event in events:
        history.take(event)
    server = WebServer(Board([history], lambda: 1.0), LOOPBACK)
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url) as client:
            yield server, client
    finally:
        await server.stop()


async def read_message(stream):
    """One server-sent event as (event, id, data)."""
    fields = {}
    while (line := (await stream.readline()).decode().rstrip("\n")) or "event" not in fields:
        name, _, value = line.partition(": ")
        fields[name] = value
    return fields["event"], fields.get("id", ""), json.loads(fields["data"])


PATHS = ["/", "/static/page.js", "/static/charts.js", "/static/style.css", "/static/icon.svg",
         "/api/state", "/metrics", "/healthz"]  # fmt: skip


def test_every_path_answers_get_and_head_with_safe_headers():
    async def body():
        async with served(log_events("peer")) as (_, client):
            for path in [*PATHS, "/nothing", "/static/nothing"]:
                for method in ("GET", "HEAD"):
                    async with client.request(method, path) as answer:
                        assert answer.status == (404 if "nothing" in path else 200), path
                        policy = answer.headers["Content-Security-Policy"]
                        assert policy.startswith("default-src 'self';")
                        assert "unsafe" not in policy
                        assert answer.headers["X-Content-Type-Options"] == "nosniff"
                        assert answer.headers["Server"] == "shoal"
                        assert "Access-Control-Allow-Origin" not in answer.headers
                        assert "Set-Cookie" not in answer.headers

    asyncio.run(body())


def test_head_of_the_events_takes_no_place():
    async def body():
        async with served() as (server, client), client.head("/events") as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            assert server.stream.num_clients == 0

    asyncio.run(body())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(method):
    async def body():
        async with served() as (_, client):
            for path in ("/", "/events", "/nothing"):
                async with client.request(method, path, data=b"x" * 100) as answer:
                    assert answer.status == 405
                    assert answer.headers["Allow"] == "GET, HEAD"

    asyncio.run(body())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", ""])
def test_another_host_name_is_refused_everywhere(host):
    async def body():
        async with served(log_events("peer")) as (server, client):
            headers = {"Host": host.format(port=server.address.port)}
            for path in [*PATHS, "/events", "/nothing"]:
                async with client.get(path, headers=headers) as answer:
                    assert answer.status == 421
                    assert b"state_hash" not in await answer.read()

    asyncio.run(body())


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
     {"Sec-Fetch-Site": "same-site"}],
)  # fmt: skip
def test_a_foreign_pages_request_is_refused(headers):
    async def body():
        async with served() as (server, client):
            for path in ("/api/state", "/events", "/metrics"):
                async with client.get(path, headers=headers) as answer:
                    assert answer.status == 403
            own = {"Origin": server.url.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
            async with client.get("/api/state", headers=own) as answer:
                assert answer.status == 200

    asyncio.run(body())


def test_a_link_from_elsewhere_leads_to_the_page():
    async def body():
        async with (
            served() as (_, client),
            client.get("/", headers={"Sec-Fetch-Site": "cross-site"}) as answer,
        ):
            assert answer.status == 200

    asyncio.run(body())


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e%2fserver.py", "/static/index.html", "//etc/x"]
)
def test_no_path_becomes_a_file(path):
    async def body():
        async with served() as (server, client):
            url = URL(server.url.rstrip("/") + path, encoded=True)
            async with aiohttp.ClientSession() as bare, bare.get(url) as answer:
                assert answer.status == 404
            assert not client.closed

    asyncio.run(body())


def test_a_handler_that_fails_costs_one_answer(monkeypatch):
    async def body():
        async with served() as (server, client):
            monkeypatch.setattr(server.board, "snapshot", lambda: 1 / 0)
            async with client.get("/api/state") as answer:
                assert answer.status == 500
                assert "ZeroDivision" not in await answer.text()
            async with client.get("/healthz") as answer:
                assert await answer.text() == "ok\n"

    asyncio.run(body())


def test_live_events_and_coming_back():
    async def body():
        events = log_events("peer")
        async with served(events[:60]) as (server, client):
            async with client.get("/events") as answer:
                kind, _, state = await read_message(answer.content)
                assert (kind, len(state["nodes"][0]["rounds"])) == ("state", 2)
                for event in events[60:100]:
                    server.take(NODE_NAME, event)
                server.flush()
                kind, last_id, change = await read_message(answer.content)
                assert kind == "change"
                assert [r["round_id"] for r in change["nodes"][0]["rounds"]] == [3, 4]
            for event in events[100:]:
                server.take(NODE_NAME, event)
            server.flush()
            async with client.get("/events", headers={"Last-Event-ID": last_id}) as answer:
                kind, _, change = await read_message(answer.content)
                assert kind == "change"
                assert [r["round_id"] for r in change["nodes"][0]["rounds"]] == [5, 6]

    asyncio.run(body())


def test_many_events_are_few_messages():
    async def body():
        async with served() as (server, client), client.get("/events") as answer:
            await read_message(answer.content)
            for step in range(500):
                server.take(NODE_NAME, {"event": "inner-step", "step": step, "loss": 1.0})
            server.flush()
            kind, last_id, change = await read_message(answer.content)
            assert (kind, last_id.rpartition("-")[2]) == ("change", "1")
            assert change["nodes"][0]["now"]["step"] == 499

    asyncio.run(body())


def test_an_event_is_sent_by_itself_soon():
    async def body():
        async with served() as (server, client), client.get("/events") as answer:
            await read_message(answer.content)
            server.take(NODE_NAME, report(1))
            kind, _, change = await read_message(answer.content)
            assert (kind, change["nodes"][0]["now"]["round_id"]) == ("change", 1)

    asyncio.run(body())


def test_silence_is_filled_with_heartbeats(monkeypatch):
    monkeypatch.setattr(pages, "HEARTBEAT_S", 0.01)

    async def body():
        async with served() as (_, client), client.get("/events") as answer:
            kinds = [(await read_message(answer.content))[0] for _ in range(3)]
            assert kinds == ["state", "heartbeat", "heartbeat"]

    asyncio.run(body())


def test_one_client_too_many_is_told_to_come_later():
    async def body():
        async with served() as (server, client):
            answers = [await client.get("/events") for _ in range(MAX_CLIENTS)]
            for answer in answers:
                await read_message(answer.content)
            async with client.get("/events") as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
            assert server.stream.num_clients == MAX_CLIENTS
            for answer in answers:
                answer.close()

    asyncio.run(body())


def test_stopping_ends_open_streams_at_once():
    async def body():
        async with served() as (server, client), client.get("/events") as answer:
            await read_message(answer.content)
            async with asyncio.timeout(5):
                await server.stop()
                assert await answer.content.read() == b""

    asyncio.run(body())


def page(log, listen="127.0.0.1:0"):
    return node_page(WebConfig(listen=listen), log, RunFacts(name="demo"), lambda: 1.0)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in log_events("hostile")))
    log = EventLog(path, lambda: 2000.0)
    yield log
    log.close()


def test_a_nodes_page_has_the_past_and_gets_the_present(log):
    async def body():
        async with (
            page(log) as server,
            aiohttp.ClientSession(server.url) as client,
            client.get("/events") as answer,
        ):
            _, _, state = await read_message(answer.content)
            (node,) = state["nodes"]
            assert node["run_name"] == "demo"
            assert [r["round_id"] for r in node["rounds"]] == [1, 2, 3, 4]
            assert (node["now"]["phase"], node["timeline"]) == ("starting", None)
            # From another thread, as the training does.
            await asyncio.to_thread(log.emit, EventName.ROUND_OPENED, round_id=5)
            _, _, change = await read_message(answer.content)
            assert change["nodes"][0]["now"]["round_id"] == 5
        log.emit(EventName.WARNING, message="after the page is gone")

    asyncio.run(body())


def test_how_the_node_ended_is_the_last_thing_that_is_sent(log):
    async def body():
        async with aiohttp.ClientSession() as client:
            async with page(log) as server:
                answer = await client.get(f"{server.url}events")
                await read_message(answer.content)
                log.emit(EventName.NODE_STOPPED, finished=True, round_id=6, parameters_root="ab")
            _, _, change = await read_message(answer.content)
            assert change["nodes"][0]["now"]["phase"] == "finished"
            assert await answer.content.read() == b""

    asyncio.run(body())


def test_without_an_address_there_is_no_page(log):
    async def body():
        async with page(log, listen="") as server:
            assert server is None
            log.emit(EventName.WARNING, message="x")

    asyncio.run(body())


def test_an_address_in_use_is_a_configuration_error(log):
    async def body(port):
        async with page(log, listen=f"127.0.0.1:{port}"):
            pytest.fail("started on a port in use")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"web\.listen: .*127\.0\.0\.1:{port}"):
            asyncio.run(body(port))


def test_an_address_of_another_machine_is_a_configuration_error(log):
    async def body():
        async with page(log, listen="192.0.2.1:0"):
            pytest.fail("started on a foreign address")

    with pytest.raises(ConfigError, match=r"web\.listen"):
        asyncio.run(body())


def test_a_failure_in_the_page_does_not_reach_the_one_who_emits(log, monkeypatch):
    async def body():
        seen = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: seen.append(what))
        async with page(log) as server:
            monkeypatch.setattr(server.board, "take", lambda *_: 1 / 0)
            log.emit(EventName.WARNING, message="x")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(seen) == 1

    asyncio.run(body())


def test_an_event_after_the_loop_has_ended_is_no_failure(log):
    async def body():
        async with page(log):
            return log._subscribers[0]

    hand_over = asyncio.run(body())
    hand_over({"event": "warning"})
