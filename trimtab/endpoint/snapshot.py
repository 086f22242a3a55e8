"""The frozen view of a pool that strategies, pages and metrics read. It is built by `Fleet` and swapped whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from trimtab.endpoint.engine_rates import Spread
from trimtab.endpoint.engine_readings import Origin
from trimtab.endpoint.prometheus_readings import CustomReading
from trimtab.observation.kinds import Signals


@dataclass(frozen=True, slots=True, order=True)
class EndpointId:
    """An engine address with its incarnation: the same address after a restart is another endpoint."""

    address: str  # ip:port
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.address}#{self.incarnation}" if self.incarnation else self.address


@dataclass(frozen=True, slots=True)
class EndpointView:
    """All that is known of an endpoint at one moment (its profile, read only). None is UNKNOWN."""

    id: EndpointId
    name: str  # as written in the policy, e.g. "gpu-1.internal:8000"
    capacity: float | None  # as declared
    labels: Mapping[str, str] = field(default_factory=dict)
    ttft_s: float | None = None  # EWMA of first tokens, raised to the age of the oldest stream without one
    ttft_samples: int = 0
    ttft_recent_s: float | None = None  # mean of the last 50 first tokens, single outliers of a busy endpoint left out
    ttft_p99_s: float | None = None  # of the first tokens of the last 60 s
    # Gaps between tokens: by the streams that were read whole, without any recently by the engine's histogram.
    inter_token_s: float | None = None  # the mean
    inter_token_p99_s: float | None = None
    tokens_per_s: float | None = None  # generated now: by the engine's counter, without one by the streams read whole
    tokens_per_s_best: float | None = None  # the most that it held lately, fading slowly: what it can do
    prompt_tokens_per_s: float | None = None  # by the engine's counter, as the next two
    preemptions_per_s: float | None = None
    prefix_hit_rate: float | None = None  # 0..1
    engine_ttft_s: Spread | None = None  # by the engine's histogram, over the last seconds
    engine_inter_token_s: Spread | None = None  # likewise
    prompt_bytes_mean: float | None = None  # of recent attempts
    prompt_bytes_std: float | None = None  # likewise, the standard deviation
    failures_in_row: int = 0  # attempts that ended as errors since the last one that did not
    error_share: float = 0.0  # 0..1, decaying; quota answers and aborts by clients are not in it
    error_samples: float = 0.0  # decayed number of attempts behind it
    in_flight: int = 0
    awaiting_token: int = 0  # of these, streams that have not shown a token
    newest_sent_at: float | None = None  # when the newest of them was sent
    outstanding_prompt_bytes: int = 0  # of attempts that have not shown a token
    prompt_bytes_sent: int = 0  # of all attempts since this incarnation began
    ended_early: int = 0  # attempts that ended without output, before an answer would have
    ended_early_bytes: int = 0  # of their prompts
    oldest_wait_s: float = 0.0  # of a stream without a token; fading, of one whose client gave up
    signals: Signals = field(default_factory=Signals)  # without histograms; stale values are None
    signals_age_s: float | None = None  # of the newest good reading
    moved_at: float | None = None  # when the engine's own numbers were last seen to move
    frozen_s: float | None = None  # how long they have stood still although it says that it has work
    signals_unknown: Mapping[str, str] = field(default_factory=dict)  # why each of the others is not known
    signal_origins: Mapping[str, Origin] = field(default_factory=dict)  # of each known one
    custom: Mapping[str, CustomReading] = field(default_factory=dict)  # the policy's custom signals
    in_flight_reported: int | None = None  # by LRS, over all Envoys
    lease_difference: int = 0  # leases minus LRS, where it has lasted

    @property
    def load_attempts(self) -> int:
        """Attempts as they count as load: those in flight, and those that ended early without output."""
        return self.in_flight + self.ended_early

    @property
    def load_prompt_bytes(self) -> int:
        """Outstanding prompt bytes as they count as load: likewise."""
        return self.outstanding_prompt_bytes + self.ended_early_bytes


@dataclass(frozen=True, slots=True)
class ClassView:
    """A length class of a pool: requests whose bodies are about as long."""

    name: str
    up_to_bytes: float = inf  # the longest body that is in it
    prompt_bytes_sent: int = 0  # of all its attempts since the pool has the class


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool at one moment, endpoints in a defined order (by id)."""

    pool: str
    at: float
    endpoints: tuple[EndpointView, ...]
    classes: tuple[ClassView, ...] = ()  # short to long; of a pool that has none, none
    bytes_per_token: float | None = None  # of a request's body for each prompt token, by what the engines count


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One first token with the load that its attempt met when it was sent (itself included)."""

    endpoint: EndpointId
    at: float
    ttft_s: float
    prompt_bytes: int
    outstanding_prompt_bytes: int
    in_flight: int
