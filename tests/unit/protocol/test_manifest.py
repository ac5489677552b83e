import json
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol import strict_json
from shoal.protocol.errors import ErrorCode, InvalidManifestError, RemoteProtocolError
from shoal.protocol.manifest import (
    MAX_MANIFEST_BYTES,
    AdmissionSection,
    BlobSection,
    CodecSection,
    RunManifest,
    TensorSection,
    ValidatorsSection,
    check_manifest,
    check_successor,
    read_manifest,
)
from shoal.protocol.schema import Settings
from shoal.protocol.signing import Domain, digest
from tests.support.manifests import VALIDATOR, peer, tiny_manifest
from tests.unit.protocol.wire_builders import IDENTITY_POINT

MANIFEST = tiny_manifest()
# Changes only together with `FORMAT`: a run's identity hangs on it.
GOLDEN_HASH = "0451ea683fdca40713d0b53c8dc554254cc2de9bc7044f6a8db28c4e6f4773f0"


def plain_of(manifest: RunManifest = MANIFEST) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(manifest.to_bytes())
    return plain


def raw_of(plain):
    return strict_json.dump(plain)


def changed(path, value):
    """The manifest's plain form with one dotted field replaced, or removed if value is None."""
    plain = plain_of()
    *parents, name = path.split(".")
    table = plain
    for parent in parents:
        table = table[parent]
    if value is None:
        del table[name]
    else:
        table[name] = value
    return plain


def refused(raw):
    with pytest.raises(InvalidManifestError) as caught:
        read_manifest(raw)
    return caught.value


def test_the_byte_form_is_read_back_to_an_equal_manifest():
    assert read_manifest(MANIFEST.to_bytes()) == MANIFEST
    assert read_manifest(MANIFEST.to_bytes()).to_bytes() == MANIFEST.to_bytes()


def test_the_hash_is_that_of_the_bytes_and_never_changes():
    assert MANIFEST.manifest_hash == digest(Domain.MANIFEST, MANIFEST.to_bytes())
    assert MANIFEST.manifest_hash.hex() == GOLDEN_HASH


def test_every_float_is_hexadecimal_in_the_bytes():
    text = MANIFEST.to_bytes().decode()
    assert '"learning_rate":"0x1.47ae147ae147bp-7"' in text
    assert '"rope_theta":{"float":"0x1.0000000000000p-1"}' in text

    def walk(value):
        assert not isinstance(value, float)
        for inner in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            walk(inner)

    walk(json.loads(text))


def test_the_run_id_is_the_hash_of_the_first_manifest():
    later = tiny_manifest(version=2, first=MANIFEST.run_id)
    assert MANIFEST.run_id == MANIFEST.manifest_hash
    assert later.run_id == MANIFEST.run_id
    assert later.manifest_hash != later.run_id


@pytest.mark.parametrize(
    "spelling",
    [
        lambda raw: raw + b" ",
        lambda raw: b" " + raw,
        lambda raw: raw.replace(b'":', b'": ', 1),
        lambda raw: raw.replace(b"0x1.47ae147ae147bp-7", b"0X1.47ae147ae147bp-7"),
        lambda raw: raw.replace(b"0x1.47ae147ae147bp-7", b"0x0.a3d70a3d70a3d8p-6"),
        lambda raw: raw.replace(b'"tiny"', b'"\\u0074iny"'),
        lambda raw: raw.replace(b'"version":1', b'"version":1.0'),
        lambda raw: raw.replace(b',"tau":1', b""),
        lambda raw: raw.replace(b'"tau":1', b'"tau":1,"tau":1'),
    ],
)
def test_there_is_one_spelling_only(spelling):
    raw = spelling(MANIFEST.to_bytes())
    assert raw != MANIFEST.to_bytes()
    with pytest.raises((RemoteProtocolError, InvalidManifestError)):
        read_manifest(raw)


def test_the_expected_hash_is_checked_before_anything_is_parsed():
    assert (
        read_manifest(MANIFEST.to_bytes(), expected_hash=MANIFEST.manifest_hash).run == MANIFEST.run
    )
    for raw in (MANIFEST.to_bytes(), b"not json"):
        with pytest.raises(RemoteProtocolError) as caught:
            read_manifest(raw, expected_hash=bytes(32))
        assert caught.value.code is ErrorCode.E_MANIFEST


def test_a_manifest_that_is_too_long_is_refused_unread():
    with pytest.raises(RemoteProtocolError) as caught:
        read_manifest(b"{" * (MAX_MANIFEST_BYTES + 1))
    assert caught.value.code is ErrorCode.E_LEN


def test_a_repeated_key_is_refused():
    with pytest.raises(RemoteProtocolError) as caught:
        read_manifest(b'{"a":1,"a":2}')
    assert caught.value.code is ErrorCode.E_JSON_DUPKEY


def _leaves(plain, path=""):
    for name, value in plain.items():
        where = f"{path}.{name}" if path else name
        yield where
        if isinstance(value, dict) and where != "model.settings":
            yield from _leaves(value, where)


@pytest.mark.parametrize("path", list(_leaves(plain_of())))
def test_every_key_must_be_written_out(path):
    error = refused(raw_of(changed(path, None)))
    assert error.path in (path, "the whole file")


@pytest.mark.parametrize("path", list(_leaves(plain_of())))
def test_every_field_refuses_a_wrong_type(path):
    wrong: object = [["x"]]
    assert refused(raw_of(changed(path, wrong))).path.startswith(path)


@pytest.mark.parametrize("path", ["", "run.", "codec.", "data.tokenizer.", "limits."])
def test_an_unknown_key_is_refused_wherever_it_stands(path):
    error = refused(raw_of(changed(path + "strange", 1)))
    assert error.path == path + "strange"
    assert error.found == "an unknown key"


def hexes(number):
    return float(number).hex()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "shoal/manifest/2"),
        ("version", 0),
        ("run.num_rounds", 0),
        ("codec.chunk_size", 15),
        ("codec.chunk_size", 4097),
        ("codec.k_per_chunk", 0),
        ("codec.value_bits", 3),
        ("codec.max_scale", hexes(65505)),
        ("data.seq_len", 1),
        ("data.token_bytes", 3),
        ("data.held_out.num_bytes", 0),
        ("training.inner_steps", 0),
        ("training.learning_rate", hexes(10.5)),
        ("training.learning_rate", hexes(-1e-9)),
        ("training.error_decay", hexes(1.01)),
        ("training.grad_clip", hexes(0)),
        ("outer.alpha", hexes(0)),
        ("outer.tau", 0),
        ("outer.gather_limit", 256),
        ("outer.cap_denominator", 0),
        ("timing.round_seconds", hexes(0.5)),
        ("timing.min_peers", 0),
        ("timing.checkpoint_every", 0),
        ("validators.threshold", 0),
        ("admission.mode", "closed"),
        ("limits.body_bytes", 0),
        ("limits.max_record_bytes", 1023),
    ],
)
def test_a_number_out_of_its_range_is_named_with_the_range(path, value):
    error = refused(raw_of(changed(path, value)))
    assert error.path == path
    assert "from" in error.expected or "one of" in error.expected


BAD_COMBINATIONS: dict[str, dict[str, Any]] = {
    "first": {"version": 2},
    "first ": {"first": bytes(32)},
    "genesis.root": {
        "genesis": replace(MANIFEST.genesis, root=bytes(31)),
    },
    "data.shards": {"data": replace(MANIFEST.data, shards=())},
    "data.shards[0]": {
        "data": replace(MANIFEST.data, shards=(BlobSection(sha256=b"", num_bytes=1),))
    },
    "data.tokenizer": {
        "data": replace(MANIFEST.data, tokenizer=BlobSection(sha256=b"x", num_bytes=1))
    },
    "data.vocab_size": {"data": replace(MANIFEST.data, vocab_size=65537)},
    "codec.k_per_chunk": {"codec": CodecSection(chunk_size=16, k_per_chunk=17)},
    "codec.max_scale": {"codec": CodecSection(chunk_size=16, k_per_chunk=4, max_scale=0.1)},
    "timing.min_peers": {"timing": replace(MANIFEST.timing, min_peers=21)},
    "validators.threshold": {"validators": replace(MANIFEST.validators, threshold=2)},
    "validators.threshold ": {"validators": ValidatorsSection(keys=())},
    "validators.keys[0]": {"validators": ValidatorsSection(keys=(IDENTITY_POINT,))},
    "validators.keys[1]": {"validators": ValidatorsSection(keys=(VALIDATOR.peer.key, b"short"))},
    "validators.keys": {"validators": ValidatorsSection(keys=(VALIDATOR.peer.key,) * 2)},
    "admission.peers": {"admission": AdmissionSection(mode="roster")},
    "admission.peers ": {"admission": AdmissionSection(peers=(peer(1).peer.key,) * 2)},
    "tensors": {"tensors": ()},
    "tensors ": {"tensors": (TensorSection(name="a", shape=(1,)),) * 2},
    "tensors  ": {
        "tensors": tuple(TensorSection(name=str(i), shape=(1,)) for i in range(4097)),
    },
    "tensors   ": {"tensors": (TensorSection(name="a", shape=(2**40, 2)),)},
    "tensors[0].shape": {"tensors": (TensorSection(name="a", shape=(0, 5)),)},
    "tensors[0].shape ": {"tensors": (TensorSection(name="a", shape=(-1, -5)),)},
    "tensors[0].shape  ": {"tensors": (TensorSection(name="a", shape=(1,) * 9),)},
}


@pytest.mark.parametrize("path", BAD_COMBINATIONS)
def test_rules_between_fields_are_checked(path):
    broken = replace(MANIFEST, **BAD_COMBINATIONS[path])
    with pytest.raises(InvalidManifestError) as caught:
        check_manifest(broken)
    assert caught.value.path == path.strip()
    with pytest.raises(InvalidManifestError):
        read_manifest(broken.to_bytes())


def test_the_largest_manifest_is_read_without_allocating_for_its_tensors():
    tensors = tuple(TensorSection(name=f"t{i}", shape=(2**14, 2**14)) for i in range(4096))
    largest = replace(MANIFEST, tensors=tensors)
    assert sum(largest.sizes) == 2**40
    raw = largest.to_bytes()
    tracemalloc.start()
    try:
        started_s = time.process_time()
        found = read_manifest(raw)
        used_s = time.process_time() - started_s
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == largest
    assert peak < 50 * len(raw)
    assert used_s < 30


def test_products_of_a_strangers_numbers_do_not_overflow():
    shape = (2**40,) * 8
    with pytest.raises(InvalidManifestError, match=str(2**320)):
        check_manifest(replace(MANIFEST, tensors=(TensorSection(name="a", shape=shape),)))


NAMES = st.text(st.characters(codec="utf-8"), max_size=10)
MANIFESTS = st.builds(
    lambda name, rounds, rate, settings_, tensors, alpha, mode: replace(
        MANIFEST,
        run=replace(MANIFEST.run, name=name, num_rounds=rounds),
        model=replace(MANIFEST.model, settings=Settings(tuple(sorted(settings_.items())))),
        training=replace(MANIFEST.training, learning_rate=rate),
        outer=replace(MANIFEST.outer, alpha=alpha),
        tensors=tuple(TensorSection(name=n, shape=tuple(s)) for n, s in tensors.items()),
        admission=AdmissionSection(mode=mode, peers=(peer(3).peer.key,)),
    ),
    NAMES,
    st.integers(1, 10_000_000),
    st.floats(0, 10),
    st.dictionaries(
        NAMES,
        st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | NAMES | st.floats(-1e300, 1e300),
        max_size=4,
    ),
    st.dictionaries(NAMES, st.lists(st.integers(1, 100), max_size=4), min_size=1, max_size=4),
    st.floats(1e-9, 1e3),
    st.sampled_from(["open", "roster"]),
)


@settings(deadline=None)
@given(MANIFESTS)
def test_every_manifest_goes_round_in_one_byte_form(manifest):
    raw = manifest.to_bytes()
    found = read_manifest(raw, expected_hash=manifest.manifest_hash)
    assert found == manifest
    assert found.to_bytes() == raw


@settings(deadline=None)
@given(
    position=st.integers(0, len(MANIFEST.to_bytes()) - 1),
    byte=st.integers(0, 255),
)
def test_a_changed_byte_is_another_manifest_or_none(position, byte):
    raw = bytearray(MANIFEST.to_bytes())
    raw[position] = byte
    try:
        found = read_manifest(bytes(raw))
    except (RemoteProtocolError, InvalidManifestError):
        return
    assert found.to_bytes() == bytes(raw)
    assert (found == MANIFEST) == (bytes(raw) == MANIFEST.to_bytes())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_one_of_two_errors(raw):
    with pytest.raises((RemoteProtocolError, InvalidManifestError)):
        read_manifest(raw)


def test_what_follows_from_a_manifest():
    roster = replace(MANIFEST, admission=AdmissionSection(mode="roster", peers=(peer(1).peer.key,)))
    assert MANIFEST.sizes == (64, 10)
    assert MANIFEST.payload_bytes == 272 + MANIFEST.limits.body_bytes
    assert MANIFEST.roster is None
    assert roster.roster == frozenset({peer(1).peer})
    assert MANIFEST.validator_ids == (VALIDATOR.peer,)
    rules = roster.payload_rules()
    assert (rules.run_id, rules.manifest_hash) == (roster.run_id, roster.manifest_hash)
    assert (rules.body_bytes, rules.max_inner_steps, rules.codec_value_bits) == (
        roster.limits.body_bytes,
        3,
        2,
    )
    assert rules.roster is not None
    assert rules.roster == roster.record_rules().roster == roster.roster
    assert roster.record_rules().gather_limit == 20
    assert MANIFEST.codec.max_scale_bits == 0x3C00
    assert CodecSection(max_scale=65504.0).max_scale_bits == 0x7BFF


def test_a_successor_goes_forward_in_the_same_run():
    second = tiny_manifest(version=2, first=MANIFEST.run_id)
    other_second = replace(second, run=replace(second.run, name="other"))
    stranger = tiny_manifest(run=replace(MANIFEST.run, name="stranger"))
    check_successor(MANIFEST, second)
    check_successor(MANIFEST, MANIFEST)
    for known, new, code in [
        (second, MANIFEST, ErrorCode.E_ROLLBACK),
        (second, other_second, ErrorCode.E_MANIFEST),
        (MANIFEST, stranger, ErrorCode.E_RUN),
    ]:
        with pytest.raises(RemoteProtocolError) as caught:
            check_successor(known, new)
        assert caught.value.code is code
