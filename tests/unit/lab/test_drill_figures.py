"""From what clients and Envoy saw to the figures of a drill."""

import pytest

from trimtab.lab.drill.drills import DRILLS, Bounds, Drill, in_order
from trimtab.lab.drill.figures import Figures, Sample, Times, figures
from trimtab.lab.drill.show import HEADINGS, markdown, rows
from trimtab.sim.client import Outcome, Result
from trimtab.sim.trace import Request

ENGINES = ["a:1", "b:1", "c:1"]
TIMES = Times(struck=4, healed=12)
RATE = 10


async def _nothing(stack: object) -> None:
    pass


def a_drill(**fields: object) -> Drill:
    return Drill("", _nothing, _nothing, Bounds(), **{"struck": (0,), **fields})


def a_result(sent_s: float, ttft_s: float | None = 0.1, outcome: Outcome = Outcome.OK, status: int = 200) -> Result:
    result = Result(0, Request(sent_s, 10, 10), cut_off_s=60, sent_s=sent_s, outcome=outcome, status=status)
    if ttft_s is not None:
        result.token_s = [sent_s + ttft_s]
    result.ended_s = sent_s + 1
    return result


def steady(until_s: float = 24) -> list[Result]:
    return [a_result(number / RATE) for number in range(round(RATE * until_s))]


def samples(rate_of_a: list[tuple[float, float]], until_s: float = 24) -> list[Sample]:
    """Ten samples a second; `rate_of_a` says from when on the first engine gets how many attempts a second."""
    found, first = [], 0.0
    for tick in range(round(until_s * 10)):
        at = tick / 10
        first += [rate for since, rate in rate_of_a if since <= at][-1] / 10
        found.append(Sample(at, {"a:1": round(first), "b:1": round(at * 4), "c:1": round(at * 4)}))
    return found


def of(drill: Drill | None = None, results: list[Result] | None = None, seen: list[Sample] | None = None) -> Figures:
    return figures(drill or a_drill(), TIMES, results or steady(), seen or samples([(0, 4)]), ENGINES)


def test_a_calm_drill_has_nothing_to_report() -> None:
    seen = of(a_drill(struck=()))
    assert (seen.lost, seen.drain_s, seen.return_s) == (0, None, None)
    assert seen.added_ms == pytest.approx(0, abs=1e-6)
    assert seen.missed(Bounds(added_ms=1)) == []


def test_what_was_over_before_the_blow_does_not_count() -> None:
    early = a_result(1, outcome=Outcome.HTTP_ERROR, status=503)
    assert of(results=[early, *steady()]).lost == 0


def test_a_stream_that_ran_at_the_blow_counts() -> None:
    assert of(results=[a_result(3.5, outcome=Outcome.CUT), *steady()]).lost == 1


def test_the_promised_outcome_is_no_loss() -> None:
    bad = [a_result(5, None, Outcome.HTTP_ERROR, 429), a_result(6, None, Outcome.HTTP_ERROR, 503)]
    seen = of(a_drill(spares="http 429"), [*steady(), *bad])
    assert seen.lost == 1
    assert seen.outcomes == {"http 429": 1, "http 503": 1}


def test_added_time_is_above_the_median_of_the_calm() -> None:
    assert of(results=[*steady(), a_result(8, 1.1)]).added_ms == pytest.approx(1000)


def test_the_longest_gap_is_that_of_one_stream_since_the_blow() -> None:
    early, stalled = a_result(1), a_result(8)
    early.token_s, stalled.token_s = [1.1, 2.9], [8.1, 8.2, 9.4, 9.5]
    assert of(results=[*steady(), early, stalled]).gap_s == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [([(0, 4), (6, 0)], 1.5), ([(0, 4), (4, 1.5)], 0.0), ([(0, 4)], None)],
    ids=["after two seconds", "single tries are no work", "never"],
)
def test_drain(rates: list[tuple[float, float]], expected: float | None) -> None:
    assert of(seen=samples(rates)).drain_s == (expected if expected is None else pytest.approx(expected, abs=0.7))


@pytest.mark.parametrize(("since", "expected"), [(12, 0.0), (15, 2.5), (23.5, None)])
def test_return(since: float, expected: float | None) -> None:
    back = of(seen=samples([(0, 4), (5, 0), (since, 4)])).return_s
    assert back == (expected if expected is None else pytest.approx(expected, abs=1))


def test_attempts_per_request() -> None:
    assert of(seen=samples([(0, 2)])).attempts == pytest.approx(1, abs=0.1)
    assert of(seen=samples([(0, 12)])).attempts == pytest.approx(2, abs=0.1)


def test_a_stampede_is_in_fair_shares() -> None:
    assert of(seen=samples([(0, 4), (12, 16)])).stampede == pytest.approx(2, abs=0.1)


def test_an_unknown_figure_does_not_keep_its_bound() -> None:
    assert of(seen=samples([(0, 4)])).missed(Bounds(drain_s=5)) == ["drain_s is unknown, at most 5 promised"]


def test_the_table_has_a_heading_for_each_column() -> None:
    found = {"slow": of()}
    (row,) = rows(found)
    assert len(row) == len(HEADINGS)
    assert markdown(found).splitlines()[1].count("|") - 1 == len(HEADINGS)


def test_drills_are_named() -> None:
    assert in_order([]) == list(DRILLS)
    assert in_order(["slow", "flap", "slow"]) == ["slow", "flap"]
    with pytest.raises(ValueError, match="unknown drill snail; there are hang-before-headers, "):
        in_order(["snail"])
