import hashlib
import lzma
from pathlib import Path

from shoal.node.data.texts import documents

DEMO = Path(__file__).parents[3] / "configs" / "demo"


def test_the_demo_text_is_the_one_that_its_page_describes():
    page = (DEMO / "README.md").read_text(encoding="ascii")
    packed = (DEMO / "kjv.txt.xz").read_bytes()
    for content in (packed, lzma.decompress(packed)):
        assert hashlib.sha256(content).hexdigest() in page
        assert f"{len(content):,}" in page


def test_the_demo_text_is_split_into_headings_and_chapters():
    found = list(documents(DEMO / "kjv.txt.xz"))
    assert len(found) == 2 * 1189
    assert found[0] == "Genesis 1"
    assert found[1].startswith("  1 In the beginning")
