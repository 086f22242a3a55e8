"""The control loop as a whole: its policy may change under it, and it is a function of what it is told."""

import dataclasses
from collections.abc import Callable
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.scene import (
    A,
    B,
    C,
    Scene,
    answered,
    ended,
    failed,
    load,
    read,
    rejected,
    started,
    stream_read,
    token,
    unreachable,
)
from trimtab.health.state import State
from trimtab.observation.kinds import Observation, Outcome, Verdict
from trimtab.pool import EndpointSpec, PoolDecision
from trimtab.scoring import HealthPolicy


def test_a_new_policy_keeps_what_is_known() -> None:
    scene = Scene([A, B])
    scene.see(*answered(1000.0, 1.0), rejected(1000.1, B), started(1000.2, request="open"))
    scene.step()
    stricter = scene.policy.model_copy(update={"scoring": HealthPolicy(ttft_threshold_ms=1000, ttft_alpha=0.5)})
    scene.controller.reconfigure(1001.0, stricter)
    scene.step(1001.2)
    assert scene.at(B).state == State.COOLING
    assert (scene.at(A).view.ttft_s, scene.at(A).view.in_flight) == (pytest.approx(1.0), 1)
    assert scene.at(A).score == pytest.approx(100 * (1 - 0.35 / 0.75))
    scene.see(token(1001.2, request="open"), *answered(1002.0, 2.0, request="next"))
    assert scene.view(A).ttft_s == pytest.approx(1.5)


def test_a_new_policy_may_shorten_what_is_stale() -> None:
    scene = Scene([A, B])
    scene.see(read(1000.0, waiting=1))
    shorter = scene.policy.signals.model_copy(update={"stale_after_s": 1})
    scene.controller.reconfigure(1000.0, scene.policy.model_copy(update={"signals": shorter}))
    scene.now = 1002.0
    assert scene.view().signals.waiting is None


def test_a_changed_capacity_is_the_same_endpoint() -> None:
    scene = Scene({A: 1, B: 1})
    scene.see(*answered(1000.0, 1.0))
    scene.step()
    scene.controller.set_endpoints(1001.0, [EndpointSpec(A, "a", 3.0, {"gpu": "a100"}), EndpointSpec(B, "b", 1.0)])
    scene.step(1001.1)
    assert (scene.at(A).id.incarnation, scene.at(A).view.ttft_samples) == (0, 1)
    assert (scene.at(A).view.capacity, scene.at(A).view.labels) == (3.0, {"gpu": "a100"})
    assert scene.at(A).share > 0.7


def test_endpoints_come_in_the_order_of_their_ids() -> None:
    scene = Scene([C, A, B])
    assert [e.id.address for e in scene.step().endpoints] == [A, B, C]


def test_the_same_address_again_and_again_is_another_endpoint_each_time() -> None:
    scene = Scene([A, B])
    for incarnation in range(1, 4):
        scene.set_endpoints(B)
        scene.now += 1.0
        scene.set_endpoints(A, B)
        assert scene.view().id.incarnation == incarnation


def test_churn_of_addresses_does_not_fill_the_memory() -> None:
    scene = Scene([A])
    for i in range(3000):
        scene.now += 1.0
        scene.set_endpoints(A, f"10.1.{i // 250}.{i % 250}:80")
        scene.step()
    controller = scene.controller
    assert len(controller._fleet._departed) <= 1024
    assert len(controller._weigher.health) == 2


def test_a_pool_without_endpoints_decides_nothing() -> None:
    scene = Scene([A])
    scene.set_endpoints()
    scene.see(started(1000.0), rejected(1000.0))
    decision = scene.step()
    assert decision.endpoints == () and decision.changed
    scene.set_endpoints(A)
    assert scene.step().endpoints[0].weight == 10_000


def test_a_slow_endpoint_loses_work_and_gets_it_back() -> None:
    """A tenth of the speed under load: by TTFT and queue its share has halved in 5 s; healed, it is soon back."""
    scene = Scene([A, B])
    number = 0
    shares = {}
    for tick in range(240):
        now = 1000.0 + tick * 0.25
        slow = 10.0 <= now - 1000.0 < 30.0
        queue = min(30.0, (now - 1010.0) * 6) if slow else 0.0
        for address in (A, B):
            ttft = 2.0 if slow and address == A else 0.2
            for _ in range(2):
                number += 1
                scene.see(*answered(now, ttft, address, f"r{number}"), now=now)
        scene.see(read(now, A, waiting=queue, kv_usage=0.3), read(now, B, waiting=0, kv_usage=0.3), now=now)
        scene.step(now)
        shares[now - 1000.0] = scene.at(A).share
    assert shares[9.0] == pytest.approx(0.5, abs=0.01)
    assert shares[15.0] < 0.34, "and least_request takes the rest off it"
    assert shares[40.0] > 0.48


def everything(random: Random) -> list[Observation]:
    """A pool's busy seconds, with every kind of observation, many of them at the same moment."""
    observations: list[Observation] = []
    for i in range(60):
        at = 1000.0 + random.randrange(12) * 0.25
        address, request = random.choice([A, B, C]), f"r{i // 2}"
        ttft = random.choice([0.25, 0.5])
        observations += [
            started(at, address, request, streamed=random.choice([True, False, None])),
            random.choice(
                [
                    token(at + ttft, address, request),
                    rejected(at + ttft, address, request, random.choice(list(Verdict)), status=503),
                    stream_read(at + ttft, address, request, verdict=Verdict.UNAVAILABLE),
                    unreachable(at + ttft, address, request),
                ]
            ),
            ended(
                at + 0.75, at, address, request, status=random.choice([200, 200, 429, 500]), outcome=Outcome.COMPLETE
            ),
        ]
        if i % 4 == 0:
            observations.append(load(at, random.randrange(4), address))
            observations.append(read(at, address, waiting=random.randrange(9), kv_usage=random.random()))
    return observations


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_order_of_what_happened_at_one_moment_does_not_matter(seed: int, random: Random) -> None:
    observations = sorted(everything(Random(seed)), key=lambda o: o.at)

    def play(shuffled: bool) -> list[PoolDecision]:
        scene, decisions = Scene({A: 10, B: 4, C: 1}, seed=4), []
        for at, group in groupby(observations, key=lambda o: o.at):
            batch = list(group)
            if shuffled:
                random.shuffle(batch)
            scene.see(*batch, now=at + 0.05)
            decisions.append(scene.step(at + 0.1))
        return decisions + scene.run(1020.0)

    assert play(False) == play(True)


def check(decision: PoolDecision) -> None:
    assert sum(e.share for e in decision.endpoints) == pytest.approx(1.0)
    for e in decision.endpoints:
        assert e.weight >= 1 and isinstance(e.weight, int)
        assert 0 <= e.share <= 1 and 0 <= e.score <= 100 and 0 <= e.effective_score <= 100
        assert e.takes_work or e.share == 0
        assert e.view.in_flight >= 0 and 0 <= e.view.error_share <= 1
        assert e.reason.startswith(str(e.state)) or e.state is State.PANIC
        config = [value for value in dataclasses.astuple(e) if isinstance(value, float)]
        assert all(value == value for value in config), "no NaN"
    assert any(e.takes_work for e in decision.endpoints)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 3.0))
def test_every_decision_is_whole(seed: int, interval_s: float) -> None:
    scene = Scene({A: 10, B: None, C: 1}, seed=seed)
    observations = everything(Random(seed))
    Random(seed).shuffle(observations)
    while observations:
        batch, observations = observations[:7], observations[7:]
        scene.see(*batch, now=scene.now + interval_s)
        check(scene.step())
    for decision in scene.run(scene.now + 100.0, 1.0):
        check(decision)


def history(random: Random) -> list[list[Observation]]:
    """What went before, the same for both worlds, in the order of arrival."""
    steps = []
    for i in range(random.randrange(12)):
        at, batch = 1000.0 + i * 0.5, []
        for address in (A, B, C):
            request = f"h{i}{address}"
            kind = random.choice(["answered", "answered", "answered", "failed", "refused", "reading", "mute", "none"])
            batch += {
                "answered": answered(at, random.choice([0.05, 0.4, 1.5]), address, request),
                "failed": [failed(at, address, request)],
                "refused": [rejected(at, address, request)],
                "reading": [read(at, address, waiting=random.randrange(40), kv_usage=random.random())],
                "mute": [started(at, address, request)],
                "none": [],
            }[kind]
        steps.append(batch)
    return steps


def _tokens(random: Random, at: float) -> tuple[list[Observation], list[Observation]]:
    low, high = sorted(random.choice([0.0, 0.1, 0.3, 0.45]) for _ in range(2))
    return answered(at - 0.5, low, request="x")[:2], answered(at - 0.5, high, request="x")[:2]


def _readings(random: Random, at: float, *names: str) -> tuple[list[Observation], list[Observation]]:
    scales = {"waiting": 60.0, "kv_usage": 1.0}
    values = {name: sorted(random.random() * scales[name] for _ in range(2)) for name in names}
    low, high = ({name: pair[i] for name, pair in values.items()} for i in range(2))
    return [read(at, **low)], [read(at, **high)]


def _mute(at: float) -> list[Observation]:
    return [started(at - 0.5, request="x")]


def _success(at: float) -> list[Observation]:
    return answered(at - 0.5, 0.0, request="x")


def _failure(at: float) -> list[Observation]:
    return [failed(at - 0.49, request="x", took_s=0.01)]


def _refusal(at: float) -> list[Observation]:
    return [rejected(at, request="x")]


# What the last half second brings of endpoint A, and something worse.
WORSE: dict[str, Callable[[Random, float], tuple[list[Observation], list[Observation]]]] = {
    "later token": _tokens,
    "no token": lambda random, at: (_tokens(random, at)[0], _mute(at)),
    "a silent stream": lambda random, at: ([], _mute(at)),
    "failure for success": lambda random, at: (_success(at), _failure(at)),
    "failure for nothing": lambda random, at: ([], _failure(at)),
    "refusal for success": lambda random, at: (_success(at), _mute(at) + _refusal(at)),
    "refusal for nothing": lambda random, at: ([], _refusal(at)),
    "longer queue": lambda random, at: _readings(random, at, "waiting"),
    "fuller cache": lambda random, at: _readings(random, at, "kv_usage"),
    "both": lambda random, at: _readings(random, at, "waiting", "kv_usage"),
}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1_000_000), st.sampled_from(sorted(WORSE)), st.integers(1, 20))
def test_a_worse_signal_never_raises_its_own_share(seed: int, kind: str, breaker_failures: int) -> None:
    random = Random(seed)
    steps = history(random)
    at = 1000.5 + len(steps) * 0.5
    better_end, worse_end = WORSE[kind](random, at)

    def play(end: list[Observation]) -> list[Any]:
        scene = Scene({A: 2, B: 1, C: None}, seed=seed, weighting={"breaker_failures": breaker_failures})
        for batch in steps:
            scene.see(*batch)
            scene.step()
        scene.see(*end, now=max(at, scene.now))
        decisions = [scene.step(), *scene.run(scene.now + 1.0)]
        return [decision.endpoints[0] for decision in decisions]

    for better, now_worse in zip(play(better_end), play(worse_end), strict=True):
        assume(State.PANIC not in (better.state, now_worse.state))
        assert now_worse.share <= better.share + 1e-9


def test_error_burst_then_silence_recovers() -> None:
    scene = Scene([A, B])
    for i in range(500):
        scene.see(failed(1000.0 + i * 0.01, request=f"f{i}"))
    scene.step()
    assert scene.at().state == State.OPEN
    scene.run(1100.0)
    assert scene.at().state == State.HALF_OPEN
    scene.see(*answered(1100.5, 0.1, request="good"))
    scene.run(1115.0)
    assert scene.at().state == State.UP and scene.at().share > 0.45
