"""Whether an endpoint generates: by probes, and by counters that stand still beside work."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scene import POOL, A, B, Scene, answered, read, started
from trimtab.health.state import State
from trimtab.observation.kinds import Probed, ProbeResult
from trimtab.policy.model import Pool
from trimtab.weights.failover import can_take
from xds_server.probes.pace import probe_pause_s

INTERVAL_S = 10.0


def probed(at: float, result: ProbeResult = ProbeResult.SILENT, address: str = A, *, took_s: float = 1.2) -> Probed:
    ttft_s = took_s if result is ProbeResult.TOKEN else None
    return Probed(at, POOL, address, at - took_s, result, ttft_s, "" if ttft_s else "no token within 1.2 s")


def token(at: float, address: str = A) -> Probed:
    return probed(at, ProbeResult.TOKEN, address, took_s=0.05)


def scene(**policy: Any) -> Scene:
    made = Scene(**{"probe": {"interval_s": INTERVAL_S}, "scoring": {"strategy": "predicted_ttft"}} | policy)
    made.step(1000.1)
    return made


def state(s: Scene, address: str = A) -> State:
    s.step()
    return s.at(address).state


def pause_s(s: Scene, address: str = A) -> float:
    s.step()
    return probe_pause_s(s.at(address), s.now, INTERVAL_S)


def down(**policy: Any) -> Scene:
    s = scene(**policy)
    s.see(probed(1002))
    s.see(probed(1005))
    assert state(s) is State.DOWN
    return s


def test_one_silent_probe_makes_suspect_and_the_second_puts_it_out() -> None:
    s = scene()
    s.see(probed(1002))
    assert state(s) is State.SUSPECT
    assert s.at().takes_work
    assert can_take(s.decision, failover_below=1) == 1, "no fallback gets its work yet"
    assert s.at().reason == "suspect: a probe: no token within 1.2 s"
    s.see(probed(1005))
    assert state(s) is State.DOWN
    assert not s.at().takes_work
    assert s.at(B).share == 1
    assert s.at().reason == "down: a probe: no token within 1.2 s"


def test_a_token_clears_a_suspect() -> None:
    s = scene()
    s.see(probed(1002), token(1005))
    assert state(s) is State.UP
    s.see(probed(1015))
    assert state(s) is State.SUSPECT, "and the next silence counts as the first"


def test_what_is_undecided_changes_nothing() -> None:
    s = scene()
    s.see(*(probed(1002 + n, ProbeResult.UNDECIDED) for n in range(5)))
    assert state(s) is State.UP
    s = down()
    s.see(probed(1010, ProbeResult.UNDECIDED))
    assert state(s) is State.DOWN


def test_it_comes_back_through_a_trial() -> None:
    s = down()
    s.see(token(1015))
    assert state(s) is State.HALF_OPEN
    assert 0 < s.at().share <= 0.4
    s.see(token(1018))
    assert state(s) is State.UP


def test_half_open_and_silent_is_down_at_once() -> None:
    s = down()
    s.see(token(1015), probed(1018))
    assert state(s) is State.DOWN


def test_a_ramped_strategy_lets_it_climb() -> None:
    s = down(scoring={"strategy": "health"}, weighting={"slow_start_points_per_s": 10})
    s.see(token(1015))
    s.run(1018)
    s.see(token(1018))
    s.step(1019)
    assert s.at().state is State.SLOW_START
    assert s.at().effective_score <= 11


def test_first_tokens_of_attempts_bring_it_back_too() -> None:
    s = down()
    s.see(*answered(1010, 0.1))
    assert state(s) is State.HALF_OPEN
    s.see(*answered(1011, 0.1, request="r2"))
    assert state(s) is State.UP


def test_a_stream_that_began_before_does_not_close_half_open() -> None:
    s = scene()
    s.see(started(1001, request="old"))
    s.see(probed(1002), probed(1005), token(1015))
    s.see(*answered(1001, 15, request="old"))
    assert state(s) is State.HALF_OPEN


def test_silence_beside_life_is_no_silence() -> None:
    """What came between the probe and its deadline kept the engine busy."""
    s = scene()
    s.see(*answered(1001.5, 0.1), probed(1002))
    assert state(s) is State.UP
    s.see(read(1010, running=0, generated_tokens=100), read(1011, running=1, generated_tokens=120))
    s.step()
    s.see(probed(1012, took_s=1.5))
    assert state(s) is State.UP


def test_a_wrong_answer_is_not_excused_by_tokens() -> None:
    s = scene()
    s.see(probed(1002, ProbeResult.WRONG), *answered(1003, 0.1), probed(1005, ProbeResult.WRONG))
    assert state(s) is State.DOWN
    s.see(*answered(1006, 0.1, request="r2"))
    assert state(s) is State.DOWN
    s.see(token(1015))
    assert state(s) is State.HALF_OPEN
    s.see(*answered(1016, 0.1, request="r3"))
    assert state(s) is State.UP


def test_all_down_is_all_in_and_the_first_that_generates_takes_the_work() -> None:
    s = scene()
    for at in (1002, 1005):
        s.see(probed(at), probed(at, address=B))
    assert state(s) is state(s, B) is State.PANIC
    assert s.at().share == pytest.approx(0.5)
    s.see(token(1015), token(1018))
    assert state(s) is State.UP
    assert state(s, B) is State.DOWN
    assert (s.at().share, s.at(B).share) == (1, 0)


def test_a_restarted_engine_begins_clean() -> None:
    s = down()
    s.see(read(1006, process_start=100), read(1007, process_start=2000))
    assert state(s) is not State.DOWN
    s.see(probed(1008, took_s=3))
    assert s.at().probe.at is None, "of the process before"


def test_a_policy_without_probes_lets_it_go() -> None:
    s = down()
    s.controller.reconfigure(s.now, Pool(**{**s.policy.model_dump(), "probe": {}}))
    assert state(s) is State.HALF_OPEN


def test_a_restart_of_the_control_plane_keeps_it_out() -> None:
    s = down()
    policy = {"probe": {"interval_s": INTERVAL_S}, "scoring": {"strategy": "predicted_ttft"}}
    later = Scene(now=1007, memory=s.controller.dump(1006), **policy)
    assert state(later) is State.DOWN
    assert later.at().reason == "down: a probe: no token within 1.2 s"
    later.see(token(1010))
    assert state(later) is State.HALF_OPEN
    unprobed = Scene(now=1007, memory=s.controller.dump(1006))
    assert state(unprobed) is State.HALF_OPEN, "nobody would ever ask it again"


# ---- When a probe is due ----


def test_idle_endpoints_are_probed_once_per_interval() -> None:
    s = scene()
    assert pause_s(s) == 0
    s.see(token(1002))
    assert pause_s(s) == pytest.approx(INTERVAL_S)
    s.step(1012.1)
    assert pause_s(s) == 0


def test_where_there_is_traffic_the_traffic_is_the_probe() -> None:
    s = scene()
    s.see(started(1001))
    assert pause_s(s) > 0, "something is in flight"
    s = scene()
    s.see(*answered(1001, 0.5))
    assert pause_s(s) == pytest.approx(INTERVAL_S, abs=0.1), "it has just shown a token"
    for signals in ({"running": 1}, {"waiting": 1}, {"running": 0, "waiting": 2}):
        s = scene()
        s.see(read(1001, **signals))
        assert pause_s(s) > 0
    s.see(read(1002, running=0, waiting=0))
    assert pause_s(s) == 0


def test_an_undecided_probe_is_not_repeated_at_once() -> None:
    s = scene()
    s.see(probed(1002, ProbeResult.UNDECIDED))
    assert pause_s(s) == pytest.approx(INTERVAL_S)


def test_a_suspect_is_probed_soon_and_whatever_came_to_it() -> None:
    """A request that hangs there must not keep it in for ever."""
    s = scene()
    s.see(probed(1002), started(1002.1))
    assert pause_s(s) == pytest.approx(INTERVAL_S / 4, abs=0.2)
    s.step(1004.6)
    assert pause_s(s) == 0


def test_an_engine_that_does_not_know_of_its_work_is_probed() -> None:
    """It hung while it was idle, and its numbers are from before."""
    s = scene()
    s.see(read(1000.5, running=0, waiting=0, generated_tokens=5), started(1001))
    for at in range(1002, 1011):
        s.see(read(at, running=0, waiting=0, generated_tokens=5))
        s.step()
        assert (pause_s(s) == 0) == (at >= 1007), at


def test_what_is_going_away_is_not_probed() -> None:
    s = scene()
    s.controller._weigher.out = {A: "terminating"}
    assert pause_s(s) > 0


# ---- Counters that stand still ----


def stand_still(s: Scene, since: float, until: float, *, running: float = 1, **signals: float) -> None:
    at = since
    while at <= until:
        s.see(read(at, **{"running": running, "waiting": 0, "generated_tokens": 500, **signals}))
        s.step()
        at += 1


def test_counters_that_stand_still_beside_work() -> None:
    s = scene(probe={})
    stand_still(s, 1001, 1010)
    assert s.at().state is State.UP
    stand_still(s, 1011, 1012)
    assert s.at().state is State.SUSPECT
    stand_still(s, 1013, 1022)
    assert s.at().state is State.DOWN
    assert s.at().reason == "down: its counters have stood still for 21 s although it has work"
    s.see(read(1023, running=1, generated_tokens=501))
    assert state(s) is State.HALF_OPEN
    stand_still(s, 1024, 1033, generated_tokens=501)
    assert s.at().state is State.DOWN, "half-open, the first sign is enough"
    assert pause_s(s) == 0, "and it is not left to itself, where there are probes"


@pytest.mark.parametrize("config", [{"running": 0}, {"generated_tokens": None}, {"running": None, "waiting": None}])
def test_nothing_to_do_or_unknown_is_not_frozen(config: dict[str, Any]) -> None:
    s = scene(probe={})
    stand_still(s, 1001, 1040, **config)
    assert s.at().state is State.UP


@pytest.mark.parametrize("moving", ["kv_usage", "prompt_tokens"])
def test_a_long_prompt_fills_the_cache(moving: str) -> None:
    s = scene(probe={})
    for n in range(1, 60):
        s.see(read(1000 + n, running=1, generated_tokens=500, **{moving: n / 100}))
        s.step()
    assert s.at().state is State.UP


def test_the_cache_of_a_healthy_engine_may_stand_still() -> None:
    s = scene(probe={})
    for n in range(1, 60):
        s.see(read(1000 + n, running=1, generated_tokens=500 + n, kv_usage=0.5))
        s.step()
    assert s.at().state is State.UP


def test_tokens_that_clients_get_prove_the_counter_wrong() -> None:
    s = scene(probe={})
    for n in range(1, 60):
        s.see(read(1000 + n, running=1, generated_tokens=500), *answered(1000 + n, 0.1, request=str(n)))
        s.step()
    assert s.at().state is State.UP


def test_a_page_that_is_read_no_more_says_nothing() -> None:
    s = scene(probe={})
    stand_still(s, 1001, 1025)
    assert s.at().state is State.DOWN
    s.step(1040)
    assert s.at().state is State.HALF_OPEN


@pytest.mark.parametrize(
    ("probe", "engine", "is_watched"),
    [({}, "vllm", True), ({}, "tgi", False), ({"frozen_s": 5}, "tgi", True), ({"frozen_s": 0}, "vllm", False)],
)
def test_only_engines_that_count_each_token(probe: dict[str, Any], engine: str, is_watched: bool) -> None:
    s = scene(probe=probe, engine=engine)
    stand_still(s, 1001, 1040)
    assert (s.at().state is State.DOWN) == is_watched


EVENTS = st.lists(
    st.tuples(
        st.floats(0.1, 20),
        st.sampled_from([A, B]),
        st.one_of(
            st.sampled_from(list(ProbeResult)),
            st.tuples(st.sampled_from([0, 1]), st.integers(500, 503)),
            st.just("answered"),
        ),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=50)
@given(EVENTS)
def test_whatever_happens_somebody_takes_the_work_and_a_token_heals(events: list[tuple[float, str, Any]]) -> None:
    s = scene()
    for after_s, address, what in events:
        at = s.now + after_s
        match what:
            case ProbeResult():
                s.see(probed(at, what, address))
            case (running, tokens):
                s.see(read(at, address, running=running, generated_tokens=tokens))
            case _:
                s.see(*answered(at, 0.1, address, request=str(at)))
        decision = s.step()
        assert sum(endpoint.share for endpoint in decision.endpoints) == pytest.approx(1)
    for n in range(2):
        s.see(token(s.now + 20 + n, A), token(s.now + 20 + n, B))
        s.step()
    assert state(s) is state(s, B) is State.UP
