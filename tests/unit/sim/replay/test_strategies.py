"""What replay must show of the strategies; the tables of docs/results/strategies.md have all of it."""

from typing import Any

import pytest

from tests.unit.sim.replay.scene import run
from trimtab.sim.replay.figures import figures
from trimtab.sim.replay.fleet import load_fleet
from trimtab.sim.replay.workload import generate
from trimtab.sim.trace import bundled_trace, scale


def replayed(fleet_name: str, arm: str, **changes: Any) -> dict[str, Any]:
    fleet = load_fleet(fleet_name)
    assert fleet.workload is not None
    trace = generate(fleet.workload.model_copy(update=changes), seed=1)
    return figures(run(trace, fleet, arm, clients=fleet.workload.clients))


def test_predicted_ttft_keeps_the_tail_of_unlike_machines_short() -> None:
    p99 = {arm: replayed("fleet8", arm)["ttft_ms"]["p99"] for arm in ("least_request", "health", "predicted_ttft")}
    assert p99["predicted_ttft"] <= p99["health"] / 8
    assert p99["predicted_ttft"] <= p99["least_request"] / 20


def test_predicted_ttft_is_better_than_least_request_on_like_machines() -> None:
    p99 = {arm: replayed("homog8", arm)["ttft_ms"]["p99"] for arm in ("least_request", "predicted_ttft")}
    assert p99["predicted_ttft"] <= 0.75 * p99["least_request"]


def test_predicted_ttft_costs_nothing_at_low_load() -> None:
    p50 = {
        arm: replayed("fleet8", arm, rate_per_s=15, requests=3000)["ttft_ms"]["p50"]
        for arm in ("round_robin", "predicted_ttft")
    }
    assert p50["predicted_ttft"] <= 1.05 * p50["round_robin"]


@pytest.mark.parametrize(
    ("trace", "fleet_name", "max_prompt", "others", "bound"),
    [
        ("azure23_code", "fleet8", None, ("wdrm", "reciprocal"), 1.05),
        # The P99 of so short a piece is that of ten requests; a strategy that herds on its grid of 3 s is far above
        # this.
        ("mooncake_conversation", "homog8", 16_000, ("health", "reciprocal"), 1.25),
    ],
)
def test_predicted_ttft_does_not_herd_in_bursts(
    trace: str, fleet_name: str, max_prompt: int | None, others: tuple[str, ...], bound: float
) -> None:
    fleet = load_fleet(fleet_name)
    piece = scale(bundled_trace(trace)[:800], speed=2, max_prompt=max_prompt)
    p99 = {strategy: figures(run(piece, fleet, strategy))["ttft_ms"]["p99"] for strategy in ("predicted_ttft", *others)}
    assert p99["predicted_ttft"] <= bound * min(p99[strategy] for strategy in others)


def test_round_robin_is_as_in_another_simulation() -> None:
    """Another simulation of the same set-up had a mean of 0.76 s and a P99 of 4.3 s over three seeds."""
    ttft = replayed("homog8", "round_robin")["ttft_ms"]
    assert 0.4e3 <= ttft["mean"] <= 1.3e3
    assert 2.5e3 <= ttft["p99"] <= 8e3
