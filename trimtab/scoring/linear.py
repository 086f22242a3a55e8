"""`linear`: a plain sum of free KV cache, fast first tokens and free places."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.config import Positive, Share, sum_to_one
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import by_capacity, part, points_lost
from trimtab.strict import Flaw, Strict


class LinearPolicy(Strict):
    """Numbers of the `linear` strategy. Its three weights must sum to 1."""

    strategy: Literal["linear"] = Field("linear", description="Names this strategy.")
    kv_weight: Share = Field(0.4, description="Part of the points that KV usage can lose. 0 leaves it out.")
    ttft_weight: Share = Field(0.4, description="Part of the points that TTFT can lose. 0 leaves it out.")
    running_weight: Share = Field(
        0.2, description="Part of the points that running sequences can lose. 0 leaves them out."
    )
    ttft_max_ms: Positive = Field(2000, description="A TTFT that loses all its points.")
    running_max: Positive = Field(128, description="Running sequences that lose all their points.")

    def flaws(self) -> Iterator[Flaw]:
        yield from sum_to_one(self, "kv_weight", "ttft_weight", "running_weight")


class Linear(Strategy):
    """The strategy. See `docs/concepts/strategies/linear.md`."""

    name: ClassVar[str] = "linear"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.KV_USAGE})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.RUNNING})

    def __init__(self, policy: LinearPolicy) -> None:
        self._policy = policy

    def required(self) -> frozenset[Need]:
        return self.needs if self._policy.kv_weight else self.needs - {Need.KV_USAGE}

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        return by_capacity(pool, self._points_lost)

    def _points_lost(self, view: EndpointView) -> dict[str, float]:
        policy = self._policy
        # Where the engine does not say what it runs, what Envoy has in flight to it is the nearest.
        running = view.load_attempts if view.signals.running is None else view.signals.running
        return points_lost(
            {
                "kv_usage": (policy.kv_weight, view.signals.kv_usage),
                "ttft": (policy.ttft_weight, part(view.ttft_s, policy.ttft_max_ms / 1000.0)),
                "running": (policy.running_weight, part(running, policy.running_max)),
            }
        )
