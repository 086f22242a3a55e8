"""Trials of half-open endpoints: one at a time, with the share of one request."""

from collections.abc import Mapping

import pytest

from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.health.exploration import Exploration

A, B, C = (EndpointId(f"10.0.0.{n}:8000", 0) for n in (1, 2, 3))
PROMPT = 1000


def views(sent: int = 0, in_flight: Mapping[EndpointId, int] | None = None) -> list[EndpointView]:
    """C has got `sent` requests; the others are half open."""
    busy = in_flight or {}
    return [
        EndpointView(
            id=id,
            name=id.address,
            capacity=None,
            prompt_bytes_mean=PROMPT,
            prompt_bytes_sent=PROMPT * sent if id is C else 0,
            in_flight=busy.get(id, 0),
        )
        for id in (A, B, C)
    ]


HALF_OPEN = frozenset({A, B})


def test_one_is_tried_until_an_attempt_is_under_way_and_then_the_next() -> None:
    trials = Exploration()
    assert trials.choose(0.0, views(), HALF_OPEN).keys() == {A}
    assert trials.choose(5.0, views(), HALF_OPEN).keys() == {A}
    assert trials.choose(5.1, views(in_flight={A: 1}), HALF_OPEN) == {}, "not a second one in the same second"
    assert trials.choose(6.1, views(in_flight={A: 1}), HALF_OPEN).keys() == {B}
    assert trials.choose(6.2, views(in_flight={A: 1, B: 1}), HALF_OPEN) == {}


def test_one_whose_attempts_end_at_once_lets_the_other_have_its_turn() -> None:
    trials = Exploration()
    trials.choose(0.0, views(), HALF_OPEN)
    trials.choose(0.1, views(in_flight={A: 1}), HALF_OPEN)
    assert trials.choose(2.0, views(), frozenset({B})).keys() == {B}
    assert trials.choose(2.1, views(in_flight={B: 1}), HALF_OPEN) == {}
    assert trials.choose(4.0, views(), HALF_OPEN).keys() == {A}


@pytest.mark.parametrize(("requests", "share"), [(0, 0.4), (1, 0.4), (10, 0.1), (100, 0.01)])
def test_the_share_is_that_of_one_request_of_an_interval(requests: int, share: float) -> None:
    trials = Exploration()
    trials.choose(0.0, views(), frozenset())
    trials.choose(0.1, views(sent=requests), frozenset())
    assert trials.choose(0.1, views(sent=requests), HALF_OPEN)[A] == pytest.approx(share)
    # What a burst brought is forgotten.
    assert trials.choose(400.0, views(sent=requests), HALF_OPEN)[A] == pytest.approx(0.4)


def test_what_must_have_been_sent_is_waited_for_although_it_is_not_seen() -> None:
    """As to an address that answers no connection: each request that goes there costs a client the time-out."""
    trials = Exploration()
    on_trial = [bool(trials.choose(0.1 * step, views(sent=2 * step), frozenset({A}))) for step in range(30)]
    first = on_trial.index(True)
    assert 2 <= on_trial[first:].index(False) <= 3
    assert 0.2 <= sum(on_trial) / len(on_trial) <= 0.3


def test_nothing_half_open_nothing_tried() -> None:
    assert Exploration().choose(0.0, views(), frozenset()) == {}
