"""What counters and histograms say of the last seconds."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scene import Scene, read, started, stream_read, token
from trimtab.endpoint.engine_rates import Spread, spread
from trimtab.endpoint.snapshot import EndpointView
from trimtab.observation.kinds import Histogram

BOUNDS = (0.1, 0.5, 1.0, inf)


def histogram(*counts: float, total: float = 0.0) -> Histogram:
    return Histogram(BOUNDS, counts, total)


def known(view: EndpointView) -> dict[str, object]:
    names = (
        "tokens_per_s",
        "prompt_tokens_per_s",
        "preemptions_per_s",
        "prefix_hit_rate",
        "engine_ttft_s",
        "engine_inter_token_s",
    )
    return {name: value for name in names if (value := getattr(view, name)) is not None}


def test_the_first_reading_has_no_rates() -> None:
    scene = Scene()
    scene.see(read(1000.0, generated_tokens=500, ttft=histogram(1, 2, 3, 4, total=5)))
    assert known(scene.view()) == {}


def test_rates_are_between_two_readings() -> None:
    scene = Scene()
    scene.see(read(1000.0, generated_tokens=500, prompt_tokens=1000, preemptions=1))
    scene.see(read(1002.0, generated_tokens=600, prompt_tokens=1000, preemptions=2))
    seen = scene.view()
    assert (seen.tokens_per_s, seen.prompt_tokens_per_s, seen.preemptions_per_s) == (50, 0, 0.5)


def test_rates_are_over_the_last_ten_seconds() -> None:
    scene = Scene()
    for second in range(61):
        scene.see(read(1000.0 + second, generated_tokens=100.0 * min(second, 56)))
        scene.now = 1000.0 + second
    # 10 s: six with 100 tokens, four without
    assert scene.view().tokens_per_s == pytest.approx(60)


def test_readings_ten_times_a_second_are_over_the_same_time() -> None:
    scene = Scene()
    for tenth in range(600):
        scene.see(read(1000.0 + tenth / 10, generated_tokens=float(tenth)))
        scene.now = 1000.0 + tenth / 10
    assert scene.view().tokens_per_s == pytest.approx(10)


def test_readings_a_minute_apart_are_compared_with_each_other() -> None:
    scene = Scene(signals={"stale_after_s": 120})
    for minute in range(3):
        scene.now = 1000.0 + 60 * minute
        scene.see(read(scene.now, generated_tokens=600.0 * minute))
    assert scene.view().tokens_per_s == pytest.approx(10)


def test_preemptions_are_over_a_minute() -> None:
    scene = Scene()
    for second in range(120):
        scene.see(read(1000.0 + second, preemptions=6.0 if second >= 70 else 0.0))
    assert scene.view().preemptions_per_s == pytest.approx(0.1, rel=0.15)


def test_what_was_read_of_streams_goes_before_the_engines_histogram() -> None:
    """Both of a kind: the engine rounds gaps up to its buckets, and knows nothing of what comes after it."""
    scene = Scene()
    scene.see(read(1000.0, inter_token=histogram(0, 0, 0, 0)))
    scene.see(read(1001.0, inter_token=histogram(0, 100, 100, 100, total=30.0)))
    view = scene.view()
    assert (view.inter_token_s, view.inter_token_p99_s) == (pytest.approx(0.3), pytest.approx(0.496))
    scene.see(started(1001.0), token(1001.1), stream_read(1002.0, gaps_s=[0.02] * 20))
    view = scene.view()
    assert (view.inter_token_s, view.inter_token_p99_s) == (pytest.approx(0.02), pytest.approx(0.02, rel=0.05))
    assert view.engine_inter_token_s == Spread(100, 0.3, p50=pytest.approx(0.3), p99=pytest.approx(0.496))
    scene.now += 10.0
    assert scene.view().engine_inter_token_s is None, "the page was not read again"


def test_a_restart_begins_anew() -> None:
    scene = Scene()
    scene.see(read(1000.0, generated_tokens=5000, ttft=histogram(10, 10, 10, 10, total=9)))
    scene.see(read(1001.0, generated_tokens=20, ttft=histogram(0, 0, 1, 1, total=0.7)))
    assert (scene.view().id.incarnation, known(scene.view())) == (1, {})


def test_rates_are_unknown_once_the_readings_are_stale() -> None:
    scene = Scene(signals={"stale_after_s": 5})
    scene.see(read(1000.0, generated_tokens=0), read(1001.0, generated_tokens=10))
    scene.now = 1006.5
    assert known(scene.view()) == {}


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        ({"prefix_hits": 10, "prefix_queries": 100}, {"prefix_hits": 60, "prefix_queries": 200}, 0.5),
        ({"prefix_hits": 10, "prefix_queries": 100}, {"prefix_hits": 10, "prefix_queries": 100}, None),
        ({"prefix_hits": 10, "prefix_queries": 100}, {"prefix_hits": 90, "prefix_queries": 110}, None),
        ({}, {"prefix_hits": 10, "prefix_queries": 100}, None),
        ({}, {"prefix_hit_rate": 0.25}, 0.25),
        (
            {"prefix_hits": 0, "prefix_queries": 0},
            {"prefix_hits": 1, "prefix_queries": 2, "prefix_hit_rate": 0.1},
            0.5,
        ),
    ],
    ids=["counted", "no prompts", "more hits than queries", "first", "the engine's own", "both"],
)
def test_hit_rate(before: dict[str, float], after: dict[str, float], rate: float | None) -> None:
    scene = Scene()
    scene.see(read(1000.0, **before), read(1001.0, **after))
    assert scene.view().prefix_hit_rate == rate


def test_mean_and_quantiles_of_what_a_histogram_gained() -> None:
    before = histogram(5, 5, 5, 5, total=100)
    after = histogram(5, 15, 25, 25, total=110)
    assert spread(before, after) == Spread(20, 0.5, p50=0.5, p99=pytest.approx(0.99))


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    gained = spread(histogram(0, 0, 0, 0), histogram(0, 0, 1, 10, total=60))
    assert gained == Spread(10, 6.0, p50=1.0, p99=1.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, histogram(1, 1, 1, 1)),
        (histogram(1, 1, 1, 1), None),
        (histogram(1, 1, 1, 1), histogram(1, 1, 1, 1)),
        (histogram(5, 5, 5, 5), histogram(1, 1, 1, 6, total=1)),
        (histogram(0, 2, 2, 2), histogram(3, 3, 3, 3, total=1)),
        (histogram(1, 1, 1, 1, total=9), histogram(1, 2, 2, 2, total=1)),
        (Histogram((0.1, inf), (1, 1), 0), histogram(1, 1, 1, 9, total=1)),
    ],
    ids=["no first", "no second", "nothing new", "fell", "not cumulative", "sum fell", "other bounds"],
)
def test_histograms_that_tell_nothing(before: Histogram | None, after: Histogram | None) -> None:
    assert spread(before, after) is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_quantiles_are_in_the_bucket_of_the_true_one(values: list[float]) -> None:
    bounds = (*(float(2**power) for power in range(-3, 8)), inf)
    counts = tuple(float(sum(value <= bound for value in values)) for bound in bounds)
    gained = spread(Histogram(bounds, (0.0,) * len(bounds), 0.0), Histogram(bounds, counts, sum(values)))
    assert gained is not None and gained.mean == pytest.approx(sum(values) / len(values))
    true = sorted(values)[max(0, -(-len(values) // 2) - 1)]
    upper = next(bound for bound in bounds if true <= bound)
    lower = max([0.0, *(bound for bound in bounds if bound < upper)])
    assert lower <= gained.p50 <= upper


@pytest.mark.parametrize(
    "wrong",
    [
        Histogram((inf,), (1,), 0),
        Histogram((0.1, 0.2), (1, 1), 0),
        Histogram((0.2, 0.1, inf), (1, 1, 1), 0),
        Histogram((0.1, inf), (2, 1), 0),
        Histogram((0.1, inf), (float("nan"), 1), 0),
        Histogram((0.1, inf), (-1, 1), 0),
        Histogram((0.1, inf), (1, inf), 0),
        Histogram((0.1, inf), (1, 1), -1),
        Histogram((0.1, inf), (1, 1), float("nan")),
    ],
)
def test_a_histogram_that_cannot_be_true_is_unknown(wrong: Histogram) -> None:
    scene = Scene()
    scene.see(read(1000.0, ttft=wrong, waiting=1))
    assert (scene.view().signals.ttft, scene.view().signals.waiting) == (None, 1)
    assert scene.view().signals_unknown["ttft"]
