"""Windows, bursts, rates and quantiles, by themselves."""

from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.stats.fading import FadingMean, FadingPeak
from trimtab.stats.quantile import SlidingQuantile
from trimtab.stats.windows import BurstFilter, Lookback, Window

SAMPLES = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1000)), min_size=1, max_size=80)


@given(SAMPLES)
def test_a_window_is_its_last_samples_that_are_young_enough(gaps_and_samples: list[tuple[float, float]]) -> None:
    window, seen, now = Window(10, 30.0), [], 100.0
    for gap, sample in gaps_and_samples:
        now += gap
        window.add(now, sample)
        seen.append((now, sample))
        kept = [value for at, value in seen[-10:] if at >= now - 30.0]
        assert window.size(now) == len(kept)
        assert window.mean(now) == pytest.approx(fmean(kept), rel=1e-6, abs=1e-6)
        assert window.std(now) == pytest.approx(pstdev(kept), abs=1e-3)
    assert (window.mean(now + 31), window.std(now + 31)) == (None, None)


def test_a_window_keeps_its_precision() -> None:
    window, random = Window(50, 1e9), Random(1)
    for number in range(200_000):
        window.add(number, 1e7 if number % 1000 == 0 else random.random())
    tail = [0.25] * 50
    for number, sample in enumerate(tail):
        window.add(200_000 + number, sample)
    assert window.mean(200_050) == pytest.approx(0.25, abs=1e-6)


class TestBursts:
    """At fifty samples a second around 100 ms."""

    @staticmethod
    def steady(bursts: BurstFilter, at: float, count: int = 30) -> float:
        random = Random(1)
        for number in range(count):
            assert len(bursts.admit(at + number * 0.02, random.gauss(0.1, 0.01))) == 1
        return at + count * 0.02

    def test_what_is_usual_passes(self) -> None:
        self.steady(BurstFilter(), 0.0, 2000)

    def test_a_single_outlier_does_not(self) -> None:
        bursts = BurstFilter()
        at = self.steady(bursts, 0.0)
        assert bursts.admit(at, 5.0) == []
        assert bursts.admit(at + 0.02, 0.1) == [(at + 0.02, 0.1)]

    @pytest.mark.parametrize("level", [5.0, 0.001])
    def test_the_fifth_in_a_row_brings_the_others_with_it(self, level: float) -> None:
        bursts = BurstFilter()
        at = self.steady(bursts, 0.0)
        admitted = [bursts.admit(at + number * 0.02, level) for number in range(6)]
        assert [len(samples) for samples in admitted] == [0, 0, 0, 0, 5, 1]
        assert {sample for _, sample in admitted[4]} == {level}

    def test_four_in_a_row_are_a_burst(self) -> None:
        bursts = BurstFilter()
        at = self.steady(bursts, 0.0)
        for number in range(20):
            sample = 0.1 if number % 5 == 4 else 5.0
            assert len(bursts.admit(at + number * 0.02, sample)) == (1 if number % 5 == 4 else 0)

    def test_where_samples_are_rare_all_pass(self) -> None:
        bursts = BurstFilter()
        assert [len(bursts.admit(number * 0.1, 9.0 if number % 7 == 0 else 0.1)) for number in range(50)] == [1] * 50

    def test_equal_samples_leave_room_for_a_little_difference(self) -> None:
        bursts = BurstFilter()
        for number in range(20):
            bursts.admit(number * 0.02, 0.1)
        assert len(bursts.admit(0.4, 0.12)) == 1
        assert bursts.admit(0.42, 0.2) == []

    def test_samples_of_one_instant_are_one_of_the_yardstick(self) -> None:
        bursts = BurstFilter()
        for _ in range(100):
            bursts.admit(1.0, 0.1)
        assert len(bursts.admit(1.1, 5.0)) == 1, "two moments tell no spread"

    def test_after_a_pause_there_is_no_yardstick(self) -> None:
        bursts = BurstFilter()
        at = self.steady(bursts, 0.0)
        assert len(bursts.admit(at + 1.0, 5.0)) == 1

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6)), max_size=200))
    def test_never_are_five_in_a_row_lost(self, gaps_and_samples: list[tuple[float, float]]) -> None:
        bursts, at, silent = BurstFilter(), 100.0, 0
        for gap, sample in gaps_and_samples:
            at += gap
            silent = 0 if bursts.admit(at, sample) else silent + 1
            assert silent < 5


class TestLookback:
    def test_the_first_reading_has_nothing_before_it(self) -> None:
        readings = Lookback[float](6.0)
        assert readings.add(10.0, 1000.0) is None
        assert readings.add(11.0, 1300.0) == (1.0, 1000.0)

    def test_it_is_of_the_last_seconds(self) -> None:
        readings = Lookback[float](6.0)
        earlier = [readings.add(float(second), second * 10.0) for second in range(60)]
        assert earlier[-1] == (6.0, 530.0)

    def test_readings_that_are_rare_are_used_in_pairs(self) -> None:
        readings = Lookback[str](6.0)
        assert [readings.add(at, str(at)) for at in (0.0, 60.0, 120.0)] == [None, (60.0, "0.0"), (60.0, "60.0")]

    def test_readings_that_are_frequent_are_thinned_but_the_newest_counts(self) -> None:
        readings, kept = Lookback[int](6.0), set()
        for number in range(10_000):
            seconds, reading = readings.add(number * 0.01, number) or (0.0, 0)
            assert seconds == pytest.approx((number - reading) * 0.01)
            assert number < 600 or 6.0 <= seconds + 1e-9 < 7.1
            kept.add(reading)
        assert len(kept) < 200


class TestFading:
    def test_a_crowd_of_samples_weighs_by_its_time(self) -> None:
        mean = FadingMean(10.0, 600.0)
        mean.add(0.0, 0.02, 100)
        mean.add(10.0, 0.05, 100)
        assert mean.value(10.0) == pytest.approx((0.02 * 50 + 0.05 * 100) / 150)
        assert mean.value(600.0) == mean.value(10.0), "waiting changes no mean"
        assert mean.value(611.0) is None
        mean.add(700.0, 0.3, 1)
        assert mean.value(700.0) == pytest.approx(0.3), "nothing is left of what was forgotten"

    def test_the_order_does_not_matter(self) -> None:
        samples = [(5.0, 0.1, 3.0), (1.0, 0.5, 2.0), (9.0, 0.2, 1.0)]
        values = set()
        for order in (samples, samples[::-1], sorted(samples)):
            mean = FadingMean(4.0, 600.0)
            for sample in order:
                mean.add(*sample)
            values.add(round(mean.value(9.0) or 0.0, 12))
        assert len(values) == 1

    def test_an_ancient_sample_is_none(self) -> None:
        mean = FadingMean(10.0, 600.0)
        mean.add(1e6, 0.1)
        mean.add(1.0, 99.0)
        assert mean.value(1e6) == pytest.approx(0.1)

    def test_a_peak_fades_and_is_replaced(self) -> None:
        peak = FadingPeak(600.0)
        assert peak.value(0.0) is None
        peak.add(0.0, 800.0)
        peak.add(1.0, 300.0)
        assert peak.value(600.0) == pytest.approx(400.0)
        peak.add(600.0, 500.0)
        assert (peak.value(600.0), peak.value(1200.0)) == (500.0, 250.0)


class TestQuantiles:
    def test_nothing_is_unknown(self) -> None:
        quantile = SlidingQuantile(0.99, 60.0)
        assert quantile.value(0.0) is None
        quantile.add(1000.0, 0.25)
        assert quantile.value(1000.0) == 0.25
        assert quantile.value(1044.0) == 0.25
        assert quantile.value(1061.0) is None

    def test_a_value_may_be_a_second_old(self) -> None:
        quantile = SlidingQuantile(0.99, 60.0)
        quantile.add(1000.0, 0.25)
        assert quantile.value(1000.0) == 0.25
        quantile.add(1000.1, 0.75)
        assert quantile.value(1000.9) == 0.25
        assert quantile.value(1001.0) == pytest.approx(0.75, rel=0.02)

    @pytest.mark.parametrize("per_s", [3, 40, 400])
    @pytest.mark.parametrize("tail", ["lognormal", "two humps", "pareto"])
    def test_its_rank_is_right_within_a_thousandth_or_a_sample(self, per_s: int, tail: str) -> None:
        random = Random(7)
        draw = {
            "lognormal": lambda: random.lognormvariate(-2, 1),
            "two humps": lambda: random.gauss(0.5, 0.1) if random.random() < 0.02 else random.gauss(0.02, 0.002),
            "pareto": lambda: random.paretovariate(1.5),
        }[tail]
        quantile, seen = SlidingQuantile(0.99, 60.0), []
        for number in range(per_s * 100):
            at = number / per_s
            seen.append((at, draw()))
            quantile.add(*seen[-1])
        window = sorted(sample for at, sample in seen if at >= 40.0)
        value = quantile.value(99.99)
        assert value is not None
        slack = 0.0015 + 1.5 / len(window)
        lowest = window[int((0.99 - slack) * len(window))]
        highest = window[min(len(window) - 1, int((0.99 + slack) * len(window)))]
        assert lowest <= value <= highest

    def test_the_highest_is_that_of_the_window(self) -> None:
        quantile = SlidingQuantile(0.99, 60.0)
        assert quantile.highest(0.0) is None
        for number in range(1000):
            quantile.add(1000.0 + number / 100, 9.0 if number == 500 else 0.25)
        quantile.add(1020.0, 0.5)
        assert (quantile.highest(1020.0), quantile.highest(1050.0)) == (9.0, 9.0)
        assert (quantile.highest(1061.0), quantile.highest(1081.0)) == (0.5, None)

    def test_it_follows_a_change_within_its_window(self) -> None:
        quantile = SlidingQuantile(0.99, 60.0)
        for number in range(1200):
            quantile.add(number / 10, 5.0 if number < 600 else 0.1)
        assert quantile.value(119.9) == pytest.approx(0.1)

    def test_late_samples_and_long_pauses(self) -> None:
        quantile = SlidingQuantile(0.5, 60.0)
        quantile.add(1000.0, 1.0)
        quantile.add(500.0, 3.0)
        assert quantile.value(1000.0) == pytest.approx(2.0)
        quantile.add(1e9, 7.0)
        assert quantile.value(1e9) == 7.0
