"""What the controller is told, and when."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.sim.replay.scene import fleet, run, steady
from trimtab.observation.kinds import (
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    LoadReported,
    Observation,
    Rejected,
    SignalsRead,
    StreamRead,
)
from trimtab.policy.model import Pool
from trimtab.pool import PoolController
from trimtab.sim.replay.arms import policy_arm
from trimtab.sim.trace import Request


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Observation]]:
    """All that the controllers are told, each with the time of its arrival."""
    told: list[tuple[float, Observation]] = []
    observe = PoolController.observe

    def spy(self: Any, now: float, observations: Sequence[Observation]) -> None:
        told.extend((now, observation) for observation in observations)
        observe(self, now, observations)

    monkeypatch.setattr(PoolController, "observe", spy)
    return told


def of(heard: list[tuple[float, Observation]], kind: type) -> list[tuple[float, Any]]:
    return [(now, observation) for now, observation in heard if isinstance(observation, kind)]


def test_everything_arrives_after_it_happened_and_soon(heard: list[tuple[float, Observation]]) -> None:
    run(steady(40, 0.107), fleet({}, {}), "predicted_ttft")
    assert all(0 <= now - observation.at < 0.0221 for now, observation in heard)
    # A token is known at once; starts and ends wait for the access log.
    assert all(now - token.at == pytest.approx(0.001, abs=1e-6) for now, token in of(heard, FirstToken))
    assert max(now - started.at for now, started in of(heard, AttemptStarted)) > 0.01


def test_each_attempt_is_told_once_and_its_times_are_true(heard: list[tuple[float, Observation]]) -> None:
    replay = run(steady(40, 0.1, prompt=1000), fleet({}, {}), "health")
    started = [one for _, one in of(heard, AttemptStarted)]
    tokens = {one.request_id: one.at for _, one in of(heard, FirstToken)}
    assert len(started) == len({one.request_id for one in started}) == 40
    assert {one.prompt_bytes for one in started} == {4000}
    for served, one in zip(replay.served, started, strict=True):
        assert tokens[one.request_id] - one.at == pytest.approx(served.first_token_s - served.arrived_s, abs=1e-5)
    # The last end is still in the log when the replay is over.
    assert len(of(heard, AttemptEnded)) >= 38


def test_engines_and_envoys_report_in_their_rhythm(heard: list[tuple[float, Observation]]) -> None:
    run(steady(100, 0.1), fleet({}, {}), "health")
    readings = [one for _, one in of(heard, SignalsRead)]
    assert len(readings) == pytest.approx(2 * 10, abs=4)
    assert any(reading.signals.running for reading in readings)
    loads = [one for _, one in of(heard, LoadReported)]
    assert len(loads) == pytest.approx(4 * 10, abs=4)
    assert any(load.in_flight for load in loads)


def test_an_engine_shows_what_the_page_of_its_kind_does(heard: list[tuple[float, Observation]]) -> None:
    endpoints = fleet({})
    for engine, shown in (("ollama", set()), ("ray-serve", {(True, True, False)})):
        policy = Pool.model_validate({"name": "chat", "engine": engine, "endpoints": [{"address": "127.0.0.1:1"}]})
        heard.clear()
        run(steady(10, 0.3), endpoints, policy_arm("p", endpoints, policy))
        readings = [one.signals for _, one in of(heard, SignalsRead)]
        assert {(s.waiting is not None, s.running is not None, s.kv_usage is not None) for s in readings} == shown


def test_readings_are_of_their_moment(heard: list[tuple[float, Observation]]) -> None:
    """Nothing happens in an engine that only decodes, and yet its counters go on."""
    run([Request(0.0, 1000, 800)], fleet({}), "health")
    readings = [one for _, one in of(heard, SignalsRead)]
    tokens = [reading.signals.generated_tokens for reading in readings]
    assert len(tokens) >= 9
    grown = [after - before for before, after in pairwise(tokens)]
    assert min(grown[1:]) == pytest.approx(1 / 0.01215, abs=2)


def test_an_idle_endpoint_is_left_out_of_load_reports(heard: list[tuple[float, Observation]]) -> None:
    run([Request(0.0, 100, 50), Request(5.0, 100, 5)], fleet({}, {}), "health")
    loads = [load.in_flight for _, load in of(heard, LoadReported)]
    assert sorted(loads[0].values()) == [1]
    assert loads[10] == {}


def test_a_refusal_is_read_and_the_attempt_ends(heard: list[tuple[float, Observation]]) -> None:
    run(
        [Request(0.0, 4000, 100), Request(0.1, 10, 5), Request(0.2, 10, 5)], fleet({"max_num_queued_reqs": 1}), "health"
    )
    refused = [one for _, one in of(heard, Rejected)]
    assert refused
    assert {(one.status, str(one.verdict)) for one in refused} == {(503, "saturated")}


def test_streams_that_are_read_whole_show_every_gap(heard: list[tuple[float, Observation]]) -> None:
    run(steady(300, 0.2, output=60), fleet({}), "health")
    reads = [one for _, one in of(heard, StreamRead)]
    assert 3 <= len({read.request_id for read in reads}) <= 40
    gaps: dict[str, list[float]] = {}
    for read in reads:
        gaps.setdefault(read.request_id, []).extend(read.gaps_s)
    finished = {read.request_id for read in reads if read.finished}
    assert {len(gaps[request]) for request in finished} == {59}
    assert all(0.012 <= gap < 0.3 for request in finished for gap in gaps[request])
