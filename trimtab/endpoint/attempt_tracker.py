"""How one incarnation of an endpoint behaves, by its attempts: first tokens, errors, refusals, silence."""

from collections.abc import Callable

from trimtab.endpoint.attempt import Attempt, AttemptOutcome
from trimtab.endpoint.early_ends import AnswerTimes
from trimtab.endpoint.evidence import Evidence, OutcomeSeen, TokenSeen
from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.endpoint.latency import LatencyEstimators
from trimtab.endpoint.leases import LeaseTable
from trimtab.endpoint.outcome import (
    as_errors,
    explain,
    explain_missing,
    is_success,
    judge_end,
    judge_rejection,
    judge_status,
    judge_verdict,
)
from trimtab.endpoint.output_check import OutputCheck
from trimtab.endpoint.peers import Peers
from trimtab.endpoint.sampling_confidence import SamplingConfidence
from trimtab.endpoint.silence_detector import SilenceDetector
from trimtab.endpoint.snapshot import EndpointId, TokenSample
from trimtab.endpoint.token_ratio import PromptMeter
from trimtab.endpoint.unary import tokens_of, ttft_of
from trimtab.endpoint.unmatched import VERDICT_WAIT_S, Event, UnmatchedEvents, fits
from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    Outcome,
    Rejected,
    StreamRead,
)
from trimtab.stats.fading import Ewma, FadingShare

# Long enough to outlast a burst, short enough that an endpoint is not held to what it was a minute ago.
ERROR_HALF_LIFE_S = 10.0
# So many attempts without an error are imagined before the first: one failure of one attempt is a share of
# 0.2, and an endpoint that gets no more traffic is forgiven as its errors fade.
ERROR_PRIOR = 4.0
# What was learned from samples is unknown again when none has come for so long, over a restart too.
MEMORY_S = 600.0


class AttemptTracker:
    """What the attempts show. `now` is when something arrived; each observation has its own time.

    Attempts that started before `born_at` are another incarnation's, and so is what is heard of the requests
    in `departed` unless they are tried anew. What weighting and the strategy must know is told to `tell`.

    Only an answer in which model output was seen counts as a success, teaches a cost, or lets go of its work before an
    answer would usually have ended.
    """

    __slots__ = (
        "_born_at",
        "_departed",
        "_endpoint",
        "_held",
        "_joinable",
        "_latency",
        "_marks_ends",
        "_notify",
        "_prompts",
        "_sampling_confidence",
        "_unsettled",
        "engine_gap_s",
        "engine_ttft_s",
        "errors",
        "failures_in_row",
        "leases",
        "output_clock",
        "outputs",
        "silence",
        "ttft",
    )

    def __init__(
        self,
        endpoint: EndpointId,
        *,
        born_at: float,
        ttft_alpha: float,
        sampling_confidence: SamplingConfidence,
        peers: Peers,
        answer_times: AnswerTimes,
        latency: LatencyEstimators,
        prompts: PromptMeter,
        departed: frozenset[str],
        notify: Callable[[Evidence], None],
    ) -> None:
        self._endpoint = endpoint
        self.outputs = OutputCheck(endpoint, peers, answer_times, sampling_confidence)
        self._born_at = born_at
        self._departed = departed
        self._sampling_confidence = sampling_confidence
        self._latency = latency
        self._prompts = prompts
        self._notify = notify
        self._held = UnmatchedEvents()
        self._joinable: dict[str, None] = {}  # requests of which something is held and an attempt is now known
        self._unsettled: list[tuple[float, Attempt]] = []  # ended, and something may still come
        self._marks_ends = False  # a stream of it was seen to end as its protocol says
        self.engine_ttft_s: float | None = None  # by the engine's own histogram, over the last seconds
        self.engine_gap_s: float | None = None  # likewise, from one token to the next
        self.leases = LeaseTable(born_at)
        self.silence = SilenceDetector(endpoint, self.leases, sampling_confidence, latency, notify)
        self.output_clock = self.silence.output_clock
        self.ttft = Ewma(ttft_alpha, MEMORY_S)
        self.errors = FadingShare(ERROR_HALF_LIFE_S)
        self.failures_in_row = 0

    def started(self, started: AttemptStarted) -> bool:
        """Take in a start; False if it was known, or is too old."""
        if self.leases.start(started, missed=self._sampling_confidence.missed(started.at)) is None:
            return False
        if started.prompt_bytes is not None:
            self._latency.sent(started.at, started.prompt_bytes)
        if self._held.of(started.request_id):
            # Not at once: the next start in the same batch may be the better match.
            self._joinable[started.request_id] = None
        return True

    def doubt(self) -> None:
        """Tokens may have gone unseen: no stream that runs already shows silence by waiting."""
        self.leases.doubt(self._sampling_confidence.missed_until)
        self.output_clock.unwatched()

    def heard(self, now: float, event: Event) -> None:
        """Take in what was heard of an attempt, and hold it while neither a start nor an end is known."""
        if event.at < self._born_at or self._join(now, event) or event in self._held:
            return
        if event.request_id in self._departed:
            return
        self._held.hold(now, event)
        if isinstance(event, Rejected):
            # A refusal does not wait for the access log. Its attempt is not counted again once it is known.
            self._count(min(now, event.at), event.at, judge_rejection(event), event.retry_after_s, explain(event))

    def ended(self, now: float, ended: AttemptEnded) -> None:
        attempt = self.leases.end(now, ended)
        if attempt is None:
            return
        for event in self._held.of(ended.request_id):
            self._join(now, event)
        if ended.outcome is Outcome.COMPLETE and is_success(ended.status) and attempt.rejected is None:
            self._served(attempt)
        if attempt.judgement is None:
            judgement = judge_end(attempt, ended)
            # Of a stream that is read whole its last part says whether it was.
            is_open = judgement is AttemptOutcome.SUCCESS and self.output_clock.is_read(attempt)
            if judgement is not None and not is_open:
                self._judge(attempt, min(now, ended.at), judgement, why=explain(ended))
        else:
            self._settle(attempt, ended)
        self._note_life(now, attempt, ended)
        if attempt.token_at is None and attempt.rejected is None and ended.outcome is Outcome.ABORTED:
            self.silence.gave_up(now, attempt, ended)
        self.outputs.hold_early_end(now, attempt, ended)
        answered = _is_streamed_answer(attempt, ended)
        if attempt.judgement is None or (answered and attempt.token_at is None):
            self._unsettled.append((now, attempt))
        elif answered and ended.outcome is Outcome.COMPLETE:
            self._sampling_confidence.add(min(now, ended.at), seen=True)

    def join_held(self, now: float) -> None:
        """After a batch: join what was held to the attempts that the batch brought."""
        for request_id in sorted(self._joinable):
            for event in self._held.of(request_id):
                self._join(now, event)
        self._joinable.clear()

    def settle(self, now: float) -> None:
        """Judge what was waited for in vain, and forget what is old."""
        self.outputs.early_ends.tidy(now)
        while self._unsettled and self._unsettled[0][0] <= now - VERDICT_WAIT_S:
            self._close(now, self._unsettled.pop(0)[1])
        self._held.tidy(now)
        self.leases.tidy(now)
        if (ttft_s := self.ttft.value(now)) is not None:
            self.leases.assume_prefilled(now - ttft_s)

    def known_ttft(self, now: float) -> float | None:
        """The mean of samples [s], raised to what is seen to take longer now. None: nothing was seen."""
        longest = self.silence.longest_wait(now)
        return max(self.ttft.value(now) or 0.0, longest) or self.ttft.value(now)

    def _join(self, now: float, event: Event) -> bool:
        """Give an event to its attempt: the newest of its request that had started and that it fits."""
        attempt = self.leases.newest(event.request_id, event.at, lambda candidate: fits(event, candidate))
        if attempt is None:
            return False
        was_held = event in self._held
        if was_held:
            self._held.drop(event)
        at = min(now, event.at)
        match event:
            case FirstToken() if attempt.token_at is None:
                self._speak(now, attempt, event.at)
                self._conclude(now, attempt)
            case AnswerRead() if attempt.answer is None:
                attempt.answer = event
                self._conclude(now, attempt)
            case StreamRead():
                if event.at > attempt.read_until:
                    attempt.read_until = event.at
                    self._latency.decoded(at, event.gaps_s)
                    self._read(attempt, event)
                if event.verdict and attempt.judgement is not AttemptOutcome.FAILURE:
                    judgement = judge_verdict(event.verdict, 200, in_stream=True, had_output=True)
                    self._judge(attempt, at, judgement, why="an error event late in a stream")
                elif event.truncated and self._marks_ends and attempt.judgement is not AttemptOutcome.FAILURE:
                    # Of an engine that never marks its ends, a missing mark says nothing.
                    why = "a stream ended before its answer did"
                    self._judge(attempt, at, AttemptOutcome.FAILURE, why=why, failure_signal=FailureSignal.TRUNCATED)
                elif event.finished and attempt.ended is not None and attempt.judgement is None:
                    self._succeeded(now, attempt, attempt.ended)
            case Rejected() if attempt.rejected is None:
                attempt.rejected = event
                judgement = judge_rejection(event, had_output=attempt.token_at is not None)
                if was_held and judgement is judge_rejection(event):  # it was counted when it came
                    self._take_back(attempt)
                    attempt.judgement, attempt.judged_at = judgement, at
                else:
                    self._judge(attempt, at, judgement, event.retry_after_s, explain(event))
            case _:
                pass  # said before
        return True

    def _conclude(self, now: float, attempt: Attempt) -> None:
        """What came after the end of an attempt may decide over it."""
        ended = attempt.ended
        if ended is None:
            return
        if attempt.judgement is None and (judgement := judge_end(attempt, ended)) is not None:
            self._judge(attempt, min(now, ended.at), judgement, why=explain(ended))
            self._note_life(now, attempt, ended)
        if attempt.has_output:
            self.outputs.early_ends.drop(attempt.request_id)

    def _speak(self, now: float, attempt: Attempt, token_at: float) -> None:
        attempt.token_at = token_at
        self._served(attempt)
        self.leases.token_seen(attempt, all_watched=self._sampling_confidence.silent_rank(now) == 0)
        self.silence.token_seen(token_at, attempt.ended.at if attempt.ended else None)
        self._notify(TokenSeen(self._endpoint, token_at, attempt.started_at))
        self.outputs.tell_peers(attempt, token_at, "")
        if self._sampling_confidence.missed(attempt.started_at):
            return
        ttft_s = max(0.0, token_at - attempt.started_at)
        self._latency.token_seen(token_at, ttft_s)
        self._teach(attempt, token_at, ttft_s, attempt.outstanding_prompt_bytes)

    def _settle(self, attempt: Attempt, ended: AttemptEnded) -> None:
        learns = self.outputs.settle(attempt, ended)
        if learns and not ended.streamed and not self._sampling_confidence.missed(attempt.started_at):
            self._learn_unary(ended.at, attempt, ended)

    def _learn_unary(self, now: float, attempt: Attempt, ended: AttemptEnded) -> None:
        """Learn from a whole answer what its first token took.

        The engine knows best, if its histogram is read; else the further tokens are taken off the whole time.
        """
        took_s = max(0.0, ended.at - attempt.started_at)
        self.silence.answered_start = max(self.silence.answered_start, attempt.started_at)
        counted = attempt.answer.output_tokens if attempt.answer else None
        tokens = tokens_of(ended.body_bytes) if counted is None else float(max(1, counted))
        ttft_s = self.engine_ttft_s
        if ttft_s is None:
            ttft_s = ttft_of(took_s, tokens, self._latency.inter_token_s(now) or self.engine_gap_s)
        # Which of the prompts before it were computed when it was sent is not known: only its own surely was not.
        self._teach(attempt, min(now, ended.at), min(ttft_s, took_s), attempt.prompt_bytes or 0)

    def _teach(self, attempt: Attempt, token_at: float, ttft_s: float, outstanding_prompt_bytes: int) -> None:
        self.ttft.add(token_at, ttft_s)
        if attempt.seen_to_start and attempt.prompt_bytes is not None:
            self._notify(
                TokenSample(
                    endpoint=self._endpoint,
                    at=token_at,
                    ttft_s=ttft_s,
                    prompt_bytes=attempt.prompt_bytes,
                    outstanding_prompt_bytes=outstanding_prompt_bytes,
                    in_flight=attempt.in_flight,
                )
            )

    def _served(self, attempt: Attempt) -> None:
        """The engine has taken in the prompt: it has shown a token, or answered in full."""
        if not attempt.served:
            attempt.served = True
            self._prompts.served(attempt.prompt_bytes)

    def _close(self, now: float, attempt: Attempt) -> None:
        """Nothing more is awaited of an ended attempt: take it as it is."""
        ended = attempt.ended
        if ended is None:
            return
        at = min(now, ended.at)
        if attempt.judgement is None:
            if not is_success(ended.status):
                self._judge(attempt, at, judge_status(ended.status), why=explain(ended))
            elif attempt.has_output:
                self._succeeded(now, attempt, ended)
            else:
                self._judge(attempt, at, AttemptOutcome.UNKNOWN)
                self._note_life(now, attempt, ended)
        if not _is_streamed_answer(attempt, ended) or ended.first_byte_s is None:
            return
        if self._sampling_confidence.missed(attempt.started_at):
            return  # that it went unseen says nothing of those that come
        if ended.outcome is Outcome.COMPLETE:
            self._sampling_confidence.add(at, seen=attempt.token_at is not None or attempt.answer is not None)
            unwatched = attempt.answer is None
        else:
            unwatched = ended.outcome is Outcome.ABORTED and self._sampling_confidence.silent_rank(at) > 0
        if attempt.token_at is None and unwatched:
            self._speak(now, attempt, attempt.started_at + ended.first_byte_s)

    def _judge(
        self,
        attempt: Attempt,
        at: float,
        judgement: AttemptOutcome,
        retry_after_s: float | None = None,
        why: str = "",
        failure_signal: FailureSignal | None = None,
    ) -> None:
        self._take_back(attempt)
        attempt.judgement, attempt.judged_at = judgement, at
        generated = attempt.has_output
        others_answer = False
        ended = attempt.ended
        if judgement is AttemptOutcome.NO_OUTPUT:
            why = explain_missing(attempt)
            others_answer = bool(self.outputs.others_answer(attempt, at))
        if ended is not None:
            generated = generated or self.outputs.is_presumed(attempt, ended) or self.outputs.is_foreign(attempt, ended)
            self._settle(attempt, ended)
        self._count(at, attempt.started_at, judgement, retry_after_s, why, generated, failure_signal, others_answer)

    def _take_back(self, attempt: Attempt) -> None:
        if attempt.judgement is not None:
            errors, attempts = as_errors(attempt.judgement)
            self.errors.add(attempt.judged_at, -errors, -attempts)
        if attempt.judgement is AttemptOutcome.FAILURE:
            self.failures_in_row = max(0, self.failures_in_row - 1)

    def _count(
        self,
        at: float,
        started_at: float,
        judgement: AttemptOutcome,
        retry_after_s: float | None,
        why: str,
        generated: bool = False,
        failure_signal: FailureSignal | None = None,
        others_answer: bool = False,
    ) -> None:
        self.errors.add(at, *as_errors(judgement))
        if judgement is AttemptOutcome.FAILURE:
            self.failures_in_row += 1
        elif judgement in (AttemptOutcome.SUCCESS, AttemptOutcome.UNKNOWN):
            self.failures_in_row = 0
        judged = OutcomeSeen(
            self._endpoint, at, started_at, judgement, retry_after_s, why, generated, failure_signal, others_answer
        )
        self._notify(judged)

    def _succeeded(self, now: float, attempt: Attempt, ended: AttemptEnded) -> None:
        self._judge(attempt, min(now, ended.at), AttemptOutcome.SUCCESS)
        self._note_life(now, attempt, ended)

    def _note_life(self, now: float, attempt: Attempt, ended: AttemptEnded) -> None:
        at = min(now, ended.at)
        self.output_clock.reads(at, attempt, goes_on=False)
        if attempt.judgement not in (AttemptOutcome.SUCCESS, AttemptOutcome.UNKNOWN) or not attempt.asks_for_output:
            return
        if ended.streamed or not (attempt.has_output or self.outputs.is_presumed(attempt, ended)):
            self.output_clock.went_on(at)
        else:
            self.output_clock.answered(at, max(0.0, ended.at - attempt.started_at))

    def _read(self, attempt: Attempt, event: StreamRead) -> None:
        self._marks_ends = self._marks_ends or event.finished
        self.output_clock.reads(event.at, attempt, goes_on=not (event.finished or event.truncated or event.verdict))
        if event.gaps_s:
            self.output_clock.went_on(event.at)
            if attempt.started_at <= self.output_clock.told_at < event.at:  # given up, it goes on after all
                self._notify(TokenSeen(self._endpoint, event.at, attempt.started_at, further=True))


def _is_streamed_answer(attempt: Attempt, ended: AttemptEnded) -> bool:
    return ended.streamed and is_success(ended.status) and attempt.rejected is None
