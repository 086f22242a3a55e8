"""Cool-down, breaker, ramp, KV rule, floor and hysteresis, seen from the decisions of a pool."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scene import A, B, C, Scene, answered, ended, failed, read, rejected, started, token, unreachable
from trimtab.health.breaker import Breaker, BreakerState
from trimtab.health.cooldown import CoolDown
from trimtab.health.state import State
from trimtab.observation.kinds import Outcome, Verdict
from trimtab.policy.model import Weighting
from trimtab.weights.integers import floored, jittered, moved, to_weight


class TestCoolDown:
    config = Weighting()

    def refuse(self, *events: tuple[float, float | None], **config: float) -> CoolDown:
        cool_down = CoolDown()
        for at, hint in events:
            cool_down.refused(at, hint, Weighting(**config), Random(7))
        return cool_down

    @given(st.integers(0, 1000))
    def test_the_first_is_drawn_between_its_bounds(self, seed: int) -> None:
        cool_down = CoolDown()
        cool_down.refused(100.0, None, self.config, Random(seed))
        assert 103.0 <= cool_down.until <= 105.0

    def test_many_refusals_inside_one_are_one_event(self) -> None:
        one = self.refuse((100.0, None))
        many = self.refuse(*((100.0 + i / 100, None) for i in range(200)))
        assert (many.until, many.repeats) == (one.until, 0)

    def test_each_that_follows_within_a_minute_is_longer(self) -> None:
        cool_down, at = CoolDown(), 100.0
        lengths = []
        for _ in range(8):
            cool_down.refused(at, None, self.config, Random(7))
            lengths.append(cool_down.until - at)
            at = cool_down.until + 59.0
        assert [later / earlier for earlier, later in pairwise(lengths[:4])] == pytest.approx([2] * 3)
        assert lengths[-1] == 60.0

    def test_after_a_quiet_minute_it_begins_anew(self) -> None:
        first = self.refuse((100.0, None))
        second = self.refuse((100.0, None), (first.until + 61.0, None))
        assert second.until - (first.until + 61.0) == pytest.approx(first.until - 100.0)

    @pytest.mark.parametrize(("hint", "until"), [(20.0, 120.0), (500.0, 160.0), (0.0, None), (1.0, None), (-5.0, None)])
    def test_a_hint_makes_it_longer_up_to_the_cap(self, hint: float, until: float | None) -> None:
        without = self.refuse((100.0, None)).until
        assert self.refuse((100.0, hint)).until == (until or without)

    def test_a_hint_that_is_no_number_is_no_hint(self) -> None:
        assert self.refuse((100.0, float("nan"))).until == self.refuse((100.0, None)).until

    def test_a_later_shorter_hint_does_not_shorten_it(self) -> None:
        assert self.refuse((100.0, 30.0), (101.0, 2.0)).until == 130.0
        assert self.refuse((100.0, None), (101.0, 30.0)).until == 131.0

    def test_growth_has_no_end_but_the_cap(self) -> None:
        cool_down = CoolDown()
        for i in range(2000):
            cool_down.refused(100.0 + i * 61.0, None, Weighting(cool_down_growth=10), Random(1))
        assert cool_down.until == pytest.approx(100.0 + 1999 * 61.0 + 60.0)


class TestBreaker:
    config = Weighting(breaker_failures=3, breaker_open_s=30)

    def opened(self) -> Breaker:
        breaker = Breaker()
        for i in range(3):
            breaker.failed(100.0 + i, 100.0 + i, self.config)
        return breaker

    def test_it_opens_at_failures_in_a_row(self) -> None:
        breaker = Breaker()
        for at in (1.0, 2.0):
            breaker.failed(at, at, self.config)
        breaker.succeeded(2.5, 2.5, generated=True)
        for at in (3.0, 4.0):
            breaker.failed(at, at, self.config)
        assert breaker.state(4.0) is BreakerState.CLOSED
        breaker.failed(5.0, 5.0, self.config)
        assert breaker.state(5.0) is BreakerState.OPEN
        assert breaker.state(35.0) is BreakerState.HALF_OPEN

    def test_one_attempt_decides(self) -> None:
        breaker = self.opened()
        breaker.succeeded(132.5, 132.5, generated=True)
        assert breaker.state(133.0) is BreakerState.CLOSED
        breaker = self.opened()
        breaker.failed(133.0, 132.5, self.config)
        assert breaker.state(133.0) is BreakerState.OPEN

    def test_each_time_it_opens_again_it_is_open_for_longer(self) -> None:
        breaker, lengths = self.opened(), []
        for _ in range(6):
            lengths.append(breaker.until - breaker.opened_at)
            breaker.failed(breaker.until + 1, breaker.until + 0.5, self.config)
        assert lengths == [30, 60, 120, 240, 240, 240]
        breaker.succeeded(breaker.until + 1, breaker.until + 1, generated=True)
        for i in range(3):
            breaker.failed(5000.0 + i, 5000.0 + i, self.config)
        assert breaker.until - breaker.opened_at == 30, "once closed it begins anew"

    def test_what_was_sent_before_it_opened_decides_nothing(self) -> None:
        breaker = self.opened()
        breaker.succeeded(103.0, 99.0, generated=True)
        breaker.token_seen(101.9)
        assert breaker.state(110.0) is BreakerState.OPEN
        breaker.failed(133.0, 99.0, self.config)
        assert breaker.state(133.0) is BreakerState.HALF_OPEN

    def test_after_deaths_in_mid_answer_only_a_whole_answer_closes_it(self) -> None:
        breaker = Breaker()
        for at in (100.0, 101.0, 102.0):
            breaker.failed(at, at - 1, self.config, mid_answer=True)
        breaker.token_seen(132.5)
        assert breaker.state(133.0) is BreakerState.HALF_OPEN
        breaker.failed(133.0, 132.5, self.config, mid_answer=True)
        assert breaker.until - breaker.opened_at == 60
        breaker.succeeded(195.0, 194.0, generated=True)
        assert breaker.state(195.0) is BreakerState.CLOSED

    def test_a_first_token_closes_it_but_takes_back_no_failure(self) -> None:
        breaker = self.opened()
        breaker.token_seen(132.5)
        assert breaker.state(133.0) is BreakerState.CLOSED
        for at in (140.0, 150.0, 160.0):  # it dies in the middle of every answer
            breaker.token_seen(at)
            breaker.failed(at + 1, at, self.config)
        assert breaker.state(161.0) is BreakerState.OPEN


class TestFloor:
    @given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1)), min_size=1, max_size=40))
    def test_shares_sum_to_one_and_keep_their_floors(self, entries: list[tuple[float, float]]) -> None:
        shares = [share for share, _ in entries]
        floors = [floor / len(entries) / 2 for _, floor in entries]
        if not any(shares):
            shares[0] = 1.0
        result = floored(shares, floors)
        assert sum(result) == pytest.approx(1.0)
        assert all(share >= floor - 1e-12 for share, floor in zip(result, floors, strict=True))

    def test_what_is_above_its_floor_keeps_its_proportions(self) -> None:
        assert floored([6.0, 3.0, 0.0], [0.1, 0.1, 0.1]) == pytest.approx([0.6, 0.3, 0.1])

    def test_a_floor_that_pushes_another_under_its_floor(self) -> None:
        assert floored([97.0, 3.0, 0.0], [0.1, 0.0295, 0.1]) == pytest.approx([0.8705, 0.0295, 0.1])

    def test_weights_are_wide_and_never_nothing(self) -> None:
        assert (to_weight(0.5, 2), to_weight(0.0, 2), to_weight(1e-9, 2), to_weight(0.001, 1000)) == (5000, 1, 1, 1000)

    def test_moved(self) -> None:
        assert not moved(104, 100, 0.05) and moved(105, 100, 0.05) and moved(95, 100, 0.05)
        assert moved(101, 100, 0.0) and not moved(100, 100, 0.0)


class TestSaturation:
    def test_a_saturated_endpoint_gets_no_new_work_and_comes_back_slowly(self) -> None:
        scene = Scene([A, B])
        scene.step()
        scene.see(rejected(1000.1))
        decision = scene.step(1000.2)
        assert decision.changed
        assert (scene.at().takes_work, scene.at().share, scene.at().state) == (False, 0.0, State.COOLING)
        assert scene.at(B).share == 1.0
        assert scene.at().reason.startswith("cooling: status 429 (saturated, rule a-rule), ")
        until = scene.at().until
        assert until is not None and 1003.1 <= until <= 1005.1
        scene.run(until - 0.001)
        assert not scene.at().takes_work
        effective = [d.endpoints[0].effective_score for d in scene.run(until + 8.0, 0.1)]
        assert scene.at().state == State.UP
        assert all(later - earlier <= 1.5 + 1e-6 for earlier, later in pairwise(effective))
        assert effective[0] < 1.5, "it begins from nothing"

    def test_an_endpoint_that_stays_saturated_gets_under_a_hundredth_of_the_work(self) -> None:
        """It refuses fast, whatever it is sent: what it gets is what is refused at the start of each ramp."""
        scene = Scene([A, B], now=0.0)
        random, sent, got = Random(5), 0, 0
        while scene.now < 300.0:
            scene.step(scene.now + 0.25)
            for _ in range(5):
                sent += 1
                if random.random() < scene.at().share:
                    got += 1
                    scene.see(rejected(scene.now, request=f"r{sent}"))
        assert got / sent < 0.01

    @pytest.mark.parametrize("verdict", [Verdict.QUOTA, Verdict.UNKNOWN])
    def test_a_quota_leaves_the_endpoint_where_it_is(self, verdict: Verdict) -> None:
        scene = Scene([A, B])
        scene.step()
        before = scene.at().weight
        for i in range(50):
            at = 1000.0 + i * 0.1
            scene.see(started(at, request=f"r{i}"), rejected(at, request=f"r{i}", verdict=verdict, retry_after_s=60.0))
            scene.see(ended(at, at, request=f"r{i}", status=429, streamed=False))
            scene.step(at)
            assert scene.at().takes_work
            assert verdict is Verdict.UNKNOWN or (scene.at().weight, scene.at().score) == (before, 100.0)
        assert scene.at().score > 45, "an unknown 429 is half an error"

    def test_an_engine_that_leaves_is_out_until_it_is_another(self) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, process_start=500.0))
        scene.see(rejected(1000.1, verdict=Verdict.DRAINING, status=503))
        scene.step()
        assert (scene.at().state, scene.at().takes_work, scene.at().until) == (State.DRAINING, False, 1060.1)
        scene.see(read(1001.0, process_start=1000.5))
        scene.step()
        assert (scene.at().state, scene.at().takes_work) == (State.SLOW_START, True)


class TestFailures:
    def test_a_fast_failure_is_out_within_one_step(self) -> None:
        scene = Scene([A, B, C])
        scene.see(*(failed(1000.1, request=f"f{i}") for i in range(3)))
        scene.step(1000.25)
        assert (scene.at().state, scene.at().takes_work) == (State.OPEN, False)
        assert scene.at().reason == "open: status 500, 29.8 s left"

    def test_it_is_tried_once_and_closed_by_a_token(self) -> None:
        scene = Scene([A, B])
        scene.see(*(unreachable(1000.0, request=f"f{i}") for i in range(3)))
        scene.run(1030.0)
        assert (scene.at().state, scene.at().takes_work, scene.at().share) == (State.HALF_OPEN, True, 0.4)
        scene.run(1031.5)
        scene.see(started(1031.0, request="try"), token(1031.5, request="try"))
        scene.step()
        assert (scene.at().state, scene.at().effective_score) == (State.SLOW_START, 0.0)
        scene.step(1033.5)
        assert scene.at().effective_score == pytest.approx(30.0)

    def test_it_opens_again_for_longer_when_the_try_fails(self) -> None:
        scene = Scene([A, B])
        scene.see(*(failed(1000.0, request=f"f{i}") for i in range(3)))
        scene.run(1030.0)
        scene.see(failed(1031.0, request="try", took_s=0.5))
        scene.step()
        assert (scene.at().state, scene.at().until) == (State.OPEN, 1091.0)

    @pytest.mark.parametrize("between", [Verdict.QUOTA, Verdict.SATURATED])
    def test_refusals_neither_open_nor_close_it(self, between: Verdict) -> None:
        scene = Scene([A, B])
        for i in range(10):
            scene.see(rejected(1000.0 + i * 0.01, request=f"q{i}", verdict=between))
        scene.run(1010.0)
        assert scene.at().state in (State.UP, State.SLOW_START)
        scene.see(failed(1010.0, request="f1"), failed(1010.1, request="f2"), rejected(1010.2, verdict=between))
        scene.see(failed(1010.3, request="f3"))
        scene.step()
        assert scene.at().state == State.OPEN

    def test_aborts_by_clients_neither_open_nor_close_it(self) -> None:
        scene = Scene([A, B])
        for i in range(20):
            at = 1000.0 + i * 0.01
            scene.see(started(at, request=f"a{i}"))
            scene.see(ended(at, at, request=f"a{i}", status=0, outcome=Outcome.ABORTED, first_byte_s=None))
        scene.step()
        assert (scene.at().state, scene.at().view.error_samples) == (State.UP, 0.0)

    def test_a_token_of_a_request_of_unknown_length_closes_it_too(self) -> None:
        scene = Scene([A, B])
        scene.see(*(failed(1000.0, request=f"f{i}") for i in range(3)))
        scene.run(1030.0)
        scene.see(started(1031.0, request="try", prompt=None), token(1031.5, request="try"))
        scene.step()
        assert scene.at().state == State.SLOW_START

    def test_each_hold_has_its_own_reason(self) -> None:
        scene = Scene([A, B])
        scene.see(rejected(1000.0), failed(1000.5, request="f"))
        scene.step()
        assert scene.at().reason.startswith("cooling: status 429 (saturated, rule a-rule)")


class TestKvRule:
    def test_a_full_endpoint_gets_no_new_work_while_another_has_room(self) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, A, kv_usage=0.85), read(1000.0, B, kv_usage=0.84))
        scene.step()
        assert (scene.at().state, scene.at().takes_work, scene.at(B).share) == (State.FULL, False, 1.0)
        assert scene.at().reason == "full: KV usage 0.85, the limit is 0.85, and another endpoint has room"

    @pytest.mark.parametrize("other", [{"kv_usage": 0.9}, {"waiting": 0}, None])
    def test_it_stays_in_while_no_other_is_known_to_have_room(self, other: dict | None) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, A, kv_usage=0.95), *([read(1000.0, B, **other)] if other else []))
        scene.step()
        assert scene.at().takes_work and scene.at(B).takes_work

    def test_an_endpoint_that_is_out_has_no_room(self) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, A, kv_usage=0.95), read(1000.0, B, kv_usage=0.1), rejected(1000.0, B))
        scene.step()
        assert scene.at().takes_work and not scene.at(B).takes_work

    def test_it_does_not_flap_at_the_limit(self) -> None:
        scene = Scene([A, B])
        states = []
        for i, usage in enumerate([0.86, 0.845, 0.851, 0.84, 0.85, 0.825, 0.84]):
            scene.see(read(1000.0 + i, A, kv_usage=usage), read(1000.0 + i, B, kv_usage=0.1))
            scene.step()
            states.append(scene.at().takes_work)
        assert states == [False] * 5 + [True] * 2

    def test_it_comes_back_without_a_slow_start(self) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, A, kv_usage=0.9), read(1000.0, B, kv_usage=0.1))
        scene.step()
        scene.see(read(1001.0, A, kv_usage=0.5), read(1001.0, B, kv_usage=0.1))
        scene.step()
        assert scene.at().effective_score == pytest.approx(100.0)

    def test_a_stale_reading_is_not_full(self) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, A, kv_usage=0.95), read(1000.0, B, kv_usage=0.1))
        scene.step()
        scene.see(read(1006.0, B, kv_usage=0.1))
        scene.step()
        assert scene.at().takes_work


class TestAllOut:
    def test_all_are_in_by_capacity(self) -> None:
        scene = Scene({A: 10, B: 4, C: 1})
        scene.see(*(rejected(1000.0, address) for address in (A, B, C)))
        decision = scene.step()
        assert [e.weight for e in decision.endpoints] == [6667, 2667, 667]
        assert all(e.takes_work and e.state == State.PANIC for e in decision.endpoints)
        assert scene.at().reason.startswith("all endpoints are out, so it is in; cooling: ")

    def test_less_to_those_that_will_be_out_for_longer(self) -> None:
        scene = Scene([A, B])
        scene.see(rejected(1000.0, A), rejected(1000.0, B, retry_after_s=50.0))
        scene.step()
        assert scene.at(A).share == pytest.approx(10 / 11)

    def test_what_is_full_goes_before_what_may_be_dead(self) -> None:
        """One says when to come again; of the other clients hear that nothing could be reached."""
        scene = Scene([A, B, C])
        scene.see(*(unreachable(1000.0, A, f"u{i}") for i in range(3)))
        scene.see(rejected(1000.0, B), rejected(1000.0, C))
        scene.step()
        assert (scene.at(A).state, scene.at(A).takes_work) == (State.OPEN, False)
        assert (scene.at(B).state, scene.at(B).share) == (State.PANIC, 0.5)

    def test_what_may_be_dead_is_tried_once_nothing_else_is_left(self) -> None:
        scene = Scene([A, B])
        scene.see(rejected(1000.0, B), *(unreachable(1000.0, A, f"u{i}") for i in range(3)))
        scene.step()
        scene.see(*(unreachable(1001.0, B, f"v{i}") for i in range(3)))
        scene.step(1001.0)
        assert [scene.at(address).state for address in (A, B)] == [State.PANIC] * 2

    def test_the_first_to_come_back_takes_over_from_those_that_go_on_refusing(self) -> None:
        scene = Scene([A, B])
        scene.see(rejected(1000.0, A), rejected(1000.0, B, retry_after_s=50.0))
        scene.run(1006.0)
        shares = []
        for i in range(6):
            scene.see(rejected(1006.0 + i * 0.25, B, request=f"r{i}"))
            scene.step(1006.0 + i * 0.25)
            shares.append(scene.at(B).share)
        assert all(later < earlier for earlier, later in pairwise(shares[:5]))
        assert (scene.at(A).share, scene.at(B).takes_work) == (1.0, False)
        assert scene.at(A).state == State.SLOW_START

    def test_the_first_to_come_back_is_not_flooded(self) -> None:
        """It would be full at once, and all would be out again."""
        scene = Scene({A: 10, B: 10, C: 10}, scoring={"strategy": "predicted_ttft"})
        scene.see(*(rejected(1000.0, address, retry_after_s=3 + i) for i, address in enumerate((A, B, C))))
        for decision in [scene.step(), *scene.run(1020.0)]:
            assert all(0.1 < e.share < 0.7 for e in decision.endpoints)
        assert all(e.state == State.UP for e in scene.step().endpoints)

    def test_all_that_died_and_healed_come_back_without_a_flood(self) -> None:
        scene = Scene([A, B, C])
        for address in (A, B, C):
            scene.see(*(failed(1000.0, address, request=f"f{i}{address}") for i in range(3)))
        scene.step()
        scene.see(*answered(1001.0, 0.1, A, request="good"))
        shares = [scene.step(scene.now + 0.25).endpoints[0].share for _ in range(40)]
        assert shares[0] < 0.05
        assert 0.33 < max(shares) < 0.6, "more than those of which nothing good is known, but not all"
        assert {scene.at(address).state for address in (B, C)} == {State.PANIC}
        assert "all endpoints were out, so it keeps 100% of its work; open: status 500" in scene.at(B).reason

    def test_after_a_restart_the_first_to_come_back_is_not_flooded_either(self) -> None:
        scene = Scene([A, B])
        scene.see(rejected(1000.0, A), rejected(1000.0, B, retry_after_s=50.0))
        scene.run(1006.0)
        again = Scene([A, B], now=1006.0, memory=scene.controller.dump(1006.0))
        again.step()
        assert again.at(B).share == pytest.approx(scene.at(B).share, abs=0.01)

    def test_a_pool_of_one_is_never_out(self) -> None:
        scene = Scene([A])
        for observation in (rejected(1000.0), *(failed(1000.1, request=f"f{i}") for i in range(5))):
            scene.see(observation)
            decision = scene.step()
            assert decision.endpoints[0].takes_work and decision.endpoints[0].weight == 10_000

    def test_an_endpoint_that_is_merely_tried_is_no_home_for_all_work(self) -> None:
        scene = Scene([A, B])
        scene.see(*(failed(1000.0, A, request=f"f{i}") for i in range(3)))
        scene.run(1031.0)
        scene.see(rejected(1031.0, B))
        scene.step()
        assert (scene.at(A).state, scene.at(A).share) == (State.HALF_OPEN, 0.5)
        assert (scene.at(B).state, scene.at(B).share) == (State.PANIC, 0.5)

    def test_an_answer_while_all_are_out_closes_a_breaker(self) -> None:
        scene = Scene([A])
        scene.see(*(failed(1000.0, request=f"f{i}") for i in range(3)))
        scene.step()
        scene.see(*answered(1001.0, 0.1, request="good"))
        scene.step()
        assert scene.at().state == State.SLOW_START


class TestManyDead:
    def test_the_tries_of_many_are_few_attempts_together(self) -> None:
        addresses = [f"10.0.1.{i}:8000" for i in range(30)]
        scene = Scene(addresses)
        for address in addresses[:20]:
            scene.see(*(failed(1000.0, address, request=f"f{i}{address}") for i in range(3)))
        scene.run(1031.0)
        assert {scene.at(address).state for address in addresses[:20]} == {State.HALF_OPEN}
        *shares, trial = sorted(scene.at(address).share for address in addresses[:20])
        assert trial == pytest.approx(0.4)
        assert sum(shares) == pytest.approx(0.05 * 19 / 20)
        assert min(shares) > 0 and min(scene.at(address).weight for address in addresses[:20]) > 50


class TestRamp:
    def test_a_pool_that_starts_as_a_whole_starts_in_full(self) -> None:
        scene = Scene([A, B])
        decision = scene.step()
        assert all((e.state, e.effective_score) == (State.UP, 100.0) for e in decision.endpoints)

    def test_a_new_endpoint_begins_at_a_moderate_score(self) -> None:
        scene = Scene([A, B])
        scene.step()
        scene.now = 1010.0
        scene.set_endpoints(A, B, C)
        scene.step()
        assert scene.at(C).effective_score == 30.0
        assert scene.at(C).share == pytest.approx(30 / 230)
        assert scene.at(A).state == State.UP
        scene.run(1015.0)
        assert scene.at(C).state == State.UP

    def test_a_score_falls_at_once_and_rises_slowly(self) -> None:
        scene = Scene([A, B])
        scene.see(read(1000.0, waiting=30, kv_usage=0.2))
        scene.step()
        assert scene.at().effective_score == 75.0
        scene.see(read(1001.0, waiting=0, kv_usage=0.2))
        scene.step()
        assert (scene.at().effective_score, scene.at().state) == (90.0, State.SLOW_START)
        assert scene.at().reason == "slow-start: 90 of 100 points, 0.7 s left"

    def test_a_clock_that_steps_back_raises_nothing(self) -> None:
        scene = Scene([A, B])
        scene.see(rejected(1000.0))
        scene.run(1006.0)
        before = scene.at().effective_score
        scene.step(900.0)
        assert scene.at().effective_score <= before


class TestHysteresis:
    def weights(self, scene: Scene) -> list[int]:
        assert scene.decision is not None
        return [e.weight for e in scene.decision.endpoints]

    def test_the_first_decision_is_pushed_and_the_same_again_is_not(self) -> None:
        scene = Scene([A, B])
        assert scene.step().changed
        assert not scene.step(1001.0).changed

    def test_small_changes_are_not_pushed_until_they_add_up(self) -> None:
        scene = Scene([A, B])
        scene.step()
        pushed, pushes = self.weights(scene), 0
        for i in range(1, 31):
            scene.see(read(1000.0 + i, A, waiting=i, kv_usage=0.0), read(1000.0 + i, B, waiting=0, kv_usage=0.0))
            if scene.step().changed:
                pushes += 1
                pushed = self.weights(scene)
            assert self.weights(scene) == pushed, "what is in force is what was pushed"
            assert pushed[0] == pytest.approx(10_000 * scene.at().share, rel=0.06)
        assert 1 <= pushes <= 5

    def test_an_endpoint_that_goes_out_or_comes_in_is_always_pushed(self) -> None:
        scene = Scene({A: 10_000, B: 1}, weighting={"floor_share": 0, "hysteresis": 1})
        scene.step()
        scene.see(rejected(1000.0, B))
        assert scene.step().changed
        changes = [d for d in scene.run(1006.0) if d.changed]
        assert [e.takes_work for e in changes[0].endpoints] == [True, True]

    def test_that_all_are_out_and_that_it_is_over_is_always_pushed(self) -> None:
        scene = Scene([A])
        scene.step()
        scene.see(*(unreachable(1001.0, A, f"u{i}") for i in range(3)))
        changes = [scene.step(1001.0), scene.step(1001.1)]
        scene.see(*answered(1001.2, 0.1, A))
        changes += [scene.step(1002.0), scene.step(1002.1)]
        assert [decision.endpoints[0].weight for decision in changes] == [10_000] * 4
        assert [(decision.serves, decision.changed) for decision in changes] == [
            (False, True),
            (False, False),
            (True, True),
            (True, False),
        ]

    def test_another_set_of_endpoints_is_always_pushed(self) -> None:
        scene = Scene([A, B])
        scene.step()
        scene.set_endpoints(A)
        assert scene.step().changed
        scene.set_endpoints()
        decision = scene.step()
        assert decision.changed and decision.endpoints == ()

    def test_without_hysteresis_every_change_is_pushed(self) -> None:
        scene = Scene([A, B], weighting={"hysteresis": 0})
        scene.step()
        scene.see(read(1000.1, A, waiting=0.2, kv_usage=0.0), read(1000.1, B, waiting=0, kv_usage=0.0))
        assert scene.step().changed


def test_the_floor_keeps_the_worst_endpoint_observed_but_does_not_load_a_weak_one() -> None:
    scene = Scene({A: 1000, B: 1000, C: 1}, weighting={"floor_share": 0.1})
    scene.see(*(failed(1000.0 + i, C, request=f"f{i}") for i in range(2)))
    scene.step()
    assert scene.at(C).share == pytest.approx(0.5 / 2001)


def test_the_floor_of_a_large_pool_does_not_level_it() -> None:
    addresses = [f"10.0.{i // 250}.{i % 250}:80" for i in range(1000)]
    scene = Scene(addresses)
    for i, address in enumerate(addresses[:500]):
        scene.see(read(1000.0, address, waiting=30, kv_usage=0.0))
        scene.see(*(failed(1000.0, address, request=f"f{i}-{j}") for j in range(2)))
    decision = scene.step()
    assert sum(e.share for e in decision.endpoints) == pytest.approx(1.0)
    assert min(e.weight for e in decision.endpoints) > 400
    assert scene.at(addresses[0]).share < 0.6 * scene.at(addresses[-1]).share


def test_two_idle_endpoints_share_by_their_scores() -> None:
    scene = Scene([A, B])
    scene.see(read(1000.0, A, waiting=2, kv_usage=0), *(o for o in answered(1000.0, 1.85, B, "slow")))
    scene.see(read(1002.0, A, waiting=2, kv_usage=0), read(1002.0, B, waiting=0, kv_usage=0))
    scene.step()
    assert scene.at(A).score == pytest.approx(98, abs=1) and scene.at(B).score == pytest.approx(70, abs=1)
    assert scene.at(A).share < 0.6


@given(st.lists(st.integers(1, 10_000_000), min_size=1, max_size=40), st.integers(0, 2**32))
def test_jittered_weights_keep_their_proportions_within_two_percent(weights: list[int], seed: int) -> None:
    pushed = jittered(weights, Random(seed))
    assert all(abs(new / (100 * weight) - 1.0) <= 0.021 for new, weight in zip(pushed, weights, strict=True))
    if len(set(weights)) == 1:
        assert len(set(pushed)) == 1, "Envoy looks at no equal weights"
