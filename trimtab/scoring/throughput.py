"""`throughput`: work in proportion to the tokens per second that each endpoint was seen to generate."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.capacity import capabilities_of, capacities_of
from trimtab.scoring.config import Share
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import against_the_best
from trimtab.strict import Strict


class ThroughputPolicy(Strict):
    """Numbers of the `throughput` strategy."""

    strategy: Literal["throughput"] = Field("throughput", description="Names this strategy.")
    capacity_part: Share = Field(
        0.2,
        description="Part of the share of an endpoint without a queue that follows capacity instead. 0 leaves it out.",
    )


class Throughput(Strategy):
    """The strategy. See `docs/concepts/strategies/throughput.md`."""

    name: ClassVar[str] = "throughput"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TOKENS_PER_S})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.WAITING})

    def __init__(self, policy: ThroughputPolicy) -> None:
        self._policy = policy

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        capacities, capabilities = capacities_of(pool.endpoints), capabilities_of(pool.endpoints)
        capacity, capability = sum(capacities.values()), sum(capabilities.values())
        shares = {}
        for view in pool.endpoints:
            by_capacity, by_tokens = capacities[view.id] / capacity, capabilities[view.id] / capability
            # Without a queue, tokens per second mirror the share that was given: taken at their word they would keep
            # whatever chance has made of the shares. A full endpoint shows what it can do.
            pull = 0.0 if view.signals.waiting else self._policy.capacity_part
            shares[view.id] = (1.0 - self._policy.capacity_part) * by_tokens + pull * by_capacity
        scores = against_the_best(pool, shares)
        return {
            view.id: Score(scores[view.id], shares[view.id], {"tokens": 100.0 - scores[view.id]}, _why(view))
            for view in pool.endpoints
        }


def _why(view: EndpointView) -> str:
    if not view.tokens_per_s_best:
        return "no tokens were measured yet"
    return f"was seen to generate {view.tokens_per_s_best:.0f} tokens/s"
