"""`decode_p99`: every few seconds, less work for endpoints whose slowest gaps between tokens are too long."""

from collections.abc import Mapping
from math import exp
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.config import Positive, remembered
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import against_the_best
from trimtab.strict import Strict

# The window of the P99 outlives many steps, each of which takes it anew: without an end, a bad minute would cost
# an endpoint more than it could win back in hours.
_LEAST = 0.02
_FORGOTTEN = 0.1  # per step, of how far an endpoint is from the others whose own gaps are not known
_WORST = 0.5  # the second factor takes no more than this
_LEAST_FACTOR = 1e-9  # of a step: where all gaps are far too long, the weights must still have a largest one


class DecodeP99Policy(Strict):
    """Numbers of the `decode_p99` strategy."""

    strategy: Literal["decode_p99"] = Field("decode_p99", description="Names this strategy.")
    gap_slo_ms: Positive = Field(80, description="P99 of the gaps between tokens that is good enough.")
    decay_per_ms: Annotated[float, Field(ge=0, le=1)] = Field(
        0.005, description="What each millisecond above costs of the weight per step. 0 leaves this factor out."
    )
    gain: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="What a P99 of nothing wins of the weight per step. 0 leaves this factor out."
    )
    step_s: Positive = Field(5, description="How often the weights take a step.")


class DecodeP99(Strategy):
    """The strategy. See `docs/concepts/strategies/decode_p99.md`."""

    name: ClassVar[str] = "decode_p99"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.INTER_TOKEN})

    def __init__(self, policy: DecodeP99Policy) -> None:
        self._policy = policy
        self._weights: dict[EndpointId, float] = {}  # per capacity, at most 1
        self._memory: dict[str, float] = {}
        self._stepped_at: float | None = None

    def advance(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        now = pool.at
        for view in pool.endpoints:
            if view.id not in self._weights:
                self._weights[view.id] = self._memory.pop(view.id.address, 1.0)
        if self._stepped_at is None or now < self._stepped_at:
            self._stepped_at = now
        elif now - self._stepped_at >= self._policy.step_s:
            self._stepped_at = now
            self._step(pool, eligible)

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        capacities = capacities_of(pool.endpoints)
        shares = {view.id: self._weights.get(view.id, 1.0) * capacities[view.id] for view in pool.endpoints}
        scores = against_the_best(pool, shares)
        return {
            view.id: Score(scores[view.id], shares[view.id], {"gaps": 100.0 - scores[view.id]}, _why(view))
            for view in pool.endpoints
        }

    def forget(self, endpoint: EndpointId) -> None:
        self._weights.pop(endpoint, None)
        self._memory.pop(endpoint.address, None)

    def dump(self) -> dict[str, Any]:
        return self._memory | {id.address: weight for id, weight in sorted(self._weights.items())}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._memory = {
            address: max(_LEAST, min(1.0, weight))
            for address, value in memory.items()
            if (weight := remembered(value)) is not None
        }

    def _step(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        # Of one that is not eligible the window tells what was before.
        free = [view for view in pool.endpoints if view.id in eligible.ids]
        known = {view.id: view.inter_token_p99_s * 1000.0 for view in free if view.inter_token_p99_s is not None}
        for id, p99_ms in known.items():
            self._weights[id] *= self._factor(p99_ms)
        largest = max((self._weights[view.id] for view in pool.endpoints), default=1.0)
        for view in pool.endpoints:
            self._weights[view.id] = max(_LEAST, self._weights[view.id] / largest)
        if not known:
            return
        usual = sum(self._weights[id] for id in known) / len(known)
        for view in free:
            if view.id not in known:
                self._weights[view.id] += _FORGOTTEN * (usual - self._weights[view.id])

    def _factor(self, p99_ms: float) -> float:
        slo = self._policy.gap_slo_ms
        drop = exp(-self._policy.decay_per_ms * max(0.0, p99_ms - slo))
        return max(_LEAST_FACTOR, drop * max(_WORST, 1.0 + self._policy.gain * (slo - p99_ms) / slo))


def _why(view: EndpointView) -> str:
    if view.inter_token_p99_s is None:
        return "no stream was read to its end recently"
    return f"one gap in a hundred between its tokens is longer than {1000 * view.inter_token_p99_s:.0f} ms"
