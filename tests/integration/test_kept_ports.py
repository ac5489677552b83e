"""A port that a test has chosen for a server of its own is still there when that starts."""

import errno
import socket

import pytest

from tests.support.ports import HOST, free_port


def test_a_chosen_port_is_left_to_its_server_at_every_start() -> None:
    port = free_port()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
        with socket.socket() as stranger, pytest.raises(OSError, match="in use") as caught:
            # As the kernel looks for a connection's own port, so without SO_REUSEADDR.
            stranger.bind((HOST, port))
        assert caught.value.errno == errno.EADDRINUSE
        with (
            socket.create_server((HOST, port)) as server,
            socket.create_connection((HOST, port)) as client,
        ):
            server.accept()[0].close()
            assert client.getpeername()[1] == port


def test_no_port_is_chosen_twice() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)
