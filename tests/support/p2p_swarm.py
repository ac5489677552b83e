"""A small swarm over libp2p whose nodes can be cut off, and whose processes can be killed.

Where namespaces can be made every node has one of its own, and a cut swallows packets in between.
Elsewhere all nodes are on loopback, others reach a node's libp2p port through a proxy, and peers
the validator's HTTP service through a link: a cut hangs the one and resets the other.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shoal.node.swarm_setup import SwarmFolder, set_up_swarm
from shoal.node.swarm_stores import SwarmStore
from shoal.storage.directory import DirectoryStore
from tests.support.background import Background
from tests.support.fault_swarm import LOOK_S, ROUND_S, VALIDATOR, tiny_plan, toml
from tests.support.http_link import HttpLink
from tests.support.namespaces import NamespaceLab, network, why_not
from tests.support.ports import free_port
from tests.support.processes import Event, Forge, Node, all_ended, is_round, wait_until
from tests.support.shaping_proxy import ShapingProxy
from tests.support.tiny_run import TinyRun, replay

NETWORK_MODULE = "shoal.node.network"
_INBOX_PORT = 8400
_P2P_PORT = 8401


class Links(Protocol):
    """How the nodes of a swarm are joined."""

    is_total: bool
    """A cut leaves nothing; else a peer keeps the libp2p connections that it has opened itself."""

    def cut(self, name: str) -> None:
        """Nothing gets from or to a node from now on."""
        ...

    def mend(self, name: str) -> None:
        """Everything does."""
        ...

    def num_met(self, name: str) -> int:
        """How often a node has met its links so far: packets or requests."""
        ...

    def toml(self, name: str) -> str:
        """What a node's configuration says about them."""
        ...

    def namespace(self, name: str) -> str:
        """Where a node runs; empty: here."""
        ...

    def attack_from(self, name: str) -> tuple[str, str]:
        """Where the test itself, in a node's place, may listen, and the validator's URL."""
        ...


class NamespaceLinks:
    """Real packets between namespaces."""

    is_total = True

    def __init__(self, lab: NamespaceLab) -> None:
        self._lab = lab
        self.cut = lab.cut
        self.mend = lab.mend
        self.namespace = lab.namespace

    def num_met(self, name: str) -> int:
        """Packets that came from the node."""
        return self._lab.num_packets(name)[0]

    def toml(self, name: str) -> str:
        """Addresses of the namespaces."""
        inbox = f"{self._lab.address(VALIDATOR)}:{_INBOX_PORT}"
        return _toml(name, inbox, inbox, [f"/ip4/{self._lab.address(name)}/tcp/{_P2P_PORT}"])

    def attack_from(self, name: str) -> tuple[str, str]:
        """In the node's namespace."""
        url = f"http://{self._lab.address(VALIDATOR)}:{_INBOX_PORT}"
        return f"/ip4/{self._lab.address(name)}/tcp/{_P2P_PORT}", url


@dataclass
class ProxyLinks:
    """Loopback, and proxies in between."""

    is_total = False
    background: Background
    names: list[str]
    inbox_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self._ports = {name: free_port() for name in self.names}
        self._inboxes: dict[str, HttpLink] = {}
        self._proxies: dict[str, ShapingProxy] = {}
        for name in self.names:
            self._inboxes[name] = HttpLink("127.0.0.1", self.inbox_port)
            self._proxies[name] = ShapingProxy("127.0.0.1", self._ports[name])
            self.background.enter(self._inboxes[name].server)
            self.background.enter(self._proxies[name])

    def cut(self, name: str) -> None:
        """Its requests hang, connections to it are reset.

        Those that it has opened are others' proxies' to cut, who do not know whose they are: for
        the validator, on whose word all depends, everybody's are.
        """
        self._set_cut(name, is_cut=True)
        for link in self._links(name):
            self.background.call(lambda link=link: link.cut(hangs=True))  # type: ignore[misc] # bound now

    def mend(self, name: str) -> None:
        """The contrary."""
        self._set_cut(name, is_cut=False)
        for link in self._links(name):
            self.background.call(link.mend)

    def num_met(self, name: str) -> int:
        """Requests and connections."""
        passed = sum(link.num_cut + link.num_passed for link in self._links(name))
        return passed + self._proxies[name].num_connections

    def toml(self, name: str) -> str:
        """Addresses of the proxies."""
        listen = [f"/ip4/127.0.0.1/tcp/{self._ports[name]}"]
        announce = [f"/ip4/127.0.0.1/tcp/{self._proxies[name].port}"]
        serves, asks = f"127.0.0.1:{self.inbox_port}", f"127.0.0.1:{self._inboxes[name].port}"
        return _toml(name, serves, asks, listen, announce=announce)

    def namespace(self, _: str) -> str:
        """None."""
        return ""

    def attack_from(self, name: str) -> tuple[str, str]:
        """On loopback."""
        url = f"http://127.0.0.1:{self.inbox_port}"
        return f"/ip4/127.0.0.1/tcp/{self._ports[name]}", url

    def _set_cut(self, name: str, *, is_cut: bool) -> None:
        for proxy in self._proxies.values() if name == VALIDATOR else [self._proxies[name]]:
            proxy.link.is_cut = is_cut

    def _links(self, name: str) -> list[HttpLink]:
        return list(self._inboxes.values()) if name == VALIDATOR else [self._inboxes[name]]


def _toml(name: str, serves: str, asks: str, listen: list[str], **more: list[str]) -> str:
    p2p = toml("network", enabled=True, listen=listen, **more)
    if name == VALIDATOR:
        store = toml("store", kind="directory", path="../../store")
        return store + toml("serve", listen=serves) + p2p
    store = toml("store", kind="http", url=f"http://{asks}")
    return store + toml("payloads", kind="p2p") + p2p


@dataclass(kw_only=True)
class P2PSwarm:
    """What a test has at hand."""

    root: Path
    folder: SwarmFolder
    background: Background
    links: Links
    nodes: dict[str, Node]
    temporary: Path
    """Where the nodes and what they start put temporary files."""

    @property
    def peers(self) -> list[str]:
        """Names of all but the validator."""
        return [name for name in self.nodes if name != VALIDATOR]

    def last_round(self, name: str = VALIDATOR) -> int:
        """The last one that a node has applied."""
        rounds = self.nodes[name].events("round")
        return int(rounds[-1]["round_id"]) if rounds else 0

    def report(self, name: str, round_id: int) -> Event:
        """A node's report of a round."""
        return next(e for e in self.nodes[name].events("round") if e["round_id"] == round_id)

    def wait_for_round(self, round_id: int, *names: str) -> None:
        """Until these nodes have applied it."""
        for name in names:
            self.nodes[name].wait_for(is_round(round_id), poll_s=LOOK_S)

    def wait_until_counted(self, name: str, after: int) -> int:
        """The first round after `after` in which a peer counts."""

        def counts(event: Event) -> bool:
            return bool(
                event["event"] == "round" and event["round_id"] > after and event["counted"]
            )

        return int(self.nodes[name].wait_for(counts, poll_s=LOOK_S)["round_id"])

    def finish(self, *absent: str) -> None:
        """Ends all nodes, and checks what each ended with against the records in the store.

        Args:
            absent: Nodes that do not run.
        """
        nodes = {name: node for name, node in self.nodes.items() if name not in absent}
        at, peers = self.last_round(), [name for name in nodes if name != VALIDATOR]
        self.wait_for_round(at, *nodes)
        for names in (peers, [VALIDATOR]):
            for name in names:
                self.nodes[name].send(signal.SIGTERM)
            for name in names:
                assert self.nodes[name].wait() == 0, self.nodes[name].output()[-3000:]
        run = TinyRun(root=self.root, manifest=self.folder.manifest, identities={})
        for name, node in nodes.items():
            assert "Traceback" not in node.output(), node.output()[-3000:]
            end = node.events("node-stopped")[-1]
            assert end["round_id"] >= at, f"{name} has stayed behind"
            replayed = replay(run, end["round_id"])
            assert end["state_hash"] == replayed.head.state.hex(), name
            assert end["parameters_root"] == replayed.parameters_root, name
            rounds = [event["round_id"] for event in node.events("round")]
            assert rounds == list(range(1, end["round_id"] + 1)), name


@contextmanager
def p2p_swarm(
    forge: Forge, root: Path, *, num_peers: int, target_peers: int, round_seconds: float = ROUND_S
) -> Iterator[P2PSwarm]:
    """Sets up; no node runs yet, and none is left behind.

    Args:
        forge: Starts nodes.
        root: An empty folder with a short path: sockets are made below it.
        num_peers: Peers, named peer-0 and on.
        target_peers: As in the manifest.
        round_seconds: As in the manifest.
    """
    names = [VALIDATOR, *(f"peer-{i}" for i in range(num_peers))]
    temporary = root / "tmp"
    temporary.mkdir(parents=True)
    (root / "store").mkdir()
    with ExitStack() as held:
        background = held.enter_context(Background())
        links = _join(held, background, names)
        plan = tiny_plan(root / "plan", target_peers=target_peers, round_seconds=round_seconds)
        stores = SwarmStore(
            store=DirectoryStore(root / "store"),
            validator_toml=links.toml(VALIDATOR),
            peer_tomls=tuple(links.toml(name) for name in names[1:]),
        )
        folder = asyncio.run(set_up_swarm(plan, root, stores))
        nodes = {}
        for path in folder.nodes:
            verb = "validate" if path.name == VALIDATOR else "join"
            env = {"TMPDIR": str(temporary)}
            where = links.namespace(path.name)
            nodes[path.name] = Node(forge, path, folder.manifest_file, verb, env, where)
        held.enter_context(all_ended(*nodes.values()))
        yield P2PSwarm(
            root=root,
            folder=folder,
            background=background,
            links=links,
            nodes=nodes,
            temporary=temporary,
        )


def _join(held: ExitStack, background: Background, names: list[str]) -> Links:
    reason = why_not()
    if reason:
        print(f"cuts are made by proxies on loopback: {reason}")  # noqa: T201  # for the reader
        return ProxyLinks(background, names)
    return NamespaceLinks(held.enter_context(network(names)))


@dataclass(frozen=True)
class NetworkProcesses:
    """The processes that a node has started for its network."""

    daemon: int
    p2pd: int


def network_of(node: Node) -> NetworkProcesses | None:
    """A node's; None while they are not both there."""
    for daemon in _children(node.pid):
        if NETWORK_MODULE in _command(daemon):
            for child in _children(daemon):
                if "p2pd" in _command(child).split(" ")[0]:
                    return NetworkProcesses(daemon, child)
    return None


def wait_for_network(node: Node) -> NetworkProcesses:
    """A node's, once they are both there: a busy machine may be replacing them just now."""
    found: list[NetworkProcesses] = []

    def look() -> bool:
        found[:] = [one for one in [network_of(node)] if one is not None]
        return bool(found)

    wait_until(look, f"{node.name} has a network process and a p2pd", poll_s=LOOK_S)
    return found[0]


def processes_with(text: str) -> list[str]:
    """Commands of running processes that mention a text."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [command for command in map(_command, pids) if text in command]


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace")
