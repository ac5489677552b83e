import hashlib

import pytest

from shoal.protocol.chain import (
    EMPTY_SUM_HASH,
    ChainHead,
    genesis_head,
    next_state,
    record_id,
    round_seed,
    void_state,
)
from shoal.protocol.errors import LocalProtocolError

RUN, STATE, SUM, ONE, TWO = (bytes([n]) * 32 for n in range(1, 6))


def length_prefixed(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(8, "little") + field for field in fields)


def test_the_genesis_head_is_round_zero_with_the_run_as_its_record():
    head = genesis_head(RUN, STATE)
    expected = hashlib.sha256(b"shoal/state/1\0" + length_prefixed(RUN, STATE)).digest()
    assert head == ChainHead(round_id=0, record_id=RUN, state=expected)


def test_the_state_hash_is_the_documented_one():
    fields = (RUN, (7).to_bytes(8, "little"), STATE, ONE + TWO, SUM)
    expected = hashlib.sha256(b"shoal/state/1\0" + length_prefixed(*fields)).digest()
    assert next_state(RUN, 7, STATE, (ONE, TWO), SUM) == expected


def test_every_ingredient_changes_the_state():
    states = {
        next_state(RUN, 7, STATE, (ONE, TWO), SUM),
        next_state(ONE, 7, STATE, (ONE, TWO), SUM),
        next_state(RUN, 8, STATE, (ONE, TWO), SUM),
        next_state(RUN, 7, ONE, (ONE, TWO), SUM),
        next_state(RUN, 7, STATE, (TWO, ONE), SUM),
        next_state(RUN, 7, STATE, (ONE,), SUM),
        next_state(RUN, 7, STATE, (), SUM),
        next_state(RUN, 7, STATE, (ONE, TWO), ONE),
    }
    assert len(states) == 8


def test_a_void_round_chains_with_no_payloads_and_the_empty_sum():
    assert void_state(RUN, 7, STATE) == next_state(RUN, 7, STATE, (), EMPTY_SUM_HASH)
    assert void_state(RUN, 7, STATE) != STATE
    assert void_state(RUN, 7, STATE) != void_state(RUN, 8, STATE)


@pytest.mark.parametrize("at", range(4))
def test_a_value_that_is_no_hash_is_our_own_mistake(at):
    run, state, one, total = (b"short" if n == at else STATE for n in range(4))
    with pytest.raises(LocalProtocolError):
        next_state(run, 1, state, (one,), total)


def test_the_round_seed_follows_the_record_only():
    assert round_seed(ChainHead(round_id=1, record_id=ONE, state=TWO)) == round_seed(
        ChainHead(round_id=2, record_id=ONE, state=SUM)
    )
    head = ChainHead(round_id=3, record_id=ONE, state=TWO)
    expected = hashlib.sha256(b"shoal/round-seed/1\0" + length_prefixed(ONE)).digest()
    assert round_seed(head) == expected


def test_the_record_id_is_a_hash_of_the_body():
    expected = hashlib.sha256(b"shoal/record-id/1\0" + length_prefixed(b"{}")).digest()
    assert record_id(b"{}") == expected
