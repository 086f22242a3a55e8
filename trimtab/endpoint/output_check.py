"""Whether the answers of an endpoint carry model output, set beside what other endpoints give."""

from trimtab.endpoint.attempt import Attempt, AttemptOutcome
from trimtab.endpoint.early_ends import AnswerTimes, EarlyEnds
from trimtab.endpoint.outcome import explain_missing, is_json, is_success
from trimtab.endpoint.peers import Answer, Peers, RequestKind, request_kind
from trimtab.endpoint.sampling_confidence import SamplingConfidence
from trimtab.endpoint.snapshot import EndpointId
from trimtab.observation.kinds import AttemptEnded, Outcome
from trimtab.stats.fading import FadingShare

_HALF_LIFE_S = 10.0
# A share of answers with output above which an answer that was not read is taken for one.
_MOSTLY = 0.5
# What is refused is cooled down, and what is leaving gets no more work.
_OF_THE_MOMENT = frozenset({AttemptOutcome.REFUSED, AttemptOutcome.LEAVING})


class OutputCheck:
    """The answers of one endpoint, compared with those of its peers. All but `endpoint` belongs to the whole pool."""

    __slots__ = ("_answer_times", "_endpoint", "_outputs", "_peers", "_sampling_confidence", "early_ends")

    def __init__(
        self, endpoint: EndpointId, peers: Peers, answer_times: AnswerTimes, sampling_confidence: SamplingConfidence
    ) -> None:
        self._endpoint = endpoint
        self._peers = peers
        self._answer_times = answer_times
        self._sampling_confidence = sampling_confidence
        self._outputs = FadingShare(_HALF_LIFE_S)  # answers with output, of those that were read
        self.early_ends = EarlyEnds()

    def others_answer(self, attempt: Attempt, at: float) -> bool | None:
        """Whether other endpoints gave output to such requests at about `at`; None if that is not known."""
        return self._peers.give_output(self._endpoint, _kind(attempt), at)

    def settle(self, attempt: Attempt, ended: AttemptEnded) -> bool:
        """Compare an answer that is judged and has ended, once. Returns whether its cost can be learned from."""
        if attempt.is_settled or not attempt.asks_for_output:
            return False
        attempt.is_settled = True
        if is_success(ended.status) and ended.outcome is Outcome.COMPLETE:
            self._note_reading(attempt, ended)
        match attempt.judgement:
            case AttemptOutcome.SUCCESS if attempt.has_output:
                self._answer_times.add(ended.at, max(0.0, ended.at - attempt.started_at))
                self.tell_peers(attempt, ended.at, "")
                return True
            case AttemptOutcome.NO_OUTPUT:
                self.tell_peers(attempt, ended.at, explain_missing(attempt))
            case AttemptOutcome.FAILURE if ended.status and not attempt.has_output:
                self.tell_peers(attempt, ended.at, explain_missing(attempt))
            case AttemptOutcome.UNKNOWN if attempt.answer is not None or not _is_for_reading(ended):
                self.tell_peers(attempt, ended.at, explain_missing(attempt))
        return False

    def tell_peers(self, attempt: Attempt, at: float, missing: str) -> None:
        """Tell, once, what such a request got here: output if `missing` is empty, else that in its place."""
        if not attempt.is_compared and attempt.asks_for_output:
            attempt.is_compared = True
            self._peers.add(Answer(at, self._endpoint, _kind(attempt), missing))

    def hold_early_end(self, now: float, attempt: Attempt, ended: AttemptEnded) -> None:
        """Count the work of an answer without output as under way until an answer would have ended.

        Not if the caller is to blame, whose requests get no output anywhere; nor after a refusal, which is cooled down.
        """
        if attempt.has_output or not attempt.asks_for_output or attempt.judgement in _OF_THE_MOMENT:
            return
        if attempt.rejected is not None and attempt.judgement is AttemptOutcome.NEUTRAL:
            return
        if attempt.judgement is None and (not is_success(ended.status) or self.is_presumed(attempt, ended)):
            return
        if self.others_answer(attempt, ended.at) is False:
            return
        until = attempt.started_at + self._answer_times.usual_s(now)
        if until > now:
            self.early_ends.add(until, attempt.request_id, attempt.prompt_bytes or ended.prompt_bytes or 0)

    def is_presumed(self, attempt: Attempt, ended: AttemptEnded) -> bool:
        """Whether an answer that nobody read most likely has output: not all are read, and those that are have it."""
        if attempt.answer is not None or attempt.rejected is not None or not attempt.asks_for_output:
            return False
        if not (is_success(ended.status) and ended.outcome is Outcome.COMPLETE and _is_for_reading(ended)):
            return False
        if not (
            self._sampling_confidence.missed(attempt.started_at)
            or self._sampling_confidence.leaves_out(ended.at, ended.streamed)
        ):
            return False
        return self._outputs.share(ended.at, prior_hits=1.0, prior_total=1.0) > _MOSTLY

    def is_foreign(self, attempt: Attempt, ended: AttemptEnded) -> bool:
        """Whether a whole answer is of a format that is not known, and no other endpoint gives a known one."""
        if not (is_success(ended.status) and ended.outcome is Outcome.COMPLETE and ended.body_bytes):
            return False
        if attempt.judgement is not AttemptOutcome.UNKNOWN or not attempt.asks_for_output:
            return False
        is_read = attempt.answer is not None
        return (is_read or not _is_for_reading(ended)) and not self.others_answer(attempt, ended.at)

    def _note_reading(self, attempt: Attempt, ended: AttemptEnded) -> None:
        """Follow how many answers are read, and how many of these have output."""
        is_read = attempt.has_output or attempt.answer is not None or attempt.rejected is not None
        if is_read:
            self._outputs.add(ended.at, float(attempt.has_output), 1.0)
        if not ended.streamed and _is_for_reading(ended) and not self._sampling_confidence.missed(attempt.started_at):
            self._sampling_confidence.add_answer(ended.at, seen=is_read)


def _kind(attempt: Attempt) -> RequestKind:
    prompt_bytes = attempt.prompt_bytes or (attempt.ended.prompt_bytes if attempt.ended else None)
    return request_kind(attempt.path, attempt.caller, prompt_bytes)


def _is_for_reading(ended: AttemptEnded) -> bool:
    """Whether the answer is of a kind that is read where it is watched."""
    return ended.streamed or is_json(ended.content_type)
