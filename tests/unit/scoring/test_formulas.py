"""Each strategy's formula, by hand."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from tests.unit.scoring.strategies import STRATEGIES
from tests.unit.scoring.views import Case, step
from trimtab.endpoint.prometheus_readings import CustomReading
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.observation.kinds import Signals
from trimtab.scoring import (
    Blend,
    BlendPolicy,
    BlendTerm,
    DecodeP99,
    DecodeP99Policy,
    Fused,
    FusedPolicy,
    Joint,
    JointPolicy,
    Linear,
    LinearPolicy,
    Middleware,
    MiddlewarePolicy,
    Reading,
    Reciprocal,
    ReciprocalPolicy,
    Score,
    Throughput,
    ThroughputPolicy,
)


def view(
    number: int = 1, *, capacity: float | None = None, signals: Mapping[str, float] = {}, **known: Any
) -> EndpointView:
    id = EndpointId(f"10.0.0.{number}:8000")
    return EndpointView(id, f"gpu-{number}", capacity, signals=Signals(**signals), **known)


def pool(*views: EndpointView, at: float = 1000.0, held: tuple[int, ...] = ()) -> PoolSnapshot:
    return Case("pool", at, views, held=frozenset(views[number].id for number in held))


def judged(strategy: Any, *views: EndpointView, at: float = 1000.0) -> list[Score]:
    return list(step(strategy, pool(*views, at=at), at).values())


class TestReciprocal:
    strategy = Reciprocal(ReciprocalPolicy())

    def test_capacity_over_load_times_slowness(self) -> None:
        one, two = judged(
            self.strategy,
            view(1, capacity=10, in_flight=4, ttft_recent_s=0.05),
            view(2, capacity=4, in_flight=0, ttft_recent_s=0.1),
        )
        assert one.share == pytest.approx(10 / (5 * (0.8 * 1 + 0.2)))
        assert two.share == pytest.approx(4 / (1 * (0.8 * 2 + 0.2)))
        assert one.breakdown == pytest.approx({"in_flight": 80, "ttft": 0})
        assert two.score == pytest.approx(100 / 1.8)

    def test_a_product_loses_by_its_logarithms(self) -> None:
        worse, _ = judged(self.strategy, view(1, in_flight=3, ttft_recent_s=0.1), view(2, ttft_recent_s=0.05))
        lost = 100 - 100 / (4 * 1.8)
        assert worse.breakdown == pytest.approx(
            {"in_flight": lost * log(4) / log(7.2), "ttft": lost * log(1.8) / log(7.2)}
        )

    def test_an_unknown_ttft_is_the_mean_of_the_known_ones_or_100_ms(self) -> None:
        unknown, _, _ = judged(self.strategy, view(1), view(2, ttft_recent_s=0.2), view(3, ttft_recent_s=0.4))
        assert unknown.share == pytest.approx(1 / (0.8 * 6 + 0.2))
        assert judged(self.strategy, view(1))[0].share == pytest.approx(1 / (0.8 * 2 + 0.2))

    def test_three_failures_in_a_row_leave_nothing(self) -> None:
        two, three = judged(self.strategy, view(1, failures_in_row=2), view(2, failures_in_row=3))
        assert two.share > 0
        assert (three.share, three.score, three.why) == (0, 0, "3 failures in a row")

    def test_a_hanging_endpoint_is_believed_before_it_answers(self) -> None:
        hanging, _ = judged(self.strategy, view(1, ttft_recent_s=0.05, oldest_wait_s=5), view(2, ttft_recent_s=0.05))
        assert hanging.share == pytest.approx(1 / 80.2)

    def test_one_that_is_held_back_is_no_measure(self) -> None:
        idle, busy = view(1), view(2, in_flight=9)
        assert step(self.strategy, pool(idle, busy, held=(0,)), 1000.0)[busy.id].score == 100


@pytest.mark.parametrize(
    ("seen", "score"),
    [
        (view(ttft_s=0, signals={"kv_usage": 0, "running": 0}), 100),
        (view(ttft_s=1, signals={"kv_usage": 0.5, "running": 64}), 50),
        (view(ttft_s=9, signals={"kv_usage": 1, "running": 500}), 0),
        (view(ttft_s=1, signals={"kv_usage": 0}, in_flight=64), 70),
        (view(signals={"kv_usage": 0.5, "running": 0}), 100 * (1 - 0.4 * 0.5 / 0.6)),
        (view(ttft_s=1, signals={"running": 0}), 100 * (1 - 0.4 * 0.5 / 0.6)),
        (view(), 100),
    ],
)
def test_linear(seen: EndpointView, score: float) -> None:
    (said,) = judged(Linear(LinearPolicy()), seen)
    assert said.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("seen", "score"),
    [
        (view(ttft_s=0.05, signals={"kv_usage": 0}), 100),
        (view(ttft_s=0.4, signals={"kv_usage": 0.25}), 100 * (0.6 * 0.75 + 0.4 * 0.25)),
        (view(ttft_s=60, signals={"kv_usage": 1}), 10),
        (view(ttft_s=0, signals={"kv_usage": 0.95}), 100 * (0.6 * 0.1 + 0.4)),
        (view(signals={"kv_usage": 0.5}), 50),
        (view(ttft_s=0.2), 50),
        # Twenty a second are answered: eight in the queue wait 400 ms, whatever those before them waited.
        (view(ttft_s=0.05, error_samples=10 / log(2), signals={"kv_usage": 0, "waiting": 1}), 60 + 40 * 0.1),
        (view(ttft_s=0.05, error_samples=200 / log(2), signals={"kv_usage": 0, "waiting": 8}), 60 + 40 * 0.25),
        (view(ttft_s=0.4, error_samples=200 / log(2), signals={"kv_usage": 0, "waiting": 0}), 60 + 40 * 0.25),
    ],
)
def test_middleware(seen: EndpointView, score: float) -> None:
    (said,) = judged(Middleware(MiddlewarePolicy()), seen)
    assert said.score == pytest.approx(score)


class TestFused:
    calm = view(ttft_s=1, prompt_bytes_mean=8192, signals={"kv_usage": 0.5})

    def late(self, strategy: Fused, late: int, of: int) -> None:
        for number in range(of):
            strategy.learn(TokenSample(self.calm.id, 1000.0, 3.0 if number < late else 0.1, 400, 400, 1))

    def test_at_rest(self) -> None:
        strategy = Fused(FusedPolicy())
        (said,) = judged(strategy, self.calm)
        assert said.breakdown == pytest.approx({"ttft": 25, "kv_usage": 15, "length": 10})

    def test_a_term_that_is_unknown_is_carried_by_the_others(self) -> None:
        (said,) = judged(Fused(FusedPolicy()), view(ttft_s=2, prompt_bytes_mean=0))
        assert said.score == pytest.approx(100 * (1 - 0.5 / 0.7))

    @pytest.mark.parametrize(("late", "grown"), [(0, 1.0), (5, 1.0), (15, 1.5), (25, 2.0), (90, 2.0)])
    def test_ttft_weighs_more_when_the_sla_is_violated(self, late: int, grown: float) -> None:
        strategy = Fused(FusedPolicy())
        self.late(strategy, late, of=90)  # and ten that are imagined
        assert strategy.weights(pool(self.calm, at=1000.0))["ttft"] == pytest.approx(0.5 * grown / (0.5 * grown + 0.5))

    def test_violations_fade(self) -> None:
        strategy = Fused(FusedPolicy())
        self.late(strategy, 50, of=50)
        later = [strategy.weights(pool(self.calm, at=1000.0 + s))["ttft"] for s in (0, 100, 300, 600)]
        assert later == sorted(later, reverse=True)
        assert later[-1] == pytest.approx(0.5)

    @pytest.mark.parametrize(("rates", "grown"), [([None], 1.0), ([0.05, 0.0], 1.5), ([None, 7.0], 2.0)])
    def test_kv_usage_weighs_more_when_an_engine_preempts(self, rates: list[float | None], grown: float) -> None:
        views = [view(number, preemptions_per_s=rate) for number, rate in enumerate(rates)]
        assert Fused(FusedPolicy()).weights(pool(*views, at=1000.0))["kv_usage"] == pytest.approx(
            0.3 * grown / (0.3 * grown + 0.7)
        )

    def test_kv_usage_weighs_more_after_an_engine_was_restarted(self) -> None:
        """It may have run out of memory: no engine says so."""
        strategy = Fused(FusedPolicy())
        again = replace(self.calm, id=EndpointId(self.calm.id.address, 1))
        weights = []
        for now, seen in ((1000.0, self.calm), (1001.0, again), (1061.0, again), (1900.0, again)):
            step(strategy, pool(seen, at=now), now)
            weights.append(strategy.weights(pool(seen, at=now))["kv_usage"])
        grown = [0.3 * (1 + excess) / (1 + 0.3 * excess) for excess in (0, 1, 0.5, 0)]
        assert weights == pytest.approx(grown, abs=1e-4)

    def test_an_endpoint_that_comes_and_goes_was_not_restarted(self) -> None:
        strategy = Fused(FusedPolicy())
        for now, seen in ((1000.0, [self.calm]), (1001.0, []), (1002.0, [replace(self.calm, id=EndpointId("new:1"))])):
            step(strategy, pool(*seen, at=now), now)
        assert strategy.weights(pool(self.calm, at=1002.0))["kv_usage"] == pytest.approx(0.3)

    def test_length_weighs_more_when_prompts_are_unlike(self) -> None:
        strategy = Fused(FusedPolicy())
        sizes = [100] * 95 + [20_000] * 5
        for number in range(1000):
            strategy.learn(TokenSample(self.calm.id, 1000.0, 0.1, sizes[number * 37 % 100], 400, 1))
        assert strategy.weights(pool(self.calm, at=1000.0))["length"] == pytest.approx(0.4 / 1.2)

    def test_weights_always_sum_to_one(self) -> None:
        strategy = Fused(FusedPolicy())
        for number in range(200):
            strategy.learn(TokenSample(self.calm.id, 1000.0 + number, number / 20, number**3, 400, 1))
            weights = strategy.weights(pool(view(preemptions_per_s=number / 100), at=1000.0 + number))
            assert sum(weights.values()) == pytest.approx(1)
            assert all(weight > 0 for weight in weights.values())


class TestJoint:
    def test_health_and_capability_are_added(self) -> None:
        one, two = judged(
            Joint(JointPolicy()),
            view(1, capacity=10, ttft_s=2, signals={"waiting": 0}),
            view(2, capacity=2, ttft_s=0, signals={"waiting": 0}),
        )
        assert one.score == pytest.approx(50 * 0.65 + 50)
        assert two.score == pytest.approx(50 + 50 * 0.2)
        assert two.breakdown["capacity"] == pytest.approx(40)
        assert (one.share, two.share) == pytest.approx((one.score / 100, two.score / 100))

    def test_measured_tokens_come_before_declared_capacity(self) -> None:
        scores = judged(
            Joint(JointPolicy()),
            view(1, capacity=10, tokens_per_s_best=400),
            view(2, capacity=2, tokens_per_s_best=800),
            view(3, capacity=3),
        )
        # 1200 tokens/s of 12 known units of capacity: the third counts as 300.
        assert [score.breakdown["capacity"] for score in scores] == pytest.approx([25, 0, 50 * 5 / 8])

    def alpha(self, strategy: Joint, in_flight: int, *, at: float, held: tuple[int, ...] = ()) -> float:
        step(strategy, pool(view(1, in_flight=in_flight), view(2), at=at, held=held), at)
        return strategy.alpha

    def test_it_goes_to_0_4_at_peak_load_and_back(self) -> None:
        strategy = Joint(JointPolicy())
        assert self.alpha(strategy, 100, at=1000.0) == 0.5
        way = [self.alpha(strategy, 90, at=1000.0 + s) for s in range(1, 60)]
        assert way == sorted(way, reverse=True)
        assert way[-1] == pytest.approx(0.4, abs=1e-3)
        for s in range(60, 120):
            self.alpha(strategy, 20, at=1000.0 + s)
        assert strategy.alpha == pytest.approx(0.5, abs=1e-3)

    def test_it_goes_to_0_65_for_a_minute_after_an_endpoint_came_back(self) -> None:
        strategy = Joint(JointPolicy())
        self.alpha(strategy, 10, at=999.0)
        for s in range(30):
            assert self.alpha(strategy, 0, at=1000.0 + s, held=(1,)) == pytest.approx(0.5)
        for s in range(30, 89):
            self.alpha(strategy, 9, at=1000.0 + s)  # a peak too, but recovery goes first
        assert strategy.alpha == pytest.approx(0.65, abs=1e-3)
        for s in range(90, 150):
            self.alpha(strategy, 0, at=1000.0 + s)
        assert strategy.alpha == pytest.approx(0.5, abs=1e-3)

    def test_an_endpoint_that_left_has_not_recovered(self) -> None:
        strategy = Joint(JointPolicy())
        self.alpha(strategy, 0, at=1000.0, held=(1,))
        for s in range(1, 30):
            step(strategy, pool(view(1), at=1000.0 + s), 1000.0 + s)
        assert strategy.alpha == pytest.approx(0.5)


class TestDecodeP99:
    def steps(self, *p99_ms: float | None, count: int = 1, strategy: DecodeP99 | None = None) -> list[float]:
        """The weights after some steps."""
        strategy = strategy or DecodeP99(DecodeP99Policy())
        views = [view(number, inter_token_p99_s=None if ms is None else ms / 1000) for number, ms in enumerate(p99_ms)]
        for number in range(count + 1):
            scores = judged(strategy, *views, at=1000.0 + 5 * number)
        return [score.share for score in scores]

    def test_ten_ms_above_cost_five_percent(self) -> None:
        good, bad = self.steps(80, 90)
        assert (good, bad) == (1, pytest.approx(exp(-0.05) * (1 - 0.1 / 8)))

    def test_below_it_wins_a_little(self) -> None:
        best, good = self.steps(0, 80)
        assert (best, good) == (1, pytest.approx(1 / 1.1))

    def test_the_second_factor_is_at_least_a_half(self) -> None:
        _, worst = self.steps(80, 1000)
        assert worst == pytest.approx(max(0.02, exp(-0.005 * 920) * 0.5))

    def test_it_steps_every_five_seconds_only(self) -> None:
        strategy = DecodeP99(DecodeP99Policy())
        views = view(1, inter_token_p99_s=0.08), view(2, inter_token_p99_s=0.09)
        shares = [judged(strategy, *views, at=1000.0 + tick / 4)[1].share for tick in range(60)]
        assert len(set(shares)) == 3

    def test_what_is_lost_has_an_end_and_is_won_back(self) -> None:
        strategy = DecodeP99(DecodeP99Policy())
        assert self.steps(80, 500, count=100, strategy=strategy)[1] == 0.02
        strategy_again = DecodeP99(DecodeP99Policy())
        strategy_again.restore(strategy.dump())
        for number in range(80):
            scores = judged(strategy_again, view(0, inter_token_p99_s=0.08), view(1), at=2000.0 + 5 * number)
        assert scores[1].share > 0.99, "what is not seen is forgiven"

    def test_gaps_that_are_far_too_long_everywhere_leave_the_weights_in_proportion(self) -> None:
        steep = DecodeP99(DecodeP99Policy(decay_per_ms=1))
        assert self.steps(2000, 2000, 5000, count=3, strategy=steep) == [1, 1, 1]

    def test_one_that_takes_no_work_keeps_its_weight(self) -> None:
        strategy = DecodeP99(DecodeP99Policy())
        views = view(1, inter_token_p99_s=0.08), view(2, inter_token_p99_s=0.5)
        for number in range(10):
            scores = step(strategy, pool(*views, held=(1,)), 1000.0 + 5 * number)
        assert scores[views[1].id].share == 1

    def test_a_clock_that_is_set_back_stops_nothing(self) -> None:
        strategy = DecodeP99(DecodeP99Policy())
        views = view(1, inter_token_p99_s=0.08), view(2, inter_token_p99_s=0.5)
        judged(strategy, *views, at=9000.0)
        judged(strategy, *views, at=1000.0)
        assert judged(strategy, *views, at=1005.0)[1].share < 1


class TestThroughput:
    def shares(self, *views: EndpointView, **config: float) -> list[float]:
        scores = judged(Throughput(ThroughputPolicy(**config)), *views)
        total = sum(score.share for score in scores)
        return [score.share / total for score in scores]

    def test_shares_are_tokens_and_a_part_of_capacity(self) -> None:
        views = view(1, capacity=1, tokens_per_s_best=900), view(2, capacity=1, tokens_per_s_best=100)
        assert self.shares(*views) == pytest.approx([0.8 * 0.9 + 0.1, 0.8 * 0.1 + 0.1])
        assert self.shares(*views, capacity_part=0) == pytest.approx([0.9, 0.1])

    def test_a_full_endpoint_is_not_pulled_up(self) -> None:
        free = view(1, capacity=1, tokens_per_s_best=900)
        full = view(2, capacity=1, tokens_per_s_best=100, signals={"waiting": 3})
        assert self.shares(free, full)[1] == pytest.approx(0.08 / 0.9)

    def test_what_is_unknown_follows_capacity(self) -> None:
        views = view(1, capacity=10, tokens_per_s_best=500), view(2, capacity=4)
        assert self.shares(*views) == pytest.approx([10 / 14, 4 / 14])
        assert self.shares(view(1, capacity=10), view(2, capacity=4)) == pytest.approx([10 / 14, 4 / 14])
        restarted = view(2, capacity=4, tokens_per_s_best=0.0)
        assert self.shares(views[0], restarted) == pytest.approx([10 / 14, 4 / 14])

    def test_chance_does_not_keep_what_it_gave(self) -> None:
        """Below their limits, endpoints generate what they are given: shares go back to the declared ones."""
        shares = [0.9, 0.1]
        for _ in range(40):
            views = [view(number, capacity=1, tokens_per_s_best=1000 * share) for number, share in enumerate(shares)]
            shares = self.shares(*views)
        assert shares == pytest.approx([0.5, 0.5], abs=0.01)


class TestBlend:
    def score(self, seen: EndpointView, *terms: BlendTerm) -> Score:
        (said,) = judged(Blend(BlendPolicy(terms=terms)), seen)
        return said

    def test_from_good_to_bad(self) -> None:
        term = BlendTerm(reading=Reading.TTFT_MS, good=200, bad=1200)
        losses = [term.loss(view(ttft_s=seconds)) for seconds in (0.1, 0.2, 0.7, 1.2, 9)]
        assert losses == pytest.approx([0, 0, 0.5, 1, 1])
        assert term.loss(view()) is None

    def test_less_may_be_worse(self) -> None:
        term = BlendTerm(reading=Reading.TOKENS_PER_S, good=1000, bad=200)
        assert [term.loss(view(tokens_per_s_best=tokens)) for tokens in (5000, 600, 0)] == pytest.approx([0, 0.5, 1])

    def test_weights_are_relative(self) -> None:
        seen = view(ttft_s=1, signals={"kv_usage": 1})
        said = self.score(
            seen,
            BlendTerm(reading=Reading.TTFT_MS, weight=3, bad=2000),
            BlendTerm(reading=Reading.KV_USAGE, weight=1, bad=1),
            BlendTerm(reading=Reading.WAITING, weight=100, bad=10),
        )
        assert said.breakdown == pytest.approx({"ttft_ms": 37.5, "kv_usage": 25})
        assert said.score == pytest.approx(37.5)

    def test_with_and_without_capacity(self) -> None:
        terms = (BlendTerm(reading=Reading.KV_USAGE, bad=1),)
        seen = view(capacity=10, signals={"kv_usage": 0.5}), view(2, capacity=1, signals={"kv_usage": 0})
        for by_capacity, shares in ((True, [5, 1]), (False, [0.5, 1])):
            said = judged(Blend(BlendPolicy(terms=terms, by_capacity=by_capacity)), *seen)
            assert [score.share for score in said] == pytest.approx(shares)

    def test_a_custom_signal_that_is_unknown_is_left_out(self) -> None:
        heat = BlendTerm(custom="heat", weight=3, good=50, bad=90)
        terms = (heat, BlendTerm(reading=Reading.KV_USAGE, bad=1))
        known = view(signals={"kv_usage": 0.5}, custom={"heat": CustomReading(70.0, 1000.0)})
        assert self.score(known, *terms).breakdown == pytest.approx({"heat": 37.5, "kv_usage": 12.5})
        for custom in ({}, {"heat": CustomReading(None, 900.0, "its newest sample is too old")}):
            unknown = view(signals={"kv_usage": 0.5}, custom=custom)
            assert heat.loss(unknown) is None
            assert self.score(unknown, *terms).breakdown == pytest.approx({"kv_usage": 50})
            assert self.score(unknown, heat).score == 100

    @pytest.mark.parametrize("reading", Reading)
    def test_every_reading_is_read(self, reading: Reading) -> None:
        bad = view(
            ttft_s=9,
            ttft_p99_s=9,
            oldest_wait_s=9,
            error_share=1,
            in_flight=9,
            preemptions_per_s=9,
            inter_token_s=9,
            inter_token_p99_s=9,
            tokens_per_s_best=9,
            signals={"waiting": 9, "running": 9, "kv_usage": 1},
        )
        assert self.score(bad, BlendTerm(reading=reading, bad=1)).score == 0


def test_a_pool_without_endpoints_is_judged_too() -> None:
    empty = PoolSnapshot("pool", 1000.0, ())
    for make in STRATEGIES.values():
        assert step(make(), empty, 1000.0) == {}
        strategy = make()
        step(strategy, pool(view(1), view(2)), 1000.0)
        assert step(strategy, empty, 1010.0) == {}
        assert set(step(strategy, replace(empty, endpoints=(view(3),)), 1020.0)) == {view(3).id}
