import subprocess
import sys

import pytest

from shoal.node.errors import ConfigError, StateInUseError
from shoal.node.locks import lock_file, lock_folder

HOLD = """
import sys, pathlib
from shoal.node.locks import lock_file
held = lock_file(pathlib.Path(sys.argv[1]), "the key")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_locked_file_is_given_to_nobody_else_until_it_is_freed(tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(b"key")
    with lock_file(path, "the key"), pytest.raises(StateInUseError, match="E_KEY_IN_USE the key"):
        lock_file(path, "the key")
    lock_file(path, "the key").close()
    assert path.read_bytes() == b"key"


def test_the_system_frees_a_lock_when_its_process_is_killed(tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(b"key")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateInUseError):
            lock_file(path, "the key")
        holder.kill()
        holder.wait()
        lock_file(path, "the key").close()


def test_a_file_that_is_not_there_is_a_wrong_setting(tmp_path):
    with pytest.raises(ConfigError, match="the key"):
        lock_file(tmp_path / "missing", "the key")


def test_a_folder_is_made_and_locked(tmp_path):
    folder = tmp_path / "a" / "b"
    with lock_folder(folder, "the state"), pytest.raises(StateInUseError):
        lock_folder(folder, "the state")
    lock_folder(folder, "the state").close()


def test_a_folder_that_cannot_be_made_is_a_wrong_setting(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="the state"):
        lock_folder(tmp_path / "file" / "state", "the state")
