import json

import pytest

from trimtab.llmapi.errors import MAX_TEXT, ErrorBody, read_error_body

OVERLOADED = "The model is overloaded"


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": OVERLOADED, "type": "t", "code": 503}},
        {"error": OVERLOADED, "error_type": "overloaded", "type": "t", "code": "503"},
        {"object": "error", "message": OVERLOADED, "type": "t", "code": 503.0},
        {"message": OVERLOADED, "type": "t", "code": "503"},
        {"detail": OVERLOADED, "type": "t", "code": 503},
        {"detail": {"error": {"message": OVERLOADED, "type": "t", "code": 503}}},
        {"detail": [{"loc": ["body"], "msg": OVERLOADED, "type": "t", "code": 503}]},
        {"type": "error", "error": {"type": "t", "message": OVERLOADED, "code": 503}},
        {"error": {"error": {"message": OVERLOADED, "type": "t", "code": 503}}},
        {
            "error": {
                "message": json.dumps({"error": {"message": OVERLOADED, "type": "t", "code": 503}}),
                "type": "x",
            }
        },
        [{"error": {"message": OVERLOADED, "type": "t", "code": 503}}],
        {"type": "response.failed", "response": {"error": {"message": OVERLOADED, "type": "t", "code": 503}}},
        {"errors": [], "error": [{"message": OVERLOADED, "type": "t", "code": 503}]},
        {"error": {"reason": OVERLOADED, "type": "t", "code": 503}},
    ],
    ids=lambda body: str(body)[:60],
)
def test_every_shape_gives_text_type_and_code(body: object) -> None:
    for text in (json.dumps(body), json.dumps(body, indent=2), "\ufeff\n" + json.dumps(body)):
        error = read_error_body(text.encode())
        assert OVERLOADED in error.text
        assert error.value("type") == "t"
        assert error.value("code") == "503"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        (b"  plain text \n", "plain text"),
        (b'"a JSON string"', "a JSON string"),
        (
            b"<html><head><style>b{}</style></head><body><h1>Too&nbsp;many</h1>\n<p>over<br>loaded</body>",
            "Too&nbsp;many over loaded",
        ),
        (b"<!DOCTYPE html><script>var overloaded</script>503", "503"),
        (b": ping\n\ndata: queue is full\n\n", "queue is full"),
        (b"retry: later", "retry: later"),
        (b"[]", "[]"),
        (b"[1, 2]", "[1, 2]"),
        (b"{}", ""),
        (b"\xff\xfeX", "\ufffd\ufffdX"),
    ],
)
def test_what_is_no_object_gives_its_text(body: bytes, text: str) -> None:
    assert read_error_body(body).text == text


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"error":{"message":"busy","type":"t"}}\n\ndata: [DONE]\n\n',
        b'event: error\r\ndata: {"type":"error","error":{"message":"busy","type":"t"}}\r\n\r\n',
        b': ping\n\nerror: {"message":"busy","type":"t"}\n\n',
        b'data:{"error":{"message":"busy","type":"t"}}',
    ],
)
def test_an_event_stream_gives_its_first_object(stream: bytes) -> None:
    error = read_error_body(stream)
    assert (error.text, error.value("type")) == ("busy", "t")


def test_a_path_is_looked_up_from_the_error_outward() -> None:
    error = read_error_body(
        b'{"type":"error","request_id":"r","error":{"type":"inner","details":[{"reason":"A"},{"x":1},{"reason":"B"}],'
        b'"flag":true,"none":null,"n":1.5,"list":["a"]}}'
    )
    assert error.value("type") == "inner"
    assert error.value("$.type") == "error"
    assert error.value("request_id") == error.value("$.request_id") == "r"
    assert error.value("$.error.type") == "inner"
    assert list(error.values("details.reason")) == ["A", "B"]
    assert error.value("details.0.reason") == "A"
    assert error.value("details.2.reason") == "B"
    assert error.value("list.0") == "a"
    assert (error.value("flag"), error.value("n")) == ("true", "1.5")
    for nothing in (
        "none",
        "details",
        "details.9.reason",
        "details.nope",
        "nope",
        "type.x",
        "",
        "$.",
        "$.nope",
        "list.x",
    ):
        assert error.value(nothing) is None, nothing


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("503", "503"),
        ("429.0", "429"),
        ('"1300"', "1300"),
        ("-1", "-1"),
        ("true", "true"),
        ("null", None),
        ("[1]", None),
        ("NaN", None),
        ("Infinity", None),
        ("1e400", None),
        ("9" * 300, None),
    ],
)
def test_a_code_of_any_type(code: str, text: str | None) -> None:
    assert read_error_body(f'{{"error":{{"code":{code},"message":"m"}}}}'.encode()).value("code") == text


def test_a_cut_body_keeps_its_telling_fields() -> None:
    whole = (
        b'{"type":"error","error":{"message":"The \\"engine\\" is busy","type":"overloaded_error","code":503,"more":"'
    )
    error = read_error_body(whole + b"x" * 70_000)
    assert error.value("type") == "overloaded_error"
    assert error.value("code") == "503"
    assert "busy" in error.text
    assert "busy" in read_error_body(whole[:60]).text
    assert read_error_body(b'{"error": overloaded}').text == '{"error": overloaded}'


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 65_536,
        b'{"error":' * 7_000,
        b'{"error":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"error":' * 50 + b'{"message":"deep"}' + b"}" * 50,
        b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"n":' + b"9" * 60_000 + b"}",
        b"<script" * 9_000,
        b"<!--" * 16_000,
        b'"type"' * 10_000,
        b'{"message":"' + b"\\" * 65_000,
        b'{"message":' + b" " * 65_000,
        b"data:" * 13_000,
        b"data:\n" * 10_000,
    ],
    ids=lambda body: str(body[:20]),
)
def test_nasty_bodies_are_read_within_bounds(body: bytes) -> None:
    error = read_error_body(body)
    assert len(error.text) <= MAX_TEXT
    assert list(error.values("a.b.c")) == []


def test_nesting_that_the_parser_just_bears_is_borne_by_all() -> None:
    for depth in range(600, 1000):
        error = read_error_body(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
        assert list(error.values("a.b")) == []


def test_a_long_text_is_cut() -> None:
    for body in (b"x" * 60_000, json.dumps({"error": "x" * 60_000}).encode(), b"<p>" + b"x" * 60_000):
        assert read_error_body(body).text == "x" * MAX_TEXT
    assert read_error_body(b'{"error":{"type":"' + b"t" * 9000 + b'"}}').value("type") == "t" * 512


def test_nothing_is_empty() -> None:
    assert read_error_body(b"") == ErrorBody()
