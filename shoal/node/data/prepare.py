"""From texts to a data set: tokenizer.json, shard-00000.bin ..., held-out.bin, dataset.json.

The training documents are one stream of ids with <eos> after each document, cut into shards.
Documents are held out whole, spread evenly over the texts, and the tokenizer does not see them.

Guarantees: the same texts and settings give the same bytes; dataset.json, which names the others by
digest, is written last and removed first, so that an interrupted run leaves nothing that looks
whole.

Does not know sequences, batches or peers; prints nothing. `source` names in dataset.json are file
names without folders: a data set does not tell where it was made.
"""

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from shoal.node.data.errors import DataError
from shoal.node.data.texts import documents, source_digest
from shoal.node.data.token_files import (
    DataFile,
    sync_folder,
    token_bytes_for,
    token_dtype,
    write_whole,
)
from shoal.node.data.tokenizer import EOS_ID, MIN_VOCAB_SIZE, TextTokenizer
from shoal.protocol.strict_json import dump

DATASET_NAME: Final = "dataset.json"
TOKENIZER_NAME: Final = "tokenizer.json"
HELD_OUT_NAME: Final = "held-out.bin"
FORMAT: Final = "shoal/dataset/1"

# 4 bytes: a list of a shard's ids would take ten times as much.
_ID_TYPE: Final = "I"
_REPORT_EVERY_DOCUMENTS: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareProgress:
    """How far it is.

    Attributes:
        stage: "tokenizer" while the vocabulary is learned, then "tokens".
        num_documents: Training documents read in this stage.
    """

    stage: Literal["tokenizer", "tokens"]
    num_documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """A data set on the disk.

    Attributes:
        vocab_size: Number of token ids.
        token_bytes: Width of an id in the shards: 2 or 4.
        tokenizer: tokenizer.json.
        shards: What to train on.
        held_out: What to measure on.
        index: dataset.json.
    """

    vocab_size: int
    token_bytes: int
    tokenizer: DataFile
    shards: tuple[DataFile, ...]
    held_out: DataFile
    index: DataFile

    def num_tokens(self, shard: DataFile) -> int:
        """Say how many tokens a shard of this data set has."""
        return shard.num_bytes // self.token_bytes


def _no_report(_: PrepareProgress) -> None:
    """For callers that do not look."""


def prepare(
    texts: Sequence[Path],
    out_dir: Path,
    *,
    vocab_size: int,
    shard_tokens: int,
    held_out_ratio: float,
    on_progress: Callable[[PrepareProgress], None] = _no_report,
) -> PreparedData:
    """Make a data set; what an earlier call left in the folder is replaced.

    Args:
        texts: Text files, in this order: plain, .gz or .xz.
        out_dir: Where to; made if missing.
        vocab_size: Number of token ids, at least 258.
        shard_tokens: Tokens per shard; the last one has the rest.
        held_out_ratio: Share of the text to hold out, by characters, above 0 and at most 0.5.
        on_progress: Called now and then.

    Returns:
        What was written.

    Raises:
        DataError: A text is unreadable, not UTF-8 or empty; the texts are too small for the
            vocabulary or for holding anything out; a setting is out of range; the disk is full.
    """
    _check_settings(texts, out_dir, vocab_size, shard_tokens, held_out_ratio)
    sources = [{"name": _shown_name(path), "sha256": source_digest(path)} for path in texts]
    _clear(out_dir)
    split = _Split(texts, held_out_ratio)
    tokenizer = _train(split, vocab_size, out_dir, on_progress)
    tokenizer_file = write_whole(out_dir / TOKENIZER_NAME, tokenizer.to_bytes())
    token_bytes = token_bytes_for(vocab_size)
    held_out = _write_held_out(split, tokenizer, token_bytes, out_dir)
    training = _reported(split.training(), "tokens", on_progress)
    stream = _cut(tokenizer.encode(training), shard_tokens)
    shards = tuple(
        write_whole(out_dir / f"shard-{number:05d}.bin", _packed(ids, token_bytes))
        for number, ids in enumerate(stream)
    )
    content = dump(
        {
            "format": FORMAT,
            "vocab_size": vocab_size,
            "token_bytes": token_bytes,
            "tokenizer": {"name": TOKENIZER_NAME, "sha256": tokenizer_file.sha256.hex()},
            "shards": [_entry(shard, token_bytes) for shard in shards],
            "held_out": _entry(held_out, token_bytes),
            "sources": sources,
        }
    )
    return PreparedData(
        vocab_size=vocab_size,
        token_bytes=token_bytes,
        tokenizer=tokenizer_file,
        shards=shards,
        held_out=held_out,
        index=write_whole(out_dir / DATASET_NAME, content),
    )


class _Split:
    """Which documents are held out: a running share, so that they come from all over the texts.

    A document is held out when less than the wanted share of all characters before it has been; the
    first one never is. Pure: reading again gives the same split.
    """

    def __init__(self, texts: Sequence[Path], held_out_ratio: float) -> None:
        self._texts = texts
        self._held_out_ratio = held_out_ratio

    def training(self) -> Iterator[str]:
        return (text for text, is_held_out in self._all() if not is_held_out)

    def held_out(self) -> Iterator[str]:
        return (text for text, is_held_out in self._all() if is_held_out)

    def _all(self) -> Iterator[tuple[str, bool]]:
        num_chars = num_held_out = 0
        for path in self._texts:
            for text in documents(path):
                is_held_out = num_held_out < self._held_out_ratio * num_chars
                num_chars += len(text)
                num_held_out += len(text) if is_held_out else 0
                yield text, is_held_out


def _check_settings(
    texts: Sequence[Path],
    out_dir: Path,
    vocab_size: int,
    shard_tokens: int,
    held_out_ratio: float,
) -> None:
    rules = [
        (bool(texts), "at least one text file", "none", "name one"),
        (vocab_size >= MIN_VOCAB_SIZE, f"vocab_size >= {MIN_VOCAB_SIZE}", vocab_size, "raise it"),
        (vocab_size <= 1 << 32, "vocab_size <= 2^32", vocab_size, "lower it"),
        (shard_tokens >= 1, "shard_tokens >= 1", shard_tokens, "raise it"),
        (0 < held_out_ratio <= 0.5, "0 < held_out_ratio <= 0.5", held_out_ratio, "change it"),
    ]
    for holds, expected, found, fix in rules:
        if not holds:
            raise DataError(out_dir, expected=expected, found=str(found), fix=fix)


def _clear(out_dir: Path) -> None:
    """Remove what an earlier call made: the index first, or it would name files that are gone."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / DATASET_NAME).unlink(missing_ok=True)
        sync_folder(out_dir)
        # The star: a killed run may have left a shard that it was writing.
        for shard in out_dir.glob("shard-[0-9][0-9][0-9][0-9][0-9].bin*"):
            shard.unlink()
    except OSError as error:
        raise DataError(
            out_dir,
            expected="a folder to write to",
            found=error.strerror or str(error),
            fix="choose another folder",
        ) from error


def _train(
    split: _Split,
    vocab_size: int,
    out_dir: Path,
    on_progress: Callable[[PrepareProgress], None],
) -> TextTokenizer:
    training = _reported(split.training(), "tokenizer", on_progress)
    tokenizer = TextTokenizer.train(training, vocab_size)
    if tokenizer.vocab_size != vocab_size:
        raise DataError(
            out_dir / TOKENIZER_NAME,
            expected=f"texts that fill a vocabulary of {vocab_size}",
            found=f"only {tokenizer.vocab_size} tokens in them",
            fix="add text or lower vocab_size",
        )
    return tokenizer


def _reported(
    texts: Iterator[str],
    stage: Literal["tokenizer", "tokens"],
    on_progress: Callable[[PrepareProgress], None],
) -> Iterator[str]:
    num_documents = 0
    for text in texts:
        yield text
        num_documents += 1
        if num_documents % _REPORT_EVERY_DOCUMENTS == 0:
            on_progress(PrepareProgress(stage=stage, num_documents=num_documents))
    on_progress(PrepareProgress(stage=stage, num_documents=num_documents))


def _write_held_out(
    split: _Split, tokenizer: TextTokenizer, token_bytes: int, out_dir: Path
) -> DataFile:
    path = out_dir / HELD_OUT_NAME
    ids = array(_ID_TYPE)
    for encoded in tokenizer.encode(split.held_out()):
        ids.extend((*encoded, EOS_ID))
    if not ids:
        raise DataError(
            path,
            expected="at least one document to hold out",
            found="a single document in the texts",
            fix="separate documents by blank lines or add text",
        )
    return write_whole(path, _packed(ids, token_bytes))


def _cut(encoded: Iterator[list[int]], shard_tokens: int) -> "Iterator[array[int]]":
    pending = array(_ID_TYPE)
    for ids in encoded:
        pending.extend((*ids, EOS_ID))
        while len(pending) >= shard_tokens:
            yield pending[:shard_tokens]
            del pending[:shard_tokens]
    if pending:
        yield pending


def _packed(ids: "array[int]", token_bytes: int) -> bytes:
    return np.asarray(ids).astype(token_dtype(token_bytes)).tobytes()


def _entry(file: DataFile, token_bytes: int) -> dict[str, object]:
    return {
        "name": file.path.name,
        "sha256": file.sha256.hex(),
        "num_tokens": file.num_bytes // token_bytes,
    }


def _shown_name(path: Path) -> str:
    # A name that is not UTF-8 has no place in JSON; the digest identifies the file anyway.
    return os.fsencode(path.name).decode("utf-8", "replace")
