"""The share of watched attempts holds the CPU budget, without swinging."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sampling import SampleShare


class Load:
    """A steady flow of attempts: each watched one costs `cost_s`, and `base` cores go elsewhere."""

    def __init__(self, share: SampleShare, start: float = 100.0) -> None:
        self.share = share
        self.percent = start
        self.now = self.cpu = 0.0
        self.watched = 0.0

    def run(
        self, seconds: float, rate: float, cost_s: float = 0.0004, base: float = 0.0, noise: float = 0.0
    ) -> list[float]:
        """One update a second; the cores used in each of them."""
        rng = random.Random(1)
        used = []
        for _ in range(int(seconds)):
            watched = rate * self.percent / 100 * (1 + noise * rng.uniform(-1, 1))
            used.append(watched * cost_s + base)
            self.now += 1
            self.cpu += used[-1]
            self.watched += watched
            self.percent = self.share.update(self.now, self.cpu, int(self.watched))
        return used


def test_everything_is_watched_at_the_rates_of_inference() -> None:
    load = Load(SampleShare(0.5, 100))
    load.run(60, rate=200)
    assert load.percent == 100


def test_a_flood_is_brought_within_the_budget_in_a_few_seconds_and_stays_there() -> None:
    load = Load(SampleShare(0.5, 100))
    used = load.run(120, rate=20_000, noise=0.1)
    assert max(used[10:]) <= 0.55
    assert min(used[20:]) >= 0.3
    assert len(set(map(round, used[-20:]))) == 1


def test_the_share_does_not_swing_under_a_steady_load() -> None:
    load = Load(SampleShare(0.5, 100))
    load.run(30, rate=5_000)
    percents = set()
    for _ in range(60):
        load.run(1, rate=5_000)
        percents.add(load.percent)
    assert len(percents) == 1


def test_it_comes_back_step_by_step_when_the_flood_is_over() -> None:
    load = Load(SampleShare(0.5, 100))
    load.run(30, rate=50_000)
    low = load.percent
    load.run(4, rate=10)
    assert low < load.percent < 2 * low
    load.run(120, rate=10)
    assert load.percent == 100


def test_cpu_that_goes_elsewhere_lowers_the_share_to_its_floor_but_not_to_nothing() -> None:
    load = Load(SampleShare(0.5, 100))
    load.run(60, rate=1000, base=2.0)
    assert load.percent == 0.5


@pytest.mark.parametrize("max_percent", [0, 0.1, 20])
def test_it_never_passes_the_policys_share(max_percent: float) -> None:
    load = Load(SampleShare(0.5, max_percent), max_percent)
    load.run(60, rate=10)
    assert load.percent == max_percent
    load.run(60, rate=10_000_000)
    assert load.percent == min(max_percent, 0.5)


def test_a_new_policy_takes_effect_at_once_unless_the_budget_holds_it_down() -> None:
    share = SampleShare(0.5, 20)
    share.limit(0.5, 50)
    assert share.percent == 50
    share.limit(0.5, 10)
    assert share.percent == 10
    load = Load(share, 10)
    load.run(20, rate=1_000_000)
    held_down = share.percent
    share.limit(0.5, 100)
    assert share.percent == held_down < 10


def test_a_worker_that_restarts_is_no_idle_worker() -> None:
    share = SampleShare(0.5, 100)
    share.update(0, 1000.0, 1_000_000)
    share.update(2, 1002.0, 1_010_000)
    cut = share.update(2.5, 1002.0, 1_010_000)
    assert cut < 100
    assert share.update(5, 501.0, 505_000) == cut
    assert share.update(5.1, 501.1, 505_100) == cut


def test_a_clock_that_is_set_back_does_not_stop_it() -> None:
    share = SampleShare(0.5, 100)
    share.update(1_000_000, 0, 0)
    share.update(10, 0, 0)
    assert share.update(12, 4, 1000) < 100


@given(st.lists(st.tuples(*(st.floats(0, 1e9) for _ in range(2)), st.integers(0, 10**12)), max_size=50))
def test_whatever_it_is_told_it_stays_within_its_range(readings: list[tuple[float, float, int]]) -> None:
    share = SampleShare(0.5, 80)
    for now, cpu, watched in readings:
        assert 0.5 <= share.update(now, cpu, watched) <= 80
