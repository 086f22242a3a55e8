"""Every strategy passes where one engine answers at once and without model output."""

from typing import get_args

import pytest

from tests.unit.sim.replay.scene import fleet, run, steady
from trimtab.sim.client import Outcome
from trimtab.sim.replay.arms import strategies, usable_names
from trimtab.sim.replay.fleet import Answers

USABLE = [name for name in usable_names(fleet({}, {})) if name in strategies()]
KINDS = [kind for kind in get_args(Answers) if kind != "output"]


@pytest.mark.parametrize(
    ("strategy", "answers"),
    [
        *((strategy, "not_found") for strategy in USABLE),
        *(("predicted_ttft", kind) for kind in KINDS if kind != "not_found"),
    ],
)
def test_it_gets_next_to_nothing(strategy: str, answers: str) -> None:
    """10 requests a second for half a minute, to two engines that are well and a broken one."""
    engines = fleet({"count": 2}, {"name": "broken", "answers": answers})
    replay = run(steady(300, 0.1), engines, strategy)
    at_broken = [served for served in replay.served if served.outcome is not Outcome.OK]
    assert len(at_broken) <= 15
    assert sum(served.arrived_s > 10 for served in at_broken) <= 0.03 * 200
    assert sum(served.arrived_s < 10 for served in at_broken) >= 1, "it was tried"


@pytest.mark.parametrize("strategy", USABLE)
def test_a_pool_of_one_is_not_changed(strategy: str) -> None:
    replay = run(steady(50, 0.1), fleet({"name": "broken", "answers": "not_found"}), strategy)
    assert [served.outcome for served in replay.served] == [Outcome.HTTP_ERROR] * 50


@pytest.mark.parametrize("strategy", USABLE)
def test_where_nobody_answers_nobody_is_out(strategy: str) -> None:
    engines = fleet({"count": 3, "answers": "bad_request"})
    replay = run(steady(300, 0.1), engines, strategy)
    assert {served.status for served in replay.served} == {400}
    assert all(endpoint.attempts > 30 for endpoint in replay.endpoints)
