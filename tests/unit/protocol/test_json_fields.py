import re

import pytest

from shoal.protocol import json_fields as fields
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.protocol.strict_json import JsonValue
from tests.unit.protocol.wire_builders import code_of

OBJECT: dict[str, JsonValue] = {
    "int": 5,
    "bool": True,
    "text": "abc",
    "hex": "00ff",
    "upper": "00FF",
    "spaced": "0 f",
    "list": [1],
    "empty": "",
    "object": {"a": 1},
}
WORD = re.compile("[a-z]{1,3}")


def test_fields_of_the_right_form_are_read():
    assert fields.take_int(OBJECT, "int", 5, 5) == 5
    assert fields.take_bool(OBJECT, "bool") is True
    assert fields.take_text(OBJECT, "text", WORD) == "abc"
    assert fields.take_hex(OBJECT, "hex", 2) == b"\x00\xff"
    assert fields.take_hex(OBJECT, "empty", 2, empty=True) == b""
    assert fields.take_list(OBJECT, "list") == [1]
    assert fields.as_object(OBJECT["object"], "object") == {"a": 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda: fields.take_int(OBJECT, "bool", 0, 9),
        lambda: fields.take_int(OBJECT, "text", 0, 9),
        lambda: fields.take_int(OBJECT, "int", 6, 9),
        lambda: fields.take_int(OBJECT, "int", 0, 4),
        lambda: fields.take_bool(OBJECT, "int"),
        lambda: fields.take_text(OBJECT, "int", WORD),
        lambda: fields.take_text(OBJECT, "hex", WORD),
        lambda: fields.take_hex(OBJECT, "int", 2),
        lambda: fields.take_hex(OBJECT, "hex", 3),
        lambda: fields.take_hex(OBJECT, "upper", 2),
        lambda: fields.take_hex(OBJECT, "spaced", 1),
        lambda: fields.take_hex(OBJECT, "empty", 2),
        lambda: fields.take_list(OBJECT, "object"),
        lambda: fields.as_object(OBJECT["list"], "list"),
        lambda: fields.check_keys(OBJECT, frozenset(OBJECT) | {"more"}),
        lambda: fields.check_keys(OBJECT, frozenset(OBJECT) - {"int"}),
    ],
)
def test_anything_else_is_refused(call):
    assert code_of(call, RemoteProtocolError) is ErrorCode.E_JSON


def test_optional_keys_may_be_there_or_not():
    required = frozenset(OBJECT) - {"int"}
    fields.check_keys(OBJECT, required, frozenset(("int", "other")))


def test_a_line_break_at_the_end_is_not_overlooked():
    with pytest.raises(RemoteProtocolError):
        fields.take_text({"text": "abc\n"}, "text", WORD)
    with pytest.raises(RemoteProtocolError):
        fields.take_hex({"hex": "00ff\n"}, "hex", 2)
