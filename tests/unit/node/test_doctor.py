"""What doctor finds, and how bad it says that is."""

import asyncio
import os
from pathlib import Path

import pytest

from shoal.node.config import NodeConfig, StoreConfig
from shoal.node.doctor import examine
from shoal.node.doctor_lines import DoctorCode, Level, Line, exit_code
from shoal.node.store_keys import StoreKeys
from shoal.protocol.identity import save_key
from shoal.protocol.manifest import AdmissionSection, RunManifest
from shoal.storage.directory import DirectoryStore
from tests.support.manifests import peer, tiny_manifest

MANIFEST = tiny_manifest()


def _config(folder: Path, **changes: object) -> NodeConfig:
    if not (folder / "key.pem").exists():
        save_key(folder / "key.pem", peer(1))
    (folder / "store").mkdir(exist_ok=True)
    fields: dict[str, object] = {
        "key_file": str(folder / "key.pem"),
        "state_dir": str(folder / "state"),
        "store": StoreConfig(path=str(folder / "store")),
    }
    return NodeConfig(**(fields | changes))  # type: ignore[arg-type]  # a table of fields


def _put(folder: Path, manifest: RunManifest, *, blobs: bool = True) -> None:
    async def body() -> None:
        store, keys = DirectoryStore(folder / "store"), StoreKeys(manifest.run_id)
        await store.put(keys.manifest, manifest.to_bytes())
        if blobs:
            blob = manifest.genesis.blob
            await store.put(keys.blob(blob.sha256), bytes(blob.num_bytes))

    asyncio.run(body())


def _lines(manifest: RunManifest, config: NodeConfig) -> dict[DoctorCode, Line]:
    return {line.code: line for line in asyncio.run(examine(manifest, config))}


def test_a_sound_node_gets_only_ok_lines_and_leaves_no_probe(tmp_path: Path) -> None:
    config = _config(tmp_path)
    _put(tmp_path, MANIFEST)
    lines = _lines(MANIFEST, config)
    # A node without a bucket gets no line about one, one without a network none about that.
    absent = {DoctorCode.BUCKET, DoctorCode.NETWORK, DoctorCode.SEED, DoctorCode.REACHABLE}
    assert set(lines) == set(DoctorCode) - absent
    assert {line.level for line in lines.values()} == {Level.OK}, lines
    assert exit_code(list(lines.values())) == 0
    left = [p for p in (tmp_path / "store").rglob("*") if p.is_file() and "probes" in str(p)]
    assert left == []


def test_one_failure_does_not_hide_the_other_checks(tmp_path: Path) -> None:
    lines = _lines(MANIFEST, _config(tmp_path, key_file=str(tmp_path / "none.pem")))
    assert lines[DoctorCode.KEY].level is Level.FAILURE
    assert "keygen" in lines[DoctorCode.KEY].fix
    # The store is not blamed for it.
    assert lines[DoctorCode.STORE].level is Level.WARNING
    assert lines[DoctorCode.STORE].fix == "mend D_KEY first"
    assert lines[DoctorCode.DISK].level is Level.OK


def test_a_store_that_is_not_there_is_a_failure_with_its_place(tmp_path: Path) -> None:
    config = _config(tmp_path, store=StoreConfig(path=str(tmp_path / "nowhere")))
    line = _lines(MANIFEST, config)[DoctorCode.STORE]
    assert line.level is Level.FAILURE
    assert "nowhere" in line.found


def test_a_missing_blob_is_a_failure(tmp_path: Path) -> None:
    config = _config(tmp_path)
    _put(tmp_path, MANIFEST, blobs=False)
    assert _lines(MANIFEST, config)[DoctorCode.DATA].level is Level.FAILURE


@pytest.mark.parametrize("offset_s", [3600.0, -3600.0])
def test_a_clock_that_is_an_hour_off_is_a_failure(tmp_path: Path, offset_s: float) -> None:
    config = _config(tmp_path, clock_offset_s=offset_s)
    _put(tmp_path, MANIFEST)
    line = _lines(MANIFEST, config)[DoctorCode.CLOCK]
    assert line.level is Level.FAILURE
    assert f"{offset_s:+.0f}"[:3] in line.found
    mended = float(line.fix.split("clock_offset_s = ")[1].split()[0])
    assert abs(mended) < 60


def test_a_key_outside_the_roster_is_a_failure(tmp_path: Path) -> None:
    roster = AdmissionSection(mode="roster", peers=(peer(2).peer.key,))
    manifest = tiny_manifest(admission=roster)
    line = _lines(manifest, _config(tmp_path))[DoctorCode.ROLE]
    assert line.level is Level.FAILURE
    assert peer(1).peer.text in line.fix


def test_the_exit_code_is_that_of_the_worst_line() -> None:
    def line(level: Level) -> Line:
        return Line(code=DoctorCode.DISK, level=level, found="x")

    assert exit_code([line(Level.OK)]) == 0
    assert exit_code([line(Level.OK), line(Level.WARNING)]) == 1
    assert exit_code([line(Level.WARNING), line(Level.FAILURE), line(Level.OK)]) == 2


def test_every_code_has_its_section_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    for code in DoctorCode:
        assert f"\n## {code}\n" in page


def test_a_key_that_others_can_read_is_a_failure(tmp_path: Path) -> None:
    config = _config(tmp_path)
    os.chmod(config.key_file, 0o644)  # noqa: PTH101  # the path is a string of the configuration
    line = _lines(MANIFEST, config)[DoctorCode.KEY]
    assert (line.level, line.fix) == (Level.FAILURE, f"chmod 600 {config.key_file}")


def test_a_damaged_key_is_not_simply_replaced(tmp_path: Path) -> None:
    config = _config(tmp_path)
    file = Path(config.key_file)
    file.write_bytes(file.read_bytes()[:60])
    line = _lines(MANIFEST, config)[DoctorCode.KEY]
    assert line.level is Level.FAILURE
    assert line.fix.startswith("put your copy of the key there")
    # `shoal keygen` alone would refuse: it never overwrites.
    assert f"mv {file} {file}.bad && shoal keygen {file}" in line.fix
