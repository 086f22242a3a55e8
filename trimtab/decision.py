"""What weighting decides: the weights of the next interval, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.health.state import ProbeView, State


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
    probe: ProbeView = field(default_factory=ProbeView)
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
