"""Who may open another connection to a port that is everybody's."""

import ipaddress
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.listening import MAX_CONNECTIONS, MAX_OF_ONE_NETWORK, has_room, network_of

PUBLIC = "203.0.113.7"


def room(hosts: Iterable[str], host: str) -> bool:
    return has_room([network_of(found) for found in hosts], host)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        (PUBLIC, "203.0.113.7/32"),
        ("::ffff:203.0.113.7", "203.0.113.7/32"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_network_is_an_ipv4_address_or_an_ipv6_64(host: str, network: str) -> None:
    assert network_of(host) == ipaddress.ip_network(network)


def test_one_network_leaves_room_for_others() -> None:
    open_hosts = [PUBLIC] * (MAX_OF_ONE_NETWORK - 1)
    assert room(open_hosts, PUBLIC)
    open_hosts.append(f"::ffff:{PUBLIC}")
    assert not room(open_hosts, PUBLIC)
    assert room(open_hosts, "203.0.113.8")


def test_addresses_of_one_64_are_one_network() -> None:
    open_hosts = [f"2001:db8::{i:x}" for i in range(MAX_OF_ONE_NETWORK)]
    assert not room(open_hosts, "2001:db8::ffff:1")
    assert room(open_hosts, "2001:db8:0:1::1")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_a_reverse_proxy_on_this_machine_may_stand_for_everybody(host: str) -> None:
    assert room([host] * (MAX_CONNECTIONS - 1), host)
    assert not room([host] * MAX_CONNECTIONS, host)


@given(st.lists(st.ip_addresses().map(str), max_size=40), st.ip_addresses().map(str))
def test_few_connections_of_many_networks_always_leave_room(hosts: list[str], host: str) -> None:
    assert room(hosts, host)


def test_few_descriptors_leave_fewer_connections_but_a_quarter_for_one_network() -> None:
    open_now = [network_of(PUBLIC)] * 24
    assert has_room(open_now, PUBLIC, most=100)
    assert not has_room([*open_now, network_of(PUBLIC)], PUBLIC, most=100)
    assert not has_room([network_of(f"198.51.100.{i}") for i in range(100)], PUBLIC, most=100)
