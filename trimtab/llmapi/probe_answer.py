"""What an engine's answer to a probe shows, read as it comes."""

import json
from collections.abc import Mapping

from trimtab.llmapi.errors import read_error_body
from trimtab.llmapi.formats import Interpreter
from trimtab.llmapi.rejections import MAX_BODY, RejectionReader
from trimtab.llmapi.sse import SseParser
from trimtab.observation.kinds import ProbeResult, Verdict

# They say that the engine is full or the caller over a limit, which is no sign against the engine.
_NO_FAULT = frozenset({Verdict.SATURATED, Verdict.QUOTA})
_REASON_CHARS = 120


class ProbeAnswer:
    """One answer. `headers` are in lower case; `now` is Unix time, for dates in them.

    A token is generated content, or an answer that finished without an error: a token may have no text, as the
    first one of a reasoning model often has not. An error takes back what came before it.
    """

    def __init__(self, rejections: RejectionReader, status: int, headers: Mapping[str, str], now: float) -> None:
        self.result: ProbeResult | None = None  # None: not decided yet, and the answer goes on
        self.reason = ""  # of a result that is no token
        self.token_seen = False  # a token was seen
        self.model = ""  # that the answer names
        self._rejections = rejections
        self._status = status
        self._headers = headers
        self._now = now
        self._body = bytearray()  # of an error
        self._sse = SseParser()
        self._interpreter = Interpreter(count_reasoning=True)
        content_type = headers.get("content-type", "").partition(";")[0].strip()
        if status == 200 and content_type != "text/event-stream":
            self._decide(ProbeResult.WRONG, f"HTTP 200 with {content_type or 'no content type'}, not an event stream")
        elif 300 <= status < 400:
            place = f", which leads to {headers['location']}" if "location" in headers else ""
            self._decide(ProbeResult.UNDECIDED, f"HTTP {status}{place}: redirects are not followed")

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body. Nothing is read once there is a result."""
        if self._status != 200:
            self._body += chunk[: MAX_BODY - len(self._body)]
            return
        for event in self._sse.feed(chunk):
            if self.result is None:
                self._read(event.name, event.data)

    def finish(self) -> ProbeResult:
        """The result when no more is read, because the answer has ended or was cut."""
        if self.result is not None:
            return self.result
        if self._status != 200:
            return self._judge_error()
        if self.token_seen:
            return self._decide(ProbeResult.TOKEN, "")
        return self._decide(ProbeResult.WRONG, "the answer has no token")

    def _read(self, name: bytes, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.finish()
            return
        try:
            event = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            event = None
        if name == b"error":
            self._judge_event(data)
            return
        if not isinstance(event, dict):
            return
        if isinstance(model := event.get("model"), str) and not self.model:
            self.model = model
        meaning = self._interpreter.read(event)
        if meaning.failed:
            self._judge_event(data)
        elif meaning.token or meaning.done:
            self.token_seen = True

    def _judge_event(self, data: bytes) -> None:
        verdict = self._rejections.judge(200, {}, data, self._now).verdict
        result = ProbeResult.UNDECIDED if verdict in _NO_FAULT else ProbeResult.WRONG
        self._decide(result, f"an error event in the answer: {_line(data)}")

    def _judge_error(self) -> ProbeResult:
        status, body = self._status, bytes(self._body)
        verdict = self._rejections.judge(status, self._headers, body, self._now).verdict
        if status == 404 and b"model" in body.lower():
            result = ProbeResult.WRONG  # clients that ask for this model would hear the same
        elif status < 500 or verdict in _NO_FAULT:
            result = ProbeResult.UNDECIDED
        else:
            result = ProbeResult.WRONG
        return self._decide(result, f"HTTP {status}: {_line(body)}")

    def _decide(self, result: ProbeResult, reason: str) -> ProbeResult:
        self.result, self.reason = result, reason
        return result


def _line(body: bytes) -> str:
    return " ".join(read_error_body(body).text.split())[:_REASON_CHARS] or "no text"
