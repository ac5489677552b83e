import hashlib
from itertools import permutations

import pytest

from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.signing import Domain, digest, sign, verify
from tests.unit.protocol.wire_builders import ALICE, BOB, code_of


@pytest.mark.parametrize("domain", Domain)
def test_a_signature_verifies_under_its_own_domain(domain):
    verify(ALICE.peer, domain, b"message", sign(ALICE, domain, b"message"))


def test_a_signature_is_refused_under_every_other_domain():
    pairs = list(permutations(Domain, 2))
    signatures = {domain: sign(ALICE, domain, b"message") for domain in Domain}
    for made_for, read_as in pairs:
        signature = signatures[made_for]
        code = code_of(
            lambda s=signature, d=read_as: verify(ALICE.peer, d, b"message", s),  # type: ignore[misc]  # defaults bind the loop's values
            RemoteProtocolError,
        )
        assert code is ErrorCode.E_SIG, (made_for, read_as)
    assert len(pairs) == len(Domain) * (len(Domain) - 1)


def test_a_signature_is_refused_under_another_key():
    signature = sign(ALICE, Domain.VOTE, b"message")
    with pytest.raises(RemoteProtocolError):
        verify(BOB.peer, Domain.VOTE, b"message", signature)


def test_a_message_cannot_take_over_part_of_its_domain():
    signature = ALICE.sign(Domain.VOTE.encode() + b"message")
    with pytest.raises(RemoteProtocolError):
        verify(ALICE.peer, Domain.VOTE, b"message", signature)


@pytest.mark.parametrize("domain", Domain)
def test_a_domain_is_ascii_without_a_zero_byte_and_has_a_version(domain):
    assert domain.value.isascii()
    assert "\0" not in domain.value
    assert domain.value.startswith("shoal/")
    assert domain.value.rsplit("/", 1)[1] == "1"


def test_a_digest_is_the_hash_of_the_domain_and_of_length_prefixed_fields():
    hashed = b"shoal/state/1\0" + (2).to_bytes(8, "little") + b"ab" + bytes(8)
    assert digest(Domain.STATE, b"ab", b"") == hashlib.sha256(hashed).digest()


def test_moving_a_byte_between_fields_changes_the_digest():
    digests = {
        digest(Domain.STATE),
        digest(Domain.STATE, b""),
        digest(Domain.STATE, b"", b""),
        digest(Domain.STATE, b"ab"),
        digest(Domain.STATE, b"a", b"b"),
        digest(Domain.STATE, b"", b"ab"),
        digest(Domain.STATE, b"ab", b""),
        digest(Domain.RECORD_ID, b"ab"),
    }
    assert len(digests) == 8
