"""Faults that a test or the demo can put into a simulated engine."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from trimtab.sim.requests import BUSY, DRAINING, Failure
from trimtab.strict import Flaw, Strict

Kind = Literal[
    "slow",  # every step takes `factor` times as long
    "hang_before_headers",  # nothing is answered until the fault is over
    "hang_after_headers",  # streams get their header and then nothing until the fault is over
    "saturate_429",  # "KV cache exhausted"
    "saturate_503",  # vLLM's "currently busy"
    "quota_429",  # the caller is over his limit, in the words of `shape`
    "ping_first",  # comments for `seconds`, a role chunk, and `role_lead_s` later the first token
    "die_mid_stream",  # the connection is cut after `after_tokens` tokens
    "end_mid_stream",  # the stream ends in good order after `after_tokens` tokens, without an end mark
    "stall_mid_stream",  # the stream says nothing more after `after_tokens` tokens until the fault is over
    "reset_before_headers",  # the connection is reset
    "error_event",  # 200, and the first event is an error; 500 if not streamed
    "error_500",  # what vLLM says while it drains
    "no_output",  # `answer` comes at once, in good order, and nothing is generated
    "mute",  # /health and /metrics answer, with frozen values; nothing is generated
]

NoOutput = Literal[
    "json_error",  # 200, and the body is an error
    "not_found",  # 404: the engine serves another model
    "unauthorized",  # 401
    "forbidden",  # 403
    "bad_request",  # 400: the engine's chat template is missing, so no chat would do
    "html",  # 200, the page of another service
    "done_alone",  # 200, a stream of nothing but its end mark
    "empty_stream",  # 200, a stream without a byte
    "no_content",  # 204
    "redirect",  # 307, to the same path with a slash at its end
    "wrong_type",  # 200, plain text
    "truncated_json",  # 200, the first half of an answer; the transfer itself is whole
    "empty_json",  # 200, an empty object
    "foreign_json",  # 200, JSON of another service
]

# The faults that are nothing but an error answer.
ANSWERS: Final[Mapping[str, Failure]] = {
    "saturate_429": Failure(429, "KV cache exhausted", "engine_saturated"),
    "saturate_503": BUSY,
    "error_500": DRAINING,
}
QUOTA: Final[Mapping[str, Failure]] = {
    "openai": Failure(
        429,
        "Rate limit reached for requests per min (RPM): Limit 3, Used 3, Requested 1.",
        "requests",
        code="rate_limit_exceeded",
    ),
    "litellm": Failure(
        429,
        "Rate limit exceeded for api_key: sim. Limit type: requests. Current limit: 3, Remaining: 0.",
        "rate_limit_error",
        code="429",
    ),
}


class Page(NamedTuple):
    """A whole answer that depends on no request."""

    status: int
    content_type: str
    body: str


# The `no_output` answers that say nothing of the request. The first is what vLLM says without its API key.
PAGES: Final[Mapping[str, Page]] = {
    "unauthorized": Page(401, "application/json", '{"error":"Unauthorized"}'),
    "forbidden": Page(403, "application/json", '{"error":"Forbidden"}'),
    "html": Page(
        200,
        "text/html; charset=utf-8",
        "<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>\n",
    ),
    "wrong_type": Page(200, "text/plain; charset=utf-8", "ok"),
    "empty_json": Page(200, "application/json", "{}"),
    "foreign_json": Page(200, "application/json", '{"status":"ok"}'),
}
NO_TEMPLATE: Final = Failure(
    400,
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one.",
    "BadRequestError",
)

_PARAMETERS: Final = {
    "factor": ("slow",),
    "seconds": ("ping_first",),
    "role_lead_s": ("ping_first",),
    "after_tokens": ("die_mid_stream", "end_mid_stream", "stall_mid_stream"),
    "shape": ("quota_429",),
    "retry_after_s": ("quota_429",),
    "answer": ("no_output",),
}

_Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Fault(Strict):
    """What is wrong with an engine. `slow` and `mute` strike the engine, all others single requests."""

    kind: Kind
    for_s: _Positive | None = Field(None, description="It ends by itself after so long; None: until cleared.")
    share: Annotated[float, Field(gt=0, le=1)] = Field(1, description="Share of the requests it strikes.")
    factor: _Positive = 10
    seconds: _Positive = 3
    role_lead_s: _Positive = 0.2
    after_tokens: Annotated[int, Field(ge=1)] = 5
    shape: Literal["openai", "litellm"] = "openai"
    retry_after_s: _Positive | None = None
    answer: NoOutput = "json_error"

    def flaws(self) -> Iterable[Flaw]:
        """Parameters that have no meaning for the kind."""
        for name, kinds in _PARAMETERS.items():
            if name in self.model_fields_set and self.kind not in kinds:
                yield Flaw(f"{name} belongs to {' and '.join(kinds)}, not to {self.kind}", (name,))
        if self.share < 1 and self.kind in ("slow", "mute"):
            yield Flaw(f"{self.kind} strikes the whole engine and has no share", ("share",))


class FaultInForce:
    """A fault while it lasts. It strikes its share of the requests without chance: 0.25 is every fourth."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.over = asyncio.Event()
        self._credit = 0.0

    def strikes(self) -> bool:
        """Whether it strikes the next request."""
        self._credit += self.fault.share
        if self._credit < 1 - 1e-9:
            return False
        self._credit -= 1
        return True
