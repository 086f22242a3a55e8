"""What shaping decides: the weights of the next interval, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.fleet.signs import Sign
from trimtab.fleet.snapshot import EndpointId, EndpointView


class State(StrEnum):
    """What shaping does with an endpoint, and the word shown for it."""

    UP = "up"
    RAMPING = "ramping"  # its score may not rise faster than the ramp
    COOLING = "cooling"  # it said it was saturated
    FULL = "full"  # KV usage at the limit while another has room
    OPEN = "open"  # the breaker is open
    HALF_OPEN = "half-open"
    DRAINING = "draining"  # it, or discovery, said that it is going away, or is not ready
    ALL_OUT = "all-out"  # every endpoint would be out, so all are in, by capacity


@dataclass(frozen=True, slots=True)
class EndpointDecision:
    """What one step decided for one endpoint, and why."""

    id: EndpointId
    view: EndpointView
    score: float  # the law's, 0..100
    breakdown: Mapping[str, float]  # term -> points lost
    prediction_error: float | None  # of a law that predicts TTFT: mean |predicted - seen| / seen
    shaped_score: float  # after the ramp
    share: float  # 0..1, of new work; 0 while it takes no new work
    weight: int  # >= 1, the one to push
    takes_work: bool  # False: pushed as DRAINING
    state: State
    until: float | None  # when the state ends by itself, Unix seconds
    reason: str  # one line for people


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """One step of a pool. `changed`: it differs from the last decision that was changed (pushed)."""

    pool: str
    at: float
    endpoints: tuple[EndpointDecision, ...]
    changed: bool
    signs: tuple[tuple[EndpointId, Sign], ...] = ()  # of death, that were seen since the last step
