"""What `shoal join URL` makes of a URL, without any network."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from shoal.node import joining
from shoal.node.config import NetworkConfig, NodeConfig, StoreConfig, load_node_config
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.joining import find_home, names_a_run
from shoal.node.seed_options import with_seeds
from shoal.storage.errors import ObjectNotFoundError, StorageUnavailableError
from tests.support.manifests import tiny_manifest

MANIFEST = tiny_manifest()
ID = "QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK"
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{ID}"
OTHER_ADDRESS = f"/ip4/192.0.2.2/tcp/4001/p2p/{ID}"
URL = "http://validator.example:8787"


@pytest.fixture
def server(monkeypatch):
    """Answers every read with `server.answer`; notes the URLs."""

    server = SimpleNamespace(answer=MANIFEST.to_bytes(), urls=[], proxies=[])

    class Page:
        async def read_page(self, path, max_bytes):
            assert path == "manifest"
            if isinstance(server.answer, Exception):
                raise server.answer
            return server.answer

    @asynccontextmanager
    async def open_page(url, *, proxy=""):
        server.urls.append(url)
        server.proxies.append(proxy)
        yield Page()

    monkeypatch.setattr(joining, "HttpStore", open_page)
    return server


def home(url, root, **options):
    return asyncio.run(find_home(url, root, num_threads=3, **options))


def test_a_proxy_is_used_at_once_and_kept(server, tmp_path):
    made = home(URL, tmp_path, proxy="http://proxy.example:3128")
    assert server.proxies == ["http://proxy.example:3128"]
    assert load_node_config(made.config_file).proxy == "http://proxy.example:3128"
    with pytest.raises(ConfigError, match="--proxy"):
        home(URL, tmp_path, proxy="proxy.example")
    assert load_node_config(home("http://[::1]:8750", tmp_path / "6").config_file).store.url == (
        "http://[::1]:8750"
    )


def test_the_first_time_a_key_and_a_configuration_are_made_and_later_found(server, tmp_path):
    first = home(URL, tmp_path)
    key = (first.config_file.parent / "key.pem").read_bytes()
    first.config_file.write_text(first.config_file.read_text() + "# mine\n")
    again = home(URL + "/", tmp_path)
    assert (first.is_new, again.is_new) == (True, False)
    assert first.peer == again.peer
    assert (again.config_file.parent / "key.pem").read_bytes() == key
    assert again.config_file.read_text().endswith("# mine\n")
    assert (again.config_file.parent / "key.pem").stat().st_mode & 0o077 == 0
    assert server.urls == [URL, URL]
    assert first.manifest == MANIFEST


def test_a_pinned_run_is_that_run_or_none(server, tmp_path):
    assert home(f"{URL}#{MANIFEST.run_id.hex()}", tmp_path).manifest == MANIFEST
    with pytest.raises(ConfigError, match="run id"):
        home(f"{URL}/#{'0' * 64}", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


NO_URLS = [
    "http://",
    "http://a b",
    "http://a#12",
    f"http://a#{'g' * 64}",
    "http://a:99999",
    "http://a:0",
    "http://a:b",
    "http://me:secret@a",
    "http://a/?x=1",
    "http://[::1",
]


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_is_one_clear_error(server, tmp_path, url):
    with pytest.raises(ConfigError, match="RUN"):
        home(url, tmp_path)


@pytest.mark.parametrize("answer", [b"", b"<html>", b"{}", MANIFEST.to_bytes()[:-1]])
def test_a_server_that_gives_something_else_is_a_configuration_error(server, tmp_path, answer):
    server.answer = answer
    with pytest.raises(ConfigError, match="manifest"):
        home(URL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_said(server, tmp_path):
    server.answer = StorageUnavailableError("refused", "")
    with pytest.raises(ResourceError, match="gives no manifest: refused; check the address"):
        home(URL, tmp_path)
    server.answer = ObjectNotFoundError("no object", "manifest")
    with pytest.raises(ResourceError, match="some other server answers there"):
        home(URL, tmp_path)


def test_a_later_version_proves_no_pin(server, tmp_path):
    # Whoever serves it could have written any run into `first`.
    forged = tiny_manifest(version=2, first=MANIFEST.run_id)
    server.answer = forged.to_bytes()
    assert forged.run_id == MANIFEST.run_id
    with pytest.raises(ConfigError, match="run id"):
        home(f"{URL}#{MANIFEST.run_id.hex()}", tmp_path)


def test_urls_addresses_and_files_are_told_apart():
    assert names_a_run("http://a")
    assert names_a_run("https://a")
    assert not names_a_run("manifest.json")
    assert not names_a_run("/srv/manifest.json")
    assert names_a_run("/ip4/127.0.0.1/tcp/1")
    assert names_a_run(f"/dnsaddr/run.example#{'0' * 64}")


@pytest.fixture
def asked(server, monkeypatch):
    """What the network was asked for; it answers as `server` does."""
    asked = []

    async def fetch(text, pin):
        asked.append((text, pin))
        return server.answer

    monkeypatch.setattr(joining, "fetch_by_address", fetch)
    return asked


def test_an_address_makes_a_node_of_the_network_alone(asked, tmp_path):
    first = home(ADDRESS, tmp_path)
    config = load_node_config(first.config_file)
    assert (config.store.kind, config.network.enabled) == ("p2p", True)
    assert config.network.seeds == (ADDRESS,)
    assert (first.is_new, first.is_pinned) == (True, False)
    pinned = home(f"{OTHER_ADDRESS}#{MANIFEST.run_id.hex()}", tmp_path)
    assert (pinned.is_new, pinned.is_pinned, pinned.seeds) == (False, True, (OTHER_ADDRESS,))
    # The configuration stays as it was; the new address is asked besides.
    assert load_node_config(pinned.config_file) == config
    assert asked == [(ADDRESS, None), (OTHER_ADDRESS, MANIFEST.run_id)]


def test_another_manifest_behind_a_pinned_address_is_refused(asked, tmp_path):
    with pytest.raises(ConfigError, match="run id"):
        home(f"{ADDRESS}#{'0' * 64}", tmp_path)


def test_libp2p_goes_through_no_proxy(asked, tmp_path):
    with pytest.raises(ConfigError, match="no proxy"):
        asyncio.run(find_home(ADDRESS, tmp_path, 1, "http://proxy.example:3128"))
    assert asked == []


@pytest.mark.parametrize(
    "text", ["/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3/tcp/1/p2p/Qm", "/dnsaddr/", "/ip4/x"]
)
def test_an_address_without_an_id_is_one_clear_error(tmp_path, text):
    with pytest.raises(ConfigError, match="RUN"):
        home(text, tmp_path)


def test_seeds_of_the_command_line_come_first_and_turn_the_network_on():
    config = NodeConfig(
        key_file="k", state_dir="s", store=StoreConfig(), network=NetworkConfig(seeds=(ADDRESS,))
    )
    assert with_seeds(config, ()) is config
    changed = with_seeds(config, ("/dnsaddr/run.example", ADDRESS)).network
    assert changed.enabled
    assert changed.seeds == ("/dnsaddr/run.example", ADDRESS)
    with pytest.raises(ConfigError, match="--seed"):
        with_seeds(config, ("/ip4/1.2.3.4/tcp/1",))
