"""Observations of attempts whose start is not known yet: tokens are seen sooner than the access log is."""

from trimtab.endpoint.attempt import Attempt
from trimtab.endpoint.outcome import is_success
from trimtab.observation.kinds import AnswerRead, FirstToken, Output, Rejected, StreamRead

HOLD_S = 2.0
HOLD = 4096
# A verdict, or a first token, that comes after the end of its attempt comes within this time.
VERDICT_WAIT_S = 1.0

Event = FirstToken | AnswerRead | Rejected | StreamRead


class UnmatchedEvents:
    """A bounded place to wait for a start."""

    __slots__ = ("_by_request", "_line")

    def __init__(self) -> None:
        self._by_request: dict[str, list[Event]] = {}
        self._line: list[tuple[float, Event]] = []  # seldom more than a few: an empty deque is larger

    def __contains__(self, event: Event) -> bool:
        return event in self._by_request.get(event.request_id, ())

    def hold(self, now: float, event: Event) -> None:
        self._by_request.setdefault(event.request_id, []).append(event)
        self._line.append((now, event))
        if len(self._line) > HOLD:
            self.drop(self._line.pop(0)[1])

    def of(self, request_id: str) -> tuple[Event, ...]:
        return tuple(self._by_request.get(request_id, ()))

    def drop(self, event: Event) -> None:
        events = self._by_request.get(event.request_id)
        if events and event in events:
            events.remove(event)
            if not events:
                del self._by_request[event.request_id]

    def tidy(self, now: float) -> None:
        while self._line and self._line[0][0] <= now - HOLD_S:
            self.drop(self._line.pop(0)[1])


def fits(event: Event, attempt: Attempt) -> bool:
    """Whether an event can belong to an attempt that started before it."""
    ended = attempt.ended
    if ended is not None and event.at > ended.at + VERDICT_WAIT_S:
        return False
    match event:
        case FirstToken():
            return (
                (attempt.token_at is None or attempt.token_at == event.at)
                and (attempt.rejected is None or attempt.rejected.at > event.at)
                and (ended is None or is_success(ended.status))
            )
        case Rejected(in_stream=True):
            # The gate makes the error out of it that it is, and Envoy logs that.
            status_fits = ended is None or ended.status > 0
            return status_fits and (attempt.rejected is None or attempt.rejected == event)
        case Rejected():
            status_fits = ended is None or ended.status == event.status
            return status_fits and (attempt.rejected is None or attempt.rejected == event)
        case AnswerRead():
            status_fits = ended is None or is_success(ended.status) or event.output is Output.NONE
            return attempt.answer in (None, event) and status_fits
        case StreamRead():
            return ended is None or is_success(ended.status)
