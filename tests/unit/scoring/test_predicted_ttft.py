"""The costs that `predicted_ttft` learns, and where it pours."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scoring.views import Case, step
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.scoring.cost_model import CostModel
from trimtab.scoring.predicted_ttft import PredictedTtft, PredictedTtftPolicy
from trimtab.scoring.water_filling import pour

A, B = EndpointId("10.0.0.1:8000"), EndpointId("10.0.0.2:8000")

amounts = st.floats(0.0, 100.0)
rates = st.floats(0.1, 50.0)


def taught(per_kilotoken_s: float, per_attempt_s: float, samples: int, *, rng: Random) -> CostModel:
    model = CostModel(0.1, 0.001)
    teach(model, per_kilotoken_s, per_attempt_s, samples, rng=rng)
    return model


def teach(model: CostModel, per_kilotoken_s: float, per_attempt_s: float, samples: int, *, rng: Random) -> None:
    for _ in range(samples):
        kilotokens, attempts = rng.uniform(0.05, 8), rng.randint(1, 30)
        truth = per_kilotoken_s * kilotokens + per_attempt_s * attempts
        model.learn(kilotokens, attempts, truth * rng.uniform(0.9, 1.1))


def test_costs_are_learned_within_a_few_answers() -> None:
    model = taught(0.2, 0.004, 15, rng=Random(1))
    assert model.predict(4, 10) == pytest.approx(0.84, rel=0.1)


def test_an_endpoint_that_becomes_five_times_slower_is_learned_within_20_answers() -> None:
    rng = Random(2)
    model = taught(0.1, 0.002, 200, rng=rng)
    teach(model, 0.5, 0.01, 20, rng=rng)
    assert model.predict(4, 10) == pytest.approx(2.1, rel=0.2)


def test_an_endpoint_that_is_healed_is_learned_within_20_answers() -> None:
    rng = Random(4)
    model = taught(0.5, 0.01, 200, rng=rng)
    teach(model, 0.1, 0.002, 20, rng=rng)
    assert model.predict(4, 10) == pytest.approx(0.42, rel=0.2)


def test_the_error_of_predictions_is_told() -> None:
    model = taught(0.1, 0.002, 200, rng=Random(5))
    assert model.error is not None and 0.02 < model.error < 0.1
    teach(model, 0.5, 0.01, 3, rng=Random(6))
    assert model.error > 0.1


def test_a_single_outlier_hardly_moves_the_costs() -> None:
    model = taught(0.1, 0.002, 100, rng=Random(3))
    before = model.predict(4, 10)
    model.learn(4, 10, 60.0)
    assert model.predict(4, 10) == pytest.approx(before, rel=0.2)


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(1, 1000), st.floats(0, 1000)), max_size=60))
def test_costs_stay_above_zero_and_finite(samples: list[tuple[float, int, float]]) -> None:
    model = CostModel(0.1, 0.001)
    for kilotokens, attempts, ttft_s in samples:
        model.learn(kilotokens, attempts, ttft_s)
        assert 0 < model.per_kilotoken_s < 1e9
        assert 0 < model.per_attempt_s < 1e9


@given(amounts, st.lists(st.tuples(amounts, rates), min_size=1, max_size=20))
def test_water_finds_its_level(work: float, endpoints: list[tuple[float, float]]) -> None:
    """All that is poured is `work`; whoever gets some ends at one level, and whoever gets none is above it."""
    waits, widths = [wait for wait, _ in endpoints], [rate for _, rate in endpoints]
    parts = pour(work, waits, widths)
    assert sum(parts) == pytest.approx(max(work, 1e-6), rel=1e-6, abs=1e-9)
    wet = [wait + part / rate for wait, rate, part in zip(waits, widths, parts, strict=True) if part > 0]
    assert all(low == pytest.approx(high, abs=1e-6) for low, high in pairwise(wet))
    dry = [wait for wait, part in zip(waits, parts, strict=True) if part == 0]
    assert all(wait >= max(wet) - 1e-6 for wait in dry)


def test_little_work_goes_to_the_emptiest_and_a_burst_to_all_by_what_they_can() -> None:
    assert pour(1, [0.0, 2.0], [10, 10]) == [1, 0]
    assert pour(1000, [0.0, 0.0], [10, 2.5]) == pytest.approx([800, 200])


def snapshot(*views: EndpointView, held: frozenset[EndpointId] = frozenset()) -> PoolSnapshot:
    return Case("chat", 100.0, views, held=held)


def test_a_silent_endpoint_gets_no_more_than_its_floor() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy())
    silent = EndpointView(A, "a", 10, awaiting_token=1, outstanding_prompt_bytes=400, oldest_wait_s=30, in_flight=1)
    scores = step(strategy, snapshot(silent, EndpointView(B, "b", 1)), 100.0)
    assert scores[A].share == pytest.approx(0.002, rel=0.01)
    assert scores[B].share == pytest.approx(1, abs=0.003)
    assert scores[A].score < 10
    assert scores[A].breakdown["silence"] > 80


def test_one_huge_request_does_not_send_work_to_a_silent_endpoint() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy())

    def judge(sent: int, at: float) -> float:
        silent = EndpointView(A, "a", 1, in_flight=1, awaiting_token=1, oldest_wait_s=10, prompt_bytes_sent=sent)
        return step(strategy, snapshot(silent, EndpointView(B, "b", 1)), at)[A].share

    judge(0, 100.0)
    assert judge(5_000_000, 100.1) == pytest.approx(0.002, rel=0.01)


def test_nothing_is_poured_over_an_endpoint_that_takes_no_work() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy())
    busy = EndpointView(B, "b", 1, outstanding_prompt_bytes=40_000, in_flight=5)
    scores = step(strategy, snapshot(EndpointView(A, "a", 10), busy, held=frozenset({A})), 100.0)
    assert scores[B].share == pytest.approx(1, abs=0.003)


class TestNewcomers:
    """Two endpoints at 400 ms a thousand prompt tokens, and others that join them."""

    def strategy(self) -> PredictedTtft:
        strategy = PredictedTtft(PredictedTtftPolicy())
        step(strategy, snapshot(EndpointView(A, "a", 2), EndpointView(B, "b", 1)), 100.0)
        for _ in range(50):
            strategy.learn(TokenSample(A, 100.0, 0.4, 4000, 4000, 1))
            strategy.learn(TokenSample(B, 100.0, 0.8, 4000, 4000, 1))
        return strategy

    def shares(self, strategy: PredictedTtft, newcomers: int, prompt_bytes: int, at: float) -> dict[EndpointId, float]:
        new = [EndpointView(EndpointId(f"10.0.1.{number}:80"), "n", 2) for number in range(newcomers)]
        known = [EndpointView(A, "a", 2, prompt_bytes_sent=prompt_bytes), EndpointView(B, "b", 1)]
        return {id: score.share for id, score in step(strategy, snapshot(*known, *new), at).items()}

    @pytest.mark.parametrize("newcomers", [1, 3, 40])
    def test_all_together_get_a_tenth_until_they_have_answered(self, newcomers: int) -> None:
        strategy = self.strategy()
        self.shares(strategy, 0, 0, 100.1)
        shares = self.shares(strategy, newcomers, 400_000, 100.2)
        assert shares[A] + shares[B] > 0.87
        for number in range(newcomers):
            strategy.learn(TokenSample(EndpointId(f"10.0.1.{number}:80"), 100.3, 0.4, 4000, 4000, 1))
        later = self.shares(strategy, newcomers, 800_000, 100.4)
        assert later[A] == pytest.approx(2 / (3 + 2 * newcomers), rel=0.1)

    def test_nor_do_they_get_all_where_the_others_have_queues(self) -> None:
        strategy = self.strategy()

        def share_of_a(prompt_bytes: int, at: float) -> float:
            queue = {"outstanding_prompt_bytes": 400_000, "in_flight": 20}
            known = [EndpointView(A, "a", 1, prompt_bytes_sent=prompt_bytes, **queue), EndpointView(B, "b", 1, **queue)]
            return step(strategy, snapshot(*known, *new), at)[A].share

        new: list[EndpointView] = []
        share_of_a(0, 100.1)
        new = [EndpointView(EndpointId(f"10.0.1.{number}:80"), "n", 1) for number in range(3)]
        assert share_of_a(400_000, 100.2) > 0.4
        for view in new:
            strategy.learn(TokenSample(view.id, 100.3, 0.4, 4000, 4000, 1))
        assert share_of_a(400_000, 100.4) < 0.01

    def test_one_at_a_time_is_tried_where_little_comes(self) -> None:
        strategy = self.strategy()
        now = self.shares(strategy, 3, 0, 100.1)
        assert [now[EndpointId(f"10.0.1.{number}:80")] > 0.4 for number in range(3)] == [True, False, False]

    def test_endpoints_that_begin_together_are_no_newcomers(self) -> None:
        strategy = PredictedTtft(PredictedTtftPolicy())
        self.shares(strategy, 1, 0, 100.0)
        assert self.shares(strategy, 1, 400_000, 100.1)[A] == pytest.approx(0.4, abs=0.01)
        strategy.learn(TokenSample(B, 100.2, 0.2, 4000, 4000, 1))
        assert self.shares(strategy, 1, 800_000, 100.3)[EndpointId("10.0.1.0:80")] > 0.3


class TestTries:
    """An endpoint that became ten times slower, beside one that did not."""

    def strategy(self) -> PredictedTtft:
        strategy = PredictedTtft(PredictedTtftPolicy())
        self.shares(strategy, 100.0)
        for endpoint in (A, B):
            self.teach(strategy, endpoint, 0.1, 50, at=100.0)
        self.teach(strategy, A, 1.0, 10, at=101.0)
        return strategy

    def teach(self, strategy: PredictedTtft, endpoint: EndpointId, ttft_s: float, times: int, *, at: float) -> None:
        for _ in range(times):
            strategy.learn(TokenSample(endpoint, at, ttft_s, 4000, 4000, 1))

    def shares(self, strategy: PredictedTtft, now: float, *, in_flight: int = 0) -> tuple[float, float]:
        busy = EndpointView(B, "b", 1, outstanding_prompt_bytes=4000, in_flight=1)
        scores = step(strategy, snapshot(EndpointView(A, "a", 1, in_flight=in_flight), busy), now)
        return scores[A].share, scores[B].share

    def test_it_is_tried_with_a_request_from_time_to_time(self) -> None:
        strategy = self.strategy()
        waiting = self.shares(strategy, 105.9, in_flight=1)[0]
        assert self.shares(strategy, 106.0)[0] > 0.85
        assert self.shares(strategy, 106.0, in_flight=1)[0] == waiting < 0.5, "one at a time"
        self.teach(strategy, A, 1.0, 1, at=106.5)
        self.shares(strategy, 106.6)

    def test_a_good_answer_is_followed_up_at_once(self) -> None:
        strategy = self.strategy()
        self.teach(strategy, A, 0.1, 1, at=106.5)
        assert self.shares(strategy, 106.6)[0] >= 0.5
        self.teach(strategy, A, 0.1, 3, at=106.7)
        assert self.shares(strategy, 106.8)[0] > 0.9, "it is the idle one, and as fast as it was"

    def test_it_was_quick_for_a_few_answers_only(self) -> None:
        strategy = PredictedTtft(PredictedTtftPolicy())
        self.shares(strategy, 100.0)
        self.teach(strategy, B, 0.1, 10, at=100.0)
        self.teach(strategy, A, 0.1, 10, at=100.0)
        self.teach(strategy, A, 3.0, 10, at=101.0)
        assert self.shares(strategy, 106.1)[0] > 0.85

    def test_one_whose_last_client_gave_up_is_tried(self) -> None:
        strategy = PredictedTtft(PredictedTtftPolicy())
        self.shares(strategy, 100.0)
        for endpoint in (A, B):
            self.teach(strategy, endpoint, 0.1, 50, at=100.0)
        views = (EndpointView(A, "a", 1, oldest_wait_s=0.6), EndpointView(B, "b", 1))
        assert step(strategy, snapshot(*views), 104.9)[A].share < 0.01
        assert step(strategy, snapshot(*views), 105.1)[A].share > 0.85

    def test_one_that_was_always_slow_is_not_tried(self) -> None:
        strategy = PredictedTtft(PredictedTtftPolicy())
        self.shares(strategy, 100.0)
        self.teach(strategy, A, 1.0, 50, at=100.0)
        self.teach(strategy, B, 0.1, 50, at=100.0)
        assert self.shares(strategy, 200.0)[0] < 0.2


def test_a_cost_that_cannot_be_told_does_not_make_an_endpoint_look_endless() -> None:
    """Alike prompts leave open which of the two costs explains them: here A's prompts came to look free."""
    strategy = PredictedTtft(PredictedTtftPolicy())
    views = (EndpointView(A, "a", 4), EndpointView(B, "b", 10))
    step(strategy, snapshot(*views), 100.0)
    for number in range(400):
        in_flight = 1 + number % 60
        strategy.learn(TokenSample(A, 100.0, 0.09 * in_flight, 1320, 1320, in_flight))
        strategy.learn(TokenSample(B, 100.0, 0.045, 1320, 1320 * in_flight, in_flight))
    for _ in range(30):
        strategy.learn(TokenSample(A, 101.0, 0.09, 1320, 1320, 1))
        strategy.learn(TokenSample(B, 101.0, 0.045, 1320, 1320, 1))
    scores = step(strategy, snapshot(*views), 102.0)
    assert scores[B].share > 0.6


def test_the_power_form_prefers_what_is_sooner() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy(form="power", gamma=2))
    views = (EndpointView(A, "a", 1), EndpointView(B, "b", 1, outstanding_prompt_bytes=4000, in_flight=1))
    step(strategy, snapshot(*views), 100.0)
    for endpoint in (A, B):
        for _ in range(50):
            strategy.learn(TokenSample(endpoint, 100.0, 0.1, 4000, 4000, 1))
    scores = step(strategy, snapshot(*views), 100.1)
    assert scores[A].share == pytest.approx(0.8, abs=0.02)


def test_what_was_learned_outlives_a_restart() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy())
    views = (EndpointView(A, "a", 1), EndpointView(B, "b", 1))
    step(strategy, snapshot(*views), 100.0)
    for _ in range(30):
        strategy.learn(TokenSample(A, 100.0, 2.0, 4000, 4000, 1))
    again = PredictedTtft(PredictedTtftPolicy())
    endless = {"per_kilotoken_s": 1e300, "per_attempt_s": 10**400}
    again.restore({**strategy.dump(), "10.0.0.9:1": {"per_kilotoken_s": "x"}, "y": 3, "z": endless})
    assert "z" not in again.dump()
    waiting = EndpointView(A, "a", 1, outstanding_prompt_bytes=4000, in_flight=1)
    then, now = (step(x, snapshot(waiting, views[1]), 101.0) for x in (strategy, again))
    assert {id: score.share for id, score in now.items()} == {id: score.share for id, score in then.items()}


def test_a_prediction_is_the_wait_and_the_prompts_own_time_and_moves_nothing() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy())
    idle, busy = EndpointView(A, "a", 1), EndpointView(B, "b", 1, in_flight=10, outstanding_prompt_bytes=40_000)
    assert strategy.predict(idle, 4_000) is None, "an endpoint that it has never seen"
    step(strategy, snapshot(idle, busy))
    before = strategy.dump()
    # 0.1 s a thousand prompt tokens, 1 ms an attempt; 4 bytes a token
    assert strategy.predict(idle, 4_000) == pytest.approx(0.101)
    assert strategy.predict(busy, 4_000) == pytest.approx(10 * 0.1 + 10 * 0.001 + 0.101)
    silent = replace(idle, oldest_wait_s=3.0)
    assert strategy.predict(silent, 0) == pytest.approx(3.001)
    assert strategy.dump() == before
