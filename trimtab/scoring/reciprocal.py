"""`reciprocal`: capacity over what is in flight, times how slow first tokens were recently."""

from collections.abc import Mapping
from math import log
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.config import Positive, Share
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.strict import Strict

_UNSEEN_TTFT_S = 0.1  # of a pool that has not shown a token yet
_LEAST_SLOWNESS = 1e-3  # with TTFT alone to count, a token at once would take everything


class ReciprocalPolicy(Strict):
    """Numbers of the `reciprocal` strategy."""

    strategy: Literal["reciprocal"] = Field("reciprocal", description="Names this strategy.")
    ttft_base_ms: Positive = Field(50, description="A TTFT that leaves the share as it is.")
    ttft_weight: Share = Field(
        0.8, description="How much TTFT counts, against what is in flight alone. 0 leaves TTFT out."
    )
    failures_max: Annotated[int, Field(ge=1)] = Field(
        3, description="After so many failures in a row an endpoint has no points, and the floor only."
    )


class Reciprocal(Strategy):
    """The strategy. See `docs/concepts/strategies/reciprocal.md`."""

    name: ClassVar[str] = "reciprocal"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.LEASES, Need.ERRORS})
    # What is in flight moves at every interval and corrects itself. Held back, it would answer the last interval; and
    # of twenty requests one is less than hysteresis lets through, just where the pool is full.
    slow_started: ClassVar[bool] = False
    damped: ClassVar[bool] = False
    request_bias: ClassVar[float] = 0.0

    def __init__(self, policy: ReciprocalPolicy) -> None:
        self._policy = policy

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        capacities = capacities_of(pool.endpoints)
        slowness = self._slowness(pool)
        queues = {view.id: view.load_attempts + 1.0 for view in pool.endpoints}
        free = [view.id for view in pool.endpoints if view.id in eligible.ids] or list(queues)
        least = min((queues[id] for id in free), default=1.0)
        fastest = min((slowness[id] for id in free), default=1.0)
        return {
            view.id: self._score(
                view,
                share=capacities[view.id] / (queues[view.id] * slowness[view.id]),
                queue=max(1.0, queues[view.id] / least),
                slow=max(1.0, slowness[view.id] / fastest),
            )
            for view in pool.endpoints
        }

    def _slowness(self, pool: PoolSnapshot) -> Mapping[EndpointId, float]:
        """By how much TTFT divides each endpoint's share."""
        # A stream that waits longer than tokens took recently is believed before them: the endpoint may hang.
        known = {
            view.id: max(view.ttft_recent_s, view.oldest_wait_s)
            for view in pool.endpoints
            if view.ttft_recent_s is not None
        }
        unseen = sum(known.values()) / len(known) if known else _UNSEEN_TTFT_S
        weight, base_s = self._policy.ttft_weight, self._policy.ttft_base_ms / 1000.0

        def slow(view: EndpointView) -> float:
            ttft_s = known.get(view.id, max(unseen, view.oldest_wait_s))
            return max(_LEAST_SLOWNESS, weight * ttft_s / base_s + 1.0 - weight)

        return {view.id: slow(view) for view in pool.endpoints}

    def _score(self, view: EndpointView, share: float, queue: float, slow: float) -> Score:
        """A score against the best of the pool: `queue` and `slow` are multiples of the least in it."""
        if view.failures_in_row >= self._policy.failures_max:
            return Score(0.0, 0.0, {"failures": 100.0}, f"{view.failures_in_row} failures in a row")
        lost = 100.0 - 100.0 / (queue * slow)
        # A product has no sum of losses; each factor pays by its part of the logarithm.
        whole = log(queue * slow) or 1.0
        return Score(100.0 - lost, share, {"in_flight": lost * log(queue) / whole, "ttft": lost * log(slow) / whole})
