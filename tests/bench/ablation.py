"""What each part of `predicted_ttft` is worth: the strategy with one of them taken out, on the same work.

python -m tests.bench.ablation
"""

import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from statistics import fmean
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

from trimtab.endpoint.snapshot import EndpointId, PoolSnapshot
from trimtab.policy.model import Pool
from trimtab.scoring.contract import Eligible
from trimtab.scoring.cost_model import CostModel
from trimtab.scoring.predicted_ttft import PredictedTtft
from trimtab.sim.replay.arms import policy_arm
from trimtab.sim.replay.figures import figures
from trimtab.sim.replay.fleet import load_fleet
from trimtab.sim.replay.simulation import Conditions, Simulation
from trimtab.sim.replay.workload import generate
from trimtab.sim.trace import bundled_trace, scale
from trimtab.stats.cusum import ChangeTest

SEEDS = 3
_SLOW_FROM_S, _SLOW_UNTIL_S = 60.0, 120.0


class _Case(NamedTuple):
    name: str
    fleet: str
    trace: str | None = None
    speed: float = 1
    max_prompt: int | None = None
    rate_per_s: float | None = None
    slow: float = 1  # so many times as slow is the first engine for a minute


_CASES = (
    _Case("unlike, near the limit", "fleet8"),
    _Case("like, near the limit", "homog8"),
    _Case("Azure code", "fleet8", "azure23_code", 2),
    _Case("Mooncake", "homog8", "mooncake_conversation", 2, max_prompt=16_000),
    _Case("row D6", "row_d6"),
    _Case("one 5 × as slow", "fleet8", "azure23_conv", 3.5, slow=5),
    _Case("one 20 × as slow", "fleet8", rate_per_s=25, slow=20),
)


class _NoChange(ChangeTest):
    __slots__ = ()

    def factor(self, log_ratio: float) -> float | None:
        return None


class _Unalarmed(CostModel):
    def __init__(self, per_kilotoken_s: float, per_attempt_s: float) -> None:
        super().__init__(per_kilotoken_s, per_attempt_s)
        self._change = _NoChange()


class _InSeconds(CostModel):
    """Least squares on residuals in seconds, not as parts of the prediction."""

    def learn(self, kilotokens: float, attempts: float, ttft_s: float) -> float | None:
        self._met = attempts
        return super().learn(kilotokens, attempts, ttft_s)

    def _update(self, kilotokens: float, attempts: float, residual: float) -> None:
        predicted = self._met / attempts
        super()._update(predicted * kilotokens, self._met, predicted * residual)


class _OtherCosts(PredictedTtft):
    costs: ClassVar[type[CostModel]]

    def _begin(self, id: EndpointId, capacity: float, first: tuple[float, float] | None) -> Any:
        endpoint = super()._begin(id, capacity, first)
        endpoint.cost = self.costs(endpoint.cost.per_kilotoken_s, endpoint.cost.per_attempt_s)
        return endpoint


class _WithoutChangeDetection(_OtherCosts):
    costs = _Unalarmed


class _WithResidualsInSeconds(_OtherCosts):
    costs = _InSeconds


class _WithoutOwnPrompt(PredictedTtft):
    """Levels what a request waits, without the time of its own prompt."""

    def _shares(self, demand: Any, waits: Sequence[float], rates: Sequence[float]) -> list[float]:
        others = [wait - demand.typical / rate for wait, rate in zip(waits, rates, strict=True)]
        return super()._shares(demand, others, rates)


class _WithTokensAlone(PredictedTtft):
    """Takes what is poured for tokens alone, not for requests that run besides."""

    def _rate(self, cost: CostModel, demand: Any) -> float:
        return 1.0 / cost.per_kilotoken_s


class _WithoutPeak(PredictedTtft):
    """Pours one typical request, whatever bursts there were."""

    def _follow_demand(self, *what: Any) -> None:
        super()._follow_demand(*what)
        for demand in self._demands:
            demand._peak = 0.0


class _WithoutTries(PredictedTtft):
    def _parts(
        self,
        pool: PoolSnapshot,
        eligible: Eligible,
        known: Sequence[Any],
        waits: Sequence[float],
        floors: Sequence[float],
        tried: Sequence[bool],
    ) -> Sequence[Sequence[float]]:
        return super()._parts(pool, eligible, known, waits, floors, [False] * len(tried))


class _Arm(NamedTuple):
    strategy: type[PredictedTtft] = PredictedTtft
    numbers: Mapping[str, Any] = {}
    interval_ms: int = 100


_WHOLE = "the whole strategy"
_PROTOCOLS: Mapping[str, _Arm] = {
    _WHOLE: _Arm(),
    "without change detection": _Arm(_WithoutChangeDetection),
    "residuals in seconds": _Arm(_WithResidualsInSeconds),
    "without the request's own prompt": _Arm(_WithoutOwnPrompt),
    "poured by tokens alone, not by requests": _Arm(_WithTokensAlone),
    "without the peak of bursts": _Arm(_WithoutPeak),
    "without tries": _Arm(_WithoutTries),
    "power form": _Arm(numbers={"form": "power"}),
    "weights every 250 ms": _Arm(interval_ms=250),
}


class _SlowSpell(Simulation):
    """The first engine is slow for a minute."""

    def __init__(self, factor: float, *replayed: Any) -> None:
        super().__init__(*replayed)
        self._clock.call_at(_SLOW_FROM_S, self._slow_down, factor)
        self._clock.call_at(_SLOW_UNTIL_S, self._slow_down, 1.0)

    def _slow_down(self, now: float, factor: float) -> None:
        self._engines[0].catch_up(now)
        self._engines[0].model.slow = factor


def _ttft_ms(job: tuple[str, _Case, int]) -> Mapping[str, float]:
    name, case, seed = job
    protocol, fleet = _PROTOCOLS[name], load_fleet(case.fleet)
    if case.trace is None:
        assert fleet.workload is not None
        rate_per_s = case.rate_per_s or fleet.workload.rate_per_s
        trace = generate(fleet.workload.model_copy(update={"rate_per_s": rate_per_s}), seed)
        conditions = Conditions(clients=fleet.workload.clients)
    else:
        trace = scale(bundled_trace(case.trace), speed=case.speed, max_prompt=case.max_prompt)
        conditions = Conditions()
    policy = Pool.model_validate(
        {
            "name": "ablation",
            "endpoints": [{"address": "127.0.0.1:1"}],  # the fleet's are put in its place
            "scoring": {"strategy": "predicted_ttft", **protocol.numbers},
            "interval_ms": protocol.interval_ms,
        }
    )
    with patch("trimtab.pool.make_strategy", protocol.strategy):
        replay = _SlowSpell(case.slow, trace, fleet, policy_arm(name, fleet, policy), seed, conditions).run()
    ttft: Mapping[str, float] = figures(replay)["ttft_ms"]
    return ttft


def table() -> str:
    """Mean and P99 of TTFT of each protocol by those of the whole strategy, in Markdown."""
    jobs = list(product(_PROTOCOLS, _CASES, range(1, SEEDS + 1)))
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        made = dict(zip(jobs, pool.map(_ttft_ms, jobs), strict=True))

    def mean(name: str, case: _Case, key: str) -> float:
        return fmean(made[name, case, seed][key] for seed in range(1, SEEDS + 1))

    lines = [("TTFT, mean / P99", *(case.name for case in _CASES)), ("---",) * (len(_CASES) + 1)]
    for name in _PROTOCOLS:
        cells = []
        for case in _CASES:
            whole = {key: mean(_WHOLE, case, key) for key in ("mean", "p99")}
            if name == _WHOLE:
                cells.append(" / ".join(f"{value / 1000:.3g} s" for value in whole.values()))
            else:
                cells.append(" / ".join(f"× {mean(name, case, key) / value:.2f}" for key, value in whole.items()))
        lines.append((name, *cells))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
