import asyncio
import errno
import os
from pathlib import Path

import pytest

from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
    StorageFullError,
    StorageUnavailableError,
)

NOW_S = 1_700_000_000.0


def open_store(root: Path) -> DirectoryStore:
    return DirectoryStore(root, now_s=lambda: NOW_S)


def put(
    store: DirectoryStore, key: str, data: bytes | memoryview = b"x", *, overwrite=False
) -> None:
    asyncio.run(store.put(key, data, overwrite=overwrite))


def get(store: DirectoryStore, key: str) -> bytes:
    return asyncio.run(store.get(key, max_bytes=1000))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def keys(store: DirectoryStore) -> tuple[str, ...]:
    return asyncio.run(store.list("")).keys


def test_another_store_on_the_same_folder_sees_the_objects(tmp_path):
    put(open_store(tmp_path), "a/b", b"data")
    assert get(open_store(tmp_path), "a/b") == b"data"


def test_no_temporary_file_remains_after_a_write(tmp_path):
    store = open_store(tmp_path)
    put(store, "a")
    put(store, "a", overwrite=True)
    with pytest.raises(ObjectExistsError):
        put(store, "a")
    assert names(tmp_path / ".tmp") == []


def test_only_old_leftovers_are_removed_at_the_start(tmp_path):
    folder = tmp_path / ".tmp"
    folder.mkdir()
    for name, age_s in (("old", 3601), ("young", 3599), ("create.lock", 9999)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (NOW_S - age_s, NOW_S - age_s))
    store = open_store(tmp_path)
    assert names(folder) == ["create.lock", "young"]
    assert keys(store) == ()


def test_foreign_files_are_not_listed(tmp_path):
    store = open_store(tmp_path)
    put(store, "a/b")
    for name in ("README", "x.txt", "Upper+", "+", ".hidden+", "a/.DS_Store"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "Folder").mkdir()
    (tmp_path / "Folder" / "c+").write_bytes(b"x")
    (tmp_path / "link+").symlink_to(tmp_path / "README")
    (tmp_path / "d+").mkdir()
    assert keys(store) == ("a/b",)


def test_a_link_in_the_place_of_an_object_is_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a+").symlink_to(tmp_path / "secret")
    store = open_store(root)
    with pytest.raises(AccessDeniedError):
        get(store, "a")
    with pytest.raises(AccessDeniedError):
        asyncio.run(store.head("a"))
    with pytest.raises(ObjectExistsError):
        put(store, "a")
    put(store, "a", b"new", overwrite=True)
    assert get(store, "a") == b"new"
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b+").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").symlink_to(outside)
    store = open_store(root)
    calls = [
        lambda: get(store, "a/b"),
        lambda: put(store, "a/c"),
        lambda: put(store, "a/b", overwrite=True),
        lambda: asyncio.run(store.head("a/b")),
        lambda: asyncio.run(store.delete("a/b")),
    ]
    for call in calls:
        with pytest.raises(AccessDeniedError):
            call()
    assert keys(store) == ()
    assert [(p.name, p.read_bytes()) for p in outside.iterdir()] == [("b+", b"secret")]


def test_a_link_in_the_place_of_the_temporary_folder_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / ".tmp").symlink_to(outside)
    with pytest.raises(AccessDeniedError):
        put(open_store(root), "a")
    assert names(outside) == []


def test_the_root_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    store = open_store(tmp_path / "root")
    put(store, "a", b"data")
    assert get(store, "a") == b"data"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_foreign_thing_in_the_place_of_an_object_does_not_hang_the_reader(tmp_path, make):
    make(tmp_path / "a+")
    store = open_store(tmp_path)
    with pytest.raises(AccessDeniedError):
        get(store, "a")
    with pytest.raises(AccessDeniedError):
        asyncio.run(store.head("a"))


def test_a_missing_root_says_so_and_is_not_made(tmp_path):
    with pytest.raises(StorageUnavailableError, match="No such file"):
        open_store(tmp_path / "unmounted")
    assert not (tmp_path / "unmounted").exists()


def test_a_root_that_vanishes_is_unavailable_not_empty(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    store = open_store(root)
    root.rmdir()
    for call in (lambda: get(store, "a"), lambda: keys(store), lambda: put(store, "a")):
        with pytest.raises(StorageUnavailableError):
            call()


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(AccessDeniedError):
        open_store(tmp_path / "root")


@pytest.mark.parametrize("no_link", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_a_key_is_still_created_once(tmp_path, monkeypatch, no_link):
    def refuse(*_args, **_kwargs):
        raise OSError(no_link, os.strerror(no_link))

    monkeypatch.setattr(os, "link", refuse)
    store = open_store(tmp_path)

    async def race():
        puts = [store.put("a/b", b"%d" % number) for number in range(16)]
        return await asyncio.gather(*puts, return_exceptions=True)

    outcomes = asyncio.run(race())
    assert sum(isinstance(outcome, ObjectExistsError) for outcome in outcomes) == 15
    assert get(store, "a/b") == b"%d" % outcomes.index(None)


def test_a_link_that_was_repeated_by_the_network_disk_is_a_success(tmp_path, monkeypatch):
    real_link = os.link

    def link_twice(*args, **kwargs):
        real_link(*args, **kwargs)
        real_link(*args, **kwargs)

    monkeypatch.setattr(os, "link", link_twice)
    store = open_store(tmp_path)
    put(store, "a", b"mine")
    assert get(store, "a") == b"mine"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EACCES, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
        (errno.EIO, StorageUnavailableError),
        (errno.ESTALE, StorageUnavailableError),
        (errno.EMFILE, StorageUnavailableError),
    ],
)
@pytest.mark.parametrize("step", ["write", "fsync", "link"])
def test_a_failing_disk_leaves_nothing_and_has_a_name(
    tmp_path, monkeypatch, step, number, expected
):
    store = open_store(tmp_path)
    put(store, "old", b"old")

    def fail(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(expected) as caught:
        put(store, "new")
    monkeypatch.undo()
    assert caught.value.key == "new"
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert keys(store) == ("old",)
    assert names(tmp_path / ".tmp") == []
    put(store, "new")


def test_a_full_disk_names_the_place_and_the_free_bytes(tmp_path, monkeypatch):
    def fail(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(tmp_path)
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(StorageFullError) as caught:
        put(store, "a")
    monkeypatch.undo()
    assert caught.value.place == str(tmp_path)
    assert caught.value.num_free_bytes > 0
    assert f"{caught.value.num_free_bytes} bytes free" in str(caught.value)


def test_file_and_folders_are_synced_before_a_write_or_a_delete_returns(tmp_path, monkeypatch):
    synced: list[str] = []
    real_fsync = os.fsync

    def note(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append(str(path.relative_to(tmp_path)))
        real_fsync(fd)

    store = open_store(tmp_path)
    monkeypatch.setattr(os, "fsync", note)
    put(store, "a/b")
    assert synced[:3] == [".", ".", synced[2]]
    assert synced[2].startswith(".tmp/")
    assert synced[3:] == ["a"]
    synced.clear()
    asyncio.run(store.delete("a/b"))
    assert synced == ["a"]


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:3]))
    store = open_store(tmp_path)
    put(store, "a", b"0123456789")
    assert get(store, "a") == b"0123456789"
    wide = memoryview(bytes(range(40))).cast("Q")
    put(store, "wide", wide)
    assert get(store, "wide") == bytes(range(40))


def test_a_read_in_parts_is_joined(tmp_path, monkeypatch):
    real_pread = os.pread
    store = open_store(tmp_path)
    put(store, "a", b"0123456789")
    monkeypatch.setattr(os, "pread", lambda fd, n, at: real_pread(fd, min(n, 3), at))
    assert get(store, "a") == b"0123456789"


def test_a_file_cut_while_it_is_read_is_noticed(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    put(store, "a", b"0123456789")
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(ObjectSizeError, match="10 bytes expected"):
        get(store, "a")


def test_no_file_stays_open(tmp_path):
    store = open_store(tmp_path)
    put(store, "a/b/c")
    num_open = len(names(Path("/proc/self/fd")))
    for _ in range(20):
        get(store, "a/b/c")
        keys(store)
        with pytest.raises(ObjectExistsError):
            put(store, "a/b/c")
        with pytest.raises(ObjectNotFoundError):
            get(store, "a/x/c")
    assert len(names(Path("/proc/self/fd"))) == num_open
