"""Which attempts count against an endpoint, and that each counts once."""

import pytest

from tests.unit.scene import (
    A,
    Scene,
    answered,
    ended,
    failed,
    rejected,
    started,
    stream_read,
    token,
    unreachable,
)
from trimtab.endpoint.attempt_tracker import ERROR_PRIOR
from trimtab.health.state import State
from trimtab.observation.kinds import Outcome, Verdict


def share(errors: float, attempts: float) -> float:
    return errors / (attempts + ERROR_PRIOR)


SUCCESS, FAILURE, DOUBTFUL, NOTHING = (0, 1), (1, 1), (0.5, 1), (0, 0)


@pytest.mark.parametrize(
    ("end", "counts_as"),
    [
        ({}, SUCCESS),
        ({"status": 304}, NOTHING),  # what came in the place of output is compared with what others give
        ({"status": 404, "streamed": False}, NOTHING),
        ({"status": 400, "streamed": False}, NOTHING),
        ({"status": 500}, FAILURE),
        ({"status": 502}, FAILURE),
        ({"status": 504}, FAILURE),
        ({"outcome": Outcome.RESET}, FAILURE),
        ({"outcome": Outcome.RESET, "status": 0}, FAILURE),
        ({"outcome": Outcome.UNREACHABLE, "status": 0}, FAILURE),
        ({"outcome": Outcome.ABORTED}, NOTHING),
        ({"outcome": Outcome.ABORTED, "status": 0}, NOTHING),
        ({"outcome": Outcome.ABORTED, "status": 500}, FAILURE),  # Envoy drops what it retries
        ({"body_bytes": 0, "first_byte_s": None}, FAILURE),  # 200, an event stream, and not one byte
        ({"status": 204, "streamed": False}, NOTHING),
        ({"streamed": False, "content_type": "text/html"}, NOTHING),
        ({"streamed": False, "content_type": "audio/wav"}, SUCCESS),  # not known, and so no error
        ({"status": 429}, DOUBTFUL),
        ({"status": 503}, NOTHING),  # taken as full: the cool-down pays
        ({"status": 529}, NOTHING),
    ],
    ids=str,
)
@pytest.mark.parametrize("seen_to_start", [True, False])
def test_an_end_without_a_verdict(end: dict, counts_as: tuple[float, float], seen_to_start: bool) -> None:
    scene = Scene()
    scene.see(*([started(1000.0)] if seen_to_start else []), ended(1000.0, 1000.0, prompt=100, **end))
    scene.run(1002.0)
    fade = 2 ** (-2.0 / 10.0)
    view = scene.view()
    assert view.error_samples == pytest.approx(counts_as[1] * fade)
    assert view.error_share == pytest.approx(share(counts_as[0] * fade, counts_as[1] * fade))


VERDICTS = [
    ({"verdict": Verdict.SATURATED}, NOTHING, State.COOLING),
    ({"verdict": Verdict.SATURATED, "status": 503}, NOTHING, State.COOLING),
    ({"verdict": Verdict.SATURATED, "status": 500}, NOTHING, State.COOLING),
    ({"verdict": Verdict.QUOTA}, NOTHING, State.UP),
    ({"verdict": Verdict.QUOTA, "status": 503}, NOTHING, State.UP),
    ({"verdict": Verdict.DRAINING, "status": 500}, NOTHING, State.DRAINING),
    ({"verdict": Verdict.UNAVAILABLE, "status": 503}, FAILURE, State.UP),
    ({"verdict": Verdict.UNKNOWN}, DOUBTFUL, State.UP),
    ({"verdict": Verdict.UNKNOWN, "status": 503}, NOTHING, State.COOLING),
    ({"verdict": Verdict.UNKNOWN, "status": 500}, FAILURE, State.UP),
]


@pytest.mark.parametrize(("verdict", "counts_as", "state"), VERDICTS, ids=str)
@pytest.mark.parametrize("order", ["verdict first", "end first", "verdict alone first", "end alone", "verdict alone"])
def test_a_verdict_and_its_end_count_once(
    verdict: dict, counts_as: tuple[float, float], state: State, order: str
) -> None:
    scene = Scene()
    status = verdict.get("status", 429)
    start, said = started(1000.0), rejected(1000.0, **verdict)
    end = ended(1000.0, 1000.0, status=status, streamed=False)
    batches = {
        "verdict first": [[start], [said], [end]],
        "end first": [[start], [end], [said]],
        "verdict alone first": [[said], [start], [end]],
        "end alone": [[end], [said]],
        "verdict alone": [[said]],
    }[order]
    for batch in batches:
        scene.see(*batch, now=1000.0)
    assert scene.view().error_samples == pytest.approx(counts_as[1])
    assert scene.view().error_share == pytest.approx(share(*counts_as))
    assert scene.at().state == state
    scene.run(1002.0)
    assert scene.view().error_samples == pytest.approx(counts_as[1] * 2 ** (-2.0 / 10.0)), "nor later"


def test_a_verdict_is_told_at_once_although_its_attempt_is_not_known_yet() -> None:
    scene = Scene()
    scene.see(rejected(1000.0))
    scene.step()
    assert scene.at().state == State.COOLING


def test_without_a_verdict_a_refusal_is_judged_a_second_later() -> None:
    scene = Scene()
    scene.see(started(1000.0), ended(1000.1, 1000.0, status=503, streamed=False))
    assert scene.step(1000.9).endpoints[0].state == State.UP
    assert scene.step(1001.2).endpoints[0].state == State.COOLING


def test_a_verdict_that_is_told_twice_before_its_start_counts_once() -> None:
    scene = Scene()
    said = rejected(1000.0, verdict=Verdict.UNAVAILABLE, status=503)
    scene.see(said)
    scene.see(said, started(1000.0), said, ended(1000.0, 1000.0, status=503, streamed=False), said)
    assert scene.view().error_samples == pytest.approx(1.0)


def test_the_first_end_of_an_attempt_stands() -> None:
    scene = Scene()
    scene.see(started(1000.0), ended(1000.0, 1000.0, status=429, streamed=False))
    scene.see(ended(1000.1, 1000.0))
    scene.run(1002.0)
    assert scene.view().error_share > 0


def test_a_verdict_long_after_an_end_is_of_another_attempt() -> None:
    scene = Scene([A])
    scene.see(started(1000.0), ended(1000.0, 1000.0, status=429, streamed=False))
    scene.run(1005.0)
    scene.see(rejected(1005.0, verdict=Verdict.UNKNOWN), ended(1005.0, 1005.0, status=429, streamed=False))
    assert scene.view().error_samples == pytest.approx(1.0 + 2 ** (-5.0 / 10.0))


@pytest.mark.parametrize("order", ["event first", "end first", "event alone first"])
@pytest.mark.parametrize("after_token", [True, False])
@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.UNAVAILABLE])
def test_an_error_event_in_a_stream_is_one_failure(order: str, after_token: bool, verdict: Verdict) -> None:
    """But before the first token, and unless it says whose fault it is, it may tell a caller's mistake."""
    scene = Scene()
    start = [started(1000.0), *([token(1000.0)] if after_token else [])]
    said = rejected(1000.0, verdict=verdict, status=200, in_stream=True)
    end = ended(1000.0, 1000.0)
    batches = {
        "event first": [start, [said], [end]],
        "end first": [start, [end], [said]],
        "event alone first": [[said], start, [end]],
    }[order]
    for batch in batches:
        scene.see(*batch, now=1000.0)
    counts_as = FAILURE if after_token or verdict is Verdict.UNAVAILABLE else NOTHING
    view = scene.view()
    assert view.error_samples == pytest.approx(counts_as[1])
    assert view.error_share == pytest.approx(share(*counts_as))


@pytest.mark.parametrize("order", ["event first", "end first", "event alone first", "all at once"])
def test_an_error_event_that_the_gate_made_an_error_answer_is_one_failure(order: str) -> None:
    """Envoy logs the status and the content type that the gate gave it."""
    scene = Scene()
    start = started(1000.0)
    said = rejected(1000.0, verdict=Verdict.UNAVAILABLE, status=200, in_stream=True)
    end = ended(1000.0, 1000.0, status=503, streamed=False)
    batches = {
        "event first": [[start], [said], [end]],
        "end first": [[start], [end], [said]],
        "event alone first": [[said], [start], [end]],
        "all at once": [[said], [start, end]],
    }[order]
    for batch in batches:
        scene.see(*batch, now=1000.0)
    scene.run(1002.0)
    view = scene.view()
    assert view.error_samples == pytest.approx(2 ** (-2.0 / 10.0), rel=0.01)
    assert view.failures_in_row == 1


def test_an_error_event_late_in_a_stream_that_was_read_to_its_end_is_one_failure() -> None:
    scene = Scene()
    scene.see(*answered(1000.0, 0.1), stream_read(1000.11, verdict=Verdict.UNAVAILABLE))
    scene.see(stream_read(1000.11, verdict=Verdict.UNAVAILABLE))
    assert scene.view().error_share == pytest.approx(share(1, 1))
    scene.see(*answered(1000.2, 0.1, request="good"), stream_read(1000.31, request="good"))
    assert scene.view().error_share == pytest.approx(share(1, 2), rel=0.02)


def test_a_saturated_engine_that_says_so_inside_a_stream_is_cooled() -> None:
    scene = Scene()
    scene.see(started(1000.0), rejected(1000.01, status=200, in_stream=True), ended(1000.02, 1000.0))
    scene.step()
    assert (scene.at().state, scene.at().view.error_share) == (State.COOLING, 0.0)


def test_every_retry_of_a_request_is_an_attempt_of_its_own() -> None:
    scene = Scene([A])
    for i in range(3):
        at = 1000.0 + i * 0.05
        scene.see(started(at), rejected(at + 0.01, verdict=Verdict.UNKNOWN), now=at + 0.01)
        scene.see(ended(at + 0.02, at, status=429, streamed=False))
    assert scene.view().error_share == pytest.approx(share(1.5, 3), rel=0.01)


def test_errors_fade() -> None:
    scene = Scene(weighting={"breaker_failures": 1000})
    for i in range(100):
        scene.see(failed(1000.0 + i * 0.01, request=f"r{i}"))
    assert scene.view().error_share > 0.9
    worst = scene.at().score
    scores = [d.endpoints[0].score for d in scene.run(1120.0, 1.0)]
    assert scores == sorted(scores), "it is forgiven a little more at every step"
    assert worst < 61 and scene.view().error_share < 0.01 and scene.at().score > 98


def test_the_order_in_which_late_errors_come_does_not_matter() -> None:
    observations = [failed(1000.0 + i, request=f"f{i}") for i in range(2)]
    observations += [o for i in range(5) for o in answered(1000.3 + i, 0.1, request=f"s{i}")]
    forward, backward = Scene(), Scene()
    for observation in observations:
        forward.see(observation, now=1010.0)
    for observation in reversed(observations):
        backward.see(observation, now=1010.0)
    assert forward.view().error_share == pytest.approx(backward.view().error_share)


def test_unreachable_endpoints_are_counted_by_every_try() -> None:
    scene = Scene(weighting={"breaker_failures": 1000})
    scene.see(*(unreachable(1000.0 + i * 0.01, request=f"r{i}") for i in range(20)))
    assert scene.view().error_share == pytest.approx(share(20, 20), rel=0.02)
    assert scene.view().in_flight == 0
