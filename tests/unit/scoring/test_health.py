"""The `health` strategy: its formula, and what it makes of what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.scoring.views import step
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.observation.kinds import Signals
from trimtab.scoring import HealthPolicy, Score, make_strategy


def judge(*views: EndpointView, **config: float) -> list[Score]:
    pool = PoolSnapshot("chat", 1000.0, views)
    scores = step(make_strategy(HealthPolicy(**config)), pool, 1000.0)
    return [scores[view.id] for view in views]


def view(
    ttft_ms: float | None = None,
    error_share: float = 0.0,
    waiting: float | None = 0,
    kv_usage: float | None = 0,
    *,
    capacity: float | None = None,
    number: int = 1,
) -> EndpointView:
    return EndpointView(
        EndpointId(f"10.0.0.{number}:8000"),
        f"gpu-{number}",
        capacity,
        ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        error_share=error_share,
        signals=Signals(waiting=waiting, kv_usage=kv_usage),
    )


@pytest.mark.parametrize(
    ("seen", "score", "why"),
    [
        (view(), 100, "nothing is wrong"),
        (view(ttft_ms=1000), 100 - 35 / 4, "half the threshold, squared"),
        (view(ttft_ms=2000), 65, "the whole threshold"),
        (view(ttft_ms=60_000), 65, "a term loses no more than its weight"),
        (view(error_share=0.1), 80, "times five, of 40 points"),
        (view(error_share=0.2), 60, "all of them"),
        (view(error_share=1.0), 60, "and no more"),
        (view(waiting=15), 87.5, "half of the queue that is too long"),
        (view(waiting=300), 75, "all of the load's points"),
        (view(kv_usage=0.8), 100, "the knee costs nothing"),
        (view(kv_usage=0.9), 87.5, "half way from the knee"),
        (view(kv_usage=1.0), 75, "a full cache"),
        (view(waiting=15, kv_usage=1.0), 75, "the worse of queue and cache"),
        (view(waiting=30, kv_usage=0.9), 75, "whichever it is"),
        (view(2000, 0.2, 30, 1.0), 0, "everything is wrong"),
        (view(1000, 0.1, 15, 0.5), 100 - 8.75 - 20 - 12.5, "the terms add up"),
    ],
)
def test_the_formula(seen: EndpointView, score: float, why: str) -> None:
    (said,) = judge(seen)
    assert said.score == pytest.approx(score), why
    assert sum(said.breakdown.values()) == pytest.approx(100 - score)


@pytest.mark.parametrize(
    ("seen", "score", "why"),
    [
        (view(waiting=None, kv_usage=None), 100, "nothing was seen to be wrong"),
        (view(2000, waiting=None, kv_usage=None), 100 * (1 - 0.35 / 0.75), "TTFT speaks for the load"),
        (view(0, 0.2, waiting=None, kv_usage=None), 100 * (1 - 0.40 / 0.75), "and errors do"),
        (view(2000, 0.2, None, None), 0, "down to nothing"),
        (view(waiting=30, kv_usage=None), 75, "the queue alone is known"),
        (view(waiting=None, kv_usage=0.9), 87.5, "the cache alone is known"),
        (view(ttft_ms=None, error_share=0.1), 80, "no first token yet: nothing is held against it"),
    ],
)
def test_what_is_unknown(seen: EndpointView, score: float, why: str) -> None:
    (said,) = judge(seen)
    assert said.score == pytest.approx(score), why
    assert sum(said.breakdown.values()) == pytest.approx(100 - score)


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_an_unknown_load_lies_between_an_empty_and_a_full_engine(ttft_ms: float, error_share: float) -> None:
    (empty,) = judge(view(ttft_ms, error_share, 0, 0))
    (unknown,) = judge(view(ttft_ms, error_share, None, None))
    (full,) = judge(view(ttft_ms, error_share, 30, 1))
    assert full.score - 1e-9 <= unknown.score <= empty.score + 1e-9


def test_shares_are_scores_times_capacity() -> None:
    fast, slow = judge(view(2000, capacity=10), view(0, capacity=4, number=2))
    assert (fast.share, slow.share) == (pytest.approx(6.5), pytest.approx(4.0))


def test_an_endpoint_without_a_capacity_is_an_average_one() -> None:
    scores = judge(view(capacity=10), view(capacity=4, number=2), view(number=3))
    assert [score.share for score in scores] == [10, 4, 7]
    assert [score.share for score in judge(view(), view(number=2))] == [1, 1]


def pairs_up_to(most: float) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(0, most), min_size=2, max_size=2).map(sorted)


@given(st.tuples(pairs_up_to(1e5), pairs_up_to(1), pairs_up_to(1e3), pairs_up_to(1)))
def test_a_worse_signal_never_scores_higher(pairs: tuple[list[float], ...]) -> None:
    (better,) = judge(view(*(low for low, _ in pairs)))
    (worse,) = judge(view(*(high for _, high in pairs)))
    assert 0 <= worse.score <= better.score + 1e-9 <= 100 + 1e-9


def test_weights_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"must be 1, not 1\.1"):
        HealthPolicy(ttft_weight=0.45)
    HealthPolicy(ttft_weight=0.5, error_weight=0.5, load_weight=0)


def test_a_strategy_of_load_alone_knows_nothing_of_an_engine_that_says_nothing() -> None:
    config = {"ttft_weight": 0, "error_weight": 0, "load_weight": 1}
    assert judge(view(9000, 1.0, None, None), **config)[0].score == 100


@pytest.mark.parametrize("number", ["ttft_threshold_ms", "queue_max", "error_gain", "ttft_alpha", "kv_knee"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_numbers_out_of_range_are_refused(number: str, value: float) -> None:
    with pytest.raises(ValidationError):
        HealthPolicy(**{number: value})
