"""What is learned from one unary answer as it passes: pure, chunks in, observations out."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ext_proc.watch import Attempt, Opening, error_inside
from trimtab.llmapi.encoding import UnknownCoding, decode_body
from trimtab.llmapi.formats import GAVE_UP
from trimtab.llmapi.rejections import MAX_BODY, RejectionReader
from trimtab.observation.kinds import AnswerRead, Observation, Output, Rejected

# Requests at these paths are answered by a model, in a shape that is known: OpenAI's and Anthropic's behind any prefix,
# and the engines' own.
_GENERATION_ENDS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
_GENERATION = ("/generate", "/generate_stream", "/infill", "/completion", "/api/generate", "/api/chat")
# What generated text is called in the answers of the APIs and engines that are known, and what other results are.
_TEXTS = (
    "generated_text",
    "text",
    "content",
    "text_output",
    "output",
    "outputs",
    "output_ids",
    "response",
    "message",
    "generations",
    "embedding",
)
_OTHER_RESULTS = ("data", "results", "embeddings", "tokens")
# An object that has one of these is an answer of some API, if not one that is known.
_OF_AN_API = frozenset({"id", "object", "model", "usage", "stop_reason", "outputs", "model_name", "done"})
_COUNTS = ("completion_tokens", "output_tokens", "generated_tokens", "tokens_predicted", "eval_count")
_COUNTED_IN = ("usage", "details", "meta_info", "timings")
_BEGINS_WITH_RESULT = re.compile(rb'"(?:choices|%s)"\s*:' % "|".join(_TEXTS + _OTHER_RESULTS).encode())
_TELLS_ERROR = re.compile(rb'"(?:error|detail|errors)"')
_BEGINNING = 512  # bytes in which a long error says that it is one


@dataclass(frozen=True, slots=True)
class UnaryAnswer:
    """What the body of an answer with status 200 is."""

    output: Output
    reason: str = ""  # of NONE and UNKNOWN: what was found instead
    output_tokens: int | None = None
    error: bytes = b""  # the decoded body, if it tells an error


class UnaryWatch:
    """Watches one unary answer with status 200. It is done at its end, or when it is too long to be read on."""

    opening: Opening | None = None  # only streams are held until they open

    def __init__(self, attempt: Attempt, headers: dict[str, str], rejections: RejectionReader) -> None:
        self._attempt = attempt
        self._headers = headers
        self._rejections = rejections
        self._body = bytearray()
        self.done = False

    def take(self, now: float, chunk: bytes, end: bool) -> list[Observation]:
        """The next piece of the body; `end` says that it was the last."""
        if self.done:
            return []
        self._body += chunk[: MAX_BODY - len(self._body)]
        is_whole = end and len(self._body) < MAX_BODY
        if not end and len(self._body) < MAX_BODY:
            return []
        self.done = True
        answer = read_unary(bytes(self._body), self._headers, self._attempt.path, is_whole=is_whole)
        return [observation_of(now, self._attempt, self._headers, answer, self._rejections)]


def observation_of(
    now: float, attempt: Attempt, headers: dict[str, str], answer: UnaryAnswer, rejections: RejectionReader
) -> AnswerRead | Rejected:
    """What is reported of an answer. An error inside a 200 is judged by the rules like one inside a stream."""
    if answer.error:
        judged = rejections.judge(200, headers, answer.error, now)
        return error_inside(now, attempt, judged.verdict, judged.retry_after_s, judged.rule)
    return AnswerRead(
        at=now,
        pool=attempt.pool,
        address=attempt.address,
        request_id=attempt.request_id,
        output=answer.output,
        reason=answer.reason,
        output_tokens=answer.output_tokens,
    )


def read_unary(body: bytes, headers: Mapping[str, str], path: str, *, is_whole: bool) -> UnaryAnswer:
    """Read a body as it came over the wire, or the beginning of one. Never raises.

    `headers` have names in lower case. `path` is the request's: only where a model is to generate text must the answer
    be of a known shape; of other APIs an unknown one says nothing.
    """
    coding = headers.get("content-encoding", "")
    try:
        plain = decode_body(body, coding, MAX_BODY) if coding else body
    except UnknownCoding:
        return UnaryAnswer(Output.UNKNOWN, "a coding that is not known")
    if not is_whole or len(plain) >= MAX_BODY:
        return _read_beginning(plain)
    if not plain.strip():
        return UnaryAnswer(Output.NONE, "an empty body")
    try:
        document = json.loads(plain.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        is_cut = plain.lstrip()[:1] in (b"{", b"[")
        return UnaryAnswer(Output.NONE, "JSON that is cut or malformed" if is_cut else "a body that is no JSON")
    if isinstance(document, list) and document and isinstance(document[0], dict):
        document = document[0]  # TGI answers with a list of one
    path = path.rstrip("/")
    generates = path in _GENERATION or path.endswith(_GENERATION_ENDS)
    if not isinstance(document, dict):
        return _of_no_known_shape(generates and not isinstance(document, list))
    return _read_object(document, plain, generates)


def _read_object(answer: Mapping[str, Any], plain: bytes, generates: bool) -> UnaryAnswer:
    if answer.get("error") or "error" in (answer.get("object"), answer.get("type")) or answer.get("status") == "failed":
        return UnaryAnswer(Output.NONE, "an error", error=plain)
    choices = answer.get("choices")
    made = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    reasons = [choice.get("finish_reason") for choice in made]
    if isinstance(meta := answer.get("meta_info"), dict) and isinstance(reason := meta.get("finish_reason"), dict):
        reasons.append(reason.get("type"))
    if reasons and all(reason in GAVE_UP for reason in reasons):
        return UnaryAnswer(Output.NONE, "an answer that the engine gave up")
    keys = _TEXTS if generates else _TEXTS + _OTHER_RESULTS
    if made or any(_is_result(answer.get(key)) for key in keys):
        return UnaryAnswer(Output.OUTPUT, output_tokens=_output_tokens(answer))
    return _of_no_known_shape(generates and _OF_AN_API.isdisjoint(answer))


def _is_result(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | dict) and bool(value))


def _of_no_known_shape(generates: bool) -> UnaryAnswer:
    return UnaryAnswer(Output.NONE if generates else Output.UNKNOWN, "JSON of no known API")


def _read_beginning(plain: bytes) -> UnaryAnswer:
    if _BEGINS_WITH_RESULT.search(plain) and not _TELLS_ERROR.search(plain, 0, _BEGINNING):
        return UnaryAnswer(Output.OUTPUT)
    return UnaryAnswer(Output.UNKNOWN, "a long body of no known API")


def _output_tokens(answer: Mapping[str, Any]) -> int | None:
    places = [answer, *(place for key in _COUNTED_IN if isinstance(place := answer.get(key), dict))]
    for place in places:
        for name in _COUNTS:
            count = place.get(name)
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**53:
                return count
    return None
