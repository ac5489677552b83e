"""The commands as a user types them: keys, data, a run, a validator and two peers, by hand."""

import stat
from pathlib import Path

import pytest

from shoal.node.manifest_file import load_manifest
from tests.integration.test_kills import assert_all_equal
from tests.support.processes import Forge, Node, all_ended, run_command
from tests.support.tiny_run import TinyRun, tiny_text, write_plan

pytestmark = pytest.mark.slow

NODE_TOML = """\
key_file = "{name}.pem"
state_dir = "{name}/state"

[store]
path = "store"
"""


def test_a_run_started_by_hand_with_open_admission_ends_equal_on_all_nodes(
    forge: Forge, tmp_path: Path
) -> None:
    log = tmp_path / "output.txt"
    names = ("validator", "peer-0", "peer-1")
    ids = {}
    for name in names:
        log.unlink(missing_ok=True)
        assert run_command(forge, log, "keygen", tmp_path / f"{name}.pem") == 0
        ids[name] = log.read_text().split()[1]
        (tmp_path / f"{name}.toml").write_text(NODE_TOML.format(name=name))
        (tmp_path / name).mkdir()
    plan = write_plan(tmp_path, num_rounds=3)
    manifest_file = tmp_path / "manifest.json"
    log.unlink()
    code = run_command(
        forge, log, "init", plan, "--store", tmp_path / "store", "--out", manifest_file,
        "--validator", ids["validator"], "--work", tmp_path / "data",
    )  # fmt: skip
    assert code == 0, log.read_text()
    manifest = load_manifest(manifest_file)
    assert manifest.roster is None
    assert f"run        {manifest.run_id.hex()}" in log.read_text()
    run = TinyRun(root=tmp_path, manifest=manifest, identities={})
    nodes = []
    for name in names:
        folder = tmp_path / name
        node = Node(forge, folder, manifest_file, "validate" if name == "validator" else "join")
        # All of a user's files are beside each other.
        node.config_file = tmp_path / f"{name}.toml"
        nodes.append(node)
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        assert_all_equal(run, nodes)
    for node in nodes:
        assert f"finished round 3, state {node.events('node-stopped')[-1]['state_hash'][:16]}" in (
            node.output()
        )


def test_keygen_makes_a_private_file_and_never_replaces_one(forge: Forge, tmp_path: Path) -> None:
    path, log = tmp_path / "key.pem", tmp_path / "output.txt"
    assert run_command(forge, log, "keygen", path) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    refusals = {
        path: "already exists; a key is never overwritten, move it away first",
        tmp_path / "no" / "key.pem": "cannot create key file",
        tmp_path: "already exists",
        Path("/proc/key.pem"): "cannot create key file",
    }
    for place, words in refusals.items():
        log.unlink()
        assert run_command(forge, log, "keygen", place) == 2
        (line,) = log.read_text().splitlines()
        assert line.startswith("shoal: ")
        assert words in line
    assert path.read_bytes() == before
    assert not (tmp_path / "no").exists()


def test_data_prepare_writes_shards_and_refuses_what_is_no_text(
    forge: Forge, tmp_path: Path
) -> None:
    text, out, log = tmp_path / "text.txt", tmp_path / "data", tmp_path / "output.txt"
    text.write_text(tiny_text())
    options = ("--out", out, "--vocab-size", "300", "--shard-tokens", "5000")
    assert run_command(forge, log, "data", "prepare", text, *options) == 0, log.read_text()
    lines = log.read_text().splitlines()
    assert len(lines) >= 3
    assert "shard-00000.bin  5,000 tokens  " in lines[0]
    assert "held-out.bin" in lines[-1]
    bad = tmp_path / "bad.txt"
    contents: dict[bytes, str] = {
        b"": "expected text, found none",
        b"\n \n": "expected text, found none",
        b"caf\xe9\n": "expected UTF-8 text, found byte 0xe9 at offset 3, line 1",
        b"one line\n": "expected texts that fill a vocabulary of 300",
    }
    for content, words in contents.items():
        bad.write_bytes(content)
        log.unlink()
        assert run_command(forge, log, "data", "prepare", bad, *options) == 2
        (line,) = log.read_text().splitlines()
        assert words in line
        # An index that names what the failed call has removed would be a trap.
        if words.startswith("expected text,"):
            assert not (out / "dataset.json").exists()
    for name, content in {"bad.txt.xz": b"no xz", "bad.txt.gz": b"no gz"}.items():
        (tmp_path / name).write_bytes(content)
        log.unlink()
        assert run_command(forge, log, "data", "prepare", tmp_path / name, *options) == 2
        (line,) = log.read_text().splitlines()
        assert f"expected a whole {Path(name).suffix} file" in line
