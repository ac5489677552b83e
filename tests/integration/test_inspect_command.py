"""`shoal inspect` on good and bad objects: readable, a code for what is wrong, no traceback."""

import os
import random
import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.node.app import app
from shoal.node.errors import ConfigError
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES
from tests.integration.test_kills import nodes_of
from tests.support.processes import Forge, all_ended, run_command
from tests.support.tiny_run import TinyRun, make_tiny_run

pytestmark = pytest.mark.slow

NUM_RANDOM = 200
KINDS = ("payload", "record", "announcement", "manifest")
BEGINNINGS = (b"", b"SHOALPAY", b"SHOALMSG\x01\0\x01\0", b"SHOALMSG\x01\0\x02\0", b"{", b'{"a":')


@pytest.fixture(scope="module")
def objects(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyRun, list[Path]]:
    """A finished run, and one good object of every kind in the order of `KINDS`."""
    run = make_tiny_run(tmp_path_factory.mktemp("run"), num_peers=1, num_rounds=1, target_peers=1)
    nodes = nodes_of(forge, run, "validator", "peer-0")
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        assert [node.wait() for node in nodes] == [0, 0]
    peer = run.identities["peer-0"].peer
    keys = (run.keys.payload(1, peer), run.keys.record(1), run.keys.published(1, peer))
    return run, [*(run.object_file(key) for key in keys), run.manifest_file]


def inspect(file: Path, *more: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["inspect", str(file), *map(str, more)])
    # Anything but an exit or a refused configuration is a traceback for whoever runs it.
    expected = (SystemExit, ConfigError)
    assert result.exception is None or isinstance(result.exception, expected), result.exception
    return result.exit_code, result.output


def test_good_objects_are_shown_and_called_good(objects: tuple[TinyRun, list[Path]]) -> None:
    run, files = objects
    for kind, file in zip(KINDS, files, strict=True):
        for more in ((), ("--manifest", run.manifest_file)):
            code, output = inspect(file, *more)
            assert code == 0, output
            assert output.startswith(kind)
            assert "OK   checked: " in output
            assert run.manifest.run_id.hex() in output


def test_damaged_objects_are_named_by_their_code(
    objects: tuple[TinyRun, list[Path]], tmp_path: Path
) -> None:
    run, files = objects
    draw = random.Random(9)  # noqa: S311  # places, not secrets
    num_damaged = 0
    for kind, file in zip(KINDS, files, strict=True):
        good = file.read_bytes()
        places = [0, 9, len(good) - 1, *(draw.randrange(len(good)) for _ in range(12))]
        flips = [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in places]
        cuts = [good[:i] for i in (0, 1, 8, 100, len(good) // 2, len(good) - 1)]
        for number, raw in enumerate([*flips, *cuts, good + b"\0"]):
            bad = tmp_path / f"{kind}-{number}"
            bad.write_bytes(raw)
            num_damaged += 1
            for more in ((), ("--manifest", run.manifest_file)):
                code, output = inspect(bad, *more)
                if kind == "manifest" and code == 0:
                    # Without anything to compare with, another good manifest is a good manifest.
                    assert run.manifest.run_id.hex() not in output
                    continue
                assert code == 1, output
                assert "BAD  E_" in output
    assert num_damaged == len(KINDS) * 22


def test_random_bytes_never_end_in_a_traceback(
    objects: tuple[TinyRun, list[Path]], tmp_path: Path
) -> None:
    run, _ = objects
    file = tmp_path / "random"
    for seed in range(NUM_RANDOM):
        draw = random.Random(seed)  # noqa: S311  # a reproducible file
        beginning = BEGINNINGS[seed % len(BEGINNINGS)]
        size = run.manifest.payload_bytes - len(beginning) if seed % 3 == 0 else draw.randrange(600)
        file.write_bytes(beginning + draw.randbytes(size))
        for more in ((), ("--manifest", run.manifest_file)):
            code, output = inspect(file, *more)
            assert code == 1, (seed, output)
            assert "BAD  E_" in output, (seed, output)


def test_strange_files_are_answered_in_one_line(
    objects: tuple[TinyRun, list[Path]], forge: Forge, tmp_path: Path
) -> None:
    _, files = objects
    empty = tmp_path / "empty"
    empty.touch()
    strange = {tmp_path: 2, Path(os.devnull): 1, Path("/dev/zero"): 1, empty: 1}
    strange[tmp_path / "missing"] = 2
    for file, expected in strange.items():
        log = tmp_path / f"{file.name}.log"
        assert run_command(forge, log, "inspect", file) == expected, log.read_text()
        assert "Traceback" not in log.read_text()
    log = tmp_path / "swapped.log"
    assert run_command(forge, log, "inspect", files[0], "--manifest", files[0]) == 2
    assert "expected a canonical manifest" in log.read_text()


def test_a_huge_file_is_not_read_into_memory(
    objects: tuple[TinyRun, list[Path]], tmp_path: Path
) -> None:
    run, files = objects
    starts = [
        b"",
        files[0].read_bytes()[:PAYLOAD_PREFIX_BYTES],
        files[1].read_bytes()[:200],
        files[3].read_bytes()[:200],
    ]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, start in enumerate(starts):
        huge = tmp_path / f"huge-{number}"
        with huge.open("wb") as file:
            file.write(start)
            file.truncate(8 << 30)
        for more in ((), ("--manifest", run.manifest_file)):
            code, output = inspect(huge, *more)
            assert code == 1
            assert "BAD  E_" in output
        assert inspect(files[0], "--manifest", huge)[0] != 0
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after_kib - before_kib < 200 << 10


def test_what_a_file_says_does_not_steer_the_terminal(
    objects: tuple[TinyRun, list[Path]], tmp_path: Path
) -> None:
    _, files = objects
    raw = files[3].read_bytes()
    hostile = tmp_path / "hostile"
    text = b"\\u001b]0;owned\\u0007[bold]\\n[/nothing]"
    changed = raw.replace(b'"name":"tiny"', b'"name":"' + text + b'"')
    assert changed != raw
    hostile.write_bytes(changed)
    code, output = inspect(hostile)
    assert code == 0
    assert output.replace("\n", "").isprintable()
    assert "[bold]" in output
    assert inspect(files[0], "--manifest", hostile)[0] == 1
