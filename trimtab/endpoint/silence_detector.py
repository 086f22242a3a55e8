"""Whether an endpoint keeps all who wait for it waiting: silence before a first token, and streams that stall."""

from collections.abc import Callable
from math import inf

from trimtab.endpoint.abandoned_waits import AbandonedWaits
from trimtab.endpoint.attempt import Attempt
from trimtab.endpoint.failure_signals import FailureSignal, Suspected
from trimtab.endpoint.latency import LatencyEstimators
from trimtab.endpoint.leases import LeaseTable
from trimtab.endpoint.output_clock import OutputClock, SilenceLimits
from trimtab.endpoint.sampling_confidence import SamplingConfidence
from trimtab.endpoint.snapshot import EndpointId
from trimtab.observation.kinds import AttemptEnded

# So many times `stalled_after_s` does a moving counter excuse that no stream goes on: a sequence that was preempted
# stands still while others generate.
_COUNTED_STALL = 2.0


class SilenceDetector:
    """Follows those who wait for one incarnation of an endpoint. `tell` hears of each suspicion."""

    __slots__ = (
        "_abandoned",
        "_endpoint",
        "_latency",
        "_ledger",
        "_longest_answer_s",
        "_notify",
        "_sampling_confidence",
        "answered_start",
        "output_clock",
    )

    def __init__(
        self,
        endpoint: EndpointId,
        leases: LeaseTable,
        sampling_confidence: SamplingConfidence,
        latency: LatencyEstimators,
        notify: Callable[[Suspected], None],
    ) -> None:
        self._endpoint = endpoint
        self._ledger = leases
        self._sampling_confidence = sampling_confidence
        self._latency = latency
        self._notify = notify
        self._abandoned = AbandonedWaits()
        self._longest_answer_s = 0.0  # of the pool, lately
        self.output_clock = OutputClock()
        self.answered_start = -inf  # when the latest of the unary requests that were answered was sent

    def suspect(
        self,
        now: float,
        silence_limits: SilenceLimits,
        usual_ttft_s: float | None,
        usual_answer_s: float | None,
        longest_answer_s: float,
    ) -> None:
        """Tell if it keeps all who wait for it waiting for far too long. None: what is usual is not known.

        `longest_answer_s` is how long the longest unary answer took recently, of any endpoint of the pool.
        """
        self._longest_answer_s = longest_answer_s
        since = self.output_clock.told_at
        if usual_ttft_s is not None:
            stream = self._ledger.waiting_stream(since, self._sampling_confidence.silent_rank(now))
            if stream is not None:
                silent_s = self.output_clock.silent_for(
                    now,
                    self.output_clock.waited_since(stream.started_at),
                    counter_excuses_s=silence_limits.stalled_after_s,
                )
                self._suspect_silence(now, silence_limits, silent_s, usual_ttft_s * self._size(now, stream), "token")
        if usual_answer_s is not None:
            # An answer of the time when the ext_proc workers were away may have come unseen.
            answer = self._ledger.waiting_answer(max(since, self._sampling_confidence.missed_until))
            if answer is not None:
                # It may be this answer that the counter counts, if it is as long as some are.
                excused_s = max(silence_limits.stalled_after_s, silence_limits.silent_factor * longest_answer_s)
                silent_s = self.output_clock.silent_for(now, answer.started_at, counter_excuses_s=excused_s)
                self._suspect_silence(now, silence_limits, silent_s, usual_answer_s, "answer")
        stalled_s = self.output_clock.stalled_for(
            now, counter_excuses_s=_COUNTED_STALL * silence_limits.stalled_after_s
        )
        if stalled_s > silence_limits.stalled_after_s:
            self._suspect(now, FailureSignal.STALLED, f"nothing more of its streams for {stalled_s:.1f} s")

    def wait(self, now: float) -> float:
        """How long [s] a stream has waited for its first token by now, as far as that is believed."""
        return self._ledger.wait(now, self._sampling_confidence.silent_rank(now))

    def longest_wait(self, now: float) -> float:
        """The longest wait [s] for a first token that is seen, or remembered of clients that gave up.

        Of a unary request it is what it waits beyond the longest answer of the pool. If a later one was answered, it is
        only a long one.
        """
        since = max(self.answered_start, self._sampling_confidence.missed_until, self.output_clock.told_at)
        answer = self._ledger.waiting_answer(since) if self._longest_answer_s else None
        overdue_s = now - answer.started_at - self._longest_answer_s if answer else 0.0
        return max(self.wait(now), self._abandoned.wait(now), overdue_s)

    def token_seen(self, at: float, ended_at: float | None) -> None:
        """A first token was seen at `at`, of an attempt that ended at `ended_at` if it has."""
        self._abandoned.token_seen(at if ended_at is None else ended_at)
        self.output_clock.alive(at)

    def gave_up(self, now: float, attempt: Attempt, ended: AttemptEnded) -> None:
        """A client left before a token was seen: unless it may have been overlooked, the endpoint was silent."""
        overlooked = (
            self._sampling_confidence.missed(attempt.started_at) or self._sampling_confidence.silent_rank(now) > 0
        )
        if (attempt.streamed or ended.streamed) and not (overlooked and ended.first_byte_s is not None):
            self._abandoned.gave_up(min(now, ended.at), max(0.0, ended.at - attempt.started_at))
            if not overlooked and attempt.started_at > self.output_clock.told_at:
                self.output_clock.gave_up(attempt.started_at, min(now, ended.at))

    def _size(self, now: float, attempt: Attempt) -> float:
        """How many times a usual prompt an attempt has, 1 at least: longer ones take longer."""
        usual = self._latency.prompt_bytes_mean(now)
        return max(1.0, attempt.prompt_bytes / usual) if usual and attempt.prompt_bytes else 1.0

    def _suspect_silence(
        self, now: float, silence_limits: SilenceLimits, silent_s: float, usual_s: float, what: str
    ) -> None:
        if silent_s > max(silence_limits.silent_after_s, silence_limits.silent_factor * usual_s):
            self._suspect(now, FailureSignal.SILENT, f"no {what} for {silent_s:.1f} s, where {usual_s:.1f} s is slow")

    def _suspect(self, now: float, failure_signal: FailureSignal, why: str) -> None:
        self._notify(Suspected(self._endpoint, now, self.output_clock.told_at, failure_signal, why))
        self.output_clock.told(now)
