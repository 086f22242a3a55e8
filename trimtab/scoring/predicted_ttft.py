"""`predicted_ttft`: pour the work that is about to come so that every endpoint's first token comes equally soon."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trimtab.fleet.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.cost_model import CostModel
from trimtab.scoring.law import Law, Need, Score
from trimtab.strict import Strict

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# The first costs of the largest endpoint, until it has answered a few times.
_FIRST_PER_KILOTOKEN_S = 0.1
_FIRST_PER_ATTEMPT_S = 0.001


class PredictedTtftPolicy(Strict):
    """Numbers of the `predicted_ttft` law."""

    law: Literal["predicted_ttft"] = Field(default="predicted_ttft", description="Names this law.")
    bytes_per_token: _Positive = Field(default=4, description="Bytes of a request's body for each prompt token.")
    peak_half_life_s: _Positive = Field(
        default=20, description="How fast the largest burst of an interval is forgotten."
    )
    floor: Annotated[float, Field(ge=0, le=0.1)] = Field(
        default=0.002, description="Share of the fastest endpoint when it gets nothing; slower ones get less."
    )
    score_threshold_ms: _Positive = Field(default=2000, description="A predicted TTFT that scores 50.")


class PredictedTtft(Law):
    """The law. See `docs/laws/predicted_ttft.md`."""

    name: ClassVar[str] = "predicted_ttft"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.LEDGER})
    # It moves shares on purpose at every interval, and keeps its own floor.
    ramped: ClassVar[bool] = False
    damped: ClassVar[bool] = False
    floored: ClassVar[bool] = False

    def __init__(self, policy: PredictedTtftPolicy) -> None:
        self._policy = policy
        self._costs: dict[EndpointId, CostModel] = {}
        self._memory: dict[str, Mapping[str, Any]] = {}
        self._sent: dict[EndpointId, int] = {}
        self._peak_kilotokens = 0.0
        self._prompt_kilotokens = 0.0
        self._judged_at: float | None = None

    def judge(self, pool: PoolSnapshot, now: float) -> Mapping[EndpointId, Score]:
        self._follow_demand(pool, now)
        capacities = capacities_of(pool)
        largest = max(capacities.values(), default=1.0)
        costs = [self._cost(view.id, capacities[view.id] / largest) for view in pool.endpoints]
        waits = [self._predicted(view, cost) for view, cost in zip(pool.endpoints, costs, strict=True)]
        rates = [1.0 / cost.per_kilotoken_s for cost in costs]
        free = [number for number, view in enumerate(pool.endpoints) if view.id not in pool.held]
        work = max(self._prompt_kilotokens, self._peak_kilotokens)
        levelled = pour(work, [waits[number] for number in free], [rates[number] for number in free])
        # Nothing is poured over an endpoint that takes no new work: it would be lost.
        poured = dict.fromkeys(range(len(waits)), 0.0) | dict(zip(free, levelled, strict=True))
        total, fastest = sum(levelled) or 1.0, max(rates, default=1.0)
        return {
            view.id: self._score(
                view,
                costs[number],
                waits[number],
                max(poured[number] / total, self._policy.floor * rates[number] / fastest),
            )
            for number, view in enumerate(pool.endpoints)
        }

    def learn(self, sample: TokenSample) -> None:
        own = self._kilotokens(sample.prompt_bytes)
        self._prompt_kilotokens += 0.05 * (own - self._prompt_kilotokens) if self._prompt_kilotokens else own
        cost = self._costs.get(sample.endpoint)
        if cost is not None:
            cost.learn(self._kilotokens(sample.outstanding_prompt_bytes), sample.in_flight, sample.ttft_s)

    def forget(self, endpoint: EndpointId) -> None:
        self._costs.pop(endpoint, None)
        self._sent.pop(endpoint, None)
        self._memory.pop(endpoint.address, None)

    def remember(self) -> dict[str, Any]:
        return self._memory | {id.address: cost.remember() for id, cost in sorted(self._costs.items())}

    def recall(self, memory: Mapping[str, Any]) -> None:
        self._memory = {address: costs for address, costs in memory.items() if isinstance(costs, Mapping)}

    def _cost(self, id: EndpointId, capacity: float) -> CostModel:
        cost = self._costs.get(id)
        if cost is None:
            cost = self._costs[id] = CostModel(_FIRST_PER_KILOTOKEN_S / capacity, _FIRST_PER_ATTEMPT_S / capacity)
            if (memory := self._memory.pop(id.address, None)) is not None:
                cost.recall(memory)
        return cost

    def _predicted(self, view: EndpointView, cost: CostModel) -> float:
        """How long a request without a prompt would wait now, seconds.

        An attempt that has waited longer than it should have is believed before the model: the endpoint is slower
        than it was, or hangs.
        """
        wait = cost.predict(self._kilotokens(view.outstanding_prompt_bytes), view.in_flight)
        return max(wait, view.oldest_wait_s)

    def _score(self, view: EndpointView, cost: CostModel, wait: float, share: float) -> Score:
        threshold = self._policy.score_threshold_ms / 1000.0
        score = 100.0 * threshold / (threshold + wait)
        prompt = cost.per_kilotoken_s * self._kilotokens(view.outstanding_prompt_bytes)
        running = cost.per_attempt_s * view.in_flight
        silence = max(0.0, wait - prompt - running)
        lost = (100.0 - score) / wait if wait > 0 else 0.0
        a, b = 1000 * cost.per_kilotoken_s, 1000 * cost.per_attempt_s
        why = (
            f"{1000 * wait:.0f} ms to wait, gets {share:.1%} of what comes next "
            f"({a:.0f} ms a thousand prompt tokens, {b:.1f} ms an attempt)"
        )
        breakdown = {"prompt": lost * prompt, "running": lost * running, "silence": lost * silence}
        return Score(score, share, breakdown, why)

    def _follow_demand(self, pool: PoolSnapshot, now: float) -> None:
        """Keep the largest work that one interval has brought, fading."""
        sent = {view.id: view.prompt_bytes_sent for view in pool.endpoints}
        arrived = sum(total - self._sent.get(id, total) for id, total in sent.items())
        if self._judged_at is not None:
            elapsed = max(0.0, now - self._judged_at)
            self._peak_kilotokens *= 0.5 ** (elapsed / self._policy.peak_half_life_s)
        self._peak_kilotokens = max(self._peak_kilotokens, self._kilotokens(arrived))
        self._sent, self._judged_at = sent, now

    def _kilotokens(self, prompt_bytes: int) -> float:
        return prompt_bytes / self._policy.bytes_per_token / 1000.0


def pour(work: float, waits: Sequence[float], rates: Sequence[float]) -> list[float]:
    """Water filling: the part of `work` for each endpoint that levels predicted TTFT.

    `waits` [s] are the levels now, `rates` [work per second] how much work raises an endpoint's level by a second.
    The level L solves Σ max(0, (L - wait)·rate) = work; the parts sum to `work`.
    """
    if not waits:
        return []
    # With no work to come, a trace of it still says where it would go.
    work = max(work, 1e-6)
    width, filled, level = 0.0, 0.0, 0.0
    by_wait = sorted(zip(waits, rates, strict=True))
    for index, (wait, rate) in enumerate(by_wait):
        filled += wait * rate
        width += rate
        level = (work + filled) / width
        if index + 1 == len(by_wait) or level <= by_wait[index + 1][0]:
            break
    return [max(0.0, level - wait) * rate for wait, rate in zip(waits, rates, strict=True)]
