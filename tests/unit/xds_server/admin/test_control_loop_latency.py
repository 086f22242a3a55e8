"""From evidence to the ACK of the weights that were decided with it."""

from collections.abc import Iterable

import pytest

from trimtab.observation.kinds import (
    AttemptEnded,
    AttemptStarted,
    ClusterChanged,
    FirstToken,
    LoadReported,
    Observation,
    Outcome,
    PrometheusSample,
    Rejected,
    Signals,
    SignalsRead,
    StreamRead,
    Verdict,
    WorkerMissed,
)
from xds_server.admin.control_loop_latency import Evidence, LoopTimes, source_of

WHERE = ("chat", "10.0.0.1:80", "r")


def rejected(at: float, *, in_stream: bool = False) -> Rejected:
    return Rejected(at, *WHERE, 503, Verdict.SATURATED, None, in_stream)


def scraped(at: float, pool: str = "chat") -> SignalsRead:
    return SignalsRead(at, pool, WHERE[1], Signals(waiting=1))


@pytest.fixture
def loop() -> LoopTimes:
    """With one Envoy, `e`, that has weights."""
    times = LoopTimes()
    assert times.acked("e", "v0") == []
    return times


def decide(loop: LoopTimes, *observations: Observation, changed: bool = True) -> None:
    for observation in observations:
        loop.seen(observation)
    loop.decided("chat", changed=changed)


def told(evidence: Iterable[Evidence]) -> dict[str, float]:
    return {piece.source: piece.at for piece in evidence}


@pytest.mark.parametrize(
    ("observation", "source"),
    [
        (AttemptStarted(1, *WHERE, 1, True), "access_log"),
        (AttemptEnded(1, *WHERE, 1, 200, Outcome.COMPLETE, True, 0.1), "access_log"),
        (FirstToken(1, *WHERE), "watch"),
        (StreamRead(1, *WHERE, (), True, None), "watch"),
        (rejected(1), "reject"),
        (rejected(1, in_stream=True), "watch"),
        (scraped(1), "scrape"),
        (SignalsRead(1, *WHERE[:2], Signals(), source="orca"), "orca"),
        (PrometheusSample(1, *WHERE[:2], "waiting", 1.0), "prometheus"),
        (LoadReported(1, "chat", "e", {}), "lrs"),
        (ClusterChanged(1, "chat"), None),
        (WorkerMissed(1, "chat"), None),
    ],
)
def test_sources(observation: Observation, source: str | None) -> None:
    assert source_of(observation) == source


def test_the_oldest_of_each_source_counts(loop: LoopTimes) -> None:
    decide(loop, scraped(10.2), rejected(10.3), scraped(10.1))
    loop.pushed("e", "v1")
    assert told(loop.acked("e", "v1")) == {"scrape": 10.1, "reject": 10.3}


def test_evidence_that_changed_nothing_does_not_count(loop: LoopTimes) -> None:
    decide(loop, scraped(10), changed=False)
    decide(loop, rejected(20))
    loop.pushed("e", "v1")
    assert told(loop.acked("e", "v1")) == {"reject": 20}


def test_each_push_answers_for_its_own_decisions(loop: LoopTimes) -> None:
    """Two are on their way when the first is answered."""
    decide(loop, scraped(10))
    loop.pushed("e", "v1")
    decide(loop, scraped(20))
    loop.pushed("e", "v2")
    assert told(loop.acked("e", "v1")) == {"scrape": 10}
    assert told(loop.acked("e", "v2")) == {"scrape": 20}


def test_an_answer_may_stand_for_several(loop: LoopTimes) -> None:
    for at in (10, 20):
        decide(loop, scraped(at))
        loop.pushed("e", f"v{at}")
    assert [piece.at for piece in loop.acked("e", "v20")] == [10, 20]


def test_a_decision_that_a_slow_envoy_never_got_waits_for_the_next(loop: LoopTimes) -> None:
    decide(loop, scraped(10))
    decide(loop, scraped(20))
    loop.pushed("e", "v2")
    assert told(loop.acked("e", "v2")) == {"scrape": 10}


def test_pools_do_not_lend_each_other_evidence(loop: LoopTimes) -> None:
    loop.seen(scraped(5, pool="embed"))
    decide(loop, scraped(10))
    loop.pushed("e", "v1")
    assert [(piece.pool, piece.at) for piece in loop.acked("e", "v1")] == [("chat", 10)]


def test_refused_weights_do_not_count(loop: LoopTimes) -> None:
    decide(loop, scraped(10))
    loop.pushed("e", "v1")
    loop.nacked("e", "v1")
    decide(loop, scraped(20))
    loop.pushed("e", "v2")
    assert told(loop.acked("e", "v2")) == {"scrape": 20}


def test_old_news_do_not_count(loop: LoopTimes) -> None:
    """An Envoy that comes is sent what was decided before; one that is there, the same again with a new cluster."""
    decide(loop, scraped(10))
    loop.pushed("e", "v1")
    loop.acked("e", "v1")
    for node in ("e", "late"):
        loop.pushed(node, "v1")
        assert loop.acked(node, "v1") == []
    loop.gone("e")
    decide(loop, scraped(20))
    loop.pushed("e", "v2")
    assert loop.acked("e", "v2") == []


def test_an_envoy_that_answers_nothing_costs_no_memory(loop: LoopTimes) -> None:
    for number in range(1000):
        decide(loop, scraped(number))
        loop.pushed("e", f"v{number}")
    assert len(loop.acked("e", "v999")) <= 64
