from typing import Any

import pytest

from shoal.protocol import strict_json
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from shoal.protocol.record_body import CloseReason, RawEntry, pack_body, unpack_body
from tests.unit.protocol.wire_builders import (
    ALICE,
    code_of,
    counted_of,
    record_fields,
    record_of,
    void_record,
)


def unpack_code(fields: dict[str, Any], max_bytes: int = 8192) -> ErrorCode:
    raw = strict_json.dump(fields)
    return code_of(lambda: unpack_body(raw, max_bytes), RemoteProtocolError)


def test_a_body_reads_back_with_its_entries_apart():
    record = record_of(counted=(counted_of(ALICE, 5, 77),), params_root=bytes(32))
    entries, draft = unpack_body(pack_body(record), 8192)
    assert entries == (RawEntry(peer_key=ALICE.peer.key, payload_id=bytes([5]) * 32, weight=77),)
    assert draft == record_of(counted=(), params_root=bytes(32))


def test_a_void_body_reads_back():
    assert unpack_body(pack_body(void_record()), 8192) == ((), void_record())


@pytest.mark.parametrize("reason", CloseReason)
def test_every_close_reason_reads_back(reason):
    _, draft = unpack_body(pack_body(record_of(close_reason=reason)), 8192)
    assert draft.close_reason is reason


def test_a_body_over_the_limit_is_refused():
    assert unpack_code(record_fields(), max_bytes=100) is ErrorCode.E_LEN


def test_a_missing_key_is_refused():
    for key in record_fields():
        fields = record_fields()
        del fields[key]
        assert unpack_code(fields) is ErrorCode.E_JSON


ENTRY = record_fields()["counted"][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"kind": "shoal/record/2"},
        {"round": 0},
        {"round": True},
        {"attempt": -1},
        {"attempt": 2**32},
        {"void": 0},
        {"void": "false"},
        {"previous": ""},
        {"state": "00" * 31},
        {"params_root": "00" * 31},
        {"closed_at_ms": -1},
        {"close_reason": "because"},
        {"close_reason": "nobody\n"},
        {"counted": {}},
        {"counted": [1]},
        {"counted": [[]]},
        {"counted": [ENTRY, {**ENTRY, "more": 1}]},
        {"counted": [{"peer": ENTRY["peer"], "payload": ENTRY["payload"]}]},
        {"counted": [{**ENTRY, "weight": "1"}]},
        {"counted": [{**ENTRY, "weight": True}]},
        {"counted": [{**ENTRY, "peer": ENTRY["peer"].upper()}]},
        {"counted": [{**ENTRY, "payload": ""}]},
    ],
    ids=lambda changes: repr(changes)[:60],
)
def test_another_shape_is_refused(changes):
    assert unpack_code(record_fields(**changes)) is ErrorCode.E_JSON


def test_a_value_without_a_form_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        pack_body(record_of(closed_at_ms=2**53))
