import pickle

import pytest

from shoal.protocol import errors
from shoal.protocol.errors import (
    MEANINGS,
    AnnouncementError,
    EquivocationError,
    ErrorCode,
    ForkError,
    InvalidManifestError,
    LocalProtocolError,
    OutOfOrderError,
    PayloadError,
    ProtocolError,
    RecordError,
    RemoteProtocolError,
    reported_as,
)
from tests.unit.protocol.wire_builders import ALICE

# The set that the threat model closes, and the nine that this project adds.
CLOSED_SET = """
E_ADDR_NOT_PUBLIC E_ALL_ZERO E_BODY_HASH E_BODY_LEN E_DHT_EXPIRY_FAR E_DUPLICATE E_EMPTY_CHUNK
E_EQUIVOCATION E_FLAGS E_FORK E_GAP E_HOST_NOT_ALLOWED E_HTTP_ENCODING E_HTTP_REDIRECT
E_INDEX_ORDER E_INDEX_RANGE E_INTERNAL E_JSON_DUPKEY E_JSON_NUMBER E_KEY_WEAK E_LEN E_MAGIC
E_MANIFEST E_OBJECT_KEY E_PARENT E_PEER_UNKNOWN E_PREV E_QUORUM E_QUOTA E_ROLLBACK
E_ROUND_FUTURE
E_ROUND_OLD E_RUN E_SCALE_NONFINITE E_SCALE_RANGE E_SCALE_SIGN E_SCALE_SUBNORMAL E_SIG
E_SIGNER_REPEATED E_URL_EXTRA E_URL_SCHEME E_VERSION
E_PADDING E_SCALE_ORDER E_JSON E_JSON_DEPTH E_RECORD E_STATE E_CLOCK E_KEY_IN_USE E_CONFIG
"""

ERRORS = [
    LocalProtocolError("message"),
    InvalidManifestError("model.hidden_size", "64", "65"),
    OutOfOrderError("message"),
    RemoteProtocolError(ErrorCode.E_LEN, "detail"),
    PayloadError(ErrorCode.E_SIG, "detail", ALICE.peer),
    AnnouncementError(ErrorCode.E_RUN, "detail"),
    RecordError(ErrorCode.E_GAP, "detail"),
    EquivocationError("detail", ALICE.peer, b"first", b"second"),
    ForkError("detail", b"known", b"other"),
]


def test_the_codes_are_the_closed_set():
    assert {code.value for code in ErrorCode} == set(CLOSED_SET.split())


def test_a_code_is_its_own_name():
    assert all(code.name == code.value for code in ErrorCode)


def test_every_code_has_one_sentence_of_meaning():
    assert MEANINGS.keys() == set(ErrorCode)
    assert all(text.endswith(".") and text.count(".") == 1 for text in MEANINGS.values())


def test_every_error_class_is_in_the_drawn_tree():
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ProtocolError)
    ]
    assert len(classes) == 10
    assert errors.__doc__ is not None
    assert all(cls.__name__ in errors.__doc__ for cls in classes)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_all_it_carries(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_remote_error_prints_code_detail_and_the_short_peer_id():
    error = PayloadError(ErrorCode.E_SIG, "why", ALICE.peer)
    assert str(error) == f"E_SIG: why (peer {ALICE.peer.short})"
    assert str(PayloadError(ErrorCode.E_SIG, "why")) == "E_SIG: why"


def test_a_manifest_error_prints_path_expected_and_found():
    error = InvalidManifestError("a.b", "1 to 3", "7")
    assert str(error) == "a.b: expected 1 to 3, found 7"


def test_errors_that_carry_evidence_have_their_code_fixed():
    assert EquivocationError("d", ALICE.peer, b"", b"").code is ErrorCode.E_EQUIVOCATION
    assert ForkError("d", b"", b"").code is ErrorCode.E_FORK


def test_a_deeper_refusal_gets_the_class_of_the_refused_object():
    with pytest.raises(RecordError) as caught, reported_as(RecordError):
        raise RemoteProtocolError(ErrorCode.E_SIG, "why", ALICE.peer)
    assert (caught.value.code, caught.value.peer) == (ErrorCode.E_SIG, ALICE.peer)
    assert isinstance(caught.value.__cause__, RemoteProtocolError)


def test_a_refusal_of_the_right_class_passes_unchanged():
    original = ForkError("why", b"1", b"2")
    with pytest.raises(ForkError) as caught, reported_as(RecordError):
        raise original
    assert caught.value is original
