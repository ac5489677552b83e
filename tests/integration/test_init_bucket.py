"""`shoal init` into a bucket of a real server: killed in the middle, started again, refused."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shoal.node.errors import ConfigError, ResourceError
from shoal.node.init_run import init_run_at
from shoal.node.manifest_file import load_manifest
from shoal.node.store_keys import StoreKeys
from shoal.protocol.identity import save_key
from shoal.storage.s3_config import S3Credentials
from tests.support import s3_server
from tests.support.http_proxy import HttpProxy
from tests.support.manifests import VALIDATOR
from tests.support.processes import Forge, wait_until
from tests.support.tiny_run import write_plan

pytestmark = pytest.mark.slow

START_S = 200.0


def write_config(
    folder: Path, *, endpoint: str, prefix: str, bucket: str = s3_server.PRIVATE, proxy: str = ""
) -> Path:
    """A validator's node.toml and its key."""
    if not (folder / "key.pem").exists():
        save_key(folder / "key.pem", VALIDATOR)
    file = folder / "node.toml"
    file.write_text(
        f'key_file = "key.pem"\nstate_dir = "state"\nproxy = "{proxy}"\n\n[store]\nkind = "s3"\n'
        f'endpoint = "{endpoint}"\nbucket = "{bucket}"\nprefix = "{prefix}"\n'
        "lists_in_order = false\njoins_once = false\n"
    )
    return file


def environment_of(key: S3Credentials) -> dict[str, str]:
    return {
        "SHOAL_S3_ACCESS_KEY_ID": key.access_key,
        "SHOAL_S3_SECRET_ACCESS_KEY": key.secret_key,
    }


@pytest.mark.timeout(600)
def test_a_killed_init_leaves_no_run_and_the_same_command_finishes(
    forge: Forge, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server, prefix = s3_server.seaweed(request.config), s3_server.fresh_prefix()
    plan, out = write_plan(tmp_path), tmp_path / "manifest.json"
    env = environment_of(server.keys[s3_server.PRIVATE].writer)
    logs = [tmp_path / "first.txt", tmp_path / "second.txt"]

    def start(config: Path, log: Path) -> int:
        argv = ["init", plan, "--config", config, "--out", out, "--work", tmp_path / "data"]
        pid: int = forge.ask(argv=[str(word) for word in argv], log=str(log), env=env)
        return pid

    def ended(pid: int) -> bool:
        return forge.ask(pid=pid) is not None

    async def scenario() -> None:
        store = s3_server.seaweed_store(request.config, prefix=prefix)
        async with HttpProxy() as proxy:
            config = write_config(
                tmp_path, endpoint=server.endpoint_url, prefix=prefix, proxy=proxy.url
            )
            proxy.stall_after_bytes_up = 50_000
            pid = await asyncio.to_thread(start, config, logs[0])
            await asyncio.to_thread(
                wait_until, lambda: bool(proxy.num_stalled) or ended(pid), "it is stuck", START_S
            )
            assert proxy.num_stalled, logs[0].read_text()
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: ended(pid), "it is dead", START_S)
            assert forge.ask(pid=pid) == -signal.SIGKILL
            there = await store.listed("")
            assert there
            assert not [key for key in there if key.endswith("/manifest")]
            assert not out.exists()

            proxy.stall_after_bytes_up = 0
            pid = await asyncio.to_thread(start, config, logs[1])
            await asyncio.to_thread(wait_until, lambda: ended(pid), "it ends", START_S)
            said = logs[1].read_text()
            assert forge.ask(pid=pid) == 0, said
            # Both went through the proxy of node.toml, in tunnels.
            assert set(proxy.tunnels) == {server.endpoint_url.removeprefix("http://")}
        assert said.count("there already") == len(there)
        assert "manifest  " in said
        assert said.index("manifest  ") > said.index("genesis")
        manifest = load_manifest(out)
        assert manifest.validator_ids == (VALIDATOR.peer,)
        keys = StoreKeys(manifest.run_id)
        raw = manifest.to_bytes()
        assert await store.get(keys.manifest, max_bytes=len(raw)) == raw
        for blob in (manifest.genesis.blob, manifest.data.held_out, *manifest.data.shards):
            assert (await store.head(keys.blob(blob.sha256))).num_bytes == blob.num_bytes
        # Nothing but the run is left: no probe.
        assert all(key.startswith(keys.run_id.hex()) for key in await store.listed(""))
        await s3_server.remove_all(store)
        store.close()

    asyncio.run(scenario())


def test_what_keeps_a_run_out_of_a_bucket_is_one_line_before_anything_is_made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = s3_server.seaweed(request.config)
    key = server.keys[s3_server.PRIVATE]
    wrong = S3Credentials(access_key=key.writer.access_key, secret_key="0" * 40)
    prefix, plan = s3_server.fresh_prefix(), write_plan(tmp_path)
    here, nowhere = server.endpoint_url, "http://127.0.0.1:9"
    cases = (
        (here, s3_server.PRIVATE, wrong, "the access key or its secret is wrong"),
        (here, s3_server.PRIVATE, key.reader, "the key needs access to it"),
        (here, "no-such-bucket", server.admin, "the bucket is not there"),
        (nowhere, s3_server.PRIVATE, key.writer, "ConnectionRefusedError"),
    )
    work = tmp_path / "data"
    for endpoint, bucket, credentials, words in cases:
        for name, value in environment_of(credentials).items():
            monkeypatch.setenv(name, value)
        config = write_config(tmp_path, endpoint=endpoint, prefix=prefix, bucket=bucket)
        with pytest.raises(ResourceError) as caught:
            init_run_at(plan, config, tmp_path / "m.json", [], work, 1)
        text = str(caught.value)
        assert words in text
        assert "check [store] in node.toml" in text
        assert "\n" not in text
        assert credentials.secret_key not in text
    monkeypatch.delenv("SHOAL_S3_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="SHOAL_S3_ACCESS_KEY_ID"):
        init_run_at(plan, config, tmp_path / "m.json", [], work, 1)
    assert not work.exists()
    store = s3_server.seaweed_store(request.config, prefix=prefix)
    assert asyncio.run(store.listed("")) == []
    store.close()
