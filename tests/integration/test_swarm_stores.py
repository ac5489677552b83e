"""A whole swarm over each way of exchanging objects, with real servers and processes."""

import json
import os
from pathlib import Path

import pytest

from shoal.node.swarm_stores import StoreKind
from tests.support.processes import Forge, events_of, run_command, wait_until
from tests.support.tiny_run import write_plan

# On a busy machine every process takes half a minute to start.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_ROUNDS = 4
NODES = ("validator-0", "peer-0", "peer-1")


def _run_swarm(forge: Forge, plan: Path, root: Path, kind: StoreKind) -> str:
    """Runs `shoal swarm` to its end; gives what it printed."""
    log = root.parent / "swarm.log"
    code = run_command(
        forge, log, "swarm", "--config", plan, "--run-dir", root, "--store", kind, deadline_s=500
    )
    said = log.read_text(errors="replace")
    assert code == 0, said
    return said


def _alive_with(text: str) -> list[str]:
    """Command lines of running processes that mention `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


@pytest.mark.parametrize("kind", [StoreKind.HTTP, StoreKind.S3, StoreKind.P2P])
def test_a_swarm_trains_and_ends_equal_and_leaves_no_process(
    forge: Forge, kind: StoreKind, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path / "plan", num_rounds=NUM_ROUNDS, round_seconds=60.0)
    root = tmp_path / "run"
    said = _run_swarm(forge, plan, root, kind)
    assert "parameters identical on all 3 nodes" in said
    roots, counted = set(), 0
    for name in NODES:
        log = root / "nodes" / name / "state" / "events.jsonl"
        roots.add(events_of(log, "node-stopped")[-1]["parameters_root"])
        rounds = events_of(log, "round")
        assert [r["round_id"] for r in rounds] == list(range(1, NUM_ROUNDS + 1))
        counted += sum(r["counted"] for r in rounds)
        assert all(r["rejected"] == {} for r in rounds)
        assert "Traceback" not in (root / "nodes" / name / "node.log").read_text()
    assert len(roots) == 1
    # A peer that starts late on a busy machine misses a round, never more than the others wait.
    assert NUM_ROUNDS <= counted <= 2 * NUM_ROUNDS
    wait_until(lambda: not _alive_with(str(root)), "no process is left", 30)
    if kind is StoreKind.S3:
        assert_no_secret_is_written(root)
    if kind is StoreKind.P2P:
        assert not list(root.glob("store/**/payloads/*")), "payloads never lie in the store"
        tomls = [(root / "nodes" / name / "node.toml").read_text() for name in NODES]
        assert not any("http" in toml for toml in tomls), "nothing but the network"


def assert_no_secret_is_written(root: Path) -> None:
    secrets = _secrets_of(root / "s3")
    assert len(secrets) >= 3
    written = [*root.glob("nodes/**/*.log"), *root.glob("nodes/**/*.jsonl"), root / "manifest.json"]
    assert len(written) >= 7
    for path in written:
        text = path.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], path


def _secrets_of(folder: Path) -> list[str]:
    plain = json.loads((folder / "s3.json").read_text())
    return [
        credential["secretKey"]
        for identity in plain["identities"]
        for credential in identity.get("credentials", [])
    ]
