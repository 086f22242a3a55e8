"""How fast an endpoint works, as a strategy is shown it."""

import tracemalloc
from collections.abc import Mapping
from random import Random

import pytest

from tests.unit.scene import A, B, Scene, answered, ended, failed, read, rejected, started, stream_read, token
from trimtab.endpoint.latency import LatencyEstimators
from trimtab.endpoint.snapshot import EndpointView
from trimtab.observation.kinds import Verdict

UNKNOWN = (
    "ttft_recent_s",
    "ttft_p99_s",
    "inter_token_s",
    "inter_token_p99_s",
    "tokens_per_s",
    "tokens_per_s_best",
    "preemptions_per_s",
    "prompt_bytes_mean",
    "prompt_bytes_std",
)


def known(view: EndpointView) -> Mapping[str, float]:
    return {name: value for name in UNKNOWN if (value := getattr(view, name)) is not None}


def test_nothing_is_known_of_a_new_endpoint() -> None:
    view = Scene().view()
    assert (known(view), view.failures_in_row) == ({}, 0)


class TestFirstTokens:
    def test_the_recent_mean_is_of_the_last_fifty(self) -> None:
        scene = Scene()
        for number in range(60):
            scene.see(*answered(1000.0 + number, 5.0 if number < 10 else 0.1, request=f"r{number}"))
        assert scene.view().ttft_recent_s == pytest.approx(0.1)
        scene.see(*answered(1060.0, 0.6, request="slow"))
        assert scene.view().ttft_recent_s == pytest.approx(0.11)

    def test_one_outlier_of_many_is_a_burst_but_not_to_p99(self) -> None:
        scene, random = Scene(), Random(1)
        for number in range(60):
            ttft_s = 9.0 if number == 50 else random.uniform(0.09, 0.11)
            at = 1010.0 + number * 0.02
            scene.see(started(at - ttft_s, request=f"r{number}"), token(at, request=f"r{number}"))
        view = scene.view()
        assert view.ttft_recent_s == pytest.approx(0.1, rel=0.05)
        assert (view.ttft_p99_s or 0.0) > 1.0

    def test_p99_is_of_the_last_minute(self) -> None:
        scene = Scene()
        for number in range(200):
            scene.see(*answered(1000.0 + number, 3.0 if number < 100 else 0.1, request=f"r{number}"))
        assert scene.view().ttft_p99_s == pytest.approx(0.1)
        scene.now += 61.0
        view = scene.view()
        assert view.ttft_p99_s is None
        assert view.ttft_recent_s == pytest.approx(0.1), "the last fifty hold for longer"
        scene.now += 601.0
        assert scene.view().ttft_recent_s is None

    def test_a_refusal_is_no_fast_first_token(self) -> None:
        scene = Scene()
        scene.see(*answered(1000.0, 0.5))
        scene.see(started(1001.0, request="q"), rejected(1001.001, request="q"))
        scene.see(ended(1001.001, 1001.0, request="q", status=429, streamed=False))
        assert scene.view().ttft_recent_s == pytest.approx(0.5)


class TestTokens:
    def test_gaps_of_a_stream_that_is_read_whole(self) -> None:
        scene = Scene()
        scene.see(started(1000.0), token(1000.5))
        scene.see(stream_read(1002.5, gaps_s=[0.02] * 99 + [0.5]))
        view = scene.view()
        assert view.inter_token_s == pytest.approx((99 * 0.02 + 0.5) / 100)
        assert 0.02 <= (view.inter_token_p99_s or 0.0) <= 0.5
        scene.see(stream_read(1004.5, gaps_s=[0.5] * 4))
        assert scene.view().inter_token_p99_s == pytest.approx(0.5)
        scene.now += 70.0
        view = scene.view()
        assert view.inter_token_p99_s is None
        assert view.inter_token_s is not None

    def test_what_is_read_before_its_start_is_known_counts_once_it_is(self) -> None:
        scene = Scene()
        part = stream_read(1000.3, gaps_s=[0.04, 0.04])
        scene.see(token(1000.1), part, part, now=1000.4)
        assert scene.view().inter_token_s is None
        scene.see(started(1000.0), now=1000.45)
        assert scene.view().inter_token_s == pytest.approx(0.04)

    def test_the_same_part_told_twice_counts_once(self) -> None:
        scene = Scene()
        early, late = stream_read(1001.0, gaps_s=[0.02] * 10), stream_read(1002.0, gaps_s=[0.08] * 10)
        scene.see(started(1000.0), token(1000.5), early, late)
        once = scene.view().inter_token_s
        scene.see(early, late)
        assert scene.view().inter_token_s == once

    def test_a_part_of_an_earlier_incarnation_says_nothing(self) -> None:
        scene = Scene()
        scene.see(read(1000.0, generated_tokens=500), started(1000.0), token(1000.5))
        scene.see(read(1001.0, generated_tokens=3))
        scene.see(stream_read(1001.5, gaps_s=[9.0]))
        scene.run(1005.0)
        assert known(scene.view()) == {}

    def test_a_late_error_is_still_a_failure_and_its_gaps_count(self) -> None:
        scene = Scene()
        scene.see(started(1000.0), token(1000.1))
        scene.see(stream_read(1000.5, gaps_s=[0.1], verdict=Verdict.UNAVAILABLE))
        view = scene.view()
        assert (view.failures_in_row, view.inter_token_s) == (1, pytest.approx(0.1))


class TestRates:
    def test_tokens_by_the_counter(self) -> None:
        scene = Scene()
        for second in range(40):
            scene.see(read(1000.0 + second, generated_tokens=400.0 * min(second, 20)))
            if second == 20:
                assert scene.view().tokens_per_s == pytest.approx(400.0)
        view = scene.view()
        assert view.tokens_per_s == pytest.approx(0.0), "known to be idle, not unknown"
        assert view.tokens_per_s_best == pytest.approx(400.0, rel=0.04)
        assert view.preemptions_per_s is None

    def test_a_moment_is_no_sustained_rate(self) -> None:
        scene = Scene()
        scene.see(read(1000.0, generated_tokens=0), read(1001.0, generated_tokens=5000))
        view = scene.view()
        assert (view.tokens_per_s, view.tokens_per_s_best) == (5000.0, None)
        scene.see(*(read(1001.0 + n, generated_tokens=5000) for n in range(1, 8)))
        assert scene.view().tokens_per_s_best == pytest.approx(625.0, rel=0.01)

    def test_a_counter_that_has_gone_silent_is_unknown(self) -> None:
        scene = Scene(signals={"stale_after_s": 5})
        for second in range(10):
            scene.see(read(1000.0 + second, generated_tokens=100.0 * second, preemptions=second // 5))
        assert scene.view().tokens_per_s == pytest.approx(100.0)
        assert scene.view().preemptions_per_s == pytest.approx(1 / 9)
        scene.now += 5.1
        view = scene.view()
        assert (view.tokens_per_s, view.preemptions_per_s) == (None, None)
        assert view.tokens_per_s_best == pytest.approx(100.0, rel=0.02), "what it can do is remembered"

    def test_the_best_fades_slowly_and_survives_a_restart_of_ours(self) -> None:
        scene = Scene([A])
        scene.see(*(read(1000.0 + n, generated_tokens=100.0 * n) for n in range(11)))
        scene.step()
        later = Scene([A], now=1300.0, memory=scene.controller.dump(1010.0))
        assert later.view().tokens_per_s_best == pytest.approx(100.0 * 0.5 ** (290 / 600), rel=0.01)
        assert later.view().tokens_per_s is None

    def test_without_a_counter_the_streams_tell(self) -> None:
        """Twelve streams that get a token every 20 ms are 600 tokens a second, although one of them is read."""
        scene = Scene()
        for number in range(12):
            scene.see(started(1000.0, request=f"r{number}"), token(1000.5, request=f"r{number}"))
        scene.see(stream_read(1001.0, request="r0", gaps_s=[0.02] * 25))
        scene.run(1020.0)
        view = scene.view()
        assert view.tokens_per_s == pytest.approx(600.0)
        assert view.tokens_per_s_best == pytest.approx(600.0, rel=0.01)
        scene.see(*(ended(1020.0, 1000.0, request=f"r{number}") for number in range(12)))
        scene.run(1060.0)
        assert scene.view().tokens_per_s == pytest.approx(0.0, abs=1.0)

    def test_streams_that_wait_make_no_tokens(self) -> None:
        scene = Scene()
        scene.see(started(1000.0), token(1000.5), stream_read(1001.0, gaps_s=[0.1] * 5))
        scene.see(*(started(1001.0, request=f"w{number}") for number in range(30)))
        scene.run(1002.0)
        assert scene.view().tokens_per_s == pytest.approx(10.0)

    def test_an_engine_with_a_counter_is_measured_by_it_alone(self) -> None:
        scene = Scene()
        scene.see(read(1000.0, generated_tokens=0), started(1000.0), token(1000.1))
        scene.see(stream_read(1000.5, gaps_s=[0.001] * 100))
        scene.run(1001.0)
        view = scene.view()
        assert (view.tokens_per_s, view.tokens_per_s_best) == (None, None)


def test_prompts() -> None:
    scene = Scene()
    for number, size in enumerate([9_000_000] * 5 + [100, 300] * 25):
        scene.see(started(1000.0 + number, request=f"r{number}", prompt=size))
    scene.see(started(1100.0, request="chunked", prompt=None))
    view = scene.view()
    assert (view.prompt_bytes_mean, view.prompt_bytes_std) == (pytest.approx(200), pytest.approx(100))
    assert known(scene.view(B)) == {}


def test_failures_in_a_row() -> None:
    scene = Scene()
    scene.see(failed(1000.0, request="f0"), failed(1000.1, request="f1"))
    assert scene.view().failures_in_row == 2
    refused = ended(1000.2, 1000.2, request="q", status=429, streamed=False)
    scene.see(rejected(1000.2, request="q"), refused)
    assert scene.view().failures_in_row == 2, "an engine that is full does not fail"
    scene.see(failed(1000.25, request="f2"), rejected(1000.26, request="f2", verdict=Verdict.DRAINING, status=500))
    assert scene.view().failures_in_row == 2, "nor does one that says why it leaves, once that is read"
    scene.see(*answered(1000.3, 0.1, request="good"))
    assert scene.view().failures_in_row == 0
    assert scene.view(B).failures_in_row == 0


def test_memory_is_constant() -> None:
    random = Random(1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        latency, sizes = LatencyEstimators(600.0), []
        for number in range(9000):
            at = 1e9 + number / 50
            latency.sent(at, number)
            latency.token_seen(at, random.random())
            latency.decoded(at, [random.random() for _ in range(8)])
            if number % 10 == 0:
                latency.decoding(at, 9)
                latency.ttft_p99_s(at)
                latency.inter_token_p99_s(at)
            if number % 1000 == 999:
                sizes.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert max(sizes[3:]) < 20_000
