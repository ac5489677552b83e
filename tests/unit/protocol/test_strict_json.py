import json

import pytest

from shoal.protocol import strict_json
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from tests.unit.protocol.wire_builders import code_of

JSON, DEPTH = ErrorCode.E_JSON, ErrorCode.E_JSON_DEPTH
DUPKEY, NUMBER, LEN = ErrorCode.E_JSON_DUPKEY, ErrorCode.E_JSON_NUMBER, ErrorCode.E_LEN


def nested(depth):
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


REFUSED = {
    "the same key twice": (b'{"a":1,"a":2}', DUPKEY),
    "the same key twice, once escaped": (b'{"a":1,"\\u0061":2}', DUPKEY),
    "the same key twice, deeper": (b'{"a":{"b":1,"b":1}}', DUPKEY),
    "a float": (b'{"a":1.0}', NUMBER),
    "an exponent": (b'{"a":1e2}', NUMBER),
    "a number that overflows to infinity": (b'{"a":1e400}', NUMBER),
    "NaN": (b'{"a":NaN}', NUMBER),
    "Infinity": (b'{"a":Infinity}', NUMBER),
    "-Infinity": (b'{"a":-Infinity}', NUMBER),
    "negative zero": (b'{"a":-0}', NUMBER),
    "2^53": (b'{"a":9007199254740992}', NUMBER),
    "-2^53": (b'{"a":-9007199254740992}', NUMBER),
    "17 digits": (b'{"a":10000000000000000}', NUMBER),
    "50,000 digits": (b'{"a":' + b"9" * 50_000 + b"}", NUMBER),
    "a leading zero": (b'{"a":01}', JSON),
    "a plus sign": (b'{"a":+1}', JSON),
    "null": (b'{"a":null}', JSON),
    "null in a list": (b'{"a":[null]}', JSON),
    "a list on top": (b"[]", JSON),
    "a number on top": (b"1", JSON),
    "text on top": (b'"a"', JSON),
    "nothing": (b"", JSON),
    "a byte order mark": (b'\xef\xbb\xbf{"a":1}', JSON),
    "UTF-8 that is not escaped": ('{"a":"\u00e9"}'.encode(), JSON),
    "bytes that are not UTF-8": (b'{"a":"\xff"}', JSON),
    "UTF-16": ('{"a":1}'.encode("utf-16-le"), JSON),
    "upper-case escapes": (b'{"a":"\\u00E9"}', JSON),
    "an escape that is not needed": (b'{"a":"\\u0041"}', JSON),
    "an escaped slash": (b'{"a":"\\/"}', JSON),
    "half a surrogate pair": (b'{"a":"\\ud800"}', JSON),
    "half a surrogate pair in a key": (b'{"\\udfff":1}', JSON),
    "surrogates in the wrong order": (b'{"a":"\\ude00\\ud83d"}', JSON),
    "a control character": (b'{"a":"\n"}', JSON),
    "a space after the colon": (b'{"a": 1}', JSON),
    "a newline at the end": (b'{"a":1}\n', JSON),
    "a second object": (b'{"a":1}{}', JSON),
    "keys that are not sorted": (b'{"b":1,"a":2}', JSON),
    "a trailing comma": (b'{"a":1,}', JSON),
    "single quotes": (b"{'a':1}", JSON),
    "a comment": (b'{"a":1/**/}', JSON),
    "an unfinished object": (b'{"a":1', JSON),
    "an unfinished string": (b'{"a":"[[[[[[[[[[[[[[[', JSON),
    "an unfinished escape": (b'{"a":"\\', JSON),
    "brackets that do not match": (b'{"a":[}]', JSON),
    "brackets that close first": (b"]]]]{}", JSON),
    "True": (b'{"a":True}', JSON),
    "nested one too deep": (nested(9), DEPTH),
    "100,000 lists": (nested(100_000), DEPTH),
    "100,000 lists that never close": (b"[" * 100_000, DEPTH),
    "100,000 objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, DEPTH),
}


@pytest.mark.parametrize(("raw", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(raw, code):
    assert code_of(lambda: strict_json.load(raw, 2_000_000), RemoteProtocolError) is code


TAKEN = {
    "an empty object": {},
    "the largest integers": {"a": 2**53 - 1, "b": 1 - 2**53},
    "zero": {"a": 0},
    "bools": {"a": True, "b": False},
    "an empty key and empty text": {"": ""},
    "characters that need escapes": {"a": '"\\\n\t\x00\x7f/'},
    "an accent, and a character beyond 16 bits": {"a": "\u00e9\U0001f600"},
    "brackets inside text": {"a": "[[[[[[[[[[[[{{{{{{{{{{{{"},
    "text that ends in a backslash": {"a": ["\\", "[", '\\"', "]"]},
    "the deepest nesting": {"a": [[[[[[[1]]]]]]]},
}


@pytest.mark.parametrize("value", TAKEN.values(), ids=TAKEN.keys())
def test_is_taken_and_has_one_form(value):
    raw = strict_json.dump(value)
    assert strict_json.load(raw, len(raw)) == value
    assert strict_json.load(memoryview(raw), len(raw)) == value
    assert json.loads(raw) == value


def test_the_form_is_sorted_without_spaces_and_ascii():
    assert strict_json.dump({"b": "\u00e9", "a": [1, True]}) == b'{"a":[1,true],"b":"\\u00e9"}'


def test_the_length_is_looked_at_first():
    assert code_of(lambda: strict_json.load(b"[" * 11, 10), RemoteProtocolError) is LEN


def test_the_depth_limit_is_the_callers():
    raw = nested(3)
    assert strict_json.load(raw, 100, max_depth=3)
    assert code_of(lambda: strict_json.load(raw, 100, max_depth=2), RemoteProtocolError) is DEPTH


def test_ten_deep_is_taken_where_reader_and_writer_agree():
    value = {"a": [[[[[[[[[1]]]]]]]]]}
    raw = strict_json.dump(value, max_depth=10)
    assert strict_json.load(raw, 100, max_depth=10) == value


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1.0},
        {"a": float("nan")},
        {"a": None},
        {"a": 2**53},
        {"a": b"bytes"},
        {"a": {1: 2}},
        {"a": {1, 2}},
        {"a": "\ud800"},
        {"\udc00": 1},
        {"a": [[[[[[[[1]]]]]]]]},
    ],
    ids=str,
)
def test_a_value_without_a_form_is_our_own_mistake(value):
    with pytest.raises(LocalProtocolError):
        strict_json.dump(value)
