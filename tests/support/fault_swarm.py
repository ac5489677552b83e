"""A small swarm of real processes in which every node's links are in the test's hands.

Over S3: SeaweedFS, a bucket for every peer, and for every node a link of its own to the server and,
for peers, one to the validator's HTTP service. Rounds go on until `finish`, which compares what
every node ended with, and what the records in the store lead to.
"""

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from shoal.node.config import RunPlan, load_run_plan
from shoal.node.swarm_setup import SwarmFolder, set_up_swarm
from shoal.node.swarm_stores import RUN_BUCKET, StoreKind, SwarmStore, with_endpoints
from shoal.protocol.identity import Identity, load_key
from shoal.protocol.schema import Settings
from shoal.storage.s3 import S3Store
from tests.support.answer_faults import refuse_server
from tests.support.background import Background
from tests.support.http_link import HttpLink, Rule
from tests.support.ports import free_port
from tests.support.processes import Event, Forge, Node, all_ended, is_round, wait_until
from tests.support.store_server import StoreServer
from tests.support.tiny_run import StoredRun, replay, write_plan

VALIDATOR = "validator-0"
ROUND_S = 10.0
LOOK_S = 0.1
"""Whole event logs are read every time."""
_SIZES = {"hidden_size": 128, "intermediate_size": 384}
_MAX_OBJECT_BYTES = 1 << 26


@dataclass(kw_only=True)
class FaultSwarm:
    """What a fault test has at hand."""

    root: Path
    folder: SwarmFolder
    background: Background
    store: StoreServer
    nodes: dict[str, Node]
    store_links: dict[str, HttpLink]
    inbox_links: dict[str, HttpLink]

    @property
    def validator(self) -> Node:
        """The only one."""
        return self.nodes[VALIDATOR]

    @property
    def peers(self) -> list[str]:
        """Names of all but the validator."""
        return [name for name in self.nodes if name != VALIDATOR]

    def identity(self, name: str) -> Identity:
        """A node's."""
        return load_key(self.nodes[name].folder / "key.pem")

    def last_round(self, name: str = VALIDATOR) -> int:
        """The last one that a node has applied."""
        rounds = self.nodes[name].events("round")
        return int(rounds[-1]["round_id"]) if rounds else 0

    def report(self, name: str, round_id: int) -> Event:
        """A node's report of a round."""
        return next(e for e in self.nodes[name].events("round") if e["round_id"] == round_id)

    def wait_for_round(self, round_id: int, *names: str) -> None:
        """Until these nodes, or all, have applied it."""
        for name in names or self.nodes:
            self.nodes[name].wait_for(is_round(round_id), poll_s=LOOK_S)

    def wait_until_counted(self, name: str, after: int) -> int:
        """The first round after `after` in which a peer counts."""

        def counts(event: Event) -> bool:
            return bool(
                event["event"] == "round" and event["round_id"] > after and event["counted"]
            )

        found: int = self.nodes[name].wait_for(counts, poll_s=LOOK_S)["round_id"]
        return found

    def rejections(self) -> set[tuple[str, int, str, str]]:
        """All: who refused, round, whose payload, code."""
        names = {self.identity(name).peer.key.hex(): name for name in self.peers}
        return {
            (observer, e["round_id"], names[e["peer"]], e["code"])
            for observer, node in self.nodes.items()
            for e in node.events("payload-rejected")
        }

    def warnings(self, name: str, text: str, since_s: float = 0.0) -> list[Event]:
        """A node's warnings with a text in them."""
        events = self.nodes[name].events("warning")
        return [e for e in events if text in e["message"] and e["time_s"] >= since_s]

    def links_of(self, names: Iterable[str], kinds: str = "all") -> list[HttpLink]:
        """Links of these nodes, of a kind: store, validator (what joins it to others) or all."""
        names = tuple(names)
        stores = [self.store_links[n] for n in names if kinds != "validator" or n == VALIDATOR]
        inboxes = [self.inbox_links[n] for n in names if kinds != "store" and n != VALIDATOR]
        return stores + inboxes

    def cut(self, *names: str, hangs: bool, kinds: str = "all") -> None:
        """Cuts links of these nodes."""
        for link in self.links_of(names, kinds):
            self.background.call(partial(link.cut, hangs=hangs))

    def mend(self, *names: str) -> None:
        """Mends all links of these nodes."""
        for link in self.links_of(names):
            self.background.call(link.mend)

    def restart_store(self) -> None:
        """Starts the killed S3 server again; the links lead to it."""
        self.background.run(self.store.start())
        for link in self.store_links.values():
            link.target = ("127.0.0.1", self.store.port)

    def finish(self) -> int:
        """Ends the run after the next round, and checks that all hold the records' parameters.

        Returns:
            The last round.
        """
        last = max(self.last_round(name) for name in self.nodes) + 1
        end = Rule(lambda s: s.method == "PUT" and _round_of(s.path) > last, refuse_server)
        self.store_links[VALIDATOR].rules.insert(0, end)
        self.wait_for_round(last)
        wait_until(
            lambda: end.num_done > 0, "the validator tries to write one record more", poll_s=LOOK_S
        )
        last = max(self.last_round(name) for name in self.nodes)
        self.wait_for_round(last)
        for name in (*self.peers, VALIDATOR):
            self.nodes[name].send(signal.SIGTERM)
            assert self.nodes[name].wait() == 0, self.nodes[name].output()[-3000:]
        self._compare(last)
        return last

    def _compare(self, last: int) -> None:
        server = self.store
        store = S3Store(server.server.config(RUN_BUCKET), server.keys[RUN_BUCKET].writer)

        def read(key: str) -> bytes:
            return self.background.run(store.get(key, max_bytes=_MAX_OBJECT_BYTES))

        try:
            replayed = replay(StoredRun(self.folder.manifest, read), last)
        finally:
            store.close()
        for name, node in self.nodes.items():
            assert "Traceback" not in node.output(), node.output()[-3000:]
            end = node.events("node-stopped")[-1]
            assert end["round_id"] == last, name
            assert end["state_hash"] == replayed.head.state.hex(), name
            assert end["parameters_root"] == replayed.parameters_root, name
            rounds = [event["round_id"] for event in node.events("round")]
            assert rounds == list(range(1, last + 1)), f"{name} skipped or repeated a round"


def _round_of(path: str) -> int:
    """The round of a record's path; 0 for any other path."""
    parts = path.split("/")
    return int(parts[-2]) if parts[-1] == "record" else 0


@contextmanager
def s3_swarm(
    forge: Forge,
    root: Path,
    *,
    target_peers: int,
    round_seconds: float = ROUND_S,
    num_peers: int = 3,
    is_large: bool = False,
) -> Iterator[FaultSwarm]:
    """Sets up and starts; no node is left behind.

    Args:
        forge: Starts nodes.
        root: An empty folder.
        target_peers: As in the manifest.
        round_seconds: As in the manifest.
        num_peers: Peers, named peer-0 and on.
        is_large: Payloads of some 140 KB, so that a link can break within one.
    """
    names = [VALIDATOR, *(f"peer-{i}" for i in range(num_peers))]
    with ExitStack() as held:
        background = held.enter_context(Background())
        running = StoreServer.running(root / "s3", [RUN_BUCKET, *names[1:]])
        store = background.enter(running)
        port, inbox_port = store.port, free_port()
        store_links = {name: _link(background, port) for name in names}
        inbox_links = {name: _link(background, inbox_port) for name in names[1:]}
        plan = tiny_plan(
            root / "plan",
            target_peers=target_peers,
            round_seconds=round_seconds,
            is_large=is_large,
        )
        run_store = S3Store(store.server.config(RUN_BUCKET), store.keys[RUN_BUCKET].writer)
        held.callback(run_store.close)
        validator_toml = _store_toml(store_links[VALIDATOR]) + toml(
            "serve", listen=f"127.0.0.1:{inbox_port}"
        )
        stores = SwarmStore(
            store=run_store,
            validator_toml=validator_toml,
            peer_tomls=tuple(
                _peer_toml(name, store_links[name], inbox_links[name]) for name in names[1:]
            ),
        )
        folder = background.run(set_up_swarm(plan, root, stores))
        nodes = {path.name: _node(forge, folder, path, store) for path in folder.nodes}
        held.enter_context(all_ended(*nodes.values()))
        yield FaultSwarm(
            root=root,
            folder=folder,
            background=background,
            store=store,
            nodes=nodes,
            store_links=store_links,
            inbox_links=inbox_links,
        )


def tiny_plan(
    folder: Path, *, target_peers: int, round_seconds: float, is_large: bool = False
) -> RunPlan:
    """A tiny run without an end, with its places on this machine."""
    file = write_plan(
        folder, num_rounds=100_000, round_seconds=round_seconds, target_peers=target_peers
    )
    plan = with_endpoints(load_run_plan(file), StoreKind.S3)
    if not is_large:
        return plan
    fields = tuple((name, _SIZES.get(name, value)) for name, value in plan.model.settings.items)
    model = replace(plan.model, settings=Settings(fields))
    # Four bits and more for every parameter: much to send, little to compute.
    codec = replace(plan.codec, chunk_size=16, k_per_chunk=15)
    return replace(plan, model=model, codec=codec)


def _link(background: Background, port: int) -> HttpLink:
    link = HttpLink("127.0.0.1", port)
    background.enter(link.server)
    return link


def _node(forge: Forge, folder: SwarmFolder, path: Path, store: StoreServer) -> Node:
    is_validator = path.name == VALIDATOR
    key = store.keys[RUN_BUCKET if is_validator else path.name].writer
    env = {"SHOAL_S3_ACCESS_KEY_ID": key.access_key, "SHOAL_S3_SECRET_ACCESS_KEY": key.secret_key}
    verb = "validate" if is_validator else "join"
    return Node(forge, path, folder.manifest_file, verb, env)


def _store_toml(link: HttpLink, url: str = "") -> str:
    place = {"kind": "s3", "endpoint": f"http://127.0.0.1:{link.port}", "bucket": RUN_BUCKET}
    return toml("store", **place, url=url, lists_in_order=False) + (
        "" if url else toml("payloads", local_port=link.port)
    )


def _peer_toml(name: str, link: HttpLink, inbox: HttpLink) -> str:
    own = toml("payloads", kind="s3", provider="local", bucket=name, local_port=link.port)
    return _store_toml(link, f"http://127.0.0.1:{inbox.port}") + own


def toml(section: str, **fields: object) -> str:
    """A section of a TOML file; JSON spells what is used here as TOML does."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["", f"[{section}]", *lines, ""])


def lasts(condition: Callable[[], bool], duration_s: float, what: str) -> None:
    """Looks for some seconds that a condition holds all the time."""
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        assert condition(), what
        time.sleep(LOOK_S)
