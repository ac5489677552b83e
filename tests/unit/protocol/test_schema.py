import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.errors import InvalidManifestError
from shoal.protocol.schema import Notation, Settings, bounded, from_plain, one_of, to_plain

NATIVE, CANONICAL = Notation.NATIVE, Notation.CANONICAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    raw: bytes = b""
    number: int = bounded(0, 10, default=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    name: str
    count: int = bounded(-5, 5)
    ratio: float = bounded(-100.0, 100.0)
    flag: bool = False
    width: int = one_of(2, 4, default=2)
    mode: str = one_of("open", "roster", default="open")
    part: Part
    parts: tuple[Part, ...] = ()
    extra: Settings = field(default_factory=Settings)
    maybe: int | None = None


GOOD: dict[str, Any] = {"name": "x", "count": 1, "ratio": 0.5, "part": {}}


def refused(value, notation=NATIVE):
    with pytest.raises(InvalidManifestError) as caught:
        from_plain(Whole, value, notation)
    return caught.value


def test_defaults_are_filled_in_and_everything_else_is_read():
    found = from_plain(Whole, {**GOOD, "extra": {"b": 1, "a": True}, "maybe": 7}, NATIVE)
    assert found == Whole(
        name="x",
        count=1,
        ratio=0.5,
        part=Part(),
        extra=Settings((("a", True), ("b", 1))),
        maybe=7,
    )


def test_an_int_is_widened_to_a_float_in_the_native_notation_only():
    assert from_plain(Whole, {**GOOD, "ratio": 2}, NATIVE).ratio == 2.0
    assert isinstance(from_plain(Whole, {**GOOD, "ratio": 2}, NATIVE).ratio, float)
    assert refused({**GOOD, "ratio": 2}, CANONICAL).path == "ratio"


def test_settings_are_sorted_so_that_equal_tables_are_equal():
    one = from_plain(Whole, {**GOOD, "extra": {"b": 1, "a": 2}}, NATIVE)
    other = from_plain(Whole, {**GOOD, "extra": {"a": 2, "b": 1}}, NATIVE)
    assert one == other
    assert one.extra.as_dict() == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("change", "path", "expected", "found"),
    [
        ({"strange": 1}, "strange", "one of count", "an unknown key"),
        ({"part": {"strange": 1}}, "part.strange", "one of number, raw", "an unknown key"),
        ({"parts": [{}, {"strange": 1}]}, "parts[1].strange", "one of", "an unknown key"),
        ({"name": 1}, "name", "a string", "1"),
        ({"count": "3"}, "count", "a whole number", "'3'"),
        ({"count": 3.0}, "count", "a whole number", "3.0"),
        ({"count": True}, "count", "a whole number", "True"),
        ({"count": 6}, "count", "a number from -5 to 5", "6"),
        ({"count": -6}, "count", "a number from -5 to 5", "-6"),
        ({"count": 2**53}, "count", "a whole number", "9007199254740992"),
        ({"ratio": 100.5}, "ratio", "a number from -100.0 to 100.0", "100.5"),
        ({"ratio": math.nan}, "ratio", "a finite number", "nan"),
        ({"ratio": math.inf}, "ratio", "a finite number", "inf"),
        ({"ratio": 10**400}, "ratio", "a finite number", "1000"),
        ({"ratio": True}, "ratio", "a number", "True"),
        ({"ratio": "0x1p0"}, "ratio", "a number", "'0x1p0'"),
        ({"flag": 1}, "flag", "true or false", "1"),
        ({"width": 3}, "width", "one of 2, 4", "3"),
        ({"mode": "shut"}, "mode", "one of open, roster", "'shut'"),
        ({"part": 1}, "part", "a table", "1"),
        ({"part": {"raw": "0"}}, "part.raw", "lower-case hex digits", "'0'"),
        ({"part": {"raw": "AB"}}, "part.raw", "lower-case hex digits", "'AB'"),
        ({"part": {"raw": "a b"}}, "part.raw", "lower-case hex digits", "'a b'"),
        ({"part": {"raw": 1}}, "part.raw", "a string of hex digits", "1"),
        ({"parts": {}}, "parts", "a list", "a table"),
        ({"parts": "ab"}, "parts", "a list", "'ab'"),
        ({"extra": []}, "extra", "a table", "[]"),
        ({"extra": {"a": None}}, "extra.a", "a number, a string or a boolean", "None"),
        ({"extra": {"a": {"b": 1}}}, "extra.a", "a number, a string or a boolean", "a table"),
        ({"extra": {"a": math.inf}}, "extra.a", "a finite number", "inf"),
        ({"extra": {"a": 2**53}}, "extra.a", "a whole number below 2^53", "9007199254740992"),
        ({"maybe": "x"}, "maybe", "a whole number", "'x'"),
    ],
)
def test_an_error_says_field_expected_and_found(change, path, expected, found):
    error = refused({**GOOD, **change})
    assert error.path == path
    assert expected in error.expected
    assert found in error.found
    assert str(error) == f"{path}: expected {error.expected}, found {error.found}"


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_key_is_named(name):
    error = refused({k: v for k, v in GOOD.items() if k != name})
    assert error.path == name
    assert "missing" in error.found


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_something_else_than_a_table_is_refused(value):
    assert refused(value).path == "the whole file"


def test_a_long_value_is_cut_in_the_message():
    assert len(refused({**GOOD, "count": "x" * 1000}).found) == 60


@pytest.mark.parametrize(
    "text",
    [
        "0.5",
        "0x1.0p-1",
        "0x1p-1",
        "0X1.0000000000000p-1",
        " 0x1.0000000000000p-1",
        "0x2.0000000000000p-2",
        "nan",
        "inf",
        "-inf",
        "",
        "0x1p99999",
    ],
)
def test_the_canonical_notation_takes_one_spelling_of_a_float(text):
    assert refused({**GOOD, "ratio": text}, CANONICAL).path == "ratio"
    accepted = from_plain(Whole, {**GOOD, "ratio": "0x1.0000000000000p-1"}, CANONICAL)
    assert accepted.ratio == 0.5


SCALARS = (
    st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False)
)
PARTS = st.builds(Part, raw=st.binary(max_size=4), number=st.integers(0, 10))
WHOLES = st.builds(
    Whole,
    name=st.text(max_size=8),
    count=st.integers(-5, 5),
    ratio=st.floats(-100, 100),
    flag=st.booleans(),
    width=st.sampled_from([2, 4]),
    mode=st.sampled_from(["open", "roster"]),
    part=PARTS,
    parts=st.lists(PARTS, max_size=3).map(tuple),
    extra=st.dictionaries(st.text(max_size=4), SCALARS, max_size=3).map(
        lambda table: Settings(tuple(sorted(table.items())))
    ),
    maybe=st.none() | st.integers(-9, 9),
)


def no_floats(plain):
    if isinstance(plain, dict):
        return all(no_floats(value) for value in plain.values())
    if isinstance(plain, list):
        return all(no_floats(value) for value in plain)
    return not isinstance(plain, float | bytes)


@given(WHOLES)
def test_both_notations_read_back_what_they_write(whole):
    for notation in Notation:
        plain = to_plain(whole, notation)
        plain = {k: v for k, v in plain.items() if v is not None}
        assert from_plain(Whole, plain, notation) == whole
    assert no_floats(to_plain(whole, CANONICAL))


PLAIN = st.recursive(
    st.none() | SCALARS | st.floats() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


@given(value=PLAIN, notation=st.sampled_from(Notation))
def test_any_value_is_read_or_refused_with_one_error(value, notation):
    try:
        from_plain(Whole, value, notation)
    except InvalidManifestError as error:
        assert error.expected  # noqa: PT017  # both outcomes are right


@given(st.sampled_from(sorted({*GOOD, "part", "parts", "extra", "width"})), PLAIN)
def test_any_field_is_read_or_refused_with_one_error(name, value):
    try:
        found = from_plain(Whole, {**GOOD, name: value}, NATIVE)
    except InvalidManifestError as error:
        assert error.path.split(".")[0].split("[")[0] == name  # noqa: PT017  # both outcomes are right
    else:
        assert isinstance(found, Whole)
