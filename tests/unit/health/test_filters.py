"""The list of filters: its order is the precedence, and a new rule is one more filter."""

from collections.abc import Sequence
from random import Random

import pytest

from trimtab.endpoint.attempt import AttemptOutcome
from trimtab.endpoint.evidence import OutcomeSeen
from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.health.endpoint_health import EndpointHealth
from trimtab.health.filters import Filter, Objection, PerEndpoint, PoolHealth, default_filters, run
from trimtab.health.state import State
from trimtab.observation.kinds import Probed, ProbeResult, Signals
from trimtab.policy.model import Weighting

NOW = 1000.0
A, B = EndpointId("10.0.0.1:8000"), EndpointId("10.0.0.2:8000")
CONFIG = Weighting()


def pool(
    *views: EndpointView, health: dict[EndpointId, EndpointHealth] | None = None, out: str | None = None
) -> PoolHealth:
    known = {view.id: EndpointHealth() for view in views} | (health or {})
    return PoolHealth(NOW, views, known, {} if out is None else {A.address: out}, (), CONFIG)


def states(filters: Sequence[Filter], of: PoolHealth) -> list[State | None]:
    return [objection and objection.state for objection in run(filters, of).values()]


def troubled() -> EndpointHealth:
    """Everything is wrong with it at once: it leaves, its breaker is open, it is down and full."""
    health = EndpointHealth()
    health.leaving_until = NOW + 30
    health.breaker.open(NOW - 1, CONFIG)
    health.cool_down.until = NOW + 3
    for at in (NOW - 2, NOW - 1):
        health.probe_health.probed(Probed(at, "p", A.address, at - 1, ProbeResult.SILENT, None, "no token"))
    return health


def test_the_first_filter_that_objects_decides_and_without_it_the_next_one() -> None:
    filters = list(default_filters())
    view = EndpointView(A, "a", 1, signals=Signals(kv_usage=0.99))
    other = EndpointView(B, "b", 1, signals=Signals(kv_usage=0.1))
    seen = []
    while True:
        scene = pool(view, other, health={A: troubled()}, out="pod is terminating")
        if (objection := run(filters, scene)[A]) is None:
            break
        first = next(each for each in filters if A in dict(each.objections(scene, [view, other])))
        seen.append((type(first).__name__, objection.state))
        filters.remove(first)
    assert seen == [
        ("TakenOut", State.DRAINING),
        ("Leaving", State.DRAINING),
        ("Ejected", State.OPEN),
        ("Down", State.DOWN),
        ("Cooling", State.COOLING),
        ("KvCacheFull", State.FULL),
    ]


def test_nothing_speaks_against_an_endpoint_of_which_nothing_is_known() -> None:
    assert states(default_filters(), pool(EndpointView(A, "a", None))) == [None]


class AtMost(PerEndpoint):
    """Never more than so many streams at an endpoint."""

    def __init__(self, streams: int) -> None:
        self._streams = streams

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        if view.in_flight < self._streams:
            return None
        return Objection(State.FULL, None, f"full: {view.in_flight} streams of {self._streams}")


def test_a_rule_of_ones_own_is_a_filter_in_the_list() -> None:
    busy, idle = EndpointView(A, "a", 1, in_flight=4), EndpointView(B, "b", 1, in_flight=3)
    filters = (*default_filters(), AtMost(4))
    assert states(filters, pool(busy, idle)) == [State.FULL, None]
    refused = EndpointHealth()
    refused.cool_down.until = NOW + 3
    assert states(filters, pool(busy, idle, health={A: refused})) == [State.COOLING, None]


@pytest.mark.parametrize("state", State)
def test_what_follows_from_a_state_does_not_contradict_itself(state: State) -> None:
    assert not (state.is_ordinary and state.may_be_dead)
    assert not (state.counts_as_capacity and state.may_be_dead)
    assert not state.keeps_part_after_panic or not state.keeps_score


def test_a_refusal_is_a_reason_that_ends_by_itself() -> None:
    health = EndpointHealth()
    refusal = OutcomeSeen(A, NOW, NOW - 1, AttemptOutcome.REFUSED, retry_after_s=4.0, why="status 503")
    health.judged(refusal, CONFIG, Random(1))
    (objection,) = run(default_filters(), pool(EndpointView(A, "a", 1), health={A: health})).values()
    assert objection is not None
    assert objection.until is not None and objection.until >= NOW + 3
    assert objection.reason.startswith("cooling: status 503, ")
