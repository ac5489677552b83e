"""Nodes that reach their month's quota in the middle of a run: real processes, HTTP on loopback."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.node.monthly_use import FILE_NAME
from tests.support.node_forge import CLOCK_FILE
from tests.support.ports import free_port
from tests.support.processes import Forge, Node, all_ended, is_event, run_command, wait_until
from tests.support.tiny_run import TinyRun, make_tiny_run

pytestmark = pytest.mark.slow

MONTH_S = 32 * 86_400
NUM_FOLLOWED = 3
"""Rounds for which a node is watched after its quota is used up."""


class World:
    """A validator that serves and peers that know its address alone."""

    def __init__(self, forge: Forge, folder: Path, num_peers: int) -> None:
        self.run: TinyRun = make_tiny_run(
            folder, num_peers=num_peers, num_rounds=100_000, target_peers=1
        )
        self.clock = folder / "clock"
        self.clock.write_text("0")
        self._url = f"127.0.0.1:{free_port()}"
        env = {CLOCK_FILE: str(self.clock)}
        self.nodes = []
        for name in self.run.identities:
            verb = "validate" if name == "validator" else "join"
            node = Node(forge, self.run.add_node(name), self.run.manifest_file, verb, env)
            self.nodes.append(node)
            self.configure(node)

    def configure(self, node: Node, bandwidth: str = "") -> None:
        """Writes the node's node.toml."""
        text = 'key_file = "key.pem"\nstate_dir = "state"\n'
        if node.name == "validator":
            text += f'[store]\nkind = "directory"\npath = "{self.run.store}"\n'
            text += f'[serve]\nlisten = "{self._url}"\n'
        else:
            text += f'[store]\nkind = "http"\nurl = "http://{self._url}"\n'
        node.config_file.write_text(f"{text}\n[bandwidth]\n{bandwidth}\n")

    def month_passes(self) -> None:
        """For all nodes at once."""
        self.clock.write_text(str(MONTH_S))

    @property
    def first_bytes(self) -> int:
        """What a new peer downloads before it trains."""
        manifest = self.run.manifest
        blobs = (*manifest.data.shards, manifest.data.held_out, manifest.genesis.blob)
        return sum(blob.num_bytes for blob in blobs)


def saved(node: Node, direction: str) -> int:
    """The month's sum on the node's disk."""
    try:
        return int(json.loads((node.folder / "state" / FILE_NAME).read_bytes())[direction])
    except FileNotFoundError:
        return 0


def has_used_up(direction: str) -> Callable[[dict[str, object]], bool]:
    words = f"E_QUOTA the month's {direction} quota is used up"
    return lambda event: event["event"] == "warning" and words in str(event["message"])


def rounds_after(node: Node, num_before: int) -> list[bool]:
    """Whether the node counted in each of its rounds after the first so many."""
    return [bool(event["counted"]) for event in node.events("round")[num_before:]]


def follows(node: Node, num_before: int) -> None:
    """Waits for rounds in which it is not counted."""
    wait_until(lambda: len(node.events("round")) >= num_before + NUM_FOLLOWED, "it follows")
    assert not any(rounds_after(node, num_before))


def publishes_again(node: Node, num_published: int, num_rounds: int) -> None:
    def is_back() -> bool:
        return any(rounds_after(node, num_rounds)) and (
            len(node.events("payload-published")) > num_published
        )

    wait_until(is_back, "it publishes again")


def test_a_used_up_upload_quota_stops_payloads_alone_until_it_is_raised(
    forge: Forge, tmp_path: Path
) -> None:
    world = World(forge, tmp_path, 2)
    _, capped, other = world.nodes
    quota = 4 * world.run.manifest.payload_bytes
    world.configure(capped, f"monthly_upload_bytes = {quota}")
    with all_ended(*world.nodes):
        for node in world.nodes:
            node.start()
        capped.wait_for(has_used_up("upload"))
        published, rounds = len(capped.events("payload-published")), len(capped.events("round"))
        assert published > 0
        follows(capped, rounds + 1)
        assert len(capped.events("payload-published")) == published
        # It still says that it attends, and the run goes on.
        round_id = capped.events("round")[-1]["round_id"]
        attending = world.run.keys.attending(round_id, world.run.identities["peer-0"].peer)
        assert world.run.object_file(attending).exists()
        assert any(rounds_after(other, rounds))

        wait_until(lambda: saved(capped, "up") >= quota, "the sums are on the disk")
        assert capped.kill()
        capped.start()
        capped.wait_for(is_event("node-started"), skip=len(capped.events()))
        follows(capped, len(capped.events("round")))
        assert len(capped.events("payload-published")) == published
        log = tmp_path / "status"
        assert run_command(forge, log, "status", capped.folder / "state") == 0
        assert "E_QUOTA" in log.read_text()
        assert "%)" in log.read_text()

        capped.send(signal.SIGTERM)
        assert capped.wait() == 0
        assert "nothing is published: E_QUOTA" in capped.output()
        rounds = len(capped.events("round"))
        world.configure(capped, f"monthly_upload_bytes = {1 << 40}")
        capped.start()
        publishes_again(capped, published, rounds)
        assert saved(capped, "up") >= quota


def test_the_only_peer_goes_on_by_itself_when_the_month_is_over(
    forge: Forge, tmp_path: Path
) -> None:
    """Nobody else closes the round in which the quota was used up: it must go out in that one."""
    world = World(forge, tmp_path, 1)
    validator, peer = world.nodes
    quota = 4 * world.run.manifest.payload_bytes
    world.configure(peer, f"monthly_upload_bytes = {quota}")
    with all_ended(*world.nodes):
        for node in world.nodes:
            node.start()
        peer.wait_for(has_used_up("upload"))
        # Said when the attempt of the round fails: from then on nothing is closed.
        wait_until(lambda: "nothing is published" in peer.output(), "it says so")
        published, rounds = (len(peer.events(n)) for n in ("payload-published", "round"))
        num_closed = len(validator.events("round"))
        time.sleep(1.0)
        assert len(validator.events("round")) == num_closed
        world.month_passes()
        publishes_again(peer, published, rounds)
        # The round that had stood open is the one that counts first.
        assert rounds_after(peer, rounds)[0]
        peer.send(signal.SIGTERM)
        assert peer.wait() == 0
        assert 0 < saved(peer, "up") < quota + 2 * world.run.manifest.payload_bytes


def test_a_used_up_download_quota_ends_the_node_and_only_that_one(
    forge: Forge, tmp_path: Path
) -> None:
    world = World(forge, tmp_path, 2)
    _, capped, other = world.nodes
    quota = world.first_bytes + 20_000
    world.configure(capped, f"monthly_download_bytes = {quota}")
    with all_ended(*world.nodes):
        for node in world.nodes:
            node.start()
        assert capped.wait() == 4
        assert len(capped.events("round")) > 0
        assert capped.events("node-stopped")[-1]["finished"] is False
        last = capped.output().splitlines()[-1]
        assert last.startswith("shoal: E_QUOTA the month's download quota is used up")
        assert "a new month begins at" in last
        assert saved(capped, "down") >= quota
        # It does not start again, and costs the others nothing.
        assert capped.start().wait() == 4
        rounds = len(other.events("round"))
        wait_until(lambda: len(other.events("round")) > rounds + 1, "the others go on")
        rounds, published = (len(capped.events(n)) for n in ("round", "payload-published"))
        world.month_passes()
        capped.start()
        publishes_again(capped, published, rounds)
