"""`health`: how far an endpoint is from trouble, by first tokens, errors, queue and KV usage."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.observation.kinds import Signals
from trimtab.scoring.config import Positive, Share, sum_to_one
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import by_capacity
from trimtab.strict import Flaw, Strict


class HealthPolicy(Strict):
    """Numbers of the `health` strategy. Its three weights must sum to 1."""

    strategy: Literal["health"] = "health"
    ttft_threshold_ms: Positive = Field(default=2000, description="A TTFT that loses all its points.")
    queue_max: Positive = Field(default=30, description="Waiting requests that lose all queue points.")
    kv_knee: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.8, description="KV usage from which points are lost."
    )
    error_gain: Positive = Field(default=5, description="An error share of 1/gain loses all its points.")
    ttft_weight: Share = Field(default=0.35, description="Part of the points that TTFT can lose.")
    error_weight: Share = Field(default=0.40, description="Part of the points that errors can lose.")
    load_weight: Share = Field(default=0.25, description="Part of the points that queue and KV usage can lose.")
    ttft_alpha: Annotated[float, Field(gt=0, le=1)] = Field(default=0.2, description="EWMA weight of a new TTFT.")

    def flaws(self) -> Iterator[Flaw]:
        yield from sum_to_one(self, "ttft_weight", "error_weight", "load_weight")


class Health(Strategy):
    """The strategy. See `docs/concepts/strategies/health.md`."""

    name: ClassVar[str] = "health"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.ERRORS})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.WAITING, Need.KV_USAGE})

    def __init__(self, policy: HealthPolicy) -> None:
        self._policy = policy
        self.ttft_alpha = policy.ttft_alpha

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        return by_capacity(pool, self._points_lost)

    def _points_lost(self, view: EndpointView) -> dict[str, float]:
        policy = self._policy
        ttft_s = view.ttft_s or 0.0  # nothing is seen to wait: nothing is held against the endpoint
        ttft = policy.ttft_weight * min(1.0, ttft_s * 1000.0 / policy.ttft_threshold_ms) ** 2
        errors = policy.error_weight * min(1.0, policy.error_gain * view.error_share)
        load = self._load(view.signals)
        if load is None:
            # What was observed carries the whole weight: the score lies between those of an empty and a
            # full engine.
            observed = policy.ttft_weight + policy.error_weight
            scale = 100.0 / observed if observed else 0.0
            return {"ttft": scale * ttft, "errors": scale * errors}
        return {"ttft": 100.0 * ttft, "errors": 100.0 * errors, "load": 100.0 * policy.load_weight * load}

    def _load(self, signals: Signals) -> float | None:
        """0 (idle) to 1 (full), by queue or KV cache, whichever is worse; None if neither is known."""
        queue = None if signals.waiting is None else min(1.0, signals.waiting / self._policy.queue_max)
        knee = self._policy.kv_knee
        kv = None if signals.kv_usage is None else min(1.0, max(0.0, (signals.kv_usage - knee) / (1.0 - knee)))
        return max((term for term in (queue, kv) if term is not None), default=None)
