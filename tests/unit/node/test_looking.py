"""Places that nobody may look at: one line for the user. `Path.exists` raises there.

A name of 300 characters stands for a folder that is closed to this user: root may look anywhere.
"""

import asyncio
from pathlib import Path

import pytest

from shoal.node.doctor_lines import DoctorCode, Level
from shoal.node.doctor_machine import check_disk
from shoal.node.errors import ConfigError
from shoal.node.init_run import init_run
from shoal.node.joining import find_home
from shoal.node.looking import is_there
from shoal.node.web.log_folder import LogFolder
from tests.support.manifests import VALIDATOR, tiny_manifest
from tests.support.tiny_run import write_plan

CLOSED = "x" * 300


def test_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_there(tmp_path / "file", "--out")
    assert not is_there(tmp_path / "none", "--out")
    assert not is_there(tmp_path / "file" / "below", "--out")
    with pytest.raises(OSError, match="too long"):
        (tmp_path / CLOSED).exists()
    with pytest.raises(ConfigError, match=r"--out: .* found File name too long"):
        is_there(tmp_path / CLOSED, "--out")


def test_init_says_it_before_anything_is_made(tmp_path: Path) -> None:
    plan, ids = write_plan(tmp_path / "plan"), [VALIDATOR.peer.text]
    out, work = tmp_path / CLOSED / "m.json", tmp_path / "work"
    with pytest.raises(ConfigError, match="--out"):
        init_run(plan, tmp_path / "store", out, ids, work, threshold=1)
    assert not work.exists()


def test_status_and_join_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="PATH"):
        LogFolder(tmp_path / CLOSED).read()

    async def fetch(*_: object) -> bytes:
        return tiny_manifest().to_bytes()

    monkeypatch.setattr("shoal.node.joining._fetch", fetch)
    with pytest.raises(ConfigError, match="--home"):
        asyncio.run(find_home("http://validator.example:8750", tmp_path / CLOSED, 1))


def test_doctor_says_it_in_a_line(tmp_path: Path) -> None:
    # What is there of the way to it can be written: nothing is known against it yet.
    assert check_disk(tiny_manifest(), tmp_path / CLOSED / "state").level is Level.OK
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "state"):
        line = check_disk(tiny_manifest(), place)
        assert (line.code, line.level) == (DoctorCode.DISK, Level.FAILURE)
        assert "is a file" in line.found
        assert "state_dir" in line.fix
