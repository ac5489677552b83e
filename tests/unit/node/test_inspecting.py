import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.node.errors import ConfigError
from shoal.node.inspecting import inspect_file
from shoal.protocol.envelope import MessageKind
from shoal.protocol.errors import ErrorCode
from shoal.protocol.record import build_record
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, payload_for
from tests.support.manifests import (
    VALIDATOR,
    first_head,
    layout_of,
    peer,
    record_after,
    tiny_manifest,
)
from tests.unit.protocol.wire_builders import seal_json

MANIFEST = tiny_manifest()
HEAD = first_head(MANIFEST)
PAYLOAD = payload_for(MANIFEST, HEAD, peer(1), body_like(layout_of(MANIFEST), 1))
GOOD = {
    "payload": PAYLOAD,
    "announcement": announcement_for(MANIFEST, HEAD, peer(1), PAYLOAD),
    "record": build_record(record_after(HEAD, MANIFEST, ()), (VALIDATOR,)),
    "manifest": MANIFEST.to_bytes(),
}
BOTH = pytest.mark.parametrize("manifest", [None, MANIFEST], ids=["alone", "with manifest"])


@pytest.fixture
def file(tmp_path):
    return tmp_path / "object"


def look(file, raw, manifest=MANIFEST):
    file.write_bytes(raw)
    return inspect_file(file, manifest)


@BOTH
@pytest.mark.parametrize("kind", GOOD)
def test_a_good_object_is_named_and_nothing_is_wrong_with_it(file, kind, manifest):
    found = look(file, GOOD[kind], manifest)
    assert (found.kind, found.problem) == (kind, "")
    assert found.checked
    assert found.facts


@BOTH
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("payload", ErrorCode.E_BODY_HASH),
        ("announcement", ErrorCode.E_JSON),
        ("record", ErrorCode.E_JSON),
        ("manifest", ErrorCode.E_JSON),
    ],
)
def test_a_damaged_object_is_named_by_its_code(file, kind, code, manifest):
    found = look(file, GOOD[kind][:-1] + bytes([GOOD[kind][-1] ^ 1]), manifest)
    assert found.kind == kind
    assert found.problem.startswith(f"{code}: ")


def test_without_the_manifest_it_says_what_was_not_checked(file):
    assert "--manifest" in look(file, PAYLOAD, None).checked
    assert "every rule" in look(file, PAYLOAD).checked


def test_a_payload_of_another_run_is_good_alone_and_bad_with_the_manifest(file):
    other = payload_for(MANIFEST, HEAD, peer(1), PAYLOAD[272:], run_id=bytes(32))
    assert look(file, other, None).problem == ""
    assert look(file, other).problem.startswith(ErrorCode.E_RUN)


@pytest.mark.parametrize("raw", [b"", b"x", b"SHOAL", b"[1]", bytes(1000)])
def test_something_else_is_unknown(file, raw):
    found = look(file, raw, None)
    assert found.kind == "unknown"
    assert found.problem.startswith(ErrorCode.E_MAGIC)


def test_a_file_that_cannot_be_read_is_a_wrong_setting(tmp_path):
    with pytest.raises(ConfigError):
        inspect_file(tmp_path / "missing", None)


@pytest.mark.parametrize("kind", GOOD)
def test_no_more_is_read_than_the_largest_of_its_kind(file, kind):
    file.write_bytes(GOOD[kind])
    # A terabyte of nothing: reading it would not end.
    os.truncate(file, 1 << 40)
    assert inspect_file(file, MANIFEST).problem.startswith("E_")


def test_a_strangers_control_codes_do_not_reach_the_terminal(file):
    evil = "\x1b[2J\u202e\x07"
    raw = seal_json({"kind": evil, evil: "x"}, (peer(1),), MessageKind.ANNOUNCEMENT)
    found = look(file, raw, None)
    shown = [*found.facts, *found.facts.values(), found.problem]
    assert all(text.isprintable() for text in shown)
    assert any("x1b" in text for text in shown)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    kind=st.sampled_from(sorted(GOOD)),
    position=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    cut=st.integers(0, 10_000),
    with_manifest=st.booleans(),
)
def test_any_change_gives_an_inspection_and_never_an_error(
    file, kind, position, byte, cut, with_manifest
):
    raw = bytearray(GOOD[kind])
    raw[position % len(raw)] = byte
    changed = bytes(raw[: max(cut, 1)])
    found = look(file, changed, MANIFEST if with_manifest else None)
    # Without the run's own, a manifest with another number may be a good one: of another run.
    is_another_run = kind == "manifest" and found.facts.get("run") != MANIFEST.run_id.hex()
    assert found.problem or changed == GOOD[kind] or (is_another_run and not with_manifest)


def test_a_manifest_of_another_run_than_the_given_one_is_bad(file):
    other = tiny_manifest(version=2, first=MANIFEST.run_id)
    for given_one, code in ((other, ErrorCode.E_MANIFEST), (_stranger(), ErrorCode.E_RUN)):
        found = look(file, given_one.to_bytes(), MANIFEST)
        assert found.kind == "manifest"
        assert found.problem.startswith(f"{code}: ")
        assert look(file, given_one.to_bytes(), None).problem == ""


def _stranger():
    timing = replace(MANIFEST.timing, round_seconds=MANIFEST.timing.round_seconds + 1)
    return tiny_manifest(timing=timing)
