"""Wrong files and options: one line with file, field, expected and found, and the exit code."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.protocol.identity import from_seed
from tests.support.processes import Forge, run_command
from tests.support.tiny_run import TinyRun, make_tiny_run, write_plan

pytestmark = pytest.mark.slow


@dataclass
class Place:
    """A run with one node, and a folder for a case's own files."""

    run: TinyRun
    node: Path
    case: Path

    @property
    def toml(self) -> Path:
        """The node's configuration."""
        return self.node / "node.toml"

    def edit(self, old: str, new: str) -> None:
        """Changes node.toml."""
        text = self.toml.read_text()
        assert old in text
        self.toml.write_text(text.replace(old, new))

    def plan(self, old: str, new: str) -> Path:
        """A run plan with a change."""
        path = write_plan(self.case)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        return path

    def join(self, verb: str = "join", manifest: Path | None = None) -> list[str | Path]:
        """The command of the node."""
        return [verb, manifest or self.run.manifest_file, "--config", self.toml]

    def swarm(self, plan: Path, *more: str) -> list[str | Path]:
        """A swarm command in the case's folder."""
        return ["swarm", "--config", plan, "--run-dir", self.case / "swarm", *more]

    def manifest(self, raw: bytes) -> Path:
        """A manifest file with these bytes."""
        path = self.case / "manifest.json"
        path.write_bytes(raw)
        return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return make_tiny_run(tmp_path_factory.mktemp("base"), num_peers=1)


@pytest.fixture
def place(base: TinyRun, tmp_path: Path) -> Place:
    shutil.copytree(base.root, tmp_path / "run")
    run = TinyRun(root=tmp_path / "run", manifest=base.manifest, identities=base.identities)
    case = tmp_path / "case"
    case.mkdir()
    return Place(run, run.add_node("peer-0"), case)


Arrange = Callable[[Place], list[str | Path]]
CASES: dict[str, tuple[Arrange, int, tuple[str, ...]]] = {}


def case(code: int, *expected: str) -> Callable[[Arrange], Arrange]:
    def add(arrange: Arrange) -> Arrange:
        CASES[arrange.__name__] = (arrange, code, expected)
        return arrange

    return add


# The node's configuration.


@case(2, "node.toml: the file: expected a TOML file, found no such file")
def missing_config(place: Place) -> list[str | Path]:
    place.toml.unlink()
    return place.join()


@case(2, "node.toml", "a readable file", "Is a directory")
def config_is_a_folder(place: Place) -> list[str | Path]:
    place.toml.unlink()
    place.toml.mkdir()
    return place.join()


@case(2, "node.toml: the whole file: expected TOML")
def config_is_not_toml(place: Place) -> list[str | Path]:
    place.toml.write_text("key_file: key.pem\n")
    return place.join()


@case(2, "node.toml: the whole file: expected TOML", "utf-8")
def config_is_not_utf8(place: Place) -> list[str | Path]:
    place.toml.write_bytes(b'key_file = "caf\xe9"\n')
    return place.join()


@case(2, "node.toml: colour: expected one of", "found an unknown key")
def unknown_key(place: Place) -> list[str | Path]:
    place.edit("clock_offset_s", 'colour = "red"\nclock_offset_s')
    return place.join()


@case(2, "node.toml: clock_offset_s: expected a number, found 'now'")
def wrong_type(place: Place) -> list[str | Path]:
    place.edit("clock_offset_s = 0.0", 'clock_offset_s = "now"')
    return place.join()


@case(2, "node.toml: clock_offset_s: expected a finite number, found nan")
def not_a_number(place: Place) -> list[str | Path]:
    place.edit("clock_offset_s = 0.0", "clock_offset_s = nan")
    return place.join()


@case(2, "node.toml: num_threads: expected a number from 1 to 1024, found 0")
def out_of_range(place: Place) -> list[str | Path]:
    place.edit("clock_offset_s = 0.0", "num_threads = 0")
    return place.join()


@case(2, "node.toml: key_file: expected a string, found nothing (the key is missing)")
def missing_key(place: Place) -> list[str | Path]:
    place.edit('key_file = "key.pem"\n', "")
    return place.join()


@case(2, "node.toml: store.kind: expected one of directory", "found 's4'")
def unknown_store_kind(place: Place) -> list[str | Path]:
    place.edit('kind = "directory"', 'kind = "s4"')
    return place.join()


# The key.


@case(2, "key.pem", "No such file")
def key_file_missing(place: Place) -> list[str | Path]:
    (place.node / "key.pem").unlink()
    return place.join()


@case(2, "key.pem", "not a PEM private key")
def key_file_is_garbage(place: Place) -> list[str | Path]:
    (place.node / "key.pem").write_bytes(os.urandom(100))
    return place.join()


@case(2, "key.pem", "not a PEM private key")
def key_file_is_empty(place: Place) -> list[str | Path]:
    (place.node / "key.pem").write_bytes(b"")
    return place.join()


@case(2, "key.pem has mode 0644, expected 0600; run: chmod 600")
def key_file_is_readable_by_others(place: Place) -> list[str | Path]:
    (place.node / "key.pem").chmod(0o644)
    return place.join()


@case(2, "key.pem", "a directory")
def key_file_is_a_folder(place: Place) -> list[str | Path]:
    (place.node / "key.pem").unlink()
    (place.node / "key.pem").mkdir()
    return place.join()


@case(2, "key.pem")
def key_file_is_a_pipe(place: Place) -> list[str | Path]:
    (place.node / "key.pem").unlink()
    os.mkfifo(place.node / "key.pem", 0o600)
    return place.join()


@case(2, "admission.peers: expected E_PEER_UNKNOWN: this node's key 12D3Koo", "ask whoever runs it")
def key_outside_the_roster(place: Place) -> list[str | Path]:
    run = TinyRun(
        root=place.run.root,
        manifest=place.run.manifest,
        identities={"stranger": from_seed(b"s" * 32)},
    )
    place.node = run.add_node("stranger")
    return place.join()


@case(2, "validators.keys: expected this node's key 12D3Koo", "to train, use shoal join")
def validate_with_a_peers_key(place: Place) -> list[str | Path]:
    return place.join("validate")


@case(2, "admission.peers", "use shoal validate")
def join_with_the_validators_key(place: Place) -> list[str | Path]:
    place.node = place.run.add_node("validator")
    return place.join()


# The manifest.


@case(2, "manifest.json: the file: expected a manifest, found No such file")
def manifest_missing(place: Place) -> list[str | Path]:
    return place.join(manifest=place.case / "manifest.json")


@case(2, "manifest.json: the whole file: expected a canonical manifest", "E_JSON")
def manifest_damaged(place: Place) -> list[str | Path]:
    raw = place.run.manifest_file.read_bytes()
    return place.join(manifest=place.manifest(raw[:200] + b"?" + raw[201:]))


@case(2, "manifest.json: the whole file: expected a canonical manifest", "E_JSON")
def manifest_cut(place: Place) -> list[str | Path]:
    return place.join(manifest=place.manifest(place.run.manifest_file.read_bytes()[:-40]))


@case(2, "manifest.json: the whole file: expected a canonical manifest", "not in canonical form")
def manifest_not_canonical(place: Place) -> list[str | Path]:
    raw = place.run.manifest_file.read_bytes()
    return place.join(manifest=place.manifest(raw + b"\n"))


@case(2, "manifest.json: the whole file: expected a canonical manifest", "E_JSON_DUPKEY")
def manifest_with_a_key_twice(place: Place) -> list[str | Path]:
    return place.join(manifest=place.manifest(b'{"a":1,"a":2}'))


@case(2, "manifest.json", "a whole number", "found 'x'")
def manifest_with_a_wrong_type(place: Place) -> list[str | Path]:
    raw = place.run.manifest_file.read_bytes()
    changed = raw.replace(b'"num_rounds":4', b'"num_rounds":"x"')
    assert changed != raw
    return place.join(manifest=place.manifest(changed))


@case(2, "manifest.json", "E_JSON")
def manifest_with_terminal_escapes(place: Place) -> list[str | Path]:
    return place.join(manifest=place.manifest(b'{"\\u001b[2J\\u000a[bold]x[/]":1}'))


@case(4, "blobs/", "no object")
def manifest_of_another_run(place: Place) -> list[str | Path]:
    raw = place.run.manifest_file.read_bytes()
    return place.join(manifest=place.manifest(raw.replace(b'"name":"tiny"', b'"name":"tony"')))


# The store.


@case(4, "the store", "No such file or directory")
def store_missing(place: Place) -> list[str | Path]:
    shutil.rmtree(place.run.store)
    return place.join()


@case(4, "the store", "Not a directory")
def store_is_a_file(place: Place) -> list[str | Path]:
    shutil.rmtree(place.run.store)
    place.run.store.write_bytes(b"")
    return place.join()


@case(4, "E_BODY_HASH", "expected SHA-256", "put the right file into the store")
def shard_with_a_wrong_hash(place: Place) -> list[str | Path]:
    blob = place.run.manifest.data.shards[0]
    place.run.plant(place.run.keys.blob(blob.sha256), b"\0" * blob.num_bytes)
    return place.join()


@case(4, "E_BODY_HASH", "and 0 bytes")
def shard_empty(place: Place) -> list[str | Path]:
    place.run.plant(place.run.keys.blob(place.run.manifest.data.shards[0].sha256), b"")
    return place.join()


@case(4, "bytes", "blobs/")
def shard_too_long(place: Place) -> list[str | Path]:
    blob = place.run.manifest.data.shards[0]
    place.run.plant(place.run.keys.blob(blob.sha256), b"\0" * (blob.num_bytes + 1))
    return place.join()


# The state folder.


@case(2, "state", "expected a writable folder, found File exists")
def state_dir_is_a_file(place: Place) -> list[str | Path]:
    (place.node / "state").write_bytes(b"")
    return place.join()


@case(3, "CURRENT.json")
def checkpoint_pointer_is_garbage(place: Place) -> list[str | Path]:
    folder = place.node / "state" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "CURRENT.json").write_bytes(b"\0" * 40)
    return place.join()


@case(3, "checkpoint", "state-00000001.safetensors")
def checkpoint_is_gone(place: Place) -> list[str | Path]:
    folder = place.node / "state" / "checkpoints"
    folder.mkdir(parents=True)
    entry = f'[{{"file": "state-00000001.safetensors", "sha256": "{"0" * 64}"}}]'
    (folder / "CURRENT.json").write_text(entry)
    return place.join()


# The run plan, its texts, and the swarm's folder.


@case(2, "plan.toml: the file: expected a TOML file, found no such file")
def plan_missing(place: Place) -> list[str | Path]:
    return place.swarm(place.case / "plan.toml")


@case(2, "plan.toml: run.num_rounds: expected a number from 1 to 10000000, found 0")
def plan_without_rounds(place: Place) -> list[str | Path]:
    return place.swarm(place.plan("num_rounds = 4", "num_rounds = 0"))


@case(2, "model.settings: expected settings of llama", "not a multiple of the number of attention")
def plan_with_a_model_that_does_not_work(place: Place) -> list[str | Path]:
    return place.swarm(place.plan("num_attention_heads = 2", "num_attention_heads = 3"))


@case(2, "model.model_type: expected an architecture of transformers, found llamma")
def plan_with_an_unknown_model(place: Place) -> list[str | Path]:
    return place.swarm(place.plan('model_type = "llama"', 'model_type = "llamma"'))


@case(2, "codec", "k_per_chunk")
def plan_with_more_kept_than_there_are(place: Place) -> list[str | Path]:
    return place.swarm(place.plan("k_per_chunk = 16", "k_per_chunk = 300"))


@case(2, "--rounds", "0")
def no_rounds(place: Place) -> list[str | Path]:
    return place.swarm(write_plan(place.case), "--rounds", "0")


@case(2, "--peers", "0")
def no_peers(place: Place) -> list[str | Path]:
    return place.swarm(write_plan(place.case), "--peers", "0")


@case(2, "--peers", "300")
def too_many_peers(place: Place) -> list[str | Path]:
    return place.swarm(write_plan(place.case), "--peers", "300")


@case(2, "text.txt: expected a readable file, found No such file")
def text_missing(place: Place) -> list[str | Path]:
    plan = write_plan(place.case)
    (place.case / "text.txt").unlink()
    return place.swarm(plan)


@case(2, "text.txt: expected UTF-8 text, found byte 0xe9 at offset 3, line 1")
def text_not_utf8(place: Place) -> list[str | Path]:
    plan = write_plan(place.case)
    (place.case / "text.txt").write_bytes(b"caf\xe9\n")
    return place.swarm(plan)


@case(2, "text.txt: expected text, found none")
def text_empty(place: Place) -> list[str | Path]:
    plan = write_plan(place.case)
    (place.case / "text.txt").write_bytes(b"")
    return place.swarm(plan)


@case(2, "expected texts that fill a vocabulary of 300", "add text or lower vocab_size")
def text_too_short(place: Place) -> list[str | Path]:
    plan = write_plan(place.case)
    (place.case / "text.txt").write_text("so it goes\n")
    return place.swarm(plan)


@case(2, "data.seq_len: expected at most", "found 5000; lower it or add text")
def text_shorter_than_a_sequence(place: Place) -> list[str | Path]:
    return place.swarm(place.plan("seq_len = 16", "seq_len = 5000"))


@case(2, "swarm: --run-dir: expected an empty folder or one of a swarm")
def run_dir_is_a_file(place: Place) -> list[str | Path]:
    (place.case / "swarm").write_bytes(b"precious")
    return place.swarm(write_plan(place.case), "--fresh")


@case(2, "swarm/manifest.json", "canonical manifest")
def run_dir_with_a_damaged_manifest(place: Place) -> list[str | Path]:
    folder = place.case / "swarm"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "manifest.json").write_bytes(b"{}x")
    return place.swarm(write_plan(place.case))


# shoal init.


@case(2, "--validator: expected a peer id as `shoal keygen` prints it, found me")
def init_with_a_wrong_validator(place: Place) -> list[str | Path]:
    out, plan = place.case / "m.json", write_plan(place.case)
    return ["init", plan, "--store", place.case / "s", "--out", out, "--validator", "me"]


@case(2, "--out: expected a file that does not exist yet, found an existing file")
def init_over_a_manifest(place: Place) -> list[str | Path]:
    plan = write_plan(place.case)
    me = place.run.identities["validator"].peer.text
    out = place.run.manifest_file
    return ["init", plan, "--store", place.case / "s", "--out", out, "--validator", me]


@case(2, "threshold", "found 2")
def init_with_a_threshold_nobody_reaches(place: Place) -> list[str | Path]:
    plan, me = write_plan(place.case), place.run.identities["validator"].peer.text
    out, work = place.case / "m.json", place.case / "work"
    return [
        "init", plan, "--store", place.case / "s", "--out", out, "--validator", me,
        "--work", work, "--threshold", "2",
    ]  # fmt: skip


@case(4, "s: File exists")
def init_into_a_store_that_is_a_file(place: Place) -> list[str | Path]:
    plan, me = write_plan(place.case), place.run.identities["validator"].peer.text
    out, work = place.case / "m.json", place.case / "work"
    (place.case / "s").write_bytes(b"")
    return [
        "init", plan, "--store", place.case / "s", "--out", out, "--validator", me,
        "--work", work,
    ]  # fmt: skip


@case(2, "--config: expected either a node.toml, or --store with a folder, found neither")
def init_without_a_store(place: Place) -> list[str | Path]:
    return ["init", write_plan(place.case), "--out", place.case / "m.json"]


@case(2, 'store.kind: expected "directory" or "s3"', "found 'http'")
def init_where_only_peers_are(place: Place) -> list[str | Path]:
    plan, config = write_plan(place.case), place.case / "node.toml"
    config.write_text(
        'key_file = "key.pem"\nstate_dir = "state"\n'
        '[store]\nkind = "http"\nurl = "http://[::1]:8750"\n'
    )
    return ["init", plan, "--config", config, "--out", place.case / "m.json"]


@case(2, "key_file: expected the validator's key, or --validator", "does not exist")
def init_without_a_key(place: Place) -> list[str | Path]:
    plan, config = write_plan(place.case), place.case / "node.toml"
    config.write_text('key_file = "none.pem"\nstate_dir = "s"\n[store]\npath = "store"\n')
    return ["init", plan, "--config", config, "--out", place.case / "m.json"]


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_setting_is_one_clear_line_and_the_right_exit_code(
    forge: Forge, place: Place, tmp_path: Path, name: str
) -> None:
    arrange, code, expected = CASES[name]
    log = tmp_path / "output.txt"
    found = run_command(forge, log, *arrange(place))
    output = log.read_text()
    assert found == code, output
    lines = [line for line in output.splitlines() if not line.startswith("setting up: ")]
    assert len(lines) == 1, output
    for text in ("shoal: ", *expected):
        assert text in lines[0]
    assert output.replace("\n", "").isprintable(), "a file's content steers the terminal"


def test_a_store_that_this_user_may_not_read_is_a_clear_line(forge: Forge, place: Place) -> None:
    """Root may read everything: a link into the store is what root is refused."""
    blob = place.run.manifest.data.shards[0]
    path = place.run.object_file(place.run.keys.blob(blob.sha256))
    path.rename(place.case / "elsewhere")
    path.symlink_to(place.case / "elsewhere")
    log = place.case / "output.txt"
    assert run_command(forge, log, *place.join()) == 4
    assert "something that the store did not make is in the way" in log.read_text()
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("mark", ["", "lock"])
def test_fresh_never_empties_a_folder_that_is_not_a_swarms(
    forge: Forge, place: Place, tmp_path: Path, mark: str
) -> None:
    folder = place.case / "swarm"
    folder.mkdir()
    (folder / "thesis.txt").write_text("ten years of work")
    if mark:
        # Many programs keep a file of this name in their folders.
        (folder / mark).touch()
    log = tmp_path / "output.txt"
    plan = write_plan(place.case)
    assert run_command(forge, log, *place.swarm(plan, "--fresh")) == 2
    assert "--run-dir: expected an empty folder or one of a swarm" in log.read_text()
    assert (folder / "thesis.txt").read_text() == "ten years of work"


def test_fresh_with_a_wrong_plan_keeps_the_run_that_is_there(
    forge: Forge, place: Place, tmp_path: Path
) -> None:
    folder = place.case / "swarm"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "manifest.json").write_bytes(b"precious")
    log = tmp_path / "output.txt"
    plan = place.plan("num_rounds = 4", "num_rounds = 0")
    assert run_command(forge, log, *place.swarm(plan, "--fresh")) == 2
    assert (folder / "manifest.json").read_bytes() == b"precious"


def test_another_plan_for_a_run_that_is_there_is_refused_and_not_ignored(
    forge: Forge, place: Place, tmp_path: Path
) -> None:
    folder = place.case / "swarm"
    folder.mkdir()
    shutil.copy(place.run.manifest_file, folder / "manifest.json")
    (folder / "lock").touch()
    log = tmp_path / "output.txt"
    plan = write_plan(place.case)
    assert run_command(forge, log, *place.swarm(plan, "--rounds", "9", "--peers", "1")) == 2
    (line,) = [x for x in log.read_text().splitlines() if not x.startswith("setting up: ")]
    assert "run.num_rounds: expected 4" in line
    assert "found 9" in line
    assert "--fresh" in line


def test_a_full_disk_behind_the_terminal_is_one_line_and_a_code(forge: Forge, place: Place) -> None:
    """Nobody can read the line there; the code is what is left."""
    assert run_command(forge, Path("/dev/full"), *place.join("doctor")) == 4
    assert run_command(forge, Path("/dev/full"), "status", place.node) == 4


@pytest.mark.parametrize("verb", ["join", "doctor"])
def test_an_address_without_its_scheme_is_said(forge: Forge, place: Place, verb: str) -> None:
    log = place.case / "output.txt"
    more: list[str | Path] = ["--config", place.toml] if verb == "doctor" else []
    assert run_command(forge, log, verb, "validator.example:8750", *more) == 2
    (line,) = log.read_text().splitlines()
    assert line.startswith("shoal: E_CONFIG ")
    assert "validator.example:8750" in line
