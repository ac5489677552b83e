"""What `shoal join URL` makes of a URL, without any network."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from shoal.node import joining
from shoal.node.config import load_node_config
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.joining import find_home, is_url
from shoal.storage.errors import StorageUnavailableError
from tests.support.manifests import tiny_manifest

MANIFEST = tiny_manifest()
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


@pytest.mark.parametrize("url", ["http://", "http://a b", "http://a#12", f"http://a#{'g' * 64}"])
def test_what_is_no_url_is_one_clear_error(server, tmp_path, url):
    with pytest.raises(ConfigError, match="MANIFEST"):
        home(url, tmp_path)


@pytest.mark.parametrize("answer", [b"", b"<html>", b"{}", MANIFEST.to_bytes()[:-1]])
def test_a_server_that_gives_something_else_is_a_configuration_error(server, tmp_path, answer):
    server.answer = answer
    with pytest.raises(ConfigError, match="manifest"):
        home(URL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_said(server, tmp_path):
    server.answer = StorageUnavailableError("refused", "")
    with pytest.raises(ResourceError, match="gives no manifest"):
        home(URL, tmp_path)


def test_urls_and_files_are_told_apart():
    assert is_url("http://a")
    assert is_url("https://a")
    assert not is_url("manifest.json")
    assert not is_url("/ip4/127.0.0.1/tcp/1")
