"""What weighting decides: the weights of the next interval, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.observation.kinds import ProbeResult


class State(StrEnum):
    """What weighting does with an endpoint, and the word shown for it."""

    UP = "up"
    SLOW_START = "slow-start"  # its score may not rise faster than slow start lets it
    COOLING = "cooling"  # it said it was saturated
    SUSPECT = "suspect"  # one failure signal says that it does not generate; it takes work as ever
    DOWN = "down"  # it does not generate, by probes or by counters that stand still
    FULL = "full"  # KV usage at the limit while another has room
    CONSOLIDATED = "consolidated"  # the whole pool has little to do, and others do its work
    OPEN = "open"  # the breaker is open
    HALF_OPEN = "half-open"
    DRAINING = "draining"  # it, or discovery, said that it is going away, or is not ready
    PANIC = "panic"  # every endpoint would be out, so all are in, by capacity


@dataclass(frozen=True, slots=True)
class ProbeView:
    """Whether an endpoint generates, and what its last probe found. None is never."""

    state: State = State.UP  # or suspect, down, half-open
    by_probe: bool = True  # False: it is suspect or down by its counters
    alive_at: float | None = None  # when it was last seen to generate, Unix seconds
    unaware: bool = False  # it says that it is idle although it was given work: what it says is old
    at: float | None = None  # of the last probe, Unix seconds
    result: ProbeResult | None = None
    ttft_s: float | None = None
    reason: str = ""  # where the result is no token


@dataclass(frozen=True, slots=True)
class ClassDecision:
    """What one endpoint gets of one length class."""

    name: str
    share: float  # 0..1, of new work of the class; 0 while it takes none
    weight: int  # >= 1, the one to push
    takes_work: bool  # False: pushed as DRAINING


@dataclass(frozen=True, slots=True)
class EndpointDecision:
    """What one step decided for one endpoint, and why.

    In a pool with length classes each has a share and a weight of its own; beside them stand the means over classes.
    """

    id: EndpointId
    view: EndpointView
    score: float  # the strategy's, 0..100
    breakdown: Mapping[str, float]  # term -> points lost
    prediction_error: float | None  # of a strategy that predicts TTFT: mean |predicted - seen| / seen
    effective_score: float  # after slow start
    share: float  # 0..1, of new work; 0 while it takes no new work
    weight: int  # >= 1, the one to push
    takes_work: bool  # False: pushed as DRAINING
    state: State
    until: float | None  # when the state ends by itself, Unix seconds
    reason: str  # one line for people
    probe: ProbeView = ProbeView()
    classes: tuple[ClassDecision, ...] = ()  # short to long; of a pool that has none, none


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """One step of a pool. `changed`: it differs from the last decision that was changed (pushed)."""

    pool: str
    at: float
    endpoints: tuple[EndpointDecision, ...]
    changed: bool
    classes: tuple[str, ...] = ()  # names, short to long
    bytes_per_token: float | None = None  # see `PoolSnapshot`
    failure_signals: tuple[tuple[EndpointId, FailureSignal], ...] = ()  # of death, that were seen since the last step
    serves: bool = True  # an endpoint is in, or merely full: some requests are answered
