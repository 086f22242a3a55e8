"""All that is known of one incarnation of an endpoint: its attempts, its own readings, and Envoy's counts."""

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from trimtab.endpoint.attempt_tracker import ERROR_PRIOR, MEMORY_S, AttemptTracker
from trimtab.endpoint.early_ends import AnswerTimes
from trimtab.endpoint.engine_rates import Spread
from trimtab.endpoint.engine_readings import Readings
from trimtab.endpoint.evidence import Evidence, ProbeSeen
from trimtab.endpoint.frozen_counters import FrozenCounters
from trimtab.endpoint.latency import LatencyEstimators
from trimtab.endpoint.lrs import Differences, Moment
from trimtab.endpoint.peers import Peers
from trimtab.endpoint.prometheus_readings import PrometheusReadings, Trust
from trimtab.endpoint.sampling_confidence import SamplingConfidence
from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.endpoint.spec import EndpointSpec
from trimtab.endpoint.token_ratio import PromptMeter, TokenRatio
from trimtab.observation.kinds import SCRAPE, Probed, PrometheusSample, SignalsRead


class ProfileMemory(BaseModel):
    """What of a profile is kept over a restart of the control plane."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    ttft_s: float | None = Field(default=None, ge=0)
    ttft_samples: int = Field(default=0, ge=0)
    ttft_at: float = 0
    errors: float = Field(default=0, ge=0, le=1e9)
    attempts: float = Field(default=0, ge=0, le=1e9)
    process_start: float | None = None
    generated_tokens: float | None = Field(default=None, ge=0)
    tokens_per_s_best: float | None = Field(default=None, ge=0)


class Profile:
    """One incarnation, born at a moment: whatever concerns an earlier time is left aside.

    `departed` are the requests that an earlier incarnation of the address still had in flight. Evidence for
    weighting and for strategies goes to `tell`.
    """

    __slots__ = (
        "_born_at",
        "_differences",
        "_frozen_counters",
        "_lease_difference",
        "_notify",
        "_prometheus_readings",
        "_prompts",
        "_readings",
        "_token_ratio",
        "id",
        "latency",
        "spec",
        "tracker",
    )

    def __init__(
        self,
        id: EndpointId,
        spec: EndpointSpec,
        *,
        born_at: float,
        ttft_alpha: float,
        sampling_confidence: SamplingConfidence,
        peers: Peers,
        answer_times: AnswerTimes,
        token_ratio: TokenRatio,
        departed: frozenset[str],
        notify: Callable[[Evidence], None],
    ) -> None:
        self.id = id
        self.spec = spec
        self.latency = LatencyEstimators(MEMORY_S)
        self._prompts = PromptMeter()
        self._token_ratio = token_ratio
        self.tracker = AttemptTracker(
            id,
            born_at=born_at,
            ttft_alpha=ttft_alpha,
            sampling_confidence=sampling_confidence,
            peers=peers,
            answer_times=answer_times,
            latency=self.latency,
            prompts=self._prompts,
            departed=departed,
            notify=notify,
        )
        self._born_at = born_at
        self._notify = notify
        self._readings = Readings()
        self._frozen_counters = FrozenCounters()
        self._prometheus_readings = PrometheusReadings()
        self._differences = Differences()
        self._lease_difference = 0

    def shows_restart(self, read: SignalsRead) -> bool:
        """Whether a reading comes from a later incarnation than this one."""
        return self._is_news(read) and self._readings.show_restart(read)

    def read(self, now: float, read: SignalsRead) -> None:
        if self._is_news(read):
            at = min(now, read.at)
            if (generated_since := self._readings.generated_since(read)) is not None:
                self.tracker.output_clock.counted(generated_since)
            self._readings.take(at, read)
            self._frozen_counters.take(at, read.signals)
            if read.signals.generated_tokens is not None:
                self.latency.counted(at, self._readings.tokens_per_s_held(read.source))
            if read.source == SCRAPE:
                requests = read.signals.ttft.counts[-1] if read.signals.ttft else None
                if (ratio := self._prompts.counted(read.signals.prompt_tokens, requests)) is not None:
                    self._token_ratio.add(ratio)

    def prometheus_shows_restart(self, seen: PrometheusSample) -> bool:
        """Whether an answer of Prometheus comes from a later incarnation than this one."""
        return self._is_of_now(seen) and self._prometheus_readings.shows_restart(seen)

    def prometheus_readings(self, now: float, seen: PrometheusSample) -> None:
        if self._is_of_now(seen) and self._prometheus_readings.take(seen) and seen.signal == "tokens_per_s":
            self.latency.counted(min(now, seen.sampled_at), seen.value)

    def probed(self, probed: Probed) -> None:
        if probed.started_at >= self._born_at:
            self._notify(ProbeSeen(self.id, probed))

    def settle(self, now: float, moments: Sequence[Moment]) -> None:
        """Draw what follows from the passing of time, and from what Envoys counted at some moments."""
        self.tracker.settle(now)
        self.latency.decoding(now, self.tracker.leases.decoding)
        for moment in moments:
            if moment.oldest >= self._born_at:
                self._differences.note(moment.newest, self._difference(moment))
        self._lease_difference = self._differences.lasting(now)
        if self._lease_difference > 0:
            self.tracker.leases.release_oldest(now, self._lease_difference, moments[-1].since)
            self._differences.start_over()

    def view(self, now: float, stale_after_s: float, trust: Trust, reported: int | None) -> EndpointView:
        """All that is known of it; `reported` is what Envoys have in flight by their own count."""
        prometheus_readings = self._prometheus_readings.view(self._readings.view(now, stale_after_s), now, trust)
        readings, rates = prometheus_readings.readings, prometheus_readings.readings.rates
        inter_token_s, inter_token_p99_s = self._gaps(now, rates.inter_token_s)
        tracker, leases, latency = self.tracker, self.tracker.leases, self.latency
        early_ends = tracker.outputs.early_ends
        tracker.engine_ttft_s = rates.ttft_s.mean if rates.ttft_s else None
        tracker.engine_gap_s = rates.inter_token_s.mean if rates.inter_token_s else None
        return EndpointView(
            id=self.id,
            name=self.spec.name,
            capacity=self.spec.capacity,
            labels=self.spec.labels,
            ttft_s=tracker.known_ttft(now),
            ttft_samples=tracker.ttft.samples,
            ttft_recent_s=latency.ttft_recent_s(now),
            ttft_p99_s=latency.ttft_p99_s(now),
            inter_token_s=inter_token_s,
            inter_token_p99_s=inter_token_p99_s,
            tokens_per_s=latency.tokens_per_s(now) if rates.tokens_per_s is None else rates.tokens_per_s,
            tokens_per_s_best=latency.tokens_per_s_best(now),
            prompt_tokens_per_s=rates.prompt_tokens_per_s,
            preemptions_per_s=rates.preemptions_per_s,
            prefix_hit_rate=rates.prefix_hit_rate,
            engine_ttft_s=rates.ttft_s,
            engine_inter_token_s=rates.inter_token_s,
            prompt_bytes_mean=latency.prompt_bytes_mean(now),
            prompt_bytes_std=latency.prompt_bytes_std(now),
            failures_in_row=tracker.failures_in_row,
            error_share=tracker.errors.share(now, prior_hits=0.0, prior_total=ERROR_PRIOR),
            error_samples=tracker.errors.total(now),
            # Where Envoy counts more than there are leases, their starts were lost.
            in_flight=leases.in_flight + max(0, -self._lease_difference),
            awaiting_token=leases.awaiting_token,
            outstanding_prompt_bytes=leases.outstanding_prompt_bytes,
            ended_early=len(early_ends),
            ended_early_bytes=early_ends.prompt_bytes,
            prompt_bytes_sent=leases.prompt_bytes_sent,
            oldest_wait_s=tracker.silence.longest_wait(now),
            signals=readings.signals,
            signals_age_s=self._readings.age(now),
            moved_at=self._frozen_counters.moved_at,
            frozen_s=self._frozen_counters.frozen_s(now, stale_after_s),
            signals_unknown=readings.unknown,
            signal_origins=readings.origins,
            custom=prometheus_readings.custom,
            newest_sent_at=leases.newest_started_at,
            in_flight_reported=reported,
            lease_difference=self._lease_difference,
        )

    def usual_ttft_s(self, now: float) -> float | None:
        """What is slow for a first token here [s]: the P99 of the last minute, or the mean of what came before."""
        p99_s = self.latency.ttft_p99_s(now)
        return self.tracker.ttft.value(now) if p99_s is None else p99_s

    def dump(self, now: float) -> ProfileMemory:
        ttft, errors = self.tracker.ttft, self.tracker.errors
        return ProfileMemory(
            ttft_s=ttft.value(now),
            ttft_samples=ttft.samples,
            ttft_at=ttft.at,
            errors=errors.hits(now),
            attempts=errors.total(now),
            process_start=self._readings.known("process_start"),
            generated_tokens=self._readings.known("generated_tokens"),
            tokens_per_s_best=self.latency.tokens_per_s_best(now),
        )

    def restore(self, at: float, memory: ProfileMemory) -> None:
        """Begin with what was remembered at `at`."""
        self.tracker.ttft.restore(min(memory.ttft_at, at), memory.ttft_s, memory.ttft_samples)
        self.tracker.errors.add(at, min(memory.errors, memory.attempts), memory.attempts)
        self._readings.restore(process_start=memory.process_start, generated_tokens=memory.generated_tokens)
        if memory.tokens_per_s_best is not None:
            self.latency.restore_best(at, memory.tokens_per_s_best)

    def _gaps(self, now: float, by_engine: Spread | None) -> tuple[float | None, float | None]:
        """Mean and P99 of the gaps between tokens: by the engine's histogram where no stream was read recently."""
        p99_s = self.latency.inter_token_p99_s(now)
        if p99_s is None and by_engine is not None:
            return by_engine.mean, by_engine.p99
        return self.latency.inter_token_s(now), p99_s

    def _difference(self, moment: Moment) -> int:
        """Leases minus what was reported, as far as it is certain: all the time that the reports span.

        What may run uncounted can be above the reports, and still helps to explain what is in them.
        """
        times = {moment.oldest, moment.newest}
        leases, reported = self.tracker.leases, moment.in_flight.get(self.id.address, 0)
        counted = min(leases.in_flight_at(at, moment.since) for at in times)
        in_all = max(leases.in_flight_at(at) for at in times)
        return max(0, counted - reported) + min(0, in_all - reported)

    def _is_of_now(self, seen: PrometheusSample) -> bool:
        """Whether the samples behind a value are of this incarnation."""
        return seen.value is None or seen.sampled_at >= self._born_at

    def _is_news(self, read: SignalsRead) -> bool:
        return read.at >= self._born_at and self._readings.is_news(read)
