"""The swarm of a soak: a validator, peers on S3 and on libp2p, each behind links of its own.

Guarantees: real `shoal` processes; every node reaches the S3 server and the validator through
proxies that belong to it alone; whatever ends the context, no process is left.
"""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.soak.links import Links, libp2p_id, open_links
from benchmarks.soak.procfs import TOKEN_NAME
from benchmarks.soak.settings import SoakSettings
from benchmarks.soak.waiting import happens, run_python
from shoal.node.config import RunPlan, load_run_plan
from shoal.node.start_node import EVENTS_FILE
from shoal.node.swarm_events import NodeView
from shoal.node.swarm_setup import SwarmFolder, set_up_swarm
from shoal.node.swarm_stores import RUN_BUCKET, StoreKind, SwarmStore, with_endpoints
from shoal.protocol.identity import PeerId, load_key
from shoal.protocol.schema import Settings
from shoal.storage.s3 import S3Store
from shoal.storage.s3_config import S3Credentials
from tests.support.ports import HOST, free_port
from tests.support.processes import Forge, Node
from tests.support.store_server import StoreServer
from tests.support.tiny_run import write_plan

VALIDATOR: Final = "validator-0"
_NUM_ROUNDS: Final = 100_000
_LEAVE_S: Final = 120.0
_MAX_REVIVED: Final = 3
_SIZES: Final = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}


@dataclass(kw_only=True)
class SoakNode:
    """One node, its links and what its event log says."""

    kind: str
    """validator, s3 or p2p."""
    peer: PeerId
    node: Node
    view: NodeView
    links: Links
    num_revived: int = 0
    """How often it ended though no fault had hit it, and was started again."""
    may_end: bool = False
    """A fault is about to end its process."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.node.name


@dataclass(kw_only=True)
class Swarm:
    """Everything of a soak that runs."""

    root: Path
    token: str
    folder: SwarmFolder
    forge: Forge
    store: StoreServer
    nodes: list[SoakNode]
    run_store: S3Store
    """This process's own view of the run's bucket, not through a link."""
    unexpected: list[str]
    """Nodes that ended though no fault had hit them."""

    @property
    def validator(self) -> SoakNode:
        """The only one."""
        return self.nodes[0]

    @property
    def peers(self) -> list[SoakNode]:
        """All but the validator."""
        return self.nodes[1:]

    async def restart_store(self) -> None:
        """Starts the S3 server again and leads all links to it."""
        await self.store.start()
        for node in self.nodes:
            node.links.store.lead_to(HOST, self.store.port)
        self.run_store.close()
        self.run_store = _run_store(self.store)

    def look(self) -> None:
        """Reads the event logs; starts nodes again that ended by themselves, and notes it."""
        for node in self.nodes:
            node.view.read_new()
            if node.may_end or node.node.pid == 0:
                continue
            code = node.node.exit_code()
            if code is not None and node.num_revived < _MAX_REVIVED:
                last = node.node.output().strip()[-300:]
                self.unexpected.append(f"{node.name} ended with code {code}: {last}")
                node.num_revived += 1
                node.node.start()

    async def leave(self) -> list[str]:
        """Asks all to leave, peers first; gives the names of those that did not leave well."""
        failed = []
        for group in (self.peers, [self.validator]):
            running = [node for node in group if _is_running(node)]
            for node in running:
                node.may_end = True
                node.node.send(signal.SIGTERM)
            await happens(partial(_none_running, running), _LEAVE_S)
            failed += [node.name for node in running if node.node.exit_code() != 0]
        return failed

    def close(self) -> None:
        """Ends at once what is left."""
        self.run_store.close()
        for node in self.nodes:
            if _is_running(node):
                node.node.send(signal.SIGKILL)


def _none_running(nodes: list[SoakNode]) -> bool:
    return not any(map(_is_running, nodes))


def _is_running(node: SoakNode) -> bool:
    return node.node.pid != 0 and node.node.exit_code() is None


@asynccontextmanager
async def open_swarm(settings: SoakSettings, root: Path, token: str) -> AsyncIterator[Swarm]:
    """Sets a run up in an empty folder; no node runs yet."""
    temporary = root / "tmp"
    temporary.mkdir(parents=True)
    # Once for all nodes, which else would all compile the same kernels at the same time.
    await run_python("-c", "from shoal.compression.warm_up import warm_up; warm_up()")
    async with AsyncExitStack() as held:
        forge = Forge(**{TOKEN_NAME: token, "TMPDIR": str(temporary)})
        held.callback(forge.close)
        buckets = [f"peer-{i}" for i in range(settings.num_s3)]
        store = await held.enter_async_context(
            StoreServer.running(root / "s3", [RUN_BUCKET, *buckets])
        )
        swarm = await _assemble(settings, root, token, forge, store, held)
        held.callback(swarm.close)
        yield swarm


async def _assemble(
    settings: SoakSettings,
    root: Path,
    token: str,
    forge: Forge,
    store: StoreServer,
    held: AsyncExitStack,
) -> Swarm:
    names = [VALIDATOR, *(f"peer-{i}" for i in range(settings.num_peers))]
    kinds = ["validator", *["s3"] * settings.num_s3, *["p2p"] * settings.num_p2p]
    inbox_port = free_port()
    with_inbox = names[1:] if settings.p2p_over_http else names[1 : 1 + settings.num_s3]
    open_now, links = await open_links(names, store.port, inbox_port, with_inbox)
    await held.enter_async_context(open_now)
    seeds = []
    if not settings.p2p_over_http:
        identity = await libp2p_id(root / "nodes" / VALIDATOR)
        seeds = [f"{_place(links[VALIDATOR])}/p2p/{identity}"]
    tomls = [
        _node_toml(kind, name, links[name], inbox_port, seeds)
        for kind, name in zip(kinds, names, strict=True)
    ]
    run_store = _run_store(store)
    plan = _plan(settings, root / "plan")
    opened = SwarmStore(store=run_store, validator_toml=tomls[0], peer_tomls=tuple(tomls[1:]))
    folder = await set_up_swarm(plan, root, opened)
    nodes = []
    for kind, path in zip(kinds, folder.nodes, strict=True):
        verb = "validate" if kind == "validator" else "join"
        bucket = RUN_BUCKET if kind == "validator" else path.name
        env = _secrets(store.keys[bucket].writer) if bucket in store.keys else {}
        nodes.append(
            SoakNode(
                kind=kind,
                peer=load_key(path / "key.pem").peer,
                node=Node(forge, path, folder.manifest_file, verb, env),
                view=NodeView(name=path.name, log=path / "state" / EVENTS_FILE),
                links=links[path.name],
            )
        )
    return Swarm(
        root=root,
        token=token,
        folder=folder,
        forge=forge,
        store=store,
        nodes=nodes,
        run_store=run_store,
        unexpected=[],
    )


def _run_store(store: StoreServer) -> S3Store:
    return S3Store(store.server.config(RUN_BUCKET), store.keys[RUN_BUCKET].writer)


def _plan(settings: SoakSettings, folder: Path) -> RunPlan:
    tiny = load_run_plan(
        write_plan(
            folder,
            num_rounds=_NUM_ROUNDS,
            inner_steps=settings.inner_steps,
            round_seconds=settings.round_seconds,
            target_peers=settings.target_peers,
        )
    )
    fields = tuple((name, _SIZES.get(name, value)) for name, value in tiny.model.settings.items)
    model = replace(tiny.model, settings=Settings(fields))
    return with_endpoints(replace(tiny, model=model), StoreKind.S3)


def _place(links: Links) -> str:
    return f"/ip4/{HOST}/tcp/{links.libp2p.port}"


def _node_toml(kind: str, name: str, links: Links, inbox_port: int, seeds: list[str]) -> str:
    """The sections of node.toml that say where objects are."""
    store_port = links.store.port
    bucket = {
        "kind": "s3",
        "endpoint": f"http://{HOST}:{store_port}",
        "bucket": RUN_BUCKET,
        "lists_in_order": False,
    }
    network = _toml(
        "network",
        enabled=True,
        listen=[f"/ip4/{HOST}/tcp/{links.libp2p_port}"],
        announce=[_place(links)],
        seeds=[] if kind == "validator" else seeds,
    )
    url = {} if links.inbox is None else {"url": f"http://{HOST}:{links.inbox.port}"}
    if kind == "validator":
        serve = _toml("serve", listen=f"{HOST}:{inbox_port}")
        return _toml("store", **bucket) + _toml("payloads", local_port=store_port) + serve + network
    if kind == "s3":
        own = _toml("payloads", kind="s3", provider="local", bucket=name, local_port=store_port)
        return _toml("store", **bucket, **url) + own + network
    own = _toml("payloads", kind="p2p", local_port=store_port)
    return _toml("store", kind="http" if url else "p2p", **url) + own + network


def _toml(section: str, **fields: object) -> str:
    # JSON spells these types as TOML does.
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["", f"[{section}]", *lines, ""])


def _secrets(key: S3Credentials) -> dict[str, str]:
    return {
        "SHOAL_S3_ACCESS_KEY_ID": key.access_key,
        "SHOAL_S3_SECRET_ACCESS_KEY": key.secret_key,
    }
