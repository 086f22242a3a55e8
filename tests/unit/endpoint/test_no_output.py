"""What follows from answers without output: for the endpoint's health, its load, and what is learned of it."""

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
    rejected,
    started,
    stream_read,
    token,
    worker_missed,
)
from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.health.state import State
from trimtab.observation.kinds import Outcome, Output, Verdict


def without_output(at: float, address: str = C, request: str = "x", **end: object) -> list:
    """An attempt that got a 404 after 5 ms, unless `end` says otherwise."""
    end = {"status": 404, "streamed": False, "first_byte_s": 0.005, **end}
    return [started(at, address, request), ended(at + 0.005, at, address, request, **end)]


def working() -> Scene:
    """Three endpoints with a request each a second, of which C gives no output."""
    scene = Scene([A, B, C])
    for number in range(10):
        at = 1000.0 + number
        scene.see(*answered(at, 0.3, A, f"a{number}"), *answered(at, 0.3, B, f"b{number}"))
        scene.see(*without_output(at, C, f"c{number}"))
        scene.step(at + 0.5)
    return scene


def test_an_endpoint_without_output_is_out_within_ten_requests_and_says_why() -> None:
    scene = working()
    assert scene.at(C).state == State.OPEN
    assert "requests got 404 here, 0 of " in scene.at(C).reason
    assert scene.at(C).reason.count("is the model loaded?") == 1
    assert (scene.at(A).state, scene.at(B).state) == (State.UP, State.UP)


def test_it_is_counted_as_a_sign() -> None:
    scene = Scene([A, B, C])
    failure_signals = []
    for number in range(10):
        at = 1000.0 + number
        scene.see(*answered(at, 0.3, A, f"a{number}"), *answered(at, 0.3, B, f"b{number}"))
        scene.see(*without_output(at, C, f"c{number}"))
        failure_signals += [failure_signal for _, failure_signal in scene.step(at + 0.5).failure_signals]
    assert failure_signals == [FailureSignal.NO_OUTPUT]


def test_it_comes_back_by_output() -> None:
    scene = working()
    scene.run(1060.0)
    assert scene.at(C).state == State.HALF_OPEN
    scene.see(*answered(1060.0, 0.3, C, "back"))
    scene.step(1060.5)
    assert scene.at(C).state in (State.SLOW_START, State.UP)


def test_half_open_it_is_out_for_longer_if_it_gives_none_again_while_others_do() -> None:
    scene = working()
    scene.run(1060.0)
    scene.see(*answered(1060.0, 0.3, A, "well"), *answered(1060.0, 0.3, B, "well too"))
    scene.see(*without_output(1060.5, C, "again"))
    scene.step(1061.0)
    assert scene.at(C).state == State.OPEN
    assert scene.at(C).until == pytest.approx(1060.505 + 60.0)
    assert "404, and other endpoints give output to such requests" in scene.at(C).reason


def test_half_open_a_bad_request_decides_nothing() -> None:
    scene = working()
    scene.run(1080.0)
    scene.see(*without_output(1080.0, A, "bad", status=400), *without_output(1080.0, B, "bad too", status=400))
    scene.see(*without_output(1080.5, C, "bad again", status=400))
    scene.step(1081.0)
    assert scene.at(C).state == State.HALF_OPEN


def test_half_open_a_caller_who_gets_no_output_anywhere_decides_nothing_although_others_are_served() -> None:
    scene = working()
    scene.run(1060.0)
    scene.see(*answered(1060.0, 0.3, A, "well"), *answered(1060.0, 0.3, B, "well too"))
    for at, address, request in ((1060.4, A, "b1"), (1060.45, B, "b2"), (1060.5, C, "b3")):
        scene.see(started(at, address, request, caller="198.51.100.7"))
        scene.see(ended(at + 0.01, at, address, request, status=404, streamed=False))
    scene.step(1061.0)
    assert scene.at(C).state == State.HALF_OPEN


def test_a_first_token_counts_as_output_before_its_stream_has_ended() -> None:
    """A newcomer streams long answers: all of its answers that have ended are bad requests."""
    scene = Scene([A, B, C])
    for number in range(40):
        at = 1000.0 + number
        for address in (A, B, C):
            scene.see(started(at, address, f"s{address}{number}"), token(at + 0.3, address, f"s{address}{number}"))
        scene.see(*without_output(at + 0.5, C, f"x{number}", status=404) if number % 5 == 0 else [])
        scene.step(at + 0.9)
        assert scene.at(C).state == State.UP


def test_a_pool_of_one_is_left_alone() -> None:
    scene = Scene([A])
    for number in range(50):
        scene.see(*without_output(1000.0 + number, A, f"r{number}"))
        scene.step(1000.5 + number)
    assert (scene.at(A).state, scene.at(A).view.error_share) == (State.UP, 0.0)


def test_where_nobody_gives_output_nobody_is_out() -> None:
    scene = Scene([A, B])
    for number in range(50):
        for address in (A, B):
            scene.see(*without_output(1000.0 + number, address, f"{address}{number}", status=400))
        scene.step(1000.5 + number)
        assert {scene.at(A).state, scene.at(B).state} == {State.UP}
    assert scene.at(A).view.load_attempts == 0, "and it counts as no load"


class TestLoad:
    def usual(self) -> Scene:
        """Answers take a second."""
        scene = Scene([A, B])
        for number in range(4):
            at = 1000.0 + number
            scene.see(started(at, A, f"r{number}"), token(at + 0.3, A, f"r{number}"))
            scene.see(ended(at + 1.0, at, A, f"r{number}"))
        return scene

    @pytest.mark.parametrize(
        "end",
        [
            {},
            {"status": 307},
            {"status": 204},
            {"status": 200, "content_type": "text/html"},
            {"status": 200, "content_type": "application/octet-stream"},
            {"status": 500},
            {"status": 0, "outcome": Outcome.UNREACHABLE},
            {"status": 0, "outcome": Outcome.RESET},
            {"status": 0, "outcome": Outcome.ABORTED},
        ],
        ids=str,
    )
    def test_what_ends_early_without_output_counts_for_as_long_as_an_answer_takes(self, end: dict) -> None:
        scene = self.usual()
        scene.see(*without_output(1010.0, B, **end))
        scene.step(1010.1)
        view = scene.at(B).view
        assert (view.in_flight, view.load_attempts, view.load_prompt_bytes) == (0, 1, 100)
        scene.step(1010.9)
        assert scene.at(B).view.load_attempts == 1
        scene.step(1011.1)
        assert (scene.at(B).view.load_attempts, scene.at(B).view.load_prompt_bytes) == (0, 0)

    def test_output_lets_go_of_it_at_once(self) -> None:
        scene = self.usual()
        scene.see(*answered(1010.0, 0.01, B, "quick"))
        scene.step(1010.1)
        assert scene.at(B).view.load_attempts == 0

    @pytest.mark.parametrize("streamed", [True, False])
    def test_output_that_is_seen_after_the_end_lets_go_of_it(self, streamed: bool) -> None:
        scene = self.usual()
        scene.see(started(1010.0, B, streamed=streamed), ended(1010.02, 1010.0, B, streamed=streamed))
        scene.step(1010.03)
        assert scene.at(B).view.load_attempts == 1
        scene.see(token(1010.01, B) if streamed else answer_read(1010.02, B), now=1010.05)
        scene.step(1010.06)
        assert scene.at(B).view.load_attempts == 0

    def test_a_refusal_and_a_quota_are_no_load(self) -> None:
        scene = self.usual()
        scene.see(started(1010.0, B), rejected(1010.01, B), ended(1010.02, 1010.0, B, status=429, streamed=False))
        quota = rejected(1010.01, B, "q", Verdict.QUOTA)
        scene.see(started(1010.0, B, "q"), quota, ended(1010.02, 1010.0, B, "q", status=429, streamed=False))
        scene.step(1010.1)
        assert scene.at(B).view.load_attempts == 0

    def test_a_get_is_no_load(self) -> None:
        scene = self.usual()
        scene.see(started(1010.0, B, streamed=False, prompt=None), ended(1010.01, 1010.0, B, streamed=False))
        scene.step(1010.1)
        assert scene.at(B).view.load_attempts == 0


class TestUnread:
    """Not every answer is read: observation is sampled, or away."""

    def open_one(self) -> Scene:
        scene = Scene([A, B])
        for number in range(3):
            scene.see(failed(1000.0 + number * 0.1, A, f"f{number}"))
        scene.run(1031.0)
        assert scene.at(A).state == State.HALF_OPEN
        return scene

    def unary(self, at: float, address: str, request: str, output: Output | None) -> list:
        read = [] if output is None else [answer_read(at + 0.5, address, request, output)]
        end = ended(at + 0.5, at, address, request, streamed=False)
        return [started(at, address, request, streamed=False), *read, end]

    @pytest.mark.parametrize(
        ("output", "state"),
        [(Output.OUTPUT, State.SLOW_START), (Output.UNKNOWN, State.HALF_OPEN), (None, State.HALF_OPEN)],
    )
    def test_only_output_closes_a_breaker(self, output: Output | None, state: State) -> None:
        scene = self.open_one()
        scene.see(*self.unary(1030.0, B, "other", Output.OUTPUT))
        scene.see(*self.unary(1031.0, A, "try", output))
        scene.step(1033.0)
        assert scene.at(A).state == state

    @pytest.mark.parametrize("content_type", ["audio/mpeg", "application/x-ndjson", "text/plain"])
    def test_a_whole_answer_of_a_format_that_is_not_known_does_where_no_other_endpoint_gives_a_known_one(
        self, content_type: str
    ) -> None:
        scene = self.open_one()
        speech = ended(1031.5, 1031.0, A, "try", streamed=False, content_type=content_type)
        scene.see(started(1031.0, A, "try", streamed=False), speech)
        scene.run(1033.0)
        assert scene.at(A).state in (State.SLOW_START, State.UP)

    def test_where_most_answers_go_unread_a_whole_one_is_taken_for_output(self) -> None:
        scene = self.open_one()
        for number in range(20):
            scene.see(*self.unary(1020.0 + number / 2, B, f"b{number}", None))
        scene.run(1033.0)
        scene.see(*self.unary(1033.0, A, "try", None))
        scene.run(1035.0)
        assert scene.at(A).state in (State.SLOW_START, State.UP)

    def test_so_it_is_where_the_observers_were_away(self) -> None:
        scene = self.open_one()
        scene.see(*self.unary(1031.0, A, "try", None), worker_missed(1031.2))
        scene.step(1033.0)
        assert scene.at(A).state == State.SLOW_START

    def test_an_unread_answer_ends_a_row_of_failures(self) -> None:
        scene = Scene([A, B])
        for number in range(10):
            scene.see(
                failed(1000.0 + number * 5, A, f"f{number}"), *self.unary(1001.0 + number * 5, A, f"u{number}", None)
            )
            scene.run(1004.0 + number * 5)
        assert scene.at(A).view.failures_in_row == 0


class TestUnary:
    def learned(self, took_s: float, tokens: int | None, count: int = 20, **end: object) -> Scene:
        scene = Scene([A, B], scoring={"strategy": "predicted_ttft"})
        for number in range(count):
            at = 1000.0 + number * 3
            scene.see(started(at, A, f"r{number}", streamed=False, prompt=4000))
            scene.see(answer_read(at + took_s, A, f"r{number}", output_tokens=tokens))
            scene.see(ended(at + took_s, at, A, f"r{number}", streamed=False, **end))
            scene.step(at + 2.9)
        return scene

    def test_whole_answers_teach_a_ttft_and_costs(self) -> None:
        scene = self.learned(2.0, 100)
        view = scene.at(A).view
        assert 0.02 * 2.0 <= view.ttft_s < 2.0
        assert scene.at(A).prediction_error is not None
        assert view.ttft_samples == 20

    def test_what_a_further_token_takes_is_taken_off_where_it_is_known(self) -> None:
        scene = Scene([A, B])
        for number in range(10):
            at = 1000.0 + number * 10
            scene.see(*answered(at, 0.5, A, f"s{number}"), stream_read(at + 0.505, A, f"s{number}", gaps_s=[0.01] * 9))
            scene.see(started(at + 1, A, f"r{number}", streamed=False))
            scene.see(answer_read(at + 2.49, A, f"r{number}", output_tokens=100))
            scene.see(ended(at + 2.49, at + 1, A, f"r{number}", streamed=False))
        assert scene.view(A).ttft_s == pytest.approx(0.5, abs=0.02)

    def test_without_a_count_the_length_is_that_of_the_body(self) -> None:
        scene = self.learned(2.0, None, body_bytes=300 + 400)
        assert scene.at(A).view.ttft_s == pytest.approx(self.learned(2.0, 100).at(A).view.ttft_s, rel=0.01)

    def test_no_answer_without_output_teaches(self) -> None:
        scene = Scene([A, B], scoring={"strategy": "predicted_ttft"})
        for number in range(20):
            scene.see(*without_output(1000.0 + number, A, f"r{number}"))
            scene.step(1000.5 + number)
        assert (scene.at(A).view.ttft_samples, scene.at(A).prediction_error) == (0, None)
