"""Where the pages of a swarm are."""

import socket
import tomllib

import pytest

from shoal.node.errors import ConfigError
from shoal.node.swarm_stores import SwarmStore
from shoal.node.swarm_web import choose_ports, pages_text, with_pages
from shoal.storage.memory import MemoryStore

STORES = SwarmStore(
    store=MemoryStore(), validator_toml='[store]\npath = "v"\n', peer_tomls=('a = "b"\n',) * 2
)


def test_without_the_option_nothing_changes():
    assert choose_ports("", 3) == ()
    assert with_pages(STORES, ()) is STORES


def test_auto_gives_every_node_a_port_of_its_own():
    ports = choose_ports("auto", 50)
    assert len(set(ports)) == 50


def test_the_first_port_is_the_validators_and_the_others_follow():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1]
    first = min(first, 65000)
    ports = choose_ports(str(first), 3)
    assert ports == (first, first + 1, first + 2)
    made = with_pages(STORES, ports)
    assert tomllib.loads(made.validator_toml)["web"] == {"listen": f"127.0.0.1:{first}"}
    listens = [tomllib.loads(toml)["web"]["listen"] for toml in made.peer_tomls]
    assert listens == [f"127.0.0.1:{first + 1}", f"127.0.0.1:{first + 2}"]
    said = pages_text(["validator-0", "peer-0", "peer-1"], ports).splitlines()
    assert said[0] == f"page of validator-0  http://127.0.0.1:{first}/"
    assert len(said) == 3


def test_a_port_that_is_taken_is_said_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--web.*{port}"):
            choose_ports(str(port), 1)


@pytest.mark.parametrize("text", ["0", "65536", "65534", "-1", "8760x", "Auto", "١٢", "9" * 20])
def test_what_is_no_port_is_one_line(text):
    with pytest.raises(ConfigError, match="--web"):
        choose_ports(text, 3)


def test_many_nodes_do_not_fill_the_screen():
    names = [f"node-{number}" for number in range(40)]
    said = pages_text(names, range(8000, 8040)).splitlines()
    assert len(said) == 9
    assert said[-1].startswith("and 32 more")
