"""Frozen bytes: a change of the wire format needs a new version, not a new golden file.

`SHOAL_REWRITE_GOLDEN=1 pytest tests/unit/protocol/test_golden_bytes.py` writes the files anew.
"""

import os
from pathlib import Path

import pytest

from shoal.protocol.announcement import Where, build_announcement, read_announcement
from shoal.protocol.chain import genesis_head, round_seed
from shoal.protocol.record import read_record
from tests.unit.protocol.wire_builders import (
    ALICE,
    HEAD,
    ROUND,
    RUN,
    announcement_of,
    check,
    make_payload,
    make_record,
    payload_rules,
    record_of,
    record_rules,
    void_record,
)

FOLDER = Path(__file__).parents[2] / "golden" / "protocol"
REWRITE = os.environ.get("SHOAL_REWRITE_GOLDEN") == "1"

WHERE = Where(provider="r2", account="0123abcd", bucket="shoal-peers", address="/ip4/1.2.3.4")
MADE = {
    "payload.bin": make_payload(),
    "announcement.bin": build_announcement(ALICE, announcement_of(where=WHERE)),
    "record.bin": make_record(record_of(params_root=bytes(range(32)))),
    "record_void.bin": make_record(void_record()),
}


@pytest.mark.parametrize("name", MADE)
def test_the_bytes_are_those_that_were_frozen(name):
    path = FOLDER / name
    if REWRITE:
        path.write_bytes(MADE[name])
    assert path.read_bytes() == MADE[name]


def frozen(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def test_the_frozen_payload_is_accepted_and_keeps_its_id():
    payload = check(frozen("payload.bin"))
    assert payload.peer.text == "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
    assert payload.payload_id.hex() == (
        "78025cf98bfc96797aabe6acd790fd0d5072218a34eaf23d3c1c65afdd589371"
    )


def test_the_frozen_announcement_is_accepted():
    verified = read_announcement(frozen("announcement.bin"), payload_rules(), ROUND)
    assert verified.announcement == announcement_of(where=WHERE)


def test_the_frozen_records_are_accepted_and_keep_their_ids():
    record = read_record(frozen("record.bin"), record_rules(), HEAD)
    void = read_record(frozen("record_void.bin"), record_rules(), HEAD)
    assert record.record_id.hex() == (
        "007b5b0d2c38af1bcc0f8e032c49ac9dfd50177af26ad211dc3ab2514a46068f"
    )
    assert void.record.state.hex() == (
        "4c9e7c99844220ad25bd6dbdc0eac0c8a083d342fc7e2d845d6b6efeb67989ff"
    )


def test_the_derived_hashes_are_those_that_were_frozen():
    head = genesis_head(RUN, bytes(32))
    assert head.state.hex() == "7f6895dc2b83e956022f54e6184d731e2cdb5789c381f00288f6b89b56c8d83a"
    assert (
        round_seed(head).hex() == "e62612a81c012a971959a138ce547bd2e1dc324377534742d1e76f7e22046300"
    )
