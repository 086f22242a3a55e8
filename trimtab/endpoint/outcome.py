"""What the end of an attempt, or its verdict, says of the endpoint."""

from trimtab.endpoint.attempt import Attempt, AttemptOutcome
from trimtab.observation.kinds import AttemptEnded, Outcome, Output, Rejected, Verdict

# A REFUSED attempt is no error: the cool-down pays for it in full, and slow start then begins at 0.
_ERRORS: dict[AttemptOutcome, tuple[float, float]] = {
    AttemptOutcome.SUCCESS: (0.0, 1.0),
    AttemptOutcome.UNKNOWN: (0.0, 1.0),
    AttemptOutcome.FAILURE: (1.0, 1.0),
    AttemptOutcome.DOUBTFUL: (0.5, 1.0),
}


def as_errors(judgement: AttemptOutcome) -> tuple[float, float]:
    """How many errors, of how many attempts, a judgement adds to the error share."""
    return _ERRORS.get(judgement, (0.0, 0.0))


# These mean full to one engine and dead to another: only headers and body tell, so the verdict is waited for.
_NEEDS_VERDICT = frozenset({429, 503, 529})
_NO_CONTENT = 204


def judge_status(status: int) -> AttemptOutcome:
    """Judge an error answer that nobody could read.

    vLLM, SGLang and most others say 503 when they are full. The 503 of a dead engine is treated like
    theirs: a cool-down that grows while it is repeated suits both, and an open breaker would punish one for
    being busy.
    """
    if status == 429:
        return AttemptOutcome.DOUBTFUL
    if status in _NEEDS_VERDICT:
        return AttemptOutcome.REFUSED
    return AttemptOutcome.FAILURE if status >= 500 else AttemptOutcome.NEUTRAL


def judge_verdict(verdict: Verdict, status: int, in_stream: bool, *, had_output: bool = False) -> AttemptOutcome:
    """Judge an error answer, or an error inside an answer with status 200, that was read.

    `had_output`: model output came before the error.
    """
    match verdict:
        case Verdict.SATURATED:
            return AttemptOutcome.REFUSED
        case Verdict.QUOTA:
            return AttemptOutcome.NEUTRAL
        case Verdict.DRAINING:
            return AttemptOutcome.LEAVING
        case Verdict.UNAVAILABLE:
            return AttemptOutcome.FAILURE
        case Verdict.UNKNOWN if not in_stream:
            return judge_status(status)
        case Verdict.UNKNOWN:
            # Engines tell a caller's mistakes inside a 200 too, but not after they have begun to generate.
            return AttemptOutcome.FAILURE if had_output else AttemptOutcome.NO_OUTPUT


def judge_rejection(rejected: Rejected, *, had_output: bool = False) -> AttemptOutcome:
    """Judge an attempt by what was read of its error; `had_output` as in `judge_verdict`."""
    return judge_verdict(rejected.verdict, rejected.status, rejected.in_stream, had_output=had_output)


_OF_OUTPUT = {
    Output.OUTPUT: AttemptOutcome.SUCCESS,
    Output.NONE: AttemptOutcome.NO_OUTPUT,
    Output.UNKNOWN: AttemptOutcome.UNKNOWN,
}


def judge_end(attempt: Attempt, ended: AttemptEnded) -> AttemptOutcome | None:
    """Judge an attempt by its end. None: what is still to be read of its answer decides."""
    if ended.outcome is Outcome.UNREACHABLE:
        return AttemptOutcome.FAILURE
    if attempt.answer is not None and attempt.answer.output is Output.NONE:
        return AttemptOutcome.NO_OUTPUT  # whatever status the gate has made of it
    if ended.status in _NEEDS_VERDICT:
        return None
    # Envoy drops an error answer that it retries, and the outcome then reads like an abort: the status goes
    # first.
    if ended.status >= 500 or ended.outcome is Outcome.RESET:
        return AttemptOutcome.FAILURE
    if ended.outcome is Outcome.ABORTED or ended.status == 0:
        return AttemptOutcome.NEUTRAL
    if not attempt.asks_for_output:
        return AttemptOutcome.UNKNOWN if is_success(ended.status) else AttemptOutcome.NEUTRAL
    if attempt.has_output:
        return AttemptOutcome.SUCCESS
    if attempt.answer is not None:
        return _OF_OUTPUT[attempt.answer.output]
    return _judge_unread(ended)


def _judge_unread(ended: AttemptEnded) -> AttemptOutcome | None:
    if not is_success(ended.status) or ended.status == _NO_CONTENT:
        return AttemptOutcome.NO_OUTPUT
    is_mute = ended.body_bytes == 0 and ended.first_byte_s is None
    if is_mute:
        return AttemptOutcome.FAILURE if ended.streamed else AttemptOutcome.NO_OUTPUT
    if ended.streamed or is_json(ended.content_type):
        return None
    return AttemptOutcome.NO_OUTPUT if is_page(ended.content_type) else AttemptOutcome.UNKNOWN


def is_success(status: int) -> bool:
    """Whether the answer calls itself what was asked for."""
    return 200 <= status < 300


def is_json(content_type: str) -> bool:
    """Whether a media type is JSON."""
    return content_type == "application/json" or content_type.endswith("+json")


def is_page(content_type: str) -> bool:
    """Whether a media type is one for people, which no model answers with."""
    return content_type in ("text/html", "application/xhtml+xml")


def explain(event: Rejected | AttemptEnded) -> str:
    """What people are told of an attempt that counts against its endpoint."""
    if isinstance(event, Rejected):
        what = "an error in an answer of status 200" if event.in_stream else f"status {event.status}"
        return f"{what} ({event.verdict}{f', rule {event.reason}' if event.reason else ''})"
    if event.outcome is Outcome.UNREACHABLE:
        return "no connection"
    if event.outcome is Outcome.RESET:
        return "connection broken" + (f" after status {event.status}" if event.status else "")
    return f"status {event.status}"


def explain_missing(attempt: Attempt) -> str:
    """What came in the place of output, in a few words."""
    ended = attempt.ended
    if attempt.answer is not None:
        return f"200 with {attempt.answer.reason}"
    if ended is None or (attempt.rejected is not None and attempt.rejected.in_stream):
        return "200 with an error"
    if is_success(ended.status) and ended.status != _NO_CONTENT:
        return f"{ended.status} with {ended.content_type or 'no content'}"
    return f"{ended.status}"
