import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from shoal.protocol import identity as module
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from shoal.protocol.identity import (
    PeerId,
    from_seed,
    generate,
    load_key,
    parse_peer_key,
    parse_peer_text,
    save_key,
    verify,
)
from tests.unit.protocol import curve
from tests.unit.protocol.wire_builders import ALICE, BOB, IDENTITY_POINT, code_of

# RFC 8032, section 7.1, test 2.
RFC_SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
RFC_KEY = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)
SMALL_ORDER = sorted(curve.encode(point) for point in curve.torsion())
OTHER_SIGN = sorted(key[:31] + bytes([key[31] ^ 0x80]) for key in SMALL_ORDER)


def key_code(raw):
    return code_of(lambda: parse_peer_key(raw), RemoteProtocolError)


def signature_code(signature, message=b"m", peer=ALICE.peer):
    return code_of(lambda: verify(peer, message, signature), RemoteProtocolError)


def test_there_are_eight_points_of_small_order():
    assert len(set(SMALL_ORDER)) == 8


def test_the_table_of_small_order_holds_the_y_of_exactly_these_points():
    assert {point[1] for point in curve.torsion()} == module._SMALL_ORDER_Y


@pytest.mark.parametrize("key", sorted({*SMALL_ORDER, *OTHER_SIGN}), ids=bytes.hex)
def test_a_key_of_small_order_is_refused_with_either_sign_bit(key):
    assert key_code(key) is ErrorCode.E_KEY_WEAK


@pytest.mark.parametrize("excess", range(19))
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_a_key_that_is_not_canonical_is_refused(excess, sign):
    raw = (curve.P + excess | sign).to_bytes(32, "little")
    assert key_code(raw) is ErrorCode.E_KEY_WEAK


def test_the_largest_canonical_y_that_is_no_small_order_point_is_taken():
    raw = (curve.P - 2).to_bytes(32, "little")
    assert parse_peer_key(raw).key == raw


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length):
    assert key_code(b"\2" * length) is ErrorCode.E_LEN


def test_the_library_alone_takes_one_signature_for_every_message_under_the_identity_point():
    # Why the check exists. Should the library begin to refuse this, the check stays.
    forged = IDENTITY_POINT + bytes(32)
    weak = Ed25519PublicKey.from_public_bytes(IDENTITY_POINT)
    weak.verify(forged, b"anything")
    weak.verify(forged, b"anything else")
    assert key_code(IDENTITY_POINT) is ErrorCode.E_KEY_WEAK


def test_a_peer_id_cannot_be_made_around_the_checks():
    with pytest.raises(RemoteProtocolError):
        PeerId(IDENTITY_POINT)


def test_peer_ids_compare_hash_and_order_by_key():
    same = parse_peer_key(memoryview(ALICE.peer.key))
    assert same == ALICE.peer
    assert hash(same) == hash(ALICE.peer)
    assert sorted([ALICE.peer, BOB.peer]) == sorted(
        [ALICE.peer, BOB.peer], key=lambda peer: peer.key
    )


def test_the_text_of_a_peer_is_its_libp2p_id():
    # The key of RFC 8032 test 1; the id is built here by hand from the multihash.
    peer = from_seed(RFC_SEED).peer
    assert peer.key == RFC_KEY
    assert peer.text.startswith("12D3KooW")
    assert len(peer.text) == 52
    assert peer.short == peer.text[-6:]
    assert str(peer) == peer.text
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number = sum(58**i * alphabet.index(c) for i, c in enumerate(reversed(peer.text)))
    assert number == int.from_bytes(bytes.fromhex("002408011220") + RFC_KEY, "big")


@pytest.mark.parametrize("identity", [ALICE, BOB])
def test_the_text_of_a_peer_reads_back(identity):
    assert parse_peer_text(identity.peer.text) == identity.peer


TEXT = ALICE.peer.text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", ErrorCode.E_LEN),
        (TEXT[:-1], ErrorCode.E_LEN),
        (TEXT + "1", ErrorCode.E_LEN),
        ("1" * 100_000, ErrorCode.E_LEN),
        (TEXT[:-1] + "0", ErrorCode.E_KEY_WEAK),
        (TEXT[:-1] + "\u00e9", ErrorCode.E_KEY_WEAK),
        ("1" * 52, ErrorCode.E_KEY_WEAK),
        ("z" * 52, ErrorCode.E_KEY_WEAK),
        ("Qm" + TEXT[2:], ErrorCode.E_KEY_WEAK),
        (module._base58_encode(module._PEER_TEXT_PREFIX + IDENTITY_POINT), ErrorCode.E_KEY_WEAK),
    ],
    ids=["empty", "short", "long", "huge", "digit-0", "accent", "ones", "zs", "qm", "weak"],
)
def test_a_text_that_is_no_peer_id_is_refused(text, code):
    assert code_of(lambda: parse_peer_text(text), RemoteProtocolError) is code


def test_signing_follows_the_rfc_vector():
    identity = from_seed(RFC_SEED)
    assert identity.sign(b"\x72") == RFC_SIGNATURE
    verify(identity.peer, b"\x72", RFC_SIGNATURE)
    verify(identity.peer, b"\x72", memoryview(RFC_SIGNATURE))


def test_a_signature_of_another_message_key_or_length_is_refused():
    signature = ALICE.sign(b"m")
    assert signature_code(signature, b"n") is ErrorCode.E_SIG
    assert signature_code(signature, peer=BOB.peer) is ErrorCode.E_SIG
    for length in (0, 63, 65):
        assert signature_code((signature + b"\0")[:length]) is ErrorCode.E_SIG


def test_a_signature_whose_scalar_is_not_reduced_is_refused():
    signature = ALICE.sign(b"m")
    scalar = int.from_bytes(signature[32:], "little") + curve.L
    assert signature_code(signature[:32] + scalar.to_bytes(32, "little")) is ErrorCode.E_SIG
    for scalar in (curve.L, 2**256 - 1):
        assert signature_code(signature[:32] + scalar.to_bytes(32, "little")) is ErrorCode.E_SIG


def test_any_flipped_bit_of_a_signature_is_refused():
    signature = ALICE.sign(b"m")
    for bit in range(512):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert signature_code(bytes(flipped)) is ErrorCode.E_SIG


def test_no_signature_verifies_under_a_key_that_is_not_on_the_curve():
    y = 2
    while True:
        try:
            curve.lift(y)
        except ValueError:
            break
        y += 1
    off_curve = parse_peer_key(y.to_bytes(32, "little"))
    for signature in (ALICE.sign(b"m"), IDENTITY_POINT + bytes(32), bytes(64)):
        assert signature_code(signature, peer=off_curve) is ErrorCode.E_SIG


def test_an_identity_does_not_show_its_private_key():
    shown = f"{ALICE!r} {ALICE}"
    assert ALICE.peer.text in shown
    assert (b"\1" * 32).hex() not in shown
    assert not hasattr(ALICE, "__dict__")


def test_two_generated_identities_differ():
    assert generate().peer != generate().peer


def test_a_seed_of_another_length_is_our_own_mistake():
    with pytest.raises(LocalProtocolError, match="32 bytes"):
        from_seed(b"short")


def test_a_saved_key_loads_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "node.key"
    save_key(path, ALICE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_key(path).peer == ALICE.peer


def test_a_saved_key_has_its_mode_whatever_the_umask(tmp_path):
    path = tmp_path / "node.key"
    before = os.umask(0o777)
    try:
        save_key(path, ALICE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_is_never_overwritten(tmp_path):
    path = tmp_path / "node.key"
    save_key(path, ALICE)
    with pytest.raises(LocalProtocolError, match="never overwritten"):
        save_key(path, BOB)
    assert load_key(path).peer == ALICE.peer


def test_a_key_is_not_written_through_a_dangling_link(tmp_path):
    target = tmp_path / "target"
    link = tmp_path / "node.key"
    link.symlink_to(target)
    with pytest.raises(LocalProtocolError, match="already exists"):
        save_key(link, ALICE)
    assert not target.exists()


def test_a_folder_that_does_not_exist_is_named_when_saving(tmp_path):
    path = tmp_path / "missing" / "node.key"
    with pytest.raises(LocalProtocolError, match="cannot create key file"):
        save_key(path, ALICE)


def test_a_full_disk_leaves_no_partial_key(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "node.key"
    with pytest.raises(LocalProtocolError, match="No space left"):
        save_key(path, ALICE)
    assert not path.exists()


def other_key_type():
    private = ec.generate_private_key(ec.SECP256R1())
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def encrypted_key():
    encryption = BestAvailableEncryption(b"password")
    return ALICE._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a PEM private key"),
        (b"not a key\n", "not a PEM private key"),
        (
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "not a PEM private key",
        ),
        (other_key_type(), "another type than Ed25519"),
        (encrypted_key(), "encrypted with a password"),
        (b"x" * 5000, "too large"),
    ],
    ids=["empty", "text", "broken", "other-type", "encrypted", "large"],
)
def test_a_file_that_is_no_plain_key_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(LocalProtocolError, match=message) as caught:
        load_key(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700, 0o4600])
def test_a_key_that_others_may_use_is_refused_with_the_command_that_helps(tmp_path, mode):
    path = tmp_path / "node.key"
    save_key(path, ALICE)
    path.chmod(mode)
    with pytest.raises(LocalProtocolError, match=f"chmod 600 {path}"):
        load_key(path)


def test_a_read_only_key_is_taken(tmp_path):
    path = tmp_path / "node.key"
    save_key(path, ALICE)
    path.chmod(0o400)
    assert load_key(path).peer == ALICE.peer


def test_a_disk_that_fails_while_a_key_is_read_is_named(tmp_path, monkeypatch):
    def fail(descriptor, num_bytes):
        raise OSError(5, "Input/output error")

    path = tmp_path / "node.key"
    save_key(path, ALICE)
    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(LocalProtocolError, match="Input/output error"):
        load_key(path)


def test_a_missing_key_a_folder_a_pipe_and_a_loop_are_told_apart(tmp_path):
    with pytest.raises(LocalProtocolError, match="does not exist"):
        load_key(tmp_path / "missing")
    with pytest.raises(LocalProtocolError, match="not a regular file"):
        load_key(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LocalProtocolError, match="not a regular file"):
        load_key(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(LocalProtocolError, match="cannot read key file"):
        load_key(tmp_path / "loop")
