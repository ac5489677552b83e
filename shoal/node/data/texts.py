"""Reads text files as documents.

A document is a group of lines between blank lines. Files are plain, .gz or .xz, by their last
suffix.

Guarantees: strict UTF-8, so that a wrong encoding is an error with its place and not a vocabulary
full of nonsense; the same files give the same documents; a file is read as a stream, never whole.

Does not guess encodings, does not remove duplicates.
"""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from shoal.node.data.errors import DataError

_BOM: Final = b"\xef\xbb\xbf"
_FIX_READ: Final = "check the path and the download"


def documents(path: Path) -> Iterator[str]:
    """Read one file.

    Args:
        path: A text file: plain, or compressed with suffix .gz or .xz.

    Yields:
        Documents without the blank lines around them, never empty.

    Raises:
        DataError: The file cannot be read, is damaged, is not UTF-8, or has no text in it.
    """
    num_documents = 0
    lines: list[str] = []
    for line in _lines(path):
        if line.strip():
            lines.append(line)
        elif lines:
            num_documents += 1
            yield "".join(lines).rstrip()
            lines = []
    if lines:
        num_documents += 1
        yield "".join(lines).rstrip()
    if not num_documents:
        raise DataError(path, expected="text", found="none", fix="leave the file out or fill it")


def source_digest(path: Path) -> str:
    """Hash a source file as it lies on the disk, compressed or not.

    Args:
        path: The file.

    Returns:
        SHA-256 in hex.

    Raises:
        DataError: The file cannot be read.
    """
    with _reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(path: Path) -> Iterator[str]:
    num_bytes_before = 0
    with _reading(path), _opener(path)(path) as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, num_bytes_before, error) from error
            num_bytes_before += len(raw)
            yield line.removeprefix(_BOM.decode()) if number == 1 else line


def _opener(path: Path) -> Callable[[Path], IO[bytes]]:
    match path.suffix:
        case ".xz":
            return lambda file: cast("IO[bytes]", lzma.open(file, "rb"))
        case ".gz":
            return lambda file: cast("IO[bytes]", gzip.open(file, "rb"))
        case _:
            return lambda file: file.open("rb")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise DataError(
            path, expected=f"a whole {path.suffix} file", found=str(error), fix=_FIX_READ
        ) from error
    except OSError as error:
        found = error.strerror or str(error)
        raise DataError(path, expected="a readable file", found=found, fix=_FIX_READ) from error


def _not_utf8(
    path: Path, line_number: int, num_bytes_before: int, error: UnicodeDecodeError
) -> DataError:
    found = (
        f"byte 0x{error.object[error.start]:02x} at offset {num_bytes_before + error.start}, "
        f"line {line_number} ({error.reason})"
    )
    return DataError(path, expected="UTF-8 text", found=found, fix="convert it, e.g. with iconv")
