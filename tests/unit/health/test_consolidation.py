"""While a whole pool has little to do, its work is gathered; never at the cost of an endpoint that is needed."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import mark

from tests.unit.endpoint.test_prometheus_readings import asked
from tests.unit.scene import A, B, C, Scene, rejected
from trimtab.health.consolidation import DWELL_S
from trimtab.health.state import State
from trimtab.weights.failover import can_take

IDLE = {"name": "use", "query": "u", "action": "consolidate", "below": 0.2, "until": 0.6}


def scene(**policy: Any) -> Scene:
    prometheus = {"url": "http://prometheus:9090", "stale_after_s": 1000, "custom": [IDLE]}
    it = Scene((A, B, C), signals={"prometheus": prometheus}, **policy)
    it.run(1010)
    return it


def use(it: Scene, a: float | None, b: float | None, c: float | None, *, after_s: float = 1) -> list[State]:
    """What the next step does when the endpoints are used so much."""
    at = it.now + after_s
    it.see(*(asked(at, "use", value, address) for address, value in ((A, a), (B, b), (C, c))))
    return [endpoint.state for endpoint in it.step().endpoints]


UP, CONSOLIDATED = State.UP, State.CONSOLIDATED


@mark.parametrize("strategy", ["health", "predicted_ttft"])
def test_the_least_used_is_parked_one_at_a_time_and_keeps_its_floor(strategy: str) -> None:
    it = scene(scoring={"strategy": strategy})
    assert use(it, 0.1, 0.05, 0.15) == [UP, CONSOLIDATED, UP]
    assert it.at(B).takes_work and 0 < it.at(B).share <= 0.011
    assert it.at(B).reason == "consolidated: use of all endpoints is below 0.2"
    assert use(it, 0.1, 0.0, 0.15, after_s=DWELL_S - 2) == [UP, CONSOLIDATED, UP]
    assert use(it, 0.1, 0.0, 0.15, after_s=3) == [CONSOLIDATED, CONSOLIDATED, UP]
    assert can_take(it.decision, failover_below=1) == 1, "fallbacks get nothing of it"
    assert use(it, 0.0, 0.0, 0.19, after_s=2 * DWELL_S) == [CONSOLIDATED, CONSOLIDATED, UP]
    assert it.at(C).share > 0.9


def test_between_the_threshold_and_until_nothing_changes() -> None:
    it = scene()
    use(it, 0.1, 0.05, 0.15)
    assert use(it, 0.3, 0.0, 0.15, after_s=2 * DWELL_S) == [UP, CONSOLIDATED, UP]


def test_all_are_given_back_at_once_and_without_a_slow_start_and_rest_before_it_begins_anew() -> None:
    it = scene()
    use(it, 0.1, 0.05, 0.15)
    assert use(it, 0.7, 0.0, 0.15) == [UP, UP, UP]
    assert it.at(B).share > 0.3
    assert use(it, 0.1, 0.0, 0.15, after_s=DWELL_S - 2) == [UP, UP, UP]
    assert use(it, 0.1, 0.0, 0.15, after_s=3) == [UP, CONSOLIDATED, UP]


def test_unknown_parks_nobody_and_gives_back() -> None:
    it = scene()
    assert use(it, 0.1, None, 0.1) == [UP, UP, UP]
    assert use(it, 0.1, 0.0, 0.1) == [UP, CONSOLIDATED, UP]
    assert use(it, None, 0.0, 0.1) == [UP, UP, UP]


def test_nobody_is_parked_while_another_is_held() -> None:
    it = scene()
    it.see(rejected(it.now, C))
    assert use(it, 0.1, 0.0, 0.1) == [UP, UP, State.COOLING]
    it = scene()
    use(it, 0.1, 0.0, 0.1)
    it.see(rejected(it.now, C))
    it.step()
    assert [it.at(address).state for address in (A, B, C)] == [UP, UP, State.COOLING]


def test_a_policy_that_no_longer_consolidates_gives_back() -> None:
    it = scene()
    use(it, 0.1, 0.0, 0.1)
    it.controller.reconfigure(it.now, Scene((A, B, C)).policy)
    it.step()
    assert it.at(B).state is UP


USES = st.none() | st.sampled_from([0.0, 0.1, 0.19, 0.3, 0.7])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(USES, USES, USES, st.sampled_from([1, 20, 61]), st.booleans()), max_size=15))
def test_one_always_works(steps: list[tuple[float | None, float | None, float | None, int, bool]]) -> None:
    it = scene()
    for a, b, c, after_s, refuses in steps:
        if refuses:
            it.see(rejected(it.now, A))
        states = use(it, a, b, c, after_s=after_s)
        assert sum(endpoint.share for endpoint in it.step().endpoints) > 0.999
        if CONSOLIDATED in states:
            assert set(states) <= {UP, State.SLOW_START, CONSOLIDATED}
            assert states.count(CONSOLIDATED) < 3
