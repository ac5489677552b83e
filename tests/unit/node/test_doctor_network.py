"""What doctor makes of what seeds and other peers say."""

from pathlib import Path

import pytest

from shoal.node.config import NetworkConfig, NodeConfig, StoreConfig
from shoal.node.doctor_lines import DoctorCode, Level
from shoal.node.doctor_network import beside_a_running_node, describe, judge_reach
from shoal.node.locks import lock_folder
from shoal.node.network.finding_messages import Probed, Reach


def test_each_step_has_its_time_and_the_first_failure_its_cause():
    took_ms = {"tcp": 3, "handshake": 84, "dht": 24, "run": 5}
    assert describe(Probed(took_ms=took_ms)) == "TCP 3 ms, handshake 84 ms, DHT 24 ms, run id 5 ms"
    failed = Probed(took_ms={"tcp": 3}, failed_step="handshake", detail="another id")
    assert describe(failed) == "TCP 3 ms, handshake failed: another id"
    before = Probed(took_ms=took_ms, was_connected=True)
    assert describe(before) == "connected already, TCP 3 ms, DHT 24 ms, run id 5 ms"
    assert describe(Probed(took_ms={})) == "this node itself"


@pytest.mark.parametrize(
    ("reach", "level", "words", "fix"),
    [
        (Reach(status="unasked"), Level.OK, "client_mode", ""),
        (
            Reach(status="reached", observed="/ip4/1.1.1.1", ports=("tcp/4001",)),
            Level.OK,
            "/ip4/1.1.1.1, tcp/4001",
            "",
        ),
        (
            Reach(status="not-reached", observed="/ip4/1.1.1.1", ports=("tcp/4001",)),
            Level.WARNING,
            "only outgoing connections",
            'announce = ["/ip4/1.1.1.1/tcp/4001"]',
        ),
        (
            Reach(status="not-reached", observed="/ip6/2606::1", ports=("quic/4001",)),
            Level.WARNING,
            "quic/4001",
            "/ip6/2606::1/udp/4001/quic-v1",
        ),
        (Reach(status="nobody", answers=("Qm1: busy",)), Level.WARNING, "Qm1: busy", "seeds"),
        (Reach(status="nobody"), Level.WARNING, "no peer is connected", "seeds"),
    ],
)
def test_reachability_says_what_follows_and_what_mends_it(reach, level, words, fix):
    line = judge_reach(reach)
    assert (line.code, line.level) == (DoctorCode.REACHABLE, level)
    assert words in line.found
    assert fix in line.fix


def config_of(folder: Path, *, enabled: bool) -> NodeConfig:
    return NodeConfig(
        key_file="key.pem",
        state_dir=str(folder),
        store=StoreConfig(),
        network=NetworkConfig(enabled=enabled),
    )


def test_a_running_node_is_looked_at_from_beside(tmp_path):
    config = config_of(tmp_path, enabled=True)
    with beside_a_running_node(config) as looking:
        assert looking is config
    with lock_folder(tmp_path, "the state folder"), beside_a_running_node(config) as looking:
        assert looking.network.client_mode
        assert looking.state_dir != config.state_dir
        assert Path(looking.state_dir).is_dir()
    assert not Path(looking.state_dir).exists()
    # A node without a network process has nothing that could be in the way.
    quiet = config_of(tmp_path, enabled=False)
    with lock_folder(tmp_path, "the state folder"), beside_a_running_node(quiet) as looking:
        assert looking is quiet
