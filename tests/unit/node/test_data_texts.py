import gzip
import lzma

import pytest

from shoal.node.data.errors import DataError
from shoal.node.data.texts import documents, source_digest


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one\ntwo"]),
        (b"\n\n one\n\n\n \t\n two\n\n", [" one", " two"]),
        (b"one\r\n\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone", ["one"]),
        ("\u00e9\n\n\U0001f41f".encode(), ["\u00e9", "\U0001f41f"]),
    ],
)
def test_documents_are_between_blank_lines(tmp_path, content, expected):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert list(documents(path)) == expected


def test_packed_files_give_the_same_documents(tmp_path):
    content = b"one\n\ntwo\n\n" * 1000
    for name, packed in (
        ("a.txt", content),
        ("a.txt.xz", lzma.compress(content)),
        ("a.txt.gz", gzip.compress(content)),
    ):
        (tmp_path / name).write_bytes(packed)
        assert list(documents(tmp_path / name)) == ["one", "two"] * 1000


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_that_are_not_utf8_are_found(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    content = "\u00e9\n\nab".encode() + b"\xe9 caf\xe9\n"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match=r"a\.txt.*byte 0xe9 at offset 6, line 3 .*iconv"):
        list(documents(path))


def test_a_character_cut_at_the_end_is_found(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\xf0\x9f")
    with pytest.raises(DataError, match="offset 2, line 1"):
        list(documents(path))


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n"])
def test_a_file_without_text_is_refused(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match="expected text, found none"):
        list(documents(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "not packed"])
def test_a_damaged_packed_file_is_refused(tmp_path, suffix, damage):
    content = bytes(range(32, 127)) * 100 + b"\n"
    packed = bytearray(gzip.compress(content) if suffix == ".gz" else lzma.compress(content))
    match damage:
        case "cut":
            del packed[-20:]
        case "flipped":
            packed[len(packed) // 2] ^= 255
        case _:
            packed = bytearray(content)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(packed)
    with pytest.raises(DataError, match=f"expected a whole {suffix} file"):
        list(documents(path))


@pytest.mark.parametrize("read", [lambda path: list(documents(path)), source_digest])
def test_a_missing_file_or_a_folder_is_refused(tmp_path, read):
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(DataError, match="expected a readable file"):
            read(path)
