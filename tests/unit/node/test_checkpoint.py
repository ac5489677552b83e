import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.node import checkpoint as module
from shoal.node.checkpoint import CheckpointFolder, Snapshot, write_atomically
from shoal.node.errors import CheckpointError, NodeError, ResourceError


@pytest.fixture(autouse=True)
def quick_disk(no_fsync):
    """See the fixture; the order of the flushes has a test of its own."""


class PowerCut(BaseException):
    """The process ends here: nothing in it may clean up."""


def snapshot(round_id, seed=0):
    rng = np.random.default_rng(100 * round_id + seed)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "base.0": rng.standard_normal(7).astype(np.float32),
        "staged": rng.integers(0, 256, 33).astype(np.uint8),
        "adamw.0.step": np.array(3.0, dtype=np.float32),
    }
    return Snapshot(round_id=round_id, arrays=arrays, facts={"format": "x", "state": "ab" * 32})


def assert_same(found, expected):
    assert found is not None
    assert (found.round_id, dict(found.facts)) == (expected.round_id, dict(expected.facts))
    assert set(found.arrays) == set(expected.arrays)
    for name, value in expected.arrays.items():
        assert found.arrays[name].dtype == value.dtype
        assert found.arrays[name].shape == value.shape
        assert found.arrays[name].tobytes() == value.tobytes()


def state_files(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("state-"))


def test_what_was_saved_is_read_back_to_the_bit(tmp_path):
    odd = np.array([0x80000000, 0x7FC12345, 1, 0xFF800000], dtype=np.uint32).view(np.float32)
    saved = Snapshot(
        round_id=4,
        arrays={"odd": odd, "empty": np.empty(0, np.float32), "scalar": np.array(2.0)},
        facts={"a": "1", "b": "é"},
    )
    CheckpointFolder(tmp_path).save(saved)
    assert_same(CheckpointFolder(tmp_path).load(), saved)


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert CheckpointFolder(tmp_path / "new").load() is None


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for round_id in (1, 2, 3):
        folder.save(snapshot(round_id))
        assert_same(folder.load(), snapshot(round_id))
    assert [name[:14] for name in state_files(tmp_path)] == ["state-00000002", "state-00000003"]


def test_two_checkpoints_of_one_round_are_two_checkpoints(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(snapshot(5, seed=1))
    folder.save(snapshot(5, seed=2))
    assert_same(folder.load(), snapshot(5, seed=2))
    assert len(state_files(tmp_path)) == 2
    folder.save(snapshot(5, seed=2))
    assert len(state_files(tmp_path)) == 2


def newest_file(folder):
    return folder / json.loads((folder / "CURRENT.json").read_bytes())[0]["file"]


def flip_a_bit(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


DAMAGE = {
    "a flipped bit": flip_a_bit,
    "a cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "nothing in it": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "something else": lambda path: path.write_bytes(b"\xff" * 100),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_if_the_newest_is_damaged_the_one_before_is_used(tmp_path, damage):
    folder = CheckpointFolder(tmp_path)
    folder.save(snapshot(1))
    folder.save(snapshot(2))
    damage(newest_file(tmp_path))
    assert_same(folder.load(), snapshot(1))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_if_none_is_whole_that_is_an_error_and_never_a_fresh_start(tmp_path, damage):
    folder = CheckpointFolder(tmp_path)
    folder.save(snapshot(1))
    damage(newest_file(tmp_path))
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        folder.load()


@pytest.mark.parametrize(
    "pointer",
    [
        b"",
        b"{",
        b"{}",
        b'[{"file":"a"}]',
        b'[{"file":"../a","sha256":"b"}]',
        b'[{"file":1,"sha256":2}]',
        b"\xff",
    ],
)
def test_a_damaged_pointer_is_an_error_and_never_a_fresh_start(tmp_path, pointer):
    folder = CheckpointFolder(tmp_path)
    folder.save(snapshot(1))
    (tmp_path / "CURRENT.json").write_bytes(pointer)
    with pytest.raises(CheckpointError, match="CURRENT"):
        folder.load()


OPERATIONS = [
    (os, "fsync"),
    (os, "open"),
    (os, "close"),
    (Path, "open"),
    (Path, "replace"),
    (Path, "unlink"),
    (Path, "mkdir"),
]


def interrupt_at(monkeypatch, number, make_error, *, after):
    """Patches all file operations: the `number`-th of them all fails, before or after it is done.

    Returns the count of operations, so that a test sees whether it came that far.
    """
    count = [0]

    def wrap(owner, name):
        real = getattr(owner, name)

        def wrapped(*args, **kwargs):
            count[0] += 1
            if count[0] != number:
                return real(*args, **kwargs)
            if after:
                result = real(*args, **kwargs)
                if hasattr(result, "close"):
                    result.close()
            raise make_error()

        monkeypatch.setattr(owner, name, wrapped)

    for owner, name in OPERATIONS:
        wrap(owner, name)
    return count


def num_operations(monkeypatch, folder, saved):
    with monkeypatch.context() as patched:
        count = interrupt_at(patched, -1, PowerCut, after=False)
        folder.save(saved)
    return count[0]


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_crash_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path, monkeypatch, after):
    trial = CheckpointFolder(tmp_path / "count")
    trial.save(snapshot(1))
    trial.save(snapshot(2))
    total = num_operations(monkeypatch, trial, snapshot(3))
    assert total >= 12
    outcomes = set()
    for number in range(1, total + 1):
        folder = CheckpointFolder(tmp_path / str(number))
        folder.save(snapshot(1))
        folder.save(snapshot(2))
        with monkeypatch.context() as patched:
            interrupt_at(patched, number, PowerCut, after=after)
            with pytest.raises(PowerCut):
                folder.save(snapshot(3))
        found = folder.load()
        assert found is not None
        assert_same(found, snapshot(found.round_id))
        outcomes.add(found.round_id)
        # The next start saves again, and what the crash left behind is swept away.
        folder.save(snapshot(4))
        assert_same(folder.load(), snapshot(4))
        assert len(state_files(folder.folder)) == 2
    assert outcomes == {2, 3}


def test_a_crash_during_the_first_save_leaves_a_fresh_start_or_the_checkpoint(
    tmp_path, monkeypatch
):
    total = num_operations(monkeypatch, CheckpointFolder(tmp_path / "count"), snapshot(1))
    for number in range(1, total + 1):
        folder = CheckpointFolder(tmp_path / str(number))
        with monkeypatch.context() as patched:
            interrupt_at(patched, number, PowerCut, after=False)
            with pytest.raises(PowerCut):
                folder.save(snapshot(1))
        found = folder.load()
        if found is not None:
            assert_same(found, snapshot(1))


def no_space():
    return OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_a_lack_of_resources_and_leaves_the_older_ones_whole(tmp_path, monkeypatch):
    trial = CheckpointFolder(tmp_path / "count")
    trial.save(snapshot(1))
    total = num_operations(monkeypatch, trial, snapshot(2))
    kinds = []
    for number in range(1, total + 1):
        folder = CheckpointFolder(tmp_path / str(number))
        folder.save(snapshot(1))
        with monkeypatch.context() as patched:
            interrupt_at(patched, number, no_space, after=False)
            with pytest.raises(NodeError, match="No space left on device") as caught:
                folder.save(snapshot(2))
        kinds.append(type(caught.value))
        found = folder.load()
        assert found is not None
        assert_same(found, snapshot(found.round_id))
    # The one operation that reads is the pointer's: what cannot be read is no lack of room.
    assert kinds.count(CheckpointError) == 1
    assert kinds.count(ResourceError) == total - 1


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(fd):
        raise no_space()

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_content_is_flushed_before_the_name_and_the_name_before_the_return(
    tmp_path, monkeypatch
):
    path = tmp_path / "file"
    steps = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(fd):
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")  # noqa: PTH112  # a link of the kernel's
        real_fsync(fd)

    def replace(self, target):
        steps.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomically(path, b"new")
    assert steps == ["file", "rename", "folder"]


def test_the_state_is_on_the_disk_before_the_pointer_names_it(tmp_path, monkeypatch):
    named = []
    real = module.write_atomically

    def watch(path, raw):
        if path.name == "CURRENT.json":
            named.append([(tmp_path / e["file"]).is_file() for e in json.loads(raw)])
        real(path, raw)

    monkeypatch.setattr(module, "write_atomically", watch)
    CheckpointFolder(tmp_path).save(snapshot(1))
    CheckpointFolder(tmp_path).save(snapshot(2))
    assert named == [[True], [True, True]]


def test_after_a_damaged_newest_the_whole_one_is_not_thrown_away_for_it(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(snapshot(1))
    folder.save(snapshot(2))
    flip_a_bit(newest_file(tmp_path))
    assert_same(folder.load(), snapshot(1))
    folder.save(snapshot(2, seed=7))
    flip_a_bit(newest_file(tmp_path))
    assert_same(folder.load(), snapshot(1))
