"""What the end of an attempt, or its verdict, says of the endpoint."""

from enum import Enum

from trimtab.fleet.observation import AttemptEnded, Outcome, Rejected, Verdict


class Judgement(Enum):
    """What one attempt says of its endpoint."""

    SUCCESS = "success"
    FAILURE = "failure"
    DOUBTFUL = "doubtful"  # a 429 that may be the caller's fault or the engine's
    REFUSED = "refused"  # the engine is full
    LEAVING = "leaving"  # the engine is going away
    NEUTRAL = "neutral"  # the caller's own doing


# A REFUSED attempt is no error: the cool-down pays for it in full, and the ramp after that starts at nothing.
_ERRORS: dict[Judgement, tuple[float, float]] = {
    Judgement.SUCCESS: (0.0, 1.0),
    Judgement.FAILURE: (1.0, 1.0),
    Judgement.DOUBTFUL: (0.5, 1.0),
}


def as_errors(judgement: Judgement) -> tuple[float, float]:
    """How many errors, of how many attempts, a judgement adds to the error share."""
    return _ERRORS.get(judgement, (0.0, 0.0))


# These mean full to one engine and dead to another: only headers and body tell, so the verdict is waited for.
_NEEDS_VERDICT = frozenset({429, 503, 529})


def judge_status(status: int) -> Judgement:
    """Judge an error answer that nobody could read.

    vLLM, SGLang and most others say 503 when they are full. The 503 of a dead engine is treated like
    theirs: a cool-down that grows while it is repeated suits both, and an open breaker would punish one for
    being busy.
    """
    if status == 429:
        return Judgement.DOUBTFUL
    if status in _NEEDS_VERDICT:
        return Judgement.REFUSED
    return Judgement.FAILURE if status >= 500 else Judgement.NEUTRAL


def judge_verdict(verdict: Verdict, status: int, in_stream: bool) -> Judgement:
    """Judge an error answer, or an error event inside a stream, that was read."""
    match verdict:
        case Verdict.SATURATED:
            return Judgement.REFUSED
        case Verdict.QUOTA:
            return Judgement.NEUTRAL
        case Verdict.DRAINING:
            return Judgement.LEAVING
        case Verdict.UNAVAILABLE:
            return Judgement.FAILURE
        case Verdict.UNKNOWN:
            return Judgement.FAILURE if in_stream else judge_status(status)


def judge_end(ended: AttemptEnded, spoke: bool) -> Judgement | None:
    """Judge an attempt by its end; `spoke`: its first token was seen. None: the verdict is to decide."""
    if ended.outcome is Outcome.UNREACHABLE:
        return Judgement.FAILURE
    if ended.status in _NEEDS_VERDICT:
        return None
    # Envoy drops an error answer that it retries, and the outcome then reads like an abort: the status goes
    # first.
    if ended.status >= 500 or ended.outcome is Outcome.RESET:
        return Judgement.FAILURE
    if ended.outcome is Outcome.ABORTED or ended.status == 0:
        return Judgement.NEUTRAL
    mute = ended.streamed and not spoke and ended.body_bytes == 0 and ended.first_byte_s is None
    return Judgement.FAILURE if mute and is_success(ended.status) else Judgement.SUCCESS


def is_success(status: int) -> bool:
    """Whether the answer carried what was asked for."""
    return 200 <= status < 300


def explain(event: Rejected | AttemptEnded) -> str:
    """What people are told of an attempt that counts against its endpoint."""
    if isinstance(event, Rejected):
        what = "an error event in a stream" if event.in_stream else f"status {event.status}"
        return f"{what} ({event.verdict}{f', rule {event.reason}' if event.reason else ''})"
    if event.outcome is Outcome.UNREACHABLE:
        return "no connection"
    if event.outcome is Outcome.RESET:
        return "connection broken" + (f" after status {event.status}" if event.status else "")
    return f"status {event.status}"
