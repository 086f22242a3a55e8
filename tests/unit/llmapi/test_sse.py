from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.llmapi.sse import SseEvent, SseParser

STREAM = (
    b": ping\n\n"
    b'data: {"a":1}\n\n'
    b'event: content_block_delta\ndata: {"b":"x: y"}\nid: 7\nretry: 10\n\n'
    b"data:first\ndata:  second\ndata\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    SseEvent(b"", b'{"a":1}'),
    SseEvent(b"content_block_delta", b'{"b":"x: y"}'),
    SseEvent(b"", b"first\n second\n"),
    SseEvent(b"", b"[DONE]"),
]


def parse(*chunks: bytes, end: bool = True) -> list[SseEvent]:
    parser = SseParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + (parser.feed(b"", end=True) if end else [])


@pytest.fixture(params=[b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def stream(request: pytest.FixtureRequest) -> bytes:
    return STREAM.replace(b"\n", request.param)


def test_any_line_end(stream: bytes) -> None:
    assert parse(stream, end=False) == EVENTS


def test_split_at_every_offset(stream: bytes) -> None:
    for offset in range(len(stream) + 1):
        assert parse(stream[:offset], stream[offset:], end=False) == EVENTS, offset


def test_one_byte_at_a_time(stream: bytes) -> None:
    assert parse(*(stream[i : i + 1] for i in range(len(stream))), end=False) == EVENTS


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_split_anywhere_with_empty_chunks(cuts: list[int], line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    bounds = [0, *sorted(cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(bounds)]
    assert parse(*chunks, b"", end=False) == EVENTS


@pytest.mark.parametrize(
    ("line", "data"),
    [
        (b"data:x", b"x"),
        (b"data: x", b"x"),
        (b"data:  x", b" x"),
        (b"data:\tx", b"\tx"),
        (b"data:", b""),
        (b"data", b""),
    ],
)
def test_one_leading_space_is_dropped(line: bytes, data: bytes) -> None:
    assert parse(line + b"\n\n") == [SseEvent(b"", data)]


def test_an_event_is_given_at_its_blank_line_not_later() -> None:
    assert SseParser().feed(b"data: x\r\n\r") == [SseEvent(b"", b"x")]
    parser = SseParser()
    assert parser.feed(b"data: x\r\r") == [SseEvent(b"", b"x")]
    assert parser.feed(b"\ndata: y\r\n\r\n") == [SseEvent(b"", b"y")]


def test_last_event_without_a_blank_line() -> None:
    assert parse(b"data: x\n\ndata: y") == [SseEvent(b"", b"x"), SseEvent(b"", b"y")]
    assert parse(b"data: x\n\ndata: y\n") == [SseEvent(b"", b"x"), SseEvent(b"", b"y")]
    assert parse(b"data: x\n\ndata: y", end=False) == [SseEvent(b"", b"x")]


def test_byte_order_mark_only_at_the_start() -> None:
    stream = b"\xef\xbb\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\n"
    for offset in range(len(stream) + 1):
        assert parse(stream[:offset], stream[offset:]) == [SseEvent(b"", b"x")]


def test_a_name_belongs_to_one_event_and_needs_data() -> None:
    assert parse(b"event: a\n\ndata: x\n\nevent: b\ndata: y\n\ndata: z\n\n") == [
        SseEvent(b"", b"x"),
        SseEvent(b"b", b"y"),
        SseEvent(b"", b"z"),
    ]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert parse(b": a\n:\nfoo: bar\ndatax: y\n\n: keep-alive\n\n") == []


def test_llama_cpp_writes_an_error_as_a_field() -> None:
    assert parse(b'error: {"code":500}\n\n') == [SseEvent(b"error", b'{"code":500}')]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_an_oversized_event_is_dropped_and_the_stream_goes_on(size: int) -> None:
    lines = b"data: " + b"x" * 3000 + b"\n"
    for big in (b"data: " + b"x" * 9000 + b"\n\n", lines * 3 + b"\n", b"event: e\n" + lines * 4 + b"\n"):
        stream = b"data: a\n\n" + big + b"data: b\n\n"
        parser = SseParser(max_event_bytes=8192)
        events = [event for i in range(0, len(stream), size) for event in parser.feed(stream[i : i + size])]
        assert events == [SseEvent(b"", b"a"), SseEvent(b"", b"b")]
        assert parser.oversized == 1


def test_the_rest_of_an_oversized_line_is_no_line() -> None:
    parser = SseParser(max_event_bytes=64)
    chunks = (b"data: ", b"x" * 100, b"\n", b"data: still the same event\n\n", b"data: x\n\n")
    assert [event for chunk in chunks for event in parser.feed(chunk)] == [SseEvent(b"", b"x")]


def test_memory_stays_bounded_without_any_line_end() -> None:
    parser = SseParser(max_event_bytes=1024)
    for _ in range(1000):
        assert parser.feed(b"x" * 1000) == []
    assert len(parser._line) <= 1024
    assert parser.feed(b"\n\ndata: x\n\n") == [SseEvent(b"", b"x")]
