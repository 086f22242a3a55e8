"""One replay: what becomes of requests."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from tests.unit.sim.replay.scene import fleet, run, steady
from trimtab.policy.model import Retries
from trimtab.scoring import PredictedTtftPolicy
from trimtab.sim.client import Outcome
from trimtab.sim.replay.arms import Arm, known_names, make_arm, usable_names
from trimtab.sim.replay.figures import figures, over_seeds, ttft_s
from trimtab.sim.replay.hosts import Balancer, Host
from trimtab.sim.replay.pickers import PowerOfTwo
from trimtab.sim.trace import Request


def test_a_lone_request_takes_what_its_engine_takes() -> None:
    replay = run([Request(1.0, 1200, 11)], fleet({}))
    (served,) = replay.served
    assert served.outcome is Outcome.OK
    assert ttft_s(served, replay.ended_s) == pytest.approx(0.012 + 1200 / 12_000)
    assert figures(replay)["tpot_ms"]["mean"] == pytest.approx(12.15)
    assert figures(replay)["output_tokens_per_s"] == pytest.approx(11 / replay.ended_s)


@pytest.mark.parametrize("name", usable_names(fleet({}, {})))
def test_every_arm_serves_everything_and_the_same_seed_gives_the_same_replay(name: str) -> None:
    engines = fleet({"count": 2, "capacity": 10}, {"kind": "rtx4090", "capacity": 4})
    trace = steady(150, 0.05)
    first, again, other = (run(trace, engines, name, seed) for seed in (1, 1, 2))
    assert all(served.outcome is Outcome.OK for served in first.served)
    assert figures(first) == figures(again)
    assert sum(endpoint.attempts for endpoint in other.endpoints) == len(trace)
    assert figures(first)["share"].keys() == {"a100-1", "a100-2", "rtx4090-1"}


def test_two_arms_that_do_the_same_have_the_same_chances_whatever_their_names() -> None:
    engines = fleet({"count": 2, "max_num_queued_reqs": 6}, {"kind": "rtx4090"})
    one = make_arm("predicted_ttft", engines)
    replays = [run(steady(200, 0.03), engines, arm, gateways=2) for arm in (one, replace(one, name="other"))]
    assert figures(replays[0]) == figures(replays[1])
    assert figures(replays[0])["retries"] > 0


def test_all_scoring_strategies_are_arms() -> None:
    assert {"round_robin", "least_request", "health", "predicted_ttft"} <= set(known_names())


def test_a_refusal_is_retried_on_another_endpoint() -> None:
    engines = fleet({"name": "small", "max_num_queued_reqs": 1}, {})
    # With this seed the schedule begins at the small one.
    replay = run([Request(0.0, 4000, 500), Request(0.1, 10, 5), Request(0.2, 10, 5)], engines, seed=3)
    assert all(served.outcome is Outcome.OK for served in replay.served)
    retried = [served for served in replay.served if served.attempts > 1]
    assert [replay.endpoints[served.endpoint or 0].name for served in retried] == ["a100-1"] * len(retried)
    assert figures(replay)["refused"] == figures(replay)["retries"] == len(retried) > 0


def test_without_retries_a_refusal_is_the_answer() -> None:
    engines = fleet({"max_num_queued_reqs": 1})
    arm = replace(make_arm("round_robin", engines), retries=Retries(attempts=0))
    replay = run([Request(0.0, 4000, 100), Request(0.1, 10, 5)], engines, arm)
    assert [served.outcome for served in replay.served] == [Outcome.OK, Outcome.HTTP_ERROR]
    assert figures(replay)["errors"] == {"http 503": 1}
    assert figures(replay)["success"] == 0.5
    # A quick refusal is no quick answer.
    assert ttft_s(replay.served[1], replay.ended_s) == pytest.approx(replay.ended_s - 0.1)


def test_a_request_that_no_engine_can_hold_is_a_bad_one() -> None:
    replay = run([Request(0.0, 40_000, 5)], fleet({}))
    assert figures(replay)["errors"] == {"http 400": 1}


def test_what_is_open_at_the_cut_counts_to_the_cut() -> None:
    replay = run([Request(0.0, 12_000, 1), Request(0.0, 12_000, 400)], fleet({}), cut_after_last_s=1.5)
    assert replay.cut_off_s == 1.5
    assert [served.outcome for served in replay.served] == [Outcome.OK, Outcome.NO_TOKEN]
    assert ttft_s(replay.served[1], replay.ended_s) == 1.5
    assert figures(replay)["errors"] == {"no token": 1}


def test_a_stream_that_the_cut_finds_in_good_order_is_a_success() -> None:
    replay = run([Request(0.0, 1200, 1000)], fleet({}), cut_after_last_s=2.0)
    assert replay.served[0].outcome is Outcome.UNFINISHED
    assert 0 < replay.served[0].tokens < 1000
    assert figures(replay)["success"] == 1.0


@pytest.mark.parametrize("arm", ["round_robin", "predicted_ttft"])
def test_a_client_leaves_when_its_patience_ends_and_the_engine_is_free_again(arm: str) -> None:
    trace = [Request(0.0, 30_000, 5), Request(0.1, 30_000, 5), Request(2.0, 100, 5)]
    replay = run(trace, fleet({}), arm, patience_s=1.0)
    assert [served.outcome for served in replay.served] == [Outcome.NO_TOKEN, Outcome.NO_TOKEN, Outcome.OK]
    assert [ttft_s(served, replay.ended_s) for served in replay.served[:2]] == [1.0, pytest.approx(1.0)]
    assert ttft_s(replay.served[2], replay.ended_s) < 0.1


def test_a_closed_loop_never_has_more_under_way_than_clients() -> None:
    replay = run(steady(60, 0.0), fleet({}, {}), clients=4)
    changes = sorted(
        change for served in replay.served for change in ((served.arrived_s, 1), (served.ended_s or 0.0, -1))
    )
    under_way, most = 0, 0
    for _, change in changes:
        under_way += change
        most = max(most, under_way)
    assert most == 4
    assert all(before.arrived_s <= after.arrived_s for before, after in pairwise(replay.served))


def test_several_envoys_and_workers_serve_everything() -> None:
    engines = fleet({"count": 3, "capacity": 1})
    replay = run(steady(200, 0.02), engines, "predicted_ttft", gateways=2, workers=2)
    assert figures(replay)["success"] == 1.0


def test_utilisation_and_backlog_are_shares() -> None:
    seen = figures(run(steady(100, 0.1), fleet({}, {"kind": "cpu"})))
    assert all(0 <= share <= 1 for name in ("busy", "utilisation", "backlog_share") for share in seen[name].values())
    assert seen["busy"]["cpu-1"] > seen["busy"]["a100-1"]


@pytest.mark.parametrize("start", [1.5, 4, 12])
def test_bytes_per_token_are_learned_wherever_they_begin(start: float) -> None:
    """The simulated engines take four bytes for a token, and count as vLLM does."""
    engines = fleet({"count": 2})
    arm = make_arm("predicted_ttft", engines)
    assert arm.pool is not None
    scoring = PredictedTtftPolicy(bytes_per_token=start)
    replay = run(
        steady(600, 0.05, prompt=300), engines, replace(arm, pool=arm.pool.model_copy(update={"scoring": scoring}))
    )
    assert replay.bytes_per_token == pytest.approx(4, rel=0.05)


def test_an_endpoint_remembers_what_an_answer_met_not_what_had_come_until_its_token() -> None:
    engines, known = fleet({}), []

    def watched(hosts: Sequence[Host], rng: Random) -> Balancer:
        known.extend(hosts)
        return PowerOfTwo(hosts, rng)

    run([Request(at, 1200, 50) for at in (0.0, 0.01, 0.02)], engines, Arm("watched", watched, Retries()))
    assert [met for met, _ in known[0].endpoint.answers] == [0, 1, 2]


def test_a_figure_that_one_seed_cannot_tell_is_the_mean_of_the_others() -> None:
    ttft = dict.fromkeys(("mean", "p50", "p90", "p99"), 1.0)
    told = {"ttft_ms": ttft, "tpot_ms": {"mean": 12.0}, "errors": {}}
    mean = over_seeds([told, {"ttft_ms": ttft, "tpot_ms": {}, "errors": {"http 503": 4}}])
    assert mean["tpot_ms"] == {"mean": 12.0}
    assert mean["errors"] == {"http 503": 2.0}, "none is a number"
