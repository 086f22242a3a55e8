"""All that is known of one incarnation of an endpoint: its attempts, its own readings, and Envoy's counts."""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from trimtab.fleet.conduct import ERROR_PRIOR, Conduct, Evidence
from trimtab.fleet.coverage import Coverage
from trimtab.fleet.load import LoadReports
from trimtab.fleet.observation import LoadReported, SignalQueried, SignalsRead
from trimtab.fleet.queried import Queried, Trust
from trimtab.fleet.readings import Readings
from trimtab.fleet.snapshot import EndpointId, EndpointView
from trimtab.fleet.spec import EndpointSpec


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


class Profile:
    """One incarnation, born at a moment: whatever concerns an earlier time is left aside.

    `departed` are the requests that an earlier incarnation of the address still had in flight. Evidence for
    shaping and for laws goes to `tell`.
    """

    def __init__(
        self,
        id: EndpointId,
        spec: EndpointSpec,
        *,
        born_at: float,
        ttft_alpha: float,
        coverage: Coverage,
        departed: frozenset[str],
        tell: Callable[[Evidence], None],
    ) -> None:
        self.id = id
        self.spec = spec
        self.conduct = Conduct(
            id, born_at=born_at, ttft_alpha=ttft_alpha, coverage=coverage, departed=departed, tell=tell
        )
        self._born_at = born_at
        self._readings = Readings()
        self._queried = Queried()
        self._load = LoadReports()
        self._lease_difference = 0

    def shows_restart(self, read: SignalsRead) -> bool:
        """Whether a reading comes from a later incarnation than this one."""
        return self._is_news(read) and self._readings.show_restart(read)

    def read(self, now: float, read: SignalsRead) -> None:
        if self._is_news(read):
            self._readings.take(min(now, read.at), read)

    def shows_restart_queried(self, seen: SignalQueried) -> bool:
        """Whether an answer of Prometheus comes from a later incarnation than this one."""
        return self._is_of_now(seen) and self._queried.shows_restart(seen)

    def queried(self, seen: SignalQueried) -> None:
        if self._is_of_now(seen):
            self._queried.take(seen)

    def load_reported(self, now: float, report: LoadReported) -> None:
        if report.at >= self._born_at:
            self._load.take(min(now, report.at), report.node, report.in_flight)

    def settle(self, now: float) -> None:
        """Draw what follows from the passing of time."""
        self.conduct.settle(now)
        ledger = self.conduct.ledger
        for at, reported in self._load.settled(now):
            self._load.differ(at, ledger.in_flight_at(at) - reported)
        self._lease_difference = self._load.lasting_difference(now)
        if self._lease_difference > 0:
            ledger.release_oldest(now, self._lease_difference)
            self._load.start_over()

    def view(self, now: float, stale_after_s: float, trust: Trust) -> EndpointView:
        queried = self._queried.view(self._readings.view(now, stale_after_s), now, trust)
        readings = queried.readings
        conduct, ledger = self.conduct, self.conduct.ledger
        return EndpointView(
            id=self.id,
            name=self.spec.name,
            capacity=self.spec.capacity,
            labels=self.spec.labels,
            ttft_s=conduct.known_ttft(now),
            ttft_samples=conduct.ttft.samples,
            error_share=conduct.errors.share(now, prior_hits=0.0, prior_total=ERROR_PRIOR),
            error_samples=conduct.errors.total(now),
            # Where Envoy counts more than there are leases, their starts were lost.
            in_flight=ledger.in_flight + max(0, -self._lease_difference),
            awaiting_token=ledger.awaiting_token,
            outstanding_prompt_bytes=ledger.outstanding_prompt_bytes,
            prompt_bytes_sent=ledger.prompt_bytes_sent,
            oldest_wait_s=conduct.silence(now),
            signals=readings.signals,
            signals_age_s=self._readings.age(now),
            signals_unknown=readings.unknown,
            signal_origins=readings.origins,
            rates=readings.rates,
            custom=queried.custom,
            in_flight_reported=self._load.total(now),
            lease_difference=self._lease_difference,
        )

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
        )

    def recall(self, at: float, memory: ProfileMemory) -> None:
        """Begin with what was remembered at `at`."""
        self.conduct.ttft.recall(min(memory.ttft_at, at), memory.ttft_s, memory.ttft_samples)
        self.conduct.errors.add(at, min(memory.errors, memory.attempts), memory.attempts)
        self._readings.recall(process_start=memory.process_start, generated_tokens=memory.generated_tokens)

    def _is_of_now(self, seen: SignalQueried) -> bool:
        """Whether the samples behind a value are of this incarnation."""
        return seen.value is None or seen.sampled_at >= self._born_at

    def _is_news(self, read: SignalsRead) -> bool:
        return read.at >= self._born_at and self._readings.is_news(read)
