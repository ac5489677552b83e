"""The directory store among real processes, kills and real disks."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import AccessDeniedError, StorageFullError
from shoal.storage.object_store import ObjectStore

NUM_RACES = 20
NUM_RACERS = 16
NUM_KILLS = 25

# Each racer says that it is ready, waits for the word, and answers with what happened.
RACER = """
import asyncio, sys
from pathlib import Path
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import ObjectExistsError

store = DirectoryStore(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    try:
        asyncio.run(store.put(line.strip(), sys.argv[2].encode() * 20_000))
    except ObjectExistsError:
        print("exists", flush=True)
    else:
        print("won", flush=True)
"""

# Objects are 64 KiB of one byte, so that half an object shows. It says that it is ready when the
# first ones are there, and goes on until it is killed.
WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from shoal.storage.directory import DirectoryStore

store = DirectoryStore(Path(sys.argv[1]))
for number in itertools.count():
    data = bytes([number % 256]) * 65_536
    asyncio.run(store.put("same", data, overwrite=True))
    asyncio.run(store.put(f"{sys.argv[2]}/{number}", data))
    if number == 0:
        print("ready", flush=True)
"""


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


@contextmanager
def running(processes: "list[subprocess.Popen[str]]") -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def read_all(store: ObjectStore) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        after: str | None = None
        while True:
            page = await store.list("", after=after)
            for key in page.keys:
                found[key] = await store.get(key, max_bytes=1 << 20)
            after = page.next_after
            if after is None:
                return found

    return asyncio.run(read())


def assert_whole(data: bytes) -> None:
    assert len(data) == 65_536
    assert len(set(data)) == 1


def test_of_racing_processes_exactly_one_creates_the_key(tmp_path):
    racers = [start(RACER, str(tmp_path), chr(65 + number)) for number in range(NUM_RACERS)]
    with running(racers):
        assert [answer(racer) for racer in racers] == ["ready"] * NUM_RACERS
        store = DirectoryStore(tmp_path)
        for race in range(NUM_RACES):
            for racer in racers:
                say(racer, f"race/{race}")
            answers = [answer(racer) for racer in racers]
            assert sorted(answers) == ["exists"] * (NUM_RACERS - 1) + ["won"]
            winner = chr(65 + answers.index("won")).encode()
            data = asyncio.run(store.get(f"race/{race}", max_bytes=1 << 20))
            assert data == winner * 20_000


def test_a_reader_never_sees_half_an_object_while_it_is_overwritten(tmp_path):
    writers = [start(WRITER, str(tmp_path), name) for name in ("a", "b")]
    with running(writers):
        assert [answer(writer) for writer in writers] == ["ready", "ready"]
        store = DirectoryStore(tmp_path)
        seen: set[int] = set()
        num_reads = 0
        # At least this much of it; a slow machine takes longer, and the test's time limit ends it.
        while len(seen) < 20 or num_reads < 500:
            data = asyncio.run(store.get("same", max_bytes=1 << 20))
            assert_whole(data)
            seen.add(data[0])
            num_reads += 1


def test_a_killed_writer_leaves_only_whole_objects(tmp_path):
    moments = random.Random(20_240_611)  # noqa: S311 - seeds the moments of the kills
    for number in range(NUM_KILLS):
        writer = start(WRITER, str(tmp_path), f"w{number}")
        with running([writer]):
            assert answer(writer) == "ready"
            time.sleep(moments.uniform(0.0, 0.02))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
    store = DirectoryStore(tmp_path)
    found = read_all(store)
    assert len(found) > NUM_KILLS
    for data in found.values():
        assert_whole(data)
    asyncio.run(store.put("same", b"after", overwrite=True))
    asyncio.run(store.put("new", b"after"))
    assert asyncio.run(store.get("same", max_bytes=5)) == b"after"
    # An hour later what the killed writers have left goes, and nothing else.
    later = DirectoryStore(tmp_path, now_s=lambda: time.time() + 3601)
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert len(read_all(later)) == len(found) + 1


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 1 MiB; skips where this user or container may not mount one."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    made = mount("tmpfs", folder, "-o", "size=1m")
    if made.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - the system's own


def mount(kind: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = ["mount", "-t", kind, *options, kind, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_full_disk_keeps_the_old_object_and_says_where(tmp_path):
    with small_disk(tmp_path) as disk:
        store = DirectoryStore(disk)
        asyncio.run(store.put("a", b"old" * 1000))
        for overwrite, key in ((True, "a"), (False, "b"), (False, "deep/er/b")):
            with pytest.raises(StorageFullError) as caught:
                asyncio.run(store.put(key, bytes(2 << 20), overwrite=overwrite))
            assert caught.value.place == str(disk)
            assert caught.value.num_free_bytes > 900_000
        assert read_all(store) == {"a": b"old" * 1000}
        asyncio.run(store.put("a", b"new", overwrite=True))
        assert read_all(store) == {"a": b"new"}


def test_a_read_only_disk_refuses_writes_and_still_reads(tmp_path):
    with small_disk(tmp_path) as disk:
        asyncio.run(DirectoryStore(disk).put("a", b"old"))
        (disk / ".tmp" / "leftover").write_bytes(b"")
        os.utime(disk / ".tmp" / "leftover", (0, 0))
        remade = mount("tmpfs", disk, "-o", "remount,ro,size=1m")
        if remade.returncode != 0:
            pytest.skip(f"a disk cannot be made read-only here: {remade.stderr.strip()}")
        store = DirectoryStore(disk)
        assert read_all(store) == {"a": b"old"}
        for key, overwrite in (("a", True), ("b", False), ("c/d", False)):
            with pytest.raises(AccessDeniedError, match="Read-only"):
                asyncio.run(store.put(key, b"new", overwrite=overwrite))
        with pytest.raises(AccessDeniedError):
            asyncio.run(store.delete("a"))
        assert read_all(store) == {"a": b"old"}


def test_permission_bits_are_an_access_error_for_an_ordinary_user(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("permission bits do not bind root; the read-only disk above covers it")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(AccessDeniedError):
            asyncio.run(DirectoryStore(tmp_path).put("a", b"x"))
    finally:
        tmp_path.chmod(0o700)
