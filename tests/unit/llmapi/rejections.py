"""Error answers of the table in docs/reference/rejections.md, by its row numbers, each with the verdict it must get."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.unit.llmapi import captures
from trimtab.observation.kinds import Verdict

SATURATED, QUOTA, UNAVAILABLE = Verdict.SATURATED, Verdict.QUOTA, Verdict.UNAVAILABLE
DRAINING, UNKNOWN = Verdict.DRAINING, Verdict.UNKNOWN

_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later."
_OPENAI_LIMITS = {
    "x-ratelimit-limit-tokens": "30000",
    "x-ratelimit-remaining-tokens": "21",
    "x-ratelimit-reset-tokens": "6m0s",
}


@dataclass(frozen=True)
class Answer:
    """One error answer. `body` is text as it is, or a value to be written as JSON."""

    row: int
    status: int
    body: Any
    verdict: Verdict
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def raw(self) -> bytes:
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


def openai(message: str, kind: str | None, code: Any, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def flat(message: str, kind: str, code: Any) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def anthropic(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"}


def google(code: int, status: str, message: str, *details: Any) -> dict[str, Any]:
    more = {"details": list(details)} if details else {}
    return {"error": {"code": code, "message": message, "status": status, **more}}


_GOOGLE = "type.googleapis.com/google.rpc."
_QUOTA_FAILURE = {"@type": _GOOGLE + "QuotaFailure", "violations": [{"subject": "p", "description": "d"}]}
_ERROR_INFO = {
    "@type": _GOOGLE + "ErrorInfo",
    "reason": "RATE_LIMIT_EXCEEDED",
    "metadata": {"quota_metric": "m"},
}
_HELP = {"@type": _GOOGLE + "Help", "links": [{"url": "https://x/quotas"}]}
_RETRY = {"@type": _GOOGLE + "RetryInfo", "retryDelay": "7s"}


def llm_d(reason: str, verdict: Verdict) -> Answer:
    body = {"error": {"message": "request dropped", "type": "rate_limit_error", "code": 429}}
    return Answer(19, 429, body, verdict, {"x-llm-d-request-dropped-reason": reason})


def _recorded() -> list[Answer]:
    overload = captures.responses("vllm_overload_503.txt")
    dead = captures.responses("vllm_dead_and_tokens.txt")
    slots = captures.responses("llamacpp_probe.txt")
    found = [
        (1, overload["7th, non-stream"], SATURATED),
        (1, overload["8th, stream"], SATURATED),
        (1, overload["9th, completions stream"], SATURATED),
        (3, overload["10th, anthropic /v1/messages"], SATURATED),
        (1, overload["11th, responses"], SATURATED),
        (2, dead["token backlog limit 3000: three prompts of 1500 ids at once, then a short one"], SATURATED),
        (5, dead["non-stream saw"], UNAVAILABLE),
        (14, slots["slots fail_on_no_slot busy"], SATURATED),
    ]
    return [Answer(row, r.status, r.body.decode(), verdict, r.headers) for row, r, verdict in found]


ANSWERS = [
    *_recorded(),
    # vLLM
    Answer(1, 503, openai(_BUSY, "Service Unavailable", 503), SATURATED),
    Answer(1, 200, openai(_BUSY, "Service Unavailable", 503), SATURATED),  # its queue filled up after the header
    Answer(2, 503, openai("The engine has reached its prefill token backlog limit.", "x", 503), SATURATED),
    Answer(4, 429, "", UNKNOWN),
    Answer(4, 429, openai("Too many requests", None, 429), UNKNOWN),
    Answer(5, 500, openai("EngineCore encountered an issue. See", "InternalServerError", 500), UNAVAILABLE),
    Answer(5, 500, openai("cannot schedule new futures after shutdown", "InternalServerError", 500), DRAINING),
    Answer(5, 200, openai("EngineCore encountered an issue. See", "InternalServerError", 500), UNAVAILABLE),
    # SGLang
    Answer(6, 503, flat("The request queue is full.", "503", 503), SATURATED),
    Answer(6, 503, flat("The request is aborted by a higher priority request.", "503", 503), SATURATED),
    Answer(7, 200, {"error": flat("The request queue is full.", "SERVICE_UNAVAILABLE", 503)}, SATURATED),
    Answer(7, 200, {"error": flat("...", "SERVICE_UNAVAILABLE", 503)}, SATURATED),
    Answer(8, 503, openai("...", "Service Unavailable", 503), SATURATED),
    Answer(8, 503, anthropic("overloaded_error", "Internal server error"), SATURATED),
    # TGI
    Answer(9, 429, {"error": "Model is overloaded", "error_type": "overloaded"}, SATURATED),
    Answer(9, 429, {"error": "...", "error_type": "overloaded"}, SATURATED),
    Answer(10, 200, {"error": {"message": "...", "http_status_code": 422}}, UNKNOWN),
    # Triton, TensorRT-LLM, llama.cpp, Ollama, LMDeploy
    Answer(11, 503, {"error": "[request id: 1] Exceeds maximum queue size"}, SATURATED),
    Answer(11, 503, {"error": "Request timeout expired"}, SATURATED),
    Answer(12, 500, {"detail": "..."}, UNKNOWN),
    Answer(13, 503, "LLM is unavailable. Please check the server.", UNAVAILABLE),
    Answer(
        14,
        503,
        {"error": {"code": 503, "message": "no slot available", "type": "unavailable_error"}},
        SATURATED,
    ),
    Answer(
        14,
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        UNAVAILABLE,
    ),
    Answer(15, 503, {"error": "server busy, please try again.  maximum pending requests exceeded"}, SATURATED),
    Answer(15, 503, openai("server busy, please try again", "api_error", None), SATURATED),
    Answer(15, 503, anthropic("overloaded_error", "..."), SATURATED),
    Answer(16, 503, flat("...", "server_error", 503), UNAVAILABLE),
    # Ray Serve, Dynamo, llm-d
    Answer(17, 503, "Request dropped due to backpressure (num_queued_requests=5, max=5).", SATURATED),
    Answer(17, 429, "Request dropped due to backpressure (num_queued_requests=5, max=5).", SATURATED),
    Answer(18, 529, openai("...", "Overloaded", 529), SATURATED),
    Answer(18, 529, "", SATURATED),
    Answer(18, 503, anthropic("overloaded_error", "..."), SATURATED),
    Answer(18, 503, {"message": "ResourceExhausted: worker request limit reached"}, SATURATED),
    llm_d("rejected-saturated", SATURATED),
    llm_d("rejected-ttl-expired", SATURATED),
    llm_d("evicted-ttl", SATURATED),
    llm_d("evicted", SATURATED),
    llm_d("rejected-no-endpoints", UNAVAILABLE),
    llm_d("rejected-shutting-down", DRAINING),
    Answer(19, 429, openai("request dropped", "rate_limit_error", 429), UNKNOWN),
    # LiteLLM
    Answer(
        20,
        429,
        openai("Rate limit exceeded for api_key: sk. Limit type: requests", "rate_limit_error", "429"),
        QUOTA,
        {"retry-after": "12", "rate_limit_type": "requests", "reset_at": "1795972350"},
    ),
    Answer(20, 429, openai("Max parallel request limit reached. Limit: 2", "rate_limit_error", "429"), QUOTA),
    Answer(21, 429, openai("Budget has been exceeded! Spend: 11", "budget_exceeded", "429"), QUOTA),
    Answer(
        22,
        429,
        openai("No deployments available for selected model, Try again in 5 seconds", "rate_limit_error", "429"),
        SATURATED,
        {"retry-after": "5"},
    ),
    Answer(22, 429, openai("...", "all_deployments_in_cooldown", "429"), SATURATED),
    Answer(23, 503, openai("Worker at capacity: 100", "overloaded_error", "503"), SATURATED, {"retry-after": "1"}),
    # OpenAI
    Answer(24, 429, openai("Rate limit reached for m", "tokens", "rate_limit_exceeded"), QUOTA, _OPENAI_LIMITS),
    Answer(24, 429, openai("...", "requests", None), QUOTA),
    Answer(24, 429, openai("...", None, "rate_limit_exceeded"), QUOTA),
    Answer(24, 429, openai("...", None, None), QUOTA, {**_OPENAI_LIMITS, "x-ratelimit-remaining-tokens": "0"}),
    *(
        Answer(25, 429, openai("...", kind, code), QUOTA)
        for kind, code in [
            ("insufficient_quota", "insufficient_quota"),
            ("insufficient_quota", None),
            (None, "credit_balance_exhausted"),
            (None, "organization_spend_limit_exceeded"),
            (None, "project_spend_limit_exceeded"),
            (None, "organization_usage_limit_exceeded"),
        ]
    ),
    Answer(
        26,
        429,
        openai("Slow down: your rate of requests grew fast", "rate_limit_error", "slow_down"),
        UNKNOWN,
    ),
    Answer(26, 503, openai("Slow down", "rate_limit_error", "slow_down"), UNKNOWN, _OPENAI_LIMITS),
    Answer(27, 503, openai("...", "service_unavailable_error", "server_is_overloaded"), SATURATED),
    Answer(27, 503, openai("...", "service_unavailable_error", None), SATURATED),
    # Azure OpenAI
    Answer(
        28,
        429,
        openai("Your request exceeded token rate limit of your tier. Please retry after 6 seconds.", None, "429"),
        QUOTA,
        {"retry-after": "6", "retry-after-ms": "5900", "x-ratelimit-remaining-tokens": "0"},
    ),
    Answer(28, 429, openai("Rate limit is exceeded. Try again in 6 seconds.", None, "429"), QUOTA),
    *(
        Answer(29, 429, openai(text, None, "429"), SATURATED, {"x-ratelimit-remaining-tokens": remaining})
        for text in (
            "The system is currently experiencing high demand and cannot process your request.",
            "The service is temporarily unable to process your request. Please try again later.",
        )
        for remaining in ("0", "100")
    ),
    # Anthropic
    Answer(
        30,
        429,
        anthropic("rate_limit_error", "..."),
        QUOTA,
        {"retry-after": "9", "anthropic-ratelimit-requests-remaining": "1"},
    ),
    Answer(30, 429, anthropic("rate_limit_error", "This would exceed your rate limit of 5"), QUOTA),
    Answer(30, 429, anthropic("x", "...", details={"error_code": "enforced_spend_limit_reached"}), QUOTA),
    Answer(31, 529, anthropic("overloaded_error", "Overloaded"), SATURATED),
    Answer(31, 200, anthropic("overloaded_error", "Overloaded"), SATURATED),
    # Google
    *(
        Answer(32, 429, body, QUOTA)
        for body in (
            google(429, "RESOURCE_EXHAUSTED", "...", _QUOTA_FAILURE),
            google(429, "RESOURCE_EXHAUSTED", "...", _RETRY, _ERROR_INFO),
            google(429, "RESOURCE_EXHAUSTED", "...", _HELP, _RETRY),
            [google(429, "RESOURCE_EXHAUSTED", "...", _QUOTA_FAILURE)],
            google(429, "RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'generate'"),
        )
    ),
    Answer(33, 429, google(429, "RESOURCE_EXHAUSTED", "Resource exhausted. Please try again later."), UNKNOWN),
    Answer(34, 503, google(503, "UNAVAILABLE", "The model is overloaded. Please try again later."), SATURATED),
    # Gateways
    Answer(
        35,
        429,
        {"message": "API rate limit exceeded", "request_id": "1"},
        QUOTA,
        {"ratelimit-limit": "5", "ratelimit-remaining": "0", "ratelimit-reset": "41", "retry-after": "41"},
    ),
    Answer(35, 429, {"message": "API rate limit exceeded", "request_id": "1"}, QUOTA),
    Answer(36, 429, "local_rate_limited", QUOTA, {"x-envoy-ratelimited": "true"}),
    Answer(36, 429, "", QUOTA, {"x-envoy-ratelimited": "true"}),
    Answer(36, 429, "local_rate_limited", QUOTA),
    Answer(37, 429, anthropic("rate_limit_error", "..."), UNKNOWN),
    Answer(37, 503, anthropic("service_unavailable_error", "..."), UNKNOWN),
    Answer(38, 429, flat("Rate limit exceeded", "rate_limited", "1300"), QUOTA),
    Answer(38, 429, flat("...", "rate_limited", "1300"), QUOTA),
]
