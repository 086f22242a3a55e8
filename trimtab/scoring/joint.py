"""`joint`: the health of an endpoint and what it can do, added up in parts that follow the state of the pool."""

from collections.abc import Mapping
from math import exp, inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, PoolSnapshot
from trimtab.scoring.capacity import capabilities_of
from trimtab.scoring.config import Positive
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.health import Health, HealthPolicy
from trimtab.strict import Strict

_Alpha = Annotated[float, Field(ge=0.3, le=0.7)]

_PEAK_HALF_LIFE_S = 600.0  # of the recent maximum in flight
_PEAK_SHARE = 0.8  # of that maximum, from which on the load is at its peak
_SETTLE_S = 5.0  # alpha goes to its new value with this time constant: load crosses the mark again and again


class JointPolicy(Strict):
    """Numbers of the `joint` strategy. An alpha is the part of the score that health has; capacity has the rest."""

    strategy: Literal["joint"] = Field("joint", description="Names this strategy.")
    alpha: _Alpha = Field(0.5, description="In ordinary times.")
    alpha_at_peak: _Alpha = Field(0.4, description="While more is in flight than 80 % of the recent maximum.")
    alpha_in_recovery: _Alpha = Field(0.65, description="While an endpoint has just come back into the pool.")
    recovery_s: Positive = Field(60, description="How long that is after weighting has let it in again.")
    ttft_threshold_ms: Positive = Field(2000, description="Of health: a TTFT that loses all its points.")


class Joint(Strategy):
    """The strategy. See `docs/concepts/strategies/joint.md`."""

    name: ClassVar[str] = "joint"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.ERRORS, Need.LEASES})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.WAITING, Need.KV_USAGE, Need.TOKENS_PER_S})

    def __init__(self, policy: JointPolicy) -> None:
        self._policy = policy
        self._health = Health(HealthPolicy(ttft_threshold_ms=policy.ttft_threshold_ms))
        self._peak = 0.0  # most in flight recently, over the pool
        self._ineligible: frozenset[EndpointId] = frozenset()
        self._recovered_at = -inf
        self._advanced_at: float | None = None
        self.alpha = policy.alpha

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        healths, capabilities = self._health.score(pool, eligible), capabilities_of(pool.endpoints)
        most = max(capabilities.values(), default=1.0)
        scores = {}
        for view in pool.endpoints:
            lost = {term: self.alpha * points for term, points in healths[view.id].breakdown.items()}
            lost["capacity"] = 100.0 * (1.0 - self.alpha) * (1.0 - capabilities[view.id] / most)
            score = max(0.0, 100.0 - sum(lost.values()))
            # Capacity is in the score, so it does not multiply it.
            scores[view.id] = Score(score, score / 100.0, lost, f"alpha is {self.alpha:.2f}")
        return scores

    def advance(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        """Let alpha follow load and recovery; between 0.3 and 0.7 wherever it is on its way."""
        now = pool.at
        elapsed = 0.0 if self._advanced_at is None else max(0.0, now - self._advanced_at)
        in_flight = sum(view.load_attempts for view in pool.endpoints)
        self._peak = max(in_flight, self._peak * 0.5 ** (elapsed / _PEAK_HALF_LIFE_S))
        if self._ineligible & eligible.ids:
            self._recovered_at = now
        self._ineligible = frozenset(view.id for view in pool.endpoints) - eligible.ids
        self._advanced_at = now
        self.alpha += (self._wanted(in_flight, now) - self.alpha) * (1.0 - exp(-elapsed / _SETTLE_S))

    def _wanted(self, in_flight: int, now: float) -> float:
        if now < self._recovered_at + self._policy.recovery_s:
            return self._policy.alpha_in_recovery
        return self._policy.alpha_at_peak if in_flight > _PEAK_SHARE * self._peak else self._policy.alpha
