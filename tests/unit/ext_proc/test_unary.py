"""What a unary answer is, by its body."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.unary import UnaryWatch, read_unary
from ext_proc.watch import Attempt
from trimtab.llmapi.rejections import MAX_BODY, RejectionReader
from trimtab.observation.kinds import AnswerRead, Output, Rejected, Verdict
from trimtab.policy.model import Rejections

JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"
COMPLETION = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "héllo"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7},
}


def read(body: object, path: str = CHAT) -> tuple[Output, str, int | None]:
    plain = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = read_unary(plain, JSON, path, is_whole=True)
    return found.output, found.reason, found.output_tokens


@pytest.mark.parametrize(
    ("path", "answer", "tokens"),
    [
        (CHAT, COMPLETION, 7),
        (CHAT, {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, None),
        ("/v1/completions", {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}, 0),
        ("/v1/messages", {"type": "message", "content": [{"text": "a"}], "usage": {"output_tokens": 3}}, 3),
        ("/v1/responses", {"object": "response", "output": [{}], "usage": {"output_tokens": 3}}, 3),
        ("/generate", [{"generated_text": "a", "details": {"generated_tokens": 2}}], 2),
        ("/generate", {"text": "a", "meta_info": {"completion_tokens": 2}}, 2),
        ("/completion", {"content": "a", "tokens_predicted": 4}, 4),
        ("/v1/embeddings", {"object": "list", "data": [{"embedding": [0.1]}]}, None),
        ("/v1/rerank", {"results": [{"index": 0}]}, None),
        ("/api/generate", {"model": "m", "response": "", "done": True, "eval_count": 5}, 5),
        ("/api/chat", {"message": {"role": "assistant", "content": "a"}, "done": True}, None),
        ("/generate", {"output_ids": [1, 2], "meta_info": {"finish_reason": {"type": "stop"}}}, None),
        ("/prefix/v1/chat/completions", COMPLETION, 7),
    ],
)
def test_model_output(path: str, answer: object, tokens: int | None) -> None:
    assert read(answer, path) == (Output.OUTPUT, "", tokens)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "an empty body"),
        (b" \n", "an empty body"),
        (b"<html></html>", "a body that is no JSON"),
        (b'{"choices": [', "JSON that is cut or malformed"),
        ({}, "JSON of no known API"),
        ({"status": "ok"}, "JSON of no known API"),
        ({"data": [1]}, "JSON of no known API"),
        ("text", "JSON of no known API"),
        ({"choices": []}, "JSON of no known API"),
        ({"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}, "an answer that the engine gave up"),
        ({"choices": [{"finish_reason": "abort"}]}, "an answer that the engine gave up"),
    ],
)
def test_no_output(body: object, reason: str) -> None:
    assert read(body)[:2] == (Output.NONE, reason)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"id": "r", "object": "response", "status": "incomplete", "output": []}),
        ("/v1/messages", {"id": "m", "content": [], "stop_reason": "end_turn"}),
        (CHAT, {"choices": [], "usage": {"completion_tokens": 0}}),
        ("/my/app/generate", {"status": "ok"}),
    ],
)
def test_an_answer_of_an_api_without_a_result_says_nothing(path: str, body: object) -> None:
    assert read(body, path)[0] is Output.UNKNOWN


def test_a_mark_of_byte_order_and_raw_control_characters_do_not_matter() -> None:
    assert read(b"\xef\xbb\xbf" + json.dumps(COMPLETION).encode())[0] is Output.OUTPUT
    assert read(b'{"choices": [{"message": {"content": "a\tb"}}]}')[0] is Output.OUTPUT


@pytest.mark.parametrize("body", [{"status": "ok"}, [1, 2], [[0.1]], {"scores": [1]}])
def test_of_other_apis_an_unknown_shape_says_nothing(body: object) -> None:
    assert read(body, "/v1/score")[:2] == (Output.UNKNOWN, "JSON of no known API")


@pytest.mark.parametrize(
    "usage", [None, "x", [], {"completion_tokens": "7"}, {"completion_tokens": -1}, {"completion_tokens": 1e300}, 7]
)
def test_a_count_that_is_none_is_not_known(usage: object) -> None:
    assert read(COMPLETION | {"usage": usage}) == (Output.OUTPUT, "", None)


def test_a_packed_answer_is_read() -> None:
    body = gzip.compress(json.dumps(COMPLETION).encode())
    found = read_unary(body, JSON | {"content-encoding": "gzip"}, CHAT, is_whole=True)
    assert (found.output, found.output_tokens) == (Output.OUTPUT, 7)
    odd = read_unary(body, JSON | {"content-encoding": "x-odd"}, CHAT, is_whole=True)
    assert odd.output is Output.UNKNOWN


@given(st.integers(0, len(json.dumps(COMPLETION)) - 1))
def test_an_answer_that_is_cut_anywhere_is_no_output(length: int) -> None:
    assert read(json.dumps(COMPLETION).encode()[:length])[0] is Output.NONE


@given(st.binary(max_size=300), st.booleans(), st.sampled_from(["", "gzip", "br", "deflate", "zstd", "x"]))
def test_whatever_comes_is_read_without_a_fault(body: bytes, is_whole: bool, coding: str) -> None:
    assert read_unary(body, {"content-encoding": coding}, CHAT, is_whole=is_whole).output in Output


def watch() -> UnaryWatch:
    return UnaryWatch(Attempt("p", "10.0.0.1:8000", "r", path=CHAT), JSON, RejectionReader.from_policy(Rejections()))


@given(st.lists(st.integers(1, 40), min_size=1))
def test_the_pieces_in_which_it_comes_do_not_matter(sizes: list[int]) -> None:
    body, watched, seen = json.dumps(COMPLETION).encode(), watch(), []
    for number, size in enumerate(sizes):
        seen += watched.take(float(number), body[:size], end=False)
        body = body[size:]
    seen += watched.take(99.0, body, end=True)
    assert seen == [AnswerRead(99.0, "p", "10.0.0.1:8000", "r", Output.OUTPUT, "", 7)]
    assert watched.done


def test_an_error_is_judged_by_the_rules() -> None:
    full = b'{"error": {"message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "code": 503}}'
    (seen,) = watch().take(1.0, full, end=True)
    assert isinstance(seen, Rejected)
    assert (seen.verdict, seen.in_stream, seen.status) == (Verdict.SATURATED, True, 200)


def test_of_a_long_answer_the_beginning_must_do() -> None:
    embeddings, other = watch(), watch()
    (seen,) = embeddings.take(1.0, b'{"object": "list", "data": [' + b"0.1," * MAX_BODY, end=False)
    assert (seen.output, embeddings.done) == (Output.OUTPUT, True)
    (seen,) = other.take(1.0, b'{"pages": [' + b"0.1," * MAX_BODY, end=True)
    assert seen.output is Output.UNKNOWN
