"""What `shoal join URL` says besides training."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from shoal.node.errors import ConfigError
from shoal.node.first_run import _say_if_moved, prepare_home
from shoal.node.joining import find_home
from tests.support.manifests import tiny_manifest

OLD, NEW = "http://old.example:8750", "http://new.example:8750"


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a container's user without an entry in the user table meets.
    monkeypatch.delenv("HOME", raising=False)
    nobody = Path("~nobody-of-this-name/.shoal")
    with pytest.raises(ConfigError, match="--home: expected a folder"):
        prepare_home(OLD, nobody, "", ())


def test_a_run_that_has_moved_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fetch(*_: object) -> bytes:
        return tiny_manifest().to_bytes()

    monkeypatch.setattr("shoal.node.joining._fetch", fetch)
    home = asyncio.run(find_home(OLD, tmp_path, 1))
    _say_if_moved(Console(), home, OLD, f"{OLD}/#{'0' * 64}")
    assert capsys.readouterr().out == ""
    _say_if_moved(Console(), home, OLD, NEW)
    said = capsys.readouterr().out
    assert f"names {OLD}, which is used" in said
    assert str(home.config_file) in said
