"""One pool's control loop, pure: observations in, weights out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from trimtab.fleet.observation import Observation
from trimtab.fleet.snapshot import EndpointId, EndpointView
from trimtab.policy.model import Pool


class State(StrEnum):
    """What shaping does with an endpoint, and the word shown for it."""

    UP = "up"
    RAMPING = "ramping"  # its score may not rise faster than the ramp
    COOLING = "cooling"  # it said it was saturated
    FULL = "full"  # KV usage at the limit while another has room
    OPEN = "open"  # the breaker is open
    HALF_OPEN = "half-open"
    DRAINING = "draining"  # it said it is going away
    ALL_OUT = "all-out"  # every endpoint would be out, so all are in, by capacity


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One endpoint as discovery found it."""

    address: str  # ip:port, as Envoy will report it
    name: str  # as written in the policy
    capacity: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointDecision:
    """What one step decided for one endpoint, and why."""

    id: EndpointId
    view: EndpointView
    score: float  # the law's, 0..100
    breakdown: Mapping[str, float]  # term -> points lost
    shaped_score: float  # after the ramp
    share: float  # 0..1, of new work; 0 while it takes no new work
    weight: int  # >= 1, the one to push
    takes_work: bool  # False: pushed as DRAINING
    state: State
    until: float | None  # when the state ends by itself, Unix seconds
    reason: str  # one line for people


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """One step of a pool. `changed` says whether it differs from the last decision that was changed (pushed)."""

    pool: str
    at: float
    endpoints: tuple[EndpointDecision, ...]
    changed: bool


class PoolController:
    """Fleet, law and shaping of one pool. Not thread-safe: one owner calls it. `now` is Unix seconds."""

    def __init__(self, policy: Pool, rng: Random, memory: Mapping[str, Any] | None = None) -> None: ...

    def set_endpoints(self, now: float, endpoints: Sequence[EndpointSpec]) -> None:
        """Replace the set of endpoints. One that comes back after it was gone is a new incarnation."""

    def reconfigure(self, now: float, policy: Pool) -> None:
        """Take a new policy of the same pool; what is known of the endpoints is kept."""

    def observe(self, now: float, observations: Sequence[Observation]) -> None:
        """Take in observations of this pool, in any order; those of equal time are applied in a defined order."""

    def step(self, now: float) -> PoolDecision:
        """Compute the weights for the next interval."""
        raise NotImplementedError

    def remember(self, now: float) -> dict[str, Any]:
        """What was learned, JSON-able, for the state file."""
        raise NotImplementedError
