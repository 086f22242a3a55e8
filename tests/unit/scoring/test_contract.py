"""What holds for every strategy, whatever its formula."""

import copy
import json
from collections import deque
from dataclasses import replace
from enum import Enum
from math import isfinite
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scene import A, B, Scene, answered, read
from tests.unit.scoring.fluid import Pool, engines
from tests.unit.scoring.strategies import POLICIES, STRATEGIES
from tests.unit.scoring.views import READINGS, pools, step, with_view
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.policy.model import Weighting
from trimtab.scoring import Need, Score, Strategy
from trimtab.scoring.contract import Eligible
from trimtab.weights.weighting import Weigher

PAGES = Path(__file__).parents[3] / "docs" / "concepts" / "strategies"

# The readings of which a strategy's page says that a worse one never raises the endpoint's share.
MONOTONE = {
    "health": ("ttft", "errors", "waiting", "kv_usage"),
    "predicted_ttft": ("in_flight", "oldest_wait"),
    "reciprocal": ("ttft_recent", "oldest_wait", "in_flight", "failures"),
    "linear": ("ttft", "kv_usage", "running"),
    "fused": ("ttft", "kv_usage", "prompts"),
    "joint": ("ttft", "errors", "waiting", "kv_usage", "tokens"),
    "middleware": ("ttft", "kv_usage", "waiting"),
    "decode_p99": ("gaps",),
    "wdrm": ("ttft",),
    "throughput": ("tokens", "waiting"),
    "blend": ("ttft", "kv_usage", "tokens"),
}
# Those that sum up losses: what is unknown counts as something between the best and the worst.
SUMS = {
    "health": ("ttft", "waiting", "kv_usage"),
    "linear": ("ttft", "kv_usage"),
    "fused": ("ttft", "kv_usage", "prompts"),
    "joint": ("ttft", "waiting", "kv_usage"),
    "middleware": ("ttft", "kv_usage", "waiting"),
    "blend": ("ttft", "kv_usage", "tokens"),
}
# Those that learn something worth keeping over a restart.
LEARNING = ("predicted_ttft", "decode_p99", "wdrm")

every_strategy = pytest.mark.parametrize("name", STRATEGIES)
quick = settings(max_examples=40, deadline=None)


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, reading) for name, readings in table.items() for reading in readings]


def shares_of(scores: dict[EndpointId, Score] | object) -> dict[EndpointId, float]:
    assert isinstance(scores, dict)
    total = sum(score.share for score in scores.values())
    return {id: score.share / total if total else 0.0 for id, score in scores.items()}


def after_a_past(strategy: Strategy, past: PoolSnapshot, pool: PoolSnapshot) -> dict[EndpointId, Score]:
    """What a strategy says of a pool that it has known as it was for half a minute."""
    for now in (1000.0, 1010.0, 1020.0):
        step(strategy, past, now)
    return dict(step(strategy, pool, 1030.0))


def test_every_strategy_is_in_the_tables() -> None:
    assert set(MONOTONE) == set(STRATEGIES)


@every_strategy
@quick
@given(past=pools(), data=st.data())
def test_scores_are_bounded_and_add_up(name: str, past: PoolSnapshot, data: st.DataObject) -> None:
    strategy = STRATEGIES[name]()
    for sample in data.draw(st.lists(samples(past), max_size=5)):
        strategy.learn(sample)
    scores = after_a_past(strategy, past, data.draw(pools()))
    for score in scores.values():
        assert -1e-9 <= score.score <= 100 + 1e-9
        assert isfinite(score.share) and score.share >= 0
        assert all(-1e-9 <= points <= 100 + 1e-9 for points in score.breakdown.values())
        assert sum(score.breakdown.values()) == pytest.approx(100 - score.score, abs=1e-6)


def samples(pool: PoolSnapshot) -> st.SearchStrategy[TokenSample]:
    size = st.integers(0, 10**7)
    ids = st.sampled_from([view.id for view in pool.endpoints])
    return st.builds(TokenSample, ids, st.just(1000.0), st.floats(0, 600), size, size, st.integers(1, 500))


@every_strategy
@quick
@given(pool=pools(), data=st.data())
def test_the_order_of_the_endpoints_is_kept_and_the_same_past_says_the_same(
    name: str, pool: PoolSnapshot, data: st.DataObject
) -> None:
    past = data.draw(pools())
    once = after_a_past(STRATEGIES[name](), past, pool)
    assert list(once) == [view.id for view in pool.endpoints]
    assert once == after_a_past(STRATEGIES[name](), past, pool)


@pytest.mark.parametrize(("name", "reading"), pairs(MONOTONE))
@quick
@given(pool=pools(least=2), data=st.data())
def test_a_worse_reading_never_raises_a_share(name: str, reading: str, pool: PoolSnapshot, data: st.DataObject) -> None:
    values, put, more_is_worse = READINGS[reading]
    better, worse = sorted(data.draw(st.tuples(values, values)), reverse=not more_is_worse)
    view = data.draw(st.sampled_from(pool.endpoints))
    before, after = (
        shares_of(after_a_past(STRATEGIES[name](), pool, with_view(pool, put(view, value))))[view.id]
        for value in (better, worse)
    )
    assert after <= before + 1e-9


@pytest.mark.parametrize(("name", "reading"), pairs(SUMS))
@quick
@given(pool=pools(), data=st.data())
def test_what_is_unknown_lies_between_the_best_and_the_worst(
    name: str, reading: str, pool: PoolSnapshot, data: st.DataObject
) -> None:
    _, put, more_is_worse = READINGS[reading]
    ends = (0.0, 1e6) if reading != "kv_usage" else (0.0, 1.0)
    view = data.draw(st.sampled_from(pool.endpoints))
    best, unknown, worst = (
        step(STRATEGIES[name](), with_view(pool, put(view, value)), 1000.0)[view.id].score
        for value in (ends[not more_is_worse], None, ends[more_is_worse])
    )
    assert worst - 1e-9 <= unknown <= best + 1e-9


@every_strategy
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6))
@quick
def test_of_a_pool_of_which_nothing_is_known_shares_follow_capacity(name: str, capacities: list[float]) -> None:
    views = tuple(EndpointView(EndpointId(f"a{i}:1"), f"a{i}", capacity) for i, capacity in enumerate(capacities))
    shares = shares_of(dict(step(STRATEGIES[name](), PoolSnapshot("pool", 1000.0, views), 1000.0)))
    if name == "joint":  # adds capacity up
        ranked = sorted(views, key=lambda view: view.capacity or 0)
        assert [shares[view.id] for view in ranked] == sorted(shares.values())
        return
    assert list(shares.values()) == pytest.approx([capacity / sum(capacities) for capacity in capacities], abs=2e-3)


@every_strategy
@quick
@given(pool=pools(), factor=st.floats(0.01, 100))
def test_the_unit_of_capacity_does_not_matter(name: str, pool: PoolSnapshot, factor: float) -> None:
    def scaled(view: EndpointView) -> EndpointView:
        return view if view.capacity is None else replace(view, capacity=view.capacity * factor)

    # Where nobody has a capacity it is 1 for all, in whatever unit.
    other = replace(pool, endpoints=tuple(scaled(view) for view in pool.endpoints))
    one, two = (after_a_past(STRATEGIES[name](), seen, seen) for seen in (pool, other))
    assert list(shares_of(one).values()) == pytest.approx(list(shares_of(two).values()), rel=1e-6, abs=1e-9)


@every_strategy
@quick
@given(pool=pools(), past=pools())
def test_no_endpoint_starves(name: str, pool: PoolSnapshot, past: PoolSnapshot) -> None:
    """After weighting, whoever is in gets the floor: `floor_share`, at most half of what its capacity says."""
    strategy, config = STRATEGIES[name](), Weighting(kv_limit=1)
    weigher = Weigher(config, Random(1))
    for now in (1000.0, 1010.0):
        weigher.decide(replace(past, at=now), strategy)
    decision = weigher.decide(replace(pool, at=1020.0), strategy)
    declared = [view.capacity for view in pool.endpoints if view.capacity is not None]
    mean = sum(declared) / len(declared) if declared else 1.0
    capacities = {view.id: view.capacity or mean for view in pool.endpoints}
    assert sum(endpoint.share for endpoint in decision.endpoints) == pytest.approx(1)
    for endpoint in decision.endpoints:
        fair = capacities[endpoint.id] / sum(capacities.values())
        floor = min(config.floor_share, fair / 2) if strategy.floored else 0.0
        assert endpoint.weight >= 1
        assert endpoint.share >= floor - 1e-12 if endpoint.takes_work else endpoint.share == 0


@every_strategy
def test_alike_endpoints_share_alike_through_restarts(name: str) -> None:
    """Each of six alike engines is replaced in turn, at 70 % load: none ever gets more than twice its fair share.

    The bound: five that go on could carry 1.2 of their fair share each, and who comes back is empty and may fill up
    to where the others are (two seconds of work), which takes no more than as much again in five seconds.
    """
    pool = Pool(STRATEGIES[name](), engines(4, 4, 4, 4, 4, 4), demand=0.7 * 24)
    pool.run(20)
    for restarted in range(6):
        pool.restart(restarted)
        for _ in range(4):
            for engine in pool.engines:
                engine.arrived = 0.0
            pool.run(5)
            total = sum(engine.arrived for engine in pool.engines)
            assert max(engine.arrived for engine in pool.engines) <= 2 * total / 6
    assert all(engine.waiting / engine.rate < 2 for engine in pool.engines)


@every_strategy
def test_unlike_endpoints_are_not_overloaded_by_what_they_declare(name: str) -> None:
    """At 70 % load nobody's share is above 1 / 0.7 of its part of the rates for long: queues stay short.

    `joint` is the exception that its page tells of: it adds capacity up, and overloads the smallest.
    """
    pool = Pool(STRATEGIES[name](), engines(10, 10, 4, 4, 1), demand=0.7 * 29)
    pool.run(120)
    longest = max(engine.waiting / engine.rate for engine in pool.engines)
    assert longest < 5 if name != "joint" else longest > 5


@pytest.mark.parametrize("name", ["predicted_ttft", "reciprocal", "wdrm", "throughput"])
def test_those_that_measure_need_no_capacities(name: str) -> None:
    pool = Pool(STRATEGIES[name](), engines(10, 10, 4, 4, 1, declared=False), demand=0.7 * 29)
    pool.run(180)
    assert all(engine.waiting / engine.rate < 5 for engine in pool.engines)


@every_strategy
@given(past=pools(least=2), now=pools(least=2))
@quick
def test_a_score_moves_no_state(name: str, past: PoolSnapshot, now: PoolSnapshot) -> None:
    """It can be asked again, or of another pool meanwhile, and says the same."""
    strategy = STRATEGIES[name]()
    first = step(strategy, past)
    eligible, others = Eligible.everyone(past), Eligible.everyone(now)
    before = copy.deepcopy(strategy)
    scores = strategy.score(past, eligible)
    strategy.score(now, others)
    assert strategy.score(past, eligible) == scores
    assert _state_of(strategy) == _state_of(before)
    assert first.keys() == scores.keys()


@every_strategy
def test_what_is_remembered_is_recalled(name: str) -> None:
    pool = Pool(STRATEGIES[name](), engines(10, 4, 1), demand=9)
    pool.run(60)
    snapshot = PoolSnapshot("pool", pool.now, tuple(engine.view() for engine in pool.engines))
    again = STRATEGIES[name]()
    again.restore(json.loads(json.dumps(pool.strategy.dump())))
    assert bool(pool.strategy.dump()) is (name in LEARNING)
    step(again, snapshot, pool.now)
    assert _flat(again.dump()) == pytest.approx(_flat(pool.strategy.dump()))


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@every_strategy
@quick
@given(memory=st.dictionaries(st.sampled_from(["10.0.0.1:8000", "10.0.0.2:8000", "x"]), anything), pool=pools())
def test_a_malformed_memory_does_no_harm(name: str, memory: dict[str, object], pool: PoolSnapshot) -> None:
    strategy = STRATEGIES[name]()
    strategy.restore(memory)
    scores = step(strategy, pool, 1000.0)
    assert all(0 <= score.score <= 100 and isfinite(score.share) for score in scores.values())
    json.dumps(strategy.dump())


@every_strategy
def test_an_endpoint_that_is_gone_is_forgotten(name: str) -> None:
    pool = Pool(STRATEGIES[name](), engines(10, 4, 1), demand=9)
    pool.run(30)
    for engine in pool.engines:
        pool.strategy.forget(engine.id)
    step(pool.strategy, PoolSnapshot("pool", pool.now, ()), pool.now)
    assert pool.strategy.dump() == {}


def test_a_strategy_is_swapped_under_a_running_pool() -> None:
    scene = Scene({A: 10, B: 4}, scoring=POLICIES["health"])
    for name, scoring in POLICIES.items():
        scene.see(*answered(scene.now + 0.1, 0.5, request=name), read(scene.now + 0.2, waiting=1, kv_usage=0.3))
        scene.controller.reconfigure(scene.now, scene.policy.model_copy(update={"scoring": scoring}))
        decision = scene.step(scene.now + 0.25)
        assert sum(endpoint.share for endpoint in decision.endpoints) == pytest.approx(1)
        assert scene.view().ttft_samples > 0
        assert scene.controller.dump(scene.now)["strategy"]["name"] == name


@every_strategy
def test_its_page_says_what_it_reads(name: str) -> None:
    strategy, page = STRATEGIES[name](), (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# `{name}`\n")
    assert f"Needs: {_listed(type(strategy).needs)}." in page or name == "blend"
    assert not strategy.uses or f"Uses, where it can: {_listed(strategy.uses)}." in page
    assert "## Flaws" in page
    assert all(f"`{field}`" in page for field in type(POLICIES[name]).model_fields if field != "strategy")
    assert f"]({name}.md)" in (PAGES / "index.md").read_text(encoding="utf-8")


def _listed(needs: frozenset[Need]) -> str:
    return ", ".join(f"`{need}`" for need in Need if need in needs)


def _flat(memory: object, path: str = "") -> dict[str, float]:
    if isinstance(memory, dict):
        return {key: value for name, inner in memory.items() for key, value in _flat(inner, f"{path}/{name}").items()}
    return {path: memory} if isinstance(memory, int | float) else {}


def _state_of(thing: object) -> object:
    """All that an object holds, comparable."""
    if isinstance(thing, dict):
        return {str(key): _state_of(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple | deque):
        return [_state_of(value) for value in thing]
    if isinstance(thing, frozenset | Enum | str | int | float | None):
        return thing
    slots = [slot for base in type(thing).__mro__ for slot in getattr(base, "__slots__", ())]
    fields = [*getattr(thing, "__dict__", ()), *slots]
    return {field: _state_of(getattr(thing, field)) for field in fields} if fields else repr(thing)
