"""All that is known of one incarnation of an endpoint: its attempts, its own readings, and Envoy's counts."""

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from trimtab.endpoint.attempt_tracker import ERROR_PRIOR, MEMORY_S, Conduct
from trimtab.endpoint.early_ends import AnswerTimes
from trimtab.endpoint.engine_rates import Spread
from trimtab.endpoint.engine_readings import Readings
from trimtab.endpoint.evidence import Evidence, ProbeHeard
from trimtab.endpoint.frozen_counters import Progress
from trimtab.endpoint.latency import Pace
from trimtab.endpoint.lrs import Differences, Moment
from trimtab.endpoint.peers import Peers
from trimtab.endpoint.prometheus_readings import Queried, Trust
from trimtab.endpoint.sampling_confidence import Coverage
from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.endpoint.spec import EndpointSpec
from trimtab.endpoint.token_ratio import PromptMeter, TokenRatio
from trimtab.observation.kinds import SCRAPE, Probed, SignalQueried, SignalsRead


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
    shaping and for laws goes to `tell`.
    """

    __slots__ = (
        "_born_at",
        "_differences",
        "_lease_difference",
        "_progress",
        "_prompts",
        "_queried",
        "_readings",
        "_tell",
        "_token_ratio",
        "conduct",
        "id",
        "pace",
        "spec",
    )

    def __init__(
        self,
        id: EndpointId,
        spec: EndpointSpec,
        *,
        born_at: float,
        ttft_alpha: float,
        coverage: Coverage,
        peers: Peers,
        answer_times: AnswerTimes,
        token_ratio: TokenRatio,
        departed: frozenset[str],
        tell: Callable[[Evidence], None],
    ) -> None:
        self.id = id
        self.spec = spec
        self.pace = Pace(MEMORY_S)
        self._prompts = PromptMeter()
        self._token_ratio = token_ratio
        self.conduct = Conduct(
            id,
            born_at=born_at,
            ttft_alpha=ttft_alpha,
            coverage=coverage,
            peers=peers,
            answer_times=answer_times,
            pace=self.pace,
            prompts=self._prompts,
            departed=departed,
            tell=tell,
        )
        self._born_at = born_at
        self._tell = tell
        self._readings = Readings()
        self._progress = Progress()
        self._queried = Queried()
        self._differences = Differences()
        self._lease_difference = 0

    def shows_restart(self, read: SignalsRead) -> bool:
        """Whether a reading comes from a later incarnation than this one."""
        return self._is_news(read) and self._readings.show_restart(read)

    def read(self, now: float, read: SignalsRead) -> None:
        if self._is_news(read):
            at = min(now, read.at)
            if (generated_since := self._readings.generated_since(read)) is not None:
                self.conduct.life.counted(generated_since)
            self._readings.take(at, read)
            self._progress.take(at, read.signals)
            if read.signals.generated_tokens is not None:
                self.pace.counted(at, self._readings.tokens_per_s_held(read.source))
            if read.source == SCRAPE:
                requests = read.signals.ttft.counts[-1] if read.signals.ttft else None
                if (ratio := self._prompts.counted(read.signals.prompt_tokens, requests)) is not None:
                    self._token_ratio.add(ratio)

    def shows_restart_queried(self, seen: SignalQueried) -> bool:
        """Whether an answer of Prometheus comes from a later incarnation than this one."""
        return self._is_of_now(seen) and self._queried.shows_restart(seen)

    def queried(self, now: float, seen: SignalQueried) -> None:
        if self._is_of_now(seen) and self._queried.take(seen) and seen.signal == "tokens_per_s":
            self.pace.counted(min(now, seen.sampled_at), seen.value)

    def probed(self, probed: Probed) -> None:
        if probed.started_at >= self._born_at:
            self._tell(ProbeHeard(self.id, probed))

    def settle(self, now: float, moments: Sequence[Moment]) -> None:
        """Draw what follows from the passing of time, and from what Envoys counted at some moments."""
        self.conduct.settle(now)
        self.pace.decoding(now, self.conduct.ledger.decoding)
        for moment in moments:
            if moment.oldest >= self._born_at:
                self._differences.note(moment.newest, self._difference(moment))
        self._lease_difference = self._differences.lasting(now)
        if self._lease_difference > 0:
            self.conduct.ledger.release_oldest(now, self._lease_difference, moments[-1].since)
            self._differences.start_over()

    def view(self, now: float, stale_after_s: float, trust: Trust, reported: int | None) -> EndpointView:
        """All that is known of it; `reported` is what Envoys have in flight by their own count."""
        queried = self._queried.view(self._readings.view(now, stale_after_s), now, trust)
        readings, rates = queried.readings, queried.readings.rates
        inter_token_s, inter_token_p99_s = self._gaps(now, rates.inter_token_s)
        conduct, ledger, pace = self.conduct, self.conduct.ledger, self.pace
        early_ends = conduct.outputs.early_ends
        conduct.engine_ttft_s = rates.ttft_s.mean if rates.ttft_s else None
        conduct.engine_gap_s = rates.inter_token_s.mean if rates.inter_token_s else None
        return EndpointView(
            id=self.id,
            name=self.spec.name,
            capacity=self.spec.capacity,
            labels=self.spec.labels,
            ttft_s=conduct.known_ttft(now),
            ttft_samples=conduct.ttft.samples,
            ttft_recent_s=pace.ttft_recent_s(now),
            ttft_p99_s=pace.ttft_p99_s(now),
            inter_token_s=inter_token_s,
            inter_token_p99_s=inter_token_p99_s,
            tokens_per_s=pace.tokens_per_s(now) if rates.tokens_per_s is None else rates.tokens_per_s,
            tokens_per_s_best=pace.tokens_per_s_best(now),
            prompt_tokens_per_s=rates.prompt_tokens_per_s,
            preemptions_per_s=rates.preemptions_per_s,
            prefix_hit_rate=rates.prefix_hit_rate,
            engine_ttft_s=rates.ttft_s,
            engine_inter_token_s=rates.inter_token_s,
            prompt_bytes_mean=pace.prompt_bytes_mean(now),
            prompt_bytes_std=pace.prompt_bytes_std(now),
            failures_in_row=conduct.failures_in_row,
            error_share=conduct.errors.share(now, prior_hits=0.0, prior_total=ERROR_PRIOR),
            error_samples=conduct.errors.total(now),
            # Where Envoy counts more than there are leases, their starts were lost.
            in_flight=ledger.in_flight + max(0, -self._lease_difference),
            awaiting_token=ledger.awaiting_token,
            outstanding_prompt_bytes=ledger.outstanding_prompt_bytes,
            ended_early=len(early_ends),
            ended_early_bytes=early_ends.prompt_bytes,
            prompt_bytes_sent=ledger.prompt_bytes_sent,
            oldest_wait_s=conduct.silence.longest_wait(now),
            signals=readings.signals,
            signals_age_s=self._readings.age(now),
            moved_at=self._progress.moved_at,
            frozen_s=self._progress.frozen_s(now, stale_after_s),
            signals_unknown=readings.unknown,
            signal_origins=readings.origins,
            custom=queried.custom,
            newest_sent_at=ledger.newest_started_at,
            in_flight_reported=reported,
            lease_difference=self._lease_difference,
        )

    def usual_ttft_s(self, now: float) -> float | None:
        """What is slow for a first token here [s]: the P99 of the last minute, or the mean of what came before."""
        p99_s = self.pace.ttft_p99_s(now)
        return self.conduct.ttft.value(now) if p99_s is None else p99_s

    def remember(self, now: float) -> ProfileMemory:
        ttft, errors = self.conduct.ttft, self.conduct.errors
        return ProfileMemory(
            ttft_s=ttft.value(now),
            ttft_samples=ttft.samples,
            ttft_at=ttft.at,
            errors=errors.hits(now),
            attempts=errors.total(now),
            process_start=self._readings.known("process_start"),
            generated_tokens=self._readings.known("generated_tokens"),
            tokens_per_s_best=self.pace.tokens_per_s_best(now),
        )

    def recall(self, at: float, memory: ProfileMemory) -> None:
        """Begin with what was remembered at `at`."""
        self.conduct.ttft.recall(min(memory.ttft_at, at), memory.ttft_s, memory.ttft_samples)
        self.conduct.errors.add(at, min(memory.errors, memory.attempts), memory.attempts)
        self._readings.recall(process_start=memory.process_start, generated_tokens=memory.generated_tokens)
        if memory.tokens_per_s_best is not None:
            self.pace.recall_best(at, memory.tokens_per_s_best)

    def _gaps(self, now: float, by_engine: Spread | None) -> tuple[float | None, float | None]:
        """Mean and P99 of the gaps between tokens: by the engine's histogram where no stream was read of late."""
        p99_s = self.pace.inter_token_p99_s(now)
        if p99_s is None and by_engine is not None:
            return by_engine.mean, by_engine.p99
        return self.pace.inter_token_s(now), p99_s

    def _difference(self, moment: Moment) -> int:
        """Leases minus what was reported, as far as it is certain: all the time that the reports span.

        What may run uncounted can be above the reports, and still helps to explain what is in them.
        """
        times = {moment.oldest, moment.newest}
        ledger, reported = self.conduct.ledger, moment.in_flight.get(self.id.address, 0)
        counted = min(ledger.in_flight_at(at, moment.since) for at in times)
        in_all = max(ledger.in_flight_at(at) for at in times)
        return max(0, counted - reported) + min(0, in_all - reported)

    def _is_of_now(self, seen: SignalQueried) -> bool:
        """Whether the samples behind a value are of this incarnation."""
        return seen.value is None or seen.sampled_at >= self._born_at

    def _is_news(self, read: SignalsRead) -> bool:
        return read.at >= self._born_at and self._readings.is_news(read)
