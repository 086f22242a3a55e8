"""Signs of death: what is taken for one, what is not, and what takes it back."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.unit.scene import (
    A,
    B,
    C,
    Scene,
    answer_read,
    answered,
    ended,
    failed,
    read,
    rejected,
    started,
    stream_read,
    token,
    worker_missed,
)
from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.health.state import State
from trimtab.observation.kinds import Observation, Outcome, Verdict


def unary(at: float, took_s: float, address: str = A, request: str = "u") -> list[Observation]:
    """A prompt that was answered in one piece."""
    return [
        started(at, address, request, streamed=False),
        answer_read(at + took_s, address, request),
        ended(at + took_s, at, address, request, streamed=False, first_byte_s=took_s),
    ]


def seen(scene: Scene, until: float, interval_s: float = 0.1) -> Counter[FailureSignal]:
    """The signs of a stretch of time."""
    return Counter(
        failure_signal for decision in scene.run(until, interval_s) for _, failure_signal in decision.failure_signals
    )


def used_to(ttft_s: float = 0.1, *addresses: str, **policy: object) -> Scene:
    """A pool whose endpoints have answered a few streams, at 1000 s."""
    scene = Scene(addresses or (A, B), now=980.0, **policy)
    for number in range(5):
        for address in scene.capacities:
            scene.see(*answered(980.0 + number, ttft_s, address, f"{number}{address}"))
    scene.step(1000.0)
    return scene


class TestSilent:
    def test_an_endpoint_that_gives_no_token_is_out_and_the_first_one_brings_it_back(self) -> None:
        scene = used_to()
        for number in range(30):
            scene.see(started(1000.0 + number * 0.1, request=f"r{number}"))
        assert seen(scene, 1002.9) == {}
        assert seen(scene, 1003.2) == {FailureSignal.SILENT: 1}
        assert (scene.at().state, scene.at().takes_work, scene.at(B).share) == (State.OPEN, False, 1.0)
        assert scene.at().reason.startswith("open: no token for 3.1 s, where 0.1 s is slow, ")
        scene.see(token(1004.0, request="r0"))
        scene.step()
        assert scene.at().state == State.SLOW_START, "an answer to what was sent meanwhile shows that it lives"
        scene.run(1012.0, 0.1)
        assert scene.at().state == State.UP, "its ramp begins now, and not when its breaker would have ended"

    @pytest.mark.parametrize("strategy", ["health", "predicted_ttft"])
    def test_it_is_seen_whatever_the_strategy(self, strategy: str) -> None:
        scene = used_to(scoring={"strategy": strategy})
        scene.see(started(1000.0))
        scene.run(1003.5, 0.1)
        assert scene.at().state == State.OPEN

    def test_one_attempt_decides_when_it_is_half_open_and_each_time_it_is_open_for_longer(self) -> None:
        scene = used_to()
        scene.see(started(1000.0))
        scene.run(1034.0, 0.1)
        assert (scene.at().state, scene.at().takes_work) == (State.HALF_OPEN, True)
        scene.see(started(1034.0, request="try"))
        scene.step(1034.1)
        assert (scene.at().state, scene.at().takes_work) == (State.HALF_OPEN, False)
        assert scene.at().reason.endswith("an attempt under way decides")
        assert seen(scene, 1037.5) == {FailureSignal.SILENT: 1}
        assert scene.at().until == pytest.approx(1037.1 + 60, abs=0.2)
        scene.see(token(1040.0, request="r"))
        assert scene.step().endpoints[0].state == State.OPEN, "what was sent long before says nothing now"
        scene.see(token(1041.0, request="try"))
        assert scene.step().endpoints[0].state == State.SLOW_START

    def test_slow_is_not_silent(self) -> None:
        scene = used_to(4.0)
        for number in range(5):
            scene.see(started(1000.0 + number, request=f"r{number}"))
        assert seen(scene, 1011.0) == {}
        assert seen(scene, 1013.0) == {FailureSignal.SILENT: 1}, "three times its P99"

    def test_a_long_prompt_may_take_longer(self) -> None:
        scene = used_to(1.0)
        scene.see(started(1000.0, prompt=1000))  # four times the mean of all prompts, itself included
        assert seen(scene, 1011.9) == {}
        assert seen(scene, 1013.0) == {FailureSignal.SILENT: 1}

    def test_tokens_to_later_attempts_are_life(self) -> None:
        scene = used_to()
        scene.see(started(1000.0, request="stuck"))
        for number in range(20):
            scene.see(*answered(1000.5 + number * 0.5, 0.1, request=f"r{number}"))
            scene.step()
        assert scene.at().state != State.OPEN

    def test_a_counter_of_tokens_that_moves_is_life(self) -> None:
        scene = used_to()
        scene.see(started(1000.0))
        failure_signals: Counter[FailureSignal] = Counter()
        for second in range(10):
            scene.see(read(1000.0 + second, generated_tokens=1000 + second))
            failure_signals += seen(scene, 1000.9 + second)
        assert failure_signals == {}
        scene.see(read(1010.0, generated_tokens=1009))
        assert seen(scene, 1010.9) == {}, "the last token may have been made right after 1008 s"
        scene.see(read(1011.0, generated_tokens=1009))
        assert seen(scene, 1011.5) == {FailureSignal.SILENT: 1}

    def test_a_counter_does_not_excuse_for_ever_that_no_client_gets_a_token(self) -> None:
        """An engine whose front hangs goes on generating."""
        scene = used_to()
        for second in range(40):
            at = 1000.0 + second
            scene.see(read(at, generated_tokens=1000 + second), started(at, request=f"r{second}"))
            expected = {FailureSignal.SILENT: 1} if second == 30 else {}
            assert seen(scene, at + 0.9) == expected, f"at {second} s"
            if second == 30:
                break
        assert scene.at().state == State.OPEN
        scene.see(read(1031.0, generated_tokens=2000))
        scene.step(1031.1)
        assert scene.at().state == State.OPEN, "nor does it close the breaker"
        scene.see(token(1031.5, request="r0"))
        scene.step(1031.6)
        assert scene.at().state == State.SLOW_START

    def test_a_token_to_any_client_begins_the_counters_time_anew(self) -> None:
        """Sequences that were preempted were silent for 24 s while others got tokens."""
        scene = used_to()
        scene.see(started(1000.0, request="stuck"))
        for second in range(55):
            at = 1000.0 + second
            scene.see(read(at, generated_tokens=1000 + second))
            if second == 26:
                scene.see(*answered(at, 0.1, request="other"))
            assert seen(scene, at + 0.9) == {}

    @pytest.mark.parametrize(
        "answer",
        [
            [started(1001.0, request="get", streamed=False, prompt=None)],
            [started(1001.0, request="get", streamed=False)],
        ],
        ids=["a GET", "a bad request"],
    )
    def test_what_an_engine_answers_without_its_model_is_no_life(self, answer: list[Observation]) -> None:
        scene = used_to()
        (start,) = answer
        status = 400 if getattr(start, "prompt_bytes", None) else 200
        scene.see(started(1000.0), start, ended(1001.1, 1001.0, request="get", status=status, streamed=False))
        assert seen(scene, 1003.5) == {FailureSignal.SILENT: 1}
        scene.see(started(1004.0, request="get2", streamed=False, prompt=None))
        scene.see(ended(1004.1, 1004.0, request="get2", streamed=False))
        scene.step()
        assert scene.at().state == State.OPEN, "nor does it close the breaker"

    def test_clients_that_give_up_one_after_the_other_show_it_too(self) -> None:
        scene = used_to()
        for number in range(4):
            at = 1000.0 + number * 1.2
            scene.see(started(at, request=f"r{number}"))
            scene.run(at + 1.0, 0.1)
            scene.see(ended(at + 1.0, at, request=f"r{number}", status=0, outcome=Outcome.ABORTED, first_byte_s=None))
        assert scene.at().state == State.OPEN

    def test_one_attempt_that_is_never_answered_is_held_against_it_once(self) -> None:
        scene = used_to()
        scene.see(started(1000.0, request="lost"), *answered(1000.5, 0.1, request="other"))
        assert seen(scene, 1004.0) == {FailureSignal.SILENT: 1}
        scene.see(*answered(1034.0, 0.1, request="try"))
        assert seen(scene, 1100.0) == {}

    def test_a_client_that_left_long_ago_is_no_evidence(self) -> None:
        scene = used_to()
        scene.see(started(1000.0), ended(1001.0, 1000.0, status=0, outcome=Outcome.ABORTED, first_byte_s=None))
        assert seen(scene, 1010.0) == {}
        scene.see(started(1010.0, request="new"))
        assert seen(scene, 1012.9) == {}

    def test_what_nobody_watched_is_no_silence(self) -> None:
        scene = used_to()
        scene.see(started(1000.0))
        for tenth in range(60):
            scene.see(worker_missed(1000.0 + tenth / 10))
        assert seen(scene, 1006.0) == {}

    def test_before_anything_answered_nothing_is_late(self) -> None:
        scene = Scene([A, B])
        scene.see(started(1000.0), started(1000.0, B, "other"))
        assert seen(scene, 1060.0) == {}, "an engine may take a minute for its first token"

    def test_a_new_endpoint_is_held_to_the_slowest_of_the_others(self) -> None:
        scene = used_to(0.1, A, B)
        scene.see(*answered(1000.0, 2.0, B, "slow"))
        scene.set_endpoints(A, B, C)
        scene.see(started(1003.0, C))
        scene.run(1008.5, 0.1)
        assert scene.at(C).state != State.OPEN
        scene.run(1010.0, 0.1)
        assert scene.at(C).state == State.OPEN

    def test_all_that_hang_are_all_in(self) -> None:
        scene = used_to()
        scene.see(started(1000.0), started(1000.0, B, "other"))
        scene.run(1004.0, 0.1)
        assert {e.state for e in scene.step().endpoints} == {State.PANIC}
        assert scene.at().share == pytest.approx(0.5)


class TestAnswersInOnePiece:
    def scene(self, took_s: float = 1.0, count: int = 20) -> Scene:
        scene = Scene([A, B], now=900.0)
        for number in range(count):
            scene.see(*unary(900.0 + number * 2, took_s, B, f"u{number}"))
        scene.step(1000.0)
        return scene

    def test_an_endpoint_that_gives_no_answer_is_out_and_an_answer_brings_it_back(self) -> None:
        scene = self.scene()
        for number in range(10):
            scene.see(started(1000.0 + number * 0.1, request=f"r{number}", streamed=False))
        assert seen(scene, 1002.9) == {}
        assert seen(scene, 1003.5) == {FailureSignal.SILENT: 1}
        assert scene.at().reason.startswith("open: no answer for 3.1 s, where 1.0 s is slow, ")
        scene.see(answer_read(1005.0, request="r0"), ended(1005.0, 1000.0, request="r0", streamed=False))
        scene.step()
        assert scene.at().state == State.SLOW_START

    def test_long_answers_are_no_silence(self) -> None:
        scene = self.scene(took_s=20.0)
        scene.see(started(1000.0, streamed=False))
        assert seen(scene, 1059.0) == {}

    def test_a_few_answers_do_not_say_how_long_the_longest_takes(self) -> None:
        scene = self.scene(count=19)
        scene.see(started(1000.0, streamed=False))
        assert seen(scene, 1100.0) == {}

    def counting(self, scene: Scene, until: float) -> Counter[FailureSignal]:
        """Somebody waits from 1000 s on for a unary answer, while the counter of tokens moves."""
        scene.see(started(1000.0, request="long", streamed=False))
        failure_signals: Counter[FailureSignal] = Counter()
        while scene.now < until:
            scene.see(read(scene.now, generated_tokens=scene.now))
            failure_signals += seen(scene, scene.now + 1.0, 0.5)
        return failure_signals

    @pytest.mark.parametrize(
        ("longest_s", "address", "at_most_s"),
        [(1.0, A, 30.0), (40.0, A, 120.0), (40.0, B, 120.0)],
        ids=["short ones", "a long one recently", "a long one of another endpoint"],
    )
    def test_a_counter_excuses_an_answer_for_as_long_as_the_longest_of_late_would(
        self, longest_s: float, address: str, at_most_s: float
    ) -> None:
        """What moves it may be this long answer; or an engine whose front hangs."""
        scene = self.scene()
        scene.see(*unary(999.0 - longest_s, longest_s, address, "longest"))
        assert self.counting(scene, 999.0 + at_most_s) == {}
        assert self.counting(scene, 1002.0 + at_most_s) == {FailureSignal.SILENT: 1}

    def test_a_counter_excuses_an_answer_for_ever_where_no_answer_is_known(self) -> None:
        assert self.counting(used_to(), 1300.0) == {}

    def test_a_client_that_leaves_in_the_middle_of_a_long_answer_makes_no_stream_late(self) -> None:
        scene = self.scene()
        scene.see(*answered(1000.0, 0.1, request="known"))
        scene.see(started(1001.0, request="long", streamed=False))
        scene.see(ended(1003.5, 1001.0, request="long", status=0, outcome=Outcome.ABORTED, streamed=False))
        scene.see(started(1003.6, request="stream"))
        assert seen(scene, 1006.0) == {}

    def test_a_get_waits_for_nothing(self) -> None:
        scene = self.scene()
        scene.see(started(1000.0, streamed=False, prompt=None))
        assert seen(scene, 1060.0) == {}

    def test_a_token_of_a_later_stream_shows_that_it_is_at_work(self) -> None:
        scene = self.scene()
        scene.see(started(1000.0, streamed=False))
        scene.see(*answered(1001.0, 0.1, request="stream"))
        assert seen(scene, 1010.0) == {}


class TestStalled:
    def reading(self) -> Scene:
        scene = used_to()
        scene.see(started(1000.0), token(1000.1), stream_read(1002.1, finished=False))
        return scene

    def test_an_endpoint_whose_streams_stop_is_out(self) -> None:
        scene = self.reading()
        assert seen(scene, 1032.0) == {}
        assert seen(scene, 1032.5) == {FailureSignal.STALLED: 1}
        assert scene.at().reason.startswith("open: nothing more of its streams for 30.")

    def test_a_stream_that_goes_on_brings_it_back(self) -> None:
        """It need not wait until the stream has ended, which may take longer than its breaker."""
        scene = self.reading()
        scene.run(1033.0, 0.1)
        assert scene.at().state == State.OPEN
        scene.see(stream_read(1033.5, finished=False))
        scene.step()
        assert scene.at().state == State.SLOW_START

    def test_what_was_read_before_it_was_given_up_brings_nothing_back(self) -> None:
        scene = self.reading()
        scene.run(1033.0, 0.1)
        scene.see(stream_read(1002.5, finished=False))
        scene.step()
        assert scene.at().state == State.OPEN

    def test_another_token_is_life(self) -> None:
        scene = self.reading()
        scene.see(*answered(1020.0, 0.1, request="other"))
        assert seen(scene, 1049.0) == {}

    def beginning(self, scene: Scene, until: float, *, counts: bool) -> Counter[FailureSignal]:
        """Each second a further stream begins."""
        failure_signals: Counter[FailureSignal] = Counter()
        while scene.now < until:
            at, request = scene.now, f"{scene.now}"
            scene.see(started(at, request=request), token(at + 0.1, request=request))
            if counts:
                scene.see(read(at + 0.1, generated_tokens=at))
            failure_signals += seen(scene, at + 1.0)
        return failure_signals

    @pytest.mark.parametrize(("counts", "after_s"), [(False, 30.0), (True, 60.0)], ids=["silent", "counts"])
    def test_that_streams_begin_does_not_excuse_that_none_goes_on(self, counts: bool, after_s: float) -> None:
        scene = self.reading()
        assert self.beginning(scene, 1001.0 + after_s, counts=counts) == {}
        assert self.beginning(scene, 1004.0 + after_s, counts=counts) == {FailureSignal.STALLED: 1}
        assert self.beginning(scene, 1006.0 + after_s, counts=counts) == {}
        assert scene.at().state == State.OPEN, "nor does it close the breaker"
        scene.see(stream_read(scene.now, finished=False))
        scene.step()
        assert scene.at().state == State.SLOW_START

    def test_half_open_it_is_closed_by_a_whole_answer(self) -> None:
        scene = self.reading()
        scene.run(1063.0, 0.1)
        assert scene.at().state == State.HALF_OPEN
        scene.see(started(1063.0, request="try"), token(1063.1, request="try"))
        scene.step(1063.2)
        assert scene.at().state == State.HALF_OPEN
        scene.see(ended(1064.0, 1063.0, request="try"))
        scene.step()
        assert scene.at().state == State.SLOW_START

    @pytest.mark.parametrize(
        "end",
        [
            [stream_read(1003.0)],
            [ended(1003.0, 1000.0, outcome=Outcome.ABORTED)],
            [worker_missed(1003.0)],
        ],
        ids=["finished", "left", "unwatched"],
    )
    def test_a_stream_that_is_over_or_unseen_cannot_stall(self, end: list[Observation]) -> None:
        scene = self.reading()
        scene.see(*end)
        assert seen(scene, 1100.0) == {}


class TestCutShort:
    def cut(self, number: int) -> list[Observation]:
        at, request = 1000.0 + number, f"cut{number}"
        return [*answered(at, 0.1, request=request), stream_read(at + 0.11, request=request, truncated=True)]

    def test_a_stream_that_ends_before_its_answer_is_a_failure(self) -> None:
        scene = used_to()
        scene.see(*answered(999.0, 0.1, request="good"), stream_read(999.11, request="good"))
        scene.see(*self.cut(0))
        assert seen(scene, 1000.5) == {FailureSignal.TRUNCATED: 1}
        assert scene.view().failures_in_row == 1

    def test_whether_a_stream_was_whole_is_awaited_where_its_end_is_known_first(self) -> None:
        """Taken for whole meanwhile, each would take back that the one before was not."""
        scene = used_to()
        scene.see(*answered(999.0, 0.1, request="good"), stream_read(999.11, request="good"))
        for number in range(3):
            at, request = 1000.0 + number, f"r{number}"
            scene.see(started(at, request=request), token(at + 0.1, request=request))
            scene.see(stream_read(at + 0.1, request=request, gaps_s=(), finished=False))
            scene.see(ended(at + 0.5, at, request=request))
            scene.step()
            assert scene.view().failures_in_row == number
            scene.see(stream_read(at + 0.5, request=request, truncated=True), now=at + 0.6)
        assert seen(scene, 1003.0)[FailureSignal.FAILURES] == 1
        scene.run(1033.0, 0.5)
        assert scene.at().state == State.HALF_OPEN
        scene.see(started(1033.0, request="try"), token(1033.1, request="try"))
        scene.see(stream_read(1033.1, request="try", gaps_s=(), finished=False), ended(1033.5, 1033.0, request="try"))
        scene.step()
        assert scene.at().state == State.HALF_OPEN
        scene.see(stream_read(1033.5, request="try"), now=1033.6)
        scene.step()
        assert scene.at().state == State.SLOW_START

    def test_where_it_stays_unknown_an_end_is_a_success(self) -> None:
        scene = used_to()
        scene.see(failed(999.5, request="f"))
        scene.see(started(1000.0), token(1000.1), stream_read(1000.1, gaps_s=(), finished=False), ended(1000.5, 1000.0))
        scene.step(1001.0)
        assert scene.view().failures_in_row == 1
        scene.step(1001.6)
        assert scene.view().failures_in_row == 0

    def test_an_engine_that_marks_no_ends_is_not_judged_by_them(self) -> None:
        scene = used_to()
        for number in range(5):
            scene.see(*self.cut(number))
        assert seen(scene, 1010.0) == {}
        assert scene.view().failures_in_row == 0


class TestErrorShare:
    def mixed(self, address: str, every: int, count: int = 40, at: float = 1000.0) -> Iterable[Observation]:
        """Attempts of which every so many-th fails."""
        for number in range(count):
            when, request = at + number * 0.1, f"{number}{address}"
            if number % every == every - 1:
                yield failed(when, address, request)
            else:
                yield from answered(when, 0.05, address, request)

    def test_an_endpoint_that_fails_more_often_than_the_others_is_out(self) -> None:
        scene = Scene([A, B])
        scene.see(*self.mixed(A, every=8), *self.mixed(B, every=1000))
        assert seen(scene, 1004.5) == {FailureSignal.ERROR_SHARE: 1}
        assert (scene.at().state, scene.at(B).state) == (State.OPEN, State.UP)
        assert scene.at().reason.startswith("open: 13% of its latest 37 attempts failed, ")
        scene.run(1035.0, 0.5)
        assert scene.at().state == State.HALF_OPEN
        scene.see(*answered(1035.0, 0.05, request="try"))
        scene.run(1036.0, 0.5)
        assert scene.at().state == State.SLOW_START, "what was before is not held against it again"

    def test_callers_whose_requests_fail_everywhere_put_nobody_out(self) -> None:
        scene = Scene([A, B, C])
        for address in (A, B, C):
            scene.see(*self.mixed(address, every=6))
        assert seen(scene, 1005.0) == {}

    def test_a_small_sample_says_nothing(self) -> None:
        scene = Scene([A, B])
        scene.see(*self.mixed(A, every=6, count=18), *self.mixed(B, every=1000))
        assert seen(scene, 1005.0) == {}

    def test_a_share_of_one_leaves_it_to_failures_in_a_row(self) -> None:
        scene = Scene([A, B], weighting={"breaker_error_share": 1, "breaker_failures": 1000})
        scene.see(*self.mixed(A, every=1), *self.mixed(B, every=1000))
        assert seen(scene, 1005.0) == {}


class TestSlow:
    """Only a strategy that predicts first tokens can tell that they come too late."""

    def answers(self, scene: Scene, until: float, ttft_s: float, address: str = A) -> Counter[FailureSignal]:
        failure_signals: Counter[FailureSignal] = Counter()
        while scene.now < until:
            scene.see(*answered(scene.now, ttft_s, address, f"{scene.now}{address}"))
            failure_signals += seen(scene, scene.now + 0.1)
        return failure_signals

    @pytest.mark.parametrize(
        ("strategy", "times", "failure_signals"),
        [
            ("predicted_ttft", 20, {FailureSignal.SLOW: 1}),
            ("predicted_ttft", 2, {}),
            ("health", 20, {}),
        ],
    )
    def test_an_endpoint_that_became_far_slower_than_predicted_is_counted_and_not_put_out(
        self, strategy: str, times: float, failure_signals: dict[FailureSignal, int]
    ) -> None:
        scene = Scene([A, B], scoring={"strategy": strategy})
        assert self.answers(scene, 1010.0, 0.1) == {}
        assert self.answers(scene, 1040.0, 0.1 * times) == failure_signals
        assert scene.at().state in (State.UP, State.SLOW_START)
        assert ("times slower than it was" in scene.at().reason) == bool(failure_signals)

    def test_one_that_was_never_fast_is_not_slow(self) -> None:
        scene = Scene([A, B], scoring={"strategy": "predicted_ttft"})
        assert self.answers(scene, 1040.0, 20.0) == {}


def test_failures_in_a_row_and_an_engine_that_leaves_are_counted() -> None:
    scene = Scene([A, B])
    scene.see(*(failed(1000.0 + i / 10, request=f"f{i}") for i in range(3)))
    scene.see(rejected(1000.5, B, verdict=Verdict.DRAINING, status=500))
    assert seen(scene, 1001.0) == {FailureSignal.FAILURES: 1, FailureSignal.LEAVING: 1}


def test_an_engine_that_shuts_down_takes_no_more_work() -> None:
    """vLLM's 500 while it shuts down is read as such (docs/reference/rejections.md)."""
    scene = Scene([A, B])
    scene.see(rejected(1000.0, verdict=Verdict.DRAINING, status=500))
    scene.step()
    assert (scene.at().state, scene.at().takes_work) == (State.DRAINING, False)
