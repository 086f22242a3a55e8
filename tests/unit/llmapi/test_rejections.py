import gzip
import json
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.llmapi import captures
from tests.unit.llmapi.rejections import (
    ANSWERS,
    DRAINING,
    QUOTA,
    SATURATED,
    UNAVAILABLE,
    UNKNOWN,
    Answer,
    anthropic,
    openai,
)
from trimtab.llmapi.rejections import MAX_RETRY_AFTER_S, Rejection, RejectionReader, bundled_rules
from trimtab.observation.kinds import Verdict
from trimtab.policy.model import Rejections, Rule

NOW = 1_795_972_338.0
BUNDLED = RejectionReader.from_policy(Rejections())


def judge(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> Rejection:
    raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return BUNDLED.judge(status, headers or {}, raw, NOW)


def by_rules(*rules: dict[str, Any], bundled: bool = False) -> RejectionReader:
    return RejectionReader.from_policy(Rejections(rules=tuple(Rule(**rule) for rule in rules), bundled=bundled))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: f"{a.row}-{a.status}-{a.raw[:50].decode()}")
def test_every_row_gets_its_verdict(answer: Answer) -> None:
    assert judge(answer.status, answer.raw, answer.headers).verdict is answer.verdict


def test_no_row_is_missing() -> None:
    assert {answer.row for answer in ANSWERS} == set(range(1, 39))


def test_every_bundled_rule_decides_something() -> None:
    extra = [
        judge(503, "upstream connect error or disconnect. reset reason: overflow"),
        judge(200, openai("bad", "invalid_request_error", None)),
        judge(200, openai("bad", "x", 400)),
        judge(200, openai("bad", "x", 503)),
        judge(503, "is draining"),
    ]
    decided = {judge(a.status, a.raw, a.headers).rule for a in ANSWERS} | {judgement.rule for judgement in extra}
    assert {rule.name for rule in bundled_rules()} - decided == set()


def test_rule_names_are_unique() -> None:
    names = [rule.name for rule in bundled_rules()]
    assert len(names) == len(set(names))


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
}


@pytest.mark.parametrize("coding", ENCODERS)
def test_encoded_bodies_get_the_same_verdict(coding: str) -> None:
    for answer in ANSWERS:
        if answer.status != 200:  # an event of a stream comes decoded
            headers = {**answer.headers, "content-encoding": coding}
            assert judge(answer.status, ENCODERS[coding](answer.raw), headers).verdict is answer.verdict, answer


@pytest.mark.parametrize("coding", [*ENCODERS, "deflate", "br", "zstd", "snappy"])
def test_a_plain_body_under_an_encoding_header_is_read_as_it_is(coding: str) -> None:
    for answer in ANSWERS:
        if answer.raw.startswith((b"{", b"[{")) or answer.status == 200:
            headers = {**answer.headers, "content-encoding": coding}
            assert judge(answer.status, answer.raw, headers).verdict is answer.verdict, answer


def test_a_body_as_an_event_gets_the_same_verdict() -> None:
    for answer in ANSWERS:
        if answer.raw.startswith(b"{"):
            stream = b": ping\n\nevent: error\r\ndata: " + answer.raw + b"\n\ndata: [DONE]\n\n"
            assert judge(answer.status, stream, answer.headers).verdict is answer.verdict, answer


def test_an_error_wrapped_once_more_gets_the_same_verdict() -> None:
    for answer in ANSWERS:
        if isinstance(answer.body, dict) and answer.row != 37:  # which is told by its envelope
            assert judge(answer.status, {"error": answer.body}, answer.headers).verdict is answer.verdict, answer


@pytest.mark.parametrize(("status", "headers"), [(429, {}), (500, {}), (503, {}), (400, {}), (404, {}), (501, {})])
@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", b"<html><h1>Error</h1></html>", b"\x00\xff", b"Too Many Requests"]
)
def test_without_evidence_the_status_must_do(status: int, headers: dict[str, str], body: bytes) -> None:
    assert judge(status, body, headers).verdict is {503: UNAVAILABLE}.get(status, UNKNOWN)
    assert judge(502, body).verdict is judge(504, body).verdict is UNAVAILABLE
    assert judge(529, body).verdict is SATURATED


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (429, openai("KV cache exhausted", "engine_saturated", 429), SATURATED),
        (429, "engine saturated", SATURATED),
        (429, "monthly quota exceeded", QUOTA),
        (429, "You exceeded the tokens per minute of your plan", QUOTA),
        (429, "<html><body><h1>429</h1><p>Rate limit exceeded</p></body></html>", QUOTA),
        (503, "<html><head><title>503</title></head><body>No server is available</body></html>", UNAVAILABLE),
        (503, "no healthy upstream", UNAVAILABLE),
        (503, "upstream connect error or disconnect/reset before headers. reset reason: overflow", SATURATED),
        (503, {"error": "The model is currently scaling. Please try again later."}, UNAVAILABLE),
        (500, "OSError: [Errno 122] Disk quota exceeded", UNKNOWN),
        (503, "OSError: [Errno 122] Disk quota exceeded", UNAVAILABLE),
        (503, {"error": {"message": "... overloaded ...", "type": "rate_limit_error"}}, SATURATED),
        (
            429,
            {"error": {"message": 'litellm: {"type":"rate_limit_error"}', "type": "rate_limit_error"}},
            UNKNOWN,
        ),
        (200, openai("'input': 'what does server is overloaded mean?'", "BadRequestError", 400), UNKNOWN),
        (200, openai("'input': 'rate limit'", None, 422), UNKNOWN),
        (200, openai("...", None, 503), UNAVAILABLE),
        (200, "event data that is no JSON: queue is full", SATURATED),
        (400, openai("'input': 'rate limit, overloaded'", "BadRequestError", 400), UNKNOWN),
        (200, '{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}', UNKNOWN),
    ],
    ids=str,
)
def test_more_answers(status: int, body: Any, verdict: Verdict) -> None:
    assert judge(status, body).verdict is verdict


def test_answers_about_the_request_are_no_sign_of_load() -> None:
    for file in ("vllm_errors.txt", "llamacpp_probe.txt"):
        for title, answer in captures.responses(file).items():
            if 400 <= answer.status < 429:
                assert judge(answer.status, answer.body, answer.headers).verdict is UNKNOWN, title


def test_limit_headers_prove_nothing_by_being_there() -> None:
    limits = {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "1s", "retry-after": "1"}
    assert judge(429, "", limits).verdict is UNKNOWN
    assert judge(503, openai("currently busy", None, 503), limits).verdict is SATURATED
    assert judge(503, "", {"x-ratelimit-remaining-requests": "0"}).verdict is UNAVAILABLE
    assert judge(429, "", {"x-ratelimit-remaining-requests": "10"}).verdict is UNKNOWN
    assert judge(429, "", {"x-ratelimit-remaining-requests": "0"}).verdict is QUOTA


def test_the_hint_comes_with_the_verdict() -> None:
    answer = judge(503, openai("queue is full", None, 503), {"retry-after": "3"})
    assert answer == Rejection(SATURATED, 3.0, "saturated-words")
    assert judge(429, "try again in 27h41m36s").retry_after_s == 99_696
    assert judge(429, "", {"retry-after": "9999999"}).retry_after_s == MAX_RETRY_AFTER_S
    assert judge(503, "").retry_after_s is None


def test_headers_of_a_stream_give_no_hint_for_an_event_in_it() -> None:
    headers = {
        "x-ratelimit-reset-requests": "6m0s",
        "content-type": "text/event-stream",
        "content-encoding": "br",
    }
    answer = judge(200, anthropic("overloaded_error", "Overloaded"), headers)
    assert (answer.verdict, answer.retry_after_s) == (SATURATED, None)
    assert judge(200, openai("queue is full, try again in 2s", None, 503), headers).retry_after_s == 2


def test_the_operators_rules_come_first() -> None:
    rule = {"name": "mine", "verdict": "draining", "status": [503], "text": "currently BUSY"}
    body = openai("The engine is currently busy", "Service Unavailable", 503)
    raw = json.dumps(body).encode()
    assert by_rules(rule, bundled=True).judge(503, {}, raw, NOW) == Rejection(DRAINING, None, "mine")
    assert by_rules(rule, bundled=True).judge(429, {}, raw, NOW).rule == "saturated-type"
    assert by_rules(rule).judge(429, {}, raw, NOW) == Rejection(UNKNOWN, None, "")


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ({"status": [429, 503]}, True),
        ({"status": [200]}, False),
        ({"headers": {"X-Reason": "full"}}, True),
        ({"headers": {"x-reason": "ful"}}, False),  # headers and fields must match whole
        ({"headers": {"x-*": "FULL"}}, True),
        ({"headers": {"x-*": "other"}}, False),
        ({"headers": {"x-other": ".*"}}, False),  # a header that is not there does not match
        ({"headers": {"x-reason": "full", "server": "uvicorn"}}, True),
        ({"headers": {"x-reason": "full", "server": "nginx"}}, False),
        ({"fields": {"type": "t.pe"}}, True),
        ({"fields": {"type": "typ"}}, False),
        ({"fields": {"$.type": ".*"}}, False),
        ({"fields": {"error.type": "type", "code": "50\\d"}}, True),
        ({"fields": {"type": "type", "code": "429"}}, False),
        ({"fields": {"details.reason": "B"}}, True),
        ({"fields": {"missing": ".*"}}, False),
        ({"text": "QUEUE.*full"}, True),
        ({"text": "^full"}, False),
        (
            {"text": "full", "status": [503], "fields": {"type": "type"}, "headers": {"x-reason": "full"}},
            True,
        ),
        ({"text": "full", "status": [500], "fields": {"type": "type"}}, False),
    ],
    ids=str,
)
def test_all_conditions_of_a_rule_must_hold(rule: dict[str, Any], holds: bool) -> None:
    body = openai("queue\nis full", "type", 503, details=[{"reason": "A"}, {"reason": "B"}])
    reader = by_rules({"name": "r", "verdict": "saturated", **rule})
    found = reader.judge(503, {"x-reason": "full", "server": "uvicorn"}, json.dumps(body).encode(), NOW)
    assert found.rule == ("r" if holds else "")


def test_the_first_rule_that_holds_decides() -> None:
    first = {"name": "first", "verdict": "quota", "text": "a"}
    second = {"name": "second", "verdict": "saturated", "text": "a"}
    assert by_rules(first, second).judge(503, {}, b"a", NOW).rule == "first"
    assert by_rules(second, first).judge(503, {}, b"a", NOW).rule == "second"


def test_every_cut_of_a_body_is_judged() -> None:
    for answer in ANSWERS:
        for cut in range(0, len(answer.raw), 3):
            judge(answer.status, answer.raw[:cut], answer.headers)
    raw = json.dumps(openai("The request queue is full.", "x", 503, more="x" * 100_000)).encode()
    assert judge(503, raw).verdict is SATURATED
    assert judge(503, gzip.compress(raw, 1)[:-20], {"content-encoding": "gzip"}).verdict is SATURATED
    raw = json.dumps({"error": {"type": "insufficient_quota", "message": "...", "more": "x" * 100_000}}).encode()
    assert judge(429, raw).verdict is QUOTA


def _bombs() -> dict[str, bytes]:
    words = json.dumps(openai("The request queue is full.", "x", 503, more="x" * (10 << 20))).encode()
    return {"gzip": gzip.compress(words)}


def test_large_bodies_and_bombs_are_bounded() -> None:
    for coding, bomb in _bombs().items():
        tracemalloc.start()
        assert judge(503, bomb, {"content-encoding": coding}).verdict is SATURATED
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
    members = gzip.compress(b"") * 500_000
    assert judge(503, members, {"content-encoding": "gzip"}).verdict is UNAVAILABLE
    bodies = [b"x" * (10 << 20), b'{"error":"' + b"a b" * (3 << 20), b"[" * (1 << 20), b"<p>" * (1 << 20)]
    for body in bodies:
        assert judge(503, body).verdict is UNAVAILABLE


def test_random_bytes_never_raise() -> None:
    rng = random.Random(3)
    for _ in range(1500):
        raw = rng.choice([rng.randbytes(rng.randrange(200)), bytes(rng.choices(b'{}[]":,0e \\\n<>data', k=60))])
        headers = {"content-encoding": rng.choice(["", "gzip", "br", "zstd", "deflate", "x"])}
        judge(rng.choice([200, 400, 429, 500, 503, 529]), raw, headers)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "detail", "type", "code", "status", "details", "response", "retry_after"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(_JSON, st.dictionaries(st.sampled_from(["retry-after", "x-ratelimit-remaining"]), st.text(max_size=9)))
def test_random_documents_never_raise(document: Any, headers: dict[str, str]) -> None:
    for status in (200, 429, 503):
        found = judge(status, json.dumps(document), headers)
        assert found.retry_after_s is None or 0 <= found.retry_after_s <= MAX_RETRY_AFTER_S


def test_the_table_in_the_documents_is_the_table_of_the_tests() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "rejections.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| ([a-z, ]+) \|$", page, flags=re.MULTILINE)
    told = {int(row): {Verdict(word) for word in verdicts.split(", ")} for row, verdicts in rows}
    tested: dict[int, set[Verdict]] = {}
    for answer in ANSWERS:
        tested.setdefault(answer.row, set()).add(answer.verdict)
    assert told == tested
