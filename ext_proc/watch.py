"""What is learned from one streamed answer as it passes: pure, chunks in, observations out."""

from dataclasses import dataclass

from ext_proc.stream import EventKind, StreamReader
from ext_proc.verdict import RejectionReader
from trimtab.fleet.observation import FirstToken, Observation, Rejected, StreamRead, Verdict


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt a message of Envoy is about."""

    pool: str
    address: str
    request_id: str


class StreamWatch:
    """Watches one streamed answer with status 200. `now` is Unix seconds.

    Normally it is done as soon as it knows how the answer began: with a token, with an error, or not at all.
    With `whole` it goes on to the end, for the times between tokens and for later errors.
    """

    def __init__(self, attempt: Attempt, headers: dict[str, str], rejections: RejectionReader, *, whole: bool) -> None:
        self._attempt = attempt
        self._headers = headers
        self._rejections = rejections
        self._whole = whole
        self._reader = StreamReader(headers.get("content-type", ""), headers.get("content-encoding", ""))
        self._chunks = 0
        self._first_at = 0.0
        self._last_at = 0.0
        self._max_gap_s = 0.0
        self._began = False
        self.done = False

    def take(self, now: float, chunk: bytes, end: bool) -> list[Observation]:
        """The next piece of the body; `end` says that it was the last, so the answer ended cleanly."""
        seen: list[Observation] = []
        for event in self._reader.feed(chunk, end):
            match event.kind:
                case EventKind.TOKEN:
                    self._token(now, seen)
                case EventKind.UNREADABLE:
                    # The first piece of a body that cannot be read is the best sign of a first token.
                    if not self._began:
                        self._token(now, seen)
                    self.done = True
                case EventKind.ERROR:
                    self._error(now, event.data, seen)
                case EventKind.DONE:
                    self._finish(now, seen, finished=True)
            if self.done:
                return seen
        if end:
            if not self._began:
                seen.append(self._rejected(now, Verdict.UNAVAILABLE, None, "empty-stream"))
            self._finish(now, seen, finished=False)
        return seen

    def _token(self, now: float, seen: list[Observation]) -> None:
        if not self._began:
            self._began = True
            self._first_at = now
            self.done = not self._whole
            seen.append(FirstToken(now, self._attempt.pool, self._attempt.address, self._attempt.request_id))
        else:
            self._max_gap_s = max(self._max_gap_s, now - self._last_at)
        self._chunks += 1
        self._last_at = now

    def _error(self, now: float, data: bytes, seen: list[Observation]) -> None:
        judgement = self._rejections.judge(200, self._headers, data, now)
        if self._began:
            self._finish(now, seen, finished=False, verdict=judgement.verdict)
        else:
            seen.append(self._rejected(now, judgement.verdict, judgement.retry_after_s, judgement.rule))
            self.done = True

    def _finish(self, now: float, seen: list[Observation], *, finished: bool, verdict: Verdict | None = None) -> None:
        self.done = True
        if not (self._whole and self._began):
            return
        gaps = self._chunks - 1
        seen.append(
            StreamRead(
                at=now,
                pool=self._attempt.pool,
                address=self._attempt.address,
                request_id=self._attempt.request_id,
                chunks=self._chunks,
                mean_gap_s=(self._last_at - self._first_at) / gaps if gaps else None,
                max_gap_s=self._max_gap_s if gaps else None,
                finished=finished,
                verdict=verdict,
            )
        )

    def _rejected(self, now: float, verdict: Verdict, retry_after_s: float | None, reason: str) -> Rejected:
        return Rejected(
            at=now,
            pool=self._attempt.pool,
            address=self._attempt.address,
            request_id=self._attempt.request_id,
            status=200,
            verdict=verdict,
            retry_after_s=retry_after_s,
            in_stream=True,
            reason=reason,
        )
