import numpy as np
import pytest
import safetensors.numpy

from shoal.node.errors import CheckpointError
from shoal.node.parameters import from_file, parameters_root, to_file
from shoal.protocol.manifest import TensorSection

TABLE = (TensorSection(name="b", shape=(2, 3)), TensorSection(name="a", shape=(4,)))


def values(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(6).astype(np.float32), rng.standard_normal(4).astype(np.float32)]


def test_a_file_goes_round_to_the_bit_in_payload_order():
    odd = values()
    odd[0][:3] = np.array([0x80000000, 0x7FC12345, 1], np.uint32).view(np.float32)
    found = from_file(to_file(TABLE, odd), TABLE)
    assert [f.tobytes() for f in found] == [o.tobytes() for o in odd]
    assert all(f.flags.writeable and f.ndim == 1 for f in found)


def test_the_root_never_changes():
    numbers = [np.arange(n, dtype=np.float32) for n in (6, 4)]
    numbers[1] /= np.float32(8)
    assert parameters_root(TABLE, numbers).hex() == (
        "a584c36cc6c1827f2b3dc6e7dd37b92ff3b82d786c03f245bc4b968ca8df4145"
    )


def test_the_root_covers_every_bit_of_every_value():
    base = values()
    root = parameters_root(TABLE, base)
    for t in range(2):
        for i in range(base[t].size):
            changed = [v.copy() for v in base]
            changed[t].view(np.uint32)[i] ^= 1
            assert parameters_root(TABLE, changed) != root


def test_the_root_tells_zero_from_negative_zero():
    zeros = [np.zeros(6, np.float32), np.zeros(4, np.float32)]
    negative = [-zeros[0], zeros[1]]
    assert parameters_root(TABLE, zeros) != parameters_root(TABLE, negative)


def test_the_root_covers_names_shapes_and_order():
    base = values()
    others = [
        (TensorSection(name="c", shape=(2, 3)), TABLE[1]),
        (TensorSection(name="b", shape=(3, 2)), TABLE[1]),
        (TensorSection(name="b", shape=(6,)), TABLE[1]),
        (TensorSection(name="b", shape=(1, 2, 3)), TABLE[1]),
    ]
    roots = {parameters_root(table, base) for table in (TABLE, *others)}
    roots.add(parameters_root(TABLE[::-1], base[::-1]))
    assert len(roots) == 6


def test_a_missing_value_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        parameters_root(TABLE, values()[:1])


@pytest.mark.parametrize(
    "named",
    [
        {"b": np.zeros((2, 3), np.float32)},
        {"b": np.zeros((2, 3), np.float32), "a": np.zeros(4, np.float32), "c": np.zeros(1)},
        {"b": np.zeros((3, 2), np.float32), "a": np.zeros(4, np.float32)},
        {"b": np.zeros(6, np.float32), "a": np.zeros(4, np.float32)},
        {"b": np.zeros((2, 3), np.float64), "a": np.zeros(4, np.float32)},
        {"b": np.zeros((2, 3), np.float16), "a": np.zeros(4, np.float32)},
    ],
    ids=["one missing", "one more", "another shape", "flat", "float64", "float16"],
)
def test_a_file_with_other_tensors_than_the_manifests_is_refused(named):
    with pytest.raises(CheckpointError):
        from_file(safetensors.numpy.save(named), TABLE)


@pytest.mark.parametrize("raw", [b"", b"garbage", b"\xff" * 64, to_file(TABLE, values())[:-1]])
def test_what_is_no_file_is_refused(raw):
    with pytest.raises(CheckpointError):
        from_file(raw, TABLE)
