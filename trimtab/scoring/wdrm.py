"""`wdrm`: descend the pool's mean TTFT in ever smaller steps, pulled towards the weights that were best recently."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, pow
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, PoolSnapshot
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.config import Positive, remembered
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import against_the_best
from trimtab.strict import Strict

_STEPS = 60  # remembered; the third with the least loss is pulled towards
_TTFT_MAX = 5.0  # of the scale: one endless wait must not throw the weights into a corner
_FITTED = 8  # steps from which on a slope is fitted,
_MOVED = 0.01  # if the weight has moved by so much (standard deviation); else the slope stays as it was
_STEEPEST = 4.0  # a share that is doubled takes TTFT at most to 2 ** 4 of what it was
_CHANGED, _IN_A_ROW = 1.5, 3  # so many times the usual loss, so many steps long: the world is another one


class WdrmPolicy(Strict):
    """Numbers of the `wdrm` strategy."""

    strategy: Literal["wdrm"] = Field("wdrm", description="Names this strategy.")
    first_step: Positive = Field(
        0.1, description="Size of the first step; the k-th is divided by k to the power of `decay`."
    )
    decay: Annotated[float, Field(gt=0.5, le=1)] = Field(
        0.6, description="Above 0.5 the squares of all steps have a finite sum, up to 1 the steps have none."
    )
    pull: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = Field(
        1.2,
        description="Pull towards the best weights, in halves of the gradient's Lipschitz constant: it damps above 1. "
        "0 does not pull.",
    )
    ttft_scale_ms: Positive = Field(2000, description="The TTFT that counts as a loss of 1.")
    step_s: Positive = Field(2, description="How often the weights take a step: TTFT must have followed the last one.")


@dataclass(frozen=True, slots=True)
class _Step:
    loss: float
    weights: Mapping[EndpointId, float]
    ttft: Mapping[EndpointId, float]


class Wdrm(Strategy):
    """The strategy. See `docs/concepts/strategies/wdrm.md`."""

    name: ClassVar[str] = "wdrm"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT})

    def __init__(self, policy: WdrmPolicy) -> None:
        self._policy = policy
        self._weights: dict[EndpointId, float] = {}  # >= 0, sum to 1
        self._slopes: dict[EndpointId, float] = {}  # what a share of 1 more would add to TTFT
        self._memory: dict[str, float] = {}
        self._steps: deque[_Step] = deque(maxlen=_STEPS)
        self._taken = 0  # since the last change
        self._worse = 0  # in a row
        self._stepped_at: float | None = None

    def advance(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        now = pool.at
        if self._weights.keys() != {view.id for view in pool.endpoints}:
            self._join(pool)
        if self._stepped_at is None or now < self._stepped_at:
            self._stepped_at = now
        elif now - self._stepped_at >= self._policy.step_s:
            self._stepped_at = now
            self._step(pool, eligible)

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        weights = {view.id: self._weights.get(view.id, 0.0) for view in pool.endpoints}
        scores = against_the_best(pool, weights)
        why = f"step {self._taken} of {self.step_size(max(1, self._taken)):.3f}"
        return {
            view.id: Score(scores[view.id], weights[view.id], {"ttft": 100.0 - scores[view.id]}, why)
            for view in pool.endpoints
        }

    def forget(self, endpoint: EndpointId) -> None:
        # Its weight goes to the others when the pool advances without it.
        self._memory.pop(endpoint.address, None)

    def dump(self) -> dict[str, Any]:
        return self._memory | {id.address: weight for id, weight in sorted(self._weights.items())}

    def restore(self, memory: Mapping[str, Any]) -> None:
        weights = {address: remembered(value) for address, value in memory.items()}
        self._memory = {address: weight for address, weight in weights.items() if weight is not None and weight >= 0}

    def step_size(self, number: int) -> float:
        """The size of the `number`-th step, from 1 on, since the last change."""
        return self._policy.first_step * pow(number, -self._policy.decay)

    def _join(self, pool: PoolSnapshot) -> None:
        """Take in who came and let go who left: new ones get what their capacity says, the others keep their ratios."""
        capacities = capacities_of(pool.endpoints)
        total = sum(capacities.values())
        fair = {id: capacity / total for id, capacity in capacities.items()}
        known = {id: weight for id, weight in self._weights.items() if id in fair}
        kept, room = sum(known.values()), sum(fair[id] for id in known)
        weights = {
            id: known[id] / kept * room if id in known and kept > 0 else self._memory.pop(id.address, part)
            for id, part in fair.items()
        }
        whole = sum(weights.values())
        self._weights = {id: weight / whole for id, weight in weights.items()} if whole > 0 else fair
        self._slopes = {id: slope for id, slope in self._slopes.items() if id in fair}
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._steps.clear()
        self._taken = self._worse = 0

    def _step(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        scale = self._policy.ttft_scale_ms / 1000.0
        # Of one that is not eligible, TTFT tells what was before. It keeps its weight, and so does one without a token.
        ttft = {
            view.id: min(_TTFT_MAX, view.ttft_s / scale)
            for view in pool.endpoints
            if view.ttft_s is not None and view.id in eligible.ids
        }
        share = sum(self._weights[id] for id in ttft)
        if len(ttft) < 2 or share <= 0:
            return
        loss = sum(self._weights[id] * value for id, value in ttft.items()) / share
        self._notice_change(loss)
        self._taken += 1
        size = self.step_size(self._taken)
        # With TTFT rising by a slope s, the derivative of w·TTFT is TTFT + w·s, and 2·s is how fast that changes. The
        # slopes are those of the steps before: a TTFT that rises now must not be explained away.
        usual = sum(self._slopes.values()) / len(self._slopes) if self._slopes else 0.0
        slopes = {id: self._slopes.get(id, usual) for id in ttft}
        lipschitz = 2.0 * max(slopes.values())
        pull = min(1.0, size * self._policy.pull * lipschitz / 2.0)
        best = self._best()
        moved = {}
        for id, value in ttft.items():
            weight = self._weights[id]
            gradient = value + weight * slopes[id]
            moved[id] = weight - size * gradient - pull * (weight - best.get(id, weight))
        self._steps.append(_Step(loss, dict(self._weights), ttft))
        self._fit()
        self._weights |= zip(moved, project(list(moved.values()), share), strict=True)

    def _notice_change(self, loss: float) -> None:
        """Steps that have become small cannot follow a pool that has become another one."""
        usual = sorted(step.loss for step in self._steps)
        bad = len(usual) >= _FITTED and loss > _CHANGED * usual[len(usual) // 2]
        self._worse = self._worse + 1 if bad else 0
        if self._worse >= _IN_A_ROW:
            self._begin_anew()

    def _best(self) -> Mapping[EndpointId, float]:
        """The mean weights of the third of the steps that had the least loss."""
        best = sorted(self._steps, key=lambda step: step.loss)[: ceil(len(self._steps) / 3)]
        return {id: sum(step.weights[id] for step in best) / len(best) for id in self._weights} if best else {}

    def _fit(self) -> None:
        """Fit to each endpoint how its TTFT rose with its weight, where that has moved enough to tell."""
        for id in self._weights:
            seen = [(step.weights[id], step.ttft[id]) for step in self._steps if id in step.ttft]
            if len(seen) < _FITTED:
                continue
            mean_w, mean_t = (sum(values) / len(seen) for values in zip(*seen, strict=True))
            variance = sum((w - mean_w) ** 2 for w, _ in seen) / len(seen)
            if variance >= _MOVED**2:
                covariance = sum((w - mean_w) * (t - mean_t) for w, t in seen) / len(seen)
                steepest = _STEEPEST * mean_t / max(mean_w, _MOVED)
                self._slopes[id] = min(steepest, max(0.0, covariance / variance))


def project(point: Sequence[float], total: float) -> list[float]:
    """The point nearest to `point` whose parts are at least 0 and sum to `total`."""
    above, level = 0.0, 0.0
    for count, value in enumerate(sorted(point, reverse=True), start=1):
        above += value
        if value - (above - total) / count > 0:
            level = (above - total) / count
    return [max(0.0, value - level) for value in point]
