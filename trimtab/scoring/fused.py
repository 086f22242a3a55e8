"""`fused`: first tokens, KV cache and prompt length in one sum, whose weights follow what hurts."""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.scoring.config import Positive, Share, sum_to_one
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import by_capacity, part, points_lost
from trimtab.stats.fading import FadingPeak, FadingShare
from trimtab.strict import Flaw, Strict
from trimtab.tokens import BYTES_PER_TOKEN

_SLA_HALF_LIFE_S = 30.0
# So many first tokens in time are imagined before the first: one late token of one is no violated SLA.
_SLA_PRIOR = 10.0
# A share of so many times the allowed one doubles the weight of TTFT.
_SLA_DOUBLES = 5.0
# A restart weighs like preemptions at their limit; as long as those are looked back on, it counts half.
_RESTART_HALF_LIFE_S = 60.0
_SPREAD_ALPHA = 0.02  # weight of a new prompt: the last fifty count most


class FusedPolicy(Strict):
    """Numbers of the `fused` strategy.

    The three weights are those at rest and must sum to 1: each may double, and then all are made to sum to 1.
    """

    strategy: Literal["fused"] = Field("fused", description="Names this strategy.")
    ttft_weight: Share = Field(0.5, description="Part of the points that TTFT can lose. 0 leaves it out.")
    kv_weight: Share = Field(0.3, description="Part of the points that KV usage can lose. 0 leaves it out.")
    length_weight: Share = Field(0.2, description="Part of the points that long prompts can lose. 0 leaves them out.")
    ttft_max_ms: Positive = Field(2000, description="A TTFT that loses all its points.")
    length_max_tokens: Positive = Field(4096, description="A mean prompt that loses all its points.")
    bytes_per_token: Positive = Field(
        BYTES_PER_TOKEN, description="Bytes of a request's body for each prompt token, until it is learned."
    )
    sla_ttft_ms: Positive = Field(2000, description="A first token that is later violates the SLA.")
    sla_violations: Share = Field(
        0.05,
        description="Share of violations from which TTFT weighs more; at five times this it weighs twice as much. "
        "0 counts each of them.",
    )
    preemptions_per_s: Positive = Field(
        0.1, description="Preemptions, on the endpoint with the most, at which KV usage weighs twice as much."
    )

    def flaws(self) -> Iterator[Flaw]:
        yield from sum_to_one(self, "ttft_weight", "kv_weight", "length_weight")


class Fused(Strategy):
    """The strategy. See `docs/concepts/strategies/fused.md`."""

    name: ClassVar[str] = "fused"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.KV_USAGE, Need.LEASES})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.PREEMPTIONS})

    def __init__(self, policy: FusedPolicy) -> None:
        self._policy = policy
        self._violations = FadingShare(_SLA_HALF_LIFE_S)
        self._prompts = _Spread()
        self._incarnations: Mapping[str, int] = {}
        self._restarts = FadingPeak(_RESTART_HALF_LIFE_S)

    def required(self) -> frozenset[Need]:
        return self.needs if self._policy.kv_weight else self.needs - {Need.KV_USAGE}

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        weights = self.weights(pool)
        said = ", ".join(f"{term} {weight:.2f}" for term, weight in weights.items())

        def lost(view: EndpointView) -> dict[str, float]:
            losses = self._losses(view, pool.bytes_per_token or self._policy.bytes_per_token)
            return points_lost({term: (weights[term], loss) for term, loss in losses.items()})

        return by_capacity(pool, lost, f"weights: {said}")

    def learn(self, sample: TokenSample) -> None:
        late = sample.ttft_s * 1000.0 > self._policy.sla_ttft_ms
        self._violations.add(sample.at, float(late), 1.0)
        self._prompts.add(sample.prompt_bytes)

    def weights(self, pool: PoolSnapshot) -> dict[str, float]:
        """The weights of the terms at `pool.at`, the same for all endpoints; they sum to 1."""
        policy = self._policy
        allowed = policy.sla_violations
        violations = self._violations.share(pool.at, prior_hits=0.0, prior_total=_SLA_PRIOR)
        preemptions = max((view.preemptions_per_s or 0.0 for view in pool.endpoints), default=0.0)
        shortage = max(preemptions / policy.preemptions_per_s, self._restarts.value(pool.at) or 0.0)
        # Between nothing and twice as much each, without a jump: a weight that jumps makes shares swing.
        grown = {
            "ttft": policy.ttft_weight * _grown((violations - allowed) / max(1e-3, (_SLA_DOUBLES - 1.0) * allowed)),
            "kv_usage": policy.kv_weight * _grown(shortage),
            # Spread by as much as their mean is ordinary; by twice as much, a few prompts are most of the work.
            "length": policy.length_weight * _grown(self._prompts.relative - 1.0),
        }
        total = sum(grown.values())
        return {term: weight / total for term, weight in grown.items()}

    def advance(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        """An engine that runs out of memory dies, and none says of what: a new process stands for that."""
        incarnations = {view.id.address: view.id.incarnation for view in pool.endpoints}
        if any(incarnations.get(address, known) > known for address, known in self._incarnations.items()):
            self._restarts.add(pool.at, 1.0)
        self._incarnations = incarnations

    def _losses(self, view: EndpointView, bytes_per_token: float) -> dict[str, float | None]:
        policy = self._policy
        return {
            "ttft": part(view.ttft_s, policy.ttft_max_ms / 1000.0),
            "kv_usage": view.signals.kv_usage,
            "length": part(view.prompt_bytes_mean, policy.length_max_tokens * bytes_per_token),
        }


class _Spread:
    """How far the prompts recently lie apart: an exponentially weighted mean and variance."""

    def __init__(self) -> None:
        self._samples = 0
        self._mean = 0.0
        self._variance = 0.0

    @property
    def relative(self) -> float:
        """The standard deviation as a multiple of the mean; 0 before the second prompt."""
        return sqrt(self._variance) / self._mean if self._mean > 0 else 0.0

    def add(self, value: float) -> None:
        self._samples += 1
        alpha = max(_SPREAD_ALPHA, 1.0 / self._samples)
        off = value - self._mean
        self._mean += alpha * off
        self._variance = (1.0 - alpha) * (self._variance + alpha * off * off)


def _grown(excess: float) -> float:
    return 1.0 + min(1.0, max(0.0, excess))
