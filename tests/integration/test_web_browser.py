"""The page in a real browser: what a person sees, and what the browser would have told us.

Screenshots go to the folder in SHOAL_SCREENSHOTS, or to the test's own temporary folder.
"""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from shoal.node.web.address import ListenAddress
from shoal.node.web.board import Board
from shoal.node.web.history import NodeHistory, RunFacts
from shoal.node.web.server import NODE_NAME, WebServer
from tests.support.browser import PROGRAMS, find_browser, open_tab
from tests.support.ports import free_port
from tests.support.processes import Node, all_ended, wait_until
from tests.support.tiny_run import make_tiny_run
from tests.support.web_events import HOSTILE_PEER, log_events, report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_browser() is None,
        reason=f"no browser ({', '.join(PROGRAMS)}): sudo apt-get install chromium",
    ),
]

FACTS = RunFacts(name="demo", num_rounds=6, inner_steps=15)
LIVE = "document.querySelector('#link').dataset.state === 'live'"
WIDTHS = (1280, 400)
THEMES = ("light", "dark")


def text_of(element_id):
    return f"document.getElementById('{element_id}').textContent"


@asynccontextmanager
async def shown(*logs):
    """Nodes' logs replayed through the real server, in a real browser: (server, tab)."""
    names = [NODE_NAME] if len(logs) == 1 else [f"node-{i}" for i in range(len(logs))]
    histories = [NodeHistory(name, FACTS) for name in names]
    for history, events in zip(histories, logs, strict=True):
        for event in events:
            history.take(event)
    # The clock stands shortly after the last event, as if the log were being written.
    now_s = max((h.now.heard_at_s or 0.0 for h in histories), default=0.0) + 1.2
    # A port that nobody else gets while the server is away.
    server = WebServer(Board(histories, lambda: now_s), ListenAddress("127.0.0.1", free_port()))
    program = find_browser()
    assert program is not None
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        tab = await stack.enter_async_context(open_tab(program))
        await tab.open(server.url)
        await tab.until(LIVE)
        yield server, tab


def assert_clean(tab, server):
    """Nothing on the console, and no request to anybody else."""
    assert tab.console == []
    assert tab.requests
    assert [url for url in tab.requests if not url.startswith(server.url)] == []


async def assert_fits(tab):
    """Nothing sticks out on the right."""
    assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture
def pictures(tmp_path):
    folder = Path(os.environ.get("SHOAL_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_real_log_is_shown_at_both_widths_and_in_both_themes(pictures):
    async def body():
        async with shown(log_events("peer")) as (server, tab):
            assert await tab.value(text_of("run-name")) == "demo"
            assert (await tab.value(text_of("t-round"))).startswith("6 of 6")
            assert await tab.value(text_of("t-loss")) == "5.659"
            assert await tab.value("document.querySelectorAll('#c-loss circle').length") == 6
            assert await tab.value("document.querySelectorAll('#c-gather path.s').length") == 3
            assert "6xDe7R" in await tab.value(text_of("tl-slowest"))
            assert await tab.value("document.querySelectorAll('#peers .row').length") == 4
            assert await tab.value(text_of("rejected")) == "No payload has been refused."
            # Under the pointer, at the left end, are the first round's values.
            await tab.value(
                "(s => s.dispatchEvent(new PointerEvent('pointermove',"
                "{clientX: s.getBoundingClientRect().left + 60})))"
                "(document.querySelector('#c-loss svg'))"
            )
            assert "round 1" in await tab.value(text_of("c-loss"))
            assert "6.853" in await tab.value(text_of("c-loss"))
            backgrounds = set()
            for width in WIDTHS:
                for theme in THEMES:
                    await tab.show(width=width, theme=theme)
                    await assert_fits(tab)
                    script = "getComputedStyle(document.body).backgroundColor"
                    backgrounds.add(await tab.value(script))
                    await tab.screenshot(pictures / f"page-{width}-{theme}.png")
            assert len(backgrounds) == 2
            assert_clean(tab, server)

    asyncio.run(body())


def test_a_new_event_appears_by_itself():
    async def body():
        events = log_events("peer")
        async with shown(events[:60]) as (server, tab):
            circles = "document.querySelectorAll('#c-loss circle').length"
            before = await tab.value(circles)
            for event in events[60:]:
                server.take(NODE_NAME, event)
            await tab.until(f"{circles} === 6")
            assert before == 2
            assert await tab.value(text_of("t-phase")) == "finished"
            server.take(NODE_NAME, report(7, state_hash="abcdef0123456789" * 4))
            await tab.until(f"{text_of('t-state')} === 'abcdef012345'")
            assert_clean(tab, server)

    asyncio.run(body())


def test_hostile_names_stay_text(pictures):
    async def body():
        async with shown(log_events("hostile")) as (server, tab):
            assert await tab.value("document.querySelectorAll('main img, main script').length") == 0
            assert await tab.value("document.title") == "round 5, demo"
            titles = await tab.value("[...document.querySelectorAll('.name')].map(e => e.title)")
            assert HOSTILE_PEER[:-1] + "?" in titles
            assert "<script>alert(1)</script>" in await tab.value(text_of("notices"))
            assert "E_LEN" in await tab.value(text_of("rejected"))
            assert "6F273h" in await tab.value(text_of("tl-slowest"))
            for width in WIDTHS:
                await tab.show(width=width, theme=THEMES[width == WIDTHS[0]])
                await assert_fits(tab)
                await tab.screenshot(pictures / f"refusals-{width}.png")
            assert_clean(tab, server)

    asyncio.run(body())


def test_the_policy_stops_inline_scripts_and_foreign_addresses():
    """The second lock: even if a name became markup, nothing would run or be fetched."""

    async def body():
        async with shown(log_events("peer")) as (_, tab):
            await tab.value(
                "document.body.insertAdjacentHTML('beforeend',"
                '\'<img src=x onerror="window.owned=1"><img src="http://192.0.2.1/x.png">\')'
            )
            refused = "fetch('http://192.0.2.1/').then(() => 'sent', () => 'refused')"
            assert await tab.value(refused) == "refused"
            assert await tab.value("typeof window.owned") == "undefined"
            assert any("Content Security Policy" in line for line in tab.console)

    asyncio.run(body())


def test_before_the_first_round(pictures):
    async def body():
        async with shown([]) as (server, tab):
            assert await tab.value(text_of("timeline")) == "No round has been opened yet."
            assert await tab.value(text_of("c-loss")) == "No rounds yet."
            await tab.show(width=1280, theme="light")
            await tab.screenshot(pictures / "empty-1280.png")
            assert_clean(tab, server)

    asyncio.run(body())


def test_a_lost_connection_is_said_and_comes_back(pictures):
    async def body():
        async with shown(log_events("peer")[:60]) as (server, tab):
            await server.stop()
            await tab.until("document.querySelector('#link').dataset.state === 'lost'")
            assert "connection to the node is lost" in await tab.value(text_of("banner"))
            assert await tab.value("document.querySelectorAll('#c-loss circle').length") == 2
            await tab.show(width=1280, theme="dark")
            await tab.screenshot(pictures / "lost-1280.png")
            again = WebServer(server.board, server.address)
            await again.start()
            try:
                await tab.until(LIVE)
                assert await tab.value("document.getElementById('banner').hidden")
                again.take(NODE_NAME, log_events("peer")[-1])
                await tab.until(f"{text_of('t-phase')} === 'finished'")
            finally:
                await again.stop()
            await tab.until("document.querySelector('#link').dataset.state === 'lost'")
            assert await tab.value(text_of("link-text")) == "finished"
            assert "has ended" in await tab.value(text_of("banner"))

    asyncio.run(body())


def test_several_nodes_on_one_page(pictures):
    async def body():
        async with shown(log_events("peer"), log_events("validator")) as (server, tab):
            assert "equal on 2 of 2" in await tab.value(text_of("t-state-more"))
            assert await tab.value(text_of("t-loss-name")) == "Training loss"
            await tab.value(
                "(s => { s.value = 'node-1'; s.dispatchEvent(new Event('change')); })"
                "(document.getElementById('node-select'))"
            )
            assert await tab.value(text_of("t-loss-name")) == "Held-out loss"
            await tab.show(width=1280, theme="light")
            await tab.screenshot(pictures / "two-nodes-1280.png")
            assert_clean(tab, server)

    asyncio.run(body())


def test_a_node_that_trains_shows_its_page(tmp_path, forge):
    """A real validator and a real peer: the validator's page while the run goes on."""
    run = make_tiny_run(tmp_path, num_peers=1, num_rounds=10_000, target_peers=1)
    validator = Node(forge, run.add_node("validator"), run.manifest_file, "validate")
    peer = Node(forge, run.add_node("peer-0"), run.manifest_file, "join")
    for node in (validator, peer):
        with (node.folder / "node.toml").open("a") as file:
            file.write('\n[web]\nlisten = "127.0.0.1:0"\n')
    program = find_browser()
    assert program is not None

    def pages():
        lines = validator.output().splitlines(keepends=True)
        return [line.split()[-1] for line in lines if "page: " in line and line.endswith("\n")]

    async def body(url):
        async with open_tab(program) as tab, aiohttp.ClientSession(url) as client:
            await tab.open(url)
            await tab.until(LIVE)
            assert await tab.value(text_of("run-name")) == "tiny"
            peer.start()
            await tab.until("document.querySelectorAll('#c-loss circle').length >= 1")
            async with client.get("/metrics") as answer:
                assert "shoal_rounds_total" in await answer.text()
            assert tab.console == []

    with all_ended(validator, peer):
        validator.start()
        wait_until(lambda: bool(pages()), "the validator says where its page is")
        asyncio.run(body(pages()[0]))
        for node in (peer, validator):
            node.send(signal.SIGTERM)
            assert node.wait() == 0, node.output()
    rounds = [e["round_id"] for e in validator.events("round")]
    assert rounds == list(range(1, len(rounds) + 1))
