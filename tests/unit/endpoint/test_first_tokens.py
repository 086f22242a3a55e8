"""TTFT: from an attempt's start to its own first token, of answers that succeeded; silence is seen before it ends."""

import pytest

from tests.unit.scene import A, B, Scene, answered, ended, failed, rejected, started, token, worker_missed
from trimtab.endpoint.snapshot import TokenSample
from trimtab.observation.kinds import Outcome, Verdict
from trimtab.scoring.health import Health


def test_the_mean_moves_a_fifth_of_the_way_to_each_sample() -> None:
    scene = Scene()
    scene.see(*answered(1000.0, 1.0, request="one"))
    assert scene.view().ttft_s == pytest.approx(1.0)
    scene.see(*answered(1002.0, 2.0, request="two"))
    assert scene.view().ttft_s == pytest.approx(1.2)
    assert scene.view().ttft_samples == 2


def test_a_token_that_is_seen_before_the_start_waits_for_it() -> None:
    scene = Scene()
    scene.see(token(1000.2), now=1000.2)
    assert scene.view().ttft_s is None
    scene.see(started(1000.0), now=1000.25)
    assert (scene.view().ttft_s, scene.view().awaiting_token) == (pytest.approx(0.2), 0)


def test_a_token_waits_for_a_start_only_so_long() -> None:
    scene = Scene()
    scene.see(token(1000.2))
    scene.run(1003.0)
    scene.see(started(1000.0), now=1003.0)
    assert scene.view().ttft_samples == 0


def test_a_token_belongs_to_the_newest_attempt_that_had_started() -> None:
    scene = Scene([A])
    scene.see(started(1000.0), started(1005.0), token(1005.3))
    assert scene.view().oldest_wait_s == pytest.approx(5.3), "the first attempt still waits"
    scene.see(ended(1006.0, 1000.0, outcome=Outcome.RESET))
    assert scene.view().ttft_s == pytest.approx(0.3)


def test_a_held_token_finds_the_newest_of_several_starts_that_come_together() -> None:
    scene = Scene([A])
    scene.see(token(1005.3), now=1005.3)
    retried = ended(1004.9, 1000.0, status=429, streamed=False, first_byte_s=None)
    scene.see(started(1000.0), retried, started(1005.0), now=1005.35)
    assert scene.view().ttft_s == pytest.approx(0.3)


def test_a_token_of_a_second_attempt_is_not_given_to_the_first_that_was_refused() -> None:
    scene = Scene([A])
    scene.see(started(1000.0), rejected(1000.01), ended(1000.02, 1000.0, status=429))
    scene.see(token(1000.6), now=1000.6)
    assert scene.view().ttft_samples == 0
    scene.see(started(1000.1), now=1000.61)
    assert scene.view().ttft_s == pytest.approx(0.5)


def test_a_token_may_come_after_the_end() -> None:
    scene = Scene()
    scene.see(started(1000.0), ended(1000.5, 1000.0, first_byte_s=0.1), now=1000.5)
    scene.see(token(1000.3), now=1000.7)
    scene.run(1003.0)
    assert (scene.view().ttft_s, scene.view().ttft_samples) == (pytest.approx(0.3), 1)


def test_a_token_that_is_told_twice_is_one_sample() -> None:
    scene = Scene()
    scene.see(started(1000.0), token(1000.3), token(1000.3))
    scene.see(token(1000.3), now=1000.5)
    assert scene.view().ttft_samples == 1


def test_the_first_byte_stands_in_for_a_token_that_was_not_watched() -> None:
    scene = Scene()
    scene.see(started(1000.0), ended(1001.0, 1000.0, first_byte_s=0.25))
    assert scene.view().ttft_s is None, "the token may still come"
    scene.run(1002.5)
    assert (scene.view().ttft_s, scene.view().ttft_samples) == (pytest.approx(0.25), 1)


@pytest.mark.parametrize(
    "attempt",
    [
        [ended(1000.005, 1000.0, status=429, first_byte_s=0.004)],
        [ended(1000.005, 1000.0, status=503, first_byte_s=0.004)],
        [rejected(1000.004), ended(1000.005, 1000.0, status=429, first_byte_s=0.004)],
        [rejected(1000.004, status=200, in_stream=True), token(1000.005), ended(1000.01, 1000.0)],
        [ended(1000.3, 1000.0, streamed=False, first_byte_s=0.3)],
        [ended(1000.3, 1000.0, outcome=Outcome.RESET, first_byte_s=0.1)],
        [ended(1000.3, 1000.0, first_byte_s=None, body_bytes=0)],
    ],
    ids=["429", "503", "429-read", "error-event-first", "unary", "reset", "empty-stream"],
)
def test_what_failed_or_came_in_one_piece_gives_no_sample(attempt: list) -> None:
    scene = Scene()
    scene.see(started(1000.0), *attempt)
    scene.run(1004.0)
    assert (scene.view().ttft_s, scene.view().ttft_samples) == (None, 0)


def test_an_error_event_late_in_a_stream_leaves_its_ttft() -> None:
    scene = Scene()
    scene.see(started(1000.0), token(1000.2), rejected(1000.9, status=200, in_stream=True))
    assert scene.view().ttft_s == pytest.approx(0.2)


def test_a_stream_without_a_token_counts_as_its_age() -> None:
    scene = Scene()
    scene.see(*answered(1000.0, 0.1, request="before"))
    scene.see(started(1001.0))
    scene.now = 1004.0
    assert scene.view().ttft_s == pytest.approx(3.0)
    assert scene.view().oldest_wait_s == pytest.approx(3.0)
    scene.see(token(1005.0))
    assert scene.view().ttft_s == pytest.approx(0.1 + 0.2 * 3.9), "now it is a sample like any other"


@pytest.mark.parametrize("streamed", [False, None])
def test_what_is_not_known_to_be_a_stream_is_not_waited_for(streamed: bool | None) -> None:
    scene = Scene()
    scene.see(started(1000.0, streamed=streamed))
    scene.now = 1030.0
    assert (scene.view().ttft_s, scene.view().awaiting_token) == (None, 0)


def test_a_client_that_gives_up_does_not_take_the_silence_away() -> None:
    scene = Scene()
    scene.see(*answered(1000.0, 0.1, request="before"))
    scene.see(started(1001.0), ended(1021.0, 1001.0, status=0, outcome=Outcome.ABORTED, first_byte_s=None))
    assert scene.view().ttft_s == pytest.approx(20.0)
    scene.now = 1031.0
    assert scene.view().ttft_s == pytest.approx(10.0), "it is half as loud after ten seconds"
    scene.see(*answered(1032.0, 0.1, request="after"))
    assert scene.view().ttft_s == pytest.approx(0.1), "and over when the endpoint speaks"


def test_a_client_that_leaves_in_the_middle_of_an_answer_shows_nothing() -> None:
    scene = Scene()
    scene.see(started(1000.0), token(1000.2), ended(1030.0, 1000.0, outcome=Outcome.ABORTED))
    scene.run(1032.0)
    view = scene.view()
    assert (view.ttft_s, view.error_share, view.error_samples) == (pytest.approx(0.2), 0.0, 0.0)


def test_samples_of_an_earlier_incarnation_are_dropped() -> None:
    scene = Scene()
    scene.see(*answered(1000.0, 1.5), started(1002.0, request="old"), token(1002.9, request="new"))
    scene.set_endpoints(B)
    scene.now = 1003.0
    scene.set_endpoints(A, B)
    scene.see(token(1004.0, request="old"), ended(1004.5, 1002.0, request="old", first_byte_s=0.5))
    scene.run(1007.0)
    assert (scene.view().ttft_s, scene.view().ttft_samples, scene.view().in_flight) == (None, 0, 0)


def test_a_mean_without_a_sample_for_ten_minutes_is_unknown() -> None:
    scene = Scene()
    scene.see(*answered(1000.0, 1.9))
    scene.now = 1590.0
    assert scene.view().ttft_s == pytest.approx(1.9)
    scene.now = 1602.0
    assert scene.view().ttft_s is None
    scene.see(*answered(1700.0, 0.1, request="later"))
    assert scene.view().ttft_s == pytest.approx(0.1), "nothing of the old mean is in the new one"


class TestSampledWatching:
    """Under a flood only a share of the streams is watched, and none while the service is away."""

    def flood(self, scene: Scene, seconds: float, *, watched_every: int, rate: float = 50.0) -> None:
        """Streams that speak after 100 ms and end after a second."""
        first = scene.now
        for i in range(int(seconds * rate)):
            at = first + i / rate
            stream = [started(at, request=f"f{at}"), ended(at + 1, at, request=f"f{at}", first_byte_s=0.1)]
            if watched_every and i % watched_every == 0:
                stream.append(token(at + 0.1, request=f"f{at}"))
            self.log.extend(stream)
        self.log.sort(key=lambda o: o.at)
        self.play(scene, first + seconds)

    def play(self, scene: Scene, until: float) -> None:
        while scene.now < until:
            now = scene.now + 0.25
            due = [o for o in self.log if o.at <= now]
            self.log = [o for o in self.log if o.at > now]
            scene.see(*due, now=now)
            scene.step(now)
            self.worst = max(self.worst, scene.at().view.ttft_s or 0.0)

    def setup_method(self) -> None:
        self.log: list = []
        self.worst = 0.0

    def test_with_all_watched_one_waiting_stream_is_enough(self) -> None:
        scene = Scene([A])
        self.flood(scene, 5.0, watched_every=1)
        assert self.worst == pytest.approx(0.1, abs=0.01)
        scene.see(started(scene.now, request="mute"))
        scene.now += 4.0
        assert scene.view().ttft_s == pytest.approx(4.0, abs=0.15)

    def test_with_a_fifth_watched_no_stream_looks_silent(self) -> None:
        scene = Scene([A])
        self.flood(scene, 20.0, watched_every=5)
        self.worst = 0.0
        self.flood(scene, 10.0, watched_every=5)
        assert self.worst < 0.7

    def test_with_a_fifth_watched_a_silent_endpoint_is_seen(self) -> None:
        scene = Scene([A])
        self.flood(scene, 30.0, watched_every=5)
        for i in range(100):
            scene.see(started(scene.now + 0.01, request=f"mute{i}"))
        self.play(scene, scene.now + 6.0)
        assert scene.view().ttft_s > 5.0

    def test_with_none_watched_no_stream_looks_silent(self) -> None:
        scene = Scene([A])
        self.flood(scene, 30.0, watched_every=0)
        self.worst = 0.0
        self.flood(scene, 10.0, watched_every=0)
        assert self.worst == pytest.approx(0.1, abs=0.01)

    def test_the_work_of_unwatched_streams_does_not_look_outstanding(self) -> None:
        scene = Scene([A])
        self.flood(scene, 30.0, watched_every=5)
        assert scene.view().in_flight == pytest.approx(50, abs=2)
        assert scene.view().outstanding_prompt_bytes < 2500


class TestWhileAnObserverIsAway:
    """Tokens go unseen, and those that waited for the ext_proc worker carry the time at which it read them."""

    def test_a_stream_of_that_time_is_no_witness_of_silence(self) -> None:
        scene = Scene([A])
        scene.see(*answered(1000.0, 0.1, request="before"), started(1001.0, prompt=300))
        scene.see(worker_missed(1002.0))
        scene.now = 1060.0
        view = scene.view()
        assert (view.ttft_s, view.oldest_wait_s, view.awaiting_token) == (pytest.approx(0.1), 0.0, 0)
        assert (view.in_flight, view.outstanding_prompt_bytes) == (1, 300)

    def test_its_work_is_done_when_a_later_stream_speaks_or_it_ends(self) -> None:
        scene = Scene([A])
        scene.see(started(1000.0, request="one", prompt=300), started(1000.5, request="two", prompt=50))
        scene.see(worker_missed(1002.0))
        scene.see(ended(1004.0, 1000.5, request="two"))
        assert scene.view().outstanding_prompt_bytes == 300
        scene.see(*answered(1005.0, 0.1, request="after"))
        assert (scene.view().outstanding_prompt_bytes, scene.view().in_flight) == (0, 1)

    def test_a_start_that_is_told_late_is_of_that_time_too(self) -> None:
        scene = Scene([A])
        scene.see(worker_missed(1002.0))
        scene.see(started(1001.0), now=1003.0)
        scene.now = 1030.0
        assert (scene.view().in_flight, scene.view().oldest_wait_s) == (1, 0.0)

    def test_a_token_that_is_read_late_is_no_sample(self) -> None:
        scene = Scene([A])
        scene.see(*answered(1000.0, 0.1, request="before"), started(1001.0), worker_missed(1005.0), token(1005.0))
        scene.see(ended(1005.1, 1001.0, first_byte_s=0.1))
        scene.run(1008.0)
        assert (scene.view().ttft_s, scene.view().ttft_samples) == (pytest.approx(0.1), 1)

    def test_a_client_that_leaves_a_stream_which_had_begun_shows_no_silence(self) -> None:
        scene = Scene([A])
        scene.see(*answered(1000.0, 0.1, request="before"), started(1001.0), worker_missed(1005.0))
        scene.see(ended(1030.0, 1001.0, outcome=Outcome.ABORTED, first_byte_s=0.2))
        scene.run(1032.0)
        assert scene.view().ttft_s == pytest.approx(0.1)

    def test_what_comes_when_it_is_back_counts_again(self) -> None:
        scene = Scene([A])
        scene.see(*answered(1000.0, 0.1, request="before"), worker_missed(1002.0))
        scene.see(*answered(1004.0, 0.2, request="after"), started(1005.0))
        scene.now = 1010.0
        view = scene.view()
        assert (view.ttft_samples, view.oldest_wait_s) == (2, pytest.approx(5.0))

    def test_that_streams_of_that_time_went_unseen_does_not_make_others_doubtful(self) -> None:
        scene = Scene([A])
        scene.see(*(started(1000.0, request=f"r{i}") for i in range(20)), worker_missed(1002.0))
        scene.see(*(ended(1003.0, 1000.0, request=f"r{i}") for i in range(20)))
        scene.run(1006.0)
        scene.see(started(1006.0))
        scene.now = 1009.0
        assert scene.view().oldest_wait_s == pytest.approx(3.0)


def test_answers_in_one_piece_stop_being_outstanding_when_a_later_stream_speaks() -> None:
    scene = Scene()
    scene.see(started(1000.0, request="unary", streamed=False, prompt=5000))
    scene.see(started(1000.1, request="stream", prompt=100))
    assert scene.view().outstanding_prompt_bytes == 5100
    scene.see(token(1000.4, request="stream"))
    assert (scene.view().outstanding_prompt_bytes, scene.view().in_flight) == (0, 2)


class TestWhatTheLawLearns:
    def learned(self, *observations: object) -> list[TokenSample]:
        samples: list[TokenSample] = []
        original = Health.learn
        Health.learn = lambda self, sample: samples.append(sample)  # type: ignore[method-assign]
        try:
            scene = Scene()
            scene.see(*observations)  # type: ignore[arg-type]
            scene.run(1005.0)
        finally:
            Health.learn = original  # type: ignore[method-assign]
        return samples

    def test_a_token_is_told_with_the_load_that_its_attempt_met(self) -> None:
        (sample,) = self.learned(
            started(1000.0, request="one", prompt=1000),
            started(1000.1, request="two", prompt=300),
            started(1000.2, request="three", prompt=50),
            token(1000.5, request="two"),
        )
        assert (sample.ttft_s, sample.at) == (pytest.approx(0.4), 1000.5)
        assert (sample.prompt_bytes, sample.outstanding_prompt_bytes, sample.in_flight) == (300, 1300, 2)

    def test_a_first_byte_that_stands_in_teaches_too(self) -> None:
        (sample,) = self.learned(started(1000.0, prompt=10), ended(1001.0, 1000.0, first_byte_s=0.25))
        assert (sample.ttft_s, sample.prompt_bytes) == (pytest.approx(0.25), 10)

    def test_an_attempt_of_unknown_load_or_length_teaches_nothing(self) -> None:
        assert self.learned(token(1000.2), ended(1001.0, 1000.0)) == []
        assert self.learned(started(1000.0, prompt=None), token(1000.2)) == []

    def test_failures_teach_nothing(self) -> None:
        refused = rejected(1000.1, verdict=Verdict.UNAVAILABLE, status=500)
        assert self.learned(started(1000.0), refused, failed(1000.1, took_s=0.1)) == []
