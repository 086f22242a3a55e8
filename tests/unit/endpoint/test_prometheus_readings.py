"""What a Prometheus server says of endpoints: how long it holds, what it gives way to, and what it drains."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scene import POOL, A, B, Scene, read
from trimtab.endpoint.engine_readings import Readings
from trimtab.endpoint.prometheus_readings import PrometheusReadings, Trust
from trimtab.health.state import State
from trimtab.observation.kinds import PrometheusSample


def asked(
    at: float,
    signal: str,
    value: float | None,
    address: str = A,
    *,
    age: float = 1.0,
    error: str = "",
    answered: bool = True,
) -> PrometheusSample:
    return PrometheusSample(at, POOL, address, signal, value, at - age, error, answered)


def scene(*addresses: str, stale_after_s: float = 5, **section: Any) -> Scene:
    prometheus = {"url": "http://prometheus:9090", "stale_after_s": 60, **section}
    return Scene(addresses or (A, B), signals={"stale_after_s": stale_after_s, "prometheus": prometheus})


HOT = {"name": "heat", "query": "heat", "unit": "°C", "action": "drain", "above": 80, "until": 70}


def test_a_value_lasts_as_long_as_its_own_sample() -> None:
    it = scene()
    it.see(asked(1000, "waiting", 3, age=10), asked(1000, "kv_usage", 0.5, age=40))
    assert (it.view().signals.waiting, it.view().signals.kv_usage) == (3, 0.5)
    origins = it.view().signal_origins
    assert (origins["waiting"].source, origins["waiting"].at, origins["kv_usage"].at) == ("prometheus", 990, 960)
    it.now = 1021
    assert (it.view().signals.waiting, it.view().signals.kv_usage) == (3, None)
    assert "its newest sample is too old" in it.view().signals_unknown["kv_usage"]


def test_an_answer_that_knows_nothing_takes_the_value_back() -> None:
    it = scene()
    it.see(asked(1000, "waiting", 3))
    it.see(asked(1005, "waiting", None, error="no series"))
    assert it.view().signals.waiting is None
    assert it.view().signals_unknown["waiting"].endswith("prometheus: no series")


def test_a_server_that_does_not_answer_takes_nothing_back_until_it_is_too_old() -> None:
    it = scene()
    it.see(asked(1000, "waiting", 3, age=0))
    it.see(asked(1059, "waiting", None, error="refused", answered=False))
    assert it.view().signals.waiting == 3
    it.now = 1061
    assert it.view().signals.waiting is None
    assert it.view().signals_unknown["waiting"].endswith("its newest sample is too old: refused")


def test_the_engines_own_page_goes_first_signal_by_signal() -> None:
    it = scene()
    it.see(read(1000, waiting=1), asked(1000, "waiting", 9), asked(1000, "kv_usage", 0.5))
    assert (it.view().signals.waiting, it.view().signals.kv_usage) == (1, 0.5)
    assert it.view().signal_origins["waiting"].source == "scrape"
    it.now = 1006  # the page was not read again
    assert (it.view().signals.waiting, it.view().signals.kv_usage) == (9, 0.5)


def test_unless_the_policy_prefers_it() -> None:
    it = scene(preferred=["waiting"])
    it.see(read(1000, waiting=1, running=2), asked(1000, "waiting", 9), asked(1000, "running", 9))
    assert (it.view().signals.waiting, it.view().signals.running) == (9, 2)
    it.see(asked(1001, "waiting", None, error="no series"))
    assert it.view().signals.waiting == 1


def test_rates_can_be_asked_for() -> None:
    it = scene()
    it.see(asked(1000, "tokens_per_s", 1200))
    assert (it.view().tokens_per_s, it.view().tokens_per_s_best) == (1200, pytest.approx(1200, rel=0.01))
    it.now = 1061
    assert it.view().tokens_per_s is None
    assert it.view().tokens_per_s_best == pytest.approx(1200, rel=0.1), "what it can do is remembered"


def test_a_rate_that_cannot_be_true_is_no_best() -> None:
    it = scene()
    it.see(asked(1000, "tokens_per_s", -5))
    assert (it.view().tokens_per_s, it.view().tokens_per_s_best) == (None, None)


def test_what_cannot_be_true_is_unknown() -> None:
    it = scene()
    it.see(asked(1000, "kv_usage", 55), asked(1000, "waiting", -1))
    assert (it.view().signals.kv_usage, it.view().signals.waiting) == (None, None)
    assert "percentage" in it.view().signals_unknown["kv_usage"]


def test_nothing_is_taken_from_a_section_that_is_not_there() -> None:
    it = Scene()
    it.see(asked(1000, "waiting", 3), asked(1000, "heat", 90))
    assert it.view().signals.waiting is None
    assert not it.view().custom


def test_a_restart_makes_a_new_incarnation_which_old_samples_do_not_touch() -> None:
    it = scene()
    it.see(asked(1000, "process_start", 500), asked(1000, "generated_tokens", 1000))
    it.see(asked(1005, "process_start", 1003, age=0.5), asked(1005, "kv_usage", 0.9, age=3), asked(1005, "waiting", 2))
    assert it.view().id.incarnation == 1
    assert it.view().signals.process_start == 1003
    assert it.view().signals.kv_usage is None  # sampled before the restart was seen


def test_a_counter_that_falls_is_a_restart() -> None:
    it = scene()
    it.see(asked(1000, "generated_tokens", 1000), asked(1000, "waiting", 5))
    it.see(asked(1005, "generated_tokens", 3), asked(1005, "waiting", 2))
    assert it.view().id.incarnation == 1


def test_both_sources_see_one_restart_once() -> None:
    it = scene()
    it.see(read(1000, generated_tokens=1000), asked(1000, "generated_tokens", 990))
    it.see(read(1001, generated_tokens=5))
    it.see(asked(1003, "generated_tokens", 995, age=3))  # a sample of the process before
    it.see(asked(1008, "generated_tokens", 60, age=1), read(1008, generated_tokens=70))
    assert it.view().id.incarnation == 1


def test_a_custom_signal_is_on_the_view() -> None:
    it = scene(custom=[{"name": "heat", "query": "heat"}, {"name": "cold", "query": "cold"}])
    it.see(asked(1000, "heat", 71.5, age=2))
    heat, cold = it.view().custom["heat"], it.view().custom["cold"]
    assert (heat.value, heat.at, heat.why) == (71.5, 998, "")
    assert (cold.value, cold.at, cold.why) == (None, None, "not asked yet")
    assert it.step().endpoints[0].takes_work


def test_past_its_threshold_an_endpoint_drains_and_says_why() -> None:
    it = scene(custom=[HOT])
    it.see(asked(1000, "heat", 85), asked(1000, "heat", 40, B))
    it.step()
    assert (it.at(A).takes_work, it.at(A).state) == (False, State.DRAINING)
    assert it.at(A).reason == "draining: heat is 85 °C, the limit is above 80"
    assert it.at(B).takes_work


def test_it_takes_work_again_at_until_and_ramps() -> None:
    it = scene(custom=[HOT])
    it.run(1010)
    it.see(asked(1010, "heat", 85))
    it.step()
    for heat, takes_work in ((75, False), (69, True), (75, True)):
        it.see(asked(it.now + 1, "heat", heat))
        it.step()
        assert it.at(A).takes_work is takes_work
    assert it.at(A).state is State.SLOW_START


def test_low_can_be_bad_too() -> None:
    it = scene(custom=[{"name": "free", "query": "free", "action": "drain", "below": 10}])
    it.see(asked(1000, "free", 9), asked(1000, "free", 10, B))
    it.step()
    assert (it.at(A).takes_work, it.at(B).takes_work) == (False, True)
    assert it.at(A).reason == "draining: free is 9, the limit is below 10"


def test_unknown_drains_nobody() -> None:
    it = scene(custom=[HOT])
    it.see(asked(1000, "heat", 85))
    it.step()
    assert not it.at(A).takes_work
    it.see(asked(1005, "heat", None, error="refused", answered=False))
    it.step()
    assert not it.at(A).takes_work
    it.step(1066)
    assert it.at(A).takes_work


def test_when_all_are_past_it_all_take_work() -> None:
    it = scene(custom=[HOT])
    it.see(asked(1000, "heat", 85), asked(1000, "heat", 99, B))
    it.step()
    assert [e.state for e in it.step().endpoints] == [State.PANIC] * 2
    assert it.at(A).takes_work


def test_a_threshold_that_the_policy_takes_back_drains_no_more() -> None:
    it = scene(custom=[HOT])
    it.see(asked(1000, "heat", 85))
    it.step()
    it.controller.reconfigure(it.now, scene().policy)
    it.step()
    assert it.at(A).takes_work


def test_a_server_that_lags_behind_another_is_not_believed() -> None:
    it = scene()
    it.see(asked(1000, "generated_tokens", 1000, age=1))
    it.see(asked(1005, "generated_tokens", 900, age=20))
    assert it.view().id.incarnation == 0
    assert it.view().signals.generated_tokens == 1000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["waiting", "kv_usage", "heat"]),
            st.none() | st.floats(-1, 2),
            st.floats(0, 90),  # age
            st.booleans(),  # answered
            st.floats(0, 40),  # seconds since the answer before
        )
    )
)
def test_what_is_kept_between_answers_is_what_would_be_found_anew(
    answers: list[tuple[str, float | None, float, bool, float]],
) -> None:
    trust = Trust(asked=frozenset({"waiting", "heat", "running"}), stale_after_s=60)
    readings = Readings().view(1000, 5)
    kept, taken, now = PrometheusReadings(), [], 1000.0
    for signal, value, age, answered, pause in answers:
        now += pause
        anew = PrometheusReadings()
        for seen in taken:
            anew.take(seen)
        assert kept.view(readings, now, trust) == anew.view(readings, now, trust)
        taken.append(asked(now, signal, value, age=age, error="" if value is not None else "why", answered=answered))
        kept.take(taken[-1])
