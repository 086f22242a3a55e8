"""A pool with length classes in virtual time."""

from typing import Any

import pytest

from tests.unit.sim.replay.scene import fleet, run
from tests.unit.sim.replay.test_control import heard, of  # noqa: F401 - a fixture
from trimtab.observation.kinds import LoadReported
from trimtab.policy.model import Pool
from trimtab.pool import PoolController, PoolDecision
from trimtab.sim.replay.arms import policy_arm
from trimtab.sim.trace import Request

CLASSES = [{"name": "short", "up_to_tokens": 100}, {"name": "long"}]


def test_each_class_has_its_weights_and_all_count_for_the_endpoint(heard: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    decisions: list[PoolDecision] = []
    step = PoolController.step

    def spy(self: PoolController, now: float) -> PoolDecision:
        decisions.append(step(self, now))
        return decisions[-1]

    monkeypatch.setattr(PoolController, "step", spy)
    on = fleet({}, {"kind": "cpu"})
    pool = Pool.model_validate({"name": "p", "endpoints": [{"address": "10.0.0.1:1"}], "classes": CLASSES})
    trace = [Request(0.05 * number, 2000 if number % 4 == 0 else 50, 20) for number in range(300)]
    run(trace, on, policy_arm("with", on, pool), gateways=2, workers=2)

    assert {decision.classes for decision in decisions} == {("short", "long")}
    slow = [decision.endpoints[1].classes for decision in decisions]
    assert sum(short.share for short, _ in slow) > 2 * sum(long.share for _, long in slow)
    loads = [load for _, load in of(heard, LoadReported)]
    assert {load.pool for load in loads} == {"replay"}
    assert max(sum(load.in_flight.values()) for load in loads) > 3
    assert {e.view.lease_difference for decision in decisions for e in decision.endpoints} == {0}
