"""What holds for every law, whatever its formula."""

import json
from dataclasses import replace
from math import isfinite
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scene import A, B, Scene, answered, read
from tests.unit.scoring.fluid import Pool, engines
from tests.unit.scoring.laws import LAWS, POLICIES
from tests.unit.scoring.views import READINGS, pools, with_view
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.policy.model import Shaping
from trimtab.scoring import Law, Need, Score
from trimtab.weights.weighting import Shaper

PAGES = Path(__file__).parents[3] / "docs" / "laws"

# The readings of which a law's page says that a worse one never raises the endpoint's share.
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

every_law = pytest.mark.parametrize("name", LAWS)
quick = settings(max_examples=40, deadline=None)


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, reading) for name, readings in table.items() for reading in readings]


def shares_of(scores: dict[EndpointId, Score] | object) -> dict[EndpointId, float]:
    assert isinstance(scores, dict)
    total = sum(score.share for score in scores.values())
    return {id: score.share / total if total else 0.0 for id, score in scores.items()}


def after_a_past(law: Law, past: PoolSnapshot, pool: PoolSnapshot) -> dict[EndpointId, Score]:
    """What a law says of a pool that it has known as it was for half a minute."""
    for now in (1000.0, 1010.0, 1020.0):
        law.judge(past, now)
    return dict(law.judge(pool, 1030.0))


def test_every_law_is_in_the_tables() -> None:
    assert set(MONOTONE) == set(LAWS)


@every_law
@quick
@given(past=pools(), data=st.data())
def test_scores_are_bounded_and_add_up(name: str, past: PoolSnapshot, data: st.DataObject) -> None:
    law = LAWS[name]()
    for sample in data.draw(st.lists(samples(past), max_size=5)):
        law.learn(sample)
    scores = after_a_past(law, past, data.draw(pools()))
    for score in scores.values():
        assert -1e-9 <= score.score <= 100 + 1e-9
        assert isfinite(score.share) and score.share >= 0
        assert all(-1e-9 <= points <= 100 + 1e-9 for points in score.breakdown.values())
        assert sum(score.breakdown.values()) == pytest.approx(100 - score.score, abs=1e-6)


def samples(pool: PoolSnapshot) -> st.SearchStrategy[TokenSample]:
    size = st.integers(0, 10**7)
    ids = st.sampled_from([view.id for view in pool.endpoints])
    return st.builds(TokenSample, ids, st.just(1000.0), st.floats(0, 600), size, size, st.integers(1, 500))


@every_law
@quick
@given(pool=pools(), data=st.data())
def test_the_order_of_the_endpoints_is_kept_and_the_same_past_says_the_same(
    name: str, pool: PoolSnapshot, data: st.DataObject
) -> None:
    past = data.draw(pools())
    once = after_a_past(LAWS[name](), past, pool)
    assert list(once) == [view.id for view in pool.endpoints]
    assert once == after_a_past(LAWS[name](), past, pool)


@pytest.mark.parametrize(("name", "reading"), pairs(MONOTONE))
@quick
@given(pool=pools(least=2), data=st.data())
def test_a_worse_reading_never_raises_a_share(name: str, reading: str, pool: PoolSnapshot, data: st.DataObject) -> None:
    values, put, more_is_worse = READINGS[reading]
    better, worse = sorted(data.draw(st.tuples(values, values)), reverse=not more_is_worse)
    view = data.draw(st.sampled_from(pool.endpoints))
    before, after = (
        shares_of(after_a_past(LAWS[name](), pool, with_view(pool, put(view, value))))[view.id]
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
        LAWS[name]().judge(with_view(pool, put(view, value)), 1000.0)[view.id].score
        for value in (ends[not more_is_worse], None, ends[more_is_worse])
    )
    assert worst - 1e-9 <= unknown <= best + 1e-9


@every_law
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6))
@quick
def test_of_a_pool_of_which_nothing_is_known_shares_follow_capacity(name: str, capacities: list[float]) -> None:
    views = tuple(EndpointView(EndpointId(f"a{i}:1"), f"a{i}", capacity) for i, capacity in enumerate(capacities))
    shares = shares_of(dict(LAWS[name]().judge(PoolSnapshot("pool", 1000.0, views), 1000.0)))
    if name == "joint":  # adds capacity up
        ranked = sorted(views, key=lambda view: view.capacity or 0)
        assert [shares[view.id] for view in ranked] == sorted(shares.values())
        return
    assert list(shares.values()) == pytest.approx([capacity / sum(capacities) for capacity in capacities], abs=2e-3)


@every_law
@quick
@given(pool=pools(), factor=st.floats(0.01, 100))
def test_the_unit_of_capacity_does_not_matter(name: str, pool: PoolSnapshot, factor: float) -> None:
    def scaled(view: EndpointView) -> EndpointView:
        return view if view.capacity is None else replace(view, capacity=view.capacity * factor)

    # Where nobody has a capacity it is 1 for all, in whatever unit.
    other = replace(pool, endpoints=tuple(scaled(view) for view in pool.endpoints))
    one, two = (after_a_past(LAWS[name](), seen, seen) for seen in (pool, other))
    assert list(shares_of(one).values()) == pytest.approx(list(shares_of(two).values()), rel=1e-6, abs=1e-9)


@every_law
@quick
@given(pool=pools(), past=pools())
def test_no_endpoint_starves(name: str, pool: PoolSnapshot, past: PoolSnapshot) -> None:
    """After shaping, whoever is in gets the floor: `floor_share`, at most half of what its capacity says."""
    law, numbers = LAWS[name](), Shaping(kv_limit=1)
    shaper = Shaper(numbers, Random(1))
    for now in (1000.0, 1010.0):
        shaper.decide(replace(past, at=now), law)
    decision = shaper.decide(replace(pool, at=1020.0), law)
    declared = [view.capacity for view in pool.endpoints if view.capacity is not None]
    mean = sum(declared) / len(declared) if declared else 1.0
    capacities = {view.id: view.capacity or mean for view in pool.endpoints}
    assert sum(endpoint.share for endpoint in decision.endpoints) == pytest.approx(1)
    for endpoint in decision.endpoints:
        fair = capacities[endpoint.id] / sum(capacities.values())
        floor = min(numbers.floor_share, fair / 2) if law.floored else 0.0
        assert endpoint.weight >= 1
        assert endpoint.share >= floor - 1e-12 if endpoint.takes_work else endpoint.share == 0


@every_law
def test_alike_endpoints_share_alike_through_restarts(name: str) -> None:
    """Each of six alike engines is replaced in turn, at 70 % load: none ever gets more than twice its fair share.

    The bound: five that go on could carry 1.2 of their fair share each, and who comes back is empty and may fill up
    to where the others are (two seconds of work), which takes no more than as much again in five seconds.
    """
    pool = Pool(LAWS[name](), engines(4, 4, 4, 4, 4, 4), demand=0.7 * 24)
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


@every_law
def test_unlike_endpoints_are_not_overloaded_by_what_they_declare(name: str) -> None:
    """At 70 % load nobody's share is above 1 / 0.7 of its part of the rates for long: queues stay short.

    `joint` is the exception that its page tells of: it adds capacity up, and overloads the smallest.
    """
    pool = Pool(LAWS[name](), engines(10, 10, 4, 4, 1), demand=0.7 * 29)
    pool.run(120)
    longest = max(engine.waiting / engine.rate for engine in pool.engines)
    assert longest < 5 if name != "joint" else longest > 5


@pytest.mark.parametrize("name", ["predicted_ttft", "reciprocal", "wdrm", "throughput"])
def test_those_that_measure_need_no_capacities(name: str) -> None:
    pool = Pool(LAWS[name](), engines(10, 10, 4, 4, 1, declared=False), demand=0.7 * 29)
    pool.run(180)
    assert all(engine.waiting / engine.rate < 5 for engine in pool.engines)


@every_law
def test_what_is_remembered_is_recalled(name: str) -> None:
    pool = Pool(LAWS[name](), engines(10, 4, 1), demand=9)
    pool.run(60)
    snapshot = PoolSnapshot("pool", pool.now, tuple(engine.view() for engine in pool.engines))
    again = LAWS[name]()
    again.recall(json.loads(json.dumps(pool.law.remember())))
    assert bool(pool.law.remember()) is (name in LEARNING)
    again.judge(snapshot, pool.now)
    assert _flat(again.remember()) == pytest.approx(_flat(pool.law.remember()))


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@every_law
@quick
@given(memory=st.dictionaries(st.sampled_from(["10.0.0.1:8000", "10.0.0.2:8000", "x"]), anything), pool=pools())
def test_a_malformed_memory_does_no_harm(name: str, memory: dict[str, object], pool: PoolSnapshot) -> None:
    law = LAWS[name]()
    law.recall(memory)
    scores = law.judge(pool, 1000.0)
    assert all(0 <= score.score <= 100 and isfinite(score.share) for score in scores.values())
    json.dumps(law.remember())


@every_law
def test_an_endpoint_that_is_gone_is_forgotten(name: str) -> None:
    pool = Pool(LAWS[name](), engines(10, 4, 1), demand=9)
    pool.run(30)
    for engine in pool.engines:
        pool.law.forget(engine.id)
    pool.law.judge(PoolSnapshot("pool", pool.now, ()), pool.now)
    assert pool.law.remember() == {}


def test_a_law_is_swapped_under_a_running_pool() -> None:
    scene = Scene({A: 10, B: 4}, scoring=POLICIES["health"])
    for name, scoring in POLICIES.items():
        scene.see(*answered(scene.now + 0.1, 0.5, request=name), read(scene.now + 0.2, waiting=1, kv_usage=0.3))
        scene.controller.reconfigure(scene.now, scene.policy.model_copy(update={"scoring": scoring}))
        decision = scene.step(scene.now + 0.25)
        assert sum(endpoint.share for endpoint in decision.endpoints) == pytest.approx(1)
        assert scene.view().ttft_samples > 0
        assert scene.controller.remember(scene.now)["law"]["name"] == name


@every_law
def test_its_page_says_what_it_reads(name: str) -> None:
    law, page = LAWS[name](), (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# `{name}`\n")
    assert f"Needs: {_listed(type(law).needs)}." in page or name == "blend"
    assert not law.uses or f"Uses, where it can: {_listed(law.uses)}." in page
    assert "## Flaws" in page
    assert all(f"`{field}`" in page for field in type(POLICIES[name]).model_fields if field != "law")
    assert f"]({name}.md)" in (PAGES / "README.md").read_text(encoding="utf-8")


def _listed(needs: frozenset[Need]) -> str:
    return ", ".join(f"`{need}`" for need in Need if need in needs)


def _flat(memory: object, path: str = "") -> dict[str, float]:
    if isinstance(memory, dict):
        return {key: value for name, inner in memory.items() for key, value in _flat(inner, f"{path}/{name}").items()}
    return {path: memory} if isinstance(memory, int | float) else {}
