"""Streams as engines send them: recorded ones, and others built from what is known of each protocol."""

import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.llmapi import captures
from trimtab.llmapi.stream import EventKind, StreamEvent, StreamReader

TOKEN, ERROR, DONE, UNREADABLE = EventKind.TOKEN, EventKind.ERROR, EventKind.DONE, EventKind.UNREADABLE
SSE = "text/event-stream; charset=utf-8"


def sse(*events: Any, end: str = "\n") -> bytes:
    """Events as bytes: a str is the data itself, a pair is (event name, data), anything else is JSON."""
    out = []
    for event in events:
        name, data = event if isinstance(event, tuple) else ("", event)
        lines = ([f"event: {name}"] if name else []) + [
            "data: " + (data if isinstance(data, str) else json.dumps(data)),
            "",
        ]
        out += [line + end for line in lines]
    return "".join(out).encode()


def read(*chunks: bytes, coding: str = "", count_reasoning: bool = True, end: bool = True) -> list[StreamEvent]:
    reader = StreamReader(SSE, coding, count_reasoning)
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + (reader.feed(b"", end=True) if end else [])


def kinds(*chunks: bytes, **options: Any) -> list[EventKind]:
    return [event.kind for event in read(*chunks, **options)]


def chat(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


ROLE = chat({"role": "assistant", "content": ""})
HELLO = chat({"content": "hello"})

ANTHROPIC = sse(
    (
        "message_start",
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 9}}},
    ),
    (
        "content_block_start",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ),
    ("ping", {"type": "ping"}),
    ("ping", {"type": "ping"}),
    (
        "content_block_delta",
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    ),
    (
        "content_block_delta",
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
    ),
    ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    (
        "message_delta",
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    ),
    ("message_stop", {"type": "message_stop"}),
)
RESPONSES = sse(
    (
        "response.created",
        {"type": "response.created", "response": {"id": "r", "error": None, "status": "in_progress"}},
    ),
    (
        "response.output_item.added",
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
    ),
    ("response.reasoning_text.delta", {"type": "response.reasoning_text.delta", "delta": "hm"}),
    (
        "response.output_text.delta",
        {"type": "response.output_text.delta", "sequence_number": 4, "delta": "Hi"},
    ),
    (
        "response.function_call_arguments.delta",
        {"type": "response.function_call_arguments.delta", "delta": ""},
    ),
    ("response.output_text.done", {"type": "response.output_text.done", "text": "Hi"}),
    ("response.completed", {"type": "response.completed", "response": {"id": "r", "error": None}}),
)
TGI = sse(
    {"index": 1, "token": {"id": 5, "text": " a", "logprob": -0.1, "special": False}, "generated_text": None},
    {"index": 2, "token": {"id": 6, "text": "b", "special": False}, "generated_text": " ab", "details": None},
)
SGLANG = sse(
    {"text": "a", "meta_info": {"id": "x", "finish_reason": None}},
    {"text": "ab", "meta_info": {"id": "x", "finish_reason": {"type": "length", "length": 2}}},
    "[DONE]",
)
SGLANG_FULL = sse(
    {
        "error": {
            "object": "error",
            "message": "The request queue is full.",
            "type": "SERVICE_UNAVAILABLE",
            "param": None,
            "code": 503,
        }
    },
    "[DONE]",
)
LLAMA_NATIVE = sse(
    {"index": 0, "content": "a", "tokens": [1], "stop": False, "id_slot": 0},
    {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": "limit"},
)
TRITON = sse({"model_name": "ensemble", "text_output": "a"}, {"model_name": "ensemble", "text_output": " b"})
KEEP_ALIVE = b": keep-alive\n\n" * 3 + sse(ROLE) + b": keep-alive\n\n" + sse(HELLO, chat({}, "stop"), "[DONE]")

STREAMS: dict[str, tuple[bytes, list[EventKind]]] = {
    "vllm": (captures.stream("vllm_stream_chat.txt"), [TOKEN] * 6 + [DONE, DONE]),
    "vllm-queued": (captures.stream("vllm_stream_chat_queued.txt"), [TOKEN] * 3 + [DONE, DONE]),
    "vllm-dead": (captures.stream("vllm_dead_and_tokens.txt", "queued stream saw"), [ERROR, DONE]),
    "llama.cpp": (captures.stream("llamacpp_probe.txt", "stream"), [TOKEN] * 5 + [DONE, DONE]),
    "keep-alive": (KEEP_ALIVE, [TOKEN, DONE, DONE]),
    "anthropic": (ANTHROPIC, [TOKEN, TOKEN, DONE]),
    "responses": (RESPONSES, [TOKEN, TOKEN, TOKEN, DONE]),
    "tgi": (TGI, [TOKEN, TOKEN, DONE]),
    "sglang": (SGLANG, [TOKEN, TOKEN, DONE, DONE]),
    "sglang-full": (SGLANG_FULL, [ERROR, DONE]),
    "llama.cpp-native": (LLAMA_NATIVE, [TOKEN, DONE]),
    "triton": (TRITON, [TOKEN, TOKEN]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_a_stream_says(name: str) -> None:
    stream, expected = STREAMS[name]
    assert kinds(stream) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_it_says_the_same_split_at_every_offset(name: str) -> None:
    stream, _ = STREAMS[name]
    whole = read(stream)
    for offset in range(len(stream)):
        assert read(stream[:offset], stream[offset:]) == whole, offset
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == whole


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("change", ["crlf", "cr", "no-space", "bom"])
def test_it_says_the_same_however_it_is_written(name: str, change: str) -> None:
    stream, expected = STREAMS[name]
    changed = {
        "crlf": stream.replace(b"\n", b"\r\n"),
        "cr": stream.replace(b"\n", b"\r"),
        "no-space": stream.replace(b"data: ", b"data:"),
        "bom": b"\xef\xbb\xbf" + stream,
    }[change]
    assert kinds(changed) == expected
    assert kinds(*(changed[i : i + 1] for i in range(len(changed)))) == expected


@pytest.mark.parametrize("name", ["vllm", "llama.cpp", "anthropic", "responses"])
def test_the_token_is_seen_in_the_chunk_that_completes_it(name: str) -> None:
    stream, _ = STREAMS[name]
    reader = StreamReader(SSE, "")
    first = next(i for i in range(len(stream)) if reader.feed(stream[i : i + 1]))
    before = stream[: first + 1]
    assert before.endswith(b"\n\n")
    assert read(before[:-1], end=False) == []


TOKENS: list[tuple[Any, bool]] = [
    (ROLE, False),
    (chat({"role": "assistant"}), False),
    (chat({"role": "assistant", "content": None}), False),
    (
        chat({"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [], "refusal": None}),
        False,
    ),
    (chat({}), False),
    (chat({"content": None}), False),
    (HELLO, True),
    (chat({"role": "assistant", "content": " Hi"}), True),  # TGI repeats the role in every chunk
    (chat({"role": None, "content": "Hi", "tool_calls": None}), True),
    (chat({"content": ""}), True),  # vLLM, in the middle of a character
    (chat({"content": "\ufffd"}), True),
    (chat({"content": " "}), True),
    (chat({"content": [{"type": "text", "text": "Hi"}]}), True),
    (chat({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}), True),
    (
        chat({"role": "assistant", "content": None, "tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
        True,
    ),
    (chat({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), True),
    (chat({"function_call": {"name": "f", "arguments": ""}}), True),
    (chat({"refusal": "No"}), True),
    (chat({"audio": {"id": "a", "data": "AAA="}}), True),
    ({"object": "text_completion", "choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}, True),
    ({"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": None}]}, True),
    ({"choices": [], "usage": {"prompt_tokens": 1}}, False),
    ({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, False),  # Azure, before anything else
    (
        {
            "choices": [
                {"index": 0, "delta": {"role": "assistant", "content": ""}},
                {"index": 1, "delta": {"content": "x"}},
            ]
        },
        True,
    ),
    ({"type": "content_block_start", "content_block": {"type": "text", "text": "Hi"}}, True),
    ({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f", "input": {}}}, False),
    ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}, True),
    ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}}, False),
    ({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "s"}}, False),
    ({"type": "message_start", "message": {"content": [{"type": "text", "text": "Hi"}]}}, True),
    ({"type": "response.refusal.delta", "delta": "No"}, True),
    ({"type": "response.output_text.delta", "delta": ""}, False),
    ({"type": "response.audio.delta", "delta": "AAA="}, True),
    (
        {"content": "", "stop": False, "prompt_progress": {"total": 9}},
        False,
    ),  # llama.cpp, while it reads the prompt
    ({"token": {"id": 1, "text": "", "special": True}}, False),
]


@pytest.mark.parametrize(("event", "is_token"), TOKENS, ids=lambda value: str(value)[:70])
def test_what_is_a_token(event: Any, is_token: bool) -> None:
    assert kinds(sse(event)) == ([TOKEN] if is_token else [])


@pytest.mark.parametrize(
    "event",
    [
        chat({"reasoning_content": "hm"}),
        chat({"reasoning": "hm"}),
        chat({"role": "assistant", "content": "", "reasoning": "hm"}),
        chat({"reasoning_content": ""}),
        chat({"content": None, "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
    ],
    ids=lambda event: str(event)[-60:],
)
def test_reasoning_counts_if_it_shall(event: Any) -> None:
    assert kinds(sse(event)) == [TOKEN]
    assert kinds(sse(event), count_reasoning=False) == []
    text = {"type": "response.output_text.delta", "delta": "x"}
    assert kinds(sse(event, HELLO, text), count_reasoning=False) == [TOKEN, TOKEN]


ERRORS: list[Any] = [
    {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}},
    {"error": "Request failed during generation", "error_type": "generation"},  # TGI
    {"error": {"message": "overloaded", "http_status_code": 422}},  # TGI chat
    {"object": "error", "message": "x", "type": "BadRequestError", "code": 400},  # vLLM before 0.9
    ("error", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    {"type": "error", "code": "server_error", "message": "x", "sequence_number": 3},
    {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}},
    ("error", "engine is gone"),
    ("error", "{not json"),
    chat({"content": ""}, "error", error={"code": 502, "message": "x"}),
    chat({}, "abort"),
    chat({}, "error"),
    {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "queue is full"}}},
]


@pytest.mark.parametrize("event", ERRORS, ids=lambda event: str(event)[:60])
@pytest.mark.parametrize("before", [0, 1, 50])
def test_an_error_is_an_error_first_later_and_last(event: Any, before: int) -> None:
    tokens = [chat({"content": f"t{i}"}) for i in range(before)]
    events = read(sse(ROLE, *tokens, event, "[DONE]"))
    assert [e.kind for e in events] == [TOKEN] * before + [ERROR, DONE]
    data = event[1] if isinstance(event, tuple) else event
    assert events[before].data == (data if isinstance(data, str) else json.dumps(data)).encode()
    without_end = sse(*tokens, event).rstrip(b"\n")
    assert kinds(without_end) == [TOKEN] * before + [ERROR]


def test_a_token_under_the_name_of_an_error_is_an_error() -> None:
    assert kinds(sse(HELLO, ("error", HELLO), HELLO)) == [TOKEN, ERROR, TOKEN]


def test_llama_cpp_writes_an_error_as_a_field() -> None:
    data = b'{"code":500,"message":"context shift is disabled","type":"server_error"}'
    assert read(b"error: " + data + b"\n\n") == [StreamEvent(ERROR, data)]


@pytest.mark.parametrize("nothing", [None, False, "", {}, []])
def test_an_empty_error_is_none(nothing: Any) -> None:
    assert kinds(sse(chat({"content": "x"}, error=nothing))) == [TOKEN]


def test_words_like_error_in_the_text_are_text() -> None:
    for text in (
        '{"error": {"code": 503}}',
        '"error"',
        "[DONE]",
        "data: [DONE]",
        'finish_reason":"stop"',
        "\u2028",
    ):
        assert kinds(sse(HELLO, chat({"content": text}), HELLO)) == [TOKEN] * 3


def test_a_finish_reason_with_text_is_both() -> None:
    assert kinds(sse(HELLO, chat({"content": "x"}, "length"))) == [TOKEN, TOKEN, DONE]
    assert kinds(sse(HELLO, chat({"content": ""}, "stop"))) == [TOKEN, DONE]
    assert kinds(sse({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})) == [DONE]


def test_several_choices_are_done_when_all_are() -> None:
    def of(index: int, delta: Any, finish: str | None = None) -> Any:
        return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}

    role = {"role": "assistant", "content": ""}
    stream = sse(of(0, role), of(1, role), of(0, {"content": "a"}), of(0, {}, "stop"), of(1, {"content": "b"}))
    assert kinds(stream + sse(of(1, {"content": "c"}, "length"), "[DONE]")) == [
        TOKEN,
        TOKEN,
        TOKEN,
        DONE,
        DONE,
    ]
    assert kinds(stream + sse({"error": "x"})) == [TOKEN, TOKEN, ERROR]


@pytest.mark.parametrize(
    ("event", "foreign"),
    [
        ({"choices": []}, False),
        ({"type": "ping"}, False),
        ({"type": "message_start", "message": {}}, False),
        ({"type": "response.created"}, False),
        ({"token": {"text": ""}}, False),
        ({"type": "transcript.text.delta", "delta": "a"}, True),
        ({"partial_image_b64": "AAAA"}, True),
        ({}, True),
    ],
    ids=str,
)
def test_an_event_of_no_known_protocol_is_noticed(event: dict[str, Any], foreign: bool) -> None:
    reader = StreamReader(SSE, "")
    reader.feed(b": ping\n\n")
    assert not reader.foreign
    assert reader.feed(sse(event)) == []
    assert reader.foreign is foreign


def test_an_event_that_is_too_long_may_have_been_a_token() -> None:
    reader = StreamReader(SSE, "")
    assert reader.feed(b"data: " + b"x" * (1 << 20)) == []
    assert reader.foreign  # before it ends


def test_broken_json_is_malformed_and_the_stream_goes_on() -> None:
    reader = StreamReader(SSE, "")
    broken = [
        b'data: {"choices":[{"delta":{"content":"x"}}\n\n',
        b"data: {\n\n",
        b'data: {"error": "x"\n\n',
        b"data: hello\n\n",
    ]
    said = [event.kind for chunk in [*broken, sse(HELLO)] for event in reader.feed(chunk)]
    assert said == [TOKEN]
    assert reader.malformed == len(broken)


def test_broken_json_that_looks_like_the_last_token_is_malformed() -> None:
    reader = StreamReader(SSE, "")
    good = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n'
    assert reader.feed(good % b"a") == reader.feed(good % b"b") == [StreamEvent(TOKEN)]
    for text in (b'a"b', b"a\\", b'"', b"\\u12", b"a\tb", b'","x":"'):
        broken_or_not = good % text
        try:
            json.loads(broken_or_not[6:])
        except ValueError:
            assert reader.feed(broken_or_not) == []
        else:
            assert reader.feed(broken_or_not) == [StreamEvent(TOKEN)]
    assert reader.feed(good % b"") == [StreamEvent(TOKEN)]
    assert reader.feed((good % b"a").replace(b"]}", b"]")) == []
    assert reader.malformed == 6


@pytest.mark.parametrize(
    "usage", [None, "x", [], {}, "12", -1, 1e308, True, {"prompt_tokens": "12"}, {"prompt_tokens": {"a": []}}]
)
def test_usage_of_any_type(usage: Any) -> None:
    assert kinds(sse(chat({"content": "x"}, usage=usage))) == [TOKEN]


@pytest.mark.parametrize(
    "data",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"choices":' * 50_000 + "1" + "}" * 50_000,
        '{"choices":[{"index":1e400,"delta":{"content":NaN}}]}',
        '{"choices":[{"index":' + "9" * 4000 + ',"delta":{"content":1e999}}]}',
        '{"n":' + "9" * 5000 + "}",
        '{"choices":[[[]],null,7,{"delta":[]},{"delta":null,"text":null}]}',
        '{"choices":{"0":{}}}',
        '{"choices":[{"finish_reason":{"a":[]},"delta":{"content":{}}}]}',
        '{"type":["x"],"token":[],"meta_info":7}',
        '{"type":"content_block_delta","delta":7}',
        '{"type":"message_start","message":[]}',
        '"text"',
        "null",
        "-",
        "[]",
    ],
    ids=lambda data: data[:40],
)
def test_nothing_crashes(data: str) -> None:
    assert kinds(sse(HELLO, data, HELLO))[-1] is TOKEN


def test_what_is_no_event_stream_says_nothing() -> None:
    body = json.dumps({"choices": [{"message": {"content": "data: x"}}], "error": None}).encode()
    for content_type in ("application/json", "", "text/html", "text/plain"):
        assert StreamReader(content_type, "").feed(body, end=True) == []
    assert StreamReader("Text/Event-Stream", "").feed(sse(HELLO)) == [StreamEvent(TOKEN)]


def test_an_empty_stream_says_nothing() -> None:
    assert kinds(b"") == []


def test_nothing_is_said_after_the_end() -> None:
    reader = StreamReader(SSE, "")
    assert reader.feed(sse(HELLO), end=True) == [StreamEvent(TOKEN)]
    assert reader.feed(sse(HELLO), end=True) == []


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(CODINGS)), st.sampled_from(sorted(STREAMS)), st.integers(1, 900))
def test_encoded_streams_say_the_same(coding: str, name: str, size: int) -> None:
    stream, expected = STREAMS[name]
    body = CODINGS[coding](stream)
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    assert kinds(*chunks, coding=coding) == expected


def test_one_gzip_block_per_event() -> None:
    gz = zlib.compressobj(wbits=31)
    reader = StreamReader(SSE, "gzip")
    for event, said in ((ROLE, []), (HELLO, [StreamEvent(TOKEN)]), ("[DONE]", [StreamEvent(DONE)])):
        assert reader.feed(gz.compress(sse(event)) + gz.flush(zlib.Z_SYNC_FLUSH)) == said


@pytest.mark.parametrize("coding", ["snappy", "br", "zstd", "deflate", "gzip, gzip"])
def test_an_unknown_coding_is_unreadable_once(coding: str) -> None:
    reader = StreamReader(SSE, coding)
    assert [reader.feed(b"x"), reader.feed(b"y"), reader.feed(b"", end=True)] == [
        [StreamEvent(UNREADABLE)],
        [],
        [],
    ]


@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_a_corrupt_stream_is_unreadable_once(coding: str) -> None:
    reader = StreamReader(SSE, coding)
    said = [event for _ in range(20) for event in reader.feed(b"\xff" * 997)]
    assert said == [StreamEvent(UNREADABLE)]
    assert reader.feed(b"", end=True) == []


def test_what_came_before_the_corruption_counts() -> None:
    gz = zlib.compressobj(wbits=31)
    reader = StreamReader(SSE, "gzip")
    assert reader.feed(gz.compress(sse(HELLO)) + gz.flush(zlib.Z_SYNC_FLUSH)) == [StreamEvent(TOKEN)]
    assert reader.feed(b"\xff" * 100) == [StreamEvent(UNREADABLE)]


def test_an_encoded_stream_that_is_cut_or_empty_is_no_fault() -> None:
    body = gzip.compress(sse(ROLE, HELLO, HELLO))
    assert UNREADABLE not in kinds(body[:-12], coding="gzip")
    assert kinds(b"", coding="gzip") == []


def test_a_bomb_is_unreadable() -> None:
    body = gzip.compress(b"data: x\n\n" * (1 << 20))
    assert kinds(body, coding="gzip") == [UNREADABLE]


def test_a_large_plain_chunk_is_no_bomb() -> None:
    assert kinds(sse(HELLO) * 40_000) == [TOKEN] * 40_000


def test_random_bytes_never_raise() -> None:
    rng = random.Random(7)
    for coding in ("", *CODINGS, "nonsense"):
        for _ in range(60):
            reader = StreamReader(SSE, coding)
            for _ in range(4):
                noise = rng.randbytes(rng.randrange(300))
                reader.feed(rng.choice([noise, b"data: " + noise + b"\n\n", sse({"error": noise.hex()})]))
            reader.feed(b"", end=True)


_KEYS = (
    "choices delta content text error type message index finish_reason token tool_calls object meta_info "
    "content_block response role generated_text stop"
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS.split()), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_JSON, max_size=4), st.booleans())
def test_random_documents_never_raise_and_do_not_depend_on_splits(documents: list[Any], reasoning: bool) -> None:
    stream = sse(*documents)
    assert read(stream, count_reasoning=reasoning) == read(
        *(stream[i : i + 1] for i in range(len(stream))), count_reasoning=reasoning
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text(max_size=6), min_size=2, max_size=8),
    st.sampled_from(["content", "reasoning", "refusal"]),
)
def test_the_short_cut_says_what_the_parser_says(texts: list[str], key: str) -> None:
    """A stream of like events, read by one reader, says what readers say that see one event each."""
    for ascii_only in (True, False):
        events = [
            b"data: " + json.dumps(chat({key: text}), ensure_ascii=ascii_only).encode("utf-8", "replace") + b"\n\n"
            for text in texts
        ]
        assert read(*events) == [said for event in events for said in read(event)]
