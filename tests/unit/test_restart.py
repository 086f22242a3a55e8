"""What was learned is kept over a restart of the control plane, and nothing of it can do harm."""

import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.scene import A, B, C, Scene, answered, failed, read, rejected, started, token
from trimtab.health.state import State


def history(scene: Scene) -> None:
    """A slow, a failing and a good endpoint."""
    for i in range(20):
        at = 1000.0 + i * 0.5
        scene.see(*answered(at, 1.6, A, f"a{i}"), *answered(at, 0.1, B, f"b{i}"), *answered(at, 0.1, C, f"c{i}"))
        if i % 5 == 0:
            scene.see(failed(at, C, f"f{i}"))
        for address in (A, B, C):
            scene.see(read(at, address, waiting=2, kv_usage=0.3, process_start=500.0, generated_tokens=i * 100.0))
        scene.step()


def restarted(scene: Scene, *, after: float = 1.0, **changes: Any) -> Scene:
    memory = json.loads(json.dumps(scene.controller.dump(scene.now)))
    return Scene(scene.capacities, now=scene.now + after, memory=memory, **changes)


def test_weights_go_on_as_they_were() -> None:
    before = Scene({A: 10, B: 4, C: 1})
    history(before)
    after = restarted(before)
    decision = after.step()
    assert decision.changed, "Envoy may have lost them with the control plane"
    for address in (A, B, C):
        assert after.at(address).weight == pytest.approx(before.at(address).weight, rel=0.06)
        assert after.at(address).view.ttft_s == pytest.approx(before.at(address).view.ttft_s)
        assert after.at(address).effective_score <= before.at(address).effective_score + 0.01


def test_scores_go_on_within_the_slow_start() -> None:
    before = Scene({A: 10, B: 4, C: 1})
    history(before)
    before.see(*(read(before.now + 0.1, address, waiting=30, kv_usage=0.9) for address in (A, B, C)))
    before.step()
    after = restarted(before, after=30.0)
    scores = {address: before.at(address).effective_score for address in (A, B, C)}
    for _ in range(20):
        after.step(after.now + 0.25)
        for address in (A, B, C):
            assert after.at(address).effective_score <= scores[address] + 0.25 * 15 + 0.01
            scores[address] = after.at(address).effective_score


def test_what_an_endpoint_was_out_for_goes_on() -> None:
    before = Scene([A, B, C])
    before.see(rejected(1000.0, A, retry_after_s=40.0), *(failed(1000.0, B, f"f{i}") for i in range(3)))
    before.step()
    after = restarted(before, after=2.0)
    after.step()
    assert (after.at(A).state, after.at(A).until) == (State.COOLING, 1040.0)
    assert (after.at(B).state, after.at(B).until) == (State.OPEN, 1030.0)
    assert after.at(A).reason == "cooling: status 429 (saturated, rule a-rule), 38.0 s left"
    after.see(rejected(1045.0, A))
    after.step()
    assert after.at(A).until is not None and after.at(A).until >= 1051.0, "the second in a row is longer"


def test_a_half_open_breaker_still_waits_for_its_attempt() -> None:
    before = Scene([A, B])
    before.see(*(failed(1000.0, A, f"f{i}") for i in range(3)))
    before.step(1031.0)
    after = restarted(before)
    after.step()
    assert after.at(A).state == State.HALF_OPEN
    after.see(started(1033.0, A), token(1033.1, A))
    after.step()
    assert after.at(A).state == State.SLOW_START


def test_an_engine_that_restarted_meanwhile_begins_anew() -> None:
    before = Scene({A: 10, B: 4, C: 1})
    history(before)
    after = restarted(before)
    after.see(read(after.now, A, process_start=after.now - 0.5))
    after.step()
    assert (after.at(A).id.incarnation, after.at(A).view.ttft_s) == (1, None)
    assert after.at(A).effective_score == 30.0


def test_errors_that_are_remembered_fade_from_when_they_were() -> None:
    before = Scene([A, B], weighting={"breaker_failures": 1000})
    before.see(*(failed(1000.0, A, f"f{i}") for i in range(8)))
    before.step()
    after = restarted(before, after=10.0)
    assert after.view(A).error_share == pytest.approx(4 / 8)


def test_what_a_strategy_learned_of_an_endpoint_that_does_not_come_back_is_dropped_in_the_end() -> None:
    before = Scene([A, B], scoring={"strategy": "predicted_ttft"})
    before.see(*answered(1000.0, 0.2, A), *answered(1000.0, 0.2, B))
    before.step()
    memory = json.loads(json.dumps(before.controller.dump(before.now)))
    after = Scene([A], now=before.now + 1.0, memory=memory, scoring={"strategy": "predicted_ttft"})
    after.step()
    for passed, kept in ((1.0, {A, B}), (601.0, {A})):
        memory = after.controller.dump(after.now + passed)
        assert memory["endpoints"].keys() == memory["strategy"]["memory"].keys() == kept


def test_memory_older_than_ten_minutes_is_ignored() -> None:
    before = Scene([A, B])
    before.see(rejected(1000.0, A, retry_after_s=60.0), *answered(1000.0, 1.9, B))
    before.step()
    after = restarted(before, after=601.0)
    after.step()
    assert (after.at(A).state, after.at(B).view.ttft_s) == (State.UP, None)


def test_memory_of_the_future_is_ignored() -> None:
    before = Scene([A, B], now=5000.0)
    before.see(rejected(5000.0, A))
    before.step()
    after = restarted(before, after=-1000.0)
    after.step()
    assert after.at(A).state == State.UP


def test_an_endpoint_that_was_added_meanwhile_is_a_new_one() -> None:
    before = Scene([A, B])
    before.step()
    memory = before.controller.dump(before.now)
    after = Scene([A, B, C], now=1001.0, memory=memory)
    after.step()
    assert [e.effective_score for e in after.step().endpoints] == [100.0, 100.0, 30.0]


def test_an_endpoint_that_discovery_finds_later_still_gets_its_memory() -> None:
    before = Scene([A, B])
    before.see(*answered(1000.0, 1.0, B))
    before.step()
    after = Scene([A], now=1001.0, memory=before.controller.dump(1000.5))
    after.step()
    again = Scene([A], now=1002.0, memory=after.controller.dump(1001.5))
    again.now = 1003.0
    again.set_endpoints(A, B)
    assert again.view(B).ttft_s == pytest.approx(1.0)


def test_memory_is_of_the_first_incarnation_only() -> None:
    before = Scene([A, B])
    before.see(*answered(1000.0, 1.0, B))
    before.step()
    after = restarted(before)
    after.set_endpoints(A)
    after.set_endpoints(A, B)
    assert after.view(B).ttft_s is None


def test_what_is_malformed_is_ignored_entry_by_entry(caplog: pytest.LogCaptureFixture) -> None:
    before = Scene([A, B])
    before.see(*answered(1000.0, 1.0, A), *answered(1000.0, 1.0, B))
    before.step()
    memory = before.controller.dump(1000.5)
    memory["endpoints"][A]["profile"]["ttft_s"] = "fast"
    with caplog.at_level(logging.WARNING):
        after = Scene([A, B], now=1001.0, memory=memory)
    assert (after.view(A).ttft_s, after.view(B).ttft_s) == (None, pytest.approx(1.0))
    assert A in caplog.text and B not in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_memory_can_do_harm(data: st.DataObject) -> None:
    before = Scene([A, B, C])
    before.see(rejected(1000.0, A), *(failed(1000.0, B, f"f{i}") for i in range(3)), *answered(1000.0, 0.2, C))
    before.step()
    memory = before.controller.dump(1000.5)
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = memory
        while isinstance(place, dict) and place:
            key = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
                place[key] = data.draw(json_values)
                break
            place = place[key]
    after = Scene([A, B, C], now=1001.0, memory=memory)
    after.see(rejected(1001.0, A), failed(1001.0, B), *answered(1001.0, 0.2, C, "more"))
    for decision in after.run(1080.0, 5.0):
        assert sum(e.share for e in decision.endpoints) == pytest.approx(1.0)
        assert all(e.weight >= 1 and 0 <= e.effective_score <= 100 for e in decision.endpoints)
    json.dumps(after.controller.dump(1080.0), allow_nan=False)


def test_numbers_beyond_all_reason_are_bounded() -> None:
    before = Scene([A, B])
    before.see(*(failed(1000.0, A, f"f{i}") for i in range(3)))
    before.step()
    memory = before.controller.dump(1000.5)
    memory["endpoints"][A]["health"] |= {
        "breaker_openings": 10**12,
        "breaker_until": 1e15,
        "cool_down_repeats": 10**9,
    }
    memory["endpoints"][A]["profile"]["ttft_at"] = 1e15
    after = Scene([A, B], now=1001.0, memory=memory)
    after.step()
    assert after.at(A).until == 1001.0 + 8 * 30
    after.see(rejected(1300.0, A), failed(1300.0, A, took_s=0.1))
    after.step()
    assert after.at(A).until == 1300.0 + 8 * 30


@pytest.mark.parametrize("memory", [None, {}, [], "x", {"endpoints": 3}, {"endpoints": {A: None}}, {"strategy": []}])
def test_memory_that_is_none_at_all(memory: Any) -> None:
    assert Scene([A, B], memory=memory).step().changed
