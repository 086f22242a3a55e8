"""What an answer to a probe shows."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.llmapi.probe_answer import ProbeAnswer
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import ProbeResult
from trimtab.policy.model import Rejections

RULES = RejectionReader.from_policy(Rejections())
STREAM = {"content-type": "text/event-stream; charset=utf-8"}
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
DONE = b"data: [DONE]\n\n"


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chat(reason: str | None = None, **delta: object) -> bytes:
    return event({"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def judged(*chunks: bytes, status: int = 200, headers: dict[str, str] | None = None) -> tuple[ProbeResult, str]:
    answer = ProbeAnswer(RULES, status, STREAM if headers is None else headers, 1_700_000_000.0)
    for chunk in chunks:
        answer.feed(chunk)
    return answer.finish(), answer.reason


@pytest.mark.parametrize(
    "chunks",
    [
        [event(ROLE), chat(content="Hello"), DONE],
        [event(ROLE), chat(reasoning_content="Hm"), DONE],
        [event({"choices": [{"index": 0, "text": "Hello"}]})],
        [event(ROLE), chat("length", content=""), DONE],
        [event(ROLE), chat("stop"), DONE],
        [chat(content="cut, for the engine goes on")],
        [b": ping\n\n", event(ROLE)[:20], event(ROLE)[20:] + chat(content="x")],
    ],
    ids=["chat", "reasoning", "completion", "a token without text", "only an end token", "no end", "in pieces"],
)
def test_tokens(chunks: list[bytes]) -> None:
    assert judged(*chunks) == (ProbeResult.TOKEN, "")


@pytest.mark.parametrize(
    "chunks",
    [[], [DONE], [event(ROLE)], [event(ROLE), DONE], [b": ping\n\n" * 9], [event({"choices": [], "usage": {}})]],
    ids=["nothing", "done", "role", "role and done", "comments", "usage"],
)
def test_no_token(chunks: list[bytes]) -> None:
    assert judged(*chunks) == (ProbeResult.WRONG, "the answer has no token")


DEAD = {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}
FULL = {"error": {"message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "code": 503}}


def test_an_error_event() -> None:
    result, reason = judged(event(DEAD), DONE)
    assert result is ProbeResult.WRONG
    assert reason == "an error event in the answer: EngineCore encountered an issue"
    assert judged(event(ROLE), chat(content="x"), event(DEAD))[0] is ProbeResult.WRONG, "after a token too"
    assert judged(b"event: error\ndata: boom\n\n")[0] is ProbeResult.WRONG
    assert judged(event(FULL), DONE)[0] is ProbeResult.UNDECIDED


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (500, DEAD, ProbeResult.WRONG),
        (502, {}, ProbeResult.WRONG),
        (503, {"error": {"message": "The engine is currently busy", "type": "Service Unavailable"}}, "undecided"),
        (429, {"error": "Model is overloaded", "error_type": "overloaded"}, ProbeResult.UNDECIDED),
        (401, {"error": "Unauthorized"}, ProbeResult.UNDECIDED),
        (400, {"error": {"message": "no chat template"}}, ProbeResult.UNDECIDED),
        (404, {"detail": "Not Found"}, ProbeResult.UNDECIDED),
        (404, {"error": {"message": "The model `x` does not exist.", "param": "model"}}, ProbeResult.WRONG),
        (204, {}, ProbeResult.UNDECIDED),
    ],
)
def test_errors(status: int, body: dict[str, Any], result: str) -> None:
    verdict, reason = judged(json.dumps(body).encode(), status=status, headers={"content-type": "application/json"})
    assert verdict == result
    assert reason.startswith(f"HTTP {status}: ")


def test_what_is_no_stream() -> None:
    assert judged(b"<html>", headers={"content-type": "text/html"}) == (
        ProbeResult.WRONG,
        "HTTP 200 with text/html, not an event stream",
    )
    assert judged(status=302, headers={"location": "http://sso"}) == (
        ProbeResult.UNDECIDED,
        "HTTP 302, which leads to http://sso: redirects are not followed",
    )


@given(st.lists(st.binary(max_size=200), max_size=5), st.sampled_from([200, 301, 404, 500, 503]))
def test_no_answer_is_fatal(chunks: list[bytes], status: int) -> None:
    judged(*chunks, status=status)
