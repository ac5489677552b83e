import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.node.data.errors import DataError
from shoal.node.data.prepare import PreparedData, PrepareProgress, prepare
from shoal.node.data.tokenizer import EOS_ID, TextTokenizer

SETTINGS: dict[str, Any] = {"vocab_size": 300, "shard_tokens": 500, "held_out_ratio": 0.1}


def write_texts(folder: Path) -> list[Path]:
    paths = []
    for name in ("one", "two"):
        path = folder / f"{name}.txt"
        lines = [f"document {number} of {name}: fish in the sea\n" for number in range(100)]
        path.write_text("\n".join(lines), encoding="utf-8")
        paths.append(path)
    return paths


def make(folder: Path, out_name: str = "out", **settings) -> PreparedData:
    return prepare(write_texts(folder), folder / out_name, **{**SETTINGS, **settings})


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def text_of(data: PreparedData, paths: list[Path]) -> list[str]:
    tokenizer = TextTokenizer.load(data.tokenizer.path)
    ids = np.concatenate([np.fromfile(path, dtype="<u2") for path in paths])
    assert ids[-1] == EOS_ID
    parts = np.split(ids, np.flatnonzero(ids == EOS_ID) + 1)
    return [tokenizer.decode(part.tolist()) for part in parts[:-1]]


def test_all_documents_are_in_the_shards_or_held_out(tmp_path):
    data = make(tmp_path)
    training = text_of(data, [shard.path for shard in data.shards])
    held_out = text_of(data, [data.held_out.path])
    expected = [
        f"document {n} of {name}: fish in the sea" for name in ("one", "two") for n in range(100)
    ]
    assert sorted(training + held_out) == sorted(expected)
    assert training == [text for text in expected if text in set(training)]
    assert 18 <= len(held_out) <= 22
    assert any("one" in text for text in held_out)
    assert any("two" in text for text in held_out)


def test_shards_are_cut_at_the_asked_size(tmp_path):
    data = make(tmp_path)
    counts = [data.num_tokens(shard) for shard in data.shards]
    assert len(counts) > 2
    assert set(counts[:-1]) == {500}
    assert 1 <= counts[-1] <= 500


def test_the_index_names_every_file_by_digest(tmp_path):
    data = make(tmp_path)
    index = json.loads(data.index.path.read_bytes())
    assert (index["vocab_size"], index["token_bytes"]) == (300, 2)
    entries = [*index["shards"], index["held_out"], index["tokenizer"]]
    assert {entry["name"] for entry in entries} | {"dataset.json"} == set(content(tmp_path / "out"))
    for entry in entries:
        raw = (tmp_path / "out" / entry["name"]).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == entry["sha256"]
        assert entry.get("num_tokens", len(raw) // 2) == len(raw) // 2
    assert [source["name"] for source in index["sources"]] == ["one.txt", "two.txt"]
    assert str(tmp_path) not in data.index.path.read_text()


def test_the_same_texts_give_the_same_bytes_also_over_an_older_data_set(tmp_path):
    make(tmp_path, "first")
    make(tmp_path, "second", vocab_size=280, shard_tokens=50)
    (tmp_path / "second" / "shard-00099.bin.partial").write_bytes(b"left by a killed run")
    make(tmp_path, "second")
    assert content(tmp_path / "first") == content(tmp_path / "second")


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    path = tmp_path / "many.txt"
    rng = np.random.default_rng(7)
    words = ("".join(map(chr, word)) for word in rng.integers(97, 123, size=(30_000, 8)))
    path.write_text("\n\n".join(words))
    data = prepare(
        [path], tmp_path / "out", vocab_size=66_000, shard_tokens=10**6, held_out_ratio=0.01
    )
    ids = np.fromfile(data.shards[0].path, dtype="<u4")
    assert data.token_bytes == 4
    assert (1 << 16) < ids.max() < 66_000
    assert data.num_tokens(data.shards[0]) == len(ids)


def test_progress_is_told(tmp_path):
    told: list[PrepareProgress] = []
    make(tmp_path, on_progress=told.append)
    assert [progress.stage for progress in told] == ["tokenizer", "tokens"]
    assert 178 <= told[0].num_documents <= 182


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 257}, "vocab_size >= 258"),
        ({"vocab_size": 1 << 33}, "2\\^32"),
        ({"shard_tokens": 0}, "shard_tokens >= 1"),
        ({"held_out_ratio": 0.0}, "held_out_ratio"),
        ({"held_out_ratio": float("nan")}, "held_out_ratio"),
        ({"vocab_size": 5000}, "fill a vocabulary of 5000, found only .* lower vocab_size"),
    ],
)
def test_impossible_settings_are_refused_with_a_way_out(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        make(tmp_path, **settings)


def test_no_text_and_a_single_document_are_refused(tmp_path):
    with pytest.raises(DataError, match="at least one text file"):
        prepare([], tmp_path / "out", **SETTINGS)
    (tmp_path / "a.txt").write_text("only one document " * 50)
    with pytest.raises(DataError, match="separate documents by blank lines"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", **{**SETTINGS, "vocab_size": 258})


def test_a_bad_text_is_reported_from_inside_the_training(tmp_path):
    paths = write_texts(tmp_path)
    paths[1].write_bytes(b"good\n\nbad \xff\n")
    with pytest.raises(DataError, match=r"two\.txt: expected UTF-8 text.*offset 10, line 3"):
        prepare(paths, tmp_path / "out", **SETTINGS)
    assert not (tmp_path / "out" / "dataset.json").exists()


@pytest.mark.parametrize("num_syncs", range(8))
def test_an_interrupted_run_leaves_nothing_that_looks_whole(tmp_path, monkeypatch, num_syncs):
    make(tmp_path)
    real_fsync = os.fsync
    done = 0

    def fail_later(fd: int) -> None:
        nonlocal done
        done += 1
        if done > num_syncs:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_later)
    with pytest.raises(DataError, match="No space left"):
        make(tmp_path, vocab_size=290)
    assert not (tmp_path / "out" / "dataset.json").exists()
    assert not list((tmp_path / "out").glob("*.partial"))


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(DataError, match="expected a folder to write to"):
        make(tmp_path)
