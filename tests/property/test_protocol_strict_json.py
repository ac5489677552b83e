import json

import hypothesis.strategies as st
from hypothesis import example, given, settings

from shoal.protocol import strict_json
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError

text = st.text(st.characters(codec="utf-8"), max_size=20)
leaves = st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | text
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(text, values, max_size=5)
pieces = st.sampled_from(
    [
        *("{", "}", "[", "]", ":", ",", '"a"', '"b"', "1", "-0", "1e9", "1.5", "NaN", "null"),
        *("true", '"\\u00e9"', '"\\ud800"', "\\", '"', " ", "9" * 17, "\u00e9"),
    ]
)


@given(objects)
@settings(max_examples=300, deadline=None)
def test_an_object_reads_back_and_is_plain_json(value):
    try:
        raw = strict_json.dump(value)
    except LocalProtocolError as error:
        assert "E_JSON_DEPTH" in str(error)  # noqa: PT017 - the only reason that is left
        return
    assert strict_json.load(raw, len(raw)) == value
    assert json.loads(raw) == value
    assert raw.isascii()


@given(objects)
@settings(deadline=None)
def test_the_order_of_keys_does_not_matter_for_the_form(value):
    backwards = dict(reversed(value.items()))
    try:
        raw = strict_json.dump(value)
    except LocalProtocolError:
        return
    assert strict_json.dump(backwards) == raw


@given(st.binary(max_size=60) | st.lists(pieces, max_size=40).map(lambda p: "".join(p).encode()))
@example(b"[" * 60)
@settings(max_examples=1000, deadline=None)
def test_any_bytes_are_the_form_of_an_object_or_refused(raw):
    try:
        value = strict_json.load(raw, 1000)
    except RemoteProtocolError:
        return
    assert strict_json.dump(value) == raw


@given(objects, st.integers(0, 400), st.binary(max_size=3))
@settings(max_examples=300, deadline=None)
def test_bytes_near_a_form_are_another_form_or_refused(value, at, middle):
    try:
        raw = strict_json.dump(value)
    except LocalProtocolError:
        return
    near = raw[:at] + middle + raw[at + 1 :]
    try:
        other = strict_json.load(near, 10_000)
    except RemoteProtocolError:
        return
    assert strict_json.dump(other) == near
