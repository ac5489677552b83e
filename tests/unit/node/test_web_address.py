import pytest

from shoal.node.config import load_node_config
from shoal.node.errors import ConfigError
from shoal.node.web.address import ListenAddress, is_allowed_host, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:0", "localhost", 0),
        ("[::1]:80", "[::1]", 80),
        ("10.1.2.3:65535", "10.1.2.3", 65535),
        ("gpu-1.example:9", "gpu-1.example", 9),
    ],
)
def test_addresses(text, host, port):
    assert parse_listen(text) == ListenAddress(host, port)


@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", "[zz]:80",
     "[:::]:80", "a b:80", "127.0.0.1:80\n", "http://127.0.0.1:80", "127.0.0.1:8\u0660"],
)  # fmt: skip
def test_what_is_no_address(text):
    assert parse_listen(text) is None


LOOPBACK = ListenAddress("127.0.0.1", 8080)
ANYWHERE = ListenAddress("0.0.0.0", 8080)  # noqa: S104  # nothing is bound here


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080"]
)
def test_on_loopback_its_own_names_are_allowed(host):
    assert is_allowed_host(host, LOOPBACK)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example:8080", "evil.example", "127.0.0.1", "127.0.0.1:80", "localhost",
     "localhost:1", "127.0.0.1.evil.example:8080", "localhost.evil.example:8080",
     "127.0.0.1:8080.evil.example", "192.168.0.7:8080", "user@127.0.0.1:8080",
     "127.0.0.1:8080,evil", "[::1]", "0.0.0.0:8080",
     "localhost.:8080", "\u24db\u24de:8080", "127.0.0.1:08080x"],
)  # fmt: skip
def test_on_loopback_everything_else_is_refused(host):
    assert not is_allowed_host(host, LOOPBACK)


@pytest.mark.parametrize("host", ["10.0.0.7:9000", "10.0.0.7", "[fe80::1]:9000", "localhost:1"])
def test_elsewhere_numbers_are_allowed_with_any_port(host):
    assert is_allowed_host(host, ANYWHERE)


@pytest.mark.parametrize("host", ["evil.example:8080", "evil.example", "10.0.0.7.evil.example"])
def test_elsewhere_names_are_refused_unless_listed(host):
    assert not is_allowed_host(host, ANYWHERE)
    assert is_allowed_host("gpu.lan", ANYWHERE, {"gpu.lan"})
    assert is_allowed_host("gpu.lan:443", LOOPBACK, {"gpu.lan"})


NODE = 'key_file = "k"\nstate_dir = "s"\n[store]\npath = "p"\n'


def test_without_a_section_there_is_no_page(tmp_path):
    (tmp_path / "node.toml").write_text(NODE)
    assert load_node_config(tmp_path / "node.toml").web.listen == ""


def test_the_section(tmp_path):
    (tmp_path / "node.toml").write_text(
        NODE + '[web]\nlisten = "127.0.0.1:0"\nhosts = ["gpu.lan"]\n'
    )
    web = load_node_config(tmp_path / "node.toml").web
    assert (web.listen, web.hosts) == ("127.0.0.1:0", ("gpu.lan",))


@pytest.mark.parametrize("value", ['listen = "8080"', 'listen = "x:99999"', "port = 1"])
def test_a_wrong_section_is_named(tmp_path, value):
    (tmp_path / "node.toml").write_text(f"{NODE}[web]\n{value}\n")
    with pytest.raises(ConfigError, match=r"node\.toml: web\."):
        load_node_config(tmp_path / "node.toml")
