"""The wire format, byte by byte: a golden file changes only together with the wire version."""

import hashlib
import os
from pathlib import Path

import pytest

from shoal.compression import BodyLayout, CodecSpec, check_body, dequantize, reference
from tests.unit.compression.bodies import body_of, formula_tensors

GOLDEN = Path(__file__).parents[2] / "golden" / "compression"
REWRITE = os.environ.get("SHOAL_REWRITE_GOLDEN") == "1"
SIZES = [4096 + 1000, 0, 300, 2]


@pytest.mark.parametrize(("name", "value_bits"), [("two_bits.bin", 2), ("one_bit.bin", 1)])
def test_bodies_are_what_they_have_always_been(name, value_bits):
    spec = CodecSpec(value_bits=value_bits)
    layout = BodyLayout(spec, SIZES)
    body = body_of(layout, formula_tensors(SIZES))
    if REWRITE:
        (GOLDEN / name).write_bytes(body)
    assert body == (GOLDEN / name).read_bytes()
    assert body == reference.pack_body(formula_tensors(SIZES), spec)
    positions, values = dequantize(check_body(body, layout))[0]
    assert positions.size == values.size == 64 + 16


def test_the_golden_tensors_are_what_they_have_always_been():
    raw = b"".join(tensor.astype("<f4").tobytes() for tensor in formula_tensors(SIZES))
    assert hashlib.sha256(raw).hexdigest()[:16] == "5978ae7bdd3626bb"
