"""A peer's bucket as the README says it should be: its policy, a confined key, a real server."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.config import NodeConfig, PayloadsConfig, StoreConfig
from shoal.node.doctor import examine
from shoal.node.doctor_lines import DoctorCode, Level, Line
from shoal.node.store_keys import StoreKeys
from shoal.protocol.identity import save_key
from shoal.protocol.manifest import EndpointsSection, ProviderSection
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import AccessDeniedError
from shoal.storage.s3 import S3Store
from shoal.storage.seaweed import BucketKeys, SeaweedServer
from tests.support.http_proxy import HttpProxy
from tests.support.manifests import peer, tiny_manifest

pytestmark = pytest.mark.slow

BUCKET = "annas-payloads"
README = (Path(__file__).parents[2] / "README.md").read_text()
(POLICY,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
MANIFEST = tiny_manifest(
    endpoints=EndpointsSection(
        providers=(ProviderSection(name="local", url="http://127.0.0.1:{port}"),),
        allow_loopback=True,
    )
)
KEYS = StoreKeys(MANIFEST.run_id)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """Anna's key may put, get and delete below her payloads' folder, and do nothing else."""
    assert BUCKET in POLICY
    keys = BucketKeys.random(folder=KEYS.payloads(peer(1).peer).rstrip("/"))
    with asyncio.Runner() as runner:
        starting = SeaweedServer.start(tmp_path_factory.mktemp("s3"), {BUCKET: keys})
        yield runner.run(starting.__aenter__())
        runner.run(starting.__aexit__(None, None, None))


def examined(
    server: SeaweedServer,
    folder: Path,
    *,
    tunnels: list[str] | None = None,
) -> list[Line]:
    """What doctor says to Anna; with a list she is behind a proxy, whose tunnels go into it."""
    save_key(folder / "key.pem", peer(1))
    store = folder / "store"
    store.mkdir()
    config = NodeConfig(
        key_file=str(folder / "key.pem"),
        state_dir=str(folder / "state"),
        store=StoreConfig(path=str(store)),
        payloads=PayloadsConfig(
            kind="s3",
            provider="local",
            bucket=BUCKET,
            joins_once=False,
            local_port=int(server.endpoint_url.rpartition(":")[2]),
        ),
    )

    async def body() -> list[Line]:
        run = DirectoryStore(store)
        await run.put(KEYS.manifest, MANIFEST.to_bytes())
        blob = MANIFEST.genesis.blob
        await run.put(KEYS.blob(blob.sha256), bytes(blob.num_bytes))
        if tunnels is None:
            return await examine(MANIFEST, config)
        async with HttpProxy() as proxy:
            found = await examine(MANIFEST, replace(config, proxy=proxy.url))
            tunnels.extend(proxy.tunnels)
            return found

    return asyncio.run(body())


@pytest.fixture(autouse=True)
def key_in_the_environment(server: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    key = server.keys[BUCKET].writer
    monkeypatch.setenv("SHOAL_S3_ACCESS_KEY_ID", key.access_key)
    monkeypatch.setenv("SHOAL_S3_SECRET_ACCESS_KEY", key.secret_key)


def test_the_policy_of_the_readme_makes_every_line_ok(
    server: SeaweedServer, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    before = examined(server, tmp_path / "before")
    unwell = [line for line in before if line.level is not Level.OK]
    assert [line.found.split(":")[0] for line in unwell] == ["BUCKET_PUBLIC_READ"]
    assert unwell[0].level is Level.FAILURE

    admin = S3Store(server.config(BUCKET), server.admin)
    asyncio.run(admin.request("put_bucket_policy", "", Policy=POLICY))
    (tmp_path / "after").mkdir()
    after = examined(server, tmp_path / "after")
    assert [line for line in after if line.level is not Level.OK] == []
    assert {line.code for line in after} >= {DoctorCode.BUCKET, DoctorCode.UPLOAD}
    # The probes are gone, and were nowhere but where payloads go.
    assert asyncio.run(admin.listed("")) == []
    admin.close()

    anybody = S3Store(server.config(BUCKET), None)
    with pytest.raises(AccessDeniedError):
        asyncio.run(anybody.listed(""))
    anybody.close()
    writer = S3Store(server.config(BUCKET), server.keys[BUCKET].writer)
    with pytest.raises(AccessDeniedError):
        asyncio.run(writer.put("elsewhere", b""))
    with pytest.raises(AccessDeniedError):
        asyncio.run(writer.listed(""))
    writer.close()


def test_the_bucket_is_reached_through_the_proxy_of_the_configuration(
    server: SeaweedServer, tmp_path: Path
) -> None:
    tunnels: list[str] = []
    lines = examined(server, tmp_path, tunnels=tunnels)
    # Other lines depend on the policy of the first test.
    (write,) = [line for line in lines if "BUCKET_WRITE" in line.found]
    assert write.level is Level.OK
    assert set(tunnels) == {server.endpoint_url.removeprefix("http://")}
