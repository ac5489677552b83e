"""The documents: links lead somewhere, codes and commands exist, nothing points at a registry."""

import fnmatch
import json
import re
from pathlib import Path

import pytest
import typer.main

from shoal.node.app import app
from shoal.node.config import load_node_config, load_run_plan
from shoal.node.store_keys import StoreKeys
from shoal.protocol.errors import ErrorCode
from shoal.protocol.identity import from_seed

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").glob("*.md")]
)
README = ROOT / "README.md"
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ADDRESS = re.compile(
    r"\b[a-z]+://[^\s)>\"]+|\b(?:[a-z0-9-]+\.)+(?:org|com|io|net|ai|co)\b", re.IGNORECASE
)
# Names below .example are nobody's (RFC 2606).
ALLOWED_ADDRESS = re.compile(
    r"https://(arxiv\.org|www\.rfc-editor\.org)/\S*|http://127\.0\.0\.1:\d+|"
    r"https?://[a-z{}.-]+\.example(:\d+)?|https?://(?=[`\s])"
)
# A command stands on an indented line or between backticks, so that prose about Shoal is left out.
COMMAND = re.compile(r"(?:^ {4}|`)(make|shoal) ([a-z]+)", re.MULTILINE)


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).strip().replace(" ", "-")


def targets(path: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in path.read_text().splitlines() if line[:1] == "#"}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def shoal_commands() -> set[str]:
    group = typer.main.get_command(app)
    return set(getattr(group, "commands", {}))


def test_there_are_documents():
    assert len(DOCUMENTS) >= 17


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name):
    path = ROOT / name
    for link in LINK.findall(path.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{name}: {link}"
        assert target == ROOT or ROOT in target.parents, f"{name}: {link} leaves the repository"
        if anchor:
            assert anchor in targets(target), f"{name}: {link} has no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_no_host_is_named_but_papers_rfcs_and_this_machine(name):
    text = ALLOWED_ADDRESS.sub("", (ROOT / name).read_text())
    assert ADDRESS.findall(text) == []


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist(name):
    known = {"make": make_targets(), "shoal": shoal_commands()}
    for program, verb in COMMAND.findall((ROOT / name).read_text()):
        assert verb in known[program], f"{name}: {program} {verb}"


def test_the_readme_shows_the_two_commands_and_every_shoal_command():
    found = {f"{program} {verb}" for program, verb in COMMAND.findall(README.read_text())}
    assert {"make demo", "make test"} <= found
    assert {f"shoal {verb}" for verb in shoal_commands()} <= found


def test_every_error_code_is_explained_and_no_other_one():
    text = (ROOT / "docs" / "errors.md").read_text()
    assert set(re.findall(r"\bE_[A-Z0-9_]+\b", text)) == {code.value for code in ErrorCode}


@pytest.mark.parametrize("name", NAMES)
def test_no_document_invents_an_error_code(name):
    found = set(re.findall(r"\bE_[A-Z0-9_]+\b(?!\.\.\.)", (ROOT / name).read_text()))
    assert found <= {code.value for code in ErrorCode}


def test_the_example_payload_of_the_wire_format_is_what_the_code_writes():
    text = (ROOT / "docs" / "wire-format.md").read_text()
    rows = re.findall(r"^ {4} *(\d+)  ((?:[0-9a-f]{2} ?)+)", text, re.MULTILINE)
    shown = bytes.fromhex("".join(part for _, part in rows))
    assert [int(offset) for offset, _ in rows] == list(range(0, 288, 16))
    assert shown == example_payload()


def example_payload() -> bytes:
    import numpy as np  # noqa: PLC0415  # only this test needs the codec

    from shoal.compression import BodyLayout, CodecSpec, ErrorFeedback  # noqa: PLC0415
    from shoal.protocol.payload import build_payload  # noqa: PLC0415

    layout = BodyLayout(CodecSpec(chunk_size=5, k_per_chunk=2), [7])
    values = np.array([0.01, -0.5, 0.02, 0.25, 0.0, 0.125, -0.0625], dtype=np.float32)
    return build_payload(
        from_seed(b"\1" * 32),
        run_id=bytes(range(32)),
        manifest_hash=bytes(range(32, 64)),
        codec_value_bits=2,
        round_id=8,
        base_state=bytes(range(64, 96)),
        inner_steps=15,
        tokens=30_000,
        body=ErrorFeedback(layout, 0.95).stage([values]).body,
    )


def indented_blocks(text: str) -> list[str]:
    """Blocks of four spaces, without them; an empty line inside belongs to the block."""
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE)
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip() + "\n" for block in found]


def tomls() -> list[str]:
    return [
        block
        for block in indented_blocks(README.read_text())
        if re.match(r"\[[a-z]+\]\n|key_file|proxy = ", block)
    ]


def test_every_toml_of_the_readme_is_one_that_a_node_or_a_plan_takes(tmp_path):
    plans = node_files = 0
    base = next(block for block in tomls() if 'kind = "http"' in block)
    demo = (ROOT / "configs" / "demo.toml").read_text()
    for block in tomls():
        file = tmp_path / "some.toml"
        sections = set(re.findall(r"^\[([a-z]+)\]", block, re.MULTILINE))
        if "admission" in sections:
            # Its keys are cut short on the page.
            continue
        if "endpoints" in sections:
            file.write_text(demo + "\n" + block)
            plans += 1
            load_run_plan(file)
        elif "timing" in sections:
            file.write_text(demo.replace("[timing]\n", block))
            plans += 1
            load_run_plan(file)
        else:
            # A section alone is added to a whole file, or takes the place of its own.
            head = base.partition("[store]")[0] if "store" in sections else base
            whole = block if block.startswith("key_file") else head + block
            file.write_text(block + base if block.startswith("proxy") else whole)
            node_files += 1
            load_node_config(file)
    assert plans == 2
    assert node_files >= 9


def test_the_bucket_policy_gives_away_payloads_and_nothing_else():
    (text,) = re.findall(r"```json\n(.*?)```", README.read_text(), re.DOTALL)
    (statement,) = json.loads(text)["Statement"]
    assert statement["Action"] == "s3:GetObject"
    assert statement["Effect"] == "Allow"
    keys = StoreKeys(bytes(32))
    peer = from_seed(b"\1" * 32).peer
    pattern = statement["Resource"].removeprefix("arn:aws:s3:::annas-payloads/")
    assert fnmatch.fnmatchcase(keys.payload(1, peer), pattern)
    for other in (keys.manifest, keys.record(1), keys.hello(peer), keys.probe("00" * 32)):
        assert not fnmatch.fnmatchcase(other, pattern)
