"""What is learned from one streamed answer as it passes: pure, chunks in, observations out."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from trimtab.llmapi.rejections import RejectionReader
from trimtab.llmapi.stream import EventKind, StreamReader
from trimtab.observation.kinds import (
    AnswerRead,
    FirstToken,
    Observation,
    Output,
    Rejected,
    StreamRead,
    Verdict,
)

# What a stream shows that goes on is reported so often, or after so many tokens.
_PART_S = 2.0
_PART_TOKENS = 256
# One piece of a body may hold more, a packed one any number: a report must fit into a message whatever comes.
_PART_TOKENS_MAX = 2 * _PART_TOKENS


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt a message of Envoy is about."""

    pool: str
    address: str
    request_id: str
    connection: str = ""  # Envoy's end of it, `ip:port`: no other attempt of the request has it
    path: str = ""  # of the request, without its query


class OpeningKind(StrEnum):
    """How a streamed answer began."""

    TOKEN = "token"  # with a token, or it is complete without one
    ERROR = "error"  # with an error event
    EMPTY = "empty"  # it ended before it said anything
    NO_OUTPUT = "no_output"  # it has an end mark and nothing else
    UNREAD = "unread"  # with something that cannot be read or is not known here


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a streamed answer, up to what decides whether it is one."""

    kind: OpeningKind
    verdict: Verdict = Verdict.UNKNOWN  # of an error, or of nothing
    data: bytes = b""  # the error event's


class StreamWatch:
    """Watches one streamed answer with status 200. `now` is Unix seconds.

    Normally it is done as soon as it knows how the answer began: with a token, with an error, or not at all.
    With `whole` it goes on to the end, for the times between tokens and for later errors, and tells them in parts,
    at most one for each piece of the body.
    """

    def __init__(self, attempt: Attempt, headers: dict[str, str], rejections: RejectionReader, *, whole: bool) -> None:
        self._attempt = attempt
        self._headers = headers
        self._rejections = rejections
        self._whole = whole
        self._reader = StreamReader(headers.get("content-type", ""), headers.get("content-encoding", ""))
        self._began = False
        self._token_at = 0.0  # the last one
        self._gaps_s: list[float] = []  # not reported yet
        self._part_at = -inf
        # Envoy, which looks at the beginning of the content type, may take for an event stream what is none.
        self.done = not self._reader.is_stream
        self.opening = Opening(OpeningKind.UNREAD) if self.done else None  # None: not known yet

    def take(self, now: float, chunk: bytes, end: bool) -> list[Observation]:
        """The next piece of the body; `end` says that it was the last, so the answer ended cleanly."""
        seen: list[Observation] = []
        if self.done:
            return seen
        for event in self._reader.feed(chunk, end):
            match event.kind:
                case EventKind.TOKEN:
                    self._token(now, seen)
                case EventKind.UNREADABLE:
                    self._open(OpeningKind.UNREAD)
                    # The first piece of a body that cannot be read is the best sign of a first token.
                    if not self._began:
                        self._token(now, seen)
                    self.done = True
                case EventKind.ERROR:
                    self._error(now, event.data, seen)
                case EventKind.DONE:
                    if not self._began:
                        self._end_without_token(now, seen)
                    self._finish(now, seen, finished=True)
            if self.done:
                return seen
        if self._reader.foreign:
            self._open(OpeningKind.UNREAD)
        if end:
            if not self._began and self._reader.foreign:
                seen.append(self._answer_read(now, Output.UNKNOWN, "events of no known API"))
            elif not self._began:
                self._open(OpeningKind.EMPTY, Verdict.UNAVAILABLE)
                seen.append(error_inside(now, self._attempt, Verdict.UNAVAILABLE, None, "empty-stream"))
            self._finish(now, seen, finished=False, truncated=self._reader.is_unfinished)
        elif self._is_due(now):
            seen.append(self._read(now))
        return seen

    def _token(self, now: float, seen: list[Observation]) -> None:
        if not self._began:
            self._began = True
            self._open(OpeningKind.TOKEN)
            self.done = not self._whole
            seen.append(FirstToken(now, self._attempt.pool, self._attempt.address, self._attempt.request_id))
        elif len(self._gaps_s) < _PART_TOKENS_MAX:
            self._gaps_s.append(max(0.0, now - self._token_at))  # the clock may be set back
        self._token_at = now

    def _end_without_token(self, now: float, seen: list[Observation]) -> None:
        """It says that it is complete: an answer may have no token, but it has more than an end mark."""
        if self._reader.foreign:
            seen.append(self._answer_read(now, Output.UNKNOWN, "events of no known API"))
        elif self._reader.is_understood:
            seen.append(self._answer_read(now, Output.OUTPUT, ""))
        else:
            self._open(OpeningKind.NO_OUTPUT)
            seen.append(self._answer_read(now, Output.NONE, "an end mark alone"))

    def _answer_read(self, now: float, output: Output, reason: str) -> AnswerRead:
        attempt = self._attempt
        return AnswerRead(now, attempt.pool, attempt.address, attempt.request_id, output, reason)

    def _is_due(self, now: float) -> bool:
        """Whether to tell a part: at once that more is to come, for else nobody knows it if nothing comes."""
        if self._part_at == -inf:
            return self._began
        return bool(self._gaps_s) and (now - self._part_at >= _PART_S or len(self._gaps_s) >= _PART_TOKENS)

    def _error(self, now: float, data: bytes, seen: list[Observation]) -> None:
        judgement = self._rejections.judge(200, self._headers, data, now)
        if self._began:
            self._finish(now, seen, finished=False, verdict=judgement.verdict)
        else:
            self._open(OpeningKind.ERROR, judgement.verdict, data)
            seen.append(error_inside(now, self._attempt, judgement.verdict, judgement.retry_after_s, judgement.rule))
            self.done = True

    def _finish(
        self,
        now: float,
        seen: list[Observation],
        *,
        finished: bool,
        verdict: Verdict | None = None,
        truncated: bool = False,
    ) -> None:
        self.done = True
        self._open(OpeningKind.TOKEN)
        if self._whole and self._began:
            seen.append(self._read(now, finished=finished, verdict=verdict, truncated=truncated))

    def _open(self, kind: OpeningKind, verdict: Verdict = Verdict.UNKNOWN, data: bytes = b"") -> None:
        if self.opening is None:
            self.opening = Opening(kind, verdict, data)

    def _read(
        self, now: float, *, finished: bool = False, verdict: Verdict | None = None, truncated: bool = False
    ) -> StreamRead:
        gaps_s = tuple(self._gaps_s)
        self._gaps_s.clear()
        self._part_at = now
        return StreamRead(
            at=now,
            pool=self._attempt.pool,
            address=self._attempt.address,
            request_id=self._attempt.request_id,
            gaps_s=gaps_s,
            finished=finished,
            verdict=verdict,
            truncated=truncated,
        )


def error_inside(now: float, attempt: Attempt, verdict: Verdict, retry_after_s: float | None, reason: str) -> Rejected:
    """The report of an error that was told in an answer of status 200."""
    return Rejected(
        at=now,
        pool=attempt.pool,
        address=attempt.address,
        request_id=attempt.request_id,
        status=200,
        verdict=verdict,
        retry_after_s=retry_after_s,
        in_stream=True,
        reason=reason,
    )
