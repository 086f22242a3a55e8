"""`middleware`: free KV cache and a short queue, for engines behind a serving layer such as Ray Serve."""

from collections.abc import Iterator, Mapping
from math import log
from typing import ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.attempt_tracker import ERROR_HALF_LIFE_S
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.config import Positive, Share, sum_to_one
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import by_capacity, points_lost
from trimtab.strict import Flaw, Strict

_LEAST = 0.1  # of its points each term leaves, however bad it is
_PER_S = log(2) / ERROR_HALF_LIFE_S  # a steady rate of attempts, as a part of their fading number
_LEAST_PER_S = 1e-3


class MiddlewarePolicy(Strict):
    """Numbers of the `middleware` strategy. Its two weights must sum to 1."""

    strategy: Literal["middleware"] = Field("middleware", description="Names this strategy.")
    kv_weight: Share = Field(0.6, description="Part of the points that KV usage can lose. 0 leaves it out.")
    queue_weight: Share = Field(0.4, description="Part of the points that the queue can lose. 0 leaves it out.")
    queue_ms: Positive = Field(100, description="A wait that loses nothing; a longer one leaves queue_ms / wait.")

    def flaws(self) -> Iterator[Flaw]:
        yield from sum_to_one(self, "kv_weight", "queue_weight")


class Middleware(Strategy):
    """The strategy. See `docs/concepts/strategies/middleware.md`."""

    name: ClassVar[str] = "middleware"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.KV_USAGE})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.WAITING})

    def __init__(self, policy: MiddlewarePolicy) -> None:
        self._policy = policy

    def required(self) -> frozenset[Need]:
        return self.needs if self._policy.kv_weight else self.needs - {Need.KV_USAGE}

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        return by_capacity(pool, self._points_lost)

    def _points_lost(self, view: EndpointView) -> dict[str, float]:
        policy, usage, wait_s = self._policy, view.signals.kv_usage, _queue_wait_s(view)
        full = None if usage is None else min(1.0 - _LEAST, usage)
        queue = None if wait_s is None else min(1.0 - _LEAST, 1.0 - min(1.0, policy.queue_ms / max(1e-3, wait_s * 1e3)))
        return points_lost({"kv_usage": (policy.kv_weight, full), "queue": (policy.queue_weight, queue)})


def _queue_wait_s(view: EndpointView) -> float | None:
    """How long [s] the next request will wait: as the last ones did for their token, or longer, if the queue has grown.

    What a queue of known length takes follows from the rate of answers (Little's law).
    """
    waiting = view.signals.waiting
    if waiting is None or waiting < 1:  # less than a request: a mean over time, by Prometheus
        return view.ttft_s
    per_s = max(_LEAST_PER_S, _PER_S * view.error_samples)
    return max(waiting / per_s, view.ttft_s or 0.0)
