"""`wdrm`: it converges on a convex loss, and stays bounded whatever it is shown."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scoring.views import step
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring import Wdrm, WdrmPolicy
from trimtab.scoring.wdrm import project

Ttft = Callable[[Sequence[float]], Sequence[float | None]]


def run(strategy: Wdrm, ttft: Ttft, count: int, steps: int, *, start: float = 1000.0) -> list[list[float]]:
    """The weights after each step, in a pool whose first tokens follow from the weights."""
    ids = [EndpointId(f"10.0.0.{number}:8000") for number in range(count)]
    weights, now, path = [1.0 / count] * count, start, []
    for _ in range(steps):
        views = [EndpointView(id, id.address, None, ttft_s=seen) for id, seen in zip(ids, ttft(weights), strict=True)]
        weights = [score.share for score in step(strategy, PoolSnapshot("pool", now, tuple(views)), now).values()]
        path.append(weights)
        now += 2.0
    return path


def rising(bases: Sequence[float], slopes: Sequence[float]) -> Ttft:
    """Each TTFT rises with its weight in a line: the mean TTFT is convex."""
    return lambda weights: [b + s * w for b, s, w in zip(bases, slopes, weights, strict=True)]


def mean(ttft: Ttft, weights: Sequence[float]) -> float:
    return sum(w * (t or 0.0) for w, t in zip(weights, ttft(weights), strict=True))


def optimum(bases: Sequence[float], slopes: Sequence[float]) -> list[float]:
    """Where the derivatives b + 2·s·w of all that get work are level."""
    low, high = 0.0, 1e3
    for _ in range(100):
        level = (low + high) / 2
        weights = [max(0.0, (level - b) / (2 * s)) for b, s in zip(bases, slopes, strict=True)]
        low, high = (level, high) if sum(weights) < 1 else (low, level)
    return weights


@given(st.floats(0.01, 10), st.floats(0.501, 1))
def test_the_steps_have_an_endless_sum_and_their_squares_a_finite_one(first: float, decay: float) -> None:
    """Compared with the integrals of k^-decay and k^-2·decay, which decide over both sums."""
    strategy = Wdrm(WdrmPolicy(first_step=first, decay=decay))
    sizes = [strategy.step_size(k) for k in range(1, 2001)]
    assert all(later < earlier for earlier, later in pairwise(sizes))
    total, squares, n = 0.0, 0.0, len(sizes)
    for size in sizes:
        total += size
        squares += size * size
    # k^-decay >= 1/k: at least the harmonic sum, which has no end.
    assert total >= first * sum(1 / k for k in range(1, n + 1)) * (1 - 1e-9)
    # And at most 1 + the integral from 1 to infinity, which is finite as 2·decay > 1.
    assert squares <= first**2 * (1 + 1 / (2 * decay - 1))


@pytest.mark.parametrize("decay", [0.5, 0.4, 1.1, float("nan")])
def test_other_decays_are_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        WdrmPolicy(decay=decay)


CONVEX = [
    ([0.2, 0.4, 0.8], [1.0, 2.0, 4.0]),
    ([0.1, 0.1], [1.0, 3.0]),
    ([0.3, 0.3, 0.3, 0.3], [0.5, 1.0, 2.0, 4.0]),
    ([0.1, 3.0], [0.5, 0.5]),  # the second is best left alone
]


@pytest.mark.parametrize(("bases", "slopes"), CONVEX)
@pytest.mark.parametrize("pull", [1.2, 3.0])
def test_it_converges_to_the_least_mean_ttft_of_a_convex_pool(
    bases: list[float], slopes: list[float], pull: float
) -> None:
    ttft = rising(bases, slopes)
    path = run(Wdrm(WdrmPolicy(pull=pull)), ttft, len(bases), 600)
    best = mean(ttft, optimum(bases, slopes))
    assert mean(ttft, path[-1]) <= best * 1.02
    assert mean(ttft, path[90]) <= best * 1.10, "three minutes"
    assert max(abs(a - b) for a, b in zip(path[-1], path[-30], strict=True)) < 0.01, "and stays there"


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_summed_away(seed: int) -> None:
    rng = Random(seed)
    bases, slopes = [0.2, 0.4, 0.8], [1.0, 2.0, 4.0]
    exact = rising(bases, slopes)
    path = run(Wdrm(WdrmPolicy()), lambda w: [t * rng.uniform(0.8, 1.25) for t in exact(w) if t], 3, 600)
    assert mean(exact, path[-1]) <= mean(exact, optimum(bases, slopes)) * 1.1


@pytest.mark.parametrize("pull", [0.0, 0.2])
@pytest.mark.parametrize("first_step", [0.3, 5.0])
def test_with_too_small_a_pull_it_is_bounded_and_its_steps_shrink(pull: float, first_step: float) -> None:
    """A pool that is not convex, and answers each step by its opposite: whoever gets more is at once much slower."""

    def spiteful(weights: Sequence[float]) -> list[float]:
        most = list(weights).index(max(weights))
        return [40.0 if number == most else 0.01 for number in range(len(weights))]

    strategy = Wdrm(WdrmPolicy(pull=pull, first_step=first_step))
    path = run(strategy, spiteful, 4, 400)
    for weights in path:
        assert all(0 <= weight <= 1 for weight in weights)
        assert sum(weights) == pytest.approx(1)
    moves = [sqrt(sum((a - b) ** 2 for a, b in zip(one, two, strict=True))) for one, two in pairwise(path)]
    assert max(moves[-50:]) < max(moves[:50])
    assert max(moves[-50:]) < 0.75 * first_step


def test_a_pool_that_changes_is_followed() -> None:
    strategy = Wdrm(WdrmPolicy())
    before = run(strategy, rising([0.2, 0.8], [1, 1]), 2, 300)[-1]
    after = run(strategy, rising([4.0, 0.2], [1, 1]), 2, 60, start=2000.0)[-1]
    assert before[0] == pytest.approx(0.65, abs=0.02)
    assert after[0] < 0.2


def test_what_is_not_known_keeps_its_weight() -> None:
    path = run(Wdrm(WdrmPolicy()), lambda weights: [0.2, 1.5, None], 3, 50)
    assert all(weights[2] == pytest.approx(1 / 3) for weights in path)
    assert path[-1][0] > 0.6
    assert len({tuple(w) for w in run(Wdrm(WdrmPolicy()), lambda weights: [0.2, None, None], 3, 10)}) == 1


def test_who_comes_gets_its_capacity_and_who_leaves_leaves_it_to_the_others() -> None:
    strategy = Wdrm(WdrmPolicy())
    two = run(strategy, rising([0.2, 0.8], [1, 1]), 2, 300)[-1]
    three = run(strategy, rising([0.2, 0.8, 0.2], [1, 1, 1]), 3, 1, start=1599.0)[-1]
    assert three[2] == pytest.approx(1 / 3)
    assert three[0] / three[1] == pytest.approx(two[0] / two[1])
    again = run(strategy, rising([0.2, 0.8], [1, 1]), 2, 1, start=1599.5)[-1]
    assert again == pytest.approx(two)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0.01, 1))
def test_the_projection_is_the_nearest_point(point: list[float], total: float) -> None:
    """All parts that stay are lowered by one amount, and what goes was not above that amount."""
    parts = project(point, total)
    assert sum(parts) == pytest.approx(total)
    assert min(parts) >= 0
    lowered = [value - part for value, part in zip(point, parts, strict=True) if part > 0]
    assert max(lowered) - min(lowered) < 1e-9
    assert all(value <= max(lowered) + 1e-9 for value, part in zip(point, parts, strict=True) if part == 0)
